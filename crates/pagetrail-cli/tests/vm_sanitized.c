/* Threads, memory and a lock, without a fault: what a sanitizer has nothing to say about. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sum;

static void *add(void *unused)
{
    (void)unused;
    for (int n = 0; n < 1000; n++) {
        pthread_mutex_lock(&lock);
        sum++;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(int count, char **words)
{
    (void)words;
    pthread_t threads[2];
    for (int n = 0; n < 2; n++)
        pthread_create(&threads[n], NULL, add, NULL);
    for (int n = 0; n < 2; n++)
        pthread_join(threads[n], NULL);
    char *bytes = malloc(100);
    memset(bytes, 1, 100);
    printf("%d %d\n", sum, bytes[count]);
    free(bytes);
    return 0;
}
