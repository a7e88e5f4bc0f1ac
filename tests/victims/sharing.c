/* Shared anonymous memory to which a child stores all the time, while this process only sleeps. At SIGUSR1 it removes
 * a page and reads it again, which is zeros then.
 *
 * usage: sharing SECONDS */
#include "victim.h"
#include <sys/mman.h>

enum { PAGES = 64, REMOVED = 40, STORED = 8 };
static char *memory;
static volatile char seen;

static void removes(int number) {
    (void)number;
    madvise(memory + REMOVED * 4096, 4096, MADV_REMOVE);
    seen = memory[REMOVED * 4096];
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    memory = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, PAGES * 4096);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* A new page table entry for each store, so that the file's time changes with each. */
        for (int i = 0; !over(); i++) {
            memory[i % STORED * 4096] = (char)i;
            madvise(memory + i % STORED * 4096, 4096, MADV_DONTNEED);
            usleep(300);
        }
        _exit(0);
    }
    struct sigaction action = {.sa_handler = removes};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    victim_ready();
    victim_rest();
    kill(child, SIGKILL);
    return 0;
}
