//! `pagetrail page-server`: CRIU's page server over TCP, from and to a store.
//!
//! Each connection has a thread of its own, a bounded number of them at a time.

pub(crate) mod args;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagetrail_checkpoint::criu::{Handled, PageServer};
use pagetrail_criu::check_peer;
use pagetrail_report::words;
use serde_json::json;

use self::args::PageServerArgs;
use crate::commands::checkpoint::{self, json as documents, plain, text};
use crate::exit;
use crate::session::signals::{Addressee, Signals};

/// How soon a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
/// Connections at a time.
const CLIENTS_MAX: usize = 64;
/// How long a connection may stand still. CRIU sends its pages as fast as it can, and asks for some
/// until it has all.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Errors of a listener that come at once again, when descriptors have run out, say.
const REST: Duration = Duration::from_millis(100);

/// Runs the subcommand.
pub(crate) fn run(args: &PageServerArgs) -> Result<ExitCode> {
    let signals = Signals::take(Addressee::Us).context("cannot handle signals")?;
    let store = checkpoint::store(&args.store, &args.writing, args.at.is_none())?;
    let at = args.at.as_ref().map(|which| which.number(&store));
    let at = at.transpose().map_err(plain)?;
    if let Some(number) = at {
        // Now, and not when a restored process waits for it.
        store.image(number).map_err(plain)?;
    }
    let options = args.writing.options(false);
    let timeout = args.writing.lock_wait;
    let writable = store.clone();
    let server = PageServer::new(store, at, move || {
        checkpoint::lock::retried(timeout, || writable.writer(options))
    });
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen at {}", args.listen))?;
    let own = listener.local_addr().context("cannot listen")?;
    exit::message(&format!("listening at {own}"));
    if !own.ip().is_loopback() {
        exit::message(&format!(
            "all who reach {own} can read and write the checkpoints: CRIU's protocol knows no passwords"
        ));
    }
    let (done, outcomes) = mpsc::channel();
    listen(listener, Arc::new(server), done)?;
    report(args, signals, &outcomes)
}

/// What one connection came to.
struct Outcome {
    peer: SocketAddr,
    handled: Result<Handled>,
    took: Duration,
}

/// Takes connections, in a thread of its own that ends with the process.
fn listen(listener: TcpListener, server: Arc<PageServer>, done: Sender<Outcome>) -> Result<()> {
    let serving = Arc::new(AtomicUsize::new(0));
    let accepting = move || {
        loop {
            let Ok((stream, peer)) = listener.accept() else {
                thread::sleep(REST);
                continue;
            };
            if serving.load(Ordering::Relaxed) >= CLIENTS_MAX {
                exit::message(&format!(
                    "{peer} is not served: there are {CLIENTS_MAX} connections already"
                ));
                continue;
            }
            serving.fetch_add(1, Ordering::Relaxed);
            let (server, done, served) = (server.clone(), done.clone(), serving.clone());
            let serve = move || {
                let began = Instant::now();
                let handled = handle(&server, stream, peer);
                served.fetch_sub(1, Ordering::Relaxed);
                let took = began.elapsed();
                // Nobody waits for it any more when the process ends.
                let _ = done.send(Outcome {
                    peer,
                    handled,
                    took,
                });
            };
            if let Err(error) = thread::Builder::new().spawn(serve) {
                serving.fetch_sub(1, Ordering::Relaxed);
                exit::message(&format!("cannot serve {peer}: {error}"));
            }
        }
    };
    let thread = thread::Builder::new().spawn(accepting);
    thread.map(drop).context("cannot start a thread")
}

fn handle(server: &PageServer, stream: TcpStream, peer: SocketAddr) -> Result<Handled> {
    check_peer(peer, stream.local_addr()?)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    server.handle(stream).map_err(plain)
}

/// Says what connections came to until somebody asks to stop, or the first has come to something.
fn report(
    args: &PageServerArgs,
    mut signals: Signals,
    outcomes: &Receiver<Outcome>,
) -> Result<ExitCode> {
    loop {
        if signals.stop_requested() {
            return Ok(ExitCode::SUCCESS);
        }
        let Ok(outcome) = outcomes.recv_timeout(SIGNAL_POLL) else {
            continue;
        };
        let failed = outcome.handled.is_err();
        let is_something = !matches!(outcome.handled, Ok(Handled::Nothing));
        say(args, outcome)?;
        if args.once && is_something {
            return Ok(ExitCode::from(if failed { exit::OPERATION } else { 0 }));
        }
    }
}

fn say(args: &PageServerArgs, outcome: Outcome) -> Result<()> {
    let Outcome {
        peer,
        handled,
        took,
    } = outcome;
    let line = match (handled, args.json) {
        (Err(error), _) => {
            exit::message(&format!("{peer}: {error:#}"));
            return Ok(());
        }
        (Ok(Handled::Taken(manifest)), true) => documents::checkpoint(&manifest).to_string(),
        (Ok(Handled::Taken(manifest)), false) => text::by_criu(&manifest),
        (Ok(Handled::Served { number, pages }), true) => json!({
            "schema": 1,
            "served": number,
            "pages": pages,
            "total_ns": took.as_nanos() as u64,
        })
        .to_string(),
        (Ok(Handled::Served { number, pages }), false) => format!(
            "checkpoint {number}: {} given out in {}",
            words::plural(pages, "page"),
            words::time(took.as_nanos() as f64)
        ),
        (Ok(_), _) => return Ok(()),
    };
    text::print(&line)
}
