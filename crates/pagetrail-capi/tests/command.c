/* command.c: programs that a watch starts, followed to their end. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_here = true;

static uint32_t flags = PAGETRAIL_OPTION_LAST_ROUND;

static pagetrail_status start(const char *const *argv, pagetrail_watch **watch)
{
    pagetrail_options options = {0};
    options.target = PAGETRAIL_TARGET_COMMAND;
    options.argv = argv;
    options.flags = flags;
    return pagetrail_watch_start(&options, sizeof options, watch);
}

/* Collects until the end; how it ended, and how many bytes of written pages were seen. */
static pagetrail_progress follow(const char *const *argv, uint64_t *written)
{
    pagetrail_progress progress = {0};
    pagetrail_watch *watch;
    pagetrail_watch_info watch_info;
    pagetrail_status status = start(argv, &watch);
    *written = 0;
    if (status == PAGETRAIL_STATUS_PERMISSION || status == PAGETRAIL_STATUS_UNAVAILABLE) {
        if (is_here)
            printf("not here: %s\n", pagetrail_last_error());
        is_here = false;
        return progress;
    }
    CHECK(status == PAGETRAIL_STATUS_OK);
    OK(pagetrail_watch_get_info(watch, &watch_info, sizeof watch_info));
    CHECK(watch_info.pid > 0 && watch_info.pid != (uint32_t)getpid());
    for (int calls = 0; calls < 10000; calls++) {
        OK(pagetrail_watch_follow(watch, 20, &progress, sizeof progress));
        if (progress.state > PAGETRAIL_STATE_EXITING)
            break;
        pagetrail_round *round;
        status = pagetrail_watch_collect(watch, &round);
        /* Killed meanwhile: the next call tells how. */
        CHECK(status == PAGETRAIL_STATUS_OK || status == PAGETRAIL_STATUS_GONE);
        if (status == PAGETRAIL_STATUS_OK) {
            pagetrail_round_info info;
            OK(pagetrail_round_get_info(round, &info, sizeof info));
            *written += info.written_bytes;
            OK(pagetrail_round_commit(round));
        }
        CHECK(flags || progress.state != PAGETRAIL_STATE_EXITING);
        if (progress.state == PAGETRAIL_STATE_EXITING)
            OK(pagetrail_watch_release_exit(watch));
    }
    bool ended = false;
    OK(pagetrail_watch_wait(watch, 0, &ended));
    CHECK(ended);
    OK(pagetrail_watch_release_exit(watch)); /* nothing is left to do */
    OK(pagetrail_watch_free(watch));
    return progress;
}

static void ends(void)
{
    uint64_t written;
    const char *exits[] = {"sh", "-c", "exit 7", NULL};
    pagetrail_progress progress = follow(exits, &written);
    CHECK(!is_here || (progress.state == PAGETRAIL_STATE_EXITED && progress.number == 7));
    const char *killed[] = {"sh", "-c", "kill -TERM $$; sleep 60", NULL};
    progress = follow(killed, &written);
    CHECK(!is_here || (progress.state == PAGETRAIL_STATE_KILLED && progress.number == SIGTERM));
}

/* Standard output is the caller's, arguments come through as they are, and its writes are seen. */
static void streams(void)
{
    uint64_t written;
    char text[64] = {0};
    int pipe_fds[2], kept = dup(STDOUT_FILENO);
    CHECK(fflush(stdout) == 0 && kept >= 0 && pipe(pipe_fds) == 0);
    CHECK(dup2(pipe_fds[1], STDOUT_FILENO) == STDOUT_FILENO && close(pipe_fds[1]) == 0);
    CHECK(setenv("COMMAND_TEST", "from the environment", 1) == 0);
    const char *argv[] = {"/bin/sh", "-c", "printf '%s; %s' \"$1\" \"$COMMAND_TEST\"", "sh", "an  argument", NULL};
    pagetrail_progress progress = follow(argv, &written);
    CHECK(dup2(kept, STDOUT_FILENO) == STDOUT_FILENO && close(kept) == 0);
    if (is_here) {
        CHECK(progress.state == PAGETRAIL_STATE_EXITED && progress.number == 0);
        ssize_t length = read(pipe_fds[0], text, sizeof text - 1);
        CHECK(length > 0 && strcmp(text, "an  argument; from the environment") == 0);
        CHECK(written > 0);
        printf("%llu bytes of written pages seen of sh\n", (unsigned long long)written);
    }
    CHECK(close(pipe_fds[0]) == 0);
}

static void untracked_on(void)
{
    const char *argv[] = {"sleep", "0.2", NULL};
    pagetrail_watch *watch;
    pagetrail_watch_info info;
    if (!is_here)
        return;
    OK(start(argv, &watch));
    OK(pagetrail_watch_get_info(watch, &info, sizeof info));
    OK(pagetrail_watch_free(watch));
    /* It goes on by itself, and somebody waits for it. */
    for (int i = 0; i < 500 && kill((pid_t)info.pid, 0) == 0; i++)
        usleep(10000);
    CHECK(kill((pid_t)info.pid, 0) != 0);
    CHECK(waitpid((pid_t)info.pid, NULL, WNOHANG) == -1);
}

static void misuse(void)
{
    const char *nothing[] = {NULL}, *absent[] = {"/nonexistent/program", NULL};
    pagetrail_watch *watch;
    REFUSED(NULL_POINTER, start(NULL, &watch));
    CHECK(watch == NULL);
    REFUSED(INVALID_ARGUMENT, start(nothing, &watch));
    if (is_here)
        REFUSED(SYSTEM, start(absent, &watch));
    CHECK(watch == NULL);
    pagetrail_progress progress;
    REFUSED(NULL_POINTER, pagetrail_watch_follow(NULL, 0, &progress, sizeof progress));
    REFUSED(NULL_POINTER, pagetrail_watch_release_exit(NULL));
}

int main(void)
{
    ends();
    flags = 0;
    ends();
    flags = PAGETRAIL_OPTION_LAST_ROUND;
    streams();
    untracked_on();
    misuse();
    return 0;
}
