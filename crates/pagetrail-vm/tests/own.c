// What a program learns of its own writes by pagetrail_guest.h, held against what it did itself.
#define _GNU_SOURCE
#include "../../pagetrail-guest/include/pagetrail_guest.h"
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 96
#define PAGE 4096UL
static pagetrail_guest guest;
static uint8_t *base;
static uint8_t copy[PAGES * PAGE];
static uint64_t seed;

static void fail(const char *text, ...)
{
    va_list list;
    va_start(list, text);
    vfprintf(stderr, text, list);
    fprintf(stderr, "\n");
    _exit(1);
}

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    return (seed >> 33) % below;
}

static uint64_t at(size_t page) { return (uint64_t)base + page * PAGE; }

// Takes the pages of the memory, in pieces of a random size, and notes them in `taken`.
static size_t take(uint8_t *taken, uint64_t kinds)
{
    uint64_t next = at(0);
    size_t all = 0;
    memset(taken, 0, PAGES);
    while (next < at(PAGES)) {
        pagetrail_guest_range ranges[16];
        long count = pagetrail_guest_take(next, at(PAGES), kinds, ranges, 1 + draw(16), &next);
        if (count < 0)
            fail("take: %ld", count);
        for (long n = 0; n < count; n++)
            for (uint64_t a = ranges[n].start; a < ranges[n].end; a += PAGE)
                taken[(a - at(0)) / PAGE] = 1, all++;
    }
    return all;
}

static void must_be(const char *what, const uint8_t *taken, size_t from, size_t to)
{
    for (size_t n = 0; n < PAGES; n++)
        if (taken[n] != (n >= from && n < to))
            fail("%s: page %zu is %s", what, n, taken[n] ? "dirty" : "clean");
}

static void map(void)
{
    base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        fail("mmap");
}

