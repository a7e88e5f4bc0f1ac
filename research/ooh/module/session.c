// SPDX-License-Identifier: GPL-2.0-only
/* /dev/ooh: an open file is a session, which tracks one process; see ooh.h.
 *
 * The device filters by CR3, so nothing is switched when processes are: a thread of the kernel that borrows the
 * address space (vhost, io_uring) is logged, too, which a switch at scheduling would miss. */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include "device.h"
#include "log.h"
#include "moves.h"
#include "ooh.h"
#include "owner.h"

/* Ranges that a round can have before it counts as lost. */
#define ENTRIES (4 * OOH_DEVICE_ENTRIES)
/* How often the device's logs are emptied between rounds, where it does not say that they are full. */
#define DRAIN_INTERVAL_MS 10
/* Frames that a round can have before it counts as lost. */
#define FRAMES (4 * OOH_DEVICE_ENTRIES)

/* Empties logs. Before other work: the processors fill them meanwhile. */
static struct workqueue_struct *draining;

/* Processes that are being logged. */
static atomic_t tracked = ATOMIC_INIT(0);

/* All sessions that have begun. */
static LIST_HEAD(sessions);
static DEFINE_SPINLOCK(sessions_lock);

/* Of all sessions; under their lock. */
static unsigned long rounds;
module_param(rounds, ulong, 0444);
MODULE_PARM_DESC(rounds, "Rounds that trackers have ended");
static unsigned long foreign;
module_param(foreign, ulong, 0444);
MODULE_PARM_DESC(foreign, "Page frames that belonged to nobody who is tracked");

struct session {
    struct list_head link;
    /* Serializes what the tracker asks for, and the draining in between. */
    struct mutex lock;
    /* Who called OOH_TRACK, and alone may map and collect; kept, so that no other has its address. */
    struct mm_struct *owner;
    u32 mode;
    /* The first log, and for EPML that of the kernel's stores. */
    int slot[2];
    unsigned int slots;
    struct mm_struct *mm;
    struct mmu_notifier notifier;
    struct delayed_work work;
    u64 foreign;
    u64 logged;
    /* Frames of the last round that had no owner, which are asked again in the next. */
    u64 *unowned;
    unsigned int unowned_count;
    /* Frames of this round whose owner is asked for when it ends. */
    u64 *frames;
    unsigned int frames_count;
    /* What ooh_moves_missed said when the session began. */
    unsigned long moves_missed;

    /* Of what follows, which the notifier uses as well. */
    spinlock_t ring_lock;
    struct ooh_entry *ring;
    u64 head;
    /* Entries before it have been given to the tracker. */
    u64 given;
    u64 tail;
    bool lost;
    bool ended;
};

static void add(struct session *session, u64 start, u64 pages, u32 kind)
{
    struct ooh_entry *last;

    spin_lock(&session->ring_lock);
    last = &session->ring[(session->head - 1) % ENTRIES];
    if (session->head != session->given && last->kind == kind && last->start + ((u64)last->pages << PAGE_SHIFT) == start &&
        last->pages + pages <= U32_MAX) {
        last->pages += pages;
    } else if (session->head - session->tail >= ENTRIES || pages > U32_MAX) {
        session->lost = true;
    } else {
        session->ring[session->head % ENTRIES] = (struct ooh_entry){.start = start, .pages = pages, .kind = kind};
        session->head++;
    }
    spin_unlock(&session->ring_lock);
}

static void add_address(void *context, unsigned long address)
{
    add(context, address & PAGE_MASK, 1, OOH_RANGE);
}

static void add_page(void *context, u64 number)
{
    struct session *session = context;

    session->logged++;
    add(session, number << PAGE_SHIFT, 1, session->mode == OOH_EPML ? OOH_RANGE : OOH_FRAME);
}

static void add_owned(void *context, u64 frame)
{
    struct session *session = context;

    session->logged++;
    if (ooh_owner_addresses(session->mm, frame, add_address, session))
        return;
    session->foreign++;
    if (session->unowned_count < OOH_DEVICE_ENTRIES)
        session->unowned[session->unowned_count++] = frame;
}

/* Asks again for those that had no owner when the last round ended: a page that was just being migrated (mm/migrate.c)
 * is for a moment neither its old frame's nor its new one's, and neither is logged again. */
static void add_unowned(struct session *session)
{
    while (session->unowned_count)
        ooh_owner_addresses(session->mm, session->unowned[--session->unowned_count], add_address, session);
}

static void lose(struct session *session)
{
    spin_lock(&session->ring_lock);
    session->lost = true;
    spin_unlock(&session->ring_lock);
}

