/* Writes 500 pages and ends at once, by return or (argv[2] is "exit") by exit_group in another thread. */
#include "victim.h"

static volatile char pages[512 * 4096];

static void *last(void *unused) {
    (void)unused;
    for (int i = 0; i < 500; i++) pages[i * 4096] = 1;
    syscall(SYS_exit_group, 0);
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    if (argc > 2 && !strcmp(argv[2], "exit")) pthread_join(helper(last, NULL), NULL);
    last(NULL);
    return 1;
}
