/* What the programs on libgc share: their arguments, their clock, and the line of JSON that they end with.
 *
 * Usage: PROGRAM SIZE MODE; SIZE is 0 (for tests), 1, 2 or 3, or 4, 5 and 6, which are the small, medium and large
 * configuration of table II of "Out of Hypervisor (OoH)" and are run for their memory; MODE is off (no incremental collection) or on. Each computes
 * something whose result does not depend on the collector, so that a missed write shows as a wrong result, or as a crash.
 *
 * With COLLECTOR_REPEAT in its environment a program does its work again and again until it is killed, and writes a
 * byte after each 4,096 allocations, by which others see how far it is.
 *
 * The collector's time is the time inside allocations that took longer than an allocation takes: it collects nowhere
 * else, and incremental work has no event of its own. */
#ifndef COLLECTOR_H
#define COLLECTOR_H
#include <gc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* What an allocation takes at most when the collector does no work in it: some microseconds, in ticks. */
#define ALLOCATION_TICKS 20000

#define SIZES 7

static double started;
static uint64_t started_ticks, collecting, pause_max;
static int size, incremental, repeats;
static uint64_t allocations;

static inline double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Each allocation is timed, so the clock has to be cheap. */
static inline uint64_t ticks(void) {
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return now_ns();
#endif
}

static inline void count(uint64_t since) {
    if (repeats && ++allocations % 4096 == 0 && write(STDOUT_FILENO, ".", 1) != 1) exit(1);
    uint64_t took = ticks() - since;
    if (took < ALLOCATION_TICKS) return;
    collecting += took;
    if (took > pause_max) pause_max = took;
}

/* Zeroed memory that may hold pointers. */
__attribute__((unused)) static void *new_object(size_t bytes) {
    uint64_t before = ticks();
    void *object = GC_MALLOC(bytes);
    count(before);
    if (!object) abort();
    return object;
}

/* Memory without pointers, not zeroed. */
__attribute__((unused)) static void *new_data(size_t bytes) {
    uint64_t before = ticks();
    void *object = GC_MALLOC_ATOMIC(bytes);
    count(before);
    if (!object) abort();
    return object;
}

static uint64_t random_state = 88172645463325252ull;

__attribute__((unused)) static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

__attribute__((unused)) static uint64_t mix(uint64_t sum, uint64_t value) {
    return (sum ^ value) * 0x9e3779b97f4a7c15ull + (sum >> 29);
}

__attribute__((unused)) static void start(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[2], "off") && strcmp(argv[2], "on"))) {
        fprintf(stderr, "usage: %s SIZE off|on\n", argv[0]);
        exit(2);
    }
    size = atoi(argv[1]);
    if (size < 0 || size >= SIZES) {
        fprintf(stderr, "SIZE is 0 to %d\n", SIZES - 1);
        exit(2);
    }
    GC_INIT();
    if (!strcmp(argv[2], "on")) GC_enable_incremental();
    incremental = GC_is_incremental_mode();
    started = now_ns();
    started_ticks = ticks();
}

__attribute__((unused)) static int finish(uint64_t checksum) {
    double took = now_ns() - started, tick_ns = took / (ticks() - started_ticks);
    const char *provider = !incremental                                            ? "none"
                           : GC_incremental_protection_needs() == GC_PROTECTS_NONE ? "soft-dirty"
                                                                                   : "mprotect";
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"provider\":\"%s\",\"run_ms\":%.3f,\"collecting_ms\":%.3f,\"pause_max_ms\":%.3f,\"collections\":%lu,"
           "\"faults\":%lu,\"resident_bytes\":%lu,\"heap_bytes\":%lu,\"checksum\":\"%016llx\"}\n",
           provider, took / 1e6, collecting * tick_ns / 1e6, pause_max * tick_ns / 1e6, (unsigned long)GC_get_gc_no(),
           (unsigned long)usage.ru_minflt, (unsigned long)usage.ru_maxrss * 1024, (unsigned long)GC_get_heap_size(),
           (unsigned long long)checksum);
    return 0;
}

/* The `main` of the program that includes this. */
static int run_once(int argc, char **argv);

int main(int argc, char **argv) {
    repeats = getenv("COLLECTOR_REPEAT") != NULL;
    int failed;
    do {
        failed = run_once(argc, argv);
    } while (repeats && !failed);
    return failed;
}
#define main run_once
#endif
