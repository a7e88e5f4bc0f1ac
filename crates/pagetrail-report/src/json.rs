//! The report as one JSON document, schema 2, written as it goes.
//!
//! The structs below are the schema. Addresses are strings in hexadecimal, because JavaScript's
//! numbers do not hold them. Within a schema number fields are only ever added.

mod overhead;

use std::io::{self, Write};

use pagetrail::{AccessKind, PageRange};
use pagetrail_trail::analysis::{self, MappingCounts, RoundCounts};
use pagetrail_trail::{Analysis, Mapping, OverheadCounts, Predicted, Round, SubpageCounts};
use serde::{Serialize, Serializer};

use self::overhead::{OverheadSummary, OverheadView};
use super::processes::ProcessRow;
use super::shared::SharedPages;
use super::writers::Writers;
use super::{Recording, words};

/// Writes the document and a newline.
pub(crate) fn write(recording: &Recording<'_>, out: &mut dyn Write) -> io::Result<()> {
    let trail = recording.whole;
    let analysis = &recording.main.analysis;
    let accesses = recording.accesses.as_ref().map(|part| &part.analysis);
    let header = &trail.header;
    let page = header.page_size;
    let document = Document {
        schema: 2,
        command: &header.command,
        pid: header.pid,
        page_size: page,
        technique: &header.technique,
        reason: &header.reason,
        interval_ms: header.interval_ms,
        started_unix_ms: header.started_unix_ms,
        attach_stopped_us: us(header.attach_stopped_ns),
        rounds: List(|| {
            let mut main = analysis.rounds.iter();
            let mut beside = accesses.into_iter().flat_map(|all| &all.rounds);
            trail.rounds.iter().filter_map(move |round| {
                let counts = match round.access_kind == recording.main.access_kind {
                    true => main.next(),
                    false => beside.next(),
                };
                Some(self::round(round, counts?, page))
            })
        }),
        mappings: List(|| {
            let mappings = trail.mappings.iter().zip(&analysis.mappings).enumerate();
            mappings.map(|(index, (mapping, counts))| {
                let accessed = accesses.map(|all| all.mappings[index].distinct_pages);
                self::mapping(mapping, counts, accessed)
            })
        }),
        end: trail.end.as_ref().map(End::from),
        access_kind: access_kind(recording.main.access_kind),
        summary: summary(analysis),
        accesses: accesses.map(summary),
        subpages: SubpageCounts::of(&recording.main.trail).map(|counts| subpages(&counts, page)),
        overhead: OverheadCounts::of(&trail.rounds, page).map(OverheadSummary::from),
        writers: recording.writers.map(writers),
        processes: recording.processes,
        short_lived_processes: recording.short_lives,
        shared_memory: recording.shared,
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct Document<'a, R: Serialize, M: Serialize> {
    schema: u32,
    command: &'a [String],
    pid: u32,
    page_size: u64,
    technique: &'a str,
    reason: &'a str,
    interval_ms: u64,
    started_unix_ms: u64,
    attach_stopped_us: f64,
    rounds: R,
    mappings: M,
    end: Option<End>,
    /// What `summary` and the mappings' counts are of.
    access_kind: &'static str,
    summary: Summary,
    /// The counts of accesses, where they took turns with writes.
    accesses: Option<Summary>,
    /// Writes to sub-page heaps, where the process has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    subpages: Option<SubpagesView>,
    /// What tracking cost, where it was held against a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<OverheadSummary>,
    /// Which code wrote, where that was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    writers: Option<WritersView<'a>>,
    /// All processes of the recording, where there are several; the rest is about one of them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    processes: &'a [ProcessRow],
    /// Processes that began and ended between two rounds, so that nothing of them is recorded.
    #[serde(skip_serializing_if = "is_none")]
    short_lived_processes: u64,
    /// Memory that several processes wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory: Option<SharedPages>,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// Functions and stacks; their pages are counted once per round, times the sample period.
#[derive(Serialize)]
struct WritersView<'a> {
    page_writes: u64,
    attributed_page_writes: u64,
    sample_period_max: u32,
    samples_lost: u64,
    seconds: f64,
    functions: Vec<FunctionView<'a>>,
    stacks: Vec<StackView<'a>>,
}

#[derive(Serialize)]
struct FunctionView<'a> {
    function: &'a str,
    file: &'a str,
    page_writes: u64,
    page_writes_with_callees: u64,
}

/// The thread's name and functions, outermost first.
#[derive(Serialize)]
struct StackView<'a> {
    frames: &'a [String],
    page_writes: u64,
}

#[derive(Serialize)]
struct RoundView<'a, L: Serialize, E: Serialize> {
    round: u32,
    access_kind: &'static str,
    start_ms: f64,
    duration_ms: f64,
    collect_us: f64,
    stopped_us: f64,
    blind_us: f64,
    written_pages: u64,
    newly_mapped_pages: u64,
    reused_pages: u64,
    faults: &'a Option<u64>,
    predicted: Option<PredictedView>,
    events: E,
    ranges: L,
    #[serde(skip_serializing_if = "Option::is_none")]
    subpages: Option<SubpagesView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<OverheadView>,
}

