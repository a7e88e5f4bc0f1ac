//! The report as one self-contained page of HTML: no network, no fonts, no framework.
//!
//! Words and tables are written here; `html/chart.js` draws the heatmap from the grid embedded as data.
//! The grid is bounded, so that the page stays small however long the recording was, and the page says
//! what a cell stands for. Text of the tracked program reaches the page escaped, in one of two ways:
//! [`escape`] for HTML, [`data`] as JSON for the scripts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use pagetrail_trail::analysis::MappingCounts;
use pagetrail_trail::{Analysis, Heatmap, Mapping, Trail};

use super::words;

mod data;

/// Finer than a screen, so that zooming shows more; about two megabytes where every cell is written.
const ROWS_MAX: usize = 640;
const COLUMNS_MAX: usize = 1600;

/// The look of every page.
pub(crate) const STYLE_SHEET: &str = include_str!("html/page.css");

/// Writes the page.
pub(crate) fn write(trail: &Trail, analysis: &Analysis, out: &mut dyn Write) -> io::Result<()> {
    let heat = Heatmap::of(trail, ROWS_MAX, COLUMNS_MAX);
    let command = escape(&words::command(&trail.header.command)).into_owned();
    fill(include_str!("html/page.html"), out, |name| match name {
        "title" => Cow::Owned(format!("{command} - pagetrail")),
        "css" => STYLE_SHEET.into(),
        "table-js" => include_str!("html/table.js").into(),
        "chart-js" => include_str!("html/chart.js").into(),
        "command" => Cow::Borrowed(&command),
        "subtitle" => subtitle(trail).into(),
        "facts" => facts(trail, analysis).into(),
        "notices" => notices(trail).into(),
        "resolution" => resolution(trail, &heat).into(),
        "table" => table(trail, analysis).into(),
        "data" => data::json(trail, analysis, &heat).into(),
        other => unreachable!("the template names {other}"),
    })
}

/// Replaces each `{{name}}` once; what is put in is not looked at again.
pub(crate) fn fill<'a>(
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

/// Text made safe as content and as a quoted attribute.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
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

fn facts(trail: &Trail, all: &Analysis) -> String {
    let header = &trail.header;
    let page = header.page_size as f64;
    let [_, ten, sixty] = all.working_sets;
    let mut out = String::new();
    let mut fact = |name: &str, value: &str, detail: &str| {
        let (name, value, detail) = (escape(name), escape(value), escape(detail));
        writeln!(
            out,
            "<div><dt>{name}</dt><dd>{value}<small>{detail}</small></dd></div>"
        )
        .expect("a String takes all");
    };
    fact(
        "Duration",
        &words::time(all.seconds * 1e9),
        &format!(
            "{} of {} ms",
            words::plural(trail.rounds.len() as u64, "round"),
            header.interval_ms
        ),
    );
    fact(
        "Different pages written",
        &words::bytes(all.distinct_pages as f64 * page),
        &format!(
            "{} of {}",
            words::plural(all.distinct_pages, "page"),
            words::bytes(page)
        ),
    );
    fact(
        "Write rate",
        &format!("{}/s", words::bytes(all.pages_per_second.mean * page)),
        &format!(
            "{} pages/s mean, {} max",
            words::rate(all.pages_per_second.mean),
            words::rate(all.pages_per_second.max)
        ),
    );
    let bytes = |pages: f64| words::bytes(pages * page);
    let fewer = |set: pagetrail_trail::analysis::WorkingSet| match set.windows {
        0 => " (fewer recorded)",
        _ => "",
    };
    fact(
        "Write working set",
        &bytes(all.working_sets[0].mean_pages),
        &format!(
            "in 1 round; in 10: {}{}; in 60: {}{}",
            bytes(ten.mean_pages),
            fewer(ten),
            bytes(sixty.mean_pages),
            fewer(sixty)
        ),
    );
    fact(
        "Reuse",
        &words::percent(all.reuse),
        "of page writes hit a page that the round before wrote too",
    );
    fact(
        "Technique",
        &header.technique,
        &words::printable(&header.reason),
    );
    let (to_attach, later) = words::stops(trail, all);
    fact("Stopped to attach", &to_attach, &later);
    let collect = &all.costs.collect_ns;
    fact(
        "Collect, median",
        &words::time(collect.median),
        &format!("{} max; {}", words::time(collect.max), words::faults(all)),
    );
    out
}

