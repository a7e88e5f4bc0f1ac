//! What it costs a program to get its pages as it touches them: by a bare loop over a userfaultfd,
//! one page from memory at a time; by the pager; and by the pager when the store has the order in
//! which an earlier process touched them. The program is `tests/victims/toucher.c`.
//!
//! bench_faults TOUCHER PAGES [ROUNDS [FRAME_PAGES]]
//!
//! FRAME_PAGES is how many pages the store compresses together. Prints one JSON document; times are
//! ns per touched page, medians of the rounds, which take turns.

#![allow(clippy::print_stdout, reason = "an example prints what it measured")]

use pagetrail_checkpoint::{
    ProcessCheckpointer, ProcessOptions, Store, WorldWritable, WriterOptions,
};
use pagetrail_restore::{Missing, RestoreOptions, restore_lazily};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A program, which ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A toucher, and a directory for it.
struct Toucher {
    program: PathBuf,
    directory: tempfile::TempDir,
    pages: String,
    order: &'static str,
    frame_pages: u32,
}

impl Toucher {
    fn start(&self, is_bare: bool) -> Outcome<Running> {
        let output = File::create(self.path("output"))?;
        let mut command = Command::new(&self.program);
        command.arg(self.directory.path());
        command.args([&*self.pages, self.order, "7"]);
        command.args(is_bare.then_some("bare"));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.stdout(output).spawn()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn go(&self, goes: bool) -> Outcome<()> {
        match goes {
            true => drop(File::create(self.path("go"))?),
            false => drop(fs::remove_file(self.path("go"))),
        }
        Ok(())
    }

    /// What the program says at its end, in ns per page.
    fn result(&self) -> Outcome<f64> {
        let output = fs::read_to_string(self.path("output"))?;
        let line = output.lines().find(|line| line.starts_with("touched"));
        let line = line.ok_or_else(|| format!("the program said: {output}"))?;
        let numbers: Vec<f64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [pages, ns] => Ok(ns / pages),
            _ => Err(line.into()),
        }
    }

    fn bare(&self) -> Outcome<f64> {
        self.go(true)?;
        self.start(true)?.0.wait()?;
        self.result()
    }

    /// A checkpoint of it, in a store.
    fn checkpoint(&self, place: &Path) -> Outcome<()> {
        self.go(false)?;
        let child = self.start(false)?;
        while !fs::read_to_string(self.path("output"))?.contains("ready") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let options = ProcessOptions {
            restartable: true,
            ..ProcessOptions::default()
        };
        let store = Store::create(place, WorldWritable::Allow)?;
        let mut process = ProcessCheckpointer::attach(child.0.id(), options)?;
        let options = WriterOptions {
            frame_pages: self.frame_pages,
            ..WriterOptions::default()
        };
        process.checkpoint(&mut store.writer(options)?)?;
        drop((process, child));
        self.go(true)
    }

    /// Restores it from there: ns per page, and how many pages it waited for.
    fn restored(&self, place: &Path, keep_touches: bool) -> Outcome<(f64, u64)> {
        let options = RestoreOptions {
            on_missing: Missing::Null,
            allow_changed_files: true,
            keep_touches,
            ..RestoreOptions::default()
        };
        let image = Store::open(place)?.newest_image()?;
        let (restored, pager) = restore_lazily(image, &options)?;
        let given = pager.finish()?;
        waitpid(Pid::from_raw(restored.pid as i32), WaitOptions::empty())?;
        if keep_touches && !given.kept_touches {
            return Err("the order was not kept".into());
        }
        Ok((self.result()?, given.faults))
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let program = fs::canonicalize(arguments.next().ok_or("the toucher is missing")?)?;
    let pages = arguments.next().ok_or("the number of pages is missing")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let frame_pages = WriterOptions::default().frame_pages;
    let frame_pages = arguments
        .next()
        .map_or(Ok(frame_pages), |pages| pages.parse())?;
    let mut lines = Vec::new();
    for order in ["along", "apart", "mixed"] {
        let toucher = Toucher {
            program: program.clone(),
            directory: tempfile::tempdir()?,
            pages: pages.clone(),
            order,
            frame_pages,
        };
        let [plain, ordered] = ["plain", "ordered"].map(|name| toucher.path(name));
        toucher.checkpoint(&plain)?;
        toucher.checkpoint(&ordered)?;
        toucher.restored(&ordered, true)?;
        let (mut bare, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
        let (mut faults, mut faults_again) = (0, 0);
        for _ in 0..rounds {
            bare.push(toucher.bare()?);
            let (ns, waited) = toucher.restored(&plain, false)?;
            first.push(ns);
            faults = waited;
            let (ns, waited) = toucher.restored(&ordered, true)?;
            again.push(ns);
            faults_again = waited;
        }
        let [bare, first, again] = [bare, first, again].map(|mut values| median(&mut values));
        lines.push(format!(
            "  {order:?}: {{\"bare_ns\": {bare:.0}, \"pager_ns\": {first:.0}, \"pager_faults\": {faults}, \
             \"ordered_ns\": {again:.0}, \"ordered_faults\": {faults_again}, \"ratio\": {:.2}, \
             \"ordered_ratio\": {:.2}}}",
            first / bare,
            again / bare
        ));
    }
    println!(
        "{{\n  \"schema\": 1, \"pages\": {pages}, \"rounds\": {rounds}, \"frame_pages\": {frame_pages},"
    );
    println!("{}\n}}", lines.join(",\n"));
    Ok(())
}
