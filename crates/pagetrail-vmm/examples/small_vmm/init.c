/* The one program of the small monitor's guest. It writes to its memory, has the monitor's device write to it, and
 * checks all of it. Each line `step N` says that all was as it should be; a line that begins with WRONG, that it was
 * not.
 *
 * Linked statically, as nothing else is in the guest. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 1024, FILLED_PAGES = 16, WRITES = 64, STEPS_PER_LINE = 16 };
/* Where the device's register is: see machine/devices.rs. */
#define DEVICE 0xd0000000ULL

static uint64_t memory[PAGES][WORDS] __attribute__((aligned(PAGE)));
static uint64_t sums[PAGES];
static uint64_t filled[FILLED_PAGES][WORDS] __attribute__((aligned(PAGE)));
static uint32_t fills[FILLED_PAGES];

static void wrong(const char *what, unsigned long where) {
    printf("WRONG: %s %lu\n", what, where);
    fflush(stdout);
    for (;;) pause();
}

static uint64_t random_word(void) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void check_page(unsigned page) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < WORDS; i++) sum += memory[page][i];
    if (sum != sums[page]) wrong("the sum of page", page);
}

static void check_filled(unsigned page) {
    for (unsigned i = 0; i < WORDS; i++)
        if (filled[page][i] != fills[page]) wrong("what the device wrote to page", page);
}

/* The number of the page frame, proc_pid_pagemap(5). */
static uint64_t frame(int pagemap, const void *at) {
    uint64_t entry = 0;
    off_t offset = (off_t)((uintptr_t)at / PAGE * sizeof entry);
    if (pread(pagemap, &entry, sizeof entry, offset) != sizeof entry || !(entry >> 63)) wrong("pagemap of", (uintptr_t)at);
    return entry & ((1ULL << 55) - 1);
}

static void step(int pagemap, volatile uint32_t *device, unsigned long number) {
    for (unsigned i = 0; i < WRITES; i++) {
        unsigned page = random_word() % PAGES, word = random_word() % WORDS;
        uint64_t value = random_word();
        check_page(page);
        sums[page] += value - memory[page][word];
        memory[page][word] = value;
    }
    unsigned page = number % FILLED_PAGES;
    check_filled(page);
    *device = (uint32_t)frame(pagemap, filled[page]);
    fills[page] = *device;
    __asm__ volatile("" ::: "memory");
    check_filled(page);
}

int main(void) {
    if (mount("proc", "/proc", "proc", 0, NULL) || mlockall(MCL_CURRENT) || mknod("/dev/mem", S_IFCHR | 0600, makedev(1, 1)))
        wrong("the guest's kernel refuses", 0);
    int physical = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
    volatile uint32_t *device = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, physical, DEVICE);
    if (device == MAP_FAILED) wrong("no device", 0);
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    /* The device must not write outside the guest's memory, whatever page it is given. */
    uint32_t before = *device;
    *device = UINT32_MAX;
    *device = 1 << 19;
    if (*device != before) wrong("the device wrote outside of memory", 0);
    for (unsigned long number = 1;; number++) {
        step(pagemap, device, number);
        if (number % STEPS_PER_LINE) continue;
        for (unsigned i = 0; i < PAGES; i++) check_page(i);
        for (unsigned i = 0; i < FILLED_PAGES; i++) check_filled(i);
        printf("step %lu\n", number);
        fflush(stdout);
    }
}
