/*
 * pagetrail_guest.h: what a program can ask of the virtual machine that it runs in (`pagetrail vm`).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Header only; x86-64 Linux. Natively every call returns -ENOSYS, and makes no system call: one binary runs everywhere. The
 * program's own write set is there natively, too: pagetrail_own_start().
 *
 *     pagetrail_guest guest;
 *     if (pagetrail_guest_open(&guest) == 0) {
 *         ...                                            write to memory
 *         if (pagetrail_guest_bits(&guest, p) & PAGETRAIL_GUEST_DIRTY)      read from the page tables: no exit, no fault
 *             ...
 *         n = pagetrail_guest_take(start, end, PAGETRAIL_GUEST_DIRTY, ranges, 512, &next);          taken and forgotten
 *     }
 *
 * A write that completes before pagetrail_guest_take() returns is in that set or the next: one of the program,
 * or of the kernel for a system call of the program (once that call has returned); and memory that was discarded, moved
 * or mapped over. There may be false positives. What another process writes to shared memory is not seen.
 *
 * All calls may be made by any thread and from a signal handler. A forked child has the set as it was at the fork, and
 * its own from then on. After execve(2) a program opens anew.
 */
#ifndef PAGETRAIL_GUEST_H
#define PAGETRAIL_GUEST_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The version of the calls that this header makes. */
#define PAGETRAIL_GUEST_VERSION 1
/** The entry of the auxiliary vector whose value is the machine's version of the calls. */
#define PAGETRAIL_GUEST_AUXILIARY 0x70746701UL
/** The number of the first call. */
#define PAGETRAIL_GUEST_CALLS 0x20746700L

/** Written since the page was last taken. */
#define PAGETRAIL_GUEST_DIRTY 1UL
/** Read, written or executed since the page was last taken. */
#define PAGETRAIL_GUEST_ACCESSED 2UL

/** Writes need no notice. */
#define PAGETRAIL_GUEST_OPEN 0UL
/** The first write to each page is recorded (pagetrail_guest_violations()); then the page is open. */
#define PAGETRAIL_GUEST_RECORDED 1UL
/**
 * Each write of the program sends SIGSEGV with SEGV_ACCERR, as with mprotect(2); the handler opens the page. What the
 * kernel writes for a system call arrives, and calls no handler.
 */
#define PAGETRAIL_GUEST_HANDLED 2UL

/** Addresses from start to before end, in bytes; whole pages. */
typedef struct pagetrail_guest_range {
    uint64_t start;
    uint64_t end;
} pagetrail_guest_range;

/** A write to a page that was protected by PAGETRAIL_GUEST_RECORDED. */
typedef struct pagetrail_guest_violation {
    /** The address that was written to; where the kernel wrote, that of the page. */
    uint64_t address;
    /** The address of the instruction; 0 where the kernel wrote. */
    uint64_t instruction;
    /** The thread (gettid(2)). */
    uint32_t thread;
    /** Whether the kernel wrote, for a system call of the thread. */
    uint32_t by_kernel;
} pagetrail_guest_violation;

/** Where violations are recorded; as many entries as were passed to pagetrail_guest_violations() follow. */
typedef struct pagetrail_guest_violations_array {
    /** The number of violations so far. Those beyond the capacity are only counted. */
    uint64_t count;
    pagetrail_guest_violation entries[];
} pagetrail_guest_violations_array;

/** Which aliases of a run of pages share one guest-physical page: an entry of the machine's log stands for all of them. */
typedef struct pagetrail_guest_units {
    /** The address of the first alias. */
    uint64_t base;
    /** The length of an alias in bytes; aliases follow each other. */
    uint64_t alias_bytes;
    uint64_t aliases;
    /** The number of the first page within an alias. */
    uint64_t first;
    uint64_t pages;
    /** A bit per alias. The aliases with a bit are merged; the others are alone. */
    uint64_t merged;
} pagetrail_guest_units;

