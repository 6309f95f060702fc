//! Switches and constants of a subflow.

use std::time::Duration;

use towpath_multipath::congestion::HyStartRule;

/// Switches and constants of one subflow. `linux()` follows Linux 6.x, `ideal()` the RFCs without a
/// host's limits.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "switches of users")]
pub struct SubflowConfig {
    /// Congestion control, by its name in [`towpath_multipath::congestion::ALL`].
    pub congestion_control: String,
    /// MTU of the interface in bytes.
    pub mtu_bytes: u32,
    /// Initial congestion window in packets (RFC 6928).
    pub initial_window_packets: u32,
    /// Offer the timestamps option (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Our window scale; `None`: do not offer the option.
    pub window_scale: Option<u8>,
    /// Offer ECN, and accept the peer's offer.
    pub ecn: bool,
    /// Accept ECN, though it is not offered (Linux `tcp_ecn` 2).
    pub accepts_ecn: bool,
    /// Rule that ends slow start before packets are lost.
    pub hystart: HyStartRule,
    /// Pace at a share of cwnd/srtt.
    pub pacing: bool,
    /// Limit super-segments as Linux's TSO autosizing does: at least two packets, at most the data
    /// of about 1 ms at `pacing_rate`, never more than 64 KiB.
    pub tso_autosizing: bool,
    /// Maximum payload of a super-segment in bytes (1 packet when less than the MSS).
    pub super_segment_bytes: u32,
    /// Maximum delay of an acknowledgement; zero: none.
    pub delayed_ack: Duration,
    /// Packets at the start that are acknowledged immediately (Linux: quickack).
    pub quick_acks: u16,
    /// Adapt the acknowledgement delay as Linux does (`ato`, `pingpong`). It begins at
    /// [`SubflowConfig::delayed_ack`] and follows the pace of the data, up to a round trip. In a
    /// request-reply exchange, acknowledgements wait for the next reply.
    pub adapts_ack_delay: bool,
    /// Retransmission timeout before the first measurement.
    pub rto_initial: Duration,
    /// Lower bound of the retransmission timeout.
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout.
    pub rto_max: Duration,
    /// Granularity of timers (Linux: jiffies, 4 ms); zero: exact.
    pub timer_granularity: Duration,
    /// SYN (or SYN/ACK) retransmissions before giving up.
    pub syn_retries: u32,
    /// Number of SYN retransmissions at intervals of [`SubflowConfig::rto_initial`] before the
    /// interval doubles (Linux `tcp_syn_linear_timeouts`). The time until giving up stays that of
    /// doubling.
    pub linear_syns: u8,
    /// Consecutive retransmission timeouts before giving up (Linux `tcp_retries2`).
    pub retries: u32,
    /// Give up after this time without any acknowledgement (RFC 5482), if set.
    pub user_timeout: Option<Duration>,
    /// Keep-alive: idle time before the first probe, interval, and number of probes.
    pub keepalive: Option<(Duration, Duration, u32)>,
    /// Duration of the TIME-WAIT state.
    pub time_wait: Duration,
    /// Reduce the window after an idle time of one timeout (RFC 5681 §4.1).
    pub restart_after_idle: bool,
    /// Tail loss probe and RACK (RFC 8985); without it, three duplicate acknowledgements.
    pub rack: bool,
    /// Detect spurious timeouts (RFC 5682) and undo (DSACK, timestamps).
    pub undo: bool,
    /// Ignore a smaller window in an acknowledgement that repeats the last one (Linux
    /// `tcp_may_update_window`).
    pub keeps_larger_window: bool,
    /// Recover as Linux does where RFCs leave the choice or require less (`net/ipv4/tcp_input.c`):
    ///
    /// - A timeout in recovery causes no second reduction and releases one packet more than is in
    ///   flight (`tcp_enter_loss`).
    /// - Each of several consecutive timeouts may turn out to be spurious.
    /// - A retransmission that is lost after a timeout starts a recovery (`tcp_fastretrans_alert`,
    ///   `FLAG_LOST_RETRANS`).
    /// - A loss that a tail loss probe repaired starts none (`tcp_process_tlp_ack`).
    /// - The rate is reduced in proportion to the window, not to the bytes in flight
    ///   (`tcp_init_cwnd_reduction`).
    pub recovers_as_linux: bool,
    /// Measure as Linux does. The deviation is the maximum of a round and decays by a quarter per
    /// round. It grows slowly when the round-trip time falls (`tcp_rtt_estimator`). Any timestamp
    /// echoed by an acknowledgement of new data is a sample (`tcp_ack_update_rtt`).
    pub measures_as_linux: bool,
    /// Count queued and sent data as Linux counts memory, including each packet's overhead. Also
    /// follow Linux 6.18 in related behaviour. The send buffer grows when the window is not filled,
    /// and retransmissions do not count as a full window. After a pause every packet is
    /// acknowledged.
    pub counts_memory: bool,
    /// Initial memory for sent and waiting data, by Linux's accounting (`tcp_wmem`).
    pub send_buffer_initial_bytes: u32,
    /// Maximum size of the send buffer in bytes.
    pub send_buffer_max_bytes: u32,
    /// Nagle's algorithm (RFC 9293 §3.7.4) as in Linux (`tcp_minshall_check`). A partial last
    /// packet waits for the acknowledgement of an earlier partial one.
    pub nagle: bool,
    /// Find a smaller MTU when full packets vanish (RFC 4821).
    pub black_hole_detection: bool,
}

