// SPDX-License-Identifier: MIT OR Apache-2.0
/* A plugin for QEMU's TCG that plays the log of ../module/device.h: a processor that logs stores by guest virtual
 * address (EPML), and a hypervisor that logs them by guest physical address (SPML).
 *
 * Use: -object memory-backend-file,id=ooh,share=on,size=16M,mem-path=FILE -device ivshmem-plain,memdev=ooh
 *      -plugin log.so,memory=FILE
 * or, with the interrupt of a full log: -chardev socket,id=ooh,fd=SOCKET -device ivshmem-doorbell,vectors=1,chardev=ooh
 *      -plugin log.so,memory=FILE,interrupt=EVENT
 * where SOCKET has what QEMU's ivshmem-specification asks of a server, and EVENT is the eventfd of its vector.
 * No package ships qemu-plugin.h, so its few functions are declared here.
 *
 * QEMU calls `stored` after the store. So a page whose store is visible to the driver is logged, or about to be: once
 * the processor has taken an interrupt, it is. */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../module/device.h"

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t plugin_id;
typedef uint32_t memory_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
struct qemu_plugin_register;
struct machine {
    const char *target_name;
    struct {
        int min, cur;
    } version;
    bool system_emulation;
};
struct array {
    char *data;
    unsigned length;
};
struct byte_array {
    uint8_t *data;
    unsigned length;
};
/* QEMU's descriptor of a register; from version 6 on, another word follows. */
struct descriptor {
    struct qemu_plugin_register *handle;
    const char *name;
    const char *feature;
};
enum { READS_REGISTERS = 1, STORES = 2 };
enum { API_WITH_LONG_DESCRIPTORS = 6 };

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
extern unsigned qemu_plugin_mem_size_shift(memory_info);
extern struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(memory_info, uint64_t);
extern bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
extern uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);
extern struct array *qemu_plugin_get_registers(void);
extern int qemu_plugin_read_register(struct qemu_plugin_register *, struct byte_array *);
extern void qemu_plugin_register_vcpu_init_cb(plugin_id, void (*)(plugin_id, unsigned));
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
                                             void (*)(unsigned, memory_info, uint64_t, void *), int, int, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);
extern struct byte_array *g_byte_array_new(void);
extern struct byte_array *g_byte_array_set_size(struct byte_array *, unsigned);
/* With functions of version 3 (QEMU 9.1), and callbacks as they were before version 7. */
EXPORT int qemu_plugin_version = 3;

enum { PAGE_SHIFT = 12, PROCESSORS = 64 };
/* What the guest writes to the device is not to be trusted: bits of slots that the device has not got are nothing. */
#define SLOTS_MASK ((1u << OOH_DEVICE_SLOTS) - 1)
/* The lower half of 48-bit addresses; guests have no more (no `la57` on their command line). */
#define LOWER_HALF (1ULL << 47)
/* Physical addresses below 32 TiB, so that both kinds of page numbers fit one table. */
#define PAGE_NUMBERS (1ULL << 35)
#define LEAF_SHIFT 12
#define LEAVES (PAGE_NUMBERS >> LEAF_SHIFT)
/* However far apart a guest stores, its leaves take 1 GiB of the host's memory at most, and the tables of leaves a
 * quarter of that; beyond, its log loses pages. */
#define LEAVES_MAX (1u << 16)
/* What a store waits that logs a page while the interrupt of a full log is on its way. A processor would take it at
 * once; here another thread of the emulator delivers it, and processors would fill the log meanwhile. */
#define FULL_WAIT_NS 50000

static struct ooh_device *device;
/* The eventfd of the interrupt; -1 if there is none. */
static int interrupt = -1;
static size_t descriptor_bytes = sizeof(struct descriptor);

/* By slot and page number: the round in which a page was last logged. Leaves come as they are needed and stay; a slot
 * that is used again goes on counting its rounds. */
static uint32_t **logged[OOH_DEVICE_SLOTS];
static unsigned leaves;

static struct processor {
    struct qemu_plugin_register *cr3_register;
    struct byte_array *buffer;
    uint64_t cr3;
    bool is_stale;
} processors[PROCESSORS];

static void fail(const char *what) {
    fprintf(stderr, "log.so: %s\n", what);
    exit(1);
}

static void *zeros(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("out of memory");
    return memory;
}

