//! [`Endpoint`]: small texts by HTTP, at a TCP address or a Unix socket: numbers for Prometheus,
//! the status of a daemon.
//!
//! Each client is answered by a thread of its own, a bounded number of them at a time, and none is
//! waited for long: one that does not ask, or asks a byte at a time, keeps no other client waiting.
//! Where too many are connected, the oldest connection is closed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

mod families;

pub use families::{Families, Family, Format, Kind};

/// How long a client may take from its connection to the end of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer is waited for, all of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Clients at a time; the next one closes the oldest connection.
const CLIENTS_MAX: usize = 16;
/// An answer longer than this is none of ours.
const ANSWER_BYTES_MAX: u64 = 1 << 26;
/// A request longer than this is none of ours.
const LINES_MAX: usize = 100;
const REQUEST_BYTES_MAX: u64 = 1 << 14;
/// Errors of a listener that come at once again, when descriptors have run out, say.
const REST: Duration = Duration::from_millis(100);

/// Where to listen, or to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err("after unix: comes an absolute path: unix:/run/pagetrail.sock".into()),
            };
        }
        let address = text.parse().map(Self::Tcp);
        address.map_err(|_| {
            "it must be ADDRESS:PORT, as in 127.0.0.1:9465, or unix:/an/absolute/path".into()
        })
    }
}

/// What is served, by path.
type Pages = BTreeMap<&'static str, Page>;

/// A text, and since when it is served.
#[derive(Clone, Debug)]
struct Page {
    content_type: &'static str,
    text: String,
    since: Instant,
}

/// Texts that are served, until it is dropped.
#[derive(Debug)]
pub struct Endpoint {
    pages: Arc<Mutex<Pages>>,
    address: Address,
    listening: Option<Listening>,
    /// A socket to remove in the end.
    socket: Option<PathBuf>,
}

impl Endpoint {
    /// Listens, and serves nothing yet.
    pub fn listen(address: &Address) -> Result<Self> {
        Self::listen_with_timeout(address, TIMEOUT)
    }

    fn listen_with_timeout(address: &Address, timeout: Duration) -> Result<Self> {
        let pages = Arc::new(Mutex::new(Pages::new()));
        let shared = Arc::clone(&pages);
        let cannot = || format!("cannot listen at {address}");
        let (mut bound, mut socket) = (address.clone(), None);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let (listener, thread) = match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address).with_context(cannot)?;
                bound = Address::Tcp(listener.local_addr().unwrap_or(*address));
                let copy = listener.try_clone().with_context(cannot)?;
                let serve = move || serve(listener.incoming(), shared, timeout, &over);
                (OwnedFd::from(copy), thread::spawn(serve))
            }
            Address::Unix(path) => {
                let listener = bind(path).with_context(cannot)?;
                // For the user that runs this, and no other.
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))
                    .with_context(cannot)?;
                socket = Some(path.clone());
                let copy = listener.try_clone().with_context(cannot)?;
                let serve = move || serve(listener.incoming(), shared, timeout, &over);
                (OwnedFd::from(copy), thread::spawn(serve))
            }
        };
        Ok(Self {
            pages,
            address: bound,
            listening: Some(Listening {
                listener,
                is_over,
                thread,
            }),
            socket,
        })
    }

    /// Where it listens: also the port, where any was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves a text from now on. The header `Age` of an answer says for how many seconds it has
    /// been the same one: who serves is a thread of its own, which answers also when the others
    /// hang.
    pub fn set(&self, path: &'static str, content_type: &'static str, text: String) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let page = Page {
            content_type,
            text,
            since: Instant::now(),
        };
        pages.insert(path, page);
    }
}

/// A thread that accepts clients.
#[derive(Debug)]
struct Listening {
    listener: OwnedFd,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Listening {
    /// Ends the thread, after which nobody listens at the address.
    fn end(self) {
        self.is_over.store(true, Ordering::SeqCst);
        // shutdown(2) is the same for all sockets, and wakes who accepts at one that listens.
        if UnixStream::from(self.listener)
            .shutdown(Shutdown::Both)
            .is_ok()
        {
            let _ = self.thread.join();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.end();
        }
        if let Some(path) = &self.socket {
            let _ = fs::remove_file(path);
        }
    }
}

/// Binds a socket, also where one was left that nobody listens at.
fn bind(path: &PathBuf) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path) {
            Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            _ => Err(error),
        },
        outcome => outcome,
    }
}

/// What a client is connected by.
trait Stream: Read + Write + Send + 'static {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
    /// A function that ends the connection, for another thread.
    fn closer(&self) -> io::Result<Closer>;
}

/// Ends a connection: reads and writes of it fail from then on.
type Closer = Box<dyn Fn() + Send>;

