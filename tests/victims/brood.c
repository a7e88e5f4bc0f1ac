// A program that is started anew without its memory, and forks many children before it has it. Each
// looks at some pages and ends; AT_ONCE live at a time. All know what a page must hold, and say on
// standard output what is wrong.
//
// brood DIRECTORY PAGES CHILDREN AT_ONCE
//
// It says "ready" once all is written, and begins when there is a file "go" in the directory.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define FAIL(...) (printf("wrong: " __VA_ARGS__), printf("\n"), fflush(stdout), _exit(9))

static uint64_t *table;
static size_t pages;

static uint64_t word(size_t page, size_t index) { return (page + 1) * 0x9e3779b97f4a7c15u + index / 8; }

static void check(size_t page, const char *who) {
    const uint64_t *at = table + page * WORDS;
    for (size_t i = 0; i < WORDS; i++)
        if (at[i] != word(page, i)) FAIL("%s: page %zu, word %zu is %lx", who, page, i, (unsigned long)at[i]);
}

int main(int count, char **arguments) {
    if (count < 5 || chdir(arguments[1])) return 2;
    // What a test has left open takes numbers that its pager is to be short of.
    close_range(3, ~0u, 0);
    pages = strtoul(arguments[2], NULL, 10);
    size_t children = strtoul(arguments[3], NULL, 10), at_once = strtoul(arguments[4], NULL, 10);
    table = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS; i++) table[page * WORDS + i] = word(page, i);
    // Shared with children, never with another program.
    uint64_t *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared[0] = 7;
    printf("ready\n");
    fflush(stdout);
    while (access("go", F_OK)) nanosleep(&(struct timespec){0, 200000}, NULL);

    for (size_t born = 0; born < children; born += at_once) {
        int gate[2];
        if (pipe(gate)) FAIL("making a pipe");
        for (size_t i = 0; i < at_once; i++) {
            pid_t child = fork();
            if (child < 0) FAIL("forking");
            if (child) continue;
            char nothing;
            close(gate[1]);
            // Until all of them live.
            if (read(gate[0], &nothing, 1)) FAIL("waiting");
            for (size_t look = 0; look < 3; look++) check((born + i) * 7919 * (look + 1) % pages, "a child");
            _exit(0);
        }
        close(gate[0]);
        close(gate[1]);
        for (size_t i = 0; i < at_once; i++) {
            int status;
            if (wait(&status) < 0 || status) FAIL("a child ended with %x", status);
        }
    }
    for (size_t page = 0; page < pages; page++) check(page, "in the end");
    shared[0]++;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    if (shared[0] != 8) FAIL("somebody else has written to shared memory: %lu", (unsigned long)shared[0]);
    printf("clean\n");
    fflush(stdout);
    return 0;
}
