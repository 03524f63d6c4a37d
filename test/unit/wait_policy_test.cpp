// A reactor under the adaptive policy on a manual clock, where every idle turn, every sleep and every wake takes the
// time that the test says: idle it parks at once after a few gaps, busy it never parks, and it goes by what its parks
// cost.

#include "support/catch.hpp"
#include "support/manual_clock.hpp"

#include "reactor_core.hpp"

#include <verbena/format.hpp>
#include <verbena/reactor.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include <poll.h>

namespace vb = verbena;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using verbena::detail::spin_budget;
using verbena::detail::time_point;

namespace {

/// What passes on the clock.
struct world {
    manual_clock clock;
    nanoseconds used{}; ///< CPU time
    nanoseconds turn = 100ns;
    nanoseconds park = spin_budget::first_cost; ///< CPU time of a park
    nanoseconds late{};                         ///< a wake-up
    nanoseconds work{};                         ///< what else a turn that finds something does
    int wakes_for_nothing = 0;                  ///< in a gap, a millisecond after the reactor fell asleep
    std::function<nanoseconds()> gap;           ///< from when it is waited for to when it is there
    nanoseconds needed{};                       ///< what the gaps cost who knows them
    nanoseconds spun{};                         ///< in turns that found nothing
};

class world_clock final : public verbena::detail::clock_source {
  public:
    explicit world_clock(world& w) noexcept : world_(w) {}
    time_point now() noexcept override { return world_.clock.now(); }
    void wait_until(time_point t) noexcept override { world_.clock.wait_until(t); }
    nanoseconds cpu_time() noexcept override { return world_.used; }

  private:
    world& world_;
};

/// Whatever descriptor is watched, it is readable after the next gap.
class scripted_backend final : public verbena::detail::wait_backend {
  public:
    explicit scripted_backend(world& w) noexcept : world_(w) {}

    const char* name() const noexcept override { return "scripted"; }
    vb::result<void> add(verbena::detail::watch& w, int, unsigned) override {
        watch_ = &w;
        slot_of(w) = 0;
        const auto gap = world_.gap();
        world_.needed += std::min(gap, world_.park);
        due_ = world_.clock.now() + gap;
        woken_for_nothing_ = 0;
        return {};
    }
    vb::result<void> remove(verbena::detail::watch& w) override {
        slot_of(w) = no_slot;
        watch_ = nullptr;
        return {};
    }
    bool pending() const noexcept override {
        world_.clock.advance(world_.turn);
        if (due()) return true;
        world_.spun += world_.turn;
        return false;
    }
    unsigned collect(unsigned) override {
        if (!due()) return 0;
        world_.clock.advance(world_.work);
        return tell();
    }
    vb::result<unsigned> wait(std::optional<time_point> deadline) override {
        ++counters_.enters;
        world_.used += world_.park;
        if (woken_for_nothing_ < world_.wakes_for_nothing) {
            ++woken_for_nothing_;
            world_.clock.advance(1ms);
            return woken_for_nothing_ % 2; // something that is no work, or nothing at all
        }
        const auto until = watch_ != nullptr ? due_ : time_point::max();
        world_.clock.wait_until(std::min(until, deadline.value_or(time_point::max())) + world_.late);
        return due() ? tell() : 0;
    }
    void wake() noexcept override {}

  private:
    bool due() const noexcept { return watch_ != nullptr && world_.clock.now() >= due_; }
    unsigned tell() noexcept {
        std::exchange(watch_, nullptr)->ready(POLLIN);
        return 1;
    }

    world& world_;
    verbena::detail::watch* watch_ = nullptr;
    time_point due_{};
    int woken_for_nothing_ = 0;
};

struct adaptive : world {
    adaptive()
        : reactor(vb::detail::access::make_reactor<vb::reactor>(
              std::make_unique<vb::detail::reactor_core>(vb::reactor_options{}, std::make_unique<world_clock>(*this),
                                                         std::make_unique<scripted_backend>(*this)))) {}

    /// So many gaps. How often the reactor slept in them.
    std::uint64_t run(int count, std::function<nanoseconds()> gaps) {
        gap = std::move(gaps);
        const auto before = reactor.stats().parks;
        reactor.run([](adaptive& a, int left) -> vb::task<> {
            for (; left > 0; --left) (co_await a.reactor.wait_readable(0)).value();
        }(*this, count));
        return reactor.stats().parks - before;
    }
    std::uint64_t run(int count, nanoseconds each) {
        return run(count, [each] { return each; });
    }

    vb::reactor reactor;
};

} // namespace

