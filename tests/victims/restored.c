// A program that is checkpointed at any instant, killed, and started anew, again and again: it
// works on memory, files and signals whose state it can check, and says on standard output what is
// wrong. Each round goes through a checksummed table, a file that it appends to and reads back, a
// signal with a handler on an alternate stack, floating point, thread-local memory, and the heap.
//
// restored DIRECTORY THREADS

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define WORDS 65536
#define FAIL(...) (printf("wrong: " __VA_ARGS__), printf("\n"), fflush(stdout), _exit(9))

static _Thread_local uint64_t mine;
static uint64_t initialised = 0x1234567890abcdef;
static volatile sig_atomic_t handled;
static volatile sig_atomic_t alarms;
static char *alternate;
static const char *directory;

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    char here;
    if (&here < alternate || &here >= alternate + 65536)
        FAIL("the handler runs on another stack");
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    if (!sigismember(&blocked, SIGUSR2)) FAIL("the handler's mask");
    if (signal != SIGUSR1 || info->si_pid != getpid()) FAIL("the signal's sender");
    handled++;
}

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}

struct worker {
    pthread_t thread;
    uint64_t *table;
    uint64_t seed;
    pid_t tid;
    uint64_t rounds;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t shared_count, shared_check;
static volatile int over;

// The table holds what the seed says, or FAIL.
static void work(struct worker *worker) {
    uint64_t state = worker->seed;
    for (int i = 0; i < WORDS; i++)
        if (worker->table[i] != next(&state)) FAIL("word %d of a table", i);
    worker->seed = state;
    for (int i = 0; i < WORDS; i++) worker->table[i] = next(&state);
    double sum = 0;
    for (int i = 1; i < 1000; i++) sum += 1.0 / i;
    if (sum < 7.484470860550343 || sum > 7.484470860550346) FAIL("floating point: %.17g", sum);
    if (mine != (uint64_t)(uintptr_t)worker) FAIL("thread-local memory");
    if (worker->tid != (pid_t)syscall(SYS_gettid)) FAIL("the thread's ID");
    pthread_mutex_lock(&mutex);
    shared_count++;
    shared_check += 3;
    if (shared_check != 3 * shared_count) FAIL("a mutex");
    pthread_mutex_unlock(&mutex);
    worker->rounds++;
}

static void begin(struct worker *worker) {
    worker->tid = syscall(SYS_gettid);
    mine = (uint64_t)(uintptr_t)worker;
    worker->table = malloc(WORDS * sizeof(uint64_t));
    uint64_t state = worker->seed;
    for (int i = 0; i < WORDS; i++) worker->table[i] = next(&state);
}

static void *run(void *argument) {
    struct worker *worker = argument;
    begin(worker);
    while (!over) {
        work(worker);
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    directory = argv[1];
    int threads = atoi(argv[2]);
    if (chdir(directory)) return 2;
    umask(027);
    alternate = malloc(65536);
    stack_t stack = {.ss_sp = alternate, .ss_size = 65536};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGALRM, on_alarm);
    signal(SIGPIPE, SIG_IGN);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGUSR2); // Waits from here on.
    struct itimerval every = {{0, 50000}, {0, 50000}};
    setitimer(ITIMER_REAL, &every, NULL);
    prctl(PR_SET_NAME, "victim (name)");
    struct rlimit limit;
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &limit);

    int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    int again = dup(file);
    int high = fcntl(file, F_DUPFD_CLOEXEC, 200);
    int append = open("log", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    int counter = eventfd(7, EFD_NONBLOCK);
    int signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec later = {{1000, 5}, {10000, 0}};
    timerfd_settime(timer, 0, &later, NULL);
    int periodic = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    timerfd_settime(periodic, 0, &often, NULL);
    int waits = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0xfeedface12345678};
    epoll_ctl(waits, EPOLL_CTL_ADD, counter, &event);

    uint64_t *shared = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *guarded = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    guarded[512] = 0x6a;
    mprotect(guarded, 8192, PROT_NONE);

    int view_file = open("view", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (ftruncate(view_file, 4096)) return 2;
    volatile char *view = mmap(NULL, 4096, PROT_READ, MAP_SHARED, view_file, 0);
    close(view_file);

    int table_file = open("table", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(table_file, "entries", 7) != 7) return 2;
    const char *table = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, table_file, 0);
    close(table_file);

    int ends[2], more[2];
    if (pipe2(ends, O_NONBLOCK) || pipe(more)) return 2;
    int twin = dup(more[1]);

    struct worker *all = calloc(threads, sizeof *all);
    for (int i = 0; i < threads; i++) all[i].seed = 77 + i;
    begin(&all[0]);
    for (int i = 1; i < threads; i++) pthread_create(&all[i].thread, NULL, run, &all[i]);
    printf("ready %d\n", getpid());
    fflush(stdout);

    uint64_t written = 0;
    pid_t pid = getpid();
    void *first_end = sbrk(0);
    for (uint64_t round = 0; !over; round++) {
        work(&all[0]);
        if (getpid() != pid) FAIL("the PID");
        int before = handled;
        raise(SIGUSR1);
        if (handled != before + 1) FAIL("a signal");
        sigset_t now, waiting;
        sigprocmask(SIG_BLOCK, NULL, &now);
        if (!sigismember(&now, SIGUSR2) || sigismember(&now, SIGUSR1)) FAIL("the signal mask");
        sigpending(&waiting);
        if (!sigismember(&waiting, SIGUSR2)) FAIL("the waiting signal");
        struct itimerval timer_now;
        getitimer(ITIMER_REAL, &timer_now);
        if (timer_now.it_interval.tv_usec != 50000) FAIL("the timer");
        char name[16];
        prctl(PR_GET_NAME, name);
        if (strcmp(name, "victim (name)")) FAIL("the name");
        if (initialised != 0x1234567890abcdef + round) FAIL("initialised data");
        initialised++;
        if (shared[4096] != round) FAIL("shared memory");
        shared[4096]++;
        if (round % 64 == 0) {
            mprotect(guarded, 8192, PROT_READ);
            if (guarded[0] || guarded[512] != 0x6a) FAIL("memory without access");
            mprotect(guarded, 8192, PROT_NONE);
        }
        if (strcmp(table, "entries")) FAIL("a mapped file");
        if (round % 64 == 32) {
            if (mprotect((void *)view, 4096, PROT_READ | PROT_WRITE)) FAIL("a file to be written");
            (*view)++;
            mprotect((void *)view, 4096, PROT_READ);
        }
        char byte = 'x', got = 0;
        if (read(ends[0], &got, 1) != -1 || errno != EAGAIN) FAIL("an empty pipe");
        if (write(round % 2 ? more[1] : twin, &byte, 1) != 1 || read(more[0], &got, 1) != 1 || got != 'x')
            FAIL("a pipe");
        mode_t mask = umask(027);
        if (mask != 027) FAIL("the umask");
        void *end = sbrk(4096);
        if (end == (void *)-1) FAIL("the heap's end");
        memset(end, 1, 4096);
        sbrk(-4096);
        if (sbrk(0) < first_end) FAIL("the heap shrank");

        // Position and contents of a file, by descriptors that share the position.
        off_t at = lseek(high, 0, SEEK_CUR);
        if (at != (off_t)written % 4096) FAIL("the position: %ld", (long)at);
        uint64_t stamp = written / 8;
        int fd = round % 3 == 0 ? file : round % 3 == 1 ? again : high;
        if (write(fd, &stamp, 8) != 8) FAIL("writing: %s", strerror(errno));
        uint64_t back = 0;
        if (pread(file, &back, 8, at) != 8 || back != stamp) FAIL("reading back");
        written += 8;
        if (written % 4096 == 0) lseek(again, 0, SEEK_SET);
        if (!(fcntl(high, F_GETFD) & FD_CLOEXEC) || fcntl(again, F_GETFD) & FD_CLOEXEC)
            FAIL("close-on-exec");
        if (!(fcntl(append, F_GETFL) & O_APPEND)) FAIL("O_APPEND");

        struct epoll_event found = {0};
        if (epoll_wait(waits, &found, 1, 0) != 1 || found.data.u64 != 0xfeedface12345678)
            FAIL("epoll");
        struct itimerspec left;
        timerfd_gettime(timer, &left);
        if (left.it_interval.tv_sec != 1000 || left.it_interval.tv_nsec != 5 ||
            left.it_value.tv_sec > 10000 || left.it_value.tv_sec < 9000)
            FAIL("timerfd");
        if (round % 16 == 0) {
            // Unread most of the time, it has expired, and must tick again once it is read.
            for (int i = 0; i < 2; i++) {
                struct pollfd one = {periodic, POLLIN, 0};
                int is_ready;
                while ((is_ready = poll(&one, 1, 80000)) < 0 && errno == EINTR) {}
                uint64_t ticks = 0;
                if (is_ready != 1 || read(periodic, &ticks, 8) != 8 || ticks == 0)
                    FAIL("a periodic timerfd");
            }
        }
        uint64_t count = 0;
        if (read(counter, &count, 8) != 8 || count != 7) FAIL("eventfd: %lu", (unsigned long)count);
        count = 7;
        if (write(counter, &count, 8) != 8) FAIL("eventfd");
        struct stat status;
        if (fstat(signals, &status)) FAIL("signalfd");
        if (pread(again, &back, 8, 0) < 0) FAIL("a duplicate");
        // Alive: a byte of memory that the test looks for in no image would do; a file is simpler.
        int alive = open("alive", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (alive < 0) FAIL("opening: %s", strerror(errno));
        dprintf(alive, "%lu %d\n", (unsigned long)round, pid);
        close(alive);
        struct timespec pause = {0, 300000};
        nanosleep(&pause, NULL);
        if (access("stop", F_OK) == 0) over = 1;
    }
    for (int i = 1; i < threads; i++) {
        if (pthread_join(all[i].thread, NULL)) FAIL("joining");
        if (all[i].rounds == 0) FAIL("a thread did nothing");
    }
    if (alarms == 0) FAIL("no alarm");
    printf("clean\n");
    fflush(stdout);
    return 0;
}
