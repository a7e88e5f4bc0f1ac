/* Makes a blocking transfer that nothing but a signal may cut short, over and over, with a peer that is slow; the second
 * argument says which. What arrives is checked byte by byte, and so are the registers of the call. */
#include "victim.h"
#include <fcntl.h>
#include <pty.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>
#include <termios.h>

enum { LENGTH = 1 << 20 };
static char *out, *in;
static int ends[2];
static const char *how;

/* The byte at a place of the stream. */
static char pattern(uint64_t at) { return (char)(at * 2654435761u >> 13); }

static void *reads(void *unused) {
    (void)unused;
    static char buffer[1 << 15];
    for (uint64_t at = 0;;) {
        usleep(200);
        ssize_t got = read(ends[0], buffer, sizeof buffer);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++)
            if (buffer[i] != pattern((at + i) % LENGTH)) fail("byte %zd after %ju is wrong", i, (uintmax_t)at);
        at += got;
    }
    return NULL;
}

static void *writes(void *unused) {
    (void)unused;
    for (uint64_t at = 0;; at = (at + (1 << 15)) % LENGTH) {
        usleep(200);
        CHECK(write(ends[1], out + at, 1 << 15) == 1 << 15);
    }
    return NULL;
}

/* A system call by hand: it must leave all registers but three alone. */
static long call(long number, long a, long b, long c, long d) {
    long result, a1 = a, b1 = b, c1 = c;
    register long d1 __asm__("r10") = d;
    register long e1 __asm__("r8") = 0;
    register long f1 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result), "+D"(a1), "+S"(b1), "+d"(c1), "+r"(d1), "+r"(e1), "+r"(f1)
                     : "0"(number)
                     : "rcx", "r11", "memory");
    if (a1 != a || b1 != b || c1 != c || d1 != d || e1 || f1) fail("call %ld changed a register", number);
    return result;
}

/* Pieces of all lengths, empty ones among them, that make up the memory from `at` on. */
enum { PIECES = 9 };
static struct iovec *pieces(char *at) {
    static struct iovec list[PIECES];
    static const size_t lengths[PIECES - 1] = {1, 100000, 0, 300000, 65536, 0, 4097, 200000};
    size_t left = LENGTH;
    for (int i = 0; i < PIECES; i++) {
        list[i] = (struct iovec){at, i < PIECES - 1 ? lengths[i] : left};
        at += list[i].iov_len;
        left -= list[i].iov_len;
    }
    return list;
}

/* Messages of one number each. */
enum { MESSAGES = 200 };
static uint64_t numbers[MESSAGES];
static struct mmsghdr *messages(void) {
    static struct mmsghdr list[MESSAGES];
    static struct iovec each[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        each[i] = (struct iovec){&numbers[i], sizeof numbers[i]};
        list[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &each[i], .msg_iovlen = 1}};
    }
    return list;
}

static void *reads_messages(void *unused) {
    (void)unused;
    for (uint64_t next = 0, number;; next++) {
        if (next % 20 == 0) usleep(200);
        CHECK(read(ends[0], &number, sizeof number) == sizeof number);
        if (number != next) fail("message %ju, not %ju", (uintmax_t)number, (uintmax_t)next);
    }
    return NULL;
}

static void *writes_messages(void *unused) {
    (void)unused;
    for (uint64_t next = 0;; next++) {
        if (next % 20 == 0) usleep(200);
        CHECK(write(ends[1], &next, sizeof next) == sizeof next);
    }
    return NULL;
}

/* What a terminal reads without waiting for lines comes in small numbers of bytes; for more than 64 Linux does not wait. */
enum { TYPED = 60 };
static void *types(void *unused) {
    (void)unused;
    for (uint64_t at = 0;; at = (at + 16) % LENGTH) {
        usleep(100);
        CHECK(write(ends[1], out + at, 16) == 16);
    }
    return NULL;
}

static void terminal(void) {
    struct termios settings;
    CHECK(openpty(&ends[1], &ends[0], NULL, NULL, NULL) == 0);
    CHECK(tcgetattr(ends[0], &settings) == 0);
    cfmakeraw(&settings);
    settings.c_cc[VMIN] = TYPED;
    CHECK(tcsetattr(ends[0], TCSANOW, &settings) == 0);
}

