#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace support {

/// Calls `f` in a child process. Gives what that wrote to its standard error if it was aborted, else "not aborted".
template <class F>
std::string aborts(F f) {
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t process = fork();
    if (process == 0) {
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        std::signal(SIGABRT, SIG_DFL); // Catch2 has its own
        dup2(ends[1], STDERR_FILENO);
        try {
            f();
        } catch (...) {}
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[256];
    for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(got));
    close(ends[0]);
    int status = 0;
    waitpid(process, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? text : "not aborted";
}

} // namespace support
