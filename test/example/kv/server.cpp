#include "server.hpp"

#include <verbena/format.hpp>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

namespace kv {

std::uint64_t metrics::malformed() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < statuses; ++i)
        if (kv::malformed(static_cast<status>(i))) sum += answers[i];
    return sum;
}

metrics& metrics::operator+=(const metrics& o) {
    for (std::size_t i = 0; i < opcodes; ++i) requests[i] += o.requests[i];
    for (std::size_t i = 0; i < statuses; ++i) answers[i] += o.answers[i];
    bytes_in += o.bytes_in, bytes_out += o.bytes_out, accepted += o.accepted, refused += o.refused;
    failed_handshakes += o.failed_handshakes, established += o.established, vanished += o.vanished;
    undelivered += o.undelivered, lost += o.lost, forced += o.forced, rescued += o.rescued;
    reactors.insert(reactors.end(), o.reactors.begin(), o.reactors.end());
    return *this;
}

std::string metrics::text() const {
    const auto of = [&](opcode op) { return requests[static_cast<std::size_t>(op)]; };
    std::string out = fmt::format(
        "connections: {} accepted, {} refused, {} failed handshakes, {} established, {} vanished, {} forced\n"
        "requests: {} locate, {} get, {} put, {} erase, {} malformed; {} bytes in, {} bytes out\n"
        "replies: {} undelivered, {} lost\n",
        accepted, refused, failed_handshakes, established, vanished, forced, of(opcode::locate), of(opcode::get),
        of(opcode::put), of(opcode::erase), malformed(), bytes_in, bytes_out, undelivered, lost);
    for (std::size_t i = 0; i < statuses; ++i)
        if (answers[i] != 0) out += fmt::format("answered \"{}\": {}\n", name_of(static_cast<status>(i)), answers[i]);
    for (const auto& stats : reactors) out += fmt::format("reactor: {}\n", stats);
    return out;
}

void complaints::once(const std::string& kind, const std::string& detail) {
    const std::lock_guard lock(mutex_);
    if (said_.insert(kind).second) say_(fmt::format("{}: {} (said once)", kind, detail));
}

std::size_t answer(store& values, std::uint32_t credits, const message& request, std::span<std::byte> reply,
                   status& said) {
    message out{.op = request.op, .state = request.state, .number = request.number};
    const auto room = reply.subspan(header_bytes, small_value);
    std::array<std::byte, location::encoded_bytes> where;
    std::size_t size = 0;
    if (!malformed(request.state)) switch (request.op) {
        case opcode::hello:
            put_number(room, credits);
            out.value = room.first(sizeof credits);
            break;
        case opcode::locate:
            if (const auto found = values.locate(request.key)) {
                where = found->to_bytes();
                out.value = where;
            } else {
                out.state = status::not_found;
            }
            break;
        case opcode::get:
            out.state = values.get(request.key, room, size);
            if (out.state == status::ok) out.value = room.first(size);
            break;
        case opcode::put: out.state = values.put(request.key, request.value); break;
        case opcode::erase: out.state = values.erase(request.key); break;
        case opcode::bye: break;
        case opcode::goodbye:
        case opcode::fault: out.state = status::unknown_opcode; break;
        }
    if (malformed(out.state)) out.op = opcode::fault;
    said = out.state;
    return encode(out, reply);
}

/// A reactor with its completion queue, and the connections it was given.
class server_thread {
  public:
    explicit server_thread(shared& s) : shared_(s), buffers_(s.options.replies) {
        const auto channel = vb::completion_channel::create(s.device).value();
        queue_ = vb::completion_queue::create(s.device, 1024, {.channel = channel}).value();
        reactor_.attach(queue_, slots_).value();
        pool_ = vb::buffer_pool::create(s.domain, s.options.replies, message_bytes).value();
        transport_ = make_transport(s.options.transport, reactor_).value();
    }

    metrics run(const server::beside& more, unsigned index) {
        reactor_.run(work(more, index));
        metrics_.reactors.push_back(reactor_.stats());
        metrics_.rescued = metrics_.reactors.back().rescued;
        return metrics_;
    }
    /// Called by the listener's thread, as the next.
    vb::result<void> take(std::shared_ptr<peer> client) {
        if (auto moved = client->move_to(*transport_); !moved) return moved;
        ++shared_.handshakes;
        reactor_.post([this, client = std::move(client)] { greetings_.spawn(greet(client)); });
        return {};
    }
    void shut_down() {
        reactor_.post([this] { closing_.set(); });
    }

