#include "packet_file.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>

namespace verbena::sim {

packet_file::packet_file() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return;
    user_ = pair[0];
    own_ = pair[1];
    const int room = 1 << 20;
    setsockopt(own_, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
}

bool packet_file::send(std::span<const std::byte> packet) const {
    return ::send(own_, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(packet.size());
}

void packet_file::push(std::span<const std::byte> packet) {
    refill();
    if (waiting_.empty() && send(packet)) return;
    waiting_.emplace_back(packet.begin(), packet.end());
}

void packet_file::refill() {
    while (!waiting_.empty() && send(waiting_.front())) waiting_.pop_front();
}

void packet_file::end() {
    waiting_.clear();
    char nothing;
    while (::recv(user_, &nothing, 0, MSG_DONTWAIT | MSG_TRUNC) > 0) {}
    // One direction only: the other one as well would be POLLHUP, which the kernel's files never report.
    ::shutdown(own_, SHUT_WR);
}

void packet_file::close() {
    waiting_.clear();
    for (int* fd : {&user_, &own_})
        if (*fd >= 0) ::close(std::exchange(*fd, -1));
}

ssize_t packet_file::take(spin_lock& lock, void* buffer, std::size_t size, int too_short,
                          const std::function<void(std::size_t)>& taken) {
    for (;;) {
        char nothing;
        // A packet is never empty, so 0 is the end.
        const ssize_t there = ::recv(user_, &nothing, 0, MSG_PEEK | MSG_TRUNC);
        if (there < 0) return -1;
        if (there == 0) {
            const int flags = ::fcntl(user_, F_GETFL);
            // The kernel looks at O_NONBLOCK first, and never says more than EAGAIN then (facts A.5).
            errno = flags >= 0 && (flags & O_NONBLOCK) != 0 ? EAGAIN : EIO;
            return -1;
        }
        const std::lock_guard guard(lock);
        const ssize_t length = ::recv(user_, &nothing, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
        if (length <= 0) continue; // another reader was faster, or the end has come
        if (static_cast<std::size_t>(length) > size) {
            errno = too_short;
            return -1;
        }
        const ssize_t got = ::recv(user_, buffer, size, MSG_DONTWAIT);
        const int failure = errno;
        refill();
        taken(static_cast<std::size_t>(length));
        errno = failure;
        return got;
    }
}

} // namespace verbena::sim
