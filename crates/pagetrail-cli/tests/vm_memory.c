/* A random sequence of calls on memory, in the manner of the Linux Test Project, but without a word on what is right: all that
 * they return, and all that is there afterwards, is printed, relative to where it is, and must be the same natively and as a
 * guest.
 *
 * Usage: vm_memory SEED STEPS [now]; with a third word each step is printed at once. All happens in an arena at an address of its own, and in mappings that the kernel places. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 48ul
#define ARENA ((char *)0x300000000000)
#define FILE_PAGES 12ul
#define FLOATING 4
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t state;

static uint64_t below(uint64_t bound)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % bound;
}

#define PICK(array) ((array)[below(COUNT(array))])

static char text[1 << 16];
static size_t used;

static void flush_text(void)
{
    if (write(1, text, used) != (ssize_t)used)
        _exit(9);
    used = 0;
}

static void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    used += vsnprintf(text + used, sizeof text - used, format, list);
    va_end(list);
    if (used > sizeof text / 2)
        flush_text();
}

/* Mappings that the kernel has placed. */
static struct {
    char *at;
    size_t bytes;
} floating[FLOATING];

static int file;
static char *heap;

static sigjmp_buf back;
static volatile int fault_signal, fault_code;
static char *volatile fault_address;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    fault_signal = number;
    fault_code = info->si_code;
    fault_address = info->si_addr;
    siglongjmp(back, 1);
}

/* A byte, or a negative number for the signal. */
static int byte_at(const char *at)
{
    if (sigsetjmp(back, 0))
        return -fault_signal * 1000 - fault_code;
    return *(const volatile unsigned char *)at;
}

static int put_byte(char *at, unsigned char byte)
{
    if (sigsetjmp(back, 0))
        return -fault_signal * 1000 - fault_code;
    *(volatile unsigned char *)at = byte;
    return 0;
}

static void say_result(const char *what, long result)
{
    if (result == -1)
        say("%s: error %d\n", what, errno);
    else
        say("%s: %ld\n", what, result);
}

/* An address relative to what it belongs to. */
static void say_address(const char *what, const void *result)
{
    const char *at = result;
    if (result == MAP_FAILED)
        say("%s: error %d\n", what, errno);
    else if (ARENA <= at && at < ARENA + PAGES * PAGE)
        say("%s: %lx\n", what, (long)(at - ARENA));
    else
        say("%s: elsewhere\n", what);
}

static void keep(char *at, size_t bytes)
{
    if (at == MAP_FAILED || (ARENA <= at && at < ARENA + PAGES * PAGE))
        return;
    size_t n = below(FLOATING);
    if (floating[n].at)
        say_result("given back", munmap(floating[n].at, floating[n].bytes));
    floating[n].at = at;
    floating[n].bytes = bytes;
}

/* Not the right to execute alone: there are processors that can do without the right to read then, and none in the guest. */
static const int protections[] = { PROT_NONE, PROT_READ, PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
                                   PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC };

/* Some pages of the arena, now and then with an end outside. */
static char *place(size_t *bytes)
{
    *bytes = (1 + below(8)) * PAGE;
    return ARENA + below(PAGES - 7) * PAGE;
}

static void map(void)
{
    static const int kinds[] = { MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED };
    static const int ways[] = { MAP_FIXED, MAP_FIXED, MAP_FIXED, MAP_FIXED_NOREPLACE, 0 };
    static const int more[] = { 0, 0, 0, MAP_POPULATE, MAP_NORESERVE };
    size_t bytes;
    char *at = place(&bytes);
    int way = PICK(ways), flags = way | PICK(kinds) | PICK(more), protection = PICK(protections);
    char *result;
    if (below(2)) {
        result = mmap(at, bytes, protection, flags | MAP_ANONYMOUS, -1, 0);
        say("map %lx %lx %d %x", (long)(at - ARENA), bytes, protection, flags);
    } else {
        long offset = below(FILE_PAGES) * PAGE;
        result = mmap(at, bytes, protection, flags, file, offset);
        say("map file %lx %lx %d %x from %lx", (long)(at - ARENA), bytes, protection, flags, offset);
    }
    say_address("", result);
    keep(result, bytes);
}

