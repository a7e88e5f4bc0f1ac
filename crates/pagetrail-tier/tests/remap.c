/* What it would take to move pages by userfaultfd(2) instead of move_pages(2): a copy is made while
 * the program runs, the page is taken out (UFFDIO_MOVE), and the copy is put in its place.
 *
 * remap cost copy|protect read|write PAGES: a thread accesses PAGES pages, in any order, while each
 *   is replaced, by a copy that is compared when the page is out, or by one of a page that is
 *   write-protected. Copies are on node 0, and what they replace on node 1, where there are two. Prints
 *   how many were moved, how many copied again, faults of that thread, wrong words, and how many of
 *   all pages are on node 0 in the end.
 * remap fork: a child that is born while a page is out; prints what it reads, what it should, and
 *   the error of putting the page back.
 * remap other: another process calls UFFDIO_MOVE for this one; prints its error.
 * remap referenced: a page that the kernel holds a reference to, by a pipe; prints whether
 *   move_pages(2) moved it to node 1, and the error of UFFDIO_MOVE.
 * Ends with 3 where the kernel has no UFFDIO_MOVE. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define BATCH 64ul

/* Linux 6.8. */
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
    __u64 dst, src, len, mode;
    __s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

static int uffd;
static unsigned long pages;
static _Atomic int over, accesses;

static int die(const char *what) {
    perror(what);
    exit(2);
}

static uint8_t *map(unsigned long bytes) {
    uint8_t *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || madvise(at, bytes, MADV_NOHUGEPAGE))
        die("mmap");
    return at;
}

static void prefer(uint8_t *at, unsigned long bytes, int node) {
    unsigned long nodes = 1ul << node;
    syscall(SYS_mbind, at, bytes, 1 /* MPOL_PREFERRED */, &nodes, 8 * sizeof nodes, 0);
}

static unsigned long on_node_0(uint8_t *at) {
    unsigned long found = 0;
    for (unsigned long page = 0; page < pages; page++) {
        void *address = at + page * PAGE;
        int state = -1;
        found += !syscall(SYS_move_pages, 0, 1ul, &address, NULL, &state, 0) && state == 0;
    }
    return found;
}

static void register_for(uint8_t *at, unsigned long bytes, int mode) {
    struct uffdio_register range = {{(uintptr_t)at, bytes}, mode, 0};
    if (ioctl(uffd, UFFDIO_REGISTER, &range))
        die("UFFDIO_REGISTER");
}

static int move(uint8_t *to, uint8_t *from) {
    struct uffdio_move one = {.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = PAGE};
    while (ioctl(uffd, UFFDIO_MOVE, &one))
        if (errno != EAGAIN)
            return errno;
    return 0;
}

static void protect(uint8_t *at, unsigned long bytes, int on) {
    struct uffdio_writeprotect range = {{(uintptr_t)at, bytes}, on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
    if (ioctl(uffd, UFFDIO_WRITEPROTECT, &range))
        die("UFFDIO_WRITEPROTECT");
}

static void open_uffd(void) {
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0)
        uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
        exit(3);
}

/* The first word of a page counts the writes to it, which this thread counts, too. */
struct work {
    uint8_t *memory;
    int writes;
    uint32_t *counts;
    unsigned long wrong, faults;
};

static unsigned long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    /* One that waited counts as major. */
    return usage.ru_minflt + usage.ru_majflt;
}

static void *work(void *pointer) {
    struct work *work = pointer;
    for (unsigned long page = 0; page < pages; page++)
        work->counts[page] = 0;
    unsigned long before = faults();
    for (uint64_t random = 1; !over;) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        unsigned long page = (random >> 33) % pages;
        volatile uint64_t *word = (void *)(work->memory + page * PAGE);
        work->wrong += *word != (page << 32) + work->counts[page];
        if (work->writes)
            *word = (page << 32) + ++work->counts[page];
        accesses = 1;
    }
    work->faults = faults() - before;
    return 0;
}

