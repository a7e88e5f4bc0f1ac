//! A daemon and processes of this machine, of which nothing is moved.

use std::process::{Child, Command};

use pagetrail::{Capabilities, Technique};

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

#[test]
fn a_window_and_a_way_of_watching_that_are_new_are_applied() {
    let status = Capabilities::probe_one(Technique::PagemapScan);
    if *status != pagetrail::Status::Works {
        return pagetrail_skips::not_here(format!("pagemap-scan is {status}"));
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
