/* A monitor with a guest of a few instructions on KVM: kvm_monitor MIB HOT_PAGES --id NAME
 *
 * The guest has MIB MiB of memory. It adds 1 to the first word of each of HOT_PAGES pages at its
 * second MiB, pass after pass, and with SIGUSR1 from then on to as many pages after these; every
 * other page has a stamp from the monitor, and is left alone. With SIGUSR2 the guest reboots: the
 * monitor checks its memory, gives it other memory at another address, and prints a line as at
 * the start. With SIGHUP it has KVM map all guest memory before the guest goes on, and prints
 * what is left to map, in bytes, or "none" where KVM cannot. With SIGTERM it checks, and ends
 * with 0 if all is as it should be. Beside it the monitor has 8 MiB of its own, stamped and
 * checked likewise. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define HOT_AT (2ul << 20)
#define OWN_PAGES 2048ul

/* Linux 6.11. */
#ifndef KVM_PRE_FAULT_MEMORY
struct kvm_pre_fault_memory {
    __u64 gpa;
    __u64 size;
    __u64 flags;
    __u64 padding[5];
};
#define KVM_PRE_FAULT_MEMORY _IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)
#endif

static volatile sig_atomic_t over, moves_on, reboots, maps_all;

static void note(int signal) {
    if (signal == SIGTERM)
        over = 1;
    else if (signal == SIGUSR1)
        moves_on = 1;
    else if (signal == SIGUSR2)
        reboots = 1;
    else
        maps_all = 1;
}

static unsigned long bytes;
static uint32_t hot;
static uint8_t *memory;
/* Which of the two hot sets is in use, and how often the guest went through each. */
static int set;
static uint32_t passes[2];

static int die(const char *what) {
    perror(what);
    return 2;
}

/* 32 bits, flat: ebx = address, ecx = pages; each pass ends with an OUT. */
static const uint8_t code[] = {
    0xbb, 0, 0, 0x20, 0,                  /* pass: mov ebx, 0x200000 */
    0xb9, 0, 0, 0, 0,                     /* mov ecx, pages */
    0xff, 0x03,                           /* page: inc dword [ebx] */
    0x81, 0xc3, 0, 0x10, 0, 0,            /* add ebx, 4096 */
    0x49,                                 /* dec ecx */
    0x75, 0xf5,                           /* jnz page */
    0xe7, 0x10,                           /* out 0x10, eax */
    0xeb, 0xe7,                           /* jmp pass */
};

/* Which hot set a page is of, or -1. */
static int set_of(unsigned long at) {
    unsigned long page = (at - HOT_AT) / PAGE;
    return at < HOT_AT || page >= 2 * hot ? -1 : page >= hot;
}

static int give_memory(int vm) {
    /* Gone first: a memslot does not change its address. */
    struct kvm_userspace_memory_region region = {0};
    uint8_t *before = memory;
    if (before && ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
        return die("KVM_SET_USER_MEMORY_REGION");
    memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || (before && munmap(before, bytes)))
        return die("mmap");
    /* As QEMU does. */
    if (madvise(memory, bytes, MADV_DONTFORK) || madvise(memory, bytes, MADV_NOHUGEPAGE))
        return die("madvise");
    for (unsigned long at = 0; at < bytes; at += PAGE)
        *(uint64_t *)(memory + at) = set_of(at) < 0 ? at ^ 0x5a5a : 0;
    memcpy(memory + PAGE, code, sizeof code);
    memcpy(memory + PAGE + 6, &hot, sizeof hot);
    set = passes[0] = passes[1] = 0;
    region.memory_size = bytes;
    region.userspace_addr = (uint64_t)memory;
    return ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) ? die("KVM_SET_USER_MEMORY_REGION") : 0;
}

