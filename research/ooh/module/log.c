// SPDX-License-Identifier: GPL-2.0-only
/* The device of device.h: an ivshmem device of QEMU's, whose memory the emulated log writes to, or memory at a place
 * that the hypervisor has chosen (the parameter `at`), which it fills when it is asked to. */
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <asm/cpufeature.h>

#include "device.h"
#include "log.h"

#define IVSHMEM_VENDOR 0x1af4
#define IVSHMEM_DEVICE 0x1110
#define BAR 2
/* CR3 without its low bits, which are flags and the PCID, and without the one that says not to flush (bit 63). */
#define CR3_ADDRESS 0x000ffffffffff000ULL
/* Page table isolation: the tables of user mode are in the page after those of the kernel. */
#define CR3_USER_TABLES 0x1000ULL

/* Held for reading by everyone who uses the device's memory. */
static DECLARE_RWSEM(log_lock);
static struct ooh_device *device;
/* What the device can log; a copy, as all else that is in its memory may be overwritten. */
static u32 device_modes;
/* Where a device that is asked wants to be: NULL for others. */
static void __iomem *doorbell;
/* What is called when a log is full; only where the device has an interrupt. */
static void (*log_full)(void);
static bool has_interrupt;

/* As hardware's page-modification log has 512 entries: what is logged while the interrupt is on its way needs as much
 * again. Read when a log begins. */
static unsigned int log_entries = OOH_DEVICE_ENTRIES;
module_param(log_entries, uint, 0644);
MODULE_PARM_DESC(log_entries, "Entries that a log holds; it is drained when it is half full");

static unsigned long at;
module_param(at, ulong, 0444);
MODULE_PARM_DESC(at, "Physical address of a log that is no PCI device; 0: there is none");

static unsigned long interrupts;
module_param(interrupts, ulong, 0444);
MODULE_PARM_DESC(interrupts, "Interrupts by which the device said that a log was full");

/* Of what follows, and of the device's register `active`. */
static DEFINE_SPINLOCK(slots_lock);
static u32 used;
/* What the register is to be: what else may have been written to it is not taken over. */
static u32 active;

/* Entries that were taken from the device, by what their slots log: OOH_DEVICE_VIRTUAL, _PHYSICAL, _KERNEL. */
static unsigned long taken[3];
module_param_array_named(entries, taken, ulong, NULL, 0444);
MODULE_PARM_DESC(entries, "Entries taken from logs: by virtual address, by page frame, of the kernel's stores");

static void count(u32 mode, unsigned long entries)
{
    if (mode < OOH_DEVICE_VIRTUAL || mode > OOH_DEVICE_KERNEL)
        return;
    spin_lock(&slots_lock);
    taken[mode - OOH_DEVICE_VIRTUAL] += entries;
    spin_unlock(&slots_lock);
}

static u64 *ring(int slot)
{
    return (u64 *)((char *)device + OOH_DEVICE_RING(slot));
}

bool ooh_log_is_there(void)
{
    return READ_ONCE(device) != NULL;
}

bool ooh_log_has(u32 mode)
{
    return ooh_log_is_there() && READ_ONCE(device_modes) >> mode & 1;
}

bool ooh_log_fills_up_unsaid(void)
{
    return !READ_ONCE(has_interrupt) && !READ_ONCE(doorbell);
}

/* No slot's number. */
#define ALL_SLOTS U32_MAX

/* Asks a device that has to be asked. With the log's lock, or the slots'. */
static void ring_doorbell(u32 slot)
{
    /* Orders what was written to the device's memory before the write to the register. */
    if (doorbell)
        writel(slot, doorbell);
}

static int take_slot(void)
{
    int slot = -EBUSY;
    u32 free;

    spin_lock(&slots_lock);
    free = ~used & ((1u << OOH_DEVICE_SLOTS) - 1);
    if (free) {
        slot = __ffs(free);
        used |= 1u << slot;
    }
    spin_unlock(&slots_lock);
    return slot;
}

/* An entry that a processor has begun is complete once that processor has taken an interrupt. */
static void is_here(void *unused)
{
}

static void await_entries(void)
{
    on_each_cpu(is_here, NULL, 1);
}

