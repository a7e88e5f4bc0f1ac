//! Commands beside a native run, with the files that they leave: each form has a directory of its
//! own, made alike.

#![allow(clippy::print_stderr, reason = "a test that cannot run says so")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::ending::{described, ended};
use super::pagetrail;

/// Where the rig's guests have the shell that they boot with.
const SHELL_OF_THE_RIG: &str = "/run/rig/busybox";

/// How commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Natively,
    AsGuest,
}

impl Form {
    /// A command in this form.
    pub(crate) fn command(self, directory: &Path, words: &[&str]) -> Command {
        let mut command = match self {
            Self::Natively => {
                let mut native = Command::new(words[0]);
                native.current_dir(directory).stdin(Stdio::null());
                native.args(&words[1..]);
                return native;
            }
            Self::AsGuest => pagetrail(directory, &["vm", "run", "--"]),
        };
        command.args(words);
        command
    }

    /// What stands before a command of a script.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Natively => &[],
            Self::AsGuest => &[env!("CARGO_BIN_EXE_pagetrail"), "vm", "run", "--"],
        }
    }
}

/// A program's path, if it is on this machine; says so if not.
pub(crate) fn program(name: &str) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).map(|directory| directory.join(name));
    let rig = PathBuf::from(SHELL_OF_THE_RIG);
    let found = places.chain((name == "busybox").then_some(rig));
    let found = found.into_iter().find(|file| file.is_file());
    if found.is_none() {
        pagetrail_skips::not_here(name);
    }
    Some(found?.to_str().expect("UTF-8").to_owned())
}

/// A directory for each form.
pub(crate) struct Beside {
    native: TempDir,
    guest: TempDir,
}

impl Beside {
    /// Fills both in the same way.
    pub(crate) fn new(fill: impl Fn(&Path)) -> Self {
        let made = || {
            let directory = tempfile::tempdir().expect("a directory");
            fill(directory.path());
            directory
        };
        Self {
            native: made(),
            guest: made(),
        }
    }

    pub(crate) fn directory(&self, form: Form) -> &Path {
        match form {
            Form::Natively => self.native.path(),
            Form::AsGuest => self.guest.path(),
        }
    }

    /// One command in both forms: the same output, the same errors, the same end, the same files.
    #[track_caller]
    pub(crate) fn same(&self, words: &[&str]) {
        self.same_of(words, |form| form.command(self.directory(form), words));
    }

    /// Compares commands that know themselves how each form is run.
    #[track_caller]
    pub(crate) fn same_of(&self, name: &[&str], command: impl Fn(Form) -> Command) {
        let output = |form| ended(&mut command(form));
        let (native, guest) = (output(Form::Natively), output(Form::AsGuest));
        assert!(
            native == guest,
            "{name:?}\n{}{}",
            described("natively", &native),
            described("as a guest", &guest)
        );
        self.same_files(name);
    }

    /// Asserts that both runs left the same files.
    #[track_caller]
    pub(crate) fn same_files(&self, name: &[&str]) {
        let (native, guest) = (files(self.native.path()), files(self.guest.path()));
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&guest), names(&native), "{name:?}");
        for (path, file) in &native {
            let other = &guest[path];
            assert_eq!(other.mode, file.mode, "{name:?}: {}", path.display());
            let differ = file
                .bytes
                .iter()
                .zip(&other.bytes)
                .position(|(a, b)| a != b);
            let same_length = other.bytes.len() == file.bytes.len();
            assert!(
                same_length && differ.is_none(),
                "{name:?}: {} has {} bytes natively, {} as a guest, and differs from {differ:?}",
                path.display(),
                file.bytes.len(),
                other.bytes.len()
            );
        }
    }
}

type Files = BTreeMap<PathBuf, File>;

struct File {
    mode: u32,
    /// Of a directory none, of a link where it leads.
    bytes: Vec<u8>,
}

/// All below a directory.
fn files(directory: &Path) -> Files {
    let mut found = Files::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).expect("a directory") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("its metadata");
            let mut bytes = Vec::new();
            if metadata.is_file() {
                bytes = fs::read(&path).expect("a file");
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                bytes = target.into_os_string().into_encoded_bytes();
            } else if metadata.is_dir() {
                directories.push(path.clone());
            }
            let mode = metadata.permissions().mode();
            let name = path
                .strip_prefix(directory)
                .expect("it is below")
                .to_owned();
            found.insert(name, File { mode, bytes });
        }
    }
    found
}
