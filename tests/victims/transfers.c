/* Makes a blocking transfer that nothing but a signal may cut short, over and over, with a peer that is slow; the second
 * argument says which. What arrives is checked byte by byte, and so are the registers of the call. */
#include "victim.h"
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <netinet/in.h>

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
    if (!strcmp(how, "pipe")) CHECK(pipe(ends) == 0);
    else if (!strncmp(how, "tcp", 3)) tcp();
    else CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    int receives = strstr(how, "waitall") != NULL, random = !strcmp(how, "random");
    int zero = open("/dev/zero", O_RDONLY);
    if (!random && strcmp(how, "zero")) helper(receives ? writes : reads, NULL);
    victim_ready();
    uint64_t calls = 0;
    for (; !victim_stopping && !over(); calls++) {
        long want = LENGTH, got;
        /* SIGTERM may cut a transfer short; nothing else. */
        if (random) got = call(SYS_getrandom, (long)in, want = 4 * LENGTH, 0, 0);
        else if (!strcmp(how, "zero")) got = call(SYS_read, zero, (long)in, want = 4 * LENGTH, 0);
        else if (receives) got = call(SYS_recvfrom, ends[0], (long)in, want, MSG_WAITALL);
        else if (strstr(how, "send")) got = call(SYS_sendto, ends[1], (long)out, want, MSG_NOSIGNAL);
        else got = call(SYS_write, ends[1], (long)out, want, 0);
        if (victim_stopping) break;
        if (got != want) fail("%s: %ld of %ld after %ju calls", how, got, want, (uintmax_t)calls);
        if (receives && memcmp(in, out, want)) fail("%s: other bytes arrived", how);
    }
    printf("%ju calls\n", (uintmax_t)calls);
    return 0;
}
