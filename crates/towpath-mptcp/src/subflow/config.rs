//! Switches and constants of a subflow.

use std::time::Duration;

use towpath_multipath::congestion::HyStartRule;

/// Switches and constants. `linux()` is what Linux 6.x does, `ideal()` the RFCs without a host's
/// limits.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "switches of users")]
pub struct SubflowConfig {
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
    /// Offer ECN, and accept it.
    pub ecn: bool,
    /// Accept ECN, though it is not offered (Linux `tcp_ecn` 2).
    pub accepts_ecn: bool,
    /// What ends slow start before packets are lost.
    pub hystart: HyStartRule,
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
    pub quick_acks: u16,
    /// As Linux (`ato`, `pingpong`): the delay of an acknowledgement, which begins at
    /// [`SubflowConfig::delayed_ack`], follows the pace of the data up to a round trip; and where data answers
    /// data within it, acknowledgements wait for the next answer.
    pub adapts_ack_delay: bool,
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
    /// So many SYNs are repeated after [`SubflowConfig::rto_initial`] each, before the time doubles (Linux
    /// `tcp_syn_linear_timeouts`). The time until giving up stays that of doubling.
    pub linear_syns: u8,
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
    /// A smaller window of an acknowledgement that repeats the last one is not believed (Linux
    /// `tcp_may_update_window`).
    pub keeps_larger_window: bool,
    /// Repair as Linux, where RFCs leave the choice or want less (`net/ipv4/tcp_input.c`): a timeout in
    /// recovery takes no second reduction, and lets go one packet more than is in flight
    /// (`tcp_enter_loss`); of several timeouts in a row each may turn out to be spurious; a repair that
    /// is lost after a timeout begins a recovery (`tcp_fastretrans_alert`, `FLAG_LOST_RETRANS`); what a
    /// tail loss probe repaired needs none (`tcp_process_tlp_ack`); and the rate is reduced in
    /// proportion to the window, not to what was in flight (`tcp_init_cwnd_reduction`).
    pub recovers_as_linux: bool,
    /// Measure as Linux: the deviation is the largest of a round, forgotten by a quarter in each round,
    /// and grows slowly when the round-trip time falls (`tcp_rtt_estimator`); whatever timestamp an
    /// acknowledgement of new data echoes is a sample (`tcp_ack_update_rtt`).
    pub measures_as_linux: bool,
    /// Count what waits and what is sent in Linux's memory, with what each packet takes of it; follow
    /// what Linux 6.18 does around it: the send buffer grows when the window is not filled, what is
    /// repeated does not count as a full window, and after a pause every packet is acknowledged.
    pub counts_memory: bool,
    /// Memory for data that is sent and not acknowledged, or waits: at first, as Linux counts it
    /// (`tcp_wmem`).
    pub send_buffer_initial_bytes: u32,
    /// And at most.
    pub send_buffer_max_bytes: u32,
    /// The last packet waits, if it is not full, for the acknowledgement of another one that was not
    /// full either: Nagle's rule (RFC 9293 §3.7.4) as Linux has it (`tcp_minshall_check`).
    pub nagle: bool,
    /// Find a smaller MTU when full packets vanish (RFC 4821).
    pub black_hole_detection: bool,
}

/// Payload of the longest super-segment: with 100 bytes of headers it stays below 65536.
const SUPER_SEGMENT_BYTES: u32 = 65_400;

impl SubflowConfig {
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

    /// What Linux 6.18 was seen to do where nothing had been chosen to fit: beside [`SubflowConfig::linux`], the
    /// end of slow start, memory, windows of repeated acknowledgements, Nagle's rule, and no search for
    /// black holes.
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

    /// The RFCs without a host's limits: single packets, acknowledged at once, exact timers.
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
