// A program that is started anew without its memory, which it gets as it touches it: it touches,
// moves, discards and unmaps memory that it lacks, by several threads and by the kernel in system
// calls, and forks meanwhile. It knows what every page must hold, and says on standard output what
// is wrong.
//
// lacking DIRECTORY PAGES SEED [child]
//
// It says "ready" once all is written, and begins when there is a file "go" in the directory. With
// "child" it forks a child instead that waits for a file "on" before it looks at all pages.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define THREADS 3
#define FAIL(...) (printf("wrong: " __VA_ARGS__), printf("\n"), fflush(stdout), _exit(9))

static uint64_t *table;
static size_t pages;
// Neighbouring blocks of pages.
#define BLOCK 64
#define BLOCKS 8
static uint64_t *resized;

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

static uint64_t word(size_t page, size_t index) { return (page + 1) * 0x9e3779b97f4a7c15u + index / 8; }

static void check(const uint64_t *at, size_t page, const char *what) {
    for (size_t i = 0; i < WORDS; i++)
        if (at[i] != word(page, i))
            FAIL("%s: page %zu, word %zu is %lx", what, page, i, (unsigned long)at[i]);
}

static void check_zero(const uint64_t *at, size_t page, const char *what) {
    for (size_t i = 0; i < WORDS; i++)
        if (at[i]) FAIL("%s: page %zu, word %zu is %lx", what, page, i, (unsigned long)at[i]);
}

static uint64_t *at(size_t page) { return table + page * WORDS; }

// Pages of the first quarter, in any order.
static void *read_some(void *argument) {
    uint64_t state = (uintptr_t)argument;
    for (size_t i = 0; i < pages / 4; i++) {
        size_t page = next(&state) % (pages / 4);
        check(at(page), page, "a thread");
    }
    return NULL;
}

static void in_child(uint64_t state) {
    for (int i = 0; i < 200; i++) {
        size_t page = next(&state) % (pages / 4);
        if (at(page)[7] == ~0ul) continue;
        check(at(page), page, "a child");
        at(page)[7] = ~0ul; // its own
    }
    if (next(&state) % 2) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 50; i++) {
                size_t page = pages / 4 - 1 - next(&state) % 50;
                if (at(page)[7] != ~0ul) check(at(page), page, "a grandchild");
            }
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) FAIL("a grandchild ended with %x", status);
    }
    _exit(0);
}

// Memory that is made smaller and larger again at its place, without having been touched.
static void make_smaller_and_larger(void) {
    for (size_t block = 0; block < BLOCKS; block++) {
        uint64_t *start = resized + block * BLOCK * WORDS, *half = start + BLOCK / 2 * WORDS;
        if (mremap(start, BLOCK * PAGE, BLOCK / 2 * PAGE, 0) != start) FAIL("making smaller");
        if (mremap(start, BLOCK / 2 * PAGE, BLOCK * PAGE, 0) != start) FAIL("making larger");
        for (size_t page = 0; page < BLOCK / 2; page++)
            check_zero(half + page * WORDS, page, "made larger again");
        for (size_t page = 0; page < BLOCK / 2; page++)
            check(start + page * WORDS, page, "made smaller");
    }
}

// Memory that is zeros for a child, and that nobody has touched.
static void fork_with_secrets(void) {
    uint64_t *secrets = resized + BLOCKS * BLOCK * WORDS;
    if (madvise(secrets, BLOCK * PAGE, MADV_WIPEONFORK)) FAIL("keeping secrets");
    pid_t child = fork();
    if (child == 0) {
        for (size_t page = 0; page < BLOCK; page++) check_zero(secrets + page * WORDS, page, "a secret");
        check(at(pages - 1), pages - 1, "beside secrets");
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) FAIL("a child ended with %x", status);
    for (size_t page = 0; page < BLOCK; page++) check(secrets + page * WORDS, page, "its secret");
}

static void wait_for(const char *name) {
    while (access(name, F_OK)) nanosleep(&(struct timespec){0, 200000}, NULL);
}

int main(int count, char **arguments) {
    if (count < 4 || chdir(arguments[1])) return 2;
    pages = strtoul(arguments[2], NULL, 10);
    uint64_t state = strtoul(arguments[3], NULL, 10);
    resized = mmap(NULL, (BLOCKS + 1) * BLOCK * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < (BLOCKS + 1) * BLOCK; page++)
        for (size_t i = 0; i < WORDS; i++) resized[page * WORDS + i] = word(page % BLOCK, i);
    table = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS; i++) at(page)[i] = word(page, i);
    size_t quarter = pages / 4;
    char *room = mmap(NULL, quarter * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("ready\n");
    fflush(stdout);
    wait_for("go");

    if (count > 4) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            wait_for("on");
            for (size_t page = 0; page < pages; page++) check(at(page), page, "the child");
            printf("the child is clean\n");
            fflush(stdout);
            _exit(0);
        }
        printf("child %d\n", child);
        fflush(stdout);
        for (;;) pause();
    }

    make_smaller_and_larger();
    fork_with_secrets();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, read_some, (void *)(state + i + 1));
    int file = open("transfer", O_RDWR | O_CREAT | O_TRUNC, 0600);
    // Second quarter: moved, in pieces. Third: discarded in part. Fourth: unmapped in part.
    size_t step = quarter / 16;
    for (size_t piece = 0; piece < 16; piece++) {
        size_t first = quarter + piece * step;
        char *to = room + piece * step * PAGE;
        if (next(&state) % 2) check(at(first), first, "before a move");
        if (mremap(at(first), step * PAGE, step * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
            FAIL("moving");
        size_t some = next(&state) % step;
        check((uint64_t *)(to + some * PAGE), first + some, "after a move");

        if (next(&state) % 2) {
            pid_t child = fork();
            if (child == 0) in_child(state + piece);
            int status;
            if (waitpid(child, &status, 0) != child || status) FAIL("a child ended with %x", status);
        }

        first = 2 * quarter + piece * step;
        size_t gone = 1 + next(&state) % (step - 1);
        if (madvise(at(first), gone * PAGE, MADV_DONTNEED)) FAIL("discarding");
        for (size_t page = first; page < first + step; page++)
            if (page < first + gone)
                check_zero(at(page), page, "discarded");
            else
                check(at(page), page, "not discarded");

        first = 3 * quarter + piece * step;
        gone = 1 + next(&state) % (step - 1);
        // The kernel reads from and writes to pages that are lacking.
        char *last = (char *)at(first + step - 1);
        if (pwrite(file, last, PAGE, 0) != PAGE || pread(file, last + 80, PAGE - 80, 80) != PAGE - 80)
            FAIL("the kernel's transfers");
        if (munmap(at(first), gone * PAGE)) FAIL("unmapping");
        if (mmap(at(first), gone * PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at(first))
            FAIL("mapping");
        for (size_t page = first; page < first + step; page++)
            if (page < first + gone)
                check_zero(at(page), page, "unmapped");
            else
                check(at(page), page, "not unmapped");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (size_t page = 0; page < quarter; page++) check(at(page), page, "in the end");
    for (size_t page = 0; page < 16 * step; page++)
        check((uint64_t *)(room + page * PAGE), quarter + page, "moved, in the end");
    printf("clean\n");
    fflush(stdout);
    return 0;
}
