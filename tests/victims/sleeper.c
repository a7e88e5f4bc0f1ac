/* Sleeps of all kinds return 0, never EINTR, and never early: stops are not seen through nanosleep(2),
 * clock_nanosleep(2), usleep(3) and sleep(3). */
#include "victim.h"

static void slept(const char *what, int result, double since, double seconds) {
    if (victim_stopping) return;
    double took = now() - since;
    if (result != 0) fail("%s returned %d (%s)", what, result, strerror(result > 0 ? result : errno));
    if (took < seconds) fail("%s of %.6f s took only %.6f s", what, seconds, took);
    if (took > seconds + 30) fail("%s of %.6f s took %.6f s", what, seconds, took);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    victim_ready();
    struct timespec t = {0, 15000000}, rest;
    while (!over()) {
        double since = now();
        slept("nanosleep", nanosleep(&t, &rest), since, 0.015);
        since = now();
        slept("clock_nanosleep", clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL), since, 0.015);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 15000000;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        since = now();
        int result;
        do result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        while (result == EINTR && victim_stopping);
        slept("clock_nanosleep until", result, since, 0.0149);
        since = now();
        slept("usleep", usleep(15000), since, 0.015);
    }
    return 0;
}
