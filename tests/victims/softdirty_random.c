/* Random operations on memory, after each of which soft-dirty bits as libc's calls tell them (under the library: its
 * answers) must cover what the program wrote itself and, where the kernel has such bits, what the kernel's own say.
 * The kernel alone does not pass: it forgets what a forked child's parent wrote to shared memory.
 * usage: softdirty_random SEED STEPS */
#define _GNU_SOURCE
#include "victim.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define PAGES 24
/* Regions lie apart: a new mapping that merged with an old one would make the kernel call the old one dirty. */
#define REGIONS 8
#define PLACES (2 * REGIONS)
#define SOFT_DIRTY (1ull << 55)
#define IN_RAM_OR_SWAP (3ull << 62)

#ifndef PAGEMAP_SCAN
struct page_region { uint64_t start, end, categories; };
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
        category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif
#ifndef PAGE_IS_SOFT_DIRTY
#define PAGE_IS_SOFT_DIRTY (1 << 7)
#endif

static struct region {
    char *at;
    int kind; /* 0 private, 1 shared, 2 of a file */
    char written[PAGES];
    char read_only[PAGES];
    int is_split; /* mprotect(2) may have made several mappings of it */
} regions[REGIONS];

static char *places;
static char taken[PLACES];
static int file, pagemap, clear_refs, bare_pagemap, bare_clear_refs, kernel_has_bits;
static unsigned long seed, step, extra, compared;
static const char *last = "start";

static unsigned long number(unsigned long below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed % below;
}

static void map_region(struct region *r, char *at) {
    int kinds[] = {MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE};
    r->kind = number(3);
    r->at = mmap(at, PAGES * PAGE, PROT_READ | PROT_WRITE, kinds[r->kind] | MAP_FIXED, r->kind == 2 ? file : -1, 0);
    CHECK(r->at == at);
    memset(r->written, 0, PAGES);
    memset(r->read_only, 0, PAGES);
    r->is_split = 0;
}

static char *free_place(void) {
    for (;;) {
        unsigned long place = number(PLACES);
        if (!taken[place]) {
            taken[place] = 1;
            return places + place * 2 * PAGES * PAGE;
        }
    }
}

