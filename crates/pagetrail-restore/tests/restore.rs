//! Programs that check themselves go through checkpoint, death and restore at random instants, and
//! notice nothing; what cannot be started anew is refused by its name.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::print_stdout, reason = "tests print what they did")]
#![allow(
    clippy::zombie_processes,
    reason = "`Program` waits for its process by the PID"
)]

mod program;
#[path = "../../pagetrail/tests/support/mod.rs"]
mod support;

use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Image, ProcessCheckpointer, ProcessOptions, Store, WorldWritable, WriterOptions,
    check_restartable, credentials_of,
};
use pagetrail_restore::{
    Error, Missing, PidChoice, RestoreOptions, Stdio, restore, restore_copies,
};
use program::{Program, checkpoint, may_choose_pids, options};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio as Standard};
use std::sync::Arc;
use std::time::Duration;
use support::{random, times};

fn goes_on(threads: u32, rounds: u32) {
    if !may_choose_pids() {
        return;
    }
    let Some(running) = Program::of_victim("restored", &[&threads.to_string()]) else {
        return;
    };
    let mut random = random("restore");
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        running.assert_running();
        let mut image = checkpoint(running.pid());
        running.kill();
        let restored = restore(&mut image, &options()).unwrap();
        assert_eq!(restored.pid, running.pid());
        assert_eq!(restored.threads, threads as usize);
        assert_eq!(restored.lost, [""; 0]);
        slowest = slowest.max(restored.elapsed);
    }
    // It is still at work, and comes to its end by itself.
    let before = running.text("alive");
    while running.text("alive") == before {
        running.assert_running();
        std::thread::sleep(Duration::from_millis(1));
    }
    File::create(running.directory.path().join("stop")).unwrap();
    running.ends_clean();
    println!("{rounds} restores of {threads} threads, the slowest in {slowest:?}");
}

#[test]
fn a_program_goes_on_from_any_instant() {
    goes_on(1, times(30, 300));
}

#[test]
fn threads_go_on_from_any_instant() {
    goes_on(5, times(30, 300));
}

/// A program that does nothing for a long time.
fn sleeper() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

/// Waits until a process is in a system call.
fn await_call(program: &Program, number: i64) {
    let wanted = format!("{number} ");
    let call = || fs::read_to_string(format!("/proc/{}/syscall", program.pid()));
    while call().is_ok_and(|call| !call.starts_with(&wanted)) {
        program.assert_running();
        std::thread::yield_now();
    }
}

#[test]
fn a_sleep_that_an_earlier_stop_interrupted_begins_anew() {
    const CLOCK_NANOSLEEP: i64 = 230;
    const RESTART_SYSCALL: i64 = 219;
    if !may_choose_pids() {
        return;
    }
    let program = Program::start(&mut sleeper(), tempfile::tempdir().unwrap());
    await_call(&program, CLOCK_NANOSLEEP);
    checkpoint(program.pid());
    await_call(&program, RESTART_SYSCALL);
    let mut image = checkpoint(program.pid());
    program.kill();
    restore(&mut image, &options()).unwrap();
    await_call(&program, CLOCK_NANOSLEEP);
    program.assert_running();
}

#[test]
fn a_process_of_another_user_is_who_it_was() {
    const CLOCK_NANOSLEEP: i64 = 230;
    const USER: &str = "65534";
    if !may_choose_pids() {
        return;
    }
    if !support::has("setpriv") {
        pagetrail_skips::not_here("no setpriv(1) to start a program with capabilities");
        return;
    }
    for capabilities in [None, Some("+net_bind_service")] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
        if let Some(some) = capabilities {
            command.args(["--inh-caps", some, "--ambient-caps", some]);
        }
        command.args(["sleep", "1000"]);
        let program = Program::start(&mut command, tempfile::tempdir().unwrap());
        await_call(&program, CLOCK_NANOSLEEP);
        let who = || credentials_of(program.pid()).unwrap();
        let before = who();
        assert_eq!(before.capabilities[4] != 0, capabilities.is_some());
        let mut image = checkpoint(program.pid());
        program.kill();
        let restored = restore(&mut image, &options()).unwrap();
        assert_eq!(restored.lost, [""; 0]);
        assert_eq!(who(), before);
        // Its files in `/proc` belong to it, not to root.
        let owner = fs::metadata(format!("/proc/{}/status", program.pid())).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 65534);
        program.assert_running();
    }
}