  private:
    struct connection {
        std::shared_ptr<kv::peer> peer;
        vb::queue_pair qp;
        std::optional<vb::receiver> inbox; ///< none once the client has said `bye`
        std::uint64_t replies = 0;         ///< posted
    };
    using connection_pointer = std::unique_ptr<connection>;

    vb::task<> work(const server::beside& more, unsigned index);
    vb::task<> drain();
    vb::task<> greet(std::shared_ptr<peer> client);
    vb::task<vb::result<vb::message>> first_request(connection& c);
    vb::task<> converse(connection_pointer c, vb::message first);
    vb::task<> serve(connection& c, std::optional<vb::message> request);
    vb::task<bool> reply(connection& c, vb::message request);
    vb::task<> hear_of_end(connection& c);
    vb::result<connection_pointer> make_connection(std::shared_ptr<peer> client);
    void count(const message& request, std::size_t bytes, status said);
    static void say_goodbye(connection& c);

    shared& shared_;
    std::array<vb::poll_slot, 64> slots_;
    vb::reactor reactor_;
    vb::completion_queue queue_;
    vb::buffer_pool pool_;
    vb::semaphore buffers_; ///< a permit for each buffer of the pool
    std::unique_ptr<transport> transport_;
    metrics metrics_;
    vb::event closing_;
    std::set<connection*> talking_;
    vb::scope greetings_, connections_; // last, since what they run uses the others
};

vb::task<> server_thread::work(const server::beside& more, unsigned index) {
    vb::scope others;
    if (more) others.spawn(more(reactor_, queue_, index));
    co_await closing_.wait();
    greetings_.request_stop(); // nothing of theirs was accepted yet
    co_await greetings_.join();
    co_await drain();
    co_await others.join();
}

vb::task<> server_thread::drain() {
    for (connection* c : talking_) say_goodbye(*c);
    const auto drained = co_await vb::with_timeout(connections_.join(), shared_.options.drain);
    if (drained) co_return;
    metrics_.forced += talking_.size();
    if (!talking_.empty())
        shared_.log.once("shutdown", fmt::format("{} clients did not finish in time", talking_.size()));
    connections_.request_stop();
    try {
        co_await connections_.join();
    } catch (const std::system_error&) { // who waited for a buffer
    }
}

vb::result<server_thread::connection_pointer> server_thread::make_connection(std::shared_ptr<peer> client) {
    const server_options& options = shared_.options;
    auto qp = vb::queue_pair::create(shared_.domain, {.send_cq = queue_,
                                                      .recv_cq = queue_,
                                                      .max_send = options.credits + 1, // and the goodbye
                                                      .max_recv = options.credits + 1, // and the bye
                                                      .keepalive = std::chrono::seconds{5}});
    if (!qp) return std::move(qp).error();
    auto inbox = vb::receiver::create(*qp, {.message_bytes = message_bytes});
    if (!inbox) return std::move(inbox).error();
    return connection_pointer(new connection{std::move(client), *std::move(qp), *std::move(inbox)});
}

/// From the moment at which it was accepted until it says something.
vb::task<> server_thread::greet(std::shared_ptr<peer> client) {
    auto made = make_connection(std::move(client));
    auto first = vb::result<vb::message>(vb::error(vb::errc::resource, "greet"));
    if (made)
        first = co_await vb::with_timeout(first_request(**made), shared_.options.handshake);
    else
        first = std::move(made).error();
    --shared_.handshakes;
    if (!first) {
        ++metrics_.failed_handshakes;
        shared_.log.once("failed handshake", first.error().message());
        co_return;
    }
    ++metrics_.established;
    connections_.spawn(converse(*std::move(made), *std::move(first)));
}

vb::task<vb::result<vb::message>> server_thread::first_request(connection& c) {
    auto connected = co_await c.peer->connect(c.qp);
    if (!connected) co_return std::move(connected).error();
    co_return co_await c.inbox->next();
}

/// As many coroutines as the client may have requests outstanding take them from its inbox.
vb::task<> server_thread::converse(connection_pointer c, vb::message first) {
    vb::scope watch, workers;
    talking_.insert(c.get());
    watch.spawn(hear_of_end(*c));
    workers.spawn(serve(*c, std::move(first)));
    for (std::uint32_t i = 1; i < shared_.options.credits; ++i) workers.spawn(serve(*c, std::nullopt));
    if (closing_.is_set()) say_goodbye(*c);
    co_await workers.join();
    talking_.erase(c.get());
    if (c->inbox) {
        const auto why = c->inbox->error(); // none for who was stopped
        metrics_.vanished += bool(why.code());
        if (why.code()) shared_.log.once("vanished client", why.message());
    } else {
        // The client still has its queue pair, so that all sends of here can complete, until it hears of this.
        co_await c->peer->close();
        (void)co_await vb::with_timeout(watch.join(), shared_.options.send);
    }
    watch.request_stop();
    co_await watch.join();
    (void)co_await c->qp.close();
}

