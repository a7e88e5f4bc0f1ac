//! [`Screen`]: the terminal while the live view uses it, restored on every exit, also by a panic.
//!
//! Keys are read with `read(2)` and not by `crossterm`, whose loop never ends if the terminal is
//! gone.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::processes::ProcessTable;
use super::state::TopState;
use super::view::{self, Action};

/// An event from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A key that has an action.
    Action(Action),
    /// The size of the terminal changed.
    Resized,
    /// The terminal is gone.
    Gone,
    /// The descriptor that was waited for besides can be read.
    Woken,
}

/// The terminal in raw mode, on its alternate screen.
pub struct Screen {
    terminal: DefaultTerminal,
    keyboard: Keyboard,
    size: Option<(u16, u16)>,
}

/// Source of the keys: standard input if it is the terminal, as for the raw mode.
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
    /// Switches the terminal to the live view; a panic restores it before printing its message.
    ///
    /// # Errors
    ///
    /// Those of the terminal, which is then as it was.
    pub fn take() -> io::Result<Self> {
        let stdin = io::stdin();
        let keyboard = match stdin.is_terminal() {
            true => Keyboard::Stdin(stdin),
            false => Keyboard::Terminal(File::open("/dev/tty")?),
        };
        let terminal = ratatui::try_init().inspect_err(|_| {
            // Part of the setup may have succeeded.
            let _ = ratatui::try_restore();
        })?;
        Ok(Self {
            terminal,
            keyboard,
            size: size(),
        })
    }

    /// Shows the state of a process, and the processes beside it.
    ///
    /// # Errors
    ///
    /// Those of the terminal.
    pub fn draw(&mut self, state: &TopState, processes: &ProcessTable) -> io::Result<()> {
        self.terminal
            .draw(|frame| view::draw(frame, state, processes))?;
        Ok(())
    }

    /// Waits for input, or until `wake` can be read, `timeout` at most.
    ///
    /// # Errors
    ///
    /// Those of the terminal; one that is gone is [`Input::Gone`].
    pub fn input(&mut self, wake: impl AsFd, timeout: Duration) -> io::Result<Option<Input>> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut waiting = [
            PollFd::new(&self.keyboard, PollFlags::IN),
            PollFd::new(&wake, PollFlags::IN),
        ];
        let (ready, woken) = match poll(&mut waiting, Some(&timeout)) {
            Ok(_) => (waiting[0].revents(), !waiting[1].revents().is_empty()),
            // A signal, that of a new size perhaps.
            Err(Errno::INTR) => (PollFlags::empty(), false),
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
        if woken {
            return Ok(Some(Input::Woken));
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
        // If the terminal is gone, there is nothing to restore.
        let _ = ratatui::try_restore();
    }
}
