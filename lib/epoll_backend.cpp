#include "epoll_backend.hpp"

#include "check.hpp"
#include "process.hpp"
#include "waker.hpp"

#include <verbena/detail/list.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace verbena::detail {
namespace {

constexpr unsigned everything = std::numeric_limits<unsigned>::max();
constexpr unsigned no_more = POLLERR | POLLHUP | POLLNVAL;
constexpr unsigned writing = POLLOUT | POLLWRNORM | POLLWRBAND;
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLERR == POLLERR && EPOLLHUP == POLLHUP &&
              EPOLLRDHUP == POLLRDHUP);

class descriptor {
  public:
    explicit descriptor(int fd = -1) noexcept : fd_(fd) {}
    descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

  private:
    int fd_;
};

/// One deadline. It stays across waits, as a timeout in the ring does: one that is due no later than wanted will do.
class alarm_clock final : public watch {
  public:
    explicit alarm_clock(descriptor fd) noexcept : fd_(std::move(fd)) {}

    int fd() const noexcept { return fd_.get(); }
    /// True: the kernel was asked.
    bool set(time_point deadline) noexcept {
        using namespace std::chrono;
        if (due_ && *due_ <= deadline) return false;
        due_ = deadline;
        const auto since_boot = std::max(deadline.time_since_epoch(), time_point::duration{1}); // 0 would disarm it
        const auto whole = duration_cast<seconds>(since_boot);
        const itimerspec spec{
            .it_interval = {},
            .it_value = {.tv_sec = whole.count(), .tv_nsec = nanoseconds(since_boot - whole).count()}};
        timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr); // cannot fail so
        return true;
    }
    void ready(unsigned) noexcept override {
        std::uint64_t count = 0;
        if (::read(fd_.get(), &count, sizeof count) > 0) due_.reset();
    }

  private:
    descriptor fd_;
    std::optional<time_point> due_;
};

class epoll_backend final : public wait_backend {
  public:
    epoll_backend(descriptor epoll, descriptor timer, int wake_fd)
        : epoll_(std::move(epoll)), alarm_(std::move(timer)), waker_(wake_fd) {}
    ~epoll_backend() override {
        for (slot& s : slots_)
            if (s.owner != nullptr) slot_of(*s.owner) = no_slot;
    }

    result<void> start() {
        if (auto added = add(alarm_, alarm_.fd(), POLLIN); !added) return added;
        return add(waker_, waker_.fd(), POLLIN);
    }

    const char* name() const noexcept override { return "epoll"; }
    result<void> add(watch& w, int fd, unsigned events) override;
    result<void> remove(watch& w) override;
    bool pending() const noexcept override { return !ready_.empty() || ++unlooked_ >= epoll_look_every; }
    unsigned collect(unsigned budget) override;
    result<unsigned> wait(std::optional<time_point> deadline) override;
    void wake() noexcept override { waker_.wake(); }
    int handle() const noexcept override { return epoll_.get(); }
    bool prepare(std::optional<time_point> deadline) override;

  private:
    struct slot : slot_base { // with -1 for fd: the kernel has it no more, or never had
        descriptor twin;      // where another watch has the descriptor itself
    };

    void release(slot& s) noexcept;
    void set_alarm(std::optional<time_point> deadline) noexcept;
    void wake_up() noexcept;
    int control(int operation, slot& s) noexcept;
    int enroll(slot& s);
    void report(slot& s, unsigned events) noexcept;
    result<void> look(int milliseconds);
    unsigned deliver(unsigned budget);

    const process_mark process_;
    descriptor epoll_;
    alarm_clock alarm_;
    waker waker_;
    bool parked_ = false; // since `prepare`
    slot_table<slot> slots_;
    list<slot> ready_;
    std::vector<epoll_event> found_; // room for all
    mutable unsigned unlooked_ = 0;
};

void epoll_backend::release(slot& s) noexcept {
    s.twin = descriptor{};
    slots_.release(s);
}

/// An errno value.
int epoll_backend::control(int operation, slot& s) noexcept {
    epoll_event event{.events = s.interest | EPOLLRDHUP,
                      .data = {.u64 = std::uint64_t{s.generation} << 32 | std::uint64_t{s.index}}};
    return epoll_ctl(epoll_.get(), operation, s.fd, &event) == 0 ? 0 : errno;
}

int epoll_backend::enroll(slot& s) {
    int refused = control(EPOLL_CTL_ADD, s);
    if (refused == EEXIST) {
        s.twin = descriptor(::fcntl(s.fd, F_DUPFD_CLOEXEC, 0));
        s.fd = s.twin.get();
        refused = s.twin ? control(EPOLL_CTL_ADD, s) : errno;
    }
    return refused;
}

