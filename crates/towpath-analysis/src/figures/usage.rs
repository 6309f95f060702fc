//! Runs, devices and networks of a campaign, and the runs that are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{AnalysisFigure, Cell, DataTable, SOURCE};
use crate::facts::RunFacts;
use crate::population::{Population, networks};

pub(super) fn usage(population: &Population) -> AnalysisFigure {
    AnalysisFigure {
        id: "usage",
        title: "Runs, devices and networks".to_owned(),
        comparable: format!(
            "Corresponds to section II.C of {SOURCE}. The paper counts the names of Wi-Fi networks. \
             Towpath does not collect them. It counts kinds and prefixes of addresses (/24, /48); a \
             private prefix counts once for each device."
        ),
        figure: None,
        tables: vec![runs(population), networks_table(population), left_out(population)],
        sentence: population.sentence("run", population.valid()),
        notes: Vec::new(),
        query: "SELECT mobile, server, count(*) AS runs, count(DISTINCT device) AS devices\n\
                FROM 'runs.parquet' WHERE valid GROUP BY ALL ORDER BY ALL"
            .to_owned(),
    }
}

fn runs(population: &Population) -> DataTable {
    let mut groups: BTreeMap<(bool, &str), (u64, BTreeSet<&str>)> = BTreeMap::new();
    for run in population.valid() {
        let (count, devices) = groups.entry((run.mobile, &run.server)).or_default();
        *count += 1;
        devices.insert(&run.device);
    }
    let all: u64 = groups.values().map(|(count, _)| count).sum();
    let mut table =
        DataTable::new("Valid runs", &["mode", "server", "runs", "share of runs (%)", "devices"]);
    for ((is_mobile, server), (count, devices)) in groups {
        table.rows.push(vec![
            Cell::Text(if is_mobile { "mobile" } else { "stable" }.to_owned()),
            Cell::Text(server.to_owned()),
            Cell::Count(count),
            Cell::Number(100.0 * count as f64 / all as f64),
            Cell::Count(devices.len() as u64),
        ]);
    }
    table
}

/// Networks, runs and devices of a kind.
#[derive(Debug, Default)]
struct KindCounts<'a> {
    v4: BTreeSet<String>,
    v6: BTreeSet<String>,
    runs: BTreeSet<&'a str>,
    devices: BTreeSet<&'a str>,
}

fn networks_table(population: &Population) -> DataTable {
    let mut kinds: BTreeMap<&str, KindCounts<'_>> = BTreeMap::new();
    for run in population.valid() {
        for (kind, network) in networks(run) {
            let counts = kinds.entry(kind).or_default();
            let set = if network.contains(':') { &mut counts.v6 } else { &mut counts.v4 };
            set.insert(network);
            counts.runs.insert(&run.run);
            counts.devices.insert(&run.device);
        }
    }
    let columns = ["kind", "IPv4 networks", "IPv6 networks", "runs", "devices"];
    let mut table = DataTable::new("Networks that carried data", &columns);
    for (kind, counts) in kinds {
        let KindCounts { v4, v6, runs, devices } = counts;
        let count = |length: usize| Cell::Count(length as u64);
        table.rows.push(vec![
            Cell::Text(kind.to_owned()),
            count(v4.len()),
            count(v6.len()),
            count(runs.len()),
            count(devices.len()),
        ]);
    }
    table
}

fn left_out(population: &Population) -> DataTable {
    let mut table = DataTable::new("Runs that are left out", &["state", "reason", "runs"]);
    let invalid = population.invalid();
    let missing = population.missing();
    let states = [("invalid", invalid), ("without a result", missing)];
    for (state, reasons) in states {
        for (reason, count) in reasons {
            let texts = [state, reason].map(|text| Cell::Text(text.to_owned()));
            table.rows.push(texts.into_iter().chain([Cell::Count(count as u64)]).collect());
        }
    }
    table
}

/// Returns the server that most runs of each device used.
pub(super) fn servers<'a>(runs: impl Iterator<Item = &'a RunFacts>) -> BTreeMap<&'a str, &'a str> {
    let mut counts: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for run in runs {
        *counts.entry(&run.device).or_default().entry(&run.server).or_default() += 1;
    }
    let most = |servers: BTreeMap<&'a str, u64>| {
        servers.into_iter().max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)))
    };
    let device = |(device, servers)| Some((device, most(servers)?.0));
    counts.into_iter().filter_map(device).collect()
}
