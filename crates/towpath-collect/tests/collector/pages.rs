//! Lists and pages: filters, counts, order, paging, comparison.

use towpath_collect::Role;

use crate::site::{Collector, RESULT, Site, edited_result, on_both_databases, result};

on_both_databases!(
    filters_counts_and_pages_agree,
    a_page_works_without_scripts_and_offers_the_next_step,
    a_query_without_a_match_keeps_all_choices,
    a_condition_of_an_empty_value_is_not_that_of_a_name,
    errors_do_not_ask_to_log_in_again,
    two_to_eight_runs_can_be_compared,
    the_health_page_needs_no_token,
    a_series_marks_a_change_of_the_goodput,
    a_badge_shows_the_goodput_to_other_sites,
);

/// Uploads `count` runs whose transport, host and time follow from their number.
fn fill(site: &Site, count: u64) {
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let transports = ["tcp", "mptcp", "quic", "mpquic"];
    for number in 0..count {
        let result = result(number, |meta| {
            meta["transport"] = transports[number as usize % 4].into();
            meta["started_us"] = (1_790_000_000_000_000 + number * 3_600_000_000).into();
        });
        let host = format!("host{}", number % 3);
        let reply = uploader.upload_with(&result, &[("towpath-host", &host)]);
        assert_eq!(reply.status, 201, "{}", reply.body);
    }
}

fn filters_counts_and_pages_agree(collector: &Collector) {
    let site = collector.serve();
    fill(&site, 120);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    for (query, expected) in [
        ("", 120),
        ("?transport=mptcp", 30),
        ("?transport=mptcp&transport=tcp", 60),
        ("?transport=mptcp&host=host0", 10),
        ("?host=host1&since=2026-09-22", 37),
        ("?until=2026-09-21", 10),
        ("?server=-", 120),
        ("?host=none", 0),
        ("?sort=%2Bgoodput", 120),
    ] {
        let mut ids = std::collections::BTreeSet::new();
        let list = viewer.get(&format!("/api/v1/runs{query}")).json();
        let pages = list["pages"].as_i64().unwrap();
        for page in 1..=pages {
            let separator = if query.is_empty() { "?" } else { "&" };
            let list = viewer.get(&format!("/api/v1/runs{query}{separator}page={page}")).json();
            for run in list["runs"].as_array().unwrap() {
                assert!(ids.insert(run["id"].to_string()), "{query}: a run is listed twice");
            }
        }
        assert_eq!(list["matching"], ids.len(), "{query}");
        assert_eq!(ids.len(), expected, "{query}");
        assert_eq!(viewer.get(&format!("/{query}")).status, 200, "{query}");
    }
    let newest = viewer.get("/api/v1/runs").json()["runs"][0]["started_us"].clone();
    assert_eq!(newest, 1_790_000_000_000_000_u64 + 119 * 3_600_000_000);
    let wrong = viewer.get("/api/v1/runs?colour=red");
    assert!(wrong.status == 400 && wrong.body.contains("transport"), "{}", wrong.body);
}

fn a_page_works_without_scripts_and_offers_the_next_step(collector: &Collector) {
    let site = collector.serve();
    let browser = site.browser(Role::Admin);
    let empty = browser.get("/").body;
    assert!(empty.contains("towpath collect token create"), "{empty}");
    assert!(empty.contains(&format!("--to {}", site.url)), "{empty}");
    fill(&site, 2);
    let list = browser.get("/").body;
    assert!(!list.contains("<script"), "lists need no script");
    assert_eq!(list.matches("name=\"run\"").count(), 2);
    assert!(browser.get("/nowhere").status == 404 && browser.get("/runs/x").status == 404);
}

fn a_query_without_a_match_keeps_all_choices(collector: &Collector) {
    let site = collector.serve();
    fill(&site, 8);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    for query in ["host=elsewhere", "since=2031-01-01", "since=2026-10-02&until=2026-10-01"] {
        let list = viewer.get(&format!("/?{query}")).body;
        assert!(list.contains("No run matches"), "{query}");
        let mut values = vec![("transport", "tcp"), ("transport", "mpquic"), ("host", "host1")];
        if query.starts_with("host") {
            values.push(("host", "elsewhere"));
        }
        for (facet, value) in values {
            let field = format!("name=\"{facet}\" value=\"{value}\"");
            assert!(list.contains(&field), "{query}: {field}");
        }
    }
}

