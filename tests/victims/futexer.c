/* Futex waits, bare and through pthread_cond_timedwait(3), sem_timedwait(3) and a contended mutex, with and without
 * a timeout, end by the timeout, in full, or by a wake-up, and by nothing else. */
#include "victim.h"
#include <linux/futex.h>
#include <semaphore.h>

/* Each time the word changes, waiters are woken, and then that is done. */
static uint32_t word, done;
static sem_t never, posted;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, contended = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static volatile uint64_t counted;

static long futex(int operation, uint32_t value, const struct timespec *time) {
    return syscall(SYS_futex, &word, operation, value, time, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void *wake(void *unused) {
    (void)unused;
    for (;;) {
        usleep(4000);
        __atomic_add_fetch(&word, 1, __ATOMIC_SEQ_CST);
        futex(FUTEX_WAKE, INT32_MAX, NULL);
        __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
        sem_post(&posted);
        pthread_mutex_lock(&contended);
        usleep(1000);
        counted++;
        pthread_mutex_unlock(&contended);
    }
    return NULL;
}

static struct timespec in(clockid_t clock, long ns) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ns;
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    return t;
}

static void timed_out(const char *what, int error, double since) {
    if (victim_stopping) return;
    if (error != ETIMEDOUT) fail("%s ended with %s", what, strerror(error));
    /* The realtime clock may be slewed against the monotonic one. */
    if (now() - since < 0.0099) fail("%s took only %.6f s", what, now() - since);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    sem_init(&never, 0, 0);
    sem_init(&posted, 0, 0);
    helper(wake, NULL);
    victim_ready();
    uint32_t idle = 0;
    while (!over()) {
        struct timespec t = {0, 10000000};
        double since = now();
        long result = syscall(SYS_futex, &idle, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
        timed_out("FUTEX_WAIT", result == -1 ? errno : 0, since);
        since = now();
        t = in(CLOCK_MONOTONIC, 10000000);
        result = syscall(SYS_futex, &idle, FUTEX_WAIT_BITSET_PRIVATE, 0, &t, NULL, FUTEX_BITSET_MATCH_ANY);
        timed_out("FUTEX_WAIT_BITSET", result == -1 ? errno : 0, since);
        since = now();
        t = in(CLOCK_REALTIME, 10000000);
        timed_out("sem_timedwait", sem_timedwait(&never, &t) == -1 ? errno : 0, since);
        pthread_mutex_lock(&mutex);
        since = now();
        t = in(CLOCK_REALTIME, 10000000);
        timed_out("pthread_cond_timedwait", pthread_cond_timedwait(&condition, &mutex, &t), since);
        pthread_mutex_unlock(&mutex);
        /* Until woken; for the change that was seen, if the other thread was stopped between that and waking. */
        uint32_t past = __atomic_load_n(&done, __ATOMIC_SEQ_CST);
        uint32_t seen = __atomic_load_n(&word, __ATOMIC_SEQ_CST);
        result = futex(FUTEX_WAIT, seen, NULL);
        if (victim_stopping) break;
        if (result == -1 && errno != EAGAIN) fail("FUTEX_WAIT without a timeout: %s", strerror(errno));
        if (past == seen && __atomic_load_n(&word, __ATOMIC_SEQ_CST) == seen) fail("FUTEX_WAIT returned without a wake-up");
        if (sem_wait(&posted) == -1 && !victim_stopping) fail("sem_wait: %s", strerror(errno));
        pthread_mutex_lock(&contended);
        uint64_t before = counted;
        usleep(500);
        if (counted != before) fail("the mutex let two threads in");
        pthread_mutex_unlock(&contended);
    }
    return 0;
}
