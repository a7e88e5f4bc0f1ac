//! [`HotSet`]: the program whose hot set is known, and where the kernel has its pages.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use pagetrail::{PageRange, PageSet, mapped_pages, page_size};
use pagetrail_tier::mover::{Mover, NodeMover, NodeOptions};
use pagetrail_tier::{Place, Unit};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Error;

/// What `hot_set.c` says of itself.
const BASE: u64 = 0x1000_0000_0000;
pub(crate) const STAGES: u64 = 5;

/// The programs, compiled.
pub(crate) struct Built {
    directory: TempDir,
}

impl Built {
    pub(crate) fn new() -> Result<Self, Error> {
        let directory = tempfile::tempdir()?;
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (name, source) in [
            ("hot_set", home.join("tests/hot_set.c")),
            ("hog", home.join("examples/bench_tier_guest/hog.c")),
            ("remap", home.join("tests/remap.c")),
            ("wait", home.join("tests/wait.c")),
        ] {
            let mut cc = Command::new("cc");
            let out = directory.path().join(name);
            if !cc
                .args(["-O1", "-pthread", "-o"])
                .arg(out)
                .arg(source)
                .status()?
                .success()
            {
                return Err(format!("{name}.c does not compile").into());
            }
        }
        Ok(Self { directory })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs one of the programs that move their own pages, and reads the numbers that it prints,
    /// each after its name.
    pub(crate) fn numbers(
        &self,
        name: &str,
        arguments: &[&str],
    ) -> Result<BTreeMap<String, u64>, Error> {
        let output = Command::new(self.program(name)).args(arguments).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name} {arguments:?}: {}: {said}", output.status).into());
        }
        let text = String::from_utf8(output.stdout)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let (pairs, rest) = words.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(format!("{name} {arguments:?}: {text}").into());
        }
        let number = |[name, value]: &[&str; 2]| Ok(((*name).to_owned(), value.parse()?));
        pairs.iter().map(number).collect()
    }

    /// Takes all of node 0 but so many MiB, until it is dropped.
    pub(crate) fn hog(&self, leave_mib: u64) -> Result<Hog, Error> {
        let mut command = Command::new(self.program("hog"));
        let command = command.arg(leave_mib.to_string());
        let (child, input) = start(command.stdin(Stdio::piped()))?;
        Ok(Hog { child, input })
    }
}

/// Somebody who has most of node 0.
pub(crate) struct Hog {
    child: Child,
    input: Option<ChildStdin>,
}

impl Drop for Hog {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Starts a program and waits until it is ready.
fn start(command: &mut Command) -> Result<(Child, Option<ChildStdin>), Error> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let input = child.stdin.take();
    let output = child.stdout.as_mut().ok_or("it is piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    match line.as_str() {
        "ready\n" => Ok((child, input)),
        _ => Err(format!("the program does not begin: '{line}'").into()),
    }
}

/// What the program is to be.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) pages: u64,
    /// How many pages are hot one after the other.
    pub(crate) run_pages: u64,
    /// Every so many pages is written, not only read; 0 for none.
    pub(crate) write_every: u64,
    /// How many of the first pages are in fast memory when it begins.
    pub(crate) fast_pages: u64,
}

/// The program.
pub(crate) struct HotSet {
    child: Child,
    layout: Layout,
}

impl HotSet {
    /// Starts it with its first pages in fast memory, and no other.
    pub(crate) fn start(built: &Built, layout: Layout) -> Result<Self, Error> {
        let mut command = Command::new(built.program("hot_set"));
        for argument in [layout.pages, layout.run_pages, layout.write_every] {
            command.arg(argument.to_string());
        }
        let (child, _) = start(&mut command)?;
        let program = Self { child, layout };
        program.move_to(layout.fast_pages..layout.pages, Place::Slow);
        program.move_to(0..layout.fast_pages, Place::Fast);
        Ok(program)
    }

    /// Moves pages at once; how many have moved.
    pub(crate) fn move_to(&self, pages: std::ops::Range<u64>, place: Place) -> usize {
        let unit = |page: u64| Unit {
            address: BASE + page * page_size(),
            bytes: page_size(),
            rank: 0,
        };
        let units: Vec<Unit> = pages.map(unit).collect();
        let mut mover = NodeMover::new(self.pid(), NodeOptions::default());
        let forever = Duration::from_secs(3600);
        mover.carry_out(&units, place, forever).moved.len()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    pub(crate) fn next_stage(&self) -> Result<(), Error> {
        self.signal(Signal::USR1)
    }

    /// Faults that were resolved without reading from a disk, hints and protections included.
    pub(crate) fn minor_faults(&self) -> u64 {
        let text =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // Behind the name, which may hold anything.
        let fields = text.rsplit(") ").next().unwrap_or_default();
        let field = fields.split(' ').nth(7);
        field.and_then(|field| field.parse().ok()).unwrap_or(0)
    }

    /// The part of the pages that are hot in a stage that is in fast memory, and how many of all
    /// are, as the kernel has it.
    pub(crate) fn in_fast(&self, stage: u64) -> Result<(f64, u64), Error> {
        let arena =
            PageSet::from_iter(PageRange::new(BASE, BASE + self.layout.pages * page_size()));
        let mapped = mapped_pages(self.pid(), &arena)?;
        let mut kernel = NodeMover::new(self.pid(), NodeOptions::default());
        let runs = kernel.places(&mapped)?;
        let fast = runs.iter().filter(|run| run.place == Place::Fast);
        let fast: PageSet = fast.map(|run| run.range).collect();
        let hot: Vec<u64> = (0..self.layout.pages)
            .filter(|page| page / self.layout.run_pages % STAGES == stage % STAGES)
            .collect();
        let found = hot
            .iter()
            .filter(|page| fast.contains(BASE + **page * page_size()));
        Ok((found.count() as f64 / hot.len() as f64, fast.page_count()))
    }

    /// Ends it; whether its memory was as it should be.
    pub(crate) fn finish(&mut self) -> Result<bool, Error> {
        self.signal(Signal::TERM)?;
        Ok(self.child.wait()?.success())
    }
}

impl Drop for HotSet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
