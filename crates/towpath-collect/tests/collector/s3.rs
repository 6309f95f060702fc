//! Records in S3-compatible storage, on a small server of such storage.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::oneshot;
use towpath_collect::{
    BucketConfig, CollectError, Role, ServerConfig, Store, StoreConfig, run_to_end, serve,
};

use crate::site::{Client, Collector, Database, RESULT, Site, TestFolder, compress, result};

const BUCKET: &str = "lab";
const ACCESS_KEY: &str = "AKIDEXAMPLE";
const SECRET_KEY: &str = "wJalrXUtnFEMI";
/// Longest time in which an upload must have an answer, which a client then repeats.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(20);

/// Objects by their keys.
type Stored = Arc<Mutex<BTreeMap<String, Bytes>>>;

/// A running server of one bucket.
struct S3Server {
    address: SocketAddr,
    stored: Stored,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl S3Server {
    fn start() -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut server = Self { address, stored: Stored::default(), running: None };
        server.resume();
        server
    }

    /// Serves the same objects at the same address as before.
    fn resume(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.stored));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let served = run_to_end(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::select! {
                    outcome = axum::serve(listener, router).into_future() => outcome?,
                    _ = stopped => {}
                }
                Ok(())
            });
            served.unwrap();
        });
        self.running = Some((stop, thread));
    }

    /// Ends the server and its connections.
    fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(()); // the server may have failed
            thread.join().unwrap();
        }
    }

    fn config(&self) -> BucketConfig {
        bucket("s3://lab/towpath/one", &self.endpoint(), SECRET_KEY, ACCESS_KEY)
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn keys(&self) -> Vec<String> {
        self.stored.lock().unwrap().keys().cloned().collect()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bucket(url: &str, endpoint: &str, secret_key: &str, access_key: &str) -> BucketConfig {
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", access_key),
        ("AWS_SECRET_ACCESS_KEY", secret_key),
        ("AWS_REGION", "eu-central-1"),
    ];
    BucketConfig::new(url, variables.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

fn refuse(status: StatusCode, code: &str) -> Response {
    // As real servers do, the reply repeats a part of the request.
    let body = format!("<Error><Code>{code}</Code><Message>{SECRET_KEY}</Message></Error>");
    (status, [(header::CONTENT_TYPE, "application/xml")], body).into_response()
}

async fn answer(
    State(stored): State<Stored>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let signature = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap());
    let expected = format!("AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/");
    if !signature.is_some_and(|signature| {
        signature.starts_with(&expected) && signature.contains("/eu-central-1/s3/aws4_request")
    }) {
        return refuse(StatusCode::FORBIDDEN, "InvalidAccessKeyId");
    }
    let path = uri.path().trim_start_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    if bucket != BUCKET {
        return refuse(StatusCode::NOT_FOUND, "NoSuchBucket");
    }
    let mut stored = stored.lock().unwrap();
    let now = [(header::LAST_MODIFIED, "Sat, 28 Nov 2026 06:35:12 GMT"), (header::ETAG, "\"1\"")];
    match (method, key) {
        (Method::GET, "") => {
            assert!(uri.query().is_some_and(|query| query.contains("list-type=2")), "{uri}");
            "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>".into_response()
        }
        (Method::PUT, key) => {
            stored.insert(key.to_owned(), body);
            (now, "").into_response()
        }
        (Method::GET | Method::HEAD, key) => match stored.get(key) {
            Some(object) => (now, object.clone()).into_response(),
            None => refuse(StatusCode::NOT_FOUND, "NoSuchKey"),
        },
        (Method::DELETE, key) => {
            stored.remove(key);
            StatusCode::NO_CONTENT.into_response()
        }
        (method, _) => panic!("unexpected request: {method} {uri}"),
    }
}

fn uploader(site: &Site) -> Client {
    site.client(&site.token("lab", Role::Uploader))
}

fn with_store<T>(
    config: &StoreConfig,
    work: impl AsyncFnOnce(Store) -> Result<T, CollectError>,
) -> T {
    run_to_end(async { work(Store::open(config).await?).await }).unwrap()
}

#[test]
fn records_in_a_bucket_are_shown_saved_restored_and_purged() {
    let server = S3Server::start();
    let collector = Collector::in_bucket(server.config());
    let site = collector.serve();
    let uploader = uploader(&site);
    let reply = uploader.upload(RESULT);
    assert_eq!(reply.status, 201, "{}", reply.body);
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    let key = format!("towpath/one/runs/{}/{id}.jsonl.zst", &id[..2]);
    assert_eq!(server.keys(), std::slice::from_ref(&key));
    assert_eq!(server.stored.lock().unwrap()[&key], compress(RESULT));
    assert!(!collector.path().join("records").exists());
    let viewer = site.client(&site.token("reader", Role::Viewer));
    for path in [format!("/runs/{id}"), format!("/api/v1/runs/{id}/records")] {
        assert_eq!(viewer.get(&path).status, 200, "{path}");
    }
    assert_eq!(uploader.upload(&result(2, |_| {})).status, 201);

    let saved = TestFolder::create();
    let report = with_store(&collector.config(), async |store| store.backup(saved.path()).await);
    assert_eq!(report.runs, 2);
    let other = Collector::create(Database::Sqlite).unwrap();
    let report = with_store(&other.config(), async |store| store.restore(saved.path()).await);
    assert_eq!(report.runs, 2);
    let other_site = other.serve();
    let viewer = other_site.client(&other_site.token("second", Role::Viewer));
    assert_eq!(viewer.get(&format!("/runs/{id}")).status, 200);

    let purge = async |store: Store| store.purge(i64::MAX, false).await;
    assert_eq!(with_store(&collector.config(), purge).runs, 2);
    assert_eq!(server.keys(), [""; 0]);
    let report = with_store(&collector.config(), async |store| store.restore(saved.path()).await);
    assert_eq!((report.runs, server.keys().len()), (2, 2), "and back into the bucket");
}

/// Serves until the collector listens; returns the reason if it does not.
fn start(objects: BucketConfig) -> Result<(), CollectError> {
    let folder = TestFolder::create();
    let config =
        StoreConfig { dir: folder.path().to_owned(), database: None, objects: Some(objects) };
    run_to_end(async {
        let store = Store::open(&config).await?;
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig {
            listen,
            public_url: None,
            public_read: false,
            poll_interval: Duration::from_secs(300),
        };
        serve(store, config, |_| {}, std::future::ready(())).await
    })
}

#[test]
fn a_bucket_that_cannot_be_used_is_reported_when_the_collector_starts() {
    let mut server = S3Server::start();
    let endpoint = server.endpoint();
    let https = endpoint.replace("http:", "https:");
    start(server.config()).unwrap();
    let verify = |url: &str, endpoint: &str, access_key: &str, words: [&str; 2]| {
        let error = start(bucket(url, endpoint, SECRET_KEY, access_key)).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(error.to_string().contains(words[0]), "{error}");
        assert!(hint.contains(words[1]), "{hint}");
        let text = format!("{error} {error:?} {hint}");
        assert!(!text.contains(SECRET_KEY) && !text.contains(access_key), "{text}");
    };
    let denied = ["refused the key (403 InvalidAccessKeyId)", "AWS_ACCESS_KEY_ID"];
    verify("s3://lab/towpath", &endpoint, "AKIDOTHER", denied);
    verify("s3://other", &endpoint, ACCESS_KEY, ["`s3://other`: the bucket does not", "create"]);
    // The server speaks no TLS.
    verify("s3://lab", &https, ACCESS_KEY, ["cannot be reached", "AWS_ENDPOINT_URL"]);
    server.stop();
    verify("s3://lab", &endpoint, ACCESS_KEY, ["cannot be reached: Conn", "AWS_ENDPOINT_URL"]);
}

#[test]
fn an_upload_fails_while_the_bucket_is_unreachable_and_succeeds_afterwards() {
    let mut server = S3Server::start();
    let collector = Collector::in_bucket(server.config());
    let site = collector.serve();
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let uploader = uploader(&site);
    server.stop();
    let reply = uploader.upload(RESULT);
    assert_eq!(reply.status, 503, "{}", reply.body);
    assert!(!reply.body.contains("127.0.0.1"), "{}", reply.body);
    assert_eq!(viewer.get("/api/v1/runs").json()["matching"], 0);
    server.resume();
    assert_eq!(uploader.upload(RESULT).status, 201);
    assert_eq!(viewer.get("/api/v1/runs").json()["matching"], 1);
    assert_eq!(uploader.upload(RESULT).status, 200);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about real time")]
fn an_upload_to_a_silent_server_fails_before_the_client_gives_up() {
    let mut server = S3Server::start();
    let collector = Collector::in_bucket(server.config());
    let site = collector.serve();
    let uploader = uploader(&site);
    server.stop();
    // Its queue accepts connections, and no program reads them.
    let _silent = TcpListener::bind(server.address).unwrap();
    let start = Instant::now();
    assert_eq!(uploader.upload(RESULT).status, 503);
    assert!(start.elapsed() < MAX_ANSWER_TIME, "{:?}", start.elapsed());
}

#[test]
fn a_collector_does_not_confuse_its_bucket_with_its_folder() {
    let server = S3Server::start();
    let folder = TestFolder::create();
    let open = |objects: Option<BucketConfig>| {
        let dir = folder.path().to_owned();
        run_to_end(async { Store::open(&StoreConfig { dir, database: None, objects }).await })
    };
    let other = || bucket("s3://lab/towpath/two", &server.endpoint(), SECRET_KEY, ACCESS_KEY);
    // An empty collector may move.
    for objects in [None, Some(server.config()), Some(other()), None, Some(server.config())] {
        open(objects).unwrap();
    }
    {
        let collector = Collector::in_bucket(server.config());
        let site = collector.serve();
        let uploader = site.client(&site.token("lab3", Role::Uploader));
        assert_eq!(uploader.upload(&result(1, |_| {})).status, 201);
        for objects in [None, Some(other())] {
            let config = StoreConfig { objects, ..collector.config() };
            let error = run_to_end(async { Store::open(&config).await }).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the records of this collector are in s3://lab/towpath/one"
            );
            assert!(error.hint().unwrap().contains("`--objects s3://lab/towpath/one`"));
        }
    }
    let collector = Collector::create(Database::Sqlite).unwrap();
    let site = collector.serve();
    let uploader = site.client(&site.token("lab3", Role::Uploader));
    assert_eq!(uploader.upload(&result(1, |_| {})).status, 201);
    let config = StoreConfig { objects: Some(server.config()), ..collector.config() };
    let error = run_to_end(async { Store::open(&config).await }).unwrap_err();
    assert!(error.to_string().ends_with("are in its folder"), "{error}");
}
