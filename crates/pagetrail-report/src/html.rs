//! The report as one self-contained page of HTML: no network, no fonts, no framework.
//!
//! Words and tables are written here; `html/chart.js` draws the heatmap from the grid embedded as
//! data. The grid is bounded, so that the page stays small however long the recording was, and the
//! page says what a cell stands for. Text of the tracked program reaches the page escaped, in one
//! of two ways: [`escape`] for HTML, `data` as JSON for the scripts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Write};

use pagetrail::AccessKind;
use pagetrail_trail::analysis::MappingCounts;
use pagetrail_trail::{Heatmap, Mapping, Trail};

use code::Code;

use super::bands;
use super::facts::{Tile, facts};
use super::words::{self, Terms};
use super::{Part, Recording, joined, terminal};

mod code;
mod data;
mod frame;

pub use frame::{Charts, Page, figure};

/// Finer than a screen, so that zooming shows more; about two megabytes where every cell is
/// written.
const ROWS_MAX: usize = 640;
const COLUMNS_MAX: usize = 1600;
/// Processes on a page at most.
const PROCESSES_MAX: usize = 24;

/// The look of every page.
const STYLE_SHEET: &str = include_str!("html/page.css");

/// Writes the page of a process.
pub(crate) fn write(recording: &Recording<'_>, out: &mut dyn Write) -> io::Result<()> {
    write_all(std::slice::from_ref(recording), out)
}

/// Writes the page of several processes, of which the one that wrote most is shown until another is
/// chosen. Of many it has the first and those that wrote most, and says so.
pub(crate) fn write_all(recordings: &[Recording<'_>], out: &mut dyn Write) -> io::Result<()> {
    let shown = most_written(recordings);
    let grid = Grid::of(shown.len());
    let first = shown
        .first()
        .map(|recording| &recording.whole.header.command[..]);
    let title = format!("{} - pagetrail", words::command(first.unwrap_or_default()));
    let writes = |number: &usize| shown[*number].main.analysis.page_writes;
    // Of several that wrote as much, the first.
    let most = (0..shown.len()).rev().max_by_key(writes).unwrap_or(0);
    let processes = shown.iter().enumerate();
    let processes: String = processes
        .map(|(number, recording)| process(recording, number, number == most, grid))
        .collect();
    let scripts = [
        include_str!("html/picker.js"),
        include_str!("html/table.js"),
        include_str!("html/code.js"),
        include_str!("html/flame.js"),
        include_str!("html/chart.js"),
    ];
    let page = Page::new(&title).scripts(&scripts);
    let picker = picker(&shown, most, recordings.len());
    page.write(out, &[&picker, &processes])
}

/// How fine heatmaps are.
#[derive(Clone, Copy)]
struct Grid {
    rows: usize,
    columns: usize,
    /// Processes that share the page.
    processes: usize,
}

impl Grid {
    /// The more maps, the coarser, so that the page stays small.
    fn of(processes: usize) -> Self {
        let share = processes.max(1);
        let rows_least = ROWS_MAX / 4;
        Self {
            rows: (ROWS_MAX / share).max(rows_least),
            columns: (COLUMNS_MAX / share).max(COLUMNS_MAX / 8),
            processes,
        }
    }
}

/// The first process and those that wrote most, in their order.
fn most_written<'a, 'trail>(recordings: &'a [Recording<'trail>]) -> Vec<&'a Recording<'trail>> {
    let mut numbers: Vec<usize> = (1..recordings.len()).collect();
    numbers.sort_by_key(|number| std::cmp::Reverse(recordings[*number].main.analysis.page_writes));
    numbers.truncate(PROCESSES_MAX - 1);
    numbers.sort_unstable();
    let first = recordings.first().into_iter();
    first
        .chain(numbers.into_iter().map(|number| &recordings[number]))
        .collect()
}

