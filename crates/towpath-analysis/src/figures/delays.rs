//! Longest delays of mobile runs.

use std::collections::BTreeMap;

use towpath_report::figure::{Axis, Curve, CurveKind, CurvePoint, Figure, Panel, ScaleKind};
use towpath_result::metrics::clusters::ClusteredSample;

use super::{
    AnalysisFigure, Cell, DataTable, Distribution, Distributions, DrawnDistributions, MULTIPATH,
    SOURCE, bar, share_panel, transport_name,
};
use crate::cause::DelayCause;
use crate::facts::RunFacts;
use crate::population::Population;
use crate::settings::AnalysisSettings;

/// Shortest delay whose cause is counted, in seconds.
const MIN_CAUSED_DELAY_S: f64 = 1.0;
/// Maximum number of points of a scatter plot. The table of values has all of them.
const MAX_POINTS: usize = 2_000;
/// Factor of the band around the diagonal.
const BAND: f64 = 2.0;
const DELAY_QUERY: &str = "\
SELECT transport, max_delay_up_s, max_delay_down_s, second_network
FROM 'runs.parquet' WHERE valid AND mobile ORDER BY ALL";
const PAIR_QUERY: &str = "\
SELECT a.device, a.round, a.max_delay_up_s AS mptcp_up_s, b.max_delay_up_s AS mpquic_up_s,
  a.max_delay_down_s AS mptcp_down_s, b.max_delay_down_s AS mpquic_down_s
FROM 'runs.parquet' a JOIN 'runs.parquet' b USING (device, round, pattern, pattern_keys, family, port)
WHERE a.transport = 'mptcp' AND b.transport = 'mpquic'
  AND a.valid AND b.valid AND a.mobile AND b.mobile
ORDER BY ALL";
const CAUSE_QUERY: &str = "\
SELECT transport, cause, count(*) AS delays, sum(delay_s) AS seconds FROM (
  SELECT transport, cause_up AS cause, max_delay_up_s AS delay_s, valid, mobile FROM 'runs.parquet'
  UNION ALL
  SELECT transport, cause_down, max_delay_down_s, valid, mobile FROM 'runs.parquet'
) WHERE valid AND mobile AND delay_s >= 1 GROUP BY ALL ORDER BY ALL";

/// A direction with its longest delay and the cause of it.
struct DelayDirection {
    name: &'static str,
    delay: fn(&RunFacts) -> Option<f64>,
    cause: fn(&RunFacts) -> Option<&str>,
}

const DIRECTIONS: [DelayDirection; 2] = [
    DelayDirection {
        name: "upload",
        delay: |run| run.max_delay_up_s,
        cause: |run| run.cause_up.as_deref(),
    },
    DelayDirection {
        name: "download",
        delay: |run| run.max_delay_down_s,
        cause: |run| run.cause_down.as_deref(),
    },
];

fn mobile_runs(population: &Population) -> impl Iterator<Item = &RunFacts> {
    MULTIPATH.into_iter().flat_map(|transport| population.mobile(transport))
}

/// Returns distributions of the longest delays of runs.
fn delay_distributions(title: &str, curves: Vec<Distribution>) -> Distributions<'_> {
    Distributions {
        title,
        label: "longest delay (s)",
        may_be_log: true,
        noun: "run",
        threshold: Some((1.0, "below 1 s")),
        curves,
    }
}

