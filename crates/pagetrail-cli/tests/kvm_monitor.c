/* A monitor with a guest of a few instructions on KVM: kvm_monitor MIB HOT_PAGES --id NAME
 *
 * The guest has MIB MiB of memory. It adds 1 to the first word of each of HOT_PAGES pages at its
 * second MiB, pass after pass; every other page has a stamp from the monitor, and is left alone. With
 * SIGTERM the monitor checks all of it, and ends with 0 if it is as it should be. Beside it the
 * monitor has 8 MiB of its own, stamped and checked likewise. */
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

static volatile sig_atomic_t over;

static void end(int signal) {
    (void)signal;
    over = 1;
}

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

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    unsigned long bytes = strtoul(argv[1], 0, 10) << 20;
    uint32_t hot = strtoul(argv[2], 0, 10);
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, 0);
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        return die("/dev/kvm");
    int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0)
        return die("KVM_CREATE_VM");
    uint8_t *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *own = mmap(0, OWN_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || own == MAP_FAILED)
        return die("mmap");
    /* As QEMU does. */
    if (madvise(memory, bytes, MADV_DONTFORK) || madvise(memory, bytes, MADV_NOHUGEPAGE))
        return die("madvise");
    for (unsigned long at = 0; at < bytes; at += PAGE)
        *(uint64_t *)(memory + at) = at < HOT_AT || at >= HOT_AT + hot * PAGE ? at ^ 0x5a5a : 0;
    for (unsigned long page = 0; page < OWN_PAGES; page++)
        *(uint64_t *)(own + page * PAGE) = page ^ 0xa5a5;
    memcpy(memory + PAGE, code, sizeof code);
    memcpy(memory + PAGE + 6, &hot, sizeof hot);
    struct kvm_userspace_memory_region region = {
        .memory_size = bytes, .userspace_addr = (uint64_t)memory};
    if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
        return die("KVM_SET_USER_MEMORY_REGION");
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
    struct kvm_regs regs = {.rip = PAGE, .rflags = 2};
    if (ioctl(cpu, KVM_SET_SREGS, &sregs) || ioctl(cpu, KVM_SET_REGS, &regs))
        return die("KVM_SET_SREGS");
    uint32_t passes = 0;
    printf("%lx %lx\n", (unsigned long)memory, (unsigned long)own);
    fflush(stdout);
    while (!over) {
        if (ioctl(cpu, KVM_RUN, 0))
            continue;
        if (run->exit_reason != KVM_EXIT_IO) {
            fprintf(stderr, "exit reason %u\n", run->exit_reason);
            return 2;
        }
        passes++;
        usleep(1000);
    }
    for (unsigned long at = 0; at < bytes; at += PAGE) {
        uint64_t found = *(uint64_t *)(memory + at);
        int is_hot = at >= HOT_AT && at < HOT_AT + hot * PAGE;
        /* A signal may come in the middle of a pass. */
        if (at != PAGE && (is_hot ? (uint32_t)found - passes > 1 : found != (at ^ 0x5a5a))) {
            fprintf(stderr, "page %lu has %lx after %u passes\n", at / PAGE, (unsigned long)found, passes);
            return 1;
        }
    }
    for (unsigned long page = 0; page < OWN_PAGES; page++)
        if (*(uint64_t *)(own + page * PAGE) != (page ^ 0xa5a5))
            return 1;
    printf("%u passes\n", passes);
    return 0;
}
