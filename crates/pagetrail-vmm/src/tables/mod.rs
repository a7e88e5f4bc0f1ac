//! [`TableScan`]: which pages a guest's processes accessed, from the accessed bits of the guest's
//! own page tables; of these only those are read that the log says were written.
//!
//! It is HMM-V's scanner (Sha et al., section 4.1.1). A processor that walks a guest's page tables
//! writes to them as far as nested paging is concerned (Intel's volume 3, 29.3.5, with accessed and
//! dirty flags for EPT; AMD's volume 2, 15.25.6), so that a table in which an accessed bit was set
//! is a dirty page of KVM's log. What differs from the paper:
//!
//! * **No module in the guest.** What a vCPU has in CR3 is an address space of the guest, and leads
//!   to its tables. The paper's module fills a buffer with pointers to last-level tables.
//! * **Upper tables are followed, too.** A write to one says which tables came and went, where a
//!   buffer has to be filled anew.
//! * **Dirty bits are not cleared.** The guest's kernel takes them for what must be written to disk
//!   or swap; without them it would lose data. Which pages were written is in the log itself, which
//!   also knows what the guest's kernel and devices wrote.
//!
//! **The guest is not harmed.** An accessed bit is cleared only in what a table leads to that is in
//! CR3 now, or that was in CR3 and was not written since. Of the first, the processor itself may
//! set accessed bits at any time, so that it can be nothing but page tables; of the second a
//! kernel that takes a table out of the tables above it before it uses the page for something else,
//! as Linux does, has none that is not one. A page that was a root and was written since may be
//! anything: it waits until a vCPU has it again. What such a clearing changes for the guest is what
//! its own sampling changes, too: its reclaim takes a page for older than it is.

mod entry;
mod known;
#[cfg(feature = "tier")]
mod source;

use crate::error::{Error, Result};
use crate::pages::DirtyPages;
use crate::regions::Regions;
use crate::sys::memory::{Region, TableMemory};
use crate::tracker::{Consumer, Start, Tracker};
use known::{Key, Known, Pointed};

#[cfg(feature = "tier")]
pub use source::{TableSource, Vcpus};

/// A root that no vCPU had for so many calls, though it was written, is forgotten: its process has
/// ended, most likely.
const CALLS_UNTIL_FORGOTTEN: u32 = 256;

/// Whose control registers KVM returns for a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The registers are the guest's own.
    Guest,
    /// The registers are of a guest that the guest runs, whose CR3 is an address of that guest's
    /// memory: a vCPU that was interrupted there leaves `KVM_RUN` with them.
    /// `KVM_STATE_NESTED_GUEST_MODE` of `KVM_GET_NESTED_STATE` says so, and
    /// `KVM_RUN_X86_GUEST_MODE` in `kvm_run.flags` (since Linux 6.11).
    NestedGuest,
    /// The registers are of firmware in system management mode, whose memory is another address
    /// space of KVM's: `smi.smm` of `KVM_GET_VCPU_EVENTS` says so, and `KVM_RUN_X86_SMM` in
    /// `kvm_run.flags`.
    SystemManagement,
}

/// An address space of a guest: what a vCPU has in its control registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressSpace {
    root: u64,
    levels: u8,
}

impl AddressSpace {
    /// Takes the control registers of a vCPU that is outside `KVM_RUN` (`KVM_GET_SREGS`), and whose
    /// they are: any other memory than the guest's, taken for its page tables, would be changed by
    /// [`TableScan::clear`]. `None` while they are not the guest's own, or it has no paging in long
    /// mode: its accesses are not known then.
    pub fn of(cr0: u64, cr3: u64, cr4: u64, efer: u64, mode: Mode) -> Option<Self> {
        /// `CR0.PG`, `EFER.LMA` and `CR4.LA57`.
        const PAGING: u64 = 1 << 31;
        const LONG_MODE_ACTIVE: u64 = 1 << 10;
        const FIVE_LEVELS: u64 = 1 << 12;
        let is_long = cr0 & PAGING != 0 && efer & LONG_MODE_ACTIVE != 0;
        (is_long && mode == Mode::Guest).then_some(Self {
            root: cr3 & 0x000f_ffff_ffff_f000,
            levels: if cr4 & FIVE_LEVELS == 0 { 4 } else { 5 },
        })
    }

    fn key(self) -> Key {
        Key::root(self.levels, self.root)
    }
}

/// What a guest's processes did since their accessed bits were cleared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Accesses {
    /// Guest-physical pages that were accessed through the page tables of processes. A page of
    /// 2 MiB or 1 GiB counts as a whole.
    pub accessed: DirtyPages,
    /// Pages that were written since the last call that returned accesses, by whomever. Tables that
    /// a processor walked are among them.
    pub written: DirtyPages,
    /// What the answer has cost.
    pub cost: ScanCost,
}

/// What was read of a guest's page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanCost {
    /// Address spaces of the guest that are known.
    pub spaces: u64,
    /// Tables that are known, each counted once.
    pub tables: u64,
    /// Entries that point to a table to which another one points, too, as those of processes that
    /// share memory in huge pages, or have two roots: a scan that does not know them reads their
    /// tables again.
    pub duplicates: u64,
    /// Tables that were read since the last call that returned accesses.
    pub tables_read: u64,
    /// Entries, and address spaces in CR3, that point to tables for which there was no room: more
    /// tables than one for 16 pages of memory, and than 4096, are not known, nor what is accessed
    /// through them. They are tried again when there is room.
    pub left_out: u64,
}

struct Root {
    space: AddressSpace,
    /// For so many calls it was written and in no CR3.
    calls_in_doubt: u32,
}

