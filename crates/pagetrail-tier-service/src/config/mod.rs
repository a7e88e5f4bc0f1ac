//! [`Config`]: `tier.toml`, read and checked as a whole; `docs/tier-format.md` documents it.

mod memory;
mod target;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pagetrail_endpoint::Address;
use pagetrail_report::duration;
use pagetrail_report::size::Size;
use pagetrail_tier::source::SourceInfo;
use pagetrail_tier::{Settings, Tiers};
use serde::{Deserialize, Deserializer, Serialize, de};

use target::{check_agent, check_guest};

pub use memory::{Memory, Slow};
pub use target::{SourceKind, Target, Vm};

/// A longer file is no configuration.
const BYTES_MAX: u64 = 1 << 20;
const TARGETS_MAX: usize = 1000;

/// What to keep, and how.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to serve numbers and the status; nowhere if there is none.
    #[serde(default, deserialize_with = "parsed")]
    pub listen: Option<Address>,
    /// Whether targets share fast memory.
    #[serde(default)]
    pub mode: Mode,
    /// What the pool has; the sum of the targets' shares if it is not said.
    #[serde(default, deserialize_with = "parsed")]
    pub fast: Option<Size>,
    /// How long pages are watched before their use is looked at.
    #[serde(default = "window", deserialize_with = "time")]
    pub window: Duration,
    /// How often tracking begins.
    #[serde(default = "period", deserialize_with = "time")]
    pub period: Duration,
    /// Where memory is.
    #[serde(default)]
    pub memory: Memory,
    /// The constants of the policy.
    #[serde(default)]
    pub policy: Settings,
    /// What to keep; at least one.
    #[serde(rename = "target", default)]
    pub targets: Vec<Target>,
    /// What the nodes were measured to take, where that is wanted.
    #[serde(skip)]
    pub(crate) measured: Option<Tiers>,
}

/// Whether targets share what they do not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Each has its share.
    #[default]
    Island,
    /// Targets that need less than their share leave it to those that need more.
    Pool,
}

fn window() -> Duration {
    Duration::from_millis(600)
}

fn period() -> Duration {
    Duration::from_secs(60)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration::parse(&text).map_err(de::Error::custom)
}

fn parsed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr<Err = String>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(de::Error::custom)
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no configuration: one line says so.
    pub fn read(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .with_context(cannot)?;
        let wrong = || format!("{} is no configuration", path.display());
        if bytes.len() as u64 > BYTES_MAX {
            bail!("{}: it is longer than {BYTES_MAX} bytes", wrong());
        }
        let text = String::from_utf8(bytes).with_context(wrong)?;
        Self::parse(&text).with_context(wrong)
    }

    /// Reads and checks a text.
    ///
    /// # Errors
    ///
    /// One line says what is wrong, and where.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|error| {
            // One line, with the place.
            let line = error
                .span()
                .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            anyhow::anyhow!("{place}{}", error.message().replace('\n', " "))
        })?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        self.policy.validate().context("[policy]")?;
        ensure!(!self.targets.is_empty(), "there is no [[target]]");
        ensure!(
            self.targets.len() <= TARGETS_MAX,
            "more than {TARGETS_MAX} targets"
        );
        let mut names = BTreeSet::new();
        let mut sum = 0u64;
        for target in &self.targets {
            let name = &target.name;
            ensure!(
                !name.is_empty() && name.len() <= 100 && !name.contains(char::is_control),
                "a target's name has between 1 and 100 characters, and none to control with"
            );
            ensure!(names.insert(name), "two targets are called '{name}'");
            let ways = [
                target.pid.is_some(),
                target.command.is_some(),
                target.cgroup.is_some(),
                target.vm.is_some(),
                target.guest.is_some(),
            ];
            ensure!(
                ways.into_iter().filter(|given| *given).count() == 1,
                "target '{name}' needs one of pid, command, cgroup, vm and guest"
            );
            ensure!(
                target.command.as_deref() != Some("")
                    && target.cgroup.as_deref() != Some(Path::new("")),
                "target '{name}' is named by an empty text"
            );
            check_agent(target)?;
            if let Some(words) = &target.guest {
                check_guest(name, words, target.source)?;
            }
            sum = sum
                .checked_add(target.fast.bytes())
                .context("the targets' shares are more than there are addresses")?;
        }
        if let Some(fast) = self.fast {
            ensure!(
                fast.bytes() >= sum,
                "the targets' shares are {}, and there are {fast} of fast memory",
                Size::shown(sum)
            );
        }
        if let Some(address) = &self.listen {
            ensure!(
                address.is_local(),
                "listen is {address}: only loopback addresses and Unix sockets are served"
            );
        }
        self.memory.check()?;
        ensure!(
            self.window >= Duration::from_millis(10),
            "a window is at least 10ms"
        );
        ensure!(
            self.period >= self.window,
            "a period is at least as long as a window"
        );
        Ok(())
    }

    /// The policy's constants for a source. Weights that were measured are for those that tell
    /// reads from writes.
    pub(crate) fn settings(&self, info: &SourceInfo) -> Settings {
        let settings = self.policy.clone();
        match &self.measured {
            Some(tiers) if info.caps.accesses && info.caps.writes => tiers.weigh(settings),
            _ => settings,
        }
    }

    /// What all targets may use together.
    pub fn fast_bytes(&self) -> u64 {
        let sum = self.targets.iter().map(|target| target.fast.bytes()).sum();
        self.fast.map_or(sum, Size::bytes)
    }
}

