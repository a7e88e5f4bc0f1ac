/* Expects soft-dirty bits as proc_pid_pagemap(5) describes them, and checks that they tell exactly what it wrote.
 * Run with the name of a case; see the table at the end. With the kernel's own bits it passes as well, but for what
 * EXACT guards: the kernel marks untouched pages of new mappings by mapping, and merges mappings. */
#define _GNU_SOURCE
#include "victim.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define SOFT_DIRTY (1ull << 55)

#ifndef PAGEMAP_SCAN
struct page_region { uint64_t start, end, categories; };
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
        category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
#endif
#ifndef PAGE_IS_SOFT_DIRTY
#define PAGE_IS_SOFT_DIRTY (1 << 7)
#endif

static int pagemap, clear_refs;

static void open_own(void) {
    CHECK((pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) >= 0);
    CHECK((clear_refs = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC)) >= 0);
}

/* For a collector pages may show that are no longer written. */
static int is_collector(void) {
    const char *reader = getenv("PAGETRAIL_SOFTDIRTY_READER");
    return reader && !strcmp(reader, "collector");
}

static off_t entry_of(const void *address) { return (uintptr_t)address / PAGE * 8; }

/* As the kernel itself says. A collector may see such pages as dirty. */
static int is_untouched(int fd, const char *address) {
    uint64_t entry;
    CHECK(syscall(SYS_pread64, fd, &entry, 8, entry_of(address)) == 8);
    return !(entry >> 63);
}

static void clear(void) { CHECK(write(clear_refs, "4", 1) == 1); }

static int dirty(int fd, const void *address) {
    uint64_t entry;
    CHECK(pread(fd, &entry, 8, entry_of(address)) == 8);
    return (entry & SOFT_DIRTY) != 0;
}

static char *map(size_t pages, int flags) {
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(madvise(memory, pages * PAGE, MADV_NOHUGEPAGE) == 0);
    return memory;
}

/* Which pages shall be dirty, as a string of '1' and '0'. */
static void expect_from(int fd, const char *memory, const char *wanted, int line) {
    size_t pages = strlen(wanted);
    uint64_t entries[pages];
    CHECK(pread(fd, entries, 8 * pages, entry_of(memory)) == (ssize_t)(8 * pages));
    char found[pages + 1];
    for (size_t i = 0; i < pages; i++) {
        found[i] = entries[i] & SOFT_DIRTY ? '1' : '0';
        if (is_collector() && found[i] == '1' && is_untouched(fd, memory + i * PAGE)) found[i] = wanted[i];
    }
    found[pages] = 0;
    if (strcmp(found, wanted)) fail("line %d: dirty pages are %s, not %s", line, found, wanted);
}
#define expect(memory, wanted) expect_from(pagemap, memory, wanted, __LINE__)

static void write_pages(char *memory, const char *which) {
    for (size_t i = 0; which[i]; i++)
        if (which[i] == '1') memory[i * PAGE]++;
}

/* ---- the plain contract */

static void case_own(void) {
    open_own();
    char *memory = map(16, MAP_PRIVATE);
    expect(memory, "1111111111111111"); /* a new mapping, untouched */
    write_pages(memory, "1111111111111110");
    expect(memory, "1111111111111111");
    clear();
    expect(memory, "0000000000000000");
    write_pages(memory, "0100000010000000");
    expect(memory, "0100000010000000");
    write_pages(memory, "0000010010000001");
    expect(memory, "0100010010000001"); /* until the next clear, they add up */
    expect(memory, "0100010010000001");
    clear();
    expect(memory, "0000000000000000");
    volatile char sink = memory[3 * PAGE] + memory[9 * PAGE];
    (void)sink;
    expect(memory, "0000000000000000");
    CHECK(write(clear_refs, " 4\n", 3) == 3);
    write_pages(memory, "1000000000000000");
    CHECK(write(clear_refs, "4", 2) == 2); /* with its end, as CRIU does */
    expect(memory, "0000000000000000");
    /* The kernel writes, too. */
    int pipe_fds[2];
    CHECK(pipe(pipe_fds) == 0 && write(pipe_fds[1], "xy", 2) == 2);
    CHECK(read(pipe_fds[0], memory + 5 * PAGE - 1, 2) == 2);
    expect(memory, "0000110000000000");
}