/* Whether a log has frames whose owner the module finds. */
static bool is_owned(const struct session *session, unsigned int n)
{
    return session->mode == OOH_SPML_OWNED || n == 1;
}

static void keep_frame(void *context, u64 frame)
{
    struct session *session = context;

    if (session->frames_count < FRAMES)
        session->frames[session->frames_count++] = frame;
    else
        lose(session);
}

static void add_kept(struct session *session)
{
    while (session->frames_count)
        add_owned(session, session->frames[--session->frames_count]);
}

/* Ends a round of this log: what it has before `until`, and what was kept. */
static void drain(struct session *session, unsigned int n, u64 until)
{
    int error;

    if (!is_owned(session, n)) {
        error = ooh_log_drain(session->slot[n], until, add_page, session);
    } else {
        /* Of an address space that has ended, nobody wants to know. */
        if (!mmget_not_zero(session->mm))
            return;
        mmap_read_lock(session->mm);
        add_unowned(session);
        add_kept(session);
        error = ooh_log_drain(session->slot[n], until, add_owned, session);
        mmap_read_unlock(session->mm);
        mmput_async(session->mm);
    }
    if (error)
        lose(session);
}

/* Makes room in the device's logs. Whose a frame is can be said at the end of a round only: one that is being filled
 * has no owner yet, and is not logged again when it gets one. So frames are kept until then. */
static void make_room(struct work_struct *work)
{
    struct session *session = container_of(to_delayed_work(work), struct session, work);
    unsigned int n;
    u64 until;

    mutex_lock(&session->lock);
    for (n = 0; n < session->slots; n++)
        if (ooh_log_head(session->slot[n], &until) ||
            ooh_log_drain(session->slot[n], until, is_owned(session, n) ? keep_frame : add_page, session))
            lose(session);
    mutex_unlock(&session->lock);
    if (!READ_ONCE(session->ended) && ooh_log_fills_up_unsaid())
        queue_delayed_work(draining, &session->work, msecs_to_jiffies(DRAIN_INTERVAL_MS));
}

/* The device does not say whose log it is. */
static void some_log_is_full(void)
{
    struct session *session;

    spin_lock(&sessions_lock);
    list_for_each_entry(session, &sessions, link)
        mod_delayed_work(draining, &session->work, 0);
    spin_unlock(&sessions_lock);
}

static void stop(struct session *session)
{
    unsigned int n;

    for (n = 0; n < session->slots; n++)
        ooh_log_stop(session->slot[n]);
}

/* Memory that loses its pages has other contents now, without a store. Noted at the end, when it has lost them. */
static void range_ended(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
    struct session *session = container_of(notifier, struct session, notifier);
    u64 start = range->start & PAGE_MASK;

    if (range->event == MMU_NOTIFY_UNMAP || range->event == MMU_NOTIFY_CLEAR)
        add(session, start, (PAGE_ALIGN(range->end) - start) >> PAGE_SHIFT, OOH_RANGE);
}

/* Pages have come to this address from elsewhere in the process. */
static void pages_moved(struct mm_struct *mm, unsigned long start, unsigned long length)
{
    struct session *session;

    spin_lock(&sessions_lock);
    list_for_each_entry(session, &sessions, link)
        if (session->mm == mm)
            add(session, start & PAGE_MASK, PAGE_ALIGN((start & ~PAGE_MASK) + length) >> PAGE_SHIFT, OOH_RANGE);
    spin_unlock(&sessions_lock);
}

/* Exit, or another program: before the page tables are freed, and others may have their address. */
static void space_ended(struct mmu_notifier *notifier, struct mm_struct *mm)
{
    struct session *session = container_of(notifier, struct session, notifier);

    stop(session);
    if (!xchg(&session->ended, true))
        atomic_dec(&tracked);
}

static const struct mmu_notifier_ops notifier_ops = {
    .invalidate_range_end = range_ended,
    .release = space_ended,
};

/* What OOH_TRACK takes, by what the device can log. */
static u32 modes(void)
{
    u32 found = 0;

    if (ooh_log_has(OOH_DEVICE_VIRTUAL) && ooh_log_has(OOH_DEVICE_KERNEL))
        found |= OOH_EPML;
    if (ooh_log_has(OOH_DEVICE_PHYSICAL))
        found |= OOH_SPML | OOH_SPML_OWNED;
    return found;
}

static long info(void __user *to)
{
    struct ooh_info info = {
        .version = OOH_ABI_VERSION,
        .modes = modes(),
        .tracked = atomic_read(&tracked),
        .slots = OOH_DEVICE_SLOTS,
    };

    return copy_to_user(to, &info, sizeof(info)) ? -EFAULT : 0;
}

