//! [`Link`]: a connection to CRIU, by requests.

use super::protocol::{Layout, Request, SHORT_BYTES};
use crate::error::{Error, Result};
use crate::format::wire::Malformed;
use std::io::{self, BufReader, ErrorKind, Read, Write};

/// How much is read ahead, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// What CRIU reads in the end: all went well.
const DONE: i32 = 0;

/// A connection, and how its client lays out requests.
pub(super) struct Link<S> {
    stream: BufReader<S>,
    layout: Option<Layout>,
}

/// The other side does not keep to the protocol.
pub(super) fn broken(Malformed(reason): Malformed) -> Error {
    Error::Peer(reason.into())
}

fn lost(cause: io::Error) -> Error {
    Error::io("the connection to CRIU failed")(cause)
}

impl<S: Read + Write> Link<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream: BufReader::with_capacity(BUFFER_BYTES, stream),
            layout: None,
        }
    }

    /// The next request; `None` once the other side has closed the connection.
    pub(super) fn next(&mut self) -> Result<Option<Request>> {
        let mut bytes = [0; 2 * SHORT_BYTES];
        let mut there = 0;
        while there < SHORT_BYTES {
            match self.stream.read(&mut bytes[there..SHORT_BYTES]) {
                Ok(0) if there == 0 => return Ok(None),
                Ok(0) => return Err(lost(ErrorKind::UnexpectedEof.into())),
                Ok(count) => there += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(error)),
            }
        }
        let mut first = [0; SHORT_BYTES];
        first.copy_from_slice(&bytes[..SHORT_BYTES]);
        let layout = *self.layout.get_or_insert_with(|| Layout::of(&first));
        self.read(&mut bytes[SHORT_BYTES..layout.bytes()])?;
        let request = layout.parse(&bytes[..layout.bytes()]).map_err(broken)?;
        Ok(Some(request))
    }

    /// Fills a buffer with what comes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.stream.read_exact(buffer).map_err(lost)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let stream = self.stream.get_mut();
        let written = stream.write_all(bytes).and_then(|()| stream.flush());
        written.map_err(lost)
    }

    /// Answers a request to open a space.
    pub(super) fn opened(&mut self, has_parent: bool) -> Result<()> {
        self.write(&[has_parent.into()])
    }

    /// Answers the question for a parent.
    pub(super) fn has_parent(&mut self, has_parent: bool) -> Result<()> {
        self.write(&i32::from(has_parent).to_ne_bytes())
    }

    /// Answers a request for pages.
    pub(super) fn found(&mut self, pid: u32, address: u64, pages: u64, bytes: &[u8]) -> Result<()> {
        let layout = self.layout.unwrap_or(Layout::Short);
        let mut answer = layout.found(pid, address, pages);
        answer.extend_from_slice(bytes);
        self.write(&answer)
    }

    /// Says that all is done and safe, and waits until the other side has gone: closing first would
    /// throw away what it has not read.
    pub(super) fn done(&mut self) -> Result<()> {
        self.write(&DONE.to_ne_bytes())?;
        let mut rest = [0; SHORT_BYTES];
        // What is left of a longer request, or nothing: the answer was sent already.
        let _ = self.stream.read(&mut rest);
        Ok(())
    }
}