static void map_anywhere(void)
{
    size_t bytes = (1 + below(40)) * PAGE;
    int protection = PICK(protections);
    char *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say("map %lx %d anywhere", bytes, protection);
    say_address("", at);
    keep(at, bytes);
}

static void unmap(void)
{
    size_t bytes;
    char *at = place(&bytes);
    say("unmap %lx %lx", (long)(at - ARENA), bytes);
    say_result("", munmap(at, bytes));
}

static void protect(void)
{
    size_t bytes;
    char *at = place(&bytes);
    int protection = PICK(protections);
    say("protect %lx %lx %d", (long)(at - ARENA), bytes, protection);
    say_result("", mprotect(at, bytes, protection));
}

static void move(void)
{
    static const int ways[] = { 0, MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_MAYMOVE | MREMAP_FIXED,
                                MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP };
    size_t old_bytes, bytes;
    char *old = place(&old_bytes), *to = place(&bytes);
    int flags = PICK(ways);
    size_t n = below(FLOATING);
    if (below(3) == 0 && floating[n].at) {
        /* Between the arena and elsewhere. */
        old = floating[n].at;
        old_bytes = floating[n].bytes;
        floating[n].at = NULL;
        /* Whether it can grow where it is depends on what the kernel has placed above it, which is not the same natively and as
         * a guest, nor on two machines. In the arena, all that lies above is this program's. */
        if (!(flags & MREMAP_MAYMOVE) && bytes > old_bytes)
            bytes = old_bytes;
        say("move back %lx to %lx %lx %x", old_bytes, (long)(to - ARENA), bytes, flags);
        char *at = mremap(old, old_bytes, bytes, flags, to);
        say_address("", at);
        if (at == MAP_FAILED || flags & MREMAP_DONTUNMAP)
            munmap(old, old_bytes);
        keep(at, bytes);
        return;
    }
    if (flags & MREMAP_DONTUNMAP || below(3) == 0)
        bytes = old_bytes;
    if (below(20) == 0)
        old_bytes = 0;
    say("move %lx %lx to %lx %lx %x", (long)(old - ARENA), old_bytes, (long)(to - ARENA), bytes, flags);
    char *at = mremap(old, old_bytes, bytes, flags, to);
    say_address("", at);
    keep(at, bytes);
}

static void advise(void)
{
    static const int advice[] = { MADV_DONTNEED, MADV_DONTNEED, MADV_REMOVE, MADV_NORMAL, MADV_WILLNEED, MADV_SEQUENTIAL,
                                  MADV_DONTFORK, MADV_DOFORK, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_COLD, MADV_FREE, 9999 };
    size_t bytes;
    char *at = place(&bytes);
    int which = PICK(advice);
    say("advise %lx %lx %d", (long)(at - ARENA), bytes, which);
    say_result("", madvise(at, bytes, which));
}

static void synchronize(void)
{
    static const int flags[] = { MS_SYNC, MS_ASYNC, MS_INVALIDATE, MS_SYNC | MS_ASYNC, 64 };
    size_t bytes;
    char *at = place(&bytes);
    int how = PICK(flags);
    say("synchronize %lx %lx %d", (long)(at - ARENA), bytes, how);
    say_result("", msync(at, bytes, how));
}

static void look(void)
{
    unsigned char there[16];
    size_t bytes;
    char *at = place(&bytes);
    say("look %lx %lx", (long)(at - ARENA), bytes);
    memset(there, 9, sizeof there);
    int error = mincore(at, bytes, there);
    /* What lies after a gap does not matter. */
    for (size_t page = 0; error == 0 && page < bytes / PAGE; page++)
        say(" %d", there[page]);
    say_result("", error);
}

