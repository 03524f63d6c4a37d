#include "arguments.hpp"
#include "server.hpp"

#include <sys/signalfd.h>

#include <csignal>
#include <cstdio>

namespace {

constexpr const char* help =
    R"(A key-value server over RDMA. SIGTERM or SIGINT ends it, when every client has its replies.

  --listen ADDRESS:PORT   where clients come to; port 0 is any that is free (127.0.0.1:0)
  --transport tcp|cm      how queue pairs get connected: by an exchange over TCP, or by rdma_cm (tcp)
  --device NAME           the RDMA device (the first that has an active port)
  --threads N             reactors, each with a thread of its own (1)
  --drain MILLISECONDS    how long clients have to finish when it ends (1000)

Exit status: 0 if no reply was lost and every client ended in time, else 1; 2 if it could not run.
)";

/// Readable when the process is to end. Blocked here, before there are threads, which inherit that.
exchange::descriptor termination() {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGTERM);
    ::sigaddset(&signals, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    return exchange::descriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

int serve(int count, char** words) {
    kv::server_options options;
    std::string device;
    kv::arguments known;
    known.place("--listen", options.listen).transport("--transport", options.transport);
    int drain = 1000;
    known.text("--device", device).number("--threads", options.threads).number("--drain", drain);
    if (!known.parse_all(count, words, help)) return 0;
    options.drain = std::chrono::milliseconds{drain};

    const auto stop = termination();
    kv::server server(kv::open_device(device), options,
                      [](const std::string& line) { fmt::print(stderr, "kv_server: {}\n", line); });
    fmt::print("listening at port {}\n", server.port());
    std::fflush(stdout);
    const auto metrics = server.run(stop.get());
    fmt::print("{}shutdown took {} ms\n", metrics.text(),
               std::chrono::duration_cast<std::chrono::milliseconds>(server.shutdown_took()).count());
    return metrics.clean() ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
    return kv::guarded([&] { return serve(count, words); });
}
