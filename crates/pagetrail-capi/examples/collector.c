/*
 * collector.c: a generational mark-sweep garbage collector whose write barrier is pagetrail.
 *
 * Objects that survive a collection are old, and stay where they are: being old is being marked ("sticky mark bits").
 * A minor collection marks from the roots, and from the old objects on pages that were written since the collection
 * before: only those can have come to refer to a young one. Old objects on other pages are neither marked anew nor
 * looked at. Without a barrier each collection would have to look at all objects that live.
 *
 * The compiler emits nothing for it and the program calls nothing: a store into an object is a store. While it collects,
 * the collector calls no malloc, takes no lock, and writes to its own tables only, which are not watched.
 *
 * The program that uses it here keeps a tree of old objects, replaces some of its leaves in each round, and makes garbage
 * meanwhile. It checks the collector twice: after each minor collection everything is marked anew, and what that reaches
 * must be allocated; and each leaf must hold what a plain array says.
 *
 *     cc collector.c $(pkg-config --cflags --libs pagetrail)
 *     ./a.out [--technique NAME] [--depth N] [--rounds N] [--writes N] [--seed N]
 */
#include <pagetrail.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* --- the heap: pages of cells of one size; all that is known of a cell lies in tables beside it --- */

#define PAGE 4096u
#define GRAIN 32u                    /* the smallest cell, and the unit of the tables */
#define GRAINS_PER_PAGE (PAGE / GRAIN)
#define HEAP_PAGES ((size_t)1 << 15) /* 128 MiB of addresses */

struct object {
    uint32_t slots;
    uint32_t unused;
    uint64_t value;
    struct object *slot[];
};

static unsigned char *heap;
static uint32_t cell_bytes[HEAP_PAGES];     /* 0: the page is free */
static uint16_t cells_used[HEAP_PAGES];
static uint8_t allocated[HEAP_PAGES * GRAINS_PER_PAGE / 8];
static uint8_t old[HEAP_PAGES * GRAINS_PER_PAGE / 8]; /* marked, and so old once the collection is over */
static uint8_t reached[HEAP_PAGES * GRAINS_PER_PAGE / 8];
static uint8_t has_young[HEAP_PAGES];       /* something was allocated there since the last collection */
static size_t pages_touched;                /* pages after these were never used */
static struct object **mark_stack;          /* room for every cell: marking never runs out of it */
static size_t mark_depth;

static struct object **roots[16];
static size_t root_count;

static void fail(const char *what)
{
    fprintf(stderr, "collector: %s\n", what);
    exit(1);
}

static size_t grain_of(const struct object *object)
{
    return (size_t)((const unsigned char *)object - heap) / GRAIN;
}

static int is_set(const uint8_t *bits, size_t at) { return bits[at / 8] >> at % 8 & 1; }
static void set(uint8_t *bits, size_t at) { bits[at / 8] |= (uint8_t)(1u << at % 8); }
static void clear(uint8_t *bits, size_t at) { bits[at / 8] &= (uint8_t) ~(1u << at % 8); }

/* Cells of 32, 64, .. 512 bytes; where the next one of each size is looked for. */
enum { CLASSES = 5 };
static struct {
    size_t page;
    uint32_t cell;
} cursor[CLASSES];
static size_t free_page_cursor;

static size_t free_page(void)
{
    for (; free_page_cursor < HEAP_PAGES; free_page_cursor++)
        if (cell_bytes[free_page_cursor] == 0)
            return free_page_cursor;
    return HEAP_PAGES;
}

