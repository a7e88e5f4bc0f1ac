//! What becomes of a guest whose agent fails.

use std::io::ErrorKind;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::agent::timeout;
use crate::config::Config;
use crate::kept::Kept;
use crate::monitor;

fn config(monitor: &Writer, path: &Path) -> Config {
    let text = format!(
        "window = \"100ms\"\nperiod = \"30s\"\n\
         [[target]]\nname = \"a\"\nfast = \"1M\"\nvm = {}\nagent = \"unix:{}\"\n",
        monitor.child.id(),
        path.display()
    );
    Config::parse(&text).unwrap()
}

/// Otherwise it would be asked again and again, and its guest never be watched.
#[test]
fn an_agent_that_fails_in_its_first_period_is_left_alone_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let later = listener.try_clone().unwrap();
    let monitor = Writer::of(directory.path(), MONITOR);
    let agent = fake(listener, vec![Answer::Hello(hello())]);
    let config = config(&monitor, &path);
    let mut kept = Kept::new(config.targets[0].clone());
    let mut messages = Vec::new();
    let search = |kept: &mut Kept, messages: &mut Vec<String>| {
        kept.search((&config, true), Instant::now(), false, messages, &mut || ());
    };
    search(&mut kept, &mut messages);
    assert!(kept.processes[0].has_agent(), "{messages:?}");
    agent.join().unwrap();
    kept.turn(&config, Instant::now(), &mut messages, &mut || ());
    assert!(kept.processes.is_empty(), "{messages:?}");
    search(&mut kept, &mut messages);
    later.set_nonblocking(true).unwrap();
    let asked = later.accept().map_err(|error| error.kind());
    assert_eq!(
        asked.err(),
        Some(ErrorKind::WouldBlock),
        "it is asked again"
    );
}

/// A monitor's descriptors are closed before it has ended, so that its agent seems to fail. Taken
/// for that, it would be looked for again by its PID, which may be another program's.
#[test]
fn the_end_of_a_monitor_is_no_failure_of_its_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let later = listener.try_clone().unwrap();
    let mut monitor = Writer::of(directory.path(), MONITOR);
    let agent = fake(listener, vec![Answer::Hello(hello())]);
    let config = config(&monitor, &path);
    let mut kept = Kept::new(config.targets[0].clone());
    let mut messages = Vec::new();
    let now = Instant::now();
    kept.search((&config, true), now, false, &mut messages, &mut || ());
    assert!(kept.processes[0].has_agent(), "{messages:?}");
    // The connection ends with this, and the monitor while its agent is asked.
    agent.join().unwrap();
    let killed = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        monitor.child.kill().unwrap();
        monitor
    });
    kept.turn(&config, Instant::now(), &mut messages, &mut || ());
    assert!(
        kept.processes.is_empty() && messages.is_empty(),
        "{messages:?}"
    );
    // It has its number still, as a zombie.
    let _monitor = killed.join().unwrap();
    let much_later = now + Duration::from_secs(600);
    kept.search(
        (&config, true),
        much_later,
        false,
        &mut messages,
        &mut || (),
    );
    later.set_nonblocking(true).unwrap();
    let asked = later.accept().map_err(|error| error.kind()).err();
    assert_eq!(asked, Some(ErrorKind::WouldBlock), "asked again");
    assert!(messages.is_empty(), "{messages:?}");
}

/// A process that waits for its next period is asked for nothing else.
#[test]
fn the_end_of_a_process_is_noticed_between_two_periods() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut monitor = Writer::of(directory.path(), MONITOR);
    let agent = fake(listener, vec![Answer::Hello(hello())]);
    let config = config(&monitor, &path);
    let mut kept = Kept::new(config.targets[0].clone());
    let mut messages = Vec::new();
    let before = Instant::now();
    kept.search((&config, true), before, false, &mut messages, &mut || ());
    agent.join().unwrap();
    kept.turn(&config, before, &mut messages, &mut || ());
    assert_eq!(kept.processes.len(), 1, "its period has not begun");
    monitor.child.kill().unwrap();
    monitor.child.wait().unwrap();
    kept.turn(&config, before, &mut messages, &mut || ());
    assert!(
        kept.processes.is_empty() && messages.is_empty(),
        "{messages:?}"
    );
}

/// A program that has a virtual machine of KVM, and memory for it.
const WITH_KVM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ioctl(open("/dev/kvm", O_RDWR), 0xAE01, 0);
    char *all = mmap(0, (32 << 20) + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(all + 4096, 32 << 20, PROT_READ | PROT_WRITE);
    memset(all + 4096, 1, 32 << 20);
    printf("%lx\n", (unsigned long) all);
    fflush(stdout);
    getchar();
}
"#;

/// QEMU accepts for a guest that has no agent. Other targets wait for as long as it is asked.
#[test]
fn an_agent_that_is_silent_is_asked_rarely() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let monitor = Writer::of(directory.path(), WITH_KVM);
    if !monitor::is_monitor(monitor.child.id()) {
        return pagetrail_skips::not_here("no virtual machine: /dev/kvm cannot be used");
    }
    let listener = UnixListener::bind(&path).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    thread::spawn(move || {
        let mut held = Vec::new();
        for host in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            held.push(host);
        }
    });
    let config = config(&monitor, &path);
    let mut kept = Kept::new(config.targets[0].clone());
    let mut messages = Vec::new();
    let start = Instant::now();
    kept.search((&config, true), start, false, &mut messages, &mut || ());
    assert_eq!(asked.load(Ordering::SeqCst), 1, "{messages:?}");
    // Periods, by a clock that goes faster.
    for period in 0..3 {
        let mut now = start + Duration::from_secs(10) + config.period * period;
        kept.search((&config, true), now, false, &mut messages, &mut || ());
        for _ in 0..100 {
            kept.turn(&config, now, &mut messages, &mut || ());
            now += config.window;
        }
        assert_eq!(kept.processes.len(), 1, "{messages:?}");
        assert!(kept.processes[0].is_measured(), "{messages:?}");
    }
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 2, "asked {asked} times in three periods");
}

#[test]
fn no_turn_waits_for_agents_as_long_as_a_watchdog_does() {
    let ms = Duration::from_millis;
    assert_eq!(timeout(ms(10)), ms(5000));
    assert_eq!(timeout(ms(600)), ms(6000));
    for long in [ms(3000), Duration::MAX] {
        // In one turn it is asked up to four times.
        assert!(timeout(long) * 4 < Duration::from_secs(60));
    }
}
