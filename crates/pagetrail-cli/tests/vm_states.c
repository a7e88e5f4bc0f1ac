/*
 * A program that says exactly what it finds: which handlers run in which order, with which mask, stack and
 * floating-point state, and what is left afterwards. Everything here comes at a known instruction, so that a run as a guest
 * says the same as a native one, line by line.
 *
 *   vm_states CASE           one of the cases below
 *   vm_states random SEED N  N random steps
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fenv.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif
#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const int signals[] = {SIGUSR1, SIGUSR2, SIGWINCH, SIGURG, 35, 37, 40};
/* The sum of these shows a set in one number. */
static int bit(int signal)
{
    for (int n = 0; n < LENGTH(signals); n++)
        if (signals[n] == signal)
            return 1 << n;
    return 0;
}

static unsigned shown(const sigset_t *set)
{
    unsigned bits = 0;
    for (int n = 0; n < LENGTH(signals); n++)
        if (sigismember(set, signals[n]) == 1)
            bits |= bit(signals[n]);
    return bits;
}

static sigset_t set_of(unsigned bits)
{
    sigset_t set;
    sigemptyset(&set);
    for (int n = 0; n < LENGTH(signals); n++)
        if (bits & bit(signals[n]))
            sigaddset(&set, signals[n]);
    return set;
}

static unsigned short control_word(void)
{
    unsigned short word;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    return word;
}

static void set_control_word(unsigned short word)
{
    __asm__ volatile("fldcw %0" : : "m"(word));
}

static unsigned short status_word(void)
{
    unsigned short word;
    __asm__ volatile("fnstsw %0" : "=m"(word));
    return word;
}

static char alternate[1 << 16] __attribute__((aligned(4096)));
static sigjmp_buf out;
static int depth, jumps, changes_mask;
static unsigned raises;

static int is_alternate(const void *address)
{
    return (const char *)address >= alternate && (const char *)address < alternate + sizeof(alternate);
}

static void say_stack(const char *when)
{
    stack_t stack = {0};
    int result = sigaltstack(NULL, &stack);
    printf("%s stack %d: %d %x %zu\n", when, result, is_alternate(stack.ss_sp), (unsigned)stack.ss_flags,
           stack.ss_size);
}

static void say_state(const char *when)
{
    sigset_t mask, pending;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    sigpending(&pending);
    printf("%s mask %x pending %x cw %x sw %x mxcsr %x\n", when, shown(&mask), shown(&pending), control_word(),
           status_word() & 0xbf, _mm_getcsr());
}

static void say_action(int signal)
{
    struct sigaction action;
    int result = sigaction(signal, NULL, &action);
    const char *what = action.sa_handler == SIG_DFL   ? "default"
                       : action.sa_handler == SIG_IGN ? "ignored"
                                                      : "handled";
    printf("signal %d: %d %s flags %x mask %x\n", signal, result, what, action.sa_flags, shown(&action.sa_mask));
}

static void handler(int signal, siginfo_t *info, void *interrupted)
{
    ucontext_t *context = interrupted;
    unsigned mxcsr = _mm_getcsr();
    char local;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    printf("%*shandler %d code %d value %d on %d mask %x mxcsr %x cw %x sw %x; was mask %x stack %x mxcsr %x cw %x\n",
           depth, "", signal, info->si_code, info->si_code == SI_QUEUE ? info->si_value.sival_int : 0,
           is_alternate(&local), shown(&mask), mxcsr, control_word(), status_word(), shown(&context->uc_sigmask),
           (unsigned)context->uc_stack.ss_flags, context->uc_mcontext.fpregs->mxcsr,
           context->uc_mcontext.fpregs->cwd);
    depth++;
    if (raises && depth < 4) {
        int next = signals[raises % LENGTH(signals)];
        raises /= LENGTH(signals);
        printf("%*sraises %d: %d\n", depth, "", next, raise(next));
    }
    if (changes_mask) {
        context->uc_sigmask = set_of(changes_mask);
        context->uc_mcontext.fpregs->mxcsr = 0x1fa0;
        changes_mask = 0;
    }
    /* What the handler does to its own is forgotten. */
    _mm_setcsr(0x9fc0);
    set_control_word(0x0c7f);
    depth--;
    if (jumps > 0 && --jumps == 0) {
        depth = 0;
        siglongjmp(out, 1);
    }
}

