/* checkpoints.c: regions that survive, snapshots of memory that is written to, memory that goes back, and what is
   refused. */
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 64, ROUNDS = 5 };

static char store[4096], other[4096];

static pagetrail_checkpointer *started(size_t bytes)
{
    pagetrail_region regions[] = {{"counter", sizeof(uint64_t)}, {"table", bytes}};
    pagetrail_checkpointer_options options = {0};
    pagetrail_checkpointer *kept = NULL;
    options.store = store;
    options.regions = regions;
    options.region_count = 2;
    OK(pagetrail_checkpointer_start(&options, sizeof options, &kept));
    CHECK(kept != NULL);
    return kept;
}

static void *region(pagetrail_checkpointer *kept, const char *name, size_t expected)
{
    void *memory = NULL;
    size_t bytes = 0;
    OK(pagetrail_checkpointer_region(kept, name, &memory, &bytes));
    CHECK(memory != NULL && bytes == expected);
    return memory;
}

/* A program that ends without a word, again and again, and finds what it has saved. */
static void regions_survive(size_t page)
{
    for (uint64_t life = 0; life < ROUNDS; life++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pagetrail_checkpointer *kept = started(PAGES * page);
            uint64_t *counter = region(kept, "counter", sizeof *counter);
            unsigned char *table = region(kept, "table", PAGES * page);
            uint64_t number = 77;
            OK(pagetrail_checkpointer_restored(kept, &number));
            CHECK((number == 0) == (life == 0));
            CHECK(*counter == 2 * life);
            for (uint64_t at = 0; at < PAGES; at++)
                CHECK(table[at * page] == (at < 2 * life ? at + 1 : 0));
            table[2 * life * page] = (unsigned char)(2 * life + 1);
            *counter += 1;
            OK(pagetrail_checkpointer_save(kept, &number));
            CHECK(number == 2 * life + 1);
            table[(2 * life + 1) * page] = (unsigned char)(2 * life + 2);
            *counter += 1;
            OK(pagetrail_checkpointer_begin(kept));
            /* It goes on writing, which is not saved. */
            *counter += 100;
            table[(PAGES - 1) * page] = 1;
            do
                OK(pagetrail_checkpointer_wait(kept, 50, &number));
            while (number == 0);
            CHECK(number == 2 * life + 2);
            OK(pagetrail_checkpointer_wait(kept, 0, &number));
            CHECK(number == 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

static void what_is_wrong_is_refused(size_t page)
{
    pagetrail_region region = {"table", page}, twice[] = {{"a", page}, {"a", page}};
    pagetrail_checkpointer_options options = {0};
    pagetrail_checkpointer *kept = (pagetrail_checkpointer *)&region;
    REFUSED(NULL_POINTER, pagetrail_checkpointer_start(&options, sizeof options, NULL));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_start(NULL, sizeof options, &kept));
    CHECK(kept == NULL);
    REFUSED(NULL_POINTER, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.store = "";
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.store = store;
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.region_count = 1;
    REFUSED(NULL_POINTER, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.regions = &region;
    /* It has become smaller than the store has it. */
    REFUSED(REFUSED, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    region.name = "\xff";
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    region.name = NULL;
    REFUSED(NULL_POINTER, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    region.name = "table";
    region.bytes = 0;
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    region.bytes = PAGES * page;
    options.technique = 4711;
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.technique = PAGETRAIL_TECHNIQUE_AUTO;
    options.flags = 1;
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.flags = 0;
    options.store = "/dev/null/store";
    REFUSED(STORE, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    options.store = store;
    options.regions = twice;
    options.region_count = 2;
    REFUSED(REFUSED, pagetrail_checkpointer_start(&options, sizeof options, &kept));
    CHECK(kept == NULL);
    options.regions = &region;
    options.region_count = 1;
    OK(pagetrail_checkpointer_start(&options, sizeof options, &kept));
    /* Another writer has to wait. */
    pagetrail_checkpointer *second;
    REFUSED(STORE, pagetrail_checkpointer_start(&options, sizeof options, &second));
    void *memory;
    size_t bytes;
    uint64_t number;
    REFUSED(INVALID_ARGUMENT, pagetrail_checkpointer_region(kept, "none", &memory, &bytes));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_region(kept, NULL, &memory, &bytes));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_region(kept, "table", NULL, &bytes));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_region(kept, "table", &memory, NULL));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_region(NULL, "table", &memory, &bytes));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_restored(kept, NULL));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_wait(kept, 0, NULL));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_save(NULL, &number));
    REFUSED(NULL_POINTER, pagetrail_checkpointer_begin(NULL));
    OK(pagetrail_checkpointer_wait(kept, 0, &number));
    CHECK(number == 0);
    /* That which was not described is there as well. */
    OK(pagetrail_checkpointer_region(kept, "counter", &memory, &bytes));
    CHECK(*(uint64_t *)memory == 2 * ROUNDS && bytes == page);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        REFUSED(FORKED, pagetrail_checkpointer_save(kept, &number));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(pagetrail_checkpointer_save(kept, NULL));
    OK(pagetrail_checkpointer_free(kept));
    OK(pagetrail_checkpointer_free(NULL));
}

