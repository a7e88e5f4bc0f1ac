/* Memory keeps its contents while mappings come and go: mmap, munmap, mremap, mprotect, MADV_DONTNEED, brk, shared
 * memory, fork and exec, each checked. */
#include "victim.h"
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SLOTS = 24, PAGE = 4096 };

static struct {
    uint64_t *memory;
    size_t pages;
    uint64_t seed;
    int shared;
} slots[SLOTS];
static unsigned refused;
static uint64_t state = 88172645463325252;
extern char **environ;

static uint64_t chance(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static void fill(int i, uint64_t seed) {
    slots[i].seed = seed;
    for (size_t w = 0; w < slots[i].pages * PAGE / 8; w += 64) slots[i].memory[w] = seed + w;
}

static void verify(int i, const char *after) {
    for (size_t w = 0; w < slots[i].pages * PAGE / 8; w += 64)
        if (slots[i].memory[w] != slots[i].seed + w)
            fail("after %s page %zu of a mapping of %zu holds %lx instead of %lx", after, w * 8 / PAGE, slots[i].pages,
                 (unsigned long)slots[i].memory[w], (unsigned long)(slots[i].seed + w));
}

static void map(int i) {
    slots[i].pages = 1 + chance(64);
    slots[i].shared = chance(3) == 0;
    slots[i].memory = mmap(NULL, slots[i].pages * PAGE, PROT_READ | PROT_WRITE,
                           (slots[i].shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    CHECK(slots[i].memory != MAP_FAILED);
    fill(i, chance(UINT64_MAX));
}

static void child_sees(int i) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        verify(i, "fork, in the child");
        if (!slots[i].shared) fill(i, 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) fail("a child ended with status %x", status);
}

static void change(int i) {
    size_t bytes = slots[i].pages * PAGE;
    switch (chance(10)) {
    case 0:
        CHECK(munmap(slots[i].memory, bytes) == 0);
        map(i);
        break;
    case 1: {
        size_t more = slots[i].shared ? slots[i].pages : slots[i].pages + chance(32);
        uint64_t *moved = mremap(slots[i].memory, bytes, more * PAGE, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) {
            /* A tracker that armed an older mapping here may have split this one; realloc(3) copies then. */
            if (errno != EFAULT) fail("mremap: %s", strerror(errno));
            refused++;
            break;
        }
        slots[i].memory = moved;
        verify(i, "mremap");
        slots[i].pages = more;
        fill(i, chance(UINT64_MAX));
        break;
    }
    case 2:
        CHECK(mprotect(slots[i].memory, bytes, PROT_READ) == 0);
        verify(i, "mprotect");
        CHECK(mprotect(slots[i].memory, bytes, PROT_READ | PROT_WRITE) == 0);
        break;
    case 3:
        if (slots[i].shared) break;
        CHECK(madvise(slots[i].memory, bytes, MADV_DONTNEED) == 0);
        for (size_t w = 0; w < bytes / 8; w += 64)
            if (slots[i].memory[w]) fail("a discarded page is not zero");
        fill(i, chance(UINT64_MAX));
        break;
    case 4:
        /* Replaced in one step. */
        CHECK(mmap(slots[i].memory, bytes, PROT_READ | PROT_WRITE,
                   (slots[i].shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == slots[i].memory);
        fill(i, chance(UINT64_MAX));
        break;
    case 5:
        child_sees(i);
        break;
    case 6: {
        char *before = sbrk(8 * PAGE);
        CHECK(before != (void *)-1);
        for (int p = 0; p < 8; p++) {
            if (before[p * PAGE]) fail("a page of the heap is not zero");
            before[p * PAGE] = 1;
        }
        CHECK(sbrk(-8 * PAGE) != (void *)-1);
        break;
    }
    default:
        verify(i, "nothing");
        fill(i, chance(UINT64_MAX));
    }
    verify(i, "a change");
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) return 42;
    victim_start(argc, argv);
    for (int i = 0; i < SLOTS; i++) map(i);
    victim_ready();
    for (unsigned n = 1; !over(); n++) {
        change(chance(SLOTS));
        if (n % 500 == 0) {
            pid_t child;
            char *arguments[] = {argv[0], "child", NULL};
            int status;
            CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
            CHECK(waitpid(child, &status, 0) == child);
            if (status != 42 << 8) fail("a spawned child ended with status %x", status);
        }
    }
    for (int i = 0; i < SLOTS; i++) verify(i, "all");
    printf("mremap refused %u times\n", refused);
    return 0;
}
