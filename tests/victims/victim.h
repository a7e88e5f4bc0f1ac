/* What all victims share: an end (SIGTERM, or after argv[1] seconds), a verdict, and a clock.
 *
 * A victim checks itself: it exits 0 when all was right, and otherwise says in one line on stderr what broke and
 * exits 1. It prints "ready" when it may be tortured. It dies with the test that started it. */
#ifndef VICTIM_H
#define VICTIM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t victim_stopping;
static double victim_until;

__attribute__((unused)) static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Whether the victim shall come to its end. */
__attribute__((unused)) static int over(void) { return victim_stopping || now() > victim_until; }

__attribute__((unused, noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    flockfile(stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    _exit(1);
}

/* Fails unless the condition holds; for calls, with the reason. */
#define CHECK(condition)                                                                             \
    do {                                                                                             \
        errno = 0;                                                                                   \
        if (!(condition)) fail("%s:%d: %s (%s)", __FILE__, __LINE__, #condition, strerror(errno));    \
    } while (0)

static void victim_end(int signal) {
    (void)signal;
    victim_stopping = 1;
}

/* First thing in main. */
__attribute__((unused)) static void victim_start(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    victim_until = now() + (argc > 1 ? atof(argv[1]) : 600);
    struct sigaction action = {.sa_handler = victim_end, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
}

/* Says that the torture may begin. */
__attribute__((unused)) static void victim_ready(void) {
    puts("ready");
    fflush(stdout);
}

/* Sleeps until the end, except in signal handlers. Not by pause(), which would miss a signal that comes between over()
 * and it, nor in steps, each of which would write to the stack. */
__attribute__((unused)) static void victim_rest(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!over()) {
        struct timespec left = {.tv_sec = (time_t)(victim_until - now()) + 1};
        ppoll(NULL, 0, &left, &before);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Puts this thread, and those that it creates from now on, under a seccomp filter that kills for a system call. */
__attribute__((unused)) static void kill_for(unsigned call) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* A thread that never gets SIGTERM, so that the main thread does. */
__attribute__((unused)) static pthread_t helper(void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) fail("pthread_create: %s", strerror(error));
    return thread;
}
#endif
