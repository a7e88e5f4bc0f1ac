//! [`UnitChange`]: what the recorder asks of the guest, to merge aliases of pages or to separate
//! them, as words. Pure.

use pagetrail::PageRange;

/// The length of a page in bytes, the only one that a heap with aliases may have.
const PAGE: u64 = 4096;
/// The end of the addresses that a program may use.
const USER_END: u64 = 1 << 47;
/// The most aliases that a page may have.
const ALIASES_MAX: u32 = 64;
/// The largest alias in bytes: that of a memslot.
const ALIAS_BYTES_MAX: u64 = 1 << 30;

/// Memory that is mapped several times, at addresses that follow each other: a heap that
/// distinguishes sub-pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aliased {
    /// The address of the first alias.
    pub(crate) base: u64,
    /// The length of an alias in bytes.
    pub(crate) alias_bytes: u64,
    /// The number of aliases.
    pub(crate) aliases: u32,
}

impl Aliased {
    /// Whether its addresses are a program's, and it has a number of aliases that fits into a mask.
    pub(crate) fn is_sound(&self) -> bool {
        let end = self.alias_bytes.checked_mul(self.aliases.into());
        let end = end.and_then(|bytes| self.base.checked_add(bytes));
        (1..=ALIASES_MAX).contains(&self.aliases)
            && (PAGE..=ALIAS_BYTES_MAX).contains(&self.alias_bytes)
            && self.alias_bytes.is_multiple_of(PAGE)
            && self.base.is_multiple_of(PAGE)
            && end.is_some_and(|end| end <= USER_END)
    }

    /// The number of pages of an alias.
    pub(crate) fn pages(&self) -> u64 {
        self.alias_bytes / PAGE
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.alias_bytes * u64::from(self.aliases)
    }

    /// The addresses of all aliases.
    pub(crate) fn range(&self) -> Option<PageRange> {
        PageRange::new(self.base, self.end())
    }

    /// The address of a page in an alias.
    pub(crate) fn page(&self, alias: u32, number: u64) -> u64 {
        self.base + u64::from(alias) * self.alias_bytes + number * PAGE
    }

    /// The alias and the number of the page with this address.
    pub(crate) fn find(&self, address: u64) -> Option<(u32, u64)> {
        let offset = address.checked_sub(self.base)?;
        let alias = u32::try_from(offset / self.alias_bytes).ok()?;
        (alias < self.aliases).then_some((alias, offset % self.alias_bytes / PAGE))
    }

    /// The aliases with the bits of a mask.
    pub(crate) fn among(&self, mask: u64) -> impl Iterator<Item = u32> + use<> {
        (0..self.aliases).filter(move |alias| mask >> alias & 1 != 0)
    }
}

/// Which aliases of a run of pages are merged from now on; all others are alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitChange {
    pub(crate) of: Aliased,
    /// The number of the first page.
    pub(crate) first: u64,
    pub(crate) pages: u64,
    /// A bit per alias.
    pub(crate) merged: u64,
}

impl UnitChange {
    /// The number of words that describe a change to another process.
    pub(crate) const WORDS: usize = 6;

    /// The change as words.
    pub(crate) fn words(&self) -> [u64; Self::WORDS] {
        let Aliased {
            base,
            alias_bytes,
            aliases,
        } = self.of;
        [
            base,
            alias_bytes,
            aliases.into(),
            self.first,
            self.pages,
            self.merged,
        ]
    }

    /// The change that these words describe, which may be malformed.
    pub(crate) fn of_words(words: [u64; Self::WORDS]) -> Self {
        let [base, alias_bytes, aliases, first, pages, merged] = words;
        // A number that does not fit is none.
        let aliases = u32::try_from(aliases).unwrap_or(0);
        Self {
            of: Aliased {
                base,
                alias_bytes,
                aliases,
            },
            first,
            pages,
            merged,
        }
    }

    /// Whether its pages and aliases are those of its memory.
    pub(crate) fn is_sound(&self) -> bool {
        let end = self.first.checked_add(self.pages);
        let known = u64::MAX >> (64 - self.of.aliases.clamp(1, ALIASES_MAX));
        self.of.is_sound()
            && self.merged & !known == 0
            && self.merged.count_ones() != 1
            && end.is_some_and(|end| end <= self.of.pages())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAP: Aliased = Aliased {
        base: 0x10_0000,
        alias_bytes: 3 * PAGE,
        aliases: 4,
    };

    fn change(first: u64, pages: u64, merged: u64) -> UnitChange {
        UnitChange {
            of: HEAP,
            first,
            pages,
            merged,
        }
    }

    #[test]
    fn malformed_changes_are_not_sound() {
        assert!(change(0, 3, 0b11).is_sound() && change(2, 1, 0).is_sound());
        for [first, pages, merged] in [
            [0, 4, 3],
            [3, 1, 3],
            [u64::MAX, 2, 3],
            [0, 1, 0x10],
            [0, 1, 1],
        ] {
            assert!(!change(first, pages, merged).is_sound());
        }
        for wrong in [
            Aliased { base: 1, ..HEAP },
            Aliased { aliases: 0, ..HEAP },
            Aliased {
                aliases: 65,
                ..HEAP
            },
            Aliased {
                alias_bytes: 0,
                ..HEAP
            },
            Aliased {
                alias_bytes: !(PAGE - 1),
                ..HEAP
            },
            Aliased {
                base: USER_END - PAGE,
                ..HEAP
            },
        ] {
            assert!(
                !UnitChange {
                    of: wrong,
                    ..change(0, 1, 0)
                }
                .is_sound()
            );
        }
    }
}
