/* Does a fixed amount of work and says how much processor time it took, in ns: argv[2] passes over some pages, each
 * written at the end of a chain of calls, four of five by `often`, one by `seldom`; argv[3] steps of computing after each
 * page. It checks what it has written.
 *
 * Frame pointers are kept, so that either way of finding callers finds all of them. */
#pragma GCC optimize("no-omit-frame-pointer", "no-optimize-sibling-calls")
#include "victim.h"
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 20000, DEPTH = 12 };

static uint64_t sum = 1;

#define NOINLINE __attribute__((noinline, noipa, noclone))

static NOINLINE void often(volatile uint64_t *word, uint64_t value) { *word = value; }

static NOINLINE void seldom(volatile uint64_t *word, uint64_t value) { *word = value; }

static NOINLINE void descend(int depth, size_t page, volatile uint64_t *word, uint64_t value) {
    if (depth > 0) {
        descend(depth - 1, page, word, value);
        sum += depth;
        return;
    }
    if (page % 5 == 0) seldom(word, value);
    else often(word, value);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    CHECK(argc > 3);
    uint64_t passes = strtoul(argv[2], NULL, 10), steps = strtoul(argv[3], NULL, 10);
    volatile uint64_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t page = 0; page < PAGES; page++) memory[page * (PAGE / 8)] = 0;
    struct timespec begun, done;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun);
    for (uint64_t pass = 1; pass <= passes; pass++)
        for (size_t page = 0; page < PAGES; page++) {
            descend(DEPTH, page, memory + page * (PAGE / 8), pass);
            for (uint64_t step = 0; step < steps; step++) {
                sum = sum * 31 + step;
                __asm__ volatile("" : "+r"(sum));
            }
        }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &done);
    for (size_t page = 0; page < PAGES; page++)
        if (memory[page * (PAGE / 8)] != passes) fail("page %zu is wrong", page);
    printf("%lld\n", (done.tv_sec - begun.tv_sec) * 1000000000LL + done.tv_nsec - begun.tv_nsec);
    return 0;
}
