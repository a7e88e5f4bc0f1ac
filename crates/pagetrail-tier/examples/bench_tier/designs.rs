//! One workload under each design, in one frame and at the same prices.

use pagetrail_tier::simulate::{
    Bill, Machine, Outcome, Prices, Program, Report, RunOptions, memory_mode, run, run_perfect,
};
use pagetrail_tier::{Ranking, Result, Settings};
use serde_json::{Value, json};

use crate::{SEED, round};

/// A minute of windows of 600 ms.
pub(crate) const PERIOD: u64 = 100;

/// A program, how much of it is fast, and for how many minutes it runs.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) program: &'a dyn Fn() -> Box<dyn Program>,
    pub(crate) fast_percent: usize,
    pub(crate) minutes: u64,
}

impl Case<'_> {
    fn options(&self, settings: Settings, report: Report) -> RunOptions {
        let pages = (self.program)().pages();
        RunOptions {
            fast_pages: pages * self.fast_percent / 100,
            windows: self.minutes * PERIOD,
            period: PERIOD,
            settings: Settings {
                calm_bytes: calm_bytes(pages),
                ..settings
            },
            report,
            huge_pages: false,
        }
    }

    fn run(&self, settings: Settings, report: Report) -> Result<Outcome> {
        run(&mut *(self.program)(), &self.options(settings, report))
    }

    /// With fast memory as a direct-mapped cache; pages lie anywhere in slow memory.
    fn cached(&self) -> Bill {
        let mut program = (self.program)();
        let options = self.options(Settings::default(), Report::Accesses);
        let mut frames: Vec<u32> = (0..program.pages() as u32).collect();
        fastrand::Rng::with_seed(SEED).shuffle(&mut frames);
        memory_mode(&mut *program, &frames, options.fast_pages, options.windows)
    }

    /// With pages where they were put first, or anywhere; who does not move need not ask.
    fn untracked(&self, anywhere: bool) -> Bill {
        let mut program = (self.program)();
        let options = self.options(Settings::default(), Report::Accesses);
        let machine = Machine::new(program.pages(), options.fast_pages);
        if anywhere {
            let mut random = fastrand::Rng::with_seed(SEED);
            machine.place(&random.choose_multiple(0..program.pages() as u32, options.fast_pages));
        }
        for _ in 0..options.windows {
            if let Some(accesses) = program.run() {
                machine.touch(&accesses);
            }
        }
        machine.bill()
    }

    /// Ours beside the others, and what no design that does not see into the future can pass.
    pub(crate) fn designs(&self) -> Result<Value> {
        let no_queue = Settings {
            level_max: 0,
            ..Settings::default()
        };
        let trial = Settings {
            trial: true,
            ..Settings::default()
        };
        let mut list = Vec::new();
        let (only, both) = (Report::Accesses, Report::AccessesAndWrites);
        let weighed = |prices: &Prices| {
            let read = prices.read_slow - prices.read_fast;
            Settings::default().weighed(read, prices.write_slow - prices.write_fast)
        };
        for (name, settings, report) in [
            ("ours", Settings::default(), only),
            ("the paper's policy", Settings::paper(), only),
            ("ours, writes distinguished", Settings::default(), both),
            (
                "the paper's policy, writes distinguished",
                Settings::paper(),
                both,
            ),
            (
                "ours, weighed by latency",
                weighed(&Prices::default()),
                both,
            ),
            (
                "ours, weighed by measured",
                weighed(&Prices::measured()),
                both,
            ),
            ("ours, the queue tried", trial, only),
            ("full scan, no queue", no_queue, only),
            (
                "fixed threshold (HeMem)",
                Settings::baseline(Ranking::Threshold),
                only,
            ),
            (
                "two lists (Nimble)",
                Settings::baseline(Ranking::TwoLists),
                only,
            ),
            (
                "least recently used",
                Settings::baseline(Ranking::Recency),
                only,
            ),
            ("by writes alone (RAMinate)", Settings::by_writes(), both),
        ] {
            let outcome = self.run(settings, report)?;
            let found = outcome.windows.iter().map(|window| window.found);
            list.push(json!({
                "design": name,
                "performance": performance(&outcome.bill),
                "hot_pages_in_fast_memory": round(found.sum::<f64>() / outcome.windows.len() as f64),
                "faults": outcome.bill.faults,
                "moved_pages": outcome.bill.moved,
            }));
        }
        for (name, anywhere) in [("first touch", false), ("random", true)] {
            let bill = self.untracked(anywhere);
            list.push(json!({ "design": name, "performance": performance(&bill) }));
        }
        list.push(json!({
            "design": "memory mode, a direct-mapped cache",
            "performance": performance(&self.cached()),
        }));
        let perfect = run_perfect(
            &mut *(self.program)(),
            &self.options(Settings::default(), Report::Accesses),
        );
        list.push(
            json!({ "design": "an oracle, at no cost", "performance": performance(&perfect) }),
        );
        Ok(json!({
            "workload": self.name,
            "fast_percent": self.fast_percent,
            "minutes": self.minutes,
            "designs": list,
        }))
    }
}

/// The paper's 256 MiB of 16 GB, of a program of so many pages.
pub(crate) fn calm_bytes(pages: usize) -> u64 {
    pages as u64 * pagetrail::page_size() / 64
}

/// 1 is all memory fast: by the latencies of table 2, and as the paper's programs were slowed down.
pub(crate) fn performance(bill: &Bill) -> Value {
    json!({
        "latency": round(bill.performance(&Prices::default())),
        "measured": round(bill.performance(&Prices::measured())),
    })
}