fn a_condition_of_an_empty_value_is_not_that_of_a_name(collector: &Collector) {
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    for (seed, host) in [(1, ""), (2, "none")] {
        let result = result(seed, |_| {});
        assert_eq!(uploader.upload_with(&result, &[("towpath-host", host)]).status, 201);
    }
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let [without, named] = ["-", "none"].map(|host| viewer.get(&format!("/?host={host}")).body);
    assert!(without.contains(">without host ×<") && !without.contains(">host none ×<"));
    assert!(named.contains(">host none ×<") && named.contains(" (none) <small>"), "{named}");
    for list in [without, named] {
        assert_eq!(list.matches("name=\"run\"").count(), 1);
    }
}

fn errors_do_not_ask_to_log_in_again(collector: &Collector) {
    let site = collector.serve();
    let browser = site.browser(Role::Viewer);
    for path in ["/nowhere", "/compare", "/tokens", "/runs/x", "/?colour=red", "/login"] {
        let page = browser.get(path).body;
        assert!(page.contains("href=\"/\"") && !page.contains("href=\"/login\""), "{page}");
    }
}

fn two_to_eight_runs_can_be_compared(collector: &Collector) {
    let site = collector.serve();
    fill(&site, 9);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let list = viewer.get("/api/v1/runs").json();
    let ids: Vec<&str> =
        list["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    let compare = |ids: &[&str]| {
        let query: Vec<String> = ids.iter().map(|id| format!("run={id}")).collect();
        viewer.get(&format!("/compare?{}", query.join("&")))
    };
    for count in [2, 8] {
        let page = compare(&ids[..count]);
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(page.body.contains("<svg"));
    }
    for count in [0, 1, 9] {
        assert_eq!(compare(&ids[..count]).status, 400);
    }
    assert_eq!(compare(&[ids[0], ids[0]]).status, 400, "the same run twice");
    assert_eq!(compare(&[ids[0], "00000000000000000000"]).status, 404);
}

fn the_health_page_needs_no_token(collector: &Collector) {
    let site = collector.serve();
    let reply = site.unauthenticated().get("/healthz");
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"));
    assert!(RESULT.len() > 100);
}

fn a_series_marks_a_change_of_the_goodput(collector: &Collector) {
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    for night in 0..30_u64 {
        // From the 20th night on, a third is lost.
        let factor = if night < 20 { 1.0 } else { 0.66 } + (night % 5) as f64 / 50.0;
        let result = edited_result(night, |records| {
            records[0]["started_us"] = (1_790_000_000_000_000 + night * 86_400_000_000).into();
            for flow in records.last_mut().unwrap()["flows"].as_array_mut().unwrap() {
                flow["goodput_bps"] = (flow["goodput_bps"].as_f64().unwrap() * factor).into();
            }
        });
        assert_eq!(uploader.upload(&result).status, 201);
    }
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let series = viewer.get("/api/v1/series?host=lab3").json();
    assert_eq!(series["points"].as_array().unwrap().len(), 30);
    let change = &series["change"];
    assert_eq!(change["since_us"], 1_790_000_000_000_000_u64 + 20 * 86_400_000_000, "{change}");
    let page = viewer.get("/series?host=lab3").body;
    assert!(page.contains("since 2026-10-11") && page.contains('−'), "{page}");
    assert_eq!(page.matches("<circle").count(), 30);
    assert_eq!(viewer.get("/series?sort=stall").status, 200);
    assert!(viewer.get("/series?host=none").body.contains("No run that matches"));
}

fn a_badge_shows_the_goodput_to_other_sites(collector: &Collector) {
    let site = collector.serve_publicly();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let reply = uploader.upload(RESULT).json();
    let id = reply["id"].as_str().unwrap();
    let badge = site.unauthenticated().get(&format!("/runs/{id}/badge.svg"));
    assert!(badge.status == 200 && badge.body.contains("Mbit/s"), "{}", badge.body);
}
