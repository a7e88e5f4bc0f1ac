/* api.c: every function of pagetrail.h, used as it is meant and as it is not. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 64 };

static size_t page;

static unsigned char *map(size_t pages)
{
    void *memory = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, pages * page);
    return memory;
}

static pagetrail_range range_of(const void *memory, size_t pages)
{
    pagetrail_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + pages * page};
    return range;
}

static pagetrail_watch *watch_of(pagetrail_range range, pagetrail_technique technique)
{
    pagetrail_options options = {0};
    pagetrail_watch *watch = NULL;
    options.target = PAGETRAIL_TARGET_RANGES;
    options.technique = technique;
    options.ranges = &range;
    options.range_count = 1;
    OK(pagetrail_watch_start(&options, sizeof options, &watch));
    CHECK(watch != NULL);
    return watch;
}

static int works(pagetrail_technique technique)
{
    pagetrail_capability capability;
    const char *reason = NULL;
    OK(pagetrail_technique_capability(technique, &capability, &reason));
    CHECK((capability == PAGETRAIL_CAPABILITY_WORKS) == (strlen(reason) == 0));
    return capability == PAGETRAIL_CAPABILITY_WORKS;
}

static void general(void)
{
    pagetrail_technique technique, number;
    CHECK(strcmp(pagetrail_version(), PAGETRAIL_VERSION) == 0);
    CHECK(pagetrail_page_size() == page);
    CHECK(strcmp(pagetrail_status_text(PAGETRAIL_STATUS_OK), "success") == 0);
    for (int status = 0; status <= PAGETRAIL_STATUS_REFUSED; status++)
        CHECK(strcmp(pagetrail_status_text(status), "unknown status") != 0);
    CHECK(strcmp(pagetrail_status_text(PAGETRAIL_STATUS_REFUSED + 1), "unknown status") == 0);
    CHECK(strcmp(pagetrail_status_text(-1), "unknown status") == 0);

    for (technique = PAGETRAIL_TECHNIQUE_AUTO; technique <= PAGETRAIL_TECHNIQUE_SPML_SEARCH; technique++) {
        const char *name = pagetrail_technique_name(technique);
        CHECK(name != NULL);
        OK(pagetrail_technique_by_name(name, &number));
        CHECK(number == technique);
        if (technique != PAGETRAIL_TECHNIQUE_AUTO)
            printf("  %-13s %s\n", name, works(technique) ? "works" : "not here");
    }
    CHECK(pagetrail_technique_name(4711) == NULL);
    REFUSED(INVALID_ARGUMENT, pagetrail_technique_by_name("no-such", &number));
    REFUSED(INVALID_ARGUMENT, pagetrail_technique_by_name("\xff", &number));
    REFUSED(NULL_POINTER, pagetrail_technique_by_name(NULL, &number));
    REFUSED(NULL_POINTER, pagetrail_technique_by_name("auto", NULL));

    pagetrail_capability capability;
    REFUSED(INVALID_ARGUMENT, pagetrail_technique_capability(PAGETRAIL_TECHNIQUE_AUTO, &capability, NULL));
    REFUSED(NULL_POINTER, pagetrail_technique_capability(PAGETRAIL_TECHNIQUE_NONE, NULL, NULL));
    OK(pagetrail_technique_capability(PAGETRAIL_TECHNIQUE_NONE, &capability, NULL));
    CHECK(capability == PAGETRAIL_CAPABILITY_WORKS);
}

static void refusals(void)
{
    unsigned char *memory = map(2);
    pagetrail_range range = range_of(memory, 2);
    pagetrail_options options = {0};
    pagetrail_watch *watch = (pagetrail_watch *)memory;
    struct {
        pagetrail_options known;
        uint64_t unknown;
    } newer;

    REFUSED(NULL_POINTER, pagetrail_watch_start(NULL, sizeof options, &watch));
    CHECK(watch == NULL);
    REFUSED(NULL_POINTER, pagetrail_watch_start(&options, sizeof options, NULL));
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, 0, &watch));
    options.target = PAGETRAIL_TARGET_RANGES;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.range_count = 1;
    REFUSED(NULL_POINTER, pagetrail_watch_start(&options, sizeof options, &watch));
    options.ranges = &range;
    options.technique = 4711;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.technique = PAGETRAIL_TECHNIQUE_AUTO;
    options.flags = 1u << 31;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.flags = 0;
    options.block_pages = 513;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.block_pages = 0;
    options.max_overhead = -1;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.max_overhead = 0.0 / 0.0;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.max_overhead = 0.03;
    options.interval_min_ns = 2;
    options.interval_max_ns = 1;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.max_overhead = 0;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.interval_min_ns = options.interval_max_ns = 0;
    options.track = 4711;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.track = PAGETRAIL_TRACK_ACCESSES;
    options.technique = PAGETRAIL_TECHNIQUE_NONE;
    REFUSED(UNAVAILABLE, pagetrail_watch_start(&options, sizeof options, &watch));
    options.track = PAGETRAIL_TRACK_DEFAULT;
    options.technique = PAGETRAIL_TECHNIQUE_AUTO;
    range.end = range.start;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    range.end = range.start + 1;
    REFUSED(BAD_RANGE, pagetrail_watch_start(&options, sizeof options, &watch));
    range.start = 0;
    range.end = page;
    REFUSED(BAD_RANGE, pagetrail_watch_start(&options, sizeof options, &watch));
    range = range_of(memory, 2);
    options.target = 4711;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&options, sizeof options, &watch));
    options.target = PAGETRAIL_TARGET_PROCESS;
    options.pid = 0x7ffffff0;
    REFUSED(NO_SUCH_PROCESS, pagetrail_watch_start(&options, sizeof options, &watch));
    options.pid = (uint32_t)getpid();
    REFUSED(WRONG_TARGET, pagetrail_watch_start(&options, sizeof options, &watch));
    options.target = PAGETRAIL_TARGET_OWN;
    options.technique = PAGETRAIL_TECHNIQUE_MPROTECT;
    REFUSED(WRONG_TARGET, pagetrail_watch_start(&options, sizeof options, &watch));

    /* A caller newer than the library: its new field may only be zero. */
    memset(&newer, 0, sizeof newer);
    newer.known.target = PAGETRAIL_TARGET_RANGES;
    newer.known.technique = PAGETRAIL_TECHNIQUE_NONE;
    newer.known.ranges = &range;
    newer.known.range_count = 1;
    newer.unknown = 1;
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_start(&newer.known, sizeof newer, &watch));
    newer.unknown = 0;
    OK(pagetrail_watch_start(&newer.known, sizeof newer, &watch));
    OK(pagetrail_watch_free(watch));

    /* Null where a watch or a round belongs. */
    pagetrail_round *round;
    pagetrail_watch_info watch_info;
    pagetrail_round_info round_info;
    pagetrail_overhead overhead;
    const pagetrail_range *ranges;
    uint64_t nanoseconds;
    size_t count;
    bool answer;
    OK(pagetrail_watch_free(NULL));
    REFUSED(NULL_POINTER, pagetrail_watch_collect(NULL, &round));
    REFUSED(NULL_POINTER, pagetrail_watch_get_info(NULL, &watch_info, sizeof watch_info));
    REFUSED(NULL_POINTER, pagetrail_watch_reserve(NULL, 1));
    REFUSED(NULL_POINTER, pagetrail_watch_prepare_kernel_write(NULL, memory, 1));
    REFUSED(NULL_POINTER, pagetrail_watch_wait(NULL, 0, &answer));
    REFUSED(NULL_POINTER, pagetrail_round_get_info(NULL, &round_info, sizeof round_info));
    REFUSED(NULL_POINTER, pagetrail_watch_until_collect(NULL, &nanoseconds));
    REFUSED(NULL_POINTER, pagetrail_round_get_overhead(NULL, &overhead, sizeof overhead));
    REFUSED(NULL_POINTER, pagetrail_round_written(NULL, &ranges, &count));
    REFUSED(NULL_POINTER, pagetrail_round_newly_mapped(NULL, &ranges, &count));
    REFUSED(NULL_POINTER, pagetrail_round_copy(NULL, NULL, 0, &count));
    REFUSED(NULL_POINTER, pagetrail_round_contains(NULL, 0, &answer));
    REFUSED(NULL_POINTER, pagetrail_round_event(NULL, 0, NULL, 0));
    REFUSED(NULL_POINTER, pagetrail_round_untracked(NULL, 0, NULL, 0));
    REFUSED(NULL_POINTER, pagetrail_round_commit(NULL));
    REFUSED(NULL_POINTER, pagetrail_round_give_back(NULL));
    munmap(memory, 2 * page);
}