static int check_memory(void) {
    for (unsigned long at = 0; at < bytes; at += PAGE) {
        uint64_t found = *(uint64_t *)(memory + at);
        int of = set_of(at);
        /* A signal may come in the middle of a pass. */
        uint32_t ahead = of < 0 ? 0 : (uint32_t)found - passes[of];
        if (at != PAGE && (of < 0 ? found != (at ^ 0x5a5a) : ahead > (of == set))) {
            fprintf(stderr, "page %lu has %lx after %u and %u passes\n", at / PAGE, (unsigned long)found,
                    passes[0], passes[1]);
            return 1;
        }
    }
    return 0;
}

static int restart(int vm, int cpu) {
    struct kvm_regs regs = {.rip = PAGE, .rflags = 2};
    int failed = give_memory(vm);
    return failed ? failed : ioctl(cpu, KVM_SET_REGS, &regs) ? die("KVM_SET_REGS") : 0;
}

static void map_all(int cpu) {
    struct kvm_pre_fault_memory range = {.size = bytes};
    while (range.size && (!ioctl(cpu, KVM_PRE_FAULT_MEMORY, &range) || errno == EINTR || errno == EAGAIN))
        ;
    if (range.size == bytes)
        printf("none\n");
    else
        printf("%llx left\n", (unsigned long long)range.size);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    bytes = strtoul(argv[1], 0, 10) << 20;
    hot = strtoul(argv[2], 0, 10);
    struct sigaction action = {.sa_handler = note};
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGUSR2, &action, 0);
    sigaction(SIGHUP, &action, 0);
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        return die("/dev/kvm");
    int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0)
        return die("KVM_CREATE_VM");
    uint8_t *own = mmap(0, OWN_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return die("mmap");
    for (unsigned long page = 0; page < OWN_PAGES; page++)
        *(uint64_t *)(own + page * PAGE) = page ^ 0xa5a5;
    int cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    int size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    struct kvm_run *run = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
    struct kvm_sregs sregs;
    if (cpu < 0 || run == MAP_FAILED || ioctl(cpu, KVM_GET_SREGS, &sregs))
        return die("KVM_CREATE_VCPU");
    struct kvm_segment flat = {.limit = 0xffffffff, .selector = 16, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1};
    sregs.ds = sregs.es = sregs.ss = flat;
    flat.type = 11;
    flat.selector = 8;
    sregs.cs = flat;
    sregs.cr0 |= 1;
    if (ioctl(cpu, KVM_SET_SREGS, &sregs))
        return die("KVM_SET_SREGS");
    if (restart(vm, cpu))
        return 2;
    printf("%lx %lx\n", (unsigned long)memory, (unsigned long)own);
    fflush(stdout);
    while (!over) {
        if (maps_all) {
            maps_all = 0;
            map_all(cpu);
        }
        if (ioctl(cpu, KVM_RUN, 0))
            continue;
        if (run->exit_reason != KVM_EXIT_IO) {
            fprintf(stderr, "exit reason %u\n", run->exit_reason);
            return 2;
        }
        passes[set]++;
        if (moves_on) {
            uint32_t address = HOT_AT + hot * PAGE;
            memcpy(memory + PAGE + 1, &address, sizeof address);
            moves_on = 0;
            set = 1;
        }
        if (reboots) {
            reboots = 0;
            /* Between two passes, after the OUT has been completed. */
            run->immediate_exit = 1;
            ioctl(cpu, KVM_RUN, 0);
            run->immediate_exit = 0;
            if (check_memory() || restart(vm, cpu))
                return 1;
            printf("%lx %lx\n", (unsigned long)memory, (unsigned long)own);
            fflush(stdout);
        }
        usleep(1000);
    }
    if (check_memory())
        return 1;
    for (unsigned long page = 0; page < OWN_PAGES; page++)
        if (*(uint64_t *)(own + page * PAGE) != (page ^ 0xa5a5))
            return 1;
    printf("%u and %u passes\n", passes[0], passes[1]);
    return 0;
}
