//! What a guest finds in its memory: this program as its first process, the program to measure and
//! what that needs, and the words and variables that it is started with.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{getegid, geteuid};

use super::archive::Mode;
use super::files::Files;
use super::guests::Settings;

/// Where the guest's first process finds the variables of the agent, which it is to start.
pub const ENVIRONMENT: &str = "/.pagetrail/environment";
/// The words of the agent.
pub const WORDS: &str = "/.pagetrail/words";
/// Its working directory.
pub const DIRECTORY: &str = "/.pagetrail/directory";
/// Its user and group.
pub const OWNER: &str = "/.pagetrail/owner";

/// Directories that the first process mounts something on.
const MOUNTS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Programs that tests of suites start, and most programs, too.
const PROGRAMS: [&str; 3] = ["sh", "true", "sqlite3"];

/// Files by which the C library knows users, hosts and places.
const SETTINGS: [&str; 7] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/protocols",
];

/// Anybody may write there, but only its owner remove a file.
const TEMPORARY: u32 = 0o041_777;

/// Makes the archive; it is memory of this process.
pub(super) fn make(settings: &Settings) -> Result<File> {
    let file = memfd_create("pagetrail-initrd", MemfdFlags::CLOEXEC);
    let file = File::from(file.context("cannot make room for the guest's files")?);
    let mut files = Files::new(BufWriter::new(&file), settings.memory_bytes / 2);
    let own = env::current_exe().context("cannot find this program")?;
    // First, because its loader serves shared objects, too.
    files.add(&own)?;
    files.own(Path::new("/init"), Mode::LINK, own.as_os_str().as_bytes())?;
    let path = env::var_os("PATH").unwrap_or_default();
    for name in PROGRAMS {
        files.program(name.as_ref(), &path)?;
    }
    for setting in SETTINGS.map(Path::new) {
        if setting.exists() {
            files.add(setting)?;
        }
    }
    for path in &settings.files {
        files.add(path)?;
    }
    if let Some((program, arguments)) = settings.command.split_first() {
        files.program(program, &path)?;
        // Scripts and their data; options and other words name no file.
        for argument in arguments {
            if Path::new(argument).is_file() {
                files.add(Path::new(argument))?;
            }
        }
    }
    let directory = env::current_dir().context("cannot find the working directory")?;
    files.directory(&directory)?;
    let temporary = env::temp_dir();
    if temporary.is_dir() {
        files.directory(&temporary)?;
    }
    for (place, mode) in MOUNTS
        .map(|place| (place, Mode::DIRECTORY.mode))
        .into_iter()
        .chain([("/tmp", TEMPORARY), ("/run", Mode::DIRECTORY.mode)])
    {
        let mode = Mode {
            mode,
            ..Mode::DIRECTORY
        };
        files.own(Path::new(place), mode, &[])?;
    }
    let mut words = settings.agent.clone();
    if !settings.command.is_empty() {
        words.push("--".into());
        words.extend_from_slice(&settings.command);
    }
    let variables = env::vars_os().map(|(name, value)| {
        let mut variable = name;
        variable.push("=");
        variable.push(value);
        variable
    });
    let owner = format!("{} {}", geteuid().as_raw(), getegid().as_raw());
    for (place, content) in [
        (WORDS, joined(words)),
        (ENVIRONMENT, joined(variables)),
        (DIRECTORY, directory.into_os_string().into_vec()),
        (OWNER, owner.into_bytes()),
    ] {
        files.own(Path::new(place), Mode::FILE, &content)?;
    }
    files
        .finish()?
        .into_inner()
        .map_err(|error| error.into_error())?;
    Ok(file)
}

/// Words, each with a zero after it.
fn joined(words: impl IntoIterator<Item = OsString>) -> Vec<u8> {
    let words = words.into_iter();
    let words = words.map(|word| [word.as_bytes(), b"\0"].concat());
    words.collect::<Vec<_>>().concat()
}

/// The words that were joined so.
#[must_use]
pub fn words(content: &[u8]) -> Vec<OsString> {
    let content = content.strip_suffix(b"\0").unwrap_or(content);
    match content.is_empty() {
        true => Vec::new(),
        false => content
            .split(|byte| *byte == 0)
            .map(|word| OsStr::from_bytes(word).to_owned())
            .collect(),
    }
}

/// A program by its path, or by its name in `PATH`.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|directory| directory.join(name));
    places.find(|place| place.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separated_as_they_were() {
        for all in [&[][..], &["a"], &["a b", "", "c\n"], &[""]] {
            let all: Vec<OsString> = all.iter().map(Into::into).collect();
            // Nothing and one empty word look the same; a command has a first word that is not.
            let expected = match all == [""] {
                true => Vec::new(),
                false => all.clone(),
            };
            assert_eq!(words(&joined(all)), expected);
        }
    }

    #[test]
    fn a_guest_has_this_program_and_one_that_is_named() {
        let mut settings = Settings {
            command: ["sh", "-c", "exit"].map(OsString::from).into(),
            memory_bytes: 8 << 30,
            ..Settings::default()
        };
        let file = make(&settings).expect("it is made");
        let bytes = {
            use std::io::{Read, Seek};
            let mut file = file;
            let mut bytes = Vec::new();
            file.rewind().expect("it is memory");
            file.read_to_end(&mut bytes).expect("it is memory");
            bytes
        };
        let has = |name: &str| {
            let name = [name.as_bytes(), b"\0"].concat();
            bytes.windows(name.len()).any(|part| part == name)
        };
        assert!(bytes.starts_with(b"070701"));
        for name in ["init", "bin", "dev", ".pagetrail/words", "TRAILER!!!"] {
            assert!(has(name), "{name}");
        }
        settings.memory_bytes = 4096;
        let small = make(&settings).expect_err("it does not fit");
        assert!(small.to_string().contains("half of its memory"), "{small}");
    }
}
