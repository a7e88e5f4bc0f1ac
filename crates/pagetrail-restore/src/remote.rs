//! [`Remote`]: a process that is being restored, and makes system calls by the stub.

use crate::error::{Error, Result};
use crate::holes;
use crate::sys::memory;
use crate::sys::ptrace::{Registers, Stop, Tracee};
use crate::sys::spawn::CloneArguments;
use crate::sys::stub::{self, ENTRY_WORDS};
use pagetrail::{PageRange, PageSet};
use rustix::io::Errno;

/// How long the parts of the stub's mapping are, in bytes: the code, the list of calls, and what
/// their arguments point to.
const CODE_BYTES: u64 = 4096;
const LIST_BYTES: u64 = 1 << 16;
const DATA_BYTES: u64 = 1 << 17;
/// All of it.
const ROOM_BYTES: u64 = CODE_BYTES + LIST_BYTES + DATA_BYTES;
/// How many calls a list has room for, besides its end.
const CALLS_MAX: usize = LIST_BYTES as usize / (8 * ENTRY_WORDS) - 1;

/// An argument of a system call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument<'a> {
    /// A number, or an address in the process.
    Number(u64),
    /// The address of these bytes, which the process gets for the time of the call.
    Bytes(&'a [u8]),
}

impl From<u64> for Argument<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Argument<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<i32> for Argument<'_> {
    fn from(number: i32) -> Self {
        Self::Number(number as i64 as u64)
    }
}

impl<'a> From<&'a [u8]> for Argument<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

/// A process whose threads all stand still, within the stub.
#[derive(Debug)]
pub(crate) struct Remote {
    /// Its PID.
    pub(crate) pid: u32,
    /// Its main thread.
    pub(crate) main: Tracee,
    room: PageRange,
    /// With which a thread executes the stub.
    registers: Registers,
}

impl Remote {
    /// Gives a process the stub that has stopped before the first instruction of its program, at a
    /// place that is not `taken`.
    pub(crate) fn begin(main: Tracee, taken: &PageSet) -> Result<Self> {
        let pid = main.0;
        let failed = |what| Error::step(format!("{what} in the new process"));
        let room = holes::find(taken, ROOM_BYTES).ok_or_else(|| {
            Error::refused("there are no free addresses for the code that restores")
        })?;
        let mut registers = main.registers().map_err(failed("read registers"))?;
        // In the place of the program's first instruction, which is unmapped soon.
        let at = registers.rip;
        let mut first = [0xcc; 8];
        first[..2].copy_from_slice(&[0x0f, 0x05]);
        main.poke(at, first).map_err(failed("write"))?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let (start, all) = (room.start(), room.bytes());
        let map = [start, all, rights as u64, kind as u64, u64::MAX, 0];
        let got = call_at(main, at, &registers, libc::SYS_mmap, map)?;
        if got != start {
            return Err(failed("map the code that restores")(Errno::EXIST));
        }
        memory::write(pid, start, stub::code()).map_err(failed("write"))?;
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        let protect = [start, CODE_BYTES, rights as u64, 0, 0, 0];
        call_at(main, at, &registers, libc::SYS_mprotect, protect)?;
        registers.rip = start;
        registers.rbx = start + CODE_BYTES;
        registers.orig_rax = u64::MAX;
        Ok(Self {
            pid,
            main,
            room,
            registers,
        })
    }

    /// Where the stub is.
    pub(crate) fn room(&self) -> PageRange {
        self.room
    }

