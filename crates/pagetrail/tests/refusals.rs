//! Targets that cannot be tracked are refused with one error that names the reason and the cure;
//! targets in special states are tracked and left in that state.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{self, PagemapScan, Userfaultfd};
use pagetrail::{Error, Target, Watch};
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Victim, attach_once, has, is_root, row, state, tracer, working};

/// A process that is killed when dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn refused(pid: u32, technique: Technique) -> Error {
    match attach_once(pid, technique, 1, Duration::ZERO) {
        Ok(watch) => panic!("{watch:?}"),
        Err(error) => error,
    }
}

#[test]
fn no_such_process() {
    assert!(matches!(
        Target::process(0),
        Err(Error::NoSuchProcess { pid: 0 })
    ));
    assert!(matches!(
        Target::process(u32::MAX),
        Err(Error::NoSuchProcess { .. })
    ));
    let ended = Process::start(&mut Command::new("true"));
    let pid = ended.pid();
    until("its end", || state(pid) == 'Z');
    // First as a zombie, then reaped.
    assert!(matches!(
        Target::process(pid),
        Err(Error::NoSuchProcess { .. })
    ));
    drop(ended);
    assert!(matches!(
        Target::process(pid),
        Err(Error::NoSuchProcess { .. })
    ));
}

#[test]
fn this_process_and_its_threads() {
    let own = std::process::id();
    assert!(matches!(Target::process(own), Err(Error::OwnProcess { pid }) if pid == own));
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    assert!(matches!(
        Target::process(thread),
        Err(Error::OwnProcess { .. })
    ));
}

#[test]
fn kernel_threads() {
    // kthreadd, in the first PID namespace.
    let name = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if name.trim() != "kthreadd" {
        return row(
            "refusals: kernel thread",
            "any",
            "absent",
            "PID 2 is not kthreadd (a container)",
        );
    }
    assert!(matches!(
        Target::process(2),
        Err(Error::KernelThread { pid: 2 })
    ));
}

/// A control group with a freezer of either version and its settings, or `None` if there is none.
fn freezer() -> Option<(std::path::PathBuf, &'static str, [&'static str; 2])> {
    let name = format!("pagetrail-test-{}", std::process::id());
    let version_1 = std::path::Path::new("/sys/fs/cgroup/freezer").join(&name);
    if std::fs::create_dir(&version_1).is_ok() {
        return Some((version_1, "freezer.state", ["FROZEN", "THAWED"]));
    }
    let version_2 = std::path::Path::new("/sys/fs/cgroup").join(&name);
    std::fs::create_dir(&version_2).ok()?;
    Some((version_2, "cgroup.freeze", ["1", "0"]))
}

#[test]
fn frozen_by_its_control_group() {
    let subject = "refusals: frozen";
    let Some((group, file, [freeze, thaw])) = freezer() else {
        return row(
            subject,
            "any",
            "absent",
            "no control group can be made here",
        );
    };
    let victim = Victim::start("sleeper", &[]);
    let frozen = victim.as_ref().and_then(|victim| {
        let pid = victim.pid();
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).ok()?;
        std::fs::write(group.join(file), freeze).ok()?;
        let error = working(subject, &[PagemapScan])
            .first()
            .map(|&technique| refused(pid, technique));
        std::fs::write(group.join(file), thaw).unwrap();
        Some((pid, error))
    });
    drop(victim);
    // Its process is reaped, so that it can be removed.
    let removed = std::fs::remove_dir(&group);
    match frozen {
        Some((pid, Some(error))) => {
            assert!(
                matches!(error, Error::Frozen { pid: of } if of == pid),
                "{error}"
            );
            row(subject, "any", "works", "");
        }
        _ => row(
            subject,
            "any",
            "absent",
            "the group does not freeze, or no technique attaches",
        ),
    }
    removed.unwrap();
}

#[test]
fn traced_by_another() {
    if !has("strace") {
        return row("refusals: traced", "any", "absent", "no strace");
    }
    let Some(victim) = Victim::start("sleeper", &[]) else {
        return;
    };
    let strace = Process::start(
        Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-p", &victim.pid().to_string()])
            .stderr(Stdio::null()),
    );
    until("tracing", || tracer(victim.pid()) == strace.pid());
    match Target::process(victim.pid()) {
        Err(Error::Traced { tracer, .. }) => assert_eq!(tracer, strace.pid()),
        other => panic!("{other:?}"),
    }
    strace_ends(strace);
    victim.finish();
}

/// Ends strace by a signal on which it detaches.
fn strace_ends(strace: Process) {
    let pid = rustix::process::Pid::from_raw(strace.pid() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let mut strace = strace;
    let _ = strace.0.wait();
}

/// Copies a program by another process: if this one opened it for writing, a child that another
/// test forks meanwhile would keep it open, and it could not be executed (`ETXTBSY`).
fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = Command::new("cp").args([from, to]).status().unwrap();
    assert!(status.success());
}

