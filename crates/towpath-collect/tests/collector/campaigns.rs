//! Campaigns: signed offers, outcomes of planned runs, progress, and what a backup keeps.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use towpath_campaign::{
    CAMPAIGNS_PATH, CampaignList, CampaignState, MAX_OUTCOMES, MissingReason, OUTCOMES_PATH,
    OfferError, Outcome, OutcomeReport, OutcomeState, PublicKey,
};
use towpath_collect::{
    AbsenceReason, AbsentRun, CampaignError, CampaignProgress, CollectError, Role, StoreConfig,
};
use towpath_result::device::{DEVICE_PATH, JoinReply};

use crate::api::now_us;
use crate::devices::{contains, error_of, id_of, set_consent};
use crate::maintenance::with_store;
use crate::site::{
    Client, Collector, Database, Reply, Site, TestFolder, on_both_databases, result,
};

on_both_databases!(
    an_offer_verifies_with_the_key_that_a_device_learned_and_an_altered_one_does_not,
    campaigns_are_for_devices_with_consent,
    a_result_is_never_replaced_by_a_missing_one,
    reports_without_a_planned_run_are_not_accepted,
    a_device_reports_for_itself_only,
    forgetting_a_device_deletes_its_outcomes,
    the_progress_counts_every_planned_run_once,
    a_campaign_is_paused_resumed_and_ended_once,
    the_mistakes_of_a_campaign_are_found_before_it_is_signed,
    a_backup_keeps_the_key_the_campaigns_and_the_outcomes,
    a_backup_does_not_bring_deleted_outcomes_back,
    a_backup_with_another_key_is_refused_if_there_are_campaigns,
    a_lost_key_is_not_replaced_while_a_campaign_needs_it,
);

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;

/// Returns a campaign with a round of two runs at each hour after its creation.
fn hourly(name: &str) -> String {
    format!(
        "name = \"{name}\"\nmode = \"stable\"\nend = 2100-01-01T00:00:00Z\nevery = \"1 h\"\n\
         jitter = \"0 s\"\ntransports = [\"tcp\", \"mptcp\"]\nfamilies = [\"ipv4\"]\n\
         bytes-per-day = \"1 GB\"\n[[patterns]]\npattern = \"ping\"\n"
    )
}

/// Creates such a campaign now; returns its time of creation.
pub(crate) fn create(config: &StoreConfig, name: &str) -> u64 {
    let created_us = now_us();
    with_store(config, async |store| {
        let text = hourly(name);
        store.create_campaign("file", text.as_bytes(), created_us.cast_signed()).await
    });
    created_us
}

fn change(config: &StoreConfig, state: CampaignState) {
    with_store(config, async |store| {
        store.change_campaign("hourly", state, now_us().cast_signed()).await
    });
}

/// Joins; returns the client and the key of the collector.
fn join(site: &Site, name: &str) -> (Client, PublicKey) {
    let reply = site.unauthenticated().join(&site.invite(name), 1);
    assert_eq!(reply.status, 201, "{}", reply.body);
    let reply: JoinReply = serde_json::from_str(&reply.body).unwrap();
    (site.client(&reply.token), reply.campaign_key.unwrap().try_into().unwrap())
}

