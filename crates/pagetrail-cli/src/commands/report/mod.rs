//! `pagetrail report`: reads a recording and writes reports of it.

pub(crate) mod args;
mod compare;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use pagetrail_report::private::PrivateMemory;
use pagetrail_report::processes::{self, ProcessRow, Processes};
use pagetrail_report::writers::Writers;
use pagetrail_report::{self as report, Format, Style, joined, words};
use pagetrail_trail::{ProcessTrail, Trail, TreeTrail};

use self::args::{PictureArgs, ReportArgs};
use crate::args::DEFAULT_FILE;
use crate::color;
use crate::outfile::{Kind, OutFile};

/// Columns if standard output is not a terminal and `COLUMNS` is not set.
const WIDTH_ELSEWHERE: usize = 100;

/// Runs the subcommand.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    if let Some(after) = &args.after {
        return compare::run(args, after);
    }
    let mut tree = read_all(&args.file)?;
    let (number, processes) = select(&tree, args)?;
    if args.private_since_fork {
        let only = args.process.as_ref().map(|_| number);
        return write_private(&tree, only, args);
    }
    if args.parquet.is_some() || args.chrome_trace.is_some() {
        write_tables(&mut tree, number, args)?;
    }
    let pictures = Pictures::open(&args.pictures, &args.file)?;
    if !pictures.is_empty() {
        let chosen = args.process.as_ref().map(|_| number);
        pictures.write(&mut tree, chosen)?;
    }
    let mut trail = tree.processes.swap_remove(number).trail;
    // The JSON document lists mappings as recorded; its consumer can group them.
    let recorded = joined::group(&mut trail);
    let writers = Writers::of(&trail);
    let stacks = [
        (&args.flamegraph, "svg", Kind::Drawing, Format::FlameGraph),
        (&args.folded, "folded", Kind::Folded, Format::Folded),
        (&args.pprof, "pb", Kind::Profile, Format::Pprof),
    ];
    for (path, extension, kind, format) in stacks {
        if path.is_some() && writers.is_none() {
            bail!(
                "{}: it has no call stacks; record with --stacks",
                args.file.display()
            );
        }
        if let Some(file) = open(path, &args.file, extension, kind)? {
            file.write(|out| report::write_with(&trail, writers.as_ref(), format, out))?;
        }
    }
    let format = match args.json {
        true => {
            trail.mappings = recorded;
            Format::Json
        }
        false => Format::Terminal(style()),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    overview(args, &trail, &processes, &mut out)
        .and_then(|()| {
            report::write_process(&trail, writers.as_ref(), &processes, format, &mut out)
        })
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what is for other tools: of all processes, unless one was chosen.
fn write_tables(tree: &mut TreeTrail, number: usize, args: &ReportArgs) -> Result<()> {
    let chosen = match args.process {
        Some(_) => &mut tree.processes[number..=number],
        None => &mut tree.processes[..],
    };
    let recorded: Vec<_> = chosen
        .iter_mut()
        .map(|process| joined::group(&mut process.trail))
        .collect();
    let all: Vec<(u64, &Trail)> = chosen
        .iter()
        .map(|process| (process.appeared_ns, &process.trail))
        .collect();
    let tables = [
        (&args.parquet, "parquet", Kind::Parquet, Format::Parquet),
        (
            &args.chrome_trace,
            "trace.json",
            Kind::ChromeTrace,
            Format::ChromeTrace,
        ),
    ];
    for (path, extension, kind, format) in tables {
        if let Some(file) = open(path, &args.file, extension, kind)? {
            file.write(|out| report::write_all(&all, format, out))?;
        }
    }
    for (process, mappings) in chosen.iter_mut().zip(recorded) {
        process.trail.mappings = mappings;
    }
    Ok(())
}

/// Writes what processes have copied since their fork.
fn write_private(tree: &TreeTrail, only: Option<usize>, args: &ReportArgs) -> Result<ExitCode> {
    let Some(private) = PrivateMemory::of(tree, only) else {
        bail!(
            "{}: it does not say what {} inherited; record the parent with its children, with \
             CAP_SYS_ADMIN",
            args.file.display(),
            if only.is_some() {
                "this process"
            } else {
                "any process"
            }
        );
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => private.write_json(&mut out),
        false => private.write_text(style(), &mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The number of the process to report on, and all processes if there are several.
fn select(tree: &TreeTrail, args: &ReportArgs) -> Result<(usize, Processes)> {
    let mut processes = match tree.processes.len() {
        0 | 1 if args.process.is_none() => Processes {
            short_lives: tree.short_lives,
            ..Processes::default()
        },
        _ => Processes::of(tree),
    };
    let number = match &args.process {
        Some(wanted) => find(&processes.rows, wanted)?,
        None => 0,
    };
    if processes.rows.len() <= 1 {
        processes.rows.clear();
    }
    Ok((number, processes))
}

/// The number of the process with a PID or a name. Of processes with one PID, one after the other,
/// it is the first.
fn find(rows: &[ProcessRow], wanted: &str) -> Result<usize> {
    if let Ok(pid) = wanted.parse::<u32>() {
        let found = rows.iter().position(|row| row.pid == pid);
        return found.with_context(|| format!("no process {pid} is in the recording"));
    }
    let called = |row: &&ProcessRow| row.name() == wanted;
    let found: Vec<&ProcessRow> = rows.iter().filter(called).collect();
    match found[..] {
        [] => bail!("no process of the recording is called {wanted}"),
        [one] => Ok(one.number as usize),
        _ => {
            let pids = found.iter().take(6).map(|row| row.pid.to_string());
            bail!(
                "{} processes of the recording are called {wanted}, name one by its PID: {}",
                found.len(),
                pids.collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// Lists the processes before the text about the first, if there are several and none was chosen.
fn overview(
    args: &ReportArgs,
    trail: &Trail,
    processes: &Processes,
    out: &mut dyn Write,
) -> io::Result<()> {
    if args.json || args.process.is_some() {
        return Ok(());
    }
    if processes.rows.is_empty() {
        return match processes.short_lives {
            0 => Ok(()),
            n => writeln!(
                out,
                "{} {} of this program began and ended between two rounds, unrecorded\n",
                words::count(n),
                if n == 1 { "child" } else { "children" }
            ),
        };
    }
    processes::write_table(&processes.rows, out)?;
    processes.write_shared(out)?;
    processes.write_short_lives(out)?;
    let first = trail.header.pid;
    let most = processes.rows.iter().max_by_key(|row| row.page_writes);
    match most.filter(|row| row.number != 0 && row.page_writes > 0) {
        Some(row) => writeln!(
            out,
            "\nprocess {first}, the first; --process {} reports on the one that wrote most\n",
            row.pid
        ),
        None => writeln!(
            out,
            "\nprocess {first}, the first; --process PID reports on another\n"
        ),
    }
}

/// The picture files of `report` and `record`, opened before there is anything to write.
#[derive(Debug, Default)]
pub(crate) struct Pictures {
    html: Option<OutFile>,
    png: Option<OutFile>,
}

impl Pictures {
    /// Opens the files. Neither may be `recording`; a file without a name takes the recording's
    /// name.
    pub(crate) fn open(args: &PictureArgs, recording: &Path) -> Result<Self> {
        let mut pictures = Self {
            html: open(&args.html, recording, "html", Kind::Page)?,
            png: None,
        };
        let png = open(&args.png, recording, "png", Kind::Picture).and_then(|png| {
            if let (Some(html), Some(png)) = (&pictures.html, &png) {
                png.refuse_same(&html.metadata()?, "the HTML page")?;
            }
            Ok(png)
        });
        match png {
            Ok(png) => pictures.png = png,
            Err(error) => {
                pictures.discard();
                return Err(error);
            }
        }
        Ok(pictures)
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.html.is_none() && self.png.is_none()
    }

    /// Writes the pictures of a recording: the page of all processes, unless one was `chosen`, and
    /// the heatmap of that or of the first.
    pub(crate) fn write(self, tree: &mut TreeTrail, chosen: Option<usize>) -> Result<()> {
        let processes = match chosen {
            Some(number) => &mut tree.processes[number..=number],
            None => &mut tree.processes[..],
        };
        let group = |process: &mut ProcessTrail| joined::group(&mut process.trail);
        let recorded: Vec<_> = processes.iter_mut().map(group).collect();
        let all = processes
            .iter()
            .map(|process| (process.appeared_ns, &process.trail));
        let all: Vec<(u64, &Trail)> = all.collect();
        for (file, format) in [(self.html, Format::Html), (self.png, Format::Png)] {
            if let Some(file) = file {
                file.write(|out| report::write_all(&all, format, out))?;
            }
        }
        for (process, mappings) in processes.iter_mut().zip(recorded) {
            process.trail.mappings = mappings;
        }
        Ok(())
    }

    /// Removes files that are new and leaves others as they were.
    pub(crate) fn discard(self) {
        let files = [self.html, self.png];
        files.into_iter().flatten().for_each(OutFile::discard);
    }
}

/// Opens a file that may not be `recording`, whose name it takes if it has none.
fn open(
    path: &Option<Option<PathBuf>>,
    recording: &Path,
    extension: &str,
    kind: Kind,
) -> Result<Option<OutFile>> {
    let Some(path) = path else { return Ok(None) };
    let path = match path {
        Some(path) => path.clone(),
        None => recording.with_extension(extension),
    };
    let file = OutFile::open(&path, kind)?;
    if let Ok(recording) = fs::metadata(recording) {
        file.refuse_same(&recording, "the recording itself")?;
    }
    Ok(Some(file))
}

/// Reads all processes of a recording.
pub(crate) fn read_all(path: &Path) -> Result<TreeTrail> {
    let file = open_recording(path)?;
    TreeTrail::read(file).with_context(|| format!("cannot read {}", path.display()))
}

fn open_recording(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|error| {
        let cure = if path == Path::new(DEFAULT_FILE) {
            "; name a recording, or make one with `pagetrail record`"
        } else {
            ""
        };
        anyhow!("cannot open {}: {error}{cure}", path.display())
    })?;
    Ok(BufReader::new(file))
}

/// Width and colour for standard output.
pub(crate) fn style() -> Style {
    let stdout = io::stdout();
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.parse().ok());
    let terminal = terminal_size::terminal_size_of(&stdout);
    let width = terminal.map(|(width, _)| usize::from(width.0));
    Style {
        width: width.or(columns).unwrap_or(WIDTH_ELSEWHERE),
        colour: color::wanted(stdout.is_terminal()),
    }
}
