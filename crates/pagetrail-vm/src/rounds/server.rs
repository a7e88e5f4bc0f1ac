//! [`RoundServer`]: answers the recorder's requests, on a thread of the guest's process that is not
//! the program's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagetrail::HeldThread;

use super::WriteLog;
use super::link::{GuestEnd, MessageKind, Request};
use super::unit_change::UnitChange;
use crate::memory::Memory;
use crate::sys::kvm::Vm;
use crate::vcpu_threads::{RunState, Stopped, VcpuThreads};

/// What the thread that serves rounds works with.
pub(crate) struct RoundServer {
    pub(crate) link: Arc<GuestEnd>,
    pub(crate) vm: Arc<Vm>,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) log: Arc<WriteLog>,
    pub(crate) threads: Arc<VcpuThreads>,
}

/// While this exists, no vCPU runs the program, and no thread changes what it has mapped.
struct Hold<'a> {
    memory: MutexGuard<'a, Memory>,
    /// None where a thread does not come to a place where it has registers.
    threads: Vec<HeldThread>,
    _stopped: Stopped<'a>,
}

impl RoundServer {
    /// Serves requests until the recorder closes the link, which also ends a hold.
    pub(crate) fn serve(&self) {
        let own = Arc::new(RunState::of_this_thread());
        let mut hold: Option<Hold<'_>> = None;
        while let Some(request) = self.link.wait() {
            match request {
                Request::Release => {
                    hold = None;
                    continue;
                }
                Request::Units(changes) => {
                    match &mut hold {
                        Some(hold) => self.change_units(&mut hold.memory, &changes, true),
                        None => self.change_units_running(&own, &changes),
                    }
                    continue;
                }
                Request::Threads => {
                    let held = hold.as_ref().map_or(&[][..], |hold| &hold.threads);
                    self.link.send_threads(held);
                    continue;
                }
                // In this order, as where the final round is collected: a thread on its way out of
                // the guest may need the memory's lock.
                Request::Hold if hold.is_none() => {
                    let stopped = self.threads.stop_others(&own);
                    let threads = stopped.registers(false).unwrap_or_default();
                    hold = Some(Hold {
                        memory: self.memory(),
                        threads,
                        _stopped: stopped,
                    });
                }
                Request::Hold | Request::Round => {}
            }
            let sent = match &mut hold {
                Some(hold) => self.send(&mut hold.memory),
                None => self.send(&mut self.memory()),
            };
            if !sent {
                return;
            }
        }
    }

    /// Merges and separates aliases while the program runs. It stops only where something is
    /// separated: what the processors have logged must be known before that means less.
    fn change_units_running(&self, own: &Arc<RunState>, changes: &[UnitChange]) {
        let separates = self.memory().separates(changes);
        // Before the memory is locked, as for a hold.
        let stopped = separates.then(|| self.threads.stop_others(own));
        self.change_units(&mut self.memory(), changes, stopped.is_some());
    }

    fn change_units(&self, memory: &mut Memory, changes: &[UnitChange], is_still: bool) {
        let has_apart = || self.threads.may_have_apart();
        let log = &self.log;
        if let Err(error) = log.change_units(&self.vm, memory, changes, is_still, has_apart) {
            // Rounds stay complete: until a change is done, more is reported.
            tracing::warn!(%error, "cannot change the units in which writes are logged");
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // As in the guest: nothing panics while it holds this lock.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects and sends a round. The lock is held until the message is sent, so that a fork finds
    /// neither half a message nor a held lock.
    fn send(&self, memory: &mut Memory) -> bool {
        match self.log.collect(&self.vm, memory) {
            Ok(collected) => {
                self.link.send(MessageKind::Reply, &collected);
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot collect a round");
                // Without this the recorder would wait forever.
                self.link.hang_up();
                false
            }
        }
    }
}
