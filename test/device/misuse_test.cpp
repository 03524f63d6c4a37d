// Whatever cannot be right is refused with the verb, a code, and what to do about it; nothing is lost by the attempt.

#include "by_hand.hpp"

#include "support/aborts.hpp"
#include "support/refused_call.hpp"

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::check_failure;
using support::ending_log;

namespace {

constexpr std::uint32_t message_bytes = 64;

// What `f` returns, called in a process of its own.
template <class F>
std::string in_child(F f) {
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t process = fork();
    if (process == 0) {
        std::string text;
        try {
            text = f();
        } catch (const std::exception& e) {
            text = std::string("threw ") + e.what();
        }
        for (std::size_t at = 0; at < text.size();) {
            const auto written = write(ends[1], text.data() + at, text.size() - at);
            if (written <= 0) break;
            at += static_cast<std::size_t>(written);
        }
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[256];
    for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(got));
    close(ends[0]);
    waitpid(process, nullptr, 0);
    return text;
}

vb::error first_failure(vb::reactor& reactor, vb::task<> task, const ending_log& log) {
    reactor.run(std::move(task));
    return log.failures.empty() ? vb::error{} : log.failures.back();
}

} // namespace

TEST_CASE("sizes and numbers out of range") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto limit = static_cast<std::size_t>(device.attributes().max_cqe);
    for (const std::size_t capacity : {std::size_t{0}, limit + 1, std::size_t{INT_MAX} + 1, SIZE_MAX})
        check_failure(vb::completion_queue::create(device, capacity).error(), vb::errc::invalid_argument);
    for (const int vector : {-1, device.native_handle()->num_comp_vectors, INT_MAX})
        check_failure(vb::completion_queue::create(device, 16, {.comp_vector = vector}).error(),
                      vb::errc::invalid_argument);

    const auto domain = vb::protection_domain::create(device).value();
    const auto cq = vb::completion_queue::create(device, 64).value();
    const auto refused = [&](auto change) {
        vb::queue_pair_options options = support::pair_options();
        options.send_cq = options.recv_cq = cq;
        change(options);
        const auto qp = vb::queue_pair::create(domain, options);
        REQUIRE(!qp);
        return qp.error();
    };
    const auto most = static_cast<std::uint32_t>(device.attributes().max_qp_wr);
    check_failure(refused([&](auto& o) { o.max_send = most + 1; }), vb::errc::invalid_argument);
    check_failure(refused([](auto& o) { o.max_send = o.max_recv = 0; }), vb::errc::invalid_argument);
    check_failure(refused([](auto& o) { o.max_send_slices = 0; }), vb::errc::invalid_argument);
    check_failure(refused([](auto& o) { o.max_recv_slices = 1'000'000; }), vb::errc::invalid_argument);
    const auto inline_refused = refused([](auto& o) { o.max_inline = 1'000'000; });
    check_failure(inline_refused, vb::errc::invalid_argument);
    CHECK(std::string_view(inline_refused.verb()) == "ibv_create_qp");
    check_failure(refused([](auto& o) { o.port = 200; }), vb::errc::not_found);
    check_failure(refused([](auto& o) { o.gid_index = 200; }), vb::errc::invalid_argument);
    check_failure(refused([](auto& o) { o.send_cq = {}; }), vb::errc::invalid_argument);
    // None of the failures has kept what it had reserved.
    for (int i = 0; i < 2; ++i) {
        auto a = support::make_pair_end(domain, cq, support::pair_options(16));
        auto b = support::make_pair_end(domain, cq, support::pair_options(16));
    }
}

TEST_CASE("an unknown device: the error lists those there are") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto opened = vb::context::open("no-such-device");
    REQUIRE(!opened);
    check_failure(opened.error(), vb::errc::not_found);
    for (const auto& name : vb::context::list().value()) CHECK(support::names(opened.error(), name));
}

