/* A program whose hot set is known: hot_set PAGES [RUN [WRITES [HUGE]]].
 *
 * Page i is hot in stage s if i / RUN % 5 == s % 5, RUN being 1 if it is not given; SIGUSR1 begins the next stage. Hot
 * pages are read all the time, and every WRITESth (2nd if it is not given, none if 0) is written as well; another page is
 * touched now and then. With HUGE its memory is of huge pages, and another page is touched as many times more rarely as there
 * are pages in one: a huge page of which any is touched counts as used. At PASSES it counts how often it has gone through its
 * hot pages. SIGTERM has it check that every page holds what it should, and end.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE ((char *)0x100000000000)
#define PAGE 4096
/* Close to it, so that DAMON, which looks at what lies between the two widest gaps, need not look for it in terabytes. */
#define PASSES (BASE - 16 * PAGE)
#define STAGES 5
#define HUGE_PAGES 512

static volatile sig_atomic_t stage, over;

static void next(int signal)
{
    if (signal == SIGUSR1)
        stage++;
    else
        over = 1;
}

static uint64_t stamp(size_t page)
{
    return page * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

int main(int argc, char **argv)
{
    size_t pages = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    size_t run = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    size_t writes = argc > 3 ? strtoul(argv[3], NULL, 10) : 2;
    int huge = argc > 4 && strtoul(argv[4], NULL, 10);
    if (pages == 0 || run == 0)
        return 2;
    char *memory = mmap(BASE, pages * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != BASE)
        return 2;
    madvise(memory, pages * PAGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    volatile uint64_t *passes = mmap(PASSES, PAGE, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    uint64_t *written = calloc(pages, sizeof *written);
    if ((char *)passes != PASSES || written == NULL)
        return 2;
    for (size_t page = 0; page < pages; page++)
        *(uint64_t *)(memory + page * PAGE) = stamp(page);
    signal(SIGUSR1, next);
    signal(SIGTERM, next);
    puts("ready");
    fflush(stdout);
    uint32_t random = 1;
    while (!over) {
        size_t now = stage % STAGES;
        for (size_t page = 0; page < pages; page++) {
            if (page / run % STAGES != now)
                continue;
            volatile uint64_t *words = (uint64_t *)(memory + page * PAGE);
            if (words[0] != stamp(page) || words[1] != written[page])
                return 1;
            if (writes && page % writes == writes - 1)
                words[1] = ++written[page];
        }
        ++*passes;
        random = random * 1664525 + 1013904223;
        if (random < UINT32_MAX / 16 / (huge ? HUGE_PAGES : 1))
            *(volatile uint64_t *)(memory + random % pages * PAGE);
        usleep(2000);
    }
    for (size_t page = 0; page < pages; page++) {
        uint64_t *words = (uint64_t *)(memory + page * PAGE);
        if (words[0] != stamp(page) || words[1] != written[page])
            return 1;
    }
    return 0;
}
