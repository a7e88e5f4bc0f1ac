/* Random mappings at the same few addresses, from a seed: what state is kept by address must not outlive. Anonymous
 * memory, parts of files (private, shared, and shared of a descriptor that may only read) replace each other in slots of
 * an arena, often so that /proc/PID/maps reads as before; they are moved over each other, unmapped, protected, discarded
 * and written. It checks nothing: its tracker keeps a copy and compares.
 *
 * What no tracker can know it leaves alone. A page of a shared file is only ever mapped at one place, and read-only
 * shared memory never becomes writable but by a mapping that takes its place.
 *
 * usage: tangle SECONDS SEED */
#include "victim.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGE 4096ul
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
enum { SLOTS = 24, SLOT = 8, BANKS = 3, PAGES = SLOTS * SLOT };

/* What is in a slot. */
enum kind { NOTHING, ANONYMOUS, PRIVATE, SHARED, READ_ONLY };

struct slot {
    enum kind kind;
    int rights, flags, file;
    off_t offset;
};

static struct slot slots[SLOTS];
static char *arena;
static int writable[2], readable[2], constant;
static uint64_t state;

static uint64_t below(uint64_t bound) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state * 2685821657736338717ull >> 11) % bound;
}

static char *at(size_t slot) { return arena + slot * SLOT * PAGE; }

static void store(size_t slot) {
    for (uint64_t left = 1 + below(3); left; left--)
        *(uint64_t *)(at(slot) + below(SLOT) * PAGE + 8 * below(512)) = below(1ull << 52) + 1;
}

static int again(int file, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, flags | O_CLOEXEC);
}

static int on_disk(void) {
    int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return file >= 0 ? file : memfd_create("tangle", MFD_CLOEXEC);
}

static void map(size_t first, size_t count, enum kind kind, int which) {
    /* The same page of a shared file belongs to the same address, so that there are no aliases. */
    off_t bank = (off_t)below(BANKS);
    off_t offset = (off_t)((bank * PAGES + first * SLOT) * PAGE);
    int file = -1, flags = MAP_FIXED, rights = PROT_READ | PROT_WRITE;
    switch (kind) {
    case ANONYMOUS: flags |= MAP_PRIVATE | MAP_ANONYMOUS, offset = 0; break;
    case PRIVATE: flags |= MAP_PRIVATE, file = constant, offset = (off_t)(below(BANKS * PAGES - PAGES) * PAGE); break;
    case SHARED: flags |= MAP_SHARED, file = writable[which]; break;
    default: flags |= MAP_SHARED, file = readable[which], rights = PROT_READ;
    }
    if (mmap(at(first), count * SLOT * PAGE, rights, flags, file, offset) == MAP_FAILED) kind = NOTHING;
    for (size_t i = 0; i < count; i++)
        slots[first + i] = (struct slot){kind, rights, flags, file, file < 0 ? 0 : offset + (off_t)(i * SLOT * PAGE)};
}

/* Maps what was there, perhaps with an empty time between: /proc/PID/maps may read as before. */
static void map_again(size_t at_slot) {
    struct slot slot = slots[at_slot];
    if (slot.kind == NOTHING || slot.kind == READ_ONLY) return;
    if (below(2)) {
        munmap(at(at_slot), SLOT * PAGE);
        usleep(below(3) * 1500);
    }
    void *start = mmap(at(at_slot), SLOT * PAGE, slot.rights, slot.flags, slot.file, slot.offset);
    CHECK(start == at(at_slot));
}

static void unmap(size_t first, size_t count) {
    munmap(at(first), count * SLOT * PAGE);
    for (size_t i = first; i < first + count; i++) slots[i].kind = NOTHING;
}

/* Moves private memory over what is there; with `keep`, empty memory stays where it was. */
static void move(size_t from, size_t to, int keep) {
    struct slot slot = slots[from];
    if (from == to || (slot.kind != ANONYMOUS && slot.kind != PRIVATE)) return;
    if (slot.kind != ANONYMOUS) keep = 0;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (keep ? MREMAP_DONTUNMAP : 0);
    if (mremap(at(from), SLOT * PAGE, SLOT * PAGE, flags, at(to)) == MAP_FAILED) {
        /* Where a tracker has split the mapping, a part of it may have been moved (Linux 6.17). */
        unmap(to, 1), map(from, 1, ANONYMOUS, 0);
        return;
    }
    slots[to] = slot;
    if (!keep) slots[from].kind = NOTHING;
}

