#include "transport.hpp"

#include <verbena/cm/connection_manager.hpp>

#include <utility>

namespace kv {

namespace {

class cm_transport final : public transport {
  public:
    explicit cm_transport(vb::connection_manager m) noexcept : manager(std::move(m)) {}
    vb::result<void> listen(const address& at) override {
        const auto where = vb::socket_address::parse(at.host, at.port);
        if (!where) return where.error();
        auto made = manager.listen(*where);
        if (!made) return std::move(made).error();
        listener_ = *std::move(made);
        return {};
    }
    std::uint16_t port() const override { return listener_.local_address().port(); }
    vb::task<vb::result<std::unique_ptr<peer>>> next() override;
    vb::task<vb::result<std::unique_ptr<peer>>> reach(const address& to) override;

    vb::connection_manager manager;

  private:
    vb::connection_listener listener_;
};

class cm_peer final : public peer {
  public:
    cm_peer(vb::connection c, bool accepted) noexcept : connection_(std::move(c)), accepted_(accepted) {}
    vb::result<void> move_to(transport& other) override {
        return connection_.move_to(static_cast<cm_transport&>(other).manager);
    }
    vb::task<vb::result<void>> connect(vb::queue_pair& qp) override {
        auto operation = accepted_ ? connection_.accept(qp) : connection_.connect(qp);
        co_return co_await std::move(operation);
    }
    vb::task<> ended() override { (void)co_await connection_.disconnected(); }
    vb::task<> close() override { (void)co_await connection_.disconnect(); }

  private:
    vb::connection connection_;
    bool accepted_;
};

vb::task<vb::result<std::unique_ptr<peer>>> cm_transport::next() {
    auto request = co_await listener_.next();
    if (!request) co_return std::move(request).error();
    co_return std::make_unique<cm_peer>(*std::move(request), true);
}

vb::task<vb::result<std::unique_ptr<peer>>> cm_transport::reach(const address& to) {
    const auto where = vb::socket_address::parse(to.host, to.port);
    if (!where) co_return where.error();
    auto resolved = co_await manager.resolve(*where);
    if (!resolved) co_return std::move(resolved).error();
    co_return std::make_unique<cm_peer>(*std::move(resolved), false);
}

} // namespace

vb::result<std::unique_ptr<transport>> make_cm_transport(vb::reactor& reactor) {
    auto manager = vb::connection_manager::create();
    if (!manager) return std::move(manager).error();
    if (auto attached = reactor.attach(*manager); !attached) return std::move(attached).error();
    return std::make_unique<cm_transport>(*std::move(manager));
}

} // namespace kv
