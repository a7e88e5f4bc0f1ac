/* Runs under a seccomp filter that kills it for userfaultfd(2), in all threads, or with the word "thread" as second
 * argument in another than the main thread only: it must survive whatever tracks it. */
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

static void filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void *filtered(void *unused) {
    (void)unused;
    filter();
    for (;;) usleep(1000);
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    if (argc > 2 && !strcmp(argv[2], "thread")) helper(filtered, NULL);
    else filter();
    victim_ready();
    for (volatile uint64_t n = 0; !over(); n++)
        if (n % 4096 == 0) usleep(100);
    return 0;
}
