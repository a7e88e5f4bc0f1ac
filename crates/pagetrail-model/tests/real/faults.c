/* Page faults of small programs on a real kernel, one "name count" a line. tests/real_kernel.rs runs the
 * same programs on the model. Exits with 3 where userfaultfd cannot be used. */
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

int main(void) {
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
    fflush(stdout);

    ufd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (ufd < 0) die("userfaultfd");
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
    if (ioctl(ufd, UFFDIO_API, &api)) die("UFFDIO_API");
    p = area();
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    register_area(p);
    pthread_t resolver;
    if (pthread_create(&resolver, NULL, resolve, NULL)) die("pthread_create");

    protect(p);
    before = handled;
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    printf("ufd-listing1 %ld\n", handled - before);
    protect(p);
    before = handled;
    for (i = 0; i < PAGES; i += 3) {
        (void)p[i * PAGE];
        p[i * PAGE] = 1;
        p[i * PAGE + 8] = 2;
    }
    printf("ufd-every-third %ld\n", handled - before);
    protect(p);
    before = handled;
    for (i = 0; i < PAGES; i++) {
        unsigned long page = below(PAGES);
        if (below(2)) p[page * PAGE] = 1;
        else (void)p[page * PAGE];
    }
    printf("ufd-random %ld\n", handled - before);
    p = area();
    register_area(p);
    before = handled;
    for (i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    printf("ufd-missing %ld\n", handled - before);
    stop = 1;
    pthread_join(resolver, NULL);
    return 0;
}
