//! Agent and host without a virtual machine: an agent that samples a process of this machine, and a
//! host that asks an agent whose guest is memory of another one.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagetrail::{Capabilities, PageRange, PageSet, Technique};
use pagetrail_tier::source::{Frames, Source};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use super::guest::{Guest, TIMEOUT};
use super::stream::Stream;
use super::wire::{Answer, Hello, Memory, Request, Used};
use super::*;
use crate::config::SourceKind;

mod failing;

const PAGES: u64 = 64;
const PAGE: u64 = 4096;

/// Says where its pages are, and writes to those that it reads the numbers of.
const WRITER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *pages = mmap(0, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(pages, 64 * 4096, MADV_NOHUGEPAGE);
    for (int page = 0; page < 64; page++) pages[page * 4096] = 1;
    printf("%lx\n", (unsigned long) pages);
    fflush(stdout);
    int first, end;
    while (scanf("%d %d", &first, &end) == 2) {
        for (int page = first; page < end; page++) pages[page * 4096]++;
        puts("done");
        fflush(stdout);
    }
}
"#;

struct Writer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    pages: u64,
}

impl Writer {
    fn start(directory: &Path) -> Self {
        Self::of(directory, WRITER)
    }

    /// Compiles and starts a program that says an address first.
    fn of(directory: &Path, text: &str) -> Self {
        let (source, program) = (directory.join("program.c"), directory.join("program"));
        std::fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        let status = cc.arg("-O1").arg("-o").arg(&program).arg(&source).status();
        assert!(status.is_ok_and(|status| status.success()), "cc failed");
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut writer = Self {
            stdin,
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
            pages: 0,
        };
        writer.pages = u64::from_str_radix(&writer.line(), 16).unwrap();
        writer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn write(&mut self, first: u64, end: u64) {
        writeln!(self.stdin, "{first} {end}").unwrap();
        assert_eq!(self.line(), "done");
    }

    fn frames(&self, first: u64, end: u64) -> PageSet {
        let pages = PageRange::new(self.pages + first * PAGE, self.pages + end * PAGE);
        let frames = Frames::open(self.child.id()).unwrap();
        let frames = frames.of(&pages.into_iter().collect(), &PageSet::new());
        let mut all: Vec<u64> = frames
            .unwrap()
            .iter()
            .map(|(_, frame)| frame * PAGE)
            .collect();
        all.sort_unstable();
        all.into_iter()
            .filter_map(|start| PageRange::new(start, start + PAGE))
            .collect()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An agent that answers, and ends with the test.
struct Serving {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// `None` where the kernel does not let it.
    fn start(path: &Path, pid: u32) -> Option<Self> {
        let address = ListenAddress::Unix(path.to_owned());
        let which = Which::Pids(vec![pid]);
        let window = Duration::from_millis(100);
        let agent = match Agent::listen(&address, which, SourceKind::Writes, window) {
            Err(error) if error.is_machine_limit() => {
                pagetrail_skips::not_here(&error);
                return None;
            }
            agent => agent.unwrap(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut say = |_: String| {};
            agent.serve(&stopped, &mut say).unwrap();
        });
        Some(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || thread::panicking());
    }
}

fn can_watch_writes() -> bool {
    let status = Capabilities::probe_one(Technique::PagemapScan);
    let works = *status == pagetrail::Status::Works;
    if !works {
        pagetrail_skips::not_here(format!("pagemap-scan is {status}"));
    }
    works
}

fn ask(stream: &mut Stream, request: &Request) -> Answer {
    stream.within(Duration::from_secs(60));
    request.write(stream).unwrap();
    Answer::read(stream, 64 << 20).unwrap()
}

#[test]
fn an_agent_says_which_physical_pages_are_written() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let mut writer = Writer::start(directory.path());
    let Some(serving) = Serving::start(&path, writer.child.id()) else {
        return;
    };
    // Hosts come and go.
    for _ in 0..2 {
        let connection = UnixStream::connect(&path).unwrap();
        let mut stream = Stream::new(connection.into()).unwrap();
        let Answer::Hello(hello) = ask(&mut stream, &Request::Hello) else {
            panic!("another answer");
        };
        assert!(hello.writes && !hello.accesses && !hello.proofs.is_empty());
        let Answer::Mapped(memory) = ask(&mut stream, &Request::Mapped) else {
            panic!("another answer");
        };
        let all = writer.frames(0, PAGES);
        assert_eq!(memory.sampled.intersection(&all), all);
        assert!(!memory.in_use.is_empty(), "no memory of the kernel");
        assert!(memory.in_use.intersection(&memory.sampled).is_empty());
        assert!(hello.ram.intersection(&memory.sampled) == memory.sampled);
        let written = |stream: &mut Stream| match ask(stream, &Request::Window) {
            Answer::Window(Used {
                written: Some(written),
                accessed: None,
            }) => written,
            other => panic!("{other:?}"),
        };
        written(&mut stream);
        for (first, end) in [(3, 5), (60, 64), (10, 10)] {
            assert_eq!(ask(&mut stream, &Request::Rearm(all.clone())), Answer::Done);
            writer.write(first, end);
            let found = written(&mut stream).intersection(&writer.frames(0, PAGES));
            let expected = writer.frames(first, end);
            assert_eq!(found, expected, "{first}..{end}");
        }
        assert_eq!(ask(&mut stream, &Request::Suspend), Answer::Done);
    }
    // Nonsense ends a connection, and no more.
    let mut nonsense = UnixStream::connect(&path).unwrap();
    nonsense.write_all(&[0; 64]).unwrap();
    let mut again = Stream::new(UnixStream::connect(&path).unwrap().into()).unwrap();
    assert!(matches!(ask(&mut again, &Request::Hello), Answer::Hello(_)));
    drop(again);
    drop(serving);
    assert!(!path.exists(), "the socket's name is left");
}

const GUEST_BYTES: u64 = 64 << 20;
/// The page of the guest that is its agent's, by its number.
const PROOF_PAGE: u64 = 1234;

/// Plays a monitor: memory with borders, so that it stays one mapping, each page of which begins
/// with eight numbers of its own.
const MONITOR: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    size_t bytes = 64u << 20;
    char *all = mmap(0, bytes + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory = all + 4096;
    mprotect(memory, bytes, PROT_READ | PROT_WRITE);
    for (uint32_t page = 0; page < bytes / 4096; page++)
        for (uint32_t k = 0; k < 8; k++) ((uint32_t *)(memory + page * 4096ul))[k] = page * 2654435761u + k;
    printf("%lx\n", (unsigned long) memory);
    fflush(stdout);
    getchar();
}
"#;

fn hello() -> Hello {
    let numbers = (0..8).flat_map(|k| {
        let number = (PROOF_PAGE as u32)
            .wrapping_mul(2_654_435_761)
            .wrapping_add(k);
        number.to_ne_bytes()
    });
    let mut proof = [0; 32];
    proof
        .iter_mut()
        .zip(numbers)
        .for_each(|(to, byte)| *to = byte);
    Hello {
        accesses: true,
        writes: false,
        ram: PageSet::from_iter(PageRange::new(0x10_0000, GUEST_BYTES)),
        proofs: vec![(PROOF_PAGE * PAGE, proof)],
    }
}

/// Gives these answers to the host that connects, one after the other.
fn fake(listener: UnixListener, answers: Vec<Answer>) -> JoinHandle<Vec<Request>> {
    thread::spawn(move || {
        let mut stream = Stream::new(listener.accept().unwrap().0.into()).unwrap();
        let mut asked = Vec::new();
        for answer in answers {
            stream.within(Duration::from_secs(60));
            asked.push(Request::read(&mut stream).unwrap());
            answer.write(&mut stream).unwrap();
        }
        asked
    })
}

fn pages(ranges: &[(u64, u64)]) -> PageSet {
    let ranges = ranges.iter();
    ranges
        .filter_map(|(start, end)| PageRange::new(start * PAGE, end * PAGE))
        .collect()
}

#[test]
fn a_host_finds_what_its_guest_says_in_the_monitor() {
    if !can_watch_writes() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let monitor = Writer::of(directory.path(), MONITOR);
    let outside = (GUEST_BYTES / PAGE + 10, GUEST_BYTES / PAGE + 20);
    let answers = vec![
        Answer::Hello(hello()),
        Answer::Mapped(Memory {
            sampled: pages(&[(1000, 2000)]),
            in_use: pages(&[(300, 310), outside]),
        }),
        Answer::Window(Used {
            accessed: Some(pages(&[(1005, 1010), outside])),
            written: None,
        }),
        Answer::Done,
        Answer::Failed("out of order".into()),
    ];
    let agent = fake(listener, answers);
    let address = AgentAddress::Unix(path);
    let mut guest = Guest::of(monitor.child.id(), &address, TIMEOUT).unwrap();
    let base = monitor.pages;
    let own = |ranges: &[(u64, u64)]| -> PageSet {
        let set = pages(ranges);
        let moved = set
            .ranges()
            .iter()
            .filter_map(|range| PageRange::new(range.start() + base, range.end() + base));
        moved.collect()
    };
    let mapped = guest.mapped().unwrap();
    let touched = own(&[(256, 16000)]);
    assert_eq!(mapped.present.intersection(&touched), touched);
    let sample = guest.window().unwrap();
    assert_eq!(
        sample.accessed.unwrap(),
        own(&[(300, 310), (1005, 1010)]),
        "what is in use counts as accessed, what is no memory does not"
    );
    assert!(sample.written.is_none());
    guest.rearm(&own(&[(1005, 1010)])).unwrap();
    let refused = guest.window().unwrap_err();
    assert!(refused.to_string().contains("out of order"), "{refused}");
    let asked = agent.join().unwrap();
    assert_eq!(asked[3], Request::Rearm(pages(&[(1005, 1010)])));
}

/// Of a guest of 64 MiB: what its agent says costs the host memory, and time.
#[test]
fn an_agent_says_no_more_than_its_guest_has_pages_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let monitor = Writer::of(directory.path(), MONITOR);
    let every_second = |pages: u64| -> PageSet {
        let ranges = (0..pages).step_by(2);
        ranges
            .filter_map(|page| PageRange::new(page * PAGE, (page + 1) * PAGE))
            .collect()
    };
    let window = |pages| {
        let (accessed, written) = (Some(every_second(pages)), Some(every_second(pages)));
        Answer::Window(Used { accessed, written })
    };
    let answers = vec![
        Answer::Hello(hello()),
        window(GUEST_BYTES / PAGE),
        window(200_000),
    ];
    let agent = fake(listener, answers);
    let address = AgentAddress::Unix(path);
    let mut guest = Guest::of(monitor.child.id(), &address, TIMEOUT).unwrap();
    guest.window().unwrap();
    let refused = guest.window().unwrap_err();
    drop(guest);
    assert!(refused.to_string().contains("are enough"), "{refused}");
    // Who writes when nobody reads any longer may fail.
    let _ = agent.join();
}

#[test]
fn an_agent_of_another_guest_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let monitor = Writer::of(directory.path(), MONITOR);
    let mut hello = hello();
    hello.proofs[0].1[0] ^= 1;
    let agent = fake(listener, vec![Answer::Hello(hello)]);
    let refused = Guest::of(monitor.child.id(), &AgentAddress::Unix(path), TIMEOUT).err();
    let refused = refused.unwrap().to_string();
    assert!(refused.contains("is not in the guest"), "{refused}");
    agent.join().unwrap();
}

/// One that answers a byte now and then, and never to the end.
#[test]
fn a_host_does_not_wait_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let slow = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(60) && stream.write_all(b"P").is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    let refused = Guest::of(std::process::id(), &AgentAddress::Unix(path), TIMEOUT).err();
    assert!(refused.is_some());
    // It has let go of the connection.
    slow.join().unwrap();
}

/// QEMU serves one host, and has a queue for one more. A daemon that waited for a place in it would
/// not end either.
#[test]
fn a_full_queue_is_an_error_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let listener = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let (said, heard) = mpsc::channel();
    let address = AgentAddress::Unix(path);
    thread::spawn(move || {
        let connect = |_| Stream::connect(&address, Duration::from_secs(1));
        let all: Vec<_> = (0..3).map(connect).collect();
        let _ = said.send(all);
    });
    let all = heard.recv_timeout(Duration::from_secs(5));
    let errors = all.expect("it waits").into_iter().filter_map(Result::err);
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("is full"), "{errors:?}");
}
