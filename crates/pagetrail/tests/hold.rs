//! Holding another process: all threads are stopped, their registers and memory are of one instant,
//! and they continue unaffected, whatever ends the hold.

// Elsewhere nothing can be held, and registers have other names.
#![cfg(target_arch = "x86_64")]

mod support;

use pagetrail::{Choice, Hold, IfAbandoned, Memory, Target, Watch, pages_with_content};
use std::time::{Duration, Instant};
use support::{Victim, times};

/// The CPU time of all threads, in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_held_program_stops_and_continues() {
    let Some(victim) = Victim::start("threads", &[]) else {
        return;
    };
    let pid = victim.pid();
    let mut seen_many = false;
    // Fewer might never see its helpers.
    for _ in 0..times(50, 1000).max(50) {
        let hold = Hold::process(pid).unwrap();
        assert_eq!(hold.threads()[0].tid, pid);
        seen_many |= hold.threads().len() > 3;
        for thread in hold.threads() {
            assert_eq!(thread.registers[0].bytes.len(), 27 * 8);
            assert!(
                thread
                    .registers
                    .iter()
                    .any(|set| set.note == 2 && set.bytes.len() == 512)
            );
        }
        drop(hold);
    }
    assert!(seen_many, "helpers were never seen");
    let hold = Hold::process(pid).unwrap();
    let before = ticks(pid);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(ticks(pid), before, "it runs while it is held");
    assert!(hold.release() >= Duration::from_millis(100));
    let deadline = Instant::now() + Duration::from_secs(120);
    while ticks(pid) == before {
        assert!(Instant::now() < deadline, "it does not go on");
    }
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn setting_registers_to_their_values_changes_nothing() {
    for name in ["threads", "sleeper", "futexer", "signals"] {
        let Some(victim) = Victim::start(name, &[]) else {
            return;
        };
        for _ in 0..times(30, 300) {
            let mut hold = Hold::process(victim.pid()).unwrap();
            let threads = hold.threads().to_vec();
            hold.if_abandoned(IfAbandoned::Kill).unwrap();
            hold.set_registers(&threads).unwrap();
            hold.if_abandoned(IfAbandoned::GoOn).unwrap();
            hold.release();
            std::thread::sleep(Duration::from_millis(2));
        }
        // The code stays by which a wait goes on that was interrupted twice.
        victim.is_clean(name != "signals");
        victim.finish();
    }
}

#[test]
fn memory_is_read_and_written_and_writes_are_collected_while_held() {
    let Some(victim) = Victim::start("sleeper", &[]) else {
        return;
    };
    let pid = victim.pid();
    let target = Target::process(pid).unwrap();
    let mut watch = Watch::builder()
        .target(target)
        .technique(Choice::Auto)
        .start()
        .unwrap();
    let stack = watch
        .regions()
        .iter()
        .find(|r| r.name == "[stack]")
        .unwrap()
        .clone();
    let pages = pages_with_content(pid, &stack).unwrap();
    assert!(!pages.is_empty() && pages.bytes() < stack.range.bytes());
    let memory = Memory::of(pid).unwrap();
    let mut copy = vec![0; pages.bytes() as usize];
    assert!(memory.read(pages.ranges(), &mut copy).unwrap().is_empty());
    assert!(copy.iter().any(|&byte| byte != 0));
    let hold = Hold::process(pid).unwrap();
    watch.collect_held(&hold).unwrap().commit();
    // The lowest page of the stack is unused.
    let at = pages.ranges()[0].start();
    let mut before = vec![0; 16];
    before.copy_from_slice(&copy[..16]);
    memory.write(at, &before).unwrap();
    let round = watch.collect_held(&hold).unwrap();
    assert!(
        round.dirty().contains(at),
        "a write by another process was missed"
    );
    assert_eq!(round.dirty().page_count(), 1);
    round.commit();
    hold.release();
    drop(watch);
    victim.is_clean(true);
    victim.finish();
}

