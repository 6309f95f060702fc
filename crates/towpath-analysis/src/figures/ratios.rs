//! Ratios of paired runs: the same device, round and pattern.

use std::collections::{BTreeMap, BTreeSet};

use towpath_result::metrics::clusters::ClusteredSample;

use super::{AnalysisFigure, Distribution, Distributions, SOURCE, transport_name};
use crate::facts::RunFacts;
use crate::population::Population;
use crate::settings::AnalysisSettings;

const FAMILY_QUERY: &str = "\
SELECT a.pattern, a.pattern_keys, a.transport, a.comparison_s / b.comparison_s AS ratio
FROM 'runs.parquet' a JOIN 'runs.parquet' b
  USING (device, round, pattern, pattern_keys, transport, port)
WHERE a.family = 'ipv4' AND b.family = 'ipv6' AND a.valid AND b.valid
  AND a.completed AND b.completed AND NOT a.mobile AND NOT b.mobile
ORDER BY ALL";
const TRANSPORT_QUERY: &str = "\
SELECT a.pattern, a.pattern_keys, a.transport, a.comparison_s / b.comparison_s AS ratio
FROM 'runs.parquet' a JOIN 'runs.parquet' b
  USING (device, round, pattern, pattern_keys, family, port)
WHERE (a.transport, b.transport) IN (('quic', 'tcp'), ('mpquic', 'mptcp'))
  AND a.valid AND b.valid AND a.completed AND b.completed AND NOT a.mobile AND NOT b.mobile
ORDER BY ALL";
const METRIC_NOTE: &str = "Compared are, in seconds: the median delay (`ping`), the completion time \
    (`bulk`), the time for a megabyte (`iperf`), and the longest delay (`interactive` and others).";

/// Value of the first run divided by that of the second, with the device.
type Ratios<'a> = BTreeMap<(String, usize), Vec<(f64, &'a str)>>;

/// Runs of one kind by the attributes that a pair has in common.
struct Pairing<'a> {
    runs: BTreeMap<Vec<String>, &'a RunFacts>,
}

impl<'a> Pairing<'a> {
    /// Collects runs that have a value. Of repetitions, the first one counts.
    fn new(
        runs: impl Iterator<Item = &'a RunFacts>,
        key: impl Fn(&RunFacts) -> Vec<String>,
    ) -> Self {
        let mut map = BTreeMap::new();
        for run in runs.filter(|run| run.completed && run.comparison_s.is_some()) {
            map.entry(key(run)).or_insert(run);
        }
        Self { runs: map }
    }

    /// Returns the pairs of this kind and another one.
    fn pairs(&self, other: &Self) -> impl Iterator<Item = (&'a RunFacts, f64)> {
        self.runs.iter().filter_map(move |(key, run)| {
            let ratio = run.comparison_s? / other.runs.get(key)?.comparison_s?;
            Some((*run, ratio))
        })
    }
}

pub(super) fn families(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let key = |run: &RunFacts| {
        let numbers = [run.round, run.port].map(|number| number.to_string());
        let texts = [&run.device, &run.pattern, &run.pattern_keys, &run.transport];
        texts.into_iter().cloned().chain(numbers).collect()
    };
    let stable = || population.valid().filter(|run| !run.mobile);
    let [v4, v6] = ["ipv4", "ipv6"]
        .map(|family| Pairing::new(stable().filter(move |run| run.family == family), key));
    let (transports, names) = (["tcp", "mptcp", "quic", "mpquic"], PanelNames::new(stable()));
    let mut ratios = Ratios::new();
    for (run, ratio) in v4.pairs(&v6) {
        let style = transports.iter().position(|name| *name == run.transport).unwrap_or(4);
        ratios.entry((names.name(run), style)).or_default().push((ratio, &run.device));
    }
    let title = "Time over IPv4 divided by that over IPv6";
    let name = |style: usize| transport_name(transports.get(style).unwrap_or(&"other")).to_owned();
    let drawn = distributions(title, ratios, name).draw(settings);
    AnalysisFigure {
        id: "family-ratio",
        title: title.to_owned(),
        comparable: format!(
            "Corresponds to figure 4 of {SOURCE}: QUIC, `bulk` of 10 MB, American server. There, \
             75 % of the ratios are above 1."
        ),
        figure: drawn.figure,
        tables: vec![drawn.table],
        sentence: population.sentence("stable run", stable()),
        notes: drawn.notes.into_iter().chain([METRIC_NOTE.to_owned()]).collect(),
        query: FAMILY_QUERY.to_owned(),
    }
}

pub(super) fn transports(population: &Population, settings: AnalysisSettings) -> AnalysisFigure {
    let key = |run: &RunFacts| {
        let numbers = [run.round, run.port].map(|number| number.to_string());
        let texts = [&run.device, &run.pattern, &run.pattern_keys, &run.family];
        texts.into_iter().cloned().chain(numbers).collect()
    };
    let stable = || population.valid().filter(|run| !run.mobile);
    let of = |transport: &'static str| {
        Pairing::new(stable().filter(move |run| run.transport == transport), key)
    };
    let (panels, mut ratios) = (PanelNames::new(stable()), Ratios::new());
    for (style, [first, second]) in [["quic", "tcp"], ["mpquic", "mptcp"]].into_iter().enumerate() {
        for (run, ratio) in of(first).pairs(&of(second)) {
            ratios.entry((panels.name(run), style)).or_default().push((ratio, &run.device));
        }
    }
    let title = "Time with QUIC divided by that with TCP";
    let names = ["QUIC / TCP", "Multipath QUIC / Multipath TCP"];
    let name = |style: usize| (*names.get(style).unwrap_or(&"other")).to_owned();
    let drawn = distributions(title, ratios, name).draw(settings);
    AnalysisFigure {
        id: "transport-ratio",
        title: title.to_owned(),
        comparable: format!(
            "Corresponds to section III of {SOURCE}, which describes the comparison in the text."
        ),
        figure: drawn.figure,
        tables: vec![drawn.table],
        sentence: population.sentence("stable run", stable()),
        notes: drawn.notes.into_iter().chain([METRIC_NOTE.to_owned()]).collect(),
        query: TRANSPORT_QUERY.to_owned(),
    }
}

/// Names of panels. A pattern has its keys if the campaign has it several times.
struct PanelNames<'a> {
    keys: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> PanelNames<'a> {
    fn new(runs: impl Iterator<Item = &'a RunFacts>) -> Self {
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for run in runs {
            keys.entry(&run.pattern).or_default().insert(&run.pattern_keys);
        }
        Self { keys }
    }

    fn name(&self, run: &RunFacts) -> String {
        match self.keys.get(run.pattern.as_str()) {
            Some(keys) if keys.len() > 1 => format!("{} ({})", run.pattern, run.pattern_keys),
            Some(_) | None => run.pattern.clone(),
        }
    }
}

fn distributions<'a>(
    title: &'a str,
    ratios: Ratios<'_>,
    name: impl Fn(usize) -> String,
) -> Distributions<'a> {
    let distributions = ratios.into_iter().map(|((panel, style), values)| Distribution {
        panel,
        name: name(style),
        style,
        sample: ClusteredSample::of(values),
    });
    Distributions {
        title,
        label: "ratio",
        may_be_log: true,
        noun: "pair",
        threshold: Some((1.0, "below 1")),
        curves: distributions.collect(),
    }
}