static void protect(size_t slot, int rights) {
    if (mprotect(at(slot), SLOT * PAGE, rights) == 0) slots[slot].rights = rights;
}

static void copy_on_fork(void) {
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < SLOTS; i++)
            if (slots[i].kind == ANONYMOUS && slots[i].rights & PROT_WRITE) store(i);
        _exit(0);
    }
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].kind != NOTHING && slots[i].rights & PROT_WRITE && below(3) == 0) store(i);
    CHECK(child > 0 && waitpid(child, 0, 0) == child);
}

static void step(void) {
    static const int rights[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    size_t slot = below(SLOTS), count = 1 + below(2) * below(3);
    if (count > SLOTS - slot) count = SLOTS - slot;
    struct slot *here = &slots[slot];
    int changes = here->kind != NOTHING && here->kind != READ_ONLY;
    switch (below(24)) {
    case 0:
    case 1: map(slot, count, ANONYMOUS, 0); break;
    case 2:
    case 3: map(slot, count, PRIVATE, 0); break;
    case 4:
    case 5: map(slot, count, SHARED, (int)below(2)); break;
    case 6: map(slot, count, READ_ONLY, (int)below(2)); break;
    case 7: unmap(slot, count); break;
    case 8: map_again(slot); break;
    case 9: move(slot, below(SLOTS), 0); break;
    case 10: move(slot, below(SLOTS), 1); break;
    case 11: { /* Two change places. */
        size_t other = below(SLOTS), third = below(SLOTS);
        if (other == slot || third == slot || third == other) break;
        move(slot, third, 0), move(other, slot, 0), move(third, other, 0);
        break;
    }
    case 12:
    case 13:
        /* Not all techniques tell a protected one from one that is read-only. */
        if (changes) protect(slot, here->kind == SHARED ? rights[below(2) * 3] : rights[below(4)]);
        break;
    case 14:
    case 15: /* Writable for a moment only. */
        if (changes && !(here->rights & PROT_WRITE)) {
            int before = here->rights;
            protect(slot, rights[0]);
            store(slot);
            protect(slot, before);
        }
        break;
    case 16:
        if (here->kind == ANONYMOUS || here->kind == PRIVATE) madvise(at(slot), SLOT * PAGE, MADV_DONTNEED);
        break;
    case 17:
        for (size_t page = 0; here->kind != NOTHING && here->rights & PROT_READ && page < SLOT; page++)
            *(volatile char *)(at(slot) + page * PAGE);
        break;
    case 18:
        if (below(6) == 0) copy_on_fork();
        break;
    default:
        if (changes && here->rights & PROT_WRITE) store(slot);
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    state = (argc > 2 ? strtoull(argv[2], 0, 10) : 1) * 7919 + 88172645463325252ull;
    for (int i = 0; i < 2; i++) {
        writable[i] = i ? on_disk() : memfd_create("tangle", MFD_CLOEXEC);
        CHECK(writable[i] >= 0 && ftruncate(writable[i], BANKS * PAGES * PAGE) == 0);
        readable[i] = again(writable[i], O_RDONLY);
        CHECK(readable[i] >= 0);
    }
    constant = on_disk();
    char bytes[PAGE];
    for (int i = 0; i < BANKS * PAGES; i++) {
        memset(bytes, i % 255 + 1, PAGE);
        CHECK(pwrite(constant, bytes, PAGE, i * (off_t)PAGE) == (ssize_t)PAGE);
    }
    arena = mmap(0, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(arena != MAP_FAILED);
    for (size_t i = 0; i < SLOTS; i++) map(i, 1, ANONYMOUS, 0), store(i);
    victim_ready();
    for (uint64_t i = 0; !over(); i++) {
        step();
        if (i % 16 == 0) usleep(200);
    }
    return 0;
}
