//! Row of the catalogue: what a list shows of a run, taken from its first and last record.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use towpath_result::expect::{Metric, MetricInputs};
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::upload::hex;
use towpath_result::{MultipathUse, Summary};
use utoipa::ToSchema;

/// Number of hexadecimal digits of a content hash that identify a run.
pub(crate) const ID_DIGITS: usize = 20;
/// Maximum length of a text in the catalogue, in characters.
const MAX_TEXT_CHARS: usize = 120;
/// Maximum length of a verdict in the catalogue, in characters.
const MAX_VERDICT_CHARS: usize = 400;

/// Values by which pages filter and count. Runs that agree in all of them form a group.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
pub(crate) struct RunGroup {
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// World of the run, such as `sim` or `emu`.
    pub(crate) world: String,
    /// Transport, such as `tcp` or `mptcp`.
    pub(crate) transport: String,
    /// Host that made the run, as its uploader says; empty if unknown.
    pub(crate) host: String,
    /// Server of a measurement; empty for other runs.
    pub(crate) server: String,
    /// `ipv4`, `ipv6`, `both`, or empty without a connection.
    pub(crate) family: String,
    /// Version of towpath that made the run.
    pub(crate) version: String,
    /// `ok`, `failed`, or `incomplete` without a summary.
    pub(crate) outcome: String,
}

impl RunGroup {
    /// Returns the identifier of the group, which its values determine.
    pub(crate) fn id(&self) -> String {
        let Self { scenario, world, transport, host, server, family, version, outcome } = self;
        let mut hasher = Sha256::new();
        for value in [scenario, world, transport, host, server, family, version, outcome] {
            hasher.update((value.len() as u64).to_be_bytes());
            hasher.update(value.as_bytes());
        }
        hex(&hasher.finalize()).chars().take(16).collect()
    }
}

/// Row of the catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub(crate) struct RunEntry {
    /// Identifier: the first 20 digits of the content hash.
    pub(crate) id: String,
    /// SHA-256 of the uncompressed result, in 64 hexadecimal digits.
    pub(crate) content_hash: String,
    #[serde(flatten)]
    pub(crate) group: RunGroup,
    /// Time of the upload.
    pub(crate) received_us: i64,
    /// Start of the run; the time of its upload if neither the result nor the client said it.
    pub(crate) started_us: i64,
    /// Name of the run, such as `two-links-emu-mptcp-1`.
    pub(crate) name: String,
    /// Implementation of the transport, such as `kernel`.
    pub(crate) stack: String,
    /// Name of the congestion control.
    pub(crate) congestion_control: String,
    /// Traffic patterns of the flows, separated by commas.
    pub(crate) patterns: String,
    /// Version of the kernel; empty if it took no part.
    pub(crate) kernel: String,
    /// Seed in decimal digits: no database has unsigned integers of 64 bits.
    pub(crate) seed: String,
    /// Number of the repetition, from 1.
    pub(crate) repetition: i64,
    /// Beginning of the hash of the scenario's text: equal for repetitions.
    pub(crate) scenario_hash: String,
    /// Result in one sentence; empty without a summary.
    pub(crate) verdict: String,
    /// `used`, `fallback`, or `not requested`.
    pub(crate) multipath: String,
    /// Planned duration.
    pub(crate) duration_us: i64,
    /// Goodput of all flows, in bits per second.
    pub(crate) goodput_bps: Option<f64>,
    /// Median of the delay.
    pub(crate) delay_p50_us: Option<f64>,
    /// Delay that 99 % of the data did not exceed.
    pub(crate) delay_p99_us: Option<f64>,
    /// Longest time without any data.
    pub(crate) stall_us: Option<f64>,
    /// Longest time from a failure until data arrived.
    pub(crate) recovery_us: Option<f64>,
    /// Time to connect.
    pub(crate) connect_us: Option<f64>,
    /// Number of retransmissions.
    pub(crate) retransmissions: i64,
    /// Number of warnings.
    pub(crate) warnings: i64,
    /// Number of records.
    pub(crate) records: i64,
    /// Bytes of the compressed result.
    pub(crate) stored_bytes: i64,
    /// Bytes of the uncompressed result.
    pub(crate) expanded_bytes: i64,
}

