//! Common Internet servers, as far as they react to a client's first bytes.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;

use super::case::ServerBehaviour;

/// Time without data after which a connection is closed.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Body of every web page.
const PAGE: &str = "<!doctype html><title>Welcome</title><p>It works.\n";
const SSH_BANNER: &[u8] = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n";
/// Fatal alert: unexpected message (RFC 8446 §6).
const TLS_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// Type and major version of a handshake record (RFC 8446 §5.1).
const TLS_HANDSHAKE_PREFIX: [u8; 2] = [22, 3];

/// Serves one client until either side closes the connection.
pub(super) fn serve(kind: ServerBehaviour, mut connection: &Socket) -> io::Result<()> {
    connection.set_read_timeout(Some(READ_TIMEOUT))?;
    match kind {
        ServerBehaviour::Web => serve_http(connection),
        ServerBehaviour::Tls => serve_tls(connection),
        ServerBehaviour::Ssh => serve_ssh(connection),
        ServerBehaviour::ClosesOnData => connection.read(&mut [0; MAX_HEAD_BYTES]).map(drop),
        ServerBehaviour::Idle => io::copy(&mut connection, &mut io::sink()).map(drop),
        ServerBehaviour::Multipath
        | ServerBehaviour::Plain
        | ServerBehaviour::Once
        | ServerBehaviour::Nothing => Ok(()),
    }
}

/// Replies to each request and keeps the connection open (RFC 9112 §9.3).
fn serve_http(mut connection: &Socket) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            if received.len() > MAX_HEAD_BYTES || !is_request_prefix(&received) {
                let head = "HTTP/1.1 400 Bad Request\r\nServer: nginx\r\nConnection: close\r\n\r\n";
                return connection.write_all(head.as_bytes());
            }
            if !read_more(connection, &mut received)? {
                return Ok(());
            }
            continue;
        };
        let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default()).to_lowercase();
        received.drain(..end + 4);
        let body = if head.starts_with("head ") { "" } else { PAGE };
        let head_lines = format!(
            "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
            PAGE.len()
        );
        connection.write_all(head_lines.as_bytes())?;
        connection.write_all(body.as_bytes())?;
        if head.contains("connection: close") {
            return Ok(());
        }
    }
}

fn is_request_prefix(received: &[u8]) -> bool {
    const METHODS: [&[u8]; 5] = [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS "];
    METHODS.iter().any(|method| method.iter().zip(received).all(|(a, b)| a == b))
}

/// Replies to a `ClientHello` and waits for the client's next flight; sends an alert for anything
/// else.
fn serve_tls(mut connection: &Socket) -> io::Result<()> {
    let mut received = Vec::new();
    while received.len() < TLS_HANDSHAKE_PREFIX.len() {
        if !read_more(connection, &mut received)? {
            return Ok(());
        }
    }
    if !received.starts_with(&TLS_HANDSHAKE_PREFIX) {
        return connection.write_all(&TLS_ALERT);
    }
    let mut flight = vec![22, 3, 3, 4, 0];
    flight.resize(5 + 1_024, 7);
    connection.write_all(&flight)?;
    received.clear();
    read_more(connection, &mut received)?;
    connection.write_all(&TLS_ALERT)
}

/// Replies to the client's banner with a key exchange proposal, then waits for data.
fn serve_ssh(mut connection: &Socket) -> io::Result<()> {
    connection.write_all(SSH_BANNER)?;
    let mut received = Vec::new();
    while !received.contains(&b'\n') {
        if received.len() > MAX_HEAD_BYTES || !read_more(connection, &mut received)? {
            return Ok(());
        }
    }
    if !received.starts_with(b"SSH-2.0-") {
        return connection.write_all(b"Invalid SSH identification string.\r\n");
    }
    connection.write_all(&[20; 1_000])?;
    received.clear();
    read_more(connection, &mut received).map(drop)
}

/// Appends the available data; false at the end of the stream.
fn read_more(mut connection: &Socket, received: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 4_096];
    let read = connection.read(&mut chunk)?;
    received.extend_from_slice(chunk.get(..read).unwrap_or_default());
    Ok(read > 0)
}
