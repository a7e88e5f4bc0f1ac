// The time that a program reads by the vDSO lies between two answers of the kernel itself, one
// before and one after.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 800
#define LOOKS 50000

static void fail(const char *text, ...)
{
    va_list list;
    va_start(list, text);
    vfprintf(stderr, text, list);
    fprintf(stderr, "\n");
    _exit(1);
}

static uint64_t ns(struct timespec t) { return t.tv_sec * 1000000000UL + t.tv_nsec; }

static uint64_t asked(clockid_t clock)
{
    struct timespec t;
    if (syscall(SYS_clock_gettime, clock, &t))
        fail("clock %d", clock);
    return ns(t);
}

static uint64_t looked(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t))
        fail("clock %d", clock);
    return ns(t);
}

// A look is never before what the kernel said earlier, nor after what it says later.
static void *look(void *unused)
{
    static const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_TAI, CLOCK_MONOTONIC_RAW,
                                        CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME_COARSE };
    for (int round = 0; round < ROUNDS; round++) {
        clockid_t clock = clocks[round % (sizeof clocks / sizeof *clocks)];
        uint64_t before = asked(clock), one = looked(clock), two = looked(clock), after = asked(clock);
        if (before > one || one > two || two > after)
            fail("clock %d: %lu %lu %lu %lu", clock, before, one, two, after);
        struct timeval day;
        gettimeofday(&day, NULL);
        uint64_t us = day.tv_sec * 1000000UL + day.tv_usec, now = asked(CLOCK_REALTIME) / 1000;
        if (us > now || now - us > 600000000)
            fail("gettimeofday: %lu, not %lu", us, now);
        int cpu = sched_getcpu();
        if (cpu < 0 || cpu >= sysconf(_SC_NPROCESSORS_CONF))
            fail("on processor %d", cpu);
        if (round % 512 == 0)
            usleep(1000);
    }
    return unused;
}

static long exits(void)
{
    FILE *file = fopen("/sys/kernel/debug/kvm/exits", "r");
    long count = -1;
    if (file) {
        if (fscanf(file, "%ld", &count) != 1)
            count = -1;
        fclose(file);
    }
    return count;
}

static uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }

int main(void)
{
    pthread_t threads[3];
    look(NULL);
    for (int n = 0; n < 3; n++)
        if (pthread_create(threads + n, NULL, look, NULL))
            fail("a thread");
    for (int n = 0; n < 3; n++)
        pthread_join(threads[n], NULL);
    pid_t child = fork();
    if (child == 0) {
        look(NULL);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("the child: %x", status);
    long before = exits();
    uint64_t began = ticks();
    for (int n = 0; n < LOOKS; n++)
        looked(CLOCK_MONOTONIC);
    uint64_t look_ticks = (ticks() - began) / LOOKS;
    long after = exits();
    began = ticks();
    for (int n = 0; n < LOOKS / 100; n++)
        asked(CLOCK_MONOTONIC);
    uint64_t ask_ticks = (ticks() - began) / (LOOKS / 100);
    printf("%s vDSO, %ld exits in %d looks, %lu ticks a look, %lu a call\n", getauxval(AT_SYSINFO_EHDR) ? "a" : "no",
           before < 0 ? -1 : after - before, LOOKS, look_ticks, ask_ticks);
    return 0;
}
