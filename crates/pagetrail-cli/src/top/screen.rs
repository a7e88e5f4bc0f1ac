//! [`Screen`]: the terminal as long as the live view has it; given back on every way out, a panic included.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::state::TopState;
use super::view::{self, Action};

/// What came from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A key that means something.
    Action(Action),
    /// Its size changed.
    Resized,
}

/// The terminal in raw mode, on its alternate screen.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal; a panic gives it back before it speaks.
    pub(crate) fn take() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| {
            // Half of it may have worked.
            let _ = ratatui::try_restore();
        })?;
        Ok(Self { terminal })
    }

    /// Shows the state.
    pub(crate) fn draw(&mut self, state: &TopState) -> io::Result<()> {
        self.terminal.draw(|frame| view::draw(frame, state))?;
        Ok(())
    }

    /// Waits for input, `timeout` at most.
    pub(crate) fn input(&mut self, timeout: Duration) -> io::Result<Option<Input>> {
        if !event::poll(timeout)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) => view::action(key).map(Input::Action),
            Event::Resize(..) => Some(Input::Resized),
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that went away needs nothing.
        let _ = ratatui::try_restore();
    }
}
