//! Devices of volunteers: joining, consent, their own runs only, and the deletion of everything.

use std::path::Path;

use serde_json::{Value, json};
use towpath_collect::{CollectError, Role, Store, StoreConfig, run_to_end};
use towpath_result::device::{CONSENT_PATH, DEVICE_CONSENT_PATH, DEVICE_PATH, DEVICE_RUNS_PATH};

use crate::live::HostRun;
use crate::maintenance::with_store;
use crate::site::{
    Client, Collector, Database, Reply, Site, TestFolder, on_both_databases, result,
};

on_both_databases!(
    a_device_joins_and_reads_its_own_state_and_runs_only,
    wrong_used_and_expired_codes_are_refused_alike,
    of_two_simultaneous_joins_with_one_code_one_succeeds,
    another_consent_text_is_refused_and_leaves_the_code_unused,
    a_new_consent_text_stops_uploads_until_it_is_accepted,
    forgetting_leaves_nothing_of_the_device_and_everything_of_others,
    an_upload_during_the_deletion_leaves_nothing,
    an_interrupted_deletion_can_be_repeated,
    a_revoked_device_sends_nothing_more_and_its_runs_stay,
    a_name_belongs_to_one_token_or_invitation,
    a_backup_keeps_devices_and_consent_texts_but_no_codes,
    a_backup_does_not_bring_deleted_runs_back,
    a_repeated_backup_drops_the_records_of_deleted_runs_only,
    open_invitations_are_listed_until_they_are_used_or_expire,
    many_wrong_codes_end_further_attempts,
);

/// Host of the device in these tests.
const HOST: &str = "volunteer-host-1";

/// Uploads a new run from the host of the device.
fn upload(device: &Client, seed: u64) -> Reply {
    device.upload_with(&result(seed, |_| {}), &[("towpath-host", HOST)])
}

pub(crate) fn id_of(reply: &Reply) -> String {
    assert_eq!(reply.status, 201, "{}", reply.body);
    reply.json()["id"].as_str().unwrap().to_owned()
}

fn ids(runs: &Value) -> Vec<&str> {
    runs.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect()
}

fn accept(device: &Client, version: u32) -> Reply {
    let body = json!({ "consent": version }).to_string();
    let json = [("content-type", "application/json")];
    device.put(DEVICE_CONSENT_PATH, &json, body.as_bytes())
}

pub(crate) fn set_consent(config: &StoreConfig, text: &str) -> u32 {
    with_store(config, async |store| store.set_consent(text.as_bytes()).await)
}

pub(crate) fn error_of<T>(
    config: &StoreConfig,
    work: impl AsyncFnOnce(Store) -> Result<T, CollectError>,
) -> CollectError {
    let done = run_to_end(async {
        let store = Store::open(config).await?;
        work(store).await
    });
    done.map(drop).unwrap_err()
}