#[test]
fn unreadable_pages_are_reported() {
    let Some(victim) = Victim::start("sleeper", &[]) else {
        return;
    };
    let memory = Memory::of(victim.pid()).unwrap();
    let page = pagetrail::page_size();
    let nowhere = pagetrail::PageRange::new(page, 3 * page).unwrap();
    let mut buffer = vec![1; nowhere.bytes() as usize];
    let missing = memory.read(&[nowhere], &mut buffer).unwrap();
    assert_eq!(missing.ranges(), [nowhere]);
    assert!(buffer.iter().all(|&byte| byte == 0));
    assert!(memory.write(page, &[1]).is_err());
    assert!(Memory::of(std::process::id()).is_err());
    assert!(Hold::process(std::process::id()).is_err());
    victim.finish();
}

/// A process that executes another program at the wrong moment is refused in this way, without
/// waiting.
#[test]
fn a_process_held_by_another_tracer_is_refused() {
    let Some(victim) = Victim::start("sleeper", &[]) else {
        return;
    };
    let hold = Hold::process(victim.pid()).unwrap();
    let (answer, answered) = std::sync::mpsc::channel();
    let pid = victim.pid();
    std::thread::spawn(move || answer.send(Hold::process(pid).map(drop)));
    let second = answered.recv_timeout(Duration::from_secs(30));
    assert!(second.expect("an answer").is_err());
    drop(hold);
    victim.finish();
}

/// A signal that stops a thread first takes back the request to stop it
/// (`ptrace_stop` in `kernel/signal.c`).
#[test]
fn threads_that_get_many_signals_stop() {
    let Some(victim) = Victim::start("chaos", &["600", "1", "0", "interrupts"]) else {
        return;
    };
    for _ in 0..times(1500, 20_000) {
        Hold::process(victim.pid()).unwrap().release();
        std::thread::sleep(Duration::from_millis(1));
    }
    victim.finish();
}

/// What goes on with a wait is code of ours; a debugger should see the call of the program.
#[test]
fn a_wait_that_goes_on_shows_the_call_of_the_program() {
    let Some(victim) = Victim::start("epoller", &[]) else {
        return;
    };
    let pid = victim.pid();
    let mut waits = 0;
    let deadline = Instant::now() + Duration::from_secs(120);
    while waits < 30 {
        assert!(Instant::now() < deadline, "no wait was seen");
        let mut hold = Hold::process(pid).unwrap();
        let threads = hold.threads().to_vec();
        let word = |index: usize| {
            let bytes = &threads[0].registers[0].bytes[index * 8..][..8];
            u64::from_ne_bytes(bytes.try_into().unwrap())
        };
        // In the order of `struct user_regs_struct`.
        let (r10, rdi, call, rip) = (word(7), word(14), word(15), word(16));
        if call == libc::SYS_epoll_wait as u64 && r10 == 12 {
            let regions = pagetrail::Region::of_process(pid).unwrap();
            let at = regions.iter().find(|region| region.range.contains(rip));
            let name = at.map(|region| region.name.clone()).unwrap_or_default();
            assert!(name.contains("libc"), "{rip:#x} is in {name:?}");
            assert!(rdi < 1000, "{rdi:#x} is no descriptor");
            waits += 1;
        }
        hold.set_registers(&threads).unwrap();
        hold.release();
        std::thread::sleep(Duration::from_millis(2));
    }
    victim.finish();
}

/// A wait that began anew after each stop would never end.
#[test]
fn waits_end_although_stops_come_more_often() {
    let Some(mut victim) = Victim::start("epoller", &["600", "60"]) else {
        return;
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while victim.is_running() {
        assert!(Instant::now() < deadline, "a wait does not end");
        match Hold::process(victim.pid()) {
            Ok(hold) => drop(hold.release()),
            Err(error) => assert!(victim.is_ending(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    victim.ends();
}
