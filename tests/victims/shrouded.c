/* Four pages that say 1, 2, 3 and 4: private ones, or those of a file, argv[2], mapped shared; it prints where. At
 * SIGUSR1 the first says 9, and on the third of the private ones comes a guard page (MADV_GUARD_INSTALL, Linux 6.13). */
#include "victim.h"
#include <fcntl.h>
#include <sys/mman.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGES = 4, SHROUDED = 2 };
static char *volatile memory;
static long page;
static int file = -1;

static void shroud(int number) {
    (void)number;
    memory[0] = 9;
    if (file < 0) CHECK(madvise(memory + SHROUDED * page, page, MADV_GUARD_INSTALL) == 0);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    page = sysconf(_SC_PAGESIZE);
    if (argc > 2) CHECK((file = open(argv[2], O_RDWR | O_CLOEXEC)) >= 0);
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(memory != MAP_FAILED);
    if (file < 0) {
        if (madvise(memory, page, MADV_GUARD_INSTALL)) {
            fprintf(stderr, "MADV_GUARD_INSTALL: %s\n", strerror(errno));
            return 77;
        }
        CHECK(madvise(memory, page, MADV_GUARD_REMOVE) == 0);
    }
    for (int n = 0; n < PAGES; n++) memset(memory + n * page, n + 1, page);
    struct sigaction action = {.sa_handler = shroud, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    printf("%lx\n", (long)memory);
    victim_ready();
    victim_rest();
    return 0;
}
