#pragma once

// The work of plain.hpp, by coroutines on reactors. The same options and figures, so that the two are compared.

#include "plain.hpp"

#include <verbena/result.hpp>
#include <verbena/wait_policy.hpp>

#include <string>

namespace coroutines {

/// Both ends on one reactor that never parks.
plain::figures busy_ping_pong(const plain::options& options);

/// Two reactors on two threads, which park as soon as nothing is there.
plain::figures parked_ping_pong(const plain::options& options);

/// An echo server for `clients` connections, with its clients, on one reactor that never parks.
plain::figures busy_echo(const plain::options& options);

/// Messages without an answer, on one reactor that never parks: `in_flight` coroutines send on each connection.
plain::figures busy_one_way(const plain::options& options);

/// Each of `in_flight` coroutines awaits one write after another, on a reactor that never parks.
plain::figures busy_writes(const plain::options& options);

/// A reactor that parks, with `idle_queues` and one more attached, in which a coroutine sleeps over and over. Its time
/// is CPU time.
plain::figures parked_idle(const plain::options& options);

/// Two reactors that park at once, on two threads, wake each other by eventfds.
plain::figures parked_eventfds(const plain::options& options);

/// A coroutine takes the messages of a generator.
plain::figures load(const plain::options& options, verbena::wait_policy wait);

/// Whether the device answers a query with the number in it, as the test devices do. `unsupported`: it has no DEVX.
verbena::result<bool> queries_echo(const std::string& device);

/// Awaited DEVX queries, on a reactor that never parks, and on one that parks as soon as nothing is there.
plain::figures busy_queries(const plain::options& options);
plain::figures parked_queries(const plain::options& options);

} // namespace coroutines
