//! Proxy between a client and a real server that falsifies the server's messages. Everything before
//! the lie is genuine.

use std::io::{self, Read, Write};
use std::iter;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use towpath_live::protocol::{ConnectionKind, Preamble};

use crate::program::wait_for;

/// Messages as sent on the wire. Not all of them are JSON that a program would write.
pub(super) type Messages = Box<dyn Iterator<Item = String> + Send>;

/// Function that replaces a genuine item.
pub(super) type Lie<Original, Forged> = Box<dyn Fn(&Original) -> Forged + Send + Sync>;

/// Replacements for each kind of traffic.
pub(super) struct Lies {
    /// Replacement for a control message; `None` passes it on.
    pub(super) message: Lie<Value, Option<Messages>>,
    /// Replacement for the server's report.
    pub(super) report: Lie<str, String>,
    /// Replacement for the reply to a datagram.
    pub(super) datagram: Lie<[u8], Vec<Vec<u8>>>,
    /// Replacement for data; an empty one ends the connection.
    pub(super) data: Lie<[u8], Vec<u8>>,
    /// Bytes sent before anything else on a data connection, in full.
    pub(super) before_data: Vec<u8>,
}

impl Default for Lies {
    fn default() -> Self {
        Self {
            message: Box::new(|_| None),
            report: Box::new(str::to_owned),
            datagram: Box::new(|reply| vec![reply.to_vec()]),
            data: Box::new(<[u8]>::to_vec),
            before_data: Vec::new(),
        }
    }
}

/// Returns one message, or several in sequence.
pub(super) fn messages(texts: impl IntoIterator<Item = Value>) -> Messages {
    let texts: Vec<_> = texts.into_iter().map(|message| message.to_string()).collect();
    Box::new(texts.into_iter())
}

/// Returns the same message endlessly.
pub(super) fn repeated_message(message: &Value) -> Messages {
    Box::new(iter::repeat(message.to_string()))
}

pub(super) struct Liar {
    pub(super) port: u16,
    shared: Arc<LiarState>,
}

struct LiarState {
    server: SocketAddr,
    lies: Lies,
    /// Number of lies sent; a whole report counts once.
    lies_told: AtomicUsize,
    /// Number of accepted connections.
    connections: AtomicUsize,
}

impl Liar {
    /// Starts the proxy in front of the server at this port.
    pub(super) fn start_before(server: &str, lies: Lies) -> Self {
        let server = SocketAddr::from(([127, 0, 0, 1], server.parse().unwrap()));
        let (listener, socket) = wait_for("a port for both", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
            Some((listener, socket))
        });
        let port = listener.local_addr().unwrap().port();
        let (lies_told, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(LiarState { server, lies, lies_told, connections });
        let thread_state = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread_state.connections.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&thread_state);
                thread::spawn(move || shared.serve(client));
            }
        });
        let thread_state = Arc::clone(&shared);
        thread::spawn(move || thread_state.reflect(&socket));
        Self { port, shared }
    }

    /// Returns the number of lies sent.
    pub(super) fn lies_told(&self) -> usize {
        self.shared.lies_told.load(Ordering::Relaxed)
    }

    /// Returns the number of accepted connections.
    pub(super) fn accepted_connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

fn set_timeouts(stream: &TcpStream) -> io::Result<()> {
    // A timeout ends connections that are left behind.
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut content = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut content)?;
    Ok(content)
}

/// Sends one frame with any content.
pub(super) fn send(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    stream.write_all(&bytes)
}

impl LiarState {
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        set_timeouts(&client)?;
        let mut server = TcpStream::connect(self.server)?;
        set_timeouts(&server)?;
        let mut preamble = [0; Preamble::BYTES];
        client.read_exact(&mut preamble)?;
        server.write_all(&preamble)?;
        let kind = Preamble::read(&preamble).map_err(io::Error::other)?.unwrap().kind;
        let (mut server_writer, mut client_reader) = (server.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut client_reader, &mut server_writer); // the peer may be gone
            let _ = server_writer.shutdown(std::net::Shutdown::Write);
        });
        match kind {
            ConnectionKind::Control => self.relay_control(&mut server, &mut client),
            ConnectionKind::Data => self.relay_data(&mut server, &mut client),
            ConnectionKind::Echo | ConnectionKind::Tls => {
                io::copy(&mut server, &mut client).map(|_| ())
            }
        }
    }

    fn relay_control(&self, server: &mut TcpStream, client: &mut TcpStream) -> io::Result<()> {
        let mut report = String::new();
        loop {
            let text = String::from_utf8(read_frame(server)?).map_err(io::Error::other)?;
            let message: Value = serde_json::from_str(&text)?;
            if let Some(lies) = (self.lies.message)(&message) {
                self.lies_told.fetch_add(1, Ordering::Relaxed);
                for lie in lies {
                    send(client, &lie)?;
                }
            } else if message["type"] == "part" {
                report.push_str(message["text"].as_str().unwrap());
                if report.len() as u64 >= message["total"].as_u64().unwrap() {
                    let lie = (self.lies.report)(&report);
                    self.lies_told.fetch_add(usize::from(lie != report), Ordering::Relaxed);
                    report.clear();
                    send_report(client, &lie)?;
                }
            } else {
                send(client, &text)?;
            }
        }
    }

    fn relay_data(&self, server: &mut TcpStream, client: &mut TcpStream) -> io::Result<()> {
        if !self.lies.before_data.is_empty() {
            self.lies_told.fetch_add(1, Ordering::Relaxed);
            client.write_all(&self.lies.before_data)?;
        }
        let mut buffer = vec![0; 65_536];
        loop {
            let length = server.read(&mut buffer)?;
            let forged = (self.lies.data)(&buffer[..length]);
            self.lies_told.fetch_add(usize::from(forged != buffer[..length]), Ordering::Relaxed);
            if forged.is_empty() {
                return client.shutdown(std::net::Shutdown::Both);
            }
            client.write_all(&forged)?;
        }
    }

    /// Relays datagrams and returns changed replies, for one client at a time.
    fn reflect(&self, client_socket: &UdpSocket) -> io::Result<()> {
        let server_socket = UdpSocket::bind("127.0.0.1:0")?;
        server_socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut buffer = vec![0; 65_536];
        loop {
            let (length, client_address) = client_socket.recv_from(&mut buffer)?;
            server_socket.send_to(&buffer[..length], self.server)?;
            let Ok(length) = server_socket.recv(&mut buffer) else { continue };
            let replies = (self.lies.datagram)(&buffer[..length]);
            let is_changed = replies.len() != 1 || replies[0] != buffer[..length];
            self.lies_told.fetch_add(usize::from(is_changed), Ordering::Relaxed);
            for reply in replies {
                client_socket.send_to(&reply, client_address)?;
            }
        }
    }
}

/// Sends a report in parts.
fn send_report(client: &mut TcpStream, report: &str) -> io::Result<()> {
    let mut rest = report;
    if rest.is_empty() {
        return send(
            client,
            &json!({"type": "part", "offset": 0, "total": 0, "text": ""}).to_string(),
        );
    }
    while !rest.is_empty() {
        let mut length = rest.len().min(8_192);
        while !rest.is_char_boundary(length) {
            length -= 1;
        }
        let (text, remaining) = rest.split_at(length);
        let offset = report.len() - rest.len();
        let part = json!({"type": "part", "offset": offset, "total": report.len(), "text": text});
        send(client, &part.to_string())?;
        rest = remaining;
    }
    Ok(())
}
