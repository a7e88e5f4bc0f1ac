/* What programs count on, a case per argument: each prints what it found, which must be the same natively and as a guest. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static void *map_at(void *at, size_t bytes, int protection, int flags)
{
    return mmap(at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static sigjmp_buf back;
static volatile uintptr_t fault_address;
static volatile int fault_code;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_address = (uintptr_t)info->si_addr;
    fault_code = info->si_code * 100 + number;
    siglongjmp(back, 1);
}

/* What a write does, or the signal that it gives. */
static void try_write(const char *what, char *at, uintptr_t base)
{
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)at = 1;
        printf("%s: written\n", what);
    } else {
        printf("%s: signal %d, %lx\n", what, fault_code, fault_address - base);
    }
}

static void catch_faults(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
}

static int memory(void)
{
    catch_faults();
    char *area = map_at(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, 0);
    uintptr_t base = (uintptr_t)area;
    memset(area, 7, 64 * PAGE);
    mprotect(area + 8 * PAGE, 8 * PAGE, PROT_READ);
    try_write("read-only", area + 9 * PAGE + 5, base);
    mprotect(area + 9 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    try_write("writable again", area + 9 * PAGE + 5, base);
    munmap(area + 20 * PAGE, 4 * PAGE);
    try_write("unmapped", area + 21 * PAGE, base);
    printf("over the hole: %d\n", mprotect(area + 18 * PAGE, 8 * PAGE, PROT_READ) ? errno : 0);
    try_write("before the hole", area + 19 * PAGE, base);
    char *fixed = map_at(area + 20 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED);
    printf("fixed: %d %d\n", fixed == area + 20 * PAGE, fixed[PAGE]);
    madvise(area + 30 * PAGE, PAGE, MADV_DONTNEED);
    printf("discarded: %d, its neighbour: %d\n", area[30 * PAGE], area[31 * PAGE]);
    char *moved = mremap(area + 40 * PAGE, 8 * PAGE, 512 * PAGE, MREMAP_MAYMOVE);
    printf("moved: %d %d\n", moved[7 * PAGE], moved[8 * PAGE]);
    moved[511 * PAGE] = 1;

    size_t huge = 2ul << 40;
    char *reserved = map_at(NULL, huge, PROT_NONE, MAP_NORESERVE);
    printf("reserved: %d\n", reserved != MAP_FAILED);
    try_write("reserved", reserved + huge / 2, (uintptr_t)reserved);
    mprotect(reserved + huge / 2, 4 * PAGE, PROT_READ | PROT_WRITE);
    try_write("taken of it", reserved + huge / 2, (uintptr_t)reserved);

    char *heap = sbrk(0);
    sbrk(1 << 20);
    heap[(1 << 20) - 1] = 3;
    sbrk(-(1 << 19));
    try_write("behind the break", heap + (1 << 20) - 1, (uintptr_t)heap);

    char name[] = "/tmp/vm_program.XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    char text[2 * PAGE];
    memset(text, 'x', sizeof text);
    printf("file: %zd\n", write(file, text, sizeof text));
    char *private = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    char *shared = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    private[0] = 'p';
    shared[1] = 's';
    pwrite(file, "w", 1, PAGE);
    pread(file, text, 2, 0);
    printf("file: %.2s, private: %.2s, shared: %.2s, %c\n", text, private, shared, shared[PAGE]);
    try_write("behind the file's end", private + 3 * PAGE, (uintptr_t)private);
    printf("read into read-only memory: %d\n", read(0, area + 10 * PAGE, 1) < 0 ? errno : 0);
    return 0;
}

static volatile sig_atomic_t alarms;

#define ALARMS 20

static void alarm_every(long us)
{
    setitimer(ITIMER_REAL, &(struct itimerval){ { 0, us }, { 0, us } }, NULL);
}

static void on_alarm(int number)
{
    (void)number;
    double clobber = alarms;
    alarms++;
    /* Where handlers take longer than the time between alarms, nothing else would ever run. */
    if (alarms == ALARMS)
        alarm_every(0);
    __asm__ volatile("pxor %%xmm0, %%xmm0\npxor %%xmm7, %%xmm7" ::: "xmm0", "xmm7");
    (void)clobber;
}

static int signals(void)
{
    /* In a loop that makes no system call, with vector registers in use. */
    struct sigaction action = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &action, NULL);
    alarm_every(5000);
    double sum = 0;
    while (alarms < ALARMS)
        for (int i = 0; i < 1000; i++)
            sum += i * 0.5 - (i / 2.0);
    printf("sum: %g\n", sum);
    /* A call that is interrupted, and one that begins anew. */
    int ends[2];
    char byte;
    pipe(ends);
    alarm_every(100000);
    ssize_t got = read(ends[0], &byte, 1);
    printf("interrupted: %zd %d\n", got, got < 0 ? errno : 0);
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    if (fork() == 0) {
        usleep(300000);
        write(ends[1], "y", 1);
        _exit(0);
    }
    got = read(ends[0], &byte, 1);
    printf("begun anew: %zd %c\n", got, byte);
    alarm_every(0);
    wait(NULL);
    /* Blocked, pending, on a stack of its own. */
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, &old);
    alarms = 0;
    raise(SIGALRM);
    printf("blocked: %d\n", (int)alarms);
    stack_t stack = { .ss_sp = malloc(65536), .ss_size = 65536 };
    sigaltstack(&stack, NULL);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGALRM, &action, NULL);
    sigsuspend(&old);
    printf("taken: %d\n", (int)alarms);
    catch_faults();
    try_write("no memory", (char *)64, 0);
    if (sigsetjmp(back, 1) == 0)
        __asm__ volatile("ud2");
    printf("no instruction: signal %d\n", fault_code);
    signal(SIGPIPE, SIG_IGN);
    close(ends[0]);
    printf("ignored: %zd %d\n", write(ends[1], "z", 1), errno);
    return 0;
}

