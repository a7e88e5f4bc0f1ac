//! Endpoints that are asked, and clients that misbehave.

use super::*;

#[test]
fn addresses_are_read_and_judged() {
    let local = |text: &str| text.parse::<Address>().map(|address| address.is_local());
    assert_eq!(local("127.0.0.1:9465"), Ok(true));
    assert_eq!(local("[::1]:9465"), Ok(true));
    assert_eq!(local("unix:/run/a.sock"), Ok(true));
    assert_eq!(local("0.0.0.0:9465"), Ok(false));
    for wrong in ["", "localhost", "9465", "unix:", "unix:a.sock"] {
        assert!(local(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_socket_serves_what_was_set_and_goes_with_its_endpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let address = Address::Unix(path.clone());
    for _ in 0..2 {
        let endpoint = Endpoint::listen(&address).unwrap();
        endpoint.set("/metrics", "text/plain", "a 1\n".into());
        assert_eq!(get(&address, "/metrics").unwrap(), "a 1\n");
        assert!(get(&address, "/other").is_err());
        assert!(Endpoint::listen(&address).is_err(), "one at a time");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    assert!(!path.exists());
    // One that a killed process has left there does no harm.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Endpoint::listen(&address).unwrap());
    assert!(get(&address, "/metrics").is_err());
}

/// One that has another address, and then the first again, as where a daemon reads a new
/// configuration.
#[test]
fn nobody_listens_where_an_endpoint_was() {
    let any = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::listen(&any).unwrap();
    let address = endpoint.address().clone();
    endpoint.set("/metrics", "text/plain", "a 1\n".into());
    assert_eq!(get(&address, "/metrics").unwrap(), "a 1\n");
    let other = Endpoint::listen(&any).unwrap();
    drop(endpoint);
    assert!(get(&address, "/metrics").is_err());
    drop(other);
    let again = Endpoint::listen(&address).unwrap();
    again.set("/metrics", "text/plain", "a 2\n".into());
    assert_eq!(get(&address, "/metrics").unwrap(), "a 2\n");
}

/// With one thread for all, or with timeout for a client and not for the connection, the last
/// one would wait an hour.
#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("socket"));
    let endpoint = Endpoint::listen_with_timeout(&address, Duration::from_secs(3600)).unwrap();
    endpoint.set("/metrics", "text/plain", "a 1\n".into());
    // More than there are places: the oldest connections make room.
    let silent: Vec<_> = (0..CLIENTS_MAX * 4)
        .map(|_| UnixStream::connect(directory.path().join("socket")).unwrap())
        .collect();
    for _ in 0..3 {
        assert_eq!(get(&address, "/metrics").unwrap(), "a 1\n");
    }
    drop(silent);
}

/// A client that sends a byte from time to time is never silent for long, and never done.
#[test]
fn clients_that_send_a_byte_at_a_time_keep_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let address = Address::Unix(path.clone());
    let endpoint = Endpoint::listen_with_timeout(&address, Duration::from_secs(3600)).unwrap();
    endpoint.set("/metrics", "text/plain", "a 1\n".into());
    let mut slow: Vec<_> = (0..CLIENTS_MAX * 2)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    for byte in b"GET /metrics HTTP/1.1\r\n" {
        for client in &mut slow {
            // Those that had to make room cannot send any longer.
            let _ = client.write_all(&[*byte]);
        }
        assert_eq!(get(&address, "/metrics").unwrap(), "a 1\n");
    }
    drop(slow);
}

#[test]
fn a_client_has_so_much_time_however_often_it_says_something() {
    let (mut client, server) = UnixStream::pair().unwrap();
    client.write_all(b"GET / HTTP").unwrap();
    let mut limited = Limited::new(server, Duration::ZERO);
    let read = limited.read(&mut [0; 4]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::TimedOut));
}

#[test]
fn nonsense_is_answered_with_404() {
    let pages = Mutex::new(Pages::new());
    let (client, server) = UnixStream::pair().unwrap();
    let asking = thread::spawn(move || {
        let mut client = client;
        client.write_all(b"\xff\xfe nonsense\r\n\r\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text);
        text
    });
    let answered = answer(server, &pages);
    let text = asking.join().unwrap();
    // Not even text: no answer at all.
    assert!(answered.is_err() && text.is_empty());
}

#[test]
fn an_answer_says_how_old_its_text_is() {
    let endpoint = Endpoint::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let set_since = |since: Option<Instant>| {
        endpoint.set("/status", "text/plain", "a 1\n".into());
        let mut pages = endpoint.pages.lock().unwrap();
        pages.get_mut("/status").unwrap().since = since.unwrap();
    };
    let ask = || get_with_age(endpoint.address(), "/status").unwrap();
    set_since(Instant::now().checked_sub(Duration::from_secs(5)));
    assert!(ask().1 >= Duration::from_secs(5), "{:?}", ask());
    // A text that is set anew is of that moment, also where it is the same.
    let before = Instant::now();
    endpoint.set("/status", "text/plain", "a 1\n".into());
    let (text, age) = ask();
    assert_eq!(text, "a 1\n");
    assert!(age <= before.elapsed(), "{age:?}");
    for (head, seconds) in [
        ("HTTP/1.1 200 OK\r\nAge: 12\r\nB: 1", 12),
        ("HTTP/1.1 200 OK\r\nAge: -1", 0),
        ("HTTP/1.1 200 OK", 0),
    ] {
        assert_eq!(age_of(head), Duration::from_secs(seconds), "{head}");
    }
}
