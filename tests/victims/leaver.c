/* Threads that end while others wait for that: what the kernel writes when a thread ends reaches memory that may be
 * write-protected at that moment.
 *
 * Usage: leaver SECONDS PAGES. One thread writes rising numbers to PAGES pages, so that there is much to be protected.
 * Others are started again and again; each locks a robust mutex and ends, half of them without unlocking it. The thread
 * that waits must see every end (pthread_join), and the owner's death exactly where the mutex was not unlocked. Threads
 * that live long, and hold a mutex of their own for as long, end last. */
#include "victim.h"
#include <sys/mman.h>

#define AT_ONCE 4
#define PAGE 4096

static uint64_t pages;
static volatile unsigned char *memory;
/* Each in a page of its own, with nothing else in it. */
static pthread_mutex_t *mutexes[2 * AT_ONCE];

static pthread_mutex_t *robust_mutex(void) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(page, &attributes);
    return page;
}

static void *write_pages(void *unused) {
    (void)unused;
    for (uint64_t n = 1; !over(); n++)
        for (uint64_t i = 0; i < pages && !over(); i++) {
            uint64_t *at = (uint64_t *)(memory + (i * 2654435761u % pages) * PAGE);
            if (*at != n - 1) fail("page %lu has %lu instead of %lu", i, *at, n - 1);
            *at = n;
        }
    return NULL;
}

struct leave {
    pthread_mutex_t *mutex;
    long us;
    int unlocks;
};

static void *leave(void *argument) {
    struct leave *leave = argument;
    CHECK(!pthread_mutex_lock(leave->mutex));
    usleep(leave->us);
    if (leave->unlocks) CHECK(!pthread_mutex_unlock(leave->mutex));
    return NULL;
}

/* Waits for the end of a thread, and looks at what it has left. */
static void await_end(pthread_t thread, struct leave *leave) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    if (pthread_timedjoin_np(thread, NULL, &limit)) fail("the end of a thread is not seen");
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    int outcome = pthread_mutex_timedlock(leave->mutex, &limit);
    if (outcome != (leave->unlocks ? 0 : EOWNERDEAD)) fail("a mutex says %d, unlocked: %d", outcome, leave->unlocks);
    if (outcome) CHECK(!pthread_mutex_consistent(leave->mutex));
    CHECK(!pthread_mutex_unlock(leave->mutex));
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    pages = argc > 2 ? strtoul(argv[2], NULL, 10) : 4096;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int i = 0; i < 2 * AT_ONCE; i++) mutexes[i] = robust_mutex();
    pthread_t writer, threads[AT_ONCE], lasting[AT_ONCE];
    struct leave leaves[AT_ONCE], last[AT_ONCE];
    writer = helper(write_pages, NULL);
    victim_ready();
    for (uint64_t n = 0; n % 16 || !over(); n++) {
        for (int i = 0; i < AT_ONCE; i++) {
            leaves[i] = (struct leave){mutexes[i], 500 * ((n + i) % 8), (n + i) % 2};
            CHECK(!pthread_create(&threads[i], NULL, leave, &leaves[i]));
            if (n % 16 == 0) {
                last[i] = (struct leave){mutexes[AT_ONCE + i], 30000, i % 2};
                CHECK(!pthread_create(&lasting[i], NULL, leave, &last[i]));
            }
        }
        for (int i = 0; i < AT_ONCE; i++) await_end(threads[i], &leaves[i]);
        if (n % 16 == 15)
            for (int i = 0; i < AT_ONCE; i++) await_end(lasting[i], &last[i]);
    }
    victim_stopping = 1;
    pthread_join(writer, NULL);
    return 0;
}
