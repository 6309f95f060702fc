//! `towpath sweep` with the rows in an object store, on a small server of such storage.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::program::{ProgramOutput, SIZED, TWO_PATHS, TestDir, names, wait_for};

/// Plan of 2 curves × 2 delays × 6 seeds.
const PLAN: &str = r#"name = "delays"
scenario = "scenario.toml"
seeds = 6
[[variants]]
name = "TCP"
transport = "tcp"
[[variants]]
name = "MPTCP"
transport = "mptcp"
[[axes]]
name = "delay"
keys = ["paths.cellular.delay"]
values = ["10 ms", "50 ms"]
"#;
const CHUNKS: usize = 12;
const PREFIX: &str = "lab/sweeps/one/";
const URL: &str = "s3://lab/sweeps/one";

/// Bucket `lab`, as far as sweeps need it.
struct ObjectServer {
    address: SocketAddr,
    state: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct ServerState {
    /// Content and version of every object by its path.
    objects: Mutex<BTreeMap<String, (Vec<u8>, u64)>>,
    /// True if the server ignores `If-None-Match` and `If-Match`, as old servers do.
    ignores_conditions: bool,
    stopped: AtomicBool,
}

/// Request, as far as the server evaluates it.
struct Request {
    method: String,
    path: String,
    query: String,
    /// Headers with names in lower case.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl ObjectServer {
    fn start(ignores_conditions: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ServerState { ignores_conditions, ..ServerState::default() });
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || {
            for connection in listener.incoming() {
                if shared.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&shared);
                // A killed client breaks its connection.
                thread::spawn(move || connection.and_then(|stream| serve(&shared, stream)));
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    /// Returns the objects of the sweep by name, without the page.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let objects = self.state.objects.lock().unwrap();
        let of_sweep = objects.iter().map(|(path, (bytes, _))| {
            (path.strip_prefix(PREFIX).unwrap().to_owned(), bytes.clone())
        });
        of_sweep.filter(|(name, _)| name != "sweep.html").collect()
    }

    fn count_parts(&self) -> usize {
        self.files().keys().filter(|name| name.starts_with("part-")).count()
    }

    fn truncate(&self, name: &str) {
        let mut objects = self.state.objects.lock().unwrap();
        let (bytes, version) = objects.get_mut(&format!("{PREFIX}{name}")).unwrap();
        bytes.truncate(bytes.len() / 2);
        *version += 1_000;
    }

    fn command(&self, folder: &TestDir, arguments: &[&str]) -> Command {
        let mut command = folder.towpath(arguments);
        command.env("AWS_ENDPOINT_URL", format!("http://{}", self.address));
        command.env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE").env("AWS_SECRET_ACCESS_KEY", "hunter2");
        command
    }

    fn run(&self, folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
        folder.start(&mut self.command(folder, arguments)).wait()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // ends the wait for a connection
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a failure of the server fails the test itself
        }
    }
}

/// Answers one request.
fn serve(state: &ServerState, stream: TcpStream) -> io::Result<()> {
    let request = receive(&stream)?;
    let (status, version, body) = answer(state, &request);
    let header = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\nETag: \"{version}\"\r\n\
         Last-Modified: Sat, 28 Nov 2026 06:35:12 GMT\r\n\r\n",
        body.len()
    );
    let mut stream = stream;
    stream.write_all(header.as_bytes())?;
    if request.method != "HEAD" {
        stream.write_all(&body)?;
    }
    Ok(())
}

fn receive(stream: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let words: Vec<_> = line.split_whitespace().collect();
    let [method, target, _] = words[..] else { return Err(io::ErrorKind::InvalidData.into()) };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_owned(),
        path: path.trim_start_matches('/').to_owned(),
        query: query.to_owned(),
        headers: BTreeMap::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        request.headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = request.headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    Ok(request)
}