/* NULL: the heap is full. A collection moves the cursors back to where there is room again. */
static struct object *allocate(uint32_t slots)
{
    size_t bytes = sizeof(struct object) + slots * sizeof(struct object *);
    unsigned class = 0;
    while (((size_t)GRAIN << class) < bytes)
        class++;
    uint32_t size = GRAIN << class;
    for (;;) {
        size_t page = cursor[class].page;
        /* Pages that are full for the better part are left alone: young objects there would only be in the way of the
           old ones, which are looked at when their page is written. */
        while (page < pages_touched
               && (cell_bytes[page] != size || (cursor[class].cell == 0 && cells_used[page] > PAGE / size / 2))) {
            page++;
            cursor[class].cell = 0;
        }
        if (page >= pages_touched) {
            page = free_page();
            if (page == HEAP_PAGES)
                return NULL;
            cell_bytes[page] = size;
            cursor[class].cell = 0;
            if (page >= pages_touched)
                pages_touched = page + 1;
        }
        cursor[class].page = page;
        for (uint32_t cell = cursor[class].cell; cell < PAGE / size; cell++) {
            size_t grain = page * GRAINS_PER_PAGE + cell * (size / GRAIN);
            if (!is_set(allocated, grain)) {
                set(allocated, grain);
                cells_used[page]++;
                has_young[page] = 1;
                cursor[class].cell = cell + 1;
                struct object *object = (struct object *)(void *)(heap + grain * GRAIN);
                memset(object, 0, bytes);
                object->slots = slots;
                return object;
            }
        }
        cursor[class].page = page + 1;
        cursor[class].cell = 0;
    }
}

/* --- marking and sweeping --- */

struct work {
    uint64_t objects; /* whose slots were looked at */
    uint64_t ns;
};

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void mark_one(uint8_t *marks, struct object *object)
{
    if (object != NULL && !is_set(marks, grain_of(object))) {
        set(marks, grain_of(object));
        mark_stack[mark_depth++] = object;
    }
}

static void look_at(uint8_t *marks, struct object *object, struct work *work)
{
    work->objects++;
    for (uint32_t i = 0; i < object->slots; i++)
        mark_one(marks, object->slot[i]);
}

static void mark_from_roots(uint8_t *marks, struct work *work)
{
    for (size_t i = 0; i < root_count; i++)
        mark_one(marks, *roots[i]);
    while (mark_depth > 0)
        look_at(marks, mark_stack[--mark_depth], work);
}

/* Calls `visit` for each allocated cell of a page. */
static void each_cell(size_t page, void (*visit)(size_t grain, void *), void *context)
{
    uint32_t grains = cell_bytes[page] / GRAIN;
    for (uint32_t i = 0; grains != 0 && i < GRAINS_PER_PAGE; i += grains)
        if (is_set(allocated, page * GRAINS_PER_PAGE + i))
            visit(page * GRAINS_PER_PAGE + i, context);
}

static void look_if_old(size_t grain, void *work)
{
    if (is_set(old, grain))
        look_at(old, (struct object *)(void *)(heap + grain * GRAIN), work);
}

static void free_unless_marked(size_t grain, void *page)
{
    if (!is_set(old, grain)) {
        clear(allocated, grain);
        cells_used[*(size_t *)page]--;
    }
}

/* Writes to the tables only: a list of free cells in the cells would make every page a written one. Where nothing is
   young a minor collection leaves nothing unmarked. */
static void sweep(int everything)
{
    for (size_t page = 0; page < pages_touched; page++) {
        if (!everything && !has_young[page])
            continue;
        has_young[page] = 0;
        each_cell(page, free_unless_marked, &page);
        if (cells_used[page] == 0)
            cell_bytes[page] = 0;
    }
    memset(cursor, 0, sizeof cursor);
    free_page_cursor = 0;
}

/* --- collections --- */

static pagetrail_watch *watch;
static struct work minor, full_instead;
static uint64_t pages_written, collect_ns, collections, full_collections;

static pagetrail_round *written_pages(const pagetrail_range **ranges, size_t *count)
{
    pagetrail_round *round;
    pagetrail_round_info info;
    if (pagetrail_watch_collect(watch, &round) != PAGETRAIL_STATUS_OK
        || pagetrail_round_written(round, ranges, count) != PAGETRAIL_STATUS_OK
        || pagetrail_round_get_info(round, &info, sizeof info) != PAGETRAIL_STATUS_OK)
        fail(pagetrail_last_error());
    collect_ns += info.collect_ns;
    return round;
}

