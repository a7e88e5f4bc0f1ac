/* What KVM reports of a small guest, round by round; tests/real_machines.rs runs the same guest on the model.
 *
 * The guest has 64 MiB, 4 KiB pages mapped one to one, and a program that reads a list of addresses and reads or
 * writes each. With kvm_intel and page-modification logging: the dirty log, and the exits for a full log from
 * tracefs. Otherwise: the dirty ring. Lines "PROGRAM ROUND full=N pages=N: RANGE .."; ranges are numbers of pages
 * in hex. Exits with 3 where there is no KVM. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096UL
#define BYTES (64UL << 20)
#define ROOT 0x1000UL
#define LEAF_TABLES 0x100000UL
#define CODE 0x200000UL
#define DATA (16UL << 20)
#define STEPS (40UL << 20)
#define STEPS_MAX 16384
#define RING_ENTRIES 16384
#define TRACING "/tracing"
/* Of the Intel manual, volume 3, appendix C, as the kernel's trace spells them. */
#define FULL "reason PML_FULL"
#define END "reason IO_INSTRUCTION"
#define TRIES_MAX 50

static char *memory;
static int vm, vcpu, by_log, trace_marks;
static struct kvm_run *shared;
static struct kvm_dirty_gfn *ring;
static unsigned ring_at;
static unsigned char dirty[BYTES / PAGE / 8];
static uint64_t steps;

static void die(const char *what) {
    perror(what);
    exit(2);
}

static int first_byte(const char *path) {
    char c = 0;
    int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    if (read(file, &c, 1) != 1) c = 0;
    close(file);
    return c;
}

static void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_TRUNC);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text)) die(path);
    close(file);
}

/* Counts lines of the trace that hold `text`; all of them where it is NULL. */
static long traced(const char *text) {
    char line[512];
    long count = 0;
    FILE *trace = fopen(TRACING "/trace", "r");
    if (!trace) die("trace");
    while (fgets(line, sizeof line, trace))
        if (strstr(line, "kvm_exit:") && (!text || strstr(line, text))) count++;
    fclose(trace);
    return count;
}

static void table(unsigned long at, unsigned long entry, unsigned long to) {
    ((uint64_t *)(memory + at))[entry] = to | 7;
}

static void step(unsigned long page, int writes) {
    if (steps == STEPS_MAX) exit(2);
    ((uint64_t *)(memory + STEPS))[steps++] = (DATA + page * PAGE) | (writes ? 1 : 0);
}

/* The programs; real_machines.rs has the same. */
static uint64_t state;
static unsigned long below(unsigned long bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % bound;
}

/* Touches all that the others need: the first touch of a page is reported whatever it is. */
static void warm(void) {
    for (unsigned long i = 0; i < STEPS_MAX; i++) step(i % 4096, 1);
}
static void sequential(void) {
    for (unsigned long page = 0; page < 3000; page++) step(page, 1);
}
static void every_third(void) {
    for (unsigned long page = 0; page < 4096; page += 3) step(page, 0), step(page, 1), step(page, 1);
}
static void at_random(void) {
    for (int i = 0; i < 5000; i++) {
        unsigned long page = below(4096);
        step(page, below(2));
    }
}
static void reading(void) {
    for (unsigned long page = 0; page < 4096; page++) step(page, 0);
}

/* Takes and re-arms what was reported. */
static void collect(void) {
    memset(dirty, 0, sizeof dirty);
    if (by_log) {
        struct kvm_dirty_log log = {.slot = 0, .dirty_bitmap = dirty};
        if (ioctl(vm, KVM_GET_DIRTY_LOG, &log)) die("KVM_GET_DIRTY_LOG");
        return;
    }
    for (;;) {
        struct kvm_dirty_gfn *entry = &ring[ring_at % RING_ENTRIES];
        if (!(__atomic_load_n(&entry->flags, __ATOMIC_ACQUIRE) & KVM_DIRTY_GFN_F_DIRTY)) break;
        dirty[entry->offset / 8] |= 1 << entry->offset % 8;
        __atomic_store_n(&entry->flags, KVM_DIRTY_GFN_F_RESET, __ATOMIC_RELEASE);
        ring_at++;
    }
    if (ioctl(vm, KVM_RESET_DIRTY_RINGS, 0) < 0) die("KVM_RESET_DIRTY_RINGS");
}

static void run(void) {
    struct kvm_regs registers = {.rip = CODE, .rflags = 2, .rsi = STEPS, .rcx = steps};
    if (ioctl(vcpu, KVM_SET_REGS, &registers)) die("KVM_SET_REGS");
    while (ioctl(vcpu, KVM_RUN, 0))
        if (errno != EINTR) die("KVM_RUN");
    if (shared->exit_reason != KVM_EXIT_IO) {
        fprintf(stderr, "exit reason %u\n", shared->exit_reason);
        exit(2);
    }
}

static void report(const char *name, int round, long full) {
    unsigned long pages = 0, page, first;
    for (page = 0; page < BYTES / PAGE; page++) pages += dirty[page / 8] >> page % 8 & 1;
    printf("%s %d full=", name, round);
    if (full < 0) printf("?"); else printf("%ld", full);
    printf(" pages=%lu:", pages);
    for (page = 0; page < BYTES / PAGE; page++) {
        if (!(dirty[page / 8] >> page % 8 & 1)) continue;
        for (first = page; page + 1 < BYTES / PAGE && dirty[(page + 1) / 8] >> (page + 1) % 8 & 1;) page++;
        printf(first == page ? " %lx" : " %lx-%lx", first, page);
    }
    printf("\n");
}

