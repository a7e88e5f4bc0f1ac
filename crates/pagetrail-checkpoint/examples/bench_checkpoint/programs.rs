//! Pauses of real programs with a goal for the pause ([`ProcessOptions::max_pause`]), beside
//! pre-copy alone and `stop`: Redis while a client writes to it, and Node while it makes and drops
//! objects. The goal belongs to a checkpointer, of which a process has one at a time; so each way
//! has a few checkpoints, then the next has, over and over.

use super::pauses::load;
use super::{options, percentile, setting};
use pagetrail_checkpoint::{
    Compression, Mode, ProcessCheckpointer, ProcessOptions, Store, WorldWritable,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The goal.
const MAX_PAUSE: Duration = Duration::from_millis(5);
/// The time from one checkpoint to the next.
const REST: Duration = Duration::from_millis(200);
/// How long a program may take until it answers, or has its memory.
const START: Duration = Duration::from_secs(60);
/// What the programs fill before they are checkpointed, in MiB.
const MIB: usize = 512;

/// As many requests as a client may be asked to make.
const FOREVER: usize = i32::MAX as usize;

/// How often it is each way's turn.
const TURNS: usize = 3;

/// How a checkpoint is taken.
const WAYS: [(&str, Mode, Option<Duration>); 3] = [
    ("max-pause", Mode::Precopy, Some(MAX_PAUSE)),
    ("precopy", Mode::Precopy, None),
    ("stop", Mode::Stop, None),
];

/// A program at work, and what keeps it so. They end with this.
struct Program {
    children: Vec<Child>,
}

impl Drop for Program {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Program {
    fn pid(&self) -> u32 {
        self.children[0].id()
    }
}

/// Measures those that are installed, or of them the one that `PAGETRAIL_BENCH_PROGRAM` names.
pub(super) fn all(place: &Path) -> Vec<Value> {
    type Start = fn(&Path) -> Option<Program>;
    let programs: [(&str, Start); 2] = [("Redis", redis), ("Node", node)];
    let wanted = std::env::var("PAGETRAIL_BENCH_PROGRAM").ok();
    let is_wanted = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    let programs = programs.into_iter().filter(|(name, _)| is_wanted(name));
    let rows = programs.map(|(name, start)| {
        fs::create_dir_all(place).expect("a directory");
        let row = match start(place) {
            None => json!({ "program": name, "absent": "it is not installed, or did not start" }),
            Some(program) => of(name, &program, place),
        };
        eprintln!("{row}");
        row
    });
    rows.collect()
}

fn of(name: &str, program: &Program, place: &Path) -> Value {
    let count = setting("PAGETRAIL_BENCH_COUNT", 24).div_ceil(TURNS);
    let before = load();
    let mut found = WAYS.map(|_| Found::default());
    for _ in 0..TURNS {
        for ((_, mode, max_pause), found) in WAYS.into_iter().zip(&mut found) {
            let settings = ProcessOptions {
                mode,
                max_pause,
                ..ProcessOptions::default()
            };
            take(settings, program, place, count, found);
        }
    }
    let ways = WAYS.into_iter().zip(&mut found);
    let ways: Vec<Value> = ways.map(|((name, ..), found)| found.row(name)).collect();
    json!({
        "program": name,
        "filled_mib": MIB,
        "max_pause_ns": MAX_PAUSE.as_nanos() as u64,
        "checkpoints_by_each_way": count * TURNS,
        "load_before": before,
        "load_after": load(),
        "ways": ways,
    })
}

/// What a way took.
#[derive(Default)]
struct Found {
    base_pages: Vec<u64>,
    base_pauses: Vec<u64>,
    pauses: Vec<u64>,
    stopped: Vec<u64>,
}

impl Found {
    fn row(&mut self, name: &str) -> Value {
        json!({
            "way": name,
            "base_pages_median": percentile(&mut self.base_pages, 50),
            "base_pause_median_ns": percentile(&mut self.base_pauses, 50),
            "pause_median_ns": percentile(&mut self.pauses, 50),
            "pause_p99_ns": percentile(&mut self.pauses, 99),
            "copied_at_rest_pages_median": percentile(&mut self.stopped, 50),
        })
    }
}

/// Takes a base and increments.
fn take(
    settings: ProcessOptions,
    program: &Program,
    place: &Path,
    count: usize,
    found: &mut Found,
) {
    let path = place.join("store");
    let _ = fs::remove_dir_all(&path);
    let store = Store::create(&path, WorldWritable::Allow).expect("a store");
    let mut to = store.writer(options(Compression::None)).expect("a writer");
    let attached = ProcessCheckpointer::attach(program.pid(), settings);
    let mut process = attached.expect("attached");
    let base = process.checkpoint(&mut to).expect("a base");
    found.base_pages.push(base.cost.copied_pages);
    found.base_pauses.push(base.cost.pause_ns);
    for _ in 0..count {
        std::thread::sleep(REST);
        let cost = process.checkpoint(&mut to).expect("a checkpoint").cost;
        found.pauses.push(cost.pause_ns);
        found.stopped.push(cost.stopped_pages);
        // Older checkpoints would fill the memory.
        to.prune(1).expect("pruned");
    }
}

/// Redis with [`MIB`] of values, to which a client writes as fast as it is answered.
fn redis(place: &Path) -> Option<Program> {
    let socket = place.join("redis.socket");
    let _ = fs::remove_file(&socket);
    let server = quiet("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .current_dir(place)
        .spawn();
    let mut program = Program {
        children: vec![server.ok()?],
    };
    wait_until(|| socket.exists())?;
    let client = |requests: usize| {
        let mut client = quiet("redis-benchmark");
        let keys = (MIB << 10).to_string();
        let requests = requests.to_string();
        client
            .arg("-s")
            .arg(&socket)
            .args(["-t", "set", "-d", "900"]);
        client.args(["-r", &keys, "-n", &requests, "-P", "16"]);
        client
    };
    // So many random keys hit two thirds of all.
    let filled = client(MIB << 10).status().ok()?.success();
    program.children.push(client(FOREVER).spawn().ok()?);
    filled.then_some(program)
}

/// Node with a list of objects, of which it replaces some all the time.
fn node(place: &Path) -> Option<Program> {
    let ready = place.join("node.ready");
    let _ = fs::remove_file(&ready);
    let script = format!(
        "const all = []; \
         for (let i = 0; i < {count}; i++) all.push({{ at: i, text: 'x'.repeat(20) + i, \
           list: [i, i + 1, i + 2, i + 3] }}); \
         require('fs').writeFileSync({ready:?}, ''); \
         function step() {{ for (let i = 0; i < 2000; i++) {{ \
           const at = Math.floor(Math.random() * all.length); \
           all[at] = {{ at, text: 'y'.repeat(20) + at, list: [at, at, at, at] }}; }} \
           setTimeout(step, 1); }} step();",
        // An object takes about 700 bytes, with its text and its list.
        count = (MIB << 20) / 700,
        ready = ready.display().to_string(),
    );
    let node = quiet("node")
        .args(["--max-old-space-size=4096", "-e", &script])
        .spawn();
    let program = Program {
        children: vec![node.ok()?],
    };
    wait_until(|| ready.exists())?;
    Some(program)
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    command
}

/// `None` when it has not come to be in time.
fn wait_until(has_come: impl Fn() -> bool) -> Option<()> {
    let deadline = Instant::now() + START;
    while !has_come() {
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(())
}