/* The address space of a process that the caller may track; with a reference. */
static struct mm_struct *target(const struct ooh_track *track)
{
    struct task_struct *task;
    struct mm_struct *mm;
    struct pid *pid;

    if (track->pid <= 0)
        return ERR_PTR(-EINVAL);
    pid = find_get_pid(track->pid);
    task = get_pid_task(pid, PIDTYPE_PID);
    put_pid(pid);
    if (!task)
        return ERR_PTR(-ESRCH);
    mm = get_task_mm(task);
    put_task_struct(task);
    if (!mm)
        return ERR_PTR(-ESRCH);
    /* Frames are everybody's. */
    if ((track->mode == OOH_SPML && !capable(CAP_SYS_ADMIN)) ||
        (mm != current->mm && !capable(CAP_SYS_PTRACE))) {
        mmput(mm);
        return ERR_PTR(-EPERM);
    }
    return mm;
}

static void free_slots(struct session *session)
{
    while (session->slots)
        ooh_log_free(session->slot[--session->slots]);
}

/* EPML logs what is stored in the address space by virtual address, and, as the kernel writes to a process's memory
 * through its own mapping, too (another process's process_vm_writev, ptrace), its stores by frame. SPML logs all. */
static int take_slots(struct session *session, struct mm_struct *mm, u32 mode)
{
    const u32 modes[2] = {mode == OOH_EPML ? OOH_DEVICE_VIRTUAL : OOH_DEVICE_PHYSICAL, OOH_DEVICE_KERNEL};
    unsigned int wanted = mode == OOH_EPML ? 2 : 1;
    int slot;

    while (session->slots < wanted) {
        slot = ooh_log_start(modes[session->slots] == OOH_DEVICE_VIRTUAL ? mm : NULL, modes[session->slots]);
        if (slot < 0) {
            free_slots(session);
            return slot;
        }
        session->slot[session->slots++] = slot;
    }
    return 0;
}

static int begin(struct session *session, struct mm_struct *mm, u32 mode)
{
    int error;

    session->ring = vmalloc_user(ENTRIES * sizeof(struct ooh_entry));
    session->unowned = kvmalloc_array(OOH_DEVICE_ENTRIES, sizeof(*session->unowned), GFP_KERNEL);
    session->frames = kvmalloc_array(FRAMES, sizeof(*session->frames), GFP_KERNEL);
    session->mode = mode;
    error = session->ring && session->unowned && session->frames ? take_slots(session, mm, mode) : -ENOMEM;
    if (error)
        goto no_slots;
    session->mm = mm;
    session->moves_missed = ooh_moves_missed();
    session->notifier.ops = &notifier_ops;
    error = mmu_notifier_register(&session->notifier, mm);
    if (error)
        goto no_notifier;
    atomic_inc(&tracked);
    spin_lock(&sessions_lock);
    list_add(&session->link, &sessions);
    spin_unlock(&sessions_lock);
    mmgrab(current->mm);
    smp_store_release(&session->owner, current->mm);
    /* Once at least: the log may have filled up before the session was in the list. */
    queue_delayed_work(draining, &session->work, msecs_to_jiffies(DRAIN_INTERVAL_MS));
    return 0;
no_notifier:
    free_slots(session);
    session->mm = NULL;
no_slots:
    kvfree(session->frames);
    kvfree(session->unowned);
    vfree(session->ring);
    session->frames = NULL;
    session->unowned = NULL;
    session->ring = NULL;
    return error;
}

static long track(struct session *session, struct ooh_track __user *argument)
{
    struct ooh_track track;
    struct mm_struct *mm;
    long error;

    if (copy_from_user(&track, argument, sizeof(track)))
        return -EFAULT;
    if (!ooh_log_is_there())
        return -ENODEV;
    if (track.mode != OOH_EPML && track.mode != OOH_SPML && track.mode != OOH_SPML_OWNED)
        return -EINVAL;
    if (!(modes() & track.mode))
        return -EOPNOTSUPP;
    track.entries = ENTRIES;
    if (copy_to_user(argument, &track, sizeof(track)))
        return -EFAULT;
    mm = target(&track);
    if (IS_ERR(mm))
        return PTR_ERR(mm);
    mutex_lock(&session->lock);
    error = session->owner ? -EBUSY : begin(session, mm, track.mode);
    mutex_unlock(&session->lock);
    mmput(mm);
    return error;
}

