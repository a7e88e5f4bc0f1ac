//! With a period of 1 the attribution equals what the program says of itself: pages written by
//! functions, in threads, for system calls, by a signal handler and by code of a JIT compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pagetrail::{PageSet, Target, Technique, Watch};
use pagetrail_stacks::{Options, Period, Sampler, Symbolizer, Unwind};
use pagetrail_trail::{Attribution, StackTable};

const PAGES: u64 = 96;
const ROUNDS: u64 = 12;

/// The program `writers.c`, which ends with this value.
struct Program {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
    writers: BTreeMap<String, Writer>,
}

/// A function of the program.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Its place in the order that the program's formula has.
    number: u64,
    memory: u64,
    /// Its thread; 0 if each round has another.
    thread: u32,
}

const ORDER: [&str; 7] = [
    "write_left",
    "write_right",
    "raw_read",
    "on_signal",
    "write_in_thread",
    "write_late",
    "jitted_writer",
];

impl Program {
    fn start(flags: &[&str], name: &str) -> Self {
        let path = compile(flags, name);
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut writers = BTreeMap::new();
        while writers.len() < ORDER.len() {
            let mut line = String::new();
            answers.read_line(&mut line).expect("a line");
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = ORDER.iter().position(|name| *name == words[0]);
            let writer = Writer {
                number: number.expect("a known writer") as u64,
                memory: u64::from_str_radix(&words[1][2..], 16).expect("an address"),
                thread: words[2].parse().expect("a thread"),
            };
            writers.insert(words[0].to_owned(), writer);
        }
        Self {
            child,
            answers,
            writers,
        }
    }

    /// One round of writes, which are all done when this returns.
    fn write(&mut self) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(b"x").expect("it reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert_eq!(line, "done\n");
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It ends with its input, and removes its file in /tmp.
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        let _ = self.answers.read_to_end(&mut rest);
        let _ = self.child.wait();
    }
}

fn compile(flags: &[&str], name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/writers.c");
    let status = Command::new("gcc")
        .args(["-g", "-Wall", "-Werror", "-pthread"])
        .arg("-fno-optimize-sibling-calls")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status()
        .expect("gcc");
    assert!(status.success());
    program
}

/// Pages that a writer writes in a round.
fn expected(writer: &Writer, round: u64) -> BTreeSet<u64> {
    let pages = (0..PAGES).filter(|page| (page + round + writer.number).is_multiple_of(3));
    pages
        .map(|page| writer.memory + page * pagetrail::page_size())
        .collect()
}

fn within(pages: &PageSet, writer: &Writer) -> BTreeSet<u64> {
    let page = pagetrail::page_size();
    let memory = writer.memory..writer.memory + PAGES * page;
    let pages = pages.iter_units(page);
    pages.filter(|page| memory.contains(page)).collect()
}

/// A watch, a sampler, and all stacks so far.
struct Session {
    watch: Watch,
    sampler: Sampler,
    table: StackTable,
}

impl Session {
    /// `None` if something is missing here, which is then reported.
    fn start(program: &mut Program, options: &Options) -> Option<Self> {
        let target = Target::process(program.pid()).expect("it runs");
        let watch = Watch::builder()
            .target(target)
            .technique(Technique::PagemapScan)
            .start();
        let watch = match watch {
            Ok(watch) => watch,
            Err(error) => {
                pagetrail_skips::not_here(error);
                return None;
            }
        };
        let sampler = match Sampler::attach(program.pid(), options) {
            Ok(sampler) => sampler,
            Err(error) => {
                pagetrail_skips::not_here(error);
                return None;
            }
        };
        if !sampler.sees_kernel() {
            pagetrail_skips::not_here("faults of system calls cannot be sampled: CAP_PERFMON");
            return None;
        }
        let mut session = Self {
            watch,
            sampler,
            table: StackTable::default(),
        };
        // The pages that new mappings have already.
        session.round();
        Some(session)
    }

    fn round(&mut self) -> (PageSet, Attribution) {
        let began = self.sampler.mark();
        let round = self.watch.collect().expect("it runs");
        let dirty = round.dirty().clone();
        let (attribution, new) = self.sampler.attribute(began, &dirty);
        round.commit();
        self.table.append(new);
        (dirty, attribution)
    }

    /// Names of the functions of a stack, innermost first.
    fn names(&self, symbolizer: &mut Symbolizer<'_>, stack: u32) -> Vec<String> {
        let frames = &self.table.stacks[stack as usize].frames;
        let mut names = Vec::new();
        for frame in frames {
            names.extend(symbolizer.frame(*frame).iter().map(|f| f.label()));
        }
        names
    }
}