static void handle(int signal, int flags, unsigned mask)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags, .sa_mask = set_of(mask)};
    if (sigaction(signal, &action, NULL))
        printf("sigaction: %d\n", errno);
}

static int set_stack(unsigned flags, size_t bytes)
{
    stack_t stack = {.ss_sp = alternate, .ss_size = bytes, .ss_flags = (int)flags};
    return sigaltstack(&stack, NULL) ? errno : 0;
}

static void *at_pointer;
static void fault(int signal, siginfo_t *info, void *interrupted)
{
    char local;
    (void)interrupted;
    printf("signal %d code %d here %d on %d\n", signal, info->si_code, info->si_addr == at_pointer,
           is_alternate(&local));
    siglongjmp(out, signal);
}

static void handle_faults(int flags)
{
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER | flags};
    const int faults[] = {SIGFPE, SIGTRAP, SIGSEGV, SIGILL, SIGBUS};
    for (int n = 0; n < LENGTH(faults); n++)
        sigaction(faults[n], &action, NULL);
}

/* Floating-point state in handlers, and what exceptions are about. */
static int arithmetic(void)
{
    handle(SIGUSR1, 0, 0);
    _mm_setcsr(0xffc0);
    set_control_word(0x027f);
    long double seven = 7;
    __asm__ volatile("fldt %0" : : "m"(seven));
    raise(SIGUSR1);
    long double popped;
    __asm__ volatile("fstpt %0" : "=m"(popped));
    printf("after: mxcsr %x cw %x %d\n", _mm_getcsr(), control_word(), (int)popped);
    _mm_setcsr(0x1f80);
    __asm__ volatile("fninit");
    handle_faults(0);
    const int exceptions[] = {FE_DIVBYZERO, FE_INVALID, FE_OVERFLOW, FE_UNDERFLOW, FE_INEXACT};
    volatile long double zero = 0, one = 1, most = 0x1p16000L, least = 0x1p-16000L;
    for (int n = 0; n < LENGTH(exceptions); n++) {
        for (int again = 0; again < 2; again++) {
            if (sigsetjmp(out, 1) == 0) {
                feenableexcept(exceptions[n]);
                volatile long double result = n == 0   ? one / zero
                                              : n == 1 ? zero / zero
                                              : n == 2 ? most * most
                                              : n == 3 ? least * least
                                                       : one / 3;
                __asm__ volatile("fwait");
                printf("no exception: %d\n", result > 0);
            }
            printf("after: cw %x sw %x\n", control_word(), status_word());
            fesetenv(FE_DFL_ENV);
        }
    }
    return 0;
}

/* Instructions that stop, and what a debugger would see. */
static int stops(void)
{
    handle_faults(0);
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile("int3");
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile(".byte 0xf1");
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; nop; nop" : : : "memory", "cc");
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile("hlt");
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile("int $0x4");
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile("ud2");
    unsigned ds, es, fs, gs, ss, cs;
    __asm__("mov %%ds, %0" : "=r"(ds));
    __asm__("mov %%es, %0" : "=r"(es));
    __asm__("mov %%fs, %0" : "=r"(fs));
    __asm__("mov %%gs, %0" : "=r"(gs));
    __asm__("mov %%ss, %0" : "=r"(ss));
    __asm__("mov %%cs, %0" : "=r"(cs));
    printf("%x %x %x %x %x %x\n", ds, es, fs, gs, ss, cs);
    printf("cpuid: %ld\n", syscall(SYS_arch_prctl, 0x1011, 0));
    for (int n = 0; n < 2; n++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(n, &one);
        if (sched_setaffinity(0, sizeof(one), &one))
            continue;
        unsigned low, high, number;
        __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(number));
        printf("processor %u\n", number);
    }
    return 0;
}

