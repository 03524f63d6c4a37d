#pragma once

// One kind of work twice in one run, by coroutines and by a hand-written loop, as a row of the table.

#include "harness.hpp"
#include "plain.hpp"

namespace bench {

using loop = plain::figures (*)(const plain::options&);

struct work {
    const char* bench;
    const char* mode;
    loop coroutines;
    loop plain;
    bool parks = false;     ///< its sleeps are columns
    bool latencies = false; ///< so are the times of single rounds, where they are not counted
};

/// Medians of three runs; a quick counted one is run once, since it repeats within 0.5 %.
row compare(const work& work, const plain::options& options, const command_line& line);

} // namespace bench
