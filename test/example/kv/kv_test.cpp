// The key-value server and its clients in one process, over TCP exchange: every value is what was put, no reply is
// lost, whatever clients do to it, and a shutdown waits for what it has accepted.

#include "load.hpp"
#include "server.hpp"

#include "support/catch.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <thread>

namespace {

namespace vb = verbena;

vb::context open_device() {
    const char* wanted = std::getenv("VERBENA_DEVICE");
    return (wanted != nullptr ? vb::context::open(wanted) : vb::context::open_default()).value();
}

/// A server on threads of its own.
class running_server {
  public:
    explicit running_server(const kv::server_options& options) : thread_([this, options] { run(options); }) {
        address = {"127.0.0.1", port_.get_future().get()};
    }
    ~running_server() {
        if (thread_.joinable()) stop();
    }
    kv::metrics stop() {
        ::eventfd_write(stop_.get(), 1);
        thread_.join();
        return metrics;
    }

    const vb::context device = open_device();
    kv::address address;
    std::vector<std::string> log; ///< this and those below are to be read when it has stopped
    kv::metrics metrics;
    std::chrono::nanoseconds shutdown_took{};

  private:
    void run(const kv::server_options& options) {
        kv::server server(device, options, [this](const std::string& line) { log.push_back(line); });
        port_.set_value(server.port());
        metrics = server.run(stop_.get());
        shutdown_took = server.shutdown_took();
    }

    std::promise<std::uint16_t> port_;
    exchange::descriptor stop_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::thread thread_;
};

/// A reactor on this thread.
struct client_side {
    explicit client_side(const vb::context& device)
        : domain(vb::protection_domain::create(device).value()),
          channel(vb::completion_channel::create(device).value()),
          queue(vb::completion_queue::create(device, 1024, {.channel = channel}).value()) {
        reactor.attach(queue, slots).value();
    }
    vb::protection_domain domain;
    vb::completion_channel channel;
    vb::completion_queue queue;
    std::array<vb::poll_slot, 64> slots;
    vb::reactor reactor{{.safety_repoll = std::chrono::milliseconds{0}}};
};

/// `threads` reactors, each with the clients of `options`.
struct load_threads {
    load_threads(const running_server& server, const kv::load_options& options, unsigned threads) : reports(threads) {
        for (unsigned i = 0; i < threads; ++i)
            running.emplace_back([&server, options, &report = reports[i]] {
                client_side side(server.device);
                report = side.reactor.run(kv::run_load(side.reactor, side.queue, side.domain, options));
            });
    }
    kv::load_report join() {
        kv::load_report all;
        for (std::thread& thread : running) thread.join();
        for (const auto& report : reports) all += report;
        return all;
    }
    std::vector<kv::load_report> reports;
    std::vector<std::thread> running;
};

/// A client that says what it likes.
struct raw_client {
    raw_client(client_side& s, const running_server& server)
        : side(s), to(server.address), way(kv::make_transport(kv::transport_kind::tcp, s.reactor).value()),
          memory(vb::memory_region::allocate(s.domain, 2 * kv::message_bytes).value()),
          qp(vb::queue_pair::create(s.domain, {.send_cq = s.queue, .recv_cq = s.queue}).value()),
          inbox(vb::receiver::create(qp, {.message_bytes = kv::message_bytes}).value()) {}