/* Masks that hold while a call waits. */
static int waits(void)
{
    handle(SIGUSR1, 0, 0);
    handle(SIGUSR2, 0, bit(SIGWINCH));
    handle(35, SA_RESTART, bit(40));
    handle(40, 0, 0);
    const unsigned all = bit(SIGUSR1) | bit(SIGUSR2) | bit(35) | bit(40);
    sigset_t blocked = set_of(all), during = set_of(bit(37) | bit(40)), none = set_of(0);
    int epoll = epoll_create1(0);
    struct timespec long_time = {.tv_sec = 60};
    for (int n = 0; n < 5; n++) {
        sigprocmask(SIG_SETMASK, &blocked, NULL);
        raise(40);
        raise(35);
        raise(SIGUSR2);
        raise(SIGUSR1);
        union sigval value = {.sival_int = n};
        sigqueue(getpid(), 35, value);
        struct epoll_event event;
        errno = 0;
        int result = n == 0   ? sigsuspend(&during)
                     : n == 1 ? ppoll(NULL, 0, &long_time, &during)
                     : n == 2 ? pselect(0, NULL, NULL, NULL, &long_time, &during)
                     : n == 3 ? epoll_pwait(epoll, &event, 1, -1, &during)
                              : sigsuspend(&none);
        printf("wait %d: %d %d\n", n, result, errno);
        say_state("after");
        sigprocmask(SIG_SETMASK, &none, NULL);
    }
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    errno = 0;
    struct timespec no_time = {0};
    int result = ppoll(NULL, 0, &no_time, &none);
    printf("%d %d\n", result, errno);
    return 0;
}

/* Flags of actions, and alternate stacks. */
static int actions(void)
{
    handle(SIGUSR1, SA_RESETHAND | SA_NODEFER | SA_ONSTACK, bit(SIGUSR2));
    say_action(SIGUSR1);
    raise(SIGUSR1);
    say_action(SIGUSR1);
    say_action(SIGKILL);
    struct sigaction odd = {.sa_handler = SIG_IGN, .sa_flags = 0x00400400, .sa_mask = set_of(1)};
    sigaddset(&odd.sa_mask, SIGKILL);
    printf("%d\n", sigaction(SIGUSR2, &odd, NULL));
    sigaction(SIGUSR2, NULL, &odd);
    printf("%x %d\n", odd.sa_flags, sigismember(&odd.sa_mask, SIGKILL));
    say_stack("none");
    printf("%d %d %d %d\n", set_stack(0, 100), set_stack(4, 8192), set_stack(SS_ONSTACK, 16384),
           set_stack(SS_AUTODISARM, 16384));
    handle(SIGUSR1, SA_ONSTACK, 0);
    handle(SIGUSR2, SA_ONSTACK, 0);
    for (int n = 0; n < 3; n++) {
        const unsigned flags[] = {SS_AUTODISARM, 0, SS_DISABLE};
        printf("set: %d\n", set_stack(flags[n], 32768));
        say_stack("set");
        raises = 1;
        raise(SIGUSR1);
        say_stack("after");
    }
    /* A frame for which there is no stack: the handler of SIGSEGV has one. */
    handle_faults(SA_ONSTACK);
    printf("set: %d\n", set_stack(0, sizeof(alternate)));
    handle(SIGUSR1, 0, 0);
    if (sigsetjmp(out, 1) == 0)
        __asm__ volatile("mov $64, %%esp; syscall; ud2"
                         :
                         : "a"(SYS_kill), "D"(getpid()), "S"(SIGUSR1)
                         : "rcx", "r11", "memory");
    say_state("after");
    return 0;
}

static volatile char sink;
static __attribute__((noinline)) int deep(int n)
{
    volatile char bytes[1 << 16];
    bytes[0] = bytes[sizeof(bytes) - 1] = (char)n;
    sink = bytes[0];
    return n ? deep(n - 1) + 1 + (bytes[0] != (char)n) : 0;
}

static void *where_stack(void)
{
    volatile char here;
    return (void *)((uintptr_t)&here & ~4095UL);
}

