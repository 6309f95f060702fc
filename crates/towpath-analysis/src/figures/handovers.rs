//! Reasons and durations of handovers.

use std::collections::BTreeMap;

use towpath_report::figure::{Curve, Figure};
use towpath_result::metrics::clusters::ClusteredSample;
use towpath_result::metrics::handover::SwitchReason;

use super::{
    AnalysisFigure, Cell, DataTable, Distribution, Distributions, MULTIPATH, SOURCE, bar,
    share_panel, transport_name,
};
use crate::facts::{NETWORK_LOST, RunFacts, SecondNetwork};
use crate::population::Population;
use crate::settings::AnalysisSettings;

const REASON_QUERY: &str = "\
SELECT transport, handover_reason, count(*) AS runs
FROM 'runs.parquet' WHERE valid AND mobile AND second_network = 'handover'
GROUP BY ALL ORDER BY ALL";
const DURATION_QUERY: &str = "\
SELECT transport, handover_received_s, handover_sent_s
FROM 'runs.parquet' WHERE valid AND mobile AND second_network = 'handover' ORDER BY ALL";

/// End of a handover with its duration.
type HandoverEnd = (&'static str, fn(&RunFacts) -> Option<f64>);

const ENDS: [HandoverEnd; 2] = [
    ("last packet received", |run| run.handover_received_s),
    ("last packet sent", |run| run.handover_sent_s),
];

/// Returns the valid mobile runs of a transport with a handover.
fn handovers<'a>(
    population: &'a Population,
    transport: &'a str,
) -> impl Iterator<Item = &'a RunFacts> + Clone {
    let is_handover =
        |run: &&RunFacts| run.second_network.as_deref() == Some(SecondNetwork::Handover.name());
    population.mobile(transport).filter(is_handover)
}

pub(super) fn reasons(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let columns = ["transport", "reason", "handovers", "share"];
    let mut table = DataTable::new("Reasons for using the second network", &columns);
    let known = SwitchReason::ALL.into_iter().filter(|reason| *reason != SwitchReason::Other);
    let names = known.map(SwitchReason::name).chain([NETWORK_LOST, SwitchReason::Other.name()]);
    let all = || MULTIPATH.into_iter().flat_map(|transport| handovers(population, transport));
    let has = |name: &&str| all().any(|run| run.handover_reason.as_deref() == Some(name));
    let names: Vec<String> = names.filter(has).map(str::to_owned).collect();
    let (mut curves, mut notes) = (Vec::new(), Vec::new());
    for (style, transport) in MULTIPATH.into_iter().enumerate() {
        let runs: Vec<&RunFacts> = handovers(population, transport).collect();
        let mut points = Vec::new();
        for (x, reason) in names.iter().enumerate() {
            let is_reason = |run: &&&RunFacts| run.handover_reason.as_ref() == Some(reason);
            let count = runs.iter().filter(is_reason).count();
            let values =
                runs.iter().map(|run| (f64::from(u8::from(is_reason(&run))), run.device.as_str()));
            let sample = ClusteredSample::of(values);
            let Some(share) = sample.share(|value| value > 0.5, settings.seed) else { continue };
            if count > 0 {
                table.rows.push(vec![
                    Cell::Text(transport.to_owned()),
                    Cell::Text(reason.clone()),
                    Cell::Count(count as u64),
                    Cell::Share(share),
                ]);
            }
            points.push(bar(x, share, runs.len()));
        }
        if runs.len() >= settings.min_runs {
            let name = transport_name(transport).to_owned();
            curves.push(Curve { name, style, group: style, emulated: false, given: false, points });
        } else if !runs.is_empty() {
            notes.push(not_shown(transport, runs.len(), settings));
        }
    }
    let title = "Reason for using the second network".to_owned();
    let figure = (!curves.is_empty()).then(|| Figure {
        title: title.clone(),
        panels: vec![share_panel(&names, "share of handovers", curves)],
        source: None,
    });
    notes.push(
        "The reason is that of the scheduler or the path policy, if it gives one. Otherwise it \
         follows from the state of the first subflow at the next sample, as in the paper."
            .to_owned(),
    );
    AnalysisFigure {
        id: "handover-reason",
        title,
        comparable: format!(
            "Corresponds to table I of {SOURCE}: `rto` 67 %, `rto-threshold` 11 %, `rtt-threshold` \
             2 %, other 20 %. There, a phone of Apple decides. Linux has no thresholds for the \
             round-trip time or the RTO."
        ),
        figure,
        tables: vec![table, uses(population)],
        sentence: sentence(population),
        notes,
        query: REASON_QUERY.to_owned(),
    }
}

fn not_shown(transport: &str, count: usize, settings: AnalysisSettings) -> String {
    format!(
        "Not shown: {}, with {count} handovers; a curve needs {}.",
        transport_name(transport),
        settings.min_runs
    )
}

/// Returns the uses of the second network by transport.
fn uses(population: &Population) -> DataTable {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for transport in MULTIPATH {
        for run in population.mobile(transport) {
            let use_of_second = run.second_network.as_deref().unwrap_or("none");
            *counts.entry((transport, use_of_second)).or_default() += 1;
        }
    }
    let columns = ["transport", "second network", "runs"];
    let mut table = DataTable::new("Use of the second network", &columns);
    for ((transport, second), runs) in counts {
        let texts = [transport, second].map(|text| Cell::Text(text.to_owned()));
        table.rows.push(texts.into_iter().chain([Cell::Count(runs)]).collect());
    }
    table
}

fn sentence(population: &Population) -> String {
    let all = MULTIPATH.into_iter().flat_map(|transport| population.mobile(transport));
    population.sentence("mobile run", all)
}

pub(super) fn durations(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let mut distributions = Vec::new();
    for transport in MULTIPATH {
        let runs = || handovers(population, transport);
        for (style, (name, value)) in ENDS.into_iter().enumerate() {
            let values = runs().filter_map(|run| Some((value(run)?, run.device.as_str())));
            distributions.push(Distribution {
                panel: transport_name(transport).to_owned(),
                name: name.to_owned(),
                style,
                sample: ClusteredSample::of(values),
            });
        }
    }
    let title = "Duration of the handover";
    let drawn = Distributions {
        title,
        label: "time from the first use of the second network (s)",
        may_be_log: false,
        noun: "handover",
        threshold: Some((0.0, "abrupt (below 0 s)")),
        curves: distributions,
    }
    .draw(settings);
    AnalysisFigure {
        id: "handover-duration",
        title: title.to_owned(),
        comparable: format!(
            "Corresponds to figure 6 of {SOURCE}: 10 % abrupt, 58 % of at least 10 s. Mobile runs of \
             towpath end seconds after the loss of the first network. So long durations are rarer \
             than in the paper."
        ),
        figure: drawn.figure,
        tables: vec![drawn.table],
        sentence: sentence(population),
        notes: drawn
            .notes
            .into_iter()
            .chain([
                "Runs that used both networks from the start, and runs that kept the first network, have \
                 no handover."
                    .to_owned(),
            ])
            .collect(),
        query: DURATION_QUERY.to_owned(),
    }
}
