"""Adds up the numbers that come by a Unix socket, and says the sum."""
import asyncio, decimal, http.server, json, os, socket, sqlite3, sys, threading

try:
    import flask  # noqa: F401 (an import that takes its time)
except ImportError:
    pass

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE numbers(number)")
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
while True:
    client, _ = listener.accept()
    with client, client.makefile("rw") as lines:
        database.execute("INSERT INTO numbers VALUES (?)", (int(lines.readline()),))
        (total,) = database.execute("SELECT sum(number) FROM numbers").fetchone()
        lines.write(f"sum {total}\n")
        lines.flush()