struct writer {
    volatile unsigned char *memory;
    size_t page;
    volatile int stop;
};

static void *writes(void *argument)
{
    struct writer *writer = argument;
    while (!writer->stop)
        for (size_t at = 0; at < PAGES; at++)
            writer->memory[at * writer->page] = 2;
    return NULL;
}

/* What was there is read, and saved, while a thread writes something else. */
static void snapshots_are_of_one_instant(size_t page)
{
    unsigned char *memory =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    pagetrail_range range = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + PAGES * page};
    pagetrail_range part;
    const void *contents;
    pagetrail_snapshot *snapshot;
    REFUSED(NULL_POINTER, pagetrail_snapshot_take(&range, 1, NULL));
    REFUSED(INVALID_ARGUMENT, pagetrail_snapshot_take(&range, 0, &snapshot));
    REFUSED(NULL_POINTER, pagetrail_snapshot_take(NULL, 1, &snapshot));
    REFUSED(NULL_POINTER, pagetrail_snapshot_read(NULL, &part, &contents));
    OK(pagetrail_snapshot_free(NULL));
    for (int saves = 0; saves < 2; saves++) {
        for (size_t at = 0; at < PAGES; at++)
            memset(memory + at * page, 1, page);
        pagetrail_status status = pagetrail_snapshot_take(&range, 1, &snapshot);
        if (status == PAGETRAIL_STATUS_REFUSED || status == PAGETRAIL_STATUS_STORE) {
            /* An older kernel, no right to it, or valgrind. */
            printf("  snapshots: not here: %s\n", pagetrail_last_error());
            return;
        }
        CHECK(status == PAGETRAIL_STATUS_OK);
        struct writer writer = {memory, page, 0};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, writes, &writer) == 0);
        while (*(volatile unsigned char *)memory != 2)
            usleep(100);
        if (saves) {
            uint64_t number = 0;
            REFUSED(NULL_POINTER, pagetrail_snapshot_save(snapshot, NULL, "data", &number));
            REFUSED(NULL_POINTER, pagetrail_snapshot_save(snapshot, other, NULL, &number));
            OK(pagetrail_snapshot_save(snapshot, other, "data", &number));
            CHECK(number == 1);
            REFUSED(REFUSED, pagetrail_snapshot_save(snapshot, other, "data", &number));
            REFUSED(REFUSED, pagetrail_snapshot_read(snapshot, &part, &contents));
        } else {
            uint64_t next = range.start;
            for (;;) {
                OK(pagetrail_snapshot_read(snapshot, &part, &contents));
                if (part.start == part.end)
                    break;
                CHECK(part.start == next);
                for (uint64_t at = part.start; at < part.end; at++)
                    CHECK(((const unsigned char *)contents)[at - part.start] == 1);
                next = part.end;
            }
            CHECK(next == range.end);
        }
        OK(pagetrail_snapshot_free(snapshot));
        writer.stop = 1;
        CHECK(pthread_join(thread, NULL) == 0);
    }
    /* A store of something else keeps no regions. */
    pagetrail_restored restored;
    REFUSED(REFUSED, pagetrail_restore(other, 0, 0, &restored, sizeof restored));
    REFUSED(STORE, pagetrail_restore(other, 9, 0, &restored, sizeof restored));
    munmap(memory, PAGES * page);
}

