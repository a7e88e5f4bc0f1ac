/* The malloc family as a C program knows it: one case per promise, named by argv[1]. Any allocator passes all but "parts"
 * and those of misuse, which end by a signal. */
#include "victim.h"
#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;

static void filled(unsigned char *object, size_t bytes, unsigned char with) {
    for (size_t i = 0; i < bytes; i++)
        if (object[i] != with)
            fail("byte %zu of %zu at %p is %d, not %d", i, bytes, (void *)object, object[i], with);
}

/* Hides from the compiler what it would optimise. */
static void *volatile hidden;
static volatile size_t hidden_offset;
#define OPAQUE(p) (hidden = (p), hidden)
#define BEHIND(p, bytes) (hidden_offset = (bytes), (char *)OPAQUE(p) + hidden_offset)

static void family(void) {
    static const size_t sizes[] = {0, 1, 15, 16, 17, 100, 1000, 3839, 3841, 4096, 5000, 70000, 20 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        unsigned char *a = malloc(n), *b = calloc(n, 1), *c = realloc(NULL, n + 1);
        if (!a || !b || !c || a == b || (uintptr_t)a % 16 || (uintptr_t)b % 16)
            fail("malloc(%zu) = %p, calloc = %p", n, (void *)a, (void *)b);
        if (malloc_usable_size(a) < n)
            fail("usable size of malloc(%zu) is %zu", n, malloc_usable_size(a));
        filled(b, n, 0);
        memset(a, 1, malloc_usable_size(a));
        memset(b, 2, n);
        memset(c, 3, n + 1);
        a = realloc(a, n * 2 + 1);
        c = reallocarray(c, n / 2 + 1, 1);
        filled(a, n, 1);
        filled(b, n, 2);
        filled(c, n / 2 + 1, 3);
        free(a), free(b), free(c);
        for (size_t align = 8; align <= 1 << 21; align *= 4) {
            void *p = NULL;
            if (posix_memalign(&p, align, n) || !p || (uintptr_t)p % align)
                fail("posix_memalign(%zu, %zu) = %p", align, n, p);
            unsigned char *q = aligned_alloc(align, n), *r = memalign(align, n);
            if ((uintptr_t)q % align || (uintptr_t)r % align)
                fail("aligned_alloc(%zu, %zu) = %p, memalign = %p", align, n, (void *)q, (void *)r);
            memset(p, 4, n), memset(q, 5, n), memset(r, 6, n);
            filled(p, n, 4), filled(q, n, 5), filled(r, n, 6);
            free(p), free(q), free(r);
        }
    }
    void *p = valloc(10), *q = pvalloc(10);
    if ((uintptr_t)p % 4096 || (uintptr_t)q % 4096 || malloc_usable_size(q) < 4096)
        fail("valloc = %p, pvalloc = %p", p, q);
    free(p), free(q), free(NULL);
    if (realloc(malloc(5), 0) != NULL || malloc_usable_size(NULL) != 0)
        fail("realloc to 0 or the size of nothing");
    if (posix_memalign(&p, 24, 1) != EINVAL || posix_memalign(&p, 4, 1) != EINVAL)
        fail("posix_memalign takes a bad alignment");
    errno = 77;
    free(malloc(100)), free(malloc(100 << 20));
    if (errno != 77)
        fail("free changes errno to %d", errno);
}

static void impossible(void) {
    unsigned char *keep = malloc(100);
    memset(keep, 9, 100);
    size_t n = (size_t)OPAQUE((void *)(SIZE_MAX - 100)), half = (size_t)OPAQUE((void *)(SIZE_MAX / 2 + 2));
    void *p = NULL;
#define IMPOSSIBLE(call)                                                                                               \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if ((call) != NULL || errno != ENOMEM)                                                                         \
            fail(#call " did not fail with ENOMEM: %m");                                                               \
    } while (0)
    IMPOSSIBLE(malloc(n));
    IMPOSSIBLE(malloc(half));
    IMPOSSIBLE(calloc(half, 2));
    IMPOSSIBLE(calloc(1, n));
    IMPOSSIBLE(realloc(keep, n));
    IMPOSSIBLE(reallocarray(keep, half, 2));
    IMPOSSIBLE(memalign(64, n));
    IMPOSSIBLE(pvalloc(n + 98));
    if (posix_memalign(&p, 64, n) != ENOMEM || p)
        fail("posix_memalign of too much");
    filled(keep, 100, 9);
    free(keep);
}

