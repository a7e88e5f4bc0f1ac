//! [`Tiers`]: what reads and writes take in fast and in slow memory, and how they weigh therefore.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pagetrail::page_size;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::{Error, Result};
use crate::policy::settings::Settings;
use crate::sys::node_memory::NodeMemory;
use crate::sys::nodes::{Node, nodes};

/// Times that both nodes are measured, in turns, so that what else runs slows down both.
const ROUNDS: usize = 9;
/// How long one kind of access is measured in a round.
const SAMPLE: Duration = Duration::from_millis(10);
/// Memory that is accessed, of each node: more than caches hold, and no more than this.
const BYTES_MIN: u64 = 16 << 20;
const BYTES_MAX: u64 = 512 << 20;
/// Slow memory that takes less than so much longer counts as equally fast.
const RATIO_MIN: f64 = 0.1;

/// What an access takes, in ns, at random addresses: of one that waits for the one before, if it
/// reads, and of one that does not, if it writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// A read.
    pub read_ns: f64,
    /// A write.
    pub write_ns: f64,
}

/// What accesses take in two tiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiers {
    /// In fast memory: the median of all rounds.
    pub fast: Speed,
    /// In slow memory, likewise.
    pub slow: Speed,
    /// By how many ns a read takes longer in slow memory; 0 where the rounds do not agree that it
    /// does.
    pub read_gain_ns: f64,
    /// By how many ns a write does, likewise.
    pub write_gain_ns: f64,
}

impl Tiers {
    /// Measures two memory nodes, for a third of a second, from a processor of the fast one.
    ///
    /// # Errors
    ///
    /// A node is not there, or has no free memory to measure in.
    pub fn measure(fast: u32, slow: u32) -> Result<Self> {
        let work = move || -> Result<Self> {
            let known = nodes();
            run_on(fast);
            let mut memories = [memory_of(&known, fast)?, memory_of(&known, slow)?];
            let rounds = (0..ROUNDS).map(|round| {
                // In turns also within a round.
                let order = [round % 2, 1 - round % 2];
                let mut speeds = [Speed {
                    read_ns: 0.0,
                    write_ns: 0.0,
                }; 2];
                for index in order {
                    speeds[index] = sample(&mut memories[index]);
                }
                (speeds[0], speeds[1])
            });
            let rounds: Vec<(Speed, Speed)> = rounds.collect();
            Self::of(&rounds).ok_or_else(|| {
                Error::NotHere(format!(
                    "nodes {fast} and {slow} cannot be measured: the clock does not advance"
                ))
            })
        };
        // A thread of its own, which keeps to the processors of the fast node.
        let worker = thread::Builder::new().spawn(work);
        let worker = worker.map_err(|source| Error::Io {
            what: "a thread to measure memory".into(),
            source,
        })?;
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// What rounds say, each with the speed of fast and of slow memory; `None` for no rounds, or
    /// times that are none.
    pub fn of(rounds: &[(Speed, Speed)]) -> Option<Self> {
        let column = |value: fn(&(Speed, Speed)) -> f64| -> Vec<f64> {
            let mut values: Vec<f64> = rounds.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let columns = [
            column(|(fast, _)| fast.read_ns),
            column(|(fast, _)| fast.write_ns),
            column(|(_, slow)| slow.read_ns),
            column(|(_, slow)| slow.write_ns),
        ];
        let is_time = |ns: &f64| ns.is_finite() && *ns > 0.0;
        let fine = columns.iter().flatten().all(is_time);
        let [fast_read, fast_write, slow_read, slow_write] =
            columns.map(|values| values.get(values.len() / 2).copied());
        let fast = Speed {
            read_ns: fast_read?,
            write_ns: fast_write?,
        };
        let slow = Speed {
            read_ns: slow_read?,
            write_ns: slow_write?,
        };
        let gain = |value: fn(&Speed) -> f64| {
            let longer = |fast: &Speed, slow: &Speed| value(slow) / value(fast) - 1.0 >= RATIO_MIN;
            // Most rounds must agree: a median alone may be a matter of what else ran.
            let agree = rounds.iter().filter(|(fast, slow)| longer(fast, slow));
            match longer(&fast, &slow) && agree.count() * 4 >= rounds.len() * 3 {
                true => value(&slow) - value(&fast),
                false => 0.0,
            }
        };
        fine.then(|| Self {
            fast,
            slow,
            read_gain_ns: gain(|speed| speed.read_ns),
            write_gain_ns: gain(|speed| speed.write_ns),
        })
    }

    /// Whether neither reads nor writes were found to take longer in slow memory.
    pub fn are_alike(&self) -> bool {
        self.read_gain_ns == 0.0 && self.write_gain_ns == 0.0
    }

    /// Settings that weigh reads and writes by what each gains: one to one where the tiers are
    /// alike. For sources that report both.
    #[must_use]
    pub fn weigh(&self, settings: Settings) -> Settings {
        match self.are_alike() {
            true => Settings {
                read_weight: 1,
                write_weight: 1,
                ..settings
            },
            false => settings.weighed(self.read_gain_ns, self.write_gain_ns),
        }
    }
}

fn memory_of(known: &[Node], id: u32) -> Result<NodeMemory> {
    let node = known.iter().find(|node| node.id == id);
    let node = node.ok_or_else(|| Error::NotHere(format!("there is no memory node {id} here")))?;
    let bytes = (4 * cache_bytes(Path::new("/sys/devices/system/cpu/cpu0/cache")))
        .clamp(BYTES_MIN, BYTES_MAX)
        .min(node.free_bytes / 8);
    // A power of two.
    let bytes = 1 << bytes.checked_ilog2().unwrap_or(0);
    let room = || {
        Error::NotHere(format!(
            "node {id} cannot be measured: it has {} MiB of free memory",
            node.free_bytes >> 20
        ))
    };
    if bytes < page_size() * 64 {
        return Err(room());
    }
    let memory = NodeMemory::filled(id, bytes).map_err(|errno| Error::Io {
        what: format!("memory of node {id}"),
        source: errno.into(),
    })?;
    match memory.is_on_its_node() {
        true => Ok(memory),
        false => Err(room()),
    }
}

/// The largest cache of a processor.
fn cache_bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let text = fs::read_to_string(entry.path().join("size")).ok()?;
        let kib = text.trim().strip_suffix('K')?;
        Some(kib.parse::<u64>().ok()? << 10)
    });
    sizes.max().unwrap_or(32 << 20)
}

