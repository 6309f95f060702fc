//! Analyses of campaigns: stored facts, equal bytes from every source, pages, files and rights.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _, Row as _};
use towpath_analysis::{Analysis, AnalysisFilter, AnalysisSettings, CampaignData, folder, output};
use towpath_campaign::{MissingReason, OUTCOMES_PATH, Outcome, OutcomeReport, OutcomeState};
use towpath_collect::{CampaignError, CampaignRuns, CollectError, Role, StoreConfig, run_to_end};
use towpath_result::device::DEVICE_PATH;

use crate::api::now_us;
use crate::devices::{contains, error_of, id_of};
use crate::maintenance::with_store;
use crate::site::{
    Client, Collector, Database, Site, TestFolder, edited_result, on_both_databases,
};

on_both_databases!(
    facts_are_stored_for_runs_of_devices_in_known_campaigns_only,
    facts_go_with_their_run_and_forgetting_leaves_no_byte_of_them,
    facts_that_lack_or_have_another_version_are_computed_again,
    damaged_records_do_not_stop_an_analysis,
    a_run_counts_for_its_own_device_and_its_planned_round_only,
    every_planned_run_is_analysed_or_absent,
    the_analysis_has_equal_bytes_from_both_databases_and_from_a_folder,
    an_export_of_results_is_complete_or_absent,
    an_analysis_needs_the_rights_of_the_campaigns_page,
    names_of_devices_are_hidden_from_the_public_and_the_values_stay,
    conditions_select_runs_and_wrong_ones_are_refused,
    the_page_links_to_files_of_its_selection,
    a_mobile_round_has_a_page_and_a_stable_one_has_none,
);

const HOUR_US: u64 = 3_600_000_000;
/// Time between the creation of the campaign and the test.
const AGE_US: u64 = 9 * HOUR_US + HOUR_US / 2;
/// Text that occurs in facts and records only.
const MARKER: &str = "marker-7d1f";

/// Executes a statement in the catalogue.
fn execute(config: &StoreConfig, statement: &str) {
    run_to_end(async {
        let mut connection = connect(config).await?;
        connection.execute(AssertSqlSafe(statement.to_owned())).await?;
        Ok(connection.close().await?)
    })
    .unwrap();
}

async fn connect(config: &StoreConfig) -> Result<AnyConnection, CollectError> {
    sqlx::any::install_default_drivers();
    let file = || format!("sqlite://{}/catalogue.sqlite", config.dir.display());
    let address = config.database.clone().unwrap_or_else(file);
    Ok(AnyConnection::connect(&address).await?)
}

/// Returns all facts as they are stored.
fn stored_facts(config: &StoreConfig) -> Vec<Value> {
    let statement = "SELECT facts FROM run_facts ORDER BY run";
    let rows = run_to_end(async {
        let mut connection = connect(config).await?;
        let rows = sqlx::query(statement).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok(rows)
    })
    .unwrap();
    let text = |row: &sqlx::any::AnyRow| row.try_get::<String, _>("facts").unwrap();
    rows.iter().map(|row| serde_json::from_str(&text(row)).unwrap()).collect()
}

/// Creates a campaign with two runs in each hour since [`AGE_US`] ago.
fn create(config: &StoreConfig, name: &str, mode: &str) {
    create_before(config, (name, mode), AGE_US);
}

fn create_before(config: &StoreConfig, (name, mode): (&str, &str), age_us: u64) {
    let text = format!(
        "name = \"{name}\"\nmode = \"{mode}\"\nend = 2100-01-01T00:00:00Z\nevery = \"1 h\"\n\
         jitter = \"0 s\"\ntransports = [\"mptcp\", \"mpquic\"]\nfamilies = [\"ipv4\"]\n\
         bytes-per-day = \"1 GB\"\n[[patterns]]\npattern = \"interactive\"\n\
         preset = \"multipathtester\"\nduration = \"1 min\"\n"
    );
    let created_us = (now_us() - age_us).cast_signed();
    with_store(config, async |store| {
        store.create_campaign("file", text.as_bytes(), created_us).await
    });
}

