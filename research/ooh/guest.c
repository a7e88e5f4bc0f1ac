// SPDX-License-Identifier: MIT OR Apache-2.0
/* The one program of a guest whose hypervisor shares its log (the small monitor of pagetrail-vmm, with GuestLog): it
 * loads the module, tracks itself by SPML, once with the module's owners and once with a search of its own through
 * pagemap, and holds each round of both against what it wrote, and what the monitor's device wrote for it. Lines `step N` say that all was as it should be, a line that begins with WRONG that it was not.
 *
 * With the word `hostile` it scribbles on the log's registers and rings, rings its doorbell and writes to ports instead,
 * while trackers come and go; it prints `step N` in between.
 *
 * Linked statically, as nothing else is in the guest. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "module/device.h"
#include "module/ooh.h"

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 512, WRITES = 40, STEPS_PER_LINE = 8, SCRIBBLES = 3000 };
/* Where the monitor has its log, the register by which it fills a page, and no memory at all. */
#define LOG 0xd1000000UL
#define FILL 0xd0000000UL
#define NOWHERE 0xb0000000UL

static volatile uint64_t memory[PAGES][WORDS] __attribute__((aligned(PAGE)));
static char wanted[PAGES];

static void wrong(const char *what, long where) {
    printf("WRONG: %s %ld, errno %d\n", what, where, errno);
    fflush(stdout);
    for (;;) pause();
}

static uint64_t draw(void) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void load_module(unsigned long at) {
    char parameters[40];
    int fd = open("/module.ko", O_RDONLY | O_CLOEXEC);
    snprintf(parameters, sizeof parameters, "at=%#lx", at);
    if (fd < 0 || syscall(SYS_finit_module, fd, parameters, 0)) wrong("the module cannot be loaded at", (long)at);
    close(fd);
    /* There is nobody here who makes devices. */
    FILE *misc = fopen("/proc/misc", "r");
    unsigned number, minor_number = 0;
    char name[64];
    while (misc && fscanf(misc, "%u %63s", &number, name) == 2)
        if (!strcmp(name, "ooh")) minor_number = number;
    if (misc) fclose(misc);
    unlink("/dev/ooh");
    if (mknod("/dev/ooh", S_IFCHR | 0600, makedev(10, minor_number))) wrong("no /dev/ooh", minor_number);
}

static int open_device(void) {
    int fd = open("/dev/ooh", O_RDWR | O_CLOEXEC);
    if (fd < 0) wrong("/dev/ooh cannot be opened", 0);
    return fd;
}

static int track(int fd, unsigned mode, struct ooh_track *track) {
    *track = (struct ooh_track){.pid = getpid(), .mode = mode};
    return ioctl(fd, OOH_TRACK, track) ? errno : 0;
}

static unsigned modes(void) {
    struct ooh_info info = {0};
    int fd = open_device();
    if (ioctl(fd, OOH_INFO, &info) || info.version != OOH_ABI_VERSION) wrong("OOH_INFO", info.version);
    close(fd);
    return info.modes;
}

/* A hypervisor without the log: the module says so, and harms nobody. */
static void without_a_log(unsigned long at) {
    struct ooh_track session;
    load_module(at);
    if (modes()) wrong("a log where none is", modes());
    int fd = open_device(), error = track(fd, OOH_SPML_OWNED, &session);
    if (error != ENODEV) wrong("tracking without a log", error);
    close(fd);
    if (syscall(SYS_delete_module, "ooh", 0)) wrong("the module stays", 0);
}

static const struct ooh_entry *map_ring(int fd, const struct ooh_track *session) {
    void *ring = mmap(NULL, session->entries * sizeof(struct ooh_entry), PROT_READ, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED) wrong("the ring cannot be mapped", 0);
    return ring;
}

/* The numbers of page frames, proc_pid_pagemap(5). */
static void frames(const volatile void *at, uint64_t *numbers, size_t pages) {
    static int pagemap = -1;
    if (pagemap < 0) pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    off_t offset = (off_t)((uintptr_t)at / PAGE * sizeof *numbers);
    ssize_t bytes = (ssize_t)(pages * sizeof *numbers);
    if (pread(pagemap, numbers, (size_t)bytes, offset) != bytes) wrong("pagemap", offset);
    for (size_t page = 0; page < pages; page++) {
        if (!(numbers[page] >> 63)) wrong("pagemap has no frame of page", (long)page);
        numbers[page] &= (1ULL << 55) - 1;
    }
}