fn a_device_joins_and_reads_its_own_state_and_runs_only(collector: &Collector) {
    let site = collector.serve();
    let consent = site.unauthenticated().get(CONSENT_PATH).json();
    assert_eq!(consent["version"], 1);
    assert!(consent["text"].as_str().unwrap().contains("towpath agent forget"));
    // People type codes without care.
    let typed = site.invite("ada").to_lowercase().replace('-', " ");
    let reply = site.unauthenticated().join(&typed, 1);
    assert_eq!((reply.status, &reply.json()["name"]), (201, &"ada".into()), "{}", reply.body);
    let secret = reply.json()["token"].as_str().unwrap().to_owned();
    let (device, other) = (site.client(&secret), site.client(&site.join("bob")));
    let own = [id_of(&upload(&device, 1)), id_of(&upload(&device, 2))];
    let foreign = id_of(&upload(&other, 3));
    assert_eq!(id_of(&upload(&site.client(&site.token("lab", Role::Uploader)), 4)).len(), 20);
    // The run of another device stays that device's.
    assert_eq!(upload(&device, 3).status, 200);

    let state = device.get(DEVICE_PATH).json();
    assert_eq!((&state["name"], &state["runs"]), (&json!("ada"), &json!(2)));
    assert_eq!((&state["consent"], &state["current_consent"]), (&json!(1), &json!(1)));
    assert!(state["bytes"].as_u64().unwrap() > 100 && state["joined_us"].as_u64().unwrap() > 0);
    let runs = device.get(DEVICE_RUNS_PATH).json();
    let mut listed = ids(&runs);
    listed.sort_unstable();
    let mut expected = own.clone();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert_eq!(runs[0]["url"], format!("{}/runs/{}", site.url, ids(&runs)[0]));
    assert!(runs[0]["goodput_bps"].as_f64().unwrap() > 1e6 && runs[0]["transport"] == "mptcp");
    assert_eq!(ids(&other.get(DEVICE_RUNS_PATH).json()), [foreign.as_str()]);

    let run = format!("/runs/{}", own[0]);
    let records = format!("/api/v1/runs/{foreign}/records");
    for path in ["/", "/tokens", "/metrics", "/api", "/api/v1/runs", "/api/v1/live", &run, &records]
    {
        assert_eq!(device.get(path).status, 403, "{path}");
    }
    assert_eq!(site.unauthenticated().post("/login", &[("token", &secret)]).status, 403);
    for path in [DEVICE_PATH, DEVICE_RUNS_PATH] {
        assert_eq!(site.client(&site.token(path, Role::Admin)).get(path).status, 403);
        assert_eq!(site.browser(Role::Admin).get(path).status, 401);
        assert_eq!(site.unauthenticated().get(path).status, 401);
    }
    assert_eq!(site.browser(Role::Admin).delete(DEVICE_PATH).status, 401);
}

fn wrong_used_and_expired_codes_are_refused_alike(collector: &Collector) {
    let site = collector.serve();
    let client = site.unauthenticated();
    let used = site.invite("ada");
    assert_eq!(client.join(&used, 1).status, 201);
    let expired =
        with_store(&collector.config(), async |store| store.invite_device("eve", 1).await).code;
    let long = "7".repeat(5_000);
    let refusals: Vec<Reply> = [&used, &expired, "7K3M-9QPX-VB2D", "", "wrong", &long]
        .into_iter()
        .map(|code| client.join(code, 1))
        .collect();
    for refusal in &refusals {
        assert_eq!((refusal.status, &refusal.body), (403, &refusals[0].body));
    }
    assert!(refusals[0].json()["hint"].as_str().unwrap().contains("new code"));
    // Neither codes nor tokens are stored.
    let open = site.invite("bob");
    for code in [&used, &open, &open.replace('-', "")] {
        assert!(!contains(collector.path(), code), "{code}");
    }
}

fn of_two_simultaneous_joins_with_one_code_one_succeeds(collector: &Collector) {
    let site = collector.serve();
    for round in 0..3 {
        let code = site.invite(&format!("ada{round}"));
        let mut statuses: Vec<u16> = std::thread::scope(|scope| {
            let client = site.unauthenticated();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (client, code) = (client.clone(), code.clone());
                    scope.spawn(move || client.join(&code, 1).status)
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 403]);
    }
    let devices = with_store(&collector.config(), async |store| store.devices().await);
    assert_eq!(devices.len(), 3);
}

fn another_consent_text_is_refused_and_leaves_the_code_unused(collector: &Collector) {
    let site = collector.serve();
    let (client, code) = (site.unauthenticated(), site.invite("ada"));
    assert_eq!(set_consent(&collector.config(), "All is sent.\n"), 2);
    assert_eq!(set_consent(&collector.config(), "All is sent.\n"), 2, "the text is the same");
    for version in [0, 1, 3] {
        let refusal = client.join(&code, version);
        assert_eq!(refusal.status, 409, "{}", refusal.body);
        assert!(refusal.json()["error"].as_str().unwrap().contains("is 2"));
        assert!(refusal.json()["hint"].as_str().unwrap().contains("towpath agent"));
    }
    assert_eq!(client.get(CONSENT_PATH).json(), json!({ "version": 2, "text": "All is sent.\n" }));
    let joined = client.join(&code, 2);
    assert_eq!(joined.status, 201, "{}", joined.body);
}