    /// A list of calls that a thread is to make.
    pub(crate) fn list(&self, thread: Tracee) -> List<'_> {
        List {
            remote: self,
            thread,
            whats: Vec::new(),
            words: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Makes one call; gives what it returns.
    pub(crate) fn call(
        &self,
        thread: Tracee,
        what: &str,
        number: i64,
        arguments: &[Argument<'_>],
    ) -> Result<u64> {
        let mut list = self.list(thread);
        list.call(what, number, arguments)?;
        let results = list.results()?;
        results.first().copied().ok_or_else(|| ended(what))
    }

    /// Where the first bytes of a list lie in the process.
    pub(crate) fn data_address(&self) -> u64 {
        self.room.start() + CODE_BYTES + LIST_BYTES
    }

    /// The first bytes of the last list, which calls may have changed.
    pub(crate) fn read_data<const N: usize, const M: usize>(&self) -> Result<[[u8; N]; M]> {
        let mut bytes = [[0; N]; M];
        memory::read(self.pid, self.data_address(), bytes.as_flattened_mut())
            .map_err(Error::step("read from the new process"))?;
        Ok(bytes)
    }

    /// Has the process, while it has a single thread, make a copy of itself: a child of its parent,
    /// this process.
    pub(crate) fn copy(&self) -> Result<Self> {
        // The signal at its end is that of the process (`copy_process` in `kernel/fork.c`).
        let arguments = CloneArguments {
            flags: libc::CLONE_PARENT as u64,
            ..CloneArguments::default()
        };
        let main = self.create("make a copy of it", &arguments.to_bytes(), &[])?;
        Ok(Self {
            pid: main.0,
            main,
            ..*self
        })
    }

    /// Makes a call that creates a thread; gives that one, stopped. `arguments` are those of
    /// `clone3(2)`, at [`Self::data_address`], and `after` lies right after them.
    pub(crate) fn create_thread(&self, arguments: &[u8], after: &[u8]) -> Result<Tracee> {
        self.create("create a thread with the ID that it had", arguments, after)
    }

    fn create(&self, what: &str, arguments: &[u8], after: &[u8]) -> Result<Tracee> {
        let mut list = self.list(self.main);
        let length = arguments.len() as u64;
        let data = [arguments, after].concat();
        list.call(
            what,
            libc::SYS_clone3,
            &[data.as_slice().into(), length.into()],
        )?;
        list.write()?;
        self.start(self.main)?;
        let mut created = None;
        loop {
            match self.main.wait().map_err(Error::step(what))? {
                Stop::Clone => {
                    created = Some(self.main.created().map_err(Error::step(what))?);
                    self.main.resume(false).map_err(Error::step(what))?;
                }
                Stop::Signal(libc::SIGTRAP) => break,
                Stop::Ended { .. } => return Err(ended(what)),
                _ => self.main.resume(false).map_err(Error::step(what))?,
            }
        }
        list.check()?;
        let created = created.ok_or_else(|| ended(what))?;
        match created.wait().map_err(Error::step(what))? {
            Stop::Ended { .. } => Err(ended(what)),
            _ => Ok(created),
        }
    }

    /// Unmaps the stub. No thread may execute any more of it: their registers must be set.
    pub(crate) fn end(&self) -> Result<()> {
        let at = self.room.start() + stub::syscall_offset();
        let unmap = [self.room.start(), self.room.bytes(), 0, 0, 0, 0];
        call_at(self.main, at, &self.registers, libc::SYS_munmap, unmap).map(drop)
    }

    fn start(&self, thread: Tracee) -> Result<()> {
        thread
            .set_registers(&self.registers)
            .and_then(|()| thread.resume(false))
            .map_err(Error::step("run a thread of the new process"))
    }
}

fn ended(what: &str) -> Error {
    Error::refused(format!("the new process has ended when it was to {what}"))
}

/// Has a thread make a call at a `syscall` instruction; it stands there after the call.
fn call_at(
    thread: Tracee,
    at: u64,
    registers: &Registers,
    number: i64,
    arguments: [u64; 6],
) -> Result<u64> {
    let failed = Error::step("make a system call in the new process");
    let mut registers = *registers;
    registers.rip = at;
    registers.rax = number as u64;
    registers.orig_rax = u64::MAX;
    [
        registers.rdi,
        registers.rsi,
        registers.rdx,
        registers.r10,
        registers.r8,
        registers.r9,
    ] = arguments;
    let run = || {
        thread.set_registers(&registers)?;
        // At entry, then at exit.
        let mut stops = 0;
        while stops < 2 {
            thread.resume(true)?;
            match thread.wait()? {
                Stop::Syscall => stops += 1,
                Stop::Ended { .. } => return Err(Errno::SRCH),
                _ => {}
            }
        }
        Ok(thread.registers()?.rax)
    };
    match run().map_err(failed)? as i64 {
        error @ -4095..0 => Err(Error::step("prepare the new process")(
            Errno::from_raw_os_error(-error as i32),
        )),
        result => Ok(result as u64),
    }
}

/// Calls that a thread is to make, one after the other. They are made when there are many, and by
/// [`List::run`].
pub(crate) struct List<'a> {
    remote: &'a Remote,
    thread: Tracee,
    /// What each is for.
    whats: Vec<String>,
    words: Vec<u64>,
    data: Vec<u8>,
}

impl List<'_> {
    /// Adds a call.
    pub(crate) fn call(
        &mut self,
        what: &str,
        number: i64,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let bytes = |argument: &Argument<'_>| match argument {
            Argument::Number(_) => 0,
            Argument::Bytes(bytes) => bytes.len().next_multiple_of(16),
        };
        let bytes: usize = arguments.iter().map(bytes).sum();
        if bytes > DATA_BYTES as usize || arguments.len() > 6 {
            return Err(Error::refused(format!("too much at once to {what}")));
        }
        if self.whats.len() == CALLS_MAX || self.data.len() + bytes > DATA_BYTES as usize {
            self.run()?;
        }
        self.whats.push(what.to_owned());
        self.words.push(number as u64);
        let data = self.remote.data_address();
        for index in 0..6 {
            self.words.push(match arguments.get(index) {
                None => 0,
                Some(Argument::Number(number)) => *number,
                Some(Argument::Bytes(bytes)) => {
                    let at = data + self.data.len() as u64;
                    self.data.extend_from_slice(bytes);
                    self.data.resize(self.data.len().next_multiple_of(16), 0);
                    at
                }
            });
        }
        self.words.push(0);
        Ok(())
    }

    /// Has the calls made.
    ///
    /// # Errors
    ///
    /// One of them failed; those after it were not made.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.results().map(drop)
    }

    /// Has the calls made; gives their results.
    fn results(&mut self) -> Result<Vec<u64>> {
        if self.whats.is_empty() {
            return Ok(Vec::new());
        }
        self.write()?;
        self.remote.start(self.thread)?;
        loop {
            let stop = self.thread.wait();
            match stop.map_err(Error::step("wait for the new process"))? {
                Stop::Signal(libc::SIGTRAP) => break,
                Stop::Signal(signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL)) => {
                    return Err(Error::refused(format!(
                        "the code that restores failed with signal {signal}"
                    )));
                }
                Stop::Ended { .. } => return Err(ended(&self.whats[0])),
                _ => {
                    let resumed = self.thread.resume(false);
                    resumed.map_err(Error::step("run a thread of the new process"))?;
                }
            }
        }
        let results = self.check();
        self.whats.clear();
        self.words.clear();
        self.data.clear();
        results
    }

    fn write(&self) -> Result<()> {
        let mut words = self.words.clone();
        words.push(stub::END);
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let (pid, list) = (self.remote.pid, self.remote.room.start() + CODE_BYTES);
        memory::write(pid, list, &bytes)
            .and_then(|()| match self.data.is_empty() {
                true => Ok(()),
                false => memory::write(pid, list + LIST_BYTES, &self.data),
            })
            .map_err(Error::step("write to the new process"))
    }

    /// The results of the calls, if all were made and succeeded.
    fn check(&self) -> Result<Vec<u64>> {
        let mut bytes = vec![0; self.words.len() * 8];
        let list = self.remote.room.start() + CODE_BYTES;
        memory::read(self.remote.pid, list, &mut bytes)
            .map_err(Error::step("read from the new process"))?;
        let entries = bytes.chunks_exact(8 * ENTRY_WORDS).zip(&self.whats);
        let result = |(entry, what): (&[u8], &String)| {
            let word = entry
                .last_chunk()
                .map_or(0, |word| u64::from_ne_bytes(*word));
            match word as i64 {
                error @ -4095..0 => Err(Error::step(what)(Errno::from_raw_os_error(-error as i32))),
                _ => Ok(word),
            }
        };
        entries.map(result).collect()
    }
}
