#include "poll_backend.hpp"

#include "check.hpp"
#include "waker.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/resource.h>

namespace verbena::detail {
namespace {

constexpr unsigned everything = std::numeric_limits<unsigned>::max();
constexpr auto no_more = POLLERR | POLLHUP | POLLNVAL;
constexpr auto writing = POLLOUT | POLLWRNORM | POLLWRBAND;

class poll_backend final : public wait_backend {
  public:
    explicit poll_backend(int wake_fd) : waker_(wake_fd) {}
    ~poll_backend() override {
        for (watch* owner : owners_) slot_of(*owner) = no_slot;
    }

    result<void> start() { return add(waker_, waker_.fd(), POLLIN); }

    const char* name() const noexcept override { return "poll"; }
    result<void> add(watch& w, int fd, unsigned events) override;
    result<void> remove(watch& w) override;
    bool pending() const noexcept override { return left_ != 0 || ++unlooked_ >= poll_look_every; }
    unsigned collect(unsigned budget) override;
    result<unsigned> wait(std::optional<time_point> deadline) override;
    void wake() noexcept override { waker_.wake(); }

  private:
    bool has_room() noexcept;
    result<void> look(const timespec* timeout);
    unsigned take(pollfd& entry) noexcept;
    unsigned deliver(unsigned budget);

    waker waker_;
    std::vector<pollfd> fds_; // a slot is a place in these two; `revents` stays until its watch is told
    std::vector<watch*> owners_;
    std::size_t left_ = 0; // how many have `revents`
    std::size_t next_ = 0; // who is told next
    std::size_t room_ = 0; // RLIMIT_NOFILE when it was last asked for
    mutable unsigned unlooked_ = 0;
};

/// More descriptors than that would make every ppoll fail.
bool poll_backend::has_room() noexcept {
    if (fds_.size() < room_) return true;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) room_ = limit.rlim_cur;
    return fds_.size() < room_;
}

result<void> poll_backend::add(watch& w, int fd, unsigned events) {
    if (w.watching()) return error(errc::in_use, "watch");
    if (!has_room())
        return error(errc::resource, "ppoll")
            .with_note("it takes as many descriptors as RLIMIT_NOFILE allows: raise that with `ulimit -n`");
    if (fds_.size() == fds_.capacity()) fds_.reserve(2 * fds_.size() + 16); // before the other one may throw
    slot_of(w) = static_cast<std::uint32_t>(owners_.size());
    owners_.push_back(&w);
    fds_.push_back({.fd = fd, .events = static_cast<short>(events | POLLRDHUP), .revents = 0});
    unlooked_ = poll_look_every; // what is there already is seen in the next turn
    if (fd < 0) {                // which ppoll would leave out
        fds_.back().revents = POLLNVAL;
        ++left_;
    }
    return {};
}

result<void> poll_backend::remove(watch& w) {
    if (!w.watching()) return {};
    const std::uint32_t slot = slot_of(w);
    if (fds_[slot].revents != 0) --left_;
    fds_[slot] = fds_.back();
    owners_[slot] = owners_.back();
    slot_of(*owners_[slot]) = slot;
    slot_of(w) = no_slot;
    fds_.pop_back();
    owners_.pop_back();
    return {};
}

/// It overwrites all `revents`: only when nothing is left of the last one.
result<void> poll_backend::look(const timespec* timeout) {
    ++counters_.enters;
    unlooked_ = 0;
    const auto found = check_minus_one("ppoll", [&] { return ppoll(fds_.data(), fds_.size(), timeout, nullptr); });
    if (found)
        left_ = static_cast<std::size_t>(*found);
    else if (found.error().code() != system_code(EINTR))
        return found.error();
    return {};
}

/// The end of a descriptor lasts, and would end every sleep: it is told once. Behind the peer's hang-up nothing more
/// can come in.
unsigned poll_backend::take(pollfd& entry) noexcept {
    const unsigned events = static_cast<unsigned short>(std::exchange(entry.revents, short{0}));
    if ((events & no_more) != 0)
        entry.fd = -1;
    else if ((events & POLLRDHUP) != 0)
        entry.events &= writing;
    return (events & POLLNVAL) != 0 ? events | POLLERR : events;
}

/// One round at most, from where the last one ended, so that a budget starves nobody. Whoever is told may add and
/// remove watches: who is moved behind us waits for the next call.
unsigned poll_backend::deliver(unsigned budget) {
    unsigned told = 0;
    for (std::size_t steps = fds_.size(); steps != 0 && left_ != 0 && told < budget; --steps) {
        if (next_ >= fds_.size()) next_ = 0;
        watch& owner = *owners_[next_];
        pollfd& entry = fds_[next_++];
        if (entry.revents == 0) continue;
        --left_;
        if (&owner != &waker_) ++told;
        owner.ready(take(entry));
    }
    return told;
}

unsigned poll_backend::collect(unsigned budget) {
    constexpr timespec at_once{};
    if (left_ == 0) static_cast<void>(look(&at_once)); // a failure repeats itself in `wait`
    return deliver(budget);
}

result<unsigned> poll_backend::wait(std::optional<time_point> deadline) {
    using namespace std::chrono;
    if (left_ != 0 || !waker_.park()) return deliver(everything);
    timespec rest{};
    if (const auto now = steady_clock::now(); deadline && *deadline > now) {
        const auto whole = floor<seconds>(*deadline - now);
        rest = {.tv_sec = whole.count(), .tv_nsec = nanoseconds(*deadline - now - whole).count()};
    }
    auto looked = look(deadline ? &rest : nullptr);
    waker_.unpark();
    if (!looked) return std::move(looked).error();
    return deliver(everything);
}

} // namespace

result<std::unique_ptr<wait_backend>> make_poll_backend() {
    auto wake_fd = waker::open_eventfd();
    if (!wake_fd) return std::move(wake_fd).error();
    auto backend = std::make_unique<poll_backend>(*wake_fd);
    if (auto started = backend->start(); !started) return std::move(started).error();
    return std::unique_ptr<wait_backend>(std::move(backend));
}

} // namespace verbena::detail
