//! Attaching to running programs, over and over, harms none of them: each victim checks itself, and
//! no trace of the tracker is left in it.

#![allow(clippy::print_stdout, reason = "tests print what they did")]

mod support;

use pagetrail::Technique::{self, Compare, PagemapScan, Userfaultfd};
use pagetrail::{PageRange, PageSet, Target, Watch};
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Victim, attach_once, random, row, times, victim_program, working};

/// Attaches `count` times to a running victim, with pauses of all lengths.
fn attach_repeatedly(victim: &mut Victim, technique: Technique, count: u32) {
    let mut random = random(technique.name());
    let (mut stopped, began) = (Vec::new(), Instant::now());
    for _ in 0..count {
        let pause = Duration::from_micros(random.u64(0..1500));
        let mut attach = || attach_once(victim.pid(), technique, random.u32(0..3), pause);
        // On a busy machine a victim may not stop in time, which harms it as little.
        let mut watch = attach();
        for _ in 0..3 {
            if !matches!(&watch, Err(error) if error.to_string().contains("did not stop within")) {
                break;
            }
            watch = attach();
        }
        let watch = watch.unwrap_or_else(|error| victim.blame(&error));
        stopped.push(watch.attach_stopped());
        drop(watch);
        std::thread::sleep(Duration::from_micros(random.u64(0..3000)));
    }
    stopped.sort();
    println!(
        "{count} times by {technique} in {:?}; stopped for {:?} in the median, {:?} at most",
        began.elapsed(),
        stopped[stopped.len() / 2],
        stopped[stopped.len() - 1]
    );
}

fn survives(name: &str, arguments: &[&str], count: u32) {
    let subject = format!("attach: {name}");
    for technique in working(&subject, &[PagemapScan, Userfaultfd]) {
        let Some(mut victim) = Victim::start(name, arguments) else {
            return;
        };
        attach_repeatedly(&mut victim, technique, count);
        // The code stays by which a wait goes on that was interrupted twice.
        victim.is_clean(!matches!(name, "epoller" | "signals"));
        let said = victim.finish();
        println!("{name}: {}", said.trim());
        row(&subject, technique.name(), "works", "");
    }
}

#[test]
fn sleeps_are_not_cut_short() {
    survives("sleeper", &[], times(200, 2000));
}

#[test]
fn waits_for_events_are_not_cut_short() {
    survives("epoller", &[], times(200, 2000));
}

#[test]
fn futex_waits_continue() {
    survives("futexer", &[], times(200, 2000));
}

#[test]
fn blocking_reads_continue() {
    survives("reader", &[], times(200, 2000));
}

#[test]
fn signals_arrive_once_and_interrupt_what_they_should() {
    survives("signals", &[], times(300, 2000));
}

#[test]
fn registers_stacks_and_thread_local_memory_stay() {
    survives("threads", &[], times(200, 2000));
}

#[test]
fn programs_that_execute_each_other_can_be_attached() {
    executed("main");
}

/// For a moment the process has no files in /proc: its leader has been reaped, and the thread that
/// executes has not taken its number yet.
#[test]
fn programs_that_a_thread_executes_can_be_attached() {
    executed("thread");
}

fn executed(thread: &str) {
    let Some(program) = victim_program("execer") else {
        return;
    };
    let subject = &format!("attach: execer, {thread}");
    for technique in working(subject, &[PagemapScan, Userfaultfd]) {
        // More than there is time for, one every few milliseconds.
        let mut command = Command::new(&program);
        let mut child = command.args(["600", thread, "1000000"]).spawn().unwrap();
        for _ in 0..times(100, 3000) {
            let target = Target::process(child.id());
            let target = target.unwrap_or_else(|error| panic!("{technique}: {error}"));
            let builder = Watch::builder().target(target);
            let watch = builder.technique(technique).start();
            watch.unwrap_or_else(|error| panic!("{technique}: {error}"));
        }
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "{technique}: it found fault with its memory");
        child.kill().unwrap();
        child.wait().unwrap();
        row(subject, technique.name(), "works", "");
    }
}

#[test]
fn restartable_sequences_restart() {
    survives("rseq", &[], times(40, 500));
}

#[test]
fn changing_mappings_keep_their_contents() {
    survives("mapper", &[], times(50, 1000));
}

/// The victim's arguments for each way in which a stop cuts a blocking call short.
const TRANSFERS: &[&str] = &[
    "pipe",
    "write",
    "send",
    "waitall",
    "tcp",
    "tcp send",
    "tcp waitall",
    "random",
    "zero",
    "pipe writev",
    "writev",
    "sendmsg",
    "recvmsg waitall",
    "tcp writev",
    "tcp sendmsg",
    "tcp recvmsg waitall",
    "tcp sendfile",
    "sendfile",
    "sendmmsg",
    "recvmmsg",
    "readv zero",
    "tty",
];

