/* Calls that a virtual machine without a kernel must do by itself: each case prints what it finds, which is the same natively and as
 * a guest.
 *
 * Usage: vm_calls CASE */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PLACE ((char *)0x310000000000)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static sigjmp_buf back;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* Nothing is blocked in the handler, so that jumping out of it needs no call. */
static int can_write(volatile char *at)
{
    struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
    sigaction(SIGSEGV, &action, NULL);
    if (sigsetjmp(back, 0))
        return 0;
    *at = 1;
    return 1;
}

static void say(const char *what, long result)
{
    printf("%s: %s\n", what, result == -1 ? strerror(errno) : "done");
}

static void end_of_child(const char *what, pid_t pid)
{
    int status = 0;
    if (pid == -1) {
        say(what, -1);
        return;
    }
    pid_t found = waitpid(pid, &status, 0);
    int plainly = found == pid;
    if (!plainly)
        found = waitpid(pid, &status, __WALL);
    printf("%s: found %d, plainly %d, status %x\n", what, found == pid, plainly, status);
}

static volatile int ours = 1;

static int child_of_clone(void *unused)
{
    (void)unused;
    ours = 2;
    chdir("/");
    return 3;
}

static long clone3_of(struct clone_args *wanted, size_t bytes)
{
    long pid = syscall(SYS_clone3, wanted, bytes);
    if (pid == 0)
        _exit(5);
    return pid;
}

/* After clone02, clone08 and clone302 of the Linux Test Project. */
static int clones(void)
{
    static char stack[65536];
    static const struct {
        const char *name;
        int flags;
    } all[] = {
        { "plain", SIGCHLD }, { "another signal", SIGUSR1 }, { "no signal", 0 }, { "its file system", CLONE_FS | SIGCHLD },
        { "the parent's child", CLONE_PARENT | SIGCHLD }, { "descriptor", CLONE_PIDFD | SIGCHLD }, { "input and output", CLONE_IO | SIGCHLD },
        { "untraced", CLONE_UNTRACED | SIGCHLD }, { "semaphores", CLONE_SYSVSEM | SIGCHLD }, { "names", CLONE_NEWUTS | SIGCHLD },
        { "processes", CLONE_NEWPID | SIGCHLD }, { "signals without memory", CLONE_SIGHAND | SIGCHLD },
        { "waited for", CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD }, { "waited for, with files", CLONE_VM | CLONE_VFORK | CLONE_FS | SIGUSR1 },
    };
    signal(SIGUSR1, SIG_IGN);
    for (size_t n = 0; n < COUNT(all); n++) {
        int descriptor = -1;
        ours = 1;
        chdir("/tmp");
        fflush(stdout);
        pid_t pid;
        if (all[n].flags & CLONE_PARENT) {
            /* By a child, so that the new one is ours. */
            int ids[2];
            pid_t between;
            pipe(ids);
            if ((between = fork()) == 0) {
                pid = clone(child_of_clone, stack + sizeof stack, all[n].flags, NULL);
                write(ids[1], &pid, sizeof pid);
                _exit(0);
            }
            read(ids[0], &pid, sizeof pid);
            waitpid(between, NULL, 0);
            close(ids[0]);
            close(ids[1]);
        } else
            pid = clone(child_of_clone, stack + sizeof stack, all[n].flags, NULL, &descriptor);
        end_of_child(all[n].name, pid);
        char here[64];
        printf("  memory %d, descriptor %d, in %s\n", ours, descriptor >= 0 && fcntl(descriptor, F_GETFD) == FD_CLOEXEC, getcwd(here, sizeof here));
        if (descriptor >= 0)
            close(descriptor);
    }

    char *edge = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(edge + PAGE, PAGE);
    struct clone_args plain = { .exit_signal = SIGCHLD }, *last = (void *)(edge + PAGE - sizeof plain), wanted = plain;
    *last = plain;
    end_of_child("structure", clone3_of(&plain, sizeof plain));
    end_of_child("the first structure", clone3_of(&plain, CLONE_ARGS_SIZE_VER0));
    say("nowhere", clone3_of(NULL, sizeof plain));
    say("of no size", clone3_of(&plain, 0));
    say("too short", clone3_of(&plain, CLONE_ARGS_SIZE_VER0 - 1));
    say("beyond the end", clone3_of(last, sizeof plain + 1));
    say("far too long", clone3_of(&plain, 2 * PAGE));
    struct {
        struct clone_args known;
        uint64_t more;
    } longer = { .known = plain };
    end_of_child("longer, with nothing", clone3_of(&longer.known, sizeof longer));
    longer.more = 1;
    say("longer, with something", clone3_of(&longer.known, sizeof longer));
    wanted.flags = CLONE_SIGHAND;
    say("signals without memory", clone3_of(&wanted, sizeof wanted));
    wanted.flags = CLONE_THREAD;
    say("thread without signals", clone3_of(&wanted, sizeof wanted));
    wanted.flags = CLONE_FS | CLONE_NEWNS;
    say("shared and of its own", clone3_of(&wanted, sizeof wanted));
    wanted = plain;
    wanted.exit_signal = 65;
    say("no such signal", clone3_of(&wanted, sizeof wanted));
    wanted = plain;
    wanted.stack = (uintptr_t)stack;
    say("a stack of no size", clone3_of(&wanted, sizeof wanted));
    wanted.stack = 0;
    wanted.stack_size = PAGE;
    say("a size of no stack", clone3_of(&wanted, sizeof wanted));
    wanted = plain;
    wanted.flags = CLONE_PIDFD;
    wanted.pidfd = 8;
    say("descriptor to nowhere", clone3_of(&wanted, sizeof wanted));
    say("apart, nothing", unshare(0));
    say("apart, files", unshare(CLONE_FILES | CLONE_FS));
    say("apart, names", unshare(CLONE_NEWUTS));
    say("apart, no such thing", unshare(1));
    fflush(stdout);
    end_of_child("after that", fork() ?: (_exit(4), 0));
    return 0;
}