#[cfg(test)]
mod tests {
    use pagetrail_tier::{SourceCaps, Speed};

    use super::*;

    const FULL: &str = r#"
        listen = "unix:/run/pagetrail-tier.sock"
        mode = "pool"
        fast = "4G"
        window = "300ms"
        period = "30s"
        [memory]
        fast_node = 0
        slow = [2, 3]
        threads = 2
        bandwidth = "1G"
        measure_weights = true
        [policy]
        windows = 4
        write_weight = 2
        [[target]]
        name = "db"
        command = "redis-server"
        fast = "2G"
        [[target]]
        name = "vm"
        pid = 1234
        fast = "1G"
        source = "turns"
        [[target]]
        name = "batch"
        cgroup = "/batch.slice"
        fast = "256M"
        [[target]]
        name = "web"
        vm = "web1"
        fast = "256M"
        [[target]]
        name = "started"
        guest = ["/usr/bin/prog", "--argument"]
        fast = "512M"
    "#;

    #[test]
    fn reads_what_the_documentation_has() {
        let config = Config::parse(FULL).unwrap();
        assert_eq!((config.mode, config.fast_bytes()), (Mode::Pool, 4 << 30));
        assert_eq!(config.memory.slow, Slow::Nodes(vec![2, 3]));
        assert_eq!((config.policy.windows, config.policy.level_max), (4, 7));
        assert_eq!(config.targets[1].source, SourceKind::Turns);
        assert_eq!(config.targets[3].vm, Some(Vm::Name("web1".into())));
        for (text, vm) in [
            ("7", Vm::Pid(7)),
            ("\"7\"", Vm::Name("7".into())),
            ("\"/machine.slice\"", Vm::Cgroup("/machine.slice".into())),
        ] {
            let text = format!("[[target]]\nname = \"a\"\nvm = {text}\nfast = \"1M\"");
            let config = Config::parse(&text).unwrap();
            assert_eq!(config.targets[0].vm, Some(vm));
        }
        let least = "[[target]]\nname = \"a\"\npid = 1\nfast = \"1M\"";
        let config = Config::parse(least).unwrap();
        assert_eq!(config.window, Duration::from_millis(600));
        assert_eq!(config.period, Duration::from_secs(60));
        assert_eq!((config.mode, config.fast_bytes()), (Mode::Island, 1 << 20));
        assert_eq!(config.policy, Settings::default());
    }

