#include "plain_parts.hpp"

#include <vector>

namespace plain {

figures busy_writes(const options& options) {
    const device device(options);
    std::vector<owned<ibv_cq, ibv_destroy_cq>> queues(1 + options.idle_queues);
    for (auto& queue : queues)
        queue.reset(created(ibv_create_cq(device.context.get(), 4096, nullptr, nullptr, 0), "ibv_create_cq"));
    rc_queue_pair qp(device, queues[0].get(), options.in_flight, 1);
    qp.connect(device, qp.number());
    // A slot is read from its first half and written to its second.
    std::vector<std::byte> memory(std::size_t{2} * options.message_bytes * options.in_flight);
    constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    const owned<ibv_mr, ibv_dereg_mr> region(
        created(ibv_reg_mr(device.domain.get(), memory.data(), memory.size(), access), "ibv_reg_mr"));

    std::uint64_t posted = 0;
    const auto post = [&](std::uint64_t slot) {
        const auto from = reinterpret_cast<std::uintptr_t>(memory.data()) + slot * 2 * options.message_bytes;
        ibv_sge piece{from, options.message_bytes, region->lkey};
        ibv_send_wr request{};
        request.wr_id = slot;
        request.sg_list = &piece;
        request.num_sge = 1;
        request.opcode = IBV_WR_RDMA_WRITE;
        request.send_flags = IBV_SEND_SIGNALED;
        request.wr.rdma.remote_addr = from + options.message_bytes;
        request.wr.rdma.rkey = region->rkey;
        ibv_send_wr* bad = nullptr;
        check(ibv_post_send(qp.get(), &request, &bad), "ibv_post_send");
        ++posted;
    };
    figures counts{.rounds = options.rounds};
    const std::uint64_t started = thread_cpu_ns();
    while (posted < options.in_flight && posted < options.rounds) post(posted);
    for (std::uint64_t done = 0; done < options.rounds;) {
        for (const auto& queue : queues) {
            std::array<ibv_wc, 32> entries;
            const int found = ibv_poll_cq(queue.get(), static_cast<int>(entries.size()), entries.data());
            if (found < 0) throw std::runtime_error("ibv_poll_cq failed");
            for (const ibv_wc& entry : std::span(entries.data(), static_cast<std::size_t>(found))) {
                if (entry.status != IBV_WC_SUCCESS) throw std::runtime_error(ibv_wc_status_str(entry.status));
                if (posted < options.rounds) post(entry.wr_id);
            }
            done += static_cast<std::uint64_t>(found);
        }
    }
    counts.total_ns = thread_cpu_ns() - started;
    return counts;
}

} // namespace plain
