//! The tracked side: performs the action that a line of text describes and answers with a number.
//! The same code runs in this process and in a puppet, a copy of this program that reads lines from
//! its standard input.

use std::cell::RefCell;
use std::ffi::CString;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The argument that makes this program a puppet.
pub(crate) const PUPPET: &str = "be-puppet";

/// The process that performs the actions.
pub(crate) enum Actor {
    /// This process.
    Own,
    /// A puppet; it is killed when dropped.
    Puppet(RefCell<Pipes>),
    /// A puppet that the watch will start.
    Later,
}

/// The connection to a puppet.
pub(crate) struct Pipes {
    /// `None` if the watch started it.
    pub(crate) child: Option<Child>,
    pub(crate) input: PipeWriter,
    pub(crate) output: BufReader<PipeReader>,
}

impl Actor {
    pub(crate) fn puppet() -> Self {
        let (mut command, mut pipes) = puppet_command();
        pipes.child = Some(command.spawn().expect("a copy of this program"));
        Self::Puppet(RefCell::new(pipes))
    }

    /// Performs the action of a line and returns the answer; panics with the actor's message on
    /// failure.
    pub(crate) fn act(&self, line: &str) -> u64 {
        self.try_act(line)
            .unwrap_or_else(|complaint| panic!("{line}: {complaint}"))
    }

    /// Sends a puppet an action that ends it, without waiting for an answer.
    pub(crate) fn tell(&self, line: &str) {
        if let Self::Puppet(pipes) = self {
            writeln!(pipes.borrow_mut().input, "{line}").expect("the puppet lives");
        }
    }

