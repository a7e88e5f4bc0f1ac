//! [`Vdso`]: the kernel's shared object in this process, and the data that it reads (vdso(7)).
//!
//! The program runs it where it is, so that a look at the clock needs no VM exit. It stays the
//! machine's own memory, since the machine uses it, too: calls that change mappings find nothing
//! there, and `maps` does not show it.

use pagetrail::PageRange;

use super::areas::{Access, Allowed};
use super::{BLOCK, Memory};
use crate::error::Result;
use crate::sys::kvm::Vm;

/// The parts of the vDSO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vdso {
    /// Its code, which begins with an ELF header.
    code: PageRange,
    /// The data that it reads, ascending.
    data: Vec<PageRange>,
}

impl Vdso {
    /// Finds it in the text of `/proc/PID/maps`.
    pub(crate) fn find(maps: &str) -> Option<Self> {
        let (mut code, mut data) = (None, Vec::new());
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (range, name) = (fields.next()?, fields.next_back().unwrap_or_default());
            let (start, end) = range.split_once('-')?;
            let number = |digits| u64::from_str_radix(digits, 16).ok();
            let range = PageRange::new(number(start)?, number(end)?)?;
            match name {
                "[vdso]" => code = Some(range),
                // What virtual clocks say is apart since Linux 6.13.
                "[vvar]" | "[vvar_vclock]" => data.push(range),
                _ => {}
            }
        }
        let code = code.filter(|_| !data.is_empty())?;
        Some(Self { code, data })
    }

    /// The address of its ELF header (`AT_SYSINFO_EHDR`).
    pub(crate) fn header(&self) -> u64 {
        self.code.start()
    }

    /// The address of the data that has the time.
    pub(crate) fn time(&self) -> u64 {
        self.data.first().map_or(0, |range| range.start())
    }

    /// The part that has an address, and what it permits.
    fn part(&self, address: u64) -> Option<(PageRange, Allowed)> {
        let code = (self.code, libc::PROT_READ | libc::PROT_EXEC);
        let data = self.data.iter().map(|range| (*range, libc::PROT_READ));
        let mut parts = data.chain([code]);
        let (range, protection) = parts.find(|(range, _)| range.contains(address))?;
        Some((range, Allowed::from_protection(protection as u64)))
    }
}

impl Memory {
    /// Fills the tables for the part of the vDSO that has an address, if the program may use it.
    /// Returns whether it has the address, and permits the access.
    pub(super) fn fill_vdso(&mut self, vm: &Vm, address: u64, access: Access) -> Result<bool> {
        let part = self.vdso.as_ref().and_then(|vdso| vdso.part(address));
        let Some((range, allowed)) = part.filter(|(_, allowed)| allowed.allows(access)) else {
            return Ok(false);
        };
        let slot = self.slot_of(vm, address)?;
        let first = address & !(BLOCK - 1);
        let (start, end) = (first.max(range.start()), (first + BLOCK).min(range.end()));
        let target = |page| (slot.physical(page), allowed);
        self.table.fill_pages(start, end, target)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start, end).unwrap()
    }

    #[test]
    fn it_is_found_with_its_data() {
        let text = "\
7fa283841000-7fa283843000 r--p 00000000 fd:00 42                         /a [vdso] b
7fa283843000-7fa283847000 r--p 00000000 00:00 0                          [vvar]
7fa283847000-7fa283849000 r--p 00000000 00:00 0                          [vvar_vclock]
7fa283849000-7fa28384b000 r-xp 00000000 00:00 0                          [vdso]
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";
        let found = Vdso::find(text).unwrap();
        assert_eq!(found.header(), 0x7fa2_8384_9000);
        assert_eq!(found.time(), 0x7fa2_8384_3000);
        let [read, write, execute] = [Access::Read, Access::Write, Access::Execute];
        let part = |address, access| {
            let (part, allowed) = found.part(address)?;
            allowed.allows(access).then_some(part)
        };
        let code = range(0x7fa2_8384_9000, 0x7fa2_8384_b000);
        assert_eq!(part(code.start(), execute), Some(code));
        assert_eq!(part(code.end() - 1, read), Some(code));
        assert_eq!(part(code.start(), write), None);
        assert_eq!(part(code.end(), read), None);
        let clocks = range(0x7fa2_8384_7000, 0x7fa2_8384_9000);
        assert_eq!(part(clocks.start() + 8, read), Some(clocks));
        assert_eq!(part(clocks.start(), execute), None);
    }

    #[test]
    fn this_process_has_one() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // (A kernel may be booted without.)
        if maps.contains("[vdso]") {
            let found = Vdso::find(&maps).unwrap();
            assert!(found.time() < found.header());
        }
    }

    #[test]
    fn without_data_it_is_of_no_use() {
        let text = "7fa283849000-7fa28384b000 r-xp 00000000 00:00 0     [vdso]\n";
        assert_eq!(Vdso::find(text), None);
        assert_eq!(Vdso::find(""), None);
    }
}
