/* The own write set of pagetrail_guest.h, held against what the program wrote: natively, or in a guest. */
#define _GNU_SOURCE
#include "../../pagetrail-guest/include/pagetrail_guest.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES 512
#define ROUNDS 40

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static unsigned char *memory, found[PAGES];

/* Takes all by so many ranges at a time; the number of pages that were found. */
static int take(pagetrail_own_set *set, size_t capacity)
{
    pagetrail_guest_range ranges[300];
    uint64_t next = set->start, page;
    int pages = 0;
    memset(found, 0, sizeof found);
    while (next < set->end) {
        long count = pagetrail_own_take(set, ranges, capacity, &next), n;
        CHECK(count >= 0);
        for (n = 0; n < count; n++)
            for (page = ranges[n].start; page < ranges[n].end; page += 4096, pages++) found[(page - set->start) / 4096] = 1;
    }
    return pages;
}

int main(void)
{
    pagetrail_own_set set, other;
    int round, n, result, ends[2];
    memory = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && !pipe(ends));
    for (n = 0; n < PAGES; n += 2) memory[n * 4096] = 1;
    CHECK(pagetrail_own_start(&set, (uint64_t)memory, (uint64_t)memory) == -EINVAL);
    result = pagetrail_own_start(&set, (uint64_t)memory, (uint64_t)memory + PAGES * 4096);
    if (result == -ENOSYS || result == -EOPNOTSUPP) {
        puts("not here");
        return 0;
    }
    CHECK(result == 0);
    CHECK(take(&set, 1) == 0);
    srand(1);
    for (round = 0; round < ROUNDS; round++) {
        static unsigned char written[PAGES];
        int pages = 0;
        memset(written, 0, sizeof written);
        for (n = rand() % 400; n > 0; n--) {
            int page = rand() % PAGES;
            memory[page * 4096 + rand() % 4096] = (unsigned char)round;
            written[page] = 1;
        }
        /* The kernel writes, too. */
        CHECK(write(ends[1], "x", 1) == 1);
        n = rand() % PAGES;
        CHECK(read(ends[0], memory + n * 4096, 1) == 1);
        written[n] = 1;
        for (n = 0; n < PAGES; n++) pages += written[n];
        CHECK(take(&set, 1 + rand() % 300) == pages);
        CHECK(!memcmp(found, written, sizeof found));
    }
    /* What was discarded is there when it is written again. */
    CHECK(!madvise(memory, 4096, MADV_DONTNEED));
    take(&set, 300);
    memory[0] = 1;
    CHECK(take(&set, 300) == 1 && found[0]);
    if (!pagetrail_guest_is_here()) CHECK(pagetrail_own_start(&other, set.start, set.end) == -EBUSY);
    /* What is mapped over the memory, or a hole there, takes nothing of the rest away. */
    if (!pagetrail_guest_is_here()) {
        unsigned char *over = memory + 450 * 4096;
        for (n = 0; n < PAGES; n += 2) memory[n * 4096] = 3;
        CHECK(mmap(over, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == over);
        *over = 1;
        CHECK(take(&set, 300) == PAGES / 2 - 1 && !found[450]);
        CHECK(!munmap(over, 4096));
        memory[0] = memory[511 * 4096] = 4;
        CHECK(take(&set, 300) == 2 && found[0] && found[511]);
    }
    pagetrail_own_end(&set);
    memory[0] = 2;
    puts("exact");
    return 0;
}
