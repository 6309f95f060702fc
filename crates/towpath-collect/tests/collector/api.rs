//! The interface for programs: its OpenAPI document, and replies that agree with it.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use towpath_campaign::{HEARTBEAT_PATH, OUTCOMES_PATH, SERVERS_PATH};
use towpath_collect::Role;
use towpath_result::Record;
use towpath_result::device::{DEVICE_CONSENT_PATH, DEVICE_PATH, JOIN_PATH};
use towpath_result::upload::{LIVE_MEDIA_TYPE, content_hash, live_id};

use crate::site::{
    Client, Collector, Database, RESULT, Reply, Site, TestFolder, compress, result, skip,
};

/// A site with stored runs and one that is in progress, and its document.
struct Described {
    collector: Collector,
    site: Site,
    viewer: Client,
    document: Value,
    /// Token of an administrator.
    token: String,
    /// Token of a device with one run.
    device_token: String,
    /// Token of a test server.
    server_token: String,
    id: String,
    live_id: String,
    /// Records of the run in progress.
    live_records: String,
}

impl Described {
    fn create() -> Self {
        let collector = Collector::create(Database::Sqlite).unwrap();
        let site = collector.serve();
        let token = site.token("lab", Role::Admin);
        let uploader = site.client(&token);
        let id = uploader.upload(RESULT).json()["id"].as_str().unwrap().to_owned();
        // `RESULT` has the seed 1, and an equal result would be the same run.
        for seed in 2..14 {
            assert_eq!(uploader.upload(&result(seed, |_| {})).status, 201);
        }
        let started_us = now_us();
        let live = result(100, |meta| meta["started_us"] = started_us.into());
        let live_records: String = live.split_inclusive('\n').take(4).collect();
        let Record::Meta(meta) = serde_json::from_str(live.lines().next().unwrap()).unwrap() else {
            panic!("a result begins with its conditions");
        };
        let live_id = live_id(&meta, "").unwrap();
        let sent = ureq::post(format!("{}/api/v1/live/{live_id}", site.url))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", LIVE_MEDIA_TYPE)
            .header("towpath-first", "0")
            .send(&live_records);
        assert_eq!(sent.unwrap().status(), 204);
        let device_token = site.join("ada");
        let reply = site.client(&device_token).upload(&result(14, |_| {}));
        assert_eq!(reply.status, 201, "{}", reply.body);
        crate::campaigns::create(&collector.config(), "hourly");
        let server_token = site.token("eu-1", Role::Server);
        let json = [("content-type", "application/json")];
        let body = heartbeat().to_string();
        let reply = site.client(&server_token).put(HEARTBEAT_PATH, &json, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.body);
        let viewer = site.client(&site.token("reader", Role::Viewer));
        let document = viewer.get("/api/v1/openapi.json").json();
        Self {
            collector,
            site,
            viewer,
            document,
            token,
            device_token,
            server_token,
            id,
            live_id,
            live_records,
        }
    }

    /// Returns all operations: method, path and description.
    fn operations(&self) -> Vec<(&str, &str, &Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        let operations = paths.iter().flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .iter()
                .map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
        });
        operations.collect()
    }

    /// Requests a path with real values of its parameters.
    fn get(&self, path: &str) -> Reply {
        let path = path.replace("/live/{id}", &format!("/live/{}", self.live_id));
        if path.starts_with(DEVICE_PATH) {
            let path = path.replace(SERVERS_PATH, &format!("{SERVERS_PATH}?campaign=hourly"));
            return self.site.client(&self.device_token).get(&path);
        }
        let path = path.replace("{id}", &self.id).replace("{file}", "subflows.csv");
        self.viewer.get(&path.replace("{campaign}", "hourly"))
    }

    /// Returns the schema of a JSON reply.
    fn schema(&self, method: &str, path: &str, status: &str) -> &Value {
        let reply = &self.document["paths"][path][method]["responses"][status];
        assert!(reply.is_object(), "{method} {path}: {status} is not described");
        &reply["content"]["application/json"]["schema"]
    }
}

#[expect(clippy::disallowed_methods, reason = "a run in progress started now")]
pub(crate) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Returns a heartbeat of a test server.
fn heartbeat() -> Value {
    json!({
        "place": "Brussels", "hosts": ["192.0.2.1"], "ports": [443], "transports": ["tcp"],
        "certificate": null, "version": "0.1.0", "tests": 0, "max_tests": 16,
    })
}

