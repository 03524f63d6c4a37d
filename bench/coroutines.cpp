#include "coroutines.hpp"

#include <verbena/verbena.hpp>

#include <infiniband/verbs.h>

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace coroutines {
namespace {

namespace vb = verbena;
using plain::now_ns;

std::uint64_t number_of(std::uint32_t client, std::uint64_t message) { return std::uint64_t{client} << 48 | message; }

vb::context open(const plain::options& options) {
    return (options.device.empty() ? vb::context::open_default() : vb::context::open(options.device)).value();
}

struct engine {
    engine(const vb::context& device, vb::wait_policy wait, std::size_t entries)
        : reactor({.wait = wait}), channel(vb::completion_channel::create(device).value()),
          cq(vb::completion_queue::create(device, entries, {.channel = channel}).value()) {
        reactor.attach(cq, slots).value();
    }
    void add_counts(plain::figures& figures) const {
        const auto stats = reactor.stats();
        if (stats.rescued != 0 || stats.stale != 0)
            throw std::runtime_error("the reactor rescued or mistook a completion");
        figures.polls += stats.polls;
        figures.parks += stats.parks;
        figures.wakes += stats.wakes;
        figures.arms += stats.arms;
        figures.events += stats.events;
        figures.enters += stats.enters;
    }

    std::array<vb::poll_slot, 32> slots;
    vb::reactor reactor;
    vb::completion_channel channel;
    vb::completion_queue cq;
};

// One end of one connection.
struct end {
    end(const vb::protection_domain& domain, engine& engine, const plain::options& options)
        : qp(vb::queue_pair::create(domain,
                                    {.send_cq = engine.cq,
                                     .recv_cq = engine.cq,
                                     .max_send = options.depth,
                                     .max_recv = options.depth,
                                     .post_mode = options.batched ? vb::post_mode::batched : vb::post_mode::immediate})
                 .value()),
          inbox(vb::receiver::create(qp, {.depth = options.depth, .message_bytes = options.message_bytes}).value()) {}

    vb::queue_pair qp;
    vb::receiver inbox;
};

void connect(end& a, end& b) {
    a.qp.connect(b.qp.endpoint()).value();
    b.qp.connect(a.qp.endpoint()).value();
}

/// `count` coroutines at once, of which `make` gives the one of a number.
template <class Make>
vb::task<> together(std::uint32_t count, Make make) {
    vb::scope scope;
    for (std::uint32_t i = 0; i < count; ++i) scope.spawn(make(i));
    co_await scope.join();
}

class serving {
  public:
    serving(end& end, const plain::options& options, std::uint32_t client, std::uint64_t rounds)
        : end_(end), options_(options), client_(client), rounds_(rounds) {}

    /// `in_flight` coroutines, each of which answers every message that it gets.
    vb::task<> run() {
        return together(options_.in_flight, [this](std::uint32_t) { return answer(); });
    }
    std::uint64_t errors = 0;

  private:
    vb::task<> answer() {
        while (taken_ < rounds_) {
            const std::uint64_t number = number_of(client_, taken_++);
            auto message = (co_await end_.inbox.next()).value();
            if (!plain::carries(message.bytes().bytes(), number)) ++errors;
            (co_await end_.qp.send(message.bytes())).value();
        }
    }

    end& end_;
    const plain::options& options_;
    std::uint32_t client_;
    std::uint64_t rounds_;
    std::uint64_t taken_ = 0;
};

/// One client: numbered messages, each from the buffer of its slot.
class client {
  public:
    client(end& end, const vb::protection_domain& domain, const plain::options& options, std::uint32_t number,
           std::uint64_t rounds)
        : end_(end), options_(options), number_(number), rounds_(rounds),
          buffers_(
              vb::memory_region::allocate(domain, std::size_t{options.message_bytes} * options.in_flight).value()) {}

  protected:
    vb::memory_slice buffer(std::uint32_t slot) const {
        return buffers_.slice(std::size_t{options_.message_bytes} * slot, options_.message_bytes);
    }
    void stamp_next(vb::memory_slice buffer) { plain::stamp(buffer.bytes(), number_of(number_, sent_++)); }

    end& end_;
    const plain::options& options_;
    std::uint32_t number_;
    std::uint64_t rounds_;
    std::uint64_t sent_ = 0;

  private:
    vb::memory_region buffers_;
};

class asking : client {
  public:
    asking(end& end, const vb::protection_domain& domain, const plain::options& options, std::uint32_t number,
           std::uint64_t rounds, std::uint64_t& finished)
        : client(end, domain, options, number, rounds), finished_(finished) {}

    vb::task<> run() {
        return together(options_.in_flight, [this](std::uint32_t slot) { return ask(buffer(slot)); });
    }
    std::uint64_t errors = 0;

  private:
    vb::task<> ask(vb::memory_slice buffer) {
        while (sent_ < rounds_) {
            stamp_next(buffer);
            const std::uint64_t started = options_.samples.empty() ? 0 : now_ns();
            (co_await end_.qp.send(buffer)).value();
            auto answer = (co_await end_.inbox.next()).value();
            if (!plain::carries(answer.bytes().bytes(), number_of(number_, arrived_++))) ++errors;
            if (!options_.samples.empty()) options_.samples[finished_] = now_ns() - started;
            ++finished_;
        }
    }

    std::uint64_t& finished_; ///< rounds of all clients
    std::uint64_t arrived_ = 0;
};

class sending : client {
  public:
    using client::client;

    vb::task<> run() {
        return together(options_.in_flight, [this](std::uint32_t slot) { return send(buffer(slot)); });
    }

  private:
    vb::task<> send(vb::memory_slice buffer) {
        while (sent_ < rounds_) {
            stamp_next(buffer);
            (co_await end_.qp.send(buffer)).value();
        }
    }
};

class taking {
  public:
    taking(end& end, std::uint32_t client, std::uint64_t rounds) : end_(end), client_(client), rounds_(rounds) {}

    vb::task<> run() {
        for (std::uint64_t taken = 0; taken < rounds_; ++taken) {
            const auto message = (co_await end_.inbox.next()).value();
            if (!plain::carries(message.bytes().bytes(), number_of(client_, taken))) ++errors;
        }
    }
    std::uint64_t errors = 0;

  private:
    end& end_;
    std::uint32_t client_;
    std::uint64_t rounds_;
};

// Puts itself in the way of ibv_post_send. One at a time.
class doorbell_counter {
  public:
    explicit doorbell_counter(ibv_context* context) : context_(context) {
        post_send_ = std::exchange(context->ops.post_send, [](ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
            ++count_;
            return post_send_(qp, first, bad);
        });
        count_ = 0;
    }
    doorbell_counter(const doorbell_counter&) = delete;
    doorbell_counter& operator=(const doorbell_counter&) = delete;
    ~doorbell_counter() { context_->ops.post_send = post_send_; }
    std::uint64_t count() const { return count_; }

  private:
    ibv_context* context_;
    inline static decltype(ibv_context_ops::post_send) post_send_ = nullptr;
    inline static std::uint64_t count_ = 0;
};

vb::task<> both(auto& as, auto& bs) {
    vb::scope scope;
    for (auto& a : as) scope.spawn(a.run());
    for (auto& b : bs) scope.spawn(b.run());
    co_await scope.join();
}

std::uint64_t rounds_of(const plain::options& options, std::uint32_t client) {
    return options.rounds / options.clients + (client < options.rounds % options.clients ? 1 : 0);
}

vb::task<std::uint64_t> timed(vb::task<> work) {
    const std::uint64_t started = now_ns();
    co_await std::move(work);
    co_return now_ns() - started;
}

} // namespace

plain::figures busy_echo(const plain::options& options) {
    const auto device = open(options);
    const auto domain = vb::protection_domain::create(device).value();
    engine engine(device, vb::wait_policy::spin_forever(), std::size_t{options.clients} * 4 * options.depth);
    std::deque<end> servers, clients;
    std::deque<serving> answering;
    std::deque<asking> questions;
    std::uint64_t finished = 0;
    for (std::uint32_t i = 0; i < options.clients; ++i) {
        const std::uint64_t rounds = rounds_of(options, i);
        connect(servers.emplace_back(domain, engine, options), clients.emplace_back(domain, engine, options));
        answering.emplace_back(servers.back(), options, i, rounds);
        questions.emplace_back(clients.back(), domain, options, i, rounds, finished);
    }
    plain::figures figures{.rounds = options.rounds};
    figures.total_ns = engine.reactor.run(timed(both(answering, questions)));
    engine.add_counts(figures);
    for (const auto& a : answering) figures.errors += a.errors;
    for (const auto& q : questions) figures.errors += q.errors;
    return figures;
}

plain::figures busy_one_way(const plain::options& options) {
    const auto device = open(options);
    const auto domain = vb::protection_domain::create(device).value();
    engine engine(device, vb::wait_policy::spin_forever(), std::size_t{options.clients} * 4 * options.depth);
    std::deque<end> heres, theres;
    std::deque<sending> senders;
    std::deque<taking> takers;
    for (std::uint32_t i = 0; i < options.clients; ++i) {
        connect(heres.emplace_back(domain, engine, options), theres.emplace_back(domain, engine, options));
        senders.emplace_back(heres.back(), domain, options, i, rounds_of(options, i));
        takers.emplace_back(theres.back(), i, rounds_of(options, i));
    }
    plain::figures figures{.rounds = options.rounds};
    std::optional<doorbell_counter> doorbells;
    if (options.count_doorbells) doorbells.emplace(device.native_handle());
    figures.total_ns = engine.reactor.run(timed(both(takers, senders)));
    if (doorbells) figures.doorbells = doorbells->count();
    engine.add_counts(figures);
    for (const auto& t : takers) figures.errors += t.errors;
    return figures;
}

plain::figures busy_ping_pong(const plain::options& options) {
    plain::options one = options;
    one.clients = 1;
    return coroutines::busy_echo(one);
}

plain::figures parked_ping_pong(const plain::options& options) {
    struct half {
        half(const vb::context& device, const vb::protection_domain& domain, const plain::options& options)
            : engine(device, vb::wait_policy::park_at_once(), std::size_t{2} * options.depth),
              end(domain, engine, options) {}
        struct engine engine;
        struct end end;
    };
    const auto device = open(options);
    const auto domain = vb::protection_domain::create(device).value();
    auto client = std::make_unique<half>(device, domain, options);
    auto server = std::make_unique<half>(device, domain, options);
    connect(client->end, server->end);
    plain::figures figures{.rounds = options.rounds};
    plain::figures served;
    std::exception_ptr failure;
    std::thread thread([&, mine = std::move(server)]() mutable {
        try {
            serving answering(mine->end, options, 0, options.rounds);
            mine->engine.reactor.run(answering.run());
            mine->engine.add_counts(served);
            served.errors = answering.errors;
        } catch (...) {
            failure = std::current_exception();
        }
        mine.reset();
    });
    std::uint64_t finished = 0;
    try {
        asking questions(client->end, domain, options, 0, options.rounds, finished);
        figures.total_ns = client->engine.reactor.run(timed(questions.run()));
        client->engine.add_counts(figures);
        figures.errors = questions.errors;
    } catch (...) {
        client.reset();
        thread.join();
        throw;
    }
    thread.join();
    if (failure) std::rethrow_exception(failure);
    figures.polls += served.polls;
    figures.parks += served.parks;
    figures.wakes += served.wakes;
    figures.arms += served.arms;
    figures.events += served.events;
    figures.enters += served.enters;
    figures.errors += served.errors;
    return figures;
}

} // namespace coroutines