/* Whether exactly the pages `first`, `first + step`, .. of the memory are in the round, and says so in every way. */
static void check_round(pagetrail_round *round, const unsigned char *memory, size_t first, size_t step, int exact)
{
    const pagetrail_range *ranges;
    pagetrail_range copy[PAGES];
    pagetrail_round_info info;
    size_t count, copied, i;
    uint64_t bytes = 0;

    OK(pagetrail_round_written(round, &ranges, &count));
    OK(pagetrail_round_copy(round, copy, PAGES, &copied));
    CHECK(copied == count && count <= PAGES);
    CHECK(memcmp(copy, ranges, count * sizeof *copy) == 0);
    for (i = 0; i < count; i++) {
        CHECK(ranges[i].start < ranges[i].end && ranges[i].start % page == 0 && ranges[i].end % page == 0);
        CHECK(i == 0 || ranges[i - 1].end < ranges[i].start);
        bytes += ranges[i].end - ranges[i].start;
    }
    for (i = 0; i < PAGES; i++) {
        bool found;
        OK(pagetrail_round_contains(round, (uint64_t)(uintptr_t)memory + i * page + 7, &found));
        if (i >= first && (i - first) % step == 0)
            CHECK(found);
        else
            CHECK(!exact || !found);
    }
    OK(pagetrail_round_get_info(round, &info, sizeof info));
    CHECK(info.written_bytes == bytes && info.written_count == count);
    CHECK(info.event_count == 0 && info.untracked_count == 0);
    CHECK(info.collect_ns > 0 && info.blind_ns == 0);
    CHECK(info.access_kind == PAGETRAIL_TRACK_WRITES || info.access_kind == PAGETRAIL_TRACK_ACCESSES);

    if (count > 1) {
        REFUSED(BUFFER_TOO_SMALL, pagetrail_round_copy(round, copy, 1, &copied));
        CHECK(copied == count && copy[0].start == ranges[0].start);
        REFUSED(BUFFER_TOO_SMALL, pagetrail_round_copy(round, NULL, 0, &copied));
        REFUSED(NULL_POINTER, pagetrail_round_copy(round, NULL, 1, &copied));
    }
    /* An older caller's struct ends earlier. */
    memset(&info, 0xee, sizeof info);
    OK(pagetrail_round_get_info(round, &info, sizeof info.index));
    CHECK(info.index < 1000 && info.began_ns == 0xeeeeeeeeeeeeeeeeull);
}

