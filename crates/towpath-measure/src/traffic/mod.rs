//! Traffic patterns as state machines over byte streams: no sockets, no clock.
//!
//! Two families, which run on every transport and in every world:
//!
//! - *Transfers* ([`transfer_text`]): open-ended data, one [`TransferSender`] and one [`TransferReceiver`] for each stream
//!   and direction. What matters is how fast it arrives.
//! - *Messages* ([`MessageSession`], one for each end of a flow): requests that are due at certain times, and
//!   their answers. What matters is how late they are. What is asked when is an [`RequestGenerator`]: one file
//!   for each pattern ([`exchange`], [`video`], [`web`]). All of them are open loop: a delay counts
//!   from when the request was *due*, so a stall is seen whole.
//!
//! Beside them there are datagrams over single paths, which need no stream: questions that are sent
//! back ([`udping`]), and a constant rate in one direction or both ([`udp`]).

use std::time::Duration;

use crate::scenario::{DataDirection, Pattern, Schedule};

pub mod exchange;
pub mod frame;
mod outbox;
mod pacer;
pub mod talk;
pub mod transfer;
pub mod udp;
pub mod udping;
pub mod video;
pub mod web;

pub use pacer::TransferPacer;
pub use talk::{FlowRole, MessageSession, Request, RequestGenerator, StreamAction, messages};
pub use transfer::{FinishReason, SendAllowance, TransferReceiver, TransferSender};
pub use udp::{UdpReceiver, UdpSender};
pub use udping::Pinger;

/// What a flow is meant to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowGoal {
    /// Deliver so many bytes in each direction; cut off after `limit`.
    Sized {
        /// Bytes.
        bytes: u64,
        /// Longest time.
        limit: Duration,
    },
    /// Deliver as much as possible for so long.
    Timed(Duration),
    /// Exchange messages; answers are waited for until then.
    Messages(Duration),
    /// Send datagrams over every path; answers are waited for until then.
    Datagrams(Duration),
    /// Send datagrams at a constant rate for so long.
    ConstantRate(Duration),
    /// A command ends by itself; ended after this time.
    Command(Duration),
}

impl FlowGoal {
    /// The longest time that it takes.
    pub fn limit(self) -> Duration {
        match self {
            Self::Sized { limit, .. }
            | Self::Timed(limit)
            | Self::Messages(limit)
            | Self::Datagrams(limit)
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
            Pattern::Udping(_) => Self::Datagrams(pattern.limit()),
            Pattern::Udp(udp) => Self::ConstantRate(udp.duration),
            Pattern::Run { duration, command: _ } => Self::Command(*duration),
        }
    }
}

/// Data directions of a pattern, `up` first; none for a command, whose traffic is its own, and for
/// datagrams, which are no data. Messages
/// go both ways: where one end asks, the other answers.
pub fn directions(pattern: &Pattern) -> &'static [DataDirection] {
    match pattern {
        Pattern::Bulk { direction, .. } | Pattern::Iperf { direction, .. } => each(*direction),
        Pattern::Exchange(_) | Pattern::Video(_) | Pattern::Web(_) => each(DataDirection::Both),
        Pattern::Udp(udp) => each(udp.direction),
        Pattern::Udping(_) | Pattern::Run { .. } => &[],
    }
}

/// Directions of a pattern's entries in the summary: its own, and one for a command, which says how
/// it ended.
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

/// In which directions requests go, `up` first; none for what is no exchange of messages.
pub fn request_directions(pattern: &Pattern) -> &'static [DataDirection] {
    match pattern {
        Pattern::Exchange(exchange) => each(exchange.direction),
        // A player or browser asks; how many connections it has is another matter.
        Pattern::Video(_) | Pattern::Web(_) => &[DataDirection::Up],
        Pattern::Bulk { .. }
        | Pattern::Iperf { .. }
        | Pattern::Udping(_)
        | Pattern::Udp(_)
        | Pattern::Run { .. } => &[],
    }
}

/// Requests that an end asks at most.
pub fn planned_requests(pattern: &Pattern, asker: DataDirection) -> u64 {
    if !request_directions(pattern).contains(&asker) {
        return 0;
    }
    match pattern {
        Pattern::Exchange(exchange) => match &exchange.schedule {
            Schedule::Every { count, .. } => u64::from(*count),
            Schedule::Bursts { period, duration, .. } => {
                let period = period.as_nanos().max(1);
                u64::try_from(duration.as_nanos() / period).unwrap_or(u64::MAX).saturating_add(1)
            }
            Schedule::Listed { up, .. } if asker == DataDirection::Up => up.len() as u64,
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

fn each(direction: DataDirection) -> &'static [DataDirection] {
    match direction {
        DataDirection::Up => &[DataDirection::Up],
        DataDirection::Down => &[DataDirection::Down],
        DataDirection::Both => &[DataDirection::Up, DataDirection::Down],
    }
}

/// Parallel connections of a pattern; none for a command and for datagrams. An exchange has one for each direction in
/// which requests go, so that a late answer never holds up a request of the other end.
pub fn streams(pattern: &Pattern) -> u32 {
    match pattern {
        Pattern::Bulk { .. } | Pattern::Video(_) => 1,
        Pattern::Iperf { streams, .. } => *streams,
        Pattern::Exchange(_) => request_directions(pattern).len() as u32,
        Pattern::Web(web) => web.connections,
        Pattern::Udping(_) | Pattern::Udp(_) | Pattern::Run { .. } => 0,
    }
}
