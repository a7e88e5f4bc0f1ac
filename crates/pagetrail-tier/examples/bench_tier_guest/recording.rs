//! [`record`]: Redis and SQLite under load, recorded by `pagetrail record` with rounds of writes
//! and of accesses in turns.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Error;

const INTERVAL: &str = "50ms";
const DURATION: &str = "60s";
/// Of 100 requests, how many are for the hot fifth: YCSB's hotspot, as in HMM-V's section 5.3.2.
const HOT_REQUESTS: u32 = 80;

/// A program that answers requests.
trait Load {
    fn pid(&self) -> u32;

    /// Makes some requests.
    fn some(&mut self) -> Result<(), Error>;
}

/// What a program of that name touches under load: the bytes of a trail.
pub(crate) fn record(name: &str, pagetrail: &Path) -> Result<Vec<u8>, Error> {
    let directory = tempfile::tempdir()?;
    let mut load: Box<dyn Load> = match name {
        "redis" => Box::new(Redis::start(directory.path())?),
        "sqlite" => Box::new(Sqlite::start()?),
        other => return Err(format!("'{other}' is neither redis nor sqlite").into()),
    };
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        load.some()?;
    }
    let trail = directory.path().join("trail");
    let mut recorder = Command::new(pagetrail)
        .args(["record", "--access", "--interval", INTERVAL])
        .args(["--duration", DURATION, "-p", &load.pid().to_string(), "-o"])
        .arg(&trail)
        .stdout(Stdio::null())
        .spawn()?;
    let mut batches = 0;
    let status = loop {
        if let Some(status) = recorder.try_wait()? {
            break status;
        }
        load.some()?;
        batches += 1;
    };
    eprintln!("{name}: {batches} batches of requests, {status}");
    match status.success() {
        true => Ok(fs::read(&trail)?),
        false => Err(format!("pagetrail record: {status}").into()),
    }
}

/// One of `all`, those of the first fifth much more often.
fn hotspot(random: &mut Rng, all: u32) -> u32 {
    match random.u32(0..100) < HOT_REQUESTS {
        true => random.u32(0..all / 5),
        false => random.u32(all / 5..all),
    }
}

/// A server with values of 4 KB, as many of which are read as are replaced.
struct Redis {
    server: Child,
    requests: UnixStream,
    answers: BufReader<UnixStream>,
    random: Rng,
}

impl Redis {
    const KEYS: u32 = 8000;
    const VALUE_BYTES: usize = 4000;
    /// Requests that are sent before an answer is awaited.
    const BATCH: u32 = 32;

    fn start(directory: &Path) -> Result<Self, Error> {
        let socket = directory.join("socket");
        let server = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--dir"])
            .arg(directory)
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        let requests = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
                Err(error) => return Err(format!("redis-server does not start: {error}").into()),
            }
        };
        let mut redis = Self {
            server,
            answers: BufReader::new(requests.try_clone()?),
            requests,
            random: Rng::with_seed(1),
        };
        for first in (0..Self::KEYS).step_by(Self::BATCH as usize) {
            let keys = first..Self::KEYS.min(first + Self::BATCH);
            redis.ask(keys.map(|key| (key, true)).collect())?;
        }
        Ok(redis)
    }

    /// Sets or gets keys, and checks what is answered.
    fn ask(&mut self, requests: Vec<(u32, bool)>) -> Result<(), Error> {
        let mut text = Vec::new();
        for (key, set) in &requests {
            let name = format!("user{key:06}");
            match set {
                true => write!(
                    text,
                    "*3\r\n$3\r\nSET\r\n$10\r\n{name}\r\n${}\r\n{name:0>width$}\r\n",
                    Self::VALUE_BYTES,
                    width = Self::VALUE_BYTES
                )?,
                false => write!(text, "*2\r\n$3\r\nGET\r\n$10\r\n{name}\r\n")?,
            }
        }
        self.requests.write_all(&text)?;
        for (key, set) in requests {
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            let fine = match set {
                true => line == "+OK\r\n",
                false => {
                    let mut value = vec![0; Self::VALUE_BYTES + 2];
                    self.answers.read_exact(&mut value)?;
                    value.ends_with(format!("user{key:06}\r\n").as_bytes())
                }
            };
            if !fine {
                return Err(format!("Redis answers {line:?}").into());
            }
        }
        Ok(())
    }
}

impl Load for Redis {
    fn pid(&self) -> u32 {
        self.server.id()
    }

    fn some(&mut self) -> Result<(), Error> {
        let random = &mut self.random;
        // Hot values lie anywhere among the others: a prime number is no divisor of how many there
        // are.
        let draw = |_| {
            (
                hotspot(random, Self::KEYS) * 7919 % Self::KEYS,
                random.bool(),
            )
        };
        let requests = (0..Self::BATCH).map(draw).collect();
        self.ask(requests)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A table in memory with an index: rows are looked up by their keys, a quarter of them changed,
/// and now and then all are added up.
struct Sqlite {
    shell: Child,
    random: Rng,
    summed: Instant,
}

impl Sqlite {
    const ROWS: u32 = 20_000;
    const BATCH: u32 = 20;
    const SUM_EVERY: Duration = Duration::from_secs(10);

    fn start() -> Result<Self, Error> {
        let mut shell = Command::new("sqlite3")
            .args(["-bail", ":memory:"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let rows = Self::ROWS;
        let input = shell.stdin.as_mut().ok_or("it is piped")?;
        // Keys are in no order: 7919 is as good as random.
        writeln!(
            input,
            "CREATE TABLE record(id INTEGER PRIMARY KEY, key TEXT UNIQUE, hits INTEGER, body BLOB);\n\
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows})\n\
             INSERT INTO record SELECT i, printf('key%08d', i * 7919 % {rows}), 0, randomblob(1000) FROM n;\n\
             .system echo ready\n.output /dev/null"
        )?;
        let mut line = String::new();
        BufReader::new(shell.stdout.as_mut().ok_or("it is piped")?).read_line(&mut line)?;
        match line.as_str() {
            "ready\n" => Ok(Self {
                shell,
                random: Rng::with_seed(1),
                summed: Instant::now(),
            }),
            _ => Err(format!("sqlite3 does not begin: '{line}'").into()),
        }
    }
}

impl Load for Sqlite {
    fn pid(&self) -> u32 {
        self.shell.id()
    }

    fn some(&mut self) -> Result<(), Error> {
        let mut text = String::new();
        for _ in 0..Self::BATCH {
            let row = hotspot(&mut self.random, Self::ROWS);
            text += &match self.random.u8(0..4) {
                0 => format!("UPDATE record SET hits = hits + 1 WHERE id = {row};\n"),
                _ => format!(
                    "SELECT id, hits, body FROM record WHERE key = 'key{:08}';\n",
                    row * 7919 % Self::ROWS
                ),
            };
        }
        if self.summed.elapsed() >= Self::SUM_EVERY {
            self.summed = Instant::now();
            text += "SELECT sum(hits) FROM record;\n";
        }
        let input = self.shell.stdin.as_mut().ok_or("it is piped")?;
        Ok(input.write_all(text.as_bytes())?)
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
