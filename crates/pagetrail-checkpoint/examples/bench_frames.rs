//! How many pages to compress together, as JSON: for each number the size of an image of a Python
//! process with a few hundred megabytes of objects and a database in memory, the time to make it
//! and to read it whole, and to read single pages of it.

#![allow(clippy::print_stdout, reason = "the result")]

use pagetrail::PageRange;
use pagetrail_checkpoint::{
    Compression, ProcessCheckpointer, ProcessOptions, Store, WorldWritable, WriterOptions,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const PROGRAM: &str = "
import sqlite3, sys
objects = {f'key{i}': [i, str(i * 7919), {'n': i}] for i in range(400000)}
database = sqlite3.connect(':memory:')
database.execute('create table t (id integer primary key, name text, value real)')
database.executemany('insert into t values (?, ?, ?)', ((i, f'name {i % 1000}', i / 7) for i in range(1000000)))
print('ready', flush=True)
sys.stdin.read()
";
const FRAME_PAGES: [u32; 6] = [1, 4, 16, 64, 256, 1024];
/// Runs of each, one of every kind in turn.
const RUNS: usize = 5;
const SINGLE_PAGES: usize = 500;

struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let child = Command::new("python3")
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut victim = Victim(child.expect("python3"));
    let mut line = String::new();
    let stdout = victim.0.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("ready");

    let mut kinds: Vec<Kind> = [Compression::Lz4, Compression::Zstd(3)]
        .into_iter()
        .filter(|compression| compression.is_available())
        .flat_map(|compression| FRAME_PAGES.map(|pages| Kind::new(compression, pages)))
        .collect();
    for _ in 0..RUNS {
        kinds.iter_mut().for_each(|kind| kind.run(victim.0.id()));
    }
    let rows: Vec<Value> = kinds.iter_mut().map(Kind::row).collect();
    println!("{:#}", json!({ "schema": 1, "frames": rows }));
}

struct Kind {
    options: WriterOptions,
    pages: u64,
    stored_bytes: u64,
    image_ns: Vec<u64>,
    read_ns: Vec<u64>,
    page_ns: Vec<u64>,
}

impl Kind {
    fn new(compression: Compression, frame_pages: u32) -> Self {
        Self {
            options: WriterOptions {
                compression,
                frame_pages,
            },
            pages: 0,
            stored_bytes: 0,
            image_ns: Vec::new(),
            read_ns: Vec::new(),
            page_ns: Vec::new(),
        }
    }

    fn run(&mut self, pid: u32) {
        let path = Path::new("/dev/shm").join(format!("pagetrail-frames-{}", std::process::id()));
        let store = Store::create(&path, WorldWritable::Allow).expect("a store");
        let mut writer = store.writer(self.options).expect("a writer");
        let mut process =
            ProcessCheckpointer::attach(pid, ProcessOptions::default()).expect("attached");
        let began = Instant::now();
        let manifest = process.checkpoint(&mut writer).expect("an image");
        self.image_ns.push(began.elapsed().as_nanos() as u64);
        self.stored_bytes = manifest.cost.stored_bytes;

        let mut image = store.image(manifest.number).expect("an image");
        let pages = image.pages();
        self.pages = pages.page_count();
        let longest = pages.ranges().iter().map(PageRange::bytes).max();
        let mut memory = vec![1; longest.unwrap_or(0) as usize];
        let began = Instant::now();
        for range in pages.ranges() {
            let part = &mut memory[..range.bytes() as usize];
            image.read(*range, part).expect("sound");
        }
        self.read_ns.push(began.elapsed().as_nanos() as u64);

        let mut random = fastrand::Rng::with_seed(3);
        let page = pagetrail::page_size();
        let singles: Vec<PageRange> = (0..SINGLE_PAGES)
            .filter_map(|_| {
                let range = pages.ranges()[random.usize(0..pages.ranges().len())];
                let start = range.start() + random.u64(0..range.bytes() / page) * page;
                PageRange::new(start, start + page)
            })
            .collect();
        let began = Instant::now();
        for single in &singles {
            let part = &mut memory[..page as usize];
            image.read(*single, part).expect("sound");
        }
        let each = began.elapsed().as_nanos() as u64 / singles.len() as u64;
        self.page_ns.push(each);
        let _ = fs::remove_dir_all(path);
    }

    fn row(&mut self) -> Value {
        let median = |times: &mut Vec<u64>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let bytes = self.pages * pagetrail::page_size();
        let share = self.stored_bytes as f64 / bytes as f64;
        json!({
            "compression": format!("{:?}", self.options.compression),
            "frame_pages": self.options.frame_pages,
            "bytes": bytes,
            "stored_share": (share * 1000.0).round() / 1000.0,
            "image_ns": median(&mut self.image_ns),
            "read_ns": median(&mut self.read_ns),
            "read_page_ns": median(&mut self.page_ns),
        })
    }
}
