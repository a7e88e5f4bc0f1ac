// SPDX-License-Identifier: MIT OR Apache-2.0
/* A guest that means harm: root scribbles on the registers and rings of the log, past the module, while processes store
 * and trackers come, collect, ask for nonsense and are killed. Emulator, kernel and module must go on. The argument is
 * the seed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bar.h"
#include "module/ooh.h"

enum { SCRIBBLES = 2000000, TRACKERS = 4, STORERS = 2, CALLS = 200, PAGE = 4096 };

static uint64_t state;

/* xorshift64. */
static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t word(void) {
    switch (draw() % 6) {
    case 0: return draw();
    case 1: return ~0ull;
    case 2: return 1ull << draw() % 64;
    case 3: return draw() % 32;
    case 4: return draw() % (1ull << 36) << 1 | 1;
    default: return 0;
    }
}

/* Registers half of the time, of all the page that they are in; entries else. */
static void scribble(void) {
    uint8_t *memory = map_bar(2, OOH_DEVICE_BYTES);
    uint8_t *control = map_bar(0, PAGE);
    if (!memory) exit(100);
    for (unsigned i = 0; i < SCRIBBLES; i++) {
        uint64_t at = draw() & 1 ? draw() % PAGE : draw() % OOH_DEVICE_BYTES;
        uint64_t value = word();
        switch (draw() % 3) {
        case 0: memory[at] = (uint8_t)value; break;
        case 1: *(volatile uint32_t *)(memory + (at & ~3ull)) = (uint32_t)value; break;
        default: *(volatile uint64_t *)(memory + (at & ~7ull)) = value; break;
        }
        /* Its own registers, which QEMU answers for: four words. */
        if (control && i % 1000 == 0) *(volatile uint32_t *)(control + draw() % 64 * 4) = (uint32_t)value;
    }
}

/* Stores far apart, so that the log's own tables grow. */
static void store_for_ever(void) {
    for (;;) {
        void *hint = (void *)(draw() % (1ull << 46) & ~(PAGE - 1ull));
        char *page = mmap(hint, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) continue;
        *(volatile char *)page = 1;
        munmap(page, PAGE);
    }
}

static void call_for_ever(void) {
    static const unsigned long CALLS_KNOWN[] = {OOH_INFO, OOH_TRACK, OOH_COLLECT};
    static uint64_t argument[16];
    for (;;) {
        int fd = open("/dev/ooh", O_RDWR | O_CLOEXEC);
        if (fd < 0) exit(100);
        struct ooh_track track = {.pid = draw() & 1 ? getpid() : getppid(), .mode = 1u << draw() % 3};
        struct ooh_round round;
        void *ring = MAP_FAILED;
        if (draw() % 4 && !ioctl(fd, OOH_TRACK, &track))
            ring = mmap(NULL, track.entries * sizeof(struct ooh_entry), PROT_READ, MAP_SHARED, fd, 0);
        for (unsigned i = 0; i < CALLS; i++) {
            for (int n = 0; n < 16; n++) argument[n] = word();
            switch (draw() % 4) {
            case 0: ioctl(fd, CALLS_KNOWN[draw() % 3], draw() % 8 ? (uint64_t)argument : word()); break;
            case 1: ioctl(fd, word(), word()); break;
            case 2: {
                size_t bytes = draw() % 64 * PAGE;
                void *other = mmap(NULL, bytes, PROT_READ | (int)(draw() & PROT_WRITE), MAP_SHARED, fd,
                                   (off_t)(word() & ~(PAGE - 1ull)));
                if (other != MAP_FAILED) munmap(other, bytes);
                break;
            }
            default:
                if (!ioctl(fd, OOH_COLLECT, &round) && ring != MAP_FAILED)
                    for (uint64_t n = round.first; n != round.end && n - round.first < 100; n++)
                        argument[n % 16] += ((volatile struct ooh_entry *)ring)[n % track.entries].start;
            }
        }
        if (ring != MAP_FAILED) munmap(ring, track.entries * sizeof(struct ooh_entry));
        close(fd);
    }
}

static pid_t start(void (*work)(void), uint64_t seed) {
    pid_t child = fork();
    if (child) return child;
    state = seed;
    work();
    _exit(0);
}

int main(int count, char **arguments) {
    state = count > 1 ? strtoull(arguments[1], NULL, 0) : 1;
    printf("seed %llu\n", (unsigned long long)state);
    state = state * 0x9e3779b97f4a7c15 | 1;
    pid_t scribbler = start(scribble, draw() | 1), others[TRACKERS + STORERS];
    for (int i = 0; i < TRACKERS + STORERS; i++)
        others[i] = start(i < TRACKERS ? call_for_ever : store_for_ever, draw() | 1);
    int status = 0, lived = 1, killed = 0;
    /* Trackers are killed, too, as often as the scribbler lets us: it sets the pace. */
    while (waitpid(scribbler, &status, WNOHANG) == 0) {
        usleep(50000);
        int i = (int)(draw() % TRACKERS);
        /* Killed by us alone. */
        lived &= waitpid(others[i], NULL, WNOHANG) == 0;
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
        others[i] = start(call_for_ever, draw() | 1);
        killed++;
    }
    for (int i = 0; i < TRACKERS + STORERS; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
    int fd = open("/dev/ooh", O_RDWR | O_CLOEXEC);
    struct ooh_info info = {.tracked = 1};
    for (int i = 0; i < 3000 && info.tracked; i++) {
        ioctl(fd, OOH_INFO, &info);
        usleep(10000);
    }
    printf("%s: %d scribbles, %d trackers killed, %u still tracked\n", status || !lived || info.tracked ? "BROKEN" : "ok",
           SCRIBBLES, killed, info.tracked);
    return status || !lived || info.tracked;
}
