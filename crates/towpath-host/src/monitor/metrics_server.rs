//! Metrics page over HTTP. The server handles one request at a time, with a short timeout.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// Timeout for a request and its reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after an error of the listener, such as a lack of free descriptors.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// Server that replies to `GET /metrics` with the newest page, on a thread that ends with the
/// process.
#[derive(Debug)]
pub struct MetricsServer {
    page: Arc<Mutex<String>>,
    address: SocketAddr,
}

impl MetricsServer {
    /// Binds to `address` and starts the thread that replies to requests.
    pub fn start(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let page = Arc::new(Mutex::new(String::new()));
        let served_page = Arc::clone(&page);
        thread::Builder::new().name("metrics".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A malformed or slow request gets no reply; the server continues with the
                    // next.
                    Ok(stream) => drop(respond(stream, &served_page)),
                    Err(_) => thread::sleep(ERROR_PAUSE),
                }
            }
        })?;
        Ok(Self { page, address })
    }

    /// Returns the address that the server listens on, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the page that requests receive.
    pub fn set_page(&self, page: String) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
    }
}

fn respond(mut stream: TcpStream, page: &Mutex<String>) -> io::Result<()> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = Vec::new();
    let mut chunk = [0; 1_024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() || request.len() > MAX_REQUEST_BYTES {
            return Ok(());
        }
        stream.set_read_timeout(Some(remaining))?;
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(chunk.get(..length).unwrap_or_default());
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut fields = line.split(|byte| *byte == b' ');
    let (method, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    let page = page.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (status, content_type, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", "text/plain; version=0.0.4", page),
        (b"GET" | b"HEAD", _) => {
            ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned())
        }
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if method != b"HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_request(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_get_the_newest_page_and_nothing_else() {
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap()).unwrap();
        server.set_page("towpath_connections 1\n".to_owned());
        let answer = send_request(server.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\ntowpath_connections 1\n"), "{answer}");
        let answer = send_request(server.address(), "GET /etc/passwd HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = send_request(server.address(), "POST /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }

    #[test]
    fn an_oversized_request_is_dropped_and_the_next_is_answered() {
        let server = MetricsServer::start("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        // The server closes in the middle, so either call may fail.
        let _ = stream.write_all(&vec![b'x'; 4 * MAX_REQUEST_BYTES]);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply); // the peer may be gone
        assert!(reply.is_empty());
        let answer = send_request(server.address(), "GET /metrics HTTP/1.0\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}
