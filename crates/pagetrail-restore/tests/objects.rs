//! Shared memory, pipes and pairs of sockets come back with what they hold, at random instants and
//! through increments; what cannot come back is refused by its name.

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
    Change, FileKind, ProcessCheckpointer, ProcessOptions, Store, WriterOptions, check_restartable,
};
use pagetrail_restore::{Missing, RestoreOptions, restore, restore_copies, restore_lazily};
use program::{Program, checkpoint, may_choose_pids, options};
use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::{random, times};

fn started() -> Option<Program> {
    may_choose_pids().then(|| Program::of_victim("objects", &[]))?
}

/// It is at work, and comes to its end by itself.
fn ends_well(running: &Program) {
    std::thread::sleep(Duration::from_millis(5));
    running.assert_running();
    File::create(running.directory.path().join("stop")).unwrap();
    running.ends_clean();
}

#[test]
fn what_objects_hold_comes_back_at_any_instant() {
    let Some(running) = started() else {
        return;
    };
    let mut random = random("objects");
    let rounds = times(30, 300);
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        running.assert_running();
        let mut image = checkpoint(running.pid());
        running.kill();
        match random.bool() {
            true => assert_eq!(restore(&mut image, &options()).unwrap().lost, [""; 0]),
            false => {
                let (restored, pager) = restore_lazily(image, &options()).unwrap();
                assert_eq!(restored.lost, [""; 0]);
                pager.finish().unwrap();
            }
        }
    }
    ends_well(&running);
    println!("{rounds} restores");
}

#[test]
fn increments_have_what_no_mapping_shows() {
    let Some(running) = started() else {
        return;
    };
    let mut random = random("increments of objects");
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let wanted = ProcessOptions {
        restartable: true,
        ..ProcessOptions::default()
    };
    let mut process = ProcessCheckpointer::attach(running.pid(), wanted).unwrap();
    for _ in 0..8 {
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        let manifest = process.checkpoint(&mut writer).unwrap();
        let all = manifest.mappings.len();
        assert!(manifest.process_mappings().count() < all, "{manifest:?}");
    }
    drop(process);
    running.kill();
    // The process goes back, and forth, and has at each instant what it had there. Its PID and
    // descriptors are free again each time.
    for number in [3, 8, 1, 5] {
        let mut image = store.image(number).unwrap();
        restore(&mut image, &options()).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        running.assert_running();
        running.kill();
    }
    restore(&mut store.image(6).unwrap(), &options()).unwrap();
    ends_well(&running);
}

#[test]
fn sockets_with_a_peer_elsewhere_or_with_messages_are_refused_by_their_number() {
    let (mine, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let child = command
        .stdin(std::os::fd::OwnedFd::from(mine))
        .spawn()
        .unwrap();
    let running = Program {
        pid: rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
        directory: tempfile::tempdir().unwrap(),
    };
    let comm = || std::fs::read_to_string(format!("/proc/{}/comm", running.pid()));
    while comm().unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    let message = check_restartable(running.pid()).unwrap_err().to_string();
    assert!(message.contains("descriptor 0 is a socket"), "{message}");
}

#[test]
fn a_write_to_memory_that_no_mapping_shows_is_a_change() {
    if !support::has("python3") {
        pagetrail_skips::not_here("no python3 to make a memfd without a mapping");
        return;
    }
    let text = "import os, signal\n\
        file = os.memfd_create('apart')\n\
        os.ftruncate(file, 16384)\n\
        print('ready', file, flush=True)\n\
        signal.pause()";
    let mut command = Command::new("python3");
    command.args(["-c", text]);
    // Into such an area the kernel writes by itself on which processor the thread runs (rseq(2)).
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let running = Program::start(&mut command, tempfile::tempdir().unwrap());
    running.await_output("ready");
    // Nothing else is written from here on.
    let call = || std::fs::read_to_string(format!("/proc/{}/syscall", running.pid()));
    while !call().unwrap().starts_with("34 ") {
        running.assert_running();
        std::thread::yield_now();
    }
    let output = running.text("output");
    let number = output.trim().rsplit(' ').next().unwrap().to_owned();
    let image = checkpoint(running.pid());
    assert_eq!(image.change_since(running.pid()).unwrap(), None);
    let memory = format!("/proc/{}/fd/{number}", running.pid());
    let memory = File::options().write(true).open(memory).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&memory, b"new", 9000).unwrap();
    let change = image.change_since(running.pid()).unwrap();
    assert!(matches!(change, Some(Change::Page(_))), "{change:?}");
    let image = checkpoint(running.pid());
    assert_eq!(image.change_since(running.pid()).unwrap(), None);
    memory.set_len(20000).unwrap();
    let change = image.change_since(running.pid()).unwrap();
    assert!(matches!(change, Some(Change::Mapping(_))), "{change:?}");
}

