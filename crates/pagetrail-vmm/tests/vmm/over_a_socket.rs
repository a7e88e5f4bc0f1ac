//! A handler in a process of its own: the monitor sends it, over a socket, the userfaultfd of the
//! guest's memory and where that memory is. The handler fills the memory from a store as it is
//! touched, and says what was written.

use crate::store::{one_snapshot, opened};
use crate::sys::memory::{Memory, region_of_another_process};
use pagemap_scan::{Faults, Features, Mode, Userfaultfd};
use pagetrail_vmm::store::LazyRestore;
use pagetrail_vmm::userfault::WriteFaults;
use pagetrail_vmm::{Regions, Start, Tracker};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Set in the process that handles; the directory of the store.
const HANDLER: &str = "PAGETRAIL_TEST_HANDLER";
const COLLECT: u8 = b'c';

/// The socket is the handler's standard input.
fn started(directory: &Path) -> (UnixStream, Child) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let mut handler = Command::new(env::current_exe().unwrap());
    handler.args([
        "--exact",
        "over_a_socket::a_handler_has_memory_of_another_process",
    ]);
    handler.env(HANDLER, directory).stdin(Stdio::from(its));
    (ours.into(), handler.spawn().unwrap())
}

fn send(socket: &UnixStream, uffd: &Userfaultfd, memories: &[Memory]) {
    let lines = memories.iter().map(|memory| {
        let (slot, guest, host) = (memory.slot, memory.guest_address, memory.host_address());
        format!("{slot} {guest} {host} {}\n", memory.bytes)
    });
    let text: String = lines.collect();
    let fds = [uffd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    assert!(with.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(
        socket,
        &[IoSlice::new(text.as_bytes())],
        &mut with,
        SendFlags::empty(),
    );
    assert_eq!(sent.unwrap(), text.len());
}

fn received(socket: &UnixStream) -> (OwnedFd, Regions) {
    let mut text = [0; 1000];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut text)];
    let length = recvmsg(socket, parts, &mut with, RecvFlags::CMSG_CLOEXEC);
    let length = length.unwrap().bytes;
    let fd = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let text = std::str::from_utf8(&text[..length]).unwrap();
    let regions = text.lines().map(|line| {
        let numbers: Vec<u64> = line.split(' ').map(|it| it.parse().unwrap()).collect();
        region_of_another_process(numbers[0] as u32, numbers[1], numbers[2], numbers[3])
    });
    (fd.unwrap(), Regions::new(regions).unwrap())
}

/// Serves until the monitor has gone.
fn handle(directory: &Path) {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut socket = UnixStream::from(socket);
    let (uffd, regions) = received(&socket);
    let faults = WriteFaults::new(uffd.as_fd()).unwrap();
    let tracker = Tracker::new(regions.clone(), vec![faults.log()]).unwrap();
    let consumer = tracker.consumer(Start::Now).unwrap();
    let image = opened(directory).newest_image().unwrap();
    let lazy = LazyRestore::new(image, regions, uffd.as_fd()).unwrap();
    let mut lazy = lazy.write_protected(Some(faults));
    let stopper = lazy.stopper();
    thread::scope(|scope| {
        let serving = scope.spawn(|| lazy.serve().unwrap());
        writeln!(socket, "ready").unwrap();
        let mut wish = [0];
        while socket.read(&mut wish).unwrap() == 1 {
            assert_eq!(wish[0], COLLECT);
            let round = consumer.collect().unwrap();
            let mut said = String::new();
            for (slot, bitmap) in [0, 2].map(|slot| (slot, round.dirty().of_slot(slot).unwrap())) {
                for page in bitmap.ranges().flatten() {
                    said += &format!("{slot} {page} ");
                }
            }
            writeln!(socket, "{said}").unwrap();
            round.commit();
        }
        stopper.stop();
        serving.join().unwrap();
    });
}

#[test]
fn a_handler_has_memory_of_another_process() {
    if let Some(directory) = env::var_os(HANDLER) {
        return handle(Path::new(&directory));
    }
    for shared in [false, true] {
        let (directory, expected) = one_snapshot(shared);
        let memories = crate::store::memories(shared);
        let Some(uffd) = registered(&memories) else {
            return;
        };
        let (mut socket, mut handler) = started(directory.path());
        send(&socket, &uffd, &memories);
        let mut answers = BufReader::new(socket.try_clone().unwrap());
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ready\n");
        let mut contents = expected;
        let mut random = fastrand::Rng::with_seed(5);
        let page = pagetrail::page_size();
        for _ in 0..20 {
            let mut written = BTreeSet::new();
            for _ in 0..random.u32(0..20) {
                let which = random.usize(0..memories.len());
                let (memory, contents) = (&memories[which], &mut contents[which]);
                let at = random.u64(0..memory.bytes);
                // Some of these pages are not there yet.
                memory.write(at, &[random.u8(..)]);
                let mut word = [0; 8];
                memory.region().copy(at & !7, &mut word);
                contents[(at & !7) as usize..][..8].copy_from_slice(&word);
                written.insert((memory.slot, at / page));
            }
            socket.write_all(&[COLLECT]).unwrap();
            answer.clear();
            answers.read_line(&mut answer).unwrap();
            let numbers: Vec<u64> = answer
                .split_whitespace()
                .map(|it| it.parse().unwrap())
                .collect();
            let found: BTreeSet<(u32, u64)> = numbers
                .chunks(2)
                .map(|pair| (pair[0] as u32, pair[1]))
                .collect();
            assert_eq!(found, written);
        }
        assert!(crate::store::contents(&memories) == contents);
        drop((socket, answers));
        assert!(handler.wait().unwrap().success());
    }
}

/// A userfaultfd that has missing pages, and writes to pages that were filled.
fn registered(memories: &[Memory]) -> Option<Userfaultfd> {
    let features = Features::WP_HUGETLBFS_SHMEM.bits() | Features::PAGEFAULT_FLAG_WP.bits();
    let made = Userfaultfd::create(Faults::UserAndKernel)
        .and_then(|fd| Userfaultfd::handshake(fd, Features::from_bits(features)));
    let uffd = made.map_err(|error| pagetrail_skips::not_here(format!("no userfaultfd: {error}")));
    let uffd = uffd.ok()?;
    for memory in memories {
        let start = memory.host_address();
        let mode = Mode::WriteProtectAndMissing;
        uffd.register(start..start + memory.bytes, mode).unwrap();
    }
    Some(uffd)
}
