// SPDX-License-Identifier: GPL-2.0-only
/* The addresses that pages are moved to. Nothing is stored there, and the kernel tells its MMU notifiers only where the
 * pages come from (mm/userfaultfd.c), as no page table entry of the destination has been in use. But its contents are
 * others now. So the return of the kernel's functions is probed. */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/userfaultfd_k.h>

#include "moves.h"

/* Moves under way at once, which may wait for locks. */
#define UNDER_WAY_MAX 1024

struct move {
    struct mm_struct *mm;
    unsigned long start;
    unsigned long length;
};

static void (*tell)(struct mm_struct *mm, unsigned long start, unsigned long length);

static void note(struct kretprobe_instance *instance, struct mm_struct *mm, unsigned long start, unsigned long length)
{
    *(struct move *)instance->data = (struct move){.mm = mm, .start = start, .length = length};
}

/* move_pages(context, to, from, length, mode) */
static int call_begins(struct kretprobe_instance *instance, struct pt_regs *registers)
{
    const struct userfaultfd_ctx *context = (void *)regs_get_kernel_argument(registers, 0);

    note(instance, context->mm, regs_get_kernel_argument(registers, 1), regs_get_kernel_argument(registers, 3));
    return 0;
}

/* move_pages_ptes(mm, to's PMD, from's PMD, to's mapping, from's mapping, to, from, length, mode) */
static int part_begins(struct kretprobe_instance *instance, struct pt_regs *registers)
{
    note(instance, (void *)regs_get_kernel_argument(registers, 0), regs_get_kernel_argument(registers, 5),
         regs_get_kernel_argument(registers, 7));
    return 0;
}

/* move_pages_huge_pmd(mm, to's PMD, from's PMD, its value, to's mapping, from's mapping, to, from) */
static int huge_page_begins(struct kretprobe_instance *instance, struct pt_regs *registers)
{
    note(instance, (void *)regs_get_kernel_argument(registers, 0), regs_get_kernel_argument(registers, 6), PMD_SIZE);
    return 0;
}

/* All of it, also where the move has failed half way: pages before that were moved. */
static int ends(struct kretprobe_instance *instance, struct pt_regs *registers)
{
    const struct move *move = (void *)instance->data;

    tell(move->mm, move->start, move->length);
    return 0;
}

#define PROBE(function, begins)                                                                                        \
    {                                                                                                                  \
        .kp.symbol_name = function, .entry_handler = begins, .handler = ends, .data_size = sizeof(struct move),        \
        .maxactive = UNDER_WAY_MAX,                                                                                    \
    }

/* All of a call up to Linux 6.x. In later ones that function is part of its caller, and its parts are probed. */
static struct kretprobe whole_call = PROBE("move_pages", call_begins);
static struct kretprobe parts[] = {
    PROBE("move_pages_ptes", part_begins),
    PROBE("move_pages_huge_pmd", huge_page_begins),
};
static struct kretprobe *probes[] = {&parts[0], &parts[1]};
static bool is_in_parts;

int ooh_moves_init(void (*moved)(struct mm_struct *mm, unsigned long start, unsigned long length))
{
    int error;

    tell = moved;
    if (!IS_ENABLED(CONFIG_USERFAULTFD))
        return 0;
    error = register_kretprobe(&whole_call);
    is_in_parts = error == -ENOENT;
    if (is_in_parts)
        error = register_kretprobes(probes, ARRAY_SIZE(probes));
    if (error)
        pr_err("ooh: UFFDIO_MOVE cannot be followed on this kernel: %d\n", error);
    return error;
}

void ooh_moves_exit(void)
{
    if (!IS_ENABLED(CONFIG_USERFAULTFD))
        return;
    if (is_in_parts)
        unregister_kretprobes(probes, ARRAY_SIZE(probes));
    else
        unregister_kretprobe(&whole_call);
}

static unsigned long missed(const struct kretprobe *probe)
{
    return READ_ONCE(probe->nmissed) + READ_ONCE(probe->kp.nmissed);
}

unsigned long ooh_moves_missed(void)
{
    return missed(&whole_call) + missed(&parts[0]) + missed(&parts[1]);
}
