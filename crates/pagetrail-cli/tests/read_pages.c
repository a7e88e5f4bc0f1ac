/* Reads some pages and writes others, at addresses that a test knows: of a mapping at BASE every third page is
 * written, the one after it read, the last left alone; again every 2 ms, without end. All exist before its
 * first output, one line. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE ((volatile unsigned char *)0x100000000000)
#define PAGES 300
#define PAGE 4096

int main(void)
{
    void *at = mmap((void *)BASE, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != BASE)
        return 2;
    memset(at, 1, (size_t)PAGES * PAGE);
    puts("ready");
    fflush(stdout);
    for (unsigned char time = 0;; time++) {
        for (size_t page = 0; page < PAGES; page += 3) {
            BASE[page * PAGE] = time;
            (void)BASE[(page + 1) * PAGE];
        }
        usleep(2000);
    }
}
