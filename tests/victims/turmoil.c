/* Random calls on memory, from a seed: mappings of every kind come, change and go; they are written by stores and by the
 * kernel, protected and unprotected, given back, punched and cut, and copied on fork. It checks nothing: its tracker
 * keeps a copy and compares.
 *
 * What no tracker can know it leaves alone. Nobody else writes to its shared memory; what is removed from shared memory
 * is not read before it is written; system calls write to a file only while nothing is stored to its mapping.
 *
 * usage: turmoil SECONDS SEED */
#include "victim.h"
#include <fcntl.h>
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
enum { MOST = 48, FEW = 12 };

struct region {
    char *start;
    size_t pages;
    int shared, anonymous, file, unwritable;
};

static struct region regions[MOST];
static int count, random_file, data_file, sockets[2];
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
    regions[count++] = (struct region){start, pages, shared, anonymous, file, 0};
}

static void drop(struct region *region) {
    munmap(region->start, region->pages * PAGE);
    if (region->file >= 0) close(region->file);
    *region = regions[--count];
}

static int on_disk(size_t pages) {
    int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) file = memfd_create("turmoil", MFD_CLOEXEC);
    char bytes[PAGE];
    for (size_t i = 0; i < pages; i++) {
        memset(bytes, (int)i + 1, PAGE);
        CHECK(pwrite(file, bytes, PAGE, i * PAGE) == (ssize_t)PAGE);
    }
    return file;
}

static void make(void) {
    size_t pages = 1 + below(below(6) ? 48 : 700), len = pages * PAGE;
    int file;
    switch (below(8)) {
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
        pages = pages % 48 + 1;
        file = on_disk(pages);
        /* Mapped privately, the file stays as it is. */
        int shared = below(2);
        add(mmap(0, pages * PAGE, RIGHTS, shared ? MAP_SHARED : MAP_PRIVATE, file, 0), pages, shared, 0,
            shared ? file : -1);
        if (!shared) close(file);
        break;
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
    madvise(at, len, advice);
    if (advice == MADV_FREE && !region->unwritable) store(at, len);
    if (region->anonymous && region->pages == 1024 && below(3) == 0)
        madvise(region->start, region->pages * PAGE, MADV_COLLAPSE);
}

static void resize(struct region *region) {
    if (!region->anonymous) return;
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
    switch (below(20)) {
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
        if (writable && region->anonymous) mmap(at, len, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
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
    default:
        if (writable) store(at, len);
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    state = (argc > 2 ? strtoull(argv[2], 0, 10) : 1) * 7919 + 88172645463325252ull;
    random_file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    data_file = on_disk(64);
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
