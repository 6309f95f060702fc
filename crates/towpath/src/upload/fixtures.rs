//! Parts of the tests: results, folders, and a small server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use towpath_result::frames::FrameReader;
use towpath_result::upload::{UploadReply, content_hash};

use super::content::inspect;
use super::spool::QueuedRun;

/// Result of a run.
pub(super) const RESULT: &str =
    include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");

/// Returns a result that differs for each seed.
pub(super) fn result(seed: u64) -> String {
    RESULT.replacen("\"seed\":1", &format!("\"seed\":{seed}"), 1)
}

/// Returns a result as it is queued.
pub(super) fn queued(seed: u64) -> (QueuedRun, Vec<u8>) {
    let bytes = compress_to_vec(result(seed).as_bytes(), CompressionLevel::Fastest);
    let run = QueuedRun {
        url: "http://127.0.0.1:7080".to_owned(),
        host: "lab".to_owned(),
        time_us: Some(1_700_000_000_000_000 + seed),
        expanded_bytes: inspect(&bytes).unwrap().expanded_bytes,
        compressed_bytes: bytes.len() as u64,
        file: format!("tcp-{seed}.jsonl.zst"),
        queued_us: 1_800_000_000_000_000 + seed,
    };
    (run, bytes)
}

/// Temporary folder, removed on drop.
#[derive(Debug)]
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-upload-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // best effort
    }
}

/// Copies a folder and all its content.
pub(super) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Request that the server has received.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    /// First line without the protocol's version, such as `PUT /api/v1/runs/…`.
    pub(crate) target: String,
    /// Lines of the header, with names in lower case.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Returns the content hash in the address.
    pub(super) fn hash(&self) -> String {
        self.target.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

/// HTTP server in a thread, which stores all requests. Ends with the test's process.
#[derive(Debug)]
pub(crate) struct TestServer {
    pub(crate) url: String,
    pub(super) received: Arc<Mutex<Vec<Received>>>,
}

impl TestServer {
    /// Starts a server whose replies are those of `reply` for the request and its number from 0.
    ///
    /// An empty reply closes the connection.
    pub(crate) fn start(
        reply: impl Fn(usize, &Received) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let (requests, reply) = (Arc::clone(&received), Arc::new(reply));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, reply) = (Arc::clone(&requests), Arc::clone(&reply));
                thread::spawn(move || serve(&stream.unwrap(), &requests, &*reply));
            }
        });
        Self { url, received }
    }

    pub(crate) fn requests(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

fn serve(
    stream: &TcpStream,
    requests: &Mutex<Vec<Received>>,
    reply: &dyn Fn(usize, &Received) -> Vec<u8>,
) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = receive(&mut reader, stream) {
        let number = {
            let mut requests = requests.lock().unwrap();
            requests.push(request.clone());
            requests.len() - 1
        };
        let bytes = reply(number, &request);
        let mut stream = stream;
        if bytes.is_empty() || stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn receive(reader: &mut impl BufRead, mut stream: &TcpStream) -> Option<Received> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut lines = lines.into_iter();
    let target = lines.next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let lower_name = |line: String| {
        let (name, value) = line.split_once(": ").unwrap();
        format!("{}: {value}", name.to_ascii_lowercase())
    };
    let mut request = Received { target, headers: lines.map(lower_name).collect(), body: vec![] };
    if request.header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    request.body = vec![0; length];
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// Returns an HTTP response with a length.
pub(crate) fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Returns the reply of a collector that checks and stores the run.
pub(super) fn stored(request: &Received, created: bool) -> Vec<u8> {
    let content = FrameReader::new(&request.body[..]).unwrap();
    let (hash, length) = content_hash(content).unwrap();
    assert_eq!(request.target, format!("PUT /api/v1/runs/{hash}"));
    assert_eq!(request.header("towpath-size"), Some(length.to_string().as_str()));
    let id = hash[..20].to_owned();
    let url = format!("https://example.org/runs/{id}");
    let body = serde_json::to_string(&UploadReply { id, url, created }).unwrap();
    response(if created { "201 Created" } else { "200 OK" }, "", &body)
}
