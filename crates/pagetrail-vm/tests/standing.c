/* Threads that move memory, map some, and fork, until standard input ends. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
static volatile int over;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void *move(void *unused)
{
    char *from = (char *)0x100000000000, *to = (char *)0x110000000000;
    unsigned long n = 0;
    if (mmap(from, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != from)
        fail("mmap");
    for (; !over; n++) {
        char *next = from;
        memcpy(from, &n, sizeof n);
        if (mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
            fail("mremap");
        if (memcmp(to, &n, sizeof n))
            fail("contents");
        from = to;
        to = next;
    }
    return unused;
}

static void *map(void *unused)
{
    while (!over) {
        char *at = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            fail("mmap");
        at[PAGE] = 1;
        munmap(at, 16 * PAGE);
    }
    return unused;
}

static void *multiply(void *unused)
{
    while (!over) {
        int status;
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0)
            _exit(7);
        if (waitpid(child, &status, 0) != child || status != 7 << 8)
            fail("waitpid");
    }
    return unused;
}

int main(void)
{
    void *(*const what[])(void *) = {move, map, map, multiply};
    pthread_t threads[4];
    char byte;
    int n;
    for (n = 0; n < 4; n++)
        pthread_create(&threads[n], 0, what[n], 0);
    while (read(0, &byte, 1) > 0)
        ;
    over = 1;
    for (n = 0; n < 4; n++)
        pthread_join(threads[n], 0);
    puts("all held");
    return 0;
}
