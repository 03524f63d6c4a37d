// Runs a program as the seccomp profile of a container engine lets it run: io_uring_setup answers EPERM.

#include "refused_call.hpp"

#include <cerrno>
#include <cstdio>

#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char** arguments) {
    if (count < 2) {
        std::fprintf(stderr, "usage: %s COMMAND...\n", arguments[0]);
        return 2;
    }
    if (!support::refuse(SYS_io_uring_setup, EPERM)) {
        std::perror("the system call cannot be filtered");
        return 125;
    }
    execvp(arguments[1], arguments + 1);
    std::perror(arguments[1]);
    return 127;
}
