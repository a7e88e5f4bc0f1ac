/* The one program of a guest whose page tables are scanned (tests/vmm/linux_tables.rs). It has pages that it reads in
 * every step, and pages that it never touches again; another process has some, too. It says where they are in physical
 * memory. Each line `step N` says that all pages had what they must have; one that begins with WRONG, that one had not.
 *
 * Linked statically, as nothing else is in the guest. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    WORDS = PAGE / 8,
    PAGES = 12288,
    /* Pages that are read: every so many of the first, in three tables of twenty-four. */
    HOT_STEP = 24,
    HOT_END = 1536,
    OTHER_PAGES = 1024,
    STEPS_PER_LINE = 64,
};

static uint64_t (*memory)[WORDS];

static void wrong(const char *what, unsigned long where) {
    printf("WRONG: %s %lu\n", what, where);
    fflush(stdout);
    for (;;) pause();
}

static uint64_t (*mapped(unsigned pages, uint64_t first))[WORDS] {
    void *at = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || madvise(at, (size_t)pages * PAGE, MADV_NOHUGEPAGE)) wrong("memory of pages", pages);
    uint64_t(*words)[WORDS] = at;
    for (unsigned i = 0; i < pages; i++) words[i][i % WORDS] = first + i;
    return words;
}

/* The number of the page frame, proc_pid_pagemap(5). */
static uint64_t frame(int pagemap, const void *at) {
    uint64_t entry = 0;
    off_t offset = (off_t)((uintptr_t)at / PAGE * sizeof entry);
    if (pread(pagemap, &entry, sizeof entry, offset) != sizeof entry || !(entry >> 63)) wrong("pagemap of", (uintptr_t)at);
    return entry & ((1ULL << 55) - 1);
}

/* Touches its pages at times, so that the processor has two address spaces. */
static void other(void) {
    uint64_t(*own)[WORDS] = mapped(OTHER_PAGES, 1u << 20);
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    for (unsigned turn = 0;; turn++) {
        unsigned page = turn % 2 * (OTHER_PAGES / 2);
        if (own[page][page % WORDS] != (1u << 20) + page) wrong("the other's page", page);
        nanosleep(&pause, NULL);
    }
}

int main(void) {
    if (mount("proc", "/proc", "proc", 0, NULL)) wrong("no /proc", 0);
    pid_t pid = fork();
    if (pid < 0) wrong("fork", 0);
    if (pid == 0) other();
    memory = mapped(PAGES, 0);
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    printf("hot");
    for (unsigned i = 0; i < HOT_END; i += HOT_STEP) printf(" %lx", (unsigned long)frame(pagemap, memory[i]));
    printf("\ncold");
    for (unsigned i = HOT_END; i < PAGES; i += 64) printf(" %lx", (unsigned long)frame(pagemap, memory[i]));
    printf("\n");
    for (unsigned long number = 1;; number++) {
        for (unsigned i = 0; i < HOT_END; i += HOT_STEP)
            if (*(volatile uint64_t *)&memory[i][i % WORDS] != i) wrong("page", i);
        if (number % STEPS_PER_LINE) continue;
        printf("step %lu\n", number);
        fflush(stdout);
    }
}
