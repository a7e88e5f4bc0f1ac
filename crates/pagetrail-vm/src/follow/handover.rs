//! [`Handover`]: what a guest that executes a program leaves to the process's next life, in a file
//! of memory whose descriptor is named in the environment.
//!
//! The environment of the process itself is empty otherwise: the program's own could change how
//! this program starts (`LD_PRELOAD`).

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::executable::c_string;
use crate::error::{Error, Result};
use crate::program::Found;
use crate::sys::{child, descriptors};

/// The environment variable that has the number of the descriptor.
pub(super) const VARIABLE: &str = "PAGETRAIL_VM_EXECUTED";
/// What the file begins with.
const MAGIC: u64 = 0x3130_776f_6c6c_6f66;
/// The longest text: no argument is as long.
const BYTES_MAX: u64 = 1 << 20;
const TEXTS_MAX: u64 = 1 << 22;

/// What is handed over, as numbers: descriptors are those of the process that executes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) file: RawFd,
    pub(super) own: RawFd,
    pub(super) kvm: RawFd,
    pub(super) announcements: Option<RawFd>,
    /// The number by which the recorder knows the process, and that of its parent.
    pub(super) id: u64,
    pub(super) parent: u64,
    pub(super) accesses: bool,
    pub(super) memory_bytes_max: Option<u64>,
}

/// What was handed over.
#[derive(Debug)]
pub(super) struct Handover {
    file: File,
    pub(super) own: OwnedFd,
    pub(super) kvm: OwnedFd,
    pub(super) announcements: Option<OwnedFd>,
    pub(super) id: u64,
    pub(super) parent: u64,
    pub(super) accesses: bool,
    pub(super) memory_bytes_max: Option<u64>,
    pub(super) path: PathBuf,
    arguments: Vec<OsString>,
    pub(super) environment: Vec<OsString>,
}

/// Writes what is handed over to a file of memory.
pub(super) fn write(
    numbers: &Numbers,
    path: &OsStr,
    arguments: &[OsString],
    environment: &[OsString],
) -> io::Result<OwnedFd> {
    let descriptors = [numbers.file, numbers.own, numbers.kvm];
    let mut words = vec![MAGIC];
    words.extend(descriptors.map(|number| number as u64));
    words.extend([
        numbers
            .announcements
            .map_or(u64::MAX, |number| number as u64),
        numbers.id,
        numbers.parent,
        numbers.accesses.into(),
        numbers.memory_bytes_max.unwrap_or(u64::MAX),
    ]);
    words.extend([arguments.len() as u64, environment.len() as u64]);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let texts = arguments.iter().chain(environment).map(OsString::as_os_str);
    for text in std::iter::once(path).chain(texts) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    let mut file = File::from(rustix::fs::memfd_create("executed", MemfdFlags::CLOEXEC)?);
    // Beyond the limit on files, which holds for this one, too, a write is a signal to the program.
    with_bytes(bytes.len() as u64, || file.write_all(&bytes))?;
    file.rewind()?;
    Ok(file.into())
}

/// Calls `write` with a limit on files of at least `bytes`, or fails.
fn with_bytes(bytes: u64, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = getrlimit(Resource::Fsize);
    let is_too_low = |limit: Option<u64>| limit.is_some_and(|limit| limit < bytes);
    if !is_too_low(before.current) {
        return write();
    }
    let maximum = match is_too_low(before.maximum) {
        true => Some(bytes),
        false => before.maximum,
    };
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Fsize, raised)?;
    let written = write();
    setrlimit(Resource::Fsize, before)?;
    written
}

