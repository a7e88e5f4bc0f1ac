/* Executes itself and others, a case per argument, and prints what a program finds then, which must be the same natively
   and as a guest that is followed. "where" alone tells the two apart. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* PAGETRAIL_GUEST_AUXILIARY of pagetrail_guest.h. */
#define AUXILIARY 0x70746701ul

extern char **environ;
static char *self;

static int where(void)
{
    printf("%s\n", getauxval(AUXILIARY) ? "a guest" : "natively");
    return 0;
}

static void handle(int number)
{
    (void)number;
}

/* What a new program finds of the old one. */
static int found(int count, char **words)
{
    sigset_t mask, pending;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigpending(&pending);
    for (int signal = 1; signal < 32; signal++) {
        struct sigaction action;
        sigaction(signal, NULL, &action);
        if (sigismember(&mask, signal) || sigismember(&pending, signal) || action.sa_handler != SIG_DFL)
            printf("signal %d: %s%s%s\n", signal, sigismember(&mask, signal) ? "blocked " : "",
                   sigismember(&pending, signal) ? "pending " : "",
                   action.sa_handler == SIG_DFL ? "" : action.sa_handler == SIG_IGN ? "ignored" : "handled");
    }
    for (int number = 0; number < 64; number++)
        if (fcntl(number, F_GETFD) >= 0)
            printf("descriptor %d is open\n", number);
    char name[16], exe[4096];
    prctl(PR_GET_NAME, name);
    ssize_t bytes = readlink("/proc/self/exe", exe, sizeof exe);
    printf("name %s, file %.*s, executed %s\n", name, (int)bytes, exe, (char *)getauxval(AT_EXECFN));
    for (int i = 0; i < count; i++)
        printf("argument %s\n", words[i]);
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "PROCESS", 7) != 0)
            printf("variable %s\n", *variable);
    struct itimerval timer;
    getitimer(ITIMER_REAL, &timer);
    printf("timer %d, mask of files %o, secure %lu\n", timer.it_value.tv_sec > 0, umask(022), getauxval(AT_SECURE));
    printf("the same process: %d\n", getenv("PROCESS") && atoi(getenv("PROCESS")) == getpid());
    return 7;
}

static void leave_a_mark(char *process)
{
    sprintf(process, "PROCESS=%d", getpid());
    struct sigaction handled = { .sa_handler = handle }, ignored = { .sa_handler = SIG_IGN };
    sigaction(SIGTERM, &handled, NULL);
    sigaction(SIGUSR2, &ignored, NULL);
    sigaction(SIGPIPE, &handled, NULL);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    kill(getpid(), SIGUSR1);
    dup2(1, 20);
    dup3(1, 21, O_CLOEXEC);
    close(0);
    umask(027);
    setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 10000, 0 } }, NULL);
}

static char process[32];

static void execute(void)
{
    char *words[] = { "its name", "found", "", "an argument", NULL };
    char *variables[] = { process, "EMPTY=", "LD_BIND_NOW=1", NULL };
    fflush(stdout);
    execve(self, words, variables);
    perror("execve");
    exit(1);
}

static void *execute_in_thread(void *nothing)
{
    (void)nothing;
    execute();
    return NULL;
}

static void *spin(void *nothing)
{
    for (;;)
        sched_yield();
    return nothing;
}

static int state(void)
{
    leave_a_mark(process);
    execute();
    return 1;
}

static int threads(void)
{
    leave_a_mark(process);
    pthread_t one, two;
    pthread_create(&one, NULL, spin, NULL);
    pthread_create(&two, NULL, execute_in_thread, NULL);
    pthread_join(two, NULL);
    return 1;
}

static void try(const char *what, const char *path, char **words, char **variables)
{
    execve(path, words, variables);
    printf("%s: %s\n", what, strerror(errno));
}

static void put(const char *path, const char *text, mode_t mode)
{
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0700);
    if (write(file, text, strlen(text)) < 0)
        perror(path);
    close(file);
    chmod(path, mode);
}

