#include "transport.hpp"

#include <utility>

namespace kv {

namespace {

class tcp_transport final : public transport {
  public:
    explicit tcp_transport(vb::reactor& r) noexcept : reactor(r) {}
    vb::result<void> listen(const address& at) override {
        auto made = exchange::listen(at.host, at.port);
        if (!made) return std::move(made).error();
        listener_ = *std::move(made);
        return {};
    }
    std::uint16_t port() const override { return exchange::port_of(listener_); }
    vb::task<vb::result<std::unique_ptr<peer>>> next() override;
    vb::task<vb::result<std::unique_ptr<peer>>> reach(const address& to) override;

    vb::reactor& reactor;

  private:
    exchange::descriptor listener_;
};

class tcp_peer final : public peer {
  public:
    tcp_peer(vb::reactor& r, exchange::descriptor socket, bool accepted) noexcept
        : reactor_(&r), socket_(std::move(socket)), accepted_(accepted) {}
    vb::result<void> move_to(transport& other) override {
        reactor_ = &static_cast<tcp_transport&>(other).reactor;
        return {};
    }
    vb::task<vb::result<void>> connect(vb::queue_pair& qp) override {
        return accepted_ ? exchange::welcome(*reactor_, socket_, qp) : exchange::introduce(*reactor_, socket_, qp);
    }
    vb::task<> ended() override { return exchange::hung_up(*reactor_, socket_); }
    vb::task<> close() override {
        ::shutdown(socket_.get(), SHUT_WR);
        co_return;
    }

  private:
    vb::reactor* reactor_;
    exchange::descriptor socket_;
    bool accepted_;
};

vb::task<vb::result<std::unique_ptr<peer>>> tcp_transport::next() {
    auto socket = co_await exchange::accept(reactor, listener_);
    if (!socket) co_return std::move(socket).error();
    co_return std::make_unique<tcp_peer>(reactor, *std::move(socket), true);
}

vb::task<vb::result<std::unique_ptr<peer>>> tcp_transport::reach(const address& to) {
    auto socket = co_await exchange::connect(reactor, to.host, to.port);
    if (!socket) co_return std::move(socket).error();
    co_return std::make_unique<tcp_peer>(reactor, *std::move(socket), false);
}

} // namespace

vb::result<std::unique_ptr<transport>> make_transport(transport_kind kind, vb::reactor& reactor) {
    if (kind == transport_kind::cm) return make_cm_transport(reactor);
    return std::make_unique<tcp_transport>(reactor);
}

#ifndef KV_HAS_CM
vb::result<std::unique_ptr<transport>> make_cm_transport(vb::reactor&) {
    return vb::error(vb::errc::unsupported, "make_cm_transport").with_note("this build has no connection management");
}
#endif

} // namespace kv