static void case_mappings(void) {
    open_own();
    char *first = map(8, MAP_PRIVATE), *shared = map(8, MAP_SHARED);
    write_pages(first, "11111111");
    write_pages(shared, "11110000");
    clear();
    clear();
    expect(first, "00000000");
    write_pages(shared, "01000000");
    CHECK(dirty(pagemap, shared + PAGE) && !dirty(pagemap, shared) && !dirty(pagemap, shared + 3 * PAGE));
    clear();
    CHECK(!dirty(pagemap, shared + PAGE) && !dirty(pagemap, shared + 6 * PAGE));
    write_pages(shared, "00000010");
    CHECK(dirty(pagemap, shared + 6 * PAGE) && !dirty(pagemap, shared + PAGE));
    /* New since the clear, at an address of its own and in the place of another. */
    char *fresh = map(4, MAP_PRIVATE);
    expect(fresh, "1111");
    CHECK(mmap(first + 2 * PAGE, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          first + 2 * PAGE);
    expect(first, "00111000");
    clear();
    expect(first, "00000000");
    expect(fresh, "0000");
    write_pages(first, "00010001");
    write_pages(fresh, "0010");
    expect(first, "00010001");
    expect(fresh, "0010");
    /* Moved: its old marks prove nothing at the new place. */
    clear();
    char *target = map(8, MAP_PRIVATE);
    CHECK(mremap(first, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    write_pages(target, "11");
    CHECK(dirty(pagemap, target) && dirty(pagemap, target + PAGE));
    /* Protection comes and goes. */
    clear();
    CHECK(mprotect(fresh, 4 * PAGE, PROT_READ) == 0 && mprotect(fresh, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
    write_pages(fresh, "1000");
    CHECK(dirty(pagemap, fresh));
    /* Nothing is mapped here any more. */
    CHECK(munmap(fresh, 4 * PAGE) == 0);
    clear();
    expect(fresh, "0000");
}

/* ---- every way to open and to read */

static void check_descriptor(int fd, char *memory, int line) {
    expect_from(fd, memory, "01100001", line);
    uint64_t entries[8];
    CHECK(lseek64(fd, entry_of(memory), SEEK_SET) == entry_of(memory));
    CHECK(read(fd, entries, 16) == 16 && !(entries[0] & SOFT_DIRTY) && entries[1] & SOFT_DIRTY);
    CHECK(lseek(fd, 0, SEEK_CUR) == entry_of(memory) + 16);
    struct iovec parts[2] = {{entries, 8}, {entries + 1, 40}};
    CHECK(readv(fd, parts, 2) == 48 && entries[0] & SOFT_DIRTY && !(entries[1] & SOFT_DIRTY) && entries[5] & SOFT_DIRTY);
    memset(entries, 0, sizeof entries);
    CHECK(preadv(fd, parts, 2, entry_of(memory)) == 48 && !(entries[0] & SOFT_DIRTY) && entries[1] & SOFT_DIRTY);
    CHECK(pread64(fd, entries, 64, entry_of(memory)) == 64 && entries[7] & SOFT_DIRTY);
}

static void *check_thread(void *memory) {
    int fd = open("/proc/thread-self/pagemap", O_RDONLY);
    CHECK(fd >= 0);
    check_descriptor(fd, memory, __LINE__);
    close(fd);
    return NULL;
}

int __open_2(const char *, int);
int __openat_2(int, const char *, int);

static void case_paths(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE), path[64];
    write_pages(memory, "11111111");
    int refs = openat(AT_FDCWD, "/proc/thread-self/clear_refs", O_WRONLY);
    CHECK(refs >= 0 && pwrite(refs, "4\n", 2, 0) == 2);
    struct iovec four = {"4", 1};
    CHECK(writev(refs, &four, 1) == 1);
    write_pages(memory, "01100001");
    check_descriptor(pagemap, memory, __LINE__);
    int proc = open("/proc", O_RDONLY | O_DIRECTORY), self = open("/proc/self", O_PATH | O_DIRECTORY);
    snprintf(path, sizeof path, "%d/pagemap", getpid());
    int fds[] = {openat(proc, path, O_RDONLY), openat(self, "pagemap", O_RDONLY), openat64(self, "pagemap", O_RDONLY),
                 __openat_2(self, "pagemap", O_RDONLY), __open_2("/proc/self/pagemap", O_RDONLY),
                 open64("/proc/self/pagemap", O_RDONLY)};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        CHECK(fds[i] >= 0);
        check_descriptor(fds[i], memory, 1000 + i);
    }
    CHECK(chdir("/proc/self") == 0);
    int here = open("pagemap", O_RDONLY);
    check_descriptor(here, memory, __LINE__);
    pthread_t thread = helper(check_thread, memory);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void case_dup(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    int refs = dup(clear_refs);
    CHECK(refs >= 0 && close(clear_refs) == 0 && write(refs, "4", 1) == 1);
    write_pages(memory, "01100001");
    int fds[] = {dup(pagemap), dup2(pagemap, 200), dup3(pagemap, 201, O_CLOEXEC), fcntl(pagemap, F_DUPFD, 300),
                 fcntl(pagemap, F_DUPFD_CLOEXEC, 300)};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        CHECK(fds[i] >= 0);
        check_descriptor(fds[i], memory, 1000 + i);
    }
    CHECK(close(pagemap) == 0);
    check_descriptor(fds[0], memory, __LINE__);
    /* The number of a closed one, now another file's: its bytes are its own. */
    FILE *file = tmpfile();
    uint64_t words[4] = {1ull << 63, 1ull << 62, 0, ~0ull}, read_back[4];
    CHECK(file && fwrite(words, 8, 4, file) == 4 && fflush(file) == 0);
    CHECK(dup2(fileno(file), fds[1]) == fds[1]);
    CHECK(pread(fds[1], read_back, 32, 0) == 32 && !memcmp(words, read_back, 32));
    CHECK(close(fds[2]) == 0 && syscall(SYS_dup3, fileno(file), fds[2], 0) == fds[2]);
    CHECK(pread(fds[2], read_back, 32, 0) == 32 && !memcmp(words, read_back, 32));
}

/* Where the kernel says EFAULT, nobody dies, and nothing of what was read is lost. */
static void case_bad_buffers(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    clear();
    write_pages(memory, "01100001");
    expect(memory, "01100001"); /* whatever is to be set up at first is */
    char *locked = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *gone = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Its second page is missing. */
    char *half = map(2, MAP_PRIVATE);
    CHECK(locked != MAP_FAILED && gone != MAP_FAILED && munmap(half + PAGE, PAGE) == 0);
    void *bad[] = {(void *)16, (void *)-64l, (void *)(1l << 62), locked, gone, half + PAGE, half + PAGE - 32};
#define FAULTS(call)                                                                                              \
    do {                                                                                                          \
        errno = 0;                                                                                                \
        long result = (long)(call);                                                                               \
        if (result != -1 || errno != EFAULT) fail("%zu: %s: %ld, %s", i, #call, result, strerror(errno));         \
    } while (0)
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct iovec part = {bad[i], 64};
        CHECK(lseek(pagemap, entry_of(memory), SEEK_SET) == entry_of(memory));
        FAULTS(read(pagemap, bad[i], 64));
        FAULTS(pread(pagemap, bad[i], 64, entry_of(memory)));
        FAULTS(pread64(pagemap, bad[i], 64, entry_of(memory)));
        FAULTS(readv(pagemap, &part, 1));
        FAULTS(preadv(pagemap, &part, 1, entry_of(memory)));
        FAULTS(readv(pagemap, (void *)gone, 1));
        FAULTS(write(clear_refs, i < 5 && bad[i] != locked ? bad[i] : gone, 1));
        FAULTS(writev(clear_refs, (void *)gone, 1));
        FAULTS(open(i < 5 && bad[i] != locked ? bad[i] : gone, O_RDONLY));
        FAULTS(openat(AT_FDCWD, gone, O_RDONLY));
        errno = 0;
        CHECK(!fopen(gone, "r") && errno == EFAULT);
    }
#undef FAULTS
    /* A good part before a bad one. */
    uint64_t entries[8];
    struct iovec parts[] = {{entries, 64}, {gone, 64}};
    CHECK(preadv(pagemap, parts, 2, entry_of(memory)) == 64);
    for (int i = 0; i < 8; i++) CHECK(entries[i] & SOFT_DIRTY || "01100001"[i] == '0');
    /* Buffers that nobody has touched, or that were shared by a fork, are as good as any. */
    uint64_t *fresh = (void *)map(2, MAP_PRIVATE);
    CHECK(pread(pagemap, (char *)fresh + PAGE - 24, 64, entry_of(memory)) == 64);
    for (int i = 0; i < 8; i++) {
        uint64_t entry;
        memcpy(&entry, (char *)fresh + PAGE - 24 + 8 * i, 8);
        CHECK(entry & SOFT_DIRTY || "01100001"[i] == '0');
        CHECK(is_collector() || !(entry & SOFT_DIRTY) || "01100001"[i] == '1');
    }
    clear();
    write_pages(memory, "00010000");
    expect(memory, "00010000");
}

/* A descriptor in a message to oneself. */
static int by_message(int fd, int many) {
    int ends[2], *found;
    char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                          .msg_controllen = sizeof control}};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message.msg_hdr);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    if (many) CHECK(sendmmsg(ends[0], &message, 1, 0) == 1);
    else CHECK(sendmsg(ends[0], &message.msg_hdr, 0) == 1);
    memset(control, 0, sizeof control);
    if (many) CHECK(recvmmsg(ends[1], &message, 1, 0, NULL) == 1);
    else CHECK(recvmsg(ends[1], &message.msg_hdr, 0) == 1);
    CHECK((header = CMSG_FIRSTHDR(&message.msg_hdr)) && header->cmsg_type == SCM_RIGHTS);
    found = (int *)CMSG_DATA(header);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && *found >= 0 && *found != fd);
    return *found;
}

