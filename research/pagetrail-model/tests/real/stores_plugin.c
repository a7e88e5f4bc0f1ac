/* A plugin for QEMU's TCG that logs what a guest's program does to one area, its kernel's writes on its behalf included:
 * "L PAGE" for the first load from a page and "S PAGE" for the first store to it in each round, "R" where a round
 * begins, which stores.c tells by a store to the page below its area.
 * Use: -plugin stores_plugin.so,out=FILE. No package ships qemu-plugin.h, so its few functions are declared here. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "stores.h"

#define EXPORT __attribute__((visibility("default")))
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t plugin_id;
typedef uint32_t memory_info;
enum { NO_REGISTERS = 0, LOADS_AND_STORES = 3 };
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern _Bool qemu_plugin_mem_is_store(memory_info);
extern unsigned qemu_plugin_mem_size_shift(memory_info);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
                                             void (*)(unsigned, memory_info, uint64_t, void *), int, int, void *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
EXPORT int qemu_plugin_version = 2;

static FILE *out;
static unsigned round_now = 1;
/* The round in which a page was last seen, by kind of access. */
static unsigned seen[2][PAGES];

static void access(unsigned vcpu, memory_info info, uint64_t at, void *unused) {
    (void)vcpu, (void)unused;
    uint64_t last = at + (1ULL << qemu_plugin_mem_size_shift(info)) - 1;
    if (last < AREA - PAGE || at >= AREA + PAGES * PAGE) return;
    int store = qemu_plugin_mem_is_store(info);
    if (at < AREA) {
        if (store) fputs("R\n", out), fflush(out), round_now++;
        return;
    }
    for (uint64_t page = (at - AREA) / PAGE; page <= (last - AREA) / PAGE && page < PAGES; page++) {
        if (__atomic_exchange_n(&seen[store][page], round_now, __ATOMIC_RELAXED) == round_now) continue;
        fprintf(out, "%c %llx\n", store ? 'S' : 'L', (unsigned long long)page);
    }
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), access, NO_REGISTERS, LOADS_AND_STORES, NULL);
}

static void end(plugin_id id, void *unused) {
    (void)id, (void)unused;
    fclose(out);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *machine, int count, char **arguments) {
    (void)machine;
    for (int i = 0; i < count; i++)
        if (!strncmp(arguments[i], "out=", 4)) out = fopen(arguments[i] + 4, "w");
    if (!out) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, end, NULL);
    return 0;
}
