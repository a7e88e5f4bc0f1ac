//! Counts what merging sub-pages saves and costs on real programs: `cargo xtask bench units`.
//!
//! `bench_units guest DIRECTORY` runs the programs of `tests/subpage`, compiled into a directory
//! that also has `libpagetrail_alloc.so`, as guests whose sub-pages merge by one strategy or
//! another (Lu et al., section 6); `bench_units native DIRECTORY` tracks them natively. The
//! programs ask for their rounds (`WORK_ROUNDS` in `work.h`), so that a round has the same writes
//! whatever the machine's speed: what is counted does not depend on time. Prints one JSON document.
//!
//! Under `cargo xtask vm --counted` the programs' processor times are numbers of instructions (a
//! nanosecond each). Beside the rounds stand runs without any: natively on libc's allocator, and as
//! guests by sub-pages; and of one program, rounds after fewer and more changes.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it reports to the person who started it"
)]

mod programs;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use pagetrail::{AtExit, DirtySource, State, Target, Technique, TrackMode, Watch};
use pagetrail_vm::{GuestSource, RoundDetail, Settings, UnitStrategy};
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::{Value, json};

use programs::{PROGRAMS, Program};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Sub-pages per page with the strategies that are measured; one sub-page is a traditional page.
/// The history strategy separates after as many rounds as a page has sub-pages, as the paper's.
const GUESTS: [(u32, UnitStrategy); 10] = [
    (1, UnitStrategy::Static),
    (2, UnitStrategy::Static),
    (2, UnitStrategy::History(2)),
    (2, UnitStrategy::Adaptive),
    (4, UnitStrategy::Static),
    (4, UnitStrategy::History(4)),
    (4, UnitStrategy::Adaptive),
    (8, UnitStrategy::Static),
    (8, UnitStrategy::History(8)),
    (8, UnitStrategy::Adaptive),
];

/// Sub-pages per page of guests without rounds.
const UNPROTECTED: [u32; 3] = [1, 2, 4];

/// What is measured by the changes between two rounds: whole pages, and parts.
const BY_INTERVAL: [(u32, UnitStrategy); 3] = [
    (1, UnitStrategy::Static),
    (4, UnitStrategy::Static),
    (4, UnitStrategy::Adaptive),
];

/// Sub-pages per page that are measured natively.
const NATIVE: [u32; 4] = [1, 2, 4, 8];

