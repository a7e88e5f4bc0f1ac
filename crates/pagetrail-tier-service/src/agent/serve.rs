//! [`Agent`]: the guest's side: waits for its host, and answers.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagetrail::{PageRange, PageSet};
use pagetrail_tier::source::Frames;
use pagetrail_tier::{Error, Result};

use super::address::ListenAddress;
use super::physical;
use super::processes::{Processes, Which};
use super::stream::{Listener, Stream};
use super::wire::{Answer, Hello, Memory, PAGE_BYTES, PROOF_BYTES, Request};
use crate::config::SourceKind;

/// How soon it is noticed that the agent is to end.
const POLL: Duration = Duration::from_millis(100);
/// For a host to say what it began to, and to take an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A host that asks nothing for so long is gone, however rare its periods are.
const IDLE: Duration = Duration::from_secs(3600);
/// Pages that prove where physical memory is.
const PROOFS: usize = 16;

/// What says, in a guest, which of its memory is used.
pub struct Agent {
    listener: Listener,
    which: Which,
    kind: SourceKind,
    window: Duration,
    ram: PageSet,
    proofs: Proofs,
}

impl Agent {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// The address is taken, the kernel hides physical addresses (`CAP_SYS_ADMIN`), or its pages
    /// are of another size.
    pub fn listen(
        address: &ListenAddress,
        which: Which,
        kind: SourceKind,
        window: Duration,
    ) -> Result<Self> {
        if pagetrail::page_size() != PAGE_BYTES {
            return Err(Error::NotHere(format!(
                "an agent takes pages of {PAGE_BYTES} bytes; this machine has {} bytes",
                pagetrail::page_size()
            )));
        }
        let ram = physical::ram()?;
        let proofs = Proofs::make()?;
        // What it will be asked for, before it is.
        proofs.look()?;
        physical::in_use(&PageSet::new())?;
        let listener = Listener::bind(address).map_err(|source| Error::Io {
            what: format!("listening at {address}"),
            source,
        })?;
        Ok(Self {
            listener,
            which,
            kind,
            window,
            ram,
            proofs,
        })
    }

    /// Answers hosts, one after the other, until it is to stop. Between two nothing is sampled.
    ///
    /// # Errors
    ///
    /// It can no longer listen.
    pub fn serve(&self, stop: &AtomicBool, say: &mut dyn FnMut(String)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let accepted = self.listener.accept(POLL);
            let host = accepted.map_err(|source| Error::Io {
                what: "waiting for a host".into(),
                source,
            })?;
            if let Some(mut host) = host {
                match self.answer(&mut host, stop, say) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                    Err(error) => say(format!("the host: {error}")),
                }
                // A serial port keeps what is left of a message.
                host.drain();
            }
        }
        Ok(())
    }

    /// Answers one host.
    fn answer(
        &self,
        host: &mut Stream,
        stop: &AtomicBool,
        say: &mut dyn FnMut(String),
    ) -> io::Result<()> {
        let mut processes = Processes::new(self.which.clone(), self.kind, self.window);
        let mut idle = Instant::now();
        while !stop.load(Ordering::Relaxed) && idle.elapsed() < IDLE {
            if !host.is_ready(POLL)? {
                continue;
            }
            host.within(TIMEOUT);
            let request = Request::read(host)?;
            let answer = match self.carry_out(&request, &mut processes, say) {
                Ok(answer) => answer,
                Err(error) => Answer::Failed(error.to_string()),
            };
            host.within(TIMEOUT);
            answer.write(host)?;
            idle = Instant::now();
        }
        Ok(())
    }

    fn carry_out(
        &self,
        request: &Request,
        processes: &mut Processes,
        say: &mut dyn FnMut(String),
    ) -> Result<Answer> {
        Ok(match request {
            Request::Hello => {
                let (accesses, writes) = self.kind.reports();
                Answer::Hello(Hello {
                    accesses,
                    writes,
                    ram: self.ram.clone(),
                    proofs: self.proofs.look()?,
                })
            }
            Request::Mapped => {
                let sampled = processes.mapped(say)?;
                let in_use = physical::in_use(&self.ram)?.difference(&sampled);
                Answer::Mapped(Memory { sampled, in_use })
            }
            Request::Window => Answer::Window(processes.used(say)),
            Request::Rearm(pages) => {
                processes.rearm(pages, say);
                Answer::Done
            }
            Request::Suspend => {
                processes.suspend(say);
                Answer::Done
            }
        })
    }
}

/// Pages of this process with random bytes, which nobody else can know.
struct Proofs {
    memory: Vec<u8>,
}

impl Proofs {
    fn make() -> Result<Self> {
        let mut memory = vec![0; (PROOFS + 1) * PAGE_BYTES as usize];
        let path = "/dev/urandom";
        File::open(path)
            .and_then(|mut random| random.read_exact(&mut memory))
            .map_err(|source| Error::Io {
                what: format!("reading {path}"),
                source,
            })?;
        Ok(Self { memory })
    }

    /// Where they are at the moment.
    fn look(&self) -> Result<Vec<(u64, [u8; PROOF_BYTES])>> {
        let address = self.memory.as_ptr() as u64;
        let first = address.next_multiple_of(PAGE_BYTES);
        let pages = PageRange::new(first, first + PROOFS as u64 * PAGE_BYTES);
        let frames = Frames::open(std::process::id())?;
        let frames = frames.of(&pages.into_iter().collect(), &PageSet::new())?;
        let proof = |page: PageRange| {
            let at = (page.start() - address) as usize;
            self.memory[at..].first_chunk().copied()
        };
        let proofs = frames.into_iter();
        Ok(proofs
            .filter_map(|(page, frame)| Some((frame * PAGE_BYTES, proof(page)?)))
            .collect())
    }
}