/** The program as a guest. */
typedef struct pagetrail_guest {
    const volatile uint64_t *tables;
    uint64_t root;
} pagetrail_guest;

/** Whether this program is a guest that can make these calls. */
static inline int pagetrail_guest_is_here(void)
{
    return getauxval(PAGETRAIL_GUEST_AUXILIARY) >= PAGETRAIL_GUEST_VERSION;
}

static inline long pagetrail_guest_call(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
    if (!pagetrail_guest_is_here())
        return -ENOSYS;
#if defined(__x86_64__)
    long result;
    register uint64_t r10 __asm__("r10") = d;
    register uint64_t r8 __asm__("r8") = e;
    register uint64_t r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(PAGETRAIL_GUEST_CALLS + number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    (void)number, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return -ENOSYS;
#endif
}

/** The bits of an address, from the page tables: PAGETRAIL_GUEST_DIRTY, PAGETRAIL_GUEST_ACCESSED. No exit, no fault. */
static inline uint64_t pagetrail_guest_bits(const pagetrail_guest *guest, const volatile void *address)
{
    uint64_t at = guest->root, entry = 0;
    int level;
    for (level = 3; level >= 0; level--) {
        entry = guest->tables[at / 8 + ((uint64_t)address >> (12 + 9 * level) & 511)];
        if (level == 0 || !(entry & 1) || entry & 0x80)
            break;
        at = entry & 0x000ffffffffff000UL;
    }
    return ((entry & 0x400) || (entry & 0x41) == 0x41 ? PAGETRAIL_GUEST_DIRTY : 0) |
           ((entry & 0x800) || (entry & 0x21) == 0x21 ? PAGETRAIL_GUEST_ACCESSED : 0);
}

/**
 * Takes the pages of these kinds between two addresses, which are multiples of 4,096, and forgets them: the next write
 * makes a page dirty again. Returns the number of ranges; where there are more than `capacity`, at most 65,536, the rest
 * stays, and `next` says where to go on. With ranges = NULL all is forgotten. A negative result is an error number.
 */
static inline long pagetrail_guest_take(uint64_t start, uint64_t end, uint64_t kinds, pagetrail_guest_range *ranges,
                                        size_t capacity, uint64_t *next)
{
    return pagetrail_guest_call(2, start, end, kinds, (uint64_t)ranges, capacity, (uint64_t)next);
}

/** Protects pages against the program's writes, beyond what mprotect(2) says: PAGETRAIL_GUEST_OPEN, .._RECORDED, .._HANDLED. */
static inline long pagetrail_guest_protect(uint64_t start, uint64_t end, uint64_t mode)
{
    return pagetrail_guest_call(3, start, end, mode, 0, 0, 0);
}

/**
 * Has violations recorded here from now on, with a count of 0; NULL for nowhere. To read an array while
 * threads write, pass another one first.
 */
static inline long pagetrail_guest_violations(pagetrail_guest_violations_array *array, size_t capacity)
{
    return pagetrail_guest_call(4, (uint64_t)array, capacity, 0, 0, 0, 0);
}

/** Merges and separates aliases. What is not aliases of the same memory is skipped. */
static inline long pagetrail_guest_change_units(const pagetrail_guest_units *changes, size_t count)
{
    return pagetrail_guest_call(5, (uint64_t)changes, count, 0, 0, 0, 0);
}

/** The address of the alias whose page an address is mapped to: its own, unless it is merged. */
static inline long pagetrail_guest_target(const void *address)
{
    return pagetrail_guest_call(6, (uint64_t)address, 0, 0, 0, 0, 0);
}

/**
 * Starts to keep the write set, from now on; again, it changes nothing. Returns 0; -ENOSYS where the program is no guest;
 * -EOPNOTSUPP where the processor's bits do not show writes (shadow paging), which is tried.
 */
static inline int pagetrail_guest_open(pagetrail_guest *guest)
{
    static volatile uint8_t tried[8192];
    static int shown; /* Writes have shown: the processor stays what it is. */
    uint64_t page = ((uint64_t)tried + 4095) & ~(uint64_t)4095, words[3];
    long result = pagetrail_guest_call(1, (uint64_t)words, 0, 0, 0, 0, 0);
    int n, tries;
    guest->tables = NULL;
    guest->root = 0;
    if (result < 0)
        return (int)result;
    guest->tables = (const volatile uint64_t *)words[1];
    guest->root = words[2];
    for (n = 0; n < 2; n++) {
        /* Another thread, which tries as well, may take the page between the write and the look. */
        for (tries = 0;; tries++) {
            if (__atomic_load_n(&shown, __ATOMIC_RELAXED))
                return 0;
            *(volatile uint8_t *)page = 1;
            if (pagetrail_guest_bits(guest, (void *)page) & PAGETRAIL_GUEST_DIRTY)
                break;
            if (tries == 1000)
                return -EOPNOTSUPP;
        }
        result = pagetrail_guest_take(page, page + 4096, PAGETRAIL_GUEST_DIRTY, NULL, 0, NULL);
        if (result < 0)
            return (int)result;
    }
    __atomic_store_n(&shown, 1, __ATOMIC_RELAXED);
    return 0;
}

#if defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 199309L && defined(SI_TIMER)
/** Pages that were taken by a sample; called in a signal handler, and by one thread at a time. */
typedef void (*pagetrail_guest_sampled)(const pagetrail_guest_range *ranges, size_t count, void *data);

/** Samples of the set at intervals of the program's own time. Set the first five; the rest is the calls' own. */
typedef struct pagetrail_guest_sampling {
    /** The pages, whole, and their kinds. */
    uint64_t start;
    uint64_t end;
    uint64_t kinds;
    /** What is called with the pages of a sample, once for at most 64 ranges; not at all where there are none. */
    pagetrail_guest_sampled sampled;
    void *data;
    int signal;
    int is_taking;
    timer_t timer;
    struct sigaction before;
} pagetrail_guest_sampling;

static inline void pagetrail_guest_on_sample(int signal, siginfo_t *info, void *context)
{
    pagetrail_guest_sampling *sampling = (pagetrail_guest_sampling *)info->si_value.sival_ptr;
    pagetrail_guest_range ranges[64];
    int error = errno;
    uint64_t next;
    (void)signal, (void)context;
    /* A sample that comes while another thread takes one is left to the next. */
    if (info->si_code != SI_TIMER || __atomic_exchange_n(&sampling->is_taking, 1, __ATOMIC_ACQUIRE))
        return;
    for (next = sampling->start; next < sampling->end;) {
        long count = pagetrail_guest_take(next, sampling->end, sampling->kinds, ranges, 64, &next);
        if (count < 0)
            break;
        if (count > 0)
            sampling->sampled(ranges, (size_t)count, sampling->data);
    }
    __atomic_store_n(&sampling->is_taking, 0, __ATOMIC_RELEASE);
    errno = error;
}

/**
 * Starts to take a sample after each so many microseconds of the program's processor time (those of all its threads, and of
 * the machine for it), by a signal of the caller's choice, as SIGRTMIN. `sampling` must stay until
 * pagetrail_guest_stop_sampling(). Returns 0; -ENOSYS where the program is no guest; another negative error number.
 * (Before glibc 2.34, link with -lrt.)
 */
static inline int pagetrail_guest_sample(pagetrail_guest_sampling *sampling, uint64_t microseconds, int signal)
{
    struct sigaction action;
    struct sigevent event;
    struct itimerspec every;
    size_t n;
    if (!pagetrail_guest_is_here())
        return -ENOSYS;
    if (microseconds == 0 || sampling->start >= sampling->end || ((sampling->start | sampling->end) & 4095))
        return -EINVAL;
    for (n = 0; n < sizeof event; n++)
        ((char *)&event)[n] = 0;
    sampling->signal = signal;
    sampling->is_taking = 0;
    action.sa_sigaction = pagetrail_guest_on_sample;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = signal;
    event.sigev_value.sival_ptr = sampling;
    every.it_value.tv_sec = (time_t)(microseconds / 1000000);
    every.it_value.tv_nsec = (long)(microseconds % 1000000 * 1000);
    every.it_interval = every.it_value;
    if (sigaction(signal, &action, &sampling->before))
        return -errno;
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &sampling->timer)) {
        int error = errno;
        sigaction(signal, &sampling->before, NULL);
        return -error;
    }
    if (timer_settime(sampling->timer, 0, &every, NULL)) {
        int error = errno;
        timer_delete(sampling->timer);
        sigaction(signal, &sampling->before, NULL);
        return -error;
    }
    return 0;
}