/// Dirty pages of sub-page heaps, each counted once for all aliases, and their dirty sub-pages.
#[derive(Serialize)]
struct SubpagesView {
    subpages_per_page: u32,
    page_writes: u64,
    subpage_writes: u64,
    page_bytes: u64,
    subpage_bytes: u64,
}

#[derive(Serialize)]
struct RangeView {
    start: String,
    pages: u64,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Event<'a> {
    Exec { command: &'a str },
    Children { seen: u32 },
    Note { text: &'a str },
}

#[derive(Serialize)]
struct MappingView<'a> {
    start: String,
    end: String,
    name: &'a str,
    permissions: &'a str,
    untracked: Option<&'a str>,
    first_round: u32,
    last_round: Option<u32>,
    page_writes: u64,
    distinct_pages: u64,
    /// Different pages in rounds of accesses that took turns with those of writes.
    accessed_pages: Option<u64>,
    pages_per_second: f64,
    share: f64,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum End {
    Exited { code: i32 },
    Killed { signal: i32 },
    Gone,
    Detached,
}

#[derive(Serialize)]
struct Summary {
    seconds: f64,
    page_writes: u64,
    newly_mapped_page_writes: u64,
    distinct_pages: u64,
    pages_per_second: Numbers,
    working_sets: Vec<WorkingSet>,
    reuse: f64,
    collect_us: Numbers,
    stopped_us: Numbers,
    faults: Option<u64>,
    /// Sums over all rounds; memory is the most of any.
    predicted: Option<PredictedView>,
}

/// What a technique that predicts pages written did.
#[derive(Serialize)]
struct PredictedView {
    pages: u64,
    faults_avoided: u64,
    false_positives: u64,
    memory_bytes: u64,
}

impl From<Predicted> for PredictedView {
    fn from(predicted: Predicted) -> Self {
        let Predicted {
            pages,
            faults_avoided,
            false_positives,
            memory_bytes,
        } = predicted;
        Self {
            pages,
            faults_avoided,
            false_positives,
            memory_bytes,
        }
    }
}

#[derive(Serialize)]
struct WorkingSet {
    rounds: u32,
    mean_pages: f64,
    max_pages: u64,
}

#[derive(Serialize)]
struct Numbers {
    mean: f64,
    median: f64,
    max: f64,
}

/// A sequence that is made while it is written, so that no copy of it ever exists as a whole.
struct List<F>(F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

fn round<'a>(round: &'a Round, counts: &RoundCounts, page: u64) -> impl Serialize + use<'a> {
    let range = move |range: &PageRange| {
        // Numbers of the first and last page: the range may end where the address space does.
        let (first, last) = (range.start() / page, (range.end() - 1) / page);
        RangeView {
            start: hex(first * page),
            pages: last - first + 1,
        }
    };
    RoundView {
        round: round.index,
        access_kind: access_kind(round.access_kind),
        start_ms: ms(round.start_ns),
        duration_ms: ms(round.duration_ns),
        collect_us: us(round.collect_ns),
        stopped_us: us(round.stopped_ns),
        blind_us: us(round.blind_ns),
        written_pages: counts.written_pages,
        newly_mapped_pages: counts.newly_mapped_pages,
        reused_pages: counts.reused_pages,
        faults: &round.faults,
        predicted: round.predicted.map(PredictedView::from),
        events: List(|| round.events.iter().map(Event::from)),
        ranges: List(move || round.written.ranges().iter().map(range)),
        subpages: SubpageCounts::of_round(round, page).map(|counts| subpages(&counts, page)),
        overhead: round.overhead.map(OverheadView::from),
    }
}

fn writers(writers: &Writers) -> WritersView<'_> {
    let functions = writers.functions.iter().map(|function| FunctionView {
        function: &function.name,
        file: &function.module,
        page_writes: function.own,
        page_writes_with_callees: function.total,
    });
    let stacks = writers.stacks.iter().map(|(frames, pages)| StackView {
        frames,
        page_writes: *pages,
    });
    WritersView {
        page_writes: writers.page_writes,
        attributed_page_writes: writers.attributed,
        sample_period_max: writers.period_max,
        samples_lost: writers.lost,
        seconds: writers.seconds,
        functions: functions.collect(),
        stacks: stacks.collect(),
    }
}

fn subpages(counts: &SubpageCounts, page_size: u64) -> SubpagesView {
    SubpagesView {
        subpages_per_page: counts.subpages_per_page,
        page_writes: counts.page_writes,
        subpage_writes: counts.subpage_writes(page_size),
        page_bytes: counts.page_bytes,
        subpage_bytes: counts.subpage_bytes,
    }
}

fn access_kind(access_kind: AccessKind) -> &'static str {
    words::terms(access_kind).writes
}

fn mapping<'a>(
    mapping: &'a Mapping,
    counts: &MappingCounts,
    accessed_pages: Option<u64>,
) -> MappingView<'a> {
    MappingView {
        start: hex(mapping.range.start()),
        end: hex(mapping.range.end()),
        name: &mapping.name,
        permissions: &mapping.permissions,
        untracked: mapping.untracked.as_deref(),
        first_round: mapping.first_round,
        last_round: mapping.last_round,
        page_writes: counts.page_writes,
        distinct_pages: counts.distinct_pages,
        accessed_pages,
        pages_per_second: counts.pages_per_second,
        share: counts.share,
    }
}

