/* What programs with threads count on, a case per argument: each prints what it found, which must be the same natively and as a
 * guest. Nothing here waits for a time to pass: what is to happen is waited for. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            fflush(stdout); \
            _exit(99); \
        } \
    } while (0)

static pthread_t started(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    return thread;
}

static uintptr_t joined(pthread_t thread)
{
    void *result;
    CHECK(pthread_join(thread, &result) == 0);
    return (uintptr_t)result;
}

static char *map(size_t bytes, int protection)
{
    char *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Locks, conditions, storage of one's own. */

#define WORKERS 8
#define STEPS 500

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_key_t key;
static long total;
static int turn;
static atomic_int destroyed;
static __thread long mine = 5;
static __thread char big[3 * PAGE];

static void on_end(void *value)
{
    atomic_fetch_add(&destroyed, *(int *)value);
    free(value);
}

static void *worker(void *argument)
{
    int number = (int)(intptr_t)argument;
    int *value = malloc(sizeof *value);
    *value = number;
    pthread_setspecific(key, value);
    big[2 * PAGE] = (char)number;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < STEPS; i++) {
        pthread_mutex_lock(&lock);
        total++;
        pthread_mutex_unlock(&lock);
        mine += number;
    }
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(&lock);
        while (turn % WORKERS != number)
            pthread_cond_wait(&turned, &lock);
        turn++;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
    }
    CHECK(big[2 * PAGE] == (char)number && *(int *)pthread_getspecific(key) == number);
    return (void *)mine;
}

static int work(void)
{
    pthread_t threads[WORKERS];
    uintptr_t sum = 0;
    pthread_key_create(&key, on_end);
    pthread_barrier_init(&barrier, NULL, WORKERS);
    for (intptr_t i = 0; i < WORKERS; i++)
        threads[i] = started(worker, (void *)i);
    for (int i = 0; i < WORKERS; i++)
        sum += joined(threads[i]);
    printf("counted %ld, turns %d, sum %lu, destroyed %d, mine %ld\n", total, turn, sum, destroyed, mine);
    return 0;
}

/* Many short threads, one after another and at once. */

static void *short_one(void *argument)
{
    char *text = malloc(100);
    snprintf(text, 100, "%ld", (long)argument);
    long back = atol(text);
    free(text);
    return (void *)back;
}

static void *posts(void *argument)
{
    sem_post(argument);
    return NULL;
}

static int many(void)
{
    uintptr_t sum = 0;
    for (intptr_t i = 0; i < 100; i++)
        sum += joined(started(short_one, (void *)i));
    for (int round = 0; round < 4; round++) {
        pthread_t threads[24];
        for (intptr_t i = 0; i < 24; i++)
            threads[i] = started(short_one, (void *)i);
        for (int i = 0; i < 24; i++)
            sum += joined(threads[i]);
    }
    /* Detached ones, which nobody waits for but this. */
    static sem_t done;
    sem_init(&done, 0, 0);
    for (int i = 0; i < 50; i++) {
        pthread_detach(started(posts, &done));
        if (i % 5 == 4)
            for (int n = 0; n < 5; n++)
                while (sem_wait(&done) != 0)
                    ;
    }
    printf("sum %lu\n", sum);
    return 0;
}

/* Signals: to a thread, to the process, waited for, for a fault of one's own. */

static atomic_int taken_by, taken;
static atomic_int ready, stop;

static void on_signal(int number)
{
    (void)number;
    int saved = errno;
    atomic_store(&taken_by, (int)syscall(SYS_gettid));
    atomic_fetch_add(&taken, 1);
    errno = saved;
}

/* Computes, and makes no system call. */
static void *computes(void *argument)
{
    (void)argument;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    atomic_store(&ready, (int)syscall(SYS_gettid));
    volatile double sum = 0;
    while (!atomic_load(&stop))
        sum += 0.5;
    return NULL;
}

