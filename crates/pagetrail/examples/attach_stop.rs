//! Measures how long attaching stops a program, depending on the number of its writable mappings,
//! what a collect costs then, and how long a hold that does nothing stops it.
//!
//! `cargo run --release --example attach_stop [ATTACHES]`. The target is this program, started
//! again. Prints one JSON document; all figures are medians.
#![allow(unsafe_code, reason = "it measures bare system calls")]
#![allow(clippy::print_stdout, reason = "that is what an example is for")]

use pagetrail::{Hold, Target, Technique, Watch, page_size};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const VMAS: [usize; 2] = [50, 1000];
const ROUNDS: usize = 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, vmas] = &arguments[..]
        && word == "victim"
    {
        return be_victim(vmas.parse()?);
    }
    let attaches = match arguments.get(1) {
        Some(attaches) => attaches.parse::<usize>()?.max(1),
        None => 50,
    };
    let figures: Outcome<Vec<String>> = VMAS.iter().map(|&vmas| measure(vmas, attaches)).collect();
    println!("{{\n  \"schema\": 1, \"attaches\": {attaches},\n  \"targets\": [");
    println!("    {}\n  ]\n}}", figures?.join(",\n    "));
    Ok(())
}

fn measure(vmas: usize, attaches: usize) -> Outcome<String> {
    let victim = Victim::start(vmas)?;
    let (mut attach, mut start, mut collect, mut stopped) = (vec![], vec![], vec![], vec![]);
    let mut writable = 0;
    for _ in 0..attaches {
        let began = std::time::Instant::now();
        let watch = Watch::builder().target(Target::process(victim.0.id())?);
        let mut watch = watch.technique(Technique::PagemapScan).start()?;
        start.push(began.elapsed());
        attach.push(watch.attach_stopped());
        let regions = watch.regions().iter();
        writable = regions.filter(|region| region.permissions.write).count();
        for _ in 0..ROUNDS {
            let round = watch.collect()?;
            collect.push(round.cost().collect);
            stopped.push(round.cost().stopped);
            round.commit();
        }
    }
    let (mut hold, mut held) = (vec![], vec![]);
    for _ in 0..attaches {
        let began = std::time::Instant::now();
        let stopped = Hold::process(victim.0.id())?;
        hold.push(began.elapsed());
        held.push(stopped.release());
    }
    if writable < vmas {
        return Err(format!("the victim has {writable} writable mappings, not {vmas}").into());
    }
    Ok(format!(
        "{{\"writable_vmas\": {writable}, \"attach_stopped_us\": {:.0}, \"start_us\": {:.0}, \
         \"collect_us\": {:.0}, \"collect_stopped_us\": {:.0}, \"hold_us\": {:.0}, \
         \"hold_stopped_us\": {:.0}}}",
        median_us(attach),
        median_us(start),
        median_us(collect),
        median_us(stopped),
        median_us(hold),
        median_us(held)
    ))
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

/// The target process; it is killed when dropped.
struct Victim(Child);

impl Victim {
    fn start(vmas: usize) -> Outcome<Self> {
        let mut process = Command::new("/proc/self/exe")
            .args(["victim", &vmas.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = process.stdout.take().ok_or("no output")?;
        let victim = Self(process);
        BufReader::new(out).read_line(&mut String::new())?;
        Ok(victim)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes that many mappings, which differ from their neighbours so that they cannot merge, and
/// writes one word to each, for ever.
fn be_victim(vmas: usize) -> Outcome<()> {
    let page = page_size() as usize;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            2 * vmas * page,
            rights,
            MapFlags::PRIVATE,
        )?
    };
    let places = (0..vmas).map(|i| base.wrapping_byte_add(2 * i * page));
    let places: Vec<*mut u64> = places.map(<*mut _>::cast).collect();
    for place in &places {
        // SAFETY: the second page of each pair is in the mapping and is never accessed.
        unsafe {
            mprotect(
                place.wrapping_byte_add(page).cast(),
                page,
                MprotectFlags::READ,
            )?
        };
    }
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for value in 0u64.. {
        for place in &places {
            // SAFETY: the first page of each pair is mapped writable, and only this thread accesses
            // it.
            unsafe { place.write_volatile(value) };
        }
    }
    Ok(())
}
