/* A parent with 512 pages, and a worker that shares them and writes 100 of them once a byte comes on stdin. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
    char *memory = mmap((void *)0x10000000000, 512 * 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(memory, 1, 512 * 4096);
    int worker = fork();
    if (worker == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        char byte;
        if (read(0, &byte, 1) != 1) return 1;
        for (int page = 0; page < 100; page++) memory[5 * page * 4096] = 2;
        puts("written");
        fflush(stdout);
        for (;;) pause();
    }
    printf("%d\n", worker);
    fflush(stdout);
    for (;;) pause();
}