impl Stream for TcpStream {
    fn closer(&self) -> io::Result<Closer> {
        let stream = self.try_clone()?;
        Ok(Box::new(move || drop(stream.shutdown(Shutdown::Both))))
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Stream for UnixStream {
    fn closer(&self) -> io::Result<Closer> {
        let stream = self.try_clone()?;
        Ok(Box::new(move || drop(stream.shutdown(Shutdown::Both))))
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

/// A connection that has until a moment for all that it does.
struct Limited<S> {
    stream: S,
    deadline: Instant,
}

impl<S: Stream> Limited<S> {
    fn new(stream: S, timeout: Duration) -> Self {
        Self {
            stream,
            deadline: Instant::now() + timeout,
        }
    }

    fn in_time(&mut self) -> io::Result<&mut S> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_timeout(left)?;
        Ok(&mut self.stream)
    }
}

impl<S: Stream> Read for Limited<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.in_time()?.read(into)
    }
}

impl<S: Stream> Write for Limited<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.in_time()?.flush()
    }
}

/// The clients that are being answered, the oldest first.
#[derive(Default)]
struct Busy {
    clients: Mutex<VecDeque<(u64, Closer)>>,
    fewer: Condvar,
}

/// One of those clients, as long as it is answered.
struct Place {
    busy: Arc<Busy>,
    number: u64,
}

impl Place {
    /// Takes a place, after the oldest connection has ended if there is none.
    fn take(busy: &Arc<Busy>, number: u64, closer: Closer) -> Self {
        let clients = busy.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= CLIENTS_MAX
            && let Some((_, close)) = clients.front()
        {
            close();
        }
        let full = |clients: &mut VecDeque<_>| clients.len() >= CLIENTS_MAX;
        let waited = busy.fewer.wait_while(clients, full);
        let mut clients = waited.unwrap_or_else(PoisonError::into_inner);
        clients.push_back((number, closer));
        drop(clients);
        let busy = Arc::clone(busy);
        Self { busy, number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let clients = self.busy.clients.lock();
        let mut clients = clients.unwrap_or_else(PoisonError::into_inner);
        clients.retain(|(number, _)| *number != self.number);
        drop(clients);
        self.busy.fewer.notify_one();
    }
}

fn serve<S: Stream>(
    clients: impl Iterator<Item = io::Result<S>>,
    pages: Arc<Mutex<Pages>>,
    timeout: Duration,
    is_over: &AtomicBool,
) {
    let busy = Arc::default();
    for (number, client) in (0..).zip(clients) {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let closer = |client: S| client.closer().map(|closer| (client, closer));
        let Ok((client, closer)) = client.and_then(closer) else {
            thread::sleep(REST);
            continue;
        };
        let place = Place::take(&busy, number, closer);
        let pages = Arc::clone(&pages);
        let answering = thread::Builder::new().spawn(move || {
            // A client that went away is no concern of ours.
            drop(answer(Limited::new(client, timeout), &pages));
            drop(place);
        });
        if answering.is_err() {
            thread::sleep(REST);
        }
    }
}

fn answer(mut stream: impl Read + Write, pages: &Mutex<Pages>) -> io::Result<()> {
    let request = request(&mut stream)?;
    let pages = pages.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let found = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET", path, ..] => pages.get(path),
        _ => None,
    };
    let paths = || pages.keys().copied().collect::<Vec<_>>().join(" and ");
    let (status, content_type, body, age) = match found {
        Some(page) => (
            "200 OK",
            page.content_type,
            page.text.clone(),
            format!("Age: {}\r\n", page.since.elapsed().as_secs()),
        ),
        None => (
            "404 Not Found",
            "text/plain",
            format!("see {}\n", paths()),
            String::new(),
        ),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{age}\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The first line of a request; the others are read and forgotten.
fn request(stream: &mut impl Read) -> io::Result<String> {
    let mut lines = BufReader::new(stream.take(REQUEST_BYTES_MAX))
        .lines()
        .take(LINES_MAX);
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    Ok(first)
}

/// Asks for a path.
pub fn get(address: &Address, path: &str) -> Result<String> {
    get_with_age(address, path).map(|(text, _)| text)
}

/// Asks for a path, and for how long its text has been the same one, to the second; zero where the
/// answer does not say.
pub fn get_with_age(address: &Address, path: &str) -> Result<(String, Duration)> {
    match address {
        Address::Tcp(tcp) => ask(TcpStream::connect(tcp), address, path),
        Address::Unix(socket) => ask(UnixStream::connect(socket), address, path),
    }
}

fn ask<S: Stream>(
    stream: io::Result<S>,
    address: &Address,
    path: &str,
) -> Result<(String, Duration)> {
    let stream = stream.with_context(|| format!("nobody answers at {address}"))?;
    let failed = || format!("cannot ask at {address}");
    let mut stream = Limited::new(stream, ANSWER_TIMEOUT);
    // At once: a daemon may answer as soon as it has read something.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).with_context(failed)?;
    let mut text = String::new();
    let mut answer = stream.take(ANSWER_BYTES_MAX);
    answer.read_to_string(&mut text).with_context(failed)?;
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => {
            Ok((body.to_owned(), age_of(head)))
        }
        _ => bail!("{address} has no {path}"),
    }
}

fn age_of(head: &str) -> Duration {
    let value = head.lines().find_map(|line| line.strip_prefix("Age: "));
    let seconds = value.and_then(|value| value.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

#[cfg(test)]
mod tests;
