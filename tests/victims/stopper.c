/* Computes until it is stopped by SIGSTOP, and counts how often it was continued: a stopped process stays stopped
 * any process that attaches, and SIGCONT continues it as ever. */
#include "victim.h"

static volatile sig_atomic_t continued;

static void count(int signal) {
    (void)signal;
    continued++;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGCONT, &action, NULL);
    victim_ready();
    volatile uint64_t sum = 0, n;
    for (n = 0; !over(); n++) {
        sum += n;
        if (sum != n * (n + 1) / 2) fail("the sum is wrong");
        if (n % 4096 == 0) usleep(100);
    }
    printf("continued %d\n", (int)continued);
    return 0;
}
