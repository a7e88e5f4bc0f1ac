/* Writes memory of several kinds that the kernel does not name, for two seconds at most. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char zeroed[1 << 20];
static volatile int is_over;

static void *work(void *name)
{
    char large[1 << 16];
    if (name)
        pthread_setname_np(pthread_self(), name);
    char *small = malloc(100000);
    while (!is_over) {
        memset(large, 1, sizeof large);
        __asm__ volatile("" : : "r"(large) : "memory");
        memset(small, 1, 100000);
        usleep(5000);
    }
    return NULL;
}

int main(void)
{
    const int all = PROT_READ | PROT_WRITE;
    const int own = MAP_PRIVATE | MAP_ANONYMOUS;
    const size_t bytes = 1 << 20;
    pthread_t named, unnamed;
    pthread_create(&named, NULL, work, "my worker");
    pthread_create(&unnamed, NULL, work, NULL);
    char *block = malloc(5 << 20);
    char *code = mmap(NULL, bytes, all | PROT_EXEC, own, -1, 0);
    /* Between guards, so that the kernel does not merge it with a neighbour. */
    char *nobody = mmap(NULL, 3 * bytes, PROT_NONE, own, -1, 0);
    mprotect(nobody + bytes, bytes, all);
    for (int i = 0; i < 150; i++) {
        memset(block, i, 5 << 20);
        memset(code, i, bytes);
        memset(nobody + bytes, 1, bytes);
        memset(zeroed, i, sizeof zeroed);
        __asm__ volatile("" : : "r"(zeroed) : "memory");
        usleep(10000);
    }
    is_over = 1;
    pthread_join(named, NULL);
    pthread_join(unnamed, NULL);
    return 0;
}
