/* Signals arrive, each once, at the handler that was set, on the stack that was set; and a call that a handler
 * interrupts returns EINTR or goes on as sigaction(2) says. A helper sends each signal when the main thread is in the call. */
#include "victim.h"
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/time.h>

enum { BURST = 64 };

static volatile sig_atomic_t handled, on_wrong_stack, burst_got, out_of_order;
static volatile int got_value;
static char alternate[64 * 1024];
static volatile int wanted; /* the call during which a signal is wanted plus 1, or 0 */
static volatile int wanted_signal, burst_wanted;
static volatile unsigned rounds;
static pid_t main_tid;
static int ends[2];

static void handle(int signal, siginfo_t *info, void *context) {
    (void)context;
    char here;
    if (&here < alternate || &here >= alternate + sizeof alternate) on_wrong_stack = 1;
    if (signal == SIGRTMIN + 1) {
        if (info->si_value.sival_int != burst_got) out_of_order = 1;
        burst_got++;
        return;
    }
    got_value = info->si_value.sival_int;
    handled++;
}

/* The number of the call that the main thread is blocked in, -1 when it runs. */
static long blocked_in(void) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", main_tid);
    int fd = open(path, O_RDONLY);
    long length = read(fd, text, sizeof text - 1);
    close(fd);
    return length > 0 && text[0] >= '0' && text[0] <= '9' ? atol(text) : -1;
}

static void send_now(int signal, int value) {
    siginfo_t info = {.si_signo = signal, .si_code = SI_QUEUE, .si_pid = getpid(), .si_uid = getuid()};
    info.si_value.sival_int = value;
    while (syscall(SYS_rt_tgsigqueueinfo, getpid(), main_tid, signal, &info)) {
        if (errno != EAGAIN) fail("sending a signal: %s", strerror(errno));
        usleep(1000);
    }
}

static void *sender(void *unused) {
    (void)unused;
    for (;;) {
        int call = wanted;
        if (call && blocked_in() == call - 1) {
            wanted = 0;
            send_now(wanted_signal, 4711);
        }
        if (burst_wanted) {
            burst_wanted = 0;
            for (int i = 0; i < BURST; i++) send_now(SIGRTMIN + 1, i);
        }
        usleep(50);
    }
    return NULL;
}

/* Asks for a signal during the next call. */
static void want(int call, int signal) {
    handled = 0;
    wanted_signal = signal;
    __sync_synchronize();
    wanted = call + 1;
}

static void was_interrupted(const char *what, long result) {
    int error = errno;
    if (victim_stopping) return;
    if (handled != 1) fail("%s ended with %ld (%s) and %d signals", what, result, strerror(error), (int)handled);
    if (result != -1 || error != EINTR) fail("%s was interrupted by a handler, but returned %ld (%s)", what, result, strerror(error));
}

static void *late(void *unused) {
    (void)unused;
    unsigned before = 0;
    double since = now();
    while (now() - since < 60) {
        if (rounds != before) since = now();
        before = rounds;
        usleep(100000);
    }
    fail("no round in 60 s: in call %ld, handled %d, burst %d", blocked_in(), (int)handled, (int)burst_got);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    main_tid = (pid_t)syscall(SYS_gettid);
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(sigaltstack(&stack, NULL) == 0 && pipe(ends) == 0);
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGRTMIN, &action, NULL);
    action.sa_flags |= SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGRTMIN + 1, &action, NULL);
    int epoll = epoll_create1(0);
    sigset_t usr1, none;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    helper(sender, NULL);
    helper(late, NULL);
    victim_ready();
    char byte;
    struct epoll_event event;
    struct timespec second = {20, 0};
    while (!over()) {
        rounds++;
        want(SYS_pause, SIGUSR1);
        was_interrupted("pause", pause());
        want(SYS_read, SIGUSR1);
        was_interrupted("read", read(ends[0], &byte, 1));
        want(SYS_epoll_wait, SIGRTMIN);
        was_interrupted("epoll_wait", epoll_wait(epoll, &event, 1, 20000));
        want(SYS_clock_nanosleep, SIGUSR1);
        was_interrupted("clock_nanosleep", (errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &second, NULL)) ? -1 : 0);
        /* With SA_RESTART the read goes on until the byte is there. */
        want(SYS_read, SIGUSR2);
        double since = now();
        while (wanted && now() - since < 0.02) {
            if (write(ends[1], "x", 1) != 1) fail("write: %s", strerror(errno));
            long result = read(ends[0], &byte, 1);
            if (result != 1 && !victim_stopping) fail("read with SA_RESTART returned %ld (%s)", result, strerror(errno));
        }
        wanted = 0;
        /* The mask opens for the call only: the signal is pending before, and ends it. */
        pthread_sigmask(SIG_BLOCK, &usr1, NULL);
        want(SYS_rt_sigsuspend, SIGUSR1);
        int result;
        result = sigsuspend(&none);
        was_interrupted("sigsuspend", result);
        want(SYS_epoll_pwait, SIGUSR1);
        result = epoll_pwait(epoll, &event, 1, 20000, &none);
        was_interrupted("epoll_pwait", result);
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, NULL, &mask);
        if (!sigismember(&mask, SIGUSR1) || sigismember(&mask, SIGUSR2)) fail("the signal mask has changed");
        pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
        /* A burst of queued signals, while computing and calling. */
        burst_got = 0;
        burst_wanted = 1;
        volatile uint64_t sum = 0;
        while (burst_got < BURST && !victim_stopping) {
            for (int i = 0; i < 1000; i++) sum += i;
            getppid();
        }
        usleep(100);
        if (!victim_stopping && burst_got != BURST) fail("%d of %d queued signals were handled", (int)burst_got, BURST);
        if (out_of_order) fail("queued signals came out of order");
        if (on_wrong_stack) fail("a handler did not run on the alternate stack");
        if (got_value != 4711) fail("a signal lost its value");
    }
    printf("%u rounds\n", rounds);
    return 0;
}
