/* A restartable sequence (rseq(2)) that is interrupted by a stop starts over, as after any preemption: counters per
 * CPU, added to without atomic instructions by more threads than CPUs, lose nothing. */
#include "victim.h"
#include <sys/rseq.h>

enum { THREADS = 6, CPUS = 1024 };

static struct {
    volatile uint64_t count;
    char padding[56];
} counters[CPUS] __attribute__((aligned(64)));
static volatile int stop;
static uint64_t added[THREADS];

/* Adds 1 to the counter of the CPU that runs this; slowly, so that it is often interrupted. 0 when it was added. */
static int add_one(struct rseq *rseq) {
    uint32_t cpu = __atomic_load_n(&rseq->cpu_id_start, __ATOMIC_RELAXED);
    volatile uint64_t *counter = &counters[cpu % CPUS].count;
    __asm__ goto volatile(
        ".pushsection __rseq_cs, \"aw\"\n .balign 32\n"
        "3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n .popsection\n"
        "lea 3b(%%rip), %%rax\n mov %%rax, %c[area](%[rseq])\n"
        "1: cmp %[cpu], %c[id](%[rseq])\n jnz 4f\n"
        "mov (%[counter]), %%rax\n inc %%rax\n mov $400, %%ecx\n"
        "5: pause\n dec %%ecx\n jnz 5b\n"
        "mov %%rax, (%[counter])\n"
        "2:\n"
        ".pushsection __rseq_failure, \"ax\"\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
        "4: jmp %l[aborted]\n .popsection\n"
        :
        : [cpu] "r"(cpu), [counter] "r"(counter), [rseq] "r"(rseq), [id] "i"(offsetof(struct rseq, cpu_id)),
          [area] "i"(offsetof(struct rseq, rseq_cs))
        : "rax", "rcx", "memory", "cc"
        : aborted);
    return 0;
aborted:
    return 1;
}

static void count(uint64_t *own) {
    struct rseq *rseq = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    for (int i = 0; i < 100; i++)
        if (add_one(rseq) == 0) ++*own;
}

static void *work(void *own) {
    while (!stop) count(own);
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    if (__rseq_size == 0) {
        fprintf(stderr, "no rseq here\n");
        return 77;
    }
    pthread_t threads[THREADS];
    for (int i = 1; i < THREADS; i++) threads[i] = helper(work, &added[i]);
    victim_ready();
    while (!over()) count(&added[0]);
    stop = 1;
    uint64_t sum = 0, counted = 0;
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) sum += added[i];
    for (int i = 0; i < CPUS; i++) counted += counters[i].count;
    if (sum != counted) fail("%lu additions, but the counters have %lu", (unsigned long)sum, (unsigned long)counted);
    return 0;
}
