// Invariant: whatever gaps come, at the end of each the spinning and the parks have cost at most twice what they would
// have cost who knew the gaps beforehand, and one park. What idles soon parks at once; what is busy spins.

#include "support/catch.hpp"

#include "spin_budget.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using verbena::detail::spin_budget;

namespace {

constexpr nanoseconds most_late = spin_budget::most_late * spin_budget::first_cost;

/// A budget and, reckoned beside it, what its gaps have cost.
struct ledger {
    /// What this gap will cost, by the rule that the budget gives now.
    nanoseconds price(nanoseconds gap) const {
        return gap < budget.spin_for() ? gap : budget.spin_for() + budget.park_cost();
    }
    nanoseconds needed(nanoseconds gap) const { return std::min(gap, budget.park_cost()); }
    bool parks(nanoseconds gap) const { return gap >= budget.spin_for(); }
    /// The wake-up of a parked thread may be late.
    void take(nanoseconds gap, nanoseconds late = 0ns) {
        const auto seen = gap + (parks(gap) ? late : 0ns);
        paid += price(gap);
        optimum += needed(gap);
        budget.observed(seen);
    }
    nanoseconds over() const { return paid - 2 * optimum; }

    spin_budget budget;
    nanoseconds paid{};
    nanoseconds optimum{};
};

/// Every gap that can be the worst in this state.
std::vector<nanoseconds> choices(const spin_budget& budget) {
    std::vector<nanoseconds> gaps{0ns, 1ns, 1h};
    for (const auto edge : {budget.spin_for(), budget.park_cost()})
        for (const auto by : {-1ns, 0ns, 1ns})
            if (edge + by > 0ns) gaps.push_back(edge + by);
    return gaps;
}

/// The gap after which, so many gaps later, most was paid over the bound.
std::pair<nanoseconds, nanoseconds> worst(const ledger& now, int depth) {
    std::pair<nanoseconds, nanoseconds> found{nanoseconds::min(), 0ns};
    for (const auto gap : choices(now.budget)) {
        ledger after = now;
        after.take(gap, spin_budget::most_late * now.budget.park_cost());
        const auto over = depth > 1 ? worst(after, depth - 1).first : after.over();
        found = std::max(found, std::pair{over, gap});
    }
    return found;
}

using generator = std::function<nanoseconds(const ledger&, int number)>;

/// The bound, after each gap.
void keeps_the_bound(const std::string& name, int gaps, const generator& next,
                     const std::function<nanoseconds()>& measured = {}, nanoseconds late = 0ns) {
    INFO(name << ", woken " << late.count() << " ns late");
    ledger l;
    for (int i = 0; i < gaps; ++i) {
        if (measured) l.budget.parked(measured());
        const auto gap = next(l, i);
        l.take(gap, late);
        INFO("gap " << i << " of " << gap.count() << " ns");
        REQUIRE(l.over() <= spin_budget::first_cost);
        REQUIRE(l.budget.spin_for() >= 0ns);
        REQUIRE(l.budget.spin_for() <= l.budget.park_cost());
    }
}

struct sequence {
    std::string name;
    generator next;
};

std::vector<sequence> sequences(std::mt19937_64& random) {
    const auto drawn = [&random](nanoseconds most) {
        return nanoseconds(std::uniform_int_distribution<nanoseconds::rep>(0, most.count())(random));
    };
    return {
        {"all short", [](const ledger&, int) { return 100ns; }},
        {"all empty", [](const ledger&, int) { return 0ns; }},
        {"all long", [](const ledger&, int) { return 1ms; }},
        {"in turn short and long", [](const ledger&, int i) { return i % 2 == 0 ? 1ns : nanoseconds(1s); }},
        {"long, and then as many short", [](const ledger&, int i) { return i / 50 % 2 == 0 ? 1ms : nanoseconds(1ns); }},
        {"just below the threshold",
         [](const ledger& l, int) { return std::max(l.budget.spin_for() - 1ns, nanoseconds(0)); }},
        {"the threshold", [](const ledger& l, int) { return l.budget.spin_for(); }},
        {"just above the threshold", [](const ledger& l, int) { return l.budget.spin_for() + 1ns; }},
        {"just below a park", [](const ledger& l, int) { return l.budget.park_cost() - 1ns; }},
        {"a park", [](const ledger& l, int) { return l.budget.park_cost(); }},
        {"just above a park", [](const ledger& l, int) { return l.budget.park_cost() + 1ns; }},
        {"above or below the threshold, whichever costs more", [](const ledger& l, int) { return worst(l, 1).second; }},
        {"the threshold, once credit was won",
         [](const ledger& l, int i) { return i % 100 < 20 ? nanoseconds(1h) : l.budget.spin_for(); }},
        {"random about a park", [drawn](const ledger& l, int) { return drawn(2 * l.budget.park_cost()); }},
        {"random, of all sizes",
         [drawn](const ledger&, int) { return drawn(nanoseconds(std::int64_t{1} << drawn(40ns).count())); }},
        {"random runs",
         [drawn, length = nanoseconds(0)](const ledger&, int i) mutable {
             if (i % 10 == 0) length = drawn(nanoseconds(std::int64_t{1} << drawn(20ns).count()));
             return length;
         }},
    };
}

void idle(spin_budget& budget, int gaps) {
    for (int i = 0; i < gaps; ++i) budget.observed(1ms);
}
void busy(spin_budget& budget, int gaps) {
    for (int i = 0; i < gaps; ++i) budget.observed(500ns);
}

} // namespace

