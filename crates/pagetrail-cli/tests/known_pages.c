/* Writes pages whose addresses a test knows: every third page of a mapping at BASE, again every 5 ms.
 *
 * Its first argument is the number of times, 0 for no end. Maps and touches everything before its first
 * output, one line. Leaves with 1 when the memory is not what it wrote. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE ((volatile unsigned char *)0x100000000000)
#define PAGES 300
#define PAGE 4096

int main(int argc, char **argv)
{
    long times = argc > 1 ? atol(argv[1]) : 1;
    void *at = mmap((void *)BASE, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != BASE)
        return 2;
    puts("ready");
    fflush(stdout);
    for (long time = 0; times == 0 || time < times; time++) {
        for (size_t page = 0; page < PAGES; page += 3)
            BASE[page * PAGE + 7] = (unsigned char)(time + page);
        usleep(5000);
        for (size_t page = 0; page < PAGES; page += 3)
            if (BASE[page * PAGE + 7] != (unsigned char)(time + page))
                return 1;
    }
    return 0;
}
