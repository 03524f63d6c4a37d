#include "ring.hpp"

#include "check.hpp"
#include "process.hpp"
#include "waker.hpp"

#include <verbena/detail/list.hpp>

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <poll.h>

namespace verbena::detail {
namespace {

// From Linux 6.1, from 5.19, any. All are for one submitting thread. With DEFER_TASKRUN completions are made only
// inside io_uring_enter; TASKRUN_FLAG tells, without a system call, that there are some to be made.
constexpr unsigned ladder[] = {
    IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
    0,
};

constexpr unsigned everything = std::numeric_limits<unsigned>::max();

/// What a request's user_data says: its kind, its slot and the generation of that slot when it was made.
struct tag {
    enum kind : std::uint32_t { poll, cancel, timeout, update };

    kind what;
    std::uint32_t slot;
    std::uint32_t generation;

    std::uint64_t encoded() const noexcept { return std::uint64_t{generation} << 32 | std::uint64_t{slot} << 2 | what; }
    static tag decoded(std::uint64_t data) noexcept {
        return {static_cast<kind>(data & 3), static_cast<std::uint32_t>(data) >> 2,
                static_cast<std::uint32_t>(data >> 32)};
    }
};

class ring final : public wait_backend {
  public:
    ring(const io_uring& made, int wake_fd) : ring_(made), waker_(wake_fd) {}
    ~ring() override {
        // The kernel takes a ring down later, from a thread of its own. What it then had to cancel would hold its files
        // until then, and could delay the completions of this thread's next ring.
        for (slot& s : slots_)
            if (s.owner != nullptr) static_cast<void>(remove(*s.owner));
        io_uring_queue_exit(&ring_);
    }

    result<void> start() { return add(waker_, waker_.fd(), POLLIN); }

    const char* name() const noexcept override { return "io_uring"; }
    result<void> add(watch& w, int fd, unsigned events) override;
    result<void> remove(watch& w) override;
    bool pending() const noexcept override { return arrived() || io_uring_sq_ready(&ring_) != 0; }
    unsigned collect(unsigned budget) override;
    result<unsigned> wait(std::optional<time_point> deadline) override;
    void wake() noexcept override { waker_.wake(); }

  private:
    enum class arming { armed, ended, failed }; // armed: the kernel has the poll, or will with the next submit

    struct slot : slot_base {
        arming state = arming::ended;

        tag as(tag::kind what) const noexcept { return {what, index, generation}; }
    };