#[test]
fn transfers_are_complete() {
    for technique in working("attach: transfers", &[PagemapScan]) {
        for how in TRANSFERS {
            let Some(mut victim) = Victim::start("transfers", &["600", how]) else {
                return;
            };
            attach_repeatedly(&mut victim, technique, times(20, 1000));
            for _ in 0..times(20, 1000) {
                pagetrail::Hold::process(victim.pid()).unwrap().release();
                std::thread::sleep(Duration::from_millis(1));
            }
            // Injected code that a thread may still execute is left in place.
            victim.is_clean(false);
            println!("{how}: {}", victim.finish().trim());
        }
        row("attach: transfers", technique.name(), "works", "");
    }
}

/// The address from which a process is writing, while it waits in `write(2)`
/// (`proc_pid_syscall(5)`).
fn writes_from(pid: u32) -> Option<String> {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut words = call.split(' ');
    let is_write = words.next() == Some(&libc::SYS_write.to_string());
    words.nth(1).filter(|_| is_write).map(String::from)
}

#[test]
fn a_pending_signal_handler_ends_a_transfer() {
    let subject = "attach: interrupted";
    for technique in working(subject, &[PagemapScan]) {
        let Some(victim) = Victim::start("interrupted", &["600"]) else {
            return;
        };
        let pid = victim.pid();
        let wait_for = |wanted: &dyn Fn(&str) -> bool| {
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                assert!(
                    Instant::now() < deadline,
                    "the write goes on though a handler has run"
                );
                match writes_from(pid) {
                    Some(from) if wanted(&from) => break from,
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        };
        for _ in 0..times(50, 1000) {
            let from = wait_for(&|_| true);
            let hold = pagetrail::Hold::process(pid).unwrap();
            victim.signal(rustix::process::Signal::USR1);
            hold.release();
            wait_for(&|other| other != from);
        }
        victim.is_clean(false);
        victim.finish();
        row(subject, technique.name(), "works", "");
    }
}

#[test]
fn trackers_that_attach_at_once_wait_for_each_other() {
    let subject = "attach: two trackers";
    for technique in working(subject, &[PagemapScan]) {
        let Some(victim) = Victim::start("sleeper", &[]) else {
            return;
        };
        let pid = victim.pid();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..times(50, 1000) {
                        let watch = attach_once(pid, technique, 0, Duration::ZERO);
                        drop(watch.unwrap_or_else(|error| panic!("{error}")));
                        pagetrail::Hold::process(pid).unwrap().release();
                    }
                });
            }
        });
        victim.is_clean(true);
        victim.finish();
        row(subject, technique.name(), "works", "");
    }
}

#[test]
fn a_main_thread_that_has_ended_is_no_reason() {
    let subject = "attach: main thread ended";
    for technique in working(subject, &[PagemapScan, Userfaultfd, Compare]) {
        let Some(mut victim) = Victim::start("mainless", &[]) else {
            return;
        };
        let command = pagetrail::command_line(victim.pid());
        assert!(command[0].ends_with("mainless"), "{command:?}");
        let start = u64::from_str_radix(&victim.said[0], 16).unwrap();
        let pages = 64 * 4096;
        let target = Target::process(victim.pid()).unwrap();
        let range = PageRange::new(start, start + pages).unwrap();
        let watch = Watch::builder().target(target).technique(technique);
        let mut watch = watch.start().unwrap_or_else(|error| victim.blame(&error));
        let wanted = PageSet::from(range);
        let mut written = PageSet::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while written.bytes() < pages {
            assert!(Instant::now() < deadline, "{technique}: {written:?}");
            let round = watch.collect().unwrap();
            written.union_with(&(round.dirty() & &wanted));
            round.commit();
        }
        let hold = pagetrail::Hold::process(victim.pid()).unwrap();
        let mut bytes = vec![0; pages as usize];
        let memory = pagetrail::Memory::of(victim.pid()).unwrap();
        memory.read(&[range], &mut bytes).unwrap();
        assert!(bytes.chunks(4096).all(|page| page[0] != 0), "{technique}");
        hold.release();
        drop(watch);
        victim.is_clean(true);
        victim.finish();
        row(subject, technique.name(), "works", "");
    }
}

#[test]
fn descriptors_keep_their_numbers() {
    for how in ["thread", "process", "full", "queue"] {
        survives("descriptors", &["600", how], times(50, 1000));
    }
}

#[test]
fn children_are_not_affected() {
    survives("forker", &[], times(300, 2000));
}
