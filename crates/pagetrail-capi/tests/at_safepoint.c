/*
 * at_safepoint.c: rounds while the world is stopped.
 *
 * Threads allocate and write without pause; the collecting thread stops them by a signal wherever they are, as
 * a collector does, and asks for rounds. One of the threads is always stopped inside malloc, with its lock held, so the library
 * would wait for ever if it allocated; and this program's own malloc counts who calls it meanwhile. The thread that
 * asks has never called the library before, so nothing can have been prepared for it.
 */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 512, THREADS = 3, ROUNDS = 30 };

/* The allocators of glibc that this program's functions of the same names call. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_int stopped;
static atomic_ulong calls_while_stopped, calls;
static atomic_flag heap_lock = ATOMIC_FLAG_INIT;

/* Every call goes through one lock, as in the simplest of allocators. */
static void enter(void)
{
    atomic_fetch_add(&calls, 1);
    if (atomic_load(&stopped)) {
        atomic_fetch_add(&calls_while_stopped, 1);
        return; /* It would wait for ever; it is counted instead. */
    }
    while (atomic_flag_test_and_set(&heap_lock))
        ;
}

static void leave(void)
{
    if (!atomic_load(&stopped))
        atomic_flag_clear(&heap_lock);
}

#define LOCKED(type, call)                                                                    \
    do {                                                                                      \
        enter();                                                                              \
        type result = call;                                                                   \
        leave();                                                                              \
        return result;                                                                        \
    } while (0)

