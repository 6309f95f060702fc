//! Traffic of a campaign: the patterns, the bytes that they can need, and the runs of a round.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_scenario::units::duration_text;
use towpath_scenario::{DataDirection, Flow, Pattern, Scenario, Schedule, Transport, no_files};

/// Bytes of a run beyond its payload: handshakes, control connection and the server's report.
pub const RUN_OVERHEAD_BYTES: u64 = 500_000;
/// Bytes of the header of a request or a reply, at most.
pub const MESSAGE_HEADER_BYTES: u64 = 100;
/// Bytes of a datagram of `udping` and its reply, with headers.
pub const UDPING_ROUND_TRIP_BYTES: u64 = 200;
/// Bytes of all `udping` datagrams of one period, with headers, over at most eight paths and in both
/// directions.
pub const UDPING_PERIOD_BYTES: u64 = 8 * UDPING_ROUND_TRIP_BYTES;

/// Address family of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressFamily {
    /// Internet Protocol version 4.
    Ipv4,
    /// Internet Protocol version 6.
    Ipv6,
}

impl AddressFamily {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Returns the name in campaigns: `ipv4` or `ipv6`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One traffic pattern of a campaign, and where it is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CampaignPattern {
    /// Name of the pattern, such as `bulk`.
    pub name: String,
    /// Further keys of the flow (see `towpath schema scenario-keys`), with values as TOML.
    pub keys: Vec<(String, String)>,
    /// Transports, without duplicates.
    pub transports: Vec<Transport>,
    /// Address families, without duplicates.
    pub families: Vec<AddressFamily>,
    /// Ports of the server, without duplicates.
    pub ports: Vec<u16>,
    /// Longest duration of the traffic.
    pub duration: Duration,
    /// Bytes that a run can need at most, with headers and control connection.
    pub max_bytes: u64,
    /// Maximum rate of each stream in bit/s, which keeps a timed transfer below `max_bytes`.
    pub rate_limit_bps: Option<u64>,
}

/// One run that a device makes.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedRun {
    /// Index in the round, from 0. It does not depend on the order of execution.
    pub index: u32,
    /// Index of the pattern in [`crate::Campaign::patterns`].
    pub pattern: usize,
    /// Transport of the traffic.
    pub transport: Transport,
    /// Address family.
    pub family: AddressFamily,
    /// Port of the server.
    pub port: u16,
}

/// Returns a scenario with one flow. Each key of the flow is one line, from [`FIRST_KEY_LINE`].
pub(crate) fn flow_scenario(name: &str, keys: &[(String, String)]) -> String {
    let mut text = format!(
        "name = \"campaign\"\n[hosts.client]\n[hosts.server]\n[paths.any]\n\
         between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
         pattern = \"{name}\"\n"
    );
    for (key, value) in keys {
        let _ = writeln!(text, "{key} = {value}"); // cannot fail
    }
    text
}

/// Line of the first key in a [`flow_scenario`], from 1.
pub(crate) const FIRST_KEY_LINE: usize = 10;

/// Amounts of a pattern's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// Longest duration.
    pub(crate) duration: Duration,
    /// Payload bytes of all flows; `None` if the duration alone ends a transfer.
    pub(crate) payload_bytes: Option<u64>,
    /// Streams in all directions that send as fast as they can.
    pub(crate) fast_streams: u64,
}

impl Amounts {
    /// Adds the datagrams that measure each path alone, during the whole time.
    pub(crate) fn with_datagrams(self) -> Self {
        let duration = duration_text(self.duration);
        let keys = [("duration".to_owned(), format!("\"{duration}\""))];
        let datagrams =
            parse_flow("udping", &keys).ok().and_then(|flow| amounts(&flow).payload_bytes);
        let payload_bytes =
            self.payload_bytes.map(|bytes| bytes.saturating_add(datagrams.unwrap_or(u64::MAX)));
        Self { payload_bytes, ..self }
    }
}

/// Returns the amounts of a scenario's flows.
///
/// A test server counts the same flows before a test (`planned_bytes` of `towpath-live`), without
/// the margins that are added here: a further message or datagram, and headers of a page. So the
/// reader of campaigns never allows a run fewer bytes than its server reserves.
pub(crate) fn amounts(scenario: &Scenario) -> Amounts {
    let none = Amounts { duration: Duration::ZERO, payload_bytes: Some(0), fast_streams: 0 };
    scenario.flows.iter().map(flow_amounts).fold(none, |sum, flow| Amounts {
        duration: sum.duration.max(flow.duration),
        payload_bytes: sum.payload_bytes.zip(flow.payload_bytes).map(|(a, b)| a.saturating_add(b)),
        fast_streams: sum.fast_streams + flow.fast_streams,
    })
}

