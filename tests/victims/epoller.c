/* epoll_wait(2), epoll_pwait(2), poll(2), ppoll(2), select(2) and pselect(2) with a timeout return 0 when it
 * is over and not before, never EINTR; and without one they return the event that a helper sends.
 *
 * The second argument ends it after so many rounds. */
#include "victim.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

static int ends[2];

static void *feed(void *unused) {
    (void)unused;
    for (;;) {
        usleep(7000);
        if (write(ends[1], "x", 1) != 1) fail("write to the pipe: %s", strerror(errno));
    }
    return NULL;
}

enum { KINDS = 6 };

static int wait_for(int kind, int epoll, int fd, int ms) {
    struct epoll_event event;
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    struct timespec ts = {0, ms * 1000000};
    struct timeval tv = {0, ms * 1000};
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    switch (kind) {
    case 0: return epoll_wait(epoll, &event, 1, ms);
    case 1: return epoll_pwait(epoll, &event, 1, ms, &mask);
    case 2: return poll(&pollfd, 1, ms);
    case 3: return ppoll(&pollfd, 1, ms < 0 ? NULL : &ts, &mask);
    case 4: return select(fd + 1, &set, NULL, NULL, ms < 0 ? NULL : &tv);
    default: return pselect(fd + 1, &set, NULL, NULL, ms < 0 ? NULL : &ts, &mask);
    }
}

static int watching(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    return epoll;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    int silent[2];
    CHECK(pipe(silent) == 0 && pipe(ends) == 0);
    int of_silent = watching(silent[0]), of_fed = watching(ends[0]);
    unsigned rounds = argc > 2 ? atoi(argv[2]) : -1u;
    helper(feed, NULL);
    victim_ready();
    for (unsigned round = 0; round < rounds && !over(); round++) {
        int kind = round % KINDS;
        double since = now();
        int result = wait_for(kind, of_silent, silent[0], 12);
        double took = now() - since;
        if (victim_stopping) break;
        if (result != 0) fail("wait %d with a timeout returned %d (%s)", kind, result, strerror(errno));
        if (took < 0.012) fail("wait %d returned after %.6f s instead of 0.012", kind, took);
        result = wait_for(kind, of_fed, ends[0], -1);
        if (victim_stopping) break;
        if (result != 1) fail("wait %d without a timeout returned %d (%s)", kind, result, strerror(errno));
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1);
    }
    return 0;
}
