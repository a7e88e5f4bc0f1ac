// SPDX-License-Identifier: MIT OR Apache-2.0
/* The rules of /dev/ooh, tried on the running module: what is logged, who may read it, and that no log outlives its
 * tracker or its target. Prints a line for each rule; ends with the number of those that are broken. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bar.h"
#include "module/ooh.h"

/* Of linux/userfaultfd.h since Linux 6.8. */
struct uffdio_move_arguments {
    __u64 dst, src, len, mode;
    __s64 moved;
};
#define MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move_arguments)
#define FEATURE_MOVE (1ULL << 16)

enum { PAGES = 4096, PAGE = 4096, STORES = 1000, ROUNDS = 3, NOBODY = 65534, XSAVEC = 6 };
static int broken;

static void rule(const char *what, int holds) {
    printf("%s: %s\n", holds ? "ok" : "BROKEN", what);
    broken += !holds;
}

static int open_device(void) {
    int fd = open("/dev/ooh", O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        perror("/dev/ooh");
        exit(100);
    }
    return fd;
}

static struct ooh_info info(void) {
    struct ooh_info info = {0};
    int fd = open_device();
    if (ioctl(fd, OOH_INFO, &info)) perror("OOH_INFO");
    close(fd);
    return info;
}

static int track(int fd, pid_t pid, unsigned mode, struct ooh_track *track) {
    *track = (struct ooh_track){.pid = pid, .mode = mode};
    return ioctl(fd, OOH_TRACK, track) ? errno : 0;
}

/* Waits until so many processes are logged: a killed process is freed by and by. */
static int tracked_becomes(unsigned count) {
    for (int i = 0; i < 3000 && info().tracked != count; i++) usleep(10000);
    return info().tracked == count;
}

/* The same, asked of the device and not of the module: nothing is logged, for whomever. */
static int device_is_off(void) {
    volatile struct ooh_device *device = map_bar(2, OOH_DEVICE_BYTES);
    if (!device) return 0;
    int is_off = !device->active;
    munmap((void *)device, OOH_DEVICE_BYTES);
    return is_off;
}

static struct ooh_entry *map_ring(int fd, const struct ooh_track *track, int rights) {
    void *ring = mmap(NULL, track->entries * sizeof(struct ooh_entry), rights, MAP_SHARED, fd, 0);
    return ring == MAP_FAILED ? NULL : ring;
}

static char *memory(void) {
    char *memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(100);
    madvise(memory, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE);
    memset(memory, 1, (size_t)PAGES * PAGE);
    return memory;
}

/* Marks the pages of `memory` that a round has. */
static void mark(const struct ooh_entry *ring, const struct ooh_track *track, const struct ooh_round *round,
                 const char *memory, char *seen) {
    memset(seen, 0, PAGES);
    for (__u64 i = round->first; i < round->end; i++) {
        struct ooh_entry entry = ring[i % track->entries];
        for (__u64 page = 0; entry.kind == OOH_RANGE && page < entry.pages; page++) {
            __u64 number = (entry.start + page * PAGE - (__u64)memory) / PAGE;
            if (number < PAGES) seen[number] = 1;
        }
    }
}

static void pages_are_exact(const char *name, unsigned mode) {
    static char wanted[PAGES], seen[PAGES];
    struct ooh_track session;
    struct ooh_round round;
    char *area = memory(), text[100];
    int fd = open_device(), missing = 0, extra = 0;
    track(fd, getpid(), mode, &session);
    struct ooh_entry *ring = map_ring(fd, &session, PROT_READ);
    if (!ring || ioctl(fd, OOH_COLLECT, &round)) {
        rule(name, 0);
        return;
    }
    srand(1);
    for (int i = 0; i < ROUNDS; i++) {
        memset(wanted, 0, PAGES);
        for (int j = 0; j < STORES; j++) {
            int page = rand() % PAGES;
            wanted[page] = 1;
            ((volatile char *)area)[page * PAGE + j] = (char)j;
        }
        memset(wanted + 100, 1, 8);
        madvise(area + 100 * PAGE, 8 * PAGE, MADV_DONTNEED);
        /* Across two pages. */
        wanted[200] = wanted[201] = 1;
        *(volatile __u64 *)(area + 201 * PAGE - 4) = 7;
        if (ioctl(fd, OOH_COLLECT, &round) || round.flags) missing++;
        mark(ring, &session, &round, area, seen);
        for (int page = 0; page < PAGES; page++) {
            missing += wanted[page] && !seen[page];
            extra += seen[page] && !wanted[page];
        }
    }
    snprintf(text, sizeof text, "%s: %d pages missing, %d too many, %llu entries, %llu frames of others", name, missing,
             extra, round.logged, round.foreign);
    rule(text, !missing && !extra);
    munmap(ring, session.entries * sizeof(struct ooh_entry));
    munmap(area, (size_t)PAGES * PAGE);
    close(fd);
}

