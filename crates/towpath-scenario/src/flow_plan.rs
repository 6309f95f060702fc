//! Plan of a flow, as its pattern defines it: goal, directions, streams, and amounts.
//!
//! The reader checks scenarios against these amounts, and every world sends by them.

use std::time::Duration;

use super::{DataDirection, Pattern, PlannedRequest, Schedule, Udp};

/// Size of the shortest request: its header.
pub const MIN_REQUEST_BYTES: u32 = 13;
/// Size of the shortest reply, and of an acknowledgement.
pub const MIN_REPLY_BYTES: u32 = 9;
/// Minimum length of a measured datagram in bytes: that of its header.
pub const MIN_DATAGRAM_BYTES: u32 = 40;

/// Goal of a flow, which determines its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowGoal {
    /// Deliver a number of bytes in each direction; cut off after `limit`.
    Sized {
        /// Bytes to deliver in each direction.
        bytes: u64,
        /// Longest time for the transfer.
        limit: Duration,
    },
    /// Deliver as much as possible for this time.
    Timed(Duration),
    /// Exchange messages; replies are awaited until this time after the start.
    Messages(Duration),
    /// Send probes (`udping` datagrams) over every path; replies are awaited until this time after
    /// the start.
    Probes(Duration),
    /// Send datagrams without replies, at a constant rate for this time (`udp`, `call`).
    ConstantRate(Duration),
    /// Run a command, which ends on its own or is ended after this time.
    Command(Duration),
}

impl FlowGoal {
    /// Returns the longest time that the flow takes.
    pub fn limit(self) -> Duration {
        match self {
            Self::Sized { limit, .. }
            | Self::Timed(limit)
            | Self::Messages(limit)
            | Self::Probes(limit)
            | Self::ConstantRate(limit)
            | Self::Command(limit) => limit,
        }
    }
}

impl From<&Pattern> for FlowGoal {
    fn from(pattern: &Pattern) -> Self {
        match pattern {
            Pattern::Bulk { size_bytes: Some(bytes), duration, direction: _ } => {
                Self::Sized { bytes: *bytes, limit: *duration }
            }
            Pattern::Bulk { size_bytes: None, duration, direction: _ }
            | Pattern::Iperf { duration, direction: _, streams: _ } => Self::Timed(*duration),
            Pattern::Exchange(_) | Pattern::Video(_) | Pattern::Web(_) => {
                Self::Messages(pattern.limit())
            }
            Pattern::Udping(_) => Self::Probes(pattern.limit()),
            Pattern::Udp(udp) => Self::ConstantRate(udp.duration),
            Pattern::Run { duration, command: _ } => Self::Command(*duration),
        }
    }
}

/// Returns the data directions of a pattern, `up` first. Empty for a command, which makes its own
/// traffic, and for `udping`. Messages use both directions: requests in one, replies in the other.
pub fn directions(pattern: &Pattern) -> &'static [DataDirection] {
    match pattern {
        Pattern::Bulk { direction, .. } | Pattern::Iperf { direction, .. } => {
            expand_direction(*direction)
        }
        Pattern::Exchange(_) | Pattern::Video(_) | Pattern::Web(_) => {
            expand_direction(DataDirection::Both)
        }
        Pattern::Udp(udp) => expand_direction(udp.direction),
        Pattern::Udping(_) | Pattern::Run { .. } => &[],
    }
}

/// Returns the directions of a pattern's entries in the summary. A command has one entry, for its
/// outcome.
pub fn summary_directions(pattern: &Pattern) -> &'static [DataDirection] {
    match pattern {
        Pattern::Run { .. } => &[DataDirection::Up],
        Pattern::Bulk { .. }
        | Pattern::Iperf { .. }
        | Pattern::Exchange(_)
        | Pattern::Video(_)
        | Pattern::Web(_)
        | Pattern::Udp(_)
        | Pattern::Udping(_) => directions(pattern),
    }
}

/// Returns the directions of a pattern's requests, `up` first; empty for patterns other than
/// request-reply.
pub fn request_directions(pattern: &Pattern) -> &'static [DataDirection] {
    match pattern {
        Pattern::Exchange(exchange) => expand_direction(exchange.direction),
        // A player or browser is the client, however many connections it opens.
        Pattern::Video(_) | Pattern::Web(_) => &[DataDirection::Up],
        Pattern::Bulk { .. }
        | Pattern::Iperf { .. }
        | Pattern::Udping(_)
        | Pattern::Udp(_)
        | Pattern::Run { .. } => &[],
    }
}

