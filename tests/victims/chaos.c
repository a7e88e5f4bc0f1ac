/* A random program that knows what must come of each of its calls: transfers are whole, timeouts are not early, errors
 * and EINTR come when they must, descriptors get the lowest free number, mappings keep their contents, handlers run
 * once, children and threads end as they should. Tracked or not, it finds the same.
 *
 * Arguments: seconds, seed, steps of each thread (0: until the end), a comma-separated list of checks or `all`, and
 * `filtered` to run under a seccomp filter that kills for userfaultfd(2).
 * A failure names the seed, the thread, the step and the check. */
#include "victim.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { THREADS = 3, LENGTH = 1 << 18 };
static uint64_t seed, steps;
static const char *only;
static long page;
static char *patterns;

/* What a thread does just now. */
static __thread struct {
    int index;
    uint64_t random, step;
    const char *check;
    char *in;
} me;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail("seed %ju, thread %d, step %ju, %s, line %d: not so: %s (%s)", (uintmax_t)seed, me.index,             \
                 (uintmax_t)me.step, me.check, __LINE__, #condition, strerror(errno));                                 \
    } while (0)

/* A number below `below` (splitmix64). */
static uint64_t pick(uint64_t below) {
    uint64_t z = me.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % below;
}

static __thread volatile sig_atomic_t handled;
static void count(int number) {
    (void)number;
    handled++;
}

/* Signals for this thread alone, from now on, about every `us`: SIGUSR1 interrupts, SIGUSR2 restarts. */
static timer_t disturb(int number, long us) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = number};
    event._sigev_un._tid = gettid();
    struct itimerspec each = {{0, us * 1000}, {0, us * 1000}};
    timer_t timer;
    EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    EXPECT(timer_settime(timer, 0, &each, NULL) == 0);
    return timer;
}

/* The other end of a transfer, by a thread of its own. */
struct peer {
    int descriptor;
    size_t length;
    uint64_t random;
    size_t from;
    int is_wrong;
};

static void *peer_reads(void *argument) {
    struct peer *peer = argument;
    char buffer[1 << 14];
    for (size_t at = 0; at < peer->length;) {
        size_t want = 1 + (peer->random = peer->random * 6364136223846793005 + 1) % sizeof buffer;
        if (want > peer->length - at) want = peer->length - at;
        ssize_t got = read(peer->descriptor, buffer, want);
        if (got <= 0 || memcmp(buffer, patterns + peer->from + at, got)) peer->is_wrong = 1;
        if (got <= 0) break;
        at += got;
        if (peer->random % 3 == 0) usleep(50);
    }
    return NULL;
}

static void *peer_writes(void *argument) {
    struct peer *peer = argument;
    for (size_t at = 0; at < peer->length;) {
        size_t want = 1 + (peer->random = peer->random * 6364136223846793005 + 1) % (1 << 14);
        if (want > peer->length - at) want = peer->length - at;
        ssize_t put = write(peer->descriptor, patterns + peer->from + at, want);
        if (put != (ssize_t)want) peer->is_wrong = 1;
        if (put <= 0) break;
        at += put;
        if (peer->random % 3 == 0) usleep(50);
    }
    return NULL;
}

