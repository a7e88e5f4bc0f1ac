//! Trees of processes: every child is found, however it was made, and no page is missing that it
//! wrote since its birth.

// Elsewhere nothing can be attached to.
#![cfg(target_arch = "x86_64")]

mod support;

use pagetrail::{
    Capabilities, Change, Children, Error, Origin, PageSet, State, Status, Target, Technique, Tree,
    Watch,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use support::victim_program;

/// The memory of `tests/victims/family.c`.
const BASE: u64 = 0x100_0000_0000;
const PAGE: u64 = 4096;

/// Held by tests that make so many processes that the kernel's notices of them may not fit into the
/// queues of others.
static STORM: Mutex<()> = Mutex::new(());

/// The family; it ends with the test, and its children with it.
struct Family {
    parent: Child,
    answers: BufReader<ChildStdout>,
    pids: Vec<u32>,
}

impl Family {
    fn start() -> Option<Self> {
        let mut command = Command::new(victim_program("family")?);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut parent = command.spawn().expect("it starts");
        let answers = BufReader::new(parent.stdout.take().expect("it is piped"));
        let mut family = Self {
            parent,
            answers,
            pids: Vec::new(),
        };
        assert_eq!(family.line(), "ready");
        Some(family)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        line.trim_end().into()
    }

    fn ask(&mut self, order: &str) -> u32 {
        let stdin = self.parent.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{order}").expect("it listens");
        self.line().parse().expect("a number")
    }

    /// Makes a child, in one of the family's ways, and returns its PID.
    fn child(&mut self, way: &str) -> u32 {
        let pid = self.ask(way);
        self.pids.push(pid);
        pid
    }

    fn track(&self) -> Tree {
        let target = Target::tree([self.parent.id()]).unwrap();
        Watch::builder().target(target).start_tree().unwrap()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.pids.iter().copied().for_each(kill);
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a PID");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Follows the tree and collects a round of each member, by PID: its dirty pages of the family's
/// memory, as numbers.
fn round(tree: &mut Tree) -> BTreeMap<u32, Vec<u64>> {
    for change in tree.follow() {
        assert!(!matches!(change, Change::Refused { .. }), "{change:?}");
    }
    let mut rounds = BTreeMap::new();
    for member in tree.members_mut() {
        let pid = member.pid();
        match member.watch_mut().collect() {
            Ok(round) => {
                rounds.insert(pid, pages(round.dirty()));
                round.commit();
            }
            Err(Error::Gone { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    rounds
}

fn pages(dirty: &PageSet) -> Vec<u64> {
    (0..64)
        .filter(|page| dirty.contains(BASE + page * PAGE))
        .collect()
}

#[test]
fn children_are_found_with_what_they_wrote_since_their_birth() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let mut tree = family.track();
    let parent = family.parent.id();
    for (number, way) in ["fork", "thread", "vfork", "spawn"].into_iter().enumerate() {
        let pid = family.child(way);
        let first = round(&mut tree);
        let page = number as u64;
        assert!(first[&pid].contains(&page), "{way}: {first:?}");
        let member = tree.members().iter().find(|member| member.pid() == pid);
        let member = member.expect("it is a member");
        assert_eq!(member.origin(), Origin::New);
        assert_eq!(member.parent(), Some(0));
        assert_eq!(member.number() as usize, number + 1);
        assert_eq!(round(&mut tree)[&pid], [], "{way}: nothing was written");
        family.ask(&format!("write {number} 50"));
        family.ask("own 51");
        let next = round(&mut tree);
        assert_eq!(next[&pid], [50], "{way}");
        assert_eq!(next[&parent], [51], "{way}");
    }
}

/// Whether this process is shown page frames, which tell memory that is still shared with a parent.
fn sees_frames() -> bool {
    use std::os::unix::fs::FileExt;
    let page = [7u8];
    let mut entry = [0; 8];
    let map = std::fs::File::open("/proc/self/pagemap").expect("it has a page map");
    let address = page.as_ptr() as u64;
    map.read_exact_at(&mut entry, address / pagetrail::page_size() * 8)
        .expect("an entry");
    u64::from_ne_bytes(entry) << 9 != 0
}

#[test]
fn the_first_round_of_a_child_leaves_out_what_it_shares_with_its_parent() {
    if !sees_frames() {
        pagetrail_skips::not_here("page frames are not shown: no CAP_SYS_ADMIN");
        return;
    }
    let Some(mut family) = Family::start() else {
        return;
    };
    let present = family.child("fork");
    let mut tree = family.track();
    let child = family.child("thread");
    // Now the child shares what it has written, too: with its own child.
    let grandchild = family.child("nest 1");
    let spawned = family.child("spawn");
    let rounds = round(&mut tree);
    assert_eq!(rounds[&child], [1]);
    assert_eq!(rounds[&grandchild], [40]);
    assert_eq!(rounds[&spawned].len(), 64);
    assert_eq!(rounds[&present], []);
    let inherited = |pid| {
        let mut members = tree.members().iter();
        let member = members.find(|member| member.pid() == pid).unwrap();
        let inherited = member.inherited();
        assert!(inherited.shared.difference(&inherited.pages).is_empty());
        (
            pages(&inherited.pages).len(),
            pages(&inherited.shared).len(),
        )
    };
    // Of the present child 0, of the others 1 and 40 were written; the parent wrote nothing.
    assert_eq!(inherited(present), (64, 63));
    assert_eq!(inherited(child), (64, 63));
    assert_eq!(inherited(grandchild), (64, 63));
    assert_eq!(inherited(spawned), (0, 0));
    assert_eq!(inherited(family.parent.id()), (0, 0));
    family.ask("write 1 40");
    family.ask("own 9");
    let rounds = round(&mut tree);
    assert_eq!(
        (&rounds[&child][..], &rounds[&grandchild][..]),
        (&[40][..], &[][..])
    );
}

#[test]
fn what_a_parent_writes_is_no_longer_shared() {
    if !sees_frames() {
        pagetrail_skips::not_here("page frames are not shown: no CAP_SYS_ADMIN");
        return;
    }
    let Some(mut family) = Family::start() else {
        return;
    };
    let mut tree = family.track();
    let child = family.child("fork");
    family.ask("own 20");
    // A false positive: the child has the page to itself without having written it.
    assert_eq!(round(&mut tree)[&child], [0, 20]);
}

#[test]
fn processes_that_share_memory_have_one_watch() {
    for technique in [Technique::PagemapScan, Technique::SoftDirty] {
        if !matches!(Capabilities::probe_one(technique), Status::Works) {
            pagetrail_skips::not_here(format!("{technique} does not work"));
            continue;
        }
        let Some(mut family) = Family::start() else {
            return;
        };
        let (parent, other) = (family.parent.id(), family.child("share"));
        let target = Target::tree([other, parent]).unwrap();
        let builder = Watch::builder().target(target).technique(technique);
        let mut tree = builder.start_tree().unwrap();
        let changes = tree.follow();
        assert!(
            matches!(changes[..], [Change::Shares { pid, member: 0 }] if pid == parent),
            "{changes:?}"
        );
        family.ask("own 5");
        family.ask("say 6");
        let rounds = round(&mut tree);
        assert_eq!(rounds.len(), 1, "{technique}: {rounds:?}");
        assert_eq!(rounds[&other], [5, 6], "{technique}");
        family.ask("own 7");
        // It is a child of this process, unlike the rest of the family.
        kill(other);
        let pid = rustix::process::Pid::from_raw(other as i32);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        assert_eq!(tree.wait(Duration::ZERO), State::Running, "{technique}");
        let rounds = round(&mut tree);
        assert!(rounds[&parent].contains(&7), "{technique}: {rounds:?}");
        family.ask("own 8");
        assert_eq!(round(&mut tree)[&parent], [8], "{technique}");
    }
}

#[test]
fn a_sibling_that_shares_memory_has_no_watch_of_its_own() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let mut tree = family.track();
    let child = family.child("fork");
    let kin = family.child("kin 0");
    let rounds = round(&mut tree);
    assert!(rounds[&child].contains(&41), "{rounds:?}");
    assert!(!rounds.contains_key(&kin), "{rounds:?}");
    kill(child);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !round(&mut tree).contains_key(&kin) {
        assert!(Instant::now() < deadline, "it is not found");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn descendants_that_are_there_report_only_what_they_write_from_then_on() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let (one, other) = (family.child("fork"), family.child("spawn"));
    let nested = family.child("nest 0");
    let mut tree = family.track();
    let origins: Vec<_> = tree
        .members()
        .iter()
        .map(|member| member.origin())
        .collect();
    assert_eq!(origins[0], Origin::Root);
    assert_eq!(origins[1..], [Origin::Present; 3]);
    family.ask("write 1 9");
    let rounds = round(&mut tree);
    assert_eq!(rounds[&one], []);
    assert_eq!(rounds[&nested], []);
    assert_eq!(rounds[&other], [9]);
    let grandchild = tree.members().iter().find(|member| member.pid() == nested);
    let child = tree.members().iter().find(|member| member.pid() == one);
    assert_eq!(grandchild.unwrap().parent(), Some(child.unwrap().number()));
}

#[test]
fn a_grandchild_is_followed_when_its_parent_ends_after_it_was_seen() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let mut tree = family.track();
    let child = family.child("fork");
    let grandchild = family.child("nest 0");
    let rounds = round(&mut tree);
    assert!(rounds[&grandchild].contains(&40), "{rounds:?}");
    let orphan = family.child("leave 0");
    let changes = tree.follow();
    let ended = changes
        .iter()
        .any(|change| matches!(change, Change::Ended { number: 1, .. }));
    assert!(ended, "{changes:?}");
    let pids: Vec<_> = tree.members().iter().map(|member| member.pid()).collect();
    assert!(!pids.contains(&child), "{pids:?}");
    assert!(pids.contains(&grandchild), "{pids:?}");
    // The other was born and orphaned between two looks.
    assert_eq!(pids.contains(&orphan), tree.sees_births(), "{pids:?}");
}

#[test]
fn short_lives_are_counted_and_what_they_leave_behind_is_found() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let mut tree = family.track();
    if !tree.sees_births() {
        pagetrail_skips::not_here("the kernel gives no notice of births here");
        return;
    }
    let _alone = STORM.lock().unwrap_or_else(PoisonError::into_inner);
    // A child that is seen by nobody: it makes a child, and ends. If other programs begin and end
    // too fast meanwhile, notices are dropped.
    let orphan = (0..8).find_map(|number| {
        family.child("fork");
        let orphan = family.child(&format!("leave {number}"));
        matches!(
            tree.follow()[..],
            [Change::Appeared { .. }, Change::ShortLives { count: 1 }]
        )
        .then_some(orphan)
    });
    let orphan = orphan.expect("one of them is noticed");
    let rounds = round(&mut tree);
    assert!(rounds[&orphan].contains(&40), "{rounds:?}");
    let made = u64::from(family.ask("storm 50"));
    let mut counted = 0;
    for change in tree.follow() {
        match change {
            Change::ShortLives { count } => counted += count,
            change => panic!("{change:?}"),
        }
    }
    // More notices than the queue holds are dropped.
    assert!(counted > 0 && counted <= made, "{counted} of {made}");
}

/// An orphan whose main thread has ended is no short life, and neither is one that has executed a
/// program from another thread: both are found, and their end is counted once.
fn orphans_outlive_their_main_thread(way: &str) {
    let Some(mut family) = Family::start() else {
        return;
    };
    let mut tree = family.track();
    if !tree.sees_births() {
        pagetrail_skips::not_here("the kernel gives no notice of births here");
        return;
    }
    let _alone = STORM.lock().unwrap_or_else(PoisonError::into_inner);
    // The child ends, and only the child. If other programs begin and end too fast meanwhile,
    // notices are dropped.
    let orphan = (0..8).find_map(|number| {
        family.child("fork");
        let orphan = family.child(&format!("{way} {number}"));
        let changes = tree.follow();
        let found = tree.members().iter().any(|member| member.pid() == orphan);
        let is_one = matches!(
            changes[..],
            [Change::Appeared { .. }, Change::ShortLives { count: 1 }]
        );
        assert!(!found || is_one, "{changes:?}");
        found.then_some(orphan)
    });
    let orphan = orphan.expect("one of them is noticed");
    let rounds = round(&mut tree);
    assert!(rounds[&orphan].contains(&40), "{rounds:?}");
    kill(orphan);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut changes = Vec::new();
    while tree.members().len() > 1 && Instant::now() < deadline {
        changes.extend(tree.follow());
    }
    assert!(matches!(changes[..], [Change::Ended { .. }]), "{changes:?}");
}

#[test]
fn an_orphan_whose_main_thread_has_ended_is_followed() {
    orphans_outlive_their_main_thread("mainless");
}

#[test]
fn an_orphan_that_executes_a_program_from_another_thread_is_followed() {
    orphans_outlive_their_main_thread("reexec");
}

#[test]
fn without_children_only_the_named_processes_are_tracked() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let one = family.child("fork");
    let parent = family.parent.id();
    // Named twice, tracked once.
    let target = Target::tree([parent, one, parent]).unwrap();
    let builder = Watch::builder().target(target).children(Children::LeaveOut);
    let mut tree = builder.start_tree().unwrap();
    family.child("fork");
    let rounds = round(&mut tree);
    assert_eq!(rounds.keys().copied().collect::<Vec<_>>(), {
        let mut both = [parent, one];
        both.sort_unstable();
        both
    });
}

#[test]
fn a_storm_of_forks_harms_neither_side() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let _alone = STORM.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tree = family.track();
    let until = Instant::now() + Duration::from_millis(1500);
    let storm = std::thread::spawn(move || {
        let made = family.ask("storm 1500");
        (family, made)
    });
    while Instant::now() < until {
        round(&mut tree);
    }
    let (mut family, made) = storm.join().unwrap();
    assert!(made > 0);
    // What is left of it are no members.
    round(&mut tree);
    assert_eq!(round(&mut tree).len(), 1);
    family.ask("own 7");
    assert_eq!(round(&mut tree)[&family.parent.id()], [7]);
}

#[test]
fn a_tree_ends_with_its_roots() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let other = Family::start().unwrap();
    family.child("fork");
    let target = Target::tree([family.parent.id(), other.parent.id()]).unwrap();
    let mut tree = Watch::builder().target(target).start_tree().unwrap();
    assert_eq!(tree.wait(Duration::from_millis(20)), State::Running);
    drop(other);
    assert_eq!(tree.wait(Duration::from_millis(20)), State::Running);
    drop(family);
    let deadline = Instant::now() + Duration::from_secs(60);
    while tree.wait(Duration::from_millis(20)) == State::Running {
        assert!(Instant::now() < deadline, "it does not end");
    }
}

#[test]
fn a_program_is_a_tree_from_its_first_instruction() {
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 30 & wait"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut tree = Watch::builder()
        .target(Target::command(command))
        .start_tree()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while tree.members().len() < 2 && Instant::now() < deadline {
        tree.follow();
        std::thread::sleep(Duration::from_millis(5));
    }
    let members = tree.members().len();
    for member in tree.members().iter().rev() {
        kill(member.pid());
    }
    assert_eq!(members, 2, "no child is found");
}

/// A control group of version 2 that is removed at the end; `None` where none can be made.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" cgroup2 "))?;
        let mount = std::path::Path::new(mount.split(' ').nth(1)?);
        let path = mount.join(format!("pagetrail-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("it takes a process");
    }

    fn is_gone(&self) -> bool {
        std::fs::remove_dir(&self.0).is_ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_control_group_has_its_processes_and_those_that_come() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let Some(group) = Cgroup::new() else {
        pagetrail_skips::not_here("no control group of version 2 can be made here");
        return;
    };
    let target = Target::cgroup(&group.0).unwrap();
    let mut tree = Watch::builder().target(target).start_tree().unwrap();
    assert!(tree.members().is_empty());
    assert_eq!(tree.wait(Duration::ZERO), State::Running);
    group.take(family.parent.id());
    round(&mut tree);
    let child = family.child("fork");
    let first = round(&mut tree);
    assert!(first[&child].contains(&0), "{first:?}");
    assert_eq!(first.len(), 2);
    // An orphan stays in its group, unlike in a tree of descendants.
    let orphan = family.child("leave 0");
    let rounds = round(&mut tree);
    assert!(rounds[&orphan].contains(&40), "{rounds:?}");
    drop(family);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !group.is_gone() {
        assert!(Instant::now() < deadline, "its processes do not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(tree.wait(Duration::ZERO), State::Ended(None));
}

#[test]
fn what_is_no_tree_is_refused() {
    let error = Target::tree([]).unwrap_err();
    assert!(matches!(error, Error::WrongTree { .. }), "{error}");
    let error = Watch::builder().start_tree().unwrap_err();
    assert!(matches!(error, Error::WrongTree { .. }), "{error}");
    let error = Target::cgroup("/proc").unwrap_err();
    assert!(matches!(error, Error::WrongTree { .. }), "{error}");
    let Some(family) = Family::start() else {
        return;
    };
    let target = Target::tree([family.parent.id()]).unwrap();
    let error = Watch::builder().target(target).start().unwrap_err();
    assert!(matches!(error, Error::WrongTree { .. }), "{error}");
}
