//! The bodies of the fuzz targets `control` and `datagram`, whatever a stranger sends to a server, and
//! `half`, whatever a server says that it saw.

use std::time::Duration;

use towpath_net::Instant;

use super::control::Control;
use super::datagram::{self, Datagram};
use super::frame::Frames;
use super::half::Half;
use super::limits::Limits;
use super::merge::merge;
use super::message::{FromClient, FromServer};
use super::preamble::{Kind, Preamble, Token};
use super::secret::{Binding, Challenge, Secret};
use super::stamp::Stamp;
use crate::live::Act;
use crate::metrics::Summarizer;
use crate::scenario::{DataDirection, Scenario, Transport, Udp, Udping, no_files};
use crate::traffic::udp::planned_datagrams;
use crate::traffic::{Pinger, UdpReceiver};

/// A connection to a server from its first byte on; then the same bytes as an answer of a server.
pub fn control(data: &[u8]) {
    let limits = Limits::default();
    if let Ok(Some(preamble)) = Preamble::read(data)
        && preamble.kind == Kind::Control
    {
        let secret = Secret::from_text(b"a key of 16 bytes").ok();
        let secret = secret.filter(|_| preamble.flow.is_multiple_of(2));
        let test = Some(preamble.test()).filter(|test| *test != Token::NONE);
        let binding = preamble.stream.is_multiple_of(2).then_some(Binding([3; 32]));
        let mut control = Control::new(test, secret, Challenge([1; 32])).bound_to(binding);
        let mut frames = Frames::default();
        frames.push(data.get(Preamble::BYTES..).unwrap_or_default());
        while let Ok(Some(message)) = frames.take::<FromClient>() {
            let acts = control.on_message(message, &limits);
            for act in &acts {
                if let Act::Admit(_) = act {
                    control.admitted(Token([2; 16]));
                }
            }
            if acts.contains(&Act::Close) {
                break;
            }
        }
    }
    let mut frames = Frames::default();
    frames.push(data);
    while let Ok(Some(_)) = frames.take::<FromServer>() {}
    let _ = Half::from_text(&String::from_utf8_lossy(data)); // must not panic
}

/// A datagram to a server, which never answers with more; then the same bytes as an answer.
pub fn datagram(data: &[u8]) {
    for admitted in [true, false] {
        let answer = datagram::answer(data, |_| admitted);
        assert!(answer.is_none_or(|answer| admitted && answer.len() <= data.len()));
    }
    let plan = Udp {
        rate_bps: 1_000_000,
        bytes: 1_000,
        direction: DataDirection::Up,
        duration: Duration::from_secs(1),
        patience: Duration::from_secs(1),
        is_bound: false,
        call: None,
    };
    let sample = Duration::from_millis(100);
    let mut receiver = UdpReceiver::new(&plan, Instant::ZERO, sample);
    for part in data.chunks(Stamp::BYTES) {
        if let Some(stamp) = Stamp::parse(part) {
            receiver.take(stamp.sent(), (stamp.number, stamp.sent()), part.len());
            receiver.take(Instant::ZERO, (stamp.number, stamp.sent()), part.len());
        }
    }
    assert!(receiver.finish(true).received <= planned_datagrams(&plan));
    let plan = Udping {
        period: Duration::from_millis(100),
        duration: Duration::from_secs(1),
        patience: Duration::from_secs(1),
    };
    let mut pinger = Pinger::new(plan, Instant::ZERO);
    let now = Instant::ZERO + Duration::from_millis(250);
    let asked = std::iter::from_fn(|| pinger.poll(now)).count();
    if let Some(answer) = Datagram::of_answer(data) {
        pinger.on_answer(now, answer.number);
    }
    let probes = pinger.finish(now, 0, "path");
    assert!(probes.len() <= asked && probes.iter().all(|probe| probe.answered_ns.is_some()));
}

/// A half that a server sends, merged with one of a client that saw the same, and with none; what is
/// said of the run comes of both.
pub fn half(data: &[u8]) {
    let Ok(half) = Half::from_text(&String::from_utf8_lossy(data)) else { return };
    assert_eq!(Half::from_text(&half.clone().into_text()).as_ref(), Ok(&half));
    let Ok(scenario) = Scenario::parse("half", TESTED, &no_files) else { return };
    for client in [&Half::default(), &half] {
        let merged = merge(&scenario, client, Ok(&half));
        let start = Summarizer::new(&scenario, Transport::Mptcp);
        let mut start = merged.inputs.into_iter().fold(start, Summarizer::flow);
        for (flow, direction, figures) in merged.datagrams {
            start.add_datagrams(flow, direction, figures);
        }
        let summary = start
            .subflows(merged.subflows)
            .probes(&merged.probes)
            .counters(&merged.counters)
            .finish();
        assert!(summary.flows.len() <= 2 * scenario.flows.len());
    }
}

/// A test with a flow of each kind, and an event between them.
const TESTED: &str = r#"
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
    fn halves_are_merged_into_a_test_that_there_can_be() {
        let scenario = Scenario::parse("half", TESTED, &no_files).unwrap();
        assert_eq!((scenario.flows.len(), scenario.timeline.len()), (8, 1));
    }
}