fn a_new_consent_text_stops_uploads_until_it_is_accepted(collector: &Collector) {
    let site = collector.serve();
    let device = site.client(&site.join("ada"));
    let live = HostRun::begin(100, |_| {});
    assert_eq!(live.send(&device, 0..2).status, 204);
    assert_eq!(upload(&device, 1).status, 201);
    assert_eq!(set_consent(&collector.config(), "Version two.\n"), 2);
    for refusal in [upload(&device, 2), live.send(&device, 2..3)] {
        assert_eq!(refusal.status, 403, "{}", refusal.body);
        assert!(refusal.json()["hint"].as_str().unwrap().contains("towpath agent consent"));
    }
    // Other roles need no consent, and the device may still read.
    assert_eq!(upload(&site.client(&site.token("lab", Role::Uploader)), 3).status, 201);
    let state = device.get(DEVICE_PATH).json();
    assert_eq!((&state["consent"], &state["current_consent"]), (&json!(1), &json!(2)));
    assert_eq!(accept(&device, 1).status, 409);
    assert_eq!(upload(&device, 2).status, 403);
    assert_eq!(accept(&device, 2).status, 204);
    assert_eq!(upload(&device, 2).status, 201);
    assert_eq!(live.send(&device, 2..3).status, 204);
    assert_eq!(device.get(DEVICE_PATH).json()["runs"], 2);
}

/// Returns true if any file below the folder contains the text, or its name does.
pub(crate) fn contains(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        name.contains(text)
            || if path.is_dir() {
                contains(&path, text)
            } else {
                let bytes = std::fs::read(&path).unwrap();
                bytes.windows(text.len()).any(|window| window == text.as_bytes())
            }
    })
}

fn forgetting_leaves_nothing_of_the_device_and_everything_of_others(collector: &Collector) {
    let site = collector.serve();
    let device = site.client(&site.join("ada"));
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let started = |seed: u64, day: u64| {
        let start_us = 1_790_000_000_000_000_u64 + day * 86_400_000_000;
        result(seed, move |meta| meta["started_us"] = start_us.into())
    };
    let own: Vec<String> = (0..3)
        .map(|seed| id_of(&device.upload_with(&started(seed, seed), &[("towpath-host", HOST)])))
        .collect();
    // The same group of runs has one of another token.
    let same_group = [("towpath-host", "shared-host")];
    let shared = id_of(&device.upload_with(&started(10, 0), &same_group));
    let kept = id_of(&uploader.upload_with(&started(11, 0), &same_group));
    let live = HostRun::begin(100, |_| {});
    assert_eq!(live.send(&device, 0..2).status, 204);
    // The search can find something.
    assert!(contains(collector.path(), &own[0]));
    assert!(contains(collector.path(), HOST) == collector.config().database.is_none());

    let state = device.get(DEVICE_PATH).json();
    let reply = device.delete(DEVICE_PATH);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let expected = json!({
        "runs": 4, "bytes": state["bytes"], "remaining_runs": 0, "remaining_objects": 0,
    });
    assert_eq!(reply.json(), expected);
    for id in own.iter().chain([&shared]) {
        assert_eq!(viewer.get(&format!("/api/v1/runs/{id}")).status, 404);
        assert!(!contains(collector.path(), id), "{id}");
    }
    for text in [HOST, "linux x86_64"] {
        assert!(!contains(collector.path(), text), "{text}");
    }
    for query in ["", "?since=2026-01-01", "?host=shared-host"] {
        let list = viewer.get(&format!("/api/v1/runs{query}")).json();
        assert_eq!((&list["matching"], ids(&list["runs"])), (&json!(1), vec![kept.as_str()]));
    }
    assert!(!site.browser(Role::Viewer).get("/").body.contains(HOST));
    assert_eq!(viewer.get(&format!("/api/v1/runs/{kept}/records")).status, 200);
    assert_eq!(viewer.get("/api/v1/live").json()["runs"], json!([]));

    assert_eq!(upload(&device, 20).status, 401);
    assert_eq!(device.delete(DEVICE_PATH).status, 401);
    let devices = with_store(&collector.config(), async |store| store.devices().await);
    assert_eq!((devices.len(), devices[0].runs, devices[0].consent), (1, 0, 0));
    assert!(devices[0].version.is_empty() && devices[0].token.revoked_us.is_some());
    // Another token may upload the same run, and a new device may have the name.
    assert_eq!(uploader.upload_with(&started(0, 0), &same_group).status, 201);
    assert_eq!(upload(&site.client(&site.join("ada")), 21).status, 201);
}

