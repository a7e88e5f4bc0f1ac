/* SPDX-License-Identifier: GPL-2.0-only */
/* The device's slots: one for each process that is logged. */
#ifndef OOH_LOG_H
#define OOH_LOG_H

#include <linux/mm_types.h>
#include <linux/types.h>

/* `full` is called, in a thread of the kernel, when a log is as full as it may be before it is drained; not where the
 * device raises no interrupt. */
int ooh_log_init(void (*full)(void));
void ooh_log_exit(void);

bool ooh_log_is_there(void);
/* Whether logs of this mode of the device's can begin. */
bool ooh_log_has(u32 mode);
/* Whether logs must be drained now and then, as they fill up and the device does not say so. */
bool ooh_log_fills_up_unsaid(void);

/* Takes a slot and begins to log in this mode of the device's: the stores made in `mm`, or everybody's where it is
 * NULL. Returns the slot, or an error. */
int ooh_log_start(struct mm_struct *mm, u32 mode);
/* Ends the log; what it holds can still be drained. May be called again, and from a notifier. */
void ooh_log_stop(int slot);
void ooh_log_free(int slot);

/* How far the slot's log is now; begins a new round after that. A page that is stored to afterwards is logged again.
 * When it returns, all entries before `*until` are complete. Also whether pages were lost before. */
int ooh_log_next_round(int slot, u64 *until, bool *lost);
/* How far the slot's log is, without a new round. If the log fills up again after this, `full` is called again. */
int ooh_log_head(int slot, u64 *until);
/* Takes the complete entries before `until`, and calls `page` with the number of each page. */
int ooh_log_drain(int slot, u64 until, void (*page)(void *context, u64 number), void *context);

#endif
