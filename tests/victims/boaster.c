/* Describes sub-page heaps of terabytes, many times over: what a tracker remembers of them must be bounded. It prints the
 * addresses of its descriptions. */
#include "victim.h"
#include <sys/mman.h>

enum { DESCRIPTIONS = 80, BYTES = 65536, SUPERBLOCKS = 2046 };

static uint64_t *table_of(size_t bytes, int seen) {
    uint64_t *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(table != MAP_FAILED);
    /* Slabs of whole pages, used before. */
    for (size_t w = 0; seen && w < bytes / 8; w++) table[w] = 16ull << 16 | 2ull << 32;
    return table;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    int file = memfd_create("pagetrail-heap", 0);
    CHECK(file >= 0);
    CHECK(ftruncate(file, BYTES) == 0);
    const uint64_t huge = 1ull << 40, large = 1ull << 30;
    uint64_t base = 1ull << 44;
    uint64_t *huge_table = table_of(huge / BYTES * 8, 0), *large_table = table_of(large / BYTES * 8, 1);
    for (int d = 0; d < DESCRIPTIONS; d++) {
        uint64_t window = d ? large : huge, count = d ? SUPERBLOCKS : 8;
        char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        CHECK(at != MAP_FAILED);
        memcpy(at, "PTHEAP\0\1", 8);
        uint32_t numbers[] = {4096, 1, BYTES, count};
        memcpy(at + 8, numbers, sizeof numbers);
        uint64_t address = (uint64_t)at;
        memcpy(at + 24, &address, 8);
        for (uint64_t s = 0; s < count; s++, base += window) {
            uint64_t entry[] = {base, window, (uint64_t)(d ? large_table : huge_table), window / BYTES};
            memcpy(at + 64 + 32 * s, entry, sizeof entry);
        }
        printf("%lx\n", (unsigned long)address);
    }
    victim_ready();
    victim_rest();
    return 0;
}