void *malloc(size_t size) { LOCKED(void *, __libc_malloc(size)); }
void *calloc(size_t count, size_t size) { LOCKED(void *, __libc_calloc(count, size)); }
void *realloc(void *old, size_t size) { LOCKED(void *, __libc_realloc(old, size)); }
void *memalign(size_t alignment, size_t size) { LOCKED(void *, __libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { LOCKED(void *, __libc_memalign(alignment, size)); }

int posix_memalign(void **out, size_t alignment, size_t size)
{
    enter();
    *out = __libc_memalign(alignment, size);
    leave();
    return *out == NULL ? ENOMEM : 0;
}

void free(void *memory)
{
    enter();
    __libc_free(memory);
    leave();
}

static size_t page;
static unsigned char *memory;
static atomic_bool finished;
static sem_t parked;
static atomic_int world; /* The number of the stop that holds the threads; 0 while they run. */

static void park(int signal)
{
    int saved = errno;
    (void)signal;
    sem_post(&parked);
    while (atomic_load(&world))
        usleep(100);
    sem_post(&parked);
    errno = saved;
}

/* Writes pages of its own and allocates; the first thread waits for its stop inside malloc. */
static void *work(void *number)
{
    size_t index = (size_t)(uintptr_t)number;
    unsigned turn = 0;
    while (!atomic_load(&finished)) {
        memory[(turn * THREADS + index) % PAGES * page + 8]++;
        void *piece = malloc(32 + turn % 500);
        memset(piece, 1, 32);
        free(piece);
        turn++;
    }
    return NULL;
}

/* Holds the lock of malloc from before each stop until after it. */
static void *hold(void *unused)
{
    (void)unused;
    while (!atomic_load(&finished)) {
        while (atomic_flag_test_and_set(&heap_lock))
            ;
        usleep(200);
        atomic_flag_clear(&heap_lock);
        usleep(50);
    }
    return NULL;
}

static pthread_t threads[THREADS + 1];
static pagetrail_watch *watch;

static void *collect(void *unused)
{
    static pagetrail_range buffer[PAGES];
    unsigned long held = 0, pages = 0;
    (void)unused;
    for (int round_number = 0; round_number < ROUNDS; round_number++) {
        usleep(1000);
        size_t mine = (size_t)round_number * 7 % PAGES * page;
        memory[mine + 16]++;
        atomic_store(&world, 1);
        for (int i = 0; i <= THREADS; i++)
            CHECK(pthread_kill(threads[i], SIGUSR1) == 0);
        for (int i = 0; i <= THREADS; i++)
            while (sem_wait(&parked) != 0)
                ;
        /* What the threads hold now they hold until they run again. */
        bool lock_is_held = atomic_flag_test_and_set(&heap_lock);
        if (!lock_is_held)
            atomic_flag_clear(&heap_lock);
        held += lock_is_held;

        pagetrail_round *round, *none;
        pagetrail_round_info info;
        const pagetrail_range *ranges;
        size_t count, copied;
        bool found;
        atomic_store(&stopped, 1);
        pagetrail_status collected = pagetrail_watch_collect(watch, &round);
        pagetrail_status refused = pagetrail_watch_collect(watch, &none);
        pagetrail_status others = pagetrail_round_get_info(round, &info, sizeof info);
        others |= pagetrail_round_written(round, &ranges, &count);
        others |= pagetrail_round_copy(round, buffer, PAGES, &copied);
        others |= pagetrail_round_contains(round, (uint64_t)(uintptr_t)memory + mine, &found);
        others |= round_number % 3 == 2 ? pagetrail_round_give_back(round) : pagetrail_round_commit(round);
        atomic_store(&stopped, 0);
        CHECK(collected == PAGETRAIL_STATUS_OK);
        CHECK(refused == PAGETRAIL_STATUS_ROUND_OPEN);
        CHECK(others == PAGETRAIL_STATUS_OK);
        CHECK(copied == count && found);
        pages += info.written_bytes / page;

        atomic_store(&world, 0);
        for (int i = 0; i <= THREADS; i++)
            while (sem_wait(&parked) != 0)
                ;
    }
    printf("%d rounds, %lu pages; malloc's lock was held in %lu\n", ROUNDS, pages, held);
    CHECK(held > 0);
    return NULL;
}

static void rounds(pagetrail_technique technique)
{
    pthread_t collector;
    pagetrail_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + PAGES * page};
    pagetrail_options options = {0};

    options.target = PAGETRAIL_TARGET_RANGES;
    options.technique = technique;
    options.ranges = &range;
    options.range_count = 1;
    options.flags = PAGETRAIL_OPTION_AT_SAFEPOINT;
    OK(pagetrail_watch_start(&options, sizeof options, &watch));
    OK(pagetrail_watch_reserve(watch, PAGES / 2));
    atomic_store(&finished, false);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    CHECK(pthread_create(&threads[THREADS], NULL, hold, NULL) == 0);

    printf("%s: ", pagetrail_technique_name(technique));
    CHECK(pthread_create(&collector, NULL, collect, NULL) == 0);
    CHECK(pthread_join(collector, NULL) == 0);
    atomic_store(&finished, true);
    for (int i = 0; i <= THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(pagetrail_watch_free(watch));
    CHECK(atomic_load(&calls_while_stopped) == 0);
}

int main(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, PAGES * page);
    CHECK(sem_init(&parked, 0, 0) == 0);
    struct sigaction action = {0};
    action.sa_handler = park;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);

    /* The counter counts, and the library's calls are seen by it. */
    atomic_store(&stopped, 1);
    void *volatile piece = malloc(1);
    atomic_store(&stopped, 0);
    CHECK(atomic_exchange(&calls_while_stopped, 0) == 1);
    free(piece);

    int tried = 0;
    for (pagetrail_technique technique = PAGETRAIL_TECHNIQUE_PAGEMAP_SCAN; technique <= PAGETRAIL_TECHNIQUE_ADAPTIVE;
         technique++) {
        pagetrail_capability capability;
        OK(pagetrail_technique_capability(technique, &capability, NULL));
        if (capability != PAGETRAIL_CAPABILITY_WORKS)
            continue;
        rounds(technique);
        tried++;
    }
    CHECK(tried >= 2);
    return 0;
}