#define SPAWNED 700
#define SPAWNED_ADDRESS "PAGETRAIL_TEST_ADDRESS"

/* The other program of case_passed: its parent's pagemap, under a high number, at a position that the parent has set. */
static void case_spawned(void) {
    uint64_t entries[8];
    off_t at = strtoull(getenv(SPAWNED_ADDRESS), NULL, 16) / PAGE * 8;
    CHECK(lseek(SPAWNED, 0, SEEK_CUR) == at && read(SPAWNED, entries, 64) == 64);
    for (int i = 0; i < 8; i++) CHECK(entries[i] & SOFT_DIRTY || "01100001"[i] == '0');
}

/* What a collector reads by as well. */
static void check_read(int fd, const char *memory, int line) {
    expect_from(fd, memory, "01100001", line);
    uint64_t entries[4];
    CHECK(lseek(fd, entry_of(memory), SEEK_SET) == entry_of(memory));
    CHECK(read(fd, entries, 16) == 16 && !(entries[0] & SOFT_DIRTY) && entries[1] & SOFT_DIRTY);
    CHECK(read(fd, entries, 16) == 16 && entries[0] & SOFT_DIRTY && !(entries[1] & SOFT_DIRTY));
    CHECK(lseek(fd, 0, SEEK_CUR) == entry_of(memory) + 32);
}