static void exact(void)
{
    uint8_t taken[PAGES];
    take(taken, 3);
    for (size_t n = 3; n < 9; n++)
        base[n * PAGE + n] = 1;
    for (size_t n = 0; n < PAGES; n++) {
        int dirty = pagetrail_guest_bits(&guest, base + n * PAGE) & PAGETRAIL_GUEST_DIRTY;
        if (!!dirty != (n >= 3 && n < 9))
            fail("bits of page %zu: %d", n, dirty);
    }
    take(taken, 1);
    must_be("stores", taken, 3, 9);
    take(taken, 1);
    must_be("nothing", taken, 0, 0);
    // A read makes a page accessed, not dirty.
    take(taken, 2);
    volatile uint8_t *readable = base;
    (void)readable[5 * PAGE];
    if (pagetrail_guest_bits(&guest, base + 5 * PAGE) != PAGETRAIL_GUEST_ACCESSED)
        fail("a page that was read is %lu", pagetrail_guest_bits(&guest, base + 5 * PAGE));
    take(taken, 1);
    must_be("reads", taken, 0, 0);
    // The kernel writes.
    int ends[2];
    if (pipe(ends) || write(ends[1], copy, 6000) != 6000 || read(ends[0], base + 20 * PAGE + 100, 6000) != 6000)
        fail("pipe");
    take(taken, 1);
    must_be("read(2)", taken, 20, 22);
    // What is discarded, protected, or mapped over.
    madvise(base + 30 * PAGE, 2 * PAGE, MADV_DONTNEED);
    take(taken, 1);
    must_be("discards", taken, 30, 32);
    base[40 * PAGE] = 1;
    mprotect(base + 40 * PAGE, PAGE, PROT_READ);
    take(taken, 1);
    must_be("mprotect", taken, 40, 41);
    mprotect(base + 40 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    mmap(base + 50 * PAGE, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    take(taken, 1);
    must_be("mmap", taken, 50, 53);
    // Errors are errors.
    if (pagetrail_guest_take(at(0) + 1, at(4), 1, NULL, 0, NULL) != -EINVAL || pagetrail_guest_take(at(0), at(4), 8, NULL, 0, NULL) != -EINVAL ||
        pagetrail_guest_take(at(4), at(4), 1, NULL, 0, NULL) != -EINVAL || pagetrail_guest_protect(at(0), 1UL << 60, 1) != -EINVAL)
        fail("bad ranges are taken");
    base[7 * PAGE] = 1;
    if (pagetrail_guest_take(at(7), at(8), 1, (pagetrail_guest_range *)16, 4, NULL) != -EFAULT)
        fail("a bad list is taken");
    take(taken, 1);
    must_be("after a bad list", taken, 7, 8);
}

// The machine's memory lies in the program's address space, and is written to for nobody.
static void of_the_machine(void)
{
    uint8_t taken[PAGES];
    uint64_t before = guest.tables[guest.root / 8];
    void *tables = (void *)(guest.tables + guest.root / 8);
    take(taken, 3);
    base[7 * PAGE] = 1;
    if (pagetrail_guest_take(at(7), at(8), 1, tables, 4, NULL) != -EFAULT)
        fail("the tables are taken for a list");
    if (pagetrail_guest_violations(tables, 4) != -EFAULT)
        fail("the tables are taken for an array");
    if (pagetrail_guest_call(1, (uint64_t)tables, 0, 0, 0, 0, 0) != -EFAULT)
        fail("the tables are written over");
    // Nothing is begun for memory that is not mapped.
    pagetrail_guest_units apart = { .base = 1UL << 40, .alias_bytes = 1UL << 30, .aliases = 2, .pages = 1 };
    if (pagetrail_guest_change_units(&apart, 1) || guest.tables[guest.root / 8] != before)
        fail("the machine's memory was changed");
    take(taken, 1);
    must_be("after lists that are not the program's", taken, 7, 8);
}

// What a child has as zeros has changed for it.
static void wiped(void)
{
    uint8_t taken[PAGES];
    memset(base, 1, 10 * PAGE);
    if (madvise(base + 2 * PAGE, 3 * PAGE, MADV_WIPEONFORK))
        fail("MADV_WIPEONFORK");
    take(taken, 3);
    pid_t child = fork();
    if (child == 0) {
        take(taken, 1);
        for (size_t n = 2; n < 5; n++)
            if (base[n * PAGE] || !taken[n])
                fail("page %zu is %d, and %s", n, base[n * PAGE], taken[n] ? "dirty" : "clean");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status)
        fail("the child ended with %x", status);
    madvise(base + 2 * PAGE, 3 * PAGE, MADV_KEEPONFORK);
}

static void protect(void)
{
    uint8_t taken[PAGES];
    struct { uint64_t count; pagetrail_guest_violation entries[4]; } array = { .count = 9 };
    if (pagetrail_guest_violations((void *)&array, 4) || pagetrail_guest_protect(at(0), at(10), PAGETRAIL_GUEST_RECORDED))
        fail("protect");
    take(taken, 3);
    for (int twice = 0; twice < 2; twice++)
        base[2 * PAGE + 77] = 1, base[4 * PAGE + 5] = 1;
    int ends[2];
    if (pipe(ends) || write(ends[1], copy, 10) != 10 || read(ends[0], base + 6 * PAGE, 10) != 10)
        fail("pipe");
    if (array.count != 3)
        fail("%lu violations", array.count);
    if (array.entries[0].address != at(2) + 77 || !array.entries[0].instruction || array.entries[0].thread != (uint32_t)gettid() ||
        array.entries[0].by_kernel || array.entries[1].address != at(4) + 5 || array.entries[2].address != at(6) || !array.entries[2].by_kernel)
        fail("records are wrong");
    for (size_t n = 0; n < 10; n++)
        base[n * PAGE] = 2;
    if (array.count != 10)
        fail("%lu violations of 10 pages", array.count);
    pagetrail_guest_violations(NULL, 0);
}

static volatile sig_atomic_t faults;
static uint8_t before[PAGES];

// Keeps what a page held, as for a snapshot, and opens it.
static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    uint64_t page = (uint64_t)info->si_addr & ~(PAGE - 1);
    if (info->si_code != SEGV_ACCERR || page < at(0) || page >= at(PAGES))
        fail("a fault at %p", info->si_addr);
    before[(page - at(0)) / PAGE] = *(uint8_t *)page;
    faults++;
    if (pagetrail_guest_protect(page, page + PAGE, PAGETRAIL_GUEST_OPEN))
        fail("open");
}

static void handled(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, NULL);
    for (size_t n = 0; n < 10; n++)
        base[n * PAGE] = 100 + n;
    pagetrail_guest_protect(at(0), at(10), PAGETRAIL_GUEST_HANDLED);
    for (int twice = 0; twice < 2; twice++)
        for (size_t n = 0; n < 10; n++)
            base[n * PAGE]++;
    for (size_t n = 0; n < 10; n++)
        if (before[n] != 100 + n || base[n * PAGE] != 102 + n)
            fail("page %zu: %d, then %d", n, before[n], base[n * PAGE]);
    if (faults != 10)
        fail("%d faults", (int)faults);
    signal(SIGSEGV, SIG_DFL);
}