static void overflown(int signal, siginfo_t *info, void *interrupted)
{
    ucontext_t *context = interrupted;
    uintptr_t stack = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
    uintptr_t distance = (uintptr_t)info->si_addr - stack + (2 << 20);
    printf("signal %d code %d near %d\n", signal, info->si_code, distance < 4 << 20);
    siglongjmp(out, 1);
}

/* The stack: how far it grows, what it says when it does not, and who may execute it. */
static int stack(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    struct sigaction action = {.sa_sigaction = overflown, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, NULL);
    set_stack(0, sizeof(alternate));
    const int sizes[] = {1, 64, 2, 100, 8};
    for (int n = 0; n < LENGTH(sizes); n++) {
        limit.rlim_cur = (rlim_t)sizes[n] << 20;
        printf("limit %d: %d\n", sizes[n], setrlimit(RLIMIT_STACK, &limit));
        if (sigsetjmp(out, 1) == 0)
            printf("%d\n", deep(sizes[n] * 16 - 8));
        if (n != 2 && n != 4)
            continue;
        /* Lower than what is there: no less is there for that. */
        if (sigsetjmp(out, 1) == 0)
            printf("%d\n", deep(2000));
    }
    /* A system call whose buffer is where the stack has not been yet. */
    int ends[2];
    if (pipe(ends) || write(ends[1], "x", 1) != 1)
        return 1;
    if (fork() == 0) {
        volatile char far[1 << 20];
        _exit(read(ends[0], (char *)far, 1) == 1 && far[0] == 'x' ? 5 : 9);
    }
    int status = 0;
    wait(&status);
    printf("child: %x\n", status);
    /* mprotect(2) of a stack down to where it ends. */
    char *page = where_stack();
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    printf("downwards: %d\n", mprotect(page, 4096, all | PROT_GROWSDOWN) ? errno : 0);
    unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
    volatile unsigned char *on_stack = code;
    printf("executed: %d\n", ((int (*)(void))on_stack)());
    char *other = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("elsewhere: %d\n", mprotect(other, 4096, PROT_READ | PROT_GROWSDOWN) ? errno : 0);
    printf("upwards: %d\n", mprotect(other, 4096, PROT_READ | PROT_GROWSUP) ? errno : 0);
    const int both = PROT_GROWSUP | PROT_GROWSDOWN;
    printf("both: %d\n", mprotect(other, 4096, PROT_READ | both) ? errno : 0);
    munmap(other, 8192);
    printf("nowhere: %d\n", mprotect(other, 4096, PROT_READ | PROT_GROWSDOWN) ? errno : 0);
    /* What lies on the stack's way is not overwritten. */
    char *lower = (char *)where_stack() - (4 << 20);
    munmap(lower, 1 << 20);
    char *obstacle = mmap(lower, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("obstacle: %d\n", obstacle == lower);
    if (sigsetjmp(out, 1) == 0)
        printf("%d\n", deep(100));
    printf("%d\n", obstacle[0]);
    personality(READ_IMPLIES_EXEC);
    unsigned char *readable = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(readable, code, sizeof(code));
    printf("read: %d\n", ((int (*)(void))readable)());
    mprotect(readable, 4096, PROT_READ);
    printf("read: %d\n", ((int (*)(void))readable)());
    return 0;
}

/* A function within a function, whose address is taken: its code is on the stack. */
static int nested(int count)
{
    int order(const void *one, const void *other)
    {
        return (*(const int *)one - *(const int *)other) * count;
    }
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof(*numbers), order);
    printf("%d%d%d\n", numbers[0], numbers[1], numbers[2]);
    return 0;
}

static int inherited(void)
{
    const int asked[] = {SIGPIPE, SIGSEGV, SIGBUS, SIGUSR1, SIGINT};
    for (int n = 0; n < LENGTH(asked); n++)
        say_action(asked[n]);
    return 0;
}

/* What a kernel may lack: the machine does, and says so. */
static int lacks(void)
{
    const int dispatch = prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &sink);
    printf("dispatch: %d\n", dispatch ? errno : 0);
    return 0;
}

static uint64_t random_state;
static unsigned any(unsigned below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)(random_state >> 20) % below;
}