/* Descriptors that come by other ways than dup(2): what is read by them is right as well. */
static void case_passed(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    int refs = by_message(clear_refs, 0);
    CHECK(write(refs, "4", 1) == 1);
    write_pages(memory, "01100001");
    check_read(by_message(pagemap, 0), memory, __LINE__);
    /* Of calls that a machine does not know it takes all memory for written. */
    if (!is_collector()) {
        check_read(by_message(pagemap, 1), memory, __LINE__);
        int pidfd = pidfd_open(getpid(), 0);
        int got = pidfd < 0 ? -1 : pidfd_getfd(pidfd, pagemap, 0);
        if (got >= 0) check_read(got, memory, __LINE__);
    }
    /* A child in this memory, with other files under the numbers. */
    int second = dup(pagemap);
    pid_t child = vfork();
    if (child == 0) _exit(dup2(clear_refs, pagemap) != pagemap || dup2(clear_refs, second) != second);
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    expect(memory, "01100001");
    check_read(second, memory, __LINE__);
    /* Another program. */
    char address[32];
    snprintf(address, sizeof address, "%lx", (unsigned long)memory);
    CHECK(setenv(SPAWNED_ADDRESS, address, 1) == 0);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, pagemap, SPAWNED) == 0);
    char *arguments[] = {"softdirty", "spawned", NULL};
    CHECK(lseek(pagemap, entry_of(memory), SEEK_SET) == entry_of(memory));
    CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* Parent and child have one position, which both move. */
    uint64_t entries[4];
    CHECK(lseek(pagemap, entry_of(memory), SEEK_SET) == entry_of(memory));
    CHECK((child = fork()) >= 0);
    if (child == 0) _exit(read(pagemap, entries, 32) != 32);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(read(pagemap, entries, 32) == 32 && entries[3] & SOFT_DIRTY);
    CHECK(!(entries[0] & SOFT_DIRTY) && lseek(pagemap, 0, SEEK_CUR) == entry_of(memory) + 64);
}

/* Where there is no room for one more, none is answered wrongly, and every number stays the program's. */
static void case_full(void) {
    open_own();
    clear();
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max >= 3000);
    limit.rlim_cur = 3000;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int count = 0;
    while (count < 2000 && open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) >= 0) count++;
    int refused = errno; /* a check begins with errno 0 */
    if (count == 2000) return; /* the kernel's own have no limit but this one */
    CHECK(refused == EMFILE);
    int pidfd = pidfd_open(getpid(), 0);
    if (pidfd >= 0) {
        errno = 0;
        int got = pidfd_getfd(pidfd, pagemap, 0);
        if (got >= 0 || (errno != EMFILE && errno != ENOSYS)) fail("pidfd_getfd: %d, %s", got, strerror(errno));
    }
    uint64_t entry;
    for (int many = 0; many < 2; many++) {
        int got = by_message(pagemap, many);
        CHECK(fcntl(got, F_GETFD) >= 0 && pread(got, &entry, 8, 0) == -1 && errno == EBADF);
    }
}

/* ---- threads that are cancelled within a call */

static int sockets[2], pipes[2], full_pipe[2];
static char calls_byte;
static struct iovec calls_part = {&calls_byte, 1};
static struct mmsghdr calls_message = {.msg_hdr = {.msg_iov = &calls_part, .msg_iovlen = 1}};

static void *in_read(void *unused) { return read(pipes[0], &calls_byte, 1) < 0 ? NULL : unused; }
static void *in_readv(void *unused) { return readv(pipes[0], &calls_part, 1) < 0 ? NULL : unused; }
static void *in_write(void *unused) { return write(full_pipe[1], &calls_byte, 1) < 0 ? NULL : unused; }
static void *in_writev(void *unused) { return writev(full_pipe[1], &calls_part, 1) < 0 ? NULL : unused; }
static void *in_recvmsg(void *unused) { return recvmsg(sockets[0], &calls_message.msg_hdr, 0) < 0 ? NULL : unused; }
static void *in_recvmmsg(void *unused) {
    return recvmmsg(sockets[0], &calls_message, 1, 0, NULL) < 0 ? NULL : unused;
}
static void *in_sendmsg(void *unused) { return sendmsg(sockets[0], &calls_message.msg_hdr, 0) < 0 ? NULL : unused; }
static void *in_sendmmsg(void *unused) { return sendmmsg(sockets[0], &calls_message, 1, 0) < 0 ? NULL : unused; }

/* Where one is served that is cancelled already, it ends afterwards. */
static void *in_clear(void *unused) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    CHECK(write(clear_refs, "4", 1) == 1);
    pthread_testcancel();
    return unused;
}
static void *in_pread(void *unused) {
    uint64_t entry;
    CHECK(pthread_cancel(pthread_self()) == 0);
    CHECK(pread(pagemap, &entry, 8, entry_of(pipes)) == 8);
    pthread_testcancel();
    return unused;
}

static void ran(void *count) { ++*(int *)count; }

static int cleaned;

