//! Calls whose result the machine computes around the kernel's own call, one function each.

use super::{EINVAL, ENODEV, ENOMEM, EPERM, identity};
use crate::error::Result;
use crate::guest::Guest;
use crate::memory::pages_around;
use crate::sys::call::Call;
use crate::sys::signal::forward_unless_signalled;

const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;

/// Performs a call on mapped pages that does not change them, such as `msync(2)`. It fails where a
/// page is not mapped, and therefore also where the mapping is the machine's own.
pub(super) fn on_mapped(guest: &Guest, call: &Call) -> i64 {
    let result = forward_unless_signalled(call);
    let [address, bytes, ..] = call.arguments;
    let range = pages_around(address, bytes);
    match range {
        Some(range) if result >= 0 && !guest.memory().areas.cover(range) => ENOMEM,
        _ => result,
    }
}

/// `arch_prctl(2)`: the bases of FS and GS are the virtual processor's.
pub(super) fn arch_prctl(guest: &mut Guest, call: &Call) -> Result<i64> {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    const GET_CPUID: u64 = 0x1011;
    const SET_CPUID: u64 = 0x1012;
    let [code, address, ..] = call.arguments;
    let processor = &guest.processor;
    match code {
        SET_FS | SET_GS if address >= crate::memory::USER_END => Ok(EPERM),
        SET_FS => processor.set_bases(Some(address), None).map(|()| 0),
        SET_GS => processor.set_bases(None, Some(address)).map(|()| 0),
        GET_FS | GET_GS => {
            let (fs, gs) = processor.bases()?;
            let base = if code == GET_FS { fs } else { gs };
            Ok(identity::write_or_fault(address, &base.to_le_bytes()))
        }
        // CPUID is never made to fault.
        GET_CPUID => Ok(1),
        SET_CPUID => Ok(ENODEV),
        // Shadow stacks, and AMX by arch_prctl(2), are not offered.
        _ => Ok(EINVAL),
    }
}

/// `personality(2)`: also decides whether readable memory is executable.
pub(super) fn personality(guest: &Guest, call: &Call) -> i64 {
    const READ_IMPLIES_EXEC: u32 = 0x40_0000;
    /// The argument with which the call only returns the present value.
    const QUERY: u32 = u32::MAX;
    let (result, wanted) = (call.forward(), call.arguments[0] as u32);
    if result >= 0 && wanted != QUERY {
        guest.memory().reading_executes = wanted & READ_IMPLIES_EXEC != 0;
    }
    result
}

/// `prctl(2)`, except for the options that are about the machine's own process.
pub(super) fn prctl(guest: &Guest, call: &Call) -> Result<i64> {
    match call.arguments[0] as i32 {
        // The result is that of a kernel without CONFIG_SECCOMP.
        libc::PR_SET_SECCOMP | libc::PR_GET_SECCOMP => Ok(EINVAL),
        identity::PR_GET_AUXV => Ok(identity::auxiliary(guest, call)),
        // The call would change the layout of this process, not of the program.
        libc::PR_SET_MM => Ok(EPERM),
        // The kernel would intercept the machine's own calls. The result is that of a kernel that
        // does not know the option.
        PR_SET_SYSCALL_USER_DISPATCH => Ok(EINVAL),
        _ => Ok(call.forward()),
    }
}
