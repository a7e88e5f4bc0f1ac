//! The table of processes in the live view.

use std::collections::BTreeMap;

use pagetrail_report::words;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};

use super::state::TopState;

/// Levels of indentation at most: a chain of processes may be of any length.
const DEPTH_MAX: usize = 12;

/// The processes in view, and how they are shown.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    /// Parents before their children.
    pub(crate) lines: Vec<ProcessLine>,
    /// Whether the table is shown in place of that of mappings.
    pub(crate) is_open: bool,
}

impl ProcessTable {
    /// A table of processes that come with their number and their parent's, of which the number
    /// `shown` is in view; `is_open`: it is shown in place of the table of mappings.
    pub fn new<'a>(
        processes: impl IntoIterator<Item = (u32, Option<u32>, &'a TopState)>,
        shown: u32,
        is_open: bool,
    ) -> Self {
        Self {
            lines: lines(processes, shown),
            is_open,
        }
    }
}

/// A process in view.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProcessLine {
    /// Its number in the tree.
    pub(crate) number: u32,
    depth: usize,
    command: String,
    pid: u32,
    last_pages: u64,
    pages_per_second: f64,
    /// How it ended, if it has.
    end: Option<String>,
    /// Whether the rest of the view is about it.
    is_shown: bool,
}

/// The lines of a [`ProcessTable`], for processes that come with their number and their parent's;
/// `shown` is the number of the one in view.
pub(crate) fn lines<'a>(
    processes: impl IntoIterator<Item = (u32, Option<u32>, &'a TopState)>,
    shown: u32,
) -> Vec<ProcessLine> {
    let processes: BTreeMap<u32, _> = processes
        .into_iter()
        .map(|(number, parent, state)| (number, (parent, state)))
        .collect();
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    let mut stack = Vec::new();
    for (number, (parent, _)) in processes.iter().rev() {
        // A parent has a lower number, so that no chain is a circle.
        match parent.filter(|parent| parent < number && processes.contains_key(parent)) {
            Some(parent) => children.entry(parent).or_default().push(*number),
            None => stack.push((*number, 0)),
        }
    }
    let mut lines = Vec::with_capacity(processes.len());
    while let Some((number, depth)) = stack.pop() {
        let state = processes[&number].1;
        let header = &state.trail().header;
        let (last_pages, pages_per_second) = state.last_round();
        lines.push(ProcessLine {
            number,
            depth,
            command: words::command(&header.command),
            pid: header.pid,
            last_pages,
            pages_per_second,
            end: (!state.trail().is_cut_off()).then(|| words::end(state.trail())),
            is_shown: number == shown,
        });
        let below = children.get(&number).into_iter().flatten();
        stack.extend(below.map(|child| (*child, depth + 1)));
    }
    lines
}

/// Draws as many processes as there is room for, the one in view among them.
pub(crate) fn draw(frame: &mut Frame<'_>, lines: &[ProcessLine], area: Rect) {
    let number = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let shown = lines.iter().position(|line| line.is_shown).unwrap_or(0);
    let rows = lines
        .iter()
        .skip((shown + 1).saturating_sub(room))
        .take(room);
    let rows = rows.map(|line| {
        let style = match line.is_shown {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        let indent = "  ".repeat(line.depth.min(DEPTH_MAX));
        Row::new([
            Cell::from(format!("{indent}{}", line.command)),
            number(line.pid.to_string()),
            number(words::count(line.last_pages)),
            number(match &line.end {
                Some(end) => end.clone(),
                None => words::rate(line.pages_per_second),
            }),
        ])
        .style(style)
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(20),
    ];
    let soft = Style::new().add_modifier(Modifier::DIM);
    let head = ["PID", "last round", "pages/s"].map(|name| number(name.into()));
    let head = [Cell::from(Span::raw("process"))].into_iter().chain(head);
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(soft))
        .column_spacing(2);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use pagetrail_report::testing;

    use super::*;

    #[test]
    fn children_stand_below_their_parents() {
        let trail = testing::program(3);
        let mut state = TopState::new(trail.header.clone());
        for round in &trail.rounds {
            state.push_round(round.clone(), trail.mappings.clone(), Vec::new());
        }
        let parents = [None, Some(0), None, Some(1), Some(0), Some(99)];
        let processes = (0..).zip(parents);
        let lines = lines(
            processes.map(|(number, parent)| (number, parent, &state)),
            3,
        );
        let order: Vec<_> = lines.iter().map(|line| (line.number, line.depth)).collect();
        assert_eq!(order, [(0, 0), (1, 1), (3, 2), (4, 1), (2, 0), (5, 0)]);
        let last = trail.rounds[2].written.page_count();
        assert!(lines.iter().all(|line| line.last_pages == last));
        assert_eq!(lines.iter().position(|line| line.is_shown), Some(2));
    }
}
