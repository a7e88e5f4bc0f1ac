//! Draws the live view: a pure function of its state.

use pagetrail_report::{bands, palette, words};
use pagetrail_trail::Heatmap;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

use super::functions::FunctionLine;
use super::processes::{self, ProcessLine, ProcessTable};
use super::state::{self, TopState};

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Quit the live view.
    Quit,
    /// Show the mappings in the next order.
    Sort,
    /// Change between mappings and functions.
    Functions,
    /// Change between the table of processes and what it was before.
    Processes,
    /// Show the next process.
    Next,
    /// Show the process before.
    Previous,
}

/// Returns the action for the bytes of one read from the terminal. Function keys arrive as
/// sequences that begin with Escape and have none; Escape alone is a key.
pub fn action(keys: &[u8]) -> Option<Action> {
    match keys {
        [0x1b] => Some(Action::Quit),
        [0x1b, ..] => None,
        keys => keys.iter().find_map(|key| match key {
            // Ctrl-C in raw mode.
            b'q' | 0x03 => Some(Action::Quit),
            b's' => Some(Action::Sort),
            b'f' => Some(Action::Functions),
            b'p' => Some(Action::Processes),
            b'j' => Some(Action::Next),
            b'k' => Some(Action::Previous),
            _ => None,
        }),
    }
}

const ACCENT: Color = Color::Indexed(215);
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const LABEL_WIDTH: u16 = 20;

