/* Many processes with much memory: argv[2] children of argv[3] MiB each. Every 100 ms each of them writes argv[4] of its
 * pages, one after the other, and notes in each which time it was. At the end all of them check all their pages.
 *
 * It is ready when each has written all its memory once. */
#include "victim.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, MAX = 1000 };

static volatile uint32_t *ready;

static void live(size_t pages, size_t at_once) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t page = 0; page < pages; page++) memory[page * (PAGE / 8)] = 1;
    __atomic_fetch_add(ready, 1, __ATOMIC_RELEASE);
    uint64_t written = 0;
    while (!over()) {
        usleep(100000);
        for (size_t i = 0; i < at_once; i++, written++) memory[written % pages * (PAGE / 8)] = 2 + written / pages;
    }
    for (size_t page = 0; page < pages; page++) {
        uint64_t times = written / pages + (page < written % pages);
        if (memory[page * (PAGE / 8)] != 1 + times) fail("page %zu of process %d is wrong", page, getpid());
    }
    _exit(0);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    CHECK(argc > 4);
    int count = atoi(argv[2]);
    size_t pages = strtoul(argv[3], NULL, 10) * ((1 << 20) / PAGE);
    size_t at_once = strtoul(argv[4], NULL, 10);
    CHECK(count > 0 && count <= MAX && pages > 0);
    ready = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ready != MAP_FAILED);
    pid_t children[MAX];
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) live(pages, at_once);
    }
    while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < (uint32_t)count) {
        if (waitpid(-1, NULL, WNOHANG) > 0) fail("a process has ended at once");
        usleep(1000);
    }
    victim_ready();
    while (!over()) usleep(100000);
    for (int i = 0; i < count; i++) kill(children[i], SIGTERM);
    for (int i = 0; i < count; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        if (status) fail("a process broke");
    }
    return 0;
}