/// A scanner of a guest's page tables.
#[derive(Debug)]
pub struct TableScan {
    consumer: Consumer,
    known: Known,
    roots: Vec<Root>,
    written: DirtyPages,
    tables_read: u64,
    /// Address spaces that were in CR3 at the last call, and for which there was no room.
    roots_left_out: u64,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.space.fmt(f)
    }
}

impl TableScan {
    /// Scans the page tables in this memory, whose writes the tracker finds. KVM must have nested
    /// paging (EPT, NPT): shadow page tables do not see that a bit was cleared. Memory that is
    /// plugged in later needs a new scanner.
    ///
    /// # Errors
    ///
    /// The tracker does not track all of this memory; the logs cannot be drained.
    pub fn new(tracker: &Tracker, memory: TableMemory) -> Result<Self> {
        check_tracked(memory.regions(), &tracker.regions())?;
        Ok(Self {
            consumer: tracker.consumer(Start::Now)?,
            written: DirtyPages::none_of(memory.regions()),
            known: Known::new(memory),
            roots: Vec::new(),
            tables_read: 0,
            roots_left_out: 0,
        })
    }

    /// Notes which tables the guest has now. `loaded` is what its vCPUs have in CR3; all of them
    /// are outside `KVM_RUN`. To be called between two calls of [`accesses`](Self::accesses) as
    /// often as wanted: of a process that no vCPU has at any call nothing is known.
    ///
    /// # Errors
    ///
    /// The log fails, or the tracker does not track all of the memory any more. What the log had is
    /// found by the next call.
    pub fn follow(&mut self, loaded: &[AddressSpace]) -> Result<()> {
        let round = self.consumer.collect()?;
        check_tracked(self.known.memory().regions(), round.regions())?;
        self.known.begin_pass(round.dirty());
        self.written.union_with(round.dirty());
        round.commit();
        self.roots_left_out = 0;
        for space in loaded {
            if self.known.has(space.key()) {
                continue;
            }
            // Others are no roots here: a guest may load any number into CR3.
            match self.known.acquire(space.key()) {
                Pointed::Known => self.roots.push(Root {
                    space: *space,
                    calls_in_doubt: 0,
                }),
                Pointed::NotMemory => {}
                Pointed::NoRoom => self.roots_left_out += 1,
            }
        }
        for root in &mut self.roots {
            let is_loaded = loaded.contains(&root.space);
            let is_certain = self.known.vouch(root.space.key(), is_loaded);
            root.calls_in_doubt = if is_certain {
                0
            } else {
                root.calls_in_doubt + 1
            };
        }
        let known = &mut self.known;
        self.roots.retain(|root| {
            let stays = root.calls_in_doubt < CALLS_UNTIL_FORGOTTEN;
            if !stays {
                known.release(root.space.key(), None);
            }
            stays
        });
        self.known.follow();
        self.tables_read += self.known.read;
        Ok(())
    }

    /// Returns the pages that were accessed since their accessed bits were
    /// [cleared](Self::clear). `loaded` is as for [`follow`](Self::follow), which it begins with.
    ///
    /// # Errors
    ///
    /// As for [`follow`](Self::follow).
    pub fn accesses(&mut self, loaded: &[AddressSpace]) -> Result<Accesses> {
        self.follow(loaded)?;
        let none = DirtyPages::none_of(self.known.memory().regions());
        Ok(Accesses {
            accessed: self.known.accessed(),
            written: std::mem::replace(&mut self.written, none),
            cost: ScanCost {
                spaces: self.roots.len() as u64,
                tables: self.known.len(),
                duplicates: self.known.duplicates(),
                tables_read: std::mem::take(&mut self.tables_read),
                left_out: self.known.left_out() + self.roots_left_out,
            },
        })
    }

    /// Clears the accessed bits of these pages, so that their next access is seen; others stay as
    /// they are, and cost the guest nothing (the paper's do-not-disturb time). `loaded` is as for
    /// [`follow`](Self::follow), which it begins with. The vCPUs forget their translations before
    /// they run again: KVM flushes them for the tables that were in the log.
    ///
    /// # Errors
    ///
    /// As for [`follow`](Self::follow); then nothing is cleared.
    pub fn clear(&mut self, loaded: &[AddressSpace], pages: &DirtyPages) -> Result<()> {
        self.follow(loaded)?;
        let written = self.known.clear(pages);
        // No log sees it, and a snapshot must have it.
        self.consumer.wrote(&written);
        Ok(())
    }

    #[cfg(feature = "tier")]
    fn memory(&self) -> &TableMemory {
        self.known.memory()
    }

    /// Reads all tables of the address spaces that are certain, as a scanner without a log has to:
    /// the pages with an accessed bit, and how many tables were read. For comparison with
    /// [`accesses`](Self::accesses), while no vCPU has run since.
    pub fn read_everything(&self) -> (DirtyPages, u64) {
        let mut all = Known::new(self.known.memory().clone());
        for root in &self.roots {
            let key = root.space.key();
            if self.known.is_certain(key) {
                all.acquire(key);
            }
        }
        (all.accessed(), all.read)
    }
}

/// Without a log of it, nobody would see that a page is no table any more.
fn check_tracked(memory: &Regions, tracked: &Regions) -> Result<()> {
    let place = |region: &Region| {
        (
            region.guest_address(),
            region.host_address(),
            region.bytes(),
        )
    };
    let is_tracked = |region: &&Region| {
        let tracked = tracked.of_slot(region.slot());
        tracked.is_some_and(|tracked| place(tracked) == place(region))
    };
    match memory.iter().find(|region| !is_tracked(region)) {
        None => Ok(()),
        Some(region) => Err(Error::region(
            region.slot(),
            "its page tables cannot be scanned, since the tracker does not have it as it is here",
        )),
    }
}