result<void> epoll_backend::add(watch& w, int fd, unsigned events) {
    if (w.watching()) return error(errc::in_use, "watch");
    slot& s = slots_.take(w, fd, events);
    found_.resize(slots_.size());
    unlooked_ = epoll_look_every; // what is there already is seen in the next turn
    const int refused = enroll(s);
    if (refused == 0) return {};
    s.fd = -1;
    switch (refused) {
    case EBADF: report(s, POLLERR | POLLNVAL); return {};
    case EPERM: report(s, events & (POLLIN | POLLOUT)); return {}; // a regular file: always ready
    case ENOSPC:
        release(s);
        return error(errc::resource, "epoll_ctl").with_note("raise the sysctl fs.epoll.max_user_watches");
    default: release(s); return system_error_of(refused, "epoll_ctl");
    }
}

result<void> epoll_backend::remove(watch& w) {
    if (!w.watching()) return {};
    slot& s = slots_[slot_of(w)];
    // A child of fork(2) shares the set with its parent. Nothing else can fail but for a descriptor that was closed.
    if (s.fd >= 0 && !process_.forked()) control(EPOLL_CTL_DEL, s);
    release(s);
    return {};
}

void epoll_backend::report(slot& s, unsigned events) noexcept {
    s.events = events;
    if (!s.linked()) ready_.push_back(s);
}

/// The end of a descriptor lasts, and would end every sleep: it is told once. Behind the peer's hang-up nothing more
/// can come in.
result<void> epoll_backend::look(int milliseconds) {
    result<int> found = 0;
    ++counters_.enters;
    unlooked_ = 0;
    do {
        found = check_minus_one("epoll_wait", [&] {
            return epoll_wait(epoll_.get(), found_.data(), static_cast<int>(found_.size()), milliseconds);
        });
    } while (!found && is(found.error(), EINTR)); // also by a ring of this thread that is torn down
    if (!found) return found.error();
    for (int i = 0; i < *found; ++i) {
        const epoll_event& event = found_[static_cast<std::size_t>(i)];
        slot& s = slots_[static_cast<std::uint32_t>(event.data.u64)];
        if (s.owner == nullptr || s.generation != event.data.u64 >> 32) { // its descriptor was closed before `remove`
            ++counters_.ignored;
            continue;
        }
        if ((event.events & no_more) != 0) {
            control(EPOLL_CTL_DEL, s);
            s.fd = -1;
        } else if ((event.events & POLLRDHUP) != 0) {
            s.interest &= writing;
            epoll_event less{.events = s.interest, .data = event.data};
            epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, s.fd, &less);
        }
        report(s, event.events);
    }
    return {};
}

/// One round at most: a watch that adds itself anew, with a descriptor that is always ready, must not keep it going.
unsigned epoll_backend::deliver(unsigned budget) {
    budget = std::min(budget, static_cast<unsigned>(slots_.size()));
    unsigned told = 0;
    for (auto steps = slots_.size(); steps != 0 && told < budget && !ready_.empty(); --steps) {
        slot& s = ready_.pop_front();
        if (s.owner != &waker_ && s.owner != &alarm_) ++told;
        s.owner->ready(std::exchange(s.events, 0u));
    }
    return told;
}

void epoll_backend::wake_up() noexcept {
    if (std::exchange(parked_, false)) waker_.unpark();
}

void epoll_backend::set_alarm(std::optional<time_point> deadline) noexcept {
    if (deadline && alarm_.set(*deadline)) ++counters_.enters;
}

unsigned epoll_backend::collect(unsigned budget) {
    wake_up();
    if (ready_.empty()) static_cast<void>(look(0)); // a failure repeats itself in `wait`
    return deliver(budget);
}

result<unsigned> epoll_backend::wait(std::optional<time_point> deadline) {
    wake_up();
    if (!ready_.empty() || !waker_.park()) return deliver(everything);
    set_alarm(deadline);
    auto looked = look(-1);
    waker_.unpark();
    if (!looked) return std::move(looked).error();
    return deliver(everything);
}

bool epoll_backend::prepare(std::optional<time_point> deadline) {
    if (!ready_.empty() || (!parked_ && !waker_.park())) return false;
    parked_ = true;
    set_alarm(deadline);
    unlooked_ = epoll_look_every;
    return true;
}

} // namespace

result<std::unique_ptr<wait_backend>> make_epoll_backend() {
    const auto epoll = check_minus_one("epoll_create1", [] { return epoll_create1(EPOLL_CLOEXEC); });
    if (!epoll) return epoll.error();
    descriptor set(*epoll);
    const auto timer =
        check_minus_one("timerfd_create", [] { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC); });
    if (!timer) return timer.error();
    descriptor alarm(*timer);
    auto wake_fd = waker::open_eventfd();
    if (!wake_fd) return std::move(wake_fd).error();
    auto backend = std::make_unique<epoll_backend>(std::move(set), std::move(alarm), *wake_fd);
    if (auto started = backend->start(); !started) return std::move(started).error();
    return std::unique_ptr<wait_backend>(std::move(backend));
}

} // namespace verbena::detail
