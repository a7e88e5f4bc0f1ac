//! Real programs that come back: servers that are asked by Unix sockets, and a shell that reads its
//! standard input. Each has its state, is saved, killed and started anew, with CRIU and without.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, WaitOptions, waitpid};

use pagetrail_steps::repo::program;

use super::again::descendants;
use super::restore::Tools;
use super::{TIMEOUT, kill};
use crate::python;

/// How often is looked whether something has happened.
const POLL: Duration = Duration::from_micros(200);

/// By what a program is saved and started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// pagetrail alone.
    Own,
    /// CRIU beneath.
    Criu,
}

impl Engine {
    pub(super) fn flag(self) -> &'static str {
        match self {
            Self::Own => "--restorable=own",
            Self::Criu => "--restorable=criu",
        }
    }

    /// The words by which a store is restored. What a caller left open in its children, pipes say,
    /// does not matter.
    pub(super) fn restore(self, store: &str, lazy: bool) -> Vec<&str> {
        let mut words = vec!["restore", store];
        words.extend(lazy.then_some("--lazy"));
        if self == Self::Own {
            words.extend(["--on-missing", "null"]);
        }
        words
    }
}

/// What is asked, and what is said then, among other things.
pub(super) type Exchange = (&'static str, &'static str);

/// A program, and how it is known to be what it was.
pub(super) struct Recipe {
    pub(super) name: &'static str,
    /// What must be installed.
    pub(super) needs: &'static [&'static str],
    pub(super) engines: &'static [Engine],
    /// Prepares its directory; gives the program and its arguments.
    pub(super) command: fn(&Path) -> Result<Vec<String>>,
    pub(super) ask: fn(&Path, &str) -> Result<Option<String>>,
    /// What brings it into its state, and what shows that it is in it.
    pub(super) before: &'static [Exchange],
    pub(super) after: &'static [Exchange],
}

use Engine::{Criu, Own};

const SUMS_BEFORE: &[Exchange] = &[("40\n", "sum 40\n"), ("2\n", "sum 42\n")];
const SUMS_AFTER: &[Exchange] = &[("8\n", "sum 50\n"), ("50\n", "sum 100\n")];

pub(super) const PYTHON: Recipe = Recipe {
    name: "CPython",
    needs: &["python3"],
    engines: &[Own, Criu],
    command: |dir| {
        let python = python::find()?.display().to_string();
        Ok(vec![
            python,
            written(dir, "served.py", include_str!("served/served.py"))?,
            socket(dir),
        ])
    },
    ask: by_socket,
    before: SUMS_BEFORE,
    after: SUMS_AFTER,
};

pub(super) const JVM: Recipe = Recipe {
    name: "JVM",
    needs: &["java", "javac"],
    engines: &[Own, Criu],
    command: |dir| {
        let source = written(dir, "Served.java", include_str!("served/Served.java"))?;
        let dir = dir.display().to_string();
        done(Command::new("javac").args(["-d", &dir, &source]))?;
        let java = program("java").context("java")?.display().to_string();
        // Without a file in /tmp for other tools.
        let words = [&java, "-XX:-UsePerfData", "-Xmx256m", "-cp", &dir, "Served"];
        let words = words.into_iter().map(str::to_owned);
        Ok(words.chain([format!("{dir}/socket")]).collect())
    },
    ask: by_socket,
    before: SUMS_BEFORE,
    after: SUMS_AFTER,
};

pub(super) const REDIS: Recipe = Recipe {
    name: "Redis",
    needs: &["redis-server"],
    engines: &[Own, Criu],
    command: |dir| {
        let mut words = vec![
            "redis-server".to_owned(),
            "--unixsocket".to_owned(),
            socket(dir),
        ];
        words.extend(["--port", "0", "--save", "", "--dir"].map(str::to_owned));
        words.push(dir.display().to_string());
        Ok(words)
    },
    ask: by_socket,
    before: &[("SET kept 42\r\n", "+OK"), ("INCR counted\r\n", ":1")],
    after: &[("GET kept\r\n", "42"), ("INCR counted\r\n", ":2")],
};