/// Returns the status, the version of the object, and the body.
fn answer(state: &ServerState, request: &Request) -> (&'static str, u64, Vec<u8>) {
    let Request { method, path, query, headers, body } = request;
    let mut objects = state.objects.lock().unwrap();
    let version = objects.get(path).map_or(0, |(_, version)| *version);
    let is_refused = match (headers.get("if-none-match"), headers.get("if-match")) {
        _ if state.ignores_conditions => false,
        (Some(_), _) => objects.contains_key(path),
        (None, Some(expected)) => *expected != format!("\"{version}\""),
        (None, None) => false,
    };
    match method.as_str() {
        "PUT" if is_refused => ("412 Precondition Failed", version, Vec::new()),
        "PUT" => {
            objects.insert(path.clone(), (body.clone(), version + 1));
            ("200 OK", version + 1, Vec::new())
        }
        "DELETE" => {
            objects.remove(path);
            ("204 No Content", 0, Vec::new())
        }
        "GET" if query.contains("list-type=2") => {
            let contents = objects.iter().map(|(path, (bytes, version))| {
                format!(
                    "<Contents><Key>{}</Key><Size>{}</Size><ETag>\"{version}\"</ETag>\
                     <LastModified>2026-11-28T06:35:12.000Z</LastModified></Contents>",
                    path.strip_prefix("lab/").unwrap(),
                    bytes.len()
                )
            });
            let contents: String = contents.collect();
            let list = format!("<ListBucketResult>{contents}</ListBucketResult>");
            ("200 OK", 0, list.into_bytes())
        }
        "GET" | "HEAD" => match objects.get(path) {
            Some((bytes, version)) => ("200 OK", *version, bytes.clone()),
            None => ("404 Not Found", 0, b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
        },
        _ => ("405 Method Not Allowed", 0, Vec::new()),
    }
}

/// Returns a folder with a plan and its scenario.
fn sweep_folder() -> TestDir {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    folder.write("plan.toml", PLAN);
    folder
}

fn sweep_arguments(out: &str) -> [&str; 6] {
    ["sweep", "plan.toml", "--chunk", "2", "--out", out]
}

/// Returns the files of a sweep that was not disturbed, in a folder, without the page.
fn undisturbed(folder: &TestDir) -> BTreeMap<String, Vec<u8>> {
    let output = folder.run(&sweep_arguments("rows"));
    assert_eq!(output.code, Some(0), "{output}");
    let rows = folder.work().join("rows");
    let read = |name: String| (name.clone(), fs::read(rows.join(name)).unwrap());
    names(&rows).into_iter().filter(|name| name != "sweep.html").map(read).collect()
}

#[test]
fn processes_share_a_bucket_and_a_killed_one_loses_nothing() {
    let folder = sweep_folder();
    let server = ObjectServer::start(false);
    let start = || folder.start(&mut server.command(&folder, &sweep_arguments(URL)));
    let mut killed = start();
    wait_for("some rows", || (server.count_parts() >= 2).then_some(()));
    let others = [start(), start()];
    // SIGKILL, so that the process cannot clean up.
    killed.child.kill().unwrap();
    for other in others {
        let output = other.wait();
        assert_eq!(output.code, Some(0), "{output}");
    }
    let expected = undisturbed(&folder);
    assert_eq!(server.count_parts(), CHUNKS);
    assert!(server.files() == expected, "other bytes than in a folder");

    let part = expected.keys().find(|name| name.starts_with("part-")).unwrap();
    server.truncate(part);
    let output = server.run(&folder, &["sweep", "status", URL]);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains(&format!("`{URL}/{part}` is damaged")), "{output}");
    let output = server.run(&folder, &sweep_arguments(URL));
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains(&format!("`{URL}/{part}` was damaged")), "{output}");
    assert!(server.files() == expected, "other bytes after the repair");

    let output = server.run(&folder, &["sweep", "verify", URL, "--sample", "2"]);
    assert_eq!(output.out, "2 of 2 runs gave the same row again\n", "{output}");
    let output = server.run(&folder, &["sweep", "compact", URL, "--rows-per-file", "20"]);
    assert_eq!(output.out, format!("{URL}/rows-000000.parquet\n{URL}/rows-000001.parquet\n"));
    assert!(server.files().contains_key("rows-000001.parquet"));
}

#[test]
fn a_truncated_file_is_replaced_and_named() {
    let folder = sweep_folder();
    let expected = undisturbed(&folder);
    let part = expected.keys().find(|name| name.starts_with("part-")).unwrap();
    let path = folder.work().join("rows").join(part);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(expected[part].len() as u64 / 2).unwrap();
    let output = folder.run(&["sweep", "status", "rows"]);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains(&format!("`rows/{part}` is damaged")), "{output}");
    assert!(output.err.contains("22 of 24 runs are done, in 11 of 12 files"), "{output}");
    let output = folder.run(&sweep_arguments("rows"));
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains(&format!("`rows/{part}` was damaged")), "{output}");
    assert!(undisturbed(&folder) == expected, "other bytes after the repair");
}

#[test]
fn a_server_without_conditional_writes_is_refused() {
    let folder = sweep_folder();
    let server = ObjectServer::start(true);
    let output = server.run(&folder, &sweep_arguments(URL));
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("ignores conditional writes"), "{output}");
    assert!(output.err.contains("hint: use a server that supports"), "{output}");
    assert!(!output.err.contains("hunter2"), "{output}");
    assert!(server.files().is_empty(), "{:?}", server.files().keys());
    let output = server.run(&folder, &["sweep", "status", URL]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains(&format!("`{URL}` holds no sweep")), "{output}");
    let output = folder.run(&sweep_arguments("https://example.org/lab"));
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("`s3://BUCKET/PREFIX`"), "{output}");
}
