/* Has a descriptor table of which it knows every entry: what it opens must get the lowest free number, what it puts somewhere
 * by dup2(2) must stay there, and a table that is full must have room for nobody.
 *
 * The second argument says who does that while the main thread sleeps: another "thread", or another "process" that shares the
 * table (CLONE_FILES). With "full" the limit on descriptors is used up; with "queue" it waits to be notified of a message,
 * which a process that closes any descriptor of that queue in the name of this process would take back. */
#include "victim.h"
#include <fcntl.h>
#include <mqueue.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

static int lowest;

static void check(uint64_t round) {
    int opened = open("/dev/null", O_RDONLY);
    if (opened != lowest) fail("open gave %d, not %d", opened, lowest);
    CHECK(dup2(0, lowest + 1) == lowest + 1);
    if (round % 4 == 0) usleep(200);
    CHECK(fcntl(lowest, F_GETFD) >= 0);
    CHECK(fcntl(lowest + 1, F_GETFD) >= 0);
    CHECK(close(lowest) == 0);
    CHECK(dup2(0, lowest) == lowest);
    if (round % 4 == 1) usleep(200);
    CHECK(fcntl(lowest, F_GETFD) >= 0);
    CHECK(close(lowest) == 0);
    CHECK(close(lowest + 1) == 0);
}

static void *checks(void *unused) {
    (void)unused;
    for (uint64_t round = 0;; round++) check(round);
    return NULL;
}

static int process(void *unused) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    checks(unused);
    return 0;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    const char *how = argc > 2 ? argv[2] : "thread";
    lowest = dup(0);
    CHECK(lowest > 2);
    pid_t child = 0;
    mqd_t queue = -1;
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    if (!strcmp(how, "full")) {
        struct rlimit limit = {lowest + 1, lowest + 1};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    } else if (!strcmp(how, "queue")) {
        char name[64];
        snprintf(name, sizeof name, "/pagetrail-%d", getpid());
        queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, NULL);
        if (queue == -1) exit(fprintf(stderr, "no message queues: %m\n") ? 77 : 1);
        CHECK(mq_unlink(name) == 0);
        CHECK(mq_notify(queue, &none) == 0);
    } else {
        CHECK(close(lowest) == 0);
        static char stack[1 << 16];
        if (!strcmp(how, "process"))
            CHECK((child = clone(process, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL)) > 0);
        else
            helper(checks, NULL);
    }
    victim_ready();
    while (!over()) {
        if (!strcmp(how, "full")) {
            CHECK(dup(0) == -1);
            errno = 0;
        }
        if (queue != -1) {
            CHECK(mq_notify(queue, &none) == -1 && errno == EBUSY);
            errno = 0;
            CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
        }
        int status;
        if (child && waitpid(child, &status, WNOHANG) != 0) fail("the other process found a fault");
        usleep(500);
    }
    if (child) kill(child, SIGKILL);
    return 0;
}
