// A program that is checkpointed at any instant, killed, and started anew: it keeps counts in memory
// that lies in no file, and bytes in pipes and sockets, and says on standard output what is wrong.
//
// objects DIRECTORY

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define FAIL(...) (printf("wrong: " __VA_ARGS__), printf("\n"), fflush(stdout), _exit(9))
#define NEED(what) do { if (!(what)) FAIL("line %d: %s", __LINE__, strerror(errno)); } while (0)

static uint64_t *map(int file, int rights, int kind, size_t pages, off_t offset) {
    void *at = mmap(NULL, pages * PAGE, rights, kind, file, offset);
    NEED(at != MAP_FAILED);
    return at;
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1])) return 2;
    const int both = PROT_READ | PROT_WRITE;

    // Two views of one memory, and a part that no view shows; the position is shared by a duplicate.
    int memory = memfd_create("counts", MFD_ALLOW_SEALING);
    NEED(memory >= 0 && ftruncate(memory, 64 * PAGE + 100) == 0);
    int twin = dup(memory);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    int apart = open(path, O_RDONLY | O_CLOEXEC);
    NEED(apart >= 0);
    volatile uint64_t *one = map(memory, both, MAP_SHARED, 4, 0);
    volatile uint64_t *other = map(memory, PROT_READ, MAP_SHARED, 2, PAGE);
    volatile uint64_t *late = map(apart, PROT_READ, MAP_SHARED, 1, 3 * PAGE);
    uint64_t *own = map(memory, both, MAP_PRIVATE, 2, 8 * PAGE);
    NEED(pwrite(memory, "kept", 4, 8 * PAGE) == 4);
    own[512] = 77;
    NEED(pwrite(memory, "the end", 7, 64 * PAGE + 93) == 7);

    // Memory that nobody may write any more, and one that only an older mapping may write.
    int sealed = memfd_create("sealed", MFD_ALLOW_SEALING);
    NEED(write(sealed, "constant", 8) == 8);
    NEED(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    const char *constant = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, sealed, 0);
    NEED(constant != MAP_FAILED);
    int future = memfd_create("future", MFD_ALLOW_SEALING);
    NEED(ftruncate(future, PAGE) == 0);
    volatile uint64_t *before = map(future, both, MAP_SHARED, 1, 0);
    NEED(fcntl(future, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);

    // Memory that has lost its descriptor, and anonymous memory at two addresses.
    int lost = memfd_create("lost", 0);
    NEED(ftruncate(lost, 2 * PAGE) == 0);
    volatile uint64_t *orphan = map(lost, both, MAP_SHARED, 1, PAGE);
    close(lost);
    volatile uint64_t *anonymous = map(-1, both, MAP_SHARED | MAP_ANONYMOUS, 4, 0);
    volatile uint64_t *view = mremap((void *)anonymous, 0, 4 * PAGE, MREMAP_MAYMOVE);
    NEED(view != MAP_FAILED);
    NEED(mprotect((void *)view, 4 * PAGE, PROT_READ) == 0);

    // A pipe whose ends have their numbers the other way round, of another size, with bytes in it.
    int ends[2];
    NEED(pipe2(ends, O_CLOEXEC) == 0);
    int output = fcntl(ends[0], F_DUPFD, 60), input = fcntl(ends[1], F_DUPFD, 50);
    close(ends[0]);
    close(ends[1]);
    NEED(fcntl(input, F_SETPIPE_SZ, 1 << 17) == 1 << 17);
    int pair[2], packets[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    NEED(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, packets) == 0);
    int again = dup(pair[1]);
    int half[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, half) == 0 && write(half[1], "last", 4) == 4);
    close(half[1]);
    int waits = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234};
    NEED(epoll_ctl(waits, EPOLL_CTL_ADD, pair[1], &event) == 0);
    event.data.u64 = 0x5678;
    NEED(epoll_ctl(waits, EPOLL_CTL_ADD, output, &event) == 0);

    uint64_t next = 0, sent = 0;
    for (; next < 1000; next++) NEED(write(input, &next, 8) == 8);
    for (; sent < 10; sent++) NEED(write(pair[0], &sent, 8) == 8);
    NEED(lseek(memory, 30 * PAGE, SEEK_SET) == 30 * PAGE);
    printf("ready %d\n", getpid());
    fflush(stdout);

    uint64_t round;
    for (round = 0; access("stop", F_OK) != 0; round++) {
        if (one[600] != round || other[600 - 512] != round) FAIL("two views of a memory");
        one[600] = round + 1;
        if (other[600 - 512] != round + 1) FAIL("what one view writes the other shows");
        one[3 * 512] = round;
        if (late[0] != round) FAIL("a view by another descriptor");
        if (own[0] != 0x7470656b && memcmp(own, "kept", 4)) FAIL("a private view");
        if (own[512] != 77 + round) FAIL("a private view's own page");
        own[512]++;
        char text[8] = {0};
        NEED(pread(twin, text, 7, 64 * PAGE + 93) == 7);
        if (memcmp(text, "the end", 7)) FAIL("the end of a memory");
        struct stat status;
        NEED(fstat(apart, &status) == 0);
        if (status.st_size != 64 * PAGE + 100) FAIL("the length of a memory");
        if (!(fcntl(apart, F_GETFD) & FD_CLOEXEC) || fcntl(twin, F_GETFD)) FAIL("close-on-exec");
        if (write(apart, text, 1) >= 0) FAIL("a descriptor for reading writes");

        // Pages that no view shows, by position: 8 bytes a round, 8 pages round and round.
        off_t at = 30 * PAGE + (off_t)(round % PAGE * 8);
        if (lseek(twin, 0, SEEK_CUR) != at) FAIL("a position: %ld", (long)lseek(twin, 0, SEEK_CUR));
        uint64_t was = 0;
        NEED(pread(apart, &was, 8, at) == 8);
        if (was != (round < PAGE ? 0 : round - PAGE)) FAIL("memory that no view shows");
        NEED(write(round % 2 ? memory : twin, &round, 8) == 8);
        if (round % PAGE == PAGE - 1) NEED(lseek(memory, 30 * PAGE, SEEK_SET) == 30 * PAGE);

        if (memcmp(constant, "constant", 8)) FAIL("sealed memory");
        if (write(sealed, "x", 1) >= 0 || errno != EPERM) FAIL("a seal");
        if (fcntl(sealed, F_GET_SEALS) != (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK)) FAIL("seals");
        if (before[9] != round) FAIL("memory with a seal");
        before[9]++;
        if (pwrite(future, "x", 1, 0) >= 0 || errno != EPERM) FAIL("a seal for later");
        if (orphan[3] != round) FAIL("memory without a descriptor");
        orphan[3]++;
        if (anonymous[700] != round || view[700] != round) FAIL("anonymous memory at two addresses");
        anonymous[700]++;
        if (view[700] != round + 1) FAIL("anonymous memory is not shared");

        struct epoll_event found[2] = {{0}};
        if (epoll_wait(waits, found, 2, 0) != 2 || found[0].data.u64 + found[1].data.u64 != 0x68ac)
            FAIL("epoll");
        uint64_t got = 0;
        NEED(read(output, &got, 8) == 8);
        if (got != next - 1000) FAIL("bytes in a pipe: %lu", (unsigned long)got);
        NEED(write(input, &next, 8) == 8);
        next++;
        if (fcntl(input, F_GETPIPE_SZ) != 1 << 17) FAIL("the size of a pipe");
        NEED(read(round % 2 ? again : pair[1], &got, 8) == 8);
        if (got != sent - 10) FAIL("bytes in a socket: %lu", (unsigned long)got);
        NEED(write(pair[0], &sent, 8) == 8);
        sent++;
        if (read(pair[0], &got, 0) != 0 || !(fcntl(pair[0], F_GETFD) & FD_CLOEXEC)) FAIL("a socket");
        if (read(packets[0], text, 8) >= 0 || errno != EAGAIN) FAIL("an empty socket");
        if (recv(half[0], text, 8, MSG_PEEK) != 4 || memcmp(text, "last", 4))
            FAIL("a socket whose peer is closed");
        struct timespec pause = {0, 300000};
        nanosleep(&pause, NULL);
    }
    if (round == 0) FAIL("no round");
    // Nobody else has an end.
    close(input);
    for (uint64_t left = next - 1000, got; left < next; left++) {
        NEED(read(output, &got, 8) == 8);
        if (got != left) FAIL("the last bytes of a pipe");
    }
    char end;
    if (read(output, &end, 1) != 0) FAIL("a pipe without an end");
    char rest[8];
    if (read(half[0], rest, 8) != 4 || read(half[0], rest, 8) != 0) FAIL("the end of a socket");
    close(pair[0]);
    uint64_t left;
    while (read(again, &left, 8) == 8) {}
    if (read(again, &end, 1) != 0) FAIL("a socket without an end");
    printf("clean\n");
    fflush(stdout);
    return 0;
}
