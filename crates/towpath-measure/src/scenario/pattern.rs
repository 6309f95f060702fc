//! What a flow sends.

use std::sync::Arc;
use std::time::Duration;

use super::model::DataDirection;
use crate::result::{Load, VideoPlan};

/// What a flow sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// One transfer: `size_bytes` if given, else as much as passes within `duration`.
    Bulk {
        /// Bytes to transfer.
        size_bytes: Option<u64>,
        /// The transfer is cut off after this time.
        duration: Duration,
        /// Who sends.
        direction: DataDirection,
    },
    /// As iperf3: send for a time.
    Iperf {
        /// How long.
        duration: Duration,
        /// Who sends.
        direction: DataDirection,
        /// Parallel connections.
        streams: u32,
    },
    /// Requests and their answers, at planned times.
    Exchange(MessageExchange),
    /// A video that is fetched segment by segment and played.
    Video(Video),
    /// A page and everything that is on it.
    Web(Web),
    /// Datagrams over every path, beside whatever transport.
    Udping(Udping),
    /// Datagrams at a constant rate over one path.
    Udp(Udp),
    /// A command, run by `sh -c` on the flow's first host (emulated world only).
    Run {
        /// The command.
        command: String,
        /// It is ended after this time.
        duration: Duration,
    },
}

impl Pattern {
    /// Its name in scenarios and results.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bulk { .. } => "bulk",
            Self::Iperf { .. } => "iperf",
            Self::Exchange(exchange) => exchange.name,
            Self::Video(_) => "video",
            Self::Web(_) => "web",
            Self::Udping(_) => "udping",
            Self::Udp(udp) => match udp.call.map(|call| call.medium) {
                None => "udp",
                Some(Medium::Video) => "call-video",
                Some(Medium::G711 | Medium::G729a) => "call",
            },
            Self::Run { .. } => "run",
        }
    }

    /// What it says of datagrams at a constant rate, if it sends such.
    pub fn udp(&self) -> Option<&Udp> {
        if let Self::Udp(udp) = self { Some(udp) } else { None }
    }

    /// How long it is planned to take; the longest time for what ends by itself.
    pub fn duration(&self) -> Duration {
        match self {
            Self::Bulk { duration, .. }
            | Self::Iperf { duration, .. }
            | Self::Run { duration, .. } => *duration,
            Self::Exchange(exchange) => exchange.duration,
            Self::Video(video) => video.length(),
            Self::Web(web) => web.duration,
            Self::Udping(udping) => udping.duration,
            Self::Udp(udp) => udp.duration,
        }
    }

    /// The longest time that it takes: answers that are late are waited for.
    pub fn limit(&self) -> Duration {
        match self {
            Self::Exchange(exchange) => exchange.duration + exchange.reply_timeout,
            Self::Video(video) => video.length() + video.max_overrun,
            Self::Udping(udping) => udping.duration + udping.reply_timeout,
            Self::Udp(udp) => udp.duration + udp.late_timeout,
            Self::Bulk { .. } | Self::Iperf { .. } | Self::Web(_) | Self::Run { .. } => {
                self.duration()
            }
        }
    }
}

/// Requests and their answers, at planned times: `ping`, `reqres`, `interactive`, `onoff`, `trace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageExchange {
    /// The pattern's name.
    pub name: &'static str,
    /// Who asks; `both` has a connection for each.
    pub direction: DataDirection,
    /// When, and how much.
    pub schedule: Schedule,
    /// So many requests at the beginning do not count.
    pub warm_up: u32,
    /// From the first request to the end of the last one's period.
    pub duration: Duration,
    /// How long after that answers are waited for.
    pub reply_timeout: Duration,
    /// Loads that come and go beside it, where it is `latency`.
    pub phases: Option<LatencyPhases>,
}

/// The phases of `latency`: without a load, with one down, with one up, with both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyPhases {
    /// Length of each.
    pub duration: Duration,
    /// Time between two, in which queues drain.
    pub pause: Duration,
    /// Connections of each load in each of its directions.
    pub streams: u32,
}

impl LatencyPhases {
    /// Their number.
    pub const COUNT: u32 = 4;

    /// From the beginning of the first to the end of the last.
    pub fn total(&self) -> Duration {
        let pauses = self.pause.saturating_mul(Self::COUNT - 1);
        self.duration.saturating_mul(Self::COUNT).saturating_add(pauses)
    }