    /// Performs the action of a line; a refusal, or the actor's end, is returned as an error.
    pub(crate) fn try_act(&self, line: &str) -> Result<u64, String> {
        match self {
            Self::Own => perform(line),
            Self::Puppet(pipes) => {
                let mut pipes = pipes.borrow_mut();
                let mut answer = String::new();
                writeln!(pipes.input, "{line}").map_err(|e| e.to_string())?;
                pipes
                    .output
                    .read_line(&mut answer)
                    .map_err(|e| e.to_string())?;
                match answer.trim().split_once(' ') {
                    Some(("ok", number)) => number.parse().map_err(|_| answer.clone()),
                    _ => Err(answer),
                }
            }
            Self::Later => Err("not started yet".into()),
        }
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A command that starts a copy of this program as puppet, and our ends of the connection.
pub(crate) fn puppet_command() -> (Command, Pipes) {
    let (theirs_in, input) = std::io::pipe().expect("a pipe");
    let (output, theirs_out) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.arg(PUPPET).stdin(theirs_in).stdout(theirs_out);
    (
        command,
        Pipes {
            child: None,
            input,
            output: BufReader::new(output),
        },
    )
}

/// Reads lines and performs their actions until the input ends.
pub(crate) fn be_puppet() {
    for line in std::io::stdin().lock().lines() {
        let answer = match perform(&line.expect("text")) {
            Ok(number) => format!("ok {number}\n"),
            Err(complaint) => format!("no {complaint}\n"),
        };
        std::io::stdout()
            .write_all(answer.as_bytes())
            .expect("the suite reads");
        std::io::stdout().flush().expect("the suite reads");
    }
}

fn perform(line: &str) -> Result<u64, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| -> Result<u64, String> {
        words
            .get(i)
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| format!("word {i} is no number"))
    };
    let page = pagetrail::page_size();
    // SAFETY: every address below came from `map` and is used within its bounds; the memory belongs
    // to this program alone, and no reference to it exists.
    unsafe {
        match *words.first().ok_or("nothing to do")? {
            "pid" => Ok(std::process::id().into()),
            "map" => map(words[1], number(2)?, std::ptr::null_mut(), 0),
            "map-at" => map(words[1], number(2)?, number(3)? as *mut _, libc::MAP_FIXED),
            // A part of the file of a kind that is kept; arguments: `private`, `shared` or, of the
            // file opened for reading, `read-only`; pages, address, first page of the file.
            "map-kept" => {
                let kept = KEPT.load(Ordering::Relaxed);
                let (sharing, rights, file) = match words[1] {
                    "private" => (libc::MAP_PRIVATE, libc::PROT_WRITE, kept),
                    "shared" => (libc::MAP_SHARED, libc::PROT_WRITE, kept),
                    _ => {
                        let path = CString::new(format!("/proc/self/fd/{kept}"));
                        let path = path.expect("no zeros");
                        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                        (libc::MAP_SHARED, 0, check(file.into())? as i32)
                    }
                };
                let address = libc::mmap(
                    number(3)? as *mut _,
                    (number(2)? * page) as usize,
                    libc::PROT_READ | rights,
                    sharing | libc::MAP_FIXED,
                    file,
                    (number(4)? * page) as i64,
                );
                let outcome = check(address as i64);
                if file != kept {
                    libc::close(file);
                }
                outcome
            }
            // All pages at once; arguments: address, pages, value.
            "fill" => {
                for i in 0..number(2)? {
                    store(number(1)? + i * page, number(3)?)?;
                }
                Ok(0)
            }
            "write" => store(number(1)?, number(2)?),
            // Arguments: the first value, and addresses, which get one value after the other.
            "write-all" => {
                for i in 2..words.len() {
                    store(number(i)?, number(1)? + i as u64 - 2)?;
                }
                Ok(0)
            }
            // As a just-in-time compiler does it: the memory is writable for a moment only.
            "write-unprotected" => {
                let (address, rights) = (number(1)?, libc::PROT_READ);
                let at = address as *mut libc::c_void;
                check(libc::mprotect(at, page as usize, rights | libc::PROT_WRITE).into())?;
                store(address, number(2)?)?;
                check(libc::mprotect(at, page as usize, rights).into())
            }
            "read" => Ok((number(1)? as *const u64).read_volatile()),
            // The kernel writes on our behalf.
            "kernel-write" => {
                let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                let outcome =
                    check(libc::read(zero, number(1)? as *mut _, number(2)? as usize) as i64);
                libc::close(zero);
                outcome
            }
            // The kernel reads on our behalf.
            "kernel-read" => {
                let file = libc::memfd_create(c"read".as_ptr(), libc::MFD_CLOEXEC);
                let outcome =
                    check(libc::write(file, number(1)? as *const _, number(2)? as usize) as i64);
                libc::close(file);
                outcome
            }
            "unmap" => {
                check(libc::munmap(number(1)? as *mut _, (number(2)? * page) as usize).into())
            }
            "protect" => {
                let rights = match words[3] {
                    "rw" => libc::PROT_READ | libc::PROT_WRITE,
                    "none" => libc::PROT_NONE,
                    _ => libc::PROT_READ,
                };
                check(
                    libc::mprotect(number(1)? as *mut _, (number(2)? * page) as usize, rights)
                        .into(),
                )
            }
            "advise" => {
                let advice = match words[3] {
                    "dontneed" => libc::MADV_DONTNEED,
                    "remove" => libc::MADV_REMOVE,
                    "pageout" => libc::MADV_PAGEOUT,
                    "hugepage" => libc::MADV_HUGEPAGE,
                    "collapse" => libc::MADV_COLLAPSE,
                    other => return Err(format!("unknown advice {other}")),
                };
                check(
                    libc::madvise(number(1)? as *mut _, (number(2)? * page) as usize, advice)
                        .into(),
                )
            }
            // Of the file that is kept; arguments: first page, pages.
            "punch" => {
                let (from, len) = (number(1)? * page, number(2)? * page);
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let file = KEPT.load(Ordering::Relaxed);
                check(libc::fallocate(file, mode, from as i64, len as i64).into())
            }
            // Shrinks the file to so many pages, and grows it again.
            "cut" => {
                let (small, whole) = (number(1)? * page, number(2)? * page);
                let file = KEPT.load(Ordering::Relaxed);
                check(libc::ftruncate(file, small as i64).into())?;
                check(libc::ftruncate(file, whole as i64).into())
            }
            // Writes to the file, not through the mapping; arguments: page, value.
            "write-file" => {
                let value = number(2)?.to_ne_bytes();
                let file = KEPT.load(Ordering::Relaxed);
                let at = (number(1)? * page) as i64;
                check(libc::pwrite(file, value.as_ptr().cast(), value.len(), at) as i64)
            }
            // All pages; arguments: address, pages.
            "look" => {
                for i in 0..number(2)? {
                    ((number(1)? + i * page) as *const u64).read_volatile();
                }
                Ok(0)
            }
            // Moves a mapping to an address of the kernel's choice.
            "move" => {
                let len = (number(2)? * page) as usize;
                let hole = libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, ANONYMOUS, -1, 0);
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                check(libc::mremap(number(1)? as *mut _, len, len, flags, hole) as i64)
            }
            // Grows the heap and returns the start of the new part.
            "brk" => check(libc::sbrk((number(1)? * page) as isize) as i64),
            // A child writes to its copy of our memory; then we write to ours.
            "fork-write" => match libc::fork() {
                0 => {
                    store(number(1)?, number(2)?)?;
                    libc::_exit(0)
                }
                child => {
                    check(child.into())?;
                    let mut status = 0;
                    check(libc::waitpid(child, &raw mut status, 0).into())
                }
            },
            "deep" => Ok(deep(number(1)?)),
            "threads" => {
                let (address, count) = (number(1)?, number(2)?);
                std::thread::scope(|scope| {
                    for i in 0..count {
                        scope.spawn(move || store(address + i * page, i + 1));
                    }
                });
                Ok(0)
            }
            "exit" => std::process::exit(number(1)? as i32),
            "exec" => {
                let path = CString::new("/proc/self/exe").expect("no zeros");
                let name = CString::new(PUPPET).expect("no zeros");
                let arguments = [path.as_ptr(), name.as_ptr(), std::ptr::null()];
                // Answered before the exec: the new image answers nothing.
                std::io::stdout()
                    .write_all(b"ok 0\n")
                    .map_err(|e| e.to_string())?;
                std::io::stdout().flush().map_err(|e| e.to_string())?;
                check(libc::execv(path.as_ptr(), arguments.as_ptr()).into())
            }
            other => Err(format!("cannot {other}")),
        }
    }
}

