/* Replaces itself by execve(2), argv[3] times, from the main thread or (argv[2] is "thread") from another one, with
 * others running; checks its memory each time, and exits with the number of times. */
#include "victim.h"
#include <sys/mman.h>

static char **arguments;

static void *again(void *unused) {
    (void)unused;
    execv("/proc/self/exe", arguments);
    fail("execv: %s", strerror(errno));
}

static void *idle(void *unused) {
    (void)unused;
    for (;;) usleep(500);
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    int total = atoi(argv[3]), done = argc > 4 ? atoi(argv[4]) : 0;
    uint64_t *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 1 << 17; i += 64) {
        if (memory[i]) fail("new memory is not zero");
        memory[i] = i;
    }
    usleep(2000);
    for (int i = 0; i < 1 << 17; i += 64)
        if (memory[i] != (uint64_t)i) fail("memory has changed");
    if (done == total) return total;
    char next[16];
    snprintf(next, sizeof next, "%d", done + 1);
    char *all[] = {argv[0], argv[1], argv[2], argv[3], next, NULL};
    arguments = all;
    if (!strcmp(argv[2], "main")) again(NULL);
    helper(idle, NULL);
    helper(idle, NULL);
    pthread_join(helper(again, NULL), NULL);
    return 1;
}
