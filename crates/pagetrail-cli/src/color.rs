//! Whether output has colours: `--color`, else `NO_COLOR`, else on terminals.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::{ColorChoice, ValueEnum};
use pagetrail_top::force_color_output;

use crate::args::ColorArg;

static CHOICE: OnceLock<ColorArg> = OnceLock::new();

/// Makes `choice` the rule for the whole command.
pub(crate) fn choose(choice: ColorArg) {
    let _ = CHOICE.set(choice);
    match choice {
        ColorArg::Always => force_color_output(true),
        ColorArg::Never => force_color_output(false),
        // It honours NO_COLOR by itself.
        ColorArg::Auto => {}
    }
}

/// Whether a report has colours, where `is_terminal` says if it goes to a terminal.
pub(crate) fn wanted(is_terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    decide(
        CHOICE.get().copied().unwrap_or(ColorArg::Auto),
        is_terminal,
        refused,
    )
}

fn decide(choice: ColorArg, is_terminal: bool, refused: bool) -> bool {
    match choice {
        ColorArg::Always => true,
        ColorArg::Never => false,
        ColorArg::Auto => is_terminal && !refused,
    }
}

/// The choice for help texts, from arguments that are not parsed yet. A wrong one is reported when
/// they are.
pub(crate) fn of_help(arguments: impl Iterator<Item = OsString>) -> ColorChoice {
    let mut choice = ColorChoice::Auto;
    let mut follows = false;
    for argument in arguments.take_while(|argument| argument != "--") {
        let argument = argument.to_string_lossy();
        let value = match argument.strip_prefix("--color=") {
            Some(value) => Some(value),
            None => follows.then_some(&*argument),
        };
        follows = argument == "--color";
        choice = match value.map(|value| ColorArg::from_str(value, false)) {
            Some(Ok(ColorArg::Always)) => ColorChoice::Always,
            Some(Ok(ColorArg::Never)) => ColorChoice::Never,
            Some(Ok(ColorArg::Auto)) => ColorChoice::Auto,
            Some(Err(_)) | None => choice,
        };
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_counts_more_than_the_environment() {
        for refused in [false, true] {
            for terminal in [false, true] {
                assert!(decide(ColorArg::Always, terminal, refused));
                assert!(!decide(ColorArg::Never, terminal, refused));
                assert_eq!(
                    decide(ColorArg::Auto, terminal, refused),
                    terminal && !refused
                );
            }
        }
    }

    #[test]
    fn help_finds_the_choice_before_arguments_are_parsed() {
        let of = |line: &str| of_help(line.split(' ').map(OsString::from));
        assert_eq!(of("--help"), ColorChoice::Auto);
        assert_eq!(of("record --color never --help"), ColorChoice::Never);
        assert_eq!(of("--color=always --help"), ColorChoice::Always);
        assert_eq!(of("record -- ls --color=always"), ColorChoice::Auto);
        assert_eq!(of("--color sometimes"), ColorChoice::Auto);
    }
}
