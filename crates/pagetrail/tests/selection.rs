//! Which cases of the suites with a main of their own (`conformance`, `stress`) are selected by
//! which arguments.

#[path = "support/harness.rs"]
mod harness;

use harness::Selection;
use libtest_mimic::Trial;

/// Cases as the suites name them.
const NAMES: [&str; 4] = [
    "compare, own ranges, memfd, shared",
    "compare, another process, anonymous memory",
    "none, own ranges, memfd, shared",
    "none, own ranges, compare with none",
];

fn selected(arguments: &[&str]) -> Vec<String> {
    let words = ["suite"].iter().chain(arguments).map(|&word| word.into());
    let selection = Selection::of(words.collect());
    let trials = NAMES.map(|name| Trial::test(name, || Ok(()))).into();
    let trials = selection.among(trials);
    let remain = |trial: &&Trial| !selection.arguments.is_filtered_out(trial);
    let names = trials.iter().filter(remain);
    names.map(|trial| trial.name().to_owned()).collect()
}

#[test]
fn all_words_select() {
    assert_eq!(selected(&[]), NAMES);
    assert_eq!(selected(&["memfd"]), [NAMES[0], NAMES[2]]);
    assert_eq!(selected(&["compare", "memfd"]), [NAMES[0]]);
    assert_eq!(selected(&["none"]), [NAMES[2], NAMES[3]]);
    assert!(selected(&["memfd", "process"]).is_empty());
}

#[test]
fn options_are_those_of_every_test() {
    assert_eq!(
        selected(&["--skip", "memfd", "--test-threads", "4", "own"]),
        [NAMES[3]]
    );
    assert_eq!(selected(&["--exact", NAMES[1], "--nocapture"]), [NAMES[1]]);
    assert!(selected(&["--exact", "memfd"]).is_empty());
}
