//! Runs in progress: records from hosts, and pages that follow them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use towpath_collect::{Role, Store, run_to_end};
use towpath_result::upload::live_id;
use towpath_result::{Meta, Record};

use crate::site::{Client, Collector, Database, Reply, Site, result};

/// Name of the host in these tests.
const HOST: &str = "lab3";

/// A run on a host that sends its records.
pub(crate) struct HostRun {
    result: String,
    pub(crate) id: String,
    /// Conditions and records that a host sends, without the end of the result.
    lines: Vec<String>,
}

impl HostRun {
    /// Begins a run now, with the conditions changed by `edit`.
    pub(crate) fn begin(seed: u64, edit: impl Fn(&mut Value)) -> Self {
        let now_us = UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
        let result = result(seed, |meta| {
            meta["started_us"] = now_us.into();
            edit(meta);
        });
        let lines: Vec<String> = result
            .lines()
            .filter(|line| {
                ["meta", "interval", "subflow", "event"]
                    .iter()
                    .any(|kind| line.contains(&format!("\"type\":\"{kind}\"")))
            })
            .map(str::to_owned)
            .collect();
        let meta: Record = serde_json::from_str(&lines[0]).unwrap();
        let Record::Meta(meta) = meta else { panic!("the first record is not the conditions") };
        Self { id: id_of(&meta), result, lines }
    }

    /// Returns the number of records, without the conditions.
    pub(crate) fn count(&self) -> usize {
        self.lines.len() - 1
    }

    /// Sends the records of a range, as a host does.
    pub(crate) fn send(&self, client: &Client, records: std::ops::Range<usize>) -> Reply {
        let first = records.start.to_string();
        let body = format!("{}\n{}\n", self.lines[0], self.lines[1..][records].join("\n"));
        send_body(client, &self.id, &[("towpath-first", &first)], &body)
    }

    /// Uploads the result; returns the identifier of the stored run.
    pub(crate) fn finish(&self, client: &Client) -> String {
        let reply = client.upload_with(&self.result, &[("towpath-host", HOST)]);
        assert_eq!(reply.status, 201, "{}", reply.body);
        reply.json()["id"].as_str().unwrap().to_owned()
    }
}

fn send_body(client: &Client, id: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut all = vec![("content-type", "application/jsonl"), ("towpath-host", HOST)];
    all.extend_from_slice(headers);
    client.post_body(&format!("/api/v1/live/{id}"), &all, body.as_bytes())
}

fn id_of(meta: &Meta) -> String {
    live_id(meta, HOST).unwrap()
}

fn serve() -> (Collector, Site, Client, Client) {
    let collector = Collector::create(Database::Sqlite).unwrap();
    let site = collector.serve();
    let uploader = site.client(&site.token("lab3", Role::Uploader));
    let viewer = site.client(&site.token("reader", Role::Viewer));
    (collector, site, uploader, viewer)
}

/// Reader of the events of a page (HTML Living Standard §9.2).
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(client: &Client, id: &str) -> Self {
        let host = client.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (name, value) = &client.headers[0];
        write!(stream, "GET /live/{id}/events HTTP/1.1\r\nHost: {host}\r\n{name}: {value}\r\n\r\n")
            .unwrap();
        Self(BufReader::new(stream))
    }

    /// Returns the name and the data of the next event.
    fn next(&mut self) -> (String, String) {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            if let Some(text) = line.strip_prefix("event: ") {
                text.trim_end().clone_into(&mut name);
            } else if let Some(text) = line.strip_prefix("data: ") {
                text.trim_end().clone_into(&mut data);
            } else if line.trim().is_empty() && !data.is_empty() {
                return (name, data);
            }
        }
    }
}

#[test]
fn a_page_follows_a_run_until_its_result_is_stored() {
    let (_collector, _site, uploader, viewer) = serve();
    assert_eq!(viewer.get("/api/v1/live").json()["runs"].as_array().unwrap().len(), 0);
    let run = HostRun::begin(1, |_| {});
    let half = run.count() / 2;
    assert_eq!(run.send(&uploader, 0..half).status, 204);
    let list = viewer.get("/api/v1/live").json();
    assert_eq!(list["runs"][0]["id"], run.id.as_str());
    assert_eq!(list["runs"][0]["scenario"], "wifi-cellular-handover");
    let page = viewer.get(&format!("/live/{}", run.id)).body;
    assert!(page.contains("<svg") && page.contains("http-equiv=\"refresh\""), "{page}");
    assert!(viewer.get("/").body.contains(&format!("href=\"/live/{}\"", run.id)));

    let mut events = Events::open(&viewer, &run.id);
    let (name, first) = events.next();
    assert_eq!(name, "");
    assert!(first.contains(" of 10 s") && page.contains(&first), "{first}");
    // A repeated request has no effect.
    assert_eq!(run.send(&uploader, 0..half).status, 204);
    assert_eq!(run.send(&uploader, half..run.count()).status, 204);
    let records = viewer.get(&format!("/api/v1/live/{}", run.id)).body;
    assert_eq!(records.lines().count(), run.count() + 1);
    let second = loop {
        let (_, data) = events.next();
        if data != first {
            break data;
        }
    };
    assert!(second.len() > first.len());
    let stored = run.finish(&uploader);
    assert_eq!(events.next(), ("stored".to_owned(), stored.clone()));
    assert_eq!(viewer.get("/api/v1/live").json()["runs"].as_array().unwrap().len(), 0);
    let reply = viewer.get(&format!("/live/{}", run.id));
    assert_eq!((reply.status, reply.location), (303, format!("/runs/{stored}")));
    assert_eq!(run.send(&uploader, run.count()..run.count()).status, 409);
}