fn attribution_equals_the_oracle(unwind: Unwind, flags: &[&str], name: &str) {
    let mut program = Program::start(flags, name);
    let options = Options {
        unwind,
        period: Period::Fixed(1),
    };
    let Some(mut session) = Session::start(&mut program, &options) else {
        return;
    };
    for round in 1..=ROUNDS {
        program.write();
        let (dirty, attribution) = session.round();
        assert_eq!((attribution.period, attribution.lost), (1, 0));
        let mut symbolizer = Symbolizer::new(&session.table);
        for (name, writer) in &program.writers {
            let due = expected(writer, round);
            assert_eq!(within(&dirty, writer), due, "{name}: dirty in {round}");
            let mut found = BTreeSet::new();
            for writes in &attribution.writers {
                let pages = within(&writes.pages, writer);
                if pages.is_empty() {
                    continue;
                }
                let names = session.names(&mut symbolizer, writes.stack);
                assert_eq!(names[0], *name, "{names:?}");
                let in_kernel = session.table.stacks[writes.stack as usize].in_kernel;
                assert_eq!(in_kernel, name == "raw_read", "{names:?}");
                if writer.thread != 0 {
                    assert_eq!(writes.thread, writer.thread, "{name}");
                }
                let callers = match name.as_str() {
                    "write_left" => &["main"][..],
                    "write_right" => &["middle", "main"],
                    "raw_read" => &["by_system_call", "main"],
                    "write_in_thread" => &["worker"],
                    "write_late" => &["late"],
                    _ => &[],
                };
                assert_eq!(names[1..][..callers.len()], *callers, "{names:?}");
                assert_eq!(pages.intersection(&found).count(), 0, "attributed twice");
                found.extend(pages);
            }
            assert_eq!(found, due, "{name}: attributed in round {round}");
        }
    }
    let summary = session.sampler.summary();
    assert_eq!((summary.lost, summary.period), (0, 1));
    assert!(summary.samples >= ROUNDS * ORDER.len() as u64 * PAGES / 3);
    let threads: BTreeSet<u32> = session.table.threads.iter().map(|t| t.id).collect();
    assert_eq!(threads.len(), session.table.threads.len(), "named twice");
    assert!(threads.contains(&program.pid()));
}

#[test]
fn with_frame_pointers() {
    let flags = [
        "-O1",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
    ];
    attribution_equals_the_oracle(Unwind::FramePointers, &flags, "writers");
}

#[test]
fn with_dwarf_where_there_are_no_frame_pointers() {
    if !cfg!(target_arch = "x86_64") {
        return pagetrail_skips::not_here("DWARF unwinding is for x86-64");
    }
    let flags = ["-O2", "-fomit-frame-pointer"];
    attribution_equals_the_oracle(Unwind::Dwarf, &flags, "writers_dwarf");
}

/// A longer period samples fewer pages and claims no others; the rest is unattributed.
#[test]
fn a_period_leaves_pages_unattributed() {
    let mut program = Program::start(&["-O1", "-fno-omit-frame-pointer"], "writers_period");
    let options = Options {
        unwind: Unwind::FramePointers,
        period: Period::Fixed(4),
    };
    let Some(mut session) = Session::start(&mut program, &options) else {
        return;
    };
    let (mut written, mut attributed) = (0, 0);
    for round in 1..=ROUNDS {
        program.write();
        let (dirty, attribution) = session.round();
        assert_eq!(attribution.period, 4);
        let mut symbolizer = Symbolizer::new(&session.table);
        for (name, writer) in &program.writers {
            written += within(&dirty, writer).len();
            for writes in &attribution.writers {
                let pages = within(&writes.pages, writer);
                if !pages.is_empty() {
                    let names = session.names(&mut symbolizer, writes.stack);
                    assert_eq!(names[0], *name, "{names:?}");
                    assert!(pages.is_subset(&expected(writer, round)));
                    attributed += pages.len();
                }
            }
        }
    }
    // One of four in each thread, with a remainder per thread and processor.
    assert!(attributed * 3 < written, "{attributed} of {written}");
    assert!(attributed * 6 > written, "{attributed} of {written}");
}

#[test]
fn a_process_that_ends_leaves_what_was_sampled() {
    let mut program = Program::start(&["-O1", "-fno-omit-frame-pointer"], "writers_end");
    let options = Options::default();
    let Some(mut session) = Session::start(&mut program, &options) else {
        return;
    };
    program.write();
    let writer = program.writers["write_left"];
    let pid = program.pid();
    drop(program);
    // The watch has nothing to collect any more; the samples are still there.
    let page = pagetrail::page_size();
    let dirty = PageSet::from_iter(pagetrail::PageRange::new(
        writer.memory,
        writer.memory + PAGES * page,
    ));
    let (attribution, new) = session.sampler.attribute(session.sampler.mark(), &dirty);
    assert!(attribution.page_count() >= PAGES / 3);
    session.table.append(new);
    let gone = Sampler::attach(pid, &options).err().expect("it has ended");
    assert!(gone.to_string().contains("has ended"), "{gone}");
}
