//! Page faults on the model against those of a real kernel: the counts are equal.
//!
//! `real/faults.c` runs small programs on this kernel; the same programs run on the model. Where
//! there is no C compiler or no userfaultfd, the model is held against recorded counts only, and
//! the test says so. What a kernel with soft-dirty printed in a guest is in the directory that
//! `cargo xtask model` names in `PAGETRAIL_REAL`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use pagetrail_model::machine::{Gva, PAGE_BYTES};
use pagetrail_model::technique::{Target, TechniqueKind};
use pagetrail_model::{Events, Host, HostConfig, ProcessId, VcpuId, VmConfig};

const PAGES: u64 = 5000;

/// On Linux 6.18, x86-64; soft-dirty on 6.12.
const RECORDED: [(&str, u64); 14] = [
    ("first-write", 5000),
    ("second-write", 0),
    ("first-read", 5000),
    ("write-after-read", 5000),
    ("ufd-listing1", 5000),
    ("ufd-every-third", 1667),
    ("ufd-random", 1939),
    ("ufd-missing", 5000),
    ("soft-dirty-listing1", 5000),
    ("soft-dirty-every-third", 1667),
    ("soft-dirty-random", 1939),
    ("scan-listing1", 5000),
    ("scan-every-third", 1667),
    ("scan-random", 1939),
];

struct Program {
    host: Host,
    process: ProcessId,
    vcpu: VcpuId,
    area: Gva,
}

impl Program {
    fn new() -> Self {
        let mut host = Host::new(&HostConfig::default()).unwrap();
        let vm = host.add_vm(&VmConfig::default()).unwrap();
        let process = host.spawn(vm).unwrap();
        let vcpu = vm.vcpu(0);
        host.schedule(process, vcpu).unwrap();
        let area = host.map(process, PAGES * PAGE_BYTES).unwrap();
        Self {
            host,
            process,
            vcpu,
            area,
        }
    }

    fn touch(&mut self, page: u64, write: bool) {
        self.host
            .access(self.vcpu, self.area.add_pages(page), write)
            .unwrap();
    }

    /// What happens while `body` runs.
    fn during(&mut self, body: impl FnOnce(&mut Self)) -> Events {
        let before = self.host.events(self.process.vm());
        body(self);
        self.host.events(self.process.vm()) - before
    }
}

/// The generator of faults.c.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn on_the_model() -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut count = |what: &str, faults| assert!(counts.insert(what.to_owned(), faults).is_none());
    let all = |write| move |p: &mut Program| (0..PAGES).for_each(|page| p.touch(page, write));

    let mut program = Program::new();
    count("first-write", program.during(all(true)).page_faults);
    count("second-write", program.during(all(true)).page_faults);
    let mut program = Program::new();
    count("first-read", program.during(all(false)).page_faults);
    count("write-after-read", program.during(all(true)).page_faults);

    let target = |p: &Program| Target {
        tracked: p.process,
        tracker: p.process,
        tracker_vcpu: p.vcpu,
    };
    let every_third = |p: &mut Program| {
        for page in (0..PAGES).step_by(3) {
            p.touch(page, false);
            p.touch(page, true);
            p.touch(page, true);
        }
    };
    let random = |p: &mut Program| {
        let mut random = Random(1);
        for _ in 0..PAGES {
            let page = random.below(PAGES);
            p.touch(page, random.below(2) == 1);
        }
    };
    type Run<'a> = &'a dyn Fn(&mut Program);
    let listing1 = all(true);
    let programs: [(&str, Run<'_>); 3] = [
        ("listing1", &listing1),
        ("every-third", &every_third),
        ("random", &random),
    ];
    // What pagemap-scan arms is resolved by the kernel at the first write, as soft-dirty is.
    let techniques = [
        ("ufd", TechniqueKind::Userfaultfd),
        ("soft-dirty", TechniqueKind::SoftDirty),
        ("scan", TechniqueKind::SoftDirty),
    ];
    for (technique, kind) in techniques {
        let mut program = Program::new();
        all(true)(&mut program);
        let start = target(&program);
        let mut tracker = kind.start(&mut program.host, start).unwrap();
        for (name, run) in programs {
            let events = program.during(run);
            count(
                &format!("{technique}-{name}"),
                events.faults_userfaultfd + events.faults_soft_dirty,
            );
            tracker.collect(&mut program.host).unwrap();
        }
    }
    let mut program = Program::new();
    let start = target(&program);
    TechniqueKind::Userfaultfd
        .start(&mut program.host, start)
        .unwrap();
    count("ufd-missing", program.during(all(true)).faults_userfaultfd);
    counts
}

/// Runs faults.c, or says why not.
fn on_this_kernel() -> Result<BTreeMap<String, u64>, String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/faults.c");
    let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/faults");
    let compiled = Command::new("cc")
        .args(["-O1", "-pthread", "-o", program, source])
        .output();
    let compiled = compiled.map_err(|error| format!("no C compiler: {error}"))?;
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
    }
    let output = Command::new(program)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// What faults.c printed; what a kernel lacks is left out.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let count = |line: &str| {
        let (what, count) = line.split_once(' ')?;
        Some((what.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(count).collect()
}

fn compare(ours: &BTreeMap<String, u64>, real: &BTreeMap<String, u64>, place: &str) {
    for (what, &count) in ours {
        let Some(&theirs) = real.get(what) else {
            say(&format!("{what}: not on {place}"));
            continue;
        };
        // A real process has a few faults of its own (its stack, stdio) in the first programs.
        let is_exact = ["ufd", "scan", "soft"]
            .iter()
            .any(|kind| what.starts_with(kind));
        let slack = if is_exact { 0 } else { 16 };
        assert!(
            theirs.abs_diff(count) <= slack,
            "{what}: {theirs} on {place}, {count} here"
        );
    }
}

#[allow(clippy::print_stderr, reason = "nothing is left out in silence")]
fn say(what: &str) {
    eprintln!("{what}");
}

#[test]
fn fault_counts_are_those_of_a_real_kernel() {
    let ours = on_the_model();
    let recorded = RECORDED.map(|(what, count)| (what.to_owned(), count));
    assert_eq!(ours, BTreeMap::from(recorded));
    match on_this_kernel() {
        Ok(real) => compare(&ours, &real, "this kernel"),
        Err(why) => say(&format!("held against recorded counts only: {why}")),
    }
    let guest =
        std::env::var_os("PAGETRAIL_REAL").map(|dir| Path::new(&dir).join("faults-6.12.txt"));
    if let Some(Ok(text)) = guest.map(fs::read_to_string) {
        let real = parse(&text);
        assert!(real.contains_key("soft-dirty-random"), "{text}");
        compare(&ours, &real, "a guest's kernel");
    }
}
