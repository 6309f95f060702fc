//! Pages of the list for random queries, compared with a sort of all runs.

use std::collections::BTreeMap;
use std::fs;

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde_json::Value;
use towpath_collect::{Role, Store, run_to_end};

use crate::site::{Client, Collector, RESULT, on_both_databases};

on_both_databases!(every_page_equals_a_part_of_all_runs_in_order);

/// Runs in the catalogue, apart from the uploaded one.
const RUNS: u64 = 900;
const QUERIES: u32 = 250;
/// Runs on one page.
const PAGE_RUNS: usize = 50;
const FIRST_START_US: u64 = 1_780_000_000_000_000;
const DAY_US: u64 = 86_400_000_000;
/// Facets whose values differ between the runs.
const FACETS: [&str; 4] = ["transport", "host", "version", "outcome"];
const SORTS: [(&str, &str); 4] = [
    ("time", "started_us"),
    ("goodput", "goodput_bps"),
    ("delay", "delay_p99_us"),
    ("stall", "stall_us"),
];

/// Source of random values.
struct Draws(Pcg64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn choose<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len() as u64) as usize]
    }
}

fn every_page_equals_a_part_of_all_runs_in_order(collector: &Collector) {
    let runs = fill(collector);
    let site = collector.serve();
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let mut draws = Draws(Pcg64::seed_from_u64(7));
    let mut full_pages = 0;
    for _ in 0..QUERIES {
        let query = ListQuery::draw(&mut draws);
        let pages = query.matching(&runs).div_ceil(PAGE_RUNS) as u64;
        let page = draws.below(pages + 1) as usize;
        full_pages += usize::from(verify_page(&viewer, &runs, &query, page) == PAGE_RUNS);
    }
    assert!(full_pages > 50, "most queries match too little: {full_pages} full pages");
    // Some runs of the second version are among the first rows of the list, but fewer than a page.
    let query = ListQuery {
        values: [("version", vec!["0.1"])].into(),
        since: None,
        until: None,
        sort: 0,
        ascending: false,
    };
    let newest = RUNS as usize * 2 * PAGE_RUNS / query.matching(&runs);
    let matches = runs[runs.len() - newest..].iter().filter(|run| query.is_match(run)).count();
    assert!((1..PAGE_RUNS).contains(&matches), "{matches}");
    assert_eq!(verify_page(&viewer, &runs, &query, 0), PAGE_RUNS);
}

/// Compares a page with a part of all runs in order; returns its number of runs.
fn verify_page(viewer: &Client, runs: &[Value], query: &ListQuery, page: usize) -> usize {
    let expected = query.apply(runs);
    let address = format!("/api/v1/runs?{}page={}", query.address(), page + 1);
    let list = viewer.get(&address).json();
    let found: Vec<&str> =
        list["runs"].as_array().unwrap().iter().map(|run| text(run, "id")).collect();
    let start = (page * PAGE_RUNS).min(expected.len());
    let end = (start + PAGE_RUNS).min(expected.len());
    assert_eq!(found, expected[start..end], "{address}");
    assert_eq!(list["matching"], query.matching(runs), "{address}");
    found.len()
}

/// Fills a collector from a backup, whose rows this function writes; returns the rows.
fn fill(collector: &Collector) -> Vec<Value> {
    let site = collector.serve();
    assert_eq!(site.client(&site.token("lab", Role::Uploader)).upload(RESULT).status, 201);
    drop(site);
    let folder = collector.path().join("backup");
    let config = collector.config();
    run_to_end(async { Store::open(&config).await?.backup(&folder).await }).unwrap();
    let file = folder.join("catalogue.jsonl");
    let mut lines = fs::read_to_string(&file).unwrap();
    let template: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let mut runs = vec![template["run"].clone()];
    let mut draws = Draws(Pcg64::seed_from_u64(3));
    for number in 0..RUNS {
        let mut line = template.clone();
        change(&mut line["run"], number, &mut draws);
        let records = folder.join("records").join(&text(&line["run"], "id")[..2]);
        fs::create_dir_all(&records).unwrap();
        let name = format!("{}.jsonl.zst", text(&line["run"], "id"));
        fs::write(records.join(name), "records").unwrap();
        lines.extend([line.to_string(), "\n".to_owned()]);
        runs.push(line["run"].clone());
    }
    fs::write(file, lines).unwrap();
    let report = run_to_end(async { Store::open(&config).await?.restore(&folder).await }).unwrap();
    assert_eq!((report.runs, report.skipped), (RUNS, 1));
    runs
}

