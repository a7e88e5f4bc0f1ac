//! The process that stops threads, and survives its tracker, allocates nothing; the program around
//! does not notice it; and where there can be none, threads are stopped all the same.
//!
//! The allocator counts calls that are made by another process than this one, in whose memory the
//! agent runs.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::{Hold, IfAbandoned, Technique};
use rustix::process::Pid;
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Victim, attach_once, random, times, working};

struct Counting;

static OWN: AtomicU32 = AtomicU32::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    let own = OWN.load(Ordering::Relaxed);
    if own != 0 && own != std::process::id() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all methods forward to the system's allocator, which meets the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract of `GlobalAlloc::alloc`, which `System` shares.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: `pointer` comes from `alloc`, that is, from `System`, with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Which process holds the victim.
fn agent_of(victim: &Victim) -> u32 {
    let agent = support::tracer(victim.pid());
    assert_ne!(agent, 0, "nobody traces it");
    agent
}

#[test]
fn an_agent_allocates_nothing() {
    OWN.store(std::process::id(), Ordering::Relaxed);
    let seed = random("agent").u64(..).to_string();
    let chaos = ["600", &seed, "0"];
    let victims: [(&str, &[&str]); 4] = [
        ("chaos", &chaos),
        ("transfers", &["600", "pipe"]),
        ("epoller", &["600"]),
        ("seccomp", &["600", "all"]),
    ];
    for (name, arguments) in victims {
        let Some(victim) = Victim::start(name, arguments) else {
            return;
        };
        for _ in 0..times(100, 2000) {
            let mut hold = Hold::process(victim.pid()).unwrap();
            let agent = agent_of(&victim);
            assert!(!std::fs::exists(format!("/proc/self/task/{agent}")).unwrap());
            let threads = hold.threads().to_vec();
            hold.if_abandoned(IfAbandoned::Kill).unwrap();
            hold.set_registers(&threads).unwrap();
            hold.if_abandoned(IfAbandoned::GoOn).unwrap();
            hold.release();
            std::thread::sleep(Duration::from_millis(2));
        }
        for technique in working("agent", &[Technique::PagemapScan, Technique::SoftDirty]) {
            for _ in 0..times(30, 500) {
                match attach_once(victim.pid(), technique, 1, Duration::from_millis(1)) {
                    Ok(_) | Err(pagetrail::Error::Seccomp { .. }) => {}
                    Err(error) => panic!("{name}, {technique}: {error}"),
                }
            }
        }
        victim.finish();
        let calls = CALLS.load(Ordering::Relaxed);
        assert_eq!(calls, 0, "{name}: calls of the allocator by agents");
    }
    OWN.store(u32::MAX, Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1)));
    assert_ne!(CALLS.load(Ordering::Relaxed), 0, "the counter counts");
}

const ROLE: &str = "PAGETRAIL_TEST_AGENT";

/// Runs a test of this file by another process, which may be without children.
fn apart(test: &str, role: &str, prepare: fn() -> std::io::Result<()>) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, role);
    // SAFETY: `prepare` makes system calls only.
    unsafe { command.pre_exec(prepare) };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    true
}

/// The PID of the process to hold, in the role of a tracker.
fn role() -> Option<u32> {
    std::env::var(ROLE).ok().map(|pid| pid.parse().unwrap())
}

/// How many signals have come at the end of children.
static ENDS: AtomicU32 = AtomicU32::new(0);

