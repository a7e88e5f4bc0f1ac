//! [`Prices`]: what an access, a fault, a scan and a moved byte cost, and the bill of a run.

/// Nanoseconds for each thing that is counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// A read of fast memory.
    pub read_fast: f64,
    /// A write to fast memory.
    pub write_fast: f64,
    /// A read of slow memory.
    pub read_slow: f64,
    /// A write to slow memory.
    pub write_slow: f64,
    /// A fault that the program takes because a page is sampled.
    pub fault: f64,
    /// Looking at a page that exists, by the tracker: it does not stop the program, and is shown
    /// apart.
    pub scan_page: f64,
    /// Moving a page of 4 KiB.
    pub move_page: f64,
    /// Looking into fast memory, where it is a cache that does not have the page: a latency.
    pub look_up: f64,
}

impl Default for Prices {
    /// The latencies of HMM-V's table 2; a fault, a scanned page and a moved page as measured on
    /// the machine on which pagetrail was made (0.86 us, 2 ns, 2 us).
    fn default() -> Self {
        Self {
            read_fast: 81.0,
            write_fast: 82.0,
            read_slow: 310.0,
            write_slow: 94.0,
            fault: 860.0,
            scan_page: 2.0,
            move_page: 2000.0,
            look_up: 81.0,
        }
    }
}

impl Prices {
    /// Programs as HMM-V measured them: its figures are ratios of times in which a program that
    /// waits for memory at random does something else as well, has several accesses under way at
    /// once, and meets the bandwidth of slow memory.
    ///
    /// All in slow memory, random reads took 68.4% longer (table 3, the mean of four sizes) and
    /// random writes 188% (table 4). For the 229 ns by which a read of slow memory takes longer to
    /// be those 68.4%, an access to fast memory takes 335 ns.
    pub fn measured() -> Self {
        const FAST: f64 = 229.0 / 0.684;
        Self {
            read_fast: FAST,
            write_fast: FAST,
            read_slow: FAST * 1.684,
            write_slow: FAST * 2.880,
            ..Self::default()
        }
    }

    /// A program that streams through its memory: an access is of a whole page, at the bandwidths
    /// of table 2.
    pub fn streaming() -> Self {
        const PAGE: f64 = 4096.0;
        Self {
            read_fast: PAGE / 120.0,
            write_fast: PAGE / 82.0,
            read_slow: PAGE / 37.0,
            write_slow: PAGE / 13.0,
            ..Self::default()
        }
    }
}

/// What was counted in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// Reads of fast memory.
    pub reads_fast: u64,
    /// Writes to fast memory.
    pub writes_fast: u64,
    /// Reads of slow memory.
    pub reads_slow: u64,
    /// Writes to slow memory.
    pub writes_slow: u64,
    /// Faults that the program takes because pages are sampled.
    pub faults: u64,
    /// Pages that scans looked at.
    pub scanned: u64,
    /// Pages moved, in both directions.
    pub moved: u64,
    /// Accesses to slow memory before which a cache was looked into that did not have the page.
    pub looked_up: u64,
}

impl Bill {
    /// How long the program takes: its accesses and its faults, and what it waits for pages that
    /// move, and for a cache that does not have what it looks for.
    pub fn program_ns(&self, prices: &Prices) -> f64 {
        self.accesses_ns(prices)
            + self.faults as f64 * prices.fault
            + self.moved as f64 * prices.move_page
            + self.looked_up as f64 * prices.look_up
    }

    /// How long it would take if all memory were fast, and no page were sampled.
    pub fn all_fast_ns(&self, prices: &Prices) -> f64 {
        let all = Self {
            reads_fast: self.reads_fast + self.reads_slow,
            writes_fast: self.writes_fast + self.writes_slow,
            ..Self::default()
        };
        all.accesses_ns(prices)
    }

    /// Performance: 1 with all memory fast.
    pub fn performance(&self, prices: &Prices) -> f64 {
        self.all_fast_ns(prices) / self.program_ns(prices).max(1.0)
    }

    /// The part of it that the accesses are.
    pub fn accesses_ns(&self, prices: &Prices) -> f64 {
        self.reads_fast as f64 * prices.read_fast
            + self.writes_fast as f64 * prices.write_fast
            + self.reads_slow as f64 * prices.read_slow
            + self.writes_slow as f64 * prices.write_slow
    }

    /// What has been counted since an earlier bill.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads_fast: self.reads_fast - earlier.reads_fast,
            writes_fast: self.writes_fast - earlier.writes_fast,
            reads_slow: self.reads_slow - earlier.reads_slow,
            writes_slow: self.writes_slow - earlier.writes_slow,
            faults: self.faults - earlier.faults,
            scanned: self.scanned - earlier.scanned,
            moved: self.moved - earlier.moved,
            looked_up: self.looked_up - earlier.looked_up,
        }
    }
}
