/* In a guest: a program whose hot pages move by an order, and which knows what all its memory holds:
 * tier_guest small|huge MIB PORT AGENT. PORT is a serial port, by which it is given orders, one byte each:
 *
 *   0, 1, 2  the hot set is this one from now on
 *   a        all memory is hot from now on
 *   i        no page is touched until the next order
 *   c        all memory is checked: "fine PASSES", or "wrong" and what, after which it ends with 1
 *   r        as c, then the program ends with 3
 *   k        the process AGENT is killed
 *
 * Each order is answered by a line. At the start stand lines "memory PAGE FRAME COUNT": COUNT pages of its memory, from its page PAGE on,
 * are in guest-physical pages from FRAME on; and "ready". Of small pages, every fourth of the first third is in hot set 0, of the second
 * third in hot set 1, and so on; of huge ones, the second eighth of memory is hot set 0, the third hot set 1, and so on. In each pass the
 * first word of each page of the hot set is read, which must be the number of passes of its set, and written; every other page has a
 * stamp, which is read where all memory is hot. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGES = 512, STEP = 4, PART = 8, SETS = 3, ALL = SETS };

static int huge, port;
static long pages;
static uint8_t *memory;
static uint32_t passes[SETS];

static uint32_t *word(long page) {
    return (uint32_t *)(memory + page * PAGE);
}

/* Which hot set a page is of, or -1: each has an eighth of all pages, or of huge pages. */
static int set_of(long page) {
    if (!huge) {
        long part = page / (pages / SETS);
        return page % STEP == 0 && part < SETS ? (int)part : -1;
    }
    long each = pages / HUGE_PAGES / PART, number = page / HUGE_PAGES;
    /* Not at the beginning of memory. */
    return number < each || number >= (SETS + 1) * each ? -1 : (int)(number / each) - 1;
}

static uint32_t stamp(long page) {
    return (uint32_t)page * 2654435761u ^ 0x5a5a5a5a;
}

static void say(const char *line) {
    if (write(port, line, strlen(line)) < 0) exit(2);
}

static void wrong(long page) {
    char line[100];
    snprintf(line, sizeof line, "wrong: page %ld of set %d has %x\n", page, set_of(page), *word(page));
    say(line);
    tcdrain(port);
    exit(1);
}

static void check(void) {
    for (long page = 0; page < pages; page++) {
        int set = set_of(page);
        uint32_t last = *(uint32_t *)(memory + page * PAGE + PAGE - 4);
        if (*word(page) != (set < 0 ? stamp(page) : passes[set]) || last != stamp(page)) wrong(page);
    }
    char line[100];
    snprintf(line, sizeof line, "fine %u\n", passes[0] + passes[1] + passes[2]);
    say(line);
}

static void pass(int set) {
    for (long page = 0; page < pages; page++) {
        int own = set_of(page);
        if (set != ALL && own != set) continue;
        volatile uint32_t *at = word(page);
        if (*at != (own < 0 ? stamp(page) : passes[own])) wrong(page);
        if (own >= 0) *at = passes[own] + 1;
    }
    for (int own = 0; own < SETS; own++)
        if (set == ALL || own == set) passes[own]++;
}

static int say_where(void) {
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    uint64_t first = 0;
    long from = 0;
    for (long page = 0; page <= pages; page++) {
        uint64_t entry = 0;
        off_t at = (off_t)(((uintptr_t)memory / PAGE + (uintptr_t)page) * sizeof entry);
        if (page < pages && pread(pagemap, &entry, sizeof entry, at) != sizeof entry) return 1;
        uint64_t frame = entry & ((1ull << 55) - 1);
        if (page < pages && frame == 0) return 1;
        if (page > from && frame == first + (uint64_t)(page - from)) continue;
        char line[100];
        snprintf(line, sizeof line, "memory %ld %llu %ld\n", from, (unsigned long long)first, page - from);
        if (page > from) say(line);
        from = page, first = frame;
    }
    return close(pagemap);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    pid_t agent = argc > 4 ? atoi(argv[4]) : 0;
    huge = !strcmp(argv[1], "huge");
    size_t bytes = strtoul(argv[2], 0, 10) << 20, edge = (size_t)HUGE_PAGES * PAGE;
    pages = (long)(bytes / PAGE);
    port = open(argv[3], O_RDWR | O_NOCTTY);
    struct termios raw;
    if (port < 0 || tcgetattr(port, &raw)) return 2;
    cfmakeraw(&raw);
    tcsetattr(port, TCSANOW, &raw);
    uint8_t *all = mmap(NULL, bytes + edge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return 2;
    memory = (uint8_t *)(((uintptr_t)all + edge - 1) / edge * edge);
    if (madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE)) return 2;
    for (long page = 0; page < pages; page++) {
        *word(page) = set_of(page) < 0 ? stamp(page) : 0;
        *(uint32_t *)(memory + page * PAGE + PAGE - 4) = stamp(page);
    }
    /* Frames stay as they are said. */
    if (mlock(memory, bytes) || say_where()) return 2;
    say("ready\n");
    int set = 0;
    for (;;) {
        struct pollfd orders = {.fd = port, .events = POLLIN};
        char order = 0;
        if (poll(&orders, 1, set < 0 ? -1 : 2) > 0 && read(port, &order, 1) != 1) return 2;
        if (order == 'i') {
            set = -1;
            say("idle\n");
        } else if (order == 'a') {
            set = ALL;
            say("all hot\n");
        } else if (order >= '0' && order < '0' + SETS) {
            char line[] = "hot 0\n";
            set = order - '0';
            line[4] = order;
            say(line);
        } else if (order == 'c' || order == 'r') {
            check();
            if (order == 'r') {
                tcdrain(port);
                return 3;
            }
        } else if (order == 'k') {
            say(agent > 0 && !kill(agent, SIGKILL) ? "killed\n" : "no agent\n");
        } else if (set >= 0)
            pass(set);
    }
}
