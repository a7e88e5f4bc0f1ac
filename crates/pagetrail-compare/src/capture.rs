//! [`Capture`]: a program's output, kept in memory to be compared.
//!
//! A file rather than a pipe: nobody has to read while the program runs, which would cost it
//! processor time, and a child that outlives the program keeps nobody waiting.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::{Command, Stdio};

use crate::behaviour::{Behaviour, Digest, Digester, End};
use anyhow::{Context, Result};
use pagetrail_report::words;
use rustix::fs::{MemfdFlags, memfd_create};

/// The most of standard error that is searched for a message.
const MESSAGE_BYTES: u64 = 4096;
/// The longest message, in characters.
const MESSAGE_CHARS: usize = 200;

/// Where a program's output goes.
#[derive(Debug)]
pub struct Capture {
    output: File,
    errors: File,
}

/// How much a program has written, while it runs.
#[derive(Debug)]
pub struct Written([File; 2]);

impl Written {
    /// Bytes on both outputs.
    pub fn bytes(&self) -> u64 {
        let sizes = self.0.iter().filter_map(|file| file.metadata().ok());
        sizes.map(|metadata| metadata.len()).sum()
    }
}

impl Capture {
    /// Makes room, and has the command write there.
    ///
    /// # Errors
    ///
    /// There is no memory, or no descriptor left.
    pub fn of(command: &mut Command) -> Result<Self> {
        let file = || -> io::Result<File> {
            Ok(memfd_create("pagetrail-output", MemfdFlags::CLOEXEC)?.into())
        };
        let make = || -> io::Result<Self> {
            Ok(Self {
                output: file()?,
                errors: file()?,
            })
        };
        let capture = make().context("cannot make room for the program's output")?;
        capture.set(command)?;
        Ok(capture)
    }

    fn set(&self, command: &mut Command) -> Result<()> {
        let share = |file: &File| file.try_clone().context("cannot duplicate a descriptor");
        command
            .stdin(Stdio::null())
            .stdout(share(&self.output)?)
            .stderr(share(&self.errors)?);
        Ok(())
    }

    /// Follows how much is written.
    ///
    /// # Errors
    ///
    /// There is no descriptor left.
    pub fn written(&self) -> io::Result<Written> {
        Ok(Written([
            self.output.try_clone()?,
            self.errors.try_clone()?,
        ]))
    }

    /// Standard output, up to a length that is more than any test says.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn start_of_output(&mut self) -> Result<String> {
        let mut text = Vec::new();
        self.output.rewind()?;
        (&self.output).take(MESSAGE_BYTES).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The last line on standard error.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn message(&mut self) -> Result<String> {
        let length = self.errors.seek(SeekFrom::End(0))?;
        let from = length.saturating_sub(MESSAGE_BYTES);
        self.errors.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        (&self.errors).take(MESSAGE_BYTES).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        let line = words::printable(line.unwrap_or_default());
        Ok(line.chars().take(MESSAGE_CHARS).collect())
    }

    /// What the program did.
    ///
    /// # Errors
    ///
    /// Its output cannot be read.
    pub fn behaviour(mut self, end: End) -> Result<Behaviour> {
        Ok(Behaviour {
            end,
            output: digest(&mut self.output)?,
            errors: digest(&mut self.errors)?,
            message: self.message()?,
        })
    }
}

fn digest(file: &mut File) -> Result<Digest> {
    file.rewind()?;
    let mut digester = Digester::default();
    let mut piece = vec![0; 64 << 10];
    loop {
        match file
            .read(&mut piece)
            .context("cannot read what was written")?
        {
            0 => return Ok(digester.finish()),
            bytes => digester.add(&piece[..bytes]),
        }
    }
}
