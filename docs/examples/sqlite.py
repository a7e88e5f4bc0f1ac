"""Fills, indexes and updates an in-memory SQLite database: something to record."""

import random
import sqlite3
import time

random.seed(1)
db = sqlite3.connect(":memory:")
db.execute("create table item (id integer primary key, name text, price integer)")

for block in range(40):
    rows = [(f"item {block * 2000 + i}", random.randrange(10_000)) for i in range(2000)]
    db.executemany("insert into item (name, price) values (?, ?)", rows)
    time.sleep(0.01)

time.sleep(0.2)
db.execute("create index by_price on item (price)")
time.sleep(0.2)

for _ in range(60):
    hot = [(random.randrange(80_000),) for _ in range(50)]
    db.executemany("update item set price = price + 1 where id = ?", hot)
    time.sleep(0.01)

for start in range(0, 80_000, 2000):
    db.execute("update item set name = name || '!' where id between ? and ?", (start, start + 1999))
    time.sleep(0.01)

print(db.execute("select count(*), sum(price) from item").fetchone())