static void tcp(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    CHECK((ends[1] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(connect(ends[1], (struct sockaddr *)&address, length) == 0);
    CHECK((ends[0] = accept(listener, NULL, NULL)) >= 0);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    how = argc > 2 ? argv[2] : "pipe";
    CHECK((out = malloc(LENGTH)) && (in = malloc(4 * LENGTH)));
    for (uint64_t at = 0; at < LENGTH; at++) out[at] = pattern(at);
    int random = !strcmp(how, "random"), zero = open("/dev/zero", O_RDONLY);
    int many = strstr(how, "mmsg") != NULL, tty = !strcmp(how, "tty");
    int receives = strstr(how, "waitall") != NULL;
    if (strstr(how, "pipe")) CHECK(pipe(ends) == 0);
    else if (!strncmp(how, "tcp", 3)) tcp();
    else if (tty) terminal();
    else CHECK(socketpair(AF_UNIX, many ? SOCK_DGRAM : SOCK_STREAM, 0, ends) == 0);
    if (many) helper(!strcmp(how, "recvmmsg") ? writes_messages : reads_messages, NULL);
    else if (tty) helper(types, NULL);
    else if (!random && !strstr(how, "zero")) helper(receives ? writes : reads, NULL);
    int file = memfd_create("transfers", 0);
    CHECK(file >= 0 && write(file, out, LENGTH) == LENGTH);
    victim_ready();
    uint64_t calls = 0, next = 0, typed = 0;
    for (; !victim_stopping && !over(); calls++) {
        long want = LENGTH, got;
        struct msghdr message = {.msg_iov = pieces(receives ? in : out), .msg_iovlen = PIECES};
        off_t from = 0;
        for (int i = 0; many && i < MESSAGES; i++) numbers[i] = next + i;
        /* SIGTERM may cut a transfer short; nothing else. */
        if (random) got = call(SYS_getrandom, (long)in, want = 4 * LENGTH, 0, 0);
        else if (!strcmp(how, "zero")) got = call(SYS_read, zero, (long)in, want = 4 * LENGTH, 0);
        else if (!strcmp(how, "readv zero")) got = call(SYS_readv, zero, (long)pieces(in), PIECES, 0);
        else if (!strcmp(how, "sendmmsg")) got = call(SYS_sendmmsg, ends[1], (long)messages(), want = MESSAGES, 0);
        else if (!strcmp(how, "recvmmsg")) got = call(SYS_recvmmsg, ends[0], (long)messages(), want = MESSAGES, 0);
        else if (tty) got = call(SYS_read, ends[0], (long)in, LENGTH, 0);
        else if (strstr(how, "recvmsg")) got = call(SYS_recvmsg, ends[0], (long)&message, MSG_WAITALL, 0);
        else if (receives) got = call(SYS_recvfrom, ends[0], (long)in, want, MSG_WAITALL);
        else if (strstr(how, "sendfile")) got = call(SYS_sendfile, ends[1], file, (long)&from, want);
        else if (strstr(how, "sendmsg")) got = call(SYS_sendmsg, ends[1], (long)&message, MSG_NOSIGNAL, 0);
        else if (strstr(how, "send")) got = call(SYS_sendto, ends[1], (long)out, want, MSG_NOSIGNAL);
        else if (strstr(how, "writev")) got = call(SYS_writev, ends[1], (long)message.msg_iov, PIECES, 0);
        else got = call(SYS_write, ends[1], (long)out, want, 0);
        if (victim_stopping) break;
        /* More may have been typed by then. */
        if (tty ? got < TYPED : got != want) fail("%s: %ld of %ld after %ju calls", how, got, want, (uintmax_t)calls);
        if (receives && memcmp(in, out, want)) fail("%s: other bytes arrived", how);
        for (long i = 0; tty && i < got; i++, typed++)
            if (in[i] != pattern(typed % LENGTH)) fail("%s: byte %ju is wrong", how, (uintmax_t)typed);
        for (int i = 0; many && i < MESSAGES; i++, next++)
            if (numbers[i] != next) fail("%s: message %ju, not %ju", how, (uintmax_t)numbers[i], (uintmax_t)next);
    }
    printf("%ju calls\n", (uintmax_t)calls);
    return 0;
}