    #[test]
    fn errors_are_one_line() {
        let with = |text: &str, what: &str| {
            let error = Config::parse(text).unwrap_err();
            let line = format!("{error:#}");
            assert!(line.contains(what), "{line}");
            assert!(!line.contains('\n'), "{line}");
        };
        with("", "no [[target]]");
        with("mode = \"sea\"", "line 1");
        with("windw = \"1s\"", "windw");
        let target = "[[target]]\nname = \"a\"\npid = 1\nfast = \"1M\"\n";
        with(&format!("{target}{target}"), "two targets");
        with(&format!("window = \"1us\"\n{target}"), "1ms");
        with(&format!("window = \"2m\"\n{target}"), "period");
        with(&format!("fast = \"512K\"\n{target}"), "shares are 1M");
        with(&format!("listen = \"0.0.0.0:1\"\n{target}"), "loopback");
        with(&format!("{target}[policy]\nwindows = 99"), "windows is 99");
        with(&format!("{target}[policy]\nwindows = -1"), "line 6");
        with(&format!("{target}[memory]\nslow = 0"), "same node");
        with(&format!("{target}[memory]\nslow = \"tape\""), "swap");
        with(
            &format!("{target}[memory]\nslow = \"swap\"\nmeasure_weights = true"),
            "leave measure_weights out",
        );
        for (nodes, what) in [
            ("slow = [0]", "same node"),
            ("slow = [1, 1]", "twice"),
            ("slow = []", "between 1"),
            ("fast_node = []", "between 1"),
            ("fast_node = [0, 2]\nslow = [1, 2]", "same node"),
            ("fast_node = \"x\"", "list"),
        ] {
            with(&format!("{target}[memory]\n{nodes}"), what);
        }
        with(&format!("{target}[memory]\nthreads = 0"), "threads");
        for percent in ["0", "101", "-1", "\"x\""] {
            let text = format!("{target}[memory]\npressure_max_percent = {percent}");
            assert!(Config::parse(&text).is_err(), "{percent}");
        }
        with(&target.replace("pid = 1", ""), "needs one of");
        with(
            &target.replace("pid = 1", "pid = 1\ncommand = \"x\""),
            "needs one of",
        );
        with(&target.replace("pid = 1", "command = \"\""), "empty");
        for vm in ["\"\"", "-1", "true", "[]"] {
            with(&target.replace("pid = 1", &format!("vm = {vm}")), "monitor");
        }
        for (guest, what) in [
            ("[]", "starts no program"),
            ("[\"\"]", "starts no program"),
            ("[\"a\\u0000\"]", "NUL"),
            ("[\"a\"]\nsource = \"damon\"", "virtual machine"),
            ("\"prog\"", "line 3"),
        ] {
            with(
                &target.replace("pid = 1", &format!("guest = {guest}")),
                what,
            );
        }
        with(&target.replace("\"a\"", "\"a\\u0007\""), "characters");
        with(&target.replace("1M", "1"), "unit");
        let much = target.replace("1M", "17179869183G");
        with(
            &format!("{much}{}", much.replace("\"a\"", "\"b\"")),
            "addresses",
        );
    }

    #[test]
    fn measured_weights_are_for_sources_that_tell_writes() {
        let speed = |read_ns, write_ns| Speed { read_ns, write_ns };
        let mut config = Config::parse(FULL).unwrap();
        let info = |accesses, writes| SourceInfo {
            name: "made up",
            caps: SourceCaps {
                accesses,
                writes,
                in_turns: false,
            },
            pages: true,
            saves_faults: true,
        };
        assert_eq!(config.settings(&info(true, true)), config.policy);
        config.measured = Tiers::of(&[(speed(80.0, 40.0), speed(120.0, 120.0)); 3]);
        let weighed = config.settings(&info(true, true));
        assert_eq!((weighed.read_weight, weighed.write_weight), (4, 4));
        for one in [info(true, false), info(false, true)] {
            assert_eq!(config.settings(&one), config.policy);
        }
    }

    #[test]
    fn hostile_files_are_refused_and_harm_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tier.toml");
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..2000 {
            let mut bytes = FULL.as_bytes().to_vec();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(0..bytes.len());
                match random.u8(0..3) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, *random.choice(b"[]\"=\n#{}.0").unwrap()),
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            if let Err(error) = Config::read(&path) {
                assert!(
                    !format!("{error:#}").contains('\n'),
                    "round {round}: {error:#}"
                );
            }
        }
        std::fs::write(&path, "[".repeat(1 << 19)).unwrap();
        assert!(Config::read(&path).is_err());
        std::fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
        assert!(
            Config::read(&path)
                .unwrap_err()
                .to_string()
                .contains("longer")
        );
        assert!(Config::read(directory.path()).is_err());
        assert!(Config::read(Path::new("/dev/zero")).is_err());
    }
}
