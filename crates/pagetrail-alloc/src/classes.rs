//! Size classes: the sizes to which objects that share pages are rounded up.
//!
//! Steps are of 16 bytes up to 256, then eight to each doubling: at most an eighth is lost, a
//! sixteenth on average. Larger objects than the largest class get whole pages, and lose an eighth
//! at most.

use crate::geometry::PAGE;

/// The number of classes.
pub(crate) const CLASSES: usize = 72;

/// Classes below this one have objects of less than a page, in memory that is mapped once per
/// sub-page; the memory of the others is mapped once.
pub(crate) const ALIASED_CLASSES: usize = 47;

/// The size of the largest class.
pub(crate) const SMALL_MAX: usize = SIZES[CLASSES - 1] as usize;

/// The alignment of every object, in bytes.
pub(crate) const ALIGN: usize = 16;

/// The classes' sizes, ascending.
pub(crate) const SIZES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut size, mut class) = (0_u16, 0);
    while class < CLASSES {
        let doubling = if size < 256 {
            128
        } else {
            1 << (15 - size.leading_zeros())
        };
        size += doubling / 8;
        sizes[class] = size;
        class += 1;
    }
    sizes
};

/// The class of each size, in steps of 16 bytes, rounded up.
static BY_SIZE: [u8; SMALL_MAX / ALIGN + 1] = {
    let mut classes = [0; SMALL_MAX / ALIGN + 1];
    let (mut step, mut class) = (0, 0);
    while step < classes.len() {
        if step * ALIGN > SIZES[class] as usize {
            class += 1;
        }
        classes[step] = class as u8;
        step += 1;
    }
    classes
};

/// The class for objects of `size` bytes, at most [`SMALL_MAX`].
#[inline]
pub(crate) fn class_of(size: usize) -> usize {
    // No overflow: sizes are small.
    BY_SIZE[(size + ALIGN - 1) >> ALIGN.trailing_zeros()].into()
}

/// The smallest class that holds `size` bytes and whose objects all have this alignment (a power of
/// two), if any.
pub(crate) fn class_aligned(size: usize, align: usize) -> Option<usize> {
    // Larger alignments would get more than they ask for, where whole pages of their own are
    // enough.
    if size > SMALL_MAX || align > PAGE {
        return None;
    }
    // Slabs begin at multiples of more than any class, so a size that is a multiple of the
    // alignment suffices.
    (class_of(size)..CLASSES).find(|&class| usize::from(SIZES[class]) % align.max(ALIGN) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_and_lose_little() {
        assert_eq!((SIZES[0], SIZES[15], SIZES[16]), (16, 256, 288));
        assert_eq!(SMALL_MAX, 32768);
        let around = [ALIASED_CLASSES - 1, ALIASED_CLASSES].map(|class| SIZES[class]);
        assert_eq!(around, [3840, 4096]);
        for pair in SIZES.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] % 16 == 0);
            assert!((pair[1] - pair[0]) * 8 <= pair[1].max(128));
        }
    }

    #[test]
    fn each_size_gets_the_smallest_class_that_holds_it() {
        for size in 0..=SMALL_MAX {
            let class = class_of(size);
            assert!(usize::from(SIZES[class]) >= size);
            assert!(class == 0 || usize::from(SIZES[class - 1]) < size);
        }
    }

    #[test]
    fn aligned_classes_are_multiples() {
        for shift in 0..=12 {
            let align = 1 << shift;
            for size in 0..=SMALL_MAX {
                if let Some(class) = class_aligned(size, align) {
                    let found = usize::from(SIZES[class]);
                    assert!(found >= size && found % align == 0);
                }
            }
        }
        assert_eq!(
            class_aligned(10, 1024).map(|class| SIZES[class]),
            Some(1024)
        );
        assert_eq!(
            class_aligned(5000, 4096).map(|class| SIZES[class]),
            Some(8192)
        );
        assert_eq!(class_aligned(100, 8192), None);
        assert_eq!(class_aligned(SMALL_MAX + 1, 1), None);
    }
}
