//! Backup, restore and purge, and the counters of the server.

use towpath_collect::{CollectError, Role, Store, StoreConfig, run_to_end};

use crate::site::{Collector, Database, Site, TestFolder, on_both_databases, result};

on_both_databases!(
    a_backup_moves_everything_to_another_database,
    a_purge_removes_old_runs_and_their_records,
    counters_follow_the_uploads,
);

const FIRST_US: u64 = 1_790_000_000_000_000;
const DAY_US: u64 = 86_400_000_000;

/// Uploads five runs that started a day apart; returns a viewer's token.
fn fill(site: &Site) -> String {
    let uploader = site.client(&site.token("lab3", Role::Uploader));
    for number in 0..5 {
        let result =
            result(number, |meta| meta["started_us"] = (FIRST_US + number * DAY_US).into());
        assert_eq!(uploader.upload(&result).status, 201);
    }
    site.token("reader", Role::Viewer)
}

pub(crate) fn with_store<T>(
    config: &StoreConfig,
    work: impl AsyncFnOnce(Store) -> Result<T, CollectError>,
) -> T {
    run_to_end(async {
        let store = Store::open(config).await?;
        work(store).await
    })
    .unwrap()
}

fn a_backup_moves_everything_to_another_database(collector: &Collector) {
    let saved = TestFolder::create();
    let (token, list) = {
        let site = collector.serve();
        let token = fill(&site);
        let report =
            with_store(&collector.config(), async |store| store.backup(saved.path()).await);
        assert_eq!((report.runs, report.skipped), (5, 0));
        let again = with_store(&collector.config(), async |store| store.backup(saved.path()).await);
        assert_eq!(again, report);
        let list = site.client(&token).get("/api/v1/runs").json();
        (token, list)
    };
    let other = Collector::create(Database::Sqlite).unwrap();
    for expected in [(5, 0), (0, 5)] {
        let report = with_store(&other.config(), async |store| store.restore(saved.path()).await);
        assert_eq!((report.runs, report.skipped), expected);
    }
    let site = other.serve();
    let viewer = site.client(&token);
    assert_eq!(viewer.get("/api/v1/runs").json(), list, "tokens work as before");
    let id = list["runs"][0]["id"].as_str().unwrap();
    assert_eq!(viewer.get(&format!("/runs/{id}")).status, 200);
}

fn a_purge_removes_old_runs_and_their_records(collector: &Collector) {
    let site = collector.serve();
    let viewer = site.client(&fill(&site));
    let before_us = (FIRST_US + 3 * DAY_US).cast_signed();
    let oldest = viewer.get("/api/v1/runs?sort=%2Btime").json()["runs"][0].clone();
    let id = oldest["id"].as_str().unwrap();
    let purge = |dry_run: bool| {
        with_store(&collector.config(), async |store| store.purge(before_us, dry_run).await).runs
    };
    assert_eq!(purge(true), 3);
    assert_eq!(viewer.get("/api/v1/runs").json()["matching"], 5);
    assert_eq!(purge(false), 3);
    assert_eq!(purge(false), 0);
    for query in ["", "?since=2026-01-01", "?transport=mptcp"] {
        assert_eq!(viewer.get(&format!("/api/v1/runs{query}")).json()["matching"], 2, "{query}");
    }
    assert_eq!(viewer.get(&format!("/runs/{id}")).status, 404);
    let records = collector.path().join(format!("records/runs/{}/{id}.jsonl.zst", &id[..2]));
    assert!(!records.exists());
    // A purged run may be uploaded again.
    let uploader = site.client(&site.token("lab4", Role::Uploader));
    let again = result(0, |meta| meta["started_us"] = FIRST_US.into());
    assert_eq!(uploader.upload(&again).status, 201);
}

fn counters_follow_the_uploads(collector: &Collector) {
    let site = collector.serve();
    let viewer = site.client(&fill(&site));
    let uploader = site.client(&site.token("lab4", Role::Uploader));
    let first = result(0, |meta| meta["started_us"] = FIRST_US.into());
    assert_eq!(uploader.upload(&first).status, 200);
    assert_eq!(uploader.upload("nothing").status, 422);
    let metrics = viewer.get("/metrics").body;
    for line in [
        "towpath_collector_runs 5",
        "towpath_collector_uploads_total{outcome=\"created\"} 5",
        "towpath_collector_uploads_total{outcome=\"repeated\"} 1",
        "towpath_collector_uploads_total{outcome=\"refused\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert_eq!(site.unauthenticated().get("/metrics").status, 401);
}
