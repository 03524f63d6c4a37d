#include <verbena/detail/broken_rule.hpp>

#include <cstdio>
#include <cstdlib>

namespace verbena::detail {

void broken_rule(const char* rule) noexcept {
    std::fprintf(stderr, "verbena: %s\n", rule);
    // Not std::terminate: its default handler adds a line of its own.
    std::abort();
}

} // namespace verbena::detail
