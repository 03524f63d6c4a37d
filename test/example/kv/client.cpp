#include "client.hpp"

#include <algorithm>
#include <utility>

namespace kv {

namespace {
constexpr std::size_t slot_bytes = message_bytes + sizeof(slot_header) + max_value;
}

client::client(const vb::protection_domain& domain, const vb::completion_queue& queue, const client_options& options)
    : options_(options), memory_(vb::memory_region::allocate(domain, options.window * slot_bytes).value()),
      qp_(vb::queue_pair::create(domain, {.send_cq = queue,
                                          .recv_cq = queue,
                                          .max_send = options.window,
                                          .max_recv = options.window + 1}) // and the goodbye
              .value()),
      inbox_(vb::receiver::create(qp_, {.message_bytes = message_bytes}).value()) {
    for (std::size_t i = 0; i < options.window; ++i) {
        slots_.emplace_back(i, memory_.slice(i * slot_bytes, message_bytes),
                            memory_.slice(i * slot_bytes + message_bytes, slot_bytes - message_bytes));
        free_.push_back(&slots_.back());
    }
}

vb::task<vb::result<void>> client::connect(transport& way, const address& server) {
    auto reached = co_await vb::with_timeout(way.reach(server), options_.deadline);
    if (!reached) co_return std::move(reached).error();
    peer_ = *std::move(reached);
    auto connected = co_await vb::with_timeout(peer_->connect(qp_), options_.deadline);
    if (!connected) co_return std::move(connected).error();
    collecting_.spawn(collect());
    std::array<std::byte, sizeof(std::uint32_t)> credits;
    auto welcome = co_await call_in(slots_.front(), {.op = opcode::hello}, credits);
    if (!welcome) co_return std::move(welcome).error();
    if (welcome->state != status::ok || welcome->size != credits.size())
        co_return vb::error(vb::errc::unsupported, "hello");
    window_.release(std::min<std::size_t>(options_.window, get_number<std::uint32_t>(credits)));
    co_return vb::result<void>();
}

vb::task<client::outcome> client::put(std::string_view key, std::span<const std::byte> value) {
    return call({.op = opcode::put, .key = key, .value = value}, {});
}
vb::task<client::outcome> client::get(std::string_view key, std::span<std::byte> to) {
    return call({.op = opcode::get, .key = key}, to);
}
vb::task<client::outcome> client::erase(std::string_view key) { return call({.op = opcode::erase, .key = key}, {}); }

vb::task<client::outcome> client::read(std::string_view key, std::span<std::byte> to) {
    co_await window_.acquire();
    slot& s = take_slot();
    auto got = co_await read_in(s, key, to);
    free_.push_back(&s);
    window_.release();
    co_return got;
}

client::slot& client::take_slot() {
    slot& s = *free_.back();
    free_.pop_back();
    return s;
}

vb::task<client::outcome> client::call(message request, std::span<std::byte> to) {
    co_await window_.acquire();
    slot& s = take_slot();
    auto got = co_await call_in(s, request, to);
    free_.push_back(&s);
    window_.release();
    co_return got;
}

vb::task<client::outcome> client::call_in(slot& s, message request, std::span<std::byte> to) {
    if (goodbye_ || ended_) co_return vb::error(vb::errc::closed, "call");
    s.number = request.number = ++sequence_ << 8 | s.index;
    s.to = to;
    s.answered.reset();
    ++requests_;
    const auto bytes = s.request.first(encode(request, s.request.bytes()));
    auto sent = co_await vb::with_timeout(qp_.send(bytes), options_.deadline);
    if (!sent) co_return std::move(sent).error();
    auto answered = co_await vb::with_timeout(s.answered.wait(), options_.deadline);
    const bool got = std::exchange(s.number, 0) == 0;
    if (!answered) co_return std::move(answered).error();
    if (!got) co_return inbox_.error();
    co_return s.got;
}

vb::task<client::outcome> client::read_in(slot& s, std::string_view key, std::span<std::byte> to) {
    for (int attempt = 0; attempt < 16; ++attempt) {
        std::array<std::byte, location::encoded_bytes> told;
        auto located = co_await call_in(s, {.op = opcode::locate, .key = key}, told);
        if (!located || located->state != status::ok) co_return located;
        const auto at = location::from_bytes(std::span(told).first(located->size));
        if (!at) co_return vb::error(vb::errc::invalid_argument, "locate");
        const auto landed = s.value.first(at->where.length);
        ++reads_;
        auto done = co_await vb::with_timeout(qp_.read(landed, at->where), options_.deadline);
        if (!done) co_return std::move(done).error();
        if (const auto value = intact(landed.bytes(), at->version)) {
            const reply got{status::ok, std::min(value->size(), to.size())};
            std::copy_n(value->begin(), got.size, to.begin());
            co_return got;
        }
        ++torn_; // it was replaced, and its slot is used again: ask once more
    }
    co_return vb::error(vb::errc::in_use, "read").with_note("the value was replaced during each of 16 reads");
}

vb::task<> client::collect() {
    while (const auto received = co_await inbox_.next()) take(decode(received->bytes().bytes()));
    ended_ = true;
    for (slot& s : slots_) s.answered.set();
}

void client::take(const message& m) {
    if (m.op == opcode::goodbye) {
        goodbye_ = true;
        return;
    }
    ++replies_;
    const std::size_t index = m.number & 0xff;
    if (index >= slots_.size() || m.number == 0 || slots_[index].number != m.number) return; // its deadline was over
    slot& s = slots_[index];
    s.number = 0;
    s.got = {m.state, std::min(m.value.size(), s.to.size())};
    std::copy_n(m.value.begin(), s.got.size, s.to.begin());
    s.answered.set();
}

vb::task<vb::result<void>> client::close() {
    vb::result<void> ended;
    if (peer_ && !ended_) {
        const auto size = encode({.op = opcode::bye, .number = replies_}, slots_.front().request.bytes());
        ended = co_await vb::with_timeout(qp_.send(slots_.front().request.first(size)), options_.deadline);
        if (ended) ended = co_await vb::with_timeout(peer_->ended(), options_.deadline);
    }
    if (peer_) co_await peer_->close();
    (void)co_await qp_.close();
    co_await collecting_.join();
    co_return ended;
}

} // namespace kv
