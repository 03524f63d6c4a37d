#pragma once

// A child of fork(2) that is held to what it may do to its parent: nothing.

#include <csignal>
#include <cstddef>
#include <iterator>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace support {

/// From now on this process can use its memory, close descriptors, write to its standard error and end. Any other
/// system call ends it with SIGSYS. False if nothing can be filtered here.
inline bool confine() {
#define VERBENA_ALLOW(call)                                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        VERBENA_ALLOW(brk),
        VERBENA_ALLOW(mmap),
        VERBENA_ALLOW(munmap),
        VERBENA_ALLOW(mremap),
        VERBENA_ALLOW(mprotect),
        VERBENA_ALLOW(madvise),
        VERBENA_ALLOW(futex),
        VERBENA_ALLOW(sched_yield),
        VERBENA_ALLOW(close),
        VERBENA_ALLOW(rt_sigprocmask),
        VERBENA_ALLOW(rt_sigaction),
        VERBENA_ALLOW(sigaltstack),
        VERBENA_ALLOW(getpid),
        VERBENA_ALLOW(gettid),
        VERBENA_ALLOW(tgkill),
        VERBENA_ALLOW(exit_group),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, STDERR_FILENO, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
#undef VERBENA_ALLOW
    const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

inline constexpr int cannot_confine = 250;
inline constexpr int has_thrown = 251;

/// fork(2), and in the child `confine`.
inline pid_t fork_confined() {
    const pid_t process = fork();
    if (process != 0) return process;
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (const int signal : {SIGABRT, SIGSEGV, SIGSYS}) std::signal(signal, SIG_DFL); // Catch2 has its own
    if (!confine()) _exit(cannot_confine);
    return 0;
}

/// What the child has ended with: its status, or minus its signal.
inline int end_of(pid_t process) {
    int status = 0;
    if (process < 0 || waitpid(process, &status, 0) != process) return -1;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/// Calls `f` in a confined child: what it returned, or minus the signal that ended it.
template <class F>
int forked(F f) {
    const pid_t process = fork_confined();
    if (process != 0) return end_of(process);
    int status = has_thrown;
    try {
        status = f();
    } catch (...) {}
    _exit(status);
}

} // namespace support
