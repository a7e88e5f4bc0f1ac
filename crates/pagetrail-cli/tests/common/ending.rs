//! Waits for a program's end. One that does not come to it is ended, with the state of its threads
//! in the message.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Many times what the longest takes in an emulated guest beside other load.
const TIMEOUT: Duration = Duration::from_secs(400);

/// Runs a program to its end. Panics, with all that it has printed, where it has none.
#[track_caller]
pub(crate) fn ended(command: &mut Command) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    let stdout = gathered(child.stdout.take().expect("a pipe"));
    let stderr = gathered(child.stderr.take().expect("a pipe"));
    let deadline = Instant::now() + TIMEOUT;
    let (status, hung) = loop {
        if let Some(status) = child.try_wait().expect("its state") {
            break (status, None);
        }
        if Instant::now() > deadline {
            let states = states(child.id());
            child.kill().expect("it can be ended");
            break (child.wait().expect("its end"), Some(states));
        }
        thread::sleep(Duration::from_millis(20));
    };
    let gather = |reader: thread::JoinHandle<Vec<u8>>| reader.join().expect("what it printed");
    if let Some(states) = hung {
        // A child of it may hold the pipes: what they brought is lost then, and the test does not
        // hang as well.
        let deadline = Instant::now() + Duration::from_secs(5);
        while !(stdout.is_finished() && stderr.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let printed = |reader: thread::JoinHandle<Vec<u8>>| match reader.is_finished() {
            true => String::from_utf8_lossy(&gather(reader)).into_owned(),
            false => "(held open)".to_owned(),
        };
        let (stdout, stderr) = (printed(stdout), printed(stderr));
        panic!("{command:?} did not end\n-- output:\n{stdout}\n-- errors:\n{stderr}\n{states}");
    }
    Output {
        status,
        stdout: gather(stdout),
        stderr: gather(stderr),
    }
}

/// How a run ended and what it printed, to be read.
pub(crate) fn described(who: &str, output: &Output) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    let (stdout, stderr) = (
        String::from_utf8_lossy(stdout),
        String::from_utf8_lossy(stderr),
    );
    format!("-- {who}: {status}; output:\n{stdout}\n-- {who}: errors:\n{stderr}\n")
}

fn gathered(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}

/// What every thread of a process and of its children is at.
fn states(process: u32) -> String {
    let mut text = String::new();
    let mut processes = vec![process];
    while let Some(process) = processes.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let read = |file: &str| {
                let text = fs::read_to_string(thread.path().join(file));
                text.unwrap_or_default().trim().to_owned()
            };
            let status = read("status");
            let lines = status.lines().filter(|line| {
                ["Name", "State", "SigPnd", "ShdPnd", "SigBlk"]
                    .iter()
                    .any(|word| line.starts_with(word))
            });
            let lines: Vec<&str> = lines.collect();
            let _ = writeln!(
                text,
                "-- {}: {} | {} | {}\n{}",
                thread.path().display(),
                lines.join(" "),
                read("wchan"),
                read("syscall"),
                read("stack"),
            );
            let children = read("children");
            processes.extend(
                children
                    .split(' ')
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
    }
    text
}
