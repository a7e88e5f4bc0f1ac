//! `pagetrail generate`: man pages, shell completions and a reference in Markdown from the
//! definitions of the command line; `pagetrail completions`: those of one shell.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit;

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: ShellArg,
}

/// A shell with completions.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs, reason = "names of shells")]
pub(crate) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// The directory that gets `man/` and `completions/`
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let man = args.directory.join("man");
    let completions = args.directory.join("completions");
    let markdown = args.directory.join("markdown");
    for directory in [&man, &completions, &markdown] {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let mut command = Cli::command();
    for shell in ShellArg::value_variants() {
        clap_complete::generate_to(Shell::from(*shell), &mut command, "pagetrail", &completions)
            .with_context(|| format!("cannot write to {}", completions.display()))?;
    }
    // Anew: the command above has been built, with `help`, which says what these pages say.
    let mut command = without_help(Cli::command());
    command.build();
    write_pages(&man, &command, "pagetrail")?;
    let path = markdown.join("commands.md");
    let mut text = String::new();
    reference(&command, "pagetrail", &mut text);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the completions of one shell to standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    // In memory first: the generator panics where it cannot write.
    let mut text = Vec::new();
    let mut command = Cli::command();
    clap_complete::generate(
        Shell::from(args.shell),
        &mut command,
        "pagetrail",
        &mut text,
    );
    let mut out = io::stdout().lock();
    out.write_all(&text)
        .and_then(|()| out.flush())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

impl From<ShellArg> for Shell {
    fn from(shell: ShellArg) -> Self {
        match shell {
            ShellArg::Bash => Self::Bash,
            ShellArg::Zsh => Self::Zsh,
            ShellArg::Fish => Self::Fish,
        }
    }
}

/// The command and its subcommands without their subcommand `help`.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

/// A section for the command, and one for each of its subcommands.
fn reference(command: &Command, name: &str, out: &mut String) {
    let about = command.get_long_about().or_else(|| command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    out.push_str(&format!(
        "\n## {name}\n\n{about}\n\n```text\n{usage}\n```\n"
    ));
    let arguments = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let rows: String = arguments.map(row).collect();
    if !rows.is_empty() {
        out.push_str(&format!("\n| argument | meaning |\n|---|---|\n{rows}"));
    }
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        reference(
            subcommand,
            &format!("{name} {}", subcommand.get_name()),
            out,
        );
    }
}

/// An argument as a row of a table.
fn row(argument: &Arg) -> String {
    let names = [
        argument.get_short().map(|short| format!("-{short}")),
        argument.get_long().map(|long| format!("--{long}")),
    ];
    let names: Vec<String> = names.into_iter().flatten().collect();
    let takes_value = argument.get_action().takes_values();
    let values: Vec<&str> = match takes_value {
        true => argument
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(|name| name.as_str())
            .collect(),
        false => Vec::new(),
    };
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let escaped = help.replace('|', "\\|").replace('\n', " ");
    format!(
        "| `{}` | {escaped} |\n",
        [names.join(", "), values.join(" ")].join(" ").trim()
    )
}

/// A page for the command, and one for each of its subcommands.
fn write_pages(directory: &Path, command: &Command, name: &str) -> Result<()> {
    write_page(directory, command.clone(), name)?;
    let subcommands = command.get_subcommands().filter(|c| !c.is_hide_set());
    for subcommand in subcommands {
        let name = format!("{name}-{}", subcommand.get_name());
        write_pages(directory, subcommand, &name)?;
    }
    Ok(())
}

fn write_page(directory: &Path, command: Command, name: &str) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    let cannot = || format!("cannot write {}", path.display());
    let mut out = BufWriter::new(File::create(&path).with_context(cannot)?);
    page(command, name, &mut out)
        .and_then(|()| out.flush())
        .with_context(cannot)
}

fn page(command: Command, name: &str, out: &mut dyn Write) -> std::io::Result<()> {
    let examples = command.get_after_help().map(ToString::to_string);
    let has_subcommands = command.has_subcommands();
    let is_record = name.ends_with("record");
    let man = Man::new(command)
        .source(concat!("pagetrail ", env!("CARGO_PKG_VERSION")))
        .manual("pagetrail manual");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if has_subcommands {
        man.render_subcommands_section(out)?;
    }
    writeln!(out, ".SH \"EXIT STATUS\"")?;
    if is_record {
        writeln!(
            out,
            "With a program to start, its own exit status, or 128 and the number of the signal that killed it,\n\
             once it was recorded to its end; otherwise:"
        )?;
    }
    for (code, meaning) in exit::MEANINGS {
        writeln!(out, ".TP\n.B {code}\n{meaning}")?;
    }
    writeln!(out, ".SH ENVIRONMENT")?;
    for (variable, meaning) in ENVIRONMENT {
        writeln!(out, ".TP\n.B {variable}\n{meaning}")?;
    }
    if let Some(examples) = examples {
        let lines = examples.lines().skip(1);
        let lines = lines.take_while(|line| !line.is_empty());
        writeln!(out, ".SH EXAMPLES\n.nf")?;
        for line in lines {
            writeln!(
                out,
                "{}",
                line.trim_start().replace('\\', "\\e").replace('-', "\\-")
            )?;
        }
        writeln!(out, ".fi")?;
    }
    Ok(())
}

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "PAGETRAIL_DISABLE",
        "Techniques not to use, separated by commas.",
    ),
    (
        "PAGETRAIL_LOG",
        "Events to report on standard error: off, error, warn (so it is without), info, debug or trace. \\-v and \\-vv \
         are info and debug; the greater counts.",
    ),
    (
        "NO_COLOR",
        "When set and not empty, reports on a terminal have no colours, unless \\-\\-color asks for them.",
    ),
    (
        "COLUMNS",
        "The width of reports where standard output is no terminal.",
    ),
];
