/* How long a thread waits that reads memory while it moves: wait HOW TIMES.
 *
 * HOW is what happens to each of TIMES regions of 2 MiB, whose first word the thread reads without a pause:
 *   huge      a huge page moves from node 1 to node 0 by move_pages(2);
 *   small     the first page of 4 KiB moves, alone;
 *   batch     512 pages of 4 KiB move in one call, of which it reads the first;
 *   replaced  a huge page is write-protected, copied while it is read, taken out, and the copy put in its place (UFFDIO_MOVE);
 *   still     nothing moves: what the machine's other work makes of it.
 * Prints how many regions are on node 0 at the end, how many were huge pages and how many still are, wrong words, the faults of
 * the thread, its longest access to a region (median and most of all regions) and how long this process takes to copy 2 MiB (median).
 * Ends with 3 where the kernel has no UFFDIO_MOVE. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define REGION (2ul << 20)
#define TIMES_MAX 256

/* Linux 6.8. */
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
    __u64 dst, src, len, mode;
    __s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

static uint8_t *memory;
static volatile uint64_t *_Atomic target;
static _Atomic uint64_t longest, reads, wrong;
static _Atomic int over;

static int die(const char *what) {
    perror(what);
    exit(2);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* What the first word of a page holds. */
static uint64_t stamp(const uint8_t *at) {
    return (at - memory) / PAGE + 1;
}

static void *read_on(void *faults) {
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    while (!over) {
        volatile uint64_t *word = target;
        uint64_t began = now();
        uint64_t value = *word;
        uint64_t took = now() - began;
        wrong += value != stamp((uint8_t *)word);
        if (took > longest)
            longest = took;
        reads++;
    }
    getrusage(RUSAGE_THREAD, &after);
    /* One that waited counts as major. */
    *(long *)faults = after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt;
    return 0;
}

static void let_it_read(void) {
    for (uint64_t until = reads + 100; reads < until;)
        usleep(100);
}

/* Memory of one kind of page, on one node if the machine has it. */
static uint8_t *map(unsigned long bytes, int huge, unsigned long node) {
    uint8_t *at = mmap(0, bytes + REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    at = (uint8_t *)(((uintptr_t)at + REGION - 1) & -REGION);
    if (madvise(at, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
        die("madvise");
    unsigned long nodes = 1ul << node;
    syscall(SYS_mbind, at, bytes, 1 /* MPOL_PREFERRED */, &nodes, 8 * sizeof nodes, 0);
    return at;
}

static int open_uffd(void) {
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0)
        uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
        exit(3);
    return uffd;
}

static void register_for(int uffd, uint8_t *at, unsigned long bytes, int mode) {
    struct uffdio_register range = {{(uintptr_t)at, bytes}, mode, 0};
    if (ioctl(uffd, UFFDIO_REGISTER, &range))
        die("UFFDIO_REGISTER");
}

static void put(int uffd, uint8_t *to, uint8_t *from) {
    struct uffdio_move all = {.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = REGION};
    while (ioctl(uffd, UFFDIO_MOVE, &all)) {
        if (errno != EAGAIN)
            die("UFFDIO_MOVE");
        if (all.move > 0) {
            all.dst += all.move, all.src += all.move, all.len -= all.move;
            all.move = 0;
        }
    }
}

/* Moves pages, or with no node asks where they are; how many are on node 0 then. */
static unsigned long on_node_0(uint8_t *at, unsigned long count, unsigned long step, int move) {
    void **pages = malloc(count * sizeof *pages);
    int *nodes = calloc(count, sizeof *nodes), *states = malloc(count * sizeof *states);
    for (unsigned long page = 0; page < count; page++) {
        pages[page] = at + page * step;
        states[page] = -1;
    }
    if (syscall(SYS_move_pages, 0, count, pages, move ? nodes : NULL, states, 2 /* MPOL_MF_MOVE */) < 0)
        die("move_pages");
    unsigned long found = 0;
    for (unsigned long page = 0; page < count; page++)
        found += states[page] == 0;
    free(pages), free(nodes), free(states);
    return found;
}

static unsigned long huge_pages(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    unsigned long kib = 0;
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "AnonHugePages: %lu kB", &kib);
    if (file)
        fclose(file);
    return kib >> 11;
}

static int by_size(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    unsigned long times = argc == 3 ? strtoul(argv[2], 0, 10) : 0;
    if (times == 0 || times > TIMES_MAX)
        return 2;
    const char *how = argv[1];
    int replaced = !strcmp(how, "replaced"), huge = replaced || !strcmp(how, "huge");
    int small = !strcmp(how, "small"), batch = !strcmp(how, "batch");
    if (!huge && !small && !batch && strcmp(how, "still"))
        return 2;
    int uffd = replaced ? open_uffd() : -1;
    memory = map(times * REGION, huge, 1);
    uint8_t *copy = map(REGION, huge, 0), *out = map(REGION, huge, 1);
    uint64_t waits[TIMES_MAX], copies[TIMES_MAX];
    for (unsigned long page = 0; page < times * REGION / PAGE; page++)
        *(uint64_t *)(memory + page * PAGE) = stamp(memory + page * PAGE);
    unsigned long had = huge_pages();
    if (replaced) {
        register_for(uffd, memory, times * REGION, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
        register_for(uffd, out, REGION, UFFDIO_REGISTER_MODE_MISSING);
    }
    long faults = 0;
    target = (void *)memory;
    pthread_t thread;
    pthread_create(&thread, 0, read_on, &faults);
    unsigned long moved = 0;
    for (unsigned long i = 0; i < times; i++) {
        uint8_t *at = memory + i * REGION;
        /* In its own huge page, so that it is there before the clock runs. */
        memset(copy, 0, REGION);
        target = (void *)at;
        let_it_read();
        uint64_t began = now();
        memcpy(copy, at, REGION);
        copies[i] = now() - began;
        longest = 0;
        if (replaced) {
            struct uffdio_writeprotect range = {{(uintptr_t)at, REGION}, UFFDIO_WRITEPROTECT_MODE_WP};
            if (ioctl(uffd, UFFDIO_WRITEPROTECT, &range))
                die("UFFDIO_WRITEPROTECT");
            memcpy(copy, at, REGION);
            put(uffd, out, at);
            put(uffd, at, copy);
            madvise(out, REGION, MADV_DONTNEED);
        } else if (huge || small) {
            on_node_0(at, 1, PAGE, 1);
        } else if (batch) {
            on_node_0(at, REGION / PAGE, PAGE, 1);
        } else {
            /* As long as the others take. */
            memcpy(copy, at, REGION);
        }
        let_it_read();
        waits[i] = longest;
        unsigned long first = small ? 1 : REGION / PAGE;
        moved += on_node_0(at, first, PAGE, 0) == first;
    }
    over = 1;
    pthread_join(thread, 0);
    unsigned long found = huge_pages();
    for (unsigned long page = 0; page < times * REGION / PAGE; page++)
        wrong += *(uint64_t *)(memory + page * PAGE) != stamp(memory + page * PAGE);
    qsort(waits, times, sizeof *waits, by_size);
    qsort(copies, times, sizeof *copies, by_size);
    printf("moved %lu had %lu huge %lu wrong %lu faults %ld wait_ns_median %lu wait_ns_most %lu copy_ns_median %lu\n", moved, had, found,
           (unsigned long)wrong, faults, (unsigned long)waits[times / 2], (unsigned long)waits[times - 1],
           (unsigned long)copies[times / 2]);
    return 0;
}
