/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The interface of /dev/ooh: the dirty pages of a process, from a log that the processor or the hypervisor keeps.
 *
 * An open file tracks one process. OOH_TRACK begins, OOH_COLLECT ends a round, and closing the file ends the log. Only
 * the process that called OOH_TRACK may map the ring, which is read-only, or call OOH_COLLECT. */
#ifndef OOH_H
#define OOH_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define OOH_ABI_VERSION 1

/* Modes, and their bits in `modes`. */
#define OOH_EPML 1 /* the processor logs virtual addresses */
#define OOH_SPML 2 /* the hypervisor logs physical addresses: entries are page frames, of all that is written */
#define OOH_SPML_OWNED 4 /* the module finds whose they are: entries are virtual addresses of the process */

struct ooh_info {
    __u32 version;
    __u32 modes;   /* what OOH_TRACK takes here */
    __u32 tracked; /* processes that are being logged */
    __u32 slots;   /* logs of the device: EPML takes two, SPML one */
};

struct ooh_track {
    __s32 pid; /* in the caller's PID namespace */
    __u32 mode;
    __u64 entries; /* out: of the ring, which is mapped at offset 0 */
};

/* What an entry of the ring is. */
#define OOH_RANGE 0 /* pages of the process, by virtual address */
#define OOH_FRAME 1 /* page frames, by physical address */

struct ooh_entry {
    __u64 start; /* in bytes */
    __u32 pages;
    __u32 kind;
};

#define OOH_LOST 1  /* the log was full: any page may have been written */
#define OOH_ENDED 2 /* the address space is gone */

struct ooh_round {
    /* The round's entries are those from `first` up to `end`, modulo the ring's size. They stay until the next
     * call. */
    __u64 first;
    __u64 end;
    __u32 flags;
    __u32 unused;
    /* Since OOH_TRACK: entries that the device logged, and page frames that belonged to nobody here. */
    __u64 logged;
    __u64 foreign;
};

#define OOH_INFO _IOR('O', 0, struct ooh_info)
#define OOH_TRACK _IOWR('O', 1, struct ooh_track)
#define OOH_COLLECT _IOR('O', 2, struct ooh_round)

#endif
