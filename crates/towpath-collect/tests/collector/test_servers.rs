//! Test servers: heartbeats, and the access of devices to them.

use serde_json::{Value, json};
use towpath_campaign::{
    AccessGrant, AccessKey, Campaign, EXAMPLE_STABLE, HEARTBEAT_PATH, HeartbeatReply, SERVERS_PATH,
    ServerList,
};
use towpath_collect::{Role, StoreConfig};
use towpath_result::device::{DEVICE_CONSENT_PATH, DEVICE_PATH};

use crate::maintenance::with_store;
use crate::site::{Client, Collector, Database, Reply, Site, TestFolder, on_both_databases};

on_both_databases!(
    a_device_gets_access_to_all_servers_that_are_up,
    grants_of_a_day_share_their_bytes,
    a_campaign_may_name_its_servers,
    servers_of_a_paused_or_unknown_campaign_are_not_offered,
    only_test_servers_send_heartbeats_and_they_do_nothing_else,
    invalid_heartbeats_are_refused_and_store_nothing,
    a_server_keeps_its_key_until_its_token_is_revoked,
    a_device_without_current_consent_gets_no_servers,
    a_backup_keeps_servers_and_their_keys,
);

/// Later than any schedule of the tests.
const NOW_US: i64 = 1_790_000_000_000_000;

fn heartbeat(place: &str, host: &str) -> Value {
    json!({
        "place": place, "hosts": [host], "ports": [5210], "transports": ["tcp", "mpquic"],
        "certificate": "ab".repeat(32), "version": "0.1.0", "tests": 1, "max_tests": 16,
    })
}

fn send(server: &Client, heartbeat: &Value) -> Reply {
    let body = heartbeat.to_string();
    server.put(HEARTBEAT_PATH, &[("content-type", "application/json")], body.as_bytes())
}

/// Registers a test server; returns its key.
fn register(site: &Site, name: &str) -> AccessKey {
    let server = site.client(&site.token(name, Role::Server));
    key_of(name, &send(&server, &heartbeat("Brussels", "192.0.2.1")))
}

fn key_of(name: &str, reply: &Reply) -> AccessKey {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply: HeartbeatReply = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((reply.name.as_str(), reply.interval_s), (name, 30));
    AccessKey::parse(&reply.access_key).unwrap()
}

/// Creates the example campaign, changed by `edit`; returns it.
fn create_campaign(config: &StoreConfig, edit: impl Fn(&str) -> String) -> Campaign {
    let text = edit(EXAMPLE_STABLE);
    with_store(config, async |store| {
        store.create_campaign("example.toml", text.as_bytes(), NOW_US).await
    })
    .campaign
}

fn servers(device: &Client, campaign: &str) -> Reply {
    device.get(&format!("{SERVERS_PATH}?campaign={campaign}"))
}

