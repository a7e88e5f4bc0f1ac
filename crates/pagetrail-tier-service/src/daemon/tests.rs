//! A daemon and processes of this machine, of which nothing is moved.

use std::process::{Child, Command};

use pagetrail::{Capabilities, Technique};
use pagetrail_tier::Demand;

use super::*;

/// Sleeps, and ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A configuration in a file, and its daemon.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn path(&self) -> PathBuf {
        self.directory.path().join("tier.toml")
    }

    fn configure(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn new(text: &str) -> (Self, Daemon) {
        let scene = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        scene.configure(text);
        let start_guest = |_: &[OsString], _| anyhow::bail!("no guest here");
        let daemon = Daemon::new(&scene.path(), true, Box::new(start_guest)).unwrap();
        (scene, daemon)
    }
}

/// Whether processes can be watched here.
fn can_watch_writes() -> bool {
    let status = Capabilities::probe_one(Technique::PagemapScan);
    let works = *status == pagetrail::Status::Works;
    if !works {
        pagetrail_skips::not_here(format!("pagemap-scan is {status}"));
    }
    works
}

#[test]
fn a_window_and_a_way_of_watching_that_are_new_are_applied() {
    if !can_watch_writes() {
        return;
    }
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    let text = |window: &str, what: &str| {
        format!("window = \"{window}\"\n[[target]]\nname = \"a\"\nfast = \"1M\"\n{what}")
    };
    let named = format!("pid = {pid}\nsource = \"writes\"");
    let (scene, mut daemon) = Scene::new(&text("100ms", &named));
    daemon.turn(&mut || ()).unwrap();
    let times = |daemon: &Daemon| -> Vec<Option<Duration>> {
        let processes = daemon.kept[0].processes.iter();
        processes.map(Process::time_to_move).collect()
    };
    assert_eq!(times(&daemon), [Some(Duration::from_millis(50))]);
    scene.configure(&text("300ms", &named));
    daemon.reload();
    let said = daemon.take_messages();
    assert_eq!(
        times(&daemon),
        [Some(Duration::from_millis(150))],
        "{said:?}"
    );
    // Guest memory alone, from now on.
    let guest = format!("vm = {pid}\nsource = \"writes\"");
    scene.configure(&text("300ms", &guest));
    daemon.reload();
    assert!(times(&daemon).is_empty(), "all of it is watched as before");
}

/// What a target has borrowed from a pool is of use to others once its processes are gone.
#[test]
fn a_target_that_has_ended_gives_back_what_it_borrowed() {
    if !can_watch_writes() {
        return;
    }
    let mut sleeper = Sleeper::start();
    let (_scene, mut daemon) = Scene::new(&format!(
        "mode = \"pool\"\nwindow = \"100ms\"\nperiod = \"30s\"\nfast = \"10M\"\n\
         [[target]]\nname = \"ends\"\nfast = \"4M\"\nsource = \"writes\"\npid = {}\n\
         [[target]]\nname = \"none yet\"\nfast = \"4M\"\ncommand = \"/no/such/program\"\n",
        sleeper.0.id()
    ));
    daemon.turn(&mut || ()).unwrap();
    assert_eq!(daemon.kept[0].processes.len(), 1);
    // As a window would say.
    let much = Demand {
        wanted: 100 << 20,
        steady: 100 << 20,
    };
    daemon.pool.demand("ends", much);
    let start = Instant::now();
    daemon.share(start);
    let size = |daemon: &Daemon, name| daemon.pool.member(name).unwrap().size;
    let borrowed = size(&daemon, "ends");
    assert!(borrowed > 4 << 20, "{borrowed}");
    sleeper.0.kill().unwrap();
    sleeper.0.wait().unwrap();
    let period = daemon.config.period;
    let alive = &mut || ();
    let (config, messages) = (&daemon.config, &mut daemon.messages);
    daemon.kept[0].turn(config, start, messages, alive);
    assert!(daemon.kept[0].processes.is_empty());
    daemon.share(start + period);
    assert_eq!(size(&daemon, "ends"), borrowed, "it may be started again");
    daemon.share(start + period + Duration::from_secs(1));
    let left = size(&daemon, "ends");
    assert!(left < 4 << 20, "{left} of {borrowed} bytes");
    // Who was not there yet keeps its share.
    assert_eq!(size(&daemon, "none yet"), 4 << 20);
}
