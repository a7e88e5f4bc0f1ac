//! A program whose files no longer answer is sampled and named all the same.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use pagetrail::{Region, Target, Technique, Watch};
use pagetrail_stacks::{MemoryNames, Options, Period, Sampler, Symbolizer, Unwind};
use pagetrail_trail::StackTable;

/// What waits for ever is ended by then, so that a failure is none of the whole run.
const FOR_EVER: Duration = Duration::from_secs(120);

/// The program `hung_file.c`, which ends with this value, and its server with it.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `None` if something is missing here, which is then reported.
fn start(directory: &Path) -> Option<Program> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hung_file");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hung_file.c");
    let status = Command::new("gcc")
        .args(["-O1", "-Wall", "-Werror", "-fno-omit-frame-pointer", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .expect("gcc");
    assert!(status.success());
    let mut child = Command::new(program)
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let mut answers = BufReader::new(child.stdout.take().expect("a pipe"));
    let program = Program(child);
    answers.read_line(&mut line).expect("a line");
    match line.trim().strip_prefix("missing: ") {
        Some(what) => pagetrail_skips::not_here(what),
        None => {
            assert_eq!(line, "ready\n");
            return Some(program);
        }
    }
    None
}

/// Samples and names a process; the names of the functions that wrote.
fn look(pid: u32, unwind: Unwind) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let target = Target::process(pid)?;
    let watch = Watch::builder().target(target);
    let mut watch = watch.technique(Technique::PagemapScan).start()?;
    let period = Period::Fixed(1);
    let mut sampler = Sampler::attach(pid, &Options { unwind, period })?;
    let mut names = MemoryNames::new(pid);
    let mut table = StackTable::default();
    let mut stacks = Vec::new();
    for _ in 0..5 {
        let began = sampler.mark();
        let round = watch.collect()?;
        names.examine(&Region::of_process(pid)?);
        let (attribution, new) = sampler.attribute(began, round.dirty());
        table.append(new);
        stacks.extend(attribution.writers.iter().map(|writes| writes.stack));
        round.commit();
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut symbolizer = Symbolizer::new(&table);
    let frames = stacks
        .iter()
        .filter_map(|stack| table.stacks[*stack as usize].frames.first());
    Ok(frames
        .map(|frame| symbolizer.frame(*frame)[0].label())
        .collect())
}

#[test]
fn a_file_system_that_does_not_answer_holds_nothing_up() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let Some(program) = start(directory.path()) else {
        return;
    };
    let pid = program.0.id();
    let ways = match cfg!(target_arch = "x86_64") {
        true => &[Unwind::FramePointers, Unwind::Dwarf][..],
        false => &[Unwind::FramePointers],
    };
    let (done, looked) = mpsc::channel();
    std::thread::spawn(move || {
        for unwind in ways {
            let names = look(pid, *unwind).map_err(|error| error.to_string());
            let _ = done.send(names);
        }
    });
    for _ in ways {
        let names = looked.recv_timeout(FOR_EVER);
        match names.expect("it does not wait for the file system") {
            Ok(names) => assert!(names.iter().any(|name| name == "main"), "{names:?}"),
            Err(error) => return pagetrail_skips::not_here(error),
        }
    }
}