/// Returns the place of a run's records in the collector's folder.
fn object(id: &str) -> String {
    format!("records/runs/{}/{id}.jsonl.zst", &id[..2])
}

fn an_upload_during_the_deletion_leaves_nothing(collector: &Collector) {
    let site = collector.serve();
    let device = site.client(&site.join("ada"));
    assert_eq!(upload(&device, 0).status, 201);
    let uploaded = std::thread::scope(|scope| {
        let uploads = scope.spawn(|| {
            (1..500).map(|seed| upload(&device, seed).status).take_while(|s| *s == 201).count()
        });
        let reply = device.delete(DEVICE_PATH);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["remaining_runs"], 0);
        uploads.join().unwrap()
    });
    assert!(uploaded < 499, "the deletion ended the uploads");
    let viewer = site.client(&site.token("reader", Role::Viewer));
    assert_eq!(viewer.get("/api/v1/runs").json()["matching"], 0);
    assert!(!contains(collector.path(), HOST));
    assert!(!contains(collector.path(), ".jsonl.zst"));
}

fn an_interrupted_deletion_can_be_repeated(collector: &Collector) {
    let site = collector.serve();
    let device = site.client(&site.join("ada"));
    let all: Vec<String> = (0..3).map(|seed| id_of(&upload(&device, seed))).collect();
    // A folder with the name of the records cannot be removed as a file.
    let blocked = collector.path().join(object(&all[1]));
    let records = std::fs::read(&blocked).unwrap();
    std::fs::remove_file(&blocked).unwrap();
    std::fs::create_dir(&blocked).unwrap();
    let failed = device.delete(DEVICE_PATH);
    assert_eq!(failed.status, 503, "{}", failed.body);
    // The consent is withdrawn, and the access has not ended.
    assert_eq!(device.get(DEVICE_PATH).json()["consent"], 0);
    assert_eq!(upload(&device, 7).status, 403);

    std::fs::remove_dir(&blocked).unwrap();
    std::fs::write(&blocked, records).unwrap();
    let reply = device.delete(DEVICE_PATH).json();
    assert_eq!((&reply["remaining_runs"], &reply["remaining_objects"]), (&json!(0), &json!(0)));
    for id in &all {
        assert!(!contains(collector.path(), id), "{id}");
    }
    assert_eq!(device.get(DEVICE_PATH).status, 401);
}

fn a_revoked_device_sends_nothing_more_and_its_runs_stay(collector: &Collector) {
    let site = collector.serve();
    let device = site.client(&site.join("ada"));
    let id = id_of(&upload(&device, 1));
    let code = site.invite("bob");
    let revoke = |name: &'static str| {
        with_store(&collector.config(), async |store| store.revoke_device(name).await);
    };
    revoke("ada");
    revoke("bob");
    assert_eq!(upload(&device, 2).status, 401);
    assert_eq!(HostRun::begin(100, |_| {}).send(&device, 0..1).status, 401);
    assert_eq!(device.get(DEVICE_RUNS_PATH).status, 401);
    assert_eq!(site.unauthenticated().join(&code, 1).status, 403);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    assert_eq!(viewer.get(&format!("/api/v1/runs/{id}")).status, 200);
    // Only devices can be revoked in this way.
    for name in ["ada", "reader", "nothing"] {
        let error = error_of(&collector.config(), async |store| store.revoke_device(name).await);
        assert!(matches!(error, CollectError::NoDevice(_)), "{error}");
    }
}

