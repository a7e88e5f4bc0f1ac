/* Page faults of small programs on a real kernel, one "name count" a line; "not here: NAMES" for what the kernel
 * lacks. tests/real_kernel.rs runs the same programs on the model. Exits with 3 where userfaultfd cannot be used. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 5000UL

static int ufd;
static volatile long handled, stop;

static void die(const char *what) {
    perror(what);
    exit(3);
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static volatile char *area(void) {
    void *start = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || madvise(start, PAGES * PAGE, MADV_NOHUGEPAGE)) die("mmap");
    return start;
}

/* The generator of the random program; real_kernel.rs has the same. */
static uint64_t state = 1;
static unsigned long below(unsigned long bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % bound;
}

static void *resolve(void *unused) {
    struct uffd_msg message;
    while (!stop) {
        struct pollfd ready = {ufd, POLLIN, 0};
        if (poll(&ready, 1, 20) <= 0 || read(ufd, &message, sizeof message) != sizeof message) continue;
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        handled++;
        struct uffdio_range page = {message.arg.pagefault.address & ~(PAGE - 1), PAGE};
        if (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
            struct uffdio_writeprotect open = {page, 0};
            ioctl(ufd, UFFDIO_WRITEPROTECT, &open);
        } else {
            struct uffdio_zeropage zero = {page, 0, 0};
            ioctl(ufd, UFFDIO_ZEROPAGE, &zero);
        }
    }
    return unused;
}

static void register_area(volatile char *start) {
    struct uffdio_register range = {{(unsigned long)start, PAGES * PAGE},
                                    UFFDIO_REGISTER_MODE_WP | UFFDIO_REGISTER_MODE_MISSING, 0};
    if (ioctl(ufd, UFFDIO_REGISTER, &range)) die("UFFDIO_REGISTER");
}

static void protect(volatile char *start) {
    struct uffdio_writeprotect all = {{(unsigned long)start, PAGES * PAGE}, UFFDIO_WRITEPROTECT_MODE_WP};
    if (ioctl(ufd, UFFDIO_WRITEPROTECT, &all)) die("UFFDIO_WRITEPROTECT");
}

static void populate(volatile char *p) {
    for (unsigned long i = 0; i < PAGES; i++) p[i * PAGE] = 1;
}

/* The three programs, on the first `pages` pages. */
static void listing1(volatile char *p, unsigned long pages) {
    for (unsigned long i = 0; i < pages; i++) p[i * PAGE] = 1;
}
static void every_third(volatile char *p, unsigned long pages) {
    for (unsigned long i = 0; i < pages; i += 3) {
        (void)p[i * PAGE];
        p[i * PAGE] = 1;
        p[i * PAGE + 8] = 2;
    }
}
static void at_random(volatile char *p, unsigned long pages) {
    state = 1;
    for (unsigned long i = 0; i < pages; i++) {
        unsigned long page = below(PAGES);
        if (below(2)) p[page * PAGE] = 1;
        else (void)p[page * PAGE];
    }
}

static const struct {
    const char *name;
    void (*run)(volatile char *, unsigned long);
} programs[] = {{"listing1", listing1}, {"every-third", every_third}, {"random", at_random}};

/* Arms by clear_refs; false where that does not set a thing. */
static int clear_refs(void) {
    int file = open("/proc/self/clear_refs", O_WRONLY);
    int fine = file >= 0 && write(file, "4", 1) == 1;
    close(file);
    return fine;
}

static int is_soft_dirty(volatile char *at) {
    uint64_t entry = 0;
    int file = open("/proc/self/pagemap", O_RDONLY);
    if (file < 0 || pread(file, &entry, 8, (unsigned long)at / PAGE * 8) != 8) die("pagemap");
    close(file);
    return entry >> 55 & 1;
}

static long armed(volatile char *p, unsigned long program, unsigned long pages) {
    clear_refs();
    long before = faults();
    programs[program].run(p, pages);
    return faults() - before;
}

static void soft_dirty(void) {
    volatile char *p = area();
    populate(p);
    int before = clear_refs() && !is_soft_dirty(p);
    p[0] = 2;
    if (!before || !is_soft_dirty(p)) {
        printf("not here: soft-dirty\n");
        return;
    }
    for (unsigned long i = 0; i < 3; i++) {
        /* Stack and data are armed as well; an empty run has only their faults. */
        armed(p, i, 0);
        long own = armed(p, i, 0);
        printf("soft-dirty-%s %ld\n", programs[i].name, armed(p, i, PAGES) - own);
    }
}

/* What pagemap-scan arms: write protection that the kernel resolves itself. */
static void asynchronous(void) {
    int own = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP | 1 << 13 | 1 << 15, 0};
    if (own < 0 || ioctl(own, UFFDIO_API, &api)) {
        printf("not here: scan\n");
        return;
    }
    volatile char *p = area();
    populate(p);
    struct uffdio_register range = {{(unsigned long)p, PAGES * PAGE}, UFFDIO_REGISTER_MODE_WP, 0};
    struct uffdio_writeprotect all = {range.range, UFFDIO_WRITEPROTECT_MODE_WP};
    if (ioctl(own, UFFDIO_REGISTER, &range)) die("UFFDIO_REGISTER");
    for (unsigned long i = 0; i < 3; i++) {
        if (ioctl(own, UFFDIO_WRITEPROTECT, &all)) die("UFFDIO_WRITEPROTECT");
        long before = faults();
        programs[i].run(p, PAGES);
        printf("scan-%s %ld\n", programs[i].name, faults() - before);
    }
    close(own);
}

int main(int count, char **arguments) {
    /* When a thread was preempted, the kernel writes to its restartable-sequences area, which would be armed as well. */
    if (count && !getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execv("/proc/self/exe", arguments);
    }
    volatile char *p = area();
    unsigned long i;
    faults();
    long before = faults();
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    printf("first-write %ld\n", faults() - before);
    before = faults();
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 2;
    printf("second-write %ld\n", faults() - before);
    p = area();
    before = faults();
    for (i = 0; i < PAGES; i++) (void)p[i * PAGE];
    printf("first-read %ld\n", faults() - before);
    before = faults();
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    printf("write-after-read %ld\n", faults() - before);
    soft_dirty();
    asynchronous();
    fflush(stdout);

    ufd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (ufd < 0) die("userfaultfd");
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
    if (ioctl(ufd, UFFDIO_API, &api)) die("UFFDIO_API");
    p = area();
    populate(p);
    register_area(p);
    pthread_t resolver;
    if (pthread_create(&resolver, NULL, resolve, NULL)) die("pthread_create");

    for (i = 0; i < 3; i++) {
        protect(p);
        before = handled;
        programs[i].run(p, PAGES);
        printf("ufd-%s %ld\n", programs[i].name, handled - before);
    }
    p = area();
    register_area(p);
    before = handled;
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    printf("ufd-missing %ld\n", handled - before);
    stop = 1;
    pthread_join(resolver, NULL);
    return 0;
}