TEST_CASE("attaching: no slots, twice, to two reactors, without a channel, polling by hand") {
    VERBENA_REQUIRE_DEVICE(device);
    std::array<vb::poll_slot, 4> slots;
    const vb::reactor_options parks{.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms};
    vb::reactor reactor(parks), other(parks);
    const auto channel = vb::completion_channel::create(device).value();
    const auto cq = vb::completion_queue::create(device, 16, {.channel = channel}).value();
    const auto second = vb::completion_queue::create(device, 16, {.channel = channel}).value();
    const auto silent = vb::completion_queue::create(device, 16).value();
    check_failure(reactor.attach(cq, {}).error(), vb::errc::invalid_argument);
    check_failure(reactor.attach({}, slots).error(), vb::errc::invalid_argument);
    check_failure(reactor.attach(silent, slots).error(), vb::errc::invalid_argument);
    check_failure(reactor.detach(cq).error(), vb::errc::not_attached);
    CHECK(!cq.attached());
    CHECK(cq.poll(slots).has_value());
    reactor.attach(cq, slots).value();
    check_failure(reactor.attach(cq, slots).error(), vb::errc::attached);
    check_failure(other.attach(cq, slots).error(), vb::errc::attached);
    check_failure(other.attach(second, slots).error(), vb::errc::invalid_argument); // one channel, one reactor
    check_failure(other.detach(cq).error(), vb::errc::not_attached);
    check_failure(cq.poll(slots).error(), vb::errc::attached);
    reactor.detach(cq).value();
    CHECK(cq.poll(slots).has_value());
    other.attach(second, slots).value();
    other.attach(cq, slots).value();
}

TEST_CASE("awaiting on a queue pair whose queues are attached to no reactor, or to two") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    support::engine engine(device), other(device);
    const auto loose = vb::completion_queue::create(device, 64).value();
    auto options = support::pair_options();
    const auto make = [&](const vb::completion_queue& sends, const vb::completion_queue& receives) {
        options.send_cq = sends;
        options.recv_cq = receives;
        return vb::queue_pair::create(domain, options).value();
    };
    ending_log log;
    for (const auto* pair : {&loose, static_cast<const vb::completion_queue*>(&other.cq)}) {
        const auto wanted = pair == &loose ? vb::errc::not_attached : vb::errc::invalid_argument;
        auto a = make(engine.cq, *pair);
        auto b = make(*pair, engine.cq);
        support::connect(a, b);
        for (auto* qp : {&a, &b}) {
            check_failure(first_failure(engine.reactor, support::receive(*qp, memory.slice(), log), log), wanted);
            check_failure(first_failure(engine.reactor, support::transmit(*qp, memory.slice(), log), log), wanted);
            check_failure(vb::receiver::create(*qp, {.depth = 1, .message_bytes = 8}).error(), wanted);
            check_failure(qp->send_detached(vb::inline_data(memory.bytes().first(8))).error(), wanted);
        }
    }
    CHECK(log.successes == 0);
}

TEST_CASE("a send in INIT is refused, a receive is not") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    support::engine engine(device);
    auto qp = support::make_pair_end(domain, engine.cq, support::pair_options());
    support::hand_end peer(domain);
    ending_log log, received;
    check_failure(peer.qp.post(vb::send_request{memory.slice()}, 1).error(), vb::errc::not_connected);
    check_failure(first_failure(engine.reactor, support::transmit(qp, memory.slice(), log), log),
                  vb::errc::not_connected);
    check_failure(qp.send_detached(vb::inline_data(memory.bytes().first(8))).error(), vb::errc::not_connected);
    vb::scope scope;
    scope.spawn(support::receive(qp, memory.slice(), received));
    support::some_turns(engine.reactor);
    support::connect(qp, peer.qp);
    CHECK(peer.send().ok());
    support::turn_until(engine.reactor, [&] { return received.resumes() == 1; });
    CHECK(received.successes == 1);
    // Nor by hand on what is awaited, nor awaited what is posted to by hand.
    check_failure(qp.post(vb::recv_request{memory.slice()}, 1).error(), vb::errc::in_use);
    auto by_hand = support::make_pair_end(domain, engine.cq, support::pair_options());
    by_hand.post(vb::recv_request{memory.slice()}, 1).value();
    check_failure(first_failure(engine.reactor, support::receive(by_hand, memory.slice(), log), log), vb::errc::in_use);
    check_failure(vb::receiver::create(by_hand, {.depth = 1, .message_bytes = 8}).error(), vb::errc::in_use);
    auto with_receiver = support::make_pair_end(domain, engine.cq, support::pair_options());
    auto inbox = vb::receiver::create(with_receiver, {.depth = 1, .message_bytes = 8}).value();
    check_failure(first_failure(engine.reactor, support::receive(with_receiver, memory.slice(), log), log),
                  vb::errc::in_use);
    check_failure(vb::receiver::create(with_receiver, {.depth = 1, .message_bytes = 8}).error(), vb::errc::in_use);
    check_failure(with_receiver.post(vb::recv_request{memory.slice()}, 1).error(), vb::errc::in_use);
    check_failure(vb::receiver::create(qp, {.depth = 99, .message_bytes = 8}).error(), vb::errc::invalid_argument);
    check_failure(vb::receiver::create(qp, {.depth = 1, .message_bytes = 0}).error(), vb::errc::invalid_argument);
}

