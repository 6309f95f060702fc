//! Facts of one run that figures and tables need: one flat row for each run.
//!
//! All facts follow from the records of the result and the name of its device. So a collector can
//! store them once, and a folder of results gives the same rows.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_result::metrics::handover::{Handover, SwitchReason, from_start_ns};
use towpath_result::prefix::shorten_all;
use towpath_result::store::StoredRun;
use towpath_result::{FlowSummary, Meta, Record, Summary};
use towpath_scenario::{DataDirection, Transport};

use crate::cause::{DelayedMessage, longest_delay};

/// Version of the facts. Stored facts of another version are computed again.
pub const FACTS_VERSION: i64 = 1;
/// Reason of a handover that follows the loss of the first network, if no other one is known.
pub(crate) const NETWORK_LOST: &str = "network-lost";
/// Shortest time until the loss of the first network in a valid run.
const MIN_MOBILE_NS: u64 = 1_000_000_000;
/// Longest time that a run can plausibly give, in seconds. Others are left out.
const MAX_TIME_S: f64 = 1e7;
/// Maximum length of a text from a result, in characters.
const MAX_TEXT_CHARS: usize = 120;

/// Facts of one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunFacts {
    /// Identifier: the first 20 digits of the content hash.
    pub run: String,
    /// Name of the device.
    pub device: String,
    /// Name of the campaign; empty if the run belongs to none.
    pub campaign: String,
    /// Round of the schedule, from 0. Without a campaign, the number of the repetition.
    pub round: u32,
    /// Index of the run in its round, from 0.
    pub planned_run: u32,
    /// True if the device was moving, and ended the run when it had lost its first network.
    pub mobile: bool,
    /// Traffic pattern, such as `bulk`.
    pub pattern: String,
    /// Further keys of the pattern, as in the scenario.
    pub pattern_keys: String,
    /// Transport, such as `mptcp`.
    pub transport: String,
    /// `ipv4`, `ipv6`, or empty if unknown.
    pub family: String,
    /// Port of the server; 0 if unknown.
    pub port: u32,
    /// Name of the test server.
    pub server: String,
    /// Version of towpath on the device.
    pub version: String,
    /// Start of the run in microseconds since 1970.
    pub started_us: Option<u64>,
    /// True if the run may be compared with others.
    pub valid: bool,
    /// Reason why it may not, such as `network-change`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid_reason: Option<String>,
    /// True if every flow ended as planned.
    pub completed: bool,
    /// True if the multipath transport was used to the end; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multipath_used: Option<bool>,
    /// Networks that carried the transport, such as `wifi 192.0.2.0/24`, separated by commas.
    pub networks: String,
    /// Value by which runs of this pattern are compared, in seconds; smaller is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison_s: Option<f64>,
    /// Longest delay of the requests of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_delay_up_s: Option<f64>,
    /// Longest delay of the requests of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_delay_down_s: Option<f64>,
    /// Cause of the longest delay of the requests of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause_up: Option<String>,
    /// Cause of the longest delay of the requests of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause_down: Option<String>,
    /// Time at which the first network was lost, since the start of the traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_lost_s: Option<f64>,
    /// Use of the second network: `unused`, `from-start`, `occasional` (later, while the first one was
    /// not lost), or `handover`. Absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_network: Option<String>,
    /// First use of the second network in a handover, since the start of the traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_start_s: Option<f64>,
    /// Time from then until the last packet from the first network; negative if it had stopped
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_received_s: Option<f64>,
    /// Time from then until the last packet sent on the first network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_sent_s: Option<f64>,
    /// Reason of the handover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover_reason: Option<String>,
    /// Datagrams on the first network, and those without a reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_datagrams: Option<u64>,
    /// Datagrams on the first network that got no reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_lost_datagrams: Option<u64>,
}

impl RunFacts {
    /// Computes the facts of a run. `id` is the beginning of its content hash.
    pub fn of(run: &StoredRun, id: &str, device: &str) -> Self {
        let (meta, summary) = (&run.meta, run.summary.as_ref());
        let condition = |name: &str| short(meta.conditions.get(name).map_or("", String::as_str));
        let (round, planned_run) = planned_run(meta);
        let mut facts = Self {
            run: id.to_owned(),
            device: device.to_owned(),
            campaign: condition("campaign"),
            round,
            planned_run,
            mobile: is_mobile(run),
            pattern: short(meta.flows.first().map_or("", |flow| &flow.pattern)),
            pattern_keys: pattern_keys(&meta.scenario_toml),
            transport: meta.transport.to_string(),
            family: family(meta, summary),
            port: port(meta, summary),
            server: condition("server"),
            version: short(&meta.towpath),
            started_us: meta.started_us,
            networks: networks(meta, summary),
            ..Self::default()
        };
        facts.invalid_reason = invalid_reason(run);
        facts.valid = facts.invalid_reason.is_none();
        if let Some(summary) = summary {
            facts.completed = summary.flows.iter().all(|flow| flow.completed);
            facts.multipath_used = summary.multipath.requested.then_some(summary.multipath.used);
            facts.comparison_s = comparison(&facts.pattern, summary);
        }
        facts.add_delays(run);
        facts.add_networks(run);
        facts
    }

