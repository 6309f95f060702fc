//! Bodies of three fuzz targets: `control` and `datagram` (input of an unauthenticated client), and
//! `host_report` (a server's report).

use std::time::Duration;

use towpath_campaign::AccessKey;
use towpath_net::Instant;
use towpath_result::metrics::Summarizer;
use towpath_run::datagram;
use towpath_run::datagram::EchoDatagram;
use towpath_run::stamp::DatagramHeader;
use towpath_run::token::TestToken;
use towpath_run::traffic::{Pinger, UdpReceiver};
use towpath_scenario::flow_plan::planned_datagrams;
use towpath_scenario::{DataDirection, Scenario, Transport, Udp, Udping, no_files};

use super::control::{ControlSession, GrantPolicy};
use super::frame::FrameDecoder;
use super::grant::ServerAccess;
use super::host_report::HostReport;
use super::limits::ServerLimits;
use super::merge::merge;
use super::message::{ClientMessage, ServerMessage};
use super::preamble::{ConnectionKind, Preamble};
use super::secret::{Challenge, ChannelBinding, Secret};
use crate::protocol::ControlAction;

/// Runs a connection to a server from its first byte, then parses the same bytes as a server's
/// reply.
pub fn control(data: &[u8]) {
    let limits = ServerLimits::default();
    if let Ok(Some(preamble)) = Preamble::read(data)
        && preamble.kind == ConnectionKind::Control
    {
        let secret = Secret::from_text(b"a key of 16 bytes").ok();
        let secret = secret.filter(|_| preamble.flow.is_multiple_of(2));
        let test = Some(preamble.test()).filter(|test| *test != TestToken::NONE);
        let binding = preamble.stream.is_multiple_of(2).then_some(ChannelBinding([3; 32]));
        let access = ServerAccess { name: "server".to_owned(), key: AccessKey::new([4; 32]) };
        let is_required = preamble.stream.is_multiple_of(3);
        let grants = GrantPolicy { access: Some(access), is_required, now_s: 1 };
        let grants = preamble.flow.is_multiple_of(3).then_some(grants);
        let mut control = ControlSession::new(test, secret, Challenge([1; 32]))
            .with_binding(binding)
            .with_grants(grants);
        let mut frames = FrameDecoder::default();
        frames.push(data.get(Preamble::BYTES..).unwrap_or_default());
        while let Ok(Some(message)) = frames.take::<ClientMessage>() {
            let actions = control.on_message(message, &limits);
            for action in &actions {
                if let ControlAction::Admit(_) = action {
                    control.on_admitted(TestToken([2; 16]));
                }
            }
            if actions.contains(&ControlAction::Close) {
                break;
            }
        }
    }
    let mut frames = FrameDecoder::default();
    frames.push(data);
    while let Ok(Some(_)) = frames.take::<ServerMessage>() {}
    let _ = HostReport::from_text(&String::from_utf8_lossy(data)); // must not panic
}

/// Feeds a datagram to a server, whose reply is never longer, then parses the same bytes as a
/// reply.
pub fn datagram(data: &[u8]) {
    for admitted in [true, false] {
        let reply = datagram::reply(data, |_| admitted);
        assert!(reply.is_none_or(|reply| admitted && reply.len() <= data.len()));
    }
    let plan = Udp {
        rate_bps: 1_000_000,
        bytes: 1_000,
        direction: DataDirection::Up,
        duration: Duration::from_secs(1),
        late_timeout: Duration::from_secs(1),
        is_bound: false,
        call: None,
    };
    let sample = Duration::from_millis(100);
    let mut receiver = UdpReceiver::new(&plan, Instant::ZERO, sample);
    for chunk in data.chunks(DatagramHeader::BYTES) {
        if let Some(header) = DatagramHeader::parse(chunk) {
            receiver.on_datagram(header.sent_at(), (header.number, header.sent_at()), chunk.len());
            receiver.on_datagram(Instant::ZERO, (header.number, header.sent_at()), chunk.len());
        }
    }
    assert!(receiver.finish(true).received <= planned_datagrams(&plan));
    let plan = Udping {
        period: Duration::from_millis(100),
        duration: Duration::from_secs(1),
        reply_timeout: Duration::from_secs(1),
    };
    let mut pinger = Pinger::new(plan, Instant::ZERO);
    let now = Instant::ZERO + Duration::from_millis(250);
    let sent_count = std::iter::from_fn(|| pinger.poll(now)).count();
    if let Some(reply) = EchoDatagram::parse_reply(data) {
        pinger.on_reply(now, reply.number);
    }
    let probes = pinger.finish(now, 0, "path");
    assert!(probes.len() <= sent_count && probes.iter().all(|probe| probe.answered_ns.is_some()));
}

/// Merges a server's report with that of a client that saw the same, and with none. Builds the
/// result from both.
pub fn host_report(data: &[u8]) {
    let Ok(report) = HostReport::from_text(&String::from_utf8_lossy(data)) else { return };
    assert_eq!(HostReport::from_text(&report.clone().into_text()).as_ref(), Ok(&report));
    let Ok(scenario) = Scenario::parse("half", SCENARIO, &no_files) else { return };
    for client in [&HostReport::default(), &report] {
        let merged = merge(&scenario, client, Ok(&report));
        let summarizer = Summarizer::new(&scenario, Transport::Mptcp);
        let mut summarizer = merged.inputs.into_iter().fold(summarizer, Summarizer::flow);
        for (flow, direction, stats) in merged.datagrams {
            summarizer.add_datagrams(flow, direction, stats);
        }
        let summary = summarizer
            .subflows(merged.subflows)
            .probes(&merged.probes)
            .counters(&merged.counters)
            .finish();
        assert!(summary.flows.len() <= 2 * scenario.flows.len());
    }
}

/// A test with a flow of each kind, and an event between them.
const SCENARIO: &str = r#"
name = "half"
[hosts.client]
[hosts.server]
[paths.wifi]
between = ["client", "server"]
[paths.lte]
between = ["client", "server"]
[[timeline]]
at = "2 s"
path = "wifi"
set = "down"
[[flows]]
from = "client"
to = "server"
pattern = "iperf"
direction = "both"
duration = "5 s"
[[flows]]
from = "client"
to = "server"
pattern = "bulk"
size = "1 MB"
[[flows]]
from = "client"
to = "server"
pattern = "reqres"
[[flows]]
from = "client"
to = "server"
pattern = "video"
duration = "10 s"
[[flows]]
from = "client"
to = "server"
pattern = "web"
[[flows]]
from = "client"
to = "server"
pattern = "udping"
[[flows]]
from = "client"
to = "server"
pattern = "udp"
direction = "both"
[[flows]]
from = "client"
to = "server"
pattern = "call"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_reports_form_a_consistent_result() {
        let scenario = Scenario::parse("half", SCENARIO, &no_files).unwrap();
        assert_eq!((scenario.flows.len(), scenario.timeline.len()), (8, 1));
    }
}
