/* Writes 60 pages from one function and 20 from another, again and again: hot_and_cold PASSES.
 *
 * hot_and_cold deny CMD .. executes CMD under a seccomp filter that refuses perf_event_open(2), as containers do. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
enum { PAGE = 4096, HOT = 60, COLD = 20 };

/* Without it these functions would make no frame, and by frame pointers their caller would not be found. */
#define MAKE_FRAME                                       \
    void *volatile frame = __builtin_frame_address(0);   \
    (void)frame

static volatile char *memory;

APART static void write_hot(int value) {
    MAKE_FRAME;
    for (int page = 0; page < HOT; page++) memory[page * PAGE] = (char)value;
}

APART static void write_cold(int value) {
    MAKE_FRAME;
    for (int page = HOT; page < HOT + COLD; page++) memory[page * PAGE] = (char)value;
}

static int deny(char **command) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    execv(command[0], command);
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "deny")) return deny(argv + 2);
    memory = mmap(NULL, (HOT + COLD) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (int pass = 0; pass < atoi(argv[1]); pass++) {
        write_hot(pass);
        write_cold(pass);
        usleep(20000);
    }
    return 0;
}
