//! Measurements of trials, and their processor time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};

use nix::sys::resource::{UsageWho, getrusage};

use crate::Failure;
use crate::trial::read_trimmed;

/// Returns the load averages of the last 1, 5 and 15 minutes.
pub(crate) fn load() -> String {
    read_trimmed("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Processor time in seconds.
pub(crate) struct Usage {
    /// Used by this program's ended children.
    children: f64,
    /// Used by all processes.
    busy: f64,
    /// Used and idle time of all processors.
    total: f64,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let children = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| {
            [usage.user_time(), usage.system_time()]
                .iter()
                .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
                .sum()
        });
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks: Vec<f64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        // user nice system IDLE IOWAIT irq softirq steal, in hundredths of a second
        let idle: f64 = ticks.iter().skip(3).take(2).sum();
        let total: f64 = ticks.iter().sum();
        Self { children, busy: (total - idle) / 100.0, total: total / 100.0 }
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            children: self.children - before.children,
            busy: self.busy - before.busy,
            total: self.total - before.total,
        }
    }
}

/// Measurements of one trial by name; notes are texts, not numbers.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    numbers: BTreeMap<String, f64>,
    notes: BTreeMap<String, String>,
}

impl Metrics {
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        match value.parse() {
            Ok(number) => drop(self.numbers.insert(name.to_owned(), number)),
            Err(_) => drop(self.notes.insert(name.to_owned(), value.to_owned())),
        }
    }

    /// Adds the trial's processor time, the load from other processes, and the lost packets.
    pub(crate) fn add_usage(&mut self, usage: &Usage) {
        let others_share = (usage.busy - usage.children) / usage.total.max(0.01);
        self.numbers.insert("others".to_owned(), others_share.clamp(0.0, 1.0) * 100.0);
        if let Some(bytes) = self.numbers.get("bytes").copied() {
            let cpu_per_gb = usage.children / (bytes / 1e9);
            self.numbers.insert("cpu_per_gb".to_owned(), cpu_per_gb);
            let emulator_cpu_per_gb =
                self.numbers.get("emulator_cpu").map(|cpu| cpu / (bytes / 1e9));
            self.numbers.extend(
                emulator_cpu_per_gb.map(|seconds| ("emulator_cpu_per_gb".to_owned(), seconds)),
            );
        }
        if let (Some(sent), Some(received)) =
            (self.numbers.get("sent"), self.numbers.get("received"))
        {
            let missing = sent - received;
            self.numbers.insert("missing".to_owned(), missing);
        }
    }
}

/// Trials of one case, in the order of the rounds.
#[derive(Debug, Default)]
pub(crate) struct Series {
    rounds: Vec<Option<Metrics>>,
}

impl Series {
    pub(crate) fn add(&mut self, metrics: Metrics) {
        self.rounds.push(Some(metrics));
    }

    /// Records a failed trial, so that rounds of different cases stay aligned.
    pub(crate) fn fail(&mut self, error: &Failure) {
        let _ = writeln!(io::stderr(), "  failed: {error}"); // stderr may be closed
        self.rounds.push(None);
    }

    /// Returns the number of trials with measurements, and of all trials.
    pub(crate) fn trial_counts(&self) -> (usize, usize) {
        (self.rounds.iter().flatten().count(), self.rounds.len())
    }

    /// Returns the spread of a metric over the rounds that have it.
    pub(crate) fn spread(&self, name: &str) -> Option<Spread> {
        Spread::from_values(
            self.rounds.iter().flatten().filter_map(|metrics| metrics.numbers.get(name)),
        )
    }

    /// Returns the metric relative to the same metric of `base`, round by round.
    pub(crate) fn ratio(&self, base: &Self, name: &str) -> Option<Spread> {
        let number = |metrics: &Option<Metrics>| Some(*metrics.as_ref()?.numbers.get(name)?);
        let pairs = self.rounds.iter().zip(&base.rounds);
        let ratios: Vec<f64> =
            pairs.filter_map(|(round, base)| Some(number(round)? / number(base)?)).collect();
        Spread::from_values(&ratios)
    }

    /// Returns the first trial's note with this name, such as the emulator's priority.
    pub(crate) fn note(&self, name: &str) -> Option<&str> {
        self.rounds.iter().flatten().find_map(|metrics| metrics.notes.get(name)).map(String::as_str)
    }
}

/// Median, minimum and maximum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn from_values<'a>(values: impl IntoIterator<Item = &'a f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().copied().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(*values.get(middle.checked_sub(1)?)?, *values.get(middle)?)
        } else {
            *values.get(middle)?
        };
        Some(Self { median, min: *values.first()?, max: *values.last()? })
    }
}
