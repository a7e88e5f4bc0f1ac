//! [`run`]: a workload under a policy, window by window, against the oracle.

use super::machine::{Machine, Report};
use super::price::Bill;
use super::program::Program;
use crate::error::Result;
use crate::policy::settings::Settings;
use crate::tier_loop::{TierLoop, TierLoopOptions, WindowReport};

/// How a program is run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How many of its pages fit into fast memory.
    pub fast_pages: usize,
    /// How long; a program that ends before is over then.
    pub windows: u64,
    /// Every so many windows a period begins; 0 tracks all the time.
    pub period: u64,
    /// The policy.
    pub settings: Settings,
    /// Accesses that the source reports.
    pub report: Report,
    /// Whether the program has huge pages alone.
    pub huge_pages: bool,
}

impl RunOptions {
    fn machine(&self, pages: usize) -> Machine {
        match self.huge_pages {
            true => Machine::of_huge_pages(pages, self.fast_pages),
            false => Machine::new(pages, self.fast_pages),
        }
    }
}

/// A window of a run.
#[derive(Clone, Debug)]
pub struct Window {
    /// The part of the oracle's hot set that was in fast memory when the window's moves were done.
    pub found: f64,
    /// Whether the hot set was another one than in the window before.
    pub changed: bool,
    /// What was counted in this window.
    pub bill: Bill,
    /// What the loop says of it.
    pub report: WindowReport,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its windows.
    pub windows: Vec<Window>,
    /// All that was counted.
    pub bill: Bill,
}

impl Outcome {
    /// What was counted from a window on.
    pub fn from(&self, window: usize) -> Bill {
        let sum = |count: fn(&Bill) -> u64| -> u64 {
            self.windows[window..].iter().map(|w| count(&w.bill)).sum()
        };
        Bill {
            reads_fast: sum(|bill| bill.reads_fast),
            writes_fast: sum(|bill| bill.writes_fast),
            reads_slow: sum(|bill| bill.reads_slow),
            writes_slow: sum(|bill| bill.writes_slow),
            faults: sum(|bill| bill.faults),
            scanned: sum(|bill| bill.scanned),
            moved: sum(|bill| bill.moved),
            looked_up: sum(|bill| bill.looked_up),
        }
    }
}

/// Runs a program under the real loop.
///
/// # Errors
///
/// A setting makes no sense.
pub fn run(program: &mut dyn Program, options: &RunOptions) -> Result<Outcome> {
    let machine = options.machine(program.pages());
    let tier_loop = TierLoopOptions {
        settings: options.settings.clone(),
        capacity: options.fast_pages as u64 * pagetrail::page_size(),
        timeout: None,
    };
    let source = Box::new(machine.source(options.report));
    let mut tier_loop = TierLoop::new(source, Box::new(machine.mover()), tier_loop)?;
    let mut tracking = tier_loop.begin_period()?;
    let mut windows = Vec::new();
    for window in 0..options.windows {
        let before = machine.bill();
        if window > 0 && options.period > 0 && window.is_multiple_of(options.period) {
            tracking = tier_loop.begin_period()?;
        }
        let changed = program.moves_next();
        let Some(accesses) = program.run() else {
            break;
        };
        machine.touch(&accesses);
        let report = match tracking {
            true => tier_loop.window()?,
            false => WindowReport::default(),
        };
        if report.over && options.period > 0 {
            tier_loop.end_period()?;
            tracking = false;
        }
        windows.push(Window {
            found: machine.fast_part(&program.hot()),
            changed,
            bill: machine.bill().since(&before),
            report,
        });
    }
    Ok(Outcome {
        windows,
        bill: machine.bill(),
    })
}

/// Runs it with an oracle in place of the loop: what is hot in a window is in fast memory in it,
/// at no cost.
pub fn run_perfect(program: &mut dyn Program, options: &RunOptions) -> Bill {
    let machine = options.machine(program.pages());
    for _ in 0..options.windows {
        let Some(accesses) = program.run() else {
            break;
        };
        let fits = options.fast_pages.min(program.pages());
        machine.place(&program.hottest_first()[..fits]);
        machine.touch(&accesses);
    }
    machine.bill()
}
