//! A plan in words.

use comfy_table::{Table, presets};
use pagetrail_report::words;
use pagetrail_tier::{Plan, Settings, SourceCaps, Unit};

use super::{Document, Part};

/// Lines of a plan in each direction.
const LINES_MAX: usize = 20;

/// A plan in one sentence.
pub(super) fn sum(document: &Document, plan: &Plan) -> String {
    let size = |bytes: u64| words::bytes(bytes as f64);
    let all = |units: &[Unit]| size(units.iter().map(|unit| unit.bytes).sum());
    format!(
        "{} in fast memory and {} in slow, of which {} may be fast; by {} in {}, {} would move in and {} out",
        size(document.fast_bytes),
        size(document.slow_bytes),
        size(document.allowed_bytes),
        document.source,
        words::plural(document.windows.into(), "window"),
        all(&plan.promote),
        all(&plan.demote),
    )
}

/// What a degree is, in one line.
pub(super) fn degree(settings: &Settings, caps: SourceCaps) -> String {
    let (read, write) = (settings.read_weight, settings.write_weight);
    let counts = match (caps.accesses, caps.writes) {
        (true, true) => {
            format!("{read} for one with an access and {write} more for one with a write")
        }
        (true, false) => format!("{read} for one with an access"),
        (false, _) => format!("{write} for one with a write"),
    };
    let of_accesses = u16::from(read) * u16::from(caps.accesses);
    let most = of_accesses + u16::from(write) * u16::from(caps.writes);
    format!(
        "a page's degree sums up the last {}: {counts}; at most {}",
        words::plural(settings.windows.into(), "window"),
        u16::from(settings.windows) * most,
    )
}

/// A plan for people.
pub(super) fn plan(document: &Document, plan: &Plan, writes_only: bool) -> String {
    let mut out = sum(document, plan) + "\n";
    if writes_only {
        out += "this source reports writes only: what is only read counts as cold\n";
    }
    let size = |bytes: u64| words::bytes(bytes as f64);
    if document.promoted_bytes + document.demoted_bytes > 0 {
        out += &format!(
            "until then {} moved in and {} out\n",
            size(document.promoted_bytes),
            size(document.demoted_bytes),
        );
    }
    if let (Some(now), Some(planned)) = (document.fast_share, document.fast_share_planned) {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        out += &format!(
            "of the accesses seen, fast memory serves {}, and {} after the moves\n",
            percent(now),
            percent(planned),
        );
    }
    out += &format!("{}\n", document.degree);
    out += &format!(
        "hot from degree {} on; wanted {}; hot and without room {}\n",
        document.cut,
        size(document.demand_bytes),
        size(document.left_out_bytes)
    );
    for (title, why, list) in [
        (
            "into fast memory",
            "hotter than what is there",
            &document.promote,
        ),
        (
            "out of fast memory",
            "among the coldest there, and more is in use than allowed or hotter pages wait",
            &document.demote,
        ),
    ] {
        if list.is_empty() {
            continue;
        }
        out += &format!("\n{title} ({why}):\n");
        let mut largest: Vec<&Part> = list.iter().collect();
        largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(["addresses", "size", "degree", "mapping"]);
        for part in largest.iter().take(LINES_MAX) {
            table.add_row([
                format!("{}..{}", part.start, part.end),
                size(part.bytes),
                part.degree.to_string(),
                words::printable(&part.mapping).into_owned(),
            ]);
        }
        out += &table
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect::<String>();
        if largest.len() > LINES_MAX {
            let rest = &largest[LINES_MAX..];
            let bytes = rest.iter().map(|part| part.bytes).sum();
            out += &format!(
                "and {} more, {}\n",
                words::plural(rest.len() as u64, "range"),
                size(bytes)
            );
        }
    }
    if document.promote.is_empty() && document.demote.is_empty() {
        out += match document.left_out_bytes {
            0 => "nothing: every page is where it should be\n",
            _ => "nothing: no page that waits is hotter by enough than what is in fast memory\n",
        };
    }
    out
}
