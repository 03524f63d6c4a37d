// What a pending operation takes, as lib/README.md says it. Prints the numbers of this build.

#include "support/catch.hpp"

#include "completion_pump.hpp"
#include "operation_table.hpp"
#include "queue_pair_core.hpp"
#include "receiver_core.hpp"
#include "verbs/states.hpp"

#include <verbena/verbena.hpp>

#include <cstddef>
#include <cstdio>

namespace vb = verbena;
namespace detail = verbena::detail;

namespace {

/// What `co_await` of it in a task puts into the frame: the description, and its awaiter.
template <class Operation>
constexpr std::size_t in_frame = sizeof(Operation) + sizeof(detail::stoppable_wait<Operation>);

} // namespace

TEST_CASE("what a pending operation takes") {
    const struct {
        const char* what;
        std::size_t bytes;
        std::size_t most;
    } sizes[] = {
        {"a place in a queue pair's queue, taken or not", sizeof(detail::queue_entry) + sizeof(void*), 24},
        {"a posted receive of a shared queue, in its reactor's table", sizeof(detail::table_entry), 24},
        {"a receive that a receiver keeps posted, besides", sizeof(detail::receiver_core::slot_state), 80},
        {"a send, in the frame", in_frame<vb::send_operation>, 384},
        {"a receive, in the frame", in_frame<vb::recv_operation>, 384},
        {"flushed, in the frame", in_frame<vb::flush_operation>, 192},
        {"receiver.next, in the frame", in_frame<vb::next_operation>, 80},
        {"sleep_for, in the frame", in_frame<vb::sleep_operation>, 160},
        {"wait_readable, in the frame", in_frame<vb::readable_operation>, 208},
        {"a queue pair", sizeof(detail::queue_pair_core), 768},
        {"an attached completion queue", sizeof(detail::attached_queue) + sizeof(detail::completion_queue_state), 256},
    };
    for (const auto& [what, bytes, most] : sizes) {
        std::printf("%s: %zu bytes\n", what, bytes);
        INFO(what);
        CHECK(bytes <= most);
    }
}
