//! `pagetrail report`: reads a recording and writes what was asked for.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use pagetrail_trail::Trail;

use crate::args::{DEFAULT_FILE, PictureArgs, ReportArgs};
use crate::report::{self, Format, Style};

/// Columns where standard output is no terminal and `COLUMNS` says nothing.
const WIDTH_ELSEWHERE: usize = 100;

/// Runs the subcommand.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    let trail = read(&args.file)?;
    write_pictures(&trail, &args.pictures)?;
    let format = if args.json {
        Format::Json
    } else if args.pictures.html.is_some() || args.pictures.png.is_some() {
        // Who asked for files wants no text besides.
        return Ok(ExitCode::SUCCESS);
    } else {
        Format::Terminal(style())
    };
    let mut out = BufWriter::new(io::stdout().lock());
    report::write(&trail, format, &mut out)
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the files that were asked for, for `record` too.
pub(crate) fn write_pictures(trail: &Trail, pictures: &PictureArgs) -> Result<()> {
    for (path, format) in [(&pictures.html, Format::Html), (&pictures.png, Format::Png)] {
        if let Some(path) = path {
            write_file(trail, format, path)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// Reads a recording, for `record` too.
pub(crate) fn read(path: &Path) -> Result<Trail> {
    let file = File::open(path).map_err(|error| {
        let cure = if path == Path::new(DEFAULT_FILE) {
            "; name a recording, or make one with `pagetrail record`"
        } else {
            ""
        };
        anyhow!("cannot open {}: {error}{cure}", path.display())
    })?;
    Trail::read(BufReader::new(file)).with_context(|| format!("cannot read {}", path.display()))
}

fn write_file(trail: &Trail, format: Format, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    report::write(trail, format, &mut out)?;
    out.into_inner()?;
    Ok(())
}

/// How to write for whoever reads standard output.
pub(crate) fn style() -> Style {
    let stdout = io::stdout();
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.parse().ok());
    let terminal = terminal_size::terminal_size_of(&stdout);
    let width = terminal.map(|(width, _)| usize::from(width.0));
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        width: width.or(columns).unwrap_or(WIDTH_ELSEWHERE),
        colour: stdout.is_terminal() && !unwanted,
    }
}
