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

/* The low bits of a folio's `mapping`: the first says that the rest is an anon_vma (linux/page-flags.h). */
#define MAPPING_ANON 1ul
#define MAPPING_FLAGS 3ul

static bool can_have(struct vm_area_struct *vma, unsigned long mapping)
{
    if (mapping & MAPPING_ANON)
        return has_anonymous(vma, (void *)(mapping & ~MAPPING_FLAGS));
    return vma->vm_file && (unsigned long)vma->vm_file->f_mapping == mapping;
}

/* The offset of a mapping's first page, as its folios count them. From Linux 7.3 on, the anonymous pages of a private
 * file mapping have another one than the file's: that of the address at the first page fault. */
static unsigned long first_offset(struct vm_area_struct *vma, unsigned long mapping)
{
#ifdef OOH_ANON_OFFSETS
    if (mapping & MAPPING_ANON)
        return vma_start_anon_pgoff(vma);
#endif
    return vma->vm_pgoff;
}

unsigned int ooh_owner_addresses(struct mm_struct *mm, unsigned long frame,
                                 void (*found)(void *context, unsigned long address), void *context)
{
    struct page *page = pfn_to_online_page(frame);
    unsigned long mapping, offset, first;
    struct vm_area_struct *vma;
    VMA_ITERATOR(next, mm, 0);
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
    mapping = (unsigned long)READ_ONCE(folio->mapping);
    offset = folio->index + folio_page_idx(folio, page);
    /* Most frames that are not the process's are the kernel's own, and have none. */
    if (!mapping)
        goto out;
    for_each_vma(next, vma) {
        first = first_offset(vma, mapping);
        if (offset < first || offset >= first + vma_pages(vma) || !can_have(vma, mapping))
            continue;
        found(context, vma->vm_start + ((offset - first) << PAGE_SHIFT));
        count++;
    }
out:
    folio_put(folio);
    return count;
}