static long collect(struct session *session, struct ooh_round __user *argument)
{
    struct ooh_round round = {};
    long error = -EPERM;
    unsigned int n;
    u64 until[2], foreign_before;
    bool lost, ended;

    mutex_lock(&session->lock);
    if (session->owner != current->mm)
        goto out;
    foreign_before = session->foreign;
    ended = READ_ONCE(session->ended);
    spin_lock(&session->ring_lock);
    session->tail = session->given;
    round.first = session->given;
    round.flags = session->lost ? OOH_LOST : 0;
    session->lost = false;
    spin_unlock(&session->ring_lock);
    for (n = 0; n < session->slots; n++) {
        error = ooh_log_next_round(session->slot[n], &until[n], &lost);
        if (error) {
            lose(session);
            goto out;
        }
        if (lost)
            round.flags |= OOH_LOST;
    }
    for (n = 0; n < session->slots; n++)
        drain(session, n, until[n]);
    spin_lock(&session->ring_lock);
    session->given = session->head;
    round.end = session->head;
    /* The round's own pages may have had no room. */
    if (session->lost)
        round.flags |= OOH_LOST;
    session->lost = false;
    spin_unlock(&session->ring_lock);
    if (ended)
        round.flags |= OOH_ENDED;
    /* When such a move ends is not known. */
    if (ooh_moves_missed() != session->moves_missed)
        round.flags |= OOH_LOST;
    round.logged = session->logged;
    round.foreign = session->foreign;
    spin_lock(&sessions_lock);
    rounds++;
    foreign += session->foreign - foreign_before;
    spin_unlock(&sessions_lock);
out:
    mutex_unlock(&session->lock);
    if (!error && copy_to_user(argument, &round, sizeof(round))) {
        lose(session);
        error = -EFAULT;
    }
    return error;
}

static long ooh_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
    struct session *session = file->private_data;

    switch (command) {
    case OOH_INFO:
        return info((void __user *)argument);
    case OOH_TRACK:
        return track(session, (void __user *)argument);
    case OOH_COLLECT:
        return collect(session, (void __user *)argument);
    default:
        return -ENOTTY;
    }
}

static int ooh_mmap(struct file *file, struct vm_area_struct *vma)
{
    struct session *session = file->private_data;

    /* Without the session's lock, under which mappings are locked. */
    if (smp_load_acquire(&session->owner) != current->mm || vma->vm_flags & VM_WRITE)
        return -EPERM;
    /* Not for children, and never writable. */
    vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
    vm_flags_clear(vma, VM_MAYWRITE);
    return remap_vmalloc_range(vma, session->ring, vma->vm_pgoff);
}

static int ooh_open(struct inode *inode, struct file *file)
{
    struct session *session = kzalloc(sizeof(*session), GFP_KERNEL);

    if (!session)
        return -ENOMEM;
    mutex_init(&session->lock);
    spin_lock_init(&session->ring_lock);
    INIT_DELAYED_WORK(&session->work, make_room);
    file->private_data = session;
    return 0;
}

/* The last descriptor and the last mapping are gone: the tracker has ended, or wants no more. */
static int ooh_release(struct inode *inode, struct file *file)
{
    struct session *session = file->private_data;

    if (session->owner) {
        spin_lock(&sessions_lock);
        list_del(&session->link);
        spin_unlock(&sessions_lock);
        stop(session);
        cancel_delayed_work_sync(&session->work);
        mmu_notifier_unregister(&session->notifier, session->mm);
        free_slots(session);
        if (!session->ended)
            atomic_dec(&tracked);
        kvfree(session->frames);
        kvfree(session->unowned);
        vfree(session->ring);
        mmdrop(session->owner);
    }
    kfree(session);
    return 0;
}

static const struct file_operations operations = {
    .owner = THIS_MODULE,
    .open = ooh_open,
    .release = ooh_release,
    .unlocked_ioctl = ooh_ioctl,
    .mmap = ooh_mmap,
};

static struct miscdevice misc = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "ooh",
    .mode = 0600,
    .fops = &operations,
};

static int __init ooh_init(void)
{
    int error = -ENOMEM;

    draining = alloc_workqueue("ooh", WQ_HIGHPRI | WQ_UNBOUND, 0);
    if (!draining)
        return error;
    error = ooh_log_init(some_log_is_full);
    if (error)
        goto no_log;
    error = ooh_moves_init(pages_moved);
    if (error)
        goto no_moves;
    error = misc_register(&misc);
    if (error)
        goto no_device;
    return 0;
no_device:
    ooh_moves_exit();
no_moves:
    ooh_log_exit();
no_log:
    destroy_workqueue(draining);
    return error;
}

static void __exit ooh_exit(void)
{
    misc_deregister(&misc);
    ooh_moves_exit();
    ooh_log_exit();
    destroy_workqueue(draining);
}

module_init(ooh_init);
module_exit(ooh_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Dirty pages of processes, from a log of the processor or the hypervisor");