/// Listens at a path, a name and a port, and says by each how often it was asked.
const LISTENS: &str = "import os, select, socket, sys
os.closerange(3, 1024)
listeners = {}
poll = select.epoll()
def listen(family, address, backlog):
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(address)
    made.listen(backlog)
    made.setblocking(backlog != 7)
    listeners[made.fileno()] = made
    poll.register(made)
    return made.getsockname()
path = sys.argv[1] + '/socket'
listen(socket.AF_UNIX, path, 7)
os.chmod(path, 0o640)
listen(socket.AF_UNIX, chr(0) + path, 5)
port = listen(socket.AF_INET, ('127.0.0.1', 0), 9)[1]
# In one piece, whatever PYTHONUNBUFFERED says.
print(f'ready {port}', flush=True)
asked = 0
while True:
    for number, _ in poll.poll():
        client, _ = listeners[number].accept()
        with client:
            client.sendall(b'%d' % asked)
        asked += 1
";

/// What a program says that listens everywhere, asked in each way.
fn says(running: &Program, port: u16) -> Vec<String> {
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let path = running.directory.path().join("socket");
    let name = SocketAddr::from_abstract_name(path.as_os_str().as_encoded_bytes()).unwrap();
    let mut streams: [Box<dyn Read>; 3] = [
        Box::new(UnixStream::connect(&path).unwrap()),
        Box::new(UnixStream::connect_addr(&name).unwrap()),
        Box::new(std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()),
    ];
    let mut said = streams.each_mut().map(|stream| {
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    });
    said.sort();
    said.to_vec()
}

#[test]
fn who_listens_does_so_again_unless_another_does() {
    use std::os::unix::fs::PermissionsExt;
    if !support::has("python3") {
        return pagetrail_skips::not_here("no python3 to listen");
    }
    if !may_choose_pids() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut command = Command::new("python3");
    command.args(["-c", LISTENS]).arg(directory.path());
    let running = Program::start(&mut command, directory);
    running.await_output("ready");
    let output = running.text("output");
    let port: u16 = output.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(says(&running, port), ["0", "1", "2"]);
    let files = |image: &pagetrail_checkpoint::Image| {
        let files = &image.manifest().state().unwrap().files;
        let listen = files
            .iter()
            .filter(|file| matches!(file.kind, FileKind::Listener(_)));
        listen.cloned().collect::<Vec<_>>()
    };
    let first = files(&checkpoint(running.pid()));
    assert_eq!(first.len(), 3, "{first:?}");
    for lazily in [false, true] {
        let mut image = checkpoint(running.pid());
        assert_eq!(files(&image), first);
        running.kill();
        let refused = restore_copies(&mut image, &options(), 2).unwrap_err();
        assert!(refused.to_string().contains("only one copy"), "{refused}");
        std::fs::remove_file(&path).unwrap();
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let strict = RestoreOptions {
            on_missing: Missing::Fail,
            ..options()
        };
        let refused = restore(&mut image, &strict).unwrap_err().to_string();
        assert!(refused.contains("another program listens"), "{refused}");
        drop(other);
        // The socket file that the other program left does not keep it from listening.
        match lazily {
            false => drop(restore(&mut image, &options()).unwrap()),
            true => {
                let (_, pager) = restore_lazily(image, &options()).unwrap();
                pager.finish().unwrap();
            }
        }
        let rights = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(rights & 0o777, 0o640);
        let from = if lazily { 6 } else { 3 };
        let expected = (from..from + 3).map(|asked: u32| asked.to_string());
        assert_eq!(says(&running, port), expected.collect::<Vec<_>>());
    }
}
