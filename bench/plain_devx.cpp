// The hand-written loops over libmlx5's asynchronous queries.

#include "devx_query.hpp"
#include "plain_parts.hpp"

#include <infiniband/mlx5dv.h>

#include <sys/epoll.h>

#include <array>
#include <stdexcept>
#include <vector>

namespace plain {
namespace {

struct devx_device {
    explicit devx_device(const std::string& name) {
        context.reset(open_device(name, "mlx5dv_open_device", [](ibv_device* device) {
            mlx5dv_context_attr attributes{};
            attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
            return mlx5dv_open_device(device, &attributes);
        }));
        const auto allocation = devx_query::allocation();
        std::array<std::byte, 16> output{};
        object.reset(created(
            mlx5dv_devx_obj_create(context.get(), allocation.data(), allocation.size(), output.data(), output.size()),
            "mlx5dv_devx_obj_create"));
        query = devx_query::query(output);
        responses.reset(created(mlx5dv_devx_create_cmd_comp(context.get()), "mlx5dv_devx_create_cmd_comp"));
        set_non_blocking(responses->fd);
    }

    owned<ibv_context, ibv_close_device> context;
    owned<mlx5dv_devx_obj, mlx5dv_devx_obj_destroy> object;
    owned<mlx5dv_devx_cmd_comp, mlx5dv_devx_destroy_cmd_comp> responses;
    devx_query::command query{};
};

// Keeps `in_flight` numbered queries unanswered. A query's wr_id is its slot. The first and the
// last `in_flight` of them are not measured, so that all others are.
class querist {
  public:
    explicit querist(const options& options)
        : options_(options), device_(options.device),
          buffer_(sizeof(mlx5dv_devx_async_cmd_hdr) + options.message_bytes),
          slots_(options.in_flight, slot{device_.query}), measured_(options.in_flight + options.rounds),
          total_(measured_ + options.in_flight) {
        counts.rounds = options.rounds;
    }

    void start() {
        for (std::uint64_t i = 0; i < slots_.size(); ++i) issue(i);
    }

    // Reads one response, and issues the next query in its slot. False: none is there.
    bool take() {
        ++counts.polls;
        auto* const response = reinterpret_cast<mlx5dv_devx_async_cmd_hdr*>(buffer_.data());
        if (const int code = mlx5dv_devx_get_async_cmd_comp(device_.responses.get(), response, buffer_.size())) {
            if (code == EAGAIN || code == EINTR) return false;
            fail(code, "mlx5dv_devx_get_async_cmd_comp");
        }
        const std::uint64_t index = response->wr_id;
        const slot& s = slots_[index];
        const auto output = std::span(buffer_).subspan(sizeof *response);
        if (output[0] != std::byte{0}) throw std::runtime_error("the firmware refuses a query");
        if (options_.echoes && !devx_query::carries(output, s.number)) ++counts.errors;
        if (!options_.samples.empty() && finished_ >= options_.in_flight && finished_ < measured_)
            options_.samples[finished_ - options_.in_flight] = now_ns() - s.issued_ns;
        ++finished_;
        if (finished_ == options_.in_flight) started_ns_ = now_ns();
        if (finished_ == measured_) counts.total_ns = now_ns() - started_ns_;
        if (issued_ < total_) issue(index);
        return true;
    }

    bool done() const { return finished_ == total_; }
    int fd() const { return device_.responses->fd; }

    figures counts;

  private:
    struct slot {
        devx_query::command command;
        std::uint64_t number = 0;
        std::uint64_t issued_ns = 0;
    };

    void issue(std::uint64_t index) {
        slot& s = slots_[index];
        s.number = issued_++;
        if (options_.echoes) devx_query::stamp(s.command, s.number);
        if (!options_.samples.empty()) s.issued_ns = now_ns();
        check(mlx5dv_devx_obj_query_async(device_.object.get(), s.command.data(), s.command.size(),
                                          options_.message_bytes, index, device_.responses.get()),
              "mlx5dv_devx_obj_query_async");
    }

    const options& options_;
    devx_device device_;
    std::vector<std::byte> buffer_;
    std::vector<slot> slots_;
    std::uint64_t measured_;
    std::uint64_t total_;
    std::uint64_t issued_ = 0;
    std::uint64_t finished_ = 0;
    std::uint64_t started_ns_ = 0;
};

} // namespace

figures busy_queries(const options& options) {
    querist q(options);
    q.start();
    while (!q.done()) q.take();
    return q.counts;
}

figures parked_queries(const options& options) {
    querist q(options);
    const descriptor epoll(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET; // all is read before the loop sleeps
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, q.fd(), &event) != 0) fail(errno, "epoll_ctl");
    q.start();
    while (!q.done()) {
        if (q.take()) continue;
        ++q.counts.parks;
        if (::epoll_wait(epoll.get(), &event, 1, -1) >= 0)
            ++q.counts.wakes;
        else if (errno != EINTR)
            fail(errno, "epoll_wait");
    }
    return q.counts;
}

} // namespace plain
