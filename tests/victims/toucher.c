// A program that touches pages once each, in an order of its own, and says how long that took: what
// it costs to get pages as they are touched.
//
// toucher DIRECTORY PAGES ORDER SEED [bare]
//
// ORDER is "along" (one after the other), "apart" (one of 16 neighbours each) or "mixed" (all, in
// any order). It says "ready" once all is written, and begins when there is a file "go" in the
// directory. With "bare" it discards its memory first and gives itself each page by a userfaultfd,
// from a copy, one at a time: the least that it can cost.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define FAIL(...) (printf("wrong: " __VA_ARGS__), printf("\n"), fflush(stdout), _exit(9))

static uint64_t *table, *copy;
static size_t pages;
static int fd;

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

// Half of a page is the same for eight words each, half is not: it can be compressed.
static uint64_t word(size_t page, size_t index) {
    uint64_t state = page * 0x9e3779b97f4a7c15u + (index < WORDS / 2 ? index : index / 8);
    state ^= state >> 29;
    state *= 0xbf58476d1ce4e5b9u;
    return state ^ state >> 32;
}

static void *give(void *argument) {
    (void)argument;
    for (;;) {
        struct uffd_msg message;
        if (read(fd, &message, sizeof message) != sizeof message) return NULL;
        uint64_t at = message.arg.pagefault.address & -(uint64_t)PAGE;
        struct uffdio_copy page = {
            .dst = at,
            .src = (uintptr_t)copy + (at - (uintptr_t)table),
            .len = PAGE,
        };
        if (ioctl(fd, UFFDIO_COPY, &page)) FAIL("UFFDIO_COPY");
    }
}

static void give_oneself(void) {
    size_t bytes = pages * PAGE;
    copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) FAIL("mmap");
    memcpy(copy, table, bytes);
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) FAIL("userfaultfd");
    struct uffdio_register all = {
        .range = {.start = (uintptr_t)table, .len = bytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    if (madvise(table, bytes, MADV_DONTNEED) || ioctl(fd, UFFDIO_REGISTER, &all)) FAIL("UFFDIO_REGISTER");
    pthread_t thread;
    if (pthread_create(&thread, NULL, give, NULL)) FAIL("pthread_create");
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    pages = strtoull(argv[2], NULL, 10);
    uint64_t state = strtoull(argv[4], NULL, 10);
    size_t step = !strcmp(argv[3], "apart") ? 16 : 1, count = pages / step;
    table = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *order = malloc(count * sizeof *order);
    if (table == MAP_FAILED || !order) FAIL("mmap");
    // Without huge pages, of which a checkpoint knows nothing.
    madvise(table, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS; i++) table[page * WORDS + i] = word(page, i);
    for (size_t i = 0; i < count; i++) order[i] = i * step + (step > 1 ? next(&state) % step : 0);
    if (!strcmp(argv[3], "mixed") || step > 1)
        for (size_t i = count; i > 1; i--) {
            size_t other = next(&state) % i;
            uint32_t kept = order[i - 1];
            order[i - 1] = order[other];
            order[other] = kept;
        }
    if (chdir(argv[1])) return 2;
    if (argc > 5) give_oneself();
    puts("ready");
    fflush(stdout);
    while (access("go", F_OK)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    size_t bad = 0;
    for (size_t i = 0; i < count; i++) bad += table[order[i] * (size_t)WORDS + 7] != word(order[i], 7);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (bad) FAIL("%zu pages", bad);
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < WORDS; at++)
            if (table[order[i] * (size_t)WORDS + at] != word(order[i], at)) FAIL("page %u", order[i]);
    long long ns = (ended.tv_sec - began.tv_sec) * 1000000000ll + (ended.tv_nsec - began.tv_nsec);
    printf("touched %zu pages in %lld ns\n", count, ns);
    fflush(stdout);
    return 0;
}