static uint64_t frame(const volatile void *at) {
    uint64_t number;
    frames(at, &number, 1);
    return number;
}

static volatile uint32_t *map_register(unsigned long at, size_t bytes) {
    static int physical = -1;
    if (physical < 0) physical = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical, (off_t)at);
    if (mapped == MAP_FAILED) wrong("/dev/mem", (long)at);
    return mapped;
}

struct counts {
    unsigned long rounds, lost, pages, extra, others;
};

/* What a round has of `memory`: nothing that is wanted may be missing. */
static void judge(const char *seen, const struct ooh_round *round, struct counts *counts) {
    counts->rounds++;
    if (round->flags & OOH_LOST) {
        counts->lost++;
        return;
    }
    for (int page = 0; page < PAGES; page++) {
        if (wanted[page] && !seen[page]) wrong("a round lacks page", page);
        counts->pages += wanted[page];
        counts->extra += seen[page] && !wanted[page];
    }
}

/* A round of virtual addresses: the module knows whose the frames are. */
static void hold(const struct ooh_entry *ring, const struct ooh_track *session, const struct ooh_round *round,
                 struct counts *counts) {
    static char seen[PAGES];
    memset(seen, 0, sizeof seen);
    for (uint64_t i = round->first; i != round->end; i++) {
        struct ooh_entry entry = ring[i % session->entries];
        if (entry.kind != OOH_RANGE) wrong("an entry of kind", entry.kind);
        for (uint64_t page = 0; page < entry.pages; page++) {
            uint64_t number = (entry.start + page * PAGE - (uint64_t)memory) / PAGE;
            if (number < PAGES) seen[number] = 1;
            else counts->others++;
        }
    }
    judge(seen, round, counts);
}

/* A round of frames, of all that was written: those of `memory` are searched in pagemap, as the paper does it. */
static void search(const struct ooh_entry *ring, const struct ooh_track *session, const struct ooh_round *round,
                   struct counts *counts) {
    static char seen[PAGES];
    static uint64_t own[PAGES];
    memset(seen, 0, sizeof seen);
    frames(memory, own, PAGES);
    for (uint64_t i = round->first; i != round->end; i++) {
        struct ooh_entry entry = ring[i % session->entries];
        if (entry.kind != OOH_FRAME) wrong("an entry without frames, of kind", entry.kind);
        unsigned long of_memory = 0;
        for (int page = 0; page < PAGES; page++) {
            if (own[page] - entry.start / PAGE >= entry.pages) continue;
            seen[page] = 1;
            of_memory++;
        }
        counts->others += entry.pages - of_memory;
    }
    judge(seen, round, counts);
}

static void print(const char *what, const struct counts *counts) {
    printf("%s: %lu rounds, %lu lost, %lu pages, %lu others of this memory, %lu elsewhere\n", what, counts->rounds,
           counts->lost, counts->pages, counts->extra, counts->others);
}

static void work(void) {
    struct ooh_track session, other_session, searched_session;
    struct ooh_round round;
    struct counts counts = {0}, searched_counts = {0};
    volatile uint32_t *fill = map_register(FILL, PAGE);
    int fd = open_device(), other = open_device(), searched = open_device();
    if (modes() != (OOH_SPML | OOH_SPML_OWNED)) wrong("its log has modes", modes());
    if (track(other, OOH_EPML, &other_session) != EOPNOTSUPP) wrong("a log by virtual address", errno);
    if (track(fd, OOH_SPML_OWNED, &session) || track(other, OOH_SPML_OWNED, &other_session)) wrong("OOH_TRACK", errno);
    if (track(searched, OOH_SPML, &searched_session)) wrong("OOH_TRACK for frames", errno);
    const struct ooh_entry *ring = map_ring(fd, &session), *frames_ring = map_ring(searched, &searched_session);
    if (ioctl(fd, OOH_COLLECT, &round) || ioctl(searched, OOH_COLLECT, &round)) wrong("OOH_COLLECT", 0);
    for (unsigned long number = 1;; number++) {
        memset(wanted, 0, sizeof wanted);
        for (int i = 0; i < WRITES; i++) {
            unsigned page = draw() % PAGES;
            memory[page][draw() % WORDS] = draw();
            wanted[page] = 1;
        }
        /* The monitor writes, too. */
        unsigned page = draw() % PAGES;
        *fill = (uint32_t)frame(memory[page]);
        if (memory[page][7] != *fill) wrong("the device did not fill page", page);
        wanted[page] = 1;
        if (ioctl(fd, OOH_COLLECT, &round)) wrong("OOH_COLLECT", 0);
        hold(ring, &session, &round, &counts);
        if (ioctl(searched, OOH_COLLECT, &round)) wrong("OOH_COLLECT of frames", 0);
        search(frames_ring, &searched_session, &round, &searched_counts);
        /* A second tracker has rounds of its own, and takes nothing from the first. */
        if (number % 3 == 0 && ioctl(other, OOH_COLLECT, &round)) wrong("the other's OOH_COLLECT", 0);
        if (number % STEPS_PER_LINE) continue;
        print("search", &searched_counts);
        print("log", &counts);
        printf("step %lu\n", number);
        fflush(stdout);
    }
}