static int cost(const char *how, const char *kind) {
    int by_copy = !strcmp(how, "copy");
    uint8_t *memory = map(pages * PAGE), *copy = map(BATCH * PAGE), *out = map(BATCH * PAGE);
    prefer(memory, pages * PAGE, 1);
    prefer(copy, BATCH * PAGE, 0);
    for (unsigned long page = 0; page < pages; page++)
        *(uint64_t *)(memory + page * PAGE) = page << 32;
    register_for(memory, pages * PAGE, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
    register_for(out, BATCH * PAGE, UFFDIO_REGISTER_MODE_MISSING);
    struct work state = {memory, !strcmp(kind, "write"), calloc(pages, sizeof(uint32_t)), 0, 0};
    pthread_t thread;
    pthread_create(&thread, 0, work, &state);
    while (!accesses)
        usleep(1000);
    unsigned long moved = 0, again = 0;
    for (unsigned long first = 0; first < pages; first += BATCH) {
        unsigned long count = pages - first < BATCH ? pages - first : BATCH;
        uint8_t *at = memory + first * PAGE;
        if (!by_copy)
            protect(at, count * PAGE, 1);
        struct iovec to = {copy, count * PAGE}, from = {at, count * PAGE};
        if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)(count * PAGE))
            die("process_vm_readv");
        for (unsigned long page = 0; page < count; page++) {
            uint8_t *place = at + page * PAGE, *new = copy + page * PAGE, *old = out + page * PAGE;
            if (move(old, place)) {
                if (!by_copy)
                    protect(place, PAGE, 0);
                continue;
            }
            if (by_copy && memcmp(old, new, PAGE)) {
                memcpy(new, old, PAGE);
                again++;
            }
            if (move(place, new))
                die("the page is lost");
            moved++;
        }
        madvise(out, BATCH * PAGE, MADV_DONTNEED);
    }
    over = 1;
    pthread_join(thread, 0);
    for (unsigned long page = 0; page < pages; page++)
        state.wrong += *(uint64_t *)(memory + page * PAGE) != (page << 32) + state.counts[page];
    printf("moved %lu again %lu faults %lu wrong %lu fast %lu\n", moved, again, state.faults, state.wrong, on_node_0(memory));
    return 0;
}

/* A page that is out, and where it went. */
static uint8_t *taken_out(uint8_t **where) {
    uint8_t *memory = map(PAGE), *out = map(PAGE);
    *(uint64_t *)memory = 4711;
    register_for(memory, PAGE, UFFDIO_REGISTER_MODE_MISSING);
    register_for(out, PAGE, UFFDIO_REGISTER_MODE_MISSING);
    errno = move(out, memory);
    if (errno)
        die("UFFDIO_MOVE");
    *where = out;
    return memory;
}

static int forked(void) {
    uint8_t *out, *memory = taken_out(&out);
    int ends[2];
    if (pipe(ends))
        return die("pipe");
    pid_t child = fork();
    if (!child) {
        uint64_t word = *(volatile uint64_t *)memory;
        _exit(write(ends[1], &word, sizeof word) != sizeof word);
    }
    uint64_t word = 1;
    if (read(ends[0], &word, sizeof word) != sizeof word)
        return die("read");
    waitpid(child, 0, 0);
    int error = move(memory, out);
    printf("read %lu instead of %lu: %s\n", (unsigned long)word, (unsigned long)*(uint64_t *)out, strerror(error));
    return 0;
}

static int other(void) {
    uint8_t *out, *memory = taken_out(&out);
    fflush(stdout);
    pid_t child = fork();
    if (!child)
        _exit(move(memory, out));
    int status = 0;
    waitpid(child, &status, 0);
    printf("%s\n", WEXITSTATUS(status) ? strerror(WEXITSTATUS(status)) : "moved");
    return 0;
}

static int referenced(void) {
    uint8_t *memory = map(PAGE), *out = map(PAGE);
    int ends[2], node = 1, state = -1000;
    memset(memory, 1, PAGE);
    struct iovec page = {memory, PAGE};
    if (pipe(ends) || vmsplice(ends[1], &page, 1, 0) != (ssize_t)PAGE)
        return die("vmsplice");
    void *address = memory;
    long left = syscall(SYS_move_pages, 0, 1ul, &address, &node, &state, 2 /* MPOL_MF_MOVE */);
    int moved = !left && state == node;
    register_for(out, PAGE, UFFDIO_REGISTER_MODE_MISSING);
    int error = move(out, memory);
    printf("move_pages %d UFFDIO_MOVE %d\n", moved, error);
    return 0;
}

int main(int argc, char **argv) {
    open_uffd();
    if (argc == 5 && !strcmp(argv[1], "cost")) {
        pages = strtoul(argv[4], 0, 10);
        return cost(argv[2], argv[3]);
    }
    if (argc == 2 && !strcmp(argv[1], "fork"))
        return forked();
    if (argc == 2 && !strcmp(argv[1], "other"))
        return other();
    if (argc == 2 && !strcmp(argv[1], "referenced"))
        return referenced();
    return 2;
}