/// Adds a device that takes part from the beginning of the campaigns.
fn join(site: &Site, config: &StoreConfig, name: &str) -> Client {
    let device = site.client(&site.join(name));
    execute(config, "UPDATE devices SET joined_us = 0");
    device
}

/// Uploads a result that names a planned run; returns its identifier.
fn upload(device: &Client, seed: u64, conditions: &Value) -> String {
    let transport = if seed.is_multiple_of(2) { "mptcp" } else { "mpquic" };
    let result = edited_result(seed, |records| {
        records[0]["transport"] = transport.into();
        records[0]["conditions"] = conditions.clone();
        records[0]["flows"][0]["pattern"] = "interactive".into();
        let summary = records.last_mut().unwrap();
        // Values that are not exact in 15 digits.
        summary["flows"][0]["goodput_bps"] = (1e7 / (3.0 + seed as f64)).into();
    });
    id_of(&device.upload(&result))
}

fn conditions(campaign: &str, round: u32, run: u32) -> Value {
    json!({
        "campaign": campaign,
        "campaign run": format!("{round}/{run}"),
        "mode": if campaign == "moving" { "mobile" } else { "stable" },
        "server": "eu",
        "address family": "ipv4",
    })
}

fn stored(campaign: &str, (round, run): (u32, u32), result: &str) -> Outcome {
    let state = OutcomeState::Stored { result: result.to_owned() };
    Outcome { campaign: campaign.to_owned(), round, run, state, at_us: 1_790_000_000_000_000 }
}