/// What chooses a process; nothing where there is one.
fn picker(shown: &[&Recording<'_>], most: usize, all: usize) -> String {
    if all < 2 {
        return String::new();
    }
    let option = |(number, recording): (usize, &&Recording<'_>)| {
        let header = &recording.whole.header;
        let analysis = &recording.main.analysis;
        let text = format!(
            "{} {} · {}",
            header.pid,
            words::command(&header.command),
            words::plural(analysis.page_writes, "page write")
        );
        format!(
            "<option value=\"{}\"{}>{}</option>\n",
            header.pid,
            if number == most { " selected" } else { "" },
            escape(&text)
        )
    };
    let options: String = shown.iter().enumerate().map(option).collect();
    let left = match all - shown.len() {
        0 => String::new(),
        left => format!(
            "<span>and {} that wrote less: --process shows one</span>",
            words::count(left as u64)
        ),
    };
    format!(
        "<p class=\"picker\"><label for=\"picker\">Process</label>\
         <select id=\"picker\" autocomplete=\"off\">\n{options}</select>{left}</p>\n"
    )
}

/// A process on the page.
fn process(recording: &Recording<'_>, number: usize, is_shown: bool, grid: Grid) -> String {
    let trail = recording.whole;
    let mut out = Vec::new();
    fill(
        include_str!("html/process.html"),
        &mut out,
        |name| match name {
            "hidden" => if is_shown { "" } else { " hidden" }.into(),
            "number" => number.to_string().into(),
            "command" => escape(&words::command(&trail.header.command))
                .into_owned()
                .into(),
            "subtitle" => subtitle(trail).into(),
            "facts" => tiles(recording).into(),
            "notices" => notice_list(&words::notices(trail)).into(),
            "maps" => {
                let parts = std::iter::once(&recording.main).chain(&recording.accesses);
                parts
                    .map(|part| map(part, number, grid))
                    .collect::<String>()
                    .into()
            }
            "table" => table(recording).into(),
            other => unreachable!("the template names {other}"),
        },
    )
    .expect("a Vec takes all");
    String::from_utf8(out).expect("templates and data are UTF-8")
}

/// A heatmap with its data.
fn map(part: &Part<'_>, number: usize, grid: Grid) -> String {
    let terms = words::terms(part.access_kind);
    let heat = Heatmap::of(&part.trail, grid.rows, grid.columns);
    let bands = bands::bands(&part.trail, &heat);
    let code = Code::of(&part.trail, &heat, &bands, grid.processes);
    let below = code.as_ref().map_or(String::new(), Code::section);
    let data = data::json(
        &part.trail,
        &part.analysis,
        &heat,
        bands,
        code,
        terms.written,
    );
    let mut out = Vec::new();
    fill(include_str!("html/map.html"), &mut out, |name| match name {
        "name" => terms.writes.into(),
        "number" => number.to_string().into(),
        "title" => match part.access_kind {
            AccessKind::Writes => "Writes by address and time".into(),
            AccessKind::Accesses => "Accesses by address and time".into(),
        },
        "written" => terms.written.into(),
        "writes" => match part.access_kind {
            AccessKind::Writes => "writing".into(),
            AccessKind::Accesses => "accessing".into(),
        },
        "resolution" => resolution(&part.trail, &heat).into(),
        "code" => below.as_str().into(),
        "data" => data.as_str().into(),
        other => unreachable!("the template names {other}"),
    })
    .expect("a Vec takes all");
    String::from_utf8(out).expect("templates and data are UTF-8")
}

/// Replaces each `{{name}}` once; what is put in is not looked at again.
fn fill<'a>(
    template: &str,
    out: &mut dyn Write,
    value: impl Fn(&str) -> Cow<'a, str>,
) -> io::Result<()> {
    let mut parts = template.split("{{");
    out.write_all(parts.next().unwrap_or_default().as_bytes())?;
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or((part, ""));
        out.write_all(value(name).as_bytes())?;
        out.write_all(rest.as_bytes())?;
    }
    Ok(())
}