/* Another process writes to this one's memory: through the kernel's own mapping of it. */
static void writes_of_others(const char *name, unsigned mode) {
    static char seen[PAGES];
    struct ooh_track session;
    struct ooh_round round;
    char *area = memory();
    int fd = open_device(), parent = getpid();
    track(fd, parent, mode, &session);
    struct ooh_entry *ring = map_ring(fd, &session, PROT_READ);
    ioctl(fd, OOH_COLLECT, &round);
    pid_t child = fork();
    if (!child) {
        struct iovec from = {"x", 1}, to = {area + 33 * PAGE, 1};
        _exit(process_vm_writev(parent, &from, 1, &to, 1, 0) != 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    ioctl(fd, OOH_COLLECT, &round);
    mark(ring, &session, &round, area, seen);
    rule(name, ring && !status && seen[33]);
    munmap(ring, session.entries * sizeof(struct ooh_entry));
    munmap(area, (size_t)PAGES * PAGE);
    close(fd);
}

/* A session with its ring, begun anew, of this process or another. */
struct log {
    int fd;
    struct ooh_track session;
    struct ooh_entry *ring;
    struct ooh_round round;
};

static int begin(struct log *log, pid_t pid, unsigned mode) {
    log->fd = open_device();
    if (track(log->fd, pid, mode, &log->session)) return 0;
    log->ring = map_ring(log->fd, &log->session, PROT_READ);
    return log->ring && !ioctl(log->fd, OOH_COLLECT, &log->round);
}

static void end(struct log *log) {
    if (log->ring) munmap(log->ring, log->session.entries * sizeof(struct ooh_entry));
    close(log->fd);
}

/* Whether the round that ends now has this page, or has lost some. */
static int has(struct log *log, const char *page) {
    static char seen[PAGES];
    if (ioctl(log->fd, OOH_COLLECT, &log->round)) return 0;
    mark(log->ring, &log->session, &log->round, page, seen);
    return seen[0] || log->round.flags & OOH_LOST;
}

/* Stores by instructions that an emulator treats apart, and may not show to a plugin: the floating point unit's, masked
 * ones, strings. */
static void store_in_other_ways(char *to, int way) {
    unsigned long low = 0x0101010101010101, high = low, count = 1;
    switch (way) {
    case 0: *(volatile long double *)to = 1; break;
    case 1: __asm__ volatile("fld1; fbstp %0" : "=m"(*(char(*)[10])to)); break;
    case 2: __asm__ volatile("fnstenv %0; fldenv %0" : "+m"(*(char(*)[28])to)); break;
    case 3: __asm__ volatile("fnsave %0; frstor %0" : "+m"(*(char(*)[108])to)); break;
    case 4: __asm__ volatile("fxsave %0" : "=m"(*(char(*)[512])to)); break;
    case 5: __asm__ volatile("xsave %0" : "+m"(*(char(*)[4096])to) : "a"(3), "d"(0)); break;
    case 6: __asm__ volatile("xsavec %0" : "+m"(*(char(*)[4096])to) : "a"(3), "d"(0)); break;
    case 7: __asm__ volatile("xsaveopt %0" : "+m"(*(char(*)[4096])to) : "a"(3), "d"(0)); break;
    case 8: __asm__ volatile("fld1; fstpt (%0,%1,2)" : : "r"(to - 128), "r"(64ul) : "memory"); break;
    case 9: __asm__ volatile("maskmovdqu %%xmm1, %%xmm0" : : "D"(to) : "memory"); break;
    case 10: __asm__ volatile("movnti %1, %0" : "=m"(*(long *)to) : "r"(1l)); break;
    case 11: __asm__ volatile("cld; rep stosb" : "+D"(to), "+c"(count) : "a"(2) : "memory"); break;
    case 12: __asm__ volatile("lock cmpxchg16b %0" : "+m"(*(char(*)[16])to), "+a"(low), "+d"(high) : "b"(2), "c"(2)); break;
    default: __asm__ volatile("movntdq %%xmm0, %0" : "=m"(*(char(*)[16])to)); break;
    }
}

/* CPUID's leaf 13, part 1 (Intel's manual, volume 2, CPUID). */
static int has_xsavec(void) {
    unsigned eax = 0, ebx, ecx, edx;
    __get_cpuid_count(13, 1, &eax, &ebx, &ecx, &edx);
    return eax >> 1 & 1;
}

static const char *const WAYS[] = {"fstpt", "fbstp", "fnstenv", "fnsave", "fxsave", "xsave", "xsavec", "xsaveopt",
                                   "fstpt by an index", "maskmovdqu", "movnti", "rep stosb", "cmpxchg16b", "movntdq"};

static void stores_of_all_kinds(const char *name, unsigned mode) {
    struct log log;
    char *area = memory(), missed[200] = "", text[300];
    int begun = begin(&log, getpid(), mode), whole = 0;
    if (begun) __asm__ volatile("pcmpeqb %%xmm1, %%xmm1; pxor %%xmm0, %%xmm0" ::: "xmm0", "xmm1");
    for (int way = 0; begun && way < (int)(sizeof WAYS / sizeof *WAYS); way++) {
        if (way == XSAVEC && !has_xsavec()) continue;
        char *to = area + (2 * way + 1) * PAGE;
        begun = !ioctl(log.fd, OOH_COLLECT, &log.round);
        store_in_other_ways(to, way);
        if (!has(&log, to)) snprintf(missed + strlen(missed), sizeof missed - strlen(missed), " %s", WAYS[way]);
        whole += !!(log.round.flags & OOH_LOST);
    }
    snprintf(text, sizeof text, "%s has stores of all instructions (%d by giving up the round); missed:%s", name, whole,
             *missed ? missed : " none");
    rule(text, begun && !*missed);
    end(&log);
    munmap(area, (size_t)PAGES * PAGE);
}

/* Writes a byte of another process as a debugger does, whatever its mapping allows. */
static int patch(pid_t pid, char *at) {
    int status;
    if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) || waitpid(pid, &status, __WALL) != pid) return 1;
    int failed = ptrace(PTRACE_POKEDATA, pid, at, (void *)'x') != 0;
    return ptrace(PTRACE_DETACH, pid, NULL, NULL) || failed;
}