extern char **environ;

static int children(const char *self)
{
    int status;
    int value = 1;
    fflush(stdout);
    if (fork() == 0) {
        value = 2;
        _exit(40 + value);
    }
    wait(&status);
    printf("forked: %d, here: %d\n", WEXITSTATUS(status), value);
    pid_t pid;
    char *arguments[] = { (char *)self, "exit", NULL };
    printf("spawned: %d\n", posix_spawn(&pid, self, NULL, NULL, arguments, environ));
    waitpid(pid, &status, 0);
    printf("its status: %d\n", WEXITSTATUS(status));
    printf("not there: %d\n", posix_spawn(&pid, "/nowhere", NULL, NULL, arguments, environ));
    printf("by a shell: %d\n", WEXITSTATUS(system("exit 9")));
    volatile int shared = 0;
    if (vfork() == 0) {
        shared = 5;
        _exit(0);
    }
    wait(NULL);
    printf("shared: %d\n", shared);
    if (fork() == 0)
        *(volatile int *)8 = 0;
    wait(&status);
    printf("killed by: %d\n", WTERMSIG(status));
    return 0;
}

static int identity(void)
{
    char path[512] = { 0 };
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    printf("exe: %zd %s\n", length, path);
    printf("name: %s\n", program_invocation_short_name);
    printf("executed: %s\n", (char *)getauxval(AT_EXECFN));
    printf("closed: %d %d\n", close(200), close(900));
    printf("first free: %d\n", open("/dev/null", O_RDONLY));
    return 0;
}

/* The line of a file about mappings that has an address, and the number after `key` among its details. */
static int mapping_of(const char *path, uintptr_t address, const char *key, char *line, size_t room)
{
    FILE *file = fopen(path, "r");
    char text[1024];
    int number = -1, within = 0;
    line[0] = 0;
    while (file && fgets(text, sizeof text, file)) {
        unsigned long start, end;
        if (sscanf(text, "%lx-%lx ", &start, &end) == 2) {
            within = start <= address && address < end;
            if (within)
                snprintf(line, room, "%s", text);
        } else if (within && key && !strncmp(text, key, strlen(key)))
            sscanf(text + strlen(key), "%d", &number);
    }
    if (file)
        fclose(file);
    return number;
}

static void show_mapping(const char *what, uintptr_t address, const char *name)
{
    char line[1024], rights[8] = "none", *at = NULL;
    mapping_of("/proc/self/maps", address, NULL, line, sizeof line);
    sscanf(line, "%*s %7s", rights);
    if (name)
        at = strstr(line, name);
    printf("%s: %s, %s\n", what, rights, name ? at && at[strlen(name)] == '\n' ? "named" : "not named" : "");
}

static void say_break(const char *what, long by)
{
    void *before = sbrk(0), *result = sbrk(by);
    int error = result == (void *)-1 ? errno : 0;
    printf("%s: %d, %ld\n", what, error, (long)((char *)sbrk(0) - (char *)before));
}

static void say_mapped(const char *what, size_t bytes, int protection)
{
    char *at = map_at(NULL, bytes, protection, MAP_NORESERVE);
    printf("%s: %d\n", what, at == MAP_FAILED ? errno : 0);
    if (at != MAP_FAILED)
        munmap(at, bytes);
}

