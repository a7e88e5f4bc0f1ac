//! [`Families`]: numbers as text for Prometheus, in either of its formats.
//!
//! OpenMetrics names the family of a counter without the suffix `_total` of its samples, and ends
//! with a mark; the older text format, which the node exporter reads from files, does neither.

use std::fmt::{Display, Write as _};

/// What the text is, by HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
}

impl Format {
    /// The content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4",
        }
    }
}

/// How a number behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Families of numbers, written one after the other.
#[derive(Debug)]
pub struct Families {
    format: Format,
    prefix: &'static str,
    text: String,
}

impl Families {
    /// A text without numbers yet; all names begin with `prefix`.
    pub fn new(format: Format, prefix: &'static str) -> Self {
        Self {
            format,
            prefix,
            text: String::new(),
        }
    }

    /// Begins a family, whose samples follow at once: the name is without `_total`, and `help` is
    /// one line.
    pub fn family(&mut self, kind: Kind, name: &str, help: &str) -> Family<'_> {
        let (word, suffix) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let name = format!("{}{name}", self.prefix);
        let sample = format!("{name}{suffix}");
        let family = match self.format {
            Format::OpenMetrics => &name,
            Format::Prometheus => &sample,
        };
        // A String takes all.
        let _ = writeln!(
            self.text,
            "# TYPE {family} {word}\n# HELP {family} {}",
            escaped(help)
        );
        Family {
            sample,
            text: &mut self.text,
        }
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text += "# EOF\n";
        }
        self.text
    }
}

/// A family of numbers.
#[derive(Debug)]
pub struct Family<'a> {
    sample: String,
    text: &'a mut String,
}

impl Family<'_> {
    /// Adds a number with its labels, which are names and any text.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.sample);
        for (index, (name, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            // A String takes all.
            let _ = write!(self.text, "{before}{name}=\"{}\"", escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// Text made safe within quotes, on one line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: Format) -> String {
        let mut families = Families::new(format, "x_");
        let mut family = families.family(Kind::Counter, "rounds", "Rounds.");
        family.sample(&[("pid", "7"), ("name", "a\"b\\\n")], 3);
        family.sample(&[], 0.5);
        families
            .family(Kind::Gauge, "pages", "Pages.")
            .sample(&[], 1);
        families.finish()
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let samples = "x_rounds_total{pid=\"7\",name=\"a\\\"b\\\\\\n\"} 3\nx_rounds_total 0.5\n";
        assert_eq!(
            text(Format::OpenMetrics),
            format!(
                "# TYPE x_rounds counter\n# HELP x_rounds Rounds.\n{samples}\
                 # TYPE x_pages gauge\n# HELP x_pages Pages.\nx_pages 1\n# EOF\n"
            )
        );
        assert_eq!(
            text(Format::Prometheus),
            format!(
                "# TYPE x_rounds_total counter\n# HELP x_rounds_total Rounds.\n{samples}\
                 # TYPE x_pages gauge\n# HELP x_pages Pages.\nx_pages 1\n"
            )
        );
    }
}