/// Maximum payload of a super-segment: with 100 bytes of headers it stays below 65536.
const SUPER_SEGMENT_BYTES: u32 = 65_400;

impl SubflowConfig {
    /// Returns the defaults of Linux 6.x (sysctls untouched, no `fq`).
    pub fn linux() -> Self {
        Self {
            congestion_control: "cubic".to_owned(),
            mtu_bytes: 1500,
            initial_window_packets: 10,
            timestamps: true,
            sack: true,
            window_scale: Some(10),
            ecn: false,
            accepts_ecn: false,
            hystart: HyStartRule::Rfc9406,
            pacing: false,
            tso_autosizing: true,
            super_segment_bytes: SUPER_SEGMENT_BYTES,
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            adapts_ack_delay: false,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            timer_granularity: Duration::from_millis(4),
            syn_retries: 6,
            linear_syns: 4,
            retries: 15,
            user_timeout: None,
            keepalive: None,
            time_wait: Duration::from_secs(60),
            restart_after_idle: true,
            rack: true,
            undo: true,
            keeps_larger_window: false,
            recovers_as_linux: false,
            measures_as_linux: false,
            counts_memory: false,
            send_buffer_initial_bytes: 16_384,
            send_buffer_max_bytes: 4 * 1024 * 1024,
            nagle: false,
            black_hole_detection: true,
        }
    }

    /// Returns the observed behaviour of Linux 6.18, without any tuning. Differs from
    /// [`SubflowConfig::linux`] in the end of slow start, memory, windows of repeated
    /// acknowledgements and Nagle's rule. Does not search for black holes.
    pub fn linux_6_18() -> Self {
        Self {
            hystart: HyStartRule::Linux,
            accepts_ecn: true,
            adapts_ack_delay: true,
            keeps_larger_window: true,
            recovers_as_linux: true,
            measures_as_linux: true,
            counts_memory: true,
            nagle: true,
            black_hole_detection: false,
            ..Self::linux()
        }
    }

    /// Returns the RFCs without a host's limits: single packets, acknowledged immediately, exact
    /// timers.
    pub fn ideal() -> Self {
        Self {
            tso_autosizing: false,
            super_segment_bytes: 0,
            delayed_ack: Duration::ZERO,
            timer_granularity: Duration::ZERO,
            linear_syns: 0,
            ..Self::linux()
        }
    }
}
