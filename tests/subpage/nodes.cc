// A tree of many small nodes: argv[1] of them, then argv[3] random updates, with a pause after each argv[4]; argv[2] is the
// bytes of a node's value.
#include "work.h"
#include <map>
#include <memory>

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long records = atol(argv[1]), bytes = atol(argv[2]), updates = atol(argv[3]), per_pause = atol(argv[4]);
    work_heed_signals();
    struct work_mark begin = work_mark();
    std::map<long, std::unique_ptr<char[]>> nodes;
    for (long i = 0; i < records; i++) {
        auto &node = nodes[static_cast<long>(work_random())];
        node = std::make_unique<char[]>(bytes);
        memset(node.get(), static_cast<int>(i), bytes);
    }
    struct work_mark filled = work_mark();
    long i = 0;
    for (; i < updates && !work_ended; i++) {
        auto at = nodes.lower_bound(static_cast<long>(work_random()));
        if (at != nodes.end())
            memset(at->second.get(), static_cast<int>(work_random()), bytes);
        work_pause(i, per_pause);
    }
    work_report(begin, filled, i);
}
