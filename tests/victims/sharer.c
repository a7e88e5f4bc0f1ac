/* Has two pieces of memory, whose addresses it prints, filled with 1. By SIGUSR1 the first, which is shared and anonymous, is
 * filled with 2 and may no longer be written; the second, which is private, gives way to a file filled with 3, shared, which may
 * not be written either. */
#include "victim.h"
#include <sys/mman.h>

enum { BYTES = 16 * 4096 };

static volatile sig_atomic_t turned;

static void turn(int signal) {
    (void)signal;
    turned = 1;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct sigaction action = {.sa_handler = turn, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *replaced = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = memfd_create("sharer", 0);
    CHECK(own != MAP_FAILED && replaced != MAP_FAILED && ftruncate(file, BYTES) == 0);
    char *writable = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(writable != MAP_FAILED);
    memset(writable, 3, BYTES);
    CHECK(munmap(writable, BYTES) == 0);
    memset(own, 1, BYTES);
    memset(replaced, 1, BYTES);
    printf("%lx %lx\n", (long)own, (long)replaced);
    victim_ready();
    while (!over()) {
        usleep(500);
        if (turned == 1) {
            memset(own, 2, BYTES);
            CHECK(mprotect(own, BYTES, PROT_READ) == 0);
            CHECK(mmap(replaced, BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == replaced);
            turned = 2;
        }
    }
    for (int i = 0; i < BYTES; i++)
        if (own[i] != (turned ? 2 : 1) || replaced[i] != (turned ? 3 : 1)) fail("byte %d is %d and %d", i, own[i], replaced[i]);
    return 0;
}
