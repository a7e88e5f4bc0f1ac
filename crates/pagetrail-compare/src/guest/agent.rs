//! This program inside a guest: the first process prepares the machine and starts the agent, which
//! runs what the host orders, as it would run it there.

use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{WaitOptions, getpid};

use super::image::{DIRECTORY, ENVIRONMENT, OWNER, WORDS, words};
use super::wire::{self, Order, Reply};
use crate::environment::Environment;
use crate::method::Runner;
use crate::sys::machine;

/// The host's end is the second serial port.
const PORT: &str = "/dev/ttyS1";

/// Whether this is the first process of a guest. Its arguments do not say so: the kernel passes on
/// parameters that it does not know itself.
#[must_use]
pub fn is_first_process() -> bool {
    getpid().is_init() && Path::new(WORDS).exists()
}

/// Is the first process of a guest, which is switched off when the agent ends, so that this comes
/// back only where it cannot be. What goes wrong is said by `say`: to the console, of which the
/// host reads the last line.
pub fn first_process(say: impl Fn(&str)) {
    if let Err(error) = prepare() {
        say(&format!("{error:#}"));
    }
    if let Err(error) = machine::switch_off() {
        say(&format!("the guest cannot be switched off: {error}"));
    }
}

/// Is the agent, which the first process starts: runs what the host orders, until it is gone.
///
/// # Errors
///
/// Standard input or output ends in the middle of a line.
pub fn serve(runner: &mut dyn Runner) -> Result<()> {
    let mut out = io::stdout().lock();
    let mut say = |reply: &Reply| -> io::Result<()> {
        out.write_all(wire::line(reply).as_bytes())?;
        out.flush()
    };
    let uname = rustix::system::uname();
    say(&Reply::Ready {
        kernel: uname.release().to_string_lossy().into_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
    })?;
    let mut lines = io::stdin().lock().lines();
    while let Some(line) = lines.next() {
        let Some(order) = wire::read::<Order>(&line?) else {
            continue;
        };
        say(&Reply::Prepared)?;
        lines.next().transpose()?;
        let outcome = runner.run(&order.suite, &order.test, &Environment::Native);
        say(&Reply::Ended)?;
        lines.next().transpose()?;
        say(&match outcome {
            Ok(outcome) => Reply::Done(outcome),
            Err(error) => Reply::Refused(format!("{error:#}")),
        })?;
    }
    Ok(())
}

/// Makes the machine one in which programs run, and runs the agent to its end.
fn prepare() -> Result<()> {
    for (kind, place) in [
        (c"devtmpfs", c"/dev"),
        (c"proc", c"/proc"),
        (c"sysfs", c"/sys"),
    ] {
        if let Err(error) = machine::mount(kind, place)
            && error.kind() != io::ErrorKind::ResourceBusy
        {
            let place = place.to_string_lossy();
            return Err(error).with_context(|| format!("cannot mount {place}"));
        }
    }
    // Programs do without these where the kernel does.
    for (kind, place) in [(c"tmpfs", c"/dev/shm"), (c"devpts", c"/dev/pts")] {
        let made = fs::create_dir_all(place.to_str()?);
        let _ = made.and_then(|()| machine::mount(kind, place));
    }
    let _ = machine::loopback_up();
    let port = File::options().read(true).write(true).open(PORT);
    let port = port.with_context(|| format!("cannot open {PORT}"))?;
    machine::make_raw(&port).with_context(|| format!("cannot set up {PORT}"))?;
    let read = |path: &str| fs::read(path).with_context(|| format!("cannot read {path}"));
    let mut agent = Command::new(std::env::current_exe()?);
    agent.args(words(&read(WORDS)?)).env_clear();
    for variable in words(&read(ENVIRONMENT)?) {
        let variable = variable.into_vec();
        // A name may begin with the sign.
        let sign = variable.iter().skip(1).position(|byte| *byte == b'=');
        if let Some(at) = sign.map(|at| at + 1) {
            let (name, value) = (variable[..at].to_vec(), variable[at + 1..].to_vec());
            agent.env(
                std::ffi::OsString::from_vec(name),
                std::ffi::OsString::from_vec(value),
            );
        }
    }
    agent.current_dir(std::ffi::OsString::from_vec(read(DIRECTORY)?));
    let owner = String::from_utf8(read(OWNER)?)?;
    let mut ids = owner.split(' ').filter_map(|id| id.parse().ok());
    if let (Some(uid), Some(gid)) = (ids.next(), ids.next())
        && uid != 0
    {
        agent.uid(uid).gid(gid);
    }
    agent.stdin(port.try_clone()?).stdout(port);
    let agent = agent.spawn().context("cannot start the agent")?.id();
    // The first process waits for all that nobody else waits for.
    loop {
        match rustix::process::wait(WaitOptions::empty())? {
            Some((pid, _)) if pid.as_raw_pid() as u32 == agent => return Ok(()),
            _ => {}
        }
    }
}
