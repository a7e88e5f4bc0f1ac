/* Runs under seccomp, and must survive whatever tracks it. The second argument says how:
 *   all      a filter in all threads that kills for userfaultfd(2)
 *   thread   the same in another than the main thread only
 *   restart  a filter that kills for restart_syscall(2), which a stop makes of a sleep
 *   strict   no filter, but strict mode: read, write, exit, sigreturn */
#include "victim.h"
#include <poll.h>

static volatile uint64_t memory[4096];

static void *filtered(void *unused) {
    (void)unused;
    kill_for(SYS_userfaultfd);
    for (;;) usleep(1000);
    return NULL;
}

static void *sleeps(void *unused) {
    (void)unused;
    for (;;) {
        double began = now();
        CHECK(poll(NULL, 0, 20) == 0);
        if (now() - began < 0.02) fail("poll ended too early");
    }
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    const char *how = argc > 2 ? argv[2] : "all";
    if (!strcmp(how, "strict")) {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        CHECK(write(1, "ready\n", 6) == 6);
        /* No clock: strict mode takes the time stamp counter away. */
        for (uint64_t n = 0; !victim_stopping; n++) memory[n % 4096] = n;
        /* exit_group would kill. */
        syscall(SYS_exit, 0);
    }
    if (!strcmp(how, "thread")) {
        helper(filtered, NULL);
    } else if (!strcmp(how, "restart")) {
        kill_for(SYS_restart_syscall);
        helper(sleeps, NULL);
    } else {
        kill_for(SYS_userfaultfd);
    }
    victim_ready();
    for (volatile uint64_t n = 0; !over(); n++)
        if (n % 4096 == 0) usleep(100);
    return 0;
}
