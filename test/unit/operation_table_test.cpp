// Invariant: a `wr_id` finds the request that carries it now, and nothing else: not an earlier user of the entry, not a
// number of somebody else. Entries never move.

#include "support/catch.hpp"

#include "operation_table.hpp"

#include <set>
#include <vector>

using verbena::detail::operation_table;
using verbena::detail::table_entry;

TEST_CASE("a number is found while it is carried") {
    operation_table table;
    table_entry* entry = table.acquire();
    REQUIRE(entry != nullptr);
    const auto first = entry->wr_id;
    CHECK(table.find(first) == entry);
    CHECK(table.used() == 1);
    table.release(*entry);
    CHECK(table.used() == 0);
    CHECK(table.find(first) == nullptr);
    CHECK(table.ours(first));

    table_entry* again = table.acquire();
    CHECK(again == entry); // the one used last is in the cache
    CHECK(again->wr_id != first);
    CHECK(table.find(first) == nullptr);
    CHECK(table.find(again->wr_id) == again);
    table.release(*again);
    CHECK(table.find(again->wr_id) == nullptr); // free: the number that comes next is nobody's yet
}

TEST_CASE("numbers of others are not the table's") {
    operation_table table;
    table_entry* entry = table.acquire();
    int anything = 0;
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{42}, std::uint64_t{1} << 47, ~std::uint64_t{0},
          ~std::uint64_t{0} << 48, static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&anything)),
          entry->wr_id ^ std::uint64_t{1} << 48, entry->wr_id ^ std::uint64_t{1} << 63}) {
        CHECK(!table.ours(number));
        CHECK(table.find(number) == nullptr);
    }
    // Ours by its magic, but beyond the entries there are.
    const auto beyond = (entry->wr_id >> 48 << 48) | (operation_table::max_entries - 1)
                                                         << operation_table::generation_bits;
    CHECK(!table.ours(beyond));
    CHECK(table.find(beyond) == nullptr);
    operation_table empty;
    CHECK(!empty.ours(entry->wr_id));
}

TEST_CASE("growth leaves entries where they are") {
    operation_table table;
    std::vector<table_entry*> entries;
    std::vector<std::uint64_t> numbers;
    for (int i = 0; i < 5000; ++i) {
        entries.push_back(table.acquire());
        REQUIRE(entries.back() != nullptr);
        numbers.push_back(entries.back()->wr_id);
    }
    CHECK(table.used() == 5000);
    CHECK(std::set(entries.begin(), entries.end()).size() == 5000);
    CHECK(std::set(numbers.begin(), numbers.end()).size() == 5000);
    for (std::size_t i = 0; i < entries.size(); ++i)
        if (entries[i]->wr_id != numbers[i] || table.find(numbers[i]) != entries[i]) FAIL("entry " << i << " moved");
    for (std::size_t i = 0; i < entries.size(); i += 2) table.release(*entries[i]);
    CHECK(table.used() == 2500);
    for (std::size_t i = 0; i < entries.size(); ++i)
        if (table.find(numbers[i]) != (i % 2 == 0 ? nullptr : entries[i])) FAIL("entry " << i);
}

TEST_CASE("generations wrap within their bits") {
    operation_table table;
    table_entry* entry = table.acquire();
    const auto first = entry->wr_id;
    for (std::uint64_t i = 1; i < std::uint64_t{1} << operation_table::generation_bits; ++i) {
        table.release(*entry);
        entry = table.acquire();
        if (entry->wr_id == first) FAIL("used again after " << i);
    }
    CHECK(entry->wr_id >> operation_table::generation_bits == first >> operation_table::generation_bits);
    table.release(*entry);
    CHECK(table.acquire()->wr_id == first);
}

TEST_CASE("no two tables share a magic, and none is what other numbers begin with") {
    std::set<std::uint64_t> seen;
    bool good = true;
    // More tables than there are magics: past the end it begins anew.
    for (int i = 0; i < 66'000; ++i) {
        operation_table table;
        const auto magic = table.acquire()->wr_id >> 48;
        good = good && magic != 0 && magic != 0xffff;
        if (i < 65'000) good = seen.insert(magic).second && good;
    }
    CHECK(good);
    CHECK(seen.size() == 65'000);
}

TEST_CASE("a full table says so, and goes on when one is given back") {
    operation_table table;
    table_entry* last = nullptr;
    std::size_t count = 0;
    while (table_entry* entry = table.acquire()) {
        last = entry;
        ++count;
    }
    CHECK(count == operation_table::max_entries);
    CHECK(table.used() == count);
    CHECK(table.acquire() == nullptr);
    CHECK(table.find(last->wr_id) == last);
    table.release(*last);
    CHECK(table.acquire() == last);
    CHECK(table.acquire() == nullptr);
}