fn notices(trail: &Trail) -> String {
    let lines = words::notices(trail);
    if lines.is_empty() {
        return String::new();
    }
    let items: String = lines
        .iter()
        .map(|line| format!("<li>{}</li>\n", escape(line)))
        .collect();
    format!("<ul class=\"notices\">\n{items}</ul>\n")
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

const HEADS: [(&str, &str); 7] = [
    ("text", "Mapping"),
    ("text", "Addresses"),
    ("number", "Size"),
    ("number", "Pages written/s"),
    ("number", "Different pages"),
    ("number", "Rounds written in"),
    ("number", "Share of writes"),
];

fn table(trail: &Trail, analysis: &Analysis) -> String {
    let mut out = String::from("<thead><tr>");
    for (kind, name) in HEADS {
        // The rows come sorted by their share.
        let sorted = match name {
            "Share of writes" => " aria-sort=\"descending\"",
            _ => "",
        };
        out += &format!("<th scope=\"col\" data-kind=\"{kind}\"{sorted}>{name}</th>");
    }
    out += "</tr></thead>\n<tbody>\n";
    let mut rows: Vec<_> = trail.mappings.iter().zip(&analysis.mappings).collect();
    rows.sort_by_key(|(mapping, counts)| (std::cmp::Reverse(counts.page_writes), mapping.range));
    for (mapping, counts) in rows {
        out += &row(Some(mapping), counts, trail);
    }
    if analysis.unmapped.page_writes > 0 {
        out += &row(None, &analysis.unmapped, trail);
    }
    out + "</tbody>\n"
}

fn row(mapping: Option<&Mapping>, counts: &MappingCounts, trail: &Trail) -> String {
    let untracked = mapping.and_then(|m| m.untracked.as_deref());
    let class = match untracked {
        Some(why) => format!(
            " class=\"untracked\" title=\"not tracked: {}\"",
            escape(why)
        ),
        None => String::new(),
    };
    let name = mapping.map_or("outside all mappings".into(), words::mapping);
    let name = escape(&name);
    let (addresses, size) = match mapping {
        Some(Mapping { range, .. }) => (
            format!("{:#x} – {:#x}", range.start(), range.end()),
            range.bytes(),
        ),
        None => (String::new(), 0),
    };
    // Sorted as text, so that equal lengths are needed.
    let address_key = mapping.map_or(0, |m| m.range.start());
    let mut out = format!(
        "<tr{class}><td title=\"{name}\">{name}</td>\
         <td class=\"mono\" data-value=\"{address_key:016x}\">{addresses}</td>\
         <td data-value=\"{size}\">{}</td>",
        if size > 0 {
            words::bytes(size as f64)
        } else {
            String::new()
        }
    );
    if untracked.is_some() {
        let cell = "<td data-value=\"-1\">–</td>";
        out += &cell.repeat(HEADS.len() - 4);
        return out + "<td data-value=\"-1\">not tracked</td></tr>\n";
    }
    out += &format!(
        "<td data-value=\"{}\">{}</td><td data-value=\"{}\">{} <span class=\"of\">({})</span></td>\
         <td data-value=\"{}\">{}</td>\
         <td data-value=\"{share}\">{}<meter value=\"{share}\"></meter></td></tr>\n",
        counts.pages_per_second,
        words::rate(counts.pages_per_second),
        counts.distinct_pages,
        words::count(counts.distinct_pages),
        words::bytes(counts.distinct_pages as f64 * trail.header.page_size as f64),
        counts.rounds_written,
        words::count(counts.rounds_written.into()),
        words::percent(counts.share),
        share = counts.share,
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn page(trail: &Trail) -> String {
        let mut out = Vec::new();
        write(trail, &Analysis::of(trail), &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("the page is UTF-8")
    }

    #[test]
    fn needs_nothing_but_itself() {
        let page = page(&testing::program(60));
        for foreign in [
            "http://", "https://", "src=", "href=", "@import", "url(", "{{",
        ] {
            assert!(!page.contains(foreign), "found {foreign}");
        }
    }

    #[test]
    fn text_of_the_program_stays_text() {
        let evil = "</script><script>alert(1)</script><img onerror='x' alt=\"{{table-js}}\">&<!--";
        let mut trail = testing::program(60);
        trail.header.command = vec![evil.into()];
        trail.header.reason = evil.into();
        for mapping in &mut trail.mappings {
            mapping.name = evil.into();
            mapping.untracked = mapping.untracked.as_ref().map(|_| evil.into());
        }
        trail.rounds[2]
            .events
            .push(pagetrail_trail::Event::Note(evil.into()));
        let hostile = page(&trail);
        let count = |text: &str, what: &str| text.matches(what).count();
        let tame = page(&testing::program(60));
        for tag in ["<script", "</script", "<img", "<!--"] {
            assert_eq!(count(&hostile, tag), count(&tame, tag), "{tag}");
        }
        // Unchanged where it is read: the data block holds it as JSON.
        let (_, data) = hostile.split_once("id=\"data\">").expect("there is data");
        let (data, _) = data.split_once("</script>").expect("it ends");
        let value: serde_json::Value = serde_json::from_str(data).expect("it is JSON");
        assert_eq!(value["bands"][0]["name"], evil);
    }

    #[test]
    fn stays_small_when_the_recording_is_long() {
        let page = page(&testing::program(20_000));
        assert!(page.len() < 4 << 20, "{} bytes", page.len());
        assert!(page.contains("reduced resolution"));
    }
}
