/* A program in a guest that writes to an area round by round, itself and by system calls, and prints what soft-dirty
 * says of each round: "round N pages=N: RANGE ..", ranges being numbers of pages in hex. stores_plugin.c logs the same
 * from outside. Exits with 3 where there is no soft-dirty. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include "stores.h"

static volatile char *area, *mark;
static uint64_t entries[PAGES];

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void begin(void) {
    int file = open("/proc/self/clear_refs", O_WRONLY);
    if (file < 0 || write(file, "4", 1) != 1) die("clear_refs");
    close(file);
    *mark = 1;
}

static unsigned long report(int round) {
    unsigned long page, first, pages = 0;
    int file = open("/proc/self/pagemap", O_RDONLY);
    if (file < 0 || pread(file, entries, sizeof entries, AREA / PAGE * 8) != sizeof entries) die("pagemap");
    close(file);
    for (page = 0; page < PAGES; page++) pages += entries[page] >> 55 & 1;
    printf("round %d pages=%lu:", round, pages);
    for (page = 0; page < PAGES; page++) {
        if (!(entries[page] >> 55 & 1)) continue;
        for (first = page; page + 1 < PAGES && entries[page + 1] >> 55 & 1;) page++;
        printf(first == page ? " %lx" : " %lx-%lx", first, page);
    }
    printf("\n");
    return pages;
}

static void listing1(void) {
    for (unsigned long page = 0; page < 1000; page++) area[page * PAGE] = 1;
}

static void at_random(void) {
    uint64_t state = 1;
    for (int i = 0; i < 2000; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        unsigned long page = (state >> 33) % PAGES;
        if (state >> 62 & 1) area[page * PAGE + i] = 1;
        else (void)area[page * PAGE + i];
    }
}

/* The kernel writes: into a few pages at once, across their ends, by several calls. */
static void by_the_kernel(void) {
    int zero = open("/dev/zero", O_RDONLY);
    if (zero < 0 || read(zero, (void *)(area + 100 * PAGE + 8), 64 * PAGE) != 64 * PAGE) die("/dev/zero");
    struct iovec parts[2] = {{(void *)(area + 3000 * PAGE), 10}, {(void *)(area + 3500 * PAGE - 5), 10}};
    if (readv(zero, parts, 2) != 20) die("readv");
    close(zero);
    if (!getcwd((char *)area + 4000 * PAGE, PAGE)) die("getcwd");
    memcpy((void *)(area + 2000 * PAGE), (void *)(area + 1000 * PAGE), 100 * PAGE);
}

static void reading(void) {
    for (unsigned long page = 0; page < PAGES; page++) (void)area[page * PAGE];
}

int main(void) {
    char *start = mmap((void *)(AREA - PAGE), (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (start != (char *)(AREA - PAGE) || madvise(start, (PAGES + 1) * PAGE, MADV_NOHUGEPAGE)) die("mmap");
    mark = start;
    area = start + PAGE;
    for (unsigned long page = 0; page < PAGES; page++) area[page * PAGE] = 1;
    void (*programs[])(void) = {listing1, at_random, by_the_kernel, reading};
    for (int round = 1; round <= 4; round++) {
        begin();
        programs[round - 1]();
        if (report(round) == 0 && round == 1) return 3;
    }
    /* What follows is of no round. */
    *mark = 1;
    return 0;
}