/// What the table shows.
enum Contents<'a> {
    Processes(&'a [ProcessLine]),
    Functions(Vec<FunctionLine>),
    Mappings(Vec<state::Line<'a>>),
}

impl<'a> Contents<'a> {
    fn of(state: &'a TopState, processes: &'a ProcessTable) -> Self {
        match state.function_lines() {
            _ if processes.is_open => Self::Processes(&processes.lines),
            Some(functions) => Self::Functions(functions),
            None => Self::Mappings(state.lines()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Processes(lines) => lines.len(),
            Self::Functions(lines) => lines.len(),
            Self::Mappings(lines) => lines.len(),
        }
    }
}

/// Draws the whole view.
pub fn draw(frame: &mut Frame<'_>, state: &TopState, processes: &ProcessTable) {
    let table = Contents::of(state, processes);
    let lines = table.len().min(usize::from(u16::MAX) - 1) as u16;
    let height = frame.area().height;
    // The table takes up to half of the screen, the heatmap the rest.
    let rows = (lines + 1).min(height.saturating_sub(9) / 2).max(3);
    let [head, rate, _, middle, _, heat, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(3),
        Constraint::Length(1),
        Constraint::Length(rows),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, state, head);
    draw_rate(frame, state, rate);
    match table {
        Contents::Processes(lines) => processes::draw(frame, lines, middle),
        Contents::Functions(functions) => draw_functions(frame, state, &functions, middle),
        Contents::Mappings(lines) => draw_mappings(frame, &lines, middle),
    }
    draw_heat(frame.buffer_mut(), state, heat);
    draw_foot(frame, state, processes, foot);
}

fn draw_head(frame: &mut Frame<'_>, state: &TopState, area: Rect) {
    let header = &state.trail().header;
    let all = state.analysis();
    let command = Line::from(vec![
        Span::styled(words::command(&header.command), BOLD),
        Span::styled(format!("  PID {}", header.pid), SOFT),
    ]);
    let technique = Line::from(vec![
        Span::raw(words::printable(&header.technique).into_owned()),
        Span::styled(format!("  {}", words::printable(&header.reason)), SOFT),
    ]);
    let cost = match (state.trail().rounds.last(), state.overhead()) {
        (None, _) => "waiting for the first round".into(),
        (Some(round), Some(overhead)) => {
            let is_over = round.overhead.is_some_and(|overhead| !overhead.is_kept);
            format!(
                "round {}  interval {}  overhead {} of {}  {:.1} reported per page written{}",
                words::count(round.index.into()),
                words::time(round.duration_ns as f64),
                words::percent(overhead.cost),
                words::percent(overhead.allowed),
                overhead.reported_per_written,
                if is_over { "  not to be kept" } else { "" },
            )
        }
        (Some(round), None) => {
            let (to_attach, later) = words::stops(state.trail(), all);
            format!(
                "round {} of {} ms  collect {} median  stopped {to_attach} to attach, {later}",
                words::count(round.index.into()),
                header.interval_ms,
                words::time(all.costs.collect_ns.median),
            )
        }
    };
    let lines = vec![command, technique, Line::styled(cost, SOFT)];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_rate(frame: &mut Frame<'_>, state: &TopState, area: Rect) {
    let [label, chart] =
        Layout::horizontal([Constraint::Length(LABEL_WIDTH), Constraint::Min(0)]).areas(area);
    let all = state.analysis();
    let page = state.trail().header.page_size as f64;
    let now = all
        .rounds
        .last()
        .map_or(0.0, |round| round.pages_per_second);
    let lines = vec![
        Line::styled(format!("{}/s", words::bytes(now * page)), BOLD),
        Line::raw(format!("{} pages/s", words::rate(now))),
        Line::styled(
            format!("max {}/s", words::bytes(all.pages_per_second.max * page)),
            SOFT,
        ),
    ];
    frame.render_widget(Paragraph::new(lines), label);
    let width = usize::from(chart.width);
    let skipped = all.rounds.len().saturating_sub(width);
    let rates = all.rounds[skipped..].iter();
    let rates: Vec<u64> = rates.map(|round| round.pages_per_second as u64).collect();
    let sparkline = Sparkline::default()
        .data(&rates)
        .style(Style::new().fg(ACCENT));
    frame.render_widget(sparkline, chart);
}

fn draw_mappings(frame: &mut Frame<'_>, lines: &[state::Line<'_>], area: Rect) {
    let number = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let rows = lines.iter().take(usize::from(area.height)).map(|line| {
        Row::new([
            Cell::from(words::mapping_short(line.mapping)),
            Cell::from(Span::styled(
                format!("{:#x}", line.mapping.range.start()),
                SOFT,
            )),
            number(words::count(line.last_pages)),
            number(words::rate(line.counts.pages_per_second)),
            number(words::count(line.counts.distinct_pages)),
            number(words::percent(line.counts.share)),
        ])
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(14),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(6),
    ];
    let head = ["last round", "pages/s", "distinct", "share"];
    let head = [Cell::from("mapping"), Cell::from("address")]
        .into_iter()
        .chain(head.map(|name| number(name.into())));
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(SOFT))
        .column_spacing(2);
    frame.render_widget(table, area);
}

fn draw_functions(frame: &mut Frame<'_>, state: &TopState, functions: &[FunctionLine], area: Rect) {
    let number = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let seconds = state.analysis().seconds.max(f64::MIN_POSITIVE);
    let all: u64 = functions
        .iter()
        .map(|line| line.pages)
        .fold(0, u64::saturating_add);
    let rows = functions.iter().take(usize::from(area.height)).map(|line| {
        Row::new([
            Cell::from(words::printable(&line.name).into_owned()),
            Cell::from(Span::styled(
                words::printable(&line.file).into_owned(),
                SOFT,
            )),
            number(words::count(line.last_pages)),
            number(words::rate(line.pages as f64 / seconds)),
            number(words::percent(line.pages as f64 / all.max(1) as f64)),
        ])
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(6),
    ];
    let head = ["last round", "pages/s", "share"];
    let head = [Cell::from("function"), Cell::from("file")]
        .into_iter()
        .chain(head.map(|name| number(name.into())));
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(SOFT))
        .column_spacing(2);
    frame.render_widget(table, area);
}

/// One column per round, the newest at the right.
fn draw_heat(buffer: &mut Buffer, state: &TopState, area: Rect) {
    let label_width = LABEL_WIDTH.min(area.width);
    let columns = usize::from(area.width - label_width);
    let heat = Heatmap::of(state.trail(), usize::from(area.height), columns);
    let mut y = area.y;
    for band in bands::bands(state.trail(), &heat) {
        let label = usize::from(label_width.saturating_sub(2));
        buffer.set_stringn(area.x, y, &band.label, label, Style::new());
        for row in band.rows {
            for (x, &share) in (area.x + label_width..).zip(heat.row(row)) {
                let level = palette::level(share);
                if level > 0 {
                    let style = Style::new().fg(Color::Indexed(palette::ansi_256(level)));
                    buffer.set_string(x, y, palette::shade(level), style);
                }
            }
            y += 1;
        }
    }
}

fn draw_foot(frame: &mut Frame<'_>, state: &TopState, processes: &ProcessTable, area: Rect) {
    let mut spans = vec![
        Span::styled("q", BOLD),
        Span::raw(" quit  "),
        Span::styled("s", BOLD),
        Span::raw(format!(" sort: {}", state.sort().name())),
    ];
    if state.has_functions() {
        spans.extend([
            Span::raw("  "),
            Span::styled("f", BOLD),
            Span::raw(match state.function_lines() {
                Some(_) => " mappings",
                None => " functions",
            }),
        ]);
    }
    if processes.lines.len() > 1 {
        spans.extend([
            Span::raw("  "),
            Span::styled("p", BOLD),
            Span::raw(match processes.is_open {
                true => " this process",
                false => " processes",
            }),
            Span::raw("  "),
            Span::styled("j k", BOLD),
            Span::raw(format!(
                " one of {}",
                words::count(processes.lines.len() as u64)
            )),
        ]);
    }
    if !state.trail().is_cut_off() {
        spans.push(Span::raw("  "));
        spans.push(Span::styled(words::end(state.trail()), BOLD));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

#[cfg(test)]
mod tests {
    use pagetrail_report::testing;
    use pagetrail_trail::End;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::functions::FunctionNames;
    use crate::state::tests::watched;

    fn screen(state: &TopState, width: u16, height: u16) -> String {
        screen_of(state, &ProcessTable::default(), width, height)
    }

    fn screen_of(state: &TopState, processes: &ProcessTable, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it has no I/O");
        terminal
            .draw(|frame| draw(frame, state, processes))
            .expect("it has no I/O");
        terminal.backend().to_string()
    }

    #[test]
    fn a_program_at_work() {
        insta::assert_snapshot!(screen(&watched(75), 100, 30));
    }

    #[test]
    fn what_tracking_costs_of_its_budget() {
        let trail = testing::program_within_budget(60);
        let mut state = TopState::new(trail.header.clone());
        for round in &trail.rounds {
            state.push_round(round.clone(), trail.mappings.clone(), Vec::new());
        }
        state.refresh();
        let shown = screen(&state, 100, 30);
        assert!(shown.contains("round 59  interval 10"), "{shown}");
        let cost = "overhead 2.6% of 3.0%  1.2 reported per page written ";
        assert!(shown.contains(cost), "{shown}");
        let mut round = trail.rounds[0].clone();
        round.index = 60;
        state.push_round(round.clone(), trail.mappings.clone(), Vec::new());
        state.refresh();
        let shown = screen(&state, 100, 30);
        assert!(shown.contains("written  not to be kept "), "{shown}");
    }

    #[test]
    fn before_the_first_round() {
        let state = TopState::new(testing::program(0).header);
        insta::assert_snapshot!(screen(&state, 80, 14));
    }

    #[test]
    fn functions_take_the_place_of_mappings() {
        let trail = testing::program_with_stacks(20);
        let mut state = TopState::new(trail.header.clone());
        state.show_functions();
        let mut names = FunctionNames::default();
        for round in &trail.rounds {
            let new = match round.index {
                0 => trail.stacks.clone(),
                _ => pagetrail_trail::StackTable::default(),
            };
            let attribution = round.attribution.as_ref().expect("sampled");
            state.push_functions(names.round(attribution, round.written.page_count(), new));
            state.push_round(round.clone(), trail.mappings.clone(), Vec::new());
        }
        state.refresh();
        let shown = screen(&state, 100, 24);
        assert!(
            shown.contains("recurse") && shown.contains("f mappings"),
            "{shown}"
        );
        assert!(!shown.contains("distinct"), "{shown}");
        state.switch_table();
        let shown = screen(&state, 100, 24);
        assert!(
            shown.contains("distinct") && shown.contains("f functions"),
            "{shown}"
        );
        let mut without = watched(3);
        without.switch_table();
        assert!(without.function_lines().is_none());
        for (width, height) in [(1, 1), (10, 3), (40, 12)] {
            state.switch_table();
            screen(&state, width, height);
        }
    }

    #[test]
    fn processes_take_the_place_of_mappings() {
        let state = watched(3);
        let mut table = ProcessTable::default();
        let numbers = 0..40_u32;
        table.lines = processes::lines(
            numbers.map(|number| (number, number.checked_sub(1).map(|_| 0), &state)),
            39,
        );
        let shown = screen_of(&state, &table, 120, 24);
        assert!(
            shown.contains("p processes  j k one of 40") && shown.contains("distinct"),
            "{shown}"
        );
        table.is_open = true;
        let shown = screen_of(&state, &table, 120, 24);
        assert!(
            shown.contains("p this process") && !shown.contains("distinct"),
            "{shown}"
        );
        // The one in view is among those that have room.
        assert!(shown.contains("  ./interpreter"), "{shown}");
        for (width, height) in [(1, 1), (10, 3), (40, 12)] {
            screen_of(&state, &table, width, height);
        }
    }

    #[test]
    fn the_end_is_said() {
        let mut state = watched(3);
        state.finish(End::Killed(9));
        assert!(screen(&state, 80, 24).contains("killed by signal 9"));
    }

    #[test]
    fn any_size_of_screen_will_do() {
        let state = watched(75);
        for (width, height) in [(1, 1), (10, 3), (19, 9), (40, 12), (300, 100)] {
            screen(&state, width, height);
        }
    }

    #[test]
    fn keys() {
        assert_eq!(action(b"q"), Some(Action::Quit));
        assert_eq!(action(b"\x03"), Some(Action::Quit));
        assert_eq!(action(b"\x1b"), Some(Action::Quit));
        assert_eq!(action(b"s"), Some(Action::Sort));
        assert_eq!(action(b"f"), Some(Action::Functions));
        assert_eq!(action(b"p"), Some(Action::Processes));
        assert_eq!(action(b"j"), Some(Action::Next));
        assert_eq!(action(b"k"), Some(Action::Previous));
        assert_eq!(action(b"c"), None);
        // Shift-Tab and a paste that has an s in it.
        assert_eq!(action(b"\x1b[Z"), None);
        assert_eq!(action(b"\x1b[200~s\x1b[201~"), None);
    }
}