/* Own pages of private files, by the process's own stores and by those of another. On Linux 7.3 such a page has another
 * offset than the file's. The file is not mapped from its beginning, and its mapping is split and moved. */
static void pages_of_private_files(const char *name, unsigned mode) {
    enum { FIRST = 7, MAPPED = 16, HALF = 8, OWN = 1, PATCHED = 3, MOVED = 11 };
    char missed[100] = "", text[200];
    int file = memfd_create("private", MFD_CLOEXEC);
    struct log log;
    static const char zeros[(FIRST + MAPPED) * PAGE];
    /* The file has its pages before: one that is new is in the log itself, and mapped where its copy is. */
    if (file < 0 || write(file, zeros, sizeof zeros) != sizeof zeros) exit(100);
    char *area = mmap(NULL, MAPPED * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, FIRST * PAGE);
    char *elsewhere = mmap(NULL, HALF * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int begun = area != MAP_FAILED && begin(&log, getpid(), mode);
    ((volatile char *)area)[OWN * PAGE] = 1;
    if (!begun || !has(&log, area + OWN * PAGE)) strcat(missed, " own store");
    begun &= !mprotect(area + 2 * PAGE, 4 * PAGE, PROT_READ);
    /* The first makes the page, the second finds it. */
    for (int i = 0; begun && i < 2; i++) {
        pid_t parent = getpid(), child = fork();
        if (!child) _exit(patch(parent, area + PATCHED * PAGE));
        int status = 1;
        waitpid(child, &status, 0);
        begun &= !status && area[PATCHED * PAGE] == 'x';
        if (!has(&log, area + PATCHED * PAGE)) strcat(missed, i ? " patch" : " first patch");
    }
    begun &= mremap(area + HALF * PAGE, HALF * PAGE, HALF * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere;
    begun &= !ioctl(log.fd, OOH_COLLECT, &log.round);
    struct iovec one = {"x", 1}, there = {elsewhere + (MOVED - HALF) * PAGE, 1};
    begun &= process_vm_writev(getpid(), &one, 1, &there, 1, 0) == 1;
    if (!has(&log, there.iov_base)) strcat(missed, " moved");
    if (log.round.flags & OOH_LOST) strcat(missed, ", as the log was full");
    snprintf(text, sizeof text, "%s has pages of private files; missed:%s", name, *missed ? missed : " none");
    rule(text, begun && !*missed);
    end(&log);
    munmap(area, HALF * PAGE), munmap(elsewhere, HALF * PAGE), close(file);
}

/* UFFDIO_MOVE changes the contents at an address where nothing is stored. */
static void moved_pages(const char *name, unsigned mode) {
    struct log log;
    char *area = memory();
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_MOVE};
    struct uffdio_register all = {.range = {(__u64)area, (__u64)PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_move_arguments move = {.dst = (__u64)area + 64 * PAGE, .src = (__u64)area, .len = 3 * PAGE};
    int moves = syscall(SYS_userfaultfd, O_CLOEXEC);
    madvise(area + 64 * PAGE, 3 * PAGE, MADV_DONTNEED);
    int begun = begin(&log, getpid(), mode);
    int error = ioctl(moves, UFFDIO_API, &api) || ioctl(moves, UFFDIO_REGISTER, &all) || ioctl(moves, MOVE, &move);
    if (error) perror("UFFDIO_MOVE");
    static char seen[PAGES];
    ioctl(log.fd, OOH_COLLECT, &log.round);
    mark(log.ring, &log.session, &log.round, area, seen);
    rule(name, begun && !error && !log.round.flags && seen[64] && seen[66] && seen[0] && seen[2] && !seen[70]);
    close(moves);
    end(&log);
    munmap(area, (size_t)PAGES * PAGE);
}

/* Page frames are the guest's: in what it has by its firmware. A host's addresses are elsewhere. */
static int are_of_this_machine(const struct log *log) {
    static struct { unsigned long long from, to; } parts[1000];
    int count = 0, all = 1;
    FILE *file = fopen("/proc/iomem", "r");
    while (file && count < 1000 && fscanf(file, " %llx-%llx : %*[^\n]", &parts[count].from, &parts[count].to) == 2)
        count++;
    if (file) fclose(file);
    for (__u64 i = log->round.first; i < log->round.end; i++) {
        struct ooh_entry entry = log->ring[i % log->session.entries];
        int here = 0;
        for (int part = 0; part < count; part++)
            here |= entry.start >= parts[part].from &&
                    entry.start + (__u64)entry.pages * PAGE - 1 <= (parts[part].to | (PAGE - 1));
        all &= here && entry.kind == OOH_FRAME;
    }
    return count > 0 && log->round.end != log->round.first && all;
}

static void frames_are_the_guests(void) {
    struct log log;
    char *area = memory();
    int begun = begin(&log, getpid(), OOH_SPML);
    memset(area, 2, (size_t)PAGES * PAGE);
    munmap(area, (size_t)PAGES * PAGE);
    /* What is unmapped is an entry by address. */
    begun = begun && !ioctl(log.fd, OOH_COLLECT, &log.round);
    area = memory();
    begun = begun && !ioctl(log.fd, OOH_COLLECT, &log.round) && !(log.round.flags & OOH_LOST);
    rule("SPML's page frames are of the guest's own memory", begun && are_of_this_machine(&log));
    munmap(area, (size_t)PAGES * PAGE);
    end(&log);
}

/* Starts a process that stores to its own page `page` of `area` until it is killed. */
static pid_t start_writer(char *area, int page) {
    pid_t writer = fork();
    while (!writer) ((volatile char *)area)[page * PAGE]++;
    return writer;
}

/* Two processes with the same addresses: each log has its own one's pages, and none of the other's. */
static void rings_are_apart(const char *name, unsigned mode) {
    static char seen[PAGES];
    struct log logs[2];
    char *area = memory();
    pid_t writers[2];
    int fine = 1;
    for (int i = 0; i < 2; i++) {
        writers[i] = start_writer(area, 300 + i);
        fine &= begin(&logs[i], writers[i], mode);
    }
    for (int i = 0; fine && i < 2; i++) {
        int own = 0;
        /* Until it has run for once. */
        while (fine && !own) {
            fine &= !ioctl(logs[i].fd, OOH_COLLECT, &logs[i].round) && !(logs[i].round.flags & OOH_ENDED);
            mark(logs[i].ring, &logs[i].session, &logs[i].round, area, seen);
            own = seen[300 + i];
            fine &= !seen[300 + !i];
        }
    }
    rule(name, fine);
    for (int i = 0; i < 2; i++) {
        kill(writers[i], SIGKILL);
        waitpid(writers[i], NULL, 0);
        end(&logs[i]);
    }
    munmap(area, (size_t)PAGES * PAGE);
}

/* Two trackers of one process, whose rounds are apart: each has every page once. */
static void trackers_are_apart(const char *name, unsigned mode) {
    static char seen[PAGES];
    struct log logs[2];
    char *area = memory();
    int fine = begin(&logs[0], getpid(), mode) && begin(&logs[1], getpid(), mode);
    ((volatile char *)area)[50 * PAGE] = 2;
    fine = fine && has(&logs[0], area + 50 * PAGE);
    ((volatile char *)area)[60 * PAGE] = 2;
    for (int i = 0; fine && i < 2; i++) {
        fine = !ioctl(logs[i].fd, OOH_COLLECT, &logs[i].round) && !(logs[i].round.flags & OOH_LOST);
        mark(logs[i].ring, &logs[i].session, &logs[i].round, area, seen);
        fine &= seen[50] == i && seen[60];
    }
    rule(name, fine);
    end(&logs[0]), end(&logs[1]);
    munmap(area, (size_t)PAGES * PAGE);
}

static void rings_are_private(void) {
    struct ooh_track session, other;
    struct ooh_round round;
    int fd = open_device();
    rule("a ring without a session cannot be mapped", mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
    rule("a round without a session is refused", ioctl(fd, OOH_COLLECT, &round) && errno == EPERM);
    track(fd, getpid(), OOH_EPML, &session);
    struct ooh_entry *ring = map_ring(fd, &session, PROT_READ);
    rule("the tracker maps its ring", ring != NULL);
    rule("the ring cannot be mapped writable", !map_ring(fd, &session, PROT_READ | PROT_WRITE));
    rule("nor be made so", mprotect(ring, PAGE, PROT_READ | PROT_WRITE) && errno == EACCES);
    rule("more than the ring cannot be mapped",
         mmap(NULL, session.entries * sizeof(struct ooh_entry) + PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
    rule("a session has one target", track(fd, getpid(), OOH_EPML, &other) == EBUSY);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        int refused = !map_ring(fd, &session, PROT_READ) && errno == EPERM;
        refused &= ioctl(fd, OOH_COLLECT, &round) && errno == EPERM;
        if (!refused) _exit(1);
        /* It has not inherited the mapping either. */
        _exit(*(volatile char *)ring);
    }
    int status = 0;
    waitpid(child, &status, 0);
    rule("a child with the descriptor gets nothing", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    child = fork();
    if (!child) {
        int device = open_device();
        if (setgid(NOBODY) || setuid(NOBODY)) _exit(1);
        int refused = track(device, getppid(), OOH_EPML, &other) == EPERM;
        refused &= track(device, getpid(), OOH_SPML, &other) == EPERM;
        refused &= open("/dev/ooh", O_RDWR) < 0 && errno == EACCES;
        _exit(!refused);
    }
    waitpid(child, &status, 0);
    rule("without privilege: no other process, no page frames, no device", !status);
    munmap(ring, session.entries * sizeof(struct ooh_entry));
    close(fd);
}

static void logs_end(void) {
    struct ooh_track session;
    struct ooh_round round;
    rule("nothing is logged before", tracked_becomes(0) && device_is_off());
    pid_t tracker = fork();
    if (!tracker) {
        int fd = open_device();
        if (track(fd, getppid(), OOH_EPML, &session) || !map_ring(fd, &session, PROT_READ)) _exit(1);
        for (;;) pause();
    }
    rule("a tracker's log is on", tracked_becomes(1) && !device_is_off());
    kill(tracker, SIGKILL);
    waitpid(tracker, NULL, 0);
    rule("and off once it is killed", tracked_becomes(0) && device_is_off());
    for (int executes = 0; executes < 2; executes++) {
        int pipes[2], fd = open_device();
        if (pipe(pipes)) exit(100);
        pid_t target = fork();
        if (!target) {
            char go;
            if (read(pipes[0], &go, 1) == 1 && executes) execl("/bin/sleep", "sleep", "100", NULL);
            for (;;) pause();
        }
        int error = track(fd, target, OOH_EPML, &session);
        if (executes && write(pipes[1], "x", 1) != 1) error = 1;
        if (!executes) kill(target, SIGKILL);
        int off = tracked_becomes(0) && device_is_off();
        int said = !ioctl(fd, OOH_COLLECT, &round) && round.flags & OOH_ENDED;
        rule(executes ? "a target that executes ends its log" : "a target that is killed ends its log",
             !error && off && said);
        kill(target, SIGKILL);
        waitpid(target, NULL, 0);
        close(fd), close(pipes[0]), close(pipes[1]);
    }
}

static void wrong_calls(void) {
    struct ooh_track session;
    int fd = open_device(), more[64], count = 0, last = 0;
    rule("an unknown mode is refused", track(fd, getpid(), 3, &session) == EINVAL);
    rule("a wrong PID is refused", track(fd, -1, OOH_EPML, &session) == EINVAL);
    rule("a process that is not there is refused", track(fd, 0x3ffffff, OOH_EPML, &session) == ESRCH);
    rule("a thread of the kernel is refused", track(fd, 2, OOH_EPML, &session) == ESRCH);
    rule("an unknown call is refused", ioctl(fd, _IO('O', 77), 0) && errno == ENOTTY);
    rule("a wrong address is refused", ioctl(fd, OOH_TRACK, 1) && errno == EFAULT);
    close(fd);
    unsigned slots = info().slots;
    while (count < 64) {
        more[count] = open_device();
        last = track(more[count++], getpid(), OOH_EPML, &session);
        if (last) break;
    }
    /* EPML takes two slots. */
    rule("one tracker too many is refused", last == EBUSY && count == (int)slots / 2 + 1);
    while (count) close(more[--count]);
    rule("and leaves nothing", tracked_becomes(0) && device_is_off());
}

/* A number in a file. */
static unsigned long number_in(const char *path) {
    unsigned long number = 0;
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%lu", &number) != 1) number = 0;
    if (file) fclose(file);
    return number;
}

static void set_number(const char *path, unsigned long number) {
    FILE *file = fopen(path, "we");
    if (file) fprintf(file, "%lu\n", number);
    if (file) fclose(file);
}

#define LOG_ENTRIES "/sys/module/ooh/parameters/log_entries"
#define INTERRUPTS "/sys/module/ooh/parameters/interrupts"

static int device_interrupts(void) {
    char line[1000];
    int found = 0;
    FILE *file = fopen("/proc/interrupts", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *last = strrchr(line, ' ');
        found |= last && !strcmp(last, " ooh\n");
    }
    if (file) fclose(file);
    return found;
}

/* How often a burst may be lost before one has all its pages. */
#define TRIES 50

/* A program writes more pages at a stretch than the log holds. With the interrupt of a full log the round has them, and
 * no others; without it, the round says that it has lost some. So it does where the interrupt comes too late, as on a
 * busy machine, whose emulator raises it in another thread: the burst is tried again then. */
static void bursts(const char *name, unsigned mode, unsigned long entries) {
    static char seen[PAGES];
    struct ooh_track session;
    struct ooh_round round;
    char *area = memory(), text[200];
    unsigned long entries_before = number_in(LOG_ENTRIES), interrupts = number_in(INTERRUPTS);
    int fd = open_device(), missing = 0, lost = 0, whole = 0, with_interrupt = device_interrupts();
    set_number(LOG_ENTRIES, entries);
    track(fd, getpid(), mode, &session);
    struct ooh_entry *ring = map_ring(fd, &session, PROT_READ);
    for (int i = 0; ring && i < ROUNDS; i++) {
        int tries = with_interrupt ? TRIES : 1, is_lost;
        do {
            /* What others write belongs to the round before. */
            if (ioctl(fd, OOH_COLLECT, &round)) missing++;
            for (int page = 0; page < PAGES; page += 1 + (i == 1)) ((volatile char *)area)[page * PAGE + i] = (char)i;
            if (ioctl(fd, OOH_COLLECT, &round)) missing++;
            is_lost = !!(round.flags & OOH_LOST);
            lost += is_lost;
        } while (is_lost && --tries);
        if (is_lost) continue;
        whole++;
        mark(ring, &session, &round, area, seen);
        for (int page = 0; page < PAGES; page++) missing += (i == 1 ? page % 2 == 0 : 1) != seen[page];
    }
    close(fd);
    if (ring) munmap(ring, session.entries * sizeof(struct ooh_entry));
    munmap(area, (size_t)PAGES * PAGE);
    set_number(LOG_ENTRIES, entries_before);
    interrupts = number_in(INTERRUPTS) - interrupts;
    snprintf(text, sizeof text, "%s: bursts of more pages than the log's %lu: %lu interrupts, %d wrong, %d rounds lost, %d whole",
             name, entries, interrupts, missing, lost, whole);
    if (with_interrupt)
        rule(text, ring && !missing && whole == ROUNDS && interrupts >= ROUNDS);
    else
        rule(text, ring && !missing && lost == ROUNDS && !interrupts);
}

/* A tracker that collects nothing for long: its ring fills up, which it learns, and what comes after that is whole, or
   says that it is not: where nothing interrupts, the log itself may have been full once more. */
static void nobody_reads(const char *name, unsigned mode) {
    int is_right = 1, is_whole = 0;
    for (int tries = 0; is_right && !is_whole && tries < 3; tries++) {
        struct log log;
        char *area = memory();
        int begun = begin(&log, getpid(), mode);
        /* Every other page, so that no two of them are one entry. */
        for (__u64 i = 0; begun && i <= log.session.entries; i++)
            begun = !madvise(area + i * 2 % PAGES * PAGE, PAGE, MADV_DONTNEED);
        begun = begun && !ioctl(log.fd, OOH_COLLECT, &log.round);
        int is_said = log.round.flags & OOH_LOST && log.round.end - log.round.first <= log.session.entries;
        *(volatile char *)(area + PAGE) = 2;
        int has_page = has(&log, area + PAGE);
        int is_lost = !!(log.round.flags & OOH_LOST);
        is_right = begun && is_said && (has_page || is_lost);
        is_whole = has_page && !is_lost;
        end(&log);
        munmap(area, (size_t)PAGES * PAGE);
    }
    rule(name, is_right && is_whole);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct ooh_info found = info();
    rule("the module's version is that of ooh.h", found.version == OOH_ABI_VERSION);
    rule("it has a log", found.modes == (OOH_EPML | OOH_SPML | OOH_SPML_OWNED));
    pages_are_exact("EPML", OOH_EPML);
    pages_are_exact("SPML, frames' owners", OOH_SPML_OWNED);
    writes_of_others("EPML has what another process writes", OOH_EPML);
    writes_of_others("SPML has what another process writes", OOH_SPML_OWNED);
    stores_of_all_kinds("EPML", OOH_EPML);
    stores_of_all_kinds("SPML", OOH_SPML_OWNED);
    pages_of_private_files("EPML", OOH_EPML);
    pages_of_private_files("SPML", OOH_SPML_OWNED);
    moved_pages("EPML has the pages that UFFDIO_MOVE brings", OOH_EPML);
    moved_pages("SPML has the pages that UFFDIO_MOVE brings", OOH_SPML_OWNED);
    frames_are_the_guests();
    rings_are_apart("EPML: a log has nothing of another process", OOH_EPML);
    rings_are_apart("SPML: a log has nothing of another process", OOH_SPML_OWNED);
    trackers_are_apart("EPML: two trackers of a process have rounds of their own", OOH_EPML);
    trackers_are_apart("SPML: two trackers of a process have rounds of their own", OOH_SPML_OWNED);
    bursts("EPML", OOH_EPML, 1024);
    bursts("SPML", OOH_SPML_OWNED, 1024);
    bursts("EPML", OOH_EPML, 256);
    nobody_reads("EPML: a ring that nobody reads says that it was full", OOH_EPML);
    nobody_reads("SPML: a ring that nobody reads says that it was full", OOH_SPML_OWNED);
    rings_are_private();
    logs_end();
    wrong_calls();
    return broken;
}
