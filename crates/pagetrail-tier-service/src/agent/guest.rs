//! [`Guest`]: on the host, a guest's agent as a source of accesses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use pagetrail::{Mapped, PageSet, mapped_pages};
use pagetrail_tier::source::{Source, SourceInfo};
use pagetrail_tier::{Error, Result, Sample, SourceCaps};

use super::address::AgentAddress;
use super::layout::Layout;
use super::stream::Stream;
use super::wire::{self, Answer, Hello, Memory, Request};
use crate::monitor;

/// For an answer at least, where other targets wait meanwhile.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// For an answer where windows are long: no other target has a turn sooner than in a window.
const TIMEOUT_WINDOWS: u32 = 10;
/// For an answer at most: in one turn an agent is asked up to four times (a probe that begins a
/// period), and a watchdog that waits for a minute ends a daemon that is not heard of meanwhile.
const TIMEOUT_MAX: Duration = Duration::from_secs(12);

/// For an answer of an agent that is asked in every window. Other targets wait so long once: after
/// that the guest is watched from outside, and its agent left alone for a while.
pub(crate) fn timeout(window: Duration) -> Duration {
    window
        .saturating_mul(TIMEOUT_WINDOWS)
        .clamp(TIMEOUT, TIMEOUT_MAX)
}

/// A guest whose agent says which of its memory is used.
pub(crate) struct Guest {
    link: Link,
    pid: u32,
    layout: Layout,
    info: SourceInfo,
    /// The monitor's addresses of what is in use and cannot be sampled.
    in_use: PageSet,
}

impl Guest {
    /// Asks the agent of a monitor's guest, and waits for so long for each answer.
    ///
    /// # Errors
    ///
    /// It does not answer, or is another guest's.
    pub(crate) fn of(pid: u32, address: &AgentAddress, timeout: Duration) -> Result<Self> {
        let mut link = Link::open(address, timeout)?;
        let Answer::Hello(hello) = link.ask(&Request::Hello)? else {
            return Err(link.misunderstood());
        };
        let layout = layout(pid, &hello).map_err(|source| Error::Io {
            what: format!("reading the memory of process {pid}"),
            source,
        })?;
        let Some(layout) = layout else {
            return Err(Error::Target(format!(
                "the agent at {address} is not in the guest of process {pid}, or that guest's \
                 memory is laid out in a way that is not known"
            )));
        };
        link.body_max = wire::body_max(layout.pages());
        Ok(Self {
            info: info(&hello),
            link,
            pid,
            layout,
            in_use: PageSet::new(),
        })
    }
}

/// Where the guest that says this lies in a monitor.
fn layout(pid: u32, hello: &Hello) -> io::Result<Option<Layout>> {
    let mappings = monitor::guest_mappings(&monitor::smaps(pid)?);
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let read = |address: u64, bytes: &mut [u8]| memory.read_exact_at(bytes, address).is_ok();
    Ok(Layout::find(&hello.ram, &mappings, &hello.proofs, &read))
}

fn info(hello: &Hello) -> SourceInfo {
    let name = match (hello.accesses, hello.writes) {
        (true, false) => "agent (accesses)",
        (false, _) => "agent (writes)",
        (true, true) => "agent (accesses and writes in turns)",
    };
    let in_turns = hello.accesses && hello.writes;
    SourceInfo {
        name,
        caps: SourceCaps {
            accesses: hello.accesses,
            writes: hello.writes,
            in_turns,
        },
        pages: true,
        saves_faults: !in_turns,
    }
}

impl Source for Guest {
    fn info(&self) -> SourceInfo {
        self.info
    }

    fn window(&mut self) -> Result<Sample> {
        let Answer::Window(used) = self.link.ask(&Request::Window)? else {
            return Err(self.link.misunderstood());
        };
        let own = |set: Option<PageSet>| {
            let mut own = self.layout.in_monitor(&set?);
            own.union_with(&self.in_use);
            Some(own)
        };
        Ok(Sample {
            accessed: own(used.accessed),
            written: own(used.written),
        })
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        let pages = self.layout.physical(pages);
        self.link.order(&Request::Rearm(pages))
    }

    fn suspend(&mut self) -> Result<()> {
        self.link.order(&Request::Suspend)
    }

    fn mapped(&mut self) -> Result<Mapped> {
        let Answer::Mapped(memory) = self.link.ask(&Request::Mapped)? else {
            return Err(self.link.misunderstood());
        };
        let Memory { sampled, in_use } = memory;
        // In the monitor first, which leaves nothing that is not the guest's.
        let (sampled, in_use) = (
            self.layout.in_monitor(&sampled),
            self.layout.in_monitor(&in_use),
        );
        self.in_use = in_use.difference(&sampled);
        self.mapped_within(&self.layout.memory())
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        let within = addresses.intersection(&self.layout.memory());
        Ok(mapped_pages(self.pid, &within)?)
    }
}

/// A connection to an agent.
struct Link {
    stream: Stream,
    address: AgentAddress,
    timeout: Duration,
    /// The longest body of an answer, in bytes.
    body_max: u32,
}

impl Link {
    fn open(address: &AgentAddress, timeout: Duration) -> Result<Self> {
        let stream = Stream::connect(address, timeout).map_err(|source| Error::Io {
            what: format!("connecting to the agent at {address}"),
            source,
        })?;
        Ok(Self {
            stream,
            address: address.clone(),
            timeout,
            body_max: wire::HELLO_MAX,
        })
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.stream.within(self.timeout);
        let sent = request.write(&mut self.stream);
        let answer = sent.and_then(|()| Answer::read(&mut self.stream, self.body_max));
        match answer {
            Ok(Answer::Failed(text)) => Err(Error::Target(format!(
                "the agent at {}: {text}",
                self.address
            ))),
            Ok(answer) => Ok(answer),
            Err(source) => Err(Error::Io {
                what: format!("asking the agent at {}", self.address),
                source,
            }),
        }
    }

    fn order(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            _ => Err(self.misunderstood()),
        }
    }

    fn misunderstood(&self) -> Error {
        Error::Target(format!(
            "the agent at {} answers another question: is it of this version?",
            self.address
        ))
    }
}
