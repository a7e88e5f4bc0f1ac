/* Threads stamp the pages of one mapping without a pause, argv[3] pages each of argv[2] threads, and find in each what
 * they have left there. Each counts its steps in the first of its pages. With argv[4] "holes" the main thread unmaps
 * pages in the middle, which nobody stamps, and has there a file, or memory anew, in turn; with "grows" it has the
 * mapping grow and shrink at its end; with "splits", too, and half of what it has grown by may not be written; with
 * argv[5] each step of these waits for a SIGUSR1. */
#include "victim.h"
#include <fcntl.h>
#include <sys/mman.h>

#define BASE 0x100000000000
#define HOLE (16 * 4096)
#define TAIL (32 * 4096)

static size_t pages;
static int is_asked;
static volatile sig_atomic_t asked;

static void ask(int signal) {
    (void)signal;
    asked++;
}

/* Waits for the next step. */
static void next(void) {
    static sig_atomic_t done;
    if (!is_asked) {
        usleep(2000);
        return;
    }
    while (done == asked && !over()) usleep(500);
    done++;
}

static volatile uint64_t *stamp_of(long thread, size_t page) {
    return (volatile uint64_t *)(BASE + (thread * pages + page) * 4096 + (thread > 0 ? HOLE : 0));
}

static void *stamp(void *number) {
    long thread = (long)number;
    for (uint64_t round = 1; !over(); round++) {
        for (size_t page = 1; page < pages; page++) {
            volatile uint64_t *at = stamp_of(thread, page);
            if (at[1] != round - 1) fail("page %zu of thread %ld: %lu in round %lu", page, thread, at[1], round);
            at[1] = round;
            *stamp_of(thread, 0) += 1;
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    CHECK(argc > 4);
    is_asked = argc > 5;
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    long threads = atol(argv[2]);
    pages = strtoul(argv[3], NULL, 10);
    size_t bytes = threads * pages * 4096 + HOLE;
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    CHECK(mmap((void *)BASE, bytes, rights, flags, -1, 0) == (void *)BASE);
    memset((void *)BASE, 0, bytes);
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    for (long thread = 0; thread < threads; thread++) {
        pthread_t id;
        CHECK(pthread_create(&id, NULL, stamp, (void *)thread) == 0);
    }
    victim_ready();
    /* After the pages of the first thread. */
    char *hole = (char *)BASE + pages * 4096;
    for (next(); !over(); next()) {
        if (!strcmp(argv[4], "holes")) {
            CHECK(munmap(hole, HOLE) == 0);
            CHECK(mmap(hole, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0) == hole);
            next();
            CHECK(munmap(hole, 4096) == 0);
            CHECK(mmap(hole, HOLE, rights, flags, -1, 0) == hole);
        } else if (!strcmp(argv[4], "grows")) {
            CHECK(mremap((void *)BASE, bytes, bytes + TAIL, 0) == (void *)BASE);
            memset((char *)BASE + bytes, 1, TAIL);
            next();
            CHECK(mremap((void *)BASE, bytes + TAIL, bytes, 0) == (void *)BASE);
        } else if (!strcmp(argv[4], "splits")) {
            CHECK(mremap((void *)BASE, bytes, bytes + TAIL, 0) == (void *)BASE);
            memset((char *)BASE + bytes, 1, TAIL);
            CHECK(mprotect((char *)BASE + bytes + TAIL / 2, TAIL / 2, PROT_READ) == 0);
            next();
            CHECK(munmap((char *)BASE + bytes, TAIL) == 0);
        }
    }
    return 0;
}
