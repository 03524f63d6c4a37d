// Invariant: where a ring cannot be made, the error names what is missing and what to do; flags that this kernel does
// not know are left out. A system call filter stands in for the kernels and sandboxes that refuse.

#include "ring_support.hpp"
#include "support/refused_call.hpp"

#include <string>
#include <thread>

#include <sys/syscall.h>

using support::refuse;

namespace {

/// What `make_ring` answers where the system call fails so; empty if nothing can be filtered here.
std::string refusal(unsigned call, int error, verbena::error& answer) {
    std::string message;
    std::thread([&] {
        if (!refuse(call, error)) return;
        auto made = make_ring();
        message = made ? "made" : made.error().message();
        if (!made) answer = made.error();
    }).join();
    return message;
}

} // namespace

TEST_CASE("a refused ring says what to do", "[ring]") {
    struct refused {
        unsigned call;
        int error;
        const char* says;
    };
    for (const auto& [call, error, says] :
         {refused{SYS_io_uring_setup, ENOSYS, "Linux 5.13"},
          refused{SYS_io_uring_setup, EPERM, "kernel.io_uring_disabled"}, refused{SYS_io_uring_setup, EPERM, "seccomp"},
          refused{SYS_io_uring_setup, EMFILE, "RLIMIT_NOFILE"}, refused{SYS_io_uring_setup, ENOMEM, "RLIMIT_MEMLOCK"},
          refused{SYS_io_uring_setup, EINVAL, "io_uring_setup"}, refused{SYS_eventfd2, EMFILE, "eventfd"}}) {
        verbena::error answer;
        const auto message = refusal(call, error, answer);
        if (message.empty()) VERBENA_SKIP("system calls cannot be filtered here");
        if (call == SYS_eventfd2 && message.find("io_uring_setup") != std::string::npos)
            VERBENA_SKIP("io_uring is not available here");
        INFO(message);
        CHECK(answer.code() == std::error_code(error, std::system_category()));
        CHECK(message.find(says) != std::string::npos);
    }
}

TEST_CASE("a kernel that takes nothing delays what is added and fails what does not fit", "[ring]") {
    RING_OR_SKIP(probe);
    bool filtered = false;
    std::thread([&] {
        event_fd fd;
        recorder watches[4];
        recorder fifth;
        auto ring = make_ring({.entries = 4}).value();
        settle(*ring); // the waker's registration
        if (!(filtered = refuse(SYS_io_uring_enter, EAGAIN))) return;
        for (int i = 0; i < 4; ++i) CHECK(ring->add(watches[i], fd.get(), POLLIN));
        const auto full = ring->add(fifth, fd.get(), POLLIN);
        CHECK((!full && full.error() == errc::resource));
        CHECK_FALSE(fifth.watching());
        CHECK(ring->pending());
        CHECK(ring->collect(all) == 0);
        const auto waited = ring->wait(std::nullopt);
        CHECK((waited && *waited == 0));
    }).join();
    if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
}

TEST_CASE("a kernel that fails for good fails the wait", "[ring]") {
    RING_OR_SKIP(probe);
    bool filtered = false;
    std::thread([&] {
        auto ring = make_ring().value();
        settle(*ring);
        if (!(filtered = refuse(SYS_io_uring_enter, EPERM))) return;
        const auto waited = ring->wait(std::nullopt);
        REQUIRE_FALSE(waited);
        CHECK(waited.error() == errc::access_denied);
        CHECK(std::string(waited.error().verb()) == "io_uring_enter");
    }).join();
    if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
}
