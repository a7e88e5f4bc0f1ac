//! [`Inner`]: Linux in QEMU on KVM with a program that checks all its memory (`tier_guest.c`), for
//! tests that `cargo xtask tier-guests` runs in a guest.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use pagetrail::{PageRange, PageSet, mapped_pages};
use pagetrail_tier::mover::{Mover, NodeMover, NodeOptions};
use pagetrail_tier::{Place, Unit};
use rustix::thread::disable_transparent_huge_pages;

use super::running::Running;

pub(crate) const PAGE: u64 = 4096;
/// Of one emulated guest among several, on a busy machine; also for one answer.
const BOOT_MAX: Duration = Duration::from_secs(600);
/// Hot sets that the program has.
const SETS: u64 = 3;
/// Where the agent listens.
pub(crate) const PORT: u32 = 9466;

/// As the emulated processor of the guest around it needs them.
const PARAMETERS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check tsc=reliable \
                          mitigations=off nokaslr rdinit=/init";

/// What guests boot; `None` where there are no guests for it.
pub(crate) fn files() -> Option<PathBuf> {
    let files = env::var_os("PAGETRAIL_INNER_GUESTS").map(PathBuf::from);
    if files.is_none() {
        pagetrail_skips::not_here("guests with Linux: cargo xtask tier-guests");
    }
    files
}

/// A guest to be started.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) memory_mib: u64,
    pub(crate) program_mib: u64,
    /// Whether guest memory is in huge pages, and the hot sets are some.
    pub(crate) huge: bool,
    /// Its number for vsock, if it has an agent.
    pub(crate) cid: Option<u32>,
}

/// Pages of the program, and where they are in guest-physical memory.
struct Part {
    pages: Range<u64>,
    frame: u64,
}

/// A guest that runs.
pub(crate) struct Inner {
    pub(crate) name: &'static str,
    pub(crate) cid: Option<u32>,
    pub(crate) monitor: Running,
    orders: ChildStdin,
    answers: Receiver<String>,
    console: PathBuf,
    huge: bool,
    program_pages: u64,
    memory: PageRange,
    parts: Vec<Part>,
}

impl Inner {
    /// Begins to start a guest; [`Self::wait`] waits for it, so that several boot at once.
    pub(crate) fn start(files: &Path, directory: &Path, plan: &Plan) -> Self {
        let console = directory.join(format!("{}.console", plan.name));
        let mut qemu = Command::new(files.join("qemu-system-x86_64"));
        qemu.args(["-enable-kvm", "-cpu", "host", "-smp", "1", "-nodefaults"]);
        qemu.args(["-display", "none", "-monitor", "none", "-name", plan.name]);
        qemu.args(["-m", &format!("{}M", plan.memory_mib)]);
        qemu.arg("-kernel").arg(files.join("kernel"));
        qemu.arg("-initrd").arg(files.join("initrd"));
        let kind = if plan.huge { "huge" } else { "small" };
        let mut parameters = format!("{PARAMETERS} KIND={kind} MIB={}", plan.program_mib);
        if let Some(cid) = plan.cid {
            parameters += &format!(" AGENT=vsock:{PORT}");
            let device = format!("vhost-vsock-pci,guest-cid={cid}");
            qemu.args(["-device", &device]);
        }
        qemu.args(["-append", &parameters]);
        qemu.arg("-serial")
            .arg(format!("file:{}", console.display()));
        qemu.args(["-serial", "stdio"]);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Which the child inherits: QEMU would ask for huge pages.
        disable_transparent_huge_pages(!plan.huge).expect("the kernel knows huge pages");
        let mut monitor = Running(qemu.spawn().expect("QEMU starts"));
        disable_transparent_huge_pages(false).expect("the kernel knows huge pages");
        let orders = monitor.0.stdin.take().expect("it is piped");
        let output = monitor.0.stdout.take().expect("it is piped");
        let (sender, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let nothing = PageRange::new(0, PAGE).expect("a page");
        Self {
            name: plan.name,
            cid: plan.cid,
            monitor,
            orders,
            answers,
            console,
            huge: plan.huge,
            program_pages: (plan.program_mib << 20) / PAGE,
            memory: PageRange::new(0, plan.memory_mib << 20).unwrap_or(nothing),
            parts: Vec::new(),
        }
    }

    /// Faults of the monitor's threads, accesses of its guest among them, that took no disk.
    pub(crate) fn faults(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.pid());
        let text = fs::read_to_string(path).expect("it runs");
        // After the name, which may hold anything.
        let fields = text.rsplit(") ").next().unwrap_or_default();
        let faults = fields.split(' ').nth(7);
        faults
            .and_then(|field| field.parse().ok())
            .expect("a number")
    }

    /// Moves all guest memory to the slow node but for its program's pages outside this hot set,
    /// which go to the fast one.
    pub(crate) fn leave_on_slow_node(&self, set: u64) {
        let others = (0..SETS).filter(|other| *other != set).map(Some);
        let mut fast = self.pages_of(None);
        for other in others {
            fast.extend(self.pages_of(other));
        }
        let all = PageSet::from_iter([self.memory]);
        let mut mover = NodeMover::new(self.pid(), NodeOptions::default());
        for (pages, place) in [(all, Place::Slow), (fast, Place::Fast)] {
            let mapped = mapped_pages(self.pid(), &pages).expect("it runs");
            let unit = |address| Unit {
                address,
                bytes: PAGE,
                rank: 0,
            };
            let units: Vec<Unit> = mapped.present.iter_units(PAGE).map(unit).collect();
            mover.carry_out(&units, place, BOOT_MAX);
        }
    }

