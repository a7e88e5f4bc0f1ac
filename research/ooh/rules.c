// SPDX-License-Identifier: MIT OR Apache-2.0
/* The rules of /dev/ooh, tried on the running module: what is logged, who may read it, and that no log outlives its
 * tracker or its target. Prints a line for each rule; ends with the number of those that are broken. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "module/ooh.h"

enum { PAGES = 4096, PAGE = 4096, STORES = 1000, ROUNDS = 3, NOBODY = 65534 };
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
    rule("nothing is logged before", tracked_becomes(0));
    pid_t tracker = fork();
    if (!tracker) {
        int fd = open_device();
        if (track(fd, getppid(), OOH_EPML, &session) || !map_ring(fd, &session, PROT_READ)) _exit(1);
        for (;;) pause();
    }
    rule("a tracker's log is on", tracked_becomes(1));
    kill(tracker, SIGKILL);
    waitpid(tracker, NULL, 0);
    rule("and off once it is killed", tracked_becomes(0));
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
        int off = tracked_becomes(0);
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
    rule("and leaves nothing", tracked_becomes(0));
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
    rings_are_private();
    logs_end();
    wrong_calls();
    return broken;
}
