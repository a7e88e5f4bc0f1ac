/* A heap that grows in place: reservations without access that are made writable step by step, as malloc's arenas and tables do.
 * Natively the parts that were made writable are one mapping, so that there are few, and mremap(2) moves all of it at once. It
 * begins to grow at SIGUSR1, and counts its mappings. */
#include "victim.h"
#include <sys/mman.h>

enum { ARENAS = 200, STEPS = 80, PAGE = 4096, TABLE_STEPS = 5 };

static volatile sig_atomic_t begun;
static char *arenas[ARENAS];

static void begin(int signal) {
    (void)signal;
    begun = 1;
}

static char *reserve(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    int count = 0, c;
    while ((c = fgetc(maps)) != EOF) count += c == '\n';
    fclose(maps);
    return count;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct sigaction action = {.sa_handler = begin};
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < ARENAS; i++) arenas[i] = reserve(64 << 20);
    size_t step = 64 * PAGE;
    char *table = reserve(64 << 20);
    victim_ready();
    while (!begun && !over()) usleep(1000);
    int before = mappings();
    for (size_t s = 0; s < STEPS; s++) {
        for (int i = 0; i < ARENAS; i++) {
            CHECK(mprotect(arenas[i] + s * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
            arenas[i][s * PAGE] = 1;
        }
        if (s % (STEPS / TABLE_STEPS) == 0) {
            char *at = table + s / (STEPS / TABLE_STEPS) * step;
            CHECK(mprotect(at, step, PROT_READ | PROT_WRITE) == 0);
            memset(at, 1, step);
        }
        usleep(15000);
    }
    /* The reservations are one mapping at first; then each arena's beginning is one, and so is its rest. */
    int after = mappings();
    printf("%d mappings before, %d after\n", before, after);
    if (after > before + 2 * ARENAS + 64) fail("%d mappings have become %d", before, after);
    size_t bytes = TABLE_STEPS * step;
    char *moved = mremap(table, bytes, 2 * bytes, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) fail("mremap of what has grown: %s", strerror(errno));
    for (size_t at = 0; at < bytes; at += PAGE)
        if (moved[at] != 1) fail("what was moved has changed");
    return 0;
}
