/* A program that notices when memory and registers are of different instants.
 *
 * Usage: rewound STOP. Each of its threads stamps its pages with a number that it has in a register (a whole one and one
 * with a fraction, so that vector registers count), and fails where a page does not have the number before. One more
 * thread waits in a read for all that time, one for a condition. It ends when the file STOP exists.
 *
 * The pages lie at a fixed address: page i of thread t at BASE + (t * PAGES + i) * 4096. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE 0x100000000000ull
#define THREADS 3
#define PAGES 128

static const char *stop;
static int ends[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static volatile int is_over;

static void fail(const char *what) {
    dprintf(2, "rewound: %s\n", what);
    _exit(1);
}

struct stamp {
    volatile uint64_t whole;
    volatile double fraction;
};

static struct stamp *at(uintptr_t thread, uint64_t page) {
    return (void *)(BASE + (thread * PAGES + page) * 4096);
}

static void *write_stamps(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    register double fraction = 0.25;
    for (uint64_t n = 1; !is_over; n++, fraction += 1.0)
        for (uint64_t page = 0; page < PAGES; page++) {
            struct stamp *stamp = at(me, page);
            if (stamp->whole != n - 1) fail("a page has another number than the register");
            if (n > 1 && stamp->fraction != fraction - 1.0) fail("a vector register has another number");
            stamp->whole = n;
            stamp->fraction = fraction;
            if (page % 16 == 15) usleep(2000);
            for (volatile int spin = 0; spin < 2000; spin++) {
            }
            if (me == 0 && page == PAGES - 1 && !access(stop, F_OK)) is_over = 1;
        }
    return NULL;
}

static void *wait_in_a_call(void *argument) {
    char byte = 0;
    if (read(ends[0], &byte, 1) != 1 || byte != 7) fail("the read was not whole");
    return argument;
}

static void *wait_for_a_condition(void *argument) {
    pthread_mutex_lock(&mutex);
    while (!is_over) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return argument;
}

int main(int argc, char **argv) {
    if (argc != 2 || pipe(ends)) fail("usage: rewound STOP");
    stop = argv[1];
    void *memory = mmap((void *)BASE, THREADS * PAGES * 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != (void *)BASE) fail("no memory");
    pthread_t all[THREADS + 2];
    for (uintptr_t i = 1; i < THREADS; i++) pthread_create(&all[i], NULL, write_stamps, (void *)i);
    pthread_create(&all[0], NULL, wait_in_a_call, NULL);
    pthread_create(&all[THREADS], NULL, wait_for_a_condition, NULL);
    write_stamps(0);
    if (write(ends[1], "\7", 1) != 1) fail("cannot write");
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i <= THREADS; i++) pthread_join(all[i], NULL);
    return 0;
}
