//! Numbers and facts as words, the same in every report.
//!
//! Sizes are binary (1 KiB = 1024 bytes) with their unit; times carry the unit that keeps them
//! short.

use std::borrow::Cow;

use pagetrail::AccessKind;
use pagetrail_trail::analysis::WorkingSet;
use pagetrail_trail::{Analysis, End, Event, Mapping, OverheadCounts, SubpageCounts, Trail};

/// A count with separators: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate or mean that may be small: whole from 10 on, with one digit below, `<0.1` for less than
/// that.
pub fn rate(x: f64) -> String {
    if x >= 9.95 {
        count(x.round() as u64)
    } else if x >= 0.05 || x == 0.0 {
        format!("{x:.1}")
    } else {
        "<0.1".into()
    }
}

/// A share from 0 to 1 in percent; `<0.1%` rather than a zero that is none.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        "<0.1%".into()
    } else {
        format!("{:.1}%", share * 100.0)
    }
}

/// How much less was written in sub-pages than in pages.
pub fn subpages(counts: &SubpageCounts, page_size: u64) -> String {
    let subpage_writes = counts.subpage_writes(page_size);
    let whole = counts.page_bytes.max(1) as f64;
    format!(
        "{} ({}) are {} ({}) with {} sub-pages a page: {}",
        plural(counts.page_writes, "page write"),
        bytes(counts.page_bytes as f64),
        plural(subpage_writes, "sub-page write"),
        bytes(counts.subpage_bytes as f64),
        counts.subpages_per_page,
        percent(counts.subpage_bytes as f64 / whole)
    )
}

/// A size: `4 KiB`, `1.50 MiB`, `188 MiB`.
pub fn bytes(n: f64) -> String {
    let mut n = n;
    let mut unit = 0;
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    while n >= 1024.0 && unit + 1 < UNITS.len() {
        n /= 1024.0;
        unit += 1;
    }
    let digits = match n {
        _ if n.fract() == 0.0 || n >= 99.95 => 0,
        _ if n >= 9.995 => 1,
        _ => 2,
    };
    format!("{n:.digits$} {}", UNITS[unit])
}

/// A time: `850 ns`, `12.3 µs`, `1.25 ms`, `12.4 s`, `3 min 20 s`, `2 h 5 min`.
pub fn time(ns: f64) -> String {
    let digits = |x: f64| match x {
        _ if x >= 99.95 => 0,
        _ if x >= 9.995 => 1,
        _ => 2,
    };
    let short = |x: f64, unit: &str| format!("{x:.*} {unit}", digits(x));
    match ns {
        _ if ns < 999.5 => format!("{ns:.0} ns"),
        _ if ns < 999.5e3 => short(ns / 1e3, "µs"),
        _ if ns < 999.5e6 => short(ns / 1e6, "ms"),
        _ if ns < 119.5e9 => short(ns / 1e9, "s"),
        _ => {
            let seconds = (ns / 1e9).round() as u64;
            if seconds < 3600 {
                format!("{} min {} s", seconds / 60, seconds % 60)
            } else {
                format!("{} h {} min", seconds / 3600, seconds / 60 % 60)
            }
        }
    }
}

/// What pages had done to them, in the forms that the reports need.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// As in "pages written".
    pub written: &'static str,
    /// As in "page writes".
    pub writes: &'static str,
    /// As in "Write rate".
    pub write: &'static str,
    /// As in "which the round before wrote".
    pub wrote: &'static str,
}

/// The forms for `access_kind`.
pub fn terms(access_kind: AccessKind) -> Terms {
    match access_kind {
        AccessKind::Writes => Terms {
            written: "written",
            writes: "writes",
            write: "Write",
            wrote: "wrote",
        },
        AccessKind::Accesses => Terms {
            written: "accessed",
            writes: "accesses",
            write: "Access",
            wrote: "accessed",
        },
    }
}

/// `n` of something: `1 round`, `2 rounds`.
pub fn plural(n: u64, one: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{} {one}{ending}", count(n))
}