TEST_CASE("the default policy is the adaptive one, and says so", "[wait]") {
    const vb::wait_policy policy = vb::reactor_options{}.wait;
    CHECK(policy == vb::wait_policy::adaptive());
    CHECK(policy.adapts());
    CHECK(policy.parks());
    CHECK(policy.spin() == spin_budget::most_cost);
    CHECK(fmt::format("{}", policy) == "adaptive");
    const auto fixed = vb::wait_policy::spin_then_park(policy.spin());
    CHECK(fixed != policy);
    CHECK_FALSE(fixed.adapts());
    CHECK(fmt::format("{}", fixed) == "spin_then_park(100000 ns)");
}

TEST_CASE("an idle reactor parks without spinning after a few gaps", "[wait]") {
    adaptive a;
    CHECK(a.run(10, 1ms) == 10);
    CHECK(a.spun <= 10 * spin_budget::first_cost);
    a.spun = 0ns;
    const auto turns = a.reactor.stats().turns;
    CHECK(a.run(320, 1ms) == 320);
    // Two turns that found nothing in each gap, and now and then a look.
    CHECK(a.spun <= 2 * 330 * a.turn + 6 * spin_budget::first_cost);
    CHECK(a.reactor.stats().turns - turns <= 2 * 330 + 6 * 100);
}

TEST_CASE("however often a reactor is woken for nothing, it spins once in a gap", "[wait]") {
    adaptive a;
    a.wakes_for_nothing = 9;
    CHECK(a.run(1, 10ms) == 10);
    CHECK(a.spun <= spin_budget::first_cost + 12 * a.turn);
}

TEST_CASE("sleeping until a timer is a gap like any other", "[wait]") {
    adaptive a;
    const auto sleeps = [](vb::reactor& r, int count) -> vb::task<> {
        for (int i = 0; i < count; ++i) co_await r.sleep_for(1ms);
    };
    a.reactor.run(sleeps(a.reactor, 10));
    a.spun = 0ns;
    a.reactor.run(sleeps(a.reactor, 20));
    CHECK(a.reactor.stats().parks == 30);
    CHECK(a.spun <= 40 * a.turn + spin_budget::first_cost);
}

TEST_CASE("a busy reactor never parks, whatever its own work takes", "[wait]") {
    for (const nanoseconds work : {0ns, 1'000ns, 1'000'000ns}) {
        INFO("work of " << work.count() << " ns");
        adaptive a;
        a.work = work;
        CHECK(a.run(1000, 2us) == 0);
        // From idle, with a wake-up that takes longer than the gap, a few times.
        a.run(100, 1ms);
        a.late = 30us;
        CHECK(a.run(1000, 2us) <= 5);
        CHECK(a.run(1000, 2us) == 0);
    }
}

TEST_CASE("a reactor goes by what its own parks cost", "[wait]") {
    for (const nanoseconds cost : {2'000ns, 40'000ns}) {
        INFO("a park of " << cost.count() << " ns");
        adaptive a;
        a.park = cost;
        a.run(20, 1ms); // measured in the first of them
        const bool cheap = cost < 10us;
        // As many gaps of 20 us are looked through as a park is dearer than that, after the first few.
        a.run(20, 20us);
        CHECK(a.run(100, 20us) == (cheap ? 100 : 0));
    }
}

TEST_CASE("spinning and parks of a reactor cost no more than twice the optimum", "[wait]") {
    for (const unsigned seed : {1u, 2u, 3u})
        for (const nanoseconds late : {0ns, 5'000ns, 40'000ns}) {
            INFO("seed " << seed << ", woken " << late.count() << " ns late");
            std::mt19937_64 random(seed);
            const auto drawn = [&random](std::int64_t most) {
                return std::uniform_int_distribution<std::int64_t>(0, most)(random);
            };
            adaptive a;
            a.turn = 50ns;
            a.late = late;
            nanoseconds length{};
            std::uint64_t parks = 0;
            for (int run = 0; run < 200; ++run) {
                length = nanoseconds(std::int64_t{1} << drawn(20));
                a.work = nanoseconds(drawn(1000));
                parks += a.run(20, [&] { return nanoseconds(drawn(2 * length.count())); });
                // A gap is seen within two turns.
                const auto gaps = 20 * (run + 1);
                REQUIRE(a.spun + static_cast<int>(parks) * a.park <=
                        2 * a.needed + spin_budget::first_cost + 2 * gaps * a.turn);
            }
            CHECK(parks > 0);
            CHECK(parks < 4000);
        }
}
