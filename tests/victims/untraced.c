/* Looks for what a tracer changes, and exits with a code that says what it found:
     10  it has a tracer (TracerPid in proc_pid_status(5))
     11  its child may not trace it, as LeakSanitizer's does
     12  PTRACE_TRACEME fails in a child
   With an argument it prints its effective user instead, and 20 is the code where that cannot be written. */
#include "victim.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static int tracer(void) {
    char line[256];
    int pid = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "TracerPid: %d", &pid) == 1) break;
    fclose(status);
    return pid;
}

static int child_traces_us(void) {
    int status, us = getpid();
    /* Yama lets no child trace its parent otherwise. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_SEIZE, us, NULL, NULL) != 0) _exit(errno);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int traced_by_parent(void) {
    int status;
    pid_t child = fork();
    if (child == 0) _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : 1);
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) return printf("euid %d\n", (int)geteuid()) > 0 && fflush(stdout) == 0 ? 0 : 20;
    /* For some rounds: a tracer could come with one. */
    for (int i = 0; i < 40; i++) {
        if (tracer() != 0) return 10;
        struct timespec nap = {0, 5000000};
        nanosleep(&nap, NULL);
    }
    if (!child_traces_us()) return 11;
    if (!traced_by_parent()) return 12;
    return 0;
}