static uint64_t word(void) {
    switch (draw() % 6) {
    case 0: return draw();
    case 1: return ~0ULL;
    case 2: return 1ULL << draw() % 64;
    case 3: return draw() % 32;
    case 4: return (draw() % (1 << 19)) << 1 | 1;
    default: return 0;
    }
}

/* The machine's own ports would stop the guest itself: timer and interrupt controllers, and the console. */
static int is_own(unsigned port) {
    return port < 0x100 || (port >= 0x3f8 && port < 0x400) || (port >= 0x4d0 && port < 0x4d2);
}

static void scribble(volatile uint32_t *log, volatile uint32_t *bell, volatile uint32_t *fill, int ports) {
    for (int i = 0; i < SCRIBBLES; i++) {
        uint64_t value = word();
        unsigned port = (unsigned)draw() % 0x10000;
        uint8_t byte = (uint8_t)value;
        switch (draw() % 6) {
        case 0: log[draw() % (PAGE / 4)] = (uint32_t)value; break;
        case 1: log[draw() % (OOH_DEVICE_BYTES / 4)] = (uint32_t)value; break;
        case 2: ((volatile uint64_t *)log)[draw() % (OOH_DEVICE_BYTES / 8)] = value; break;
        case 3: bell[draw() % 4 ? 0 : draw() % (PAGE / 4)] = draw() & 1 ? (uint32_t)value : (uint32_t)draw() % 20; break;
        /* Outside of memory: what is in it, the guest would lose. */
        case 4: *fill = (uint32_t)draw() | 1u << 20; break;
        default:
            if (!is_own(port) && pwrite(ports, &byte, 1, port) != 1) wrong("port", port);
        }
    }
}

static void hostile(void) {
    volatile uint32_t *log = map_register(LOG, OOH_DEVICE_BYTES), *bell = map_register(LOG + OOH_DEVICE_DOORBELL, PAGE);
    volatile uint32_t *fill = map_register(FILL, PAGE);
    if (mknod("/dev/port", S_IFCHR | 0600, makedev(1, 4))) wrong("/dev/port", 0);
    int ports = open("/dev/port", O_RDWR | O_CLOEXEC);
    if (ports < 0) wrong("/dev/port", 0);
    for (unsigned long number = 1;; number++) {
        pid_t tracker = fork();
        if (!tracker) {
            struct ooh_track session;
            struct ooh_round round;
            int fd = open_device();
            if (!track(fd, draw() & 1 ? OOH_SPML : OOH_SPML_OWNED, &session))
                for (;;) memory[draw() % PAGES][0] = ioctl(fd, OOH_COLLECT, &round);
            _exit(0);
        }
        scribble(log, bell, fill, ports);
        kill(tracker, SIGKILL);
        waitpid(tracker, NULL, 0);
        printf("step %lu\n", number);
        fflush(stdout);
    }
}

int main(int count, char **arguments) {
    if (mount("proc", "/proc", "proc", 0, NULL) || mknod("/dev/mem", S_IFCHR | 0600, makedev(1, 1)))
        wrong("the guest's kernel refuses", 0);
    for (int page = 0; page < PAGES; page++) memory[page][0] = 1;
    if (mlockall(MCL_CURRENT)) wrong("mlockall", 0);
    /* Where nothing is, and in the middle of memory. */
    without_a_log(NOWHERE);
    without_a_log(0x1000000);
    load_module(LOG);
    /* Among words of the kernel's that it does not know. */
    for (int i = 1; i < count; i++)
        if (!strcmp(arguments[i], "hostile")) hostile();
    work();
    return 0;
}