/* A call that fails leaves the program as it was. */
static int failures(void)
{
    char *words[] = { "x", NULL }, *none[] = { NULL };
    put("plain", "no program\n", 0700);
    put("unreachable", "#!/nowhere/at/all\n", 0700);
    put("itself", "#!./itself\n", 0700);
    put("forbidden", "#!/bin/sh\n", 0600);
    put("returns", "#!/bin/sh\r\n", 0700);
    sigset_t blocked, after;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGHUP);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    try("missing", "./missing", words, none);
    try("plain", "./plain", words, none);
    try("a script without its interpreter", "./unreachable", words, none);
    try("a script that names itself", "./itself", words, none);
    try("a script whose lines end otherwise", "./returns", words, none);
    try("not permitted", "./forbidden", words, none);
    try("a directory", "/", words, none);
    try("no text", (char *)16, words, none);
    try("no list", self, (char **)16, none);
    try("no argument", self, (char *[]){ (char *)16, NULL }, none);
    size_t bytes = 40 << 20, count = 300;
    char *long_text = malloc(bytes);
    memset(long_text, 'a', bytes);
    long_text[bytes - 1] = 0;
    try("a long argument", self, (char *[]){ self, long_text, NULL }, none);
    long_text[100000] = 0;
    char *many[301] = { 0 };
    for (size_t i = 0; i < count; i++)
        many[i] = long_text;
    try("many arguments", self, many, none);
    sigprocmask(SIG_SETMASK, NULL, &after);
    printf("it goes on, its mask is %s\n", sigismember(&after, SIGHUP) && !sigismember(&after, SIGTERM) ? "the same" : "another");
    return 5;
}

static int ended(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -status;
}

/* Each way to start a program, and how it ends. */
static int ways(void)
{
    put("script", "#!/bin/sh -e\necho script $0 $*; exit 9\n", 0700);
    char *words[] = { self, "end", "3", NULL };
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execv(self, words);
        _exit(1);
    }
    printf("forked: %d\n", ended(child));
    /* The parent waits, and its memory is the child's until then. */
    volatile int seen = 0;
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        seen = 1;
        execv(self, words);
        _exit(1);
    }
    printf("vforked: %d %d\n", ended(child), seen);
    char *script[] = { "script", "a", "b", NULL };
    fflush(stdout);
    posix_spawn(&child, "./script", NULL, NULL, script, environ);
    printf("spawned: %d\n", ended(child));
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        execv("./missing", words);
        execv(self, words);
        _exit(1);
    }
    printf("vforked, at the second try: %d\n", ended(child));
    int file = open(self, O_RDONLY | O_CLOEXEC);
    if ((child = fork()) == 0) {
        fexecve(file, words, environ);
        _exit(1);
    }
    printf("by a descriptor: %d\n", ended(child));
    int directory = open(".", O_PATH | O_DIRECTORY);
    if ((child = fork()) == 0) {
        execveat(directory, strrchr(self, '/') + 1, words, environ, 0);
        _exit(1);
    }
    printf("in a directory: %d\n", ended(child));
    if ((child = fork()) == 0) {
        execv("/proc/self/exe", words);
        _exit(1);
    }
    printf("the own file: %d\n", ended(child));
    if ((child = fork()) == 0) {
        execv(self, (char *[]){ self, "end", "kill", NULL });
        _exit(1);
    }
    printf("killed: %d\n", ended(child));
    for (volatile int i = 0; i < 5; i++) {
        child = vfork();
        if (child == 0) {
            execv(self, words);
            _exit(1);
        }
        if (ended(child) != 3)
            printf("another end\n");
    }
    return 0;
}

/* Starts a program in a child that has a limit. */
static void limited(const char *what, int resource, rlim_t current, rlim_t maximum)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(resource, &(struct rlimit){ current, maximum });
        execv(self, (char *[]){ self, "limits", what[0] == 'f' ? "f" : "a", NULL });
        _exit(1);
    }
    printf("%s: %d\n", what, ended(child));
}

/* Where pagetrail itself needs more than the program. */
static int narrow(void)
{
    limited("files, none", RLIMIT_FSIZE, 0, 0);
    limited("files, soft", RLIMIT_FSIZE, 0, 1 << 20);
    limited("address space", RLIMIT_AS, 24 << 20, 24 << 20);
    fflush(stdout);
    /* KVM starts a thread for a machine, which this user may not have. */
    pid_t child = fork();
    if (child == 0) {
        int file = open(self, O_RDONLY | O_CLOEXEC);
        setrlimit(RLIMIT_NPROC, &(struct rlimit){ 1, 1 });
        if (setresuid(65533, 65533, 65533) != 0)
            perror("setresuid");
        fexecve(file, (char *[]){ self, "end", "3", NULL }, environ);
        _exit(1);
    }
    printf("threads: %d\n", ended(child));
    /* The program's libraries, and not pagetrail's. */
    if (system("for file in $(ldd ./follow | grep -o '/[^ ]*'); do\n"
               "mkdir -p root$(dirname $file) && cp -L $file root$file\n"
               "done; cp ./follow root") != 0)
        return 1;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        if (chroot("root") != 0 || chdir("/") != 0)
            perror("chroot");
        execv("/follow", (char *[]){ "/follow", "end", "3", NULL });
        _exit(1);
    }
    printf("in another root: %d\n", ended(child));
    return 0;
}

