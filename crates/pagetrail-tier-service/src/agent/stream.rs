//! [`Stream`]: a connection whose reads and writes have a deadline, so that the other end cannot
//! make this one wait for ever, not even by a byte now and then.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::address::{AgentAddress, ListenAddress};
use crate::sys::vsock;

/// A connection.
pub(super) struct Stream {
    file: File,
    deadline: Instant,
}

impl Stream {
    /// Takes over a connection.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            file: fd.into(),
            deadline: Instant::now(),
        })
    }

    /// Connects to an agent.
    pub(super) fn connect(address: &AgentAddress, timeout: Duration) -> io::Result<Self> {
        Self::new(match address {
            AgentAddress::Vsock { cid, port } => vsock::connect(*cid, *port)?,
            AgentAddress::Unix(path) => unix(path)?,
            AgentAddress::Tcp(address) => TcpStream::connect_timeout(address, timeout)?.into(),
        })
    }

    /// All that is read and written from now on must be done within this time.
    pub(super) fn within(&mut self, timeout: Duration) {
        self.deadline = Instant::now() + timeout;
    }

    /// Whether there is something to read, or the connection has ended, within a time.
    pub(super) fn is_ready(&self, timeout: Duration) -> io::Result<bool> {
        wait(&self.file, PollFlags::IN, timeout)
    }

    /// Reads what has come, and forgets it.
    pub(super) fn drain(&mut self) {
        let mut bytes = [0; 4096];
        while matches!(self.file.read(&mut bytes), Ok(read) if read > 0) {}
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match !left.is_zero() && wait(&self.file, flags, left)? {
            true => Ok(()),
            false => Err(late()),
        }
    }
}

/// Connects to a socket in the file system, at once or never: where the queue of its listener is
/// full, `connect(2)` waits for ever (`unix_wait_for_peer` in `net/unix/af_unix.c`), and QEMU
/// accepts one host at a time.
fn unix(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(socket),
        Err(Errno::AGAIN) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "the queue of its listener is full: it serves another host, or hangs",
        )),
        Err(errno) => Err(errno.into()),
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing came in time")
}

fn wait(fd: impl AsFd, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
    let fd = fd.as_fd();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Also where there is always something to read.
            if Instant::now() >= self.deadline {
                return Err(late());
            }
            match self.file.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            if Instant::now() >= self.deadline {
                return Err(late());
            }
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for hosts.
pub(super) enum Listener {
    Vsock(OwnedFd),
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
    /// Open all the time: what comes while it is not is lost.
    Device(File),
}

impl Listener {
    pub(super) fn bind(address: &ListenAddress) -> io::Result<Self> {
        Ok(match address {
            ListenAddress::Vsock { port } => Self::Vsock(vsock::bound(*port)?),
            ListenAddress::Unix(path) => {
                let listener = Self::Unix(UnixListener::bind(path)?, path.clone());
                // What a machine does is its owner's affair.
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
                listener
            }
            ListenAddress::Tcp(address) => Self::Tcp(TcpListener::bind(address)?),
            ListenAddress::Device(path) => {
                Self::Device(OpenOptions::new().read(true).write(true).open(path)?)
            }
        })
    }

    /// The next host, if one comes within a time.
    pub(super) fn accept(&self, timeout: Duration) -> io::Result<Option<Stream>> {
        let fd = match self {
            Self::Vsock(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
            Self::Device(port) => return from_device(port, timeout),
        };
        if !wait(fd, PollFlags::IN, timeout)? {
            return Ok(None);
        }
        let connection: OwnedFd = match self {
            Self::Vsock(listener) => {
                let connection = rustix::net::accept(listener)?;
                // Other guests of the host are not to know what this one does.
                if vsock::peer(&connection)? != vsock::HOST {
                    return Ok(None);
                }
                connection
            }
            Self::Unix(listener, _) => listener.accept()?.0.into(),
            Self::Tcp(listener) => listener.accept()?.0.into(),
            Self::Device(_) => return Ok(None),
        };
        Stream::new(connection).map(Some)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Who listens next wants the name.
            let _ = fs::remove_file(path);
        }
    }
}

/// A serial port has no connections: there is a host when something comes.
fn from_device(port: &File, timeout: Duration) -> io::Result<Option<Stream>> {
    let fd = port.as_fd();
    let timespec = Timespec::try_from(timeout).map_err(io::Error::other)?;
    let mut asked = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut asked, Some(&timespec)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let found = asked[0].revents();
    if found.contains(PollFlags::IN) && !found.contains(PollFlags::HUP) {
        return Stream::new(port.try_clone()?.into()).map(Some);
    }
    // Hung up, of which a poll does not wait for the end.
    if !found.is_empty() {
        std::thread::sleep(timeout);
    }
    Ok(None)
}