/* Out of addresses at every size: NULL and ENOMEM, what was there stays, and it works again when there is room. */
static void limited(void) {
    static void *held[1 << 16];
    static const size_t sizes[] = {24, 200, 2000, 9000, 100000, 3000000};
    struct rlimit limit = {160 << 20, RLIM_INFINITY};
    free(malloc(1));
    if (setrlimit(RLIMIT_AS, &limit))
        fail("setrlimit: %m");
    for (size_t round = 0; round < 2; round++) {
        size_t count = 0, exhausted = 0;
        for (size_t i = sizeof sizes / sizeof *sizes; i-- > 0;) {
            for (;;) {
                errno = 0;
                void **p = count < (1 << 16) ? malloc(sizes[i]) : NULL;
                if (!p) {
                    exhausted += errno == ENOMEM;
                    break;
                }
                memset(p, (int)count, sizes[i]);
                held[count++] = p;
            }
        }
        if (exhausted < 3 || count < 20)
            fail("%zu sizes were exhausted after %zu objects", exhausted, count);
        for (size_t i = 0; i < count; i++) {
            filled(held[i], 24, (unsigned char)i);
            free(held[i]);
        }
    }
    void *p = malloc(4 << 20);
    if (!p)
        fail("what was freed cannot be had again");
    free(p);
}

/* No descriptors, and no files: the heap needs neither. */
static void cut_off(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_FSIZE, &none);
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    for (int i = 0; i < 1000000; i++)
        if (!(hidden = malloc(100)))
            fail("out of memory without descriptors: %m");
}

static pthread_key_t late;

/* Runs when the thread's cache may have gone already. */
static void at_end(void *object) {
    free(object);
    for (int i = 1; i < 5000; i += 7)
        free(malloc((size_t)i));
}

static void *with_late_words(void *unused) {
    (void)unused;
    pthread_setspecific(late, malloc(33));
    return malloc(50);
}