/// Makes a run of random values: some are equal, and some metrics are absent.
fn change(run: &mut Value, number: u64, draws: &mut Draws) {
    // The multiplication by an odd number scatters the identifiers.
    let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    run["id"] = format!("{id:016x}{number:04x}").into();
    run["content_hash"] = format!("{id:064x}").into();
    run["transport"] = draws.choose(&["tcp", "tcp", "tcp", "mptcp", "mptcp", "quic"]).into();
    run["host"] = draws.choose(&["lab1", "lab1", "lab1", "lab2", "lab3", ""]).into();
    run["outcome"] = draws.choose(&["ok", "ok", "ok", "failed", "incomplete"]).into();
    // One version follows the other, so the runs of a version lie in few periods.
    run["version"] =
        ["0.0", "0.1", "0.2"][usize::from(number >= 330) + usize::from(number >= 630)].into();
    // Half of the days are empty, and each second a run may start with others.
    let day = number * 200 / RUNS / 2 * 2;
    run["started_us"] = (FIRST_START_US + day * DAY_US + draws.below(40) * DAY_US / 40).into();
    for metric in ["goodput_bps", "delay_p99_us", "stall_us"] {
        let value = draws.below(300);
        run[metric] = if value < 20 { Value::Null } else { (value as f64).into() };
    }
}

fn text<'a>(run: &'a Value, key: &str) -> &'a str {
    run[key].as_str().unwrap()
}

/// Random query of the list.
#[derive(Debug)]
struct ListQuery {
    values: BTreeMap<&'static str, Vec<&'static str>>,
    /// First and last day, in days since 1970.
    since: Option<u64>,
    until: Option<u64>,
    sort: usize,
    ascending: bool,
}

impl ListQuery {
    fn draw(draws: &mut Draws) -> Self {
        let choices: [&[&str]; 4] = [
            &["tcp", "mptcp", "quic"],
            &["lab1", "lab2", "lab3", "", "lab9"],
            &["0.0", "0.1", "0.2"],
            &["ok", "failed", "incomplete"],
        ];
        let mut values = BTreeMap::new();
        for (facet, choices) in FACETS.into_iter().zip(choices) {
            if draws.below(3) == 0 {
                let mut accepted = vec![draws.choose(choices), draws.choose(choices)];
                accepted.dedup();
                values.insert(facet, accepted);
            }
        }
        let first_day = FIRST_START_US / DAY_US;
        let mut day = || (draws.below(3) == 0).then(|| first_day + draws.below(200));
        let (since, until) = (day(), day());
        // Half of the queries are in the order of time, which has most of the code.
        let sort = draws.below(8) as usize;
        let sort = if sort < SORTS.len() { sort } else { 0 };
        Self { values, since, until, sort, ascending: draws.below(2) == 0 }
    }

    fn is_match(&self, run: &Value) -> bool {
        let day = run["started_us"].as_u64().unwrap() / DAY_US;
        self.values.iter().all(|(facet, accepted)| accepted.contains(&text(run, facet)))
            && self.since.is_none_or(|since| day >= since)
            && self.until.is_none_or(|until| day <= until)
    }

    fn matching(&self, runs: &[Value]) -> usize {
        runs.iter().filter(|run| self.is_match(run)).count()
    }

    /// Returns the identifiers of all runs that the list has, on all pages.
    fn apply<'a>(&self, runs: &'a [Value]) -> Vec<&'a str> {
        let column = SORTS[self.sort].1;
        let runs = runs.iter().filter(|run| self.is_match(run) && !run[column].is_null());
        let mut keys: Vec<(f64, &str)> =
            runs.map(|run| (run[column].as_f64().unwrap(), text(run, "id"))).collect();
        keys.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)));
        if !self.ascending {
            keys.reverse();
        }
        keys.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the query as an address has it, with a separator at its end.
    fn address(&self) -> String {
        let mut address = String::new();
        for (facet, accepted) in &self.values {
            for value in accepted {
                let value = if value.is_empty() { "-" } else { value };
                address.extend([facet, "=", value, "&"]);
            }
        }
        for (key, day) in [("since", self.since), ("until", self.until)] {
            if let Some(day) = day {
                address.extend([key, "=", &date(day), "&"]);
            }
        }
        let sign = if self.ascending { "%2B" } else { "" };
        address + &format!("sort={sign}{}&", SORTS[self.sort].0)
    }
}

/// Formats a day of the tested year.
fn date(day: u64) -> String {
    // 2026-01-01 is day 20,454.
    let (mut rest, mut month) = (day - 20_454, 1);
    for days in [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < days {
            break;
        }
        (rest, month) = (rest - days, month + 1);
    }
    format!("2026-{month:02}-{:02}", rest + 1)
}