/// What is to be said before all else, a line each; nothing where there is nothing to say.
pub fn notice_list(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items: String = lines
        .iter()
        .map(|line| format!("<li>{}</li>\n", escape(line)))
        .collect();
    format!("<ul class=\"notices\">\n{items}</ul>\n")
}

/// Text made safe as content and as a quoted attribute.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn subtitle(trail: &Trail) -> String {
    let text = format!(
        "PID {} · {}, {}",
        trail.header.pid,
        words::plural(trail.rounds.len() as u64, "round"),
        words::end(trail)
    );
    escape(&text).into_owned()
}

/// The tiles of all facts.
fn tiles(recording: &Recording<'_>) -> String {
    let tile = |tile: &Tile| {
        format!(
            "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n",
            escape(&tile.title),
            escape(&tile.value),
            escape(&tile.detail)
        )
    };
    let facts = facts(recording);
    facts
        .iter()
        .flat_map(|fact| &fact.tiles)
        .map(tile)
        .collect()
}

fn resolution(trail: &Trail, heat: &Heatmap) -> String {
    let rounds = heat.columns.iter().map(|column| column.rounds).max();
    let pages = heat.rows.iter().map(|row| row.pages).max();
    match (rounds.unwrap_or(1), pages.unwrap_or(1)) {
        (1, 1) => "A cell is one page in one round.".into(),
        (rounds, pages) => format!(
            "Shown at reduced resolution: a cell is up to {} in {}; every page of {} is in the recording.",
            words::plural(pages, "page"),
            words::plural(rounds as u64, "round"),
            words::plural(trail.rounds.len() as u64, "round"),
        ),
    }
}

/// Of the table, where there is nothing but `terms.writes`.
fn heads(terms: Terms) -> [(&'static str, String); 7] {
    let Terms {
        written, writes, ..
    } = terms;
    [
        ("text", "Mapping".into()),
        ("number", format!("Share of {writes}")),
        ("number", "Size".into()),
        ("number", format!("Pages {written}/s")),
        ("number", "Different pages".into()),
        ("number", format!("Rounds {written} in")),
        ("text", "Addresses".into()),
    ]
}

/// Which column has the shares.
const SHARE_COLUMN: usize = 1;
/// After "Different pages", where accesses took turns.
const ACCESSED_COLUMN: usize = 5;

fn table(recording: &Recording<'_>) -> String {
    let (trail, analysis) = (recording.whole, &recording.main.analysis);
    let accesses = recording.accesses.as_ref().map(|part| &part.analysis);
    let mut heads = heads(words::terms(recording.main.access_kind)).to_vec();
    if accesses.is_some() {
        heads.insert(ACCESSED_COLUMN, ("number", "Pages accessed".into()));
    }
    let mut out = String::from("<thead><tr>");
    for (index, (kind, name)) in heads.iter().enumerate() {
        // The rows come sorted by their share.
        let sorted = match index {
            SHARE_COLUMN => " aria-sort=\"descending\"",
            _ => "",
        };
        let class = match index + 1 == heads.len() {
            true => " class=\"addresses\"",
            false => "",
        };
        out += &format!("<th scope=\"col\" data-kind=\"{kind}\"{sorted}{class}>{name}</th>");
    }
    out += "</tr></thead>\n<tbody>\n";
    // As in the text: memory with a name of ours is one row, wherever its parts lie.
    let mut rows = joined::touched(trail, analysis, accesses);
    rows.sort_by_key(|joined| {
        let pages = (joined.counts.page_writes, joined.accessed_pages);
        (std::cmp::Reverse(pages), joined.first.range)
    });
    for joined in &rows {
        let accessed = accesses.map(|_| joined.accessed_pages);
        out += &row(&Row::of(joined), &joined.counts, accessed, trail);
    }
    let touched: BTreeSet<usize> = rows
        .iter()
        .flat_map(|joined| joined.members.clone())
        .collect();
    let rest = (0..trail.mappings.len()).filter(|index| !touched.contains(index));
    let mut idle = 0;
    for index in rest {
        let (mapping, counts) = (&trail.mappings[index], &analysis.mappings[index]);
        match mapping.untracked {
            None => idle += 1,
            Some(_) => out += &row(&Row::alone(mapping), counts, accesses.map(|_| 0), trail),
        }
    }
    if analysis.unmapped.page_writes > 0 {
        let accessed = accesses.map(|all| all.unmapped.distinct_pages);
        out += &row(&Row::outside(), &analysis.unmapped, accessed, trail);
    }
    out += "</tbody>\n";
    if idle > 0 {
        out += &format!(
            "<tfoot><tr><td colspan=\"{}\">{} not {}</td></tr></tfoot>\n",
            heads.len(),
            words::plural(idle, "mapping"),
            words::terms(recording.main.access_kind).written
        );
    }
    out
}

/// What a row is of.
struct Row<'a> {
    name: String,
    untracked: Option<&'a str>,
    addresses: String,
    /// By which rows are sorted by their addresses.
    start: u64,
    bytes: u64,
}

