//! Guests of a few instructions, to test a KVM and to measure it.

use crate::error::{Error, Result};
use crate::guest::{Guest, GuestEvent};
use crate::memory::PAGE;
use crate::memory::mapping::Mmap;
use crate::memory::vdso::Vdso;
use crate::sys::kvm::counter;
use crate::sys::program_memory;

/// The number of a system call that does not exist.
const NUMBER: u64 = 0x5ca1_ab1e;

/// How a guest exits when it has done its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "test-equipment"),
    expect(unreachable_pub, reason = "`timed_guest` exports it")
)]
pub enum DoneBy {
    /// By a system call.
    Call,
    /// By an exception, which also works on a KVM that emulates instructions.
    #[cfg(feature = "test-equipment")]
    Exception,
}

impl DoneBy {
    /// Appends the instructions of the exit.
    pub(crate) fn emit(self, text: &mut Vec<u8>) {
        match self {
            Self::Call => call(text),
            #[cfg(feature = "test-equipment")]
            Self::Exception => text.push(0xcc), // int3
        }
    }

    /// Runs a guest until it exits in this way, and lets it continue after that instruction.
    pub(crate) fn wait_in(self, guest: &mut Guest) -> Result<()> {
        match (self, guest.run_until_event()?) {
            (Self::Call, GuestEvent::Call(call)) if call.number == NUMBER => {
                guest.processor.return_from_call(0);
                Ok(())
            }
            #[cfg(feature = "test-equipment")]
            (Self::Exception, GuestEvent::Fault(fault, context))
                if fault.signal == libc::SIGTRAP =>
            {
                guest.enter(&context);
                Ok(())
            }
            (_, other) => Err(Error::Stopped(format!(
                "the trial guest exited with {other:x?}"
            ))),
        }
    }
}

/// Maps these instructions, and starts the guest there; returns the pages' address.
pub(crate) fn begin(guest: &mut Guest, text: &[u8]) -> Result<u64> {
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let bytes = (text.len() as u64).next_multiple_of(PAGE);
    let code = mapped(guest, bytes, writable)?;
    put(code, text)?;
    let executable = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    guest.memory().mprotect(code, bytes, executable)?;
    guest.begin_at(code, 0);
    Ok(code)
}

/// Lets a program that is to be loaded use the kernel's vDSO, if a trial shows that it can: it
/// reads the data there, and the time stamp counter, which must be this machine's.
pub(crate) fn offer_vdso(guest: &mut Guest) -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(vdso) = Vdso::find(&maps).filter(|_| guest.processor.can_use_vdso()) else {
        return Ok(());
    };
    let mut text = Vec::new();
    load(&mut text, vdso.time());
    text.extend([0x0f, 0x31]); // rdtsc
    text.extend([0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xc2]); // shl rdx, 32; or rdx, rax
    text.extend([0x48, 0x89, 0xd7]); // mov rdi, rdx
    call(&mut text);
    guest.memory().vdso = Some(vdso);
    let code = begin(guest, &text)?;
    let before = counter();
    let event = guest.run_until_event()?;
    let between = before..=counter();
    guest.memory().munmap(code, PAGE)?;
    let is_usable = match event {
        GuestEvent::Call(call) => call.number == NUMBER && between.contains(&call.arguments[0]),
        GuestEvent::Fault(..) | GuestEvent::Signal(_) => false,
    };
    if !is_usable {
        guest.memory().vdso = None;
    }
    Ok(())
}

/// Writes to a guest's memory.
pub(crate) fn put(address: u64, bytes: &[u8]) -> Result<()> {
    program_memory::write(address, bytes)
        .map_err(|error| Error::system("write the guest's memory")(error.into()))
}

/// Maps memory for a guest.
pub(crate) fn mapped(guest: &Guest, bytes: u64, protection: libc::c_int) -> Result<u64> {
    let result = guest.memory().mmap(Mmap::anonymous(bytes, protection))?;
    u64::try_from(result).map_err(|_| {
        let error = std::io::Error::from_raw_os_error(-result as i32);
        Error::system("map memory")(error)
    })
}

/// `mov rax, ADDRESS; mov byte [rax], 1`
pub(crate) fn store(text: &mut Vec<u8>, address: u64) {
    text.extend([0x48, 0xb8]);
    text.extend(address.to_le_bytes());
    text.extend([0xc6, 0x00, 0x01]);
}

/// `mov rax, ADDRESS; mov cl, [rax]`
pub(crate) fn load(text: &mut Vec<u8>, address: u64) {
    text.extend([0x48, 0xb8]);
    text.extend(address.to_le_bytes());
    text.extend([0x8a, 0x08]);
}

/// `mov eax, NUMBER; syscall`
fn call(text: &mut Vec<u8>) {
    text.push(0xb8);
    text.extend((NUMBER as u32).to_le_bytes());
    text.extend([0x0f, 0x05]);
}