/// Text that is not ours (a program's words, a name in a file from elsewhere) with all characters
/// made visible that command a terminal or change the order of what follows. Everything of that
/// kind passes here before it reaches a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_command) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_command(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// The name of a function of C++ without its parameters.
pub fn without_parameters(name: &str) -> &str {
    let end = name.strip_suffix(" const").unwrap_or(name);
    let mut depth = 0_u32;
    for (at, byte) in end.bytes().enumerate().rev() {
        match (byte, depth) {
            (b')', _) => depth += 1,
            // Only what ends with parameters has any.
            (_, 0) => return name,
            (b'(', 1) => {
                let short = &end[..at];
                // Else they are a part of the name, as those of operator().
                let is_all =
                    short.is_empty() || short.ends_with(':') || short.ends_with("operator");
                return if is_all { name } else { short };
            }
            (b'(', _) => depth -= 1,
            _ => {}
        }
    }
    name
}

/// Control characters, line and paragraph separators, and those that reverse the direction of
/// writing (Unicode's `Bidi_Control`).
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The command line as one would type it, nearly: arguments with spaces are quoted. Blank words at
/// its end are what setting a title leaves, and are dropped.
pub fn command(words: &[String]) -> String {
    let padding = words.iter().rev().take_while(|word| word.trim().is_empty());
    let words = &words[..words.len() - padding.count()];
    if words.is_empty() {
        return "unknown command".into();
    }
    let quoted = words.iter().map(|word| {
        if word.is_empty() || word.contains(char::is_whitespace) {
            format!("'{word}'")
        } else {
            word.clone()
        }
    });
    printable(&quoted.collect::<Vec<_>>().join(" ")).into_owned()
}

/// A mapping's name in full; `anonymous` when it has none.
pub fn mapping(mapping: &Mapping) -> Cow<'_, str> {
    if mapping.name.is_empty() {
        Cow::Borrowed("anonymous")
    } else {
        printable(&mapping.name)
    }
}

/// A mapping's name without its directories: `libc.so.6`.
pub fn mapping_short(whole: &Mapping) -> String {
    let name = mapping(whole);
    if name.starts_with('[') {
        return name.into_owned();
    }
    match name.rsplit_once('/') {
        Some((_, file)) if !file.is_empty() => file.to_owned(),
        _ => name.into_owned(),
    }
}

/// How the recording ended, to follow "the process" or stand alone.
pub fn end(trail: &Trail) -> String {
    match &trail.end {
        Some(End::Exited(code)) => format!("exited with code {code}"),
        Some(End::Killed(signal)) => format!("killed by signal {signal}"),
        Some(End::Gone) => "ended by itself".into(),
        Some(End::Detached) => "still running when the recording was stopped".into(),
        None => "the recording is cut off or still running: whole rounds only".into(),
    }
}

/// For how long the tracked program was stopped: to attach, and later.
pub fn stops(trail: &Trail, analysis: &Analysis) -> (String, String) {
    let costs = &analysis.costs;
    let later = if costs.stopped_ns_sum == 0 {
        "in no later round".into()
    } else {
        format!(
            "per later round {} median, {} max",
            time(costs.stopped_ns.median),
            time(costs.stopped_ns.max)
        )
    };
    (time(trail.header.attach_stopped_ns as f64), later)
}

/// The working sets whose window was recorded at least once.
pub fn recorded_sets(analysis: &Analysis) -> impl Iterator<Item = &WorkingSet> {
    analysis.working_sets.iter().filter(|set| set.windows > 0)
}

/// The length of a working set's window as a time; `interval_ns`: the length of a round.
pub fn window(set: &WorkingSet, interval_ns: f64) -> String {
    time(f64::from(set.window) * interval_ns)
}

/// What tracking cost of what it was allowed to, and at which interval and precision.
pub fn overhead(counts: &OverheadCounts) -> String {
    let mut line = format!(
        "about {} of {} allowed; interval {} ({} to {}); {:.1} reported per page written",
        percent(counts.cost),
        percent(counts.allowed),
        time(counts.interval_ns),
        time(counts.interval_ns_min as f64),
        time(counts.interval_ns_max as f64),
        counts.reported_per_written,
    );
    if counts.rounds_over > 0 {
        line += &format!(
            "; not to be kept at the longest interval in {} of {}",
            count(counts.rounds_over),
            plural(counts.rounds, "round")
        );
    }
    line
}

/// What was predicted dirty instead of noticed; `None` where nothing could be.
pub fn predicted(analysis: &Analysis) -> Option<String> {
    let predicted = analysis.costs.predicted?;
    Some(format!(
        "{} predicted dirty, about {} of them false positives; about {} avoided; {} used to remember",
        plural(predicted.pages, "page"),
        count(predicted.false_positives),
        plural(predicted.faults_avoided, "fault"),
        bytes(predicted.memory_bytes as f64),
    ))
}

