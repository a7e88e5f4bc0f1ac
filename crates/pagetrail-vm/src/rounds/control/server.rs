//! [`ControlServer`]: does in the guest what another process orders, on a thread that is not the
//! program's.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagetrail::{HeldThread, PageSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, MemfdFlags, flock, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::process::{Signal, getpid, kill_process};

use super::{Answer, NAME, Order, RANGES_MAX, receive};
use crate::memory::Memory;
use crate::rounds::WriteLog;
use crate::standing::registers_of;
use crate::sys::descriptors::out_of_the_way;
use crate::vcpu_threads::{RunState, Stopped, VcpuThreads};

/// How often to look whether the process that holds the guest is still there.
const LOOK: Duration = Duration::from_millis(50);

/// What the thread that serves other processes works with.
#[derive(Debug)]
pub(crate) struct ControlServer {
    file: OwnedFd,
    own: OwnedFd,
    /// The end that other processes take. It must stay open.
    theirs: OwnedFd,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) log: Arc<WriteLog>,
    pub(crate) threads: Arc<VcpuThreads>,
    pub(crate) descriptors: Arc<Mutex<Vec<RawFd>>>,
}

/// A hold of another process.
struct Session<'a> {
    id: u64,
    memory: MutexGuard<'a, Memory>,
    /// What the program had mapped when it was held.
    areas: PageSet,
    stopped: Stopped<'a>,
    set: Vec<HeldThread>,
    /// Whether the guest's process ends with the one that holds it.
    kills: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlServer {
    /// Makes the descriptors.
    pub(crate) fn new(
        memory: Arc<Mutex<Memory>>,
        log: Arc<WriteLog>,
        threads: Arc<VcpuThreads>,
        descriptors: Arc<Mutex<Vec<RawFd>>>,
    ) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (own, theirs) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        let moved = |fd: OwnedFd| out_of_the_way(std::os::fd::AsFd::as_fd(&fd));
        let (own, theirs) = (moved(own)?, moved(theirs)?);
        let file = moved(memfd_create(NAME, MemfdFlags::CLOEXEC)?)?;
        rustix::io::pwrite(&file, &theirs.as_raw_fd().to_le_bytes(), 0)?;
        Ok(Self {
            file,
            own,
            theirs,
            memory,
            log,
            threads,
            descriptors,
        })
    }

    /// The numbers of the descriptors.
    pub(crate) fn numbers(&self) -> [RawFd; 3] {
        [&self.file, &self.own, &self.theirs].map(AsRawFd::as_raw_fd)
    }

    /// Serves other processes for as long as this process lives.
    pub(crate) fn serve(&self) {
        let run_state = Arc::new(RunState::of_this_thread());
        let mut session: Option<Session<'_>> = None;
        loop {
            let timeout = session.as_ref().map(|_| LOOK);
            let timeout = timeout.and_then(|look| Timespec::try_from(look).ok());
            let _ = poll(
                &mut [PollFd::new(&self.own, PollFlags::IN)],
                timeout.as_ref(),
            );
            let Ok(message) = receive(&self.own) else {
                // Another process has shut the sockets down, by which nobody is reached any more.
                return Self::abandon(session.take());
            };
            match message.map(|message| Order::decode(&message)) {
                Some(Ok((id, order))) => {
                    if session.as_ref().is_some_and(|session| session.id != id) {
                        Self::abandon(session.take());
                    }
                    let answers = self.perform(&run_state, &mut session, id, order);
                    if !self.answer(id, &answers) {
                        Self::abandon(session.take());
                    }
                }
                Some(Err(_)) => {}
                None if session.is_some() && self.is_alone() => Self::abandon(session.take()),
                None => {}
            }
        }
    }

    /// Whether no other process has the lock.
    fn is_alone(&self) -> bool {
        let locked = flock(&self.file, FlockOperation::NonBlockingLockExclusive);
        locked.is_ok() && flock(&self.file, FlockOperation::Unlock).is_ok()
    }

    /// Does what is to be done when the process that holds the guest is gone.
    fn abandon(session: Option<Session<'_>>) {
        // Before its threads go on, which the end of the session lets them.
        if session.as_ref().is_some_and(|session| session.kills) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        drop(session);
    }

    fn perform<'a>(
        &'a self,
        own: &Arc<RunState>,
        session: &mut Option<Session<'a>>,
        id: u64,
        order: Order,
    ) -> Vec<Answer> {
        match order {
            // Its threads stand still already, and waiting for that once more would never end.
            Order::Hold if session.is_some() => vec![Answer::Refused],
            Order::Hold => {
                let stopped = self.threads.stop_others(own);
                // The memory is locked after that: threads may need it until they stand still.
                let Some(threads) = stopped.registers(false) else {
                    return vec![Answer::Refused];
                };
                let memory = locked(&self.memory);
                let areas = memory.areas.all();
                let mut answers = with(threads);
                let all: Vec<_> = areas.ranges().to_vec();
                answers.extend(
                    all.chunks(RANGES_MAX)
                        .map(|part| Answer::Memory(part.to_vec())),
                );
                let numbers = locked(&self.descriptors).clone();
                answers.extend(
                    numbers
                        .iter()
                        .map(|number| Answer::Descriptor(*number as u32)),
                );
                *session = Some(Session {
                    id,
                    memory,
                    areas,
                    stopped,
                    set: Vec::new(),
                    kills: false,
                });
                answers.push(Answer::Done);
                answers
            }
            Order::EndCalls => match session.take() {
                Some(held) => self.end_calls(held, session),
                None => vec![Answer::Refused],
            },
            Order::GoOnIfAbandoned => with_session(session, |session| {
                session.kills = false;
                true
            }),
            Order::Writes(ranges) => with_session(session, |session| {
                ranges.iter().all(|range| {
                    self.log.note(range.start(), range.bytes());
                    let marked = session.memory.mark_written(range.start(), range.bytes());
                    marked.is_ok()
                })
            }),
            Order::Set(thread) => {
                if let Some(session) = session {
                    session.set.push(thread);
                }
                Vec::new()
            }
            Order::Apply => with_session(session, |session| {
                let set = std::mem::take(&mut session.set);
                let are_whole = set.iter().all(|thread| registers_of(thread).is_some());
                are_whole && session.stopped.set_registers(&set)
            }),
            Order::Release => {
                *session = None;
                vec![Answer::Done]
            }
        }
    }

    /// Ends system calls. Meanwhile the memory is not locked, since they may need it.
    fn end_calls<'a>(
        &'a self,
        held: Session<'a>,
        session: &mut Option<Session<'a>>,
    ) -> Vec<Answer> {
        let Session {
            id,
            memory,
            areas,
            stopped,
            ..
        } = held;
        drop(memory);
        let threads = stopped.registers(true);
        let memory = locked(&self.memory);
        let is_same = memory.areas.all() == areas;
        let kills = threads.is_some() && is_same;
        *session = Some(Session {
            id,
            memory,
            areas,
            stopped,
            set: Vec::new(),
            kills,
        });
        match threads {
            Some(threads) if is_same => {
                let mut answers = with(threads);
                answers.push(Answer::Done);
                answers
            }
            _ => vec![Answer::Refused],
        }
    }

    /// Sends answers. False where the process that they are for is gone.
    fn answer(&self, id: u64, answers: &[Answer]) -> bool {
        answers.iter().all(|answer| {
            let message = answer.encode(id);
            loop {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                match send(&self.own, &message, flags) {
                    Ok(_) => return true,
                    Err(Errno::INTR) => {}
                    // Until the other process takes some.
                    Err(Errno::AGAIN | Errno::NOBUFS) if !self.is_alone() => {
                        let _ = poll(
                            &mut [PollFd::new(&self.own, PollFlags::OUT)],
                            Timespec::try_from(LOOK).ok().as_ref(),
                        );
                    }
                    Err(_) => return false,
                }
            }
        })
    }
}