static void step(void)
{
    int signal = signals[any(LENGTH(signals))];
    unsigned mask = any(1U << LENGTH(signals));
    sigset_t set = set_of(mask);
    union sigval value = {.sival_int = (int)any(1000)};
    struct timespec no_time = {0};
    siginfo_t info;
    errno = 0;
    int result = 0;
    unsigned what = any(16);
    raises = any(3) ? 0 : any(400);
    changes_mask = any(6) ? 0 : (int)any(1U << LENGTH(signals));
    jumps = any(5) ? 0 : 1 + (int)any(2);
    printf("step %u\n", what);
    switch (what) {
    case 0:
    case 1:
        result = raise(signal);
        break;
    case 2:
        for (int n = 0; n < 3; n++)
            result |= sigqueue(getpid(), signal, value);
        break;
    case 3:
    case 4:
        result = sigprocmask((int)any(3), &set, NULL);
        break;
    case 5: {
        const int flags[] = {SA_NODEFER, SA_ONSTACK, SA_RESTART, SA_ONSTACK | SA_NODEFER, SA_ONSTACK, 0};
        handle(signal, flags[any(LENGTH(flags))], mask);
        break;
    }
    case 6: {
        const unsigned flags[] = {0, SS_AUTODISARM, SS_DISABLE, 0, 8};
        result = set_stack(flags[any(LENGTH(flags))], any(6) ? sizeof(alternate) : 1000);
        break;
    }
    case 7:
    case 8: {
        sigset_t pending;
        sigpending(&pending);
        if (shown(&pending) & ~mask)
            result = sigsuspend(&set);
        break;
    }
    case 9:
        result = ppoll(NULL, 0, &no_time, &set);
        break;
    case 10:
        result = sigtimedwait(&set, &info, &no_time);
        break;
    case 11:
        _mm_setcsr(0x1f80 | (any(4) << 13) | (any(64) & 0x3f));
        break;
    case 12:
        set_control_word((unsigned short)(0x37f & ~(any(4) << 8)));
        break;
    case 13:
        result = (int)syscall(SYS_kill, getpid(), signal);
        break;
    case 14:
        say_stack("now");
        say_action(signal);
        break;
    default: {
        const double before = any(1000);
        double after;
        __asm__ volatile("movsd %1, %%xmm9; mov %2, %%eax; mov %3, %%edi; mov %4, %%esi; syscall; movsd %%xmm9, %0"
                         : "=m"(after)
                         : "m"(before), "i"(SYS_kill), "r"(getpid()), "r"(signal)
                         : "rax", "rdi", "rsi", "rcx", "r11", "xmm9", "memory");
        result = before != after;
    }
    }
    printf("= %d %d\n", result, errno);
}

static int randomly(uint64_t seed, int steps)
{
    random_state = seed * 0x9e3779b97f4a7c15U + 1;
    for (int n = 0; n < LENGTH(signals); n++)
        handle(signals[n], n % 2 ? SA_ONSTACK : 0, 0);
    /* Kept, since a jump goes back to here. */
    static int n;
    for (n = 0; n < steps; n++) {
        if (sigsetjmp(out, (int)any(2)) == 0)
            step();
        else
            puts("jumped");
        say_state("then");
    }
    return 0;
}

int main(int count, char **words)
{
    static char buffer[1 << 20];
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    /* Its flags are otherwise those of who has executed this. */
    set_stack(SS_DISABLE, 0);
    const char *which = count > 1 ? words[1] : "";
    int status = 2;
    if (!strcmp(which, "arithmetic"))
        status = arithmetic();
    else if (!strcmp(which, "stops"))
        status = stops();
    else if (!strcmp(which, "waits"))
        status = waits();
    else if (!strcmp(which, "actions"))
        status = actions();
    else if (!strcmp(which, "stack"))
        status = stack();
    else if (!strcmp(which, "nested"))
        status = nested(count);
    else if (!strcmp(which, "inherited"))
        status = inherited();
    else if (!strcmp(which, "lacks"))
        status = lacks();
    else if (!strcmp(which, "random") && count == 4)
        status = randomly(strtoull(words[2], NULL, 10), atoi(words[3]));
    fflush(stdout);
    return status;
}
