"""Redis, as tokyo.c: this process becomes the server, and a child of it the client, which says what the server took."""
import os
import random
import socket
import sys
import time

records, size, updates, per_pause = map(int, sys.argv[1:5])
random.seed(1)
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]

server = os.getpid()
if os.fork():
    # Standard output is the client's.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execvp("redis-server", ["redis-server", "--port", str(port), "--save", "", "--dir", "/"])


def number(name, word):
    with open(f"/proc/{server}/{name}") as lines:
        return int(next(line for line in lines if line.startswith(word)).split()[1])


def mark():
    """Milliseconds of processor time of all its threads, and faults."""
    threads = os.listdir(f"/proc/{server}/task")
    ran = [open(f"/proc/{server}/task/{thread}/schedstat").read().split()[0] for thread in threads]
    stat = open(f"/proc/{server}/stat").read().rsplit(")")[1].split()
    return sum(map(int, ran)) / 1e6, int(stat[7])


def connect():
    deadline = time.monotonic() + 120
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def set_all(keys):
    words = []
    for key in keys:
        value = bytes([random.randrange(33, 127)]) * size
        words.append(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (key, size, value))
    client.sendall(b"".join(words))
    missing = len(words) * len("+OK\r\n")
    while missing:
        replies = client.recv(missing)
        if not replies or b"-" in replies:
            sys.exit(f"the server said {replies!r}")
        missing -= len(replies)


client = connect()
begin = mark()
for first in range(0, records, 1000):
    set_all(range(first, min(first + 1000, records)))
filled = mark()
for done in range(0, updates, per_pause):
    set_all(random.randrange(records) for _ in range(min(per_pause, updates - done)))
    time.sleep(0.02)
end = mark()
print(
    '{"fill_ms":%.3f,"update_ms":%.3f,"fill_faults":%d,"update_faults":%d,"updates":%d,"memory_kib":%d,"page_tables_kib":%d}'
    % (
        filled[0] - begin[0],
        end[0] - filled[0],
        filled[1] - begin[1],
        end[1] - filled[1],
        updates,
        number("smaps_rollup", "Pss:"),
        number("status", "VmPTE:"),
    ),
    flush=True,
)
client.sendall(b"SHUTDOWN NOSAVE\r\n")
