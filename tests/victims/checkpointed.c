/* Is checkpointed and restored, and knows what its memory must hold.
 *
 * Usage: checkpointed FILE MEBIBYTES. On SIGUSR1 it writes one page of a hundred, and a mapping that it makes anew; on
 * SIGUSR2 it checks every byte that it ever wrote. After each it says in FILE, by a number that only grows, that it is
 * through: "N done" or "N broken". */
#include "victim.h"
#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define SIDE_PAGES 64

static const char *report_to;
static uint64_t count_pages, *memory, *shared, *side;
/* When each page was written last, in memory that is checkpointed as well. */
static uint32_t *versions, shared_versions[SIDE_PAGES], side_version, steps;

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t sum = (a + 0x9e3779b97f4a7c15ull) * (b * 2 + 1);
    return (sum ^ sum >> 31) * 0xbf58476d1ce4e5b9ull;
}

static void fill(uint64_t *page, uint64_t which, uint32_t version) {
    for (size_t i = 0; i < WORDS; i += 16) page[i] = mix(which * WORDS + i, version);
}

static int is_right(const uint64_t *page, uint64_t which, uint32_t version) {
    for (size_t i = 0; i < WORDS; i += 16)
        if (page[i] != mix(which * WORDS + i, version)) return 0;
    return 1;
}

static void report(const char *verdict) {
    char text[64], fresh[4096];
    int length = snprintf(text, sizeof text, "%u %s\n", ++steps, verdict);
    snprintf(fresh, sizeof fresh, "%s.new", report_to);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, text, length) == length && close(fd) == 0);
    CHECK(rename(fresh, report_to) == 0);
}

static uint64_t *map(size_t pages, int flags, void *at) {
    void *mapped = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static void write_round(void) {
    uint32_t round = steps + 2;
    for (uint64_t page = 0; page < count_pages; page++)
        if (mix(page, round) % 100 == 0) fill(memory + page * WORDS, page, versions[page] = round);
    for (uint64_t page = 0; page < SIDE_PAGES; page += 3)
        fill(shared + page * WORDS, page, shared_versions[page] = round);
    /* Another mapping in the place of the old one. */
    map(SIDE_PAGES, MAP_PRIVATE | MAP_FIXED, side);
    side_version = round;
    for (uint64_t page = 0; page < SIDE_PAGES; page += 2) fill(side + page * WORDS, page, round);
}

static int all_right(void) {
    for (uint64_t page = 0; page < count_pages; page++)
        if (!is_right(memory + page * WORDS, page, versions[page])) return 0;
    for (uint64_t page = 0; page < SIDE_PAGES; page++) {
        if (!is_right(shared + page * WORDS, page, shared_versions[page])) return 0;
        if (page % 2 == 0 && !is_right(side + page * WORDS, page, side_version)) return 0;
        if (page % 2 == 1 && side[page * WORDS] != 0) return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage: checkpointed FILE MEBIBYTES");
    report_to = argv[1];
    count_pages = strtoul(argv[2], NULL, 10) << 8;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    sigaddset(&wanted, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &wanted, NULL) == 0);
    memory = map(count_pages, MAP_PRIVATE, NULL);
    madvise(memory, count_pages * PAGE, MADV_NOHUGEPAGE);
    versions = calloc(count_pages, sizeof *versions);
    shared = map(SIDE_PAGES, MAP_SHARED, NULL);
    side = map(SIDE_PAGES, MAP_PRIVATE, NULL);
    CHECK(versions);
    for (uint64_t page = 0; page < count_pages; page++) fill(memory + page * WORDS, page, versions[page] = 1);
    for (uint64_t page = 0; page < SIDE_PAGES; page++) fill(shared + page * WORDS, page, shared_versions[page] = 1);
    write_round();
    report("done");
    for (;;) {
        int signal;
        CHECK(sigwait(&wanted, &signal) == 0);
        if (signal == SIGUSR1) {
            write_round();
            report("done");
        } else {
            report(all_right() ? "done" : "broken");
        }
    }
}
