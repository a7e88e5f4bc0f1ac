/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the module and the emulated log agree on: a PCI device whose memory (BAR 2) holds registers and, for each of
 * its slots, a ring of page numbers.
 *
 * A slot is an address space that is logged. The device compares a processor's CR3, as Intel's processor trace does
 * with its filter (IA32_RTIT_CR3_MATCH), and logs the first store to each page in each round. */
#ifndef OOH_DEVICE_H
#define OOH_DEVICE_H

#include <linux/types.h>

#define OOH_DEVICE_MAGIC 0x474f4c2d484f4f00ULL
#define OOH_DEVICE_VERSION 2
#define OOH_DEVICE_SLOTS 16
/* Pages that a slot can log before the driver must have taken some away. */
#define OOH_DEVICE_ENTRIES 65536
/* The vector of the interrupt that a slot raises when its log is full. A device that has no vectors raises none. */
#define OOH_DEVICE_FULL_VECTOR 0
#define OOH_DEVICE_BYTES (16ULL << 20)
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
    __u32 unused[11];
    struct ooh_device_slot slot[OOH_DEVICE_SLOTS];
};

#endif
