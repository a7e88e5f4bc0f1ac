//! The command line of suites with a main of their own, as of every test: `--list`, `--exact`,
//! `--skip` and the like, so that editors and nextest find and start single cases.

use libtest_mimic::{Arguments, Trial};

/// Options that take the next argument.
const WITH_VALUE: [&str; 6] = [
    "--test-threads",
    "--logfile",
    "--skip",
    "--color",
    "--format",
    "-Z",
];

/// What a run was asked for.
pub(crate) struct Selection {
    pub(crate) arguments: Arguments,
    words: Vec<String>,
}

impl Selection {
    /// From the arguments of a process, which begin with its name.
    pub(crate) fn of(mut arguments: Vec<String>) -> Self {
        let mut words = Vec::new();
        if !arguments.iter().any(|word| word == "--exact") {
            let mut value = true;
            arguments.retain(|word| {
                let is_word = !value && !word.starts_with('-');
                value = WITH_VALUE.contains(&word.as_str());
                if is_word {
                    words.push(word.clone());
                }
                !is_word
            });
        }
        let mut arguments = Arguments::from_iter(arguments);
        // One after another: they share this process's mappings, and the machine's time.
        arguments.test_threads = Some(1);
        Self { arguments, words }
    }

    /// The trials whose names have all the words; a word that is a technique's name means that
    /// technique, with which names begin.
    pub(crate) fn among(&self, mut trials: Vec<Trial>) -> Vec<Trial> {
        let is_meant = |name: &str, word: &str| match word.parse::<pagetrail::Technique>() {
            Ok(_) => name.split(',').next() == Some(word),
            Err(_) => name.contains(word),
        };
        let all = |name: &str| self.words.iter().all(|word| is_meant(name, word));
        trials.retain(|trial| all(trial.name()));
        trials
    }
}
