#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

namespace verbena::sim {

/// A descriptor that behaves like the event files of the kernel: one record a read, close-on-exec, blocking until told
/// otherwise, readable to poll, epoll and io_uring, POLLERR after `set_error`. A pair of datagram sockets; it differs
/// in that a read into too small a buffer loses the record, and that a read after `set_error` fails with ECONNRESET.
class event_file {
  public:
    /// `fd() < 0`: no descriptors are left; errno says so.
    explicit event_file(std::size_t record_bytes);
    event_file(const event_file&) = delete;
    event_file& operator=(const event_file&) = delete;
    ~event_file();

    int fd() const noexcept { return user_; }

    /// With the device's lock held.
    void push(const void* record);
    /// Takes away the unread records that `drop` chooses and answers how many.
    std::size_t remove(const std::function<bool(const void*)>& drop);
    void set_error();

    /// Without the lock: one record, or -1 and errno. Blocks unless the descriptor is non-blocking. Reading makes room:
    /// call `refill` with the lock held afterwards.
    int take(void* record) const;
    void refill();

  private:
    bool send(const void* record) const;

    std::size_t bytes_;
    int user_ = -1;
    int own_ = -1;
    std::deque<std::vector<std::byte>> waiting_; ///< what the socket has no room for
};

} // namespace verbena::sim