/// Writes a word of another process as a debugger does, whatever the mapping allows; fails if the
/// process is already traced.
pub(crate) fn poke(pid: u32, address: u64, value: u64) -> Result<u64, String> {
    let pid = pid as libc::pid_t;
    let (at, none) = (
        address as *mut libc::c_void,
        std::ptr::null_mut::<libc::c_void>(),
    );
    // SAFETY: the calls access no memory of this process but `status`.
    unsafe {
        check(libc::ptrace(libc::PTRACE_ATTACH, pid, none, none))?;
        let mut status = 0;
        check(libc::waitpid(pid, &raw mut status, libc::__WALL).into())?;
        let outcome = check(libc::ptrace(libc::PTRACE_POKEDATA, pid, at, value as usize));
        check(libc::ptrace(libc::PTRACE_DETACH, pid, none, none))?;
        outcome
    }
}

/// The descriptor of the last file of kind `memfd-kept` or `file-kept`.
static KEPT: AtomicI32 = AtomicI32::new(-1);

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Maps memory of a kind.
///
/// # Safety
///
/// With `MAP_FIXED`, nothing may use the memory that is replaced.
unsafe fn map(kind: &str, pages: u64, at: *mut libc::c_void, flags: i32) -> Result<u64, String> {
    let len = (pages * pagetrail::page_size()) as usize;
    // SAFETY: the caller guarantees that no used memory is replaced; descriptors are opened and
    // closed here.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let file = |fd: i32, sharing: i32| {
            check(fd.into())?;
            check(libc::ftruncate(fd, len as i64).into())?;
            let address = libc::mmap(at, len, rights, sharing | flags, fd, 0);
            libc::close(fd);
            check(address as i64)
        };
        let temporary = || {
            let directory =
                CString::new(std::env::temp_dir().into_os_string().into_encoded_bytes())
                    .expect("no zeros");
            libc::open(
                directory.as_ptr(),
                libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC,
                0o600,
            )
        };
        match kind {
            "anon" => {
                let address = check(libc::mmap(at, len, rights, ANONYMOUS | flags, -1, 0) as i64)?;
                libc::madvise(address as *mut _, len, libc::MADV_NOHUGEPAGE);
                Ok(address)
            }
            "huge" => {
                let address = check(libc::mmap(at, len, rights, ANONYMOUS | flags, -1, 0) as i64)?;
                libc::madvise(address as *mut _, len, libc::MADV_HUGEPAGE);
                Ok(address)
            }
            "sparse" => {
                let sparse = ANONYMOUS | libc::MAP_NORESERVE | flags;
                let address = check(libc::mmap(at, len, rights, sparse, -1, 0) as i64)?;
                libc::madvise(address as *mut _, len, libc::MADV_NOHUGEPAGE);
                Ok(address)
            }
            // Addresses without memory.
            "reserved" => {
                check(libc::mmap(at, len, libc::PROT_NONE, ANONYMOUS | flags, -1, 0) as i64)
            }
            "shared-anon" => {
                let sharing = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
                check(libc::mmap(at, len, rights, sharing | flags, -1, 0) as i64)
            }
            "memfd" => file(
                libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC),
                libc::MAP_SHARED,
            ),
            "memfd-kept" => {
                let kept = libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC);
                KEPT.store(kept, Ordering::Relaxed);
                file(libc::dup(kept), libc::MAP_SHARED)
            }
            "file-kept" => {
                let kept = temporary();
                check(kept.into())?;
                KEPT.store(kept, Ordering::Relaxed);
                file(libc::dup(kept), libc::MAP_SHARED)
            }
            "memfd-private" => file(
                libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC),
                libc::MAP_PRIVATE,
            ),
            "file-private" => file(temporary(), libc::MAP_PRIVATE),
            "file-shared" => file(temporary(), libc::MAP_SHARED),
            "hugetlb" => check(libc::mmap(
                at,
                len,
                rights,
                ANONYMOUS | libc::MAP_HUGETLB | flags,
                -1,
                0,
            ) as i64),
            other => Err(format!("unknown kind {other}")),
        }
    }
}

/// Writes a word.
///
/// # Safety
///
/// The address is mapped and writable.
unsafe fn store(address: u64, value: u64) -> Result<u64, String> {
    // SAFETY: the caller guarantees that the address is mapped and writable.
    unsafe { (address as *mut u64).write_volatile(value) };
    Ok(0)
}

fn check(result: i64) -> Result<u64, String> {
    if result == -1 {
        Err(std::io::Error::last_os_error().to_string())
    } else {
        Ok(result as u64)
    }
}

/// Uses so many pages of stack, and returns the lowest address that it wrote.
#[inline(never)]
fn deep(pages: u64) -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // Each call writes another value, so that every write changes the stack.
    let mut frame = [CALLS.fetch_add(1, Ordering::Relaxed); 512];
    let here = std::hint::black_box(&mut frame).as_ptr() as u64;
    if pages == 0 {
        here
    } else {
        here.min(deep(pages - 1))
    }
}
