//! The facts of a recording, decided and worded once: a line for a report in text, and tiles for a
//! page.

use pagetrail_trail::analysis::WorkingSet;
use pagetrail_trail::{OverheadCounts, SubpageCounts};

use super::words::{self, Terms};
use super::{Part, Recording};

/// One fact.
#[derive(Debug)]
pub(crate) struct Fact {
    /// What stands before the line; empty where it continues the line above.
    pub(crate) label: &'static str,
    /// The fact as a line of text.
    pub(crate) line: String,
    /// What a page shows of it.
    pub(crate) tiles: Vec<Tile>,
}

/// A figure on a page.
#[derive(Debug)]
pub(crate) struct Tile {
    pub(crate) title: String,
    pub(crate) value: String,
    pub(crate) detail: String,
}

impl Fact {
    fn new(label: &'static str, line: String) -> Self {
        Self {
            label,
            line,
            tiles: Vec::new(),
        }
    }

    fn tile(mut self, title: &str, value: String, detail: String) -> Self {
        let title = title.to_owned();
        self.tiles.push(Tile {
            title,
            value,
            detail,
        });
        self
    }
}

/// All facts, the most general first.
pub(crate) fn facts(recording: &Recording<'_>) -> Vec<Fact> {
    let facts = Facts::of(recording);
    let mut all = vec![facts.command(), facts.technique(), facts.recorded()];
    all.push(facts.written());
    all.extend(facts.newly_mapped());
    all.extend(facts.subpages());
    all.extend(facts.accesses());
    all.extend(facts.predicted());
    all.extend(facts.overhead());
    if recording.main.analysis.page_writes > 0 {
        all.extend(facts.working_sets());
        all.push(facts.reuse());
    }
    all.push(facts.cost());
    all
}

/// What the facts are taken from.
struct Facts<'a> {
    recording: &'a Recording<'a>,
    main: &'a Part<'a>,
    terms: Terms,
    /// Bytes of a page.
    page: f64,
    /// What tracking cost, where it was held against a budget.
    overhead: Option<OverheadCounts>,
}

impl<'a> Facts<'a> {
    fn of(recording: &'a Recording<'a>) -> Self {
        Self {
            recording,
            main: &recording.main,
            terms: words::terms(recording.main.access_kind),
            page: recording.whole.header.page_size as f64,
            overhead: OverheadCounts::of(&recording.whole.rounds, recording.whole.header.page_size),
        }
    }

    fn bytes(&self, pages: f64) -> String {
        words::bytes(pages * self.page)
    }

    fn command(&self) -> Fact {
        let header = &self.recording.whole.header;
        let command = words::command(&header.command);
        Fact::new("command", format!("{command} (PID {})", header.pid))
    }

    fn technique(&self) -> Fact {
        let header = &self.recording.whole.header;
        let line = format!("{}: {}", header.technique, header.reason);
        Fact::new("technique", words::printable(&line).into_owned()).tile(
            "Technique",
            words::printable(&header.technique).into_owned(),
            words::printable(&header.reason).into_owned(),
        )
    }

    fn recorded(&self) -> Fact {
        let trail = self.recording.whole;
        let duration = words::time(self.recording.duration_ns());
        let rounds = words::plural(trail.rounds.len() as u64, "round");
        let longer = match self.overhead {
            Some(_) => " or longer",
            None => "",
        };
        let rounds = format!("{rounds} of {} ms{longer}", trail.header.interval_ms);
        let line = format!("{duration}, {rounds}; {}", words::end(trail));
        Fact::new("recorded", line).tile("Duration", duration, rounds)
    }

    /// Different pages, page writes and their rate.
    fn totals(&self, part: &Part<'_>) -> String {
        let all = &part.analysis;
        if all.page_writes == 0 {
            return "nothing".into();
        }
        format!(
            "{} different pages ({}), {} page {}: {}/s ({}/s)",
            words::count(all.distinct_pages),
            self.bytes(all.distinct_pages as f64),
            words::count(all.page_writes),
            words::terms(part.access_kind).writes,
            words::rate(all.pages_per_second.mean),
            self.bytes(all.pages_per_second.mean)
        )
    }

    fn written(&self) -> Fact {
        let all = &self.main.analysis;
        let pages = words::plural(all.distinct_pages, "page");
        Fact::new(self.terms.written, self.totals(self.main))
            .tile(
                &format!("Different pages {}", self.terms.written),
                self.bytes(all.distinct_pages as f64),
                format!("{pages} of {}", self.bytes(1.0)),
            )
            .tile(
                &format!("{} rate", self.terms.write),
                format!("{}/s", self.bytes(all.pages_per_second.mean)),
                format!(
                    "{} pages/s mean, {} max",
                    words::rate(all.pages_per_second.mean),
                    words::rate(all.pages_per_second.max)
                ),
            )
    }

