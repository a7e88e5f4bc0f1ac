/* SPDX-License-Identifier: GPL-2.0-only */
/* Pages that userfaultfd(2) moves from one address of a process to another (UFFDIO_MOVE). */
#ifndef OOH_MOVES_H
#define OOH_MOVES_H

#include <linux/mm_types.h>
#include <linux/types.h>

/* `moved` is called, from any process, when pages have been moved to `start` and the `length` bytes after it. */
int ooh_moves_init(void (*moved)(struct mm_struct *mm, unsigned long start, unsigned long length));
void ooh_moves_exit(void);

/* How many moves were not reported, as too many were under way. */
unsigned long ooh_moves_missed(void);

#endif