/// Reports outcomes; returns the number of accepted ones.
fn report(device: &Client, outcomes: Vec<Outcome>) -> u64 {
    let body = serde_json::to_vec(&OutcomeReport { outcomes }).unwrap();
    let reply = device.post_body(OUTCOMES_PATH, &[("content-type", "application/json")], &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["accepted"].as_u64().unwrap()
}

/// Uploads and reports both runs of some rounds; returns their identifiers.
fn fill(device: &Client, campaign: &str, rounds: std::ops::Range<u32>, seed: u64) -> Vec<String> {
    let mut ids = Vec::new();
    for round in rounds {
        for run in [0, 1] {
            let seed = seed + u64::from(2 * round + run);
            let id = upload(device, seed, &conditions(campaign, round, run));
            assert_eq!(report(device, vec![stored(campaign, (round, run), &id)]), 1);
            ids.push(id);
        }
    }
    ids
}

/// Creates the mobile campaign `moving` with runs of two devices; returns the identifier of one.
pub(crate) fn create_mobile_campaign(site: &Site, config: &StoreConfig) -> String {
    create(config, "moving", "mobile");
    let devices = ["walker-1", "a-rather-long-name-of-a-device-in-a-backpack"];
    let devices = devices.map(|name| join(site, config, name));
    let ids = (0..)
        .zip(&devices)
        .map(|(number, device)| fill(device, "moving", 1..5, 5_000 + 100 * number).remove(0));
    ids.last().unwrap()
}

fn runs(config: &StoreConfig, campaign: &str) -> CampaignRuns {
    with_store(config, async |store| store.campaign_runs(campaign, now_us().cast_signed()).await)
}

fn compute(config: &StoreConfig) {
    let proceed = |_| ControlFlow::Continue(());
    with_store(config, async |store| store.compute_facts("hourly", proceed).await);
}

/// Returns all files of an analysis.
fn files(data: CampaignData) -> BTreeMap<String, Vec<u8>> {
    let settings = AnalysisSettings { min_runs: 2, ..AnalysisSettings::default() };
    let analysis = Analysis::of(data, &AnalysisFilter::default(), settings);
    let file = |name: String| {
        let bytes = output::file(&analysis, &name).unwrap().unwrap().bytes;
        (name, bytes)
    };
    output::file_names(&analysis).into_iter().map(file).collect()
}

fn facts_are_stored_for_runs_of_devices_in_known_campaigns_only(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada-laptop");
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let id = upload(&device, 2, &conditions("hourly", 1, 0));
    upload(&device, 3, &conditions("unknown", 1, 1));
    upload(&device, 4, &json!({}));
    let other = upload(&uploader, 5, &conditions("hourly", 1, 1));
    let facts = stored_facts(&config);
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!((&facts[0]["run"], &facts[0]["campaign"]), (&json!(id), &json!("hourly")));
    assert_eq!(facts[0]["device"], "", "the device is that of the uploader");
    // The device cannot report the run of another uploader.
    let outcomes = vec![stored("hourly", (1, 0), &id), stored("hourly", (1, 1), &other)];
    assert_eq!(report(&device, outcomes), 2);
    let CampaignRuns { data, without_facts, left_out } = runs(&config, "hourly");
    assert_eq!((data.runs.len(), without_facts, left_out), (1, 0, 0));
    assert_eq!((data.runs[0].device.as_str(), data.runs[0].run.as_str()), ("ada-laptop", &*id));
}

fn facts_go_with_their_run_and_forgetting_leaves_no_byte_of_them(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let (ada, bob) = (join(&site, &config, "ada-laptop"), join(&site, &config, "bob"));
    let mut marked = conditions("hourly", 1, 0);
    marked["server"] = MARKER.into();
    let id = upload(&ada, 2, &marked);
    assert_eq!(report(&ada, vec![stored("hourly", (1, 0), &id)]), 1);
    fill(&bob, "hourly", 1..3, 100);
    assert_eq!(stored_facts(&config).len(), 5);
    let facts = stored_facts(&config);
    assert!(facts.iter().any(|facts| facts["server"] == MARKER), "{facts:?}");
    assert_eq!(ada.delete(DEVICE_PATH).status, 200);
    assert!(!contains(collector.path(), MARKER));
    assert_eq!(stored_facts(&config).len(), 4);
    let left = runs(&config, "hourly").data;
    assert!(left.runs.iter().all(|run| run.device == "bob") && left.runs.len() == 4);
    let purged = with_store(&config, async |store| store.purge(i64::MAX, false).await);
    assert_eq!(purged.runs, 4);
    assert_eq!(stored_facts(&config).len(), 0);
    let CampaignRuns { data, without_facts, left_out } = runs(&config, "hourly");
    assert_eq!((data.runs.len(), without_facts, left_out), (0, 0, 0));
    let absent = data.absent.iter().filter(|run| run.reason == "not-uploaded").count();
    assert_eq!(absent, 4);
}

fn facts_that_lack_or_have_another_version_are_computed_again(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada");
    fill(&device, "hourly", 1..6, 0);
    let (expected, facts) = (runs(&config, "hourly"), stored_facts(&config));
    assert_eq!((expected.data.runs.len(), expected.without_facts), (10, 0));
    for change in [
        "UPDATE run_facts SET version = 0, campaign = 'x', facts = '{}'",
        "DELETE FROM run_facts WHERE run < '8'",
    ] {
        execute(&config, change);
        let without = runs(&config, "hourly");
        let counted = without.data.runs.len() as u64 + without.without_facts;
        assert!(without.without_facts > 0 && counted == 10, "{change}: {without:?}");
        compute(&config);
        assert_eq!(runs(&config, "hourly"), expected, "{change}");
        assert_eq!(stored_facts(&config), facts, "{change}");
    }
    // A page computes them as well, and a server that starts.
    execute(&config, "DELETE FROM run_facts");
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let analysis = viewer.get("/api/v1/campaigns/hourly/analysis").json();
    assert_eq!(analysis["runs"], 10, "{analysis}");
    assert_eq!(stored_facts(&config), facts);
    // A backup does not contain facts.
    let saved = TestFolder::create();
    with_store(&config, async |store| store.backup(saved.path()).await);
    let other = Collector::create(Database::Sqlite).unwrap();
    with_store(&other.config(), async |store| store.restore(saved.path()).await);
    assert_eq!(runs(&other.config(), "hourly").without_facts, 10);
    compute(&other.config());
    assert_eq!(runs(&other.config(), "hourly").data.runs, expected.data.runs);
}

fn damaged_records_do_not_stop_an_analysis(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada");
    let ids = fill(&device, "hourly", 1..4, 0);
    execute(&config, "DELETE FROM run_facts");
    let path =
        |id: &str| collector.path().join(format!("records/runs/{}/{id}.jsonl.zst", &id[..2]));
    fs::write(path(&ids[1]), "nonsense").unwrap();
    fs::remove_file(path(&ids[2])).unwrap();
    compute(&config);
    let CampaignRuns { data, without_facts, .. } = runs(&config, "hourly");
    assert_eq!((data.runs.len(), without_facts), (4, 2));
    let viewer = site.client(&site.token("reader", Role::Viewer));
    assert_eq!(viewer.get("/api/v1/campaigns/hourly/analysis").json()["runs"], 4);
}

fn a_run_counts_for_its_own_device_and_its_planned_round_only(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    create(&config, "second", "stable");
    let (ada, eve) = (join(&site, &config, "ada"), join(&site, &config, "eve"));
    let own = fill(&ada, "hourly", 1..2, 0);
    // Eve reports a run of Ada, one that names another round, and one that names another campaign.
    let wrong_round = upload(&eve, 50, &conditions("hourly", 2, 0));
    let wrong_campaign = upload(&eve, 51, &conditions("second", 3, 0));
    let outcomes = vec![
        stored("hourly", (1, 0), &own[0]),
        stored("hourly", (1, 1), &wrong_round),
        stored("hourly", (3, 0), &wrong_campaign),
    ];
    assert_eq!(report(&eve, outcomes), 3);
    // The round is never planned, so its report is not accepted; another one has no report.
    let unplanned = upload(&eve, 52, &conditions("hourly", 900_000, 0));
    assert_eq!(report(&eve, vec![stored("hourly", (900_000, 0), &unplanned)]), 0);
    upload(&eve, 53, &conditions("hourly", 4, 0));
    let CampaignRuns { data, without_facts, left_out } = runs(&config, "hourly");
    let mut counted: Vec<_> = data.runs.iter().map(|run| run.run.clone()).collect();
    counted.sort();
    let mut expected = own;
    expected.sort();
    assert_eq!(counted, expected);
    assert_eq!((without_facts, left_out), (0, 3));
    assert!(data.runs.iter().all(|run| run.device == "ada"));
    let page = site.browser(Role::Viewer).get("/campaigns/hourly/analysis").body;
    assert!(page.contains("3 results named this campaign and do not count"), "{page}");
}

fn every_planned_run_is_analysed_or_absent(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let (ada, _) = (join(&site, &config, "ada"), join(&site, &config, "bob"));
    fill(&ada, "hourly", 1..4, 0);
    let missing = |round, reason| {
        let state = OutcomeState::Missing { reason, detail: String::new() };
        Outcome { state, ..stored("hourly", (round, 1), "") }
    };
    let outcomes = vec![
        missing(5, MissingReason::Unreachable),
        missing(6, MissingReason::OwnerLimit),
        stored("hourly", (7, 0), "0123456789abcdef0123"),
    ];
    assert_eq!(report(&ada, outcomes), 3);
    let at_us = now_us().cast_signed();
    let (data, mut absent) = with_store(&config, async |store| {
        let runs = store.campaign_runs("hourly", at_us).await?;
        let mut absent = Vec::new();
        let progress = store.campaign_progress("hourly", at_us, |run| absent.push(run)).await?;
        let counts = progress.counts();
        assert_eq!(counts.stored + absent.len() as u64, counts.planned);
        Ok((runs.data, absent))
    });
    assert_eq!(data.runs.len(), 6);
    assert_eq!(data.absent.len(), absent.len());
    absent.sort_by_key(|run| (run.device.clone(), run.round, run.run.index));
    let mut found = data.absent;
    found.sort();
    for (found, expected) in found.iter().zip(&absent) {
        assert_eq!((&found.device, found.round), (&expected.device, expected.round));
        assert_eq!((found.run, found.port), (expected.run.index, u32::from(expected.run.port)));
        assert_eq!(found.reason, expected.reason.name());
        assert_eq!(found.transport, expected.run.transport.to_string());
        assert_eq!((found.family.as_str(), found.pattern.as_str()), ("ipv4", "interactive"));
    }
    let error = error_of(&config, async |store| store.campaign_runs("other", at_us).await);
    assert!(matches!(error, CollectError::Campaign(CampaignError::Unknown(_))), "{error}");
}

fn the_analysis_has_equal_bytes_from_both_databases_and_from_a_folder(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    for (number, name) in ["ada", "Bob's laptop", "übung"].into_iter().enumerate() {
        let device = join(&site, &config, name);
        fill(&device, "hourly", 1..6, 100 * number as u64);
    }
    let at_us = now_us().cast_signed();
    let read = |config: &StoreConfig| {
        with_store(config, async |store| store.campaign_runs("hourly", at_us).await).data
    };
    let data = read(&config);
    assert_eq!(data.runs.len(), 30);
    let target = TestFolder::create();
    let results = target.path().join("results");
    let exported = data.clone();
    let report = with_store(&config, async |store| store.export_results(&results, exported).await);
    assert_eq!(report.runs, 30);
    let expected = files(data);
    assert!(expected.contains_key("index.html") && expected.contains_key("runs.parquet"));
    let from_folder = files(folder::read(&results, Some("hourly")).unwrap());
    verify_equal(&from_folder, &expected);
    let saved = TestFolder::create();
    with_store(&config, async |store| store.backup(saved.path()).await);
    let other = Collector::create(Database::Sqlite).unwrap();
    with_store(&other.config(), async |store| store.restore(saved.path()).await);
    compute(&other.config());
    verify_equal(&files(read(&other.config())), &expected);
}

fn verify_equal(files: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(files.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in files {
        assert!(bytes == &expected[name], "{name} differs");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
    let mut names: Vec<String> = entries.map(|entry| name(entry).unwrap()).collect();
    names.sort();
    names
}

fn an_export_of_results_is_complete_or_absent(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada");
    let ids = fill(&device, "hourly", 1..4, 0);
    let data = runs(&config, "hourly").data;
    let folder = TestFolder::create();
    let target = folder.path().join("results");
    let export = || {
        let data = data.clone();
        with_store(&config, async |store| store.export_results(&target, data).await)
    };
    assert_eq!(export().runs, 6);
    assert_eq!(names_in(&target), ["absent.jsonl", "ada"]);
    assert_eq!(names_in(folder.path()), ["results"]);
    let error = error_of(&config, async |store| store.export_results(&target, data.clone()).await);
    assert!(error.to_string().contains("is not empty"), "{error}");
    // Without the records of a run, nothing appears. An empty folder may exist.
    let path = format!("records/runs/{}/{}.jsonl.zst", &ids[0][..2], ids[0]);
    let path = collector.path().join(path);
    let records = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_dir_all(&target).unwrap();
    fs::create_dir(&target).unwrap();
    error_of(&config, async |store| store.export_results(&target, data.clone()).await);
    assert_eq!(names_in(folder.path()), ["results"]);
    assert_eq!(names_in(&target), [""; 0]);
    fs::write(&path, records).unwrap();
    assert_eq!(export().runs, 6);
    assert_eq!(names_in(&target.join("ada")).len(), 6);
}

fn an_analysis_needs_the_rights_of_the_campaigns_page(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada");
    let id = fill(&device, "hourly", 1..2, 0).remove(0);
    let round = format!("/runs/{id}/round");
    let page = "/campaigns/hourly/analysis";
    let file = "/campaigns/hourly/analysis/runs.parquet";
    let selected = "/campaigns/hourly/analysis/family%3Dipv4/usage.csv";
    let json = "/api/v1/campaigns/hourly/analysis";
    let statuses =
        |client: &Client| [page, file, selected, json, &round].map(|path| client.get(path).status);
    assert_eq!(statuses(&site.browser(Role::Viewer)), [200, 200, 200, 200, 404]);
    assert_eq!(statuses(&site.unauthenticated()), [303, 303, 303, 401, 303]);
    for client in [device, site.client(&site.token("lab", Role::Uploader))] {
        assert_eq!(statuses(&client), [403; 5]);
    }
    let link = "href=\"/campaigns/hourly/analysis\"";
    assert!(site.browser(Role::Viewer).get("/campaigns/hourly").body.contains(link));
}

fn names_of_devices_are_hidden_from_the_public_and_the_values_stay(collector: &Collector) {
    let (site, config) = (collector.serve_publicly(), collector.config());
    create(&config, "moving", "mobile");
    for (number, name) in ["secret-ada", "secret-bob"].into_iter().enumerate() {
        fill(&join(&site, &config, name), "moving", 1..5, 100 * number as u64);
    }
    let (reader, public) = (site.browser(Role::Viewer), site.unauthenticated());
    let text =
        |client: &Client, path: &str| String::from_utf8_lossy(&client.get_bytes(path)).into_owned();
    let base = "/campaigns/moving/analysis";
    let names = ["", "/index.html", "/runs.parquet", "/absent.parquet", "/analysis.json"];
    for path in names.map(|name| format!("{base}{name}")) {
        let (shown, hidden) = (text(&reader, &path), text(&public, &path));
        assert!(!hidden.contains("secret-"), "{path}");
        let has_names = !path.ends_with("analysis.json") || shown.contains("secret-ada");
        assert!(has_names, "{path}: {shown}");
    }
    assert!(text(&reader, &format!("{base}/runs.parquet")).contains("secret-ada"));
    assert!(text(&public, &format!("{base}/runs.parquet")).contains("device 2"));
    let figures = |client: &Client| {
        client.get("/api/v1/campaigns/moving/analysis?min-runs=2").json()["figures"].clone()
    };
    assert_eq!(figures(&reader), figures(&public));
}

fn conditions_select_runs_and_wrong_ones_are_refused(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada");
    fill(&device, "hourly", 1..4, 0);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let api = "/api/v1/campaigns/hourly/analysis";
    for (query, runs) in [
        ("", 6),
        ("?server=eu", 6),
        ("?server=us", 0),
        ("?family=ipv4&server=", 6),
        ("?family=ipv6", 0),
        ("?min-version=0.1&min-runs=2", 6),
        ("?min-version=0.2", 0),
    ] {
        let reply = viewer.get(&format!("{api}{query}"));
        assert_eq!(reply.json()["runs"], runs, "{query}: {}", reply.body);
    }
    for (query, words) in [
        ("?colour=red", "there is no condition `colour`"),
        ("?family=ipv5", "`family` is ipv4 or ipv6"),
        ("?port=x", "`port` is a number"),
        ("?min-runs=0", "`min-runs` is a number from 1"),
        ("?min-version=new", "`min-version` is a version"),
    ] {
        let reply = viewer.get(&format!("{api}{query}"));
        assert_eq!(reply.status, 400, "{query}");
        assert!(reply.json()["error"].as_str().unwrap().contains(words), "{}", reply.body);
        let path = format!("/campaigns/hourly/analysis{query}");
        assert_eq!(viewer.get(&path).status, 400, "{path}");
    }
    for (path, words) in [
        ("/campaigns/nope/analysis", "No campaign is named"),
        ("/campaigns/nope/analysis/runs.parquet", "No campaign is named"),
        ("/campaigns/hourly/analysis/nope.csv", "has no file `nope.csv`"),
        ("/campaigns/hourly/analysis/..%2F..%2Fcampaign.key", "has no file"),
        ("/runs/00000000000000000000/round", "no run"),
    ] {
        let reply = viewer.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.contains(words), "{path}: {}", reply.body);
    }
    assert_eq!(viewer.get("/campaigns/hourly/analysis/x=y/usage.csv").status, 400);
    assert_eq!(viewer.get("/api/v1/campaigns/nope/analysis").status, 404);
}

fn the_page_links_to_files_of_its_selection(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "hourly", "stable");
    let device = join(&site, &config, "ada");
    fill(&device, "hourly", 1..4, 0);
    let browser = site.browser(Role::Viewer);
    for query in ["", "?server=eu", "?server=us%20%26%20%3Cb%3E&min-runs=2"] {
        let page = browser.get(&format!("/campaigns/hourly/analysis{query}"));
        assert_eq!(page.status, 200, "{query}");
        assert!(!page.body.contains("<script") && !page.body.contains("<b>"), "{query}");
        let links = page.body.split("href=\"").skip(1);
        let links = links.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&"));
        let mut read = 0;
        for link in links.filter(|link| link.starts_with("/campaigns/hourly/analysis/")) {
            assert_eq!(browser.get(&link).status, 200, "{link}");
            read += 1;
        }
        assert!(read >= 4, "{query}: {read}");
        let json = page.body.split("href=\"").find(|rest| rest.contains("analysis.json")).unwrap();
        let json = browser.get(json.split('"').next().unwrap()).json();
        assert_eq!(json["runs"], if query.contains("us") { 0 } else { 6 }, "{query}");
    }
}

fn a_mobile_round_has_a_page_and_a_stable_one_has_none(collector: &Collector) {
    let (site, config) = (collector.serve(), collector.config());
    create(&config, "moving", "mobile");
    create(&config, "second", "stable");
    let (ada, bob) = (join(&site, &config, "ada"), join(&site, &config, "bob"));
    let ids = fill(&ada, "moving", 1..3, 0);
    let stable = fill(&bob, "second", 1..2, 100);
    let unreported = upload(&bob, 200, &conditions("moving", 1, 0));
    let browser = site.browser(Role::Viewer);
    for id in &ids[..2] {
        let page = browser.get(&format!("/runs/{id}/round"));
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(page.body.contains("Multipath TCP") && page.body.contains("Multipath QUIC"));
        assert!(page.body.contains("href=\"/campaigns/moving/analysis\""));
    }
    for id in [&stable[0], &unreported] {
        let page = browser.get(&format!("/runs/{id}/round"));
        assert_eq!(page.status, 404, "{id}");
        assert!(page.body.contains("does not belong to a round of a mobile campaign"));
    }
}

#[test]
fn a_page_asks_to_try_again_until_the_facts_of_many_results_are_computed() {
    let collector = Collector::create(Database::Sqlite).unwrap();
    let (site, config) = (collector.serve(), collector.config());
    create_before(&config, ("hourly", "stable"), 60 * HOUR_US);
    let device = join(&site, &config, "ada");
    fill(&device, "hourly", 1..53, 0);
    execute(&config, "DELETE FROM run_facts");
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let first = viewer.get("/api/v1/campaigns/hourly/analysis");
    assert_eq!(first.status, 503, "{}", first.body);
    assert!(first.body.contains("has not read 104 results"), "{}", first.body);
    let mut replies = (0..100_000).map(|_| viewer.get("/api/v1/campaigns/hourly/analysis"));
    let reply = replies.find(|reply| reply.status != 503).unwrap();
    assert_eq!((reply.status, reply.json()["runs"].clone()), (200, json!(104)));
}