static void lock(void)
{
    size_t bytes;
    char *at = place(&bytes);
    say("lock %lx %lx", (long)(at - ARENA), bytes);
    say_result("", below(2) ? mlock(at, bytes) : munlock(at, bytes));
}

static void move_break(void)
{
    long by = (long)below(40 * PAGE) - 16 * (long)PAGE;
    char *end = (char *)syscall(SYS_brk, 0), *wanted = end + by;
    if (wanted < heap)
        wanted = heap;
    char *now = (char *)syscall(SYS_brk, wanted);
    say("break %lx: %lx", (long)(wanted - heap), (long)(now - heap));
    if (now > heap + 16)
        say(", %d %d", byte_at(now - 1), put_byte(now - 1, below(256)));
    say(", behind: %d\n", byte_at((char *)(((uintptr_t)now + PAGE - 1) & -PAGE)));
    fault_signal = 0;
}

static void change_file(void)
{
    char bytes[64];
    memset(bytes, 'a' + below(26), sizeof bytes);
    long offset = below(FILE_PAGES * PAGE);
    if (below(4) == 0) {
        say("truncate %lx", offset);
        say_result("", ftruncate(file, offset));
    } else {
        say("write to file %lx", offset);
        say_result("", pwrite(file, bytes, sizeof bytes, offset));
    }
}

/* What only fails, or seems to. */
static void err(void)
{
    size_t bytes;
    char *at = place(&bytes);
    int anonymous = MAP_PRIVATE | MAP_ANONYMOUS, writable = PROT_READ | PROT_WRITE;
    unsigned char there;
    uint64_t which = below(24);
    say("err %lu %lx", which, (long)(at - ARENA));
    switch (which) {
    case 0: say_address("", mmap(at + 5, bytes, writable, anonymous | MAP_FIXED, -1, 0)); break;
    case 1: say_address("", mmap(at, 0, writable, anonymous | MAP_FIXED, -1, 0)); break;
    case 2: say_address("", mmap(at, bytes, writable, MAP_PRIVATE | MAP_FIXED, 999, 0)); break;
    case 3: say_address("", mmap(at, bytes, writable, MAP_PRIVATE | MAP_FIXED, file, 77)); break;
    case 4: say_address("", mmap(at, bytes, writable, MAP_ANONYMOUS | MAP_FIXED, -1, 0)); break;
    case 5: say_address("", mmap((void *)-PAGE, bytes, writable, anonymous | MAP_FIXED, -1, 0)); break;
    case 6: say_address("", mmap(NULL, -PAGE, writable, anonymous, -1, 0)); break;
    case 7: say_address("", mmap(NULL, 1ul << 50, PROT_NONE, anonymous | MAP_NORESERVE, -1, 0)); break;
    case 8: say_result("", munmap(at + 1, bytes)); break;
    case 9: say_result("", munmap(at, 0)); break;
    case 10: say_result("", munmap(at, -PAGE)); break;
    case 11: say_result("", mprotect(at + 1, bytes, writable)); break;
    case 12: say_result("", mprotect(at, 0, writable)); break;
    case 13: say_result("", mprotect(at, -PAGE, writable)); break;
    case 14: say_result("", mprotect(at, bytes, 1 << 20)); break;
    case 15: say_address("", mremap(at + 1, bytes, bytes, MREMAP_MAYMOVE)); break;
    case 16: say_address("", mremap(at, bytes, 0, MREMAP_MAYMOVE)); break;
    case 17: say_address("", mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at + 3)); break;
    case 18: say_address("", mremap(at, bytes, bytes, MREMAP_FIXED, at)); break;
    case 19: say_address("", mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at)); break;
    case 20: say_result("", madvise(at + 1, bytes, MADV_DONTNEED)); break;
    case 21: say_result("", madvise(at, -PAGE, MADV_DONTNEED)); break;
    case 22: say_result("", mincore(at + 1, PAGE, &there)); break;
    case 23: say_result("", msync(at + 1, bytes, MS_SYNC)); break;
    }
}