    fn add_delays(&mut self, run: &StoredRun) {
        let delay = |direction| longest_delay(run, direction);
        let parts = |delay: &Option<DelayedMessage>| {
            let seconds = delay.as_ref().map(|delay| seconds(delay.delay_ns()));
            (seconds, delay.as_ref().map(|delay| delay.cause.name().to_owned()))
        };
        (self.max_delay_up_s, self.cause_up) = parts(&delay(DataDirection::Up));
        (self.max_delay_down_s, self.cause_down) = parts(&delay(DataDirection::Down));
    }

    fn add_networks(&mut self, run: &StoredRun) {
        let meta = &run.meta;
        self.network_lost_s = network_lost_ns(run).map(seconds);
        let first = meta.flows.first().map_or("", |flow| &flow.via);
        let probes = run.summary.iter().flat_map(|summary| &summary.paths);
        if let Some(stats) = probes.into_iter().find(|stats| stats.path == first) {
            self.first_datagrams = Some(stats.count);
            self.first_lost_datagrams = Some(stats.lost());
        }
        let lost_ns = network_lost_ns(run);
        let Some(handover) = Handover::after_setup(meta, &run.records, lost_ns) else { return };
        let uses_all = meta.conditions.get("path policy").is_some_and(|name| name == "aggregate");
        let (kind, times) = match handover {
            Handover::Unused if uses_all && meta.transport == Transport::Mpquic => {
                (SecondNetwork::FromStart, None)
            }
            Handover::Unused => (SecondNetwork::Unused, None),
            Handover::Used(times) if times.start_ns <= from_start_ns(meta) => {
                (SecondNetwork::FromStart, None)
            }
            Handover::Used(_) if lost_ns.is_none() => (SecondNetwork::Occasional, None),
            Handover::Used(times) => (SecondNetwork::Handover, Some(times)),
        };
        self.second_network = Some(kind.name().to_owned());
        let Some(times) = times else { return };
        let since_start = |end: Option<u64>| seconds(end.unwrap_or(0)) - seconds(times.start_ns);
        self.handover_start_s = Some(seconds(times.start_ns));
        self.handover_received_s = Some(since_start(times.last_received_ns));
        self.handover_sent_s = Some(since_start(times.last_sent_ns));
        let reason = times.stated_reason.or(times.inferred_reason).unwrap_or(SwitchReason::Other);
        let is_lost = lost_ns.is_some_and(|lost_ns| lost_ns <= times.start_ns);
        let is_known = reason != SwitchReason::Other;
        let reason = if is_lost && !is_known { NETWORK_LOST } else { reason.name() };
        self.handover_reason = Some(reason.to_owned());
    }

    /// Returns the longest delay of both directions.
    pub fn max_delay_s(&self) -> Option<f64> {
        let delays = [self.max_delay_up_s, self.max_delay_down_s].into_iter().flatten();
        delays.reduce(f64::max)
    }
}

/// Use of the second network in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecondNetwork {
    Unused,
    FromStart,
    Occasional,
    Handover,
}

