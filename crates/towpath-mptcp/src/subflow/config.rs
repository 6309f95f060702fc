//! Switches and constants of a subflow.

use std::time::Duration;

/// Switches and constants. `linux()` is what Linux 6.x does, `ideal()` the RFCs without a host's
/// limits.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "switches of users")]
pub struct Config {
    /// Name in [`towpath_multipath::congestion::ALL`].
    pub congestion_control: String,
    /// MTU of the interface.
    pub mtu_bytes: u32,
    /// RFC 6928.
    pub initial_window_packets: u32,
    /// Offer timestamps.
    pub timestamps: bool,
    /// Offer SACK.
    pub sack: bool,
    /// Our window scale; `None`: do not offer.
    pub window_scale: Option<u8>,
    /// Offer ECN.
    pub ecn: bool,
    /// Leave slow start early (RFC 9406).
    pub hystart: bool,
    /// Pace at a share of cwnd/srtt.
    pub pacing: bool,
    /// Cap on a super-segment; Linux's TSO autosizing: at least two packets, at most what
    /// `pacing_rate` sends in about 1 ms, never more than 64 KiB.
    pub tso_autosizing: bool,
    /// Longest super-segment in bytes of payload (1 packet when less than the MSS).
    pub super_segment_bytes: u32,
    /// Longest delay of an acknowledgement; zero: none.
    pub delayed_ack: Duration,
    /// Packets at the start that are acknowledged at once (Linux: quickack).
    pub quick_acks: u32,
    /// First retransmission timeout.
    pub rto_initial: Duration,
    /// Bounds of the timeout.
    pub rto_min: Duration,
    /// Bounds of the timeout.
    pub rto_max: Duration,
    /// Timers fire at multiples of it (Linux: jiffies, 4 ms); zero: exactly.
    pub timer_granularity: Duration,
    /// SYNs (or SYN/ACKs) repeated before giving up.
    pub syn_retries: u32,
    /// Retransmission timeouts in a row before giving up (Linux `tcp_retries2`).
    pub retries: u32,
    /// Give up when nothing is acknowledged for so long (RFC 5482), if set.
    pub user_timeout: Option<Duration>,
    /// Probe an idle connection after this time, so often, so many times.
    pub keepalive: Option<(Duration, Duration, u32)>,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
    /// Reduce the window after an idle time of one timeout (RFC 5681 §4.1).
    pub restart_after_idle: bool,
    /// Tail loss probe and RACK (RFC 8985); without it, three duplicate acknowledgements.
    pub rack: bool,
    /// Detect spurious timeouts (RFC 5682) and undo (DSACK, timestamps).
    pub undo: bool,
    /// Find a smaller MTU when full packets vanish (RFC 4821).
    pub black_hole_detection: bool,
}

/// Payload of the longest super-segment: with 100 bytes of headers it stays below 65536.
const SUPER_SEGMENT_BYTES: u32 = 65_400;

impl Config {
    /// What Linux 6.x does by default (sysctls untouched, no `fq`).
    pub fn linux() -> Self {
        Self {
            congestion_control: "cubic".to_owned(),
            mtu_bytes: 1500,
            initial_window_packets: 10,
            timestamps: true,
            sack: true,
            window_scale: Some(10),
            ecn: false,
            hystart: true,
            pacing: false,
            tso_autosizing: true,
            super_segment_bytes: SUPER_SEGMENT_BYTES,
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            timer_granularity: Duration::from_millis(4),
            syn_retries: 6,
            retries: 15,
            user_timeout: None,
            keepalive: None,
            time_wait: Duration::from_secs(60),
            restart_after_idle: true,
            rack: true,
            undo: true,
            black_hole_detection: true,
        }
    }

    /// The RFCs without a host's limits: single packets, acknowledged at once, exact timers.
    pub fn ideal() -> Self {
        Self {
            tso_autosizing: false,
            super_segment_bytes: 0,
            delayed_ack: Duration::ZERO,
            timer_granularity: Duration::ZERO,
            ..Self::linux()
        }
    }
}