/// The faults that the technique caused.
pub fn faults(analysis: &Analysis) -> String {
    match analysis.costs.faults {
        Some(faults) => plural(faults, "fault"),
        None => "faults not counted".into(),
    }
}

/// What a reader must know before trusting the numbers, one line each: what is not in them, and
/// what happened meanwhile.
pub fn notices(trail: &Trail) -> Vec<String> {
    let mut lines = Vec::new();
    let children = trail
        .rounds
        .iter()
        .flat_map(|round| &round.events)
        .filter_map(|event| match event {
            Event::Children(n) => Some(*n),
            _ => None,
        })
        .max();
    if let Some(n) = children.filter(|n| *n > 0) {
        let children = match n {
            1 => "1 child process is".into(),
            n => format!("{} child processes are", count(n.into())),
        };
        lines.push(format!(
            "{children} not tracked: writes there are not in this report"
        ));
    }
    for round in &trail.rounds {
        let at = time(round.start_ns as f64);
        for event in &round.events {
            match event {
                Event::Exec(command) => {
                    lines.push(format!("at {at}: executed {}", printable(command)));
                }
                Event::Note(note) => lines.push(format!("at {at}: {}", printable(note))),
                Event::Children(_) => {}
            }
        }
    }
    for mapping in &trail.mappings {
        if let Some(why) = &mapping.untracked {
            lines.push(format!(
                "not tracked: {} at {} ({}): {}",
                self::mapping(mapping),
                mapping.range,
                bytes(mapping.range.bytes() as f64),
                printable(why)
            ));
        }
    }
    lines
}

/// Draws a bar of at most so many characters, an eighth of a character fine; `share` is at most 1.
pub fn bar(share: f64, chars: usize) -> String {
    let eighths = (share * (chars * 8) as f64).round() as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{rest}", "█".repeat(eighths / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_function_are_left_out() {
        for (name, short) in [
            ("f(int)", "f"),
            ("a::B::c(a::Slot, b::Object<(d)1>) const", "a::B::c"),
            ("a::operator()(int)", "a::operator()"),
            (
                "(anonymous namespace)::f(void (*)(int))",
                "(anonymous namespace)::f",
            ),
            ("a::(anonymous namespace)", "a::(anonymous namespace)"),
            ("operator()", "operator()"),
            ("<a as b>::c::{{closure}}", "<a as b>::c::{{closure}}"),
            ("JS:*step /load.js:3:14", "JS:*step /load.js:3:14"),
            ("broken)", "broken)"),
            ("", ""),
            ("()", "()"),
        ] {
            assert_eq!(without_parameters(name), short);
        }
    }

    #[test]
    fn numbers_keep_their_unit() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(rate(0.01), "<0.1");
        assert_eq!(rate(1234.4), "1,234");
        assert_eq!(percent(0.0001), "<0.1%");
        assert_eq!(percent(0.0), "0.0%");
        assert_eq!(bytes(4096.0), "4 KiB");
        assert_eq!(bytes(1_500_000.0), "1.43 MiB");
        assert_eq!(bytes(1_073_741_824.0), "1 GiB");
        assert_eq!(time(0.0), "0 ns");
        assert_eq!(time(12_345.0), "12.3 µs");
        assert_eq!(time(1.25e6), "1.25 ms");
        assert_eq!(time(200e9), "3 min 20 s");
        assert_eq!(time(7500e9), "2 h 5 min");
    }

    #[test]
    fn text_of_the_program_commands_no_terminal() {
        assert_eq!(printable("a\u{1b}[31mb"), "a\\u{1b}[31mb");
        assert_eq!(printable("\u{9b}2J\u{7f}"), "\\u{9b}2J\\u{7f}");
        assert_eq!(printable("\u{202e}cod.exe"), "\\u{202e}cod.exe");
        assert_eq!(printable("größer — 大"), "größer — 大");
        assert_eq!(
            command(&["sh".into(), "-c".into(), "x\ny".into()]),
            "sh -c 'x\\ny'"
        );
        let padded = ["redis-server", "*:7001", "", " "].map(String::from);
        assert_eq!(command(&padded), "redis-server *:7001");
    }
}