const RECIPES: &[Recipe] = &[
    PYTHON,
    Recipe {
        name: "threads in C++",
        needs: &["g++"],
        engines: &[Own, Criu],
        command: |dir| {
            let source = written(dir, "served.cpp", include_str!("served/served.cpp"))?;
            let out = dir.join("served").display().to_string();
            done(Command::new("g++").args(["-O1", "-std=c++17", "-pthread", "-o", &out, &source]))?;
            Ok(vec![out, socket(dir)])
        },
        ask: by_socket,
        before: SUMS_BEFORE,
        after: SUMS_AFTER,
    },
    REDIS,
    Recipe {
        name: "Node",
        needs: &["node"],
        engines: &[Own, Criu],
        command: |dir| {
            let node = program("node").context("node")?.display().to_string();
            Ok(vec![
                node,
                written(dir, "served.js", include_str!("served/served.js"))?,
                socket(dir),
            ])
        },
        ask: by_socket,
        before: SUMS_BEFORE,
        after: SUMS_AFTER,
    },
    JVM,
    Recipe {
        name: "nginx",
        needs: &["nginx"],
        engines: &[Criu],
        command: |dir| {
            let at = dir.display();
            let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let places = kinds
                .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
                .concat();
            let text = format!(
                "user root root; daemon off; worker_processes 2; pid {at}/pid; error_log /dev/null;\n\
                 events {{}}\n\
                 http {{ access_log off; {places}\n\
                 server {{ listen unix:{at}/socket; location / {{ stub_status; }} }} }}\n"
            );
            let file = written(dir, "nginx.conf", &text)?;
            Ok(["nginx", "-c", &file, "-e", "/dev/null"]
                .map(str::to_owned)
                .into())
        },
        ask: by_socket,
        before: &[
            ("GET / HTTP/1.0\r\n\r\n", " 1 1 1 "),
            ("GET / HTTP/1.0\r\n\r\n", " 2 2 2 "),
        ],
        after: &[
            ("GET / HTTP/1.0\r\n\r\n", " 3 3 3 "),
            ("GET / HTTP/1.0\r\n\r\n", " 4 4 4 "),
        ],
    },
    Recipe {
        name: "PostgreSQL",
        needs: &["postgres", "initdb", "psql", "setpriv", "unshare"],
        engines: &[Criu],
        command: |dir| {
            let data = dir.join("data").display().to_string();
            done(Command::new("chown").arg(POSTGRES).arg(dir))?;
            done(as_postgres("initdb").args(["--no-sync", "-A", "trust", "-D", &data]))?;
            let words = [
                &["unshare", "--ipc", "setpriv"][..],
                &PRIVILEGE,
                &["postgres", "-D", &data, "-c", "listen_addresses="],
                &["-c", "fsync=off", "-c", "autovacuum=off", "-c"],
            ];
            let mut words: Vec<String> = words.concat().into_iter().map(str::to_owned).collect();
            words.push(format!("unix_socket_directories={}", dir.display()));
            Ok(words)
        },
        ask: |dir, request| {
            let mut psql = as_postgres("psql");
            psql.arg("-h")
                .arg(dir)
                .args(["-d", "postgres", "-Atc", request]);
            let output = psql.stdin(Stdio::null()).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(output.status.success().then_some(said))
        },
        before: &[(
            "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n",
            "SELECT 1000",
        )],
        after: &[
            ("SELECT sum(n) FROM t", "500500\n"),
            ("INSERT INTO t VALUES (1); SELECT sum(n) FROM t", "500501\n"),
        ],
    },
];

/// Whether this process has `CAP_SYS_RESOURCE` (`capabilities(7)`).
fn may_set_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> 24 & 1 != 0)
}

/// The shell of SQLite, which has no socket.
const SHELL: &str = "SQLite";

const POSTGRES: &str = "postgres:postgres";
const PRIVILEGE: [&str; 3] = ["--reuid=postgres", "--regid=postgres", "--clear-groups"];

fn as_postgres(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(PRIVILEGE).arg(program).current_dir("/");
    command
}