TEST_CASE("requests that cannot be right are refused, and the connection lives on") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    support::engine engine(device);
    auto options = support::pair_options(2);
    options.max_send_slices = options.max_recv_slices = 1;
    support::wire wire(domain, engine, options);
    auto& qp = wire.left;
    std::vector<vb::error> failures;
    engine.reactor.run([](vb::queue_pair& left, const vb::memory_region& m, std::vector<vb::error>& out) -> vb::task<> {
        const auto small = m.slice(0, 8);
        const auto add = [&](const auto& r) {
            if (r)
                FAIL_CHECK("a wrong request was accepted");
            else
                out.push_back(r.error());
        };
        const vb::send_request one{.local = small};
        const vb::recv_request receive{.local = small};
        add(co_await left.chain(one, one, one));
        add(co_await left.chain(one, receive));
        add(co_await left.chain(receive, one));
        add(co_await left.send(small, small));
        add(co_await left.recv(small, small));
        const std::span<const std::byte> bytes = m.bytes();
        add(co_await left.send(vb::inline_data(bytes.first(4000))));
        add(co_await left.recv(vb::inline_data(bytes.first(4))));
        vb::remote_slice remote{small.address, 4, 1};
        add(co_await left.write(small, remote));
        add(co_await left.read(small, remote));
        add(co_await left.fetch_add(small, remote, 1));
        remote.length = 8;
        remote.address += 4;
        add(co_await left.compare_swap(small, remote, 1, 2));
    }(qp, memory, failures));
    CHECK(failures.size() == 11);
    for (const auto& e : failures) check_failure(e, vb::errc::invalid_argument);
    ending_log log;
    vb::scope scope;
    scope.spawn(support::receive(wire.right, memory.slice(64, 64), log));
    scope.spawn(support::transmit(qp, memory.slice(0, 64), log));
    engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    CHECK(log.successes == 2);
}

TEST_CASE("connecting to what is no peer") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto cq = vb::completion_queue::create(device, 128).value();
    auto qp = support::make_pair_end(domain, cq, support::pair_options(4));
    auto peer = support::make_pair_end(domain, cq, support::pair_options(4));
    auto datagram_options = support::pair_options(4);
    datagram_options.type = vb::queue_pair_type::ud;
    auto datagram = support::make_pair_end(domain, cq, datagram_options);
    auto remote = peer.endpoint();
    remote.link = remote.link == vb::link_layer::ethernet ? vb::link_layer::infiniband : vb::link_layer::ethernet;
    const auto wrong_link = qp.connect(remote);
    REQUIRE(!wrong_link);
    check_failure(wrong_link.error(), vb::errc::invalid_argument);
    CHECK(support::names(wrong_link.error(), "link layer"));
    check_failure(qp.connect(datagram.endpoint()).error(), vb::errc::invalid_argument);
    check_failure(datagram.connect(peer.endpoint()).error(), vb::errc::invalid_argument);
    check_failure(qp.activate(1).error(), vb::errc::invalid_argument);
    check_failure(qp.connect(peer.endpoint(), {.mtu = 1000}).error(), vb::errc::invalid_argument);
    check_failure(qp.connect(peer.endpoint(), {.retry_cnt = 8}).error(), vb::errc::invalid_argument);
    check_failure(qp.connect(peer.endpoint(), {.timeout = 32}).error(), vb::errc::invalid_argument);
    std::array<std::byte, vb::endpoint::encoded_bytes> bytes{};
    check_failure(vb::endpoint::from_bytes(bytes).error(), vb::errc::invalid_argument);
    check_failure(vb::endpoint::from_bytes(std::span(bytes).first(39)).error(), vb::errc::invalid_argument);
    CHECK(vb::endpoint::from_bytes(peer.endpoint().to_bytes()).value() == peer.endpoint());
    qp.connect(peer.endpoint()).value();                                            // none of it has harmed it
    check_failure(qp.connect(peer.endpoint()).error(), vb::errc::invalid_argument); // the device's answer
}