impl Handover {
    /// What was handed over to this process; `None` where it was not started by a guest.
    pub(super) fn of_this_process() -> Option<io::Result<Self>> {
        let number = std::env::var_os(VARIABLE)?;
        let number = number.to_str()?.parse().ok()?;
        // A variable that was set by hand names no such file.
        let mut magic = [0; 8];
        rustix::io::pread(descriptors::borrow(number).ok()?, &mut magic, 0).ok()?;
        if u64::from_le_bytes(magic) != MAGIC {
            return None;
        }
        let file = descriptors::adopt(number);
        Some(file.and_then(|file| Self::read(&mut io::BufReader::new(File::from(file)))))
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        word(from)?;
        let [file, own, kvm] = [word(from)?, word(from)?, word(from)?];
        let [announcements, id, parent] = [word(from)?, word(from)?, word(from)?];
        let [accesses, memory_bytes_max] = [word(from)?, word(from)?];
        let counts = [word(from)?, word(from)?];
        if counts.iter().any(|count| *count > TEXTS_MAX) {
            return Err(invalid());
        }
        let path = text(from)?;
        let [arguments, environment] = counts.map(|count| (0..count).map(|_| text(from)).collect());
        let adopt = |number: u64| descriptors::adopt(number as RawFd);
        Ok(Self {
            file: adopt(file)?.into(),
            own: adopt(own)?,
            kvm: adopt(kvm)?,
            announcements: match announcements {
                u64::MAX => None,
                number => Some(adopt(number)?),
            },
            id,
            parent,
            accesses: accesses != 0,
            memory_bytes_max: (memory_bytes_max != u64::MAX).then_some(memory_bytes_max),
            path: path.into(),
            arguments: io::Result::<Vec<_>>::from(arguments)?,
            environment: io::Result::<Vec<_>>::from(environment)?,
        })
    }

    /// The program, to be loaded.
    pub(super) fn found(&self) -> Result<Found> {
        let file = self.file.as_fd().try_clone_to_owned();
        Ok(Found {
            path: self.path.clone(),
            file: file
                .map_err(Error::system("duplicate a descriptor"))?
                .into(),
            arguments: self.arguments.clone(),
        })
    }

    /// Executes the program natively.
    pub(super) fn execute_natively(&self) -> io::Result<Infallible> {
        let c_strings = |texts: &[OsString]| -> Vec<CString> {
            texts.iter().filter_map(|text| c_string(text)).collect()
        };
        let (arguments, environment) = (c_strings(&self.arguments), c_strings(&self.environment));
        child::execute(&self.file, &arguments, &environment)
    }
}

fn word(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn text(from: &mut impl Read) -> io::Result<OsString> {
    let bytes = word(from)?;
    if bytes > BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; bytes as usize];
    from.read_exact(&mut text)?;
    Ok(OsString::from_vec(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_handed_over_is_read_again() {
        let texts =
            |texts: &[&str]| -> Vec<OsString> { texts.iter().map(OsString::from).collect() };
        let inheritable = || {
            let file = File::open("/proc/self/exe").unwrap();
            descriptors::inheritable_copy(file.as_fd()).unwrap()
        };
        for (memory_bytes_max, announcements) in [(None, None), (Some(7), Some(inheritable()))] {
            let numbers = Numbers {
                file: inheritable(),
                own: inheritable(),
                kvm: inheritable(),
                announcements,
                id: 1 << 63,
                parent: 3,
                accesses: announcements.is_some(),
                memory_bytes_max,
            };
            let (arguments, environment) = (texts(&["name", "", "x"]), texts(&["A=1"]));
            let path = OsStr::new("/a/path");
            let file = write(&numbers, path, &arguments, &environment).unwrap();
            let read = Handover::read(&mut File::from(file)).unwrap();
            assert_eq!((read.path.as_os_str(), &read.arguments), (path, &arguments));
            assert_eq!(read.environment, environment);
            assert_eq!((read.id, read.parent), (numbers.id, numbers.parent));
            assert_eq!(read.announcements.is_some(), announcements.is_some());
            assert_eq!(read.memory_bytes_max, memory_bytes_max);
            assert_eq!(read.accesses, numbers.accesses);
            assert_eq!(read.found().unwrap().arguments, arguments);
        }
    }
}