#[test]
fn without_permission_the_cure_is_named() {
    if !is_root() || !has("setpriv") {
        return row(
            "refusals: permission",
            "any",
            "absent",
            "needs root and setpriv to run as the user nobody",
        );
    }
    let Some(victim) = Victim::start("sleeper", &[]) else {
        return;
    };
    // Runs this test binary as the user nobody, from a directory that this user can reach.
    let here = std::env::temp_dir().join(format!("pagetrail-refusals-{}", std::process::id()));
    copy(&std::env::current_exe().unwrap(), &here);
    for technique in working(
        "refusals: permission",
        &[PagemapScan, Userfaultfd, Technique::Compare],
    ) {
        let output = Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--inh-caps=-all",
            ])
            .arg(&here)
            .args(["as_nobody", "--exact", "--nocapture"])
            .env(
                "PAGETRAIL_TEST_NOBODY",
                format!("{} {technique}", victim.pid()),
            )
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{}", said.trim());
        let cures = ["CAP_SYS_PTRACE", "ptrace_scope", "unprivileged_userfaultfd"];
        assert!(cures.iter().any(|cure| said.contains(cure)), "{said}");
    }
    std::fs::remove_file(here).unwrap();
    victim.finish();
}

/// Runs as the user `nobody` and prints the error; not a test by itself.
#[test]
fn as_nobody() {
    let Ok(role) = std::env::var("PAGETRAIL_TEST_NOBODY") else {
        return;
    };
    let (pid, technique) = role.split_once(' ').unwrap();
    let error = refused(pid.parse().unwrap(), technique.parse().unwrap());
    println!("{technique}: {error}");
}

/// A 32-bit program in 119 bytes, for machines without a 32-bit compiler: it calls `pause` by `int
/// 0x80` for ever.
fn thirty_two_bit_program() -> Vec<u8> {
    let base: u32 = 0x0804_8000;
    let code: &[u8] = &[0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    let mut elf = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // The fields e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, then sizes and
    // counts; elf(5).
    elf.extend([2, 0, 3, 0, 1, 0, 0, 0]);
    elf.extend((base + 52 + 32).to_le_bytes());
    elf.extend([
        52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0,
    ]);
    // A PT_LOAD segment, readable and executable.
    let size = 52 + 32 + code.len() as u32;
    for word in [1, 0, base, base, size, size, 5, 0x1000] {
        elf.extend(u32::to_le_bytes(word));
    }
    elf.extend(code);
    elf
}

#[test]
fn thirty_two_bit_programs() {
    use std::os::unix::fs::PermissionsExt;
    let program = std::env::temp_dir().join(format!("pagetrail-32-{}", std::process::id()));
    let bytes = program.with_extension("bytes");
    std::fs::write(&bytes, thirty_two_bit_program()).unwrap();
    copy(&bytes, &program);
    std::fs::remove_file(bytes).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let started = Command::new(&program).stdin(Stdio::null()).spawn();
    match started {
        Ok(child) => {
            let child = Process(child);
            until("its start", || state(child.pid()) == 'S');
            match Target::process(child.pid()) {
                Err(Error::ThirtyTwoBit { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        Err(error) => row(
            "refusals: 32-bit",
            "any",
            "absent",
            &format!("no 32-bit programs: {error}"),
        ),
    }
    std::fs::remove_file(program).unwrap();
}

#[test]
fn a_target_that_ends_during_attach_is_reported() {
    for technique in working(
        "refusals: vanished",
        &[PagemapScan, Userfaultfd, Technique::Compare],
    ) {
        for delay_us in (0..40).map(|n| n * 50) {
            let Some(mut victim) = Victim::start("sleeper", &[]) else {
                return;
            };
            let pid = victim.pid();
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(delay_us));
                let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
                rustix::process::kill_process(pid, Signal::KILL).unwrap();
            });
            let outcome = (0..1000).find_map(|_| {
                let watch = attach_once(pid, technique, 3, Duration::ZERO);
                watch.err()
            });
            killer.join().unwrap();
            match outcome {
                Some(Error::Gone { .. } | Error::NoSuchProcess { .. }) => {}
                other => panic!("{technique}: {other:?}"),
            }
            until("the end", || !victim.is_running());
        }
    }
}

#[test]
fn memory_that_the_target_tracks_itself_is_untracked() {
    for technique in working("target with a userfaultfd", &[PagemapScan, Userfaultfd]) {
        let Some(victim) = Victim::start("selfuffd", &[]) else {
            return;
        };
        let own = victim.said[0].trim_start_matches("0x");
        let own = u64::from_str_radix(own, 16).unwrap();
        let target = Target::process(victim.pid()).unwrap();
        let mut watch = Watch::builder()
            .target(target)
            .technique(technique)
            .start()
            .unwrap();
        let untracked = watch.untracked();
        assert!(
            untracked
                .iter()
                .any(|g| g.region.range.contains(own) && g.compared),
            "{watch:?}"
        );
        let only_own = |range: &pagetrail::PageRange| range.contains(own);
        for untracked in untracked
            .iter()
            .filter(|g| g.reason.contains("own userfaultfd"))
        {
            assert!(only_own(&untracked.region.range), "{untracked}");
        }
        let mut seen = 0;
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(10));
            let round = watch.collect().unwrap();
            seen += u32::from(round.dirty().contains(own));
            round.commit();
        }
        assert!(seen > 0, "compare sees the writes");
        drop(watch);
        for _ in 0..50 {
            attach_once(victim.pid(), technique, 1, Duration::from_micros(500)).unwrap();
        }
        victim.finish();
        row("target with a userfaultfd", technique.name(), "works", "");
    }
}

