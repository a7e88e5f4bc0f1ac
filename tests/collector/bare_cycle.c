/* What the kernel's part of one collection costs at least, with nothing of libgc's or ours around it: faults of the pages that
 * were written, reading their entries in pagemap as libgc 8.2 does, and protecting them again by one PAGEMAP_SCAN.
 *
 * Usage: bare_cycle HEAP_PAGES WRITTEN_PAGES WINDOWS. Windows are the reads of 2,048 entries that libgc makes for the static
 * data of libraries that lie close together. Not part of the benchmark: compile it with gcc -O2 and run it by hand. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WINDOW 2048
#define CYCLES 500
#define ROUNDS 15

struct region { uint64_t start, end, categories; };
struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, all_of, any_of, report;
};
#define SCAN _IOWR('f', 16, struct scan)
enum { REARM = 1, REGISTERED = 2, WRITTEN = 2, PRESENT = 8, SWAPPED = 16 };
/* UFFD_FEATURE_WP_ASYNC, WP_HUGETLBFS_SHMEM and PAGEFAULT_FLAG_WP; headers before Linux 6.7 lack the first. */
static const uint64_t features = 1 << 15 | 1 << 12 | 1;

static char *heap;
static size_t heap_pages, written_pages, windows;
static int pagemap;
static uint64_t entries[1 << 20];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void check(int fine, const char *what) {
    if (!fine) {
        perror(what);
        exit(1);
    }
}

static void write_pages(void) {
    for (size_t i = 0; i < written_pages; i++) heap[i * PAGE]++;
}

static void read_entries(void) {
    off_t library = ((uintptr_t)&printf & ~0x1fffffull) / PAGE * 8;
    check(pread(pagemap, entries, heap_pages * 8, (uintptr_t)heap / PAGE * 8) > 0, "pagemap");
    for (size_t i = 0; i < windows; i++) check(pread(pagemap, entries, WINDOW * 8, library) > 0, "pagemap");
}

static void rearm(void) {
    struct region regions[128];
    struct scan scan = {.size = sizeof scan, .flags = REARM | REGISTERED, .start = (uintptr_t)heap,
                        .end = (uintptr_t)heap + heap_pages * PAGE, .vec = (uintptr_t)regions, .vec_len = 128,
                        .all_of = WRITTEN, .any_of = PRESENT | SWAPPED};
    check(ioctl(pagemap, SCAN, &scan) >= 0, "PAGEMAP_SCAN");
}

/* The best of some rounds, for one cycle of the parts that are asked for. */
static double cycle_us(int with_faults, int with_reads) {
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        double before = now_us();
        for (int i = 0; i < CYCLES; i++) {
            if (with_faults) write_pages();
            if (with_reads) read_entries();
            rearm();
        }
        double took = (now_us() - before) / CYCLES;
        if (took < best) best = took;
    }
    return best;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fputs("usage: bare_cycle HEAP_PAGES WRITTEN_PAGES WINDOWS\n", stderr);
        return 2;
    }
    heap_pages = strtoul(argv[1], NULL, 10), written_pages = strtoul(argv[2], NULL, 10);
    windows = strtoul(argv[3], NULL, 10);
    check(heap_pages > 0 && heap_pages <= sizeof entries / 8 && written_pages <= heap_pages, "sizes");
    heap = mmap(NULL, heap_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(heap != MAP_FAILED && madvise(heap, heap_pages * PAGE, MADV_NOHUGEPAGE) == 0, "mmap");
    memset(heap, 1, heap_pages * PAGE);
    check((pagemap = open("/proc/self/pagemap", O_RDONLY)) >= 0, "pagemap");
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    struct uffdio_register range = {.range = {(uintptr_t)heap, heap_pages * PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    check(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &range) == 0, "userfaultfd");
    double sweep = cycle_us(0, 0), faults = cycle_us(1, 0), reads = cycle_us(0, 1), all = cycle_us(1, 1);
    printf("{\"rearm_clean_us\":%.2f,\"faults_us\":%.2f,\"reads_us\":%.2f,\"cycle_us\":%.2f}\n", sweep, faults - sweep,
           reads - sweep, all);
    return 0;
}