/// Returns what a reference leads to.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => {
            let target = document.pointer(reference.trim_start_matches('#'));
            resolved(document, target.unwrap_or_else(|| panic!("{reference} leads nowhere")))
        }
        None => schema,
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the names of all fields that a schema describes.
fn fields(document: &Value, schema: &Value) -> BTreeSet<String> {
    let schema = resolved(document, schema);
    let own = schema["properties"].as_object().into_iter().flat_map(|object| object.keys());
    let parts = array(&schema["allOf"]).iter().flat_map(|part| fields(document, part));
    own.cloned().chain(parts).collect()
}

fn is_of_type(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        kind => panic!("unknown type {kind}"),
    }
}

/// Returns where a value differs from a schema. A field without a description is a
/// difference.
fn differences(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let mut found = part_differences(document, schema, value, place);
    let known = fields(document, schema);
    for name in value.as_object().into_iter().flat_map(|object| object.keys()) {
        if !known.is_empty() && !known.contains(name) {
            found.push(format!("{place}: `{name}` is not described"));
        }
    }
    found
}

fn part_differences(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let schema = resolved(document, schema);
    let mut found = Vec::new();
    for part in array(&schema["allOf"]) {
        found.extend(part_differences(document, part, value, place));
    }
    let choices = [&schema["oneOf"], &schema["anyOf"]].into_iter().find_map(Value::as_array);
    let fits = |choice: &Value| differences(document, choice, value, place).is_empty();
    if choices.is_some_and(|choices| !choices.iter().any(fits)) {
        found.push(format!("{place}: no choice fits {value}"));
    }
    let kinds = &schema["type"];
    let kinds: Vec<&str> = if let Some(kind) = kinds.as_str() {
        vec![kind]
    } else {
        array(kinds).iter().map(|kind| kind.as_str().unwrap()).collect()
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_of_type(kind, value)) {
        found.push(format!("{place}: expected {kinds:?}, not {value}"));
    }
    for name in array(&schema["required"]) {
        if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
            found.push(format!("{place}: {name} is absent"));
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            found.extend(differences(document, field, value, &format!("{place}.{name}")));
        }
    }
    for (index, value) in array(value).iter().enumerate() {
        found.extend(differences(document, &schema["items"], value, &format!("{place}[{index}]")));
    }
    found
}

#[test]
fn every_described_path_answers_with_the_described_media_type() {
    let described = Described::create();
    let version = described.document["openapi"].as_str().unwrap();
    assert!(version.starts_with("3.1."), "{version}");
    assert_eq!(described.document["servers"][0]["url"], described.site.url);
    let (mut read, mut ids) = (0, BTreeSet::new());
    for (method, path, operation) in described.operations() {
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{method} {path}");
        if method != "get" {
            continue; // see `the_commands_of_the_page_work_in_a_shell`
        }
        let reply = described.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        let media_type = reply.content_type.split(';').next().unwrap();
        let content = operation["responses"]["200"]["content"].as_object().unwrap();
        assert!(content.contains_key(media_type), "{path}: {media_type}");
        read += 1;
    }
    assert!(read >= 8, "{read}");
}

#[test]
fn every_json_reply_agrees_with_its_schema() {
    let described = Described::create();
    let mut checked = Vec::new();
    for (method, path, operation) in described.operations() {
        let content = &operation["responses"]["200"]["content"]["application/json"];
        if method != "get" || content.is_null() {
            continue;
        }
        let reply = described.get(path).json();
        let found = differences(&described.document, &content["schema"], &reply, path);
        assert_eq!(found, [""; 0]);
        checked.push(path);
    }
    for path in ["/api/v1/runs", "/api/v1/runs/{id}", "/api/v1/series"] {
        assert!(checked.contains(&path), "{path}");
    }
    // The check can fail: each of these changes must be found.
    let list = described.get("/api/v1/runs").json();
    let schema = described.schema("get", "/api/v1/runs", "200");
    let changes: [fn(&mut Value); 5] = [
        |list| list["runs"][0]["id"] = json!(7),
        |list| list["runs"][1]["goodput_bps"] = json!("fast"),
        |list| list["runs"][0]["colour"] = json!("red"),
        |list| drop(list["runs"][0].as_object_mut().unwrap().remove("transport")),
        |list| list["pages"] = Value::Null,
    ];
    for change in changes {
        let mut wrong = list.clone();
        change(&mut wrong);
        assert_eq!(differences(&described.document, schema, &wrong, "list").len(), 1);
    }
}