static void *with_cleanup(void *call) {
    pthread_cleanup_push(ran, &cleaned);
    ((void *(*)(void *))call)(NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

static void case_cancelled(void) {
    open_own();
    clear();
    CHECK(pipe(pipes) == 0 && pipe2(full_pipe, O_NONBLOCK) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    char bytes[4096] = {0};
    while (write(full_pipe[1], bytes, sizeof bytes) > 0);
    CHECK(fcntl(full_pipe[1], F_SETFL, 0) == 0);
    while (send(sockets[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0);
    void *(*calls[])(void *) = {in_read,    in_readv,    in_write,   in_writev,
                                in_recvmsg, in_recvmmsg, in_sendmsg, in_sendmmsg,
                                in_clear,   in_pread};
    int count = sizeof calls / sizeof *calls;
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, with_cleanup, (void *)calls[i]) == 0);
        usleep(10000); /* in the call by then; if not, it ends where the call begins */
        pthread_cancel(thread);
        CHECK(pthread_join(thread, &result) == 0);
        if (result != PTHREAD_CANCELED || cleaned != i + 1) fail("call %d: it was not cancelled", i);
    }
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    clear();
    write_pages(memory, "01100001");
    expect(memory, "01100001");
}

static void case_stream(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    FILE *refs = fopen("/proc/self/clear_refs", "w");
    CHECK(refs && fprintf(refs, "4\n") == 2 && fclose(refs) == 0);
    expect(memory, "00000000");
    write_pages(memory, "01100001");
    FILE *files[] = {fopen("/proc/self/pagemap", "rb"), fopen64("/proc/self/pagemap", "r"),
                     fdopen(dup(pagemap), "r")};
    for (size_t i = 0; i < 3; i++) {
        uint64_t entries[8];
        CHECK(files[i] && fseeko(files[i], entry_of(memory), SEEK_SET) == 0);
        CHECK(fread(entries, 8, 8, files[i]) == 8);
        for (int j = 0; j < 8; j++) CHECK(!(entries[j] & SOFT_DIRTY) == ("01100001"[j] == '0'));
        CHECK(ftello(files[i]) == entry_of(memory) + 64);
        check_descriptor(fileno(files[i]), memory, __LINE__);
        CHECK(fclose(files[i]) == 0);
    }
    /* Others are as ever. */
    FILE *status = fopen("/proc/self/status", "r");
    char line[64];
    CHECK(status && fgets(line, sizeof line, status) && !strncmp(line, "Name:", 5) && fileno(status) >= 0);
    CHECK(fclose(status) == 0);
}

/* ---- PAGEMAP_SCAN */

/* What the kernel refuses is refused, with its error, and bad addresses kill nobody (pagemap_scan_get_args and
   pagemap_scan_flush_buffer in fs/proc/task_mmu.c). */
static void case_scan_refusals(void) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    char *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *locked = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *gone = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct page_region found[17];
    CHECK(fd >= 0 && memory != MAP_FAILED && locked != MAP_FAILED && gone != MAP_FAILED);
    memset(memory, 1, 16 * PAGE);
    const struct pm_scan_arg good = {.size = sizeof good, .start = (uintptr_t)memory, .end = (uintptr_t)memory + 16 * PAGE,
                                     .vec = (uintptr_t)found, .vec_len = 16, .category_mask = PAGE_IS_SOFT_DIRTY,
                                     .return_mask = PAGE_IS_SOFT_DIRTY};
    struct pm_scan_arg arg;
#define REFUSED(change, error)                                                                                    \
    do {                                                                                                          \
        arg = good;                                                                                               \
        change;                                                                                                   \
        errno = 0;                                                                                                \
        int result = ioctl(fd, PAGEMAP_SCAN, &arg);                                                               \
        if (result != -1 || errno != (error)) fail("%s: %d, %s", #change, result, strerror(errno));                \
    } while (0)
    REFUSED((arg.vec = ~0ull, arg.vec_len = 1), EFAULT);
    REFUSED(arg.vec = ~0ull, EFAULT);
    REFUSED(arg.vec = (uintptr_t)locked, EFAULT);
    REFUSED(arg.vec = (uintptr_t)gone, EFAULT);
    REFUSED(arg.vec_len = ~0ull, EFAULT);
    REFUSED(arg.vec = 0, EINVAL);
    REFUSED(arg.end = arg.start - PAGE, EFAULT);
    REFUSED(arg.start += 5, EINVAL);
    REFUSED(arg.size = 8, EINVAL);
    REFUSED(arg.size += 8, EINVAL);
    REFUSED(arg.flags = 1ull << 40, EINVAL);
    REFUSED(arg.category_mask |= 1ull << 40, EINVAL);
#undef REFUSED
    errno = 0;
    CHECK(ioctl(fd, PAGEMAP_SCAN, (void *)gone) == -1 && errno == EFAULT);
    errno = 0;
    CHECK(ioctl(fd, PAGEMAP_SCAN, (void *)(uintptr_t)16) == -1 && errno == EFAULT);
    /* Nothing to write, so nothing fails; an end within a page is its end; a vector lies where it likes. */
    arg = good;
    arg.end = arg.start;
    CHECK(ioctl(fd, PAGEMAP_SCAN, &arg) == 0);
    arg = good;
    arg.end -= 100;
    CHECK(ioctl(fd, PAGEMAP_SCAN, &arg) == 1 && arg.walk_end == good.end);
    arg = good;
    arg.vec += 4;
    CHECK(ioctl(fd, PAGEMAP_SCAN, &arg) == 1);
    memmove(found, (char *)found + 4, sizeof found[0]);
    CHECK(found[0].start == good.start && found[0].end == good.end && found[0].categories == PAGE_IS_SOFT_DIRTY);
    /* More regions than any buffer on the way, each in its place, and no more than there is room for. */
    struct page_region many[300];
    char *wide = mmap(NULL, 600 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(wide != MAP_FAILED && madvise(wide, 600 * PAGE, MADV_NOHUGEPAGE) == 0);
    memset(wide, 1, 600 * PAGE);
    int refs = open("/proc/self/clear_refs", O_WRONLY);
    CHECK(refs >= 0 && write(refs, "4", 1) == 1);
    for (int i = 0; i < 300; i++) wide[2 * i * PAGE] = wide[(2 * i + (i % 3 == 0)) * PAGE] = 2;
    for (uint64_t room = 1; room <= 300; room += 13) {
        arg = good;
        arg.start = (uintptr_t)wide;
        arg.end = arg.start + 600 * PAGE;
        arg.vec = (uintptr_t)many;
        arg.vec_len = room;
        int result = ioctl(fd, PAGEMAP_SCAN, &arg);
        if (result <= 0 || (uint64_t)result > room) fail("%d regions of %d", result, (int)room);
        int last = -1;
        for (int i = 0; i < result; i++)
            for (uint64_t at = many[i].start; at < many[i].end; at += PAGE) {
                int page = (at - (uintptr_t)wide) / PAGE;
                CHECK(page > last && (page % 2 == 0 || (page / 2) % 3 == 0));
                for (int missed = last + 1; missed < page; missed++) CHECK(missed % 2 && (missed / 2) % 3);
                last = page;
            }
        CHECK(arg.walk_end > many[result - 1].start && arg.walk_end <= (uintptr_t)wide + 600 * PAGE);
    }
}

static void case_scan(void) {
    open_own();
    char *memory = map(16, MAP_PRIVATE);
    write_pages(memory, "1111111111110000");
    clear();
    write_pages(memory, "0110000100011000");
    struct page_region regions[16];
    struct pm_scan_arg arg = {.size = sizeof arg, .start = (uintptr_t)memory, .end = (uintptr_t)memory + 16 * PAGE,
                              .vec = (uintptr_t)regions, .vec_len = 16, .category_mask = PAGE_IS_SOFT_DIRTY,
                              .return_mask = PAGE_IS_SOFT_DIRTY};
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 3);
    static const int wanted[3][2] = {{1, 3}, {7, 8}, {11, 13}};
    for (int i = 0; i < 3; i++) {
        CHECK(regions[i].start == (uintptr_t)memory + wanted[i][0] * PAGE);
        CHECK(regions[i].end == (uintptr_t)memory + wanted[i][1] * PAGE);
        CHECK(regions[i].categories == PAGE_IS_SOFT_DIRTY);
    }
    CHECK(arg.walk_end == arg.end);
    /* As CRIU asks: what exists, and whether it is dirty. */
    arg.category_mask = 0;
    arg.category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    arg.return_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_SOFT_DIRTY;
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 6); /* 0, 1-2, 3-6, 7, 8-10, 11-12 */
    CHECK(regions[0].categories == PAGE_IS_PRESENT);
    CHECK(regions[1].categories == (PAGE_IS_PRESENT | PAGE_IS_SOFT_DIRTY));
    CHECK(regions[5].end == (uintptr_t)memory + 13 * PAGE);
    /* No room for all: the next call goes on where this one ended. */
    arg.vec_len = 1;
    arg.category_mask = PAGE_IS_SOFT_DIRTY;
    int found = 0;
    while (arg.start < arg.end) {
        int count = ioctl(pagemap, PAGEMAP_SCAN, &arg);
        CHECK(count >= 0 && count <= 1);
        found += count;
        arg.start = arg.walk_end;
    }
    CHECK(found == 3);
    /* At most so many pages. */
    arg.start = (uintptr_t)memory;
    arg.vec_len = 16;
    arg.max_pages = 2;
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 1 && arg.walk_end == (uintptr_t)memory + 3 * PAGE);
    /* Clean ones. */
    arg.max_pages = 0;
    arg.category_inverted = PAGE_IS_SOFT_DIRTY;
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 3 && regions[0].end == (uintptr_t)memory + PAGE);
    /* Without soft-dirty the kernel answers. */
    arg.category_inverted = arg.category_mask = 0;
    arg.category_anyof_mask = arg.return_mask = PAGE_IS_PRESENT;
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 1 && regions[0].end == (uintptr_t)memory + 13 * PAGE);
}

