/* Writes more to a pipe than it holds, from two buffers in turn, and is interrupted by SIGUSR1 each time: each write must
 * return what was transferred by then, however often the program is stopped meanwhile. */
#include "victim.h"
#include <fcntl.h>

enum { BYTES = 1 << 20 };

static char buffers[2][BYTES];
static volatile sig_atomic_t handled;

static void handle(int signal) {
    (void)signal;
    handled++;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    int ends[2];
    CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    victim_ready();
    for (int round = 0; !over(); round++) {
        int before = handled;
        ssize_t length = write(ends[1], buffers[round % 2], BYTES);
        if (over()) break;
        if (length <= 0 || length >= BYTES || handled != before + 1)
            fail("write gave %zd, with %d signals", length, (int)handled - before);
        ssize_t left = length;
        while (left > 0) {
            static char drain[65536];
            ssize_t got = read(ends[0], drain, sizeof drain);
            CHECK(got > 0);
            left -= got;
        }
    }
    return 0;
}