static void touch(void)
{
    char *at = ARENA + below(PAGES * PAGE);
    if (below(2)) {
        unsigned char byte = below(256);
        say("put %lx %d: %d", (long)(at - ARENA), byte, put_byte(at, byte));
    } else
        say("get %lx: %d", (long)(at - ARENA), byte_at(at));
    if (fault_signal)
        say(" at %lx", (long)(fault_address - ARENA));
    fault_signal = 0;
    say("\n");
}

static void fill(void)
{
    size_t bytes;
    char *at = place(&bytes);
    int filled = 0;
    for (size_t n = 0; n < bytes; n += PAGE / 4)
        filled += put_byte(at + n, below(256)) == 0;
    fault_signal = 0;
    say("fill %lx %lx: %d\n", (long)(at - ARENA), bytes, filled);
}

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 0x100000001b3u + (hash >> 29);
}

/* Some bytes of each page, or the signal that it gives. */
static uint64_t contents(void)
{
    uint64_t hash = 1;
    for (size_t n = 0; n < PAGES * PAGE; n += PAGE / 4) {
        int byte = byte_at(ARENA + n + n % 97);
        hash = mixed(hash, byte);
        if (byte < 0)
            n += PAGE * 3 / 4;
    }
    fault_signal = 0;
    return hash;
}

/* The rights of each page, as /proc/self/maps has them, runs of pages together. */
static void say_rights(void)
{
    static char maps[1 << 20];
    char rights[PAGES][5];
    memset(rights, '.', sizeof rights);
    int from = open("/proc/self/maps", O_RDONLY);
    ssize_t length = 0, got;
    while ((got = read(from, maps + length, sizeof maps - 1 - length)) > 0)
        length += got;
    close(from);
    maps[length] = 0;
    for (char *line = maps; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned long start, end;
        char which[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, which) != 3)
            continue;
        for (size_t page = 0; page < PAGES; page++) {
            uintptr_t at = (uintptr_t)ARENA + page * PAGE;
            if (start <= at && at < end)
                memcpy(rights[page], which, 4);
        }
    }
    say("rights:");
    for (size_t page = 0, first; page < PAGES; page = first) {
        for (first = page; first < PAGES && !memcmp(rights[first], rights[page], 4); first++)
            ;
        say(" %lu%.4s", first - page, rights[page]);
    }
    say("\n");
}

static void in_child(void)
{
    flush_text();
    pid_t child = fork();
    if (child == 0) {
        put_byte(ARENA + below(PAGES) * PAGE, 77);
        say("child: %lx\n", contents());
        flush_text();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say("its end: %x\n", status);
}

int main(int count, char **arguments)
{
    state = count > 1 ? strtoul(arguments[1], NULL, 0) : 1;
    long steps = count > 2 ? atol(arguments[2]) : 100;
    static void (*const calls[])(void) = { map,  map,  map,    map_anywhere, unmap, protect, protect,     move,
                                           move, advise, synchronize, look,  lock,    move_break, change_file,
                                           err,  touch, touch, fill, fill };
    /* Nothing is blocked in the handler, so that jumping out of it needs no call. */
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    file = memfd_create("memory", 0);
    for (size_t page = 0; page < FILE_PAGES - 2; page++) {
        char bytes[PAGE];
        memset(bytes, 'A' + page, sizeof bytes);
        if (write(file, bytes, sizeof bytes) != sizeof bytes)
            return 2;
    }
    heap = (char *)syscall(SYS_brk, 0);
    if (mmap(ARENA, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != ARENA)
        return 3;
    for (long step = 0; step < steps; step++) {
        say("%ld ", step);
        PICK(calls)();
        if (step % 8 == 7)
            say("contents: %lx\n", contents());
        if (step % 32 == 31)
            say_rights();
        if (step % 128 == 127)
            in_child();
        if (count > 3)
            flush_text();
    }
    flush_text();
    return 0;
}
