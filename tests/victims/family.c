/* A process that makes children in every way, and has them write known pages, on request: one command a line on stdin,
 * one line of answer on stdout.
 *
 *   fork | thread | vfork | spawn    a child; it writes page N, N counted from 0, then the answer is its PID
 *   write N PAGE                     child N writes that page
 *   nest N                           child N forks a grandchild that writes page 40; the answer is its PID
 *   leave N                          child N forks a grandchild, as `nest`, and ends
 *   mainless N                       the same, but the grandchild's main thread ends, and another writes the page
 *   reexec N                         the same, but the grandchild executes a program from another thread
 *   share | kin N                    a process that shares the memory of this one, or of child N, and is its sibling;
 *                                    it writes page 41, then the answer is its PID
 *   say PAGE                         the process that shares this one's memory writes that page
 *   storm MS                         children that end at once, for so long; the answer is their number
 *   own PAGE                         the parent itself writes that page
 */
#include "victim.h"
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define BASE ((char *)0x10000000000)
enum { PAGES = 64, PAGE = 4096, CHILDREN = 32, GRANDCHILDS = 40 };

static struct {
    int pid, to, from;
} children[CHILDREN];
static int count;
static char *program;
extern char **environ;

static void map(void) {
    CHECK(mmap(BASE, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == BASE);
    memset(BASE, 1, PAGES * PAGE);
}

enum { SAY = -1, LEAVE = -2, SHARE = -3, MAINLESS = -4, REEXEC = -5 };

static int saying;

static void live(void) {
    BASE[GRANDCHILDS * PAGE]++;
    CHECK(write(saying, "x", 1) == 1);
    for (;;) pause();
}

static void *live_without_main(void *nothing) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    while (state != 'Z') {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
    live();
    return nothing;
}

static void *execute(void *nothing) {
    char number[12];
    snprintf(number, sizeof number, "%d", saying);
    char *words[] = {program, "alone", number, NULL};
    execve(program, words, environ);
    fail("execve: %s", strerror(errno));
    return nothing;
}

static int grandchild(int order) {
    int said[2];
    CHECK(pipe(said) == 0);
    int pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        saying = said[1];
        pthread_t thread;
        if (order == MAINLESS || order == REEXEC)
            CHECK(pthread_create(&thread, NULL, order == REEXEC ? execute : live_without_main, NULL) == 0);
        if (order == MAINLESS) pthread_exit(NULL);
        if (order == REEXEC) pause();
        live();
    }
    char x;
    CHECK(read(said[0], &x, 1) == 1);
    close(said[0]), close(said[1]);
    return pid;
}

static volatile int said = GRANDCHILDS + 1;

static int sharer(void *nothing) {
    (void)nothing;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (usleep(1000) == 0 || errno == EINTR)
        if (said >= 0) BASE[said % PAGES * PAGE]++, said = -1;
    return 1;
}

static void until_said(void) {
    while (said >= 0) usleep(1000);
}

static int share(void) {
    static char stack[1 << 16] __attribute__((aligned(64)));
    int pid = clone(sharer, stack + sizeof stack, CLONE_VM | CLONE_PARENT | SIGCHLD, NULL);
    CHECK(pid > 0);
    until_said();
    return pid;
}

/* The life of a child after its first write: it obeys orders, and ends with its parent. */
static void obey(int from, int to, int number) {
    BASE[number * PAGE]++;
    int answer = getpid(), order;
    do {
        CHECK(write(to, &answer, sizeof answer) == sizeof answer);
        if (read(from, &order, sizeof order) != sizeof order) _exit(0);
        if (order >= 0)
            BASE[order % PAGES * PAGE]++;
        else
            answer = order == SHARE ? share() : grandchild(order);
    } while (order >= 0 || order == SAY || order == SHARE);
    CHECK(write(to, &answer, sizeof answer) == sizeof answer);
    _exit(0);
}

struct birth {
    const char *how;
    int from, to;
    /* The ends that are the parent's. */
    int parents[2];
};