/// What is said of a program that is started by a command.
fn refusal(command: &mut Command) -> String {
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let program = Program {
        pid,
        directory: tempfile::tempdir().unwrap(),
    };
    // Until it executes the program it has descriptors of this one.
    while fs::read_to_string(format!("/proc/{}/comm", program.pid())).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    check_restartable(program.pid()).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_started_anew_is_refused_by_its_name() {
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let message = refusal(sleeper().stdin(std::os::fd::OwnedFd::from(socket)));
    assert!(message.contains("descriptor 0 is a socket"), "{message}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let gone = File::create(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let message = refusal(sleeper().stdout(gone));
    assert!(message.contains("no name any more"), "{message}");

    let locked = File::create(&path).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let message = refusal(sleeper().stdout(locked));
    assert!(message.contains("lock"), "{message}");

    let mut parent = Command::new("sh");
    parent.args(["-c", "sleep 1000; true"]);
    let mut parent = parent.process_group_of_its_own().spawn().unwrap();
    let message = loop {
        match check_restartable(parent.id()) {
            Err(error) if error.to_string().contains("child") => break error.to_string(),
            _ => std::thread::yield_now(),
        }
    };
    assert!(message.contains("has a child"), "{message}");
    let group = Pid::from_raw(parent.id() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    parent.wait().unwrap();
}

#[test]
fn a_mapped_file_whose_name_has_a_line_break_is_refused() {
    let Some(program) = support::victim_program("lacking") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lack\ning");
    fs::copy(program, &path).unwrap();
    let mut command = Command::new(path);
    command.arg(directory.path()).args(["16", "1"]);
    let running = Program::start(&mut command, directory);
    running.await_output("ready");
    let message = check_restartable(running.pid()).unwrap_err().to_string();
    assert!(message.contains("whose name has a line break"), "{message}");
}

#[test]
fn a_thread_that_is_not_as_the_main_one_is_refused() {
    let Some(program) = support::victim_program("apart") else {
        return;
    };
    for (what, said) in [
        ("seccomp", "a seccomp filter"),
        ("files", "descriptors of its own"),
        ("directory", "a working directory and umask of its own"),
        ("capabilities", "other users, groups or capabilities"),
    ] {
        if what == "capabilities" && !support::is_root() {
            pagetrail_skips::not_here("a thread gives up its capabilities only where it has some");
            continue;
        }
        let mut command = Command::new(&program);
        let running = Program::start(command.arg(what), tempfile::tempdir().unwrap());
        running.await_output("ready");
        let message = check_restartable(running.pid()).unwrap_err().to_string();
        assert!(message.contains(said), "{what}: {message}");
        assert!(message.contains(": thread "), "{what}: {message}");
    }
}

/// So that a program and its children can be ended together.
trait OwnGroup {
    fn process_group_of_its_own(&mut self) -> &mut Self;
}

impl OwnGroup for Command {
    fn process_group_of_its_own(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::process_group(self, 0)
    }
}

#[test]
fn what_is_not_as_it_was_is_said_before_anything_starts() {
    if !may_choose_pids() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    let program = Program::start(&mut sleeper(), directory);
    while !Path::new(&format!("/proc/{}/exe", program.pid())).exists()
        || check_restartable(program.pid()).is_err()
        || fs::read_to_string(format!("/proc/{}/syscall", program.pid())).is_ok_and(|call| {
            // `clock_nanosleep(2)`.
            !call.starts_with("230 ")
        })
    {
        std::thread::yield_now();
    }
    let mut image = checkpoint(program.pid());
    let strict = RestoreOptions {
        on_missing: Missing::Fail,
        allow_changed_files: false,
        stdio: Stdio::Null,
        ..options()
    };
    let lenient = RestoreOptions {
        on_missing: Missing::Null,
        ..strict
    };
    let refused = |image: &mut Image, options: &RestoreOptions| match restore(image, options) {
        Ok(restored) => panic!("{restored:?}"),
        Err(error) => error.to_string(),
    };
    assert!(matches!(
        restore(&mut image, &lenient),
        Err(Error::PidTaken { .. })
    ));
    // Copies beside it have other PIDs, and say so.
    for _ in 0..3 {
        let restored = restore(
            &mut image,
            &RestoreOptions {
                pid: PidChoice::Any,
                ..lenient
            },
        )
        .unwrap();
        let copy = Program {
            pid: Pid::from_raw(restored.pid as i32).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        };
        copy.assert_running();
        assert_eq!(restored.lost.len(), 1, "{restored:?}");
        let name = |pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert_eq!(name(restored.pid), name(program.pid()));
    }
    program.kill();
    fs::write(&path, "more than it was").unwrap();
    let message = refused(&mut image, &lenient);
    assert!(message.contains("has changed since"), "{message}");
    fs::remove_file(&path).unwrap();
    let message = refused(&mut image, &strict);
    assert!(message.contains("is not there now"), "{message}");
    let restored = restore(&mut image, &lenient).unwrap();
    let pid = Pid::from_raw(restored.pid as i32).unwrap();
    assert_eq!(pid, program.pid);
    program.assert_running();
    let output = fs::read_link(format!("/proc/{}/fd/1", restored.pid)).unwrap();
    assert_eq!(output, Path::new("/dev/null"));
}

#[test]
fn a_mapped_file_that_was_written_since_is_noticed() {
    if !may_choose_pids() {
        return;
    }
    let Some(running) = Program::of_victim("restored", &["1"]) else {
        return;
    };
    let mut image = checkpoint(running.pid());
    running.kill();
    let strict = RestoreOptions {
        allow_changed_files: false,
        ..options()
    };
    let table = running.directory.path().join("table");
    let mut table = File::options().write(true).open(table).unwrap();
    std::io::Write::write_all(&mut table, b"ENTRIES").unwrap();
    table.set_modified(std::time::UNIX_EPOCH).unwrap();
    let message = restore(&mut image, &strict).unwrap_err().to_string();
    assert!(
        message.contains("table, which has changed since the checkpoint"),
        "{message}"
    );
}

#[test]
fn a_checkpoint_that_was_not_made_for_it_is_refused() {
    let program = Program::start(&mut sleeper(), tempfile::tempdir().unwrap());
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let mut process =
        ProcessCheckpointer::attach(program.pid(), ProcessOptions::default()).unwrap();
    process.checkpoint(&mut writer).unwrap();
    let mut image = store.newest_image().unwrap();
    let message = restore(&mut image, &options()).unwrap_err().to_string();
    assert!(
        message.contains("was not made to start a process"),
        "{message}"
    );
}

/// Memory that a process has for itself alone, in KiB.
fn private_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let amounts = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    amounts.sum()
}

#[test]
fn copies_share_what_none_of_them_writes() {
    const KIB: u64 = 64 << 10;
    let pages = (KIB / 4).to_string();
    let Some(running) = Program::of_victim("brood", &[&pages, "3", "1"]) else {
        return;
    };
    let mut image = checkpoint(running.pid());
    let alone = private_kib(running.pid());
    assert!(alone > KIB, "{alone} KiB");
    running.kill();
    let copies = restore_copies(&mut image, &options(), 4).unwrap();
    assert_eq!(copies.len(), 4);
    let programs: Vec<Program> = copies
        .iter()
        .map(|copy| Program {
            pid: Pid::from_raw(copy.pid as i32).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        })
        .collect();
    for program in &programs {
        let own = private_kib(program.pid());
        assert!(own < alone / 16, "{own} KiB of {alone}");
        program.assert_running();
    }
    File::create(running.directory.path().join("go")).unwrap();
    for program in &programs {
        let code = program.exit_code();
        assert_eq!(code, Some(0), "{}", running.text("output"));
    }
    assert!(running.text("output").ends_with("clean\n"));
}

/// Where [`restores_for_another_test`] finds the store.
const STORE_VARIABLE: &str = "PAGETRAIL_TEST_RESTORE_STORE";

/// No test of its own: the process that another test kills.
#[test]
fn restores_for_another_test() {
    if let Some(store) = std::env::var_os(STORE_VARIABLE) {
        let mut image = Store::open(Path::new(&store))
            .unwrap()
            .newest_image()
            .unwrap();
        restore(&mut image, &options()).unwrap();
    }
}

#[test]
fn a_kill_of_who_restores_leaves_no_half_started_process() {
    if !may_choose_pids() {
        return;
    }
    // What the killed process leaves becomes a child of this one.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let Some(running) = Program::of_victim("restored", &["2"]) else {
        return;
    };
    let mut random = random("killed restore");
    let place = tempfile::tempdir().unwrap();
    let store = Store::create(&place.path().join("store"), WorldWritable::Refuse).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let options = ProcessOptions {
        restartable: true,
        ..ProcessOptions::default()
    };
    let mut process = ProcessCheckpointer::attach(running.pid(), options).unwrap();
    process.checkpoint(&mut writer).unwrap();
    running.kill();
    let (mut without, mut with) = (0, 0);
    for _ in 0..times(40, 400) {
        let mut helper = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "restores_for_another_test"])
            .env(STORE_VARIABLE, place.path().join("store"))
            .stdin(Standard::null())
            .stdout(Standard::null())
            .stderr(Standard::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(random.u64(0..80_000)));
        helper.kill().unwrap();
        helper.wait().unwrap();
        // Whatever is there now has been killed with it, or was let go and goes on.
        match waitpid(Some(running.pid), WaitOptions::NOHANG) {
            Err(_) => without += 1,
            Ok(ended) => {
                std::thread::sleep(Duration::from_millis(5));
                let output = running.text("output");
                assert_eq!(output.matches("ready").count(), 1, "{output}");
                assert!(!output.contains("wrong"), "{output}");
                if ended.is_none() {
                    running.kill();
                }
                with += 1;
            }
        }
    }
    println!("no process after {without} kills, one that was killed or goes on after {with}");
}