#[test]
fn a_revoked_reader_gets_no_more_events() {
    let (collector, site, uploader, _) = serve();
    let reader = site.client(&site.token("second reader", Role::Viewer));
    let run = HostRun::begin(1, |_| {});
    assert_eq!(run.send(&uploader, 0..1).status, 204);
    let mut events = Events::open(&reader, &run.id);
    events.next();
    run_to_end(async {
        Store::open(&collector.config()).await?.revoke_token("second reader").await
    })
    .unwrap();
    assert_eq!(run.send(&uploader, 1..run.count()).status, 204);
    let mut line = String::new();
    // The end of a reply in chunks (RFC 9112 §7.1).
    while line != "0\r\n" {
        line.clear();
        assert!(events.0.read_line(&mut line).unwrap() > 0, "the connection has ended");
        assert!(!line.starts_with("data:"), "an event after the revocation: {line}");
    }
    assert_eq!(reader.get(&format!("/live/{}/events", run.id)).status, 401);
}

#[test]
fn records_need_an_uploader_and_readers_need_a_viewer() {
    let (_collector, site, uploader, viewer) = serve();
    let run = HostRun::begin(1, |_| {});
    assert_eq!(run.send(&site.unauthenticated(), 0..1).status, 401);
    assert_eq!(run.send(&viewer, 0..1).status, 403);
    assert_eq!(run.send(&site.browser(Role::Admin), 0..1).status, 401);
    assert_eq!(run.send(&uploader, 0..1).status, 204);
    let other = site.client(&site.token("lab4", Role::Uploader));
    assert_eq!(run.send(&other, 1..2).status, 403, "another token's run");
    for path in ["/api/v1/live".to_owned(), format!("/api/v1/live/{}", run.id)] {
        assert_eq!(site.unauthenticated().get(&path).status, 401);
        assert_eq!(uploader.get(&path).status, 403);
    }
    assert_eq!(site.unauthenticated().get(&format!("/live/{}", run.id)).status, 303);
    assert_eq!(site.unauthenticated().get(&format!("/live/{}/events", run.id)).status, 401);
    assert_eq!(viewer.get("/live/00000000000000000000/events").status, 404);
    assert_eq!(viewer.get("/live/../tokens").status, 404);
}

#[test]
fn wrong_records_are_refused_with_a_reason() {
    let (_collector, _site, uploader, viewer) = serve();
    let run = HostRun::begin(1, |_| {});
    let old = HostRun::begin(2, |meta| meta["started_us"] = 1_600_000_000_000_000_u64.into());
    let zero = &[("towpath-first", "0")][..];
    let body = run.lines.join("\n");
    let cases = [
        ("another run", &old.id, zero, body.clone(), 400),
        ("an old run", &old.id, zero, old.lines.join("\n"), 400),
        ("no number", &run.id, &[][..], body.clone(), 400),
        ("a negative number", &run.id, &[("towpath-first", "-1")][..], body.clone(), 400),
        ("no conditions", &run.id, zero, run.lines[1..].join("\n"), 422),
        ("no JSON", &run.id, zero, "records".to_owned(), 422),
        ("two conditions", &run.id, zero, format!("{body}\n{}", run.lines[0]), 422),
        ("too much", &run.id, zero, format!("{body}\n{}", " ".repeat(1_000_000)), 413),
        ("another version", &run.id, zero, body.replacen("\"schema\":1", "\"schema\":9", 1), 422),
    ];
    for (case, id, headers, body, status) in cases {
        let reply = send_body(&uploader, id, headers, &body);
        assert_eq!(reply.status, status, "{case}: {}", reply.body);
        assert!(reply.json()["error"].is_string(), "{case}");
    }
    assert_eq!(viewer.get("/api/v1/live").json()["runs"].as_array().unwrap().len(), 0);
}

#[test]
fn texts_of_a_host_are_shown_harmless() {
    let (_collector, _site, uploader, viewer) = serve();
    let evil = "</script><script>alert(1)</script>\u{1b}[2J\r\ndata: x";
    let run = HostRun::begin(1, |meta| {
        for key in ["run", "scenario", "description"] {
            meta[key] = evil.into();
        }
        meta["paths"][0]["name"] = evil.into();
        meta["timeline"][0]["target"] = evil.into();
    });
    assert_eq!(run.send(&uploader, 0..run.count()).status, 204);
    let (_, event) = Events::open(&viewer, &run.id).next();
    for page in [viewer.get(&format!("/live/{}", run.id)).body, viewer.get("/").body, event] {
        assert!(!page.contains("<script>alert"), "{page}");
        assert!(!page.contains('\u{1b}') && !page.contains('\r'));
    }
}
