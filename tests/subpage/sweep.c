/* Passes over argv[1] records of argv[2] bytes in the order in which they were allocated; argv[3] records are written
 * altogether, with a pause after each argv[4]. */
#include "work.h"

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long records = atol(argv[1]), bytes = atol(argv[2]), updates = atol(argv[3]), per_pause = atol(argv[4]);
    work_heed_signals();
    struct work_mark begin = work_mark();
    unsigned char **record = work_alloc((size_t)records * sizeof *record);
    for (long i = 0; i < records; i++)
        memset(record[i] = work_alloc((size_t)bytes), 0, (size_t)bytes);
    struct work_mark filled = work_mark();
    long i = 0;
    for (; i < updates && !work_ended; i++) {
        memset(record[i % records], (int)(i / records + 1), (size_t)bytes);
        work_pause(i, per_pause);
    }
    work_report(begin, filled, i);
    for (long n = 0; n < records; n++) {
        unsigned char last = (unsigned char)((i - n + records - 1) / records);
        if (record[n][0] != last || record[n][bytes - 1] != last)
            return 1;
    }
    return 0;
}
