//! What `pagetrail tier` did, as one self-contained page of HTML, without scripts: heat by address
//! over time, degrees and the cut, memory by tier, moves, and each target's part of the pool.

use std::fmt::Write as _;
use std::io::{self, Write};

use base64::Engine as _;
use pagetrail_report::html::{Page, escape, notice_list};
use pagetrail_report::{palette, words};
use pagetrail_tier::WindowReport;

use crate::config::Mode;
use crate::daemon::{Daemon, Shares};
use crate::history::{Heat, History};
use crate::status::Status;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 8.0;
/// More bars than this are put together.
const BARS_MAX: usize = 200;
/// Colours that the style sheet has.
const COLOURS: usize = 4;

/// A process on the page.
pub(crate) struct Entry<'a> {
    pub(crate) title: String,
    pub(crate) history: &'a History,
}

/// The page about a daemon.
pub(crate) fn write_daemon(
    status: &Status,
    daemon: &Daemon,
    out: &mut dyn Write,
) -> io::Result<()> {
    let entries: Vec<Entry<'_>> = daemon
        .histories()
        .map(|(name, pid, history)| Entry {
            title: match history.guest.as_deref() {
                Some(guest) => format!("{name}, guest {guest} (process {pid})"),
                None => format!("{name}, process {pid}"),
            },
            history,
        })
        .collect();
    let mode = match status.mode {
        Mode::Island => "each target has its share",
        Mode::Pool => "targets share a pool",
    };
    let subtitle = format!(
        "{}; {mode}; {} of fast memory{}",
        words::time(status.uptime_s * 1e9),
        words::bytes(status.fast_bytes as f64),
        if status.dry_run {
            "; a dry run: nothing was moved"
        } else {
            ""
        }
    );
    let refused: Vec<String> = status
        .targets
        .iter()
        .flat_map(|target| {
            target
                .refused
                .iter()
                .map(move |line| format!("{}: {line}", target.name))
        })
        .collect();
    write(
        "Hot pages in fast memory",
        &subtitle,
        &refused,
        &daemon.shares,
        &entries,
        out,
    )
}

/// Writes the page.
pub(crate) fn write(
    title: &str,
    subtitle: &str,
    notices: &[String],
    shares: &[Shares],
    entries: &[Entry<'_>],
    out: &mut dyn Write,
) -> io::Result<()> {
    let processes: String = entries.iter().map(section).collect();
    let parts = [&notice_list(notices)[..], &pool(shares), &processes];
    Page::new("pagetrail tier")
        .styles(&[include_str!("page/page.css")])
        .heading("pagetrail tier", title)
        .subtitle(subtitle)
        .write(out, &parts)
}

fn section(entry: &Entry<'_>) -> String {
    let history = entry.history;
    let mut out = format!(
        "<section><div class=\"section-head\"><h2>{}</h2></div>\n<div class=\"tiers\">\n",
        escape(&entry.title)
    );
    out += &heat(&history.heat);
    out += &degrees(history);
    let windows: Vec<&WindowReport> = history.windows.iter().collect();
    out += &over_time(
        "Memory by tier",
        "after each window",
        &windows,
        ["fast", "slow"],
        |w| [w.usage.fast, w.usage.slow],
    );
    out += &over_time(
        "Moves",
        "per window",
        &windows,
        ["into fast memory", "out of it"],
        |w| [w.promoted_bytes, w.demoted_bytes],
    );
    out + "</div></section>\n"
}

/// A picture of mean degrees: addresses downwards, time to the right.
fn heat(heat: &Heat) -> String {
    let mut rows: Vec<u64> = heat
        .columns
        .iter()
        .flat_map(|column| column.rows.keys().copied())
        .collect();
    rows.sort_unstable();
    rows.dedup();
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return String::new();
    };
    let means = heat.columns.iter().map(|column| {
        rows.iter()
            .map(|row| {
                column
                    .rows
                    .get(row)
                    .map_or(0.0, |(sum, bytes)| *sum as f64 / (*bytes).max(1) as f64)
            })
            .collect::<Vec<f64>>()
    });
    let means: Vec<Vec<f64>> = means.collect();
    let most = means.iter().flatten().copied().fold(1.0, f64::max);
    let mut pixels = Vec::with_capacity(rows.len() * means.len() * 3);
    for row in 0..rows.len() {
        for column in &means {
            let level = (column[row] / most * 255.0).round() as u8;
            pixels.extend(palette::colour(level));
        }
    }
    let Some(picture) = picture(means.len() as u32, rows.len() as u32, &pixels) else {
        return String::new();
    };
    let span = |row: u64| format!("{:#x}", row << heat.shift);
    format!(
        "<figure class=\"heat\"><figcaption>Heat by address<small>mean degree, up to {most:.1}; a row is {}, \
         unmapped addresses are left out; from {} down to {}</small></figcaption>\n\
         <img alt=\"mean degree of pages by address and window\" src=\"data:image/png;base64,{picture}\">\n\
         <div class=\"ends\"><span>window {}</span><span>window {}</span></div></figure>\n",
        words::bytes((1u64 << heat.shift) as f64),
        span(*first),
        span(*last),
        heat.columns.first().map_or(0, |column| column.window),
        heat.columns.last().map_or(0, |column| column.window),
    )
}

