/* Allocators' throughput: pattern argv[1] in argv[2] threads; nanoseconds of processor time per object, peak memory, and, of one
 * thread, memory while its objects are there. */
#include "work.h"
#include <pthread.h>

enum { BULK = 50000, LIVE = 10000, BATCH = 128, SLOTS = 256 };

static const char *pattern;
static double results[8];
static long threads, memory_kib;

/* Not part of what is timed. */
static void measure_memory(void) {
    if (threads == 1)
        memory_kib = work_memory_kib();
}

static double thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* One object after the other. */
static double pair(void) {
    enum { COUNT = 10000000 };
    double begin = thread_ns();
    for (int i = 0; i < COUNT; i++) {
        void *volatile object = malloc(64);
        *(volatile char *)object = 1;
        free(object);
    }
    return (thread_ns() - begin) / COUNT;
}

/* Many, then all of them back. */
static double bulk(void) {
    enum { ROUNDS = 60 };
    char **objects = malloc(BULK * sizeof *objects);
    double begin = thread_ns();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BULK; i++)
            *(objects[i] = malloc(64)) = 1;
        for (int i = 0; i < BULK; i++)
            free(objects[i]);
    }
    double ns = (thread_ns() - begin) / BULK / ROUNDS;
    for (int i = 0; i < BULK; i++)
        *(objects[i] = malloc(64)) = 1;
    measure_memory();
    free(objects);
    return ns;
}

/* Random sizes, random lives. */
static double mixed(size_t bytes_max, int count) {
    char **objects = calloc(LIVE, sizeof *objects);
    uint64_t state = 88172645463325252ull;
    double begin = thread_ns();
    for (int i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int at = (int)(state % LIVE);
        free(objects[at]);
        *(objects[at] = malloc(16 + (state >> 32) % bytes_max)) = 1;
    }
    double ns = (thread_ns() - begin) / count;
    measure_memory();
    for (int i = 0; i < LIVE; i++)
        free(objects[i]);
    free(objects);
    return ns;
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void *objects[SLOTS][BATCH];
    int put, taken;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum { BATCHES = 20000 };

static void produce(void) {
    for (int i = 0; i < BATCHES; i++) {
        void *objects[BATCH];
        for (int j = 0; j < BATCH; j++)
            *(char *)(objects[j] = malloc(64 + j)) = 1;
        pthread_mutex_lock(&queue.lock);
        while (queue.put - queue.taken == SLOTS)
            pthread_cond_wait(&queue.changed, &queue.lock);
        memcpy(queue.objects[queue.put++ % SLOTS], objects, sizeof objects);
        pthread_cond_broadcast(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
    }
}

static void consume(void) {
    for (int i = 0; i < BATCHES; i++) {
        void *objects[BATCH];
        pthread_mutex_lock(&queue.lock);
        while (queue.put == queue.taken)
            pthread_cond_wait(&queue.changed, &queue.lock);
        memcpy(objects, queue.objects[queue.taken++ % SLOTS], sizeof objects);
        pthread_cond_broadcast(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
        for (int j = 0; j < BATCH; j++)
            free(objects[j]);
    }
}

static void *run(void *argument) {
    long number = (long)argument;
    double *result = &results[number];
    if (!strcmp(pattern, "pair"))
        *result = pair();
    else if (!strcmp(pattern, "bulk"))
        *result = bulk();
    else if (!strcmp(pattern, "mixed"))
        *result = mixed(1024, 5000000);
    else if (!strcmp(pattern, "large"))
        *result = mixed(16384, 1000000);
    else {
        double begin = thread_ns();
        number ? consume() : produce();
        *result = (thread_ns() - begin) / BATCHES / BATCH;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    pattern = argv[1];
    threads = !strcmp(pattern, "handover") ? 2 : atol(argv[2]);
    pthread_t ids[8];
    for (long i = 1; i < threads; i++)
        pthread_create(&ids[i], NULL, run, (void *)i);
    run(NULL);
    double sum = results[0];
    for (long i = 1; i < threads; i++) {
        pthread_join(ids[i], NULL);
        sum += results[i];
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"ns\":%.3f,\"peak_kib\":%ld", strcmp(pattern, "handover") ? sum / threads : sum, usage.ru_maxrss);
    if (memory_kib)
        printf(",\"memory_kib\":%ld", memory_kib);
    puts("}");
    return 0;
}
