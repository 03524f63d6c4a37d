#pragma once

#include "client.hpp"

#include <string>

namespace kv {

struct load_options {
    address server{};
    transport_kind transport = transport_kind::tcp;
    unsigned clients = 1;
    std::uint64_t requests = 1000; ///< of each client
    client_options client{};
};

struct load_report {
    std::uint64_t requests = 0, replies = 0, reads = 0, torn = 0;
    std::uint64_t verified = 0, wrong = 0; ///< values
    std::uint64_t failed = 0;              ///< requests and connections, but for those that the server asked to end
    std::string first_failure{};

    bool clean() const noexcept { return wrong == 0 && failed == 0 && requests == replies; }
    load_report& operator+=(const load_report& other);
    std::string text() const;
};

/// Clients at the server, until all requests are made or the server asks to end. Every client
/// puts, gets, reads and erases keys of its own, whose values it knows, and puts and reads keys that all share, whose
/// values say themselves what they must be.
vb::task<load_report> run_load(vb::reactor& reactor, const vb::completion_queue& queue,
                               const vb::protection_domain& domain, const load_options& options);

} // namespace kv
