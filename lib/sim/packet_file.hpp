#pragma once

#include "lock.hpp"

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace verbena::sim {

/// A descriptor that behaves like the two DEVX files of the kernel: one packet a read, close-on-exec, blocking until
/// told otherwise, readable to poll, epoll and io_uring, POLLIN and POLLRDHUP after `end`. A pair of sequenced-packet
/// sockets. It differs where a program goes past the library: read(2) into too small a buffer loses the rest of the
/// packet, is not noticed by whoever counts what is unread, and answers 0 after `end`; and it can be written to.
class packet_file {
  public:
    /// `fd() < 0`: no descriptors are left; errno says so.
    packet_file();
    packet_file(const packet_file&) = delete;
    packet_file& operator=(const packet_file&) = delete;
    ~packet_file() { close(); }

    int fd() const noexcept { return user_; }

    // With the device's lock held.
    void push(std::span<const std::byte> packet);
    /// Drops what is unread; nothing will come any more.
    void end();
    void close();

    /// Without the lock: the length of the packet that was read, or -1 and errno. Blocks unless the descriptor is
    /// non-blocking. A buffer that is too short leaves the packet where it is and fails with `too_short`. `taken` is
    /// called with the lock held when a packet has left the file, whether or not it could be stored.
    ssize_t take(spin_lock& lock, void* buffer, std::size_t size, int too_short,
                 const std::function<void(std::size_t)>& taken);

  private:
    bool send(std::span<const std::byte> packet) const;
    void refill();

    int user_ = -1;
    int own_ = -1;
    std::deque<std::vector<std::byte>> waiting_; ///< what the socket has no room for
};

} // namespace verbena::sim