fn with(threads: Vec<HeldThread>) -> Vec<Answer> {
    threads.into_iter().map(Answer::Thread).collect()
}

fn with_session(
    session: &mut Option<Session<'_>>,
    perform: impl FnOnce(&mut Session<'_>) -> bool,
) -> Vec<Answer> {
    let is_done = session.as_mut().is_some_and(perform);
    vec![match is_done {
        true => Answer::Done,
        false => Answer::Refused,
    }]
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use rustix::fs::{Mode, OFlags, open};
    use rustix::net::{Shutdown, shutdown};

    use super::*;
    use crate::sys::kvm::{Log, Vm};

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A server of a machine without vCPUs; `None` where there is no KVM.
    fn server() -> Option<ControlServer> {
        let vm = match Vm::create(Log::Off) {
            Ok(vm) => vm,
            Err(error) => {
                pagetrail_skips::not_here(error);
                return None;
            }
        };
        let memory = Memory::new(&vm, 36).unwrap();
        let memory = Arc::new(Mutex::new(memory));
        let server = ControlServer::new(memory, Arc::default(), Arc::default(), Arc::default());
        Some(server.unwrap())
    }

    #[test]
    fn no_order_makes_it_wait_for_itself() {
        let Some(server) = server() else {
            return;
        };
        let end = server.theirs.try_clone().unwrap();
        let file = format!("/proc/self/fd/{}", server.file.as_raw_fd());
        let lock = open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (sender, over) = channel();
        thread::spawn(move || {
            server.serve();
            let _ = sender.send(());
        });
        let ask = |order: Order| {
            let until = Instant::now() + TIMEOUT;
            send(&end, &order.encode(8), SendFlags::NOSIGNAL).unwrap();
            while Instant::now() < until {
                let message = receive(&end).unwrap();
                match message.map(|message| Answer::decode(&message).unwrap().1) {
                    Some(last @ (Answer::Done | Answer::Refused)) => return Some(last),
                    _ => thread::yield_now(),
                }
            }
            None
        };
        assert_eq!(ask(Order::Hold), Some(Answer::Done));
        assert_eq!(ask(Order::Hold), Some(Answer::Refused));
        let thread = HeldThread {
            tid: 1,
            registers: Vec::new(),
            blocked_signals: 0,
        };
        let set = Order::Set(thread).encode(8);
        send(&end, &set, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(ask(Order::Apply), Some(Answer::Refused));
        // A process that shuts the sockets down while it holds the program lets it go.
        shutdown(&end, Shutdown::Both).unwrap();
        assert_eq!(over.recv_timeout(TIMEOUT), Ok(()));
    }
}