fn picture(width: u32, height: u32, pixels: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(pixels).ok()?;
    writer.finish().ok()?;
    Some(base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// The histogram of degrees, with the cut.
fn degrees(history: &History) -> String {
    let bars: Vec<[u64; 2]> = history
        .fast
        .iter()
        .zip(&history.slow)
        .map(|(fast, slow)| [*fast, *slow])
        .collect();
    let Some(last) = bars.iter().rposition(|bar| bar.iter().sum::<u64>() > 0) else {
        return String::new();
    };
    let bars = &bars[..=last.max(usize::from(history.cut)).min(bars.len() - 1)];
    // All that is cold would hide the rest.
    let warm = bars
        .iter()
        .skip(1)
        .map(|bar| bar.iter().sum::<u64>())
        .max()
        .unwrap_or(0);
    let most = if warm > 0 { warm } else { bars[0].iter().sum() };
    let mut out = axes(most);
    let width = (WIDTH - LEFT) / bars.len() as f64;
    for (degree, bar) in bars.iter().enumerate() {
        stack(
            &mut out,
            LEFT + degree as f64 * width,
            width * 0.86,
            bar,
            most,
            &format!("degree {degree}"),
        );
        if degree % (bars.len() / 12 + 1) == 0 {
            push(
                &mut out,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{:.1}\">{degree}</text>",
                    LEFT + (degree as f64 + 0.3) * width,
                    HEIGHT - 6.0
                ),
            );
        }
    }
    let x = LEFT + f64::from(history.cut) * width - width * 0.07;
    push(
        &mut out,
        format_args!(
            "<path class=\"cut\" d=\"M{x:.1} {TOP}V{:.1}\"/>",
            HEIGHT - BOTTOM
        ),
    );
    let cold = bars[0].iter().sum::<u64>();
    let note = match cold > most {
        true => format!(
            "; of degree 0 there are {}, more than the scale has",
            words::bytes(cold as f64)
        ),
        false => String::new(),
    };
    figure(
        "Degrees",
        &format!("of the last window; hot from {} on{note}", history.cut),
        &out,
        &["in fast memory", "in slow memory"],
    )
}

/// Two figures of every window, one on top of the other.
fn over_time(
    title: &str,
    detail: &str,
    windows: &[&WindowReport],
    names: [&str; 2],
    values: fn(&WindowReport) -> [u64; 2],
) -> String {
    if windows.is_empty() {
        return String::new();
    }
    let each = windows.len().div_ceil(BARS_MAX);
    // Of windows that share a bar, the one with the most.
    let bars: Vec<(u64, [u64; 2])> = windows
        .chunks(each)
        .filter_map(|chunk| {
            chunk
                .iter()
                .max_by_key(|window| values(window).iter().sum::<u64>())
        })
        .map(|window| (window.index, values(window)))
        .collect();
    let most = bars
        .iter()
        .map(|(_, bar)| bar.iter().sum())
        .max()
        .unwrap_or(0);
    let mut out = axes(most);
    let width = (WIDTH - LEFT) / bars.len() as f64;
    for (at, (index, bar)) in bars.iter().enumerate() {
        stack(
            &mut out,
            LEFT + at as f64 * width,
            width * 0.92,
            bar,
            most,
            &format!("window {index}"),
        );
    }
    ends(
        &mut out,
        &format!("window {}", bars[0].0),
        &format!("window {}", bars[bars.len() - 1].0),
    );
    figure(title, detail, &out, &names)
}

/// What each target was allowed.
fn pool(shares: &[Shares]) -> String {
    let Some(last) = shares.last() else {
        return String::new();
    };
    if last.allowed.len() < 2 {
        return String::new();
    }
    let most = shares
        .iter()
        .flat_map(|share| share.allowed.iter().map(|(_, bytes)| *bytes))
        .max()
        .unwrap_or(0);
    let end = last.seconds.max(1.0);
    let mut out = axes(most);
    let names: Vec<&str> = last.allowed.iter().map(|(name, _)| &**name).collect();
    for (index, name) in names.iter().enumerate() {
        let mut points = String::new();
        let mut before = None;
        for share in shares {
            let Some((_, bytes)) = share.allowed.iter().find(|(other, _)| other == name) else {
                continue;
            };
            let x = LEFT + share.seconds / end * (WIDTH - LEFT - 4.0);
            let y = height(*bytes, most);
            if let Some(y) = before {
                push(&mut points, format_args!("{x:.1},{y:.1} "));
            }
            push(&mut points, format_args!("{x:.1},{y:.1} "));
            before = Some(y);
        }
        if let Some(y) = before {
            push(&mut points, format_args!("{WIDTH},{y:.1}"));
        }
        push(
            &mut out,
            format_args!(
                "<polyline class=\"c{}\" points=\"{points}\"/>",
                index % COLOURS
            ),
        );
    }
    ends(&mut out, "start", &words::time(end * 1e9));
    let figure = figure("Fast memory by target", "what each may use", &out, &names);
    format!(
        "<section><div class=\"section-head\"><h2>Pool</h2></div><div class=\"tiers\">\n{figure}</div></section>\n"
    )
}

fn figure(title: &str, detail: &str, drawing: &str, names: &[&str]) -> String {
    let keys = names
        .iter()
        .enumerate()
        .map(|(index, name)| format!("<b class=\"c{}\"></b>{}", index % COLOURS, escape(name)));
    format!(
        "<figure><figcaption>{}<small>{}</small></figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{0}\">\n{drawing}</svg>\n<p class=\"keys\">{}</p></figure>\n",
        escape(title),
        escape(detail),
        keys.collect::<String>()
    )
}

fn height(bytes: u64, most: u64) -> f64 {
    HEIGHT - BOTTOM - bytes.min(most) as f64 / most.max(1) as f64 * (HEIGHT - TOP - BOTTOM)
}

fn axes(most: u64) -> String {
    let mut out = String::new();
    for part in 0..=2 {
        let bytes = most / 2 * part;
        let y = height(bytes, most);
        push(
            &mut out,
            format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                LEFT - 6.0,
                y + 4.0,
                words::bytes(bytes as f64)
            ),
        );
    }
    out
}

fn ends(out: &mut String, first: &str, last: &str) {
    let y = HEIGHT - 6.0;
    push(
        out,
        format_args!("<text x=\"{LEFT}\" y=\"{y:.1}\">{first}</text>"),
    );
    push(
        out,
        format_args!("<text x=\"{WIDTH}\" y=\"{y:.1}\" text-anchor=\"end\">{last}</text>\n"),
    );
}

/// Values one on top of the other, from the bottom up.
fn stack(out: &mut String, x: f64, width: f64, values: &[u64], most: u64, what: &str) {
    let mut below = 0u64;
    for (index, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
        let (top, bottom) = (height(below + value, most), height(below, most));
        below += value;
        push(
            out,
            format_args!(
                "<rect class=\"c{index}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"><title>{what}: {}</title></rect>",
                bottom - top,
                words::bytes(*value as f64)
            ),
        );
    }
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all");
}