fn offers(device: &Client) -> CampaignList {
    let reply = device.get(CAMPAIGNS_PATH);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

fn post(device: &Client, body: &[u8]) -> Reply {
    device.post_body(OUTCOMES_PATH, &[("content-type", "application/json")], body)
}

fn outcome(round: u32, run: u32, state: OutcomeState) -> Outcome {
    Outcome { campaign: "hourly".to_owned(), round, run, state, at_us: 1_790_000_000_000_000 }
}

fn stored(result: &str) -> OutcomeState {
    OutcomeState::Stored { result: result.to_owned() }
}

fn missing(reason: MissingReason, detail: &str) -> OutcomeState {
    OutcomeState::Missing { reason, detail: detail.to_owned() }
}

/// Reports outcomes; returns the number of accepted ones.
fn report(device: &Client, outcomes: &[Outcome]) -> u64 {
    let report = OutcomeReport { outcomes: outcomes.to_vec() };
    let reply = post(device, &serde_json::to_vec(&report).unwrap());
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["accepted"].as_u64().unwrap()
}

/// Returns the progress at a time, and the runs without a result.
fn progress(config: &StoreConfig, at_us: u64) -> (CampaignProgress, Vec<AbsentRun>) {
    let mut absent = Vec::new();
    let progress = with_store(config, async |store| {
        store.campaign_progress("hourly", at_us.cast_signed(), |run| absent.push(run)).await
    });
    let counts = progress.counts();
    let others = counts.all_missing() + counts.not_uploaded + counts.not_reported;
    assert_eq!(counts.stored + counts.invalid + others, counts.planned);
    assert_eq!(absent.len() as u64, others);
    (progress, absent)
}

/// Uploads a new run; returns its identifier.
fn upload(device: &Client, seed: u64) -> String {
    id_of(&device.upload(&result(seed, |_| {})))
}

fn an_offer_verifies_with_the_key_that_a_device_learned_and_an_altered_one_does_not(
    collector: &Collector,
) {
    let site = collector.serve();
    let (device, key) = join(&site, "ada");
    assert_eq!(offers(&device), CampaignList { campaigns: Vec::new(), poll_s: 300 });
    let created_us = create(&collector.config(), "hourly");
    create(&collector.config(), "second");
    let list = offers(&device);
    let names = list.campaigns.iter().map(|offer| offer.open(&key).unwrap().name);
    assert_eq!(names.collect::<Vec<_>>(), ["hourly", "second"]);
    let offer = &list.campaigns[0];
    assert_eq!((offer.created_us, offer.state), (created_us, CampaignState::Active));
    assert_eq!(offer.text, hourly("hourly"), "the file is signed as it is");
    let mut altered = offer.clone();
    altered.text = altered.text.replace("1 h", "10 s");
    assert!(matches!(altered.open(&key), Err(OfferError::Signature)));
    // Every device learns the same key, and it stays after a restart.
    assert_eq!(join(&site, "bob").1, key);
    drop(site);
    assert_eq!(join(&collector.serve(), "eve").1, key);
    let mode = fs::metadata(collector.path().join("campaign.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = fs::read_dir(collector.path()).unwrap();
    let files = files.filter(|file| {
        file.as_ref().unwrap().file_name().to_str().unwrap().starts_with("campaign.key")
    });
    assert_eq!(files.count(), 1, "no temporary file stays");
}

fn campaigns_are_for_devices_with_consent(collector: &Collector) {
    let site = collector.serve();
    create(&collector.config(), "hourly");
    let device = site.client(&site.join("ada"));
    let revoked = site.client(&site.join("bob"));
    let config = collector.config();
    with_store(&config, async |store| store.revoke_device("bob").await);
    let admin = site.client(&site.token("lab", Role::Admin));
    let body = b"{\"outcomes\":[]}";
    let statuses = |client: &Client| (client.get(CAMPAIGNS_PATH).status, post(client, body).status);
    assert_eq!(statuses(&device), (200, 200));
    assert_eq!(statuses(&revoked), (401, 401));
    assert_eq!(statuses(&admin), (403, 403));
    assert_eq!(statuses(&site.browser(Role::Admin)), (401, 401));
    assert_eq!(statuses(&site.unauthenticated()), (401, 401));
    set_consent(&config, "Version two.\n");
    assert_eq!(statuses(&device), (403, 403));
    let refusal = device.get(CAMPAIGNS_PATH).json();
    assert!(refusal["hint"].as_str().unwrap().contains("towpath agent consent"), "{refusal}");
}

fn a_result_is_never_replaced_by_a_missing_one(collector: &Collector) {
    let site = collector.serve();
    let created_us = create(&collector.config(), "hourly");
    let device = site.client(&site.join("ada"));
    let at_us = created_us + 2 * HOUR_US;
    let id = upload(&device, 1);
    let counts = || {
        let (progress, absent) = progress(&collector.config(), at_us);
        let details: Vec<_> = absent.into_iter().map(|run| (run.reason, run.detail)).collect();
        (progress.counts().stored, progress.counts().invalid, details)
    };
    let missed = outcome(1, 0, missing(MissingReason::Missed, "asleep"));
    let refused = outcome(1, 0, missing(MissingReason::Refused, "full"));
    for sent in [&missed, &missed, &refused, &refused] {
        assert_eq!(report(&device, std::slice::from_ref(sent)), 1);
    }
    let unreported = (AbsenceReason::NotReported, String::new());
    let refusal = (AbsenceReason::Missing(MissingReason::Refused), "full".to_owned());
    assert_eq!(counts(), (0, 0, vec![refusal, unreported.clone()]));
    // One report may contain several outcomes of a run.
    assert_eq!(report(&device, &[outcome(1, 0, stored(&id)), missed.clone(), refused]), 3);
    assert_eq!(counts(), (1, 0, vec![unreported.clone()]));
    let detail = "the route changed".to_owned();
    let invalid = outcome(1, 0, OutcomeState::Invalid { result: id, detail });
    assert_eq!(report(&device, &[invalid]), 1);
    assert_eq!(counts(), (0, 1, vec![unreported.clone()]));
    assert_eq!(report(&device, &[missed]), 1);
    assert_eq!(counts(), (0, 1, vec![unreported]));
}

fn reports_without_a_planned_run_are_not_accepted(collector: &Collector) {
    let site = collector.serve();
    create(&collector.config(), "hourly");
    let device = site.client(&site.join("ada"));
    let failed = || missing(MissingReason::Failed, "");
    let unknown = Outcome { campaign: "other".to_owned(), ..outcome(1, 0, failed()) };
    let long_name = Outcome { campaign: "x".repeat(5_000), ..outcome(1, 0, failed()) };
    for refused in [
        unknown,
        long_name,
        outcome(1, 2, failed()),
        outcome(1, u32::MAX, failed()),
        outcome(u32::MAX, 0, failed()),
        // Two days in the future.
        outcome(48, 0, failed()),
        outcome(1, 0, stored("")),
        outcome(1, 0, stored("0123456789ABCDEF0123")),
        outcome(1, 0, stored("0123456789abcdef01234")),
    ] {
        let accepted = outcome(0, 1, failed());
        assert_eq!(report(&device, &[refused.clone(), accepted]), 1, "{refused:?}");
    }
    let bytes = |value: Value| serde_json::to_vec(&value).unwrap();
    let many = json!({ "outcomes": vec![outcome(0, 1, failed()); MAX_OUTCOMES + 1] });
    let one = |outcome: Value| bytes(json!({ "outcomes": [outcome] }));
    for (status, body) in [
        (400, b"{}".to_vec()),
        (400, one(json!({ "campaign": "hourly", "round": -1, "run": 0, "state": "stored" }))),
        (400, one(json!({ "campaign": "x", "round": 0, "run": 0, "state": "?", "at_us": 0 }))),
        (413, bytes(many)),
        (413, vec![b' '; 3_000_000]),
    ] {
        assert_eq!(post(&device, &body).status, status);
    }
    assert_eq!(device.post_body(OUTCOMES_PATH, &[], b"{}").status, 415);
    let (_, absent) = progress(&collector.config(), now_us() + 3 * HOUR_US);
    assert!(absent.iter().all(|run| run.reason == AbsenceReason::NotReported), "{absent:?}");
}

fn a_device_reports_for_itself_only(collector: &Collector) {
    let site = collector.serve();
    let created_us = create(&collector.config(), "hourly");
    let (ada, bob) = (site.client(&site.join("ada")), site.client(&site.join("bob")));
    let (of_ada, of_lab) =
        (upload(&ada, 1), upload(&site.client(&site.token("lab", Role::Uploader)), 2));
    // A report names no device: it concerns the device of the token.
    assert_eq!(report(&bob, &[outcome(1, 0, stored(&of_ada)), outcome(1, 1, stored(&of_lab))]), 2);
    let (progress, _) = progress(&collector.config(), created_us + 2 * HOUR_US);
    let of = |name: &str| progress.devices.iter().find(|device| device.name == name).unwrap();
    assert_eq!((of("bob").counts.stored, of("bob").counts.not_uploaded), (0, 2));
    assert_eq!((of("ada").counts.stored, of("ada").counts.not_reported), (0, 2));
    let ids: Vec<_> = progress.devices.iter().map(|device| &device.name).collect();
    assert_eq!(ids, ["ada", "bob"], "in order of joining");
}

fn forgetting_a_device_deletes_its_outcomes(collector: &Collector) {
    const MARKER: &str = "marker-7f3a-in-a-detail";
    let site = collector.serve();
    let created_us = create(&collector.config(), "hourly");
    let (ada, bob) = (site.client(&site.join("ada")), site.client(&site.join("bob")));
    let lost = |detail: &str| outcome(1, 0, missing(MissingReason::Failed, detail));
    assert_eq!(report(&ada, &[lost(MARKER)]), 1);
    assert_eq!(report(&bob, &[lost("of another device")]), 1);
    // The search can find something, except on PostgreSQL, which has files elsewhere.
    assert!(contains(collector.path(), MARKER) == collector.config().database.is_none());
    let reply = ada.delete(DEVICE_PATH);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["remaining_runs"], 0);
    assert!(!contains(collector.path(), MARKER));
    assert_eq!(post(&ada, b"{\"outcomes\":[]}").status, 401);
    let (progress, absent) = progress(&collector.config(), created_us + 2 * HOUR_US);
    // The runs of the device count until its owner left.
    assert_eq!((progress.counts().planned, progress.counts().all_missing()), (2, 1));
    assert!(progress.devices[0].has_withdrawn && progress.devices[0].counts.planned == 0);
    assert_eq!(absent[0].detail, "of another device");
}

fn the_progress_counts_every_planned_run_once(collector: &Collector) {
    let site = collector.serve();
    let created_us = create(&collector.config(), "hourly");
    let (ada, bob) = (site.client(&site.join("ada")), site.client(&site.join("bob")));
    let (first, second) = (upload(&ada, 1), upload(&ada, 2));
    let never = "0123456789abcdef0123";
    let detail = "the address\u{1b}[2J changed".to_owned();
    let reported = [
        outcome(1, 0, stored(&first)),
        outcome(1, 1, OutcomeState::Invalid { result: second, detail }),
        outcome(2, 0, stored(never)),
        outcome(2, 1, missing(MissingReason::NoAddress, "no IPv4")),
        outcome(3, 0, missing(MissingReason::NoAddress, "no\u{1b}[2J IPv4")),
        // The round is later than the time of the progress.
        outcome(9, 0, missing(MissingReason::Missed, "")),
    ];
    assert_eq!(report(&ada, &reported), 6);
    assert_eq!(report(&bob, &[outcome(1, 0, missing(MissingReason::Missed, ""))]), 1);
    // Rounds 1 to 5 of two devices, with two runs each. Round 0 is at the time of creation, before
    // the devices joined.
    let at_us = created_us + 5 * HOUR_US + HOUR_US / 2;
    let (progress, absent) = progress(&collector.config(), at_us);
    let counts = progress.counts();
    let rounds = 5;
    assert_eq!((counts.planned, progress.devices.len()), (2 * 2 * rounds, 2));
    assert_eq!((counts.stored, counts.invalid, counts.not_uploaded), (1, 1, 1));
    assert_eq!(counts.missing.get(&MissingReason::NoAddress), Some(&2));
    assert_eq!(counts.missing.get(&MissingReason::Missed), Some(&1));
    assert_eq!(counts.not_reported, 2 * 2 * rounds - 6);
    let of = |round: u32, index: u32| {
        let run = absent
            .iter()
            .find(|run| run.device == "ada" && run.round == round && run.run.index == index);
        run.unwrap()
    };
    assert_eq!(of(2, 0).detail, format!("result {never}"));
    assert_eq!(of(3, 0).detail, "no\u{fffd}[2J IPv4");
    assert_eq!(of(3, 0).at_us, created_us + 3 * HOUR_US);
    assert_eq!((of(3, 0).pattern.as_str(), of(3, 0).run.port), ("ping", 443));
}

fn a_campaign_is_paused_resumed_and_ended_once(collector: &Collector) {
    let site = collector.serve();
    let config = collector.config();
    create(&config, "hourly");
    let (device, key) = join(&site, "ada");
    let state = || {
        let list = offers(&device);
        list.campaigns[0].open(&key).unwrap();
        list.campaigns[0].state
    };
    assert_eq!(state(), CampaignState::Active);
    change(&config, CampaignState::Paused);
    assert_eq!(state(), CampaignState::Paused);
    change(&config, CampaignState::Active);
    assert_eq!(state(), CampaignState::Active);
    change(&config, CampaignState::Ended);
    assert_eq!(state(), CampaignState::Ended);
    change(&config, CampaignState::Ended);
    let error = error_of(&config, async |store| {
        store.change_campaign("hourly", CampaignState::Active, now_us().cast_signed()).await
    });
    assert!(matches!(error, CollectError::Campaign(CampaignError::Ended(_))), "{error}");
    let error = error_of(&config, async |store| {
        store.change_campaign("other", CampaignState::Active, 0).await
    });
    assert!(matches!(error, CollectError::Campaign(CampaignError::Unknown(_))), "{error}");
    // No run is planned after the operator's end, and the outcomes of earlier ones are accepted.
    let (progress, _) = progress(&config, now_us() + 10 * HOUR_US);
    assert_eq!(progress.counts().planned, 0);
    assert_eq!(report(&device, &[outcome(0, 0, missing(MissingReason::Stopped, ""))]), 1);
    // A campaign that ended two days ago is no longer offered.
    let long_ago = now_us() - 5 * DAY_US;
    with_store(&config, async |store| {
        let text = hourly("old");
        store.create_campaign("file", text.as_bytes(), long_ago.cast_signed()).await?;
        let ended_us = long_ago + 3 * DAY_US;
        store.change_campaign("old", CampaignState::Ended, ended_us.cast_signed()).await
    });
    assert_eq!(offers(&device).campaigns.len(), 1);
    let entries = with_store(&config, async |store| store.campaigns(now_us().cast_signed()).await);
    assert_eq!(entries.len(), 2);
}

fn the_mistakes_of_a_campaign_are_found_before_it_is_signed(collector: &Collector) {
    let config = collector.config();
    let now_us = now_us().cast_signed();
    create(&config, "hourly");
    let error = |text: &[u8]| {
        error_of(&config, async |store| store.create_campaign("my.toml", text, now_us).await)
    };
    let taken = error(hourly("hourly").as_bytes());
    assert!(matches!(taken, CollectError::Campaign(CampaignError::Exists(_))), "{taken}");
    let wrong = hourly("x").replace("stable", "still").replace("2100", "2001");
    let text = error(wrong.as_bytes()).to_string();
    assert!(text.contains("my.toml:2") && text.contains("my.toml:3"), "{text}");
    assert!(matches!(error(b"\xff"), CollectError::Campaign(CampaignError::Text(_))));
    assert!(matches!(error(&vec![b'#'; 64_001]), CollectError::Campaign(CampaignError::Text(_))));
    let campaigns = with_store(&config, async |store| store.campaigns(now_us).await);
    assert_eq!(campaigns.len(), 1);
}

fn a_backup_keeps_the_key_the_campaigns_and_the_outcomes(collector: &Collector) {
    let saved = TestFolder::create();
    let config = collector.config();
    let site = collector.serve();
    let secret = site.join("ada");
    let device = site.client(&secret);
    let created_us = create(&config, "hourly");
    create(&config, "second");
    change(&config, CampaignState::Paused);
    let id = upload(&device, 1);
    // More outcomes than are read from the database at a time.
    let mut outcomes: Vec<_> = (0..24)
        .flat_map(|round| [0, 1].map(|run| (round, run)))
        .map(|(round, run)| outcome(round, run, missing(MissingReason::Unreachable, "port 443")))
        .collect();
    outcomes[3] = outcome(1, 1, stored(&id));
    assert_eq!(report(&device, &outcomes), 48);
    let expected = progress(&config, created_us + 23 * HOUR_US);
    assert_eq!(expected.0.counts().stored, 1);
    let offered = offers(&device);
    with_store(&config, async |store| store.backup(saved.path()).await);
    let mode = fs::metadata(saved.path().join("campaign.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(site);

    let other = Collector::create(Database::Sqlite).unwrap();
    for _ in 0..2 {
        with_store(&other.config(), async |store| store.restore(saved.path()).await);
        assert_eq!(progress(&other.config(), created_us + 23 * HOUR_US), expected);
    }
    let site = other.serve();
    assert_eq!(offers(&site.client(&secret)), offered);
    let (_, key) = join(&site, "bob");
    assert!(offered.campaigns[0].open(&key).is_ok() && offered.campaigns.len() == 2);
}

fn a_backup_does_not_bring_deleted_outcomes_back(collector: &Collector) {
    let (site, saved) = (collector.serve(), TestFolder::create());
    let config = collector.config();
    let (ada, bob) = (site.client(&site.join("ada")), site.client(&site.join("bob")));
    create(&config, "hourly");
    let lost = outcome(0, 0, missing(MissingReason::Failed, "marker-91c2-in-a-detail"));
    assert_eq!(report(&ada, &[lost]), 1);
    assert_eq!(report(&bob, &[outcome(0, 0, missing(MissingReason::Failed, ""))]), 1);
    with_store(&config, async |store| store.backup(saved.path()).await);
    assert_eq!(ada.delete(DEVICE_PATH).status, 200);
    with_store(&config, async |store| store.restore(saved.path()).await);
    assert!(!contains(collector.path(), "marker-91c2"));
    let later_us = now_us() + HOUR_US;
    let again = TestFolder::create();
    with_store(&config, async |store| store.backup(again.path()).await);
    let rows = fs::read_to_string(again.path().join("catalogue.jsonl")).unwrap();
    assert_eq!(rows.lines().filter(|row| row.contains("\"type\":\"outcome\"")).count(), 1);
    assert_eq!(progress(&config, later_us).0.devices.len(), 2);
}

fn key_of(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("campaign.key")).unwrap()
}

fn a_backup_with_another_key_is_refused_if_there_are_campaigns(collector: &Collector) {
    let saved = TestFolder::create();
    create(&collector.config(), "hourly");
    with_store(&collector.config(), async |store| store.backup(saved.path()).await);
    // A key that signed nothing yields to that of the backup.
    let other = Collector::create(Database::Sqlite).unwrap();
    other.serve().join("ada");
    assert_ne!(key_of(other.path()), key_of(saved.path()));
    with_store(&other.config(), async |store| store.restore(saved.path()).await);
    assert_eq!(key_of(other.path()), key_of(saved.path()));

    let third = Collector::create(Database::Sqlite).unwrap();
    create(&third.config(), "own");
    let own = key_of(third.path());
    let error = error_of(&third.config(), async |store| store.restore(saved.path()).await);
    assert!(matches!(error, CollectError::Campaign(CampaignError::OtherKey)), "{error}");
    assert!(error.hint().unwrap().contains("--dir"));
    assert_eq!(key_of(third.path()), own);
}

fn a_lost_key_is_not_replaced_while_a_campaign_needs_it(collector: &Collector) {
    let config = collector.config();
    let path = collector.path().join("campaign.key");
    create(&config, "hourly");
    let key = key_of(collector.path());
    let make = || {
        error_of(&config, async |store| {
            let text = hourly("second");
            store.create_campaign("file", text.as_bytes(), now_us().cast_signed()).await
        })
    };
    fs::write(&path, &key[..40]).unwrap();
    assert!(matches!(make(), CollectError::Campaign(CampaignError::Key { .. })));
    fs::remove_file(&path).unwrap();
    let error = make();
    assert!(matches!(error, CollectError::Campaign(CampaignError::NoKey { .. })), "{error}");
    assert!(error.hint().unwrap().contains("backup"));
    let site = collector.serve();
    let code = site.invite("ada");
    assert_eq!(site.unauthenticated().join(&code, 1).status, 503);
    fs::write(&path, key).unwrap();
    assert_eq!(site.unauthenticated().join(&code, 1).status, 201);
    // Without a campaign that needs it, a new key is created.
    fs::remove_file(&path).unwrap();
    change(&config, CampaignState::Ended);
    create(&config, "second");
    assert!(path.exists());
}

#[test]
fn of_two_simultaneous_first_uses_both_get_the_same_key() {
    for _ in 0..5 {
        let collector = Collector::create(Database::Sqlite).unwrap();
        let site = collector.serve();
        let codes = [site.invite("ada"), site.invite("bob")];
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads = codes.map(|code| {
                let client = site.unauthenticated();
                scope.spawn(move || client.join(&code, 1).json()["campaign_key"].clone())
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(keys[0], keys[1]);
        assert_eq!(keys[0].as_str().unwrap().len(), 64);
    }
}
