//! [`Notifier`]: tells the service manager that started this process how it is (`sd_notify(3)`),
//! and that it is alive.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The way to the service manager; without one, nothing is sent.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// A message is due so often, or the manager takes the process for hung.
    every: Option<Duration>,
    sent: Option<Instant>,
    /// When the manager was last asked to wait for the start.
    extended: Option<Instant>,
}

/// How much longer the manager is to wait for the start, from now on, and how often it is asked to.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_EVERY: Duration = Duration::from_secs(10);

impl Notifier {
    /// The manager that the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub fn from_environment() -> Self {
        let address = env::var_os("NOTIFY_SOCKET");
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        // The variables of a process that started this one mean that one.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours);
        Self::new(address.as_deref().map(OsStrExt::as_bytes), watchdog)
    }

    /// A path, or with `@` an abstract name; and after how many microseconds of silence the manager
    /// takes action.
    fn new(address: Option<&[u8]>, watchdog_us: Option<u64>) -> Self {
        let address = address.and_then(|name| match name {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)).ok(),
            _ => None,
        });
        let manager = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        // Never wait for a manager that does not read.
        let manager = manager.filter(|(socket, _)| socket.set_nonblocking(true).is_ok());
        Self {
            every: watchdog_us
                .filter(|us| *us > 0 && manager.is_some())
                .map(|us| Duration::from_micros(us / 2)),
            manager,
            sent: None,
            extended: None,
        }
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.manager {
            // A manager that has gone is no reason to stop.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    /// The daemon keeps its targets from now on.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// The daemon is ending.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// One line about what it does.
    pub fn status(&self, line: &str) {
        self.send(&format!("STATUS={}", line.replace('\n', " ")));
    }

    /// The daemon is still starting: the manager is to wait longer for [`Self::ready`] than it
    /// would. That is said again in time.
    pub fn starting(&mut self, now: Instant) {
        if self.extended.is_none_or(|then| now - then >= START_EVERY) {
            self.extended = Some(now);
            self.send(&format!(
                "EXTEND_TIMEOUT_USEC={}",
                START_TIMEOUT.as_micros()
            ));
        }
    }

    /// The daemon is alive; sent twice in the time after which the manager takes action.
    pub fn alive(&mut self, now: Instant) {
        let due = |every| self.sent.is_none_or(|sent| now - sent >= every);
        if self.every.is_some_and(due) {
            self.sent = Some(now);
            self.send("WATCHDOG=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 100];
        let mut all = Vec::new();
        while let Ok(length) = manager.recv(&mut buffer) {
            all.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        all
    }

    #[test]
    fn a_manager_hears_of_the_start_the_end_and_of_life() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("@pagetrail-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_name).unwrap();
        let path = path.as_os_str().as_bytes();
        for (manager, address) in [(by_path, path), (by_name, name.as_bytes())] {
            manager.set_nonblocking(true).unwrap();
            let mut notifier = Notifier::new(Some(address), Some(2_000_000));
            let start = Instant::now();
            for s in [0, 5, 10] {
                notifier.starting(start + Duration::from_secs(s));
            }
            notifier.ready();
            notifier.status("2 targets\nand more");
            for ms in [0, 500, 1000, 1500, 2500] {
                notifier.alive(start + Duration::from_millis(ms));
            }
            notifier.stopping();
            let expected = [
                "EXTEND_TIMEOUT_USEC=60000000",
                "EXTEND_TIMEOUT_USEC=60000000",
                "READY=1",
                "STATUS=2 targets and more",
                "WATCHDOG=1",
                "WATCHDOG=1",
                "WATCHDOG=1",
                "STOPPING=1",
            ];
            assert_eq!(said(&manager), expected);
        }
    }

    #[test]
    fn without_a_manager_nothing_is_sent() {
        for address in [
            None,
            Some(&b"vsock:2:1"[..]),
            Some(b""),
            Some(b"/nowhere/at/all"),
        ] {
            let mut notifier = Notifier::new(address, Some(1000));
            notifier.ready();
            notifier.alive(Instant::now());
        }
    }

    /// Nobody reads: the daemon goes on.
    #[test]
    fn a_manager_that_does_not_read_stops_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(Some(path.as_os_str().as_bytes()), None);
        for _ in 0..10_000 {
            notifier.ready();
        }
    }
}
