// tkrzw's in-memory hash table: as tokyo.c.
#include "work.h"
#include <string>
#include <string_view>
#include <tkrzw_dbm_tiny.h>

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long records = atol(argv[1]), bytes = atol(argv[2]), updates = atol(argv[3]), per_pause = atol(argv[4]);
    std::string value(bytes, 0);
    work_heed_signals();
    struct work_mark begin = work_mark();
    tkrzw::TinyDBM db(records * 2);
    auto put = [&](long key, char with) {
        value.assign(bytes, with);
        db.Set(std::string_view(reinterpret_cast<const char *>(&key), sizeof key), value);
    };
    for (long i = 0; i < records; i++)
        put(i, static_cast<char>(i));
    struct work_mark filled = work_mark();
    long i = 0;
    for (; i < updates && !work_ended; i++) {
        long key = static_cast<long>(work_random() % records);
        put(key, static_cast<char>(work_random()));
        work_pause(i, per_pause);
    }
    work_report(begin, filled, i);
    return db.CountSimple() != records;
}