/// Returns the maximum number of requests in the data direction `requester`.
pub fn planned_requests(pattern: &Pattern, requester: DataDirection) -> u64 {
    if !request_directions(pattern).contains(&requester) {
        return 0;
    }
    match pattern {
        Pattern::Exchange(exchange) => match &exchange.schedule {
            Schedule::Every { count, .. } => u64::from(*count),
            Schedule::Bursts { period, duration, .. } => {
                let period = period.as_nanos().max(1);
                u64::try_from(duration.as_nanos() / period).unwrap_or(u64::MAX).saturating_add(1)
            }
            Schedule::Listed { up, .. } if requester == DataDirection::Up => up.len() as u64,
            Schedule::Listed { down, .. } => down.len() as u64,
        },
        Pattern::Video(video) => video.segments.into(),
        Pattern::Web(web) => u64::from(web.objects).saturating_add(1),
        Pattern::Bulk { .. }
        | Pattern::Iperf { .. }
        | Pattern::Udping(_)
        | Pattern::Udp(_)
        | Pattern::Run { .. } => 0,
    }
}

fn expand_direction(direction: DataDirection) -> &'static [DataDirection] {
    match direction {
        DataDirection::Up => &[DataDirection::Up],
        DataDirection::Down => &[DataDirection::Down],
        DataDirection::Both => &[DataDirection::Up, DataDirection::Down],
    }
}

/// Returns the number of parallel connections; 0 for a command and for datagrams. An exchange has
/// one for each direction of requests, so a late reply never delays a request of the other end.
pub fn streams(pattern: &Pattern) -> u32 {
    match pattern {
        Pattern::Bulk { .. } | Pattern::Video(_) => 1,
        Pattern::Iperf { streams, .. } => *streams,
        Pattern::Exchange(_) => request_directions(pattern).len() as u32,
        Pattern::Web(web) => web.connections,
        Pattern::Udping(_) | Pattern::Udp(_) | Pattern::Run { .. } => 0,
    }
}

/// Returns the number of requests due within `span`, one per `period` from its start on; at least
/// 1.
pub fn requests_in(span: Duration, period: Duration) -> u32 {
    let count = span.as_nanos().div_ceil(period.as_nanos().max(1));
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Returns the number of datagrams that are due during a flow.
pub fn planned_datagrams(plan: &Udp) -> u64 {
    let bit_nanos = u128::from(plan.bytes.max(1)) * 8 * 1_000_000_000;
    let count = (plan.duration.as_nanos() * u128::from(plan.rate_bps)).div_ceil(bit_nanos);
    let count = count.max(1).next_multiple_of(u128::from(packets_per_frame(plan)));
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns the number of datagrams that are due at the same time.
pub fn packets_per_frame(plan: &Udp) -> u64 {
    plan.call.map_or(1, |call| u64::from(call.packets_per_frame.max(1)))
}

impl Schedule {
    /// Returns request number `index` in a direction; `None` after the last.
    pub fn get(&self, direction: DataDirection, index: u32) -> Option<PlannedRequest> {
        match self {
            Self::Every { period, count, request_bytes, reply_bytes, ack } => {
                let request = PlannedRequest {
                    at: period.saturating_mul(index),
                    request_bytes: *request_bytes,
                    reply_bytes: *reply_bytes,
                    ack: *ack,
                };
                (index < *count).then_some(request)
            }
            Self::Bursts { period, on, off, duration, request_bytes, reply_bytes } => {
                let per_burst = requests_in(*on, *period);
                let burst_start = (*on + *off).saturating_mul(index / per_burst);
                let at = burst_start.saturating_add(period.saturating_mul(index % per_burst));
                let (request_bytes, reply_bytes) = (*request_bytes, *reply_bytes);
                let request = PlannedRequest { at, request_bytes, reply_bytes, ack: false };
                (at < *duration).then_some(request)
            }
            Self::Listed { up, down } => {
                let requests = if direction == DataDirection::Down { down } else { up };
                requests.get(index as usize).copied()
            }
        }
    }
}