#[test]
fn refusals_are_described() {
    let described = Described::create();
    let site = &described.site;
    let uploader = site.client(&site.token("lab2", Role::Uploader));
    let path = "/api/v1/runs/{id}";
    let hash = format!("/api/v1/runs/{}", "0".repeat(64));
    let zstd = ("content-type", "application/zstd");
    let put = |headers: &[(&str, &str)]| uploader.put(&hash, headers, &compress(RESULT));
    let uploads = [
        (401, site.unauthenticated().upload(RESULT)),
        (403, described.viewer.upload(RESULT)),
        (400, put(&[zstd])),
        (413, put(&[zstd, ("towpath-size", "999999999999")])),
        (415, put(&[("towpath-size", "1")])),
        (422, put(&[zstd, ("towpath-size", "1")])),
    ];
    let reads = [
        ("/api/v1/runs", 400, described.viewer.get("/api/v1/runs?colour=red")),
        ("/api/v1/series", 400, described.viewer.get("/api/v1/series?page=0")),
        ("/api/v1/runs", 401, site.unauthenticated().get("/api/v1/runs")),
        ("/api/v1/openapi.json", 401, site.unauthenticated().get("/api/v1/openapi.json")),
        ("/api/v1/runs", 403, uploader.get("/api/v1/runs")),
        (path, 404, described.viewer.get("/api/v1/runs/00")),
        (DEVICE_PATH, 401, site.unauthenticated().get(DEVICE_PATH)),
        (DEVICE_PATH, 403, uploader.get(DEVICE_PATH)),
    ];
    let join = |body: &[u8]| {
        let json = [("content-type", "application/json")];
        uploader.post_body(JOIN_PATH, &json, body)
    };
    let code = site.invite("bob");
    let joins = [
        (400, join(b"{}")),
        (403, uploader.join("7K3M-9QPX-VB2D", 1)),
        (409, uploader.join(&code, 7)),
        (413, join(&vec![b' '; 20_000])),
        (415, uploader.post_body(JOIN_PATH, &[], b"{}")),
        (201, uploader.join(&code, 1)),
    ];
    let joins = joins.into_iter().map(|(status, reply)| ("post", JOIN_PATH, status, reply));
    let uploads = uploads.into_iter().map(|(status, reply)| ("put", path, status, reply));
    let reads = reads.into_iter().map(|(path, status, reply)| ("get", path, status, reply));
    for (method, path, status, reply) in uploads.chain(reads).chain(joins) {
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.body);
        let schema = described.schema(method, path, &status.to_string());
        let found = differences(&described.document, schema, &reply.json(), path);
        assert_eq!(found, [""; 0]);
    }
    let stored = uploader.upload(&result(99, |_| {}));
    let schema = described.schema("put", path, "201");
    assert_eq!(differences(&described.document, schema, &stored.json(), path), [""; 0]);
}

#[test]
fn the_described_parameters_are_those_of_the_lists() {
    let described = Described::create();
    let refusal = described.viewer.get("/api/v1/runs?colour=red").json();
    for path in ["/api/v1/runs", "/api/v1/series"] {
        let mut names = Vec::new();
        for parameter in array(&described.document["paths"][path]["get"]["parameters"]) {
            let name = parameter["name"].as_str().unwrap();
            names.push(name);
            let schema = &parameter["schema"];
            let values = match (array(&schema["enum"]), array(&schema["examples"])) {
                ([], []) => &[json!("1")][..],
                ([], examples) => examples,
                (values, _) => values,
            };
            for value in values {
                let value = value.as_str().unwrap().replace('+', "%2B");
                let reply = described.viewer.get(&format!("{path}?{name}={value}"));
                assert_eq!(reply.status, 200, "{path}?{name}={value}: {}", reply.body);
            }
        }
        // The refusal of another parameter lists all that exist.
        let (last, others) = names.split_last().unwrap();
        let listed = format!("there are {} and {last}", others.join(", "));
        assert!(refusal["error"].as_str().unwrap().ends_with(&listed), "{refusal}: {listed}");
    }
}