static int ends[2];

static void *reads(void *argument)
{
    char byte = 0;
    atomic_store(&ready, (int)syscall(SYS_gettid));
    ssize_t got = read(ends[0], &byte, 1);
    (void)argument;
    return (void *)(uintptr_t)(got == 1 ? byte : errno);
}

static void *waits(void *argument)
{
    int number = 0;
    sigset_t set;
    (void)argument;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    CHECK(sigwait(&set, &number) == 0);
    return (void *)(uintptr_t)(number - SIGRTMIN);
}

static __thread sigjmp_buf back;
static __thread uintptr_t fault_address;
static atomic_int off_stack;
static __thread char *handler_stack;

static void on_fault(int number, siginfo_t *info, void *context)
{
    char here;
    (void)number, (void)context;
    if (&here < handler_stack || &here >= handler_stack + 65536)
        atomic_fetch_add(&off_stack, 1);
    fault_address = (uintptr_t)info->si_addr;
    siglongjmp(back, 1);
}

static void *faults(void *argument)
{
    char *none = argument;
    handler_stack = malloc(65536);
    CHECK(sigaltstack(&(stack_t){ .ss_sp = handler_stack, .ss_size = 65536 }, NULL) == 0);
    uintptr_t right = 0;
    for (int i = 0; i < 50; i++) {
        char *at = none + (i * 3 % 16) * PAGE + i;
        if (sigsetjmp(back, 1) == 0)
            *(volatile char *)at = 1;
        else
            right += fault_address == (uintptr_t)at;
    }
    return (void *)right;
}

static void until_ready(void)
{
    while (!atomic_load(&ready))
        sched_yield();
}

static int signals(void)
{
    struct sigaction action = { .sa_handler = on_signal };
    sigset_t set;
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGRTMIN + 3);
    pthread_sigmask(SIG_BLOCK, &set, NULL);

    pthread_t thread = started(computes, NULL);
    until_ready();
    for (int i = 1; i <= 20; i++) {
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
        while (atomic_load(&taken) < i)
            sched_yield();
        CHECK(taken_by == ready);
    }
    /* Blocked everywhere but in that thread. */
    for (int i = 21; i <= 30; i++) {
        kill(getpid(), SIGUSR2);
        while (atomic_load(&taken) < i)
            sched_yield();
        CHECK(taken_by == ready);
    }
    pthread_kill(pthread_self(), SIGUSR1);
    printf("here %d\n", taken_by == (int)syscall(SYS_gettid));
    atomic_store(&stop, 1);
    joined(thread);

    /* A call in another thread: ended, then begun anew. */
    CHECK(pipe(ends) == 0);
    atomic_store(&ready, 0);
    thread = started(reads, NULL);
    until_ready();
    void *result = NULL;
    while (pthread_tryjoin_np(thread, &result) == EBUSY) {
        /* It may not be in the call yet. */
        pthread_kill(thread, SIGUSR1);
        usleep(1000);
    }
    printf("ended with %d\n", (int)(uintptr_t)result);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    atomic_store(&ready, 0);
    thread = started(reads, NULL);
    until_ready();
    int before = atomic_load(&taken);
    for (int i = 1; i <= 10; i++) {
        pthread_kill(thread, SIGUSR1);
        while (atomic_load(&taken) < before + i)
            sched_yield();
        CHECK(taken_by == ready);
    }
    CHECK(write(ends[1], "y", 1) == 1);
    printf("begun anew: %c\n", (int)joined(thread));

    thread = started(waits, NULL);
    pthread_t other = started(waits, NULL);
    pthread_kill(thread, SIGRTMIN + 3);
    printf("waited for %lu", joined(thread));
    kill(getpid(), SIGRTMIN + 3);
    printf(" and %lu\n", joined(other));

    action = (struct sigaction){ .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigaction(SIGSEGV, &action, NULL);
    char *none = map(16 * PAGE, PROT_READ);
    pthread_t threads[4];
    uintptr_t right = 0;
    for (int i = 0; i < 4; i++)
        threads[i] = started(faults, none);
    for (int i = 0; i < 4; i++)
        right += joined(threads[i]);
    printf("faults %lu, not on their stack %d\n", right, off_stack);
    return 0;
}