static void limit(int resource, size_t bytes)
{
    struct rlimit limit;
    getrlimit(resource, &limit);
    limit.rlim_cur = bytes;
    setrlimit(resource, &limit);
}

/* How far the break goes, and how much may be mapped. */
static int limits(void)
{
    const size_t mega = 1 << 20;
    say_break("break", 3 * PAGE + 5);
    say_break("unaligned", 77);
    char *end = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & -PAGE);
    map_at(end + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
    say_break("up to a mapping", 4 * PAGE);
    say_break("into it", PAGE);
    say_break("beyond it", 64 * PAGE);
    munmap(end + 4 * PAGE, PAGE);
    say_break("where it was", 64 * PAGE);
    sbrk(-66 * (long)PAGE);
    printf("below its beginning: %d\n", brk((void *)PAGE) ? errno : 0);
    say_break("nearly all addresses", 1l << 46);

    limit(RLIMIT_DATA, 256 * mega);
    say_break("more than allowed", 300 * mega);
    say_break("allowed", 16 * mega);
    say_mapped("mapped, more than allowed", 300 * mega, PROT_READ | PROT_WRITE);
    say_mapped("mapped, allowed", 100 * mega, PROT_READ | PROT_WRITE);
    say_mapped("mapped, not to be written", 300 * mega, PROT_READ);
    limit(RLIMIT_DATA, RLIM_INFINITY);
    limit(RLIMIT_AS, 8192 * mega);
    say_mapped("more addresses than allowed", 9000 * mega, PROT_NONE);
    say_mapped("addresses, allowed", 4096 * mega, PROT_NONE);
    return 0;
}

/* How many mappings there are of files, of which only the kernel's list knows. */
static int strangers(void)
{
    DIR *files = opendir("/proc/self/map_files");
    int count = 0;
    for (struct dirent *entry; files && (entry = readdir(files));) {
        unsigned long start, end;
        unsigned char there;
        char line[1024];
        if (sscanf(entry->d_name, "%lx-%lx", &start, &end) != 2)
            continue;
        mapping_of("/proc/self/maps", start, NULL, line, sizeof line);
        if (!*line)
            count += !mincore((void *)start, PAGE, &there) || !msync((void *)start, PAGE, MS_ASYNC) ||
                     !mlock((void *)start, 1);
    }
    if (files)
        closedir(files);
    return count;
}

static int about_itself(void)
{
    char path[512] = { 0 }, line[1024], text[64];
    int local = 0, status;
    readlink("/proc/self/exe", path, sizeof path - 1);
    sbrk(4096);
    show_mapping("stack", (uintptr_t)&local, "[stack]");
    show_mapping("heap", (uintptr_t)sbrk(0) - 1, "[heap]");
    show_mapping("code", (uintptr_t)about_itself, path);
    show_mapping("nothing", 4096 * 8, NULL);
    char *area = map_at(NULL, 5 * PAGE, PROT_NONE, 0);
    mprotect(area + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    area[2 * PAGE] = 1;
    show_mapping("reserved", (uintptr_t)area, NULL);
    show_mapping("writable", (uintptr_t)area + 2 * PAGE, NULL);
    printf("its size: %d kB", mapping_of("/proc/self/smaps", (uintptr_t)area + 2 * PAGE, "Size:", line, sizeof line));
    printf(", in memory: %d kB\n", mapping_of("/proc/self/smaps", (uintptr_t)area + 2 * PAGE, "Rss:", line, sizeof line));
    munmap(area, 5 * PAGE);
    show_mapping("gone", (uintptr_t)area + 2 * PAGE, NULL);

    FILE *file = fopen("/proc/self/maps", "r");
    unsigned long start, end, before = 0;
    int sorted = 1, others = 0;
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "%lx-%lx", &start, &end);
        sorted &= before <= start && start < end;
        before = end;
        others += strstr(line, "pagetrail\n") != NULL || strstr(line, "kvm") != NULL;
    }
    fclose(file);
    printf("sorted: %d, the machine's: %d\n", sorted, others);
    printf("files that are mapped, but not by it: %d\n", strangers());
    int directory = open("/proc/self", O_RDONLY | O_DIRECTORY);
    int maps = openat(directory, "maps", O_RDONLY | O_CLOEXEC);
    printf("relative: %zd, %d, to be written: %zd\n", read(maps, text, 12), fcntl(maps, F_GETFD), write(maps, "x", 1));
    printf("for writing: %d\n", open("/proc/self/maps", O_WRONLY) < 0 ? errno : 0);

    pthread_attr_t attributes;
    void *stack;
    size_t bytes;
    printf("stack known: %d", pthread_getattr_np(pthread_self(), &attributes));
    pthread_attr_getstack(&attributes, &stack, &bytes);
    printf(" %d\n", (char *)stack <= (char *)&local && (char *)&local < (char *)stack + bytes);

    struct stat by_path, by_link, opened;
    snprintf(text, sizeof text, "/proc/%d/exe", getpid());
    int program = open(text, O_RDONLY);
    stat(path, &by_path);
    stat("/proc/self/exe", &by_link);
    fstat(program, &opened);
    printf("program: %d %d, %zd %.3s\n", by_path.st_ino == by_link.st_ino, by_path.st_ino == opened.st_ino,
           read(program, text, 4), text + 1);
    printf("may be run: %d\n", access("/proc/self/exe", X_OK));
    fflush(stdout);
    if (fork() == 0) {
        execl("/proc/self/exe", "again", "exit", NULL);
        _exit(99);
    }
    wait(&status);
    printf("run again: %d\n", WEXITSTATUS(status));
    return 0;
}