TEST_CASE("spinning and parks cost no more than twice the optimum, whatever gaps come", "[wait]") {
    for (const unsigned seed : {1u, 2u, 3u}) {
        std::mt19937_64 random(seed);
        for (const auto late : {0ns, 1ns, 20'000ns, most_late})
            for (const auto& s : sequences(random)) keeps_the_bound(s.name, 3000, s.next, {}, late);
    }
}

TEST_CASE("the bound holds while the measured cost of a park changes", "[wait]") {
    for (const unsigned seed : {1u, 2u, 3u}) {
        std::mt19937_64 random(seed);
        const auto measured = [&random] {
            return nanoseconds(std::uniform_int_distribution<nanoseconds::rep>(0, 200'000)(random));
        };
        for (const auto& s : sequences(random)) keeps_the_bound(s.name, 3000, s.next, measured);
    }
}

TEST_CASE("the bound holds against who looks four gaps ahead, from any state", "[wait]") {
    for (const nanoseconds before : {0ns, 500ns, 15'000ns, 1'000'000ns})
        keeps_the_bound(
            "after gaps of " + std::to_string(before.count()) + " ns", 40,
            [before](const ledger& l, int i) { return i < 20 ? before : worst(l, 4).second; }, {}, most_late);
}

TEST_CASE("what idles parks at once after a few gaps, at the start and after work", "[wait]") {
    for (const int work : {0, 1, 10, 1000}) {
        INFO(work << " short gaps before");
        spin_budget budget;
        busy(budget, work);
        idle(budget, 8);
        CHECK(budget.spin_for() == 0ns);
        int late = 0;
        for (int i = 0; i < 1000; ++i) {
            idle(budget, 1);
            late += budget.spin_for() > 0ns ? 1 : 0;
        }
        CHECK(late <= 1000 / 64 + 1);
    }
}

TEST_CASE("what is busy never parks, and after idling parks a few times", "[wait]") {
    for (const int idled : {0, 5, 1000})
        for (const auto late : {0ns, 30'000ns, most_late}) {
            INFO(idled << " long gaps before, then woken " << late.count() << " ns late");
            ledger l;
            idle(l.budget, idled);
            int parks = 0;
            for (int i = 0; i < 1000; ++i) {
                parks += l.parks(500ns) ? 1 : 0;
                l.take(500ns, late);
            }
            CHECK(parks <= (idled > 0 ? 4 : 0));
            CHECK(l.budget.spin_for() == l.budget.park_cost());
        }
    // One long gap among many short ones changes nothing.
    spin_budget budget;
    for (int i = 0; i < 1000; ++i) {
        busy(budget, 20);
        idle(budget, 1);
        CHECK(budget.spin_for() == budget.park_cost());
    }
}

TEST_CASE("short gaps are found out however late the wake-ups are", "[wait]") {
    ledger l;
    idle(l.budget, 1000);
    int parks = 0;
    for (int i = 0; i < 1000; ++i) {
        parks += l.parks(500ns) ? 1 : 0;
        l.take(500ns, 10ms);
    }
    CHECK(parks < 64);
}

TEST_CASE("gaps that a late wake-up may have made are looked through first, and cost no credit", "[wait]") {
    spin_budget budget;
    idle(budget, 1000);
    int early = 0;
    for (int i = 0; i < 1000; ++i) {
        early += budget.spin_for() < budget.park_cost() ? 1 : 0;
        budget.observed(45us);
    }
    CHECK(early <= 10);
    idle(budget, 20);
    CHECK(budget.spin_for() == 0ns);
}

TEST_CASE("a park costs the median of the last five measured, within bounds and from the next gap on", "[wait]") {
    spin_budget budget;
    CHECK(budget.park_cost() == spin_budget::first_cost);
    for (int i = 0; i < 2; ++i) budget.parked(1s); // the thread did not run
    budget.observed(0ns);
    CHECK(budget.park_cost() == spin_budget::first_cost);
    for (const auto cost : {7us, 3us, 5us, 90us, 4us}) budget.parked(cost);
    CHECK(budget.park_cost() == spin_budget::first_cost);
    CHECK(budget.spin_for() == spin_budget::first_cost);
    budget.observed(0ns);
    CHECK(budget.park_cost() == 5us);
    CHECK(budget.spin_for() == 5us);
    for (int i = 0; i < 5; ++i) budget.parked(1ns);
    budget.observed(0ns);
    CHECK(budget.park_cost() == spin_budget::least_cost);
    for (int i = 0; i < 5; ++i) budget.parked(1s);
    budget.observed(0ns);
    CHECK(budget.park_cost() == spin_budget::most_cost);
}
