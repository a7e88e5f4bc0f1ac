/* Writes to memory and discards parts of it, in an order that argv[2] is the seed of: a few steps at each SIGUSR1.
 * Private memory, then shared memory, each of argv[3] pages; prints where they are. What is discarded it mostly
 * leaves alone: nothing but the memory itself shows that. */
#include "victim.h"
#include <sys/mman.h>

static volatile sig_atomic_t asked;
static uint64_t seed;

static void ask(int signal) {
    (void)signal;
    asked++;
}

static uint64_t random_below(uint64_t end) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % end;
}

static void step(char *memory, size_t pages, int flags) {
    size_t page = random_below(pages);
    size_t count = 1 + random_below(16);
    if (count > pages - page) count = pages - page;
    char *from = memory + page * 4096;
    switch (random_below(12)) {
    case 0:
        CHECK(madvise(from, count * 4096, flags == MAP_SHARED ? MADV_REMOVE : MADV_DONTNEED) == 0);
        break;
    case 1:
        CHECK(madvise(from, count * 4096, flags == MAP_SHARED ? MADV_DONTNEED : MADV_FREE) == 0);
        break;
    case 2:
        if (flags == MAP_SHARED) break;
        CHECK(munmap(from, count * 4096) == 0);
        CHECK(mmap(from, count * 4096, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
              from);
        break;
    case 3:
        CHECK(*(volatile char *)from != 1);
        break;
    default:
        for (size_t at = 0; at < count; at++) *(uint64_t *)(from + at * 4096 + random_below(512) * 8) = seed << 8;
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    CHECK(argc > 3);
    seed = strtoull(argv[2], NULL, 10);
    size_t pages = strtoul(argv[3], NULL, 10);
    const int flags[2] = {MAP_PRIVATE, MAP_SHARED};
    char *memory[2];
    for (int kind = 0; kind < 2; kind++) {
        memory[kind] = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, flags[kind] | MAP_ANONYMOUS, -1, 0);
        CHECK(memory[kind] != MAP_FAILED);
        memset(memory[kind], 255, pages * 4096);
    }
    printf("%lx %lx\n", (long)memory[0], (long)memory[1]);
    victim_ready();
    sig_atomic_t done = 0;
    while (!over()) {
        usleep(500);
        if (done == asked) continue;
        done++;
        for (uint64_t left = random_below(8); left > 0; left--) {
            for (int kind = 0; kind < 2; kind++) step(memory[kind], pages, flags[kind]);
        }
    }
    return 0;
}