#[test]
fn the_page_shows_all_operations_and_schemas_to_readers() {
    let described = Described::create();
    let browser = described.site.browser(Role::Viewer);
    let page = browser.get("/api");
    assert_eq!(page.status, 200);
    assert!(!page.body.contains("<script") && page.body.contains("/api/v1/openapi.json"));
    for (method, path, operation) in described.operations() {
        let heading = format!("<h2><code>{} {path}</code></h2>", method.to_uppercase());
        assert!(page.body.contains(&heading), "{heading}");
        assert!(page.body.contains(operation["summary"].as_str().unwrap()), "{path}");
    }
    for name in described.document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(page.body.contains(&format!("id=\"schema-{name}\"")), "{name}");
    }
    for link in page.body.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(page.body.contains(&format!("id=\"{link}\"")), "{link} leads nowhere");
    }
    assert!(browser.get("/").body.contains("href=\"/api\""), "the navigation has a link");
    assert_eq!(described.site.unauthenticated().get("/api").status, 303);
    drop(browser);
    let Described { collector, site, .. } = described;
    drop(site);
    let public = collector.serve_publicly();
    assert_eq!(public.unauthenticated().get("/api").status, 200);
    assert_eq!(public.unauthenticated().get("/api/v1/openapi.json").status, 200);
}

/// Returns the file that a command of the page sends; empty for none.
fn file_to_send(command: &str) -> &'static str {
    let files = [
        (JOIN_PATH, "join.json"),
        (DEVICE_CONSENT_PATH, "consent.json"),
        (OUTCOMES_PATH, "outcomes.json"),
        (HEARTBEAT_PATH, "heartbeat.json"),
        ("--request PUT", "new.jsonl.zst"),
        ("--request POST", "live.jsonl"),
    ];
    files.into_iter().find(|(part, _)| command.contains(part)).map_or("", |(_, file)| file)
}

#[test]
fn the_commands_of_the_page_work_in_a_shell() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("there is no curl");
    }
    let described = Described::create();
    let folder = TestFolder::create();
    let new = result(77, |_| {});
    std::fs::write(folder.path().join("new.jsonl.zst"), compress(&new)).unwrap();
    let (hash, size) = content_hash(new.as_bytes()).unwrap();
    std::fs::write(folder.path().join("live.jsonl"), &described.live_records).unwrap();
    let join = json!({
        "code": described.site.invite("bob"), "consent": 1, "version": "", "platform": "",
    });
    std::fs::write(folder.path().join("join.json"), join.to_string()).unwrap();
    std::fs::write(folder.path().join("consent.json"), "{\"consent\":1}").unwrap();
    std::fs::write(folder.path().join("outcomes.json"), "{\"outcomes\":[]}").unwrap();
    std::fs::write(folder.path().join("heartbeat.json"), heartbeat().to_string()).unwrap();
    let leaving_token = described.site.join("eve");
    let page = described.viewer.get("/api").body;
    let blocks = page.split("<pre><code>").skip(1);
    let commands: Vec<String> = blocks
        .map(|block| block.split("</code>").next().unwrap())
        .map(|text| text.replace("&quot;", "\"").replace("&gt;", ">").replace("&amp;", "&"))
        .collect();
    assert_eq!(commands.len(), described.operations().len());
    for command in commands {
        let body = file_to_send(&command);
        let id = match body {
            "new.jsonl.zst" => &hash,
            _ if command.contains("/live/") => &described.live_id,
            _ => &described.id,
        };
        let token = if command.contains("--request DELETE") {
            &leaving_token
        } else if body == "heartbeat.json" {
            &described.server_token
        } else if command.contains(DEVICE_PATH) {
            &described.device_token
        } else {
            &described.token
        };
        let output = Command::new("sh")
            .args(["-c", &command])
            .current_dir(folder.path())
            .env("TOWPATH_TOKEN", token)
            .env("ID", id)
            .env("SIZE", size.to_string())
            .env("FIRST", "0")
            .env("BODY", body)
            .env("FILE", "subflows.csv")
            .env("CAMPAIGN", "hourly")
            .env("no_proxy", "*")
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}\n{output:?}");
    }
    let saved = folder.path().join(format!("{}.jsonl.zst", described.id));
    assert_eq!(std::fs::read(saved).unwrap(), compress(RESULT));
    assert_eq!(described.get("/api/v1/runs").json()["matching"], 15);
}