int ooh_log_start(struct mm_struct *mm, u32 mode)
{
    struct ooh_device_slot *registers;
    int slot;

    down_read(&log_lock);
    slot = !device ? -ENODEV : ooh_log_has(mode) ? take_slot() : -EOPNOTSUPP;
    if (slot < 0)
        goto out;
    registers = &device->slot[slot];
    /* A processor may still have been at an entry when the slot's last user left. */
    await_entries();
    memset(ring(slot), 0, OOH_DEVICE_ENTRIES * sizeof(u64));
    registers->entries = clamp(READ_ONCE(log_entries), 2u, (u32)OOH_DEVICE_ENTRIES);
    registers->full_at = has_interrupt ? registers->entries / 2 : 0;
    registers->is_full = 0;
    registers->mode = mode;
    registers->mask = mm ? CR3_ADDRESS : 0;
    if (mm && boot_cpu_has(X86_FEATURE_PTI))
        registers->mask &= ~CR3_USER_TABLES;
    registers->match = mm ? virt_to_phys(mm->pgd) & registers->mask : 0;
    registers->round++;
    registers->lost = 0;
    WRITE_ONCE(registers->tail, READ_ONCE(registers->head));
    spin_lock(&slots_lock);
    active |= 1u << slot;
    smp_store_release(&device->active, active);
    spin_unlock(&slots_lock);
    /* From here on, every processor sees it. */
    await_entries();
    ring_doorbell(slot);
    /* A hypervisor may not know what was written before; nobody has asked for that. */
    if (doorbell)
        WRITE_ONCE(registers->lost, 0);
out:
    up_read(&log_lock);
    return slot;
}

void ooh_log_stop(int slot)
{
    spin_lock(&slots_lock);
    active &= ~(1u << slot);
    if (device) {
        smp_store_release(&device->active, active);
        ring_doorbell(ALL_SLOTS);
    }
    spin_unlock(&slots_lock);
}

void ooh_log_free(int slot)
{
    ooh_log_stop(slot);
    spin_lock(&slots_lock);
    used &= ~(1u << slot);
    spin_unlock(&slots_lock);
}

int ooh_log_head(int slot, u64 *until)
{
    int error = -ENODEV;

    down_read(&log_lock);
    if (device) {
        /* First: a page that is logged after we have looked, into a log that is full again, must raise another. */
        smp_store_mb(device->slot[slot].is_full, 0);
        *until = smp_load_acquire(&device->slot[slot].head);
        error = 0;
    }
    up_read(&log_lock);
    return error;
}

int ooh_log_next_round(int slot, u64 *until, bool *lost)
{
    struct ooh_device_slot *registers;
    int error = -ENODEV;

    down_read(&log_lock);
    if (device) {
        registers = &device->slot[slot];
        smp_store_mb(registers->is_full, 0);
        /* What a hypervisor knows comes into the ring, and its own next round begins. */
        ring_doorbell(slot);
        /* Both before the new round begins: a page that is logged, or lost, in the new round belongs to that one, as
         * it is not logged again in it. */
        *until = smp_load_acquire(&registers->head);
        *lost = xchg(&registers->lost, 0) != 0;
        smp_store_mb(registers->round, registers->round + 1);
        await_entries();
        error = 0;
    }
    up_read(&log_lock);
    return error;
}

int ooh_log_drain(int slot, u64 until, void (*page)(void *context, u64 number), void *context)
{
    struct ooh_device_slot *registers;
    int error = -ENODEV;
    u64 tail, entry;
    u64 *entries;

    down_read(&log_lock);
    if (!device)
        goto out;
    registers = &device->slot[slot];
    entries = ring(slot);
    tail = registers->tail;
    error = 0;
    if (until - tail > OOH_DEVICE_ENTRIES) {
        /* Not a device that keeps its word. */
        WRITE_ONCE(registers->tail, until);
        error = -EIO;
        goto out;
    }
    for (; tail != until; tail++) {
        entry = smp_load_acquire(&entries[tail % OOH_DEVICE_ENTRIES]);
        if (!entry)
            break;
        WRITE_ONCE(entries[tail % OOH_DEVICE_ENTRIES], 0);
        page(context, entry >> 1);
    }
    count(READ_ONCE(registers->mode), tail - registers->tail);
    smp_store_release(&registers->tail, tail);
out:
    up_read(&log_lock);
    return error;
}

static irqreturn_t is_full(int vector, void *unused)
{
    interrupts++;
    log_full();
    return IRQ_HANDLED;
}

/* A device without vectors (ivshmem-plain) is as good, but has to be looked at now and then. */
static void take_interrupt(struct pci_dev *pci)
{
    int vectors = pci_alloc_irq_vectors(pci, 1, 1, PCI_IRQ_MSIX);

    if (vectors < 1)
        return;
    pci_set_master(pci);
    if (devm_request_threaded_irq(&pci->dev, pci_irq_vector(pci, OOH_DEVICE_FULL_VECTOR), NULL, is_full, IRQF_ONESHOT,
                                  "ooh", NULL))
        pci_free_irq_vectors(pci);
    else
        has_interrupt = true;
}

