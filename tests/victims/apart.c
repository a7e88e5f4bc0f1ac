// A program whose second thread has something of its own that threads share otherwise, or is
// restricted as the first is not; says "ready".
//
// apart seccomp|files|directory|capabilities

#define _GNU_SOURCE
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int filter(void) {
    struct sock_filter allow_all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, allow_all};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static int drop_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    return syscall(SYS_capset, &header, none);
}

static void *run(void *argument) {
    const char *what = argument;
    int failed = !strcmp(what, "seccomp")     ? filter()
                 : !strcmp(what, "files")     ? unshare(CLONE_FILES)
                 : !strcmp(what, "directory") ? unshare(CLONE_FS)
                                              : drop_capabilities();
    if (failed) _exit(3);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argv[1])) return 2;
    pause();
    return 0;
}
