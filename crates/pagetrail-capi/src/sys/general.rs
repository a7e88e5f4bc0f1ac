//! Functions that need no watch: versions, errors, techniques.

use crate::failure::{self, Status, guard, invalid, null};
use crate::types::{
    self, Capability, PAGETRAIL_CAPABILITY_ABSENT, PAGETRAIL_CAPABILITY_FAILS,
    PAGETRAIL_CAPABILITY_WORKS, PAGETRAIL_TECHNIQUE_AUTO, Technique,
};
use pagetrail::{Capabilities, Status as Works};
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// The version of the library in use, which may be newer than the header: "MAJOR.MINOR.PATCH".
/// Static. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The text of the last failure in the calling thread, one line without a newline; "" before the
/// first. Success leaves it alone. It belongs to the library, and stays until the next failure in
/// the same thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_last_error() -> *const c_char {
    failure::last_error()
}

/// What a status means in general; pagetrail_last_error() has the details. Static; "unknown status"
/// for a number that this version does not know. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_status_text(status: i32) -> *const c_char {
    let text: &CStr = match status {
        0 => c"success",
        1 => c"a pointer is null",
        2 => c"invalid argument",
        3 => c"another call on the same watch is under way",
        4 => c"the watch has an open round",
        5 => c"the round is not open",
        6 => c"the buffer is too small",
        7 => c"the watch belongs to the parent process",
        8 => c"the technique is not available here",
        9 => c"the technique cannot watch this kind of target",
        10 => c"no such process",
        11 => c"the process cannot be attached to",
        12 => c"not permitted",
        13 => c"the target has ended",
        14 => c"a range cannot be tracked",
        15 => c"a system call failed",
        16 => c"the library panicked",
        17 => c"the store of checkpoints cannot be used",
        18 => c"it cannot be done with this memory, checkpoint or process",
        _ => c"unknown status",
    };
    text.as_ptr()
}

/// The size of a page of this machine, in bytes. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_page_size() -> u64 {
    pagetrail::page_size()
}

/// The name of a technique, as the command `pagetrail` has it, "auto" for PAGETRAIL_TECHNIQUE_AUTO.
/// Static; NULL for a number that this version does not know. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_technique_name(technique: Technique) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    if technique == PAGETRAIL_TECHNIQUE_AUTO {
        return c"auto".as_ptr();
    }
    let names = NAMES.get_or_init(|| {
        let named = (1..).map_while(types::technique);
        named.flat_map(|known| CString::new(known.name())).collect()
    });
    let name = names.get(technique as usize - 1);
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Finds a technique by its name.
///
/// `name`: read during the call. `technique`: gets the number.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT for a name that this version does not know. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_technique_by_name(
    name: *const c_char,
    technique: Option<&mut MaybeUninit<Technique>>,
) -> Status {
    guard(|| {
        let technique = technique.ok_or_else(|| null("technique is a null pointer"))?;
        if name.is_null() {
            return Err(null("name is a null pointer"));
        }
        // SAFETY: not null, and the caller says that it is a string.
        let name = unsafe { CStr::from_ptr(name) };
        let known = match name.to_str().map(|name| (name, name.parse())) {
            Ok(("auto", _)) => PAGETRAIL_TECHNIQUE_AUTO,
            Ok((_, Ok(known))) => types::number(known),
            _ => return Err(invalid("no technique has this name")),
        };
        technique.write(known);
        Ok(())
    })
}

/// Gets whether a technique can be used by this process on this machine. The first call tries all
/// of them on a few pages of its own, in some milliseconds; a technique works when a write was seen
/// through it.
///
/// `technique`: PAGETRAIL_TECHNIQUE_*, but not AUTO. `capability`: gets PAGETRAIL_CAPABILITY_*.
/// `reason`: unless it is null, gets one line that says why the technique does not work, "" if it
/// does; static.
///
/// PAGETRAIL_STATUS_INVALID_ARGUMENT for a number that this version does not know. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn pagetrail_technique_capability(
    technique: Technique,
    capability: Option<&mut MaybeUninit<Capability>>,
    reason: Option<&mut MaybeUninit<*const c_char>>,
) -> Status {
    static REASONS: OnceLock<Vec<(pagetrail::Technique, CString)>> = OnceLock::new();
    guard(|| {
        let capability = capability.ok_or_else(|| null("capability is a null pointer"))?;
        let technique =
            types::technique(technique).ok_or_else(|| invalid("no technique has this number"))?;
        let known = Capabilities::probe();
        let reasons = REASONS.get_or_init(|| {
            let with_reason = known.iter().filter_map(|(technique, status)| {
                let reason = status.reason()?.replace('\0', " ");
                Some((technique, CString::new(reason).ok()?))
            });
            with_reason.collect()
        });
        capability.write(match known.status(technique) {
            Works::Works => PAGETRAIL_CAPABILITY_WORKS,
            Works::Fails(_) => PAGETRAIL_CAPABILITY_FAILS,
            _ => PAGETRAIL_CAPABILITY_ABSENT,
        });
        if let Some(out) = reason {
            let found = reasons.iter().find(|(of, _)| *of == technique);
            out.write(found.map_or(c"".as_ptr(), |(_, text)| text.as_ptr()));
        }
        Ok(())
    })
}