    bool kernel_has_more() const noexcept {
        return (IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
    }
    bool arrived() const noexcept {
        return !ready_.empty() || io_uring_cq_ready(&ring_) != 0 || kernel_has_more() || recovered_ != counters_.losses;
    }

    io_uring_sqe* next_sqe(tag t);
    bool arm(slot& s);
    bool set_timeout(time_point deadline);
    result<void> cancel(slot& s);
    void rearm_all();

    result<void> enter(unsigned wait_for);
    unsigned reap();
    void dispatch(const io_uring_cqe& cqe);
    void polled(const tag& t, int answer, bool more);
    void gather();
    unsigned deliver(unsigned budget);

    const process_mark process_;
    io_uring ring_;
    waker waker_;
    slot_table<slot> slots_;
    list<slot> ready_;
    std::optional<time_point> timeout_; // when the one timeout that is in the ring expires
    std::uint32_t timeout_generation_ = 0;
    __kernel_timespec timeout_spec_{}; // read at submission
    std::optional<int> cancelled_;     // the kernel's answer to the cancel that `remove` waits for
    std::uint64_t cancel_tag_ = 0;
    std::uint64_t recovered_ = 0; // how many of counters_.losses have been made good
};

/// Null if the queue is full and the kernel takes nothing at the moment.
io_uring_sqe* ring::next_sqe(tag t) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    for (int attempt = 0; sqe == nullptr && attempt < 2; ++attempt) {
        // Before Linux 5.19 a backlog of completions makes a submit fail with EBUSY: make room for them as well.
        if (!enter(0)) return nullptr;
        reap();
        sqe = io_uring_get_sqe(&ring_);
    }
    if (sqe != nullptr) {
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, t.encoded());
    }
    return sqe;
}

bool ring::arm(slot& s) {
    ++s.generation;
    io_uring_sqe* sqe = next_sqe(s.as(tag::poll));
    if (sqe == nullptr) return false;
    io_uring_prep_poll_multishot(sqe, s.fd, s.interest);
    io_uring_sqe_set_data64(sqe, s.as(tag::poll).encoded());
    s.state = arming::armed;
    return true;
}

result<void> ring::add(watch& w, int fd, unsigned events) {
    if (w.watching()) return error(errc::in_use, "watch");
    slot& s = slots_.take(w, fd, events);
    if (arm(s)) return {};
    slots_.release(s);
    return error(errc::resource, "io_uring_enter");
}

result<void> ring::remove(watch& w) {
    if (!w.watching()) return {};
    slot& s = slots_[slot_of(w)];
    const bool held = s.state == arming::armed && !process_.forked();
    auto answer = held ? cancel(s) : result<void>{};
    slots_.release(s);
    return answer;
}

/// A pending poll holds its file: closing the descriptor would not release it. So cancel, and wait for the poll's last
/// completion, which may be a readiness that came first. The others' completions go to the ready list.
result<void> ring::cancel(slot& s) {
    const std::uint64_t poll = s.as(tag::poll).encoded();
    const tag mine = s.as(tag::cancel);
    cancel_tag_ = mine.encoded();
    cancelled_.reset();
    std::optional<std::uint64_t> losses; // the answer may be among what was dropped: then ask again
    for (int looked_again = 0; !cancelled_ || s.state == arming::armed;) {
        if (losses != counters_.losses) {
            losses = counters_.losses;
            io_uring_sqe* sqe = next_sqe(mine);
            if (sqe == nullptr) return error(errc::resource, "io_uring_enter");
            io_uring_prep_cancel64(sqe, poll, 0);
            io_uring_sqe_set_data64(sqe, mine.encoded());
        }
        // Not found: the last completion has been made, and needs at most one more look. If it never comes (the kernel
        // dropped it for lack of memory), nothing holds the file all the same.
        const bool made = cancelled_ == -ENOENT;
        if (made && looked_again++ == 2) break;
        if (auto entered = enter(made ? 0 : 1); !entered) return entered;
        reap();
    }
    return {};
}

/// One timeout stays in the ring across waits. One that is due no later than `deadline` will do, at the price of an
/// early return; a later one is moved. An expired one is gone.
bool ring::set_timeout(time_point deadline) {
    if (timeout_ && *timeout_ <= deadline) return true;
    using namespace std::chrono;
    const auto since_boot = std::max(deadline.time_since_epoch(), time_point::duration::zero());
    const auto whole = duration_cast<seconds>(since_boot);
    const bool move = timeout_.has_value();
    if (!move) ++timeout_generation_;
    const tag mine{tag::timeout, 0, timeout_generation_};
    io_uring_sqe* sqe = next_sqe(mine);
    if (sqe == nullptr) return false;
    timeout_spec_ = {.tv_sec = whole.count(), .tv_nsec = nanoseconds(since_boot - whole).count()};
    timeout_ = deadline;
    // steady_clock is CLOCK_MONOTONIC, the clock of an absolute timeout without another flag.
    if (!move) {
        io_uring_prep_timeout(sqe, &timeout_spec_, 0, IORING_TIMEOUT_ABS);
        io_uring_sqe_set_data64(sqe, mine.encoded());
        return true;
    }
    // The answer to a move would end the wait; a failed move answers always, and then the timeout has just expired.
    io_uring_prep_timeout_update(sqe, &timeout_spec_, mine.encoded(), IORING_TIMEOUT_ABS);
    io_uring_sqe_set_data64(sqe, tag{tag::update, 0, timeout_generation_}.encoded());
    if ((ring_.features & IORING_FEAT_CQE_SKIP) != 0) io_uring_sqe_set_flags(sqe, IOSQE_CQE_SKIP_SUCCESS);
    return true;
}

/// Submits what is queued, and waits for `wait_for` completions. What happened is to be read from the ring: a signal or
/// a short submit hides behind the count that the call answers.
result<void> ring::enter(unsigned wait_for) {
    ++counters_.enters;
    const int answer =
        wait_for != 0 ? io_uring_submit_and_wait(&ring_, wait_for) : io_uring_submit_and_get_events(&ring_);
    if (answer >= 0 || answer == -EINTR || answer == -EAGAIN || answer == -EBUSY) return {};
    if (answer == -EBADR) { // for lack of memory
        ++counters_.losses;
        return {};
    }
    if (answer == -EEXIST) return error(errc::wrong_thread, "io_uring_enter");
    return system_error_of(-answer, "io_uring_enter");
}

unsigned ring::reap() {
    unsigned count = 0;
    unsigned head = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
        dispatch(*cqe);
        ++count;
    }
    io_uring_cq_advance(&ring_, count);
    return count;
}

void ring::dispatch(const io_uring_cqe& cqe) {
    const tag t = tag::decoded(cqe.user_data);
    switch (t.what) {
    case tag::poll: return polled(t, cqe.res, (cqe.flags & IORING_CQE_F_MORE) != 0);
    case tag::cancel:
        if (cqe.user_data == cancel_tag_) cancelled_ = cqe.res;
        return;
    case tag::timeout:
        if (t.generation == timeout_generation_)
            timeout_.reset();
        else
            ++counters_.ignored;
        return;
    case tag::update: return;
    }
}

void ring::polled(const tag& t, int answer, bool more) {
    if (t.slot >= slots_.size() || slots_[t.slot].owner == nullptr || slots_[t.slot].generation != t.generation ||
        slots_[t.slot].state != arming::armed) {
        ++counters_.ignored;
        return;
    }
    slot& s = slots_[t.slot];
    if (!more) s.state = answer < 0 ? arming::failed : arming::ended;
    s.events |= answer >= 0 ? static_cast<unsigned>(answer) : answer == -EBADF ? POLLERR | POLLNVAL : POLLERR;
    if (!s.linked()) ready_.push_back(s);
}

