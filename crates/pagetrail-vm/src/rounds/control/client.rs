//! [`hold_guest`]: a guest of another process, held from this one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use pagetrail::{Error, Held, HeldThread, IfAbandoned, PageSet, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::{Answer, NAME, Order, RANGES_MAX, receive};

/// How long another process may hold the guest before this one gives up.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(2);
/// How long the guest may take to answer: longer than it waits for its threads.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A guest that this process holds.
#[derive(Debug)]
struct HeldGuest {
    pid: u32,
    since: Instant,
    session: u64,
    end: OwnedFd,
    /// While this is open and locked, the guest knows that this process is there.
    _lock: OwnedFd,
    threads: Vec<HeldThread>,
    memory: PageSet,
    descriptors: Vec<u32>,
    is_released: bool,
}

/// Holds a process that has become a guest and is recorded
/// ([`recorded_guest`](crate::recorded_guest)), with the registers of its threads; `None` if the
/// process is none.
///
/// # Errors
///
/// The process may not be traced, another process holds it, or a thread of it does not come to a
/// place where it has registers: a child of `vfork(2)` may use its memory.
pub fn hold_guest(pid: u32) -> Result<Option<Box<dyn Held>>> {
    let failed = |what: &str, error: io::Error| Error::Attach {
        pid,
        reason: format!("{what}: {error}"),
    };
    let Some(lock) = find(pid).map_err(|error| failed("cannot look at its descriptors", error))?
    else {
        return Ok(None);
    };
    wait_for(&lock).map_err(|error| failed("another process holds it", error))?;
    let end = take_end(pid, &lock).map_err(|error| failed("cannot reach the guest", error))?;
    let mut session = [0; 8];
    let random = rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty());
    random.map_err(|error| failed("no random number", error.into()))?;
    let mut held = HeldGuest {
        pid,
        since: Instant::now(),
        session: u64::from_le_bytes(session),
        end,
        _lock: lock,
        threads: Vec::new(),
        memory: PageSet::new(),
        descriptors: Vec::new(),
        is_released: false,
    };
    held.order(&Order::Hold)?;
    Ok(Some(Box::new(held)))
}

/// Opens the guest's file of memory, if the process has one.
fn find(pid: u32) -> io::Result<Option<OwnedFd>> {
    let wanted = format!("/memfd:{NAME} (deleted)");
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|target| target.as_os_str() == wanted.as_str()) {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            return Ok(Some(open(&path, flags, Mode::empty())?));
        }
    }
    Ok(None)
}

fn wait_for(lock: &OwnedFd) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
        thread::sleep(LOCK_POLL);
    }
}

/// Takes the end for other processes, whose number in the guest is in the file.
fn take_end(pid: u32, file: &OwnedFd) -> io::Result<OwnedFd> {
    let mut number = [0; 4];
    rustix::io::pread(file, &mut number, 0)?;
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(id.ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
    let number = i32::from_le_bytes(number);
    Ok(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?)
}

impl HeldGuest {
    fn send(&self, order: &Order) -> Result<()> {
        let sent = send(&self.end, &order.encode(self.session), SendFlags::NOSIGNAL);
        sent.map_err(|error| self.failed(&format!("takes no order: {error}")))?;
        Ok(())
    }

    fn failed(&self, reason: &str) -> Error {
        Error::Attach {
            pid: self.pid,
            reason: format!("the guest {reason}"),
        }
    }

    /// Sends an order, and takes in the answers up to the last.
    fn order(&mut self, order: &Order) -> Result<()> {
        self.send(order)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let (mut threads, mut memory) = (Vec::new(), Vec::new());
        loop {
            match self.answer(deadline)? {
                Answer::Thread(thread) => threads.push(thread),
                Answer::Memory(ranges) => memory.extend(ranges),
                Answer::Descriptor(number) => self.descriptors.push(number),
                Answer::Done => break,
                Answer::Refused => {
                    return Err(self.failed(match order {
                        Order::Hold | Order::EndCalls => {
                            "has a thread that does not stand still between two instructions"
                        }
                        _ => "does not do it",
                    }));
                }
            }
        }
        if !threads.is_empty() {
            self.threads = threads;
        }
        if !memory.is_empty() {
            self.memory = memory.into_iter().collect();
        }
        Ok(())
    }

    /// The next answer of this session.
    fn answer(&self, deadline: Instant) -> Result<Answer> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.failed("does not answer"));
            }
            let message = receive(self.end.as_fd()).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    self.failed("has ended")
                }
                _ => self.failed(&format!("does not answer: {error}")),
            })?;
            if let Some(message) = message {
                match Answer::decode(&message) {
                    Ok((session, answer)) if session == self.session => return Ok(answer),
                    // Of a process that was here before.
                    _ => continue,
                }
            }
            let _ = poll(
                &mut [PollFd::new(&self.end, PollFlags::IN)],
                Timespec::try_from(left).ok().as_ref(),
            );
        }
    }
}

impl Held for HeldGuest {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn threads(&self) -> &[HeldThread] {
        &self.threads
    }

    /// The guest's threads stay where they are until this says otherwise: nobody else lets them go.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn if_abandoned(&mut self, what: IfAbandoned) -> Result<()> {
        self.order(match what {
            IfAbandoned::Kill => &Order::EndCalls,
            _ => &Order::GoOnIfAbandoned,
        })
    }

    fn set_registers(&mut self, threads: &[HeldThread]) -> Result<()> {
        for thread in threads {
            self.send(&Order::Set(thread.clone()))?;
        }
        self.order(&Order::Apply)
    }

    fn announce_writes(&mut self, pages: &PageSet) -> Result<()> {
        for ranges in pages.ranges().chunks(RANGES_MAX) {
            self.order(&Order::Writes(ranges.to_vec()))?;
        }
        Ok(())
    }

    fn memory(&self) -> Option<&PageSet> {
        Some(&self.memory)
    }

    fn other_descriptors(&self) -> &[u32] {
        &self.descriptors
    }

    fn release(mut self: Box<Self>) -> Duration {
        // A guest that does not answer is gone, or goes on when the lock is.
        let _ = self.order(&Order::Release);
        self.is_released = true;
        self.since.elapsed()
    }
}

impl Drop for HeldGuest {
    fn drop(&mut self) {
        if !self.is_released {
            let _ = self.order(&Order::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_guest_that_ends_is_not_waited_for() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (end, guest) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let mut held = HeldGuest {
            pid: 1,
            since: Instant::now(),
            session: 7,
            end,
            _lock: memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap(),
            threads: Vec::new(),
            memory: PageSet::new(),
            descriptors: Vec::new(),
            is_released: false,
        };
        let (sender, outcome) = channel();
        thread::spawn(move || {
            let _ = sender.send(held.order(&Order::EndCalls).map_err(|it| it.to_string()));
        });
        // It takes the order, and ends before it answers.
        while receive(&guest).unwrap().is_none() {
            thread::yield_now();
        }
        drop(guest);
        let outcome = outcome.recv_timeout(ANSWER_TIMEOUT / 2);
        let error = outcome.expect("it does not go on waiting").unwrap_err();
        assert!(error.contains("the guest has ended"), "{error}");
    }
}