/* Cancellation, robust locks, locks with priorities. */

static atomic_int cleaned;

static void clean(void *argument)
{
    atomic_fetch_add(&cleaned, (int)(intptr_t)argument);
}

static void *pauses(void *argument)
{
    pthread_cleanup_push(clean, argument);
    atomic_store(&ready, 1);
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *spins(void *argument)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    pthread_cleanup_push(clean, argument);
    atomic_store(&ready, 1);
    for (volatile long n = 0;; n++)
        ;
    pthread_cleanup_pop(0);
    return NULL;
}

static pthread_mutex_t special;

static void *dies_with_it(void *argument)
{
    (void)argument;
    CHECK(pthread_mutex_lock(&special) == 0);
    return NULL;
}

static void *adds_with_it(void *argument)
{
    (void)argument;
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_mutex_lock(&special) == 0);
        total++;
        pthread_mutex_unlock(&special);
    }
    return NULL;
}

static int cancel(void)
{
    for (intptr_t i = 0; i < 10; i++) {
        atomic_store(&ready, 0);
        pthread_t thread = started(i % 2 ? pauses : spins, (void *)(i + 1));
        until_ready();
        CHECK(pthread_cancel(thread) == 0);
        CHECK((void *)joined(thread) == PTHREAD_CANCELED);
    }
    printf("cleaned %d\n", cleaned);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&special, &kind);
    joined(started(dies_with_it, NULL));
    int got = pthread_mutex_lock(&special);
    printf("its owner died: %d, consistent: %d\n", got == EOWNERDEAD, pthread_mutex_consistent(&special));
    pthread_mutex_unlock(&special);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&special, &kind);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = started(adds_with_it, NULL);
    for (int i = 0; i < 4; i++)
        joined(threads[i]);
    printf("added %ld\n", total);
    return 0;
}

/* The first thread ends, the others go on. */

static pthread_t first;

static void *outlives(void *argument)
{
    (void)argument;
    joined(first);
    char *text = NULL;
    CHECK(asprintf(&text, "it has ended") > 0);
    puts(text);
    joined(started(short_one, (void *)3));
    fflush(stdout);
    exit(7);
}

static int leave(void)
{
    first = pthread_self();
    started(outlives, NULL);
    pthread_exit(NULL);
}

static void *ends_last(void *argument)
{
    (void)argument;
    joined(first);
    puts("the last");
    return NULL;
}

/* All threads end, and none the process. */
static int all(void)
{
    first = pthread_self();
    started(ends_last, NULL);
    pthread_exit(NULL);
}

/* Children of a program with threads. */

extern char **environ;
static const char *self;

static void *busy(void *argument)
{
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&stop)) {
        char *text = malloc(200);
        memset(text, 1, 200);
        char *pages = map(4 * PAGE, PROT_READ | PROT_WRITE);
        pages[PAGE] = 1;
        munmap(pages, 4 * PAGE);
        free(text);
    }
    return argument;
}

static void *forks(void *argument)
{
    int status;
    uintptr_t right = 0;
    (void)argument;
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            /* One thread is here, and it may have more. */
            uintptr_t sum = joined(started(short_one, (void *)30)) + joined(started(short_one, (void *)11));
            _exit((int)sum + i);
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        right += WIFEXITED(status) && WEXITSTATUS(status) == 41 + i;
        char *arguments[] = { (char *)self, "status", NULL };
        CHECK(posix_spawn(&pid, self, NULL, NULL, arguments, environ) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        right += WIFEXITED(status) && WEXITSTATUS(status) == 21;
    }
    return (void *)right;
}