fn written(dir: &Path, name: &str, text: &str) -> Result<String> {
    let path = dir.join(name);
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

fn socket(dir: &Path) -> String {
    dir.join("socket").display().to_string()
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}

/// Asks by the program's Unix socket; `None` where nobody listens yet.
fn by_socket(dir: &Path, request: &str) -> Result<Option<String>> {
    let mut stream = match UnixStream::connect(dir.join("socket")) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    // Some close the connection after their answer, and some wait for the next line.
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => said.extend(&buffer[..length]),
            Err(error) => return Err(error).context("its answer"),
        }
        if said.ends_with(b"\n") && !said.starts_with(b"HTTP") && !said.starts_with(b"$") {
            break;
        }
        if said.starts_with(b"$") && said.iter().filter(|byte| **byte == b'\n').count() == 2 {
            break;
        }
    }
    Ok(Some(String::from_utf8_lossy(&said).into_owned()))
}

impl Recipe {
    /// What it needs and is not here.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        if self.needs.contains(&"setpriv") && !may_set_limits() {
            return Some("CAP_SYS_RESOURCE, by which CRIU saves processes of other users");
        }
        self.needs
            .iter()
            .copied()
            .find(|needed| program(needed).is_none())
    }

    /// Asks until it answers; fails if that is not what was wanted. One that is still loading its
    /// data is asked again.
    pub(super) fn says(&self, dir: &Path, (request, wanted): Exchange) -> Result<()> {
        let began = Instant::now();
        loop {
            match (self.ask)(dir, request)? {
                Some(said) if said.contains(wanted) => return Ok(()),
                Some(said) if !said.starts_with("-LOADING") => {
                    bail!("to {request:?} it says {said:?}, not {wanted:?}");
                }
                _ => {}
            }
            ensure!(began.elapsed() < TIMEOUT, "no answer to {request:?}");
            thread::sleep(POLL);
        }
    }

    fn says_all(&self, dir: &Path, exchanges: &[Exchange]) -> Result<()> {
        exchanges
            .iter()
            .try_for_each(|exchange| self.says(dir, *exchange))
    }
}

/// A program that runs, and ends with this, as does all below it.
pub(super) struct Running {
    pub(super) pid: u32,
}

impl Running {
    /// Starts it in a session of its own, with nothing open.
    pub(super) fn start(words: &[String]) -> Result<Self> {
        let mut command = Command::new("setsid");
        command.args(words.iter().map(OsStr::new)).current_dir("/");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        #[allow(clippy::zombie_processes, reason = "`end` waits for it by its PID")]
        let child = command.spawn().context("cannot run setsid")?;
        Ok(Self { pid: child.id() })
    }