static void measure(const char *name, void (*program)(void)) {
    for (int round = 1; round <= 2; round++) {
        uint64_t seed = state;
        long full = -1;
        for (int tries = 0;; tries++) {
            state = seed;
            steps = 0;
            program();
            if (trace_marks) put(TRACING "/trace", "");
            run();
            full = trace_marks ? traced(FULL) : -1;
            /* A timer's interrupt empties the log as any exit does: then it says nothing of full ones. */
            int alone = !trace_marks || traced(NULL) == full + traced(END);
            collect();
            if (alone) break;
            if (tries == TRIES_MAX) {
                fprintf(stderr, "%s: never without interrupts\n", name);
                exit(2);
            }
        }
        report(name, round, full);
    }
}

int main(void) {
    /* lodsq; btr rax,0; jnc read; mov [rax],rax; jmp next; read: mov rbx,[rax]; next: dec rcx; jnz start; out 0x80,al.
     * It ends by an OUT: after a HLT the last entries of a log can stay in it. */
    static const unsigned char code[] = {0x48, 0xad, 0x48, 0x0f, 0xba, 0xf0, 0x00, 0x73, 0x05, 0x48, 0x89, 0x00,
                                         0xeb, 0x03, 0x48, 0x8b, 0x18, 0x48, 0xff, 0xc9, 0x75, 0xea, 0xe6, 0x80};
    int kvm = open("/dev/kvm", O_RDWR);
    if (kvm < 0) {
        perror("/dev/kvm");
        return 3;
    }
    by_log = first_byte("/sys/module/kvm_intel/parameters/pml") == 'Y';
    printf("machine %s\n", by_log ? "kvm_intel, page-modification log" : "dirty ring");
    if (by_log) {
        mkdir(TRACING, 0700);
        if (mount("tracefs", TRACING, "tracefs", 0, NULL)) die("tracefs");
        put(TRACING "/events/kvm/kvm_exit/enable", "1");
        trace_marks = 1;
    }
    vm = ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0) die("KVM_CREATE_VM");
    unsigned ring_bytes = RING_ENTRIES * sizeof *ring;
    if (!by_log) {
        struct kvm_enable_cap enable = {.cap = KVM_CAP_DIRTY_LOG_RING, .args = {ring_bytes}};
        if (ioctl(vm, KVM_ENABLE_CAP, &enable)) {
            enable.cap = 223; /* KVM_CAP_DIRTY_LOG_RING_ACQ_REL */
            if (ioctl(vm, KVM_ENABLE_CAP, &enable)) die("dirty ring");
        }
    }
    vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    if (vcpu < 0) die("KVM_CREATE_VCPU");
    shared = mmap(NULL, ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    if (shared == MAP_FAILED) die("kvm_run");
    if (!by_log) {
        ring = mmap(NULL, ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, KVM_DIRTY_LOG_PAGE_OFFSET * PAGE);
        if (ring == MAP_FAILED) die("ring");
    }
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("memory");
    memset(memory, 1, BYTES);
    memset(memory, 0, DATA);
    table(ROOT, 0, ROOT + PAGE);
    table(ROOT + PAGE, 0, ROOT + 2 * PAGE);
    for (unsigned long i = 0; i < BYTES >> 21; i++) {
        table(ROOT + 2 * PAGE, i, LEAF_TABLES + i * PAGE);
        for (unsigned long j = 0; j < 512; j++) table(LEAF_TABLES + i * PAGE, j, (i << 21) + j * PAGE);
    }
    memcpy(memory + CODE, code, sizeof code);
    struct kvm_userspace_memory_region slot = {.flags = KVM_MEM_LOG_DIRTY_PAGES, .memory_size = BYTES,
                                               .userspace_addr = (uintptr_t)memory};
    if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot)) die("KVM_SET_USER_MEMORY_REGION");

    /* Before the registers: some kernels check them against the CPU's features. */
    static struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entries[256];
    } features = {.head.nent = 256};
    if (ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &features) || ioctl(vcpu, KVM_SET_CPUID2, &features)) die("cpuid");
    struct kvm_sregs registers;
    if (ioctl(vcpu, KVM_GET_SREGS, &registers)) die("KVM_GET_SREGS");
    registers.cr3 = ROOT;
    registers.cr4 = 0x20;
    registers.cr0 = 0x80050033;
    registers.efer = 0x500;
    struct kvm_segment segment = {.limit = 0xffffffff, .selector = 8, .present = 1, .type = 11, .s = 1, .l = 1, .g = 1};
    registers.cs = segment;
    segment.type = 3;
    segment.selector = 16;
    segment.l = 0;
    segment.db = 1;
    registers.ds = registers.es = registers.fs = registers.gs = registers.ss = segment;
    if (ioctl(vcpu, KVM_SET_SREGS, &registers)) die("KVM_SET_SREGS");

    warm();
    run();
    collect();
    state = 1;
    measure("sequential", sequential);
    measure("every-third", every_third);
    measure("random", at_random);
    measure("reading", reading);
    return 0;
}