impl SecondNetwork {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::FromStart => "from-start",
            Self::Occasional => "occasional",
            Self::Handover => "handover",
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn short(text: &str) -> String {
    use towpath_result::format::text::{clean, cut};
    cut(&clean(text), MAX_TEXT_CHARS)
}

/// Returns round and index from the condition `campaign run`, such as `3/0`.
fn planned_run(meta: &Meta) -> (u32, u32) {
    let text = meta.conditions.get("campaign run").map_or("", String::as_str);
    let numbers = text.split_once('/');
    let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.unwrap_or((meta.repeat.saturating_sub(1), 0))
}

fn is_mobile(run: &StoredRun) -> bool {
    let says_so = run.meta.conditions.get("mode").is_some_and(|mode| mode == "mobile");
    says_so || network_lost_ns(run).is_some()
}

fn network_lost_ns(run: &StoredRun) -> Option<u64> {
    run.records.iter().find_map(|record| {
        let Record::Event(event) = record else { return None };
        event.network_loss().map(|_| event.t_ns)
    })
}

/// Returns the reason for an invalid run; `None` if it is valid.
fn invalid_reason(run: &StoredRun) -> Option<String> {
    let Some(summary) = run.summary.as_ref().filter(|_| !run.truncated) else {
        return Some("incomplete".to_owned());
    };
    if summary.invalid_reason().is_some() {
        return Some("network-change".to_owned());
    }
    // Such a run has begun in the middle of a change, and ends before its connections are set up.
    if network_lost_ns(run).is_some_and(|lost_ns| lost_ns < MIN_MOBILE_NS) {
        return Some("lost-at-start".to_owned());
    }
    // The owner of a moving device may end a run at any time.
    (summary.is_interrupted() && !is_mobile(run)).then(|| "interrupted".to_owned())
}

/// Returns the keys of the first flow except its hosts and its pattern, separated by commas.
fn pattern_keys(scenario: &str) -> String {
    let lines = scenario.lines().skip_while(|line| line.trim() != "[[flows]]").skip(1);
    let lines = lines.take_while(|line| !line.trim_start().starts_with('['));
    let is_further = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        !key.is_empty() && !matches!(key, "from" | "to" | "pattern")
    };
    short(&lines.filter(is_further).map(str::trim).collect::<Vec<_>>().join(", "))
}

/// Returns addresses of both ends of the subflows, `local` first.
fn addresses(summary: Option<&Summary>) -> impl Iterator<Item = (&str, &str)> {
    let subflows = summary.into_iter().flat_map(|summary| &summary.subflows);
    subflows.map(|subflow| (subflow.local.as_str(), subflow.remote.as_str()))
}

fn family(meta: &Meta, summary: Option<&Summary>) -> String {
    if let Some(family) = meta.conditions.get("address family") {
        return short(family);
    }
    let first = addresses(summary).map(|(local, _)| local).find(|local| !local.is_empty());
    first.map_or("", |local| if local.starts_with('[') { "ipv6" } else { "ipv4" }).to_owned()
}

fn port(meta: &Meta, summary: Option<&Summary>) -> u32 {
    let number = |text: &str| text.parse::<u16>().ok().map(u32::from);
    let named = meta.conditions.get("port").and_then(|port| number(port));
    let of_address = |address: &str| address.rsplit(':').next().and_then(number);
    named.or_else(|| addresses(summary).find_map(|(_, remote)| of_address(remote))).unwrap_or(0)
}

/// Returns kind and prefix of each network that a subflow used, in alphabetical order.
fn networks(meta: &Meta, summary: Option<&Summary>) -> String {
    let subflows = summary.into_iter().flat_map(|summary| &summary.subflows);
    let used = subflows.filter(|subflow| subflow.bytes > 0 && !subflow.local.is_empty());
    let networks: BTreeSet<String> = used
        .map(|subflow| {
            let kind = meta.conditions.get(&format!("network of {}", subflow.path));
            let address = shorten_all(&subflow.local).into_owned();
            let address = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
            let address = address.trim_matches(['[', ']']);
            let length = if address.contains(':') { 48 } else { 24 };
            format!("{} {address}/{length}", kind.map_or("unknown", String::as_str))
        })
        .collect();
    short(&networks.into_iter().collect::<Vec<_>>().join(", "))
}

/// Returns the value by which runs of a pattern are compared: the median delay of a ping, the time
/// of a transfer, the time for a megabyte at a timed transfer, the longest delay of messages.
fn comparison(pattern: &str, summary: &Summary) -> Option<f64> {
    let flows = || summary.flows.iter().filter(|flow| flow.flow == 0);
    let messages = |value: fn(&FlowSummary) -> Option<u64>| flows().filter_map(value).max();
    let value = match pattern {
        "ping" => seconds(messages(|flow| {
            flow.messages.as_ref().filter(|m| m.count > 0).map(|m| m.delay.p50_ns)
        })?),
        "bulk" => seconds(flows().filter(|flow| flow.bytes > 0).map(|f| f.duration_ns).max()?),
        "iperf" => 8e6 / flows().map(|flow| flow.goodput_bps).sum::<f64>(),
        _ => seconds(messages(|flow| {
            flow.messages.as_ref().filter(|m| m.count > 0).map(|m| m.delay.max_ns)
        })?),
    };
    (value > 0.0 && value <= MAX_TIME_S).then_some(value)
}

#[cfg(test)]
mod tests;
