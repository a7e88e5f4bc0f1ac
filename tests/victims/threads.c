/* Registers never change: general, flags, SSE and AVX, in loops and across system calls, in the main thread and in
 * others, while threads come and go, each checking its own stack and thread-local memory. */
#include "victim.h"
#include <cpuid.h>

static int has_avx;
static _Thread_local uint64_t own[64];

/* Holds a pattern in all general registers but rsp and rbp for some microseconds; returns how many have changed. */
static uint64_t general_registers(uint64_t seed) {
    uint64_t wrong;
    __asm__ volatile(
        "mov %1, %%rax\n"
        "lea 1(%%rax), %%rbx\n lea 2(%%rax), %%rcx\n lea 3(%%rax), %%rdx\n lea 4(%%rax), %%rsi\n"
        "lea 5(%%rax), %%rdi\n  lea 7(%%rax), %%r8\n lea 8(%%rax), %%r9\n"
        "lea 9(%%rax), %%r10\n lea 10(%%rax), %%r11\n lea 11(%%rax), %%r12\n lea 12(%%rax), %%r13\n"
        "lea 13(%%rax), %%r14\n mov $3000, %%r15d\n"
        /* The carry survives the loop: neither dec nor a jump touches it. */
        "stc\n"
        "1: pause\n dec %%r15\n jnz 1b\n"
        "mov $0, %%r15d\n adc $0, %%r15\n xor $1, %%r15\n"
#define SAME(register, plus) "sub $" plus ", %%" register "\n cmp %%rax, %%" register "\n je 2f\n inc %%r15\n 2:\n"
        SAME("rbx", "1") SAME("rcx", "2") SAME("rdx", "3") SAME("rsi", "4") SAME("rdi", "5")
        SAME("r8", "7") SAME("r9", "8") SAME("r10", "9") SAME("r11", "10") SAME("r12", "11") SAME("r13", "12")
        SAME("r14", "13")
        "cmp %1, %%rax\n je 3f\n inc %%r15\n 3: mov %%r15, %0\n"
        : "=m"(wrong)
        : "m"(*(volatile uint64_t *)&seed)
        : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
    return wrong;
}

static void sse_registers(uint64_t seed, int calls) {
    uint64_t in[32] __attribute__((aligned(16))), out[32] __attribute__((aligned(16)));
    for (int i = 0; i < 32; i++) in[i] = seed * (i + 1) ^ 0x5555555555555555;
#define LOAD(n) "movdqa " #n "*16(%0), %%xmm" #n "\n"
#define STORE(n) "movdqa %%xmm" #n ", " #n "*16(%1)\n"
    uint64_t call = calls ? SYS_getppid : (uint64_t)-1;
    __asm__ volatile(LOAD(0) LOAD(1) LOAD(2) LOAD(3) LOAD(4) LOAD(5) LOAD(6) LOAD(7) LOAD(8) LOAD(9) LOAD(10) LOAD(11)
                     LOAD(12) LOAD(13) LOAD(14) LOAD(15)
                     "mov $300, %%r15d\n 1: pause\n mov %2, %%rax\n syscall\n dec %%r15\n jnz 1b\n"
                     STORE(0) STORE(1) STORE(2) STORE(3) STORE(4) STORE(5) STORE(6) STORE(7) STORE(8) STORE(9) STORE(10)
                     STORE(11) STORE(12) STORE(13) STORE(14) STORE(15)
                     :
                     : "r"(in), "r"(out), "r"(call)
                     : "rax", "rcx", "r11", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    if (memcmp(in, out, sizeof in)) fail("an SSE register has changed");
}

__attribute__((target("avx"))) static void avx_registers(uint64_t seed) {
    uint64_t in[4], out[4];
    for (int i = 0; i < 4; i++) in[i] = seed * (i + 7) ^ 0x3333333333333333;
    __asm__ volatile("vmovdqu (%0), %%ymm3\n vmovdqu (%0), %%ymm12\n mov $2000, %%r15d\n 1: pause\n dec %%r15\n jnz 1b\n"
                     "vmovdqu %%ymm12, (%1)\n vxorps %%ymm3, %%ymm12, %%ymm12\n vptest %%ymm12, %%ymm12\n jz 2f\n"
                     "movq $0, (%1)\n 2: vzeroupper\n"
                     :
                     : "r"(in), "r"(out)
                     : "r15", "xmm3", "xmm12", "cc", "memory");
    if (memcmp(in, out, sizeof in)) fail("an AVX register has changed");
}

static void check_registers(uint64_t seed) {
    uint64_t wrong = general_registers(seed);
    if (wrong) fail("%lu general registers have changed", (unsigned long)wrong);
    sse_registers(seed, 0);
    sse_registers(seed, 1);
    if (has_avx) avx_registers(seed);
    volatile double x = seed % 1000 + 1, y = x;
    for (int i = 0; i < 200; i++) y = y * 3 / 3;
    if (y < x * 0.999999 || y > x * 1.000001) fail("floating point went wrong: %f, %f", x, y);
}

/* Lives shortly. */
static void *mayfly(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    volatile uint64_t stack[512];
    for (int i = 0; i < 512; i++) stack[i] = seed + i;
    for (int i = 0; i < 64; i++) own[i] = seed ^ i;
    check_registers(seed);
    for (int i = 0; i < 512; i++)
        if (stack[i] != seed + i) fail("a stack has changed");
    for (int i = 0; i < 64; i++)
        if (own[i] != (seed ^ i)) fail("thread-local memory has changed");
    return argument;
}

static void *breed(void *argument) {
    for (uint64_t n = (uintptr_t)argument;; n++) {
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++) threads[i] = helper(mayfly, (void *)(n * 4 + i));
        for (uintptr_t i = 0; i < 4; i++) {
            void *result;
            if (pthread_join(threads[i], &result) || result != (void *)(n * 4 + i)) fail("a thread returned something else");
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    has_avx = __builtin_cpu_supports("avx");
    helper(breed, (void *)1000);
    helper(breed, (void *)9000000);
    victim_ready();
    for (uint64_t n = 1; !over(); n++) {
        own[0] = n;
        check_registers(n * 0x9e3779b97f4a7c15);
        if (own[0] != n) fail("thread-local memory of the main thread has changed");
    }
    return 0;
}