static void threads(void) {
    pthread_key_create(&late, at_end);
    for (int i = 0; i < 300; i++) {
        pthread_t thread[4];
        for (int j = 0; j < 4; j++)
            if (pthread_create(&thread[j], NULL, with_late_words, NULL))
                fail("pthread_create: %m");
        for (int j = 0; j < 4; j++) {
            void *result;
            pthread_join(thread[j], &result);
            free(result);
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (usage.ru_maxrss > 200 << 10)
        fail("1200 threads, one after the other, took %ld KiB", usage.ru_maxrss);
}

/* Children of every kind: forked ones go apart, the others do no harm. */
static void children(void) {
    enum { COUNT = 2000 };
    static unsigned char *objects[COUNT];
    for (int i = 0; i < COUNT; i++)
        memset(objects[i] = malloc(100), 1, 100);
    FILE *file = fopen("/dev/null", "w");
    for (int round = 0; round < 20; round++) {
        pid_t forked = fork();
        if (forked == 0) {
            for (int i = 0; i < COUNT; i++) {
                filled(objects[i], 100, 1);
                memset(objects[i], 2, 100);
                if (i % 2)
                    free(objects[i]);
            }
            for (int i = 0; i < COUNT; i++)
                memset(malloc(100), 3, 100);
            for (int i = 0; i < COUNT; i += 2)
                filled(objects[i], 100, 2);
            fprintf(file, "from the child\n");
            fflush(file);
            _exit(0);
        }
        char *arguments[] = {"true", NULL};
        pid_t spawned, other = vfork();
        if (other == 0) {
            execvp("true", arguments);
            _exit(1);
        }
        if (posix_spawnp(&spawned, "true", NULL, NULL, arguments, environ))
            fail("posix_spawnp: %m");
        if (system("true") != 0)
            fail("system");
        for (int i = 0; i < COUNT; i++)
            filled(objects[i], 100, 1);
        pid_t ids[] = {forked, spawned, other};
        for (int i = 0; i < 3; i++) {
            int status;
            if (waitpid(ids[i], &status, 0) != ids[i] || status != 0)
                fail("child %d ended with %#x", i, status);
        }
        for (int i = 0; i < COUNT; i++)
            filled(objects[i], 100, 1);
        fprintf(file, "from the parent\n");
    }
}

/* Objects of 64 bytes lie in as many windows as argv[2] says. */
static void parts(long expected) {
    enum { COUNT = 4096 };
    static uintptr_t places[COUNT];
    uintptr_t seen[64] = {0};
    long windows = 0;
    for (int i = 0; i < COUNT; i++) {
        places[i] = (uintptr_t)malloc(64);
        long part = (long)(places[i] % 4096 * (uintptr_t)expected / 4096);
        uintptr_t window = places[i] >> 24;
        if (seen[part] == 0)
            windows++;
        else if (seen[part] != window)
            fail("part %ld is in two windows", part);
        seen[part] = window;
    }
    if (windows != expected)
        fail("%ld windows, not %ld", windows, expected);
}

static void double_free(void) {
    hidden = malloc(100);
    free(hidden);
    free(hidden);
}

static void double_free_pages(void) {
    hidden = malloc(50000);
    free(hidden);
    free(hidden);
}

static void free_inside(void) { free(BEHIND(malloc(100), 16)); }

static void free_stack(void) {
    char here[100];
    free(OPAQUE(here + 20));
}

/* Where another part's window shows the same bytes. */
static void free_alias(void) { free(BEHIND(malloc(64), 16 << 20)); }

static void realloc_freed(void) {
    hidden = malloc(100);
    free(hidden);
    hidden = realloc(hidden, 200);
}

/* Something writes over the heap's own metadata, which docs/heap-format.md does not describe: they lie before the table that it
 * does, 128 bytes for each slab. */
static void corrupted_metadata(void) {
    enum { COUNT = 1000 };
    static unsigned char *objects[COUNT];
    unsigned long start = 0;
    char line[512];
    for (int i = 0; i < COUNT; i++)
        objects[i] = malloc(64);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (start == 0 && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:pagetrail-heap"))
            start = strtoul(line, NULL, 16);
    if (start == 0)
        fail("no description");
    uint64_t *superblock = (uint64_t *)(start + 64), base = superblock[0], window = superblock[1];
    uint64_t slab = ((uint64_t)(uintptr_t)objects[0] - base) % window / 65536;
    uint64_t *metadata = (uint64_t *)(superblock[2] - superblock[3] * 128 + slab * 128);
    metadata[4] ^= 1ul << 40;
    for (int i = 0; i < COUNT; i++)
        free(objects[i]);
}

/* What was freed by objects of one size serves smaller ones, also where no more addresses can be had. */
static void freed(void) {
    static void *held[1 << 16];
    static const size_t sizes[] = {9000, 60000, 3000000};
    struct rlimit limit = {160 << 20, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit))
        fail("setrlimit: %m");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork: %m");
        if (child == 0) {
            size_t count = 0;
            while (count < 1 << 16 && (held[count] = malloc(sizes[i])))
                memset(held[count++], 1, sizes[i]);
            if (count == 0)
                fail("no object of %zu bytes", sizes[i]);
            while (count > 0)
                free(held[--count]);
            static const size_t small[] = {1000, 24, 3000};
            for (size_t k = 0; k < 30; k++) {
                size_t size = small[k % 3];
                if (!(held[k] = malloc(size)))
                    fail("after objects of %zu bytes: malloc(%zu): %m", sizes[i], size);
                memset(held[k], (int)k, size);
            }
            void *aligned;
            if (posix_memalign(&aligned, 2048, 2048) || (uintptr_t)aligned % 2048)
                fail("after objects of %zu bytes: posix_memalign", sizes[i]);
            free(aligned);
            for (size_t k = 0; k < 30; k++) {
                filled(held[k], 24, (unsigned char)k);
                if (!(held[k] = realloc(held[k], 5000)))
                    fail("after objects of %zu bytes: realloc: %m", sizes[i]);
                filled(held[k], 24, (unsigned char)k);
                free(held[k]);
            }
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status)
            fail("objects of %zu bytes: status %#x", sizes[i], status);
    }
}

/* Where no more mappings can be had, fork(2) fails, or its child lives with memory of its own. */
static void mapped_out(void) {
    char *keep = malloc(64);
    strcpy(keep, "parent's");
    /* More than vm.max_map_count (proc_sys_vm(5)) is by default; every second page is a mapping of its own. */
    size_t page = sysconf(_SC_PAGESIZE), pages = 1 << 18;
    char *memory = mmap(NULL, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap: %m");
    size_t split = 0;
    while (split < pages && !mprotect(memory + split * page, page, PROT_READ))
        split += 2;
    for (int leave = 0; leave < 12; leave++) {
        pid_t child = fork();
        if (child == 0) {
            strcpy(keep, "child's");
            _exit(0);
        }
        if (child < 0 && errno != ENOMEM)
            fail("%d left: fork: %m", leave);
        int status = 0;
        if (child > 0 && (waitpid(child, &status, 0) != child || status))
            fail("%d left: status %#x", leave, status);
        if (child < 0 && waitpid(-1, &status, 0) != -1)
            fail("%d left: a child that could not be forked is there", leave);
        if (strcmp(keep, "parent's"))
            fail("%d left: the child wrote the parent's object", leave);
        split -= 2;
        mprotect(memory + split * page, page, PROT_NONE);
    }
    free(keep);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
#define CASE(c)                                                                                                        \
    if (!strcmp(name, #c))                                                                                             \
        return c(), 0
    CASE(family);
    CASE(impossible);
    CASE(limited);
    CASE(freed);
    CASE(mapped_out);
    CASE(cut_off);
    CASE(threads);
    CASE(children);
    CASE(double_free);
    CASE(double_free_pages);
    CASE(free_inside);
    CASE(free_stack);
    CASE(free_alias);
    CASE(realloc_freed);
    CASE(corrupted_metadata);
    if (!strcmp(name, "parts") && argc > 2)
        return parts(atol(argv[2])), 0;
    fail("usage: mallocs CASE");
}
