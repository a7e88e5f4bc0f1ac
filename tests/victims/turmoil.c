/* Random calls on memory, from a seed: mappings of every kind come, change and go; they are written by stores and by the
 * kernel, protected and unprotected, given back, punched and cut, and copied on fork. It checks nothing: its tracker
 * keeps a copy and compares.
 *
 * What no tracker can know it leaves alone. Nobody else writes to its shared memory; what is removed from shared memory
 * is not read before it is written; system calls write to a file only while nothing is stored to its mapping.
 *
 * With argv[3] it has no userfaultfd of its own.
 *
 * usage: turmoil SECONDS SEED [plain] */
#include "victim.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define RIGHTS (PROT_READ | PROT_WRITE)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
/* GONE: a userfaultfd that was closed. */
enum { MOST = 48, FEW = 12, SEALED = 16, GONE = -2 };

struct region {
    char *start;
    size_t pages;
    int shared, anonymous, file, unwritable;
    /* Its file is one on a disk, and is mapped here alone. */
    int on_disk;
    /* As many pages of the mapping lie past the end of the file. */
    size_t beyond;
    /* It is registered with a userfaultfd of this program's own, or was. */
    int uffd;
};

static struct region regions[MOST];
static int count, random_file, data_file, own_memory, own_process, sockets[2];
static char *sealed;
static int is_plain;
static uint64_t state;

static uint64_t below(uint64_t bound) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state * 2685821657736338717ull >> 11) % bound;
}

static void add(void *start, size_t pages, int shared, int anonymous, int file) {
    if (start == MAP_FAILED || count == MOST) {
        if (start != MAP_FAILED) munmap(start, pages * PAGE);
        if (file >= 0) close(file);
        return;
    }
    regions[count++] = (struct region){start, pages, shared, anonymous, file, 0, 0, 0, -1};
}

static void drop(struct region *region) {
    munmap(region->start, (region->pages + region->beyond) * PAGE);
    if (region->file >= 0) close(region->file);
    if (region->uffd >= 0) close(region->uffd);
    *region = regions[--count];
}

static int on_disk(size_t pages) {
    int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) file = memfd_create("turmoil", MFD_CLOEXEC);
    char bytes[PAGE];
    int first = (int)below(250);
    for (size_t i = 0; i < pages; i++) {
        memset(bytes, first + (int)i, PAGE);
        CHECK(pwrite(file, bytes, PAGE, i * PAGE) == (ssize_t)PAGE);
    }
    return file;
}

/* Shared memory in huge pages. */
static void make_huge_file(void) {
    size_t pages = 1024;
    int file = memfd_create("turmoil", MFD_CLOEXEC);
    CHECK(ftruncate(file, pages * PAGE) == 0);
    char *start = mmap(0, pages * PAGE, RIGHTS, MAP_SHARED, file, 0);
    if (start != MAP_FAILED) {
        madvise(start, pages * PAGE, MADV_HUGEPAGE);
        for (size_t page = 0; page < pages; page++) start[page * PAGE + below(PAGE)] = (char)below(256);
        madvise(start, pages * PAGE, MADV_COLLAPSE);
    }
    add(start, pages, 1, 0, file);
}

static void make(void) {
    size_t pages = 1 + below(below(6) ? 48 : 700), len = pages * PAGE;
    int file;
    switch (below(10)) {
    case 0:
    case 1: add(mmap(0, len, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), pages, 0, 1, -1); break;
    case 2: add(mmap(0, len, RIGHTS, MAP_SHARED | MAP_ANONYMOUS, -1, 0), pages, 1, 0, -1); break;
    case 3:
    case 4:
        file = memfd_create("turmoil", MFD_CLOEXEC);
        CHECK(ftruncate(file, len) == 0);
        add(mmap(0, len, RIGHTS, MAP_SHARED, file, 0), pages, 1, 0, file);
        break;
    case 5:
    case 6:
    case 7:
        pages = pages % 48 + 1;
        file = on_disk(pages);
        /* Mapped privately, the file stays as it is. */
        int shared = below(2);
        size_t beyond = shared && below(2) ? 1 + below(8) : 0;
        char *mapped = mmap(0, (pages + beyond) * PAGE, RIGHTS, shared ? MAP_SHARED : MAP_PRIVATE, file, 0);
        int before = count;
        add(mapped, pages, shared, 0, file);
        if (count > before) regions[before].on_disk = 1, regions[before].beyond = beyond;
        else if (mapped != MAP_FAILED) munmap(mapped, (pages + beyond) * PAGE);
        break;
    case 8: make_huge_file(); break;
    default:
        pages = 1024;
        char *start = mmap(0, pages * PAGE, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start != MAP_FAILED) madvise(start, pages * PAGE, MADV_HUGEPAGE);
        add(start, pages, 0, 1, -1);
    }
}