    vb::task<> connect() {
        peer = (co_await way->reach(to)).value();
        (co_await peer->connect(qp)).value();
    }
    vb::task<> send(std::span<const std::byte> bytes) {
        std::ranges::copy(bytes, memory.bytes().begin());
        (co_await qp.send(memory.slice(0, bytes.size()))).value();
    }
    /// What the server answers; without a state if the connection ended.
    vb::task<std::optional<kv::status>> ask(std::span<const std::byte> bytes) {
        co_await send(bytes);
        const auto answer = co_await inbox.next();
        if (!answer) co_return std::nullopt;
        co_return kv::decode(answer->bytes().bytes()).state;
    }
    vb::task<> hello() {
        std::array<std::byte, kv::message_bytes> bytes;
        const auto size = kv::encode({.op = kv::opcode::hello}, bytes);
        const auto said = co_await ask(std::span(bytes).first(size));
        if (said != kv::status::ok) throw std::runtime_error("no welcome");
    }
    /// How many replies this side claims to have.
    vb::task<> bye(std::uint64_t replies) {
        std::array<std::byte, kv::message_bytes> bytes;
        const auto size = kv::encode({.op = kv::opcode::bye, .number = replies}, bytes);
        co_await send(std::span(bytes).first(size));
        co_await peer->ended();
        co_await peer->close();
    }

