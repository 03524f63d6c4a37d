#include "plain_side.hpp"

#include <array>
#include <exception>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

namespace plain {
namespace {

std::uint64_t number_of(std::uint32_t client, std::uint64_t message) { return std::uint64_t{client} << 48 | message; }

bool is_receive(const ibv_wc& entry) { return (entry.opcode & IBV_WC_RECV) != 0; }

// Answers each message from its receive buffer, which is posted again when the answer has left.
class server {
  public:
    server(const device& device, bool parks, const options& options)
        : ends(device, options.depth, parks, options), options_(options), expected_(options.clients) {}

    std::uint64_t drain() {
        return ends.drain([this](connection& c, const ibv_wc& entry) {
            const auto slot = static_cast<std::uint32_t>(entry.wr_id);
            if (!is_receive(entry)) {
                c.post_receive(slot, options_.message_bytes);
                ++answered_;
                return;
            }
            check_number(static_cast<std::uint32_t>(entry.wr_id >> 32), c.payload(slot, entry.byte_len));
            c.post_send(slot, entry.byte_len);
        });
    }

    template <class Arrived>
    std::uint64_t drain_one_way(Arrived&& arrived) {
        return ends.drain([&](connection& c, const ibv_wc& entry) {
            const auto slot = static_cast<std::uint32_t>(entry.wr_id);
            const auto client = static_cast<std::uint32_t>(entry.wr_id >> 32);
            check_number(client, c.payload(slot, entry.byte_len));
            c.post_receive(slot, options_.message_bytes);
            arrived(client);
        });
    }

    void start() {}
    bool done() const { return answered_ == options_.rounds; }

    side ends;

  private:
    void check_number(std::uint32_t client, std::span<const std::byte> payload) {
        if (payload.size() != options_.message_bytes || !carries(payload, number_of(client, expected_[client]++)))
            ++ends.counts.errors;
    }

    const options& options_;
    std::vector<std::uint64_t> expected_;
    std::uint64_t answered_ = 0;
};

// Keeps `in_flight` numbered messages unanswered on each connection until `rounds` of them have been sent.
class client {
  public:
    client(const device& device, bool parks, const options& options)
        : ends(device, options.depth + send_slots(options), parks, options), options_(options),
          states_(options.clients) {
        for (std::uint32_t i = 0; i < options.clients; ++i) {
            states_[i].rounds = options.rounds / options.clients + (i < options.rounds % options.clients ? 1 : 0);
            if (!options.samples.empty()) states_[i].started.resize(send_slots(options));
        }
    }

    void start() {
        started_ns_ = now_ns();
        for (std::uint32_t i = 0; i < options_.clients; ++i) fill(i);
    }

    std::uint64_t drain() {
        return ends.drain([this](connection& c, const ibv_wc& entry) {
            const auto index = static_cast<std::uint32_t>(entry.wr_id >> 32);
            state& s = states_[index];
            if (is_receive(entry)) {
                const auto slot = static_cast<std::uint32_t>(entry.wr_id);
                const auto payload = c.payload(slot, entry.byte_len);
                if (payload.size() != options_.message_bytes || !carries(payload, number_of(index, s.arrived)))
                    ++ends.counts.errors;
                c.post_receive(slot, options_.message_bytes);
                arrived(index);
            } else {
                // A slot may be written again only now: an answer can overtake the completion of its send.
                ++s.completed;
                fill(index);
            }
        });
    }

    void arrived(std::uint32_t index) {
        state& s = states_[index];
        if (!options_.samples.empty()) options_.samples[finished_] = now_ns() - s.started[s.arrived % s.started.size()];
        ++s.arrived;
        if (++finished_ == options_.rounds) ends.counts.total_ns = now_ns() - started_ns_;
        fill(index);
    }

    bool done() const { return finished_ == options_.rounds; }

    side ends;

