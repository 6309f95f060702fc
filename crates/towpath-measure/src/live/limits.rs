//! Limits of a server on clients and their tests.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Rate;

use super::HOSTS;
use super::message::{ServerMessage, TestPlan};
use crate::format;
use crate::scenario::{Pattern, Scenario, Udp, no_files};
use crate::traffic::udp::planned_datagrams;
use crate::traffic::{directions, streams};

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
}

impl AdmissionError {
    /// Creates a refusal with a suggested fix.
    pub fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: why.into(), hint: Some(hint.into()) }
    }
}

impl From<AdmissionError> for ServerMessage {
    fn from(AdmissionError { reason: why, hint }: AdmissionError) -> Self {
        Self::Refused { reason: why, hint }
    }
}

impl ServerLimits {
    /// Parses a plan and checks it against the limits.
    pub fn admit(&self, plan: &TestPlan) -> Result<Scenario, AdmissionError> {
        let scenario = Scenario::parse("the plan", &plan.scenario, &no_files)
            .map_err(|errors| AdmissionError { reason: errors.to_string(), hint: None })?;
        let names: Vec<_> = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
        let leads = |flow: &crate::scenario::Flow| (flow.from, flow.to) == (0, 1);
        let fits = !scenario.flows.is_empty() && scenario.flows.len() <= MAX_FLOWS;
        if names != HOSTS || !fits || !scenario.flows.iter().all(leads) {
            let why = "a plan leads from `client` to `server`, with one flow to sixteen";
            return Err(AdmissionError { reason: why.to_owned(), hint: None });
        }
        if scenario.flows.iter().any(|flow| matches!(flow.pattern, Pattern::Run { .. })) {
            let hint = "measure with one of the patterns";
            return Err(AdmissionError::new("a server runs no commands of others", hint));
        }
        self.check_amounts(&scenario)?;
        check_settings(plan)?;
        Ok(scenario)
    }

    fn check_amounts(&self, scenario: &Scenario) -> Result<(), AdmissionError> {
        let all: u32 = scenario.flows.iter().map(|flow| streams(&flow.pattern)).sum();
        if all > self.streams {
            let reason = format!("{all} connections, and this server takes {}", self.streams);
            return Err(AdmissionError::new(reason, "use fewer streams (-P)"));
        }
        let longest = max_duration(scenario);
        if longest > self.duration {
            let (asked, most) = (format::seconds(longest), format::seconds(self.duration));
            let why = format!("the test may take {asked}, and this server allows {most}");
            return Err(AdmissionError::new(
                why,
                "ask for less time (-t), or start the server with a \
                larger --max-duration",
            ));
        }
        let sized = scenario.flows.iter().filter_map(|flow| match flow.pattern {
            Pattern::Bulk { size_bytes, .. } => size_bytes,
            Pattern::Iperf { .. }
            | Pattern::Exchange(_)
            | Pattern::Video(_)
            | Pattern::Web(_)
            | Pattern::Udping(_)
            | Pattern::Udp(_)
            | Pattern::Run { .. } => None,
        });
        let sized = sized.fold(0_u64, u64::saturating_add);
        let of_udp = scenario
            .flows
            .iter()
            .filter_map(|flow| Some((flow.pattern.udp()?, directions(&flow.pattern).len() as u64)));
        let payload = |(udp, ways): (&Udp, u64)| {
            planned_datagrams(udp).saturating_mul(udp.bytes.into()).saturating_mul(ways)
        };
        let sized = of_udp.clone().map(payload).fold(sized, u64::saturating_add);
        let fastest = of_udp.map(|(udp, _)| udp.rate_bps).fold(0, u64::saturating_add);
        if let Some(most) = self.rate.filter(|most| fastest > most.as_bps()) {
            let (asked, most) = (format::rate(fastest as f64), format::rate(most.as_bps() as f64));
            let why = format!("datagrams at {asked}, and this server allows {most}");
            let hint = "ask for less (-b), or start the server with a larger --max-rate";
            return Err(AdmissionError::new(why, hint));
        }
        if let Some(most) = self.bytes.filter(|most| sized > *most) {
            let (asked, most) = (format::bytes(sized), format::bytes(most));
            let why = format!("{asked} are to be sent, and this server allows {most}");
            let hint = "send less (-n), or start the server with a larger --max-bytes";
            return Err(AdmissionError::new(why, hint));
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
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 15 || !name.chars().all(word) {
        return Err(AdmissionError::new("no congestion control has such a name", "use another -C"));
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
    use super::*;
    use crate::scenario::Transport;

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
        let long = refusal_reason(&limits, &plan("pattern = \"iperf\"\nduration = \"10 s\"\n"));
        assert!(long.contains("10.0 s") && long.contains("5.00 s"), "{long}");
        let wide = plan("pattern = \"iperf\"\nduration = \"1 s\"\nstreams = 3\n");
        assert!(refusal_reason(&limits, &wide).contains("3 connections"));
        let large = plan("pattern = \"bulk\"\nduration = \"1 s\"\nsize = \"2 KB\"\n");
        assert!(
            refusal_reason(&limits, &large).contains("2.00 kB"),
            "{}",
            refusal_reason(&limits, &large)
        );
    }

    #[test]
    fn a_server_runs_no_commands_of_others() {
        let limits = ServerLimits::default();
        assert!(refusal_reason(&limits, &plan("run = \"reboot\"\n")).contains("no commands"));
        let mut strange = plan("pattern = \"iperf\"\n");
        strange.settings.congestion_control = Some("../etc".into());
        assert!(refusal_reason(&limits, &strange).contains("congestion control"));
        strange.settings =
            super::super::TransferSettings { block_bytes: Some(0), ..Default::default() };
        assert!(refusal_reason(&limits, &strange).contains("4 MiB"));
        strange.scenario = strange.scenario.replace("client", "router");
        assert!(refusal_reason(&limits, &strange).contains("from `client` to `server`"));
        strange.scenario = "garbage".into();
        assert!(limits.admit(&strange).is_err());
    }
}
