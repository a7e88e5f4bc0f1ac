/* Takes the memory of node 0, but for so many MiB, and keeps it: hog MIB. Says "ready", and ends with its standard input. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STEP (1UL << 20)
#define MPOL_PREFERRED 1

static long free_kib(void)
{
    FILE *file = fopen("/sys/devices/system/node/node0/meminfo", "r");
    char line[128];
    long kib = -1;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Node 0 MemFree: %ld", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib;
}

int main(int argc, char **argv)
{
    long leave = argc > 1 ? atol(argv[1]) * 1024 : 0;
    /* Preferred, and no more than was free: to insist on the last page would have the kernel kill somebody. */
    for (long steps = (free_kib() - leave) / 1024; steps > 0 && free_kib() > leave; steps--) {
        unsigned long node = 1;
        char *memory = mmap(NULL, STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED ||
            syscall(SYS_mbind, memory, STEP, MPOL_PREFERRED, &node, 8 * sizeof node, 0) != 0 ||
            mlock(memory, STEP) != 0) {
            perror("hog");
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