static void store(char *at, size_t len) {
    for (int i = 0; i < 24; i++) *(uint64_t *)(at + below(len / PAGE) * PAGE + 8 * below(512)) = below(1ull << 52);
}

static int deep(int depth) {
    volatile char frame[3000];
    frame[0] = frame[2999] = (char)below(256);
    return depth ? deep(depth - 1) + frame[0] : frame[2999];
}

static volatile uint64_t stored[512 * 64];

static void *storing(void *unused) {
    (void)unused;
    for (uint64_t i = 1; !over(); i = i * 6364136223846793005ull + 1442695040888963407ull) {
        stored[i >> 49] = i;
        if (i >> 60 == 0) usleep(300);
    }
    return 0;
}

static void receive(char *at, size_t len) {
    char bytes[3 * PAGE];
    memset(bytes, (int)below(256), sizeof bytes);
    if (len > sizeof bytes) len = sizeof bytes;
    if (send(sockets[0], bytes, len, MSG_DONTWAIT) < 0) return;
    struct iovec parts[2] = {{at, len / 2}, {at + len / 2, len - len / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (below(2)) (void)!recvmsg(sockets[1], &message, MSG_DONTWAIT);
    else (void)!recv(sockets[1], at, len, MSG_DONTWAIT);
    while (recv(sockets[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
}

static void copy_on_fork(void) {
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < count; i++)
            if (!regions[i].shared && !regions[i].unwritable) regions[i].start[0] ^= 1;
        _exit(0);
    }
    for (int i = 0; i < count; i++)
        if (!regions[i].unwritable && below(3) == 0) store(regions[i].start, regions[i].pages * PAGE);
    CHECK(child > 0 && waitpid(child, 0, 0) == child);
}

/* W^X: writable for a moment only, or not even that. */
static void protect(struct region *region, char *at, size_t len) {
    if (region->unwritable) {
        CHECK(mprotect(at, len, RIGHTS) == 0);
        store(at, len);
        CHECK(mprotect(at, len, below(4) ? PROT_READ : PROT_NONE) == 0);
        if (below(8) == 0) {
            CHECK(mprotect(region->start, region->pages * PAGE, RIGHTS) == 0);
            region->unwritable = 0;
        }
    } else if (below(2)) {
        store(at, len);
        CHECK(mprotect(region->start, region->pages * PAGE, below(4) ? PROT_READ : PROT_NONE) == 0);
        region->unwritable = 1;
    } else {
        CHECK(mprotect(at, len, PROT_NONE) == 0 && mprotect(at, len, RIGHTS) == 0);
    }
}

static void advise(struct region *region, char *at, size_t len) {
    static const int advices[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_WRITE,
                                  MADV_REMOVE};
    int advice = advices[below(7)];
    if (advice == MADV_POPULATE_WRITE && region->unwritable) return;
    if (region->uffd != -1) return;
    struct iovec part = {at, len};
    /* Of some advices only a process of Linux 6.13 may give itself any by this call. */
    if (below(4) || syscall(SYS_process_madvise, own_process, &part, 1ul, advice, 0u) < 0) madvise(at, len, advice);
    if (below(8) == 0) {
        static const int marks[] = {MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_HUGEPAGE,
                                    MADV_NOHUGEPAGE};
        madvise(at, len, marks[below(6)]);
    }
    /* Which reads what is not there. */
    if (!region->shared && below(16) == 0) {
        mlock(at, len < 16 * PAGE ? len : 16 * PAGE);
        munlock(at, len);
    }
    if (advice == MADV_FREE && !region->unwritable) store(at, len);
    if (region->anonymous && region->pages == 1024 && below(3) == 0)
        madvise(region->start, region->pages * PAGE, MADV_COLLAPSE);
}

/* A file that becomes longer, below a mapping that was longer already, or that grows with it. */
static void grow(struct region *region) {
    if (region->file < 0 || !region->shared) return;
    size_t more = region->beyond ? region->beyond : 1 + below(32);
    CHECK(ftruncate(region->file, (region->pages + more) * PAGE) == 0);
    if (region->beyond) {
        region->pages += more, region->beyond = 0;
        return;
    }
    char *moved = mremap(region->start, region->pages * PAGE, (region->pages + more) * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        CHECK(ftruncate(region->file, region->pages * PAGE) == 0);
        return;
    }
    region->start = moved;
    region->pages += more;
}

static void resize(struct region *region) {
    if (!region->anonymous) {
        grow(region);
        return;
    }
    size_t more = 1 + below(32);
    char *moved = mremap(region->start, region->pages * PAGE, (region->pages + more) * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return;
    region->start = moved;
    region->pages += more;
}

static void from_outside(struct region *region, size_t page, size_t pages) {
    if (region->file < 0 || !region->shared) return;
    switch (below(2)) {
    case 0:
        (void)!fallocate(region->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, pages * PAGE);
        break;
    case 1:
        CHECK(ftruncate(region->file, page * PAGE) == 0);
        CHECK(ftruncate(region->file, region->pages * PAGE) == 0);
    }
}

/* Has a part of a shared mapping show another part of its file. */
static void show(struct region *region, size_t page, size_t pages, size_t from) {
    char *at = region->start + page * PAGE;
    if (pages == 0 || (below(2) && remap_file_pages(at, pages * PAGE, 0, from, 0) == 0)) return;
    CHECK(mmap(at, pages * PAGE, RIGHTS, MAP_SHARED | MAP_FIXED, region->file, from * PAGE) == at);
}

/* A file mapped over itself at another place. Shared, each of its pages stays in one place only. */
static void over_itself(struct region *region, size_t page, size_t pages) {
    if (region->file < 0 || region->beyond) return;
    char *start = region->start;
    size_t all = region->pages;
    if (!region->shared) {
        size_t from = below(all - pages + 1);
        CHECK(mmap(start + page * PAGE, pages * PAGE, RIGHTS, MAP_PRIVATE | MAP_FIXED, region->file, from * PAGE) !=
              MAP_FAILED);
        if (region->unwritable) CHECK(mprotect(start + page * PAGE, pages * PAGE, PROT_READ) == 0);
        return;
    }
    if (region->unwritable) return;
    show(region, 0, all - page, page);
    show(region, all - page, page, 0);
}

/* Another file in the place of one, often with the number of its inode. */
static void another_file(struct region *region) {
    if (!region->on_disk) return;
    size_t len = region->pages * PAGE;
    munmap(region->start, len + region->beyond * PAGE);
    CHECK(close(region->file) == 0);
    region->file = on_disk(region->pages);
    region->beyond = 0;
    int rights = region->unwritable ? PROT_READ : RIGHTS, flags = region->shared ? MAP_SHARED : MAP_PRIVATE;
    CHECK(mmap(region->start, len, rights, flags | MAP_FIXED, region->file, 0) == region->start);
}

/* A file in the place of a part of anonymous memory. */
static void file_inside(struct region *region, size_t page, size_t pages) {
    if (!region->anonymous || region->unwritable || region->uffd >= 0) return;
    if (pages > 32) pages = 32;
    int file = on_disk(pages), shared = below(2);
    CHECK(mmap(region->start + page * PAGE, pages * PAGE, RIGHTS, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, file,
               0) != MAP_FAILED);
    close(file);
    region->anonymous = 0;
    region->shared |= shared;
}

/* To an address of its choice, where something else was just now, or a part of it so that zeros stay. */
static void move(struct region *region, size_t page, size_t pages) {
    size_t len = (region->pages + region->beyond) * PAGE;
    if (region->anonymous && region->uffd < 0 && below(2)) {
        if (count == MOST) return;
        char *from = region->start + page * PAGE;
        char *moved = mremap(from, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
        if (moved == MAP_FAILED) return;
        add(moved, pages, 0, 1, -1);
        regions[count - 1].unwritable = region->unwritable;
        return;
    }
    char *place = mmap(0, len, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return;
    memset(place, (int)below(256), PAGE);
    if (mremap(region->start, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place) {
        region->start = place;
        return;
    }
    /* Of several mappings Linux 6.17 may have moved some. */
    munmap(place, len);
    drop(region);
}

/* Memory that may not be touched for a while, and is zeros after that. */
static void guard(struct region *region, char *at, size_t len) {
    if (!region->anonymous || region->unwritable || region->uffd >= 0) return;
    if (madvise(at, len, MADV_GUARD_INSTALL) != 0) return;
    usleep((useconds_t)below(3000));
    CHECK(madvise(at, len, MADV_GUARD_REMOVE) == 0);
}

/* As a debugger writes: whatever the protection. */
static void poke(struct region *region, char *at, size_t len) {
    if (region->shared) return;
    uint64_t word = below(1ull << 52);
    for (int i = 0; i < 4; i++) {
        char *place = at + below(len / PAGE) * PAGE + 8 * below(512);
        (void)!pwrite(own_memory, &word, sizeof word, (off_t)(uintptr_t)place);
    }
}

/* A userfaultfd of its own comes to a new mapping and goes. */
static void track_itself(struct region *region) {
    if (is_plain) return;
    if (region->uffd >= 0) {
        close(region->uffd);
        region->uffd = GONE;
        return;
    }
    size_t pages = 1 + below(64);
    if (count == MOST) return;
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC};
    if (uffd < 0) return;
    char *start = mmap(0, pages * PAGE, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start != MAP_FAILED) memset(start, (int)below(256), pages * PAGE);
    struct uffdio_register range = {.range = {(uintptr_t)start, pages * PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (start == MAP_FAILED || ioctl(uffd, UFFDIO_API, &api) != 0 || ioctl(uffd, UFFDIO_REGISTER, &range) != 0) {
        close(uffd);
        uffd = -1;
    } else {
        struct uffdio_writeprotect protect = {range.range, UFFDIO_WRITEPROTECT_MODE_WP};
        ioctl(uffd, UFFDIO_WRITEPROTECT, &protect);
    }
    /* Its contents are never thrown away: compared beside a program that runs, they would count as unchanged where they
     * come back. */
    add(start, pages, 0, 0, -1);
    if (start != MAP_FAILED) regions[count - 1].uffd = uffd;
    else if (uffd >= 0) close(uffd);
}

static void step(void) {
    if (count < FEW) {
        make();
        return;
    }
    struct region *region = &regions[below(count)];
    size_t page = below(region->pages), pages = 1 + below(region->pages - page);
    char *at = region->start + page * PAGE;
    size_t len = pages * PAGE;
    int writable = !region->unwritable;
    switch (below(32)) {
    case 0: make(); break;
    case 1:
        if (count > 2 * FEW) drop(region);
        break;
    case 2: resize(region); break;
    case 3:
    case 4: protect(region, at, len); break;
    case 5:
    case 6: advise(region, at, len); break;
    case 7: from_outside(region, page, pages); break;
    case 8:
        /* Another mapping in the place of a part. */
        if (writable && region->anonymous && region->uffd < 0)
            mmap(at, len, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        break;
    case 9:
        if (below(4) == 0) copy_on_fork();
        break;
    case 10:
        if (writable) (void)!read(random_file, at, len < 20000 ? len : 20000);
        break;
    case 11:
        if (writable) receive(at, len);
        break;
    case 12:
        if (writable) (void)!pread(data_file, at, len < 30000 ? len : 30000, below(10000));
        break;
    case 13:
        if (below(8) == 0) {
            char *grown = sbrk(3 * PAGE);
            if (grown != (void *)-1) memset(grown, (int)below(256), 3 * PAGE);
        }
        break;
    case 14: deep(below(200)); break;
    case 15: over_itself(region, page, pages); break;
    case 16: another_file(region); break;
    case 17:
        if (below(4) == 0) file_inside(region, page, pages);
        break;
    case 18: move(region, page, pages); break;
    case 19: guard(region, at, len); break;
    case 20: poke(region, at, len); break;
    case 21: track_itself(region); break;
    case 22:
        if (sealed != MAP_FAILED) store(sealed, SEALED * PAGE);
        break;
    default:
        if (writable) store(at, len);
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    is_plain = argc > 3;
    state = (argc > 2 ? strtoull(argv[2], 0, 10) : 1) * 7919 + 88172645463325252ull;
    random_file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    data_file = on_disk(64);
    own_memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    own_process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    CHECK(own_memory >= 0 && own_process >= 0);
    sealed = mmap(0, SEALED * PAGE, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sealed != MAP_FAILED) syscall(SYS_mseal, sealed, SEALED * PAGE, 0);
    CHECK(random_file >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    pthread_t thread = helper(storing, 0);
    for (int i = 0; i < FEW; i++) make();
    victim_ready();
    for (uint64_t i = 0; !over(); i++) {
        step();
        if (i % 16 == 0) usleep(200);
    }
    pthread_join(thread, 0);
    return 0;
}