/* How many there were, in memory that the one who disturbs sees. */
static volatile unsigned *disturbances;

static void on_disturbance(int number)
{
    (void)number;
    ++*disturbances;
}

/* Signals for a program that takes page faults, while forks make all memory, the machine's too, be looked up anew: a fault is
 * then interrupted on its way to the thread that answers it. */
static int disturbed(void)
{
    struct sigaction action = { .sa_handler = on_disturbance, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, NULL);
    disturbances = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t here = getpid(), by = fork();
    if (by == 0)
        for (unsigned random = 1;; random = random * 1103515245 + 12345) {
            unsigned before = *disturbances;
            if (kill(here, SIGUSR1) != 0)
                _exit(0);
            /* One after another, with a while between: nothing goes on in a program that gets them without a pause. */
            while (*disturbances == before)
                if (getppid() != here)
                    _exit(0);
            for (volatile unsigned i = 0; i < random >> 14; i++)
                ;
        }
    int right = 0, status;
    for (int i = 0; i < 20; i++) {
        unsigned before = *disturbances;
        pid_t pid = fork();
        if (pid == 0)
            _exit(i);
        do {
            char *pages = map_at(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, 0);
            for (int page = 0; page < 16; page++)
                pages[page * PAGE] = 1;
            munmap(pages, 16 * PAGE);
        } while (*disturbances == before);
        right += waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == i;
    }
    kill(by, SIGKILL);
    waitpid(by, &status, 0);
    printf("disturbed, right %d\n", right);
    return 0;
}

/* How many MiB there are. */
static int greedy(void)
{
    int reserved = map_at(NULL, 1ul << 40, PROT_NONE, MAP_NORESERVE) != MAP_FAILED, count = 0;
    char *area;
    while (count < 4096 && (area = map_at(NULL, 1 << 20, PROT_READ | PROT_WRITE, 0)) != MAP_FAILED) {
        area[0] = 1;
        count++;
    }
    printf("%d %d %d\n", reserved, count, errno == ENOMEM);
    area = map_at(NULL, 1 << 20, PROT_NONE, 0);
    printf("%d", mprotect(area, 1 << 20, PROT_READ | PROT_WRITE) == 0);
    printf(" %d\n", sbrk(64 << 20) != (void *)-1);
    return 0;
}

/* What may have written anywhere, for all that is known of it. */
static int anywhere(void)
{
    unsigned long sectors = 7;
    for (int n = 0; n < 3; n++)
        printf("sectors: %d\n", ioctl(1, BLKGETSIZE, &sectors) ? errno : 0);
    return 0;
}

int main(int count, char **arguments)
{
    const char *which = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOFBF, 65536);
    int status = 1;
    if (!strcmp(which, "memory"))
        status = memory();
    else if (!strcmp(which, "signals"))
        status = signals();
    else if (!strcmp(which, "children"))
        status = children(arguments[0]);
    else if (!strcmp(which, "disturbed"))
        status = disturbed();
    else if (!strcmp(which, "identity"))
        status = identity();
    else if (!strcmp(which, "limits"))
        status = limits();
    else if (!strcmp(which, "about"))
        status = about_itself();
    else if (!strcmp(which, "greedy"))
        status = greedy();
    else if (!strcmp(which, "anywhere"))
        status = anywhere();
    else if (!strcmp(which, "exit"))
        status = 21;
    else if (!strcmp(which, "crash"))
        *(volatile int *)16 = 1;
    else if (!strcmp(which, "divide"))
        status = 1 / (count - 2);
    fflush(stdout);
    return status;
}
