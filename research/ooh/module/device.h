/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the module and the log agree on: memory of a device that holds registers and, for each of its slots, a ring of
 * page numbers. The device is a PCI one (BAR 2), or at a place that guest and hypervisor agreed on.
 *
 * A processor's log (and the emulated one) has a page as soon as it is stored to. A hypervisor's has it when the driver
 * asks for it (`is_asked`): what was written is known to the hypervisor by then, and comes into the ring before the
 * write to the doorbell returns.
 *
 * A slot is an address space that is logged. The device compares a processor's CR3, as Intel's processor trace does
 * with its filter (IA32_RTIT_CR3_MATCH), and logs the first store to each page in each round. */
#ifndef OOH_DEVICE_H
#define OOH_DEVICE_H

#include <linux/types.h>

#define OOH_DEVICE_MAGIC 0x474f4c2d484f4f00ULL
#define OOH_DEVICE_VERSION 3
#define OOH_DEVICE_SLOTS 16
/* Pages that a slot can log before the driver must have taken some away. */
#define OOH_DEVICE_ENTRIES 65536
/* The vector of the interrupt that a slot raises when its log is full. A device that has no vectors raises none. */
#define OOH_DEVICE_FULL_VECTOR 0
#define OOH_DEVICE_BYTES (16ULL << 20)
/* Where the doorbell of a device without PCI is: a register of 32 bits. A write of a slot's number ends the slot's round:
 * all pages that were written before it are in the ring, or the slot has lost some, when it returns. A slot that was
 * switched on begins with such a write. A number that is no slot's has the device look which slots are on. */
#define OOH_DEVICE_DOORBELL OOH_DEVICE_BYTES
/* Where the ring of slot I begins. */
#define OOH_DEVICE_RING(i) (4096ULL + (i) * OOH_DEVICE_ENTRIES * sizeof(__u64))

/* What a slot logs. */
#define OOH_DEVICE_VIRTUAL 1  /* guest virtual addresses in the lower half, where CR3 matches */
#define OOH_DEVICE_PHYSICAL 2 /* guest physical addresses, where CR3 matches */
#define OOH_DEVICE_KERNEL 3   /* those of stores to the upper half, where CR3 matches */

struct ooh_device_slot {
    /* Of the driver. CR3 matches if it is `match` in the bits of `mask`. */
    __u64 match;
    __u64 mask;
    __u32 mode;
    /* A page is logged again once this has another value. */
    __u32 round;
    /* Of the device: how many entries were begun. Entry N is at N modulo OOH_DEVICE_ENTRIES, and complete when it is
     * not zero: a page number, shifted left by one, plus one. */
    __u64 head;
    /* Of the driver: how many entries it has taken and overwritten with zero. */
    __u64 tail;
    /* Not zero once the device had no room, or could not find an address: it has lost a page. */
    __u32 lost;
    /* Of the driver: how many entries the log holds; 0 or too many is all that the ring has. */
    __u32 entries;
    /* Of the driver: the device raises its interrupt once so many entries are there; 0 is never. What it logs after
     * that, until the driver has taken some away, needs room as well: an interrupt takes time. */
    __u32 full_at;
    /* Set by the device when it raises the interrupt, and cleared by the driver before it looks for entries. While it is
     * set, the slot raises no other. */
    __u32 is_full;
};

struct ooh_device {
    /* Of the device. */
    __u64 magic;
    __u32 version;
    __u32 slots;
    /* Of the driver: a bit for each slot that logs. */
    __u32 active;
    /* Of the device: what its slots can log, a bit (1 << mode) for each. */
    __u32 modes;
    /* Of the device: not zero if it fills its rings when it is asked to, by the doorbell, and not before. */
    __u32 is_asked;
    __u32 unused[9];
    struct ooh_device_slot slot[OOH_DEVICE_SLOTS];
};

#endif
