/* Tokyo Cabinet's in-memory hash table: argv[1] records of argv[2] bytes, then argv[3] random updates, with a pause after
 * each argv[4]. */
#include "work.h"
#include <tcutil.h>

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long records = atol(argv[1]), bytes = atol(argv[2]), updates = atol(argv[3]), per_pause = atol(argv[4]);
    char *value = malloc(bytes);
    work_heed_signals();
    struct work_mark begin = work_mark();
    TCMDB *db = tcmdbnew2((uint32_t)records * 2);
    for (long i = 0; i < records; i++) {
        memset(value, (int)i, bytes);
        tcmdbput(db, &i, sizeof i, value, (int)bytes);
    }
    struct work_mark filled = work_mark();
    long i = 0;
    for (; i < updates && !work_ended; i++) {
        long key = (long)(work_random() % (uint64_t)records);
        memset(value, (int)work_random(), bytes);
        tcmdbput(db, &key, sizeof key, value, (int)bytes);
        work_pause(i, per_pause);
    }
    work_report(begin, filled, i);
    return tcmdbrnum(db) != (uint64_t)records;
}