    fn newly_mapped(&self) -> Option<Fact> {
        let pages = self.main.analysis.newly_mapped_page_writes;
        let Terms {
            writes, written, ..
        } = self.terms;
        (pages > 0).then(|| {
            let pages = words::count(pages);
            let line = format!(
                "{pages} of the page {writes} are whole new mappings, counted as {written}"
            );
            Fact::new("", line)
        })
    }

    fn subpages(&self) -> Option<Fact> {
        let counts = SubpageCounts::of(&self.main.trail)?;
        let line = words::subpages(&counts, self.recording.whole.header.page_size);
        let bytes = words::bytes(counts.subpage_bytes as f64);
        let title = "Small objects, by sub-pages";
        Some(Fact::new("sub-page", line.clone()).tile(title, bytes, line))
    }

    /// The accesses beside the writes, and how both share the time.
    fn accesses(&self) -> Vec<Fact> {
        let Some(accesses) = &self.recording.accesses else {
            return Vec::new();
        };
        let rounds = words::plural(self.main.trail.rounds.len() as u64, "round");
        let beside = accesses.trail.rounds.len() as u64;
        let blind = self.recording.blind_ns() as f64 / self.recording.duration_ns().max(1.0);
        let blind = format!(
            "for {} of the time nothing was noticed",
            words::percent(blind)
        );
        let of_accesses = words::count(beside);
        let turns = match self.recording.is_at_once {
            true => {
                format!("at once: {rounds} of writes, {of_accesses} of accesses in the same time")
            }
            false => format!("in turns: {rounds} of writes, {of_accesses} of accesses; {blind}"),
        };
        let pages = accesses.analysis.distinct_pages;
        let detail = format!(
            "{}, in {} of accesses; {blind}",
            words::plural(pages, "page"),
            words::plural(beside, "round"),
        );
        vec![
            Fact::new("accessed", self.totals(accesses)).tile(
                "Different pages accessed",
                self.bytes(pages as f64),
                detail,
            ),
            Fact::new("", turns),
        ]
    }

    fn predicted(&self) -> Option<Fact> {
        let all = &self.main.analysis;
        let (predicted, text) = all.costs.predicted.zip(words::predicted(all))?;
        let avoided = words::plural(predicted.faults_avoided, "fault");
        Some(Fact::new("predicted", text.clone()).tile("Faults avoided, about", avoided, text))
    }

    fn overhead(&self) -> Option<Fact> {
        let overhead = self.overhead.as_ref()?;
        let line = words::overhead(overhead);
        let title = format!("Overhead, of {} allowed", words::percent(overhead.allowed));
        let cost = words::percent(overhead.cost);
        Some(Fact::new("overhead", line.clone()).tile(&title, cost, line))
    }

    /// A line for each window, and one tile for all.
    fn working_sets(&self) -> Vec<Fact> {
        let interval_ns = match &self.overhead {
            Some(overhead) => overhead.interval_ns,
            None => self.recording.whole.header.interval_ms as f64 * 1e6,
        };
        let pages = |n: f64| format!("{} pages ({})", words::rate(n), self.bytes(n));
        let window = |set: &WorkingSet| words::window(set, interval_ns);
        let sets: Vec<_> = words::recorded_sets(&self.main.analysis).collect();
        let longer = sets.iter().skip(1);
        let longer = longer.map(|set| format!("; {}: {}", window(set), self.bytes(set.mean_pages)));
        let longer: String = longer.collect();
        let line = |(i, set): (usize, &&WorkingSet)| {
            let (mean, max) = (pages(set.mean_pages), pages(set.max_pages as f64));
            let line = format!("in {:>7}: {mean} mean, {max} max", window(set));
            match i {
                0 => Fact::new("working set", line).tile(
                    &format!("{} working set", self.terms.write),
                    self.bytes(set.mean_pages),
                    format!("in {}{longer}", window(set)),
                ),
                _ => Fact::new("", line),
            }
        };
        sets.iter().enumerate().map(line).collect()
    }

    fn reuse(&self) -> Fact {
        let share = words::percent(self.main.analysis.reuse);
        let Terms { writes, wrote, .. } = self.terms;
        let of = format!("of page {writes} hit a page that the round before {wrote} too");
        Fact::new("reuse", format!("{share} {of}")).tile("Reuse", share, of)
    }

    fn cost(&self) -> Fact {
        let all = &self.main.analysis;
        let (to_attach, later) = words::stops(self.recording.whole, all);
        let collect = &all.costs.collect_ns;
        let (median, max) = (words::time(collect.median), words::time(collect.max));
        let faults = words::faults(all);
        let line = format!(
            "collect {median} median, {max} max; {faults}; stopped {to_attach} to attach, {later}"
        );
        Fact::new("cost", line)
            .tile("Stopped to attach", to_attach, later)
            .tile("Collect, median", median, format!("{max} max; {faults}"))
    }
}
