//! A web server and its clients, in threads of one process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A page that is always the same.
const STATIC: &[u8] = &[b'x'; 8192];

/// Clients that ask for pages, one connection a page, all at once; gives the bytes of all pages.
pub(super) fn load(clients: u64, requests: u64) -> Result<u64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            (0..clients * requests).try_for_each(|_| {
                let (connection, _) = listener.accept()?;
                scope.spawn(move || answer(connection));
                Ok::<_, std::io::Error>(())
            })
        });
        let clients: Vec<_> = (0..clients)
            .map(|client| {
                scope.spawn(move || {
                    let pages =
                        (0..requests).map(|number| ask(address, client * requests + number));
                    pages.sum::<Result<u64>>()
                })
            })
            .collect();
        let mut bytes = 0;
        let mut failure = None;
        for client in clients {
            match client.join().ok().context("a client has failed")? {
                Ok(read) => bytes += read,
                Err(error) => failure = Some(error),
            }
        }
        if failure.is_some() {
            // So that the server, which waits for requests that will not come, ends.
            for _ in 0..requests {
                let _ = TcpStream::connect(address);
            }
        }
        server.join().ok().context("the server has failed")??;
        failure.map_or(Ok(bytes), Err)
    })
}

fn answer(connection: TcpStream) -> Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(&connection);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let page = match path.strip_prefix("/sum?") {
        Some(number) => {
            let last: u64 = number.parse().unwrap_or(0);
            format!("{:>20}", (0..=last).sum::<u64>()).into_bytes()
        }
        None => STATIC.to_vec(),
    };
    let mut connection = &connection;
    write!(
        connection,
        "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n",
        page.len()
    )?;
    connection.write_all(&page)?;
    Ok(())
}

/// Asks for a page, and checks what comes.
fn ask(address: SocketAddr, number: u64) -> Result<u64> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    // One in four is made for the request.
    let is_dynamic = number.is_multiple_of(4);
    let path = match is_dynamic {
        true => format!("/sum?{number}"),
        false => "/static".to_owned(),
    };
    write!(connection, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (_, page) = answer
        .split_once("\r\n\r\n")
        .context("an answer has no page")?;
    let is_right = match is_dynamic {
        true => page.trim() == (number * (number + 1) / 2).to_string(),
        false => page.as_bytes() == STATIC,
    };
    ensure!(is_right, "the page {path} is wrong");
    Ok(page.len() as u64)
}