/* After close_range02 of the Linux Test Project. */
static int ranges(void)
{
    for (unsigned flags = 0; flags < 8; flags++) {
        int first = dup(1), second = dup(1);
        long result = syscall(SYS_close_range, first, second, flags);
        printf("flags %u: %ld %d, %d %d\n", flags, result, result ? errno : 0, fcntl(first, F_GETFD), fcntl(second, F_GETFD));
        close(first);
        close(second);
    }
    printf("all: %ld\n", syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_UNSHARE));
    fflush(stdout);
    end_of_child("a child", fork() ?: (_exit(6), 0));
    return 7;
}

static void fork_one(const char *what)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(fork() == 0 ? 0 : waitpid(-1, NULL, 0) > 0 ? 5 : 6);
    end_of_child(what, pid);
}

/* Forks of those who could not open /dev/kvm any more. */
static int untracked(void)
{
    struct rlimit few = { 4, 4 };
    char place[] = "/tmp/vm_callsXXXXXX";
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_NOFILE, &few);
        fork_one("few descriptors");
        getrlimit(RLIMIT_NOFILE, &few);
        printf("as before: %lu %lu\n", few.rlim_cur, few.rlim_max);
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    mkdtemp(place);
    say("another root", chroot(place));
    say("there", chdir("/"));
    fork_one("in another root");
    setgroups(0, NULL);
    say("another group", setresgid(65534, 65534, 65534));
    say("another user", setresuid(65534, 65534, 65534));
    fork_one("as another user");
    return 0;
}

static pthread_barrier_t begun, done;

static void *wait_with_others(void *unused)
{
    (void)unused;
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&done);
    return NULL;
}

/* How many descriptors there are for a program with threads. */
static int crowded(void)
{
    enum { THREADS = 24 };
    struct rlimit limit = { 64, 4096 };
    setrlimit(RLIMIT_NOFILE, &limit);
    pthread_t threads[THREADS];
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&done, NULL, THREADS + 1);
    for (int n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], NULL, wait_with_others, NULL))
            return 1;
    pthread_barrier_wait(&begun);
    int count = 0, last = -1, now;
    while ((now = dup(1)) >= 0) {
        last = now;
        count++;
    }
    printf("%d descriptors, the last is %d: %s\n", count, last, strerror(errno));
    getrlimit(RLIMIT_NOFILE, &limit);
    printf("limit: %lu %lu\n", limit.rlim_cur, limit.rlim_max);
    pthread_barrier_wait(&done);
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    /* None is left, and one more thread begins all the same. */
    pthread_barrier_init(&begun, NULL, 1);
    pthread_barrier_init(&done, NULL, 1);
    printf("one more: %d", pthread_create(&threads[0], NULL, wait_with_others, NULL));
    printf(" %d\n", pthread_join(threads[0], NULL));
    return 0;
}

static volatile int ticks;

static void on_tick(int number)
{
    (void)number;
    ticks++;
}

/* A handler that lets calls begin anew: not those on a socket with a time limit. Both limits are far away. */
static int time_limits(void)
{
    int pair[2];
    char byte;
    struct timeval limit = { 1000, 0 };
    struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
    struct itimerval often = { { 0, 50000 }, { 0, 50000 } }, never = { 0 };
    sigaction(SIGALRM, &action, NULL);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setitimer(ITIMER_REAL, &often, NULL);
    say("receive", recv(pair[0], &byte, 1, 0));
    say("read", read(pair[0], &byte, 1));
    setitimer(ITIMER_REAL, &never, NULL);
    fflush(stdout);
    ticks = 0;
    pid_t pid = fork();
    if (pid == 0) {
        /* The parent has begun anew at least once. */
        for (int n = 0; n < 3; n++) {
            kill(getppid(), SIGALRM);
            usleep(100000);
        }
        _exit(write(pair[0], "x", 1) == 1 ? 0 : 1);
    }
    say("without a limit", recv(pair[1], &byte, 1, 0));
    printf("meanwhile: %d\n", ticks > 0);
    end_of_child("the other", pid);
    return 0;
}