/// The directory of KVM's counters over all virtual machines, if debugfs is mounted.
const COUNTERS: &str = "/sys/kernel/debug/kvm";
/// The counters: all exits, those for the host's interrupts, and faults of the second-level tables.
const NAMES: [&str; 3] = ["exits", "irq_exits", "pf_taken"];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let word = |n: usize| arguments.get(n).and_then(|word| word.to_str());
    let result = match (word(0), word(1), word(2)) {
        (Some("guest"), Some(directory), only) => all(Path::new(directory), only, as_guests),
        (Some("native"), Some(directory), only) => all(Path::new(directory), only, natively),
        (Some("machine"), Some(link), _) => machine(link, &arguments[2..]),
        _ => Err("usage: bench_units guest|native DIRECTORY [PROGRAM]".into()),
    };
    match result {
        Ok(document) => {
            println!("{document}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench_units: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes a program whose rounds go over a link, if that is a number. The words before `--` are
/// variables.
fn machine(link: &str, words: &[OsString]) -> Result<Value> {
    let mut settings = Settings::default();
    let mut words = words.iter();
    for word in words.by_ref().take_while(|word| *word != "--") {
        let (name, value) = word
            .to_str()
            .and_then(|word| word.split_once('='))
            .ok_or("a variable is NAME=VALUE")?;
        settings.variables.push((name.into(), value.into()));
    }
    let command: Vec<OsString> = words.cloned().collect();
    match link.parse() {
        Ok(link) => pagetrail_vm::recorded_guest(&command, &settings, link)?,
        Err(_) => pagetrail_vm::become_guest(&command, &settings)?,
    };
    Ok(Value::Null)
}

fn all(
    directory: &Path,
    only: Option<&str>,
    measure: fn(&Path, &Program) -> Result<Value>,
) -> Result<Value> {
    let mut results = Vec::new();
    let wanted = |program: &&Program| only.is_none_or(|only| only == program.name);
    for program in PROGRAMS.iter().filter(wanted) {
        let mut result = measure(directory, program)?;
        result["program"] = program.name.into();
        result["arguments"] = program.arguments.into();
        results.push(result);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(json!({ "kernel": release.trim(), "programs": results }))
}

fn as_guests(directory: &Path, program: &Program) -> Result<Value> {
    let run =
        |program: &Program, (subpages, strategy)| recorded(directory, program, subpages, strategy);
    let runs: Result<Vec<Value>> = GUESTS
        .map(|variant| run(program, variant))
        .into_iter()
        .collect();
    let mut result = json!({ "unprotected": unprotected(directory, program)?, "runs": runs? });
    let intervals = program.intervals.iter().map(|changes| {
        let program = program.with_rounds_of(*changes);
        let runs: Result<Vec<Value>> = BY_INTERVAL
            .map(|variant| run(&program, variant))
            .into_iter()
            .collect();
        Ok::<_, Box<dyn std::error::Error>>(json!({ "changes": changes, "runs": runs? }))
    });
    let intervals: Result<Vec<Value>> = intervals.collect();
    result["intervals"] = intervals?.into();
    Ok(result)
}

/// A guest whose sub-pages merge by a strategy, with the rounds that it asks for.
fn recorded(
    directory: &Path,
    program: &Program,
    subpages: u32,
    strategy: UnitStrategy,
) -> Result<Value> {
    let (rounds, link) = pagetrail_vm::pair()?;
    let mut request = Request::new()?;
    let mut command = guest(
        &link.as_raw_fd().to_string(),
        &request.variables(directory, subpages),
    )?;
    command.args(program.words(directory));
    command.stdout(request.output()?);
    let child = command.spawn()?;
    drop(link);
    let mut source = GuestSource::new(rounds, child, TrackMode::Writes, RoundDetail::SubPages);
    source.set_units(strategy)?;
    let mut counts = request.follow(&mut source)?;
    counts["log_entries"] = source.log_entries().into();
    counts["subpages"] = subpages.into();
    counts["units"] = strategy.to_string().into();
    eprintln!("{}: {counts}", program.name);
    Ok(counts)
}

/// The beginning of a command by which this program becomes a guest.
fn guest(link: &str, variables: &[(&str, String)]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["machine", link]);
    command.args(
        variables
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    command.arg("--");
    Ok(command)
}

/// What the program says of runs without rounds: natively on libc's allocator, and as a guest.
fn unprotected(directory: &Path, program: &Program) -> Result<Vec<Value>> {
    let words = program.with_rounds_of(0).words(directory);
    let mut native = Command::new(&words[0]);
    native.args(&words[1..]);
    let mut runs = vec![json!({ "where": "natively", "subpages": 0, "said": said(&mut native)? })];
    for subpages in UNPROTECTED {
        let [library, parts, _] = Request::new()?.variables(directory, subpages);
        let mut command = guest("-", &[library, parts])?;
        let said = said(command.args(&words))?;
        runs.push(json!({ "where": "guest", "subpages": subpages, "said": said }));
    }
    eprintln!("{}: {}", program.name, Value::from(runs.clone()));
    Ok(runs)
}

fn said(command: &mut Command) -> Result<Value> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {output:?}").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn natively(directory: &Path, program: &Program) -> Result<Value> {
    let run = |subpages: u32| {
        let mut request = Request::new()?;
        let words = program.words(directory);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(request.output()?);
        command.envs(request.variables(directory, subpages));
        let watch = Watch::builder().target(Target::command(command));
        let watch = watch.technique(Technique::PagemapScan);
        let mut watch = watch.at_exit(AtExit::Hold).start()?;
        let mut counts = request.follow(&mut watch)?;
        counts["subpages"] = subpages.into();
        eprintln!("{}: {counts}", program.name);
        Ok(counts)
    };
    let runs: Result<Vec<Value>> = NATIVE.into_iter().map(run).collect();
    Ok(json!({ "runs": runs? }))
}

/// The way by which a program asks for rounds, and where it prints.
struct Request {
    ours: UnixStream,
    theirs: Option<UnixStream>,
    printed: PathBuf,
}

impl Request {
    fn new() -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // The program inherits its end.
        fcntl_setfd(&theirs, FdFlags::empty())?;
        ours.set_read_timeout(Some(Duration::from_millis(20)))?;
        let name = format!("printed-{}", std::process::id());
        Ok(Self {
            ours,
            theirs: Some(theirs),
            printed: std::env::temp_dir().join(name),
        })
    }

    fn output(&self) -> Result<File> {
        Ok(File::create(&self.printed)?)
    }

    fn variables(&self, directory: &Path, subpages: u32) -> [(&'static str, String); 3] {
        let library = directory.join("libpagetrail_alloc.so");
        let socket = self.theirs.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        [
            ("LD_PRELOAD", library.display().to_string()),
            ("PAGETRAIL_SUBPAGES", subpages.to_string()),
            ("WORK_ROUNDS", socket.to_string()),
        ]
    }

    /// Collects each round that the program asks for, until it has ended, and counts what they
    /// have from the second on: the first one has all that the program wrote to begin with.
    fn follow(&mut self, source: &mut dyn DirtySource) -> Result<Value> {
        self.theirs = None;
        let mut counts = Counts::default();
        let mut byte = [0];
        loop {
            match self.ours.read(&mut byte) {
                Ok(1) => {
                    counts.add(source)?;
                    self.ours.write_all(&byte)?;
                }
                Ok(_) => break,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    match source.wait(Duration::ZERO) {
                        State::Exiting => {
                            counts.see_counters();
                            source.release_exit();
                            break;
                        }
                        State::Ended(_) => break,
                        _ => {}
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        let ended = loop {
            match source.wait(Duration::from_secs(1)) {
                State::Ended(ended) => break ended,
                State::Exiting => source.release_exit(),
                State::Ready => drop(source.collect()?),
                _ => {}
            }
        };
        if ended != Some(pagetrail::Ended::Exited(0)) {
            return Err(format!("the program ended with {ended:?}").into());
        }
        let printed = fs::read(&self.printed)?;
        fs::remove_file(&self.printed)?;
        counts.document(serde_json::from_slice(&printed)?)
    }
}

/// What the rounds of a run had, and KVM's counters.
#[derive(Default)]
struct Counts {
    rounds: u64,
    /// Pages of the heap.
    pages: u64,
    /// Bytes of the objects in dirty sub-pages.
    object_bytes: u64,
    dirty_subpages: u64,
    subpage_bytes: u64,
    /// What the collects of these rounds took.
    collects: Duration,
    first: Option<[u64; NAMES.len()]>,
    last: Option<[u64; NAMES.len()]>,
}

impl Counts {
    fn see_counters(&mut self) {
        let number = |name: &str| -> Option<u64> {
            let text = fs::read_to_string(format!("{COUNTERS}/{name}")).ok()?;
            text.trim().parse().ok()
        };
        let [exits, interrupts, faults] = NAMES.map(number);
        let all = exits.zip(interrupts).zip(faults);
        self.last = all.map(|((exits, interrupts), faults)| [exits, interrupts, faults]);
        self.first = self.first.or(self.last);
    }

    fn add(&mut self, source: &mut dyn DirtySource) -> Result<()> {
        self.see_counters();
        let began = Instant::now();
        let round = source.collect()?;
        let took = began.elapsed();
        if self.rounds > 0 {
            self.collects += took;
            let subpages = round.subpages().ok_or("the program has no such heap")?;
            self.pages += subpages.pages().page_count();
            self.dirty_subpages += subpages.count();
            self.object_bytes += subpages.bytes().bytes();
            self.subpage_bytes = subpages.subpage_bytes();
        }
        self.rounds += 1;
        round.commit();
        Ok(())
    }

    fn document(&self, said: Value) -> Result<Value> {
        if self.rounds < 2 {
            return Err("the program has asked for too few rounds".into());
        }
        let mut document = json!({
            "rounds": self.rounds - 1,
            "dirty_pages": self.pages,
            "dirty_subpages": self.dirty_subpages,
            "subpage_bytes": self.subpage_bytes,
            "volume_bytes": self.dirty_subpages * self.subpage_bytes,
            "object_bytes": self.object_bytes,
            "collects_ms": self.collects.as_secs_f64() * 1e3,
            "said": said,
        });
        if let (Some(first), Some(last)) = (self.first, self.last) {
            document["exits"] = ((last[0] - last[1]).saturating_sub(first[0] - first[1])).into();
            document["faults"] = last[2].saturating_sub(first[2]).into();
        }
        Ok(document)
    }
}
