#include "plain_load.hpp"

#include <future>
#include <random>

namespace plain {
namespace {

class receiver {
  public:
    receiver(const device& device, bool parks, const options& options, generator& from)
        : ends(device, options.depth, parks, options), options_(options), from_(from) {
        ends.connections[0].connect(device, from.number());
        from.connect(ends.connections[0].number(), 0);
    }

    std::uint64_t drain() {
        const std::uint64_t found = ends.drain([this](connection& c, const ibv_wc& entry) {
            const auto slot = static_cast<std::uint32_t>(entry.wr_id);
            std::uint64_t due = 0;
            std::memcpy(&due, c.payload(slot, entry.byte_len).data(), sizeof due);
            if (!carries(c.payload(slot, entry.byte_len), due)) ++ends.counts.errors;
            options_.samples[taken_++] = now_ns() - due;
            c.post_receive(slot, options_.message_bytes);
            from_.taken.store(taken_, std::memory_order_release);
        });
        return found;
    }
    bool done() const { return taken_ == options_.rounds; }

    side ends;

  private:
    const options& options_;
    generator& from_;
    std::uint64_t taken_ = 0;
};

figures load(const options& options, bool parks) {
    const device device(options);
    generator from(options);
    receiver into(device, parks, options, from);
    auto sending = std::async(std::launch::async, [&] { from.run(); });
    const std::uint64_t started = now_ns(), cpu_started = thread_cpu_ns();
    if (parks) {
        sleeper sleep(options.polls, {into.ends.channel_fd()});
        run_parked(into, sleep);
    } else {
        while (!into.done()) into.drain();
    }
    figures counts = into.ends.counts;
    counts.rounds = options.rounds;
    counts.total_ns = now_ns() - started;
    counts.cpu_ns = thread_cpu_ns() - cpu_started;
    sending.get();
    return counts;
}

} // namespace

generator::generator(const options& options)
    : options_(options), device_(options), ends_(device_, options.depth, false, options) {}

void generator::run() {
    std::minstd_rand random(1);
    std::exponential_distribution<double> gap(options_.rate > 0 ? options_.rate / 1e9 : 1);
    connection& c = ends_.connections[0];
    std::uint64_t completed = 0;
    const auto reap = [&] { ends_.poll([&](connection&, const ibv_wc&) {}, completed); };
    auto due = static_cast<double>(now_ns());
    for (std::uint64_t sent = 0; sent < options_.rounds; ++sent) {
        due += gap(random);
        while (sent - taken.load(std::memory_order_acquire) >= options_.depth || sent - completed >= options_.depth)
            reap();
        if (options_.rate > 0)
            while (static_cast<double>(now_ns()) < due) reap();
        const auto slot = static_cast<std::uint32_t>(sent % options_.depth);
        stamp(c.payload(slot, options_.message_bytes), options_.rate > 0 ? static_cast<std::uint64_t>(due) : now_ns());
        c.post_send(slot, options_.message_bytes);
    }
    while (completed < options_.rounds) reap();
}

figures busy_load(const options& options) { return load(options, false); }

figures parked_load(const options& options) { return load(options, true); }

} // namespace plain