fn list(device: &Client, campaign: &str) -> ServerList {
    let reply = servers(device, campaign);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

fn names(list: &ServerList) -> Vec<&str> {
    list.servers.iter().map(|server| server.name.as_str()).collect()
}

fn a_device_gets_access_to_all_servers_that_are_up(collector: &Collector) {
    let site = collector.serve();
    let campaign = create_campaign(&collector.config(), without_servers);
    let (ada, bob) = (site.client(&site.join("ada")), site.client(&site.join("bob")));
    assert!(list(&ada, &campaign.name).servers.is_empty());
    let keys = [register(&site, "eu-1"), register(&site, "us-1")];
    site.token("silent", Role::Server);
    let offered = list(&ada, &campaign.name);
    assert_eq!(names(&offered), ["eu-1", "us-1"]);
    let others = list(&bob, &campaign.name);
    let listed = with_store(&collector.config(), async |store| store.test_servers().await);
    let seen_s = listed[0].seen_us.unwrap().unsigned_abs() / 1_000_000;
    let mut pseudonyms = Vec::new();
    for (server, key) in offered.servers.iter().zip(&keys).chain(others.servers.iter().zip(&keys)) {
        assert_eq!(server.heartbeat.place, "Brussels");
        assert_eq!(server.heartbeat.hosts, ["192.0.2.1"]);
        assert_eq!(server.access.secret, key.secret(&server.access.grant));
        let grant = AccessGrant::parse(&server.access.grant).unwrap();
        assert_eq!(
            (&grant.server, grant.max_bytes),
            (&server.name, campaign.reservable_bytes_per_day())
        );
        // The heartbeats came just before.
        assert!((seen_s + 600..seen_s + 900).contains(&grant.expires_s), "{grant}");
        assert_eq!(grant.device.len(), 16);
        pseudonyms.push(grant.device);
    }
    pseudonyms.sort_unstable();
    pseudonyms.dedup();
    assert_eq!(pseudonyms.len(), 4, "each device has another pseudonym on each server");
}

fn grants_of_a_day_share_their_bytes(collector: &Collector) {
    let site = collector.serve();
    let first = create_campaign(&collector.config(), without_servers);
    let second = create_campaign(&collector.config(), |text| {
        without_servers(text).replace("name = \"stable-1\"", "name = \"stable-2\"")
    });
    let device = site.client(&site.join("ada"));
    register(&site, "eu-1");
    let account = |campaign: &Campaign| {
        let offered = list(&device, &campaign.name);
        let grant = AccessGrant::parse(&offered.servers[0].access.grant).unwrap();
        (grant.device, grant.max_bytes)
    };
    // At midnight (UTC), the pseudonym changes once.
    let mut accounts: Vec<_> = (0..20).map(|_| account(&first)).collect();
    accounts.dedup();
    assert!(accounts.len() <= 2, "{accounts:?}");
    assert!(!accounts.contains(&account(&second)));
}

/// Removes the names of servers from a campaign.
fn without_servers(text: &str) -> String {
    text.lines()
        .filter(|line| !line.starts_with("servers"))
        .fold(String::new(), |text, line| text + line + "\n")
}

fn a_campaign_may_name_its_servers(collector: &Collector) {
    let site = collector.serve();
    let campaign = create_campaign(&collector.config(), |text| {
        let names = "servers = [\"us-1\", \"test.example.org\"]";
        without_servers(text).replacen("name =", &format!("{names}\nname ="), 1)
    });
    assert_eq!(campaign.servers, ["us-1", "test.example.org"]);
    for name in ["eu-1", "us-1"] {
        register(&site, name);
    }
    let named_by_host = site.client(&site.token("asia-1", Role::Server));
    assert_eq!(send(&named_by_host, &heartbeat("", "test.example.org")).status, 200);
    let device = site.client(&site.join("ada"));
    assert_eq!(names(&list(&device, &campaign.name)), ["asia-1", "us-1"]);
}

fn servers_of_a_paused_or_unknown_campaign_are_not_offered(collector: &Collector) {
    let site = collector.serve();
    let campaign = create_campaign(&collector.config(), without_servers);
    register(&site, "eu-1");
    let device = site.client(&site.join("ada"));
    assert_eq!(servers(&device, "other").status, 404);
    assert_eq!(device.get(SERVERS_PATH).status, 400);
    assert_eq!(list(&device, &campaign.name).servers.len(), 1);
    let paused = towpath_campaign::CampaignState::Paused;
    with_store(&collector.config(), async |store| {
        store.change_campaign(&campaign.name, paused, NOW_US).await
    });
    assert!(list(&device, &campaign.name).servers.is_empty());
}

fn only_test_servers_send_heartbeats_and_they_do_nothing_else(collector: &Collector) {
    let site = collector.serve();
    let server = site.client(&site.token("eu-1", Role::Server));
    let valid = heartbeat("", "192.0.2.1");
    for role in [Role::Viewer, Role::Uploader, Role::Admin] {
        let client = site.client(&site.token(role.name(), role));
        let refusal = send(&client, &valid);
        assert_eq!(refusal.status, 403, "{}", refusal.body);
        assert!(refusal.json()["hint"].as_str().unwrap().contains("--role server"));
        assert_eq!(servers(&client, "any").status, 403);
    }
    assert_eq!(send(&site.client(&site.join("ada")), &valid).status, 403);
    assert_eq!(send(&site.unauthenticated(), &valid).status, 401);
    assert_eq!(send(&site.client("towpath_wrong"), &valid).status, 401);
    assert_eq!(send(&server, &valid).status, 200);
    for path in ["/", "/tokens", "/api/v1/runs", "/api/v1/live", DEVICE_PATH, SERVERS_PATH] {
        assert_eq!(server.get(path).status, 403, "{path}");
    }
    assert_eq!(server.upload("nothing").status, 403);
}

fn invalid_heartbeats_are_refused_and_store_nothing(collector: &Collector) {
    let site = collector.serve();
    let server = site.client(&site.token("eu-1", Role::Server));
    let valid = heartbeat("Brussels", "192.0.2.1");
    for (field, value) in [
        ("place", json!("a\u{1b}[2J")),
        ("hosts", json!([])),
        ("ports", json!([0])),
        ("transports", json!(["smoke signals"])),
        ("certificate", json!("short")),
        ("tests", json!(-1)),
    ] {
        let mut wrong = valid.clone();
        wrong[field] = value;
        let refusal = send(&server, &wrong);
        assert_eq!(refusal.status, 400, "{field}: {}", refusal.body);
    }
    let large = heartbeat(&"x".repeat(20_000), "h");
    assert_eq!(send(&server, &large).status, 413);
    assert_eq!(server.put(HEARTBEAT_PATH, &[], valid.to_string().as_bytes()).status, 415);
    let listed = with_store(&collector.config(), async |store| store.test_servers().await);
    assert_eq!((listed.len(), listed[0].seen_us, &listed[0].heartbeat), (1, None, &None));
}

fn a_server_keeps_its_key_until_its_token_is_revoked(collector: &Collector) {
    let site = collector.serve();
    let campaign = create_campaign(&collector.config(), without_servers);
    let device = site.client(&site.join("ada"));
    let server = site.client(&site.token("eu-1", Role::Server));
    let first = key_of("eu-1", &send(&server, &heartbeat("Brussels", "192.0.2.1")));
    let again = key_of("eu-1", &send(&server, &heartbeat("Namur", "192.0.2.2")));
    assert_eq!(first, again);
    assert_eq!(list(&device, &campaign.name).servers[0].heartbeat.place, "Namur");
    let listed = with_store(&collector.config(), async |store| store.test_servers().await);
    let seen_us = listed[0].seen_us.unwrap();
    assert!(listed[0].is_up(seen_us + 89_000_000) && !listed[0].is_up(seen_us + 90_000_000));
    with_store(&collector.config(), async |store| store.revoke_token("eu-1").await);
    assert!(list(&device, &campaign.name).servers.is_empty());
    assert_eq!(send(&server, &heartbeat("", "192.0.2.1")).status, 401);
    let new = register(&site, "eu-1");
    assert_ne!(first, new);
    let listed = with_store(&collector.config(), async |store| store.test_servers().await);
    let revoked: Vec<bool> = listed.iter().map(|s| s.token.revoked_us.is_some()).collect();
    assert_eq!(revoked, [false, true]);
}

fn a_device_without_current_consent_gets_no_servers(collector: &Collector) {
    let site = collector.serve();
    let campaign = create_campaign(&collector.config(), without_servers);
    register(&site, "eu-1");
    let device = site.client(&site.join("ada"));
    with_store(&collector.config(), async |store| store.set_consent(b"Version two.\n").await);
    let refusal = servers(&device, &campaign.name);
    assert_eq!(refusal.status, 403, "{}", refusal.body);
    assert!(refusal.json()["hint"].as_str().unwrap().contains("towpath agent consent"));
    let body = json!({ "consent": 2 }).to_string();
    let json = [("content-type", "application/json")];
    assert_eq!(device.put(DEVICE_CONSENT_PATH, &json, body.as_bytes()).status, 204);
    assert_eq!(list(&device, &campaign.name).servers.len(), 1);
    // The servers outlast the data of a device.
    assert_eq!(device.delete(DEVICE_PATH).status, 200);
    assert_eq!(servers(&device, &campaign.name).status, 401);
    let listed = with_store(&collector.config(), async |store| store.test_servers().await);
    assert!(listed[0].heartbeat.is_some());
}

fn a_backup_keeps_servers_and_their_keys(collector: &Collector) {
    let saved = TestFolder::create();
    let (token, key) = {
        let site = collector.serve();
        let token = site.token("eu-1", Role::Server);
        let reply = send(&site.client(&token), &heartbeat("Brussels", "192.0.2.1"));
        with_store(&collector.config(), async |store| store.backup(saved.path()).await);
        (token, key_of("eu-1", &reply))
    };
    let other = Collector::create(Database::Sqlite).unwrap();
    for _ in 0..2 {
        with_store(&other.config(), async |store| store.restore(saved.path()).await);
    }
    let listed = with_store(&other.config(), async |store| store.test_servers().await);
    assert_eq!(listed[0].heartbeat.as_ref().unwrap().place, "Brussels");
    let site = other.serve();
    let reply = send(&site.client(&token), &heartbeat("Brussels", "192.0.2.1"));
    assert_eq!(key_of("eu-1", &reply), key, "grants keep working");
}
