//! How long a program takes to its first answer: started anew, restored by CRIU alone, by CRIU from
//! a store, and by pagetrail alone.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::programs::{Engine, Exchange, JVM, PYTHON, REDIS, Recipe, Running, directory};
use super::restore::Tools;
use super::{Bits, TIMEOUT, run};

/// A GB, in values of pieces that come again elsewhere, as those of applications do; no two values
/// are the same.
const FILL: &str = "EVAL \"local c = {} for j = 1, 1000 do c[j] = redis.sha1hex(j) end \
    for i = 1, 1800000 do local v, n = '', (i - i % 1000) / 1000 \
    for k = 1, 12 do v = v .. c[(i * (6 * k + 1) + n * k * k) % 1000 + 1] end \
    redis.call('SET', 'key:' .. i, v) end return 'filled'\" 0\r\n";

/// What is measured: a program, what fills it, and its first question, which starting anew is asked
/// as well.
struct Subject {
    recipe: Recipe,
    fill: &'static [Exchange],
    first: Exchange,
    anew: Exchange,
}

const SUBJECTS: &[Subject] = &[
    Subject {
        recipe: PYTHON,
        fill: &[("40\n", "sum 40\n")],
        first: ("2\n", "sum 42\n"),
        anew: ("2\n", "sum 2\n"),
    },
    Subject {
        recipe: JVM,
        fill: &[("40\n", "sum 40\n")],
        first: ("2\n", "sum 42\n"),
        anew: ("2\n", "sum 2\n"),
    },
    Subject {
        recipe: REDIS,
        // What it is started anew from is a file of its own.
        fill: &[(FILL, "filled"), ("SAVE\r\n", "+OK")],
        first: ("PING\r\n", "+PONG"),
        anew: ("PING\r\n", "+PONG"),
    },
];

/// The ways that are measured.
const WAYS: &[&str] = &[
    "anew",
    "criu",
    "criu-lazy",
    "criu-store",
    "criu-store-lazy",
    "own",
    "own-lazy",
];

/// All programs that are here, by all ways in turns; medians.
pub(super) fn measure(tools: &Tools<'_>, rounds: usize, dir: &Path) -> Result<Vec<Value>> {
    let mut runs = Vec::new();
    for subject in SUBJECTS {
        let name = subject.recipe.name;
        match subject.recipe.lacks() {
            Some(lacking) => println!("not here: {name}, since there is no {lacking}"),
            None => runs.extend(one(tools, subject, rounds, dir).context(name)?),
        }
    }
    Ok(runs)
}

/// A program that was saved in all ways, and has been killed.
struct Saved<'a> {
    tools: &'a Tools<'a>,
    subject: &'a Subject,
    running: Running,
    words: Vec<String>,
    dir: &'a Path,
}

fn one(tools: &Tools<'_>, subject: &Subject, rounds: usize, dir: &Path) -> Result<Vec<Value>> {
    let dir = directory(dir, subject.recipe.name)?;
    let words = (subject.recipe.command)(&dir)?;
    let running = Running::start(&words)?;
    for exchange in subject.fill {
        subject.recipe.says(&dir, *exchange)?;
    }
    let saved = Saved {
        tools,
        subject,
        running,
        words,
        dir: &dir,
    };
    let resident = resident_mib(saved.running.pid)?;
    let refused = saved.save()?;
    saved.running.end()?;
    let mut found = Vec::new();
    for way in WAYS {
        let refused = refused.as_deref().filter(|_| way.starts_with("own"));
        found.push((*way, refused, Vec::new()));
    }
    for _ in 0..rounds {
        for (way, _, times) in found.iter_mut().filter(|(_, refused, _)| refused.is_none()) {
            times.push(
                saved
                    .first_answer(way)
                    .with_context(|| format!("by {way}"))?,
            );
        }
    }
    let runs = found.into_iter().map(|(way, refused, mut times)| {
        times.sort_unstable();
        let mut run = json!({"program": subject.recipe.name, "way": way, "resident_mib": resident});
        match times.get(times.len() / 2) {
            Some(time) => run["first_answer_ms"] = json!(time.as_micros() as f64 / 1000.0),
            None => run["refused"] = json!(refused),
        }
        println!("{run}");
        run
    });
    let runs = runs.collect();
    // A GB and more, three times.
    drop(saved);
    fs::remove_dir_all(&dir)?;
    Ok(runs)
}

