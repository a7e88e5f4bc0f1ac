/* subpages.c: dirty sub-pages of a program on the sub-page allocator (ALLOC_LIBRARY). Started anew with a word it is that
 * program: it changes one of its objects whenever it gets a line, and says when it has. */
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

enum { OBJECTS = 4096, BYTES = 64 };

static int child(void)
{
    static unsigned char *objects[OBJECTS];
    char line[16];
    for (int i = 0; i < OBJECTS; i++) {
        objects[i] = malloc(BYTES);
        memset(objects[i], i, BYTES);
    }
    for (unsigned turn = 0;; turn++) {
        if (write(1, ".", 1) != 1 || read(0, line, sizeof line) <= 0)
            return 0;
        memset(objects[turn * 1021 % OBJECTS], (int)turn + 1, BYTES);
    }
}

/* Waits until the child has carried the command out. */
static void await(pagetrail_watch *watch, int from)
{
    char dot;
    struct pollfd said = {from, POLLIN, 0};
    for (int calls = 0; poll(&said, 1, 0) == 0; calls++) {
        pagetrail_progress progress = {0};
        CHECK(calls < 10000);
        OK(pagetrail_watch_follow(watch, 10, &progress, sizeof progress));
        CHECK(progress.state < PAGETRAIL_STATE_EXITING);
    }
    CHECK(read(from, &dot, 1) == 1);
}

/* What a round says: the facts, and how many bytes each of the sets has. */
static pagetrail_subpages_info look(pagetrail_watch *watch, uint64_t *subpage_bytes, uint64_t *changed)
{
    pagetrail_subpages_info info;
    pagetrail_round *round;
    const pagetrail_range *ranges;
    size_t count;
    OK(pagetrail_watch_collect(watch, &round));
    memset(&info, 1, sizeof info);
    OK(pagetrail_round_get_subpages_info(round, &info, sizeof info));
    OK(pagetrail_round_subpages(round, &ranges, &count));
    *subpage_bytes = *changed = 0;
    for (size_t i = 0; i < count; i++)
        *subpage_bytes += ranges[i].end - ranges[i].start;
    OK(pagetrail_round_subpage_bytes(round, &ranges, &count));
    for (size_t i = 0; i < count; i++)
        *changed += ranges[i].end - ranges[i].start;
    OK(pagetrail_round_subpage_aliases(round, &ranges, &count));
    uint64_t aliases = 0;
    for (size_t i = 0; i < count; i++)
        aliases += ranges[i].end - ranges[i].start;
    CHECK(aliases == info.alias_bytes);
    REFUSED(NULL_POINTER, pagetrail_round_subpages(round, NULL, &count));
    OK(pagetrail_round_commit(round));
    REFUSED(NO_ROUND, pagetrail_round_get_subpages_info(round, &info, sizeof info));
    return info;
}

static void without_a_heap(void)
{
    size_t page = pagetrail_page_size();
    pagetrail_options options = {0};
    pagetrail_range range;
    pagetrail_watch *watch;
    uint64_t bytes, changed;
    void *memory = aligned_alloc(page, page);
    range.start = (uint64_t)(uintptr_t)memory;
    range.end = range.start + page;
    options.target = PAGETRAIL_TARGET_RANGES;
    options.technique = PAGETRAIL_TECHNIQUE_NONE;
    options.ranges = &range;
    options.range_count = 1;
    OK(pagetrail_watch_start(&options, sizeof options, &watch));
    pagetrail_subpages_info info = look(watch, &bytes, &changed);
    CHECK(info.subpages_per_page == 0 && info.count == 0 && bytes == 0 && changed == 0);
    OK(pagetrail_watch_free(watch));
    free(memory);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return child();
    without_a_heap();
    const char *library = getenv("ALLOC_LIBRARY");
    CHECK(library != NULL);
    int to[2], from[2], own[2] = {dup(0), dup(1)};
    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    /* The program gets our standard input and output, and our environment. */
    CHECK(dup2(to[0], 0) == 0 && dup2(from[1], 1) == 1);
    CHECK(setenv("LD_PRELOAD", library, 1) == 0 && setenv("PAGETRAIL_SUBPAGES", "8", 1) == 0);
    const char *const words[] = {argv[0], "child", NULL};
    pagetrail_options options = {0};
    pagetrail_watch *watch;
    options.target = PAGETRAIL_TARGET_COMMAND;
    options.argv = words;
    pagetrail_status status = pagetrail_watch_start(&options, sizeof options, &watch);
    CHECK(unsetenv("LD_PRELOAD") == 0);
    CHECK(dup2(own[0], 0) == 0 && dup2(own[1], 1) == 1);
    if (status == PAGETRAIL_STATUS_PERMISSION || status == PAGETRAIL_STATUS_UNAVAILABLE) {
        printf("not here: %s\n", pagetrail_last_error());
        return 0;
    }
    CHECK(status == PAGETRAIL_STATUS_OK);
    await(watch, from[0]);
    uint64_t bytes, changed;
    pagetrail_subpages_info info = look(watch, &bytes, &changed);
    CHECK(info.subpages_per_page == 8 && info.subpage_bytes == 512 && info.count * 512 == bytes);
    CHECK(changed >= OBJECTS * BYTES);
    for (int i = 0; i < 20; i++) {
        CHECK(write(to[1], "\n", 1) == 1);
        await(watch, from[0]);
        info = look(watch, &bytes, &changed);
        CHECK(info.count >= 1 && info.count <= 4 && info.count * 512 == bytes);
        CHECK(changed >= BYTES && changed <= 4 * (512 + BYTES));
        CHECK(info.page_bytes >= pagetrail_page_size());
    }
    close(to[1]);
    pagetrail_progress progress = {0};
    for (int calls = 0; calls < 10000 && progress.state < PAGETRAIL_STATE_EXITING; calls++)
        OK(pagetrail_watch_follow(watch, 10, &progress, sizeof progress));
    if (progress.state == PAGETRAIL_STATE_EXITING)
        OK(pagetrail_watch_release_exit(watch));
    bool ended = false;
    OK(pagetrail_watch_wait(watch, 60000, &ended));
    CHECK(ended);
    OK(pagetrail_watch_free(watch));
    return 0;
}