#[test]
fn stopped_processes_stay_stopped() {
    for technique in working("stopped target", &[PagemapScan, Userfaultfd]) {
        let Some(victim) = Victim::start("stopper", &[]) else {
            return;
        };
        let pid = victim.pid();
        for _ in 0..50 {
            victim.signal(Signal::STOP);
            until("the stop", || state(pid) == 'T');
            drop(attach_once(pid, technique, 1, Duration::from_micros(500)).unwrap());
            // It stops again when it is released.
            until("the stop after", || state(pid) == 'T');
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(state(pid), 'T');
            assert_eq!(tracer(pid), 0);
            victim.signal(Signal::CONT);
            // A stop that arrives before the handler has run discards SIGCONT.
            until("going on", || {
                state(pid) != 'T' && !support::is_pending(pid)
            });
        }
        victim.is_clean(true);
        assert_eq!(victim.finish().trim(), "continued 50");
        row("stopped target", technique.name(), "works", "");
    }
}

/// Filters that allow what attaching needs are no obstacle if they can be read; others are
/// respected.
#[test]
fn seccomp_filters_do_not_kill() {
    for how in ["all", "thread", "restart", "strict"] {
        for technique in working("seccomp target", &[PagemapScan, Userfaultfd]) {
            let Some(mut victim) = Victim::start("seccomp", &["600", how]) else {
                return;
            };
            let forbids = matches!(how, "all" | "strict");
            for _ in 0..50 {
                match attach_once(victim.pid(), technique, 1, Duration::from_micros(300)) {
                    Ok(watch) if !forbids => drop(watch),
                    Ok(watch) => panic!("{watch:?} under {how}"),
                    Err(Error::Seccomp { .. }) if forbids => {}
                    Err(Error::Seccomp { .. }) if how == "restart" => {
                        row(
                            "seccomp target",
                            technique.name(),
                            "absent",
                            "filters cannot be read",
                        );
                        break;
                    }
                    Err(error) => victim.blame(&error),
                }
                drop(pagetrail::Hold::process(victim.pid()).unwrap());
            }
            if forbids {
                // The automatic choice picks a technique that runs no code in the target.
                let target = Target::process(victim.pid()).unwrap();
                let watch = Watch::builder().target(target).start().unwrap();
                assert!(!matches!(watch.technique(), PagemapScan | Userfaultfd));
                assert!(watch.reason().contains("seccomp"), "{}", watch.reason());
            }
            victim.is_clean(true);
            victim.finish();
            row("seccomp target", technique.name(), "works", "");
        }
    }
}

/// The kernel truncates a name to 15 bytes, possibly within a character, and a program may choose
/// any bytes.
#[test]
fn names_that_are_not_utf_8_are_no_reason() {
    use std::os::unix::ffi::OsStrExt;
    let Some(program) = support::victim_program("sleeper") else {
        return;
    };
    let directory = std::env::temp_dir().join(format!("pagetrail-names-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let names: [&[u8]; 3] = [
        "программа".as_bytes(),
        b"abcdefghijklmn\xc3\xbc",
        b"n\xff) R 1",
    ];
    for name in names {
        let path = directory.join(std::ffi::OsStr::from_bytes(name));
        copy(&program, &path);
        for technique in working("names", &[PagemapScan, Userfaultfd, Technique::Compare]) {
            // As a process that is running already.
            let mut command = Command::new(&path);
            let mut victim = Victim::of("sleeper", &mut command).unwrap();
            let attached = attach_once(victim.pid(), technique, 1, Duration::ZERO);
            drop(attached.unwrap_or_else(|error| victim.blame(&error)));
            drop(pagetrail::Hold::process(victim.pid()).unwrap());
            victim.is_clean(true);
            victim.finish();
            // Started by the watch: it reaches its end, and the watch reports that.
            let mut command = Command::new(&path);
            command.arg("0").stdin(Stdio::null()).stdout(Stdio::null());
            let target = Target::command(command);
            let builder = Watch::builder().target(target).technique(technique);
            let mut watch = builder.start().unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                assert!(Instant::now() < deadline, "no end of {}", path.display());
                match watch.wait(Duration::from_millis(10)) {
                    pagetrail::State::Ended(_) => break,
                    pagetrail::State::Exiting => watch.release_exit(),
                    _ => {}
                }
            }
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}
