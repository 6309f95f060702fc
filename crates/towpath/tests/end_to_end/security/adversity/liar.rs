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
use towpath_measure::live::{ConnectionKind, Preamble};

use crate::program::wait_for;

/// Messages as sent on the wire. Not all of them are JSON that a program would write.
pub(super) type Messages = Box<dyn Iterator<Item = String> + Send>;

/// Function that replaces a genuine item.
pub(super) type Lie<Said, Told> = Box<dyn Fn(&Said) -> Told + Send + Sync>;

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
            datagram: Box::new(|answer| vec![answer.to_vec()]),
            data: Box::new(<[u8]>::to_vec),
            before_data: Vec::new(),
        }
    }
}

/// Returns one message, or several in sequence.
pub(super) fn messages(all: impl IntoIterator<Item = Value>) -> Messages {
    let all: Vec<_> = all.into_iter().map(|word| word.to_string()).collect();
    Box::new(all.into_iter())
}

/// Returns the same message endlessly.
pub(super) fn forever(word: &Value) -> Messages {
    Box::new(iter::repeat(word.to_string()))
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
    pub(super) fn before(server: &str, lies: Lies) -> Self {
        let server = SocketAddr::from(([127, 0, 0, 1], server.parse().unwrap()));
        let (listener, socket) = wait_for("a port for both", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
            Some((listener, socket))
        });
        let port = listener.local_addr().unwrap().port();
        let (told, met) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(LiarState { server, lies, lies_told: told, connections: met });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                of_thread.connections.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || shared.serve(client));
            }
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || of_thread.reflect(&socket));
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

fn patient(stream: &TcpStream) -> io::Result<()> {
    // A timeout ends connections that are left behind.
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))
}

fn frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
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
        patient(&client)?;
        let mut server = TcpStream::connect(self.server)?;
        patient(&server)?;
        let mut first = [0; Preamble::BYTES];
        client.read_exact(&mut first)?;
        server.write_all(&first)?;
        let kind = Preamble::read(&first).map_err(io::Error::other)?.unwrap().kind;
        let (mut back, mut front) = (server.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut front, &mut back); // the peer may be gone
            let _ = back.shutdown(std::net::Shutdown::Write);
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
        let mut half = String::new();
        loop {
            let text = String::from_utf8(frame(server)?).map_err(io::Error::other)?;
            let word: Value = serde_json::from_str(&text)?;
            if let Some(lies) = (self.lies.message)(&word) {
                self.lies_told.fetch_add(1, Ordering::Relaxed);
                for lie in lies {
                    send(client, &lie)?;
                }
            } else if word["type"] == "part" {
                half.push_str(word["text"].as_str().unwrap());
                if half.len() as u64 >= word["total"].as_u64().unwrap() {
                    let lie = (self.lies.report)(&half);
                    self.lies_told.fetch_add(usize::from(lie != half), Ordering::Relaxed);
                    half.clear();
                    give(client, &lie)?;
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
        let mut room = vec![0; 65_536];
        loop {
            let length = server.read(&mut room)?;
            let spoilt = (self.lies.data)(&room[..length]);
            self.lies_told.fetch_add(usize::from(spoilt != room[..length]), Ordering::Relaxed);
            if spoilt.is_empty() {
                return client.shutdown(std::net::Shutdown::Both);
            }
            client.write_all(&spoilt)?;
        }
    }

    /// Relays datagrams and returns changed replies, for one client at a time.
    fn reflect(&self, outer: &UdpSocket) -> io::Result<()> {
        let inner = UdpSocket::bind("127.0.0.1:0")?;
        inner.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut room = vec![0; 65_536];
        loop {
            let (length, from) = outer.recv_from(&mut room)?;
            inner.send_to(&room[..length], self.server)?;
            let Ok(length) = inner.recv(&mut room) else { continue };
            let answers = (self.lies.datagram)(&room[..length]);
            let changed = answers.len() != 1 || answers[0] != room[..length];
            self.lies_told.fetch_add(usize::from(changed), Ordering::Relaxed);
            for answer in answers {
                outer.send_to(&answer, from)?;
            }
        }
    }
}

/// Sends a report in parts.
fn give(client: &mut TcpStream, report: &str) -> io::Result<()> {
    let mut rest = report;
    if rest.is_empty() {
        return send(
            client,
            &json!({"type": "part", "offset": 0, "total": 0, "text": ""}).to_string(),
        );
    }
    while !rest.is_empty() {
        let mut cut = rest.len().min(8_192);
        while !rest.is_char_boundary(cut) {
            cut -= 1;
        }
        let (text, after) = rest.split_at(cut);
        let offset = report.len() - rest.len();
        let part = json!({"type": "part", "offset": offset, "total": report.len(), "text": text});
        send(client, &part.to_string())?;
        rest = after;
    }
    Ok(())
}
