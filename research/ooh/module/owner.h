/* SPDX-License-Identifier: GPL-2.0-only */
/* Whose a page frame is: where it is mapped in one address space. */
#ifndef OOH_OWNER_H
#define OOH_OWNER_H

#include <linux/mm_types.h>
#include <linux/types.h>

/* Calls `found` with each address at which `mm` may have this frame mapped; the caller holds its lock for reading.
 * Returns how many there were. */
unsigned int ooh_owner_addresses(struct mm_struct *mm, unsigned long frame,
                                 void (*found)(void *context, unsigned long address), void *context);

#endif
