//! Limits of a server on clients and their tests.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Rate;
use towpath_result::format;
use towpath_scenario::flow_plan::planned_datagrams;
use towpath_scenario::flow_plan::{directions, streams};
use towpath_scenario::{Pattern, Scenario, Udp, no_files};

use super::HOSTS;
use super::message::{ServerMessage, TestPlan};

/// Maximum block size; larger ones gain nothing, and each stream's thread holds one.
const MAX_BLOCK_BYTES: u32 = 4 << 20;
/// Maximum socket buffer size.
const MAX_WINDOW_BYTES: u32 = 256 << 20;
/// Maximum number of flows in a test.
const MAX_FLOWS: usize = 16;

/// Limits of a server on clients and their tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum number of concurrent tests.
    pub tests: usize,
    /// Maximum duration of a test, including the wait for late replies.
    pub duration: Duration,
    /// Maximum bytes of a test, both directions together; `None` means unlimited.
    pub bytes: Option<u64>,
    /// Maximum rate of a client in each direction, over all its traffic; `None` means unlimited.
    pub rate: Option<Rate>,
    /// Maximum number of connections in a test.
    pub streams: u32,
    /// Maximum number of connections without a complete preamble, over all clients.
    pub max_pending: usize,
    /// Maximum time for a connection to complete its preamble.
    pub preamble_timeout: Duration,
    /// Time for which a result is retained for its client.
    pub result_retention: Duration,
    /// Maximum memory for all tests in bytes: their setup, the logs of their traffic, and results
    /// that have not been fetched.
    pub memory: u64,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            tests: 16,
            duration: Duration::from_secs(3_600),
            bytes: None,
            rate: None,
            streams: 256,
            max_pending: 256,
            preamble_timeout: Duration::from_secs(5),
            result_retention: Duration::from_secs(600),
            memory: 160 << 20,
        }
    }
}

/// Reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionError {
    /// Reason, as sent to the client.
    pub reason: String,
    /// Suggested fix, if there is one.
    pub hint: Option<String>,
    /// Estimated time until the same request can succeed, in seconds; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl AdmissionError {
    /// Creates a refusal with a suggested fix.
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: Some(hint.into()), retry_after_s: None }
    }

    /// Creates a refusal of a request that may succeed after a time, rounded up to seconds.
    pub fn busy(reason: impl Into<String>, retry_after: Duration) -> Self {
        let seconds = retry_after.as_millis().div_ceil(1_000).clamp(1, u32::MAX.into());
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        let hint = format!("try again in {seconds} s");
        Self { retry_after_s: Some(seconds), ..Self::new(reason, hint) }
    }

    fn without_hint(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: None, retry_after_s: None }
    }
}

impl From<AdmissionError> for ServerMessage {
    fn from(AdmissionError { reason, hint, retry_after_s }: AdmissionError) -> Self {
        Self::Refused { reason, hint, retry_after_s }
    }
}

impl ServerLimits {
    /// Parses a plan and checks it against the limits.
    pub fn admit(&self, plan: &TestPlan) -> Result<Scenario, AdmissionError> {
        let scenario = Scenario::parse("the plan", &plan.scenario, &no_files)
            .map_err(|errors| AdmissionError::without_hint(errors.to_string()))?;
        let names: Vec<_> = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
        let is_client_to_server = |flow: &towpath_scenario::Flow| (flow.from, flow.to) == (0, 1);
        let is_flow_count_valid = !scenario.flows.is_empty() && scenario.flows.len() <= MAX_FLOWS;
        if names != HOSTS || !is_flow_count_valid || !scenario.flows.iter().all(is_client_to_server)
        {
            let reason = "a plan needs one to sixteen flows from `client` to `server`";
            return Err(AdmissionError::without_hint(reason));
        }
        if scenario.flows.iter().any(|flow| matches!(flow.pattern, Pattern::Run { .. })) {
            let hint = "measure with one of the patterns";
            return Err(AdmissionError::new("a server does not run commands of clients", hint));
        }
        self.check_amounts(&scenario)?;
        check_settings(plan)?;
        Ok(scenario)
    }

