#pragma once

// A peer without a reactor, and what tests of endings need: children that can be destroyed one by one, and a log of how
// often and with what operations were resumed.

#include "rig.hpp"

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

namespace support {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif
#else
inline constexpr bool sanitized = false;
#endif

/// A number of rounds, fewer where they are slow.
inline std::uint64_t rounds(std::uint64_t wanted) {
    const char* divisor = std::getenv("VERBENA_TEST_DIVISOR");
    return divisor != nullptr ? wanted / std::strtoull(divisor, nullptr, 10) : wanted;
}

/// What every failure of a public function has.
inline void check_failure(const vb::error& e, vb::errc wanted) {
    INFO(e.message());
    CHECK(e == wanted);
    CHECK(e.code().value() != 0);
    REQUIRE(std::string_view(e.verb()) != "");
    CHECK(e.message().find(e.verb()) == 0);
}
inline bool names(const vb::error& e, std::string_view text) { return e.message().find(text) != std::string::npos; }

/// How operations ended.
struct ending_log {
    unsigned successes = 0;
    std::vector<vb::error> failures;

    template <class T>
    void add(const vb::result<T>& outcome) {
        if (outcome)
            ++successes;
        else
            failures.push_back(outcome.error());
    }
    std::size_t resumes() const { return successes + failures.size(); }
};

inline vb::task<> receive(const vb::queue_pair& qp, vb::memory_slice into, ending_log& log) {
    const auto got = co_await qp.recv(into);
    log.add(got);
}
inline vb::task<> transmit(const vb::queue_pair& qp, vb::memory_slice from, ending_log& log) {
    const auto sent = co_await qp.send(from);
    log.add(sent);
}

/// One child each, so that they can be destroyed in any order.
class children {
  public:
    void spawn(vb::task<> task) { scopes_.emplace_back(std::make_unique<vb::scope>())->spawn(std::move(task)); }
    void destroy(std::size_t index) { scopes_[index].reset(); }
    void destroy_newest_first() {
        while (!scopes_.empty()) scopes_.pop_back();
    }
    void destroy_oldest_first() {
        for (auto& scope : scopes_) scope.reset();
        scopes_.clear();
    }

  private:
    std::vector<std::unique_ptr<vb::scope>> scopes_;
};

using numbers_of = std::vector<std::vector<std::uint64_t>>;

/// Coroutines each of which waits for one event of a stream, and notes its number.
template <class Stream, auto number_of>
struct event_waits {
    explicit event_waits(Stream& of) : stream(of) {}
    void add(std::stop_token token = {}) {
        logs.emplace_back();
        waiting.spawn(wait(*this, logs.size() - 1, std::move(token)));
    }
    static vb::task<> wait(event_waits& own, std::size_t index, std::stop_token token) {
        typename decltype(own.stream.next())::result_type got = vb::error();
        if (token.stop_possible())
            got = co_await vb::with_stop(own.stream.next(), token);
        else
            got = co_await own.stream.next();
        if (got)
            own.logs[index].push_back(number_of(*got));
        else
            own.ends.push_back(got.error());
        if (own.on_first) std::exchange(own.on_first, {})();
    }

    Stream& stream;
    numbers_of logs; ///< the numbers that each wait got
    std::vector<vb::error> ends;
    std::function<void()> on_first; ///< called by the first that is resumed
    children waiting;
};

template <class Condition>
void turn_until(vb::reactor& reactor, Condition condition) {
    while (!condition()) reactor.poll().value();
}
/// Enough turns for everything that is ready to be resumed, and what that makes ready. On epoll(7) one of 64 looks at
/// descriptors.
inline void some_turns(vb::reactor& reactor) {
    const int turns = reactor.stats().backend == std::string_view("epoll") ? 72 : 8;
    for (int i = 0; i < turns; ++i) reactor.poll().value();
}

/// Posted to and polled by hand. Its calls return when the device is done.
struct hand_end {
    explicit hand_end(const vb::protection_domain& domain, vb::queue_pair_options options = pair_options())
        : cq(vb::completion_queue::create(domain.context(), 128).value()),
          qp(make_pair_end(domain, cq, std::move(options))),
          buffer(vb::memory_region::allocate(domain, 4096,
                                             vb::access_flags::local_write | vb::access_flags::remote_write |
                                                 vb::access_flags::remote_read | vb::access_flags::remote_atomic)
                     .value()) {}

    void post_receives(unsigned count, std::uint32_t bytes = 64) {
        for (unsigned i = 0; i < count; ++i) qp.post(vb::recv_request{buffer.slice(0, bytes)}, 1).value();
    }
    /// The next completion. That of a send comes after the peer's receive has completed.
    vb::work_completion finish() {
        for (;;) {
            const auto polled = cq.poll(slots).value();
            if (!polled.empty()) return polled[0];
        }
    }
    vb::work_completion send(std::uint32_t bytes = 64) {
        qp.post(vb::send_request{buffer.slice(0, bytes)}, 2).value();
        return finish();
    }

    std::array<vb::poll_slot, 1> slots;
    vb::completion_queue cq;
    vb::queue_pair qp;
    vb::memory_region buffer;
};

} // namespace support
