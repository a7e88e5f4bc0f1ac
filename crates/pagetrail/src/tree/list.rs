//! [`Target::processes`]: the processes of a tree as they are listed now, for those who hold or
//! look at all of them without a [`Tree`](super::Tree).

use super::find::{Scope, sharer};
use super::spaces::Spaces;
use crate::proc::pidfd;
use crate::target::{Kind, Root, Target};
use crate::watch::has_memory;

/// A process of a tree, as it is listed: see [`Target::processes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedProcess {
    /// Its PID.
    pub pid: u32,
    /// The PID of its parent, unless the tree begins with it.
    pub parent: Option<u32>,
    /// The PID of a process of the tree whose address space it shares (`CLONE_VM`), as the child of
    /// a `vfork(2)` does until it executes a program.
    pub shares_memory_with: Option<u32>,
}

impl Target {
    /// The running processes that belong to this target now, parents before children, without those
    /// that are `known` to belong to it already. Descendants of a known process are found although
    /// all between it and the tree's beginning have ended.
    ///
    /// A process, processes ([`Self::tree`]) and a control group have some; this process is never
    /// among them, nor is one that shares its memory, as those do that hold processes for it. One
    /// whose ancestors have all ended before they were known is found by a control group alone.
    pub fn processes(&self, known: &[u32]) -> Vec<ListedProcess> {
        let (scope, roots) = match &self.0 {
            Kind::Process { pid, pidfd } => (Scope::Descendants, living(*pid, pidfd.as_ref())),
            Kind::Tree(roots) => {
                let roots = roots.iter();
                let living = roots.filter_map(|Root { pid, pidfd }| living(*pid, pidfd.as_ref()));
                return list(&Scope::Descendants, living.collect(), known);
            }
            Kind::Cgroup(path) => (Scope::Cgroup(path.clone()), None),
            Kind::Own | Kind::OwnRanges(_) | Kind::Command(_) => (Scope::Roots, None),
        };
        list(&scope, roots.into_iter().collect(), known)
    }
}

/// The PID of a process with which a tree begins, if it has not ended.
fn living(pid: u32, pidfd: Option<&rustix::fd::OwnedFd>) -> Option<u32> {
    let has_ended = match pidfd {
        Some(pidfd) => pidfd::has_ended(pidfd),
        None => !has_memory(pid),
    };
    (!has_ended).then_some(pid)
}

fn list(scope: &Scope, roots: Vec<u32>, known: &[u32]) -> Vec<ListedProcess> {
    let begins = roots.iter().map(|pid| (*pid, None));
    let others = scope.others(roots.iter().chain(known).copied());
    let others = others.into_iter().map(|found| (found.pid, found.parent));
    let all: Vec<(u32, Option<u32>)> = begins.chain(others).collect();
    let mut before: Vec<u32> = known.to_vec();
    let spaces = Spaces::among(all.iter().map(|(pid, _)| *pid).chain(known.iter().copied()));
    let mut listed = Vec::new();
    for (pid, parent) in all {
        // What holds a process for this one is a process that shares this one's memory.
        let is_own = || sharer(pid, [std::process::id()]).is_some();
        if known.contains(&pid) || !has_memory(pid) || is_own() {
            continue;
        }
        listed.push(ListedProcess {
            pid,
            parent,
            shares_memory_with: sharer(pid, spaces.suspects(pid, before.iter().copied())),
        });
        before.push(pid);
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::hold::Hold;
    use crate::proc::status::children;
    use std::process::Command;

    /// What holds a process is one of this program's own, wherever it is listed.
    #[test]
    fn what_holds_a_process_is_neither_listed_nor_a_target() {
        let mut held = Command::new("sleep").arg("600").spawn().unwrap();
        let hold = Hold::process(held.id()).unwrap();
        let own = std::process::id();
        let shares = |pid: &u32| sharer(*pid, [own]).is_some();
        let agents: Vec<u32> = children(own).into_iter().filter(shares).collect();
        // Where kcmp(2) is not allowed, or no agent could be started, nothing shows.
        for agent in &agents {
            let roots = vec![*agent, held.id()];
            let listed = list(&Scope::Roots, roots, &[]);
            let listed: Vec<u32> = listed.iter().map(|listed| listed.pid).collect();
            assert_eq!(listed, [held.id()]);
            let checked = crate::attach::target_check::check(*agent);
            assert!(
                matches!(
                    checked,
                    Err(crate::Error::OwnProcess { .. } | crate::Error::NoSuchProcess { .. })
                ),
                "{checked:?}"
            );
        }
        hold.release();
        held.kill().unwrap();
        held.wait().unwrap();
        if agents.is_empty() {
            pagetrail_skips::not_here("kcmp(2) does not show what holds a process");
        }
    }
}