/// Has this thread run on the processors of a node, if it has any that it may run on.
fn run_on(node: u32) {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let mut set = CpuSet::new();
    for cpu in cpus(&fs::read_to_string(path).unwrap_or_default()) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    if set.count() > 0 {
        // Where a control group allows none of them, it runs where it may.
        let _ = sched_setaffinity(None, &set);
    }
}

/// The numbers of a list such as `0-3,8`.
fn cpus(list: &str) -> Vec<usize> {
    let parts = list.trim().split(',');
    parts
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .take(CpuSet::MAX_CPU)
        .collect()
}

fn sample(memory: &mut NodeMemory) -> Speed {
    let time = |step: &mut dyn FnMut(u64)| {
        // Between two looks at the clock.
        const STEPS: u64 = 1000;
        let began = Instant::now();
        let mut steps = 0;
        while steps == 0 || began.elapsed() < SAMPLE {
            step(STEPS);
            steps += STEPS;
        }
        began.elapsed().as_nanos() as f64 / steps as f64
    };
    Speed {
        read_ns: time(&mut |steps| memory.read(steps)),
        write_ns: time(&mut |steps| memory.write(steps)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(read_ns: f64, write_ns: f64) -> Speed {
        Speed { read_ns, write_ns }
    }

    /// Rounds with these ratios of slow to fast memory, for reads and for writes.
    fn tiers(ratios: &[(f64, f64)]) -> Option<Tiers> {
        let rounds: Vec<(Speed, Speed)> = ratios
            .iter()
            .map(|(read, write)| (speed(80.0, 40.0), speed(80.0 * read, 40.0 * write)))
            .collect();
        Tiers::of(&rounds)
    }

    #[test]
    fn reads_and_writes_weigh_as_what_they_gain() {
        // As HMM-V's table 2 has its latencies: 81 and 310 ns, 82 and 94 ns.
        let rounds = [(speed(81.0, 82.0), speed(310.0, 94.0)); 5];
        let measured = Tiers::of(&rounds).unwrap();
        assert_eq!(
            (measured.read_gain_ns, measured.write_gain_ns),
            (229.0, 12.0)
        );
        let settings = measured.weigh(Settings::default());
        settings.validate().unwrap();
        assert_eq!((settings.read_weight, settings.write_weight), (8, 1));
        // Writes take 80 ns longer, reads 40 ns.
        let measured = tiers(&[(1.5, 3.0); 5]).unwrap();
        let settings = measured.weigh(Settings::default());
        assert_eq!((settings.read_weight, settings.write_weight), (4, 4));
        assert_eq!(settings.degree_min, 12);
    }

    #[test]
    fn tiers_that_are_alike_weigh_one_to_one() {
        for ratios in [
            [(1.0, 1.0); 8],
            [(1.05, 0.7); 8],
            // A median that not enough rounds bear out.
            [
                (2.0, 2.0),
                (2.0, 2.0),
                (2.0, 2.0),
                (2.0, 2.0),
                (2.0, 2.0),
                (0.9, 1.0),
                (0.9, 1.0),
                (0.9, 1.0),
            ],
        ] {
            let measured = tiers(&ratios).unwrap();
            assert!(measured.are_alike(), "{measured:?}");
            let settings = measured.weigh(Settings::default());
            assert_eq!((settings.read_weight, settings.write_weight), (1, 1));
            assert_eq!(settings.degree_min, Settings::default().degree_min);
        }
        let writes = tiers(&[(1.0, 3.0); 8]).unwrap();
        let settings = writes.weigh(Settings::default());
        assert_eq!((settings.read_weight, settings.write_weight), (4, 32));
        // One round that was disturbed changes nothing.
        let mut ratios = [(1.5, 1.5); 8];
        ratios[3] = (0.1, 90.0);
        assert!(!tiers(&ratios).unwrap().are_alike());
    }

    #[test]
    fn nonsense_is_no_measurement() {
        assert_eq!(Tiers::of(&[]), None);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(tiers(&[(1.5, 1.5), (wrong, 1.5), (1.5, 1.5)]), None);
        }
        assert_eq!(cpus("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(cpus("\n"), [0usize; 0]);
        assert_eq!(cpus("x,3-,9-7"), [0usize; 0]);
        assert_eq!(cpus("0-18446744073709551615").len(), CpuSet::MAX_CPU);
        assert_eq!(cache_bytes(Path::new("/none")), 32 << 20);
    }

    #[test]
    fn this_machine_is_measured() {
        let measured = Tiers::measure(0, 0);
        match measured {
            Ok(tiers) => tiers.weigh(Settings::default()).validate().unwrap(),
            // Where memory is short.
            Err(error) => assert!(error.is_machine_limit(), "{error}"),
        }
        let missing = Tiers::measure(0, 9999).unwrap_err();
        assert!(missing.to_string().contains("no memory node 9999"));
    }
}
