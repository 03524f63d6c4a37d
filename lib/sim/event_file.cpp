#include "event_file.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena::sim {

event_file::event_file(std::size_t record_bytes) : bytes_(record_bytes) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) != 0) return;
    user_ = pair[0];
    own_ = pair[1];
    // As many records as the system allows; each costs several hundred bytes there.
    const int room = 1 << 20;
    setsockopt(own_, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
}

event_file::~event_file() {
    if (user_ >= 0) ::close(user_);
    if (own_ >= 0) ::close(own_);
}

bool event_file::send(const void* record) const {
    return ::send(own_, record, bytes_, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes_);
}

void event_file::push(const void* record) {
    refill();
    if (waiting_.empty() && send(record)) return;
    const auto* bytes = static_cast<const std::byte*>(record);
    waiting_.emplace_back(bytes, bytes + bytes_);
}

void event_file::refill() {
    while (!waiting_.empty() && send(waiting_.front().data())) waiting_.pop_front();
}

std::size_t event_file::remove(const std::function<bool(const void*)>& drop) {
    std::deque<std::vector<std::byte>> kept;
    std::size_t removed = 0;
    const auto sort = [&](std::vector<std::byte> record) {
        if (drop(record.data()))
            ++removed;
        else
            kept.push_back(std::move(record));
    };
    std::vector<std::byte> record(bytes_);
    while (::recv(user_, record.data(), bytes_, MSG_DONTWAIT) == static_cast<ssize_t>(bytes_)) sort(record);
    for (auto& waiting : waiting_) sort(std::move(waiting));
    waiting_ = std::move(kept);
    refill();
    return removed;
}

void event_file::set_error() {
    remove([](const void*) { return true; });
    // A datagram socket whose peer disconnects with unread data reports an error, and nothing else.
    const char unread = 0;
    ::send(user_, &unread, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    ::connect(own_, &nobody, sizeof nobody);
}

int event_file::take(void* record) const {
    const ssize_t got = ::recv(user_, record, bytes_, 0);
    if (got == static_cast<ssize_t>(bytes_)) return 0;
    if (got >= 0 || errno == ECONNRESET) errno = EIO;
    return -1;
}

} // namespace verbena::sim