/**
 * Ends it: no sample is taken any more when this returns, and the signal does what it did before. Not to be called by the
 * function that is called with the pages. Where other threads may just have got the signal, `sampling` must stay for good.
 */
static inline void pagetrail_guest_stop_sampling(pagetrail_guest_sampling *sampling)
{
    struct sigaction ignored;
    timer_delete(sampling->timer);
    /* Discards what is pending (sigaction(2)). */
    ignored.sa_handler = SIG_IGN;
    ignored.sa_flags = 0;
    sigemptyset(&ignored.sa_mask);
    sigaction(sampling->signal, &ignored, NULL);
    sigaction(sampling->signal, &sampling->before, NULL);
    while (__atomic_exchange_n(&sampling->is_taking, 1, __ATOMIC_ACQUIRE))
        ;
}
#endif

#if defined(SYS_userfaultfd) && (defined(_DEFAULT_SOURCE) || defined(_GNU_SOURCE) || defined(__cplusplus))
/**
 * The dirty pages of some memory of this program since they were last taken: of the machine's own set in a guest, natively
 * by asynchronous write protection (PAGEMAP_SCAN, Linux 6.7), with a page fault of about a microsecond for the first write to
 * each page. To be read alone; pagetrail_own_start() fills it.
 */
typedef struct pagetrail_own_set {
    uint64_t start;
    uint64_t end;
    /** Natively the descriptors of a userfaultfd and of /proc/self/pagemap; -1 in a guest. */
    int faults;
    int pagemap;
} pagetrail_own_set;

