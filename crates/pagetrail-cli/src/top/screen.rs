//! [`Screen`]: the terminal as long as the live view has it; given back on every way out, a panic included.
//!
//! Keys are read here and not by `crossterm`, whose loop never ends when `read(2)` fails because the terminal is gone.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::state::TopState;
use super::view::{self, Action};

/// What came from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A key that means something.
    Action(Action),
    /// Its size changed.
    Resized,
    /// It is there no longer.
    Gone,
}

/// The terminal in raw mode, on its alternate screen.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    keyboard: Keyboard,
    size: Option<(u16, u16)>,
}

/// Where keys come from: standard input if that is the terminal, as it is for the raw mode.
enum Keyboard {
    Stdin(io::Stdin),
    Terminal(File),
}

impl AsFd for Keyboard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stdin(stdin) => stdin.as_fd(),
            Self::Terminal(file) => file.as_fd(),
        }
    }
}

impl Screen {
    /// Takes the terminal; a panic gives it back before it speaks.
    pub(crate) fn take() -> io::Result<Self> {
        let stdin = io::stdin();
        let keyboard = match stdin.is_terminal() {
            true => Keyboard::Stdin(stdin),
            false => Keyboard::Terminal(File::open("/dev/tty")?),
        };
        let terminal = ratatui::try_init().inspect_err(|_| {
            // Half of it may have worked.
            let _ = ratatui::try_restore();
        })?;
        Ok(Self {
            terminal,
            keyboard,
            size: size(),
        })
    }

    /// Shows the state.
    pub(crate) fn draw(&mut self, state: &TopState) -> io::Result<()> {
        self.terminal.draw(|frame| view::draw(frame, state))?;
        Ok(())
    }

    /// Waits for input, `timeout` at most.
    pub(crate) fn input(&mut self, timeout: Duration) -> io::Result<Option<Input>> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut waiting = [PollFd::new(&self.keyboard, PollFlags::IN)];
        let ready = match poll(&mut waiting, Some(&timeout)) {
            Ok(_) => waiting[0].revents(),
            // A signal, that of a new size perhaps.
            Err(Errno::INTR) => PollFlags::empty(),
            Err(error) => return Err(error.into()),
        };
        if ready.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(Some(Input::Gone));
        }
        if ready.contains(PollFlags::IN) {
            let mut keys = [0; 256];
            return Ok(match rustix::io::read(&self.keyboard, &mut keys) {
                Ok(0) => Some(Input::Gone),
                Ok(length) => view::action(&keys[..length]).map(Input::Action),
                Err(Errno::INTR | Errno::AGAIN) => None,
                Err(_) => Some(Input::Gone),
            });
        }
        let size = size();
        Ok((size != std::mem::replace(&mut self.size, size)).then_some(Input::Resized))
    }
}

fn size() -> Option<(u16, u16)> {
    let (width, height) = terminal_size::terminal_size_of(io::stdout())?;
    Some((width.0, height.0))
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that went away needs nothing.
        let _ = ratatui::try_restore();
    }
}