impl<'a> Row<'a> {
    fn alone(mapping: &'a Mapping) -> Self {
        let range = mapping.range;
        Self {
            name: words::mapping(mapping).into_owned(),
            untracked: mapping.untracked.as_deref(),
            addresses: format!("{:#x} – {:#x}", range.start(), range.end()),
            start: range.start(),
            bytes: range.bytes(),
        }
    }

    fn of(joined: &joined::Joined<'a>) -> Self {
        let start = joined.first.range.start();
        Self {
            name: terminal::label(joined),
            addresses: match joined.gaps {
                0 => format!("{start:#x} – {:#x}", start.saturating_add(joined.bytes)),
                _ => format!("from {start:#x}"),
            },
            bytes: joined.bytes,
            ..Self::alone(joined.first)
        }
    }

    fn outside() -> Self {
        Self {
            name: "outside all mappings".into(),
            untracked: None,
            addresses: String::new(),
            start: 0,
            bytes: 0,
        }
    }
}

fn row(of: &Row<'_>, counts: &MappingCounts, accessed: Option<u64>, trail: &Trail) -> String {
    let untracked = of.untracked;
    let class = match untracked {
        Some(why) => format!(
            " class=\"untracked\" title=\"not tracked: {}\"",
            escape(why)
        ),
        None => String::new(),
    };
    let name = escape(&of.name);
    let (addresses, size) = (&of.addresses, of.bytes);
    // Sorted as text, so that equal lengths are needed.
    let address_key = of.start;
    let mut out = format!("<tr{class}><td title=\"{name}\">{name}</td>");
    let share = counts.share;
    out += &match untracked {
        Some(_) => "<td data-value=\"-1\">not tracked</td>".into(),
        None => format!(
            "<td data-value=\"{share}\">{}<meter value=\"{share}\"></meter></td>",
            words::percent(share)
        ),
    };
    let shown_size = match size {
        0 => String::new(),
        size => words::bytes(size as f64),
    };
    out += &format!("<td data-value=\"{size}\">{shown_size}</td>");
    let last = format!(
        "<td class=\"mono addresses\" data-value=\"{address_key:016x}\">{addresses}</td></tr>\n"
    );
    if untracked.is_some() {
        let cell = "<td data-value=\"-1\">–</td>";
        return out + &cell.repeat(3 + usize::from(accessed.is_some())) + &last;
    }
    let pages = |pages: u64| {
        format!(
            "<td data-value=\"{pages}\">{} <span class=\"of\">({})</span></td>",
            words::count(pages),
            words::bytes(pages as f64 * trail.header.page_size as f64)
        )
    };
    out += &format!(
        "<td data-value=\"{}\">{}</td>{}{}\
         <td data-value=\"{}\">{}</td>{last}",
        counts.pages_per_second,
        words::rate(counts.pages_per_second),
        pages(counts.distinct_pages),
        accessed.map_or(String::new(), pages),
        counts.rounds_written,
        words::count(counts.rounds_written.into()),
    );
    out
}

#[cfg(test)]
mod tests;