/* What <linux/userfaultfd.h> and <linux/fs.h> of older systems lack. */
#define PAGETRAIL_OWN_FEATURES (1ULL << 13 | 1ULL << 15) /* UFFD_FEATURE_WP_UNPOPULATED, UFFD_FEATURE_WP_ASYNC */
#define PAGETRAIL_OWN_API 0xc018aa3fUL                   /* UFFDIO_API */
#define PAGETRAIL_OWN_REGISTER 0xc020aa00UL              /* UFFDIO_REGISTER */
#define PAGETRAIL_OWN_SCAN 0xc0606610UL                  /* PAGEMAP_SCAN */
#define PAGETRAIL_OWN_WRITTEN 2ULL                       /* PAGE_IS_WRITTEN */

/** Natively: takes the written pages from `start` on and protects them again, or protects them alone (ranges = NULL). */
static inline long pagetrail_own_scan(const pagetrail_own_set *set, uint64_t start, pagetrail_guest_range *ranges,
                                      size_t capacity, uint64_t *next)
{
    struct {
        uint64_t start, end, categories;
    } found[64];
    struct {
        uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any, returned;
    } scan;
    size_t count = 0;
    while (start < set->end && (!ranges || count < capacity)) {
        size_t room = ranges && capacity - count < 64 ? capacity - count : 64;
        long n, each;
        scan.size = sizeof scan;
        /* PM_SCAN_WP_MATCHING; at first PM_SCAN_CHECK_WPASYNC, too. Later that would fail at memory that was mapped over, when
         * pages before it are protected already, and lose these. */
        scan.flags = ranges ? 1 : 3;
        scan.start = start;
        scan.end = set->end;
        scan.walk_end = 0;
        scan.vec = (uint64_t)(uintptr_t)found;
        scan.vec_len = room;
        scan.max_pages = 0;
        scan.inverted = scan.any = 0;
        scan.mask = scan.returned = PAGETRAIL_OWN_WRITTEN;
        n = ioctl(set->pagemap, PAGETRAIL_OWN_SCAN, &scan);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && count > 0)
            break;
        if (n < 0)
            return -errno;
        for (each = 0; ranges && each < n; each++, count++) {
            ranges[count].start = found[each].start;
            ranges[count].end = found[each].end;
        }
        start = scan.walk_end > start ? scan.walk_end : set->end;
    }
    *next = start;
    return (long)count;
}

