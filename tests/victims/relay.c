/* Processes that take turns: argv[2] of them, forked from the first, share one number. The process whose turn it is stamps
 * its own pages with that number, one after the other, then raises it. So the memory of all is known at each instant from
 * that number, but for one process that may be between two pages; memory of several instants shows.
 *
 * Before it raises the number, it writes the raised one into private memory of the next process (process_vm_writev(2)): each
 * process has there the number of its last turn, or of its next as soon as the one before it is at the end of its own.
 *
 * It says the PIDs of the others, in their order, before it is ready. */
#include "victim.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { PAGES = 64, PAGE = 4096, MAX = 64 };
#define SHARED ((volatile uint64_t *)0x10000000000)
#define OWN ((volatile uint64_t *)0x11000000000)
#define HANDED ((volatile uint64_t *)0x12000000000)
enum { WORDS = PAGE / sizeof(uint64_t), PIDS = 8 };

/* Writes a number into the memory of another process. */
static void hand_over(pid_t to, uint64_t number) {
    struct iovec from = {&number, sizeof number}, at = {(void *)HANDED, sizeof number};
    ssize_t written = process_vm_writev(to, &from, 1, &at, 1, 0);
    /* The first ends before the others, which end with it. */
    if (written < 0 && errno == ESRCH) _exit(0);
    CHECK(written == sizeof number);
}

static void take_turns(uint64_t number, uint64_t count) {
    while (!over()) {
        uint64_t turn = __atomic_load_n(SHARED, __ATOMIC_ACQUIRE);
        if (turn % count != number) {
            sched_yield();
            continue;
        }
        for (int page = 0; page < PAGES; page++) {
            if (OWN[page * WORDS] != turn - count) fail("a page has another stamp");
            OWN[page * WORDS] = turn;
        }
        if (*HANDED != turn) fail("the turn was not handed over");
        if (count > 1) hand_over(SHARED[PIDS + (number + 1) % count], turn + 1);
        else *HANDED = turn + 1;
        __atomic_store_n(SHARED, turn + 1, __ATOMIC_RELEASE);
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    uint64_t count = atoi(argv[2]);
    CHECK(count > 0 && count <= MAX);
    CHECK(mmap((void *)SHARED, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == SHARED);
    CHECK(mmap((void *)OWN, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == OWN);
    CHECK(mmap((void *)HANDED, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == HANDED);
    /* Where Yama lets only ancestors do that. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    *HANDED = count;
    SHARED[PIDS] = getpid();
    *SHARED = count;
    /* As if each had had its first turn. */
    for (uint64_t number = 1; number < count; number++) {
        int pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
            *HANDED = number;
            SHARED[PIDS + number] = getpid();
            for (int page = 0; page < PAGES; page++) OWN[page * WORDS] = number;
            __atomic_fetch_add(SHARED + 1, 1, __ATOMIC_RELEASE);
            while (__atomic_load_n(SHARED + 2, __ATOMIC_ACQUIRE) == 0) sched_yield();
            take_turns(number, count);
            _exit(0);
        }
        printf("%d ", pid);
    }
    printf("\n");
    while (__atomic_load_n(SHARED + 1, __ATOMIC_ACQUIRE) != count - 1) sched_yield();
    __atomic_store_n(SHARED + 2, 1, __ATOMIC_RELEASE);
    victim_ready();
    take_turns(0, count);
    for (int status; waitpid(-1, &status, WNOHANG) > 0;)
        if (status) fail("a process broke");
    return 0;
}
