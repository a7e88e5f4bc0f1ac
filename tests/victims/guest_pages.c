/* In a guest: writes and reads a few hot pages of its memory, again and again, and tells where its pages are:
 * guest_pages FILE. Lines "hot FRAME" and "cold FRAME", FRAME being a guest-physical page number in decimal, and
 * "end" at last. Every tenth page of the first megabytes is hot, so that no region is. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 8192, HOT = 512, STEP = 10 };

static int is_hot(int page) {
    return page % STEP == 0 && page / STEP < HOT;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    volatile char *memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (argc < 2 || memory == MAP_FAILED) return 1;
    /* Huge pages would be hot as a whole. */
    madvise((void *)memory, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE);
    for (int page = 0; page < PAGES; page++) memory[(size_t)page * PAGE] = 1;
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    FILE *file = fopen(argv[1], "w");
    if (pagemap < 0 || !file) return 1;
    for (int page = 0; page < PAGES; page++) {
        uint64_t entry = 0;
        off_t at = (off_t)(((uintptr_t)memory / PAGE + (uintptr_t)page) * sizeof entry);
        if (pread(pagemap, &entry, sizeof entry, at) != sizeof entry) return 1;
        fprintf(file, "%s %llu\n", is_hot(page) ? "hot" : "cold", (unsigned long long)(entry & ((1ull << 55) - 1)));
    }
    fputs("end\n", file);
    if (fclose(file)) return 1;
    for (unsigned pass = 0;; pass++) {
        for (int page = 0; page < PAGES; page++) {
            if (!is_hot(page)) continue;
            volatile char *byte = memory + (size_t)page * PAGE;
            if (page % (2 * STEP)) *byte = (char)pass;
            else (void)*byte;
        }
        usleep(1000);
    }
}
