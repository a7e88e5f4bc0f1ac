/* access.c: reads as well as writes, by the technique access-scan (Linux 7.3). */
#include "check.h"
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 64 };

static unsigned char *memory;
static size_t page;

static void expect(pagetrail_round *round, size_t which, bool wanted)
{
    bool found;
    OK(pagetrail_round_contains(round, (uint64_t)(uintptr_t)memory + which * page, &found));
    if (found != wanted) {
        fprintf(stderr, "page %zu is %d, not %d\n", which, found, wanted);
        exit(1);
    }
}

static pagetrail_track_mode access_kind(pagetrail_round *round)
{
    pagetrail_round_info info;
    OK(pagetrail_round_get_info(round, &info, sizeof info));
    return info.access_kind;
}

static pagetrail_watch *start(pagetrail_track_mode track)
{
    pagetrail_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + PAGES * page};
    pagetrail_options options = {0};
    pagetrail_watch *watch;
    pagetrail_watch_info info;
    options.target = PAGETRAIL_TARGET_RANGES;
    options.ranges = &range;
    options.range_count = 1;
    options.track = track;
    OK(pagetrail_watch_start(&options, sizeof options, &watch));
    OK(pagetrail_watch_get_info(watch, &info, sizeof info));
    CHECK(info.technique == PAGETRAIL_TECHNIQUE_ACCESS_SCAN);
    return watch;
}

/* Every access is reported, and nothing else. */
static void accesses(void)
{
    pagetrail_watch *watch = start(PAGETRAIL_TRACK_ACCESSES);
    pagetrail_round *round;
    volatile unsigned char *bytes = memory;
    unsigned char sum = 0;
    for (int i = 0; i < 5; i++) {
        for (size_t which = 0; which < PAGES; which += 4)
            sum += bytes[which * page];
        for (size_t which = 1; which < PAGES; which += 4)
            bytes[which * page] = sum;
        OK(pagetrail_watch_collect(watch, &round));
        CHECK(access_kind(round) == PAGETRAIL_TRACK_ACCESSES);
        for (size_t which = 0; which < PAGES; which++)
            expect(round, which, which % 4 < 2);
        OK(pagetrail_round_commit(round));
    }
    OK(pagetrail_watch_free(watch));
}

/* In rounds of writes what is only read does not show. */
static void in_turns(void)
{
    pagetrail_watch *watch = start(PAGETRAIL_TRACK_ALTERNATE);
    pagetrail_round *round;
    volatile unsigned char *bytes = memory;
    unsigned rounds[4] = {0};
    for (int i = 0; i < 6; i++) {
        bytes[3 * page] = bytes[7 * page];
        OK(pagetrail_watch_collect(watch, &round));
        pagetrail_track_mode kind = access_kind(round);
        CHECK(kind == PAGETRAIL_TRACK_WRITES || kind == PAGETRAIL_TRACK_ACCESSES);
        rounds[kind]++;
        expect(round, 3, true);
        expect(round, 7, kind == PAGETRAIL_TRACK_ACCESSES);
        OK(pagetrail_round_commit(round));
    }
    CHECK(rounds[PAGETRAIL_TRACK_WRITES] == 3 && rounds[PAGETRAIL_TRACK_ACCESSES] == 3);
    OK(pagetrail_watch_free(watch));
}

int main(void)
{
    pagetrail_capability capability;
    const char *reason;
    OK(pagetrail_technique_capability(PAGETRAIL_TECHNIQUE_ACCESS_SCAN, &capability, &reason));
    page = (size_t)sysconf(_SC_PAGESIZE);
    memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && madvise(memory, PAGES * page, MADV_NOHUGEPAGE) == 0);
    memset(memory, 1, PAGES * page);
    if (capability == PAGETRAIL_CAPABILITY_ABSENT) {
        pagetrail_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + page};
        pagetrail_options options = {0};
        pagetrail_watch *watch;
        options.target = PAGETRAIL_TARGET_RANGES;
        options.ranges = &range;
        options.range_count = 1;
        options.track = PAGETRAIL_TRACK_ACCESSES;
        REFUSED(UNAVAILABLE, pagetrail_watch_start(&options, sizeof options, &watch));
        printf("not here: %s\n", reason);
        return 0;
    }
    CHECK(capability == PAGETRAIL_CAPABILITY_WORKS);
    accesses();
    in_turns();
    puts("accesses are reported");
    return 0;
}
