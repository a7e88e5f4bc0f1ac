/* Huge pages that are written and split again as soon as they exist, because a part of them is aged: while the kernel
 * splits one, its pages are not in the page table for a moment. Several threads do so, so that a tracker that comes
 * upon a new mapping meets that moment. It checks nothing: its tracker keeps a copy and compares.
 *
 * usage: splits SECONDS SEED */
#include "victim.h"
#include <sys/mman.h>

#define PAGE 4096ul
#define HUGE (512 * PAGE)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
enum { THREADS = 3, KEPT = 6 };
static uint64_t seed;

static void *splitting(void *index) {
    uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15ull + (uintptr_t)index;
    char *kept[KEPT] = {0};
    for (uint64_t i = 0; !over(); i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        char **at = &kept[i % KEPT];
        if (*at) munmap(*at, 2 * HUGE);
        *at = mmap(0, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(*at != MAP_FAILED);
        madvise(*at, 2 * HUGE, MADV_HUGEPAGE);
        for (size_t page = 0; page < 2 * 512; page++) *(uint64_t *)(*at + page * PAGE) = state + page;
        for (int j = 0; j < 8; j++) {
            madvise(*at + (state >> 40) % 512 * PAGE, 3 * PAGE, j % 2 ? MADV_COLD : MADV_PAGEOUT);
            usleep((state >> 50) % 64);
            madvise(*at, 2 * HUGE, MADV_COLLAPSE);
        }
        usleep(100);
    }
    return 0;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    seed = argc > 2 ? strtoull(argv[2], 0, 10) : 1;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) threads[i] = helper(splitting, (void *)i);
    victim_ready();
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 0;
}