static void rounds(pagetrail_technique technique)
{
    int exact = technique != PAGETRAIL_TECHNIQUE_NONE && technique != PAGETRAIL_TECHNIQUE_SOFT_DIRTY
                && technique != PAGETRAIL_TECHNIQUE_ACCESS_SCAN;
    unsigned char *memory = map(PAGES);
    pagetrail_range range = range_of(memory, PAGES);
    pagetrail_watch *watch = watch_of(range, technique);
    pagetrail_watch_info info;
    pagetrail_round *round, *again;
    pagetrail_event event;
    pagetrail_untracked untracked;
    const pagetrail_range *ranges;
    size_t i, count;
    bool ended;

    OK(pagetrail_watch_get_info(watch, &info, sizeof info));
    CHECK(info.technique == technique && info.pid == (uint32_t)getpid());
    CHECK(strlen(info.reason) > 0);
    OK(pagetrail_watch_reserve(watch, PAGES / 2));
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_reserve(watch, (size_t)1 << 50));

    for (i = 0; i < PAGES; i += 3)
        memory[i * page]++;
    OK(pagetrail_watch_collect(watch, &round));
    check_round(round, memory, 0, 3, exact);
    REFUSED(ROUND_OPEN, pagetrail_watch_collect(watch, &again));
    CHECK(again == NULL);
    REFUSED(INVALID_ARGUMENT, pagetrail_round_event(round, 0, &event, sizeof event));
    REFUSED(INVALID_ARGUMENT, pagetrail_round_untracked(round, 0, &untracked, sizeof untracked));
    OK(pagetrail_round_newly_mapped(round, &ranges, &count));
    CHECK(count == 0);

    /* Given back, the pages come again, with those written since. */
    OK(pagetrail_round_give_back(round));
    REFUSED(NO_ROUND, pagetrail_round_commit(round));
    REFUSED(NO_ROUND, pagetrail_round_written(round, &ranges, &count));
    for (i = 1; i < PAGES; i += 3)
        memory[i * page]++;
    OK(pagetrail_watch_collect(watch, &round));
    check_round(round, memory, 0, 3, 0);
    check_round(round, memory, 1, 3, 0);
    OK(pagetrail_round_commit(round));
    REFUSED(NO_ROUND, pagetrail_round_commit(round));
    REFUSED(NO_ROUND, pagetrail_round_give_back(round));

    memory[5 * page]++;
    OK(pagetrail_watch_collect(watch, &round));
    check_round(round, memory, 5, PAGES, exact);
    OK(pagetrail_round_commit(round));

    /* The kernel's write into watched memory. */
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(zero >= 0);
    OK(pagetrail_watch_prepare_kernel_write(watch, memory + 9 * page + 100, 10));
    memory[9 * page + 100] = 1;
    CHECK(read(zero, memory + 9 * page + 100, 10) == 10);
    close(zero);
    REFUSED(INVALID_ARGUMENT, pagetrail_watch_prepare_kernel_write(watch, memory, SIZE_MAX));
    OK(pagetrail_watch_collect(watch, &round));
    check_round(round, memory, 9, PAGES, exact);

    OK(pagetrail_watch_wait(watch, 0, &ended));
    CHECK(!ended);
    /* With a round open. */
    OK(pagetrail_watch_free(watch));
    memory[0]++;
    munmap(memory, PAGES * page);
}