static int children(void)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        threads[i] = started(busy, NULL);
    while (atomic_load(&ready) < 3)
        sched_yield();
    fflush(stdout);
    printf("right %lu\n", joined(started(forks, NULL)));
    printf("by a shell %d\n", WEXITSTATUS(system("exit 9")));
    printf("not there %d\n", execl("/nowhere", "nowhere", NULL));
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++)
        joined(threads[i]);
    return 0;
}

static pthread_t disturbed_ones[2];

static void *disturbs(void *argument)
{
    while (!atomic_load(&stop))
        for (int i = 0; i < 2; i++)
            pthread_kill(disturbed_ones[i], SIGUSR1);
    return argument;
}

/* Signals for threads that take page faults, while forks make all memory, the machine's too, be looked up anew: a fault is then
 * interrupted on its way to the thread that answers it. */
static int disturbed(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 2; i++)
        disturbed_ones[i] = started(busy, NULL);
    while (atomic_load(&ready) < 2)
        sched_yield();
    pthread_t by = started(disturbs, NULL);
    int right = 0;
    for (int i = 0; i < 40; i++) {
        int status, before = atomic_load(&taken);
        pid_t pid = fork();
        if (pid == 0)
            _exit(i);
        CHECK(waitpid(pid, &status, 0) == pid);
        right += WIFEXITED(status) && WEXITSTATUS(status) == i;
        while (atomic_load(&taken) == before)
            sched_yield();
    }
    atomic_store(&stop, 1);
    joined(by);
    for (int i = 0; i < 2; i++)
        joined(disturbed_ones[i]);
    printf("right %d\n", right);
    return 0;
}

static void *executes(void *argument)
{
    (void)argument;
    fflush(stdout);
    execl(self, self, "status", NULL);
    return NULL;
}

/* Another program, from a thread that is not the first. */
static int execute(void)
{
    for (int i = 0; i < 3; i++)
        started(busy, NULL);
    while (atomic_load(&ready) < 3)
        sched_yield();
    puts("executes");
    joined(started(executes, NULL));
    return 1;
}

/* The process ends while its threads are busy: by exit, by a fault. */

static void *crashes(void *argument)
{
    (void)argument;
    fflush(stdout);
    *(volatile int *)16 = 1;
    return NULL;
}

static int end(int by_fault)
{
    for (int i = 0; i < 3; i++)
        started(busy, NULL);
    while (atomic_load(&ready) < 3)
        sched_yield();
    puts("ends");
    if (by_fault)
        joined(started(crashes, NULL));
    return 33;
}

/* Memory: what a call has taken away, no thread uses any more when it returns. */

#define TURNS 120

static char *target;
static atomic_long denied;

static void on_denied(int number)
{
    (void)number;
    atomic_fetch_add(&denied, 1);
    sched_yield();
}

/* Writes on and on; when it may not, it tries again. */
static void *insists(void *argument)
{
    volatile long *at = (long *)(target + 64 * (intptr_t)argument);
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&stop))
        ++*at;
    return NULL;
}

