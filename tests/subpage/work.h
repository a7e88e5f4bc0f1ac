/* What the measured programs share: random numbers, and a line of JSON with what they took. */
#ifndef WORK_H
#define WORK_H
#include <signal.h>
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

/* Time of all processors that the process has used, the kernel's faults included, and how many faults there were. */
struct work_mark {
    double cpu_ms;
    long faults;
};

static inline struct work_mark work_mark(void) {
    struct timespec t;
    struct rusage usage;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    getrusage(RUSAGE_SELF, &usage);
    struct work_mark mark = {t.tv_sec * 1e3 + t.tv_nsec / 1e6, usage.ru_minflt};
    return mark;
}

/* After the work of an interval, a round: the same number of changes in each, however slow the machine. With WORK_ROUNDS,
 * the number of a socket, its other end is asked for a round and waited for; otherwise the program sleeps. */
static inline void work_pause(long i, long per_pause) {
    static int rounds = -2;
    if (per_pause <= 0 || i % per_pause != per_pause - 1)
        return;
    if (rounds == -2) {
        const char *number = getenv("WORK_ROUNDS");
        rounds = number ? atoi(number) : -1;
    }
    if (rounds >= 0) {
        char byte = 0;
        if (write(rounds, &byte, 1) != 1 || read(rounds, &byte, 1) != 1)
            exit(3);
    } else {
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, NULL);
    }
}

/* Objects that the program has allocated so far, and their bytes. */
static long work_objects, work_bytes;

static inline void *work_alloc(size_t bytes) {
    void *object = malloc(bytes);
    if (!object)
        exit(4);
    work_objects++;
    work_bytes += (long)bytes;
    return object;
}

/* SIGTERM ends the updates early; the report is made all the same. */
static volatile sig_atomic_t work_ended;

static void work_end(int signal) {
    (void)signal;
    work_ended = 1;
}

static inline void work_heed_signals(void) {
    signal(SIGTERM, work_end);
}

/* The number after a word at the beginning of a line of a file. */
static inline long work_number(const char *path, const char *word) {
    char line[256];
    long number = -1;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, word, strlen(word)))
            number = atol(line + strlen(word));
    if (file)
        fclose(file);
    return number;
}

/* What the process holds now: memory, each page counted once however often it is mapped, and page tables. */
static inline long work_memory_kib(void) {
    return work_number("/proc/self/smaps_rollup", "Pss:");
}

static inline long work_page_tables_kib(void) {
    return work_number("/proc/self/status", "VmPTE:");
}

static inline void work_report(struct work_mark begin, struct work_mark filled, long updates) {
    struct work_mark end = work_mark();
    printf("{\"fill_ms\":%.3f,\"update_ms\":%.3f,\"fill_faults\":%ld,\"update_faults\":%ld,\"updates\":%ld,"
           "\"memory_kib\":%ld,\"page_tables_kib\":%ld,\"objects\":%ld,\"object_bytes\":%ld}\n",
           filled.cpu_ms - begin.cpu_ms, end.cpu_ms - filled.cpu_ms, filled.faults - begin.faults,
           end.faults - filled.faults, updates, work_memory_kib(), work_page_tables_kib(),
           work_objects, work_bytes);
}
#endif
