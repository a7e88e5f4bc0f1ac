//! [`Program`]: what runs on a simulated machine, and knows what it touches.

/// The accesses of a window, page by page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Reads of each page.
    pub reads: Vec<u32>,
    /// Writes of each page.
    pub writes: Vec<u32>,
}

/// A program whose accesses are known.
pub trait Program {
    /// How many pages it has.
    fn pages(&self) -> usize;

    /// Runs a window; `None` when it has ended.
    fn run(&mut self) -> Option<Accesses>;

    /// The pages that are hot in the window that was run last, ascending.
    fn hot(&self) -> Vec<u32>;

    /// All pages, those that are used most in the window that was run last in front.
    fn hottest_first(&self) -> Vec<u32>;

    /// Whether the hot set is another one in the next window.
    fn moves_next(&self) -> bool {
        false
    }
}

/// A program that has run: its windows one by one, and again from the first when they are over.
///
/// Its hot pages are the fifth that was used most over all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    windows: Vec<Accesses>,
    hottest_first: Vec<u32>,
    next: usize,
}

impl Recorded {
    /// A program of so many pages that made these accesses.
    pub fn new(pages: usize, mut windows: Vec<Accesses>) -> Self {
        let mut sums = vec![0u64; pages];
        for window in &mut windows {
            for counts in [&mut window.reads, &mut window.writes] {
                counts.resize(pages, 0);
                for (sum, count) in sums.iter_mut().zip(counts) {
                    *sum += u64::from(*count);
                }
            }
        }
        let mut hottest_first: Vec<u32> = (0..pages as u32).collect();
        hottest_first.sort_by_key(|page| std::cmp::Reverse(sums[*page as usize]));
        Self {
            windows,
            hottest_first,
            next: 0,
        }
    }

    /// How many windows it has until it begins again.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }
}

impl Program for Recorded {
    fn pages(&self) -> usize {
        self.hottest_first.len()
    }

    fn run(&mut self) -> Option<Accesses> {
        let window = self.windows.get(self.next)?.clone();
        self.next = (self.next + 1) % self.windows.len();
        Some(window)
    }

    fn hot(&self) -> Vec<u32> {
        let mut hot = self.hottest_first[..self.pages() / 5].to_vec();
        hot.sort_unstable();
        hot
    }

    fn hottest_first(&self) -> Vec<u32> {
        self.hottest_first.clone()
    }
}