/* Its own pages, against a copy of them, while others change what is mapped. */
static void *keeps_accounts(void *argument)
{
    enum { PAGES = 64 };
    unsigned seed = (unsigned)(intptr_t)argument + 1;
    unsigned char copy[PAGES] = { 0 };
    char *pages = map(PAGES * PAGE, PROT_READ | PROT_WRITE);
    for (int i = 0; i < 4000; i++) {
        seed = seed * 1103515245 + 12345;
        int page = seed >> 16 & (PAGES - 1);
        CHECK((unsigned char)pages[page * PAGE + page] == copy[page]);
        copy[page] = (unsigned char)(seed >> 8);
        pages[page * PAGE + page] = (char)copy[page];
        if (i % 500 == 499) {
            char *moved = mremap(pages, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                                 map(PAGES * PAGE, PROT_NONE));
            CHECK(moved != MAP_FAILED);
            pages = moved;
        }
        if (i % 100 == 99) {
            CHECK(mprotect(pages + page * PAGE, PAGE, PROT_READ) == 0);
            CHECK((unsigned char)pages[page * PAGE + page] == copy[page]);
            CHECK(mprotect(pages + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
        }
    }
    munmap(pages, PAGES * PAGE);
    return NULL;
}

static long values(void)
{
    return *(volatile long *)target + *(volatile long *)(target + 64);
}

static int memory(void)
{
    signal(SIGSEGV, on_denied);
    /* Where nothing else goes when it is gone for a moment. */
    target = mmap((void *)0x300000000000, PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(target != MAP_FAILED);
    pthread_t writers[2], keepers[3];
    for (intptr_t i = 0; i < 2; i++)
        writers[i] = started(insists, (void *)i);
    for (intptr_t i = 0; i < 3; i++)
        keepers[i] = started(keeps_accounts, (void *)i);
    while (atomic_load(&ready) < 2)
        sched_yield();
    for (int i = 0; i < TURNS; i++) {
        long written = values();
        while (values() == written)
            sched_yield();
        if (i % 2) {
            CHECK(mprotect(target, PAGE, PROT_READ) == 0);
        } else {
            CHECK(munmap(target, PAGE) == 0);
            CHECK(mmap(target, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == target);
        }
        long now = values();
        CHECK(i % 2 || now == 0);
        long denied_now = atomic_load(&denied);
        while (atomic_load(&denied) < denied_now + 2)
            sched_yield();
        CHECK(values() == now);
        CHECK(mprotect(target, PAGE, PROT_READ | PROT_WRITE) == 0);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++)
        joined(writers[i]);
    for (int i = 0; i < 3; i++)
        joined(keepers[i]);
    printf("turns %d, denied %d\n", TURNS, denied >= 2 * TURNS);
    return 0;
}

/* Threads that write known pages, each page once: those of thread N in a GiB of its own. */

#define WRITTEN 500

static void *writes(void *argument)
{
    intptr_t number = (intptr_t)argument;
    char *base = (char *)(0x100000000000 + (number << 30));
    CHECK(mmap(base, 3 * WRITTEN * PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == base);
    pthread_barrier_wait(&barrier);
    for (long page = 0; page < WRITTEN; page++) {
        base[3 * page * PAGE + 9] = 1;
        if (page % 50 == 0)
            usleep(1000);
    }
    return NULL;
}

static int written(void)
{
    pthread_t threads[4];
    pthread_barrier_init(&barrier, NULL, 4);
    for (intptr_t i = 0; i < 4; i++)
        threads[i] = started(writes, (void *)i);
    for (int i = 0; i < 4; i++)
        joined(threads[i]);
    return 0;
}

int main(int count, char **arguments)
{
    const char *which = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOFBF, 65536);
    self = arguments[0];
    int status = 1;
    if (!strcmp(which, "work"))
        status = work();
    else if (!strcmp(which, "many"))
        status = many();
    else if (!strcmp(which, "signals"))
        status = signals();
    else if (!strcmp(which, "cancel"))
        status = cancel();
    else if (!strcmp(which, "leave"))
        status = leave();
    else if (!strcmp(which, "all"))
        status = all();
    else if (!strcmp(which, "children"))
        status = children();
    else if (!strcmp(which, "disturbed"))
        status = disturbed();
    else if (!strcmp(which, "execute"))
        status = execute();
    else if (!strcmp(which, "end"))
        status = end(0);
    else if (!strcmp(which, "crash"))
        status = end(1);
    else if (!strcmp(which, "memory"))
        status = memory();
    else if (!strcmp(which, "written"))
        status = written();
    else if (!strcmp(which, "status"))
        return 21;
    fflush(stdout);
    return status;
}
