//! [`Top`]: `pagetrail top` on a terminal of ours, and how long it takes from a key to what it
//! shows.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{Bench, Running};

const ROWS: u16 = 50;
const COLUMNS: u16 = 160;
/// What the last line says of the key `p` while the table of processes is open.
const OPEN: &str = "p this process";
const SHUT: &str = "p processes";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Between two keys, so that they fall anywhere between rounds.
const PAUSE: Duration = Duration::from_millis(37);

/// A live view that runs.
pub(super) struct Top {
    keyboard: File,
    output: Receiver<Vec<u8>>,
    screen: Screen,
    _program: Running,
}

impl Top {
    pub(super) fn start(bench: &Bench, pid: u32, interval: &str) -> Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let path = ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = File::from(open(path, flags, Mode::empty())?);
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size)?;
        let mut command = Command::new(&bench.pagetrail);
        command.args(["top", "-p", &pid.to_string(), "--interval", interval]);
        command.env("TERM", "xterm").stdin(terminal.try_clone()?);
        command.stdout(terminal).stderr(Stdio::null());
        let program = Running(command.spawn()?);
        // It has the only descriptors of the terminal from here on, so that reads end with it.
        drop(command);
        let keyboard = File::from(ours);
        let mut reader = keyboard.try_clone()?;
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while let Ok(bytes @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..bytes].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut top = Self {
            keyboard,
            output,
            screen: Screen::new(),
            _program: program,
        };
        top.wait_for(SHUT).context("top does not begin")?;
        Ok(top)
    }

    /// The times from a key that opens or shuts the table of processes to what it asks for, in ms.
    pub(super) fn latencies(mut self, keys: usize) -> Result<Vec<f64>> {
        let mut latencies = Vec::with_capacity(keys);
        for key in 0..keys {
            // What comes by itself meanwhile is no answer.
            let rest = Instant::now() + PAUSE;
            while let Some(left) = rest.checked_duration_since(Instant::now()) {
                if let Ok(bytes) = self.output.recv_timeout(left) {
                    self.screen.show(&bytes);
                }
            }
            let began = Instant::now();
            self.keyboard.write_all(b"p")?;
            self.wait_for(if key % 2 == 0 { OPEN } else { SHUT })?;
            latencies.push(began.elapsed().as_secs_f64() * 1e3);
        }
        self.keyboard.write_all(b"q")?;
        Ok(latencies)
    }

    /// Waits until the last line has these words.
    fn wait_for(&mut self, words: &str) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !self.screen.last_line().contains(words) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.screen.show(&bytes),
                Err(RecvTimeoutError::Timeout) => bail!("the screen does not say '{words}'"),
                Err(RecvTimeoutError::Disconnected) => bail!("it has ended"),
            }
        }
        Ok(())
    }
}

/// The text on a terminal, as far as the live view needs one: text and places (`console_codes(4)`).
struct Screen {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// Bytes of a sequence or a character that is not complete.
    rest: Vec<u8>,
}

impl Screen {
    fn new() -> Self {
        Self {
            lines: vec![vec![' '; COLUMNS.into()]; ROWS.into()],
            row: 0,
            column: 0,
            rest: Vec::new(),
        }
    }

    fn last_line(&self) -> String {
        self.lines.last().into_iter().flatten().collect()
    }

    fn show(&mut self, bytes: &[u8]) {
        let mut bytes = [std::mem::take(&mut self.rest), bytes.to_vec()].concat();
        let mut at = 0;
        while at < bytes.len() {
            let Some(length) = self.one(&bytes[at..]) else {
                break;
            };
            at += length;
        }
        self.rest = bytes.split_off(at);
    }

    /// Takes in a sequence or a character; how long it is, if all of it is there.
    fn one(&mut self, bytes: &[u8]) -> Option<usize> {
        match bytes {
            [0x1b, b'[', sequence @ ..] => {
                let end = sequence
                    .iter()
                    .position(|byte| (0x40..0x7f).contains(byte))?;
                let text = String::from_utf8_lossy(&sequence[..end]).into_owned();
                let mut numbers = text.split(';').map(|number| number.parse().unwrap_or(1));
                match sequence[end] {
                    b'H' => {
                        let mut next = || numbers.next().unwrap_or(1).max(1) - 1;
                        (self.row, self.column) = (next(), next());
                    }
                    b'J' => *self = Self::new(),
                    _ => {}
                }
                Some(end + 3)
            }
            // Alone, or of a sequence of another kind, of two bytes.
            [0x1b, _, ..] => Some(2),
            [0x1b] => None,
            [b'\r', ..] => {
                self.column = 0;
                Some(1)
            }
            [b'\n', ..] => {
                self.row += 1;
                Some(1)
            }
            _ => {
                let length = match bytes[0] {
                    0..0x80 => 1,
                    0x80..0xe0 => 2,
                    0xe0..0xf0 => 3,
                    _ => 4,
                };
                let text = std::str::from_utf8(bytes.get(..length)?).unwrap_or("?");
                let cell = self.lines.get_mut(self.row);
                if let Some(cell) = cell.and_then(|line| line.get_mut(self.column)) {
                    *cell = text.chars().next().unwrap_or('?');
                }
                self.column += 1;
                Some(length)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stands_where_it_was_put_however_it_came() {
        let bytes = format!("\x1b[2J\x1b[{ROWS};3Hab\x1b[1mé\x1b[0m\x1b[{ROWS};4HX");
        let mut screen = Screen::new();
        for byte in bytes.bytes() {
            screen.show(&[byte]);
        }
        assert!(screen.last_line().starts_with("  aXé "));
        screen.show(b"\x1b[2J");
        assert_eq!(screen.last_line().trim(), "");
    }
}
