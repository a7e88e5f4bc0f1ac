//! Threads that are within a tracker's code in the padding of the vDSO: a process that is started
//! anew has another vDSO, without it.

use crate::error::{Error, Result};
use pagetrail::{HeldThread, Region};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// `NT_PRSTATUS`, here the general registers alone.
const GENERAL: u32 = 1;
/// The place of `rip` in `struct user_regs_struct`, in bytes.
const RIP_AT: usize = 16 * 8;
/// The longest instruction, in bytes.
const INSTRUCTION_BYTES_MAX: u64 = 15;

/// Refuses for the moment when a thread of a process is within such code: the vDSO of this process
/// has other bytes there.
pub(in crate::process) fn check(
    pid: u32,
    regions: &[Region],
    threads: &[HeldThread],
) -> Result<()> {
    let Some(its) = regions.iter().find(|region| region.name == "[vdso]") else {
        return Ok(());
    };
    let mut ours = None;
    for thread in threads {
        let Some(rip) = instruction(thread) else {
            continue;
        };
        if !(its.range.start()..its.range.end()).contains(&rip) {
            continue;
        }
        let own = match &ours {
            Some(own) => own,
            None => ours.insert(own_vdso()?),
        };
        let bytes = INSTRUCTION_BYTES_MAX.min(its.range.end() - rip);
        let offset = rip - its.range.start();
        let there = read(pid, rip, bytes)?;
        let here = own.get(offset as usize..(offset + bytes) as usize);
        if here != Some(there.as_slice()) {
            return Err(Error::NotNow(format!(
                "thread {} of process {pid} is in the middle of a transfer; try again",
                thread.tid
            )));
        }
    }
    Ok(())
}

/// Where a thread is.
fn instruction(thread: &HeldThread) -> Option<u64> {
    let set = thread.registers.iter().find(|set| set.note == GENERAL)?;
    let bytes = set.bytes.get(RIP_AT..RIP_AT + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// The vDSO of this process; empty where it has none.
fn own_vdso() -> Result<Vec<u8>> {
    let pid = std::process::id();
    let regions = Region::of_process(pid).map_err(Error::io("cannot read the own mappings"))?;
    match regions.iter().find(|region| region.name == "[vdso]") {
        Some(region) => read(pid, region.range.start(), region.range.bytes()),
        None => Ok(Vec::new()),
    }
}

fn read(pid: u32, address: u64, bytes: u64) -> Result<Vec<u8>> {
    let mut buffer = vec![0; bytes as usize];
    File::open(format!("/proc/{pid}/mem"))
        .and_then(|memory| memory.read_exact_at(&mut buffer, address))
        .map_err(Error::io("cannot read the vDSO"))?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::RegisterSet;

    #[test]
    fn only_a_thread_in_code_of_another_vdso_is_refused() {
        let pid = std::process::id();
        let mut regions = Region::of_process(pid).unwrap();
        let at = |rip: u64| {
            let mut bytes = vec![0; 27 * 8];
            bytes[RIP_AT..RIP_AT + 8].copy_from_slice(&rip.to_ne_bytes());
            let registers = vec![RegisterSet {
                note: GENERAL,
                bytes,
            }];
            [HeldThread {
                tid: 7,
                registers,
                blocked_signals: 0,
            }]
        };
        let Some(index) = regions.iter().position(|region| region.name == "[vdso]") else {
            return pagetrail_skips::not_here("there is no vDSO");
        };
        let vdso = regions[index].range;
        assert!(check(pid, &regions, &at(vdso.start() + 0x100)).is_ok());
        assert!(check(pid, &regions, &at(vdso.end() - 1)).is_ok());
        assert!(check(pid, &regions, &at(vdso.end())).is_ok());
        // Other code under that name.
        let code = regions.iter().position(|region| region.permissions.execute);
        let code = code.unwrap();
        regions[index].name.clear();
        regions[code].name = "[vdso]".into();
        let inside = regions[code].range.start() + 0x100;
        let message = check(pid, &regions, &at(inside)).unwrap_err().to_string();
        assert!(message.contains("thread 7"), "{message}");
    }
}
