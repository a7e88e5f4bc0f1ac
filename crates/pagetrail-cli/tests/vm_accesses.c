/* Reads some pages and writes others, at addresses that a test knows, and only when it is asked to: for each byte of its
 * input it does something with a mapping at BASE, and answers by a byte.
 *
 * r: reads every third page from the second on; w: writes every third from the first on; b: both; k: has the kernel read the
 * third page and every third after it; m: takes the access rights of the first 30 pages that it has just read, and gives them
 * back; .: nothing.
 *
 * 0 and 1: a thread reads every third page from the first on, another one those from the second on. Both make no system call: a
 * processor goes on remembering what it has found. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE ((volatile unsigned char *)0x100000000000)
#define PAGES 300
#define PAGE 4096

static void touch(int writes, size_t from, size_t pages)
{
    for (size_t page = from; page < pages; page += 3) {
        unsigned char byte = BASE[page * PAGE + page];
        if (writes)
            BASE[page * PAGE + page] = byte + 1;
    }
}

#define THREADS 2

static atomic_int wanted[THREADS], done[THREADS];

static void *touches(void *argument)
{
    intptr_t thread = (intptr_t)argument;
    for (int times = 0;;) {
        if (atomic_load(&wanted[thread]) == times)
            continue;
        touch(0, thread, PAGES);
        atomic_store(&done[thread], ++times);
    }
    return NULL;
}

/* Has a thread touch its pages; the first time, all of them begin. */
static int have_touched(int thread)
{
    static pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS && !threads[THREADS - 1]; i++)
        if (pthread_create(&threads[i], NULL, touches, (void *)i))
            return 0;
    int times = atomic_fetch_add(&wanted[thread], 1) + 1;
    while (atomic_load(&done[thread]) != times)
        sched_yield();
    return 1;
}

int main(void)
{
    size_t bytes = (size_t)PAGES * PAGE;
    void *at = mmap((void *)BASE, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    int out = open("/dev/null", O_WRONLY);
    char what;
    if (at != BASE)
        return 2;
    while (read(0, &what, 1) == 1) {
        if (what == 'r' || what == 'b')
            touch(0, 1, PAGES);
        if (what == 'w' || what == 'b')
            touch(1, 0, PAGES);
        for (size_t page = 2; what == 'k' && page < PAGES; page += 3)
            if (write(out, (char *)at + page * PAGE, 100) != 100)
                return 3;
        if (what == 'm') {
            touch(0, 0, 30);
            if (mprotect(at, 30 * PAGE, PROT_NONE) || mprotect(at, 30 * PAGE, PROT_READ | PROT_WRITE))
                return 4;
        }
        if (what >= '0' && what < '0' + THREADS && !have_touched(what - '0'))
            return 5;
        if (write(1, &what, 1) != 1)
            return 6;
    }
    return 0;
}