fn summary(analysis: &Analysis) -> Summary {
    let costs = &analysis.costs;
    Summary {
        seconds: analysis.seconds,
        page_writes: analysis.page_writes,
        newly_mapped_page_writes: analysis.newly_mapped_page_writes,
        distinct_pages: analysis.distinct_pages,
        pages_per_second: numbers(analysis.pages_per_second, 1.0),
        working_sets: analysis
            .working_sets
            .iter()
            .map(|set| WorkingSet {
                rounds: set.window,
                mean_pages: set.mean_pages,
                max_pages: set.max_pages,
            })
            .collect(),
        reuse: analysis.reuse,
        collect_us: numbers(costs.collect_ns, 1e-3),
        stopped_us: numbers(costs.stopped_ns, 1e-3),
        faults: costs.faults,
        predicted: costs.predicted.map(PredictedView::from),
    }
}

fn numbers(summary: analysis::Summary, factor: f64) -> Numbers {
    Numbers {
        mean: summary.mean * factor,
        median: summary.median * factor,
        max: summary.max * factor,
    }
}

impl<'a> From<&'a pagetrail_trail::Event> for Event<'a> {
    fn from(event: &'a pagetrail_trail::Event) -> Self {
        match event {
            pagetrail_trail::Event::Exec(command) => Self::Exec { command },
            pagetrail_trail::Event::Children(seen) => Self::Children { seen: *seen },
            pagetrail_trail::Event::Note(text) => Self::Note { text },
        }
    }
}

impl From<&pagetrail_trail::End> for End {
    fn from(end: &pagetrail_trail::End) -> Self {
        match *end {
            pagetrail_trail::End::Exited(code) => Self::Exited { code },
            pagetrail_trail::End::Killed(signal) => Self::Killed { signal },
            pagetrail_trail::End::Gone => Self::Gone,
            pagetrail_trail::End::Detached => Self::Detached,
        }
    }
}

fn hex(address: u64) -> String {
    format!("{address:#x}")
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use pagetrail_trail::Trail;

    use super::*;
    use crate::testing;

    fn document(trail: &Trail) -> String {
        let mut out = Vec::new();
        write(&Recording::of(trail), &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn the_document_is_the_schema() {
        let text = document(&testing::program(2));
        serde_json::from_str::<serde_json::Value>(&text).expect("it parses");
        insta::assert_snapshot!(text.replace("},{", "},\n{"));
    }

    #[test]
    fn a_budget_is_in_the_document() {
        let trail = testing::program_within_budget(20);
        let value: serde_json::Value = serde_json::from_str(&document(&trail)).expect("it parses");
        let round = &value["rounds"][19]["overhead"];
        assert_eq!(
            (&round["allowed"], &round["cost"]),
            (&0.03.into(), &0.021.into())
        );
        assert_eq!(value["rounds"][0]["overhead"]["is_kept"], false);
        let all = &value["overhead"];
        assert_eq!(
            (&all["rounds"], &all["rounds_over"]),
            (&20.into(), &2.into())
        );
        let mean = all["interval_ms"].as_f64().expect("a number");
        assert!((100.0..103.0).contains(&mean), "{mean}");
    }

    #[test]
    fn accesses_stand_beside_writes() {
        let trail = testing::program_in_turns(4);
        let value: serde_json::Value = serde_json::from_str(&document(&trail)).expect("it parses");
        let of = |round: usize| value["rounds"][round]["access_kind"].as_str().unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(of),
            ["writes", "accesses", "writes", "accesses"]
        );
        let read = value["mappings"].as_array().unwrap().last().unwrap();
        assert_eq!(read["distinct_pages"], 0);
        assert_eq!(read["accessed_pages"], 34);
        assert_eq!(value["access_kind"], "writes");
        let pages = |round: usize| value["rounds"][round]["written_pages"].as_u64().unwrap();
        assert_eq!(value["accesses"]["page_writes"], pages(1) + pages(3));
    }

    #[test]
    fn an_empty_trail_is_a_document_too() {
        let value: serde_json::Value = serde_json::from_str(&document(&Trail {
            header: testing::program(0).header,
            ..Trail::default()
        }))
        .expect("it parses");
        assert_eq!(value["rounds"], serde_json::json!([]));
        assert_eq!(value["end"], serde_json::Value::Null);
    }

    #[test]
    fn a_part_of_a_page_is_reported_as_that_page() {
        let mut trail = testing::program(1);
        let part = PageRange::new(0x7f00_0000_0800, 0x7f00_0000_0c00).expect("not empty");
        trail.rounds[0].written = [part].into_iter().collect();
        let value: serde_json::Value = serde_json::from_str(&document(&trail)).expect("it parses");
        assert_eq!(
            value["rounds"][0]["ranges"],
            serde_json::json!([{"start": "0x7f0000000000", "pages": 1}])
        );
    }
}