static void collect_young(void)
{
    uint64_t start = now_ns();
    const pagetrail_range *ranges;
    size_t count;
    pagetrail_round *round = written_pages(&ranges, &count);
    for (size_t i = 0; i < count; i++) {
        size_t page = (size_t)(ranges[i].start - (uintptr_t)heap) / PAGE;
        size_t after = (size_t)(ranges[i].end - (uintptr_t)heap) / PAGE;
        for (; page < after && page < pages_touched; page++) {
            pages_written++;
            each_cell(page, look_if_old, &minor);
        }
    }
    mark_from_roots(old, &minor);
    sweep(0);
    /* All that survived is old now, so nothing that was written matters any more. */
    if (pagetrail_round_commit(round) != PAGETRAIL_STATUS_OK)
        fail(pagetrail_last_error());
    minor.ns += now_ns() - start;
    collections++;
}

static void collect_all(void)
{
    const pagetrail_range *ranges;
    size_t count;
    struct work work = {0, 0};
    pagetrail_round *round = written_pages(&ranges, &count);
    memset(old, 0, sizeof old);
    mark_from_roots(old, &work);
    sweep(1);
    if (pagetrail_round_commit(round) != PAGETRAIL_STATUS_OK)
        fail(pagetrail_last_error());
    full_collections++;
}

/* Marks everything anew, as a collector without a barrier must, and compares. */
static void check_collection(void)
{
    uint64_t start = now_ns();
    memset(reached, 0, sizeof reached);
    mark_from_roots(reached, &full_instead);
    full_instead.ns += now_ns() - start;
    for (size_t i = 0; i < sizeof reached; i++)
        if (reached[i] & ~allocated[i])
            fail("WRONG: an object that is in use was freed");
}

/* --- the program --- */

static uint64_t state;

static uint64_t random_below(uint64_t bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
}

enum { FAN = 16 };

static struct object *new_object(uint32_t slots)
{
    struct object *object = allocate(slots);
    if (object == NULL) {
        collect_all();
        object = allocate(slots);
    }
    if (object == NULL)
        fail("the heap is full");
    return object;
}

static struct object *tree;

/* The node above a leaf, and which of its slots has it. */
static struct object *above(size_t leaf, unsigned depth, size_t *slot)
{
    struct object *node = tree;
    for (unsigned level = depth - 1; level > 0; level--)
        node = node->slot[leaf >> 4 * level & (FAN - 1)];
    *slot = leaf & (FAN - 1);
    return node;
}

static void grow(struct object *node, unsigned depth, uint64_t *model, size_t first)
{
    for (size_t i = 0; i < FAN; i++) {
        size_t leaf = first + (i << 4 * (depth - 1));
        node->slot[i] = new_object(depth == 1 ? 0 : FAN);
        if (depth > 1)
            grow(node->slot[i], depth - 1, model, leaf);
        else
            node->slot[i]->value = model[leaf] = random_below(UINT64_MAX);
    }
}

static void mutate(unsigned depth, size_t leaves, unsigned writes, uint64_t *model)
{
    struct object *garbage = NULL;
    roots[root_count++] = &garbage;
    for (unsigned i = 0; i < writes; i++) {
        size_t leaf = random_below(leaves), slot;
        struct object *young = new_object(0);
        above(leaf, depth, &slot)->slot[slot] = young;
        young->value = model[leaf] = random_below(UINT64_MAX);
        for (unsigned j = 0; j < 50; j++) {
            struct object *link = new_object(2);
            link->slot[0] = j % 10 == 0 ? NULL : garbage;
            garbage = link;
        }
    }
    root_count--;
}

