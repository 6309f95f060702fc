//! Connectivity by transport, address family and port.

use std::collections::BTreeMap;

use towpath_report::figure::{Curve, Figure};
use towpath_result::metrics::clusters::ClusteredSample;

use super::{
    AnalysisFigure, Cell, DataTable, SOURCE, bar, share_panel, transport_name, usage::servers,
};
use crate::population::Population;
use crate::settings::AnalysisSettings;

/// Reason of a run that found no way to the server. It is the only one that counts as a failure.
const UNREACHABLE: &str = "unreachable";
/// Reason of a run whose device, or its server, has no address of the family.
const NO_ADDRESS: &str = "no-address";
const ATTEMPT_NOTE: &str = "An attempt is a run with a result, valid or not, or one whose device \
    could not reach the server. Runs without an address of the family do not count.";
const QUERY: &str = "\
SELECT transport, family, port, avg(success) AS share, count(*) AS attempts FROM (
  SELECT transport, family, port, 1 AS success FROM 'runs.parquet' WHERE NOT mobile
  UNION ALL
  SELECT transport, family, port, 0 FROM 'absent.parquet' WHERE reason = 'unreachable'
) GROUP BY ALL ORDER BY ALL";

/// Attempts to reach the server: 1 for a success, 0 for a failure, with the device.
type Attempts<'a> = Vec<(f64, &'a str)>;
type AttemptsByPlace<'a> = BTreeMap<(&'a str, &'a str, u32), Attempts<'a>>;

pub(super) fn connectivity(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let attempts = attempts(population);
    // Runs without a result do not say whether they were mobile.
    let has_attempts = population.runs.iter().any(|run| !run.mobile);
    let columns = ["transport", "family", "port", "attempts", "devices", "success"];
    let mut table = DataTable::new("Attempts to reach the server", &columns);
    let mut names: Vec<(&str, u32)> = attempts.keys().map(|(_, f, p)| (*f, *p)).collect();
    names.sort_unstable();
    names.dedup();
    let (mut curves, mut notes): (Vec<Curve>, Vec<String>) = (Vec::new(), Vec::new());
    for (style, transport) in ["tcp", "mptcp", "quic", "mpquic"].into_iter().enumerate() {
        let mut points = Vec::new();
        for (x, (family, port)) in names.iter().enumerate() {
            let Some(values) = attempts.get(&(transport, *family, *port)) else { continue };
            let sample = ClusteredSample::of(values.iter().copied());
            let Some(share) = sample.share(|value| value > 0.5, settings.seed) else { continue };
            table.rows.push(vec![
                Cell::Text(transport.to_owned()),
                Cell::Text((*family).to_owned()),
                Cell::Count((*port).into()),
                Cell::Count(sample.count() as u64),
                Cell::Count(sample.clusters() as u64),
                Cell::Share(share),
            ]);
            if sample.count() >= settings.min_runs {
                points.push(bar(x, share, sample.count()));
            } else {
                let name = transport_name(transport);
                notes.push(format!(
                    "Not shown: {name}, {family}, port {port}, with {} attempts; a bar needs {}.",
                    sample.count(),
                    settings.min_runs
                ));
            }
        }
        if !points.is_empty() {
            let name = transport_name(transport).to_owned();
            curves.push(Curve { name, style, group: style, emulated: false, given: false, points });
        }
    }
    notes.push(ATTEMPT_NOTE.to_owned());
    let is_drawn = has_attempts && !curves.is_empty();
    let figure = is_drawn.then(|| figure(&names, curves));
    AnalysisFigure {
        id: "connectivity",
        title: "Connectivity by transport, address family and port".to_owned(),
        comparable: format!(
            "Corresponds to section III of {SOURCE}, which gives shares in the text: QUIC over IPv4 \
             89 %, over IPv6 58 %; no difference between the ports 443 and 6121."
        ),
        figure,
        tables: if has_attempts { vec![table, ipv6(population, settings)] } else { Vec::new() },
        sentence: population
            .selection("stable run", population.runs.iter().filter(|run| !run.mobile)),
        notes,
        query: QUERY.to_owned(),
    }
}

/// Returns the figure of the shares at each family and port.
fn figure(places: &[(&str, u32)], curves: Vec<Curve>) -> Figure {
    let labels = places.iter().map(|(family, port)| format!("{family}, {port}"));
    let labels: Vec<String> = labels.collect();
    Figure {
        title: "Successful attempts to reach the server".to_owned(),
        panels: vec![share_panel(&labels, "share of attempts", curves)],
        source: None,
    }
}

fn attempts(population: &Population) -> AttemptsByPlace<'_> {
    let mut attempts: AttemptsByPlace<'_> = BTreeMap::new();
    // The analysis of a campaign shows whether its mobile runs reach the server as `handover-…`.
    for run in population.runs.iter().filter(|run| !run.mobile) {
        let place = (run.transport.as_str(), run.family.as_str(), run.port);
        attempts.entry(place).or_default().push((1.0, &run.device));
    }
    for run in population.absent.iter().filter(|run| run.reason == UNREACHABLE) {
        let place = (run.transport.as_str(), run.family.as_str(), run.port);
        attempts.entry(place).or_default().push((0.0, &run.device));
    }
    attempts
}

/// Returns the share of devices with IPv6 for each server. Devices that never tried do not count.
fn ipv6(population: &Population, settings: AnalysisSettings) -> DataTable {
    let by_device = servers(population.runs.iter());
    let mut has_ipv6: BTreeMap<&str, bool> = BTreeMap::new();
    for run in population.absent.iter().filter(|run| run.family == "ipv6") {
        match run.reason.as_str() {
            UNREACHABLE => *has_ipv6.entry(&run.device).or_default() = true,
            NO_ADDRESS => *has_ipv6.entry(&run.device).or_default() |= false,
            _ => {}
        }
    }
    for run in population.runs.iter().filter(|run| run.family == "ipv6") {
        has_ipv6.insert(&run.device, true);
    }
    let mut by_server: BTreeMap<&str, Attempts<'_>> = BTreeMap::new();
    for (device, has_ipv6) in has_ipv6 {
        let Some(server) = by_device.get(device) else { continue };
        by_server.entry(server).or_default().push((f64::from(u8::from(has_ipv6)), device));
    }
    let mut table =
        DataTable::new("Devices with IPv6, by their server", &["server", "devices", "with IPv6"]);
    for (server, values) in by_server {
        let sample = ClusteredSample::of(values);
        let Some(share) = sample.share(|value| value > 0.5, settings.seed) else { continue };
        table.rows.push(vec![
            Cell::Text(server.to_owned()),
            Cell::Count(sample.clusters() as u64),
            Cell::Share(share),
        ]);
    }
    table
}
