#pragma once

// The work of plain.hpp, by coroutines on reactors. The same options and figures, so that the two are compared.

#include "plain.hpp"

namespace coroutines {

/// Both ends on one reactor that never parks.
plain::figures busy_ping_pong(const plain::options& options);

/// Two reactors on two threads, which park as soon as nothing is there.
plain::figures parked_ping_pong(const plain::options& options);

/// An echo server for `clients` connections, with its clients, on one reactor that never parks.
plain::figures busy_echo(const plain::options& options);

} // namespace coroutines
