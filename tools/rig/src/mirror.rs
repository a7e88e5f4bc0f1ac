//! Where Debian's packages come from: the mirror that the host's own apt uses.
//!
//! No mirror's name is written down here. On a host that is not Debian, `PAGETRAIL_DEBIAN_MIRROR`
//! names one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use pagetrail_steps::steps::NotHere;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A Debian mirror and what proves its packages.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) uri: String,
    pub(super) keyring: &'static Path,
    /// The host's own suite, where the host is Debian.
    pub(super) host_suite: Option<String>,
}

impl Mirror {
    /// The host's mirror, or the one in the environment.
    pub(super) fn find() -> Result<Self> {
        let keyring = Path::new(KEYRING);
        if !keyring.exists() {
            return Err(NotHere::error(
                "as root: apt-get install debian-archive-keyring",
            ));
        }
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let host_suite = match value(&release, "ID") {
            Some("debian") => value(&release, "VERSION_CODENAME").map(str::to_owned),
            _ => None,
        };
        let named = env::var("PAGETRAIL_DEBIAN_MIRROR").ok();
        let own = || mirror_of(&sources(), host_suite.as_deref()?);
        let Some(uri) = named.or_else(own) else {
            let reason = "apt's sources name no Debian mirror; set PAGETRAIL_DEBIAN_MIRROR";
            return Err(NotHere::error(reason));
        };
        Ok(Self {
            uri,
            keyring,
            host_suite,
        })
    }
}

/// A value of a file like os-release(5).
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == key)?;
    Some(value.trim_matches('"'))
}

/// The texts of apt's sources, sources.list(5): deb822 files first.
fn sources() -> Vec<String> {
    let mut files: Vec<PathBuf> = Vec::new();
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort_by_key(|file| {
        (
            file.extension().is_none_or(|e| e != "sources"),
            file.clone(),
        )
    });
    files.push("/etc/apt/sources.list".into());
    files.iter().flat_map(fs::read_to_string).collect()
}

/// The first address that offers the `main` packages of `suite`.
fn mirror_of(sources: &[String], suite: &str) -> Option<String> {
    sources
        .iter()
        .find_map(|text| one_line(text, suite).or_else(|| deb822(text, suite)))
}

/// `deb [option=value ..] uri suite component ..`
fn one_line(text: &str, suite: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let (uri, suites, components) = (words.first()?, words.get(1)?, words.get(2..)?);
        (*suites == suite && components.contains(&"main")).then(|| (*uri).to_owned())
    })
}

/// Stanzas of `Types:`, `URIs:`, `Suites:`, `Components:`.
fn deb822(text: &str, suite: &str) -> Option<String> {
    text.split("\n\n").find_map(|stanza| {
        let field = |key: &str| -> Vec<&str> {
            let mut fields = stanza.lines().filter_map(|line| line.split_once(':'));
            let found = fields.find(|(name, _)| name.eq_ignore_ascii_case(key));
            found.map_or(Vec::new(), |(_, value)| value.split_whitespace().collect())
        };
        let wanted = field("Types").contains(&"deb")
            && field("Suites").contains(&suite)
            && field("Components").contains(&"main")
            && !field("Enabled").contains(&"no");
        let uri = *field("URIs").first()?;
        wanted.then(|| uri.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mirror_of_the_suite() {
        let deb822 = "\
Types: deb
# a comment: with a colon
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: https://mirror.example/debian-security
Suites: bookworm-security
Components: main
";
        let other = "deb [arch=amd64 signed-by=/k] https://other.example/ sdk-bookworm main\n";
        let list = "# deb https://off.example trixie main\ndeb [a=b] https://m.example/d trixie main contrib\n";
        let sources = [other, deb822, list].map(str::to_owned);
        let find = |suite| mirror_of(&sources, suite);
        assert_eq!(
            find("bookworm").as_deref(),
            Some("https://mirror.example/debian")
        );
        assert_eq!(find("trixie").as_deref(), Some("https://m.example/d"));
        assert_eq!(find("sid"), None);
    }

    #[test]
    fn a_disabled_source_is_none() {
        let text =
            "Enabled: no\nTypes: deb\nURIs: https://m.example\nSuites: sid\nComponents: main\n";
        assert_eq!(mirror_of(&[text.to_owned()], "sid"), None);
    }

    #[test]
    fn reads_os_release() {
        let text = "ID=debian\nVERSION_CODENAME=\"bookworm\"\n";
        assert_eq!(value(text, "VERSION_CODENAME"), Some("bookworm"));
        assert_eq!(value(text, "ID_LIKE"), None);
    }
}