static void restores_are_refused(void)
{
    pagetrail_restored restored;
    pagetrail_pager *pager;
    REFUSED(NULL_POINTER, pagetrail_restore_lazily(store, 0, 0, &restored, sizeof restored, NULL));
    REFUSED(NULL_POINTER, pagetrail_restore_lazily(store, 0, 0, NULL, sizeof restored, &pager));
    REFUSED(STORE, pagetrail_restore_lazily("/nowhere", 0, 0, &restored, sizeof restored, &pager));
    CHECK(pager == NULL);
    REFUSED(NULL_POINTER, pagetrail_pager_finish(NULL, NULL, 0));
    OK(pagetrail_pager_free(NULL));
    REFUSED(INVALID_ARGUMENT, pagetrail_restore_copies(store, 0, 0, 0, &restored, sizeof restored));
    REFUSED(NULL_POINTER, pagetrail_restore_copies(store, 0, 0, 2, NULL, sizeof restored));
    REFUSED(STORE, pagetrail_restore_copies("/nowhere", 0, 0, 1, &restored, sizeof restored));
    REFUSED(NULL_POINTER, pagetrail_restore(NULL, 0, 0, &restored, sizeof restored));
    REFUSED(NULL_POINTER, pagetrail_restore(store, 0, 0, NULL, sizeof restored));
    REFUSED(INVALID_ARGUMENT, pagetrail_restore(store, 0, 1u << 31, &restored, sizeof restored));
    REFUSED(STORE, pagetrail_restore("/nowhere", 0, 0, &restored, sizeof restored));
    REFUSED(REFUSED, pagetrail_restore(store, 0, PAGETRAIL_RESTORE_ANY_PID, &restored, sizeof restored));
}

static void memory_goes_back(size_t page)
{
    pagetrail_arena *arena;
    pagetrail_reset reset;
    void *address;
    size_t bytes;
    REFUSED(NULL_POINTER, pagetrail_arena_new(1, NULL));
    REFUSED(INVALID_ARGUMENT, pagetrail_arena_new(0, &arena));
    CHECK(arena == NULL);
    OK(pagetrail_arena_free(NULL));
    OK(pagetrail_arena_new(PAGES * page - 1, &arena));
    OK(pagetrail_arena_memory(arena, &address, &bytes));
    CHECK(bytes == PAGES * page && (uintptr_t)address % page == 0);
    unsigned char *memory = address;
    memset(memory, 5, bytes);
    REFUSED(REFUSED, pagetrail_arena_reset(arena, NULL, 0));
    REFUSED(INVALID_ARGUMENT, pagetrail_arena_keep(arena, 12345));
    pagetrail_status status = pagetrail_arena_keep(arena, PAGETRAIL_TECHNIQUE_AUTO);
    if (status == PAGETRAIL_STATUS_UNAVAILABLE) {
        printf("  resets: not here: %s\n", pagetrail_last_error());
        OK(pagetrail_arena_free(arena));
        return;
    }
    CHECK(status == PAGETRAIL_STATUS_OK);
    for (unsigned char round = 6; round < 9; round++) {
        memory[3] = memory[7 * page + 1] = round;
        OK(pagetrail_arena_reset(arena, &reset, sizeof reset));
        CHECK(reset.whole || reset.pages == 2);
        for (size_t at = 0; at < bytes; at++)
            CHECK(memory[at] == 5);
    }
    memory[page] = 4;
    OK(pagetrail_arena_keep(arena, PAGETRAIL_TECHNIQUE_AUTO));
    OK(pagetrail_arena_memory(arena, &address, &bytes));
    CHECK(address == memory);
    memory[page] = 1;
    OK(pagetrail_arena_reset(arena, NULL, 0));
    CHECK(memory[page] == 4 && memory[0] == 5);
    OK(pagetrail_arena_free(arena));
}

int main(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char directory[] = "/var/tmp/pagetrail-capi-XXXXXX", command[4200];
    CHECK(mkdtemp(directory) != NULL);
    snprintf(store, sizeof store, "%s/store", directory);
    snprintf(other, sizeof other, "%s/other", directory);
    regions_survive(page);
    what_is_wrong_is_refused(page);
    snapshots_are_of_one_instant(page);
    restores_are_refused();
    memory_goes_back(page);
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK(system(command) == 0);
    puts("regions survive, snapshots are of one instant");
    return 0;
}