static void check_values(unsigned depth, size_t leaves, const uint64_t *model)
{
    for (size_t leaf = 0; leaf < leaves; leaf++) {
        size_t slot;
        struct object *node = above(leaf, depth, &slot);
        if (node->slot[slot]->value != model[leaf])
            fail("WRONG: a leaf has lost its value");
    }
}

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory");
    return memory;
}

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 0);
    if (*text == '\0' || *end != '\0')
        fail("not a number");
    return value;
}

int main(int count, char **arguments)
{
    pagetrail_options options = {0};
    uint64_t depth = 4, rounds = 100, writes = 200, seed = 1;
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *value = i + 1 < count ? arguments[i + 1] : "";
        if (strcmp(name, "--technique") == 0) {
            if (pagetrail_technique_by_name(value, &options.technique) != PAGETRAIL_STATUS_OK)
                fail(pagetrail_last_error());
        } else if (strcmp(name, "--depth") == 0)
            depth = number(value);
        else if (strcmp(name, "--rounds") == 0)
            rounds = number(value);
        else if (strcmp(name, "--writes") == 0)
            writes = number(value);
        else if (strcmp(name, "--seed") == 0)
            seed = number(value);
        else
            fail("usage: collector [--technique NAME] [--depth N] [--rounds N] [--writes N] [--seed N]");
    }
    if (depth < 1 || depth > 5 || seed == 0 || writes > 100000)
        fail("depth is 1 to 5, seed not 0, writes at most 100000");
    if (pagetrail_page_size() != PAGE)
        fail("written for pages of 4 KiB");
    state = seed;
    size_t leaves = (size_t)1 << 4 * depth;
    heap = map(HEAP_PAGES * PAGE);
    mark_stack = map(HEAP_PAGES * GRAINS_PER_PAGE * sizeof *mark_stack);
    uint64_t *model = map(leaves * sizeof *model);

    pagetrail_range range = {(uintptr_t)heap, (uintptr_t)heap + HEAP_PAGES * PAGE};
    pagetrail_watch_info info;
    options.target = PAGETRAIL_TARGET_RANGES;
    options.ranges = &range;
    options.range_count = 1;
    options.flags = PAGETRAIL_OPTION_AT_SAFEPOINT;
    if (pagetrail_watch_start(&options, sizeof options, &watch) != PAGETRAIL_STATUS_OK
        || pagetrail_watch_reserve(watch, HEAP_PAGES / 2) != PAGETRAIL_STATUS_OK
        || pagetrail_watch_get_info(watch, &info, sizeof info) != PAGETRAIL_STATUS_OK)
        fail(pagetrail_last_error());

    roots[root_count++] = &tree;
    tree = new_object(FAN);
    grow(tree, (unsigned)depth, model, 0);
    collect_all();

    for (uint64_t i = 0; i < rounds; i++) {
        mutate((unsigned)depth, leaves, (unsigned)writes, model);
        collect_young();
        check_collection();
        check_values((unsigned)depth, leaves, model);
    }

    printf("technique %s, seed %" PRIu64 ", %zu leaves: %" PRIu64 " minor and %" PRIu64 " full collections, all right\n",
           pagetrail_technique_name(info.technique), seed, leaves, collections, full_collections);
    printf("a minor collection        objects looked at        time\n");
    printf("  with the barrier     %20" PRIu64 " %8.3f ms  (%" PRIu64 " pages written; asking for them %.3f ms)\n",
           minor.objects / collections, (double)minor.ns / (double)collections / 1e6, pages_written / collections,
           (double)collect_ns / (double)(collections + full_collections) / 1e6);
    printf("  without, marking all %20" PRIu64 " %8.3f ms  (before any sweep)\n", full_instead.objects / collections,
           (double)full_instead.ns / (double)collections / 1e6);
    if (pagetrail_watch_free(watch) != PAGETRAIL_STATUS_OK)
        fail(pagetrail_last_error());
    return 0;
}
