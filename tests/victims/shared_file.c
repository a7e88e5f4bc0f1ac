/* Maps a file, argv[2], of argv[3] pages, shared, prints where, and touches every page: the rest is
 * for other processes that have the file. It writes a counter to the last page, and at SIGUSR1 to the
 * second by write(2). With a fourth argument the mapping is private; at SIGUSR1 it writes to a few
 * pages, and each third time it discards some. */
#include "victim.h"
#include <fcntl.h>
#include <sys/mman.h>

static volatile sig_atomic_t asked;

static void ask(int signal) {
    (void)signal;
    asked++;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    CHECK(argc > 3);
    size_t bytes = strtoul(argv[3], NULL, 10) * 4096;
    int file = open(argv[2], O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    int private = argc > 4;
    int flags = private ? MAP_PRIVATE : MAP_SHARED;
    volatile uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(memory != MAP_FAILED);
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += 4096) sum += memory[at / 8];
    printf("%lx\n", (long)memory);
    victim_ready();
    volatile uint64_t *last = memory + (bytes - 4096) / 8;
    sig_atomic_t done = 0;
    while (!over()) {
        ++*last;
        usleep(500);
        if (done != asked) {
            done++;
            uint64_t count = done;
            if (private) {
                size_t pages = bytes / 4096 - 8;
                for (size_t at = 0; at < 5; at++) memory[(count * 31 + at * 7) % pages * 512] = count;
                char *from = (char *)memory + count * 17 % pages * 4096;
                if (count % 3 == 0) CHECK(madvise(from, 7 * 4096, MADV_DONTNEED) == 0);
                continue;
            }
            CHECK(pwrite(file, &count, sizeof count, 4096) == sizeof count);
            size_t pages = bytes / 4096 - 8;
            for (size_t at = 0; at < 5; at++) memory[(count * 37 + at * 11) % pages * 512 + at] = count;
        }
    }
    return sum == 1;
}