  private:
    struct state {
        std::uint64_t rounds = 0;
        std::uint64_t sent = 0;
        std::uint64_t completed = 0;
        std::uint64_t arrived = 0;
        std::vector<std::uint64_t> started;
    };

    static std::uint32_t send_slots(const options& options) { return 2 * options.in_flight; }

    void fill(std::uint32_t index) {
        state& s = states_[index];
        const std::uint32_t slots = send_slots(options_);
        while (s.sent < s.rounds && s.sent - s.arrived < options_.in_flight && s.sent - s.completed < slots) {
            const auto turn = static_cast<std::uint32_t>(s.sent % slots);
            const std::uint32_t slot = options_.depth + turn;
            connection& c = ends.connections[index];
            stamp(c.payload(slot, options_.message_bytes), number_of(index, s.sent));
            if (!options_.samples.empty()) s.started[turn] = now_ns();
            ++s.sent;
            c.post_send(slot, options_.message_bytes);
        }
    }

    const options& options_;
    std::vector<state> states_;
    std::uint64_t finished_ = 0;
    std::uint64_t started_ns_ = 0;
};

void validate(const options& o) {
    if (o.rounds == 0 || o.in_flight == 0 || o.clients == 0)
        throw std::invalid_argument("rounds, in_flight and clients must be at least 1");
    if (o.message_bytes < sizeof(std::uint64_t)) throw std::invalid_argument("message_bytes must be at least 8");
    if (o.depth < 2 * o.in_flight) throw std::invalid_argument("depth must be at least twice in_flight");
    if (!o.samples.empty() && o.samples.size() < o.rounds) throw std::invalid_argument("fewer samples than rounds");
}

void connect(const device& device, client& c, server& s) {
    for (std::size_t i = 0; i < c.ends.connections.size(); ++i) {
        c.ends.connections[i].connect(device, s.ends.connections[i]);
        s.ends.connections[i].connect(device, c.ends.connections[i]);
    }
}

figures sum(const options& options, const client& c, const server& s) {
    const figures& a = c.ends.counts;
    const figures& b = s.ends.counts;
    return {.rounds = options.rounds,
            .total_ns = a.total_ns,
            .polls = a.polls + b.polls,
            .parks = a.parks + b.parks,
            .wakes = a.wakes + b.wakes,
            .arms = a.arms + b.arms,
            .events = a.events + b.events,
            .errors = a.errors + b.errors};
}

figures busy(const options& options) {
    validate(options);
    const device device(options);
    server s(device, false, options);
    client c(device, false, options);
    connect(device, c, s);
    c.start();
    if (options.one_way) {
        while (!c.done()) {
            s.drain_one_way([&](std::uint32_t index) { c.arrived(index); });
            c.drain();
        }
    } else {
        while (!c.done()) {
            s.drain();
            c.drain();
        }
    }
    return sum(options, c, s);
}

} // namespace

figures busy_ping_pong(const options& options) { return busy(options); }

figures busy_echo(const options& options) { return busy(options); }

figures parked_ping_pong(const options& options) {
    validate(options);
    if (options.one_way) throw std::invalid_argument("one_way is for the busy loops");
    const device device(options);
    server s(device, true, options);
    client c(device, true, options);
    connect(device, c, s);
    const event_descriptor quit;
    std::latch ready(2);
    std::array<std::exception_ptr, 2> failures;
    const auto guarded = [&](auto& peer, std::exception_ptr& failure) noexcept {
        try {
            sleeper sleep(options.polls, {peer.ends.channel_fd(), quit.get()});
            ready.arrive_and_wait();
            peer.start();
            run_parked(peer, sleep);
        } catch (...) {
            failure = std::current_exception();
            quit.wake();
        }
    };
    {
        const std::jthread other([&] { guarded(s, failures[0]); });
        guarded(c, failures[1]);
    }
    for (const auto& failure : failures)
        if (failure) std::rethrow_exception(failure);
    return sum(options, c, s);
}

} // namespace plain
