//! Traffic patterns of flows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::DataDirection;

/// Traffic pattern of a flow.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// One transfer of `size_bytes` if given, else of as much as fits into `duration`.
    Bulk {
        /// Number of bytes to transfer; `None` means no limit.
        size_bytes: Option<u64>,
        /// The transfer is cut off after this time.
        duration: Duration,
        /// Sending host or hosts.
        direction: DataDirection,
    },
    /// An iperf3-like transfer for a fixed time.
    Iperf {
        /// Duration of the transfer.
        duration: Duration,
        /// Sending host or hosts.
        direction: DataDirection,
        /// Number of parallel connections.
        streams: u32,
    },
    /// Requests and their replies, at scheduled times.
    Exchange(MessageExchange),
    /// A video, fetched segment by segment and played.
    Video(Video),
    /// A web page and its objects.
    Web(Web),
    /// Echo datagrams over every path, independent of the transport.
    Udping(Udping),
    /// Datagrams at a constant rate over one path.
    Udp(Udp),
    /// A command, run by `sh -c` on the flow's first host (emulated world only).
    Run {
        /// Command line for the shell.
        command: String,
        /// Time after which the command is killed.
        duration: Duration,
    },
}

impl Pattern {
    /// Returns the pattern's name in scenarios and results.
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

    /// Returns the constant-rate datagram settings, or `None` for other patterns.
    pub fn udp(&self) -> Option<&Udp> {
        if let Self::Udp(udp) = self { Some(udp) } else { None }
    }

    /// Returns the planned duration; for a page, the time after which it is given up.
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

    /// Returns the longest possible duration, including the wait for late replies.
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

/// Requests and replies at scheduled times: `ping`, `reqres`, `interactive`, `onoff`, `trace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageExchange {
    /// Name of the pattern in scenarios.
    pub name: &'static str,
    /// Requesting host; `both` has one connection for each direction.
    pub direction: DataDirection,
    /// Times and sizes of the requests.
    pub schedule: Schedule,
    /// Number of initial requests left out of the statistics.
    pub warm_up: u32,
    /// Time from the first request to the end of the last request's period.
    pub duration: Duration,
    /// Time to wait for replies after `duration`.
    pub reply_timeout: Duration,
    /// Background load phases of `latency`; `None` for other patterns.
    pub phases: Option<LatencyPhases>,
}

/// The four load phases of `latency`: idle, download, upload, both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyPhases {
    /// Length of each phase.
    pub duration: Duration,
    /// Pause between two phases, in which queues drain.
    pub pause: Duration,
    /// Connections of each load in each of its directions.
    pub streams: u32,
}

impl LatencyPhases {
    /// Number of load phases.
    pub const COUNT: u32 = 4;

    /// Returns the time from the start of the first phase to the end of the last.
    pub fn total(&self) -> Duration {
        let pauses = self.pause.saturating_mul(Self::COUNT - 1);
        self.duration.saturating_mul(Self::COUNT).saturating_add(pauses)
    }

    /// Returns each phase with its start time.
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

/// Times at which requests are due, relative to the moment the flow's connections are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// One request each period.
    Every {
        /// Time between two requests.
        period: Duration,
        /// Total number of requests.
        count: u32,
        /// Request size in bytes.
        request_bytes: u32,
        /// Reply size in bytes; 0 means no reply.
        reply_bytes: u32,
        /// Set if a request is acknowledged before the reply.
        ack: bool,
    },
    /// Bursts with one request each period, separated by pauses.
    Bursts {
        /// Time between two requests in a burst.
        period: Duration,
        /// Length of a burst.
        on: Duration,
        /// Length of a pause.
        off: Duration,
        /// Time after which no request is due.
        duration: Duration,
        /// Request size in bytes.
        request_bytes: u32,
        /// Reply size in bytes.
        reply_bytes: u32,
    },
    /// Explicit lists, one for each direction, sorted by time.
    Listed {
        /// Requests of the host that opened the connections.
        up: Arc<[PlannedRequest]>,
        /// Requests of the host that accepted them.
        down: Arc<[PlannedRequest]>,
    },
}