    fn check_amounts(&self, scenario: &Scenario) -> Result<(), AdmissionError> {
        let connections: u32 = scenario.flows.iter().map(|flow| streams(&flow.pattern)).sum();
        if connections > self.streams {
            let reason =
                format!("{connections} connections, but this server allows {}", self.streams);
            return Err(AdmissionError::new(reason, "use fewer streams (-P)"));
        }
        let test_duration = max_duration(scenario);
        if test_duration > self.duration {
            let (requested, allowed) =
                (format::seconds(test_duration), format::seconds(self.duration));
            let reason = format!("a test of {requested}, but this server allows {allowed}");
            return Err(AdmissionError::new(
                reason,
                "use a shorter -t, or start the server with a larger --max-duration",
            ));
        }
        let total_bytes = scenario.flows.iter().filter_map(|flow| match flow.pattern {
            Pattern::Bulk { size_bytes, .. } => size_bytes,
            Pattern::Iperf { .. }
            | Pattern::Exchange(_)
            | Pattern::Video(_)
            | Pattern::Web(_)
            | Pattern::Udping(_)
            | Pattern::Udp(_)
            | Pattern::Run { .. } => None,
        });
        let total_bytes = total_bytes.fold(0_u64, u64::saturating_add);
        let udp_flows = scenario
            .flows
            .iter()
            .filter_map(|flow| Some((flow.pattern.udp()?, directions(&flow.pattern).len() as u64)));
        let payload = |(udp, direction_count): (&Udp, u64)| {
            planned_datagrams(udp).saturating_mul(udp.bytes.into()).saturating_mul(direction_count)
        };
        let total_bytes = udp_flows.clone().map(payload).fold(total_bytes, u64::saturating_add);
        let udp_bps = udp_flows.map(|(udp, _)| udp.rate_bps).fold(0, u64::saturating_add);
        if let Some(allowed) = self.rate.filter(|allowed| udp_bps > allowed.as_bps()) {
            let (requested, allowed) =
                (format::rate(udp_bps as f64), format::rate(allowed.as_bps() as f64));
            let reason = format!("datagrams at {requested}, but this server allows {allowed}");
            let hint = "use a smaller -b, or start the server with a larger --max-rate";
            return Err(AdmissionError::new(reason, hint));
        }
        if let Some(allowed) = self.bytes.filter(|allowed| total_bytes > *allowed) {
            let (requested, allowed) = (format::bytes(total_bytes), format::bytes(allowed));
            let reason = format!("a transfer of {requested}, but this server allows {allowed}");
            let hint = "use a smaller -n, or start the server with a larger --max-bytes";
            return Err(AdmissionError::new(reason, hint));
        }
        Ok(())
    }
}

fn check_settings(plan: &TestPlan) -> Result<(), AdmissionError> {
    let settings = &plan.settings;
    if settings.block_bytes.is_some_and(|bytes| bytes == 0 || bytes > MAX_BLOCK_BYTES) {
        let reason = "bytes written at once must be 1 to 4 MiB";
        return Err(AdmissionError::new(reason, "use another -l"));
    }
    if settings.window_bytes.is_some_and(|bytes| bytes > MAX_WINDOW_BYTES) {
        return Err(AdmissionError::new("buffers of more than 256 MiB", "use a smaller -w"));
    }
    let name = settings.congestion_control.as_deref().unwrap_or("cubic");
    let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 15 || !name.chars().all(is_name_char) {
        return Err(AdmissionError::new("unknown congestion control", "use another -C"));
    }
    Ok(())
}

/// Returns the maximum duration of a test.
pub fn max_duration(scenario: &Scenario) -> Duration {
    let ends = scenario.flows.iter().map(|flow| flow.start + flow.pattern.limit());
    ends.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use towpath_scenario::Transport;

    use super::*;

    pub(crate) fn plan(flows: &str) -> TestPlan {
        let scenario = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
             between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{flows}"
        );
        TestPlan {
            scenario,
            transport: Transport::Tcp,
            settings: super::super::TransferSettings::default(),
        }
    }

    fn refusal_reason(limits: &ServerLimits, plan: &TestPlan) -> String {
        limits.admit(plan).unwrap_err().reason
    }

    #[test]
    fn an_ordinary_plan_is_accepted() {
        let plan = plan("pattern = \"iperf\"\nstreams = 4\n");
        let scenario = ServerLimits::default().admit(&plan).unwrap();
        assert_eq!(max_duration(&scenario), Duration::from_secs(10));
    }

    #[test]
    fn a_refusal_names_the_requested_and_the_allowed_amount() {
        let limits = ServerLimits {
            duration: Duration::from_secs(5),
            streams: 2,
            bytes: Some(1_000),
            ..ServerLimits::default()
        };
        let long_reason =
            refusal_reason(&limits, &plan("pattern = \"iperf\"\nduration = \"10 s\"\n"));
        assert!(long_reason.contains("10.0 s") && long_reason.contains("5.00 s"), "{long_reason}");
        let wide_plan = plan("pattern = \"iperf\"\nduration = \"1 s\"\nstreams = 3\n");
        assert!(refusal_reason(&limits, &wide_plan).contains("3 connections"));
        let large_plan = plan("pattern = \"bulk\"\nduration = \"1 s\"\nsize = \"2 KB\"\n");
        assert!(
            refusal_reason(&limits, &large_plan).contains("2.00 kB"),
            "{}",
            refusal_reason(&limits, &large_plan)
        );
    }

    #[test]
    fn a_server_runs_no_commands_of_others() {
        let limits = ServerLimits::default();
        assert!(refusal_reason(&limits, &plan("run = \"reboot\"\n")).contains("not run commands"));
        let mut invalid = plan("pattern = \"iperf\"\n");
        invalid.settings.congestion_control = Some("../etc".into());
        assert!(refusal_reason(&limits, &invalid).contains("congestion control"));
        invalid.settings =
            super::super::TransferSettings { block_bytes: Some(0), ..Default::default() };
        assert!(refusal_reason(&limits, &invalid).contains("4 MiB"));
        invalid.scenario = invalid.scenario.replace("client", "router");
        assert!(refusal_reason(&limits, &invalid).contains("from `client` to `server`"));
        invalid.scenario = "garbage".into();
        assert!(limits.admit(&invalid).is_err());
    }
}
