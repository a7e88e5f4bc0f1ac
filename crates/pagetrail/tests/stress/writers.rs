//! The writers: threads of this process or of a copy of this program, on several kinds of memory.

use super::Piece;
use super::board::Board;
use pagetrail::{PageRange, page_size};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The first argument of a copy of this program that becomes a writer.
pub(crate) const PUPPET: &str = "be-puppet";

const PIECES: usize = 4;
const PIECE_PAGES: u64 = 1024;
/// The total number of pages.
pub(crate) const PAGES: u64 = PIECES as u64 * PIECE_PAGES;
const THREADS: u64 = 3;

/// What the threads do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// They write rising stamps as fast as they can.
    Writing,
    /// They read or write a page now and then, and count that.
    Touching,
}

impl Doing {
    fn word(self) -> &'static str {
        match self {
            Self::Writing => "write",
            Self::Touching => "touch",
        }
    }
}

/// The process in which the writers run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    Elsewhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "own ranges",
            Self::Elsewhere => "another process",
        })
    }
}

pub(crate) struct Writers {
    board: Arc<Board>,
    child: Option<Child>,
    threads: Vec<JoinHandle<()>>,
    memory: File,
}

impl Writers {
    pub(crate) fn start(place: Place, doing: Doing, seed: u64) -> Self {
        let board = Arc::new(Board::create());
        let mut child = None;
        let mut threads = Vec::new();
        let pid = match place {
            Place::Here => {
                threads = run(&board, doing, seed);
                std::process::id()
            }
            Place::Elsewhere => {
                let program = std::env::current_exe().expect("the path of this program");
                let arguments = [
                    PUPPET.as_ref(),
                    board.path().as_os_str(),
                    seed.to_string().as_ref(),
                    doing.word().as_ref(),
                ]
                .map(|a| a.to_owned());
                let started = child.insert(
                    Command::new(program)
                        .args(arguments)
                        .spawn()
                        .expect("a copy of this program"),
                );
                while board.piece(PIECES - 1) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                started.id()
            }
        };
        let memory = File::open(format!("/proc/{pid}/mem")).expect("the writers' memory");
        Self {
            board,
            child,
            threads,
            memory,
        }
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or_else(std::process::id, Child::id)
    }

    pub(crate) fn memory(&self) -> impl Iterator<Item = Piece> + '_ {
        (0..PIECES).filter_map(|piece| {
            let start = self.board.piece(piece);
            let range = PageRange::new(start, start + PIECE_PAGES * page_size())?;
            Some((range, piece * PIECE_PAGES as usize))
        })
    }

    /// The current stamp on a page; 0 if the page was never written, which cannot always be read.
    pub(crate) fn stamp(&self, page: u64) -> u64 {
        let mut word = [0; 8];
        match self.memory.read_exact_at(&mut word, page) {
            Ok(()) => u64::from_ne_bytes(word),
            Err(_) => 0,
        }
    }

    pub(crate) fn stop(&mut self) {
        self.board.stop();
        for thread in self.threads.drain(..) {
            thread.join().expect("a writer does not panic");
        }
        if let Some(child) = &mut self.child {
            let status = child.wait().expect("it is ours");
            assert!(status.success(), "the writers ended with {status}");
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.board.stop();
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Writes or touches until asked to stop, or until the other side has ended.
pub(crate) fn be_puppet(board: &str, seed: u64, doing: &str) {
    let doing = match doing {
        "touch" => Doing::Touching,
        _ => Doing::Writing,
    };
    // SAFETY: requests a signal at the parent's death, and accesses no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let board = Arc::new(Board::open(Path::new(board)));
    for thread in run(&board, doing, seed) {
        thread.join().expect("a writer does not panic");
    }
}

/// Maps the memory and starts the threads; each page belongs to one thread, so its stamps rise.
fn run(board: &Arc<Board>, doing: Doing, seed: u64) -> Vec<JoinHandle<()>> {
    for piece in 0..PIECES {
        board.set_piece(piece, map(piece));
    }
    let work = |thread: u64| {
        let board = Arc::clone(board);
        move || {
            let random = fastrand::Rng::with_seed(seed.wrapping_add(thread));
            match doing {
                Doing::Writing => write(&board, thread, random),
                Doing::Touching => touch(&board, thread, random),
            }
        }
    };
    (0..THREADS)
        .map(|thread| std::thread::spawn(work(thread)))
        .collect()
}

fn write(board: &Board, thread: u64, mut random: fastrand::Rng) {
    let mut stamp = 0;
    while !board.is_stopped() {
        stamp += 1;
        // Every other write goes to one of a few hot pages.
        let among = if stamp % 2 == 0 { 64 } else { PAGES };
        let slot = random.u64(..among / THREADS) * THREADS + thread;
        let address = address(board, slot);
        // SAFETY: the address is inside the piece, and only this thread writes to this page.
        unsafe { (address as *mut u64).write_volatile(stamp) };
        board.publish(slot as usize, stamp);
    }
}

/// Touches few pages in a round, so that a report of all of them would show.
fn touch(board: &Board, thread: u64, mut random: fastrand::Rng) {
    let mut counts = vec![0; PAGES as usize];
    while !board.is_stopped() {
        let slot = random.u64(..PAGES / THREADS) * THREADS + thread;
        let count = &mut counts[slot as usize];
        *count += 1;
        let address = address(board, slot);
        board.begin(slot as usize, *count);
        // SAFETY: the address is inside the piece, and only this thread writes to this page.
        unsafe {
            if random.bool() {
                (address as *mut u64).write_volatile(*count);
            } else {
                (address as *const u64).read_volatile();
            }
        }
        board.publish(slot as usize, *count);
        std::thread::sleep(Duration::from_micros(random.u64(..400)));
    }
}

fn address(board: &Board, slot: u64) -> u64 {
    let (piece, page) = ((slot / PIECE_PAGES) as usize, slot % PIECE_PAGES);
    board.piece(piece) + page * page_size()
}

/// Maps memory of the piece's kind, which is never unmapped.
fn map(piece: usize) -> u64 {
    let len = (PIECE_PAGES * page_size()) as usize;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: these are new mappings at addresses of the kernel's choice; a mapping keeps its file
    // after the close.
    unsafe {
        let base = match piece {
            0 => libc::mmap(std::ptr::null_mut(), len, rights, private, -1, 0),
            1 => libc::mmap(
                std::ptr::null_mut(),
                len,
                rights,
                private | libc::MAP_POPULATE,
                -1,
                0,
            ),
            2 => {
                let base = libc::mmap(std::ptr::null_mut(), len, rights, private, -1, 0);
                libc::madvise(base, len, libc::MADV_HUGEPAGE);
                base
            }
            _ => {
                let fd = libc::memfd_create(c"stress".as_ptr(), libc::MFD_CLOEXEC);
                libc::ftruncate(fd, len as i64);
                let base = libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd, 0);
                libc::close(fd);
                base
            }
        };
        assert!(base != libc::MAP_FAILED, "no memory for the writers");
        base as u64
    }
}