fn a_name_belongs_to_one_token_or_invitation(collector: &Collector) {
    let site = collector.serve();
    let config = collector.config();
    site.invite("ada");
    site.join("bob");
    site.token("lab", Role::Uploader);
    let invite = |name: &'static str| {
        error_of(&config, async |store| store.invite_device(name, i64::MAX).await)
    };
    assert!(matches!(invite("ada"), CollectError::InvitationExists(_)));
    assert!(matches!(invite("bob"), CollectError::TokenExists(_)));
    assert!(matches!(invite("lab"), CollectError::TokenExists(_)));
    assert!(matches!(invite(" "), CollectError::DeviceName));
    let error = error_of(&config, async |store| store.create_token("ada", Role::Viewer).await);
    assert!(matches!(error, CollectError::InvitationExists(_)), "{error}");
    // The page of tokens shows devices, and does not offer their role.
    let admin = site.browser(Role::Admin);
    let page = admin.get("/tokens").body;
    assert!(page.contains("<td>device</td>") && !page.contains("value=\"device\""), "{page}");
    let csrf = crate::access::between(&page, "name=\"csrf\" value=\"", "\"");
    let form = [("csrf", csrf.as_str()), ("name", "x"), ("role", "device")];
    let refusal = admin.post("/tokens", &form);
    assert!(refusal.status == 400 && refusal.body.contains("device invite"), "{}", refusal.body);
}

fn a_backup_keeps_devices_and_consent_texts_but_no_codes(collector: &Collector) {
    let saved = TestFolder::create();
    let (secret, code) = {
        let site = collector.serve();
        let secret = site.join("ada");
        assert_eq!(upload(&site.client(&secret), 1).status, 201);
        assert_eq!(set_consent(&collector.config(), "Version two.\n"), 2);
        let code = site.invite("bob");
        with_store(&collector.config(), async |store| store.backup(saved.path()).await);
        (secret, code)
    };
    let other = Collector::create(Database::Sqlite).unwrap();
    for _ in 0..2 {
        with_store(&other.config(), async |store| store.restore(saved.path()).await);
    }
    let site: Site = other.serve();
    let device = site.client(&secret);
    let state = device.get(DEVICE_PATH).json();
    assert_eq!((&state["name"], &state["runs"]), (&json!("ada"), &json!(1)));
    assert_eq!((&state["consent"], &state["current_consent"]), (&json!(1), &json!(2)));
    assert_eq!(device.get(CONSENT_PATH).json()["text"], "Version two.\n");
    assert_eq!(upload(&device, 2).status, 403);
    assert_eq!(accept(&device, 2).status, 204);
    assert_eq!(upload(&device, 2).status, 201);
    assert_eq!(site.unauthenticated().join(&code, 2).status, 403);
}

fn a_backup_does_not_bring_deleted_runs_back(collector: &Collector) {
    let (site, saved) = (collector.serve(), TestFolder::create());
    let device = site.client(&site.join("ada"));
    let id = id_of(&upload(&device, 1));
    assert_eq!(upload(&site.client(&site.token("lab", Role::Uploader)), 2).status, 201);
    with_store(&collector.config(), async |store| store.backup(saved.path()).await);
    assert_eq!(device.delete(DEVICE_PATH).status, 200);
    let report = with_store(&collector.config(), async |store| store.restore(saved.path()).await);
    assert_eq!((report.runs, report.skipped, report.withdrawn), (0, 1, 1));
    assert!(!contains(collector.path(), &id));
    assert_eq!(upload(&device, 3).status, 401);
}

