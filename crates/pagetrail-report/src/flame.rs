//! A flame graph: the call stacks that dirtied pages as one picture (SVG), without scripts.
//!
//! Callers are below, widths are pages. A recording may hold any names and depths: the picture is
//! bounded in both.

use std::io::{self, Write};

use super::words;
use super::writers::Writers;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 17.0;
const TITLE: f64 = 48.0;
/// Letters of the font are about so wide.
const LETTER: f64 = 6.6;
/// Narrower rectangles are left out.
const RECTANGLE_MIN: f64 = 0.2;
const DEPTH_MAX: usize = 250;
const NAME_CHARS_MAX: usize = 300;

/// A function in its stack.
struct Node {
    name: String,
    pages: u64,
    depth: usize,
    children: Vec<usize>,
}

/// Writes the picture.
pub(super) fn write(writers: &Writers, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let nodes = tree(writers);
    let all = nodes[0].pages;
    let depth = nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    let height = TITLE + ROW * (depth + 1) as f64 + MARGIN;
    let outside = WIDTH + 2.0 * MARGIN;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{outside}\" height=\"{height}\" \
         viewBox=\"0 0 {outside} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <style>g:hover rect{{stroke:#000}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{}</text>\n\
         <text x=\"{MARGIN}\" y=\"38\" fill=\"#555\">{} of page writes are attributed; width: \
         pages dirtied, callers below</text>",
        escape(title),
        words::percent(writers.attributed as f64 / writers.page_writes.max(1) as f64),
    )?;
    let scale = WIDTH / all.max(1) as f64;
    // Node, and the pages to its left.
    let mut left_to_draw = vec![(0, 0u64)];
    while let Some((index, left)) = left_to_draw.pop() {
        let node = &nodes[index];
        let width = node.pages as f64 * scale;
        if width < RECTANGLE_MIN {
            continue;
        }
        let x = MARGIN + left as f64 * scale;
        let y = height - MARGIN - ROW * (node.depth + 1) as f64;
        let share = node.pages as f64 / all.max(1) as f64;
        let name = escape(&node.name);
        let letters = ((width - 4.0) / LETTER) as usize;
        let text: String = match node.name.chars().count() {
            _ if letters < 3 => String::new(),
            n if n <= letters => node.name.clone(),
            _ => node.name.chars().take(letters - 1).chain(['…']).collect(),
        };
        writeln!(
            out,
            "<g><title>{name}: {}, {}</title><rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" \
             height=\"{:.1}\" rx=\"1\" fill=\"{}\"/><text x=\"{:.2}\" y=\"{:.1}\">{}</text></g>",
            words::plural(node.pages, "page write"),
            words::percent(share),
            ROW - 1.0,
            colour(&node.name),
            x + 2.0,
            y + 12.0,
            escape(&text)
        )?;
        let mut left = left;
        for child in &node.children {
            left_to_draw.push((*child, left));
            left = left.saturating_add(nodes[*child].pages);
        }
    }
    writeln!(out, "</svg>")
}

/// All stacks as one tree, the root first. Stacks come in alphabetical order, so that a child that
/// is there already is the last one.
fn tree(writers: &Writers) -> Vec<Node> {
    let node = |name, depth| Node {
        name,
        pages: 0,
        depth,
        children: Vec::new(),
    };
    let mut nodes = vec![node("all".to_owned(), 0)];
    for (stack, pages) in &writers.stacks {
        let mut at = 0;
        nodes[0].pages = nodes[0].pages.saturating_add(*pages);
        for (depth, name) in stack.iter().take(DEPTH_MAX).enumerate() {
            let name: String = name.chars().take(NAME_CHARS_MAX).collect();
            let last = nodes[at].children.last().copied();
            at = match last.filter(|index| nodes[*index].name == name) {
                Some(index) => index,
                None => {
                    nodes.push(node(name, depth + 1));
                    let index = nodes.len() - 1;
                    nodes[at].children.push(index);
                    index
                }
            };
            nodes[at].pages = nodes[at].pages.saturating_add(*pages);
        }
    }
    nodes
}

/// A warm colour that a name always has.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(2_166_136_261_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    let part = |shift: u32| hash >> shift & 0x3f;
    match name.starts_with('[') {
        true => format!("#{0:02x}{0:02x}{0:02x}", 190 + part(0) / 2),
        false => format!(
            "#{:02x}{:02x}{:02x}",
            220 + part(0) / 2,
            110 + part(6) * 2,
            60 + part(12)
        ),
    }
}

fn escape(text: &str) -> String {
    let text = words::printable(text);
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn picture(writers: &Writers) -> String {
        let mut out = Vec::new();
        write(writers, "a <title>", &mut out).expect("a Vec takes all");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_recording() {
        let writers = Writers::of(&testing::program_with_stacks(2)).expect("sampled");
        insta::assert_snapshot!(picture(&writers));
    }

    #[test]
    fn no_names_or_depths_are_too_strange() {
        let stacks = vec![
            (vec!["<script>&\"\u{1b}[1m".into(); 5000], u64::MAX),
            (Vec::new(), 3),
            (vec!["x".repeat(100_000)], u64::MAX / 2),
        ];
        let text = picture(&Writers {
            stacks,
            ..Writers::default()
        });
        assert!(!text.contains("<script>") && !text.contains('\u{1b}'));
        assert!(text.len() < 2_000_000, "{}", text.len());
        assert!(picture(&Writers::default()).ends_with("</svg>\n"));
    }
}
