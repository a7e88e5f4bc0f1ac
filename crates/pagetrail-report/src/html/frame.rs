//! [`Page`]: the frame of every page, which is its head, its look, and how its body begins and
//! ends; [`Charts`]: a section of charts. What stands between is each page's own.
//!
//! Titles and sentences are text, which is escaped here; parts, legends and figures are HTML.

use std::io::{self, Write};

use super::{STYLE_SHEET, escape};

/// A self-contained page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    title: &'a str,
    styles: &'a [&'a str],
    heading: Option<Heading<'a>>,
    scripts: &'a [&'a str],
}

/// What stands above all else on a page.
#[derive(Clone, Copy, Debug)]
struct Heading<'a> {
    eyebrow: &'a str,
    title: &'a str,
    subtitle: &'a str,
}

impl<'a> Page<'a> {
    /// A page whose window has this title.
    #[must_use]
    pub fn new(title: &'a str) -> Self {
        Self {
            title,
            styles: &[],
            heading: None,
            scripts: &[],
        }
    }

    /// Adds style sheets after the one that every page has.
    #[must_use]
    pub fn styles(self, styles: &'a [&'a str]) -> Self {
        Self { styles, ..self }
    }

    /// Begins the page with its title, and above that, in small letters, what made the page.
    #[must_use]
    pub fn heading(self, eyebrow: &'a str, title: &'a str) -> Self {
        let heading = Heading {
            eyebrow,
            title,
            subtitle: "",
        };
        Self {
            heading: Some(heading),
            ..self
        }
    }

    /// Sets the line below the title; it is left out where it is empty, or where there is no title.
    #[must_use]
    pub fn subtitle(mut self, subtitle: &'a str) -> Self {
        if let Some(heading) = &mut self.heading {
            heading.subtitle = subtitle;
        }
        self
    }

    /// Ends the page with these scripts.
    #[must_use]
    pub(crate) fn scripts(self, scripts: &'a [&'a str]) -> Self {
        Self { scripts, ..self }
    }

    /// Writes the page with these parts, one after the other.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write, parts: &[&str]) -> io::Result<()> {
        let title = escape(self.title);
        write!(
            out,
            "<!doctype html>\n\
             <html lang=\"en\">\n\
             <head>\n\
             <meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"generator\" content=\"pagetrail\">\n\
             <title>{title}</title>\n\
             <style>\n{STYLE_SHEET}{}</style>\n\
             </head>\n\
             <body>\n\
             <main>\n",
            self.styles.concat()
        )?;
        if let Some(heading) = &self.heading {
            heading.write(out)?;
        }
        for part in parts {
            out.write_all(part.as_bytes())?;
        }
        out.write_all(b"</main>\n")?;
        for script in self.scripts {
            write!(out, "<script>\n{script}</script>\n")?;
        }
        out.write_all(b"</body>\n</html>\n")
    }
}

impl Heading<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (eyebrow, title) = (escape(self.eyebrow), escape(self.title));
        write!(
            out,
            "<header>\n<p class=\"eyebrow\">{eyebrow}</p>\n<h1>{title}</h1>\n"
        )?;
        if !self.subtitle.is_empty() {
            let subtitle = escape(self.subtitle);
            writeln!(out, "<p class=\"subtitle\">{subtitle}</p>")?;
        }
        out.write_all(b"</header>\n")
    }
}

/// A section of charts, with its legend above and a hint below; either may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Charts<'a> {
    /// Name of the section's title in the page, as text: no two elements have the same.
    pub id: &'a str,
    /// Title of the section, as text.
    pub title: &'a str,
    /// Legend of all charts, as HTML.
    pub legend: &'a str,
    /// Charts, as HTML: see [`figure`].
    pub figures: &'a str,
    /// How to read them, as text.
    pub hint: &'a str,
}

impl Charts<'_> {
    /// The section as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let paragraph = |class: &str, html: &str| match html.is_empty() {
            true => String::new(),
            false => format!("<p class=\"{class}\">{html}</p>\n"),
        };
        format!(
            "<section aria-labelledby=\"{id}\">\n\
             <div class=\"section-head\"><h2 id=\"{id}\">{}</h2></div>\n\
             {}<div class=\"charts\">\n{}</div>\n{}</section>\n",
            escape(self.title),
            paragraph("legend", self.legend),
            self.figures,
            paragraph("hint", &escape(self.hint)),
            id = escape(self.id),
        )
    }
}

/// A drawing as HTML with its title as text; nothing where nothing was drawn.
#[must_use]
pub fn figure(title: &str, svg: Option<String>) -> String {
    svg.map_or_else(String::new, |svg| {
        let title = escape(title);
        format!("<figure><figcaption>{title}</figcaption>\n{svg}</figure>\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(page: Page<'_>, parts: &[&str]) -> String {
        let mut out = Vec::new();
        page.write(&mut out, parts).expect("a Vec takes all");
        String::from_utf8(out).expect("the page is UTF-8")
    }

    #[test]
    fn a_page_has_its_parts_in_order_between_one_beginning_and_one_end() {
        let frame = Page::new("a & b")
            .styles(&["x{}\n", "y{}\n"])
            .heading("pagetrail <made> it", "A < B")
            .subtitle("of \"them\"")
            .scripts(&["let a = 1;\n", "let b = 2;\n"]);
        let page = page(frame, &["<p>1</p>\n", "<p>2</p>\n"]);
        assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">\n<head>\n"));
        assert!(page.contains("<title>a &amp; b</title>\n<style>\n"));
        assert!(page.contains("x{}\ny{}\n</style>\n</head>\n<body>\n<main>\n<header>\n"));
        assert!(page.contains(
            "<p class=\"eyebrow\">pagetrail &lt;made&gt; it</p>\n<h1>A &lt; B</h1>\n\
             <p class=\"subtitle\">of &quot;them&quot;</p>\n</header>\n<p>1</p>\n<p>2</p>\n</main>\n"
        ));
        assert!(page.ends_with(
            "</main>\n<script>\nlet a = 1;\n</script>\n<script>\nlet b = 2;\n</script>\n\
             </body>\n</html>\n"
        ));
    }

    #[test]
    fn what_is_not_given_leaves_nothing_empty() {
        let bare = page(Page::new("x").subtitle("no title"), &[]);
        assert!(!bare.contains("<header>") && !bare.contains("<script>"));
        let titled = page(Page::new("x").heading("by", "y"), &[]);
        assert!(titled.contains("<h1>y</h1>\n</header>\n</main>\n"));
        let charts = Charts {
            id: "charts-title",
            title: "One & two",
            legend: "",
            figures: &figure("a < b", Some("<svg></svg>\n".into())),
            hint: "",
        };
        assert_eq!(
            charts.html(),
            "<section aria-labelledby=\"charts-title\">\n\
             <div class=\"section-head\"><h2 id=\"charts-title\">One &amp; two</h2></div>\n\
             <div class=\"charts\">\n<figure><figcaption>a &lt; b</figcaption>\n<svg></svg>\n</figure>\n\
             </div>\n</section>\n"
        );
        assert_eq!(figure("none", None), "");
    }
}