// Random operations; what differs from a copy must have been taken.
static void random_operations(int steps)
{
    static uint8_t taken[PAGES], changed[PAGES];
    int ends[2];
    if (pipe(ends))
        fail("pipe");
    take(taken, 3);
    memcpy(copy, base, sizeof copy);
    for (int step = 0; step < steps; step++) {
        size_t page = draw(PAGES), to = page + 1 + draw(PAGES - page), bytes = (to - page) * PAGE;
        uint8_t *here = base + page * PAGE;
        switch (draw(12)) {
        case 0: case 1: case 2:
            for (size_t n = page; n < to; n += 1 + draw(4))
                base[n * PAGE + draw(PAGE)]++;
            break;
        case 3: {
            size_t some = 1 + draw(5000);
            if (page * PAGE + some > PAGES * PAGE)
                break;
            static uint8_t noise[5001];
            memset(noise, (int)step, sizeof noise);
            if (write(ends[1], noise, some) != (ssize_t)some || read(ends[0], here, some) != (ssize_t)some)
                fail("a pipe of %zu bytes", some);
            break;
        }
        case 4:
            madvise(here, bytes, MADV_DONTNEED);
            break;
        case 5:
            mprotect(here, bytes, PROT_READ);
            mprotect(here, bytes, PROT_READ | PROT_WRITE);
            break;
        case 6:
            mmap(here, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            break;
        case 7: {
            // Pages change places.
            size_t other = draw(PAGES);
            if (other == page)
                break;
            mremap(here, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + other * PAGE);
            mmap(here, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            break;
        }
        case 8:
            pagetrail_guest_protect(at(page), at(to), draw(2));
            break;
        case 9: {
            pid_t child = fork();
            if (child == 0) {
                // The child has the set of its parent, and its own from here on.
                base[page * PAGE]++;
                take(changed, 1);
                for (size_t n = 0; n < PAGES; n++)
                    if (memcmp(base + n * PAGE, copy + n * PAGE, PAGE) && !changed[n])
                        fail("page %zu is not in the child's set", n);
                _exit(0);
            }
            int status;
            waitpid(child, &status, 0);
            if (status)
                fail("the child ended with %x", status);
            break;
        }
        default:
            for (size_t n = 0; n < PAGES; n++)
                changed[n] = pagetrail_guest_bits(&guest, base + n * PAGE) & PAGETRAIL_GUEST_DIRTY;
            take(taken, 1 + 2 * draw(2));
            for (size_t n = 0; n < PAGES; n++) {
                if (memcmp(base + n * PAGE, copy + n * PAGE, PAGE) && !(taken[n] && changed[n]))
                    fail("seed: page %zu is not in the set of step %d", n, step);
                memcpy(copy + n * PAGE, base + n * PAGE, PAGE);
            }
        }
    }
}

static volatile int over;

static void *writer(void *number)
{
    uint64_t own = (uint64_t)number, state = own * 77 + 1;
    for (uint32_t stamp = 1; !over; stamp++) {
        state = state * 6364136223846793005UL + 1;
        ((volatile uint32_t *)(base + (state >> 40) % PAGES * PAGE))[own] = stamp;
    }
    return NULL;
}

// Threads write while sets are taken; what the sets alone rebuild equals memory in the end.
static void threads(int rounds)
{
    static uint8_t taken[PAGES];
    pthread_t all[3];
    take(taken, 1);
    memcpy(copy, base, sizeof copy);
    for (uint64_t n = 0; n < 3; n++)
        pthread_create(&all[n], NULL, writer, (void *)n);
    for (int round = 0; round <= rounds; round++) {
        if (round == rounds) {
            over = 1;
            for (int n = 0; n < 3; n++)
                pthread_join(all[n], NULL);
        }
        if (round % 3 == 1)
            pagetrail_guest_protect(at(0), at(PAGES), PAGETRAIL_GUEST_RECORDED);
        take(taken, 1);
        for (size_t n = 0; n < PAGES; n++)
            if (taken[n])
                memcpy(copy + n * PAGE, base + n * PAGE, PAGE);
    }
    if (memcmp(copy, base, sizeof copy))
        fail("the sets of %d rounds lack a write", rounds);
}

static volatile sig_atomic_t samples, before_sampling;
static volatile unsigned char sampled[PAGES];

static void on_sample(const pagetrail_guest_range *ranges, size_t count, void *data)
{
    if (data != &samples || count == 0)
        _exit(5);
    for (size_t n = 0; n < count; n++)
        for (uint64_t a = ranges[n].start; a < ranges[n].end; a += PAGE)
            sampled[(a - at(0)) / PAGE] = 1;
    samples++;
}

static void on_other(int number)
{
    (void)number;
    before_sampling++;
}

// A function at intervals of the program's own time, with the set since the last.
static void sampling(void)
{
    pagetrail_guest_sampling sampling = { .start = at(0), .end = at(PAGES), .kinds = PAGETRAIL_GUEST_DIRTY };
    sampling.sampled = on_sample, sampling.data = (void *)&samples;
    uint8_t rest[PAGES];
    signal(SIGUSR1, on_other);
    if (pagetrail_guest_sample(&sampling, 0, SIGUSR1) != -EINVAL || pagetrail_guest_sample(&sampling, 10, 4000) != -EINVAL)
        fail("samples of nothing");
    take(rest, 1);
    if (pagetrail_guest_sample(&sampling, 20000, SIGUSR1))
        fail("no samples");
    // Every second page, more ranges than are taken at once.
    // All of them, however slow a write is.
    for (size_t n = 0; samples < 4 || n < PAGES / 2; n++)
        base[n % (PAGES / 2) * 2 * PAGE] = n;
    pagetrail_guest_stop_sampling(&sampling);
    int ended = samples;
    take(rest, 1);
    for (size_t n = 0; n < PAGES; n++)
        if (n % 2 ? sampled[n] : !sampled[n] && !rest[n])
            fail("page %zu: sampled %d", n, sampled[n]);
    for (size_t n = 0; n < 20000000; n++)
        base[0] = n;
    raise(SIGUSR1);
    if (samples != ended || before_sampling != 1)
        fail("%d samples after %d, %d signals", samples, ended, before_sampling);
}

static void merge(void)
{
    int file = memfd_create("aliases", 0);
    uint8_t *two = mmap(NULL, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ftruncate(file, 2 * PAGE))
        fail("memfd");
    for (int n = 0; n < 2; n++)
        mmap(two + n * 2 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    pagetrail_guest_units units = { (uint64_t)two, 2 * PAGE, 2, 1, 1, 3 };
    two[PAGE] = 1, two[3 * PAGE] = 2;
    if (pagetrail_guest_target(two + 3 * PAGE + 5) != (long)(two + 3 * PAGE + 5))
        fail("merged already");
    if (pagetrail_guest_change_units(&units, 1) || pagetrail_guest_target(two + 3 * PAGE + 5) != (long)(two + PAGE + 5))
        fail("not merged");
    pagetrail_guest_take((uint64_t)two, (uint64_t)two + 4 * PAGE, 1, NULL, 0, NULL);
    two[3 * PAGE] = 7;
    // The set distinguishes aliases, merged or not.
    if (two[PAGE] != 7 || !(pagetrail_guest_bits(&guest, two + 3 * PAGE) & 1) || pagetrail_guest_bits(&guest, two + PAGE) & 1)
        fail("a write through a merged alias");
    units.merged = 0;
    if (pagetrail_guest_change_units(&units, 1) || pagetrail_guest_target(two + 3 * PAGE) != (long)(two + 3 * PAGE))
        fail("not separated");
    two[3 * PAGE] = 8;
    if (two[PAGE] != 8)
        fail("a write through a separated alias");
}

int main(int count, char **arguments)
{
    int opened = pagetrail_guest_open(&guest);
    if (opened) {
        pagetrail_guest_sampling none = { .end = PAGE, .kinds = 1, .sampled = on_sample };
        if (opened != -ENOSYS || pagetrail_guest_sample(&none, 1000, SIGUSR1) != -ENOSYS || pagetrail_guest_protect(0, PAGE, 1) != -ENOSYS || pagetrail_guest_is_here())
            fail("open: %d", opened);
        printf("not a guest\n");
        return 0;
    }
    seed = count > 1 ? strtoul(arguments[1], NULL, 0) : 1;
    int steps = count > 2 ? atoi(arguments[2]) : 400;
    map();
    exact();
    of_the_machine();
    wiped();
    protect();
    handled();
    merge();
    random_operations(steps);
    threads(60);
    sampling();
    printf("all held\n");
    return 0;
}