static void *free_it(void *watch)
{
    OK(pagetrail_watch_free(watch));
    return NULL;
}

static void threads_and_forks(void)
{
    unsigned char *memory = map(PAGES);
    pagetrail_watch *watch = watch_of(range_of(memory, PAGES), PAGETRAIL_TECHNIQUE_NONE);
    pagetrail_round *round;
    pthread_t thread;
    int status;

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        REFUSED(FORKED, pagetrail_watch_collect(watch, &round));
        OK(pagetrail_watch_free(watch));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(pagetrail_watch_collect(watch, &round));
    OK(pagetrail_round_commit(round));
    CHECK(pthread_create(&thread, NULL, free_it, watch) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    munmap(memory, PAGES * page);
}

static unsigned long mapped_pages(void)
{
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm != NULL && fscanf(statm, "%lu", &pages) == 1);
    fclose(statm);
    return pages;
}

/* Tools that look for leaks know nothing of the library's heap; the size of the process tells. */
static void leaks(void)
{
    enum { OFTEN = 300 };
    unsigned char *memory = map(PAGES);
    unsigned long before = 0;
    for (int i = 0; i < 2 * OFTEN; i++) {
        pagetrail_watch *watch = watch_of(range_of(memory, PAGES), PAGETRAIL_TECHNIQUE_AUTO);
        pagetrail_round *round;
        pagetrail_set *set;
        OK(pagetrail_watch_reserve(watch, 4096));
        memory[page]++;
        OK(pagetrail_watch_collect(watch, &round));
        OK(pagetrail_round_commit(round));
        OK(pagetrail_watch_free(watch));
        OK(pagetrail_set_new(&set));
        OK(pagetrail_set_insert(set, range_of(memory, 1)));
        pagetrail_set_free(set);
        if (i == OFTEN)
            before = mapped_pages();
    }
    /* A watch has more than 64 KiB of room here: one in ten lost would show. */
    CHECK(mapped_pages() < before + OFTEN / 10 * 16);
    munmap(memory, PAGES * page);
}

