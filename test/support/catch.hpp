#pragma once

// The common part of Catch2 v2.13 and v3, and a skip that both understand.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace support {

/// Marks the running test case as skipped. A test case that fails as well has failed.
void skip(std::string reason);

} // namespace support

/// Ends the running test case, from its own function, as skipped.
#define VERBENA_SKIP(reason)                                                                                           \
    do {                                                                                                               \
        ::support::skip(reason);                                                                                       \
        return;                                                                                                        \
    } while (false)
