"""SQLite in memory, through Python: as tokyo.c."""
import random
import resource
import sqlite3
import sys
import time

records, size, updates, per_pause = map(int, sys.argv[1:5])
random.seed(1)


def mark():
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def number(path, word):
    with open(path) as lines:
        return int(next(line for line in lines if line.startswith(word)).split()[1])


begin = mark()
db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB)")
db.executemany("INSERT INTO t VALUES (?, ?)", ((i, bytes([i % 256]) * size) for i in range(records)))
db.commit()
filled = mark()
for i in range(updates):
    value = bytes([random.randrange(256)]) * size
    db.execute("UPDATE t SET value = ? WHERE id = ?", (value, random.randrange(records)))
    if per_pause and i % per_pause == per_pause - 1:
        db.commit()
        time.sleep(0.02)
end = mark()
print(
    '{"fill_ms":%.3f,"update_ms":%.3f,"fill_faults":%d,"update_faults":%d,"updates":%d,"memory_kib":%d,"page_tables_kib":%d}'
    % (
        (filled[0] - begin[0]) * 1e3,
        (end[0] - filled[0]) * 1e3,
        filled[1] - begin[1],
        end[1] - filled[1],
        updates,
        number("/proc/self/smaps_rollup", "Pss:"),
        number("/proc/self/status", "VmPTE:"),
    )
)