/* Executes itself by its process's link when its file is gone, and when another is there. */
static int gone(const char *left)
{
    if (strcmp(left, "0") == 0)
        return 4;
    char *words[] = { self, "gone", (char *)(strcmp(left, "2") == 0 ? "1" : "0"), NULL };
    if (strcmp(left, "2") != 0)
        put("./follow", "#!/bin/sh\necho another\n", 0700);
    else
        unlink("./follow");
    if (open("/proc/self/exe", O_RDONLY) < 0)
        perror("open");
    execv("/proc/self/exe", words);
    perror("execv");
    return 1;
}

/* The limit that the new program finds. */
static int limits(const char *what)
{
    struct rlimit limit;
    getrlimit(what[0] == 'f' ? RLIMIT_FSIZE : RLIMIT_AS, &limit);
    return limit.rlim_cur == 0 ? 10 + (limit.rlim_max != 0) : 20;
}

/* The memory in which processes write pages that a recording must have. */
#define BASE ((char *)0x100000000000)
#define PAGE 4096

static void map(void)
{
    if (mmap(BASE, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != BASE) {
        perror("mmap");
        exit(1);
    }
}

/* Writes eight pages. */
static void write_from(int page)
{
    for (int i = 0; i < 8; i++)
        ((volatile char *)BASE)[(page + i) * PAGE] = 1;
}

static void be_leaf(const char *page)
{
    execv(self, (char *[]){ self, "leaf", (char *)page, NULL });
    _exit(1);
}

static int leaf(const char *page)
{
    map();
    write_from(atoi(page));
    return 0;
}

/* A child, its child, a program in its place, and one that is spawned. */
static int tree(void)
{
    map();
    write_from(0);
    pid_t child = fork();
    if (child == 0) {
        write_from(8);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            write_from(16);
            _exit(0);
        }
        if (ended(grandchild) != 0)
            _exit(1);
        be_leaf("24");
    }
    int result = ended(child);
    pid_t spawned = vfork();
    if (spawned == 0)
        be_leaf("32");
    result |= ended(spawned);
    write_from(40);
    return result ? result : 6;
}

/* A child that is stopped keeps nobody else from ending. */
static int stopped(void)
{
    map();
    pid_t child = fork();
    if (child == 0) {
        write_from(8);
        raise(SIGSTOP);
        write_from(16);
        _exit(4);
    }
    int status;
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
        return 1;
    for (volatile int i = 0; i < 3; i++) {
        pid_t other = fork();
        if (other == 0)
            _exit(5);
        if (ended(other) != 5)
            return 1;
        usleep(300000);
    }
    kill(child, SIGCONT);
    return ended(child) == 4 ? 6 : 1;
}

/* Goes on when nobody records any more. */
static int alone(void)
{
    map();
    pid_t child = fork();
    if (child == 0) {
        printf("begun\n");
        char go;
        if (read(0, &go, 1) != 1)
            _exit(1);
        write_from(8);
        pid_t grandchild = fork();
        if (grandchild == 0)
            be_leaf("16");
        _exit(ended(grandchild));
    }
    int result = ended(child);
    printf("ended %d\n", result);
    return result;
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    self = words[0];
    const char *what = count > 1 ? words[1] : "where";
    if (strcmp(what, "where") == 0)
        return where();
    if (strcmp(what, "found") == 0)
        return found(count, words);
    if (strcmp(what, "state") == 0)
        return state();
    if (strcmp(what, "threads") == 0)
        return threads();
    if (strcmp(what, "failures") == 0)
        return failures();
    if (strcmp(what, "ways") == 0)
        return ways();
    if (strcmp(what, "narrow") == 0)
        return narrow();
    if (strcmp(what, "gone") == 0)
        return gone(words[2]);
    if (strcmp(what, "limits") == 0)
        return limits(words[2]);
    if (strcmp(what, "descriptor") == 0)
        return fexecve(open(self, O_PATH | O_CLOEXEC), (char *[]){ self, "where", NULL }, environ);
    if (strcmp(what, "leaf") == 0)
        return leaf(words[2]);
    if (strcmp(what, "tree") == 0)
        return tree();
    if (strcmp(what, "stopped") == 0)
        return stopped();
    if (strcmp(what, "alone") == 0)
        return alone();
    if (strcmp(what, "end") == 0) {
        if (count > 2 && strcmp(words[2], "kill") == 0)
            raise(SIGTERM);
        return count > 2 ? atoi(words[2]) : 0;
    }
    return 2;
}