    /// Waits until the guest's program runs, at the start and after a reboot.
    pub(crate) fn wait(&mut self) {
        self.parts.clear();
        loop {
            let line = self.answer();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["memory", page, frame, count] => {
                    let [page, frame, count] = [page, frame, count]
                        .map(|word| word.parse().unwrap_or_else(|_| panic!("{line}")));
                    self.parts.push(Part {
                        pages: page..page + count,
                        frame,
                    });
                }
                ["ready"] => break,
                _ => panic!("the guest says '{line}'"),
            }
        }
        let known: u64 = self
            .parts
            .iter()
            .map(|part| part.pages.end - part.pages.start)
            .sum();
        assert_eq!(known, self.program_pages, "the guest's program says less");
        self.memory = self.guest_memory();
    }

    /// Has the guest's program use all its memory, or none.
    pub(crate) fn use_all(&mut self, all: bool) {
        let (order, answer) = if all {
            (b'a', "all hot")
        } else {
            (b'i', "idle")
        };
        assert_eq!(self.order(order), answer);
    }

    /// Gives the guest's program an order, and returns its answer.
    pub(crate) fn order(&mut self, order: u8) -> String {
        self.orders.write_all(&[order]).expect("the guest runs");
        self.answer()
    }

    /// The guest's program looks at all its memory, and finds it as it left it.
    pub(crate) fn check(&mut self) {
        let answer = self.order(b'c');
        assert!(answer.starts_with("fine "), "{answer}");
    }

    /// Has the guest boot anew.
    pub(crate) fn reboot(&mut self) {
        let answer = self.order(b'r');
        assert!(answer.starts_with("fine "), "{answer}");
        self.wait();
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(BOOT_MAX).unwrap_or_else(|error| {
            let console = fs::read_to_string(&self.console).unwrap_or_default();
            panic!("the guest says nothing ({error}); its console: {console}")
        })
    }

    /// The mapping of the monitor that is as large as guest memory.
    fn guest_memory(&self) -> PageRange {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("its maps");
        let bytes = self.memory.bytes();
        let ranges = maps.lines().filter_map(|line| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            PageRange::new(number(start)?, number(end)?).filter(|range| range.bytes() == bytes)
        });
        let ranges: Vec<PageRange> = ranges.collect();
        let [memory] = ranges[..] else {
            panic!("not one mapping of the size of guest memory: {ranges:?}");
        };
        memory
    }

    pub(crate) fn pid(&self) -> u32 {
        self.monitor.0.id()
    }

    /// Which hot set a page of the program is of; as `tier_guest.c` has it.
    fn set_of(&self, page: u64) -> Option<u64> {
        let all = self.program_pages;
        if !self.huge {
            let part = page / (all / SETS);
            return (page.is_multiple_of(4) && part < SETS).then_some(part);
        }
        let part = page / (all / 8);
        (1..=SETS).contains(&part).then(|| part - 1)
    }

    /// Where the pages of a hot set are in the monitor, or those of none.
    fn pages_of(&self, set: Option<u64>) -> PageSet {
        let pages = self.parts.iter().flat_map(|part| {
            let own = part.pages.clone().filter(|page| self.set_of(*page) == set);
            own.filter_map(|page| {
                let frame = part.frame + (page - part.pages.start);
                let start = self.memory.start() + frame * PAGE;
                PageRange::new(start, start + PAGE)
            })
        });
        let mut pages: Vec<PageRange> = pages.collect();
        pages.sort_unstable();
        pages.into_iter().collect()
    }

    /// Which part of a hot set, or of the pages that are in none, is in fast memory, by the kernel.
    pub(crate) fn in_fast(&self, set: Option<u64>) -> f64 {
        let pages = self.pages_of(set);
        let mapped = mapped_pages(self.pid(), &pages).expect("it runs");
        let mut kernel = NodeMover::new(self.pid(), NodeOptions::default());
        let runs = kernel.places(&mapped).expect("it runs");
        let fast = runs.iter().filter(|run| run.place == Place::Fast);
        let fast: PageSet = fast.map(|run| run.range).collect();
        fast.intersection(&pages).bytes() as f64 / pages.bytes() as f64
    }

    /// Bytes of guest memory on node 0 and on node 1, by `numa_maps`.
    pub(crate) fn on_nodes(&self) -> [u64; 2] {
        let text = fs::read_to_string(format!("/proc/{}/numa_maps", self.pid()));
        let text = text.expect("numa_maps");
        let start = format!("{:x} ", self.memory.start());
        let line = text.lines().find(|line| line.starts_with(&start));
        let words: Vec<&str> = line.expect("guest memory").split(' ').collect();
        ["N0=", "N1="].map(|node| {
            let count = words.iter().find_map(|word| word.strip_prefix(node));
            count.map_or(0, |count| count.parse::<u64>().expect("a number")) * PAGE
        })
    }

    /// Bytes of guest memory in huge pages.
    pub(crate) fn in_huge_pages(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps", self.pid())).expect("smaps");
        let start = format!("{:x}-", self.memory.start());
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("its huge pages") << 10
    }
}
