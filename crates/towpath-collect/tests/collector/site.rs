//! A collector on loopback, in a folder of its own, and clients of it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;
use tokio::sync::oneshot;
use towpath_collect::{BucketConfig, Role, ServerConfig, Store, StoreConfig, run_to_end, serve};
use towpath_result::device::{JOIN_PATH, JoinRequest};
use towpath_result::upload::content_hash;

/// Largest number of times that a form is sent whose reply is lost.
const MAX_SENDINGS: u32 = 20;
/// A result of the first format version.
pub(crate) const RESULT: &str =
    include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");

/// A folder that is removed at the end.
#[derive(Debug)]
pub(crate) struct TestFolder(PathBuf);

impl TestFolder {
    pub(crate) fn create() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("towpath-collect-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // best effort
    }
}

/// Database of a test's collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

/// Makes a test of each function, once for each database.
macro_rules! on_both_databases {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(
                #[test]
                fn $test() {
                    super::$test(&$crate::site::Collector::create(
                        $crate::site::Database::Sqlite,
                    ).unwrap());
                }
            )+
        }
        mod on_postgres {
            $(
                #[test]
                fn $test() {
                    match $crate::site::Collector::create($crate::site::Database::Postgres) {
                        Ok(collector) => super::$test(&collector),
                        Err(reason) => $crate::site::skip(&reason),
                    }
                }
            )+
        }
    };
}
pub(crate) use on_both_databases;

/// Reports that a test did not run. On CI, a skipped test fails.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
    assert!(std::env::var_os("CI").is_none(), "CI must test everything: {reason}");
}

/// Data of a collector, which may be served several times.
#[derive(Debug)]
pub(crate) struct Collector {
    folder: TestFolder,
    database: Option<String>,
    objects: Option<BucketConfig>,
}

impl Collector {
    /// Creates empty data; fails with a reason if the machine lacks the database.
    pub(crate) fn create(database: Database) -> Result<Self, String> {
        let database = match database {
            Database::Sqlite => None,
            Database::Postgres => Some(crate::postgres::database()?),
        };
        Ok(Self { folder: TestFolder::create(), database, objects: None })
    }

