/* A process whose main thread has ended while another runs on: its PID is that of a zombie without memory. The other
 * thread writes to one page after the other; it says at which address before it is ready. */
#include "victim.h"
#include <sys/mman.h>

enum { PAGES = 64 };

static void *writes(void *main_thread) {
    CHECK(pthread_join(*(pthread_t *)main_thread, NULL) == 0);
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    while (state != 'Z') {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    printf("%lx\n", (long)memory);
    victim_ready();
    for (uint64_t round = 0; !over(); round++) {
        memory[round % PAGES * page]++;
        usleep(100);
    }
    exit(0);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    static pthread_t main_thread, other;
    main_thread = pthread_self();
    CHECK(pthread_create(&other, NULL, writes, &main_thread) == 0);
    pthread_exit(NULL);
}