static pagetrail_range pages(uint64_t first, uint64_t after)
{
    pagetrail_range range = {first * page, after * page};
    return range;
}

static void sets(void)
{
    pagetrail_set *set, *other;
    const pagetrail_range *ranges;
    pagetrail_range some[3];
    size_t count;
    bool found;

    OK(pagetrail_set_new(&set));
    OK(pagetrail_set_new(&other));
    OK(pagetrail_set_insert(set, pages(1, 3)));
    OK(pagetrail_set_insert(set, pages(3, 4)));
    OK(pagetrail_set_insert(set, pages(10, 12)));
    OK(pagetrail_set_ranges(set, &ranges, &count));
    CHECK(count == 2 && ranges[0].start == page && ranges[0].end == 4 * page);
    CHECK(pagetrail_set_bytes(set) == 5 * page);
    OK(pagetrail_set_contains(set, 4 * page - 1, &found));
    CHECK(found);
    OK(pagetrail_set_contains(set, 4 * page, &found));
    CHECK(!found);

    some[0] = pages(20, 21);
    some[1] = pages(11, 13);
    some[2] = pages(2, 3);
    OK(pagetrail_set_insert_all(other, some, 3));
    OK(pagetrail_set_insert_all(other, NULL, 0));
    OK(pagetrail_set_union(set, other));
    CHECK(pagetrail_set_bytes(set) == 7 * page);
    OK(pagetrail_set_intersect(set, other));
    CHECK(pagetrail_set_bytes(set) == 4 * page);
    OK(pagetrail_set_remove(set, pages(20, 30)));
    CHECK(pagetrail_set_bytes(set) == 3 * page);
    OK(pagetrail_set_union(set, set));
    CHECK(pagetrail_set_bytes(set) == 3 * page);
    OK(pagetrail_set_subtract(set, set));
    CHECK(pagetrail_set_bytes(set) == 0);
    OK(pagetrail_set_clear(other));
    OK(pagetrail_set_ranges(other, &ranges, &count));
    CHECK(count == 0);

    REFUSED(INVALID_ARGUMENT, pagetrail_set_insert(set, pages(2, 2)));
    REFUSED(INVALID_ARGUMENT, pagetrail_set_remove(set, pages(3, 2)));
    some[2] = pages(3, 2);
    REFUSED(INVALID_ARGUMENT, pagetrail_set_insert_all(set, some, 3));
    CHECK(pagetrail_set_bytes(set) == 0);
    REFUSED(NULL_POINTER, pagetrail_set_insert_all(set, NULL, 1));
    REFUSED(NULL_POINTER, pagetrail_set_new(NULL));
    REFUSED(NULL_POINTER, pagetrail_set_insert(NULL, pages(1, 2)));
    REFUSED(NULL_POINTER, pagetrail_set_remove(NULL, pages(1, 2)));
    REFUSED(NULL_POINTER, pagetrail_set_clear(NULL));
    REFUSED(NULL_POINTER, pagetrail_set_union(set, NULL));
    REFUSED(NULL_POINTER, pagetrail_set_intersect(NULL, set));
    REFUSED(NULL_POINTER, pagetrail_set_subtract(NULL, NULL));
    REFUSED(NULL_POINTER, pagetrail_set_contains(NULL, 0, &found));
    REFUSED(NULL_POINTER, pagetrail_set_ranges(set, NULL, &count));
    CHECK(pagetrail_set_bytes(NULL) == 0);
    pagetrail_set_free(set);
    pagetrail_set_free(other);
    pagetrail_set_free(NULL);
}

int main(void)
{
    pagetrail_technique technique;
    int tried = 0;
    page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(strlen(pagetrail_last_error()) == 0);
    general();
    refusals();
    for (technique = PAGETRAIL_TECHNIQUE_PAGEMAP_SCAN; technique <= PAGETRAIL_TECHNIQUE_SPML_SEARCH; technique++)
        if (works(technique)) {
            rounds(technique);
            tried++;
        }
    CHECK(tried >= 2);
    threads_and_forks();
    leaks();
    sets();
    printf("%d techniques tried\n", tried);
    return 0;
}
