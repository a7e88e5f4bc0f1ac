/* What the measured programs share: random numbers, and a line of JSON with what they took. */
#ifndef WORK_H
#define WORK_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t work_state = 88172645463325252ull;

static inline uint64_t work_random(void) {
    work_state ^= work_state << 13;
    work_state ^= work_state >> 7;
    work_state ^= work_state << 17;
    return work_state;
}

/* Time of all processors that the process has used, the kernel's faults included. */
static inline double work_cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* The work of an interval, then sleep: the same number of changes in each round, however slow the machine. */
static inline void work_pause(long i, long per_pause) {
    if (per_pause > 0 && i % per_pause == per_pause - 1) {
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, NULL);
    }
}

static inline void work_report(double fill_ms, double update_ms) {
    printf("{\"fill_ms\":%.3f,\"update_ms\":%.3f}\n", fill_ms, update_ms);
}
#endif