/** Ends it: natively the memory is as before. */
static inline void pagetrail_own_end(pagetrail_own_set *set)
{
    if (set->faults >= 0)
        close(set->faults);
    if (set->pagemap >= 0)
        close(set->pagemap);
    set->faults = set->pagemap = -1;
}

/**
 * Starts with whole pages of mapped private anonymous memory, in which nothing counts as written yet. There is one set in
 * a guest, and natively one tracker of a piece of memory. What is mapped over the memory later is not in the set
 * natively; what is discarded there is in it when it is written again. A child has to start its own. Returns 0; -ENOSYS
 * where the kernel does not have this (before Linux 6.7, or no permission for userfaultfd(2)); another error number.
 */
static inline int pagetrail_own_start(pagetrail_own_set *set, uint64_t start, uint64_t end)
{
    uint64_t api[3] = {0xaa, PAGETRAIL_OWN_FEATURES, 0};
    uint64_t wanted[4];
    uint64_t next;
    pagetrail_guest guest;
    long result;
    set->start = start;
    set->end = end;
    set->faults = set->pagemap = -1;
    if (start >= end || ((start | end) & 4095))
        return -EINVAL;
    if (pagetrail_guest_is_here()) {
        result = pagetrail_guest_open(&guest);
        if (result == 0)
            result = pagetrail_guest_take(start, end, PAGETRAIL_GUEST_DIRTY, NULL, 0, NULL);
        return result < 0 ? (int)result : 0;
    }
    /* UFFD_USER_MODE_ONLY needs no permission; the kernel's own writes need none of the handler either. */
    set->faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
    set->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (set->faults < 0 || set->pagemap < 0 || ioctl(set->faults, PAGETRAIL_OWN_API, api)) {
        pagetrail_own_end(set);
        return -ENOSYS;
    }
    wanted[0] = start;
    wanted[1] = end - start;
    wanted[2] = 2; /* UFFDIO_REGISTER_MODE_WP */
    wanted[3] = 0;
    result = ioctl(set->faults, PAGETRAIL_OWN_REGISTER, wanted) ? -errno : 0;
    if (result == 0)
        result = pagetrail_own_scan(set, start, NULL, 0, &next);
    if (result < 0) {
        pagetrail_own_end(set);
        return result == -ENOTTY ? -ENOSYS : (int)result;
    }
    return 0;
}

/**
 * Takes the dirty pages, and forgets them, from `*next` on, which is set->start at first; `*next` says where to go on, and is
 * set->end when all are taken. Returns the number of ranges, or a negative error number. A write that completes before
 * this returns is in this set or the next.
 */
static inline long pagetrail_own_take(const pagetrail_own_set *set, pagetrail_guest_range *ranges, size_t capacity,
                                      uint64_t *next)
{
    if (capacity == 0 || *next < set->start)
        return -EINVAL;
    if (set->pagemap >= 0)
        return pagetrail_own_scan(set, *next, ranges, capacity, next);
    if (*next >= set->end)
        return 0;
    return pagetrail_guest_take(*next, set->end, PAGETRAIL_GUEST_DIRTY, ranges, capacity > 65536 ? 65536 : capacity, next);
}
#endif

#ifdef __cplusplus
}
#endif

#endif