vb::task<> server_thread::hear_of_end(connection& c) {
    co_await c.peer->ended();
    (void)co_await c.qp.close();
}

vb::task<> server_thread::serve(connection& c, std::optional<vb::message> request) {
    while (c.inbox) {
        if (!request) {
            auto next = co_await c.inbox->next();
            if (!next) co_return;
            request = *std::move(next);
        }
        vb::message taken = *std::move(request);
        request.reset();
        const bool goes_on = co_await reply(c, std::move(taken));
        if (!goes_on) co_return;
    }
}

vb::task<bool> server_thread::reply(connection& c, vb::message received) {
    co_await buffers_.acquire(); // until then the client misses the receive, and in the end stops sending
    auto buffer = pool_.try_acquire();
    {
        const vb::message read = std::move(received); // posted again before the client may send another
        const auto request = decode(read.bytes().bytes());
        status said{};
        buffer->resize(answer(shared_.values, shared_.options.credits, request, buffer->bytes(), said));
        count(request, read.bytes().length, said);
        if (request.op == opcode::bye && said == status::ok) {
            metrics_.lost += c.replies - std::min(c.replies, request.number);
            c.inbox.reset();
        }
    }
    bool sent = c.inbox.has_value();
    if (sent) {
        ++c.replies;
        metrics_.bytes_out += buffer->size();
        const auto done = co_await vb::with_timeout(c.qp.send(buffer->slice()), shared_.options.send);
        sent = done.has_value();
        if (!sent) ++metrics_.undelivered;
    }
    buffer.reset();
    buffers_.release();
    co_return sent;
}

void server_thread::count(const message& request, std::size_t bytes, status said) {
    metrics_.bytes_in += bytes;
    ++metrics_.answers[static_cast<std::size_t>(said)];
    if (malformed(said))
        shared_.log.once(fmt::format("malformed request, {}", name_of(said)), fmt::format("{} bytes", bytes));
    else
        ++metrics_.requests[static_cast<std::size_t>(request.op)];
}

void server_thread::say_goodbye(connection& c) {
    std::array<std::byte, message_bytes> bytes;
    const auto size = encode({.op = opcode::goodbye}, bytes);
    (void)c.qp.send_detached(vb::inline_data(std::span(bytes).first(size))); // if it fails so does the connection
}

server::server(const vb::context& device, const server_options& options, std::function<void(const std::string&)> log)
    : shared_(device, options, std::move(log)), transport_(make_transport(options.transport, reactor_).value()) {
    for (unsigned i = 0; i < options.threads; ++i) threads_.push_back(std::make_unique<server_thread>(shared_));
    transport_->listen(options.listen).value();
}

server::~server() = default;

metrics server::run(int stop_fd, const beside& more) {
    std::vector<std::thread> running;
    std::vector<metrics> counted(threads_.size());
    for (unsigned i = 0; i < threads_.size(); ++i)
        running.emplace_back([this, &more, i, &counted = counted[i]] {
            counted = threads_[i]->run(more, i);
            threads_[i].reset(); // with its reactor, which is this thread's
        });
    reactor_.run(listen(stop_fd));
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& thread : threads_) thread->shut_down();
    for (std::thread& thread : running) thread.join();
    shutdown_took_ = std::chrono::steady_clock::now() - begin;
    for (const metrics& m : counted) metrics_ += m;
    return metrics_;
}

vb::task<> server::listen(int stop_fd) {
    vb::scope listening;
    listening.spawn(accept());
    (co_await reactor_.wait_readable(stop_fd)).value();
    listening.request_stop();
    co_await listening.join();
}

vb::task<> server::accept() {
    for (std::size_t next = 0;;) {
        auto arrived = co_await transport_->next();
        if (!arrived) {
            if (arrived.error() == vb::errc::stopped) co_return;
            shared_.log.once("accept", arrived.error().message());
            (void)co_await vb::with_timeout(reactor_.sleep_for(std::chrono::seconds{1}), std::chrono::milliseconds{50});
            continue;
        }
        ++metrics_.accepted;
        if (shared_.handshakes.load() >= shared_.options.backlog) {
            ++metrics_.refused;
            shared_.log.once("refused", "too many connections have not made their first request yet");
            continue;
        }
        const auto taken = threads_[next++ % threads_.size()]->take(*std::move(arrived));
        if (!taken) {
            ++metrics_.failed_handshakes;
            shared_.log.once("failed handshake", taken.error().message());
        }
    }
}

} // namespace kv