fn resident_mib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("its size")? >> 10)
}

impl Saved<'_> {
    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Saves it by all ways; gives the words by which pagetrail alone refuses.
    fn save(&self) -> Result<Option<String>> {
        let pid = self.running.pid.to_string();
        let images = self.path("images");
        fs::create_dir(&images)?;
        let dump = [
            "dump",
            "--leave-running",
            "-t",
            &pid,
            "-D",
            &images,
            "-o",
            "log",
        ];
        let log = Path::new(&images).join("log");
        run(self.tools.kit.criu(Bits::Kernel, &dump), &log)?;
        let mut refused = None;
        for engine in [Engine::Criu, Engine::Own] {
            let store = self.path(engine.flag());
            let take = ["checkpoint", engine.flag(), "-p", &pid, "--store", &store];
            let output = self.tools.pagetrail(&take).output()?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                ensure!(engine == Engine::Own, "{said}");
                refused = Some(said.replace(&pid, "PID"));
            }
        }
        Ok(refused)
    }

    /// Starts it by one way, and asks it; it has all its pages, and is ended, afterwards.
    fn first_answer(&self, way: &str) -> Result<Duration> {
        let recipe = &self.subject.recipe;
        // What is no socket any more would have to be waited for.
        let _ = fs::remove_file(self.dir.join("socket"));
        let began = Instant::now();
        if way == "anew" {
            let anew = Running::start(&self.words)?;
            recipe.says(self.dir, self.subject.anew)?;
            let elapsed = began.elapsed();
            return anew.end().map(|()| elapsed);
        }
        let mut helpers = match way {
            "criu" | "criu-lazy" => self.by_criu(way == "criu-lazy")?,
            _ => vec![self.by_store(way)?],
        };
        let answered = recipe.says(self.dir, self.subject.first);
        let elapsed = began.elapsed();
        for helper in &mut helpers {
            if answered.is_err() {
                let _ = helper.kill();
            }
            let status = helper.wait()?;
            ensure!(
                answered.is_err() || status.success(),
                "it ends with {status}"
            );
        }
        answered?;
        self.running.end().map(|()| elapsed)
    }

    /// CRIU's own commands, with image files.
    fn by_criu(&self, lazy: bool) -> Result<Vec<Child>> {
        let images = self.path("images");
        let mut helpers = Vec::new();
        let mut args = vec!["restore", "-D", &images, "-d", "-o", "restored"];
        if lazy {
            // One of an earlier round would be taken for this one's.
            let _ = fs::remove_file(Path::new(&images).join("lazy-pages.socket"));
            let pages = ["lazy-pages", "-D", &images, "-o", "pages"];
            helpers.push(self.tools.kit.criu(Bits::Kernel, &pages).spawn()?);
            args.push("--lazy-pages");
            let began = Instant::now();
            while !Path::new(&images).join("lazy-pages.socket").exists() {
                ensure!(began.elapsed() < TIMEOUT, "criu lazy-pages does not start");
                thread::sleep(Duration::from_micros(500));
            }
        }
        helpers.push(quiet(&mut self.tools.kit.criu(Bits::Kernel, &args))?);
        Ok(helpers)
    }

    fn by_store(&self, way: &str) -> Result<Child> {
        let engine = match way.starts_with("own") {
            true => Engine::Own,
            false => Engine::Criu,
        };
        let store = self.path(engine.flag());
        let restore = engine.restore(&store, way.ends_with("lazy"));
        quiet(&mut self.tools.pagetrail(&restore))
    }
}

fn quiet(command: &mut Command) -> Result<Child> {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("{command:?}"))
}
