/* restores.c: processes that are started from a checkpoint, at once, lazily and as copies. */
#include "check.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 64 };

/* A process of pages with a number each, which it checks before it ends, by a signal. */
static void count(size_t page, int ready)
{
    unsigned char *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < PAGES; i++)
        memory[i * page] = (unsigned char)i;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    for (int fd = 0; fd < 1024; fd++)
        if (fd != ready)
            close(fd);
    /* Its end says that all is there. */
    close(ready);
    int which;
    /* A wait that is restored begins anew. */
    while (sigwait(&wanted, &which) != 0)
        ;
    for (size_t i = 0; i < PAGES; i++)
        if (memory[i * page] != (unsigned char)i)
            _exit(9);
    _exit(7);
}

static void ends_right(uint32_t pid)
{
    int how;
    CHECK(kill((pid_t)pid, SIGUSR1) == 0);
    CHECK(waitpid((pid_t)pid, &how, 0) == (pid_t)pid && WIFEXITED(how) && WEXITSTATUS(how) == 7);
}

static void come_back(const char *place)
{
    pagetrail_restored restored, copies[3];
    pagetrail_pager *pager;
    pagetrail_given given = {0};
    OK(pagetrail_restore(place, 0, PAGETRAIL_RESTORE_ANY_PID, &restored, sizeof restored));
    ends_right(restored.pid);
    OK(pagetrail_restore_copies(place, 1, 0, 3, copies, sizeof copies[0]));
    for (int i = 0; i < 3; i++)
        ends_right(copies[i].pid);
    pagetrail_status status =
        pagetrail_restore_lazily(place, 0, PAGETRAIL_RESTORE_ANY_PID, &restored, sizeof restored, &pager);
    if (status == PAGETRAIL_STATUS_REFUSED) {
        printf("lazily: not here: %s\n", pagetrail_last_error());
        return;
    }
    CHECK(status == PAGETRAIL_STATUS_OK && pager != NULL);
    OK(pagetrail_pager_finish(pager, &given, sizeof given));
    CHECK(given.pages >= PAGES);
    REFUSED(REFUSED, pagetrail_pager_finish(pager, NULL, 0));
    OK(pagetrail_pager_free(pager));
    ends_right(restored.pid);
    /* One that is given no pages ends. */
    OK(pagetrail_restore_lazily(place, 0, PAGETRAIL_RESTORE_ANY_PID, &restored, sizeof restored, &pager));
    OK(pagetrail_pager_free(pager));
    int how;
    CHECK(waitpid((pid_t)restored.pid, &how, 0) == (pid_t)restored.pid && WIFSIGNALED(how));
}

/* The checkpoint is the command's, since the library takes none of other processes for C. */
int main(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char directory[] = "/var/tmp/pagetrail-capi-XXXXXX", place[64], command[5000];
    const char *pagetrail = getenv("PAGETRAIL");
    if (pagetrail == NULL) {
        printf("not here: no command is named by PAGETRAIL\n");
        return 0;
    }
    CHECK(mkdtemp(directory) != NULL);
    snprintf(place, sizeof place, "%s/store", directory);
    int ready[2];
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        count(page, ready[1]);
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 0);
    snprintf(command, sizeof command, "%s checkpoint --restorable=own -p %d --store %s > /dev/null", pagetrail,
             (int)child, place);
    int outcome = system(command);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    if (outcome == 0)
        come_back(place);
    else
        printf("not here: such a process cannot be saved\n");
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK(system(command) == 0);
    return 0;
}