/// Takes in everything the kernel has: it hands over a CQ ring's worth at a time, newer ones 20 requests at a time.
/// Each registration can be reported once; a source that never rests does not keep us here.
void ring::gather() {
    reap();
    for (std::size_t rounds = slots_.size() + 8; kernel_has_more() && rounds != 0; --rounds) {
        ++counters_.enters;
        const int answer = io_uring_get_events(&ring_);
        if (answer == -EBADR) ++counters_.losses;
        if (reap() == 0 && answer < 0 && answer != -EINTR && answer != -EBADR) break;
    }
    if (std::exchange(recovered_, counters_.losses) != counters_.losses) rearm_all();
}

/// After a loss nobody knows which polls have ended. Arming anew reports what is there.
void ring::rearm_all() {
    for (slot& s : slots_) {
        if (s.owner == nullptr || s.state != arming::armed) continue;
        if (io_uring_sqe* sqe = next_sqe(s.as(tag::cancel))) {
            io_uring_prep_cancel64(sqe, s.as(tag::poll).encoded(), 0);
            io_uring_sqe_set_data64(sqe, s.as(tag::cancel).encoded());
        }
        s.state = arming::ended;
        if (!s.linked()) ready_.push_back(s);
    }
    timeout_.reset();
}

/// A watch is armed again before it is told, so that it may remove itself; the submit comes after it has taken what is
/// there, so that nothing is reported twice. One call makes one round at most: watches that add themselves anew must
/// not keep it going.
unsigned ring::deliver(unsigned budget) {
    budget = std::min(budget, static_cast<unsigned>(slots_.size()));
    unsigned told = 0;
    while (told < budget && !ready_.empty()) {
        slot& s = ready_.front();
        if (s.state == arming::ended) {
            if (!arm(s)) break; // stays on the list, which is another reason for `pending`
            ++counters_.rearmed;
        }
        s.unlink();
        const unsigned events = std::exchange(s.events, 0u);
        if (events == 0) continue;
        if (s.owner != &waker_) ++told;
        s.owner->ready(events);
    }
    return told;
}

unsigned ring::collect(unsigned budget) {
    if (io_uring_sq_ready(&ring_) != 0) static_cast<void>(enter(0)); // a failure repeats itself in `wait`
    gather();
    return deliver(budget);
}

result<unsigned> ring::wait(std::optional<time_point> deadline) {
    if (arrived()) return collect(everything);
    if (deadline && !set_timeout(*deadline)) return error(errc::resource, "io_uring_enter");
    if (!waker_.park()) return collect(everything);
    auto entered = enter(1);
    waker_.unpark();
    if (!entered) return std::move(entered).error();
    gather();
    return deliver(everything);
}

error setup_error(int value) {
    error e = system_error_of(value, "io_uring_setup");
    switch (value) {
    case ENOSYS:
        return e.with_note("this kernel was built without io_uring, or a sandbox or the seccomp profile of a container "
                           "engine hides it; Linux 5.13 or newer is needed");
    case EPERM:
    case EACCES:
        return e.with_note("io_uring is forbidden here: set the sysctl kernel.io_uring_disabled to 0 (with 1 the group "
                           "of kernel.io_uring_group may), and let the seccomp profile of a container engine pass "
                           "io_uring_setup, io_uring_enter and io_uring_register");
    case EMFILE:
    case ENFILE: return e.with_note("descriptors have run out: raise RLIMIT_NOFILE with `ulimit -n` or LimitNOFILE=");
    default: return e;
    }
}

} // namespace

result<std::unique_ptr<wait_backend>> make_ring(const ring_options& options) {
    io_uring made{};
    int answer = -EINVAL;
    for (unsigned rung = options.first_rung; rung < std::size(ladder) && answer == -EINVAL; ++rung) {
        // The ring descriptor is not registered with the thread: that saves nothing measurable, and would keep the ring
        // and every polled file alive until this thread ends if another one destroys the ring.
        io_uring_params params{};
        params.flags = ladder[rung] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
        params.cq_entries = options.cq_entries;
        answer = io_uring_queue_init_params(options.entries, &made, &params);
    }
    if (answer < 0) return setup_error(-answer);
    auto wake_fd = waker::open_eventfd();
    if (!wake_fd || (made.features & IORING_FEAT_RSRC_TAGS) == 0) { // as old as multishot polls
        io_uring_queue_exit(&made);
        if (!wake_fd) return std::move(wake_fd).error();
        ::close(*wake_fd);
        return error(errc::unsupported, "io_uring_setup").with_note("Linux 5.13 or newer is needed");
    }
    auto backend = std::make_unique<ring>(made, *wake_fd);
    if (auto started = backend->start(); !started) return std::move(started).error();
    return std::unique_ptr<wait_backend>(std::move(backend));
}

} // namespace verbena::detail
