// A program with kernel objects at the edges of what an image keeps, one kind for each run: it makes
// them, says "ready", and checks them when a file "go" has come, started anew or not.
//
// corners DIRECTORY KIND

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define FAIL(...) (printf("wrong: " __VA_ARGS__), printf("\n"), fflush(stdout), _exit(9))
#define NEED(what) do { if (!(what)) FAIL("line %d: %s", __LINE__, strerror(errno)); } while (0)

static void await(void) {
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (access("go", F_OK) != 0) usleep(300);
}

// More bytes in a socket than one holds that was just made.
static void buffer(void) {
    int pair[2], bytes = 400000;
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    NEED(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
    static char block[32768];
    memset(block, 7, sizeof block);
    long sent = 0;
    for (ssize_t count; (count = send(pair[0], block, sizeof block, MSG_DONTWAIT)) > 0;) sent += count;
    await();
    long got = 0;
    for (ssize_t count; (count = recv(pair[1], block, sizeof block, MSG_DONTWAIT)) > 0; got += count) {
        for (ssize_t at = 0; at < count; at++) if (block[at] != 7) FAIL("a byte in a socket");
    }
    if (got != sent) FAIL("%ld bytes in a socket instead of %ld", got, sent);
}

// All descriptors that there may be.
static void table(void) {
    const struct rlimit limit = {16, 16};
    int ends[2], file = memfd_create("lost", 0);
    NEED(file >= 0 && ftruncate(file, PAGE) == 0);
    uint64_t *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    NEED(memory != MAP_FAILED);
    memory[5] = 55;
    close(file);
    NEED(pipe(ends) == 0 && dup2(ends[1], 15) == 15);
    close(ends[1]);
    NEED(write(15, "bytes", 5) == 5);
    NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (open("/dev/null", O_RDONLY) >= 0) {}
    NEED(errno == EMFILE);
    await();
    char text[5];
    NEED(read(ends[0], text, 5) == 5);
    if (memcmp(text, "bytes", 5) || memory[5] != 55) FAIL("contents");
    if (open("/dev/null", O_RDONLY) >= 0 || errno != EMFILE) FAIL("a descriptor too many");
    struct rlimit now;
    NEED(getrlimit(RLIMIT_NOFILE, &now) == 0);
    if (now.rlim_cur != 16 || now.rlim_max != 16) FAIL("a limit");
}

// Memory and a pipe of somebody who is not root.
static void user(void) {
    NEED(chmod(".", 0777) == 0);
    NEED(setgroups(0, NULL) == 0 && setresgid(1000, 1000, 1000) == 0 && setresuid(1000, 1000, 1000) == 0);
    int ends[2], file = memfd_create("private", MFD_ALLOW_SEALING);
    NEED(file >= 0 && fchmod(file, 0600) == 0 && pipe(ends) == 0);
    await();
    char path[64];
    struct stat status;
    NEED(fstat(file, &status) == 0);
    if (status.st_uid != 1000 || status.st_gid != 1000 || (status.st_mode & 07777) != 0600) FAIL("an owner");
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    NEED(open(path, O_RDONLY | O_NONBLOCK) >= 0);
    NEED(fchmod(file, 0400) == 0);
}

// Memory that was opened for writing before that was forbidden.
static void rights(void) {
    int file = memfd_create("written", MFD_ALLOW_SEALING);
    NEED(file >= 0 && ftruncate(file, PAGE) == 0);
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    NEED(memory != MAP_FAILED && fchmod(file, 0444) == 0);
    await();
    struct stat status;
    NEED(fstat(file, &status) == 0 && pwrite(file, "text", 4, 9) == 4);
    if ((status.st_mode & 07777) != 0444 || memcmp(memory + 9, "text", 4)) FAIL("access rights");
    memory[0] = 1;
}

// Shared memory of which a mapping shows the first page only, until it grows again.
static void shrunk(void) {
    char *memory = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    memset(memory, 'X', 8 * PAGE);
    NEED(mremap(memory, 8 * PAGE, PAGE, 0) == memory);
    await();
    memory = mremap(memory, PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    NEED(memory != MAP_FAILED);
    for (size_t at = 0; at < 8 * PAGE; at++) if (memory[at] != 'X') FAIL("memory that is shown again");
}

// A call that begins anew, whose code lies in memory of the program, at the end of one page.
static void sleeps(void) {
    char *code = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(code != MAP_FAILED);
    memset(code, 0x90, 64 * PAGE);
    // mov eax, SYS_nanosleep; syscall; ret
    static const unsigned char call[] = {0xb8, 35, 0, 0, 0, 0x0f, 0x05, 0xc3};
    char *at = code + 32 * PAGE - 7;
    memcpy(at, call, sizeof call);
    printf("ready %d\n", getpid());
    fflush(stdout);
    const struct timespec time = {0, 30000000};
    long (*nap)(const struct timespec *, void *) = (void *)at;
    while (access("go", F_OK) != 0) {
        long outcome = nap(&time, NULL);
        if (outcome != 0) FAIL("a call that begins anew: %ld", outcome);
    }
}

// Memory at several descriptors.
static void many(void) {
    int files[10];
    for (int i = 0; i < 10; i++) {
        files[i] = memfd_create("one of many", 0);
        NEED(files[i] >= 0 && pwrite(files[i], &i, sizeof i, 0) == sizeof i);
    }
    await();
    for (int i = 0, was; i < 10; i++) {
        NEED(pread(files[i], &was, sizeof was, 0) == sizeof was);
        if (was != i) FAIL("memory");
    }
}

// Messages on their way, and then none.
static void messages(int packets) {
    int ends[2];
    char text[8];
    if (packets) NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    else NEED(pipe2(ends, O_DIRECT) == 0);
    NEED(write(ends[1], "one", 3) == 3 && write(ends[1], "two", 3) == 3);
    await();
    NEED(read(ends[0], text, 8) == 3 && read(ends[0], text, 8) == 3);
    printf("received\n");
    fflush(stdout);
    while (access("stop", F_OK) != 0) usleep(300);
}

// Memory that comes and goes.
static void churn(void) {
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (access("go", F_OK) != 0) {
        for (int i = 0; i < 1000; i++) {
            int file = memfd_create("short-lived", 0);
            NEED(file >= 0 && ftruncate(file, 16 * PAGE) == 0);
            char *memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            NEED(memory != MAP_FAILED);
            memory[0] = 1;
            close(file);
            munmap(memory, 16 * PAGE);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 3 || chdir(argv[1])) return 2;
    const char *kind = argv[2];
    if (!strcmp(kind, "buffer")) buffer();
    else if (!strcmp(kind, "table")) table();
    else if (!strcmp(kind, "user")) user();
    else if (!strcmp(kind, "rights")) rights();
    else if (!strcmp(kind, "shrunk")) shrunk();
    else if (!strcmp(kind, "sleeps")) sleeps();
    else if (!strcmp(kind, "many")) many();
    else if (!strcmp(kind, "packets")) messages(1);
    else if (!strcmp(kind, "pipe")) messages(0);
    else if (!strcmp(kind, "churn")) churn();
    else return 2;
    printf("clean\n");
    fflush(stdout);
    return 0;
}