/* Leaves addresses that nothing else gets. */
static void leave_place(char *at) {
    taken[(at - places) / (2 * PAGES * PAGE)] = 0;
    CHECK(mmap(at, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
}

static void compare(int fd) {
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &regions[i];
        uint64_t answers[PAGES], kernels[PAGES];
        char scanned[PAGES] = {0};
        off_t at = (uintptr_t)r->at / PAGE * 8;
        CHECK(syscall(SYS_pread64, bare_pagemap, kernels, sizeof kernels, at) == sizeof kernels);
        CHECK(pread(fd, answers, sizeof answers, at) == sizeof answers);
        struct page_region found[PAGES];
        struct pm_scan_arg arg = {.size = sizeof arg, .start = (uintptr_t)r->at, .end = (uintptr_t)r->at + PAGES * PAGE,
            .vec = (uintptr_t)found, .vec_len = PAGES, .category_mask = PAGE_IS_SOFT_DIRTY, .return_mask = PAGE_IS_SOFT_DIRTY};
        int count = ioctl(fd, PAGEMAP_SCAN, &arg);
        CHECK(count >= 0);
        for (int k = 0; k < count; k++)
            for (uint64_t a = found[k].start; a < found[k].end; a += PAGE)
                scanned[(a - (uintptr_t)r->at) / PAGE] = 1;
        for (int p = 0; p < PAGES; p++) {
            /* Of a page that is not there the kernel says what it says of the whole mapping. */
            int kernel = kernel_has_bits && kernels[p] & SOFT_DIRTY && kernels[p] & IN_RAM_OR_SWAP;
            int answer = (answers[p] & SOFT_DIRTY) != 0;
            compared++;
            extra += answer && !kernel && !r->written[p];
            if ((kernel || r->written[p]) && (!answer || !scanned[p]))
                fail("step %lu (%s): region %d of kind %d, page %d: written %d, the kernel's entry %#lx, the answers: entry %#lx, "
                    "scan %d", step, last, i, r->kind, p, r->written[p], (long)kernels[p], (long)answers[p], scanned[p]);
        }
    }
}

static void clear(void) {
    CHECK(syscall(SYS_write, bare_clear_refs, "4", 1) == 1);
    CHECK(write(clear_refs, "4", 1) == 1);
    for (int i = 0; i < REGIONS; i++)
        memset(regions[i].written, 0, PAGES);
}

static void operate(void) {
    struct region *r = &regions[number(REGIONS)];
    int first = number(PAGES), count = 1 + number(PAGES - first);
    char *at = r->at + first * PAGE;
    switch (number(12)) {
    case 0: case 1: case 2: case 3:
        last = "write";
        count = count > 3 ? 3 : count;
        for (int p = first; p < first + count; p++)
            if (!r->read_only[p])
                r->at[p * PAGE + number(PAGE)]++, r->written[p] = 1;
        break;
    case 4:
        last = "read";
        for (int p = first; p < first + count; p++)
            *(volatile char *)(r->at + p * PAGE);
        break;
    case 5:
        last = "madvise";
        CHECK(!madvise(at, count * PAGE, MADV_DONTNEED));
        memset(r->written + first, 0, count);
        break;
    case 6: case 7:
        last = "mprotect";
        r->is_split = 1;
        memset(r->read_only + first, r->read_only[first] = !r->read_only[first], count);
        CHECK(!mprotect(at, count * PAGE, r->read_only[first] ? PROT_READ : PROT_READ | PROT_WRITE));
        break;
    case 8:
        last = "mmap fixed";
        map_region(r, r->at);
        break;
    case 9: {
        last = "mremap";
        /* mremap(2) moves one mapping at a time. */
        if (r->is_split)
            break;
        char *to = free_place(), *from = r->at;
        CHECK(mremap(from, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        r->at = to;
        leave_place(from);
        break;
    }
    case 10: {
        last = "fork";
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            /* Descriptors of its own; the parent's tell of the parent. */
            int fd = open("/proc/self/pagemap", O_RDONLY);
            bare_pagemap = syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY, 0);
            CHECK(fd >= 0 && bare_pagemap >= 0);
            last = "fork, in the child";
            compare(fd);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        break;
    }
    case 11:
        last = "clear";
        clear();
        break;
    }
}

int main(int argc, char **argv) {
    victim_start(1, argv);
    if (argc != 3)
        fail("usage: softdirty_random SEED STEPS");
    alarm(300);
    seed = strtoul(argv[1], NULL, 0) | 1;
    unsigned long steps = strtoul(argv[2], NULL, 0);
    CHECK((file = memfd_create("contents", 0)) >= 0 && !ftruncate(file, PAGES * PAGE));
    CHECK((pagemap = open("/proc/self/pagemap", O_RDONLY)) >= 0);
    CHECK((clear_refs = open("/proc/self/clear_refs", O_WRONLY)) >= 0);
    CHECK((bare_pagemap = syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY, 0)) >= 0);
    CHECK((bare_clear_refs = syscall(SYS_openat, AT_FDCWD, "/proc/self/clear_refs", O_WRONLY, 0)) >= 0);
    places = mmap(NULL, PLACES * 2 * PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(places != MAP_FAILED);
    for (int i = 0; i < REGIONS; i++)
        map_region(&regions[i], free_place());
    regions[0].at[0]++;
    uint64_t entry;
    CHECK(syscall(SYS_pread64, bare_pagemap, &entry, 8, (uintptr_t)regions[0].at / PAGE * 8) == 8);
    kernel_has_bits = (entry & SOFT_DIRTY) != 0;
    clear();
    for (step = 0; step < steps; step++) {
        operate();
        compare(pagemap);
    }
    printf("%s, %lu steps, %lu answers, %lu false positives\n",
        kernel_has_bits ? "beside the kernel's bits" : "the kernel has no bits: beside the program's own writes", steps,
        compared, extra);
    return 0;
}