/* ---- processes */

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail("the child ended with status %#x", status);
}

static void case_fork(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    clear();
    write_pages(memory, "10000000");
    pid_t child = fork();
    if (child == 0) {
        /* The parent's files still tell of the parent (though a child may see more than was written). */
        CHECK(dirty(pagemap, memory));
        close(pagemap);
        close(clear_refs);
        open_own();
        CHECK(dirty(pagemap, memory) && dirty(pagemap, memory + 7 * PAGE));
        clear();
        expect(memory, "00000000");
        write_pages(memory, "00110000");
        expect(memory, "00110000");
        pid_t grandchild = vfork();
        if (grandchild == 0) {
            /* Our memory, and its own descriptors. */
            close(pagemap);
            close(clear_refs);
            _exit(0);
        }
        wait_for(grandchild);
        expect(memory, "00110000");
        clear();
        expect(memory, "00000000");
        _exit(0);
    }
    CHECK(child > 0);
    wait_for(child);
    /* Sharing its pages with the child has not dirtied them, nor has the child's clear cleaned them. */
    CHECK(dirty(pagemap, memory));
    write_pages(memory, "01000000");
    CHECK(dirty(pagemap, memory + PAGE));
    clear();
    expect(memory, "00000000");
    write_pages(memory, "00001000");
    expect(memory, "00001000");
}