    /// Kills it and all below it, and lets their PIDs be used again.
    pub(super) fn end(&self) -> Result<()> {
        let mut all = descendants(self.pid);
        all.push(self.pid);
        // The first, which would start others anew, last: all stand still before one is killed.
        for signal in ["STOP", "KILL"] {
            for pid in all.iter().rev() {
                // It may have ended.
                let _ = kill(*pid, signal);
            }
        }
        let began = Instant::now();
        for pid in all {
            let at = Pid::from_raw(pid as i32).context("a PID")?;
            while Path::new(&format!("/proc/{pid}")).exists() {
                // It becomes this process's child when its parent has ended.
                let _ = waitpid(Some(at), WaitOptions::NOHANG);
                ensure!(began.elapsed() < TIMEOUT, "process {pid} does not end");
                thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A directory for one program, of which other users may have files.
pub(super) fn directory(dir: &Path, name: &str) -> Result<PathBuf> {
    let dir = dir.join(name.replace(' ', "-"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// All of them, or one, by all ways; those that are not installed are named.
pub(super) fn test(tools: &Tools<'_>, dir: &Path, only: Option<&str>) -> Result<()> {
    let is_meant = |name: &str| only.is_none_or(|only| only == name);
    let mut names = RECIPES.iter().map(|recipe| recipe.name).chain([SHELL]);
    ensure!(
        names.any(is_meant),
        "no such program; there are: {}",
        RECIPES
            .iter()
            .map(|recipe| recipe.name)
            .collect::<Vec<_>>()
            .join(", ")
    );
    for recipe in RECIPES.iter().filter(|recipe| is_meant(recipe.name)) {
        if let Some(lacking) = recipe.lacks() {
            println!("not here: {}, since there is no {lacking}", recipe.name);
            continue;
        }
        for engine in recipe.engines {
            let what = || format!("{} by {engine:?}", recipe.name);
            let began = Instant::now();
            comes_back(tools, recipe, *engine, dir).with_context(what)?;
            println!(
                "{} comes back, {:.1} s",
                what(),
                began.elapsed().as_secs_f32()
            );
        }
    }
    if is_meant(SHELL) {
        match program("sqlite3") {
            Some(_) => {
                shell(tools, dir).context("the shell of SQLite")?;
                println!("the shell of SQLite comes back");
            }
            None => println!("not here: the shell of SQLite, since there is no sqlite3"),
        }
    }
    Ok(())
}

/// Saved while it runs, which it does not notice; killed; started anew in full and lazily.
fn comes_back(tools: &Tools<'_>, recipe: &Recipe, engine: Engine, dir: &Path) -> Result<()> {
    let dir = directory(dir, recipe.name)?;
    let store = dir.join("store").display().to_string();
    let words = (recipe.command)(&dir)?;
    let running = Running::start(&words)?;
    recipe.says_all(&dir, recipe.before)?;
    let pid = running.pid.to_string();
    let began = Instant::now();
    loop {
        let take = tools.pagetrail(&["checkpoint", engine.flag(), "-p", &pid, "--store", &store]);
        let output = { take }.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            break;
        }
        // A connection that has not been closed yet is refused; soon there is none.
        ensure!(
            began.elapsed() < TIMEOUT && said.contains("socket"),
            "{said}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    running.end()?;
    for lazy in [false, true] {
        let mut restore = tools.pagetrail(&engine.restore(&store, lazy));
        let mut child = restore
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let outcome = recipe.says_all(&dir, recipe.after);
        let mut said = String::new();
        if outcome.is_err() {
            let _ = child.kill();
        }
        child
            .stderr
            .take()
            .context("messages")?
            .read_to_string(&mut said)?;
        let status = child.wait()?;
        outcome.with_context(|| format!("lazily: {lazy}; {said}"))?;
        ensure!(status.success(), "lazily: {lazy}; {said}");
        running.end()?;
    }
    tools.done(&["verify", &store]).map(drop)
}

/// The shell of SQLite has its tables in memory, and reads on where it is started anew.
fn shell(tools: &Tools<'_>, dir: &Path) -> Result<()> {
    let dir = directory(dir, "sqlite")?;
    let store = dir.join("store").display().to_string();
    let mut shell = Command::new("sqlite3");
    let shell = shell.arg(":memory:").stderr(Stdio::null()).current_dir("/");
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let running = Running { pid: child.id() };
    let (mut input, mut output) = child
        .stdin
        .take()
        .zip(child.stdout.take())
        .context("pipes")?;
    input.write_all(b"CREATE TABLE t(n); INSERT INTO t VALUES (40), (2); SELECT 'ready';\n")?;
    let mut said = [0; 6];
    output.read_exact(&mut said)?;
    ensure!(&said == b"ready\n", "it says {said:?}");
    let pid = running.pid.to_string();
    tools.done(&["checkpoint", Own.flag(), "-p", &pid, "--store", &store])?;
    running.end()?;
    for lazy in [false, true] {
        let mut restore = tools.pagetrail(&Own.restore(&store, lazy));
        let restore = restore
            .arg("--wait")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = restore.stderr(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("its input")?;
        input.write_all(b"INSERT INTO t VALUES (8); SELECT 'sum', sum(n) FROM t;\n.quit\n")?;
        drop(input);
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let is_right = output.status.success() && said.contains("sum|50\n");
        ensure!(is_right, "lazily: {lazy}; {output:?}");
    }
    Ok(())
}
