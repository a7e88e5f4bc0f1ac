"""SQLite in memory, through Python: as tokyo.c."""
import random
import sqlite3
import sys
import time

records, size, updates, per_pause = map(int, sys.argv[1:5])
random.seed(1)
begin = time.process_time()
db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB)")
db.executemany("INSERT INTO t VALUES (?, ?)", ((i, bytes([i % 256]) * size) for i in range(records)))
db.commit()
filled = time.process_time()
for i in range(updates):
    value = bytes([random.randrange(256)]) * size
    db.execute("UPDATE t SET value = ? WHERE id = ?", (value, random.randrange(records)))
    if per_pause and i % per_pause == per_pause - 1:
        db.commit()
        time.sleep(0.02)
print('{"fill_ms":%.3f,"update_ms":%.3f}' % ((filled - begin) * 1e3, (time.process_time() - filled) * 1e3))