/* Without them in a child, it reads the end of its pipe when the parent has ended. */
static void close_parents(const struct birth *birth) {
    close(birth->parents[0]), close(birth->parents[1]);
    for (int n = 0; n < count; n++) close(children[n].to), close(children[n].from);
}

static void *give_birth(void *argument) {
    struct birth *birth = argument;
    char number[12], from[12], to[12];
    snprintf(number, sizeof number, "%d", count);
    snprintf(from, sizeof from, "%d", birth->from);
    snprintf(to, sizeof to, "%d", birth->to);
    char *words[] = {program, "child", number, from, to, NULL};
    int pid = -1;
    if (!strcmp(birth->how, "spawn")) {
        CHECK(posix_spawn(&pid, program, NULL, NULL, words, environ) == 0);
    } else if (!strcmp(birth->how, "vfork")) {
        pid = vfork();
        if (pid == 0) {
            execve(program, words, environ);
            _exit(127);
        }
    } else {
        pid = fork();
        if (pid == 0) close_parents(birth), obey(birth->from, birth->to, count);
    }
    CHECK(pid > 0);
    children[count].pid = pid;
    return NULL;
}

static int birth(const char *how) {
    int down[2], up[2], pid;
    CHECK(count < CHILDREN && pipe(down) == 0 && pipe(up) == 0);
    struct birth birth = {how, down[0], up[1], {down[1], up[0]}};
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, give_birth, &birth) == 0);
        pthread_join(thread, NULL);
    } else {
        give_birth(&birth);
    }
    close(down[0]), close(up[1]);
    children[count].to = down[1], children[count].from = up[0];
    CHECK(read(up[0], &pid, sizeof pid) == sizeof pid && pid == children[count].pid);
    count++;
    return pid;
}

static int tell(int child, int order) {
    int answer;
    CHECK(child < count && write(children[child].to, &order, sizeof order) == sizeof order);
    CHECK(read(children[child].from, &answer, sizeof answer) == sizeof answer);
    return answer;
}

static int storm(int milliseconds) {
    int made = 0;
    for (double until = now() + milliseconds / 1e3; now() < until; made++) {
        int pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) BASE[made % PAGES * PAGE]++, _exit(0);
        CHECK(waitpid(pid, NULL, 0) == pid);
    }
    return made;
}

int main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "child")) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        map();
        obey(atoi(argv[3]), atoi(argv[4]), atoi(argv[2]));
    }
    if (argc == 3 && !strcmp(argv[1], "alone")) {
        map();
        saying = atoi(argv[2]);
        live();
    }
    program = argv[0];
    signal(SIGCHLD, SIG_DFL);
    map();
    puts("ready");
    fflush(stdout);
    char line[100], word[100];
    while (fgets(line, sizeof line, stdin)) {
        int one = 0, two = 0, answer = 0;
        CHECK(sscanf(line, "%99s %d %d", word, &one, &two) >= 1);
        if (!strcmp(word, "write")) answer = tell(one, two);
        else if (!strcmp(word, "nest")) answer = tell(one, SAY);
        else if (!strcmp(word, "leave")) answer = tell(one, LEAVE), waitpid(children[one].pid, NULL, 0);
        else if (!strcmp(word, "mainless")) answer = tell(one, MAINLESS), waitpid(children[one].pid, NULL, 0);
        else if (!strcmp(word, "reexec")) answer = tell(one, REEXEC), waitpid(children[one].pid, NULL, 0);
        else if (!strcmp(word, "storm")) answer = storm(one);
        else if (!strcmp(word, "share")) answer = share();
        else if (!strcmp(word, "kin")) answer = tell(one, SHARE);
        else if (!strcmp(word, "say")) said = one, until_said();
        else if (!strcmp(word, "own")) BASE[one * PAGE]++;
        else answer = birth(word);
        printf("%d\n", answer);
        fflush(stdout);
    }
    return 0;
}