    /// Creates empty data whose records are in a bucket.
    pub(crate) fn in_bucket(objects: BucketConfig) -> Self {
        Self { folder: TestFolder::create(), database: None, objects: Some(objects) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the places of the data, for commands on the collector's host.
    pub(crate) fn config(&self) -> StoreConfig {
        StoreConfig {
            dir: self.path().to_owned(),
            database: self.database.clone(),
            objects: self.objects.clone(),
        }
    }

    pub(crate) fn serve(&self) -> Site {
        Site::start(self, false)
    }

    pub(crate) fn serve_publicly(&self) -> Site {
        Site::start(self, true)
    }
}

/// A running collector.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) url: String,
    config: StoreConfig,
    shutdown: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

impl Site {
    fn start(collector: &Collector, public_read: bool) -> Self {
        let config = collector.config();
        let (shutdown, ended) = oneshot::channel::<()>();
        let (ready, url) = mpsc::channel();
        let store_config = config.clone();
        let server = std::thread::spawn(move || {
            let served = run_to_end(async {
                let store = Store::open(&store_config).await?;
                let listen = "127.0.0.1:0".parse().unwrap();
                let config = ServerConfig {
                    listen,
                    public_url: None,
                    public_read,
                    poll_interval: Duration::from_secs(300),
                };
                let on_ready = |url: &str| ready.send(url.to_owned()).unwrap();
                let shutdown = async {
                    let _ = ended.await; // dropped with the site
                };
                serve(store, config, on_ready, shutdown).await
            });
            served.unwrap();
        });
        let url = url.recv().unwrap();
        Self { url, config, shutdown: Some(shutdown), server: Some(server) }
    }

    /// Does something with the data, as a command on the collector's host does.
    pub(crate) fn token(&self, name: &str, role: Role) -> String {
        run_to_end(async { Store::open(&self.config).await?.create_token(name, role).await })
            .unwrap()
    }

    /// Returns a code with which a device may join.
    pub(crate) fn invite(&self, name: &str) -> String {
        let invited = run_to_end(async {
            Store::open(&self.config).await?.invite_device(name, i64::MAX).await
        });
        let invitation = invited.unwrap();
        assert_eq!(invitation.url.as_ref(), Some(&self.url));
        invitation.code
    }

    /// Joins with the first version of the consent text; returns the token.
    pub(crate) fn join(&self, name: &str) -> String {
        let reply = self.unauthenticated().join(&self.invite(name), 1);
        assert_eq!(reply.status, 201, "{}", reply.body);
        reply.json()["token"].as_str().unwrap().to_owned()
    }

    pub(crate) fn login_code(&self, role: Role) -> String {
        let link =
            run_to_end(async { Store::open(&self.config).await?.create_login_link(role).await })
                .unwrap();
        link.split_once("code=").unwrap().1.to_owned()
    }

    pub(crate) fn client(&self, token: &str) -> Client {
        Client {
            url: self.url.clone(),
            headers: vec![("authorization", format!("Bearer {token}"))],
        }
    }

    /// Returns a client without a token.
    pub(crate) fn unauthenticated(&self) -> Client {
        Client { url: self.url.clone(), headers: Vec::new() }
    }

    /// Logs a browser in.
    pub(crate) fn browser(&self, role: Role) -> Client {
        let code = self.login_code(role);
        let reply = self.unauthenticated().post("/login", &[("code", &code)]);
        assert_eq!(reply.status, 303, "{}", reply.body);
        let cookie = reply.cookie.split(';').next().unwrap().to_owned();
        Client { url: self.url.clone(), headers: vec![("cookie", cookie)] }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.shutdown.take());
        let server = self.server.take().unwrap().join();
        if !std::thread::panicking() {
            server.unwrap();
        }
    }
}

/// Reply of the server.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) cookie: String,
    pub(crate) location: String,
    pub(crate) policy: String,
    pub(crate) content_type: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Client with the headers that identify it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Client {
    fn agent() -> ureq::Agent {
        ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build().into()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        let mut request = Self::agent().get(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        reply(request.call())
    }

    /// Returns the body of a reply that is not text.
    pub(crate) fn get_bytes(&self, path: &str) -> Vec<u8> {
        let mut request = Self::agent().get(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.call().unwrap().body_mut().read_to_vec().unwrap()
    }

    pub(crate) fn post(&self, path: &str, form: &[(&str, &str)]) -> Reply {
        let mut request = Self::agent().post(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        reply(request.send_form(form.iter().copied()))
    }

    /// Sends a form that the server refuses before it has read all of it. The reply may be lost, when
    /// the server closes the connection during the request. Then the request is repeated.
    pub(crate) fn post_refused(&self, path: &str, form: &[(&str, &str)]) -> Reply {
        let attempt = || {
            let mut request = Self::agent().post(format!("{}{path}", self.url));
            for (name, value) in &self.headers {
                request = request.header(*name, value);
            }
            request.send_form(form.iter().copied())
        };
        let is_reply = |outcome: &Result<_, ureq::Error>| {
            !matches!(outcome, Err(ureq::Error::Io(error))
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
        };
        let mut outcomes = (0..MAX_SENDINGS).map(|_| attempt());
        reply(outcomes.find(is_reply).expect("the server closes each connection without a reply"))
    }

    pub(crate) fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut request = Self::agent().put(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        reply(request.send(body))
    }

    /// Sends a body that is not a form.
    pub(crate) fn post_body(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut request = Self::agent().post(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        reply(request.send(body))
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        let mut request = Self::agent().delete(format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        reply(request.call())
    }

    /// Joins as `towpath agent join` does.
    pub(crate) fn join(&self, code: &str, consent: u32) -> Reply {
        let request = JoinRequest {
            code: code.to_owned(),
            consent,
            version: "0.1.0".to_owned(),
            platform: "linux x86_64".to_owned(),
        };
        let body = serde_json::to_vec(&request).unwrap();
        self.post_body(JOIN_PATH, &[("content-type", "application/json")], &body)
    }

    /// Uploads a result as `towpath upload` does.
    pub(crate) fn upload(&self, result: &str) -> Reply {
        self.upload_with(result, &[("towpath-host", "lab3")])
    }

    pub(crate) fn upload_with(&self, result: &str, headers: &[(&str, &str)]) -> Reply {
        let (hash, size) = content_hash(result.as_bytes()).unwrap();
        let size = size.to_string();
        let mut all = vec![("content-type", "application/zstd"), ("towpath-size", size.as_str())];
        all.extend_from_slice(headers);
        self.put(&format!("/api/v1/runs/{hash}"), &all, &compress(result))
    }
}

pub(crate) fn compress(result: &str) -> Vec<u8> {
    compress_to_vec(result.as_bytes(), CompressionLevel::Fastest)
}

fn reply(outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Reply {
    let mut response = outcome.unwrap();
    let header = |name: &str| {
        let value = response.headers().get(name);
        value.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let (cookie, location) = (header("set-cookie"), header("location"));
    let (policy, content_type) = (header("content-security-policy"), header("content-type"));
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_vec().unwrap();
    let body = String::from_utf8_lossy(&body).into_owned();
    Reply { status, body, cookie, location, policy, content_type }
}

/// Returns a result that differs from all others by its seed, changed by `edit`. Without a change, the
/// seed 1 may give [`RESULT`] itself.
pub(crate) fn result(seed: u64, edit: impl Fn(&mut Value)) -> String {
    edited_result(seed, |records| edit(&mut records[0]))
}

/// Returns such a result, all of whose records `edit` may change.
pub(crate) fn edited_result(seed: u64, edit: impl Fn(&mut Vec<Value>)) -> String {
    let mut lines: Vec<Value> =
        RESULT.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[0]["seed"] = seed.into();
    edit(&mut lines);
    lines.iter().fold(String::new(), |text, line| text + &line.to_string() + "\n")
}