    /// Each with when it begins.
    pub fn all(&self) -> [(Load, Duration); 4] {
        let step = self.duration.saturating_add(self.pause);
        [
            (Load::Idle, Duration::ZERO),
            (Load::Down, step),
            (Load::Up, step.saturating_mul(2)),
            (Load::Both, step.saturating_mul(3)),
        ]
    }
}

/// When requests are due, counted from when the flow's connections are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// One each period.
    Every {
        /// From one to the next.
        period: Duration,
        /// Their number.
        count: u32,
        /// Bytes of a request.
        request_bytes: u32,
        /// Bytes of a reply; 0 for none.
        reply_bytes: u32,
        /// Whether a request is acknowledged before it is replied to.
        ack: bool,
    },
    /// One each period for a while, then a pause, and so on.
    Bursts {
        /// From one to the next within a burst.
        period: Duration,
        /// Length of a burst.
        on: Duration,
        /// Length of a pause.
        off: Duration,
        /// No request is due from then on.
        duration: Duration,
        /// Bytes of a request.
        request_bytes: u32,
        /// Bytes of a reply.
        reply_bytes: u32,
    },
    /// As in a list, for each direction in order of time.
    Listed {
        /// From the host that opened the connections.
        up: Arc<[PlannedRequest]>,
        /// From the other one.
        down: Arc<[PlannedRequest]>,
    },
}

/// A request of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRequest {
    /// When it is due.
    pub at: Duration,
    /// Bytes of the request.
    pub request_bytes: u32,
    /// Bytes of the reply; 0 for none.
    pub reply_bytes: u32,
    /// Whether it is acknowledged before it is replied to.
    pub ack: bool,
}

/// A video that is fetched segment by segment and played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Video {
    /// Length of a segment.
    pub segment: Duration,
    /// Their number.
    pub segments: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Most that the player keeps.
    pub buffer: Duration,
    /// It plays, at first and after a stall, when the buffer holds so much.
    pub startup: Duration,
    /// How much longer than the video it may take.
    pub max_overrun: Duration,
}

impl Video {
    /// What a result says of it.
    pub fn plan(&self) -> VideoPlan {
        VideoPlan {
            segment_ns: self.segment.as_nanos() as u64,
            segments: self.segments,
            startup_ns: self.startup.as_nanos() as u64,
        }
    }
}

/// A page and everything that is on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    /// Bytes of the page itself, which names the objects.
    pub page_bytes: u32,
    /// Objects on the page.
    pub objects: u32,
    /// Bytes of each.
    pub object_bytes: u32,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Parallel connections.
    pub connections: u32,
    /// Given up after this time.
    pub duration: Duration,
}

/// Datagrams that the other end sends back at once, over every path between two hosts: what a path
/// is like without any transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udping {
    /// From one to the next on each path.
    pub period: Duration,
    /// They are due for so long.
    pub duration: Duration,
    /// How long each answer is waited for.
    pub reply_timeout: Duration,
}

/// Datagrams at a constant rate over one path, in one direction or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    /// Payload that is sent in a second, in bits.
    pub rate_bps: u64,
    /// Payload of each.
    pub bytes: u32,
    /// Who sends.
    pub direction: DataDirection,
    /// They are due for so long.
    pub duration: Duration,
    /// How long after that late ones are waited for.
    pub late_timeout: Duration,
    /// The path was named: between real hosts, others leave it to the routes.
    pub is_bound: bool,
    /// They are the sound or the picture of a call.
    pub call: Option<Call>,
}

/// What the datagrams of a call are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What they hold.
    pub medium: Medium,
    /// Those that are sent at once: all of a frame.
    pub packets_per_frame: u32,
    /// How much later than the fastest one may be played.
    pub jitter_buffer: Duration,
    /// Rate of the picture that goes with the sound.
    pub video_bps: Option<u64>,
}

/// What a datagram of a call holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// 20 ms of G.711, whose losses are concealed as its appendix I says.
    G711,
    /// 20 ms of G.729, annex A.
    G729a,
    /// A part of a frame.
    Video,
}

impl Medium {
    /// Its name in scenarios and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::G711 => "g711",
            Self::G729a => "g729a",
            Self::Video => "video",
        }
    }
}