/* Another process's memory. */
static void case_other(void) {
    char *memory = map(8, MAP_PRIVATE);
    int ask[2], done[2];
    CHECK(pipe(ask) == 0 && pipe(done) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char which[9] = {0};
        close(ask[1]);
        while (read(ask[0], which, 8) == 8) {
            write_pages(memory, which);
            CHECK(write(done[1], "x", 1) == 1);
        }
        _exit(0);
    }
    char path[64], token;
    snprintf(path, sizeof path, "/proc/%d/pagemap", child);
    CHECK((pagemap = open(path, O_RDONLY)) >= 0);
    snprintf(path, sizeof path, "/proc/%d/clear_refs", child);
    CHECK((clear_refs = open(path, O_WRONLY)) >= 0);
    static const char *const rounds[] = {"11111111", "01000000", "00000000", "10000011"};
    for (int i = 0; i < 4; i++) {
        CHECK(write(ask[1], rounds[i], 8) == 8 && read(done[0], &token, 1) == 1);
        expect(memory, rounds[i]);
        clear();
        expect(memory, "00000000");
    }
    close(ask[1]);
    wait_for(child);
}

/* ---- threads, signals, a stopped world */

#define THREADS 4
#define OWN_PAGES 64

static pthread_barrier_t barrier;
static char *arena;
static unsigned seeds[THREADS];
static unsigned char written[THREADS][OWN_PAGES];
static int rounds = 200;

static void *writer(void *argument) {
    int me = (int)(intptr_t)argument;
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < 16; i++) {
            int page = rand_r(&seeds[me]) % OWN_PAGES;
            arena[(me * OWN_PAGES + page) * PAGE]++;
            written[me][page] = 1;
            /* Other descriptors, memory and reads of our own meanwhile. */
            free(malloc(1 + rand_r(&seeds[me]) % 100000));
            int fd = open("/proc/self/pagemap", O_RDONLY);
            CHECK(fd >= 0 && (dirty(fd, arena), 1));
            close(fd);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void case_threads(void) {
    open_own();
    arena = map(THREADS * OWN_PAGES, MAP_PRIVATE);
    memset(arena, 1, THREADS * OWN_PAGES * PAGE);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
    pthread_t threads[THREADS];
    clear();
    for (int i = 0; i < THREADS; i++) {
        seeds[i] = i + 1;
        threads[i] = helper(writer, (void *)(intptr_t)i);
    }
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < THREADS; i++)
            for (int page = 0; page < OWN_PAGES; page++) {
                int is = dirty(pagemap, arena + (i * OWN_PAGES + page) * PAGE);
                if (is != written[i][page] && !(is && is_collector())) fail("round %d: page %d of %d is %d", round, page, i, is);
            }
        memset(written, 0, sizeof written);
        clear();
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static volatile sig_atomic_t handled, stop_threads;

/* Reads and clears in a handler, whatever it interrupts. */
static void in_handler(int signal) {
    (void)signal;
    int saved = errno;
    uint64_t entry;
    if (pread(pagemap, &entry, 8, entry_of(arena)) != 8) _exit(3);
    if (handled % 4 == 0 && write(clear_refs, "4", 1) != 1) _exit(4);
    handled++;
    errno = saved;
}

static void case_signals(void) {
    open_own();
    arena = map(8, MAP_PRIVATE);
    struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
    struct itimerspec every = {{0, 200000}, {0, 200000}};
    CHECK(timer_settime(timer, 0, &every, NULL) == 0);
    double until = now() + 2;
    while (now() < until) {
        free(malloc(100000));
        int fd = open("/proc/self/pagemap", O_RDONLY);
        CHECK(fd >= 0);
        dirty(fd, arena);
        close(fd);
        clear();
        FILE *file = fopen("/proc/self/pagemap", "r");
        CHECK(file && fclose(file) == 0);
    }
    CHECK(timer_delete(timer) == 0);
    CHECK(handled > 20);
}

static volatile int stopped, resumed;

/* What libgc does: a thread stops in the handler of a signal, wherever it is, until it may go on. */
static void stop_here(int signal) {
    (void)signal;
    int saved = errno, generation = __atomic_load_n(&resumed, __ATOMIC_ACQUIRE);
    __atomic_add_fetch(&stopped, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&resumed, __ATOMIC_ACQUIRE) == generation) syscall(SYS_sched_yield);
    __atomic_sub_fetch(&stopped, 1, __ATOMIC_RELEASE);
    errno = saved;
}

static void *busy(void *argument) {
    (void)argument;
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL);
    while (!stop_threads) {
        free(malloc(100000));
        int fd = open("/proc/self/pagemap", O_RDONLY), refs = open("/proc/self/clear_refs", O_WRONLY);
        CHECK(fd >= 0 && refs >= 0);
        dirty(fd, arena);
        CHECK(write(refs, "4", 1) == 1);
        close(fd);
        close(refs);
    }
    return NULL;
}

static void case_stopped(void) {
    open_own();
    arena = map(8, MAP_PRIVATE);
    struct sigaction action = {.sa_handler = stop_here, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) threads[i] = helper(busy, NULL);
    double until = now() + 3;
    int worlds = 0;
    for (; now() < until; worlds++) {
        for (int i = 0; i < THREADS; i++) CHECK(pthread_kill(threads[i], SIGUSR1) == 0);
        while (__atomic_load_n(&stopped, __ATOMIC_ACQUIRE) != THREADS) syscall(SYS_sched_yield);
        /* One of them may hold malloc's lock; none may hold what these need. */
        arena[0]++;
        uint64_t entry;
        if (pread(pagemap, &entry, 8, entry_of(arena)) != 8 || !(entry & SOFT_DIRTY)) _exit(5);
        if (write(clear_refs, "4", 1) != 1) _exit(6);
        if (pread(pagemap, &entry, 8, entry_of(arena)) != 8 || entry & SOFT_DIRTY) _exit(7);
        __atomic_add_fetch(&resumed, 1, __ATOMIC_RELEASE);
        while (__atomic_load_n(&stopped, __ATOMIC_ACQUIRE) != 0) syscall(SYS_sched_yield);
    }
    stop_threads = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(worlds > 10);
}