/* NULL if there are too many. */
static uint32_t *last_round(unsigned slot, uint64_t page) {
    uint32_t **leaf = &logged[slot][page >> LEAF_SHIFT];
    if (!__atomic_load_n(leaf, __ATOMIC_ACQUIRE)) {
        if (__atomic_load_n(&leaves, __ATOMIC_RELAXED) >= LEAVES_MAX) return NULL;
        uint32_t *fresh = calloc(1 << LEAF_SHIFT, sizeof(uint32_t)), *none = NULL;
        if (!fresh) return NULL;
        if (__atomic_compare_exchange_n(leaf, &none, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            __atomic_add_fetch(&leaves, 1, __ATOMIC_RELAXED);
        else
            free(fresh);
    }
    return &(*leaf)[page & ((1 << LEAF_SHIFT) - 1)];
}

static void lose(struct ooh_device_slot *slot) {
    __atomic_store_n(&slot->lost, 1, __ATOMIC_RELEASE);
}

/* How many entries the slot's log holds. */
static uint64_t room(const struct ooh_device_slot *slot) {
    uint32_t entries = __atomic_load_n(&slot->entries, __ATOMIC_RELAXED);
    return entries && entries < OOH_DEVICE_ENTRIES ? entries : OOH_DEVICE_ENTRIES;
}

/* Raises the interrupt if the log is as full as the driver wants it to be. */
static void look_if_full(struct ooh_device_slot *slot, uint64_t entries) {
    uint32_t full_at = __atomic_load_n(&slot->full_at, __ATOMIC_RELAXED);
    if (interrupt < 0 || !full_at || entries < full_at) return;
    if (!__atomic_exchange_n(&slot->is_full, 1, __ATOMIC_ACQ_REL)) {
        /* A counter at its end has an interrupt pending. */
        ssize_t written = write(interrupt, &(uint64_t){1}, sizeof(uint64_t));
        (void)written;
    }
    nanosleep(&(struct timespec){.tv_nsec = FULL_WAIT_NS}, NULL);
}

static void log_page(unsigned number, uint64_t page) {
    struct ooh_device_slot *slot = &device->slot[number];
    if (page >= PAGE_NUMBERS) {
        lose(slot);
        return;
    }
    uint32_t round = __atomic_load_n(&slot->round, __ATOMIC_ACQUIRE);
    uint32_t *last = last_round(number, page);
    if (!last) {
        lose(slot);
        return;
    }
    if (__atomic_load_n(last, __ATOMIC_RELAXED) == round) return;
    if (__atomic_exchange_n(last, round, __ATOMIC_ACQ_REL) == round) return;
    uint64_t entry = __atomic_load_n(&slot->head, __ATOMIC_RELAXED), there;
    do {
        there = entry - __atomic_load_n(&slot->tail, __ATOMIC_ACQUIRE);
        if (there >= room(slot)) {
            lose(slot);
            return;
        }
    } while (!__atomic_compare_exchange_n(&slot->head, &entry, entry + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    uint64_t *ring = (uint64_t *)((char *)device + OOH_DEVICE_RING(number));
    __atomic_store_n(&ring[entry % OOH_DEVICE_ENTRIES], page << 1 | 1, __ATOMIC_RELEASE);
    look_if_full(slot, there + 1);
}

/* The physical page of an address that was just stored to; false if it is a device's. */
static bool physical(memory_info info, uint64_t at, uint64_t *page, struct ooh_device_slot *slot) {
    struct qemu_plugin_hwaddr *found = qemu_plugin_get_hwaddr(info, at);
    if (!found) {
        lose(slot);
        return false;
    }
    if (qemu_plugin_hwaddr_is_io(found)) return false;
    *page = qemu_plugin_hwaddr_phys_addr(found) >> PAGE_SHIFT;
    return true;
}

static uint64_t cr3_of(struct processor *processor) {
    if (processor->is_stale) {
        uint64_t value = 0;
        g_byte_array_set_size(processor->buffer, 0);
        if (qemu_plugin_read_register(processor->cr3_register, processor->buffer) > 0)
            memcpy(&value, processor->buffer->data,
                   processor->buffer->length < sizeof value ? processor->buffer->length : sizeof value);
        processor->cr3 = value;
        processor->is_stale = false;
    }
    return processor->cr3;
}

static void stored(unsigned cpu, memory_info info, uint64_t at, void *unused) {
    (void)unused;
    uint32_t active = __atomic_load_n(&device->active, __ATOMIC_ACQUIRE) & SLOTS_MASK;
    if (!active) return;
    uint64_t cr3 = cr3_of(&processors[cpu]);
    uint64_t last = at + (1ULL << qemu_plugin_mem_size_shift(info)) - 1;
    bool crosses = at >> PAGE_SHIFT != last >> PAGE_SHIFT;
    for (unsigned number = 0; active >> number; number++) {
        struct ooh_device_slot *slot = &device->slot[number];
        if (!(active >> number & 1) || (cr3 & slot->mask) != slot->match) continue;
        uint64_t page;
        if (slot->mode == OOH_DEVICE_VIRTUAL) {
            if (at < LOWER_HALF) log_page(number, at >> PAGE_SHIFT);
            if (crosses && last < LOWER_HALF) log_page(number, last >> PAGE_SHIFT);
        } else if (slot->mode == OOH_DEVICE_PHYSICAL || (slot->mode == OOH_DEVICE_KERNEL && at >= LOWER_HALF)) {
            if (physical(info, at, &page, slot)) log_page(number, page);
            if (crosses && physical(info, last, &page, slot)) log_page(number, page);
        }
    }
}

static void cr3_is_loaded(unsigned cpu, void *unused) {
    (void)unused;
    processors[cpu].is_stale = true;
}

/* Whether these bytes are MOV to CR3: 0F 22 /3, maybe with a REX prefix. The instruction ends its block, so the next
 * store finds the register loaded. */
static bool loads_cr3(const uint8_t *bytes, size_t length) {
    size_t at = length && (bytes[0] & 0xf0) == 0x40;
    return at + 3 <= length && bytes[at] == 0x0f && bytes[at + 1] == 0x22 && (bytes[at + 2] >> 3 & 7) == 3;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        uint8_t bytes[16];
        if (loads_cr3(bytes, qemu_plugin_insn_data(instruction, bytes, sizeof bytes)))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, cr3_is_loaded, 0, NULL);
        qemu_plugin_register_vcpu_mem_cb(instruction, stored, READS_REGISTERS, STORES, NULL);
    }
}

static void began(plugin_id id, unsigned cpu) {
    (void)id;
    if (cpu >= PROCESSORS) fail("too many processors");
    struct processor *processor = &processors[cpu];
    processor->buffer = g_byte_array_new();
    struct array *registers = qemu_plugin_get_registers();
    for (unsigned i = 0; i < registers->length; i++) {
        struct descriptor *descriptor = (void *)(registers->data + i * descriptor_bytes);
        if (!strcmp(descriptor->name, "cr3")) processor->cr3_register = descriptor->handle;
    }
    if (!processor->cr3_register) fail("this QEMU does not show CR3");
    processor->is_stale = true;
}

EXPORT int qemu_plugin_install(plugin_id id, const struct machine *machine, int count, char **arguments) {
    const char *file = NULL;
    for (int i = 0; i < count; i++) {
        if (!strncmp(arguments[i], "memory=", 7)) file = arguments[i] + 7;
        if (!strncmp(arguments[i], "interrupt=", 10)) interrupt = atoi(arguments[i] + 10);
    }
    if (interrupt >= 0 && fcntl(interrupt, F_SETFL, O_NONBLOCK)) fail("interrupt= is no descriptor");
    if (!file) fail("needs memory=FILE");
    if (machine->version.cur >= API_WITH_LONG_DESCRIPTORS) descriptor_bytes += sizeof(void *);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, OOH_DEVICE_BYTES)) fail("cannot open the file of memory=");
    device = mmap(NULL, OOH_DEVICE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (device == MAP_FAILED) fail("cannot map the file of memory=");
    close(fd);
    memset(device, 0, OOH_DEVICE_RING(OOH_DEVICE_SLOTS));
    for (unsigned i = 0; i < OOH_DEVICE_SLOTS; i++) logged[i] = zeros(LEAVES * sizeof(uint32_t *));
    device->version = OOH_DEVICE_VERSION;
    device->slots = OOH_DEVICE_SLOTS;
    device->modes = 1u << OOH_DEVICE_VIRTUAL | 1u << OOH_DEVICE_PHYSICAL | 1u << OOH_DEVICE_KERNEL;
    device->magic = OOH_DEVICE_MAGIC;
    qemu_plugin_register_vcpu_init_cb(id, began);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
