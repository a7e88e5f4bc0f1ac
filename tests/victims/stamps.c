/* Memory whose contents of one instant can be distinguished from a mixture of several.
 *
 * Usage: stamps SECONDS THREADS PAGES PAUSE_US. Each thread stamps its pages in an order of its own, round after round with
 * rising stamps; publishes how far it is; and notes how far it has seen the others. At any instant
 *   - along a thread's order, the pages have the stamp n up to where it is, and n - 1 from there on;
 *   - what it has published is where it is, or a few steps back;
 *   - nobody has seen of another more than that one has published.
 * One more thread maps fresh memory over the same place again and again and stamps some of its pages in order: at any
 * instant all stamps there are equal or zero.
 *
 * All of it lies at fixed addresses, described by the first page. */
#include "victim.h"
#include <sys/mman.h>

#define BASE 0x100000000000ull
#define CHURN 0x200000000000ull
#define PAGE 4096
#define STEPS 64
#define CHURN_PAGES 64
#define CHURN_STAMPED 8

struct header {
    uint64_t magic, threads, pages, first_clock, first_seen, first_stamp;
};

static volatile struct header *header = (void *)BASE;
static uint64_t threads, pages;
static long pause_us;

static volatile uint64_t *page(uint64_t number) { return (volatile uint64_t *)(BASE + number * PAGE); }
static volatile uint64_t *clock_of(uint64_t thread) { return page(1 + thread); }
static volatile uint64_t *seen_of(uint64_t thread) { return page(1 + threads + thread); }
static volatile uint64_t *stamp(uint64_t thread, uint64_t step) {
    uint64_t place = (step * 2654435761ull + thread * 7) & (pages - 1);
    return page(1 + 2 * threads + thread * pages + place);
}

static void *write_stamps(void *argument) {
    uint64_t me = (uintptr_t)argument;
    for (uint64_t n = 1;; n++)
        for (uint64_t step = 0; step < pages; step++) {
            volatile uint64_t *at = stamp(me, step);
            if (*at != n - 1) fail("thread %lu found stamp %lu instead of %lu", me, *at, n - 1);
            *at = n;
            if (step % STEPS) continue;
            __atomic_store_n(clock_of(me), n * pages + step, __ATOMIC_SEQ_CST);
            for (uint64_t other = 0; other < threads; other++)
                seen_of(me)[other] = __atomic_load_n(clock_of(other), __ATOMIC_SEQ_CST);
            if (pause_us) usleep(pause_us);
            if (over()) return NULL;
        }
}

static void *churn(void *argument) {
    for (uint64_t n = 1; !over(); n++) {
        volatile uint64_t *fresh = mmap((void *)CHURN, CHURN_PAGES * PAGE, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(fresh == (void *)CHURN);
        for (uint64_t i = 0; i < CHURN_STAMPED; i++) fresh[(i * 5 + n) % CHURN_PAGES * PAGE / 8] = n;
        if (n % 3 == 0) CHECK(!madvise((void *)CHURN, CHURN_PAGES * PAGE, MADV_DONTNEED));
        usleep(300 + n % 7 * 200);
    }
    return argument;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    threads = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pages = argc > 3 ? strtoull(argv[3], NULL, 10) : 256;
    pause_us = argc > 4 ? atol(argv[4]) : 1000;
    CHECK(threads && threads <= 64 && pages && !(pages & (pages - 1)));
    void *memory = mmap((void *)BASE, (1 + 2 * threads + threads * pages) * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(memory == (void *)BASE);
    header->threads = threads;
    header->pages = pages;
    header->first_clock = 1;
    header->first_seen = 1 + threads;
    header->first_stamp = 1 + 2 * threads;
    header->magic = 0x53504d415453ull;
    pthread_t all[65];
    for (uintptr_t i = 1; i < threads; i++) all[i] = helper(write_stamps, (void *)i);
    all[0] = helper(churn, NULL);
    victim_ready();
    write_stamps((void *)0);
    victim_stopping = 1;
    for (uint64_t i = 0; i < threads; i++) pthread_join(all[i], NULL);
    return 0;
}