/// Facts about an upload that the result does not contain.
#[derive(Debug, Clone)]
pub(crate) struct UploadFacts {
    pub(crate) content_hash: String,
    pub(crate) host: String,
    pub(crate) received_us: i64,
    pub(crate) started_us: i64,
    pub(crate) stored_bytes: u64,
    pub(crate) expanded_bytes: u64,
}

impl RunEntry {
    pub(crate) fn of(run: &StoredRun, facts: UploadFacts) -> Self {
        let (meta, summary) = (&run.meta, run.summary.as_ref());
        let value = |name: &str| {
            let value = Metric::parse(name)?.value(&MetricInputs::from(summary?))?;
            value.is_finite().then_some(value)
        };
        let micros = |name: &str| value(name).map(|seconds| seconds * 1e6);
        let patterns: BTreeSet<&str> =
            meta.flows.iter().map(|flow| flow.pattern.as_str()).collect();
        let group = RunGroup {
            scenario: short(&meta.scenario),
            world: meta.world.to_string(),
            transport: meta.transport.to_string(),
            host: short(&facts.host),
            server: meta.conditions.get("server").map(|server| short(server)).unwrap_or_default(),
            family: family(summary),
            version: short(&meta.towpath),
            outcome: outcome(run).to_owned(),
        };
        let patterns: Vec<&str> = patterns.into_iter().collect();
        Self {
            id: facts.content_hash.chars().take(ID_DIGITS).collect(),
            content_hash: facts.content_hash,
            group,
            received_us: facts.received_us,
            started_us: facts.started_us,
            name: short(&meta.run),
            stack: short(&meta.stack),
            congestion_control: short(&meta.congestion_control),
            patterns: short(&patterns.join(", ")),
            kernel: short(&meta.kernel),
            seed: meta.seed.to_string(),
            repetition: meta.repeat.into(),
            scenario_hash: hex(&Sha256::digest(meta.scenario_toml.as_bytes()))
                .chars()
                .take(16)
                .collect(),
            verdict: summary
                .map(|s| cut(&clean(&s.verdict), MAX_VERDICT_CHARS))
                .unwrap_or_default(),
            multipath: summary.map_or("", |s| multipath(&s.multipath)).to_owned(),
            duration_us: signed(meta.duration_ns / 1_000),
            goodput_bps: value("goodput"),
            delay_p50_us: micros("delay.p50"),
            delay_p99_us: micros("delay.p99"),
            stall_us: micros("stall.longest"),
            recovery_us: micros("recovery"),
            connect_us: micros("connect"),
            retransmissions: signed(value("retransmissions").unwrap_or(0.0) as u64),
            warnings: summary.map_or(0, |s| signed(s.warnings.len() as u64)),
            records: signed(run.records.len() as u64),
            stored_bytes: signed(facts.stored_bytes),
            expanded_bytes: signed(facts.expanded_bytes),
        }
    }
}

/// Makes a text from outside fit for a list: one line, no control characters, of limited length.
pub(crate) fn short(text: &str) -> String {
    cut(&clean(text), MAX_TEXT_CHARS)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn outcome(run: &StoredRun) -> &'static str {
    match &run.summary {
        Some(_) if run.truncated => "incomplete",
        Some(summary) if summary.ok => "ok",
        Some(_) => "failed",
        None => "incomplete",
    }
}

fn multipath(multipath: &MultipathUse) -> &'static str {
    match (multipath.requested, multipath.used) {
        (true, true) => "used",
        (true, false) => "fallback",
        (false, _) => "not requested",
    }
}

/// Returns the address families of the subflows.
fn family(summary: Option<&Summary>) -> String {
    let addresses = summary.iter().flat_map(|summary| &summary.subflows).map(|s| &s.local);
    let is_ipv6 = |address: &String| address.starts_with('[') || address.matches(':').count() > 1;
    let families: BTreeSet<bool> =
        addresses.filter(|address| !address.is_empty()).map(is_ipv6).collect();
    match families.into_iter().collect::<Vec<_>>()[..] {
        [] => "",
        [false] => "ipv4",
        [true] => "ipv6",
        _ => "both",
    }
    .to_owned()
}
