/* process.c: another process under watch, to its end. */
#include "check.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 32 };

static int commands[2], answers[2];

/* Writes the pages whose numbers come through the pipe, until it ends. */
static void obey(unsigned char *memory, size_t page)
{
    unsigned char which;
    while (read(commands[0], &which, 1) == 1) {
        memory[which * page]++;
        if (write(answers[1], &which, 1) != 1)
            break;
    }
    _exit(7);
}

static void tell(unsigned char which)
{
    unsigned char answer;
    CHECK(write(commands[1], &which, 1) == 1);
    CHECK(read(answers[0], &answer, 1) == 1 && answer == which);
}

int main(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, PAGES * page);
    CHECK(pipe(commands) == 0 && pipe(answers) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(commands[1]);
        obey(memory, page);
    }

    pagetrail_options options = {0};
    pagetrail_watch *watch;
    pagetrail_watch_info watch_info;
    pagetrail_round *round;
    pagetrail_overhead overhead;
    uint64_t left_ns;
    bool found, ended;
    options.target = PAGETRAIL_TARGET_PROCESS;
    options.pid = (uint32_t)child;
    options.max_overhead = 0.03;
    options.interval_min_ns = 1000000;
    options.interval_max_ns = 2000000;
    pagetrail_status status = pagetrail_watch_start(&options, sizeof options, &watch);
    if (status == PAGETRAIL_STATUS_PERMISSION || status == PAGETRAIL_STATUS_UNAVAILABLE) {
        /* As another user's processes, say. */
        printf("not here: %s\n", pagetrail_last_error());
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        return 0;
    }
    CHECK(status == PAGETRAIL_STATUS_OK);
    OK(pagetrail_watch_get_info(watch, &watch_info, sizeof watch_info));
    CHECK(watch_info.pid == (uint32_t)child);
    printf("%s: %s\n", pagetrail_technique_name(watch_info.technique), watch_info.reason);

    for (unsigned char i = 0; i < PAGES; i += 5) {
        tell(i);
        OK(pagetrail_watch_collect(watch, &round));
        OK(pagetrail_round_contains(round, (uint64_t)(uintptr_t)memory + i * page, &found));
        CHECK(found);
        OK(pagetrail_round_get_overhead(round, &overhead, sizeof overhead));
        CHECK(overhead.allowed == 0.03 && overhead.share > 0 && overhead.fault_ns > 0);
        CHECK(overhead.next_ns >= 1000000 && overhead.next_ns <= 2000000);
        OK(pagetrail_round_commit(round));
        OK(pagetrail_watch_until_collect(watch, &left_ns));
        CHECK(left_ns <= 2000000);
    }
    OK(pagetrail_watch_wait(watch, 0, &ended));
    CHECK(!ended);
    close(commands[1]);
    OK(pagetrail_watch_wait(watch, 10000, &ended));
    CHECK(ended);
    REFUSED(GONE, pagetrail_watch_collect(watch, &round));
    OK(pagetrail_watch_free(watch));
    int how;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 7);
    return 0;
}