/* After mremap03 of the Linux Test Project, and what lies around. */
static int far(void)
{
    char *place = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(place, PAGE);
    say("from nothing", (long)mremap(place, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    for (size_t bytes = 1ul << 30; bytes < 1ul << 46; bytes <<= 3)
        say("from far more than there is", (long)mremap(place + PAGE, bytes, PAGE / 2 + bytes, MREMAP_MAYMOVE));
    printf("still there: %d\n", can_write(place + PAGE));
    return 0;
}

static unsigned long attached(int segment)
{
    struct shmid_ds status;
    return shmctl(segment, IPC_STAT, &status) ? 9999 : status.shm_nattch;
}

static int segments(void)
{
    int segment = shmget(IPC_PRIVATE, 5 * PAGE - 100, IPC_CREAT | 0600), other = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
    char *at = shmat(segment, NULL, 0), *again = shmat(segment, PLACE, 0), *only = shmat(segment, NULL, SHM_RDONLY);
    printf("attached %lu, at its place %d\n", attached(segment), again == PLACE);
    strcpy(at + PAGE, "by one");
    printf("%s, %s\n", again + PAGE, only + PAGE);
    printf("writable: %d %d %d %d\n", can_write(at + 4 * PAGE), can_write(at + 5 * PAGE - 1), can_write(only), can_write(again));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        strcpy(again + 2 * PAGE, "by a child");
        printf("in the child: %lu", attached(segment));
        printf(" %d", shmdt(again));
        printf(" %lu\n", attached(segment));
        fflush(stdout);
        _exit(0);
    }
    end_of_child("child", pid);
    printf("%s, attached %lu\n", at + 2 * PAGE, attached(segment));
    say("where something is", (long)shmat(other, PLACE, 0));
    say("not at a page", (long)shmat(other, PLACE + 9 * PAGE + 5, 0));
    say("rounded, over something", (long)shmat(other, PLACE + 2 * PAGE + 5, SHM_RND | SHM_REMAP));
    printf("there: %d, behind: %s\n", again[2 * PAGE], again + PAGE);
    munmap(again + 3 * PAGE, PAGE);
    again = mmap(PLACE + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    say("detached", shmdt(PLACE));
    printf("left:");
    for (int page = 0; page < 5; page++)
        printf(" %d", can_write(PLACE + page * PAGE));
    printf(", attached %lu %lu\n", attached(segment), attached(other));
    say("detached again", shmdt(PLACE));
    say("detached in its middle", shmdt(at + PAGE));
    say("detached, the other", shmdt(PLACE + 2 * PAGE));
    say("no segment", (long)shmat(-1, NULL, 0));
    say("removed", shmctl(segment, IPC_RMID, NULL));
    say("removed", shmctl(other, IPC_RMID, NULL));
    printf("still there: %s\n", at + PAGE);
    say("detached at last", shmdt(at));
    say("the one to be read", shmdt(only));
    printf("gone: %d\n", can_write(at));
    return 0;
}

/* The auxiliary vector, by all ways to it: the one that the program began with. */
static int vector(void)
{
    unsigned long by_call[128] = { 0 }, by_file[128] = { 0 };
    long length = prctl(0x41555856, by_call, sizeof by_call, 0, 0);
    printf("kernel has it: %d, with a word too many: %d\n", length > 0 || errno == EINVAL, prctl(0x41555856, by_call, 0, 0, 1));
    int file = open("/proc/self/auxv", O_RDONLY);
    ssize_t got = read(file, by_file, sizeof by_file);
    close(file);
    unsigned long *first = (unsigned long *)environ;
    while (*first++)
        ;
    int right = 0, checked = 0;
    for (size_t n = 0; n < 128 && first[n]; n += 2) {
        checked++;
        right += !memcmp(first + n, by_file + n, 16) && (length <= 0 || !memcmp(first + n, by_call + n, 16));
    }
    printf("all right: %d, pairs: %d\n", checked > 10 && right == checked, got % 16 == 0);
    return 0;
}

/* What is not done here fails, and the program goes on. Natively most of it is done. */
static int refused(void)
{
    static char stack[65536];
    printf("downwards %d\n", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0) == MAP_FAILED ? errno : 0);
    printf("filters %d", prctl(PR_SET_SECCOMP, 2, 0, 0, 0) ? errno : 0);
    printf(" %ld\n", syscall(SYS_seccomp, 99, 0, 0) ? (long)errno : 0);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED | SIGCHLD;
    printf("beside us %d\n", clone(child_of_clone, stack + sizeof stack, flags, NULL) < 0 ? errno : 0);
    printf("same files %d\n", clone(child_of_clone, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL) < 0 ? errno : 0);
    puts("goes on");
    return 11;
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = { { "clones", clones }, { "ranges", ranges },   { "given-up", untracked }, { "crowded", crowded }, { "time-limits", time_limits },
                { "far", far },       { "segments", segments }, { "vector", vector }, { "refused", refused } };
    for (size_t n = 0; n < COUNT(all) && count > 1; n++)
        if (!strcmp(arguments[1], all[n].name))
            return all[n].run();
    return 100;
}
