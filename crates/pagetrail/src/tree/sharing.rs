//! [`Sharing`]: a process with which a tree began, and whose address space is that of a member
//! (`CLONE_VM`): it has no watch of its own until the member has ended, or one of them executes a
//! program.

use super::find::sharer;
use super::{Change, Member, Tree};
use crate::proc::pidfd;
use crate::source::State;
use crate::target::{Kind, Root, Target};
use crate::watch::has_memory;
use std::time::Duration;

/// A process that is tracked as part of a member.
#[derive(Debug)]
pub(super) struct Sharing {
    root: Root,
    has_been_said: bool,
}

impl Sharing {
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            has_been_said: false,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.root.pid
    }

    fn has_ended(&self) -> bool {
        match &self.root.pidfd {
            Some(pidfd) => pidfd::has_ended(pidfd),
            None => !has_memory(self.root.pid),
        }
    }
}

impl Tree {
    /// Gives a watch to those that share no member's memory any longer.
    pub(super) fn follow_sharing(&mut self, changes: &mut Vec<Change>) {
        for mut sharing in std::mem::take(&mut self.sharing) {
            if sharing.has_ended() {
                continue;
            }
            let pid = sharing.pid();
            if let Some(with) = sharer(pid, self.pids()) {
                let member = self.members.iter().find(|member| member.pid() == with);
                if let (Some(member), false) = (member.map(Member::number), sharing.has_been_said) {
                    changes.push(Change::Shares { pid, member });
                }
                sharing.has_been_said = true;
                self.sharing.push(sharing);
                continue;
            }
            let number = self.next_number;
            let Root { pid, pidfd } = sharing.root;
            match self.add_root(Target(Kind::Process { pid, pidfd }), true) {
                Ok(()) => changes.push(Change::Appeared { number }),
                Err(error) if error.means_gone() => {}
                Err(error) => changes.push(Change::Refused { pid, error }),
            }
        }
    }
}

/// Waits until the processes have ended, but at most for `timeout`; `None` if none is left.
pub(super) fn wait(sharing: &mut Vec<Sharing>, timeout: Duration) -> Option<State> {
    sharing.retain(|sharing| !sharing.has_ended());
    let first = sharing.first()?;
    match &first.root.pidfd {
        Some(pidfd) => {
            pidfd::ends_within(pidfd, timeout);
        }
        None => std::thread::sleep(timeout),
    }
    Some(State::Running)
}