/// One request of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRequest {
    /// Time at which the request is due.
    pub at: Duration,
    /// Request size in bytes.
    pub request_bytes: u32,
    /// Reply size in bytes; 0 means no reply.
    pub reply_bytes: u32,
    /// Set if the request is acknowledged before the reply.
    pub ack: bool,
}

/// A video, fetched segment by segment and played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Video {
    /// Playing time of a segment.
    pub segment: Duration,
    /// Number of segments in the video.
    pub segments: u32,
    /// Segment size in bytes.
    pub segment_bytes: u32,
    /// Request size in bytes.
    pub request_bytes: u32,
    /// Capacity of the playback buffer.
    pub buffer: Duration,
    /// Buffer level at which playback starts, initially and after a stall.
    pub startup: Duration,
    /// Time allowed beyond the length of the video.
    pub max_overrun: Duration,
}

impl Video {
    /// Returns the playing time of the whole video.
    pub fn length(&self) -> Duration {
        self.segment.saturating_mul(self.segments)
    }

    /// Returns the plan recorded in the result.
    pub fn plan(&self) -> VideoPlan {
        VideoPlan {
            segment_ns: self.segment.as_nanos() as u64,
            segments: self.segments,
            startup_ns: self.startup.as_nanos() as u64,
        }
    }
}

/// A web page and its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    /// Size of the page itself in bytes; the page lists the objects.
    pub page_bytes: u32,
    /// Number of objects on the page.
    pub objects: u32,
    /// Size of each object in bytes.
    pub object_bytes: u32,
    /// Request size in bytes.
    pub request_bytes: u32,
    /// Number of parallel connections.
    pub connections: u32,
    /// Time after which the page is given up.
    pub duration: Duration,
}

/// Datagrams that the other host echoes, over every path between two hosts. Measures the paths
/// without a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udping {
    /// Time between two datagrams on each path.
    pub period: Duration,
    /// Time during which datagrams are sent.
    pub duration: Duration,
    /// Time to wait for each reply.
    pub reply_timeout: Duration,
}

/// Datagrams at a constant rate over one path, in one direction or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    /// Payload rate in bit/s.
    pub rate_bps: u64,
    /// Payload size of each datagram in bytes.
    pub bytes: u32,
    /// Sending host or hosts.
    pub direction: DataDirection,
    /// Time during which datagrams are sent.
    pub duration: Duration,
    /// Time to wait for late datagrams after `duration`.
    pub late_timeout: Duration,
    /// Set if the scenario names the path. If not, flows between real hosts follow the routing
    /// table.
    pub is_bound: bool,
    /// Call settings, if the datagrams carry audio or video of a call.
    pub call: Option<Call>,
}

/// Audio or video call carried by constant-rate datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Content of the datagrams.
    pub medium: Medium,
    /// Datagrams of one frame, sent back to back.
    pub packets_per_frame: u32,
    /// Playout delay relative to the fastest datagram.
    pub jitter_buffer: Duration,
    /// Video rate in bit/s that accompanies the audio; `None` for an audio-only call.
    pub video_bps: Option<u64>,
}

/// Content of a call's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// 20 ms of G.711 audio, with loss concealment by its appendix I.
    G711,
    /// 20 ms of audio, coded by G.729 annex A.
    G729a,
    /// Part of a video frame.
    Video,
}

impl Medium {
    /// Returns the name used in scenarios and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::G711 => "g711",
            Self::G729a => "g729a",
            Self::Video => "video",
        }
    }
}

/// Background load during a phase of `latency`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// No load in the background.
    Idle,
    /// Transfers from the second host.
    Down,
    /// Transfers from the first host.
    Up,
    /// Transfers in both directions.
    Both,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Down => "down",
            Self::Up => "up",
            Self::Both => "both",
        })
    }
}

/// Parameters of a video, needed to reconstruct its play-out buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VideoPlan {
    /// Playing time of one segment.
    pub segment_ns: u64,
    /// Number of segments in the whole video.
    pub segments: u32,
    /// Playing time that the buffer must hold before playback starts or resumes.
    pub startup_ns: u64,
}
