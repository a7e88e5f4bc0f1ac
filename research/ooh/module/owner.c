// SPDX-License-Identifier: GPL-2.0-only
/* Whose a page frame is. The kernel's own search (rmap_walk in mm/rmap.c) is not for modules; as only one address space
 * is of interest here, its mappings are compared with what the frame says of itself: its file or its anon_vma, and its
 * offset. A mapping that could have the frame, and has not, is a false positive. */
#include <linux/mm.h>
#include <linux/rmap.h>
#include <linux/spinlock.h>

#include "owner.h"

/* Whether anonymous pages of `owner` can be in a mapping. */
static bool has_anonymous(struct vm_area_struct *vma, const struct anon_vma *owner)
{
    struct anon_vma_chain *link;
    bool found = false;

    /* The first page fault of a mapping adds to the list, under this lock and not under the mappings'. */
    spin_lock(&vma->vm_mm->page_table_lock);
    list_for_each_entry(link, &vma->anon_vma_chain, same_vma)
        found |= link->anon_vma == owner;
    spin_unlock(&vma->vm_mm->page_table_lock);
    return found;
}

static bool can_have(struct vm_area_struct *vma, struct folio *folio)
{
    unsigned long mapping = (unsigned long)READ_ONCE(folio->mapping);

    if (!mapping)
        return false;
    if (folio_test_anon(folio))
        return has_anonymous(vma, (void *)(mapping & ~3ul));
    return vma->vm_file && (unsigned long)vma->vm_file->f_mapping == mapping;
}

unsigned int ooh_owner_addresses(struct mm_struct *mm, unsigned long frame,
                                 void (*found)(void *context, unsigned long address), void *context)
{
    struct page *page = pfn_to_online_page(frame);
    unsigned long offset, address = 0;
    struct vm_area_struct *vma;
    unsigned int count = 0;
    struct folio *folio;

    if (!page)
        return 0;
    folio = page_folio(page);
    /* Fails for a free page. */
    if (!folio_try_get(folio))
        return 0;
    if (page_folio(page) != folio)
        goto out;
    offset = folio->index + folio_page_idx(folio, page);
    for (vma = find_vma(mm, 0); vma; vma = find_vma(mm, vma->vm_end)) {
        if (offset < vma->vm_pgoff || offset >= vma->vm_pgoff + vma_pages(vma) || !can_have(vma, folio))
            continue;
        address = vma->vm_start + ((offset - vma->vm_pgoff) << PAGE_SHIFT);
        found(context, address);
        count++;
    }
out:
    folio_put(folio);
    return count;
}
