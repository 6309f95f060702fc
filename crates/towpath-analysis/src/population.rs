//! Runs that an analysis uses: selection by a filter, and what is left out.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_result::format;

use crate::facts::RunFacts;

/// Everything that is known about the runs of a campaign.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CampaignData {
    /// Name of the campaign; empty for results without one.
    pub campaign: String,
    /// Runs with a result.
    pub runs: Vec<RunFacts>,
    /// Planned runs without a result. Empty if nothing is known about them.
    pub absent: Vec<AbsentRun>,
}

/// Planned run without a result.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
pub struct AbsentRun {
    /// Name of the device.
    pub device: String,
    /// Round of the schedule, from 0.
    pub round: u32,
    /// Index of the run in its round, from 0.
    pub run: u32,
    /// Traffic pattern.
    pub pattern: String,
    /// Transport, such as `quic`.
    pub transport: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Port of the server.
    pub port: u32,
    /// Reason, such as `unreachable`.
    pub reason: String,
}

/// Conditions for the runs of an analysis. A condition that is `None` accepts all runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnalysisFilter {
    /// Name of the test server.
    pub server: Option<String>,
    /// Address family: `ipv4` or `ipv6`.
    pub family: Option<String>,
    /// Port of the server.
    pub port: Option<u32>,
    /// Lowest version of towpath on the device.
    pub min_version: Option<String>,
}

impl AnalysisFilter {
    fn accepts(&self, run: &RunFacts) -> bool {
        let is_equal = |expected: &Option<String>, value: &str| {
            expected.as_deref().is_none_or(|expected| expected == value)
        };
        is_equal(&self.server, &run.server)
            && is_equal(&self.family, &run.family)
            && self.port.is_none_or(|port| port == run.port)
            && self.min_version.as_deref().is_none_or(|min| version(&run.version) >= version(min))
    }

    /// Returns true for absent runs that can belong to the selection. They have no server and no
    /// version.
    fn accepts_absent(&self, run: &AbsentRun) -> bool {
        self.server.is_none()
            && self.min_version.is_none()
            && self.family.as_deref().is_none_or(|family| family == run.family)
            && self.port.is_none_or(|port| port == run.port)
    }

    /// Returns the conditions as parts of a sentence.
    fn texts(&self) -> Vec<String> {
        let mut texts = Vec::new();
        texts.extend(self.server.iter().map(|server| format!("server {server}")));
        texts.extend(self.family.iter().map(|family| format!("address family {family}")));
        texts.extend(self.port.iter().map(|port| format!("port {port}")));
        texts.extend(self.min_version.iter().map(|version| format!("version ≥ {version}")));
        texts
    }
}

/// Returns the numbers of a version, so that 0.10 comes after 0.9.
fn version(text: &str) -> Vec<u64> {
    let parts = text.split(['.', '-', '+']);
    parts.map_while(|part| part.parse().ok()).collect()
}

/// Runs of an analysis in a fixed order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Population {
    /// Runs with a result, invalid ones included.
    pub(crate) runs: Vec<RunFacts>,
    pub(crate) absent: Vec<AbsentRun>,
    filter: AnalysisFilter,
}

impl Population {
    pub(crate) fn new(data: CampaignData, filter: &AnalysisFilter) -> Self {
        let CampaignData { campaign: _, mut runs, mut absent } = data;
        runs.retain(|run| filter.accepts(run));
        absent.retain(|run| filter.accepts_absent(run));
        // The identifier decides between repetitions outside a campaign.
        runs.sort_by(|a, b| {
            let numbers = |run: &RunFacts| (run.round, run.planned_run);
            let by_place = a.device.cmp(&b.device).then_with(|| numbers(a).cmp(&numbers(b)));
            by_place.then_with(|| a.run.cmp(&b.run))
        });
        runs.dedup_by(|a, b| a.run == b.run);
        absent.sort();
        Self { runs, absent, filter: filter.clone() }
    }

    /// Returns the runs that may be compared.
    pub(crate) fn valid(&self) -> impl Iterator<Item = &RunFacts> + Clone {
        self.runs.iter().filter(|run| run.valid)
    }

    /// Returns the valid mobile runs of a transport.
    pub(crate) fn mobile(&self, transport: &str) -> impl Iterator<Item = &RunFacts> + Clone {
        self.valid().filter(move |run| run.mobile && run.transport == transport)
    }

    /// Returns the number of invalid runs by reason.
    pub(crate) fn invalid(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for reason in self.runs.iter().filter_map(|run| run.invalid_reason.as_deref()) {
            *reasons.entry(reason).or_default() += 1;
        }
        reasons
    }

    /// Returns the number of runs without a result by reason.
    pub(crate) fn missing(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for run in &self.absent {
            *reasons.entry(run.reason.as_str()).or_default() += 1;
        }
        reasons
    }

    /// Returns the sentence below a figure of valid runs: runs, devices and conditions, and the number
    /// of invalid runs.
    pub(crate) fn sentence<'a>(
        &self,
        noun: &str,
        runs: impl Iterator<Item = &'a RunFacts>,
    ) -> String {
        let selection = self.selection(noun, runs);
        let invalid: Vec<_> =
            self.invalid().iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        if invalid.is_empty() {
            return selection;
        }
        format!("{selection} Invalid runs are left out: {}.", invalid.join(", "))
    }

    /// Returns a sentence with runs, devices and conditions.
    pub(crate) fn selection<'a>(
        &self,
        noun: &str,
        runs: impl Iterator<Item = &'a RunFacts>,
    ) -> String {
        let (mut count, mut devices) = (0, BTreeSet::new());
        for run in runs {
            count += 1;
            devices.insert(run.device.as_str());
        }
        let devices = format::count(devices.len() as u64, "device");
        let mut parts = vec![format::count(count, noun), devices];
        parts.extend(self.filter.texts());
        format!("{}.", parts.join(", "))
    }
}

/// Returns kind and prefix of the networks of a run. The prefix of a private network (RFC 1918, RFC
/// 4193, RFC 6598) belongs to one device.
pub(crate) fn networks(run: &RunFacts) -> impl Iterator<Item = (&str, String)> {
    run.networks.split(", ").filter_map(|network| {
        let (kind, prefix) = network.split_once(' ')?;
        let owner = if is_private(prefix) { run.device.as_str() } else { "" };
        Some((kind, format!("{prefix} {owner}")))
    })
}

fn is_private(prefix: &str) -> bool {
    use std::net::IpAddr;
    let address = prefix.split('/').next().and_then(|address| address.parse().ok());
    match address {
        Some(IpAddr::V4(v4)) => {
            let is_shared = v4.octets().first() == Some(&100)
                && v4.octets().get(1).is_some_and(|octet| (64..128).contains(octet));
            v4.is_private() || v4.is_loopback() || is_shared
        }
        Some(IpAddr::V6(v6)) => v6.is_unique_local() || v6.is_loopback(),
        None => false,
    }
}