/// Returns a figure of distributions of mobile runs.
fn delay_figure(
    (id, title): (&'static str, &str),
    (comparable, query): (String, &str),
    drawn: DrawnDistributions,
    population: &Population,
) -> AnalysisFigure {
    AnalysisFigure {
        id,
        title: title.to_owned(),
        comparable,
        figure: drawn.figure,
        tables: vec![drawn.table],
        sentence: population.sentence("mobile run", mobile_runs(population)),
        notes: drawn.notes,
        query: query.to_owned(),
    }
}

pub(super) fn maximum(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let mut distributions = Vec::new();
    for transport in MULTIPATH {
        for (style, direction) in DIRECTIONS.iter().enumerate() {
            let runs = population.mobile(transport);
            let values = runs.filter_map(|run| Some(((direction.delay)(run)?, &*run.device)));
            distributions.push(Distribution {
                panel: transport_name(transport).to_owned(),
                name: direction.name.to_owned(),
                style,
                sample: ClusteredSample::of(values),
            });
        }
    }
    let title = "Longest delay of a message in a run";
    let drawn = delay_distributions(title, distributions).draw(settings);
    let comparable = format!(
        "Corresponds to figure 7 of {SOURCE}, which shows Multipath TCP: more than 60 % above 1 s, \
         median of the downloads 2.6 s, 70th percentile of the uploads 6 s. A message without a \
         reply counts with its time until the end of the run."
    );
    delay_figure(("max-delay", title), (comparable, DELAY_QUERY), drawn, population)
}

pub(super) fn by_second_network(
    population: &Population,
    settings: AnalysisSettings,
) -> AnalysisFigure {
    let mut distributions = Vec::new();
    for transport in MULTIPATH {
        for (style, kind) in
            ["handover", "from-start", "occasional", "unused"].into_iter().enumerate()
        {
            let runs = population.mobile(transport);
            let runs = runs.filter(|run| run.second_network.as_deref() == Some(kind));
            let values = runs.filter_map(|run| Some((run.max_delay_s()?, run.device.as_str())));
            distributions.push(Distribution {
                panel: transport_name(transport).to_owned(),
                name: format!("second network: {kind}"),
                style,
                sample: ClusteredSample::of(values),
            });
        }
    }
    let title = "Longest delay, by use of the second network";
    let drawn = delay_distributions(title, distributions).draw(settings);
    let comparable = format!(
        "Has no counterpart in {SOURCE}, where the second network is a backup in all runs \
         (`handover`)."
    );
    delay_figure(("delay-by-use", title), (comparable, DELAY_QUERY), drawn, population)
}

/// Returns pairs of simultaneous runs over Multipath TCP and Multipath QUIC.
fn round_pairs(population: &Population) -> Vec<(&RunFacts, &RunFacts)> {
    let key = |run: &RunFacts| {
        let texts = [&run.device, &run.pattern, &run.pattern_keys, &run.family];
        (texts.map(String::clone), run.round, run.port)
    };
    let mut quic = BTreeMap::new();
    for run in population.mobile("mpquic") {
        quic.entry(key(run)).or_insert(run);
    }
    let pairs = population.mobile("mptcp").filter_map(|run| Some((run, *quic.get(&key(run))?)));
    pairs.collect()
}

pub(super) fn ratio(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let pairs = round_pairs(population);
    let distributions = DIRECTIONS.iter().enumerate().map(|(style, direction)| {
        let ratio = |(tcp, quic): &(&RunFacts, &RunFacts)| {
            Some((direction.delay)(tcp)? / (direction.delay)(quic)?)
        };
        let values = pairs.iter().filter_map(|pair| Some((ratio(pair)?, &*pair.0.device)));
        let sample = ClusteredSample::of(values);
        Distribution { panel: String::new(), name: direction.name.to_owned(), style, sample }
    });
    let title = "Longest delay with Multipath TCP divided by that with Multipath QUIC";
    let drawn = Distributions {
        title,
        label: "ratio",
        may_be_log: true,
        noun: "pair",
        threshold: Some((1.0, "below 1")),
        curves: distributions.collect(),
    }
    .draw(settings);
    let comparable = format!(
        "Corresponds to figure 8a of {SOURCE}, where neither protocol has shorter delays in most \
         runs. Both runs of a pair were made at the same time."
    );
    delay_figure(("delay-ratio", title), (comparable, PAIR_QUERY), drawn, population)
}

pub(super) fn pairs(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let pairs = round_pairs(population);
    let (mut curves, mut notes) = (Vec::new(), Vec::new());
    for (style, direction) in DIRECTIONS.iter().enumerate() {
        let point = |(tcp, quic): &(&RunFacts, &RunFacts)| {
            let (x, middle) = ((direction.delay)(tcp)?, (direction.delay)(quic)?);
            Some(CurvePoint { x, middle, spread: [middle; 2], runs: 1 })
        };
        let points: Vec<_> = pairs.iter().filter_map(point).collect();
        let every = points.len().div_ceil(MAX_POINTS).max(1);
        if every > 1 {
            notes.push(format!("One of {every} pairs is drawn."));
        }
        if points.len() >= settings.min_runs {
            let points = points.into_iter().step_by(every).collect();
            let name = direction.name.to_owned();
            curves.push(Curve { name, style, group: style, emulated: false, given: false, points });
        } else if !points.is_empty() {
            let (count, min) = (points.len(), settings.min_runs);
            notes.push(format!("Not shown: {}, with {count} pairs of {min}.", direction.name));
        }
    }
    let title = "Longest delays of simultaneous runs".to_owned();
    let axis = |name: &str| Axis {
        label: format!("{name}: longest delay (s)"),
        scale: ScaleKind::Log,
        range: None,
    };
    let figure = (!curves.is_empty()).then(|| Figure {
        title: title.clone(),
        panels: vec![Panel {
            title: String::new(),
            kind: CurveKind::Scatter,
            x: axis("Multipath TCP"),
            y: axis("Multipath QUIC"),
            curves,
            references: Vec::new(),
            lines: Vec::new(),
            diagonal: Some(BAND),
        }],
        source: None,
    });
    AnalysisFigure {
        id: "delay-pairs",
        title,
        comparable: format!("Corresponds to figure 8b of {SOURCE}, which shows uploads."),
        figure,
        tables: Vec::new(),
        sentence: population.sentence("mobile run", mobile_runs(population)),
        notes,
        query: PAIR_QUERY.to_owned(),
    }
}

pub(super) fn causes(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let columns =
        ["transport", "cause", "delays", "share of delays", "seconds", "share of time (%)"];
    let mut table = DataTable::new("Delays of at least 1 s, by cause", &columns);
    let all = || MULTIPATH.into_iter().flat_map(|transport| long_delays(population, transport));
    let rules = DelayCause::RULES.iter().map(|rule| rule.cause.name());
    let rules: Vec<&str> = rules.filter(|name| all().any(|(_, cause, _)| cause == *name)).collect();
    let (mut curves, mut notes) = (Vec::new(), Vec::new());
    for (style, transport) in MULTIPATH.into_iter().enumerate() {
        let delays: Vec<(f64, &str, &str)> = long_delays(population, transport).collect();
        let seconds: f64 = delays.iter().map(|(delay, ..)| delay).sum();
        let mut points = Vec::new();
        for (x, cause) in rules.iter().enumerate() {
            let of_cause = || delays.iter().filter(|(_, other, _)| other == cause);
            let values = delays
                .iter()
                .map(|(_, other, device)| (f64::from(u8::from(other == cause)), *device));
            let sample = ClusteredSample::of(values);
            let Some(share) = sample.share(|value| value > 0.5, settings.seed) else { continue };
            let caused: f64 = of_cause().map(|(delay, ..)| delay).sum();
            if of_cause().next().is_some() {
                table.rows.push(vec![
                    Cell::Text(transport.to_owned()),
                    Cell::Text((*cause).to_owned()),
                    Cell::Count(of_cause().count() as u64),
                    Cell::Share(share),
                    Cell::Number(caused),
                    Cell::Number(100.0 * caused / seconds),
                ]);
            }
            points.push(bar(x, share, delays.len()));
        }
        if delays.len() >= settings.min_runs {
            let name = transport_name(transport).to_owned();
            curves.push(Curve { name, style, group: style, emulated: false, given: false, points });
        } else if !delays.is_empty() {
            let (name, count) = (transport_name(transport), delays.len());
            notes.push(format!(
                "Not shown: {name}, with {count} delays; a bar needs {}.",
                settings.min_runs
            ));
        }
    }
    let title = "Cause of the longest delays".to_owned();
    let names: Vec<String> = rules.into_iter().map(str::to_owned).collect();
    let figure = (!curves.is_empty()).then(|| Figure {
        title: title.clone(),
        panels: vec![share_panel(&names, "share of delays", curves)],
        source: None,
    });
    AnalysisFigure {
        id: "delay-cause",
        title,
        comparable: format!("Has no counterpart in {SOURCE}. The rules are below."),
        figure,
        tables: if table.rows.is_empty() { Vec::new() } else { vec![table, rules_table()] },
        sentence: population.sentence("mobile run", mobile_runs(population)),
        notes,
        query: CAUSE_QUERY.to_owned(),
    }
}

/// Returns the long delays of a transport, with cause and device.
fn long_delays<'a>(
    population: &'a Population,
    transport: &'a str,
) -> impl Iterator<Item = (f64, &'a str, &'a str)> {
    population.mobile(transport).flat_map(|run| {
        DIRECTIONS.iter().filter_map(|direction| {
            let delay = (direction.delay)(run).filter(|delay| *delay >= MIN_CAUSED_DELAY_S)?;
            Some((delay, (direction.cause)(run)?, run.device.as_str()))
        })
    })
}

/// Returns the rules for causes.
fn rules_table() -> DataTable {
    let columns = ["cause", "meaning", "condition; the first that applies counts"];
    let mut table = DataTable::new("Rules", &columns);
    for rule in DelayCause::RULES {
        let texts = [rule.cause.name(), rule.meaning, rule.condition];
        table.rows.push(texts.map(|text| Cell::Text(text.to_owned())).to_vec());
    }
    table
}