fn a_repeated_backup_drops_the_records_of_deleted_runs_only(collector: &Collector) {
    let (site, saved) = (collector.serve(), TestFolder::create());
    let device = site.client(&site.join("ada"));
    let deleted = id_of(&upload(&device, 1));
    let kept = id_of(&upload(&site.client(&site.token("lab", Role::Uploader)), 2));
    let backup =
        || with_store(&collector.config(), async |store| store.backup(saved.path()).await).runs;
    assert_eq!(backup(), 2);
    assert_eq!(device.delete(DEVICE_PATH).status, 200);
    let records = saved.path().join("records");
    let folder = records.join("ab");
    std::fs::create_dir_all(&folder).unwrap();
    // Only records in their own place are removed.
    let others = [
        records.join(format!("{deleted}.jsonl.zst")),
        folder.join("abcdefabcdefabcdefab.jsonl.zst.old"),
        folder.join("abcdef.jsonl.zst"),
        folder.join("ABCDEFABCDEFABCDEFAB.jsonl.zst"),
        folder.join("cdefabcdefabcdefabcd.jsonl.zst"),
        saved.path().join("abcdefabcdefabcdefab.jsonl.zst"),
    ];
    for path in &others {
        std::fs::write(path, "other").unwrap();
    }
    let (elsewhere, name) = (TestFolder::create(), "efefefefefefefefefef.jsonl.zst");
    std::fs::write(elsewhere.path().join(name), "other").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), records.join("ef")).unwrap();
    let old = |id: &str| records.join(&id[..2]).join(format!("{id}.jsonl.zst"));
    assert!(old(&deleted).exists());
    assert_eq!(backup(), 1);
    assert!(!old(&deleted).exists() && old(&kept).exists());
    assert!(others.iter().all(|path| path.exists()));
    assert!(elsewhere.path().join(name).exists());
    std::fs::remove_file(&others[0]).unwrap();
    assert!(!contains(&records, &deleted));
}

fn open_invitations_are_listed_until_they_are_used_or_expire(collector: &Collector) {
    let site = collector.serve();
    let open = |now_us: i64| {
        let invitations =
            with_store(&collector.config(), async |store| store.open_invitations(now_us).await);
        let names = invitations.into_iter().map(|invitation| invitation.name);
        names.collect::<Vec<_>>()
    };
    site.invite("eve");
    let code = site.invite("bob");
    let invited = async |store: Store| store.invite_device("ada", 9_000_000_000_000_000).await;
    with_store(&collector.config(), invited);
    assert_eq!(open(1), ["ada", "bob", "eve"]);
    assert_eq!(open(9_000_000_000_000_000), ["bob", "eve"]);
    assert_eq!(site.unauthenticated().join(&code, 1).status, 201);
    with_store(&collector.config(), async |store| store.revoke_device("eve").await);
    assert_eq!(open(1), ["ada"]);
}

fn many_wrong_codes_end_further_attempts(collector: &Collector) {
    let site = collector.serve();
    let (client, code) = (site.unauthenticated(), site.invite("ada"));
    // Neither an accepted code nor another consent text is a failure.
    assert_eq!(client.join(&site.invite("bob"), 1).status, 201);
    assert_eq!(client.join(&code, 7).status, 409);
    for attempt in 0..300 {
        assert_eq!(client.join("7K3M-9QPX-VB2D", 1).status, 403, "attempt {attempt}");
    }
    for code in ["7K3M-9QPX-VB2D", &code] {
        let refusal = client.join(code, 1);
        assert_eq!(refusal.status, 429, "{}", refusal.body);
        assert!(refusal.json()["hint"].as_str().unwrap().contains("10 minutes"));
    }
    // Everything else works, and the code stays valid.
    assert_eq!(client.get(CONSENT_PATH).status, 200);
    drop(site);
    assert_eq!(collector.serve().unauthenticated().join(&code, 1).status, 201);
}