/* Forks while other threads are in the middle of clearing and reading. */
static void case_fork_storm(void) {
    open_own();
    arena = map(8, MAP_PRIVATE);
    arena[0] = 1;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) threads[i] = helper(busy, NULL);
    for (int i = 0; i < 200; i++) {
        /* Half of them without libc's handlers. */
        pid_t child = i % 2 ? fork() : (pid_t)syscall(SYS_fork);
        CHECK(child >= 0);
        if (child == 0) {
            int fd = open("/proc/self/pagemap", O_RDONLY), refs = open("/proc/self/clear_refs", O_WRONLY);
            if (fd < 0 || refs < 0 || write(refs, "4", 1) != 1) _exit(2);
            uint64_t entry;
            if (pread(fd, &entry, 8, entry_of(arena)) != 8 || entry & SOFT_DIRTY) _exit(3);
            arena[0]++;
            if (pread(fd, &entry, 8, entry_of(arena)) != 8 || !(entry & SOFT_DIRTY)) _exit(4);
            _exit(0);
        }
        wait_for(child);
    }
    stop_threads = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* ---- what is written round after round, which may show as written when it no longer is, for a while */

static void case_habits(void) {
    open_own();
    char *memory = map(64, MAP_PRIVATE);
    memset(memory, 1, 64 * PAGE);
    clear();
    unsigned seed = 1, surplus = 0;
    for (int round = 0; round < 600; round++) {
        char wanted[64] = {0};
        /* The first half is written in every round, for 200 rounds each; then none of it. */
        for (int page = 0; page < 32; page++)
            if (round % 300 < 200) memory[page * PAGE]++, wanted[page] = 1;
        for (int i = 0; i < 3; i++) {
            int page = 32 + rand_r(&seed) % 32;
            memory[page * PAGE]++, wanted[page] = 1;
        }
        for (int page = 0; page < 64; page++) {
            int is = dirty(pagemap, memory + page * PAGE);
            if (wanted[page] && !is) fail("round %d: page %d is not dirty", round, page);
            surplus += is && !wanted[page];
        }
        /* After the longest time that is predicted, everything is exact again. */
        if (round % 300 == 299 && dirty(pagemap, memory)) fail("round %d: still predicted", round);
        clear();
    }
    if (surplus > (is_collector() ? 600 * 64 / 10 : 0)) fail("%u pages too many", surplus);
}

/* ---- memory that the program watches by itself */

static void case_foreign(void) {
    open_own();
    char *memory = map(8, MAP_PRIVATE);
    write_pages(memory, "11111111");
    clear();
    clear();
    /* New since the clear, and watched asynchronously by another. */
    char *theirs = map(8, MAP_PRIVATE);
    write_pages(theirs, "11111111");
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
    struct uffdio_api api = {.api = UFFD_API, .features = 1 << 15 | 1 << 12 | 1};
    struct uffdio_register range = {.range = {(uintptr_t)theirs, 8 * PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &range) == 0);
    struct page_region regions[8];
    struct pm_scan_arg arg = {.size = sizeof arg, .start = (uintptr_t)theirs, .end = (uintptr_t)theirs + 8 * PAGE,
                              .vec = (uintptr_t)regions, .vec_len = 8, .category_mask = 2, .return_mask = 2};
    arg.flags = 1; /* get what was written, and protect it */
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 1);
    write_pages(theirs, "00110000");
    clear();
    arg.start = (uintptr_t)theirs;
    CHECK(ioctl(pagemap, PAGEMAP_SCAN, &arg) == 1 && regions[0].start == (uintptr_t)theirs + 2 * PAGE);
    CHECK(regions[0].end == (uintptr_t)theirs + 4 * PAGE);
    /* Who has it does not matter to who wrote it. */
    write_pages(theirs, "10000000");
    CHECK(dirty(pagemap, theirs));
    clear();
    expect(memory, "00000000");
    write_pages(memory, "00001000");
    expect(memory, "00001000");
}

/* ---- whether there is anything to see at all */

static void case_absent(void) {
    open_own();
    char *memory = map(1, MAP_PRIVATE);
    memory[0] = 1;
    CHECK(!dirty(pagemap, memory));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"own", case_own},         {"mappings", case_mappings}, {"paths", case_paths},     {"dup", case_dup},
    {"bad-buffers", case_bad_buffers}, {"passed", case_passed}, {"spawned", case_spawned},
    {"full", case_full},       {"cancelled", case_cancelled},
    {"stream", case_stream},   {"scan", case_scan}, {"scan-refusals", case_scan_refusals},         {"fork", case_fork},       {"other", case_other},
    {"threads", case_threads}, {"signals", case_signals},   {"stopped", case_stopped}, {"fork-storm", case_fork_storm},
    {"habits", case_habits},   {"foreign", case_foreign},   {"absent", case_absent},
};

int main(int argc, char **argv) {
    victim_start(1, argv);
    alarm(argc > 2 ? atoi(argv[2]) : 120);
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            puts("fine");
            return 0;
        }
    fputs("usage: softdirty CASE\n", stderr);
    return 2;
}