extern "C" fn child_has_ended(_: libc::c_int) {
    ENDS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn the_program_around_does_not_notice_its_agent() {
    let Some(pid) = role() else {
        let Some(victim) = Victim::start("threads", &[]) else {
            return;
        };
        let pid = victim.pid().to_string();
        apart("the_program_around_does_not_notice_its_agent", &pid, || {
            Ok(())
        });
        victim.finish();
        return;
    };
    // SAFETY: the handler only adds to an atomic number.
    unsafe {
        libc::signal(
            libc::SIGCHLD,
            child_has_ended as *const () as libc::sighandler_t,
        )
    };
    let no_child = || {
        // SAFETY: without a place for the status `waitpid` has no requirements.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        let error = std::io::Error::last_os_error();
        assert_eq!((waited, error.raw_os_error()), (-1, Some(libc::ECHILD)));
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..20 {
        let hold = Hold::process(pid).unwrap();
        let agent = support::tracer(pid);
        assert!(agent != 0 && agent != std::process::id());
        // SAFETY: `getsid` has no requirements. (0 is the session of a process that has another
        // PID namespace's, and that rustix takes for impossible.)
        let session = |pid| unsafe { libc::getsid(pid) };
        assert_eq!(session(agent as i32), agent as i32);
        assert_ne!(session(0), agent as i32);
        let sockets = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap();
        assert!(sockets.count() <= 2, "it keeps descriptors of the program");
        no_child();
        hold.release();
        no_child();
        assert!(
            !std::fs::exists(format!("/proc/{agent}")).unwrap(),
            "a zombie"
        );
    }
    assert_eq!(ENDS.load(Ordering::Relaxed), 0);
    assert_eq!(open(), before, "descriptors are left");
}

#[test]
fn a_hold_whose_agent_is_killed_says_so() {
    let Some(victim) = Victim::start("threads", &[]) else {
        return;
    };
    let mut hold = Hold::process(victim.pid()).unwrap();
    hold.check().unwrap();
    let agent = Pid::from_raw(agent_of(&victim) as i32).unwrap();
    rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while hold.check().is_ok() {
        assert!(Instant::now() < deadline, "it is not noticed");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(hold.if_abandoned(IfAbandoned::GoOn).is_err());
    drop(hold);
    victim.is_clean(true);
    victim.finish();
}

/// In the role of a tracker: is killed while it holds a process that is not to go on.
#[test]
fn a_process_that_must_not_go_on_ends_with_its_tracker() {
    if let Some(pid) = role() {
        let mut hold = Hold::process(pid).unwrap();
        hold.if_abandoned(IfAbandoned::Kill).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
        unreachable!("it is killed");
    }
    let Some(mut victim) = Victim::start("threads", &[]) else {
        return;
    };
    let test = "a_process_that_must_not_go_on_ends_with_its_tracker";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact"])
        .env(ROLE, victim.pid().to_string());
    assert_eq!(
        command.output().unwrap().status.signal(),
        Some(libc::SIGKILL)
    );
    assert!(victim.is_ending(), "it goes on");
}

/// Lets the process make threads, and no process.
fn forbid_processes() -> std::io::Result<()> {
    let statement = |code: u32, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let no_such_call = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = [
        statement(LOAD, 0),
        // Of this call the flags are in memory, which a filter does not see; the C library then
        // takes the other.
        jump(EQUAL, 0, 1, libc::SYS_clone3 as u32),
        statement(RETURN, no_such_call),
        jump(EQUAL, 0, 3, libc::SYS_clone as u32),
        statement(LOAD, 16),
        jump(SET, 1, 0, libc::CLONE_THREAD as u32),
        statement(RETURN, refused),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `filter` describes `program`, both of which outlive the calls.
    let outcome = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn where_no_process_can_be_made_a_thread_stops_others() {
    let Some(pid) = role() else {
        let Some(victim) = Victim::start("threads", &[]) else {
            return;
        };
        let pid = victim.pid().to_string();
        let test = "where_no_process_can_be_made_a_thread_stops_others";
        apart(test, &pid, forbid_processes);
        victim.is_clean(true);
        victim.finish();
        return;
    };
    for _ in 0..20 {
        let hold = Hold::process(pid).unwrap();
        let tracer = support::tracer(pid);
        assert!(std::fs::exists(format!("/proc/self/task/{tracer}")).unwrap());
        hold.release();
    }
    for technique in working("agent", &[Technique::PagemapScan]) {
        let watch = attach_once(pid, technique, 2, Duration::from_millis(1)).unwrap();
        assert!(watch.attach_stopped() > Duration::ZERO);
    }
}