/* Whether this is memory of a log that this module knows. Other uses of such a device have other memory. */
static bool is_log(const struct ooh_device *found)
{
    if (found->magic != OOH_DEVICE_MAGIC)
        return false;
    if (found->version == OOH_DEVICE_VERSION && found->slots == OOH_DEVICE_SLOTS)
        return true;
    pr_err("ooh: the log has version %u, this module knows %u\n", found->version, OOH_DEVICE_VERSION);
    return false;
}

/* Begins to use a device, of which no slot logs yet. */
static void take_device(struct ooh_device *found, void __iomem *its_doorbell)
{
    down_write(&log_lock);
    spin_lock(&slots_lock);
    active = 0;
    found->active = 0;
    device_modes = found->modes;
    doorbell = its_doorbell;
    device = found;
    ring_doorbell(ALL_SLOTS);
    spin_unlock(&slots_lock);
    up_write(&log_lock);
}

/* Ends the use of the device; nobody is at its memory when this returns. */
static void leave_device(void)
{
    down_write(&log_lock);
    spin_lock(&slots_lock);
    device->active = 0;
    ring_doorbell(ALL_SLOTS);
    device = NULL;
    doorbell = NULL;
    spin_unlock(&slots_lock);
    up_write(&log_lock);
}

static int log_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
    struct ooh_device *found;
    int error;

    if (device)
        return -EBUSY;
    error = pcim_enable_device(pci);
    if (error)
        return error;
    if (pci_resource_len(pci, BAR) < OOH_DEVICE_BYTES)
        return -ENODEV;
    found = devm_memremap(&pci->dev, pci_resource_start(pci, BAR), OOH_DEVICE_BYTES, MEMREMAP_WB);
    if (IS_ERR(found))
        return PTR_ERR(found);
    if (!is_log(found))
        return -ENODEV;
    if (found->is_asked) {
        dev_err(&pci->dev, "the log is one that is asked, and has no doorbell\n");
        return -ENODEV;
    }
    take_interrupt(pci);
    take_device(found, NULL);
    return 0;
}

static void log_remove(struct pci_dev *pci)
{
    leave_device();
    if (has_interrupt) {
        has_interrupt = false;
        devm_free_irq(&pci->dev, pci_irq_vector(pci, OOH_DEVICE_FULL_VECTOR), NULL);
        pci_free_irq_vectors(pci);
    }
}

static const struct pci_device_id ids[] = {
    {PCI_DEVICE(IVSHMEM_VENDOR, IVSHMEM_DEVICE)},
    {},
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver driver = {
    .name = "ooh",
    .id_table = ids,
    .probe = log_probe,
    .remove = log_remove,
    /* Unbound and bound again the log would lose what open sessions have asked it for. */
    .driver.suppress_bind_attrs = true,
};

/* The log at the agreed place: its memory, and the page with the doorbell after it. */
static struct resource *place;
static void *place_memory;
static void __iomem *place_doorbell;

static void leave_place(void)
{
    if (place_memory && READ_ONCE(device) == place_memory)
        leave_device();
    if (place_doorbell)
        iounmap(place_doorbell);
    if (place_memory)
        memunmap(place_memory);
    if (place)
        release_mem_region(at, OOH_DEVICE_DOORBELL + PAGE_SIZE);
    place = NULL;
    place_memory = NULL;
    place_doorbell = NULL;
}

/* What is wrong with the place is said, and leaves the module without a log. */
static void take_place(void)
{
    const char *wrong = "the module has a log already";

    if (READ_ONCE(device))
        goto fail;
    wrong = "there is other memory";
    place = at % PAGE_SIZE ? NULL : request_mem_region(at, OOH_DEVICE_DOORBELL + PAGE_SIZE, "ooh");
    if (!place)
        goto fail;
    wrong = "it cannot be mapped";
    place_memory = memremap(at, OOH_DEVICE_BYTES, MEMREMAP_WB);
    place_doorbell = ioremap(at + OOH_DEVICE_DOORBELL, PAGE_SIZE);
    if (!place_memory || !place_doorbell)
        goto fail;
    wrong = "there is no log that is asked";
    if (!is_log(place_memory) || !((struct ooh_device *)place_memory)->is_asked)
        goto fail;
    take_device(place_memory, place_doorbell);
    return;
fail:
    leave_place();
    pr_err("ooh: at=%#lx is not used: %s\n", at, wrong);
}

int ooh_log_init(void (*full)(void))
{
    int error;

    log_full = full;
    error = pci_register_driver(&driver);
    if (!error && at)
        take_place();
    return error;
}

void ooh_log_exit(void)
{
    leave_place();
    pci_unregister_driver(&driver);
}
