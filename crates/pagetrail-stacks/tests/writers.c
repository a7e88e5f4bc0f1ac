/* Writes known pages from known functions: for each byte on standard input one round, answered by "done".
 *
 * At the start it prints a line "NAME ADDRESS THREAD" for each writer. Writer number w writes those of its PAGES pages p
 * in round r for which (p + r + w) % 3 is 0. It ends with its standard input, or with the process that started it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 96
#define PAGE 4096
#define APART __attribute__((noinline, noclone))
enum { LEFT, RIGHT, SYSTEM_CALL, HANDLER, THREAD, LATE, JIT, WRITERS };

static const char *const names[] = {"write_left", "write_right", "raw_read", "on_signal", "write_in_thread",
                                    "write_late", "jitted_writer"};
static volatile char *memory[WRITERS];
static volatile int round_number;
static int zero;
static int (*jitted)(volatile char *);
static pthread_barrier_t begin, end;

static int due(int page, int writer) { return (page + round_number + writer) % 3 == 0; }

/* A function that calls no other makes no frame unless it needs one, and then its caller is not found by frame pointers. */
#define MAKE_FRAME                                                                                   \
    void *volatile frame = __builtin_frame_address(0);                                               \
    (void)frame

#define WRITER(function, writer)                                                                     \
    APART static int function(void) {                                                                \
        MAKE_FRAME;                                                                                  \
        for (int page = 0; page < PAGES; page++)                                                     \
            if (due(page, writer)) memory[writer][page * PAGE + 8] = (char)round_number;             \
        return round_number;                                                                         \
    }
WRITER(write_left, LEFT)
WRITER(write_right, RIGHT)
WRITER(write_in_thread, THREAD)
WRITER(write_late, LATE)

APART static int middle(void) { return write_right() + 1; }

/* Not libc's, which makes no frame. */
APART static long raw_read(int fd, volatile char *to, long length) {
    MAKE_FRAME;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_read), "D"((long)fd), "S"(to), "d"(length)
                     : "rcx", "r11", "memory");
    return result;
}

APART static int by_system_call(void) {
    for (int page = 0; page < PAGES; page++)
        if (due(page, SYSTEM_CALL) && raw_read(zero, memory[SYSTEM_CALL] + page * PAGE, 100) != 100) _exit(1);
    return 0;
}

APART static void on_signal(int signal) {
    (void)signal;
    for (int page = 0; page < PAGES; page++)
        if (due(page, HANDLER)) memory[HANDLER][page * PAGE] = 1;
}

APART static int by_jit(void) {
    int sum = 0;
    for (int page = 0; page < PAGES; page++)
        if (due(page, JIT)) sum += jitted(memory[JIT] + page * PAGE);
    return sum;
}

static void *worker(void *unused) {
    memory[THREAD][0] = 0;
    printf("%s %p %d\n", names[THREAD], (void *)memory[THREAD], gettid());
    fflush(stdout);
    for (;;) {
        pthread_barrier_wait(&begin);
        write_in_thread();
        pthread_barrier_wait(&end);
    }
    return unused;
}

static void *late(void *unused) {
    write_late();
    return unused;
}

/* mov byte [rdi], 1; xor eax, eax; ret; in a function of 16 bytes that only a perf map names. */
static void make_code(void) {
    static const uint8_t code[] = {0xc6, 0x07, 0x01, 0x31, 0xc0, 0xc3};
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page + 32, code, sizeof code);
    mprotect(page, PAGE, PROT_READ | PROT_EXEC);
    jitted = (int (*)(volatile char *))(uintptr_t)(page + 32);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "w");
    fprintf(map, "%lx 10 jitted_writer\n", (unsigned long)(page + 32));
    fclose(map);
}

int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    zero = open("/dev/zero", O_RDONLY);
    make_code();
    for (int writer = 0; writer < WRITERS; writer++) {
        memory[writer] = mmap(NULL, (PAGES + 8) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise((void *)memory[writer], (PAGES + 8) * PAGE, MADV_NOHUGEPAGE);
        for (int page = 0; page < PAGES; page++) memory[writer][page * PAGE] = 1;
    }
    signal(SIGUSR1, on_signal);
    pthread_barrier_init(&begin, NULL, 2);
    pthread_barrier_init(&end, NULL, 2);
    for (int writer = 0; writer < WRITERS; writer++)
        if (writer != THREAD) printf("%s %p %d\n", names[writer], (void *)memory[writer], writer == LATE ? 0 : getpid());
    fflush(stdout);
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    char byte;
    int sum = 0;
    while (read(0, &byte, 1) == 1) {
        round_number++;
        sum += write_left() + middle() + by_system_call() + by_jit();
        raise(SIGUSR1);
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        pthread_t other;
        pthread_create(&other, NULL, late, NULL);
        pthread_join(other, NULL);
        puts("done");
        fflush(stdout);
    }
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
    unlink(path);
    return sum == -1;
}