static void with_peer(void *(*run)(void *), struct peer *peer, pthread_t *thread) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    EXPECT(pthread_create(thread, NULL, run, peer) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* A handful of pieces of memory of this length. */
static int pieces(struct iovec *list, char *at, size_t length) {
    int count = 1 + pick(6);
    for (int i = 0; i < count; i++) {
        size_t part = i == count - 1 ? length : pick(length + 1);
        list[i] = (struct iovec){at, part};
        at += part;
        length -= part;
    }
    return count;
}

static void sends(void) {
    int ends[2], how = pick(6), file = -1;
    size_t length = 1 + pick(LENGTH), from = pick(LENGTH);
    if (how == 0 || how == 1) EXPECT(pipe(ends) == 0);
    else EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct peer peer = {ends[how < 2 ? 0 : 1], length, pick(1 << 30), from, 0};
    int to = ends[how < 2 ? 1 : 0];
    struct iovec list[8];
    struct msghdr message = {.msg_iov = list, .msg_iovlen = pieces(list, patterns + from, length)};
    if (how == 5) {
        EXPECT((file = memfd_create("chaos", 0)) >= 0);
        EXPECT(write(file, patterns + from, length) == (ssize_t)length);
    }
    pthread_t thread;
    with_peer(peer_reads, &peer, &thread);
    ssize_t done;
    off_t at = 0;
    if (how == 0) done = write(to, patterns + from, length);
    else if (how == 1 || how == 2) done = writev(to, list, message.msg_iovlen);
    else if (how == 3) done = send(to, patterns + from, length, MSG_NOSIGNAL);
    else if (how == 4) done = sendmsg(to, &message, MSG_NOSIGNAL);
    else done = sendfile(to, file, &at, length);
    EXPECT(done == (ssize_t)length);
    EXPECT(pthread_join(thread, NULL) == 0 && !peer.is_wrong);
    if (file >= 0) EXPECT(close(file) == 0);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void receives(void) {
    int ends[2], how = pick(2);
    size_t length = 1 + pick(LENGTH), from = pick(LENGTH);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct peer peer = {ends[1], length, pick(1 << 30), from, 0};
    struct iovec list[8];
    struct msghdr message = {.msg_iov = list, .msg_iovlen = pieces(list, me.in, length)};
    pthread_t thread;
    with_peer(peer_writes, &peer, &thread);
    ssize_t done = how ? recvmsg(ends[0], &message, MSG_WAITALL) : recv(ends[0], me.in, length, MSG_WAITALL);
    EXPECT(done == (ssize_t)length);
    EXPECT(!memcmp(me.in, patterns + from, length));
    EXPECT(pthread_join(thread, NULL) == 0 && !peer.is_wrong);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void random_bytes(void) {
    size_t length = 1 + pick(LENGTH);
    EXPECT(getrandom(me.in, length, 0) == (ssize_t)length);
    int zero = open("/dev/zero", O_RDONLY);
    EXPECT(zero >= 0 && read(zero, me.in, length) == (ssize_t)length);
    for (size_t i = 0; i < length; i++) EXPECT(me.in[i] == 0);
    EXPECT(close(zero) == 0);
}

/* A wait that nothing ends but time. */
static void waits(void) {
    long us = 300 + pick(3000);
    struct timespec time = {0, us * 1000}, until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += us * 1000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    int ends[2];
    EXPECT(pipe(ends) == 0);
    struct pollfd one = {ends[0], POLLIN, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGRTMIN + 5);
    pthread_sigmask(SIG_BLOCK, &usual, NULL);
    double since = now();
    long at_least = us;
    switch (pick(10)) {
    case 0: EXPECT(nanosleep(&time, NULL) == 0); break;
    case 1: EXPECT(clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL) == 0); break;
    case 2: EXPECT(poll(&one, 1, us / 1000) == 0); at_least = us / 1000 * 1000; break;
    case 3: EXPECT(ppoll(&one, 1, &time, NULL) == 0); break;
    case 4: EXPECT(pselect(ends[0] + 1, &set, NULL, NULL, &time, NULL) == 0); break;
    case 5: {
        int queue = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        EXPECT(queue >= 0 && epoll_ctl(queue, EPOLL_CTL_ADD, ends[0], &event) == 0);
        EXPECT(epoll_wait(queue, &event, 1, us / 1000) == 0);
        at_least = us / 1000 * 1000;
        EXPECT(close(queue) == 0);
        break;
    }
    case 6: {
        int word = 7;
        EXPECT(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, &time, NULL, 0) == -1 && errno == ETIMEDOUT);
        break;
    }
    case 7: EXPECT(sigtimedwait(&usual, NULL, &time) == -1 && errno == EAGAIN); break;
    case 8: {
        sem_t semaphore;
        EXPECT(sem_init(&semaphore, 0, 0) == 0);
        EXPECT(sem_timedwait(&semaphore, &until) == -1 && errno == ETIMEDOUT);
        /* By another clock, which may be set. */
        at_least = 0;
        break;
    }
    default: {
        struct timeval timeout = {0, us};
        int sockets[2];
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
        EXPECT(setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
        EXPECT(recv(sockets[0], me.in, 1, 0) == -1 && errno == EAGAIN);
        /* In ticks. */
        at_least = 0;
        EXPECT(close(sockets[0]) == 0 && close(sockets[1]) == 0);
    }
    }
    EXPECT((now() - since) * 1e6 >= at_least - 1);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* Handlers interrupt what they should, and nothing else does. */
static void interrupts(void) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    struct pollfd one = {ends[0], POLLIN, 0};
    struct timespec second = {60, 0}, rest = {0, 0};
    handled = 0;
    int restarts = pick(3) == 0;
    struct peer peer = {ends[1], 1, 0, 5, 0};
    pthread_t thread;
    timer_t timer = disturb(restarts ? SIGUSR2 : SIGUSR1, 300 + pick(2000));
    if (restarts) {
        with_peer(peer_writes, &peer, &thread);
        EXPECT(read(ends[0], me.in, 1) == 1 && me.in[0] == patterns[5]);
        EXPECT(pthread_join(thread, NULL) == 0);
    } else {
        double since = now();
        switch (pick(4)) {
        case 0: EXPECT(read(ends[0], me.in, 1) == -1 && errno == EINTR); break;
        case 1: EXPECT(poll(&one, 1, 60000) == -1 && errno == EINTR); break;
        case 2: EXPECT(pause() == -1 && errno == EINTR); break;
        default:
            EXPECT(nanosleep(&second, &rest) == -1 && errno == EINTR);
            EXPECT(rest.tv_sec + rest.tv_nsec / 1e9 + (now() - since) >= 60 - 0.001);
        }
        EXPECT(handled >= 1);
    }
    EXPECT(timer_delete(timer) == 0);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* The lowest free number, always: the table is this thread's own. */
static void descriptors(void) {
    int lowest = dup(0);
    EXPECT(lowest > 2 && close(lowest) == 0);
    int ends[2], opened = open("/dev/null", O_RDONLY);
    EXPECT(opened == lowest);
    EXPECT(pipe(ends) == 0 && ends[0] == lowest + 1 && ends[1] == lowest + 2);
    EXPECT(dup2(opened, lowest + 4) == lowest + 4 && dup(opened) == lowest + 3);
    EXPECT(close(ends[0]) == 0 && fcntl(opened, F_DUPFD_CLOEXEC, lowest) == ends[0]);
    if (pick(2)) usleep(pick(500));
    EXPECT(close_range(lowest, lowest + 4, 0) == 0);
    EXPECT(fcntl(lowest + 2, F_GETFD) == -1 && errno == EBADF);
    EXPECT(open("/dev/null", O_RDONLY) == lowest && close(lowest) == 0);
}

static __thread sigjmp_buf escape;
static __thread char *faulted, *alternate;
static __thread int code, is_on_alternate;
static void fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    char here;
    faulted = info->si_addr;
    code = info->si_code;
    is_on_alternate = &here >= alternate && &here < alternate + (1 << 16);
    siglongjmp(escape, 1);
}

/* Moves a mapping; false if that cannot be done. A tracker that registers memory while it changes leaves a border in a
 * mapping, and no mapping can be moved over one (docs/book, "Choosing a technique"). */
static int moves(char *from, size_t old, size_t length, int flags, char **to) {
    char *moved = mremap(from, old, length, flags, *to);
    EXPECT(moved != MAP_FAILED || errno == EFAULT);
    if (moved != MAP_FAILED) *to = moved;
    return moved != MAP_FAILED;
}

/* A child that ends with the thread that made it, also when that fails. */
static pid_t forks(void) {
    pid_t parent = getpid(), child = fork();
    EXPECT(child >= 0);
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) _exit(99);
    return child;
}

static void mappings(void) {
    long pages = 1 + pick(64), bytes = pages * page;
    /* Between inaccessible pages, so that it merges with nothing. */
    char *room = mmap(NULL, bytes * 2 + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(room != MAP_FAILED);
    char *at = mmap(room + page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT(at == room + page);
    memcpy(at, patterns, bytes);
    EXPECT(mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    EXPECT(errno == EEXIST);
    long some = pick(pages);
    /* Where a mapping has moved away another thread's may be by now. */
    int is_left = 0;
    switch (pick(6)) {
    case 0: {
        char *moved = NULL;
        if (!moves(at, bytes, bytes * 2, MREMAP_MAYMOVE, &moved)) break;
        EXPECT(!memcmp(moved, patterns, bytes));
        for (long i = bytes; i < 2 * bytes; i += page) EXPECT(moved[i] == 0);
        EXPECT(munmap(moved, 2 * bytes) == 0);
        is_left = 1;
        break;
    }
    case 1: EXPECT(madvise(at + some * page, page, MADV_DONTNEED) == 0);
        EXPECT(at[some * page] == 0 && (!some || at[some * page - 1] == patterns[some * page - 1]));
        break;
    case 2:
        EXPECT(mprotect(at + some * page, page, PROT_READ) == 0);
        if (!sigsetjmp(escape, 1)) {
            *(volatile char *)(at + some * page + 5) = 1;
            EXPECT(!"written although it may only be read");
        }
        EXPECT(faulted == at + some * page + 5 && code == SEGV_ACCERR && is_on_alternate);
        EXPECT(read(0, at + some * page, 0) == 0);
        EXPECT(mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0);
        at[some * page]++;
        break;
    case 3: {
        EXPECT(mprotect(at + some * page, page, PROT_NONE) == 0);
        if (!sigsetjmp(escape, 1)) {
            (void)*(volatile char *)(at + some * page);
            EXPECT(!"read although it is inaccessible");
        }
        EXPECT(faulted == at + some * page && code == SEGV_ACCERR);
        int zero = open("/dev/zero", O_RDONLY);
        EXPECT(zero >= 0 && read(zero, at + some * page, 1) == -1 && errno == EFAULT && close(zero) == 0);
        break;
    }
    case 4: {
        char *to = room + page + bytes;
        if (!moves(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, &to)) break;
        EXPECT(!memcmp(to, patterns, bytes));
        is_left = 1;
        break;
    }
    default: {
        pid_t child = forks();
        if (child == 0) {
            int differs = memcmp(at, patterns, bytes) != 0;
            memset(at, 0x5a, bytes);
            _exit(differs ? 1 : 42);
        }
        at[0] ^= 1;
        int status;
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
        at[0] ^= 1;
        EXPECT(!memcmp(at, patterns, bytes));
        int memory = open("/proc/self/mem", O_RDWR);
        EXPECT(memory >= 0 && pwrite(memory, "x", 1, (off_t)at) == 1 && at[0] == 'x');
        EXPECT(pread(memory, me.in, bytes, (off_t)at) == bytes && me.in[0] == 'x' && close(memory) == 0);
    }
    }
    EXPECT(munmap(room, page + (is_left ? 0 : bytes)) == 0);
    EXPECT(munmap(room + page + bytes, bytes + page) == 0);
}

extern char **environ;
static void children(void) {
    int status;
    pid_t child;
    char *arguments[] = {"true", NULL};
    switch (pick(3)) {
    case 0:
        EXPECT(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        break;
    case 1: {
        if ((child = forks()) == 0) {
            pause();
            _exit(1);
        }
        siginfo_t info = {.si_pid = 0};
        EXPECT(waitid(P_PID, child, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0);
        EXPECT(kill(child, SIGKILL) == 0);
        EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        break;
    }
    default:
        if ((child = forks()) == 0) {
            ptrace(PTRACE_TRACEME, 0, NULL, NULL);
            raise(SIGSTOP);
            _exit(7);
        }
        EXPECT(waitpid(child, &status, __WALL) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
        EXPECT(ptrace(PTRACE_CONT, child, NULL, NULL) == 0);
        EXPECT(waitpid(child, &status, __WALL) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    EXPECT(waitpid(child, &status, 0) == -1 && errno == ECHILD);
}

struct canceled {
    int descriptor, writes;
    volatile int cleaned;
};

static void cleanup(void *argument) { ((struct canceled *)argument)->cleaned = 1; }

static void *blocks(void *argument) {
    struct canceled *this = argument;
    pthread_cleanup_push(cleanup, this);
    if (this->writes) (void)!write(this->descriptor, patterns, LENGTH);
    else (void)!read(this->descriptor, (char[1]){0}, 1);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *dies_with(void *lock) {
    pthread_mutex_lock(lock);
    return (void *)(uintptr_t)pick(1);
}

static void threads(void) {
    pthread_t thread;
    void *result;
    if (pick(2)) {
        pthread_mutex_t lock;
        pthread_mutexattr_t kind;
        EXPECT(pthread_mutexattr_init(&kind) == 0);
        EXPECT(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0);
        EXPECT(pthread_mutex_init(&lock, &kind) == 0);
        EXPECT(pthread_create(&thread, NULL, dies_with, &lock) == 0);
        EXPECT(pthread_join(thread, &result) == 0 && result == NULL);
        EXPECT(pthread_mutex_lock(&lock) == EOWNERDEAD);
        EXPECT(pthread_mutex_consistent(&lock) == 0 && pthread_mutex_unlock(&lock) == 0);
        return;
    }
    int ends[2];
    EXPECT(pipe(ends) == 0);
    int writes = pick(2);
    struct canceled canceled = {ends[writes], writes, 0};
    EXPECT(pthread_create(&thread, NULL, blocks, &canceled) == 0);
    usleep(pick(2000));
    EXPECT(pthread_cancel(thread) == 0);
    EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    /* Canceled before it began to wait, it ends there. */
    EXPECT(canceled.cleaned);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void leaves(int number) {
    (void)number;
    siglongjmp(escape, 2);
}

static void signals(void) {
    sigset_t queued, before, after;
    sigemptyset(&queued);
    sigaddset(&queued, SIGRTMIN + 4);
    EXPECT(pthread_sigmask(SIG_BLOCK, &queued, &before) == 0);
    int count = 1 + pick(6);
    for (int i = 0; i < count; i++)
        EXPECT(pthread_sigqueue(pthread_self(), SIGRTMIN + 4, (union sigval){.sival_int = i}) == 0);
    int reader = pick(2) ? signalfd(-1, &queued, SFD_CLOEXEC) : -1;
    for (int i = 0; i < count; i++) {
        struct signalfd_siginfo record;
        siginfo_t info;
        if (reader >= 0) EXPECT(read(reader, &record, sizeof record) == sizeof record && record.ssi_int == i);
        else EXPECT(sigwaitinfo(&queued, &info) == SIGRTMIN + 4 && info.si_value.sival_int == i);
    }
    if (reader >= 0) EXPECT(close(reader) == 0);
    EXPECT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    int back = sigsetjmp(escape, 1);
    if (back == 0) {
        EXPECT(pthread_kill(pthread_self(), SIGRTMIN + 6) == 0);
        EXPECT(!"the handler has not run");
    }
    EXPECT(back == 2 && pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
    for (int number = 1; number < 65; number++) EXPECT(sigismember(&before, number) == sigismember(&after, number));
}

static void counters(void) {
    int events = eventfd(pick(100), EFD_SEMAPHORE), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    uint64_t value = 3, expired = 0;
    EXPECT(events >= 0 && timer >= 0 && write(events, &value, 8) == 8);
    EXPECT(read(events, &value, 8) == 8 && value == 1);
    struct itimerspec once = {{0, 0}, {0, 200000 + pick(1000000)}};
    double since = now();
    EXPECT(timerfd_settime(timer, 0, &once, NULL) == 0);
    EXPECT(read(timer, &expired, 8) == 8 && expired == 1);
    EXPECT((now() - since) * 1e9 >= once.it_value.tv_nsec - 1000);
    EXPECT(close(events) == 0 && close(timer) == 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} CHECKS[] = {
    {"sends", sends},         {"receives", receives}, {"random", random_bytes}, {"waits", waits},
    {"interrupts", interrupts}, {"descriptors", descriptors}, {"mappings", mappings}, {"children", children},
    {"threads", threads},     {"signals", signals},   {"counters", counters},
};
enum { CHECK_COUNT = sizeof CHECKS / sizeof *CHECKS };

static void *works(void *index) {
    me.index = (int)(intptr_t)index;
    me.random = seed * 1000003 + me.index;
    me.check = "start";
    /* Descriptors that no other thread opens or closes. */
    EXPECT(unshare(CLONE_FILES) == 0);
    EXPECT((me.in = malloc(LENGTH)) && (alternate = malloc(1 << 16)));
    stack_t stack = {.ss_sp = alternate, .ss_size = 1 << 16};
    EXPECT(sigaltstack(&stack, NULL) == 0);
    for (; steps ? me.step < steps : !over(); me.step++) {
        int which = pick(CHECK_COUNT);
        if (only && !strstr(only, CHECKS[which].name)) continue;
        me.check = CHECKS[which].name;
        CHECKS[which].run();
    }
    return NULL;
}

/* Takes SIGTERM, which would interrupt the calls of the others. */
static void *ends(void *unused) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
    for (;;) pause();
    return unused;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    steps = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    only = argc > 4 && strcmp(argv[4], "all") ? argv[4] : NULL;
    if (argc > 5 && !strcmp(argv[5], "filtered")) kill_for(SYS_userfaultfd);
    page = sysconf(_SC_PAGESIZE);
    CHECK(patterns = malloc(2 * LENGTH));
    for (size_t i = 0; i < 2 * LENGTH; i++) patterns[i] = (char)(i * 2654435761u >> 13 | 1);
    struct sigaction counted = {.sa_handler = count}, jumped = {.sa_handler = leaves};
    struct sigaction faults = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &counted, NULL) == 0);
    counted.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR2, &counted, NULL) == 0);
    CHECK(sigaction(SIGRTMIN + 6, &jumped, NULL) == 0);
    CHECK(sigaction(SIGSEGV, &faults, NULL) == 0);
    /* A SIGCHLD that nobody handles interrupts calls all the same if it comes while signals are blocked (`sig_ignored`
     * in kernel/signal.c), as by posix_spawn(3): nothing would be exact. */
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    pthread_t running[THREADS];
    helper(ends, NULL);
    for (intptr_t i = 1; i < THREADS; i++) CHECK(pthread_create(&running[i], NULL, works, (void *)i) == 0);
    victim_ready();
    works(0);
    for (int i = 1; i < THREADS; i++) CHECK(pthread_join(running[i], NULL) == 0);
    return 0;
}
