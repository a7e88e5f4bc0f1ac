/* Very many mappings: argv[3] of two pages with a hole after each, in this process and in argv[2] children, which have
 * them from it. Every 100 ms each process writes to argv[4] of its mappings, one after the other, and notes in each which
 * time it was. At the end all of them check all their mappings.
 *
 * It is ready when each has written to all of them once. */
#include "victim.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, MAX = 100, WORDS = 3 * PAGE / 8 };

static volatile uint32_t *ready;
static uint64_t *memory;
static size_t count, at_once;

static void live(void) {
    for (size_t i = 0; i < count; i++) memory[i * WORDS] = 1;
    __atomic_fetch_add(ready, 1, __ATOMIC_RELEASE);
    uint64_t written = 0;
    while (!over()) {
        usleep(100000);
        for (size_t i = 0; i < at_once; i++, written++) memory[written % count * WORDS] = 2 + written / count;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t times = written / count + (i < written % count);
        if (memory[i * WORDS] != 1 + times) fail("mapping %zu of process %d is wrong", i, getpid());
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    CHECK(argc > 4);
    int children = atoi(argv[2]);
    count = strtoul(argv[3], NULL, 10);
    at_once = strtoul(argv[4], NULL, 10);
    CHECK(children >= 0 && children <= MAX && count > 0);
    ready = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memory = mmap(NULL, count * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(ready != MAP_FAILED && memory != MAP_FAILED);
    for (size_t i = 0; i < count; i++) CHECK(munmap((char *)memory + (3 * i + 2) * PAGE, PAGE) == 0);
    pid_t pids[MAX];
    for (int i = 0; i < children; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            live();
            _exit(0);
        }
    }
    while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < (uint32_t)children) {
        if (waitpid(-1, NULL, WNOHANG) > 0) fail("a process has ended at once");
        usleep(1000);
    }
    victim_ready();
    live();
    for (int i = 0; i < children; i++) kill(pids[i], SIGTERM);
    for (int i = 0; i < children; i++) {
        int status;
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        if (status) fail("a process broke");
    }
    return 0;
}