TEST_CASE("a reactor and what belongs to it, used from a second thread") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    support::engine engine(device);
    auto qp = support::make_pair_end(domain, engine.cq, support::pair_options());
    qp.connect(qp.endpoint()).value();
    ending_log before;
    engine.reactor.run([](vb::queue_pair& own, vb::memory_slice slice, ending_log& log) -> vb::task<> {
        vb::scope scope;
        scope.spawn(support::receive(own, slice, log));
        scope.spawn(support::transmit(own, slice, log));
        co_await scope.join();
    }(qp, memory.slice(), before));
    CHECK(before.successes == 2);
    std::vector<vb::error> failures;
    std::error_code thrown;
    std::thread([&] {
        const auto add = [&](const auto& r) { failures.push_back(r ? vb::error{} : r.error()); };
        try {
            engine.reactor.run([]() -> vb::task<> { co_return; }());
        } catch (const std::system_error& e) {
            thrown = e.code();
        }
        add(engine.reactor.poll());
        add(engine.reactor.detach(engine.cq));
        std::array<vb::poll_slot, 4> slots;
        add(engine.reactor.attach(engine.cq, slots));
        add(engine.cq.resize(512));
        add(vb::receiver::create(qp, {.depth = 1, .message_bytes = 8}));
        ending_log log;
        vb::scope scope;
        scope.spawn(support::receive(qp, memory.slice(), log));
        scope.spawn(support::transmit(qp, memory.slice(), log));
        failures.insert(failures.end(), log.failures.begin(), log.failures.end());
    }).join();
    CHECK(thrown == vb::errc::wrong_thread);
    REQUIRE(failures.size() == 7);
    for (const auto& e : failures) check_failure(e, vb::errc::wrong_thread);
}

TEST_CASE("what belongs to a reactor and is destroyed on a second thread ends the program") {
    VERBENA_REQUIRE_DEVICE(device);
    // All of it in a child, which could not misuse what is its parent's.
    const auto elsewhere = [&](auto f) {
        return support::aborts([&] {
            const auto own = vb::context::open(device.name()).value();
            const auto domain = vb::protection_domain::create(own).value();
            const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
            support::engine engine(own);
            auto qp = support::make_pair_end(domain, engine.cq, support::pair_options());
            vb::scope scope;
            ending_log log;
            scope.spawn(support::receive(qp, memory.slice(), log));
            engine.reactor.poll().value();
            std::thread([&] { f(qp, engine.reactor, scope); }).join();
        });
    };
    const auto pair = elsewhere([](auto& qp, auto&, auto&) { qp.~queue_pair(); });
    const auto reactor = elsewhere([](auto&, auto& r, auto&) { r.~reactor(); });
    const auto coroutine = elsewhere([](auto&, auto&, auto& scope) { scope.~scope(); });
    CHECK(pair.find("verbena: a queue pair was destroyed on a thread") == 0);
    CHECK(reactor.find("verbena: a reactor was destroyed") == 0);
    CHECK(coroutine.find("verbena: a coroutine was destroyed") == 0);
}

TEST_CASE("a registration beyond the limit of locked memory names the limit") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto text = in_child([&]() -> std::string {
        const auto own = vb::context::open(device.name()).value();
        const auto domain = vb::protection_domain::create(own).value();
        const rlimit limit{64 * 1024, 64 * 1024};
        if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no setrlimit";
        if (setuid(65534) != 0) return "no setuid"; // takes the right to lock without limit
        const auto region = vb::memory_region::allocate(domain, 1 << 20);
        if (region) return "registered";
        if (!(region.error() == vb::errc::resource)) return "another code: " + region.error().message();
        return region.error().message();
    });
    INFO(text);
    CHECK(text.find("ibv_reg_mr: ") == 0);
    CHECK(text.find("RLIMIT_MEMLOCK") != std::string::npos);
    CHECK(text.find("64 KiB") != std::string::npos);
    CHECK(text.find("ulimit -l") != std::string::npos);
}

TEST_CASE("where no ring can be made for want of something, the error says what to do") {
    const auto text = in_child([]() -> std::string {
        if (!support::refuse(SYS_io_uring_setup, EMFILE)) return "no seccomp filter here";
        vb::reactor reactor;
        std::string said;
        try {
            reactor.run([]() -> vb::task<> { co_return; }());
            said = "ran";
        } catch (const std::system_error& e) {
            said = e.code() == vb::errc::resource ? "" : "code! ";
            said += e.what();
        }
        const auto polled = reactor.poll();
        return said + " | " + (polled ? "polled" : polled.error().message());
    });
    INFO(text);
    CHECK(text.find("io_uring_setup (") == 0); // std::system_error puts the code last
    CHECK(text.find("| io_uring_setup: ") != std::string::npos);
    CHECK(text.find("RLIMIT_NOFILE") != std::string::npos);
}