    client_side& side;
    kv::address to;
    std::unique_ptr<kv::transport> way;
    vb::memory_region memory;
    vb::queue_pair qp;
    vb::receiver inbox;
    std::unique_ptr<kv::peer> peer;
};

using nonsense = std::vector<std::pair<std::vector<std::byte>, kv::status>>;

vb::task<> say_nonsense(raw_client& c, const nonsense& all, std::vector<std::optional<kv::status>>& answers) {
    co_await c.connect();
    for (const auto& [bytes, wanted] : all) {
        const auto said = co_await c.ask(bytes);
        answers.push_back(said);
    }
    co_await c.hello();
    co_await c.bye(all.size() + 1);
}

vb::task<> vanish(client_side& side, const running_server& server) {
    raw_client hung_up(side, server), no_hello(side, server), silent(side, server);
    hung_up.peer = (co_await hung_up.way->reach(hung_up.to)).value();
    co_await hung_up.peer->close();
    co_await hung_up.peer->ended();
    co_await no_hello.connect();
    co_await no_hello.peer->ended();
    silent.peer = (co_await silent.way->reach(silent.to)).value();

    raw_client idle(side, server), busy(side, server), too_long(side, server), forgetful(side, server);
    for (raw_client* c : {&idle, &busy, &too_long, &forgetful}) {
        co_await c->connect();
        co_await c->hello();
    }
    std::array<std::byte, kv::message_bytes> bytes;
    const auto size = kv::encode({.op = kv::opcode::get, .key = "key"}, bytes);
    for (int i = 0; i < 16; ++i) (void)busy.qp.send_detached(vb::inline_data(std::span(bytes).first(size)));
    const auto sent = co_await too_long.qp.send(too_long.memory.slice());
    if (sent) throw std::runtime_error("a message that is too long arrived");
    co_await too_long.peer->ended();
    co_await idle.peer->close(); // the server hears of this alone: the queue pair is there
    co_await idle.peer->ended();
    co_await forgetful.bye(0);
}

/// The first `backlog` of `connections` keep the others out, until they hang up.
vb::task<> flood(client_side& side, const kv::address& to, std::size_t backlog, std::size_t connections) {
    std::vector<exchange::descriptor> sockets;
    for (std::size_t i = 0; i < connections; ++i) {
        auto socket = co_await exchange::connect(side.reactor, to.host, to.port);
        sockets.push_back(std::move(socket).value());
    }
    for (std::size_t i = backlog; i < connections; ++i) co_await exchange::hung_up(side.reactor, sockets[i]);
    for (std::size_t i = 0; i < backlog; ++i) {
        ::shutdown(sockets[i].get(), SHUT_WR);
        co_await exchange::hung_up(side.reactor, sockets[i]);
    }
}

kv::load_report one_client(const running_server& server, std::uint64_t requests) {
    client_side side(server.device);
    return side.reactor.run(
        kv::run_load(side.reactor, side.queue, side.domain, {.server = server.address, .requests = requests}));
}

std::size_t lines_with(const running_server& server, std::string_view text) {
    return static_cast<std::size_t>(std::ranges::count_if(
        server.log, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
}

} // namespace

TEST_CASE("kv server: 64 clients on two threads get every value that was put") {
    running_server server({.threads = 2});
    // A kernel device in an emulated guest takes a millisecond for each; programs_test makes all of them there.
    const std::uint64_t requests = server.device.name().starts_with("sim") ? 1600 : 100;
    load_threads load(server, {.server = server.address, .clients = 32, .requests = requests}, 2);
    const auto report = load.join();
    const auto metrics = server.stop();
    INFO(report.text() << "\n" << metrics.text());
    CHECK(report.clean());
    CHECK(report.requests >= 64 * requests);
    CHECK(report.verified >= 64 * requests / 3);
    CHECK(metrics.established == 64);
    CHECK(metrics.lost + metrics.undelivered + metrics.forced + metrics.vanished + metrics.rescued == 0);
    CHECK(metrics.malformed() == 0);
    CHECK(server.log.empty());
}

TEST_CASE("kv server: two buffers for all replies make clients wait, and serve them all") {
    running_server server({.credits = 4, .replies = 2});
    load_threads load(server, {.server = server.address, .clients = 16, .requests = 200}, 1);
    const auto report = load.join();
    const auto metrics = server.stop();
    INFO(report.text() << "\n" << metrics.text());
    CHECK(report.clean());
    CHECK(report.requests == 16 * 201);
    CHECK(metrics.lost + metrics.undelivered + metrics.forced == 0);
}

TEST_CASE("kv server: a shutdown under load answers what was accepted, in time") {
    // What takes milliseconds on a processor takes a thousand times as long on an emulated one.
    const bool simulated = open_device().name().starts_with("sim");
    running_server server({.threads = 2, .drain = std::chrono::seconds{simulated ? 1 : 30}});
    load_threads load(server, {.server = server.address, .clients = 32, .requests = 1'000'000'000}, 2);
    const auto first = one_client(server, 2000); // the others are busy meanwhile
    const auto metrics = server.stop();
    const auto report = load.join();
    INFO(report.text() << "\n" << metrics.text());
    CHECK(first.clean());
    CHECK(report.clean());
    CHECK(report.requests > 0);
    CHECK(metrics.forced == 0);
    CHECK(metrics.lost + metrics.undelivered + metrics.vanished == 0);
    CHECK(server.log.empty());
}

TEST_CASE("kv server: a malformed request is answered, counted, and logged once for each kind") {
    constexpr std::size_t header = kv::header_bytes;
    running_server server({});
    client_side side(server.device);
    const auto change = [](std::size_t at, auto number, std::size_t size) {
        std::vector<std::byte> bytes(kv::message_bytes);
        kv::encode({.op = kv::opcode::get, .key = "key"}, bytes);
        kv::put_number(std::span(bytes).subspan(at), number);
        bytes.resize(size);
        return bytes;
    };
    const nonsense requests{
        {change(0, std::uint32_t{1}, header + 3), kv::status::bad_magic},
        {change(4, std::uint8_t{0}, header + 3), kv::status::unknown_opcode},
        {change(4, std::uint8_t{77}, header + 3), kv::status::unknown_opcode},
        {change(4, std::uint8_t{7}, header + 3), kv::status::unknown_opcode}, // the server's goodbye
        {change(5, std::uint8_t{200}, header + 3), kv::status::unknown_opcode},
        {change(6, std::uint16_t{65}, header + 65), kv::status::key_too_long},
        {change(6, std::uint16_t{65535}, header + 3), kv::status::key_too_long},
        {change(8, std::uint32_t{1025}, header + 3 + 1025), kv::status::value_too_long},
        {change(8, ~std::uint32_t{0}, header + 3), kv::status::value_too_long},
        {change(16, std::uint64_t{1}, header + 2), kv::status::bad_length},
        {change(16, std::uint64_t{1}, header + 4), kv::status::bad_length},
        {change(16, std::uint64_t{1}, header - 1), kv::status::bad_length},
        {change(16, std::uint64_t{1}, 1), kv::status::bad_length},
    };
    std::vector<std::optional<kv::status>> said;
    raw_client client(side, server);
    side.reactor.run(say_nonsense(client, requests, said));
    const auto after = one_client(server, 100);
    const auto metrics = server.stop();

    for (std::size_t i = 0; i < requests.size(); ++i) {
        INFO("request " << i);
        CHECK(said[i] == requests[i].second);
    }
    CHECK(metrics.malformed() == requests.size());
    CHECK(after.clean());
    CHECK(metrics.lost + metrics.undelivered + metrics.vanished == 0);
    CHECK(server.log.size() == 5);
    for (const char* kind : {"bad magic", "unknown opcode", "key too long", "value too long", "bad length"})
        CHECK(lines_with(server, kind) == 1);
}

TEST_CASE("kv server: clients that vanish, early or late, harm nobody else") {
    running_server server({.handshake = std::chrono::milliseconds{200}});
    client_side side(server.device);
    side.reactor.run(vanish(side, server));
    const auto after = one_client(server, 400);
    const auto metrics = server.stop();
    INFO(metrics.text());
    CHECK(after.clean());
    CHECK(metrics.failed_handshakes == 3);
    CHECK(metrics.vanished == 3);
    CHECK(metrics.lost == 1); // the welcome that one of them denies
    CHECK(metrics.forced == 0);
    CHECK(server.log.size() == 2);
    CHECK(lines_with(server, "failed handshake") == 1);
    CHECK(lines_with(server, "vanished client") == 1);
}

TEST_CASE("kv server: a flood of connections is refused beyond the backlog, and leaves room when it is over") {
    running_server server({.backlog = 4, .handshake = std::chrono::minutes{1}});
    client_side side(server.device);
    side.reactor.run(flood(side, server.address, 4, 20));
    const auto after = one_client(server, 100);
    const auto metrics = server.stop();
    CHECK(after.clean());
    CHECK(metrics.refused == 16);
    CHECK(metrics.failed_handshakes == 4);
    CHECK(lines_with(server, "refused") == 1);
}

TEST_CASE("kv server: a port in use is an error that names the call") {
    running_server server({});
    const auto again = exchange::listen(server.address.host, server.address.port);
    REQUIRE(!again);
    CHECK(again.error().code() == std::errc::address_in_use);
    CHECK(std::string(again.error().verb()) == "bind");
}

TEST_CASE("kv store: who reads a slot that was given to another value sees it by the version, or by the checksum") {
    const auto device = open_device();
    kv::store values(vb::protection_domain::create(device).value(), 2);
    const std::vector<std::byte> old(100, std::byte{1}), fresh(100, std::byte{2});
    REQUIRE(values.put("key", old) == kv::status::ok);
    const auto told = values.locate("key").value();
    const std::span<std::byte> place(reinterpret_cast<std::byte*>(told.where.address), told.where.length);
    CHECK(kv::intact(place, told.version));
    const std::vector<std::byte> before(place.begin(), place.end());
    REQUIRE(values.put("key", fresh) == kv::status::ok); // in the other slot
    CHECK(kv::intact(place, told.version));
    REQUIRE(values.put("key", fresh) == kv::status::ok); // in this one
    CHECK(!kv::intact(place, told.version));
    for (std::size_t at = 1; at < place.size(); ++at) { // who read meanwhile, the beginning or the end first
        auto late = before, early = before;
        std::copy(place.begin(), place.begin() + static_cast<std::ptrdiff_t>(at), late.begin());
        std::copy(place.begin() + static_cast<std::ptrdiff_t>(at), place.end(),
                  early.begin() + static_cast<std::ptrdiff_t>(at));
        CAPTURE(at);
        CHECK(!kv::intact(late, told.version));
        CHECK(!kv::intact(early, told.version));
    }
    CHECK(values.put("key", fresh) == kv::status::ok);
    CHECK(values.erase("key") == kv::status::ok);
    CHECK(values.erase("key") == kv::status::not_found);
}
