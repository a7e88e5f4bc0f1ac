"""A Python program as the guest of a virtual machine: threads, locks, signals; prints the same natively."""
import os
import queue
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

lock, total = threading.Lock(), 0


def add(times):
    global total
    for _ in range(times):
        with lock:
            total += 1
    return threading.current_thread() is not threading.main_thread()


with ThreadPoolExecutor(6) as pool:
    print("elsewhere", all(pool.map(add, [200] * 12)), total)

jobs, results, own = queue.Queue(3), queue.Queue(), threading.local()


def work():
    own.sum = 0
    while (job := jobs.get()) is not None:
        own.sum += job
    results.put(own.sum)


workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
for job in range(200):
    jobs.put(job)
for worker in workers:
    jobs.put(None)
for worker in workers:
    worker.join()
print("jobs", sum(results.get() for _ in workers))

condition, turn, order = threading.Condition(), 0, []


def take_turns(number):
    global turn
    for _ in range(10):
        with condition:
            condition.wait_for(lambda: turn % 3 == number)
            order.append(number)
            turn += 1
            condition.notify_all()


players = [threading.Thread(target=take_turns, args=(number,)) for number in range(3)]
for player in players:
    player.start()
for player in players:
    player.join()
print("turns", order == [0, 1, 2] * 10)

# A handler runs in the main thread, whichever thread gets the signal. That looks up now and then: a signal that comes just
# before it waits would be noticed when the wait ends only.
taken = []
signal.signal(signal.SIGUSR1, lambda *_: taken.append(threading.current_thread() is threading.main_thread()))
blocked = threading.Lock()
blocked.acquire()


def send():
    for number in range(1, 6):
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(taken) < number:
            os.sched_yield()
    blocked.release()


sender = threading.Thread(target=send)
sender.start()
while not blocked.acquire(timeout=0.01):
    pass
sender.join()
print("taken", taken)

signal.signal(signal.SIGALRM, lambda *_: taken.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.05)
while taken[-1] != "alarm":
    threading.Event().wait(0.01)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
waiter = threading.Thread(target=lambda: results.put(signal.sigwait({signal.SIGUSR2}).name))
waiter.start()
signal.pthread_kill(waiter.ident, signal.SIGUSR2)
waiter.join()
print("waited for", results.get())

children = [threading.Thread(target=lambda: results.put(subprocess.run(["echo", "x"], capture_output=True).stdout))
            for _ in range(3)]
for child in children:
    child.start()
for child in children:
    child.join()
print("children", [results.get() for _ in children])
os._exit(5) if os.fork() == 0 else print("forked", os.waitstatus_to_exitcode(os.wait()[1]))