fn flow_amounts(flow: &Flow) -> Amounts {
    let (payload_bytes, fast_streams) = match &flow.pattern {
        Pattern::Bulk { size_bytes, direction, .. } => {
            let sides = sides(*direction);
            (size_bytes.map(|bytes| bytes.saturating_mul(sides)), sides)
        }
        Pattern::Iperf { direction, streams, .. } => {
            (None, sides(*direction).saturating_mul(u64::from(*streams)))
        }
        Pattern::Exchange(exchange) => {
            let bytes =
                schedule_bytes(&exchange.schedule).saturating_mul(sides(exchange.direction));
            (exchange.phases.is_none().then_some(bytes), 0)
        }
        Pattern::Video(video) => {
            let segment = u64::from(video.segment_bytes) + u64::from(video.request_bytes);
            (Some(segment.saturating_mul(video.segments.into())), 0)
        }
        Pattern::Web(web) => {
            let request = u64::from(web.request_bytes) + MESSAGE_HEADER_BYTES;
            let object = u64::from(web.object_bytes) + request;
            let objects = object.saturating_mul(web.objects.into());
            (Some(objects.saturating_add(request + u64::from(web.page_bytes))), 0)
        }
        Pattern::Udping(udping) => {
            let count = ratio(udping.duration, udping.period).saturating_add(1);
            (Some(count.saturating_mul(UDPING_PERIOD_BYTES)), 0)
        }
        Pattern::Udp(udp) => {
            let bits = u128::from(udp.rate_bps) * udp.duration.as_nanos() / 1_000_000_000;
            let bytes = u64::try_from(bits / 8).unwrap_or(u64::MAX);
            // The last datagram may exceed the rate.
            let bytes = bytes.saturating_add(2 * u64::from(udp.bytes));
            (Some(bytes.saturating_mul(sides(udp.direction))), 0)
        }
        // A campaign cannot contain commands: the reader refuses them.
        Pattern::Run { .. } => (None, 0),
    };
    Amounts { duration: flow.start + flow.pattern.limit(), payload_bytes, fast_streams }
}

fn sides(direction: DataDirection) -> u64 {
    match direction {
        DataDirection::Up | DataDirection::Down => 1,
        DataDirection::Both => 2,
    }
}

fn ratio(whole: Duration, part: Duration) -> u64 {
    let count = whole.as_nanos().checked_div(part.as_nanos()).unwrap_or(0);
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns the bytes of all requests and replies of one direction. Each message has a header.
fn schedule_bytes(schedule: &Schedule) -> u64 {
    let message =
        |request: u32, reply: u32| u64::from(request) + u64::from(reply) + MESSAGE_HEADER_BYTES;
    match schedule {
        Schedule::Every { count, request_bytes, reply_bytes, .. } => {
            message(*request_bytes, *reply_bytes).saturating_mul(u64::from(*count) + 1)
        }
        Schedule::Bursts { period, duration, request_bytes, reply_bytes, .. } => {
            let count = ratio(*duration, *period).saturating_add(1);
            message(*request_bytes, *reply_bytes).saturating_mul(count)
        }
        Schedule::Listed { up, down } => up
            .iter()
            .chain(down.iter())
            .map(|planned| message(planned.request_bytes, planned.reply_bytes))
            .fold(0, u64::saturating_add),
    }
}

/// Returns the bytes that a payload needs with headers, retransmissions and the control connection.
///
/// Collectors, devices and test servers reserve and count the bytes of a run with it.
pub fn with_overhead(payload_bytes: u64) -> u64 {
    payload_bytes.saturating_add(payload_bytes / 8).saturating_add(RUN_OVERHEAD_BYTES)
}

/// Returns the largest payload that stays within `max_bytes` with its overhead.
pub(crate) fn payload_within(max_bytes: u64) -> u64 {
    max_bytes.saturating_sub(RUN_OVERHEAD_BYTES) / 9 * 8
}

/// Parses the flow of a pattern.
pub(crate) fn parse_flow(
    name: &str,
    keys: &[(String, String)],
) -> Result<Scenario, towpath_scenario::ScenarioErrors> {
    Scenario::parse("the pattern", &flow_scenario(name, keys), &no_files)
}
