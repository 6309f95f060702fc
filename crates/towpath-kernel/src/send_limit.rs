//! Limits of a sender, derived from two samples of its connection in the kernel.
//!
//! Plain TCP counts the time that the peer's window and the send buffer held it back (chronographs
//! of `tcp_info`). The state in the later sample explains the rest of the time. A subflow of
//! Multipath TCP does not count these times, because data wait above it. There, the connection's
//! own sequence numbers decide. A limit without evidence is [`SendLimit::Unknown`].

use std::time::Duration;

use towpath_result::Part;
use towpath_scenario::Pattern;

use crate::sample::{MptcpInfo, TcpInfo};

/// Reason why a subflow did not send faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendLimit {
    /// The subflow is not established, or closed again.
    Handshake,
    /// The subflow is a backup, and regular ones exist.
    Backup,
    /// No acknowledgement has arrived for several timeouts.
    Stale,
    /// Congestion window in slow start, before any loss.
    SlowStart,
    /// Congestion window after it was reduced by a loss.
    AfterLoss,
    /// Congestion window after slow start ended without a loss.
    SmallWindow,
    /// Receive window of the peer, filled by this subflow's data.
    PeerWindow,
    /// The connection's window is full; data of this subflow (by index) block it.
    HolBlocked(usize),
    /// The application wrote no more data, although the send buffer had room.
    Application,
    /// The send buffer is full of unacknowledged data.
    SendBuffer,
    /// The sender paces its packets.
    Pacing,
    /// The scheduler sent the data on another subflow, although this one had room.
    Scheduler,
    /// The samples explain no limit.
    Unknown,
}

/// Send state of a Multipath TCP connection, above its subflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionSendState {
    /// Bytes written by the application and assigned to no subflow.
    pub unsent_bytes: u64,
    /// Bytes assigned to subflows and not acknowledged at connection level.
    pub outstanding_bytes: u64,
    /// Send buffer in bytes: used, and its size.
    pub buffer: (u64, u64),
}

impl ConnectionSendState {
    /// Derives the state from the kernel's sequence numbers and `SO_MEMINFO`.
    pub fn from_kernel(info: &MptcpInfo, buffer: (u64, u64)) -> Self {
        // Sequence numbers wrap, so they are only meaningful relative to the acknowledged one.
        let written = info.write_seq.wrapping_sub(info.snd_una);
        let outstanding = info.bytes_sent.saturating_sub(info.bytes_acked);
        Self {
            unsent_bytes: written.saturating_sub(outstanding),
            outstanding_bytes: outstanding,
            buffer,
        }
    }
}

/// Returns true if a writer still waits for space. Linux wakes it when a third of the buffer is
/// free.
fn is_buffer_full((queued_bytes, buffer_bytes): (u64, u64)) -> bool {
    buffer_bytes > 0 && queued_bytes * 5 >= buffer_bytes * 3
}

/// Two successive samples of a subflow.
#[derive(Debug, Clone, Copy)]
pub struct SubflowDelta<'a> {
    /// Sample at the start of the period.
    pub before: &'a TcpInfo,
    /// Sample at the end of the period.
    pub now: &'a TcpInfo,
    /// True for a backup subflow.
    pub backup: bool,
    /// Set when an earlier loss has reduced its congestion window.
    pub cwnd_reduced: bool,
}

impl SubflowDelta<'_> {
    /// Returns true if a loss reduced the congestion window between the two samples.
    pub fn is_cwnd_reduced(&self) -> bool {
        self.now.total_retrans > self.before.total_retrans || self.now.ca_state > 1
    }
}

/// Limits of a sender, each with its share of an interval; the shares sum up to 1.
pub(crate) type LimitShares = Vec<(SendLimit, f64)>;

/// Origin of the samples of a sender, and the state above its subflows.
#[derive(Debug, Clone, Copy)]
pub enum InfoSource {
    /// The kernel, for a Multipath TCP connection.
    Multipath(ConnectionSendState),
    /// The kernel, for plain TCP: bytes used in the send buffer, and its size.
    Single((u64, u64)),
    /// A library, which reports only windows.
    Library,
}

/// Returns the limits of each subflow of a connection in an interval of `span`. An `endless` source
/// always has something to send.
pub fn connection_limits(
    source: InfoSource,
    subflows: &[SubflowDelta<'_>],
    endless: bool,
    span: Duration,
) -> Vec<LimitShares> {
    match source {
        InfoSource::Multipath(send_state) => mptcp_limits(&send_state, subflows)
            .into_iter()
            .map(|limit| vec![(limit, 1.0)])
            .collect(),
        InfoSource::Single(buffer) => {
            subflows.iter().map(|subflow| plain_tcp_limits(subflow, buffer, span)).collect()
        }
        InfoSource::Library => {
            subflows.iter().map(|subflow| vec![(library_limit(subflow, endless), 1.0)]).collect()
        }
    }
}

/// Returns true if the sender of a flow always has data.
pub fn is_endless(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Bulk { size_bytes, .. } => size_bytes.is_none(),
        Pattern::Iperf { .. } => true,
        Pattern::Exchange(_)
        | Pattern::Video(_)
        | Pattern::Web(_)
        | Pattern::Udping(_)
        | Pattern::Udp(_)
        | Pattern::Run { .. } => false,
    }
}

/// Converts a limit to a part of the account. `loss_cause` is the reason why the congestion window
/// was reduced. An `endless` source without data was only late: its CPU was the limit.
pub fn account_part(limit: SendLimit, loss_cause: Option<Part>, endless: bool) -> Part {
    match limit {
        SendLimit::Handshake => Part::Handshake,
        SendLimit::Backup => Part::Backup,
        SendLimit::Stale => Part::Stale,
        SendLimit::SlowStart => Part::SlowStart,
        SendLimit::AfterLoss => loss_cause.unwrap_or(Part::AfterLoss),
        SendLimit::SmallWindow => Part::CongestionAvoidance,
        SendLimit::PeerWindow => Part::PeerWindow,
        SendLimit::HolBlocked(_) => Part::HeadOfLineBlocking,
        SendLimit::Application if endless => Part::SenderCpu,
        SendLimit::Application => Part::Application,
        SendLimit::SendBuffer => Part::SendBuffer,
        SendLimit::Pacing => Part::Pacing,
        SendLimit::Scheduler => Part::Scheduler,
        SendLimit::Unknown => Part::Unknown,
    }
}

/// Returns the limits of a plain TCP connection. `buffer` is the send buffer: bytes used, and its
/// size.
pub(crate) fn plain_tcp_limits(
    delta: &SubflowDelta<'_>,
    buffer: (u64, u64),
    span: Duration,
) -> LimitShares {
    let SubflowDelta { before, now, .. } = *delta;
    if now.state != TcpInfo::ESTABLISHED && now.bytes_sent == before.bytes_sent {
        return vec![(SendLimit::Handshake, 1.0)];
    }
    let span = span.as_micros().max(1) as f64;
    let share_between = |now: u64, before: u64| (now.saturating_sub(before) as f64 / span).min(1.0);
    // Jiffies are coarse: a subflow with unsent or unacknowledged data in both samples was busy
    // between them.
    let has_data = |info: &TcpInfo| info.unacked > 0 || info.notsent_bytes > 0;
    let was_busy = has_data(before) && has_data(now);
    let busy_share = if was_busy { 1.0 } else { share_between(now.busy_us, before.busy_us) };
    let window_share = share_between(now.rwnd_limited_us, before.rwnd_limited_us).min(busy_share);
    let buffer_share = share_between(now.sndbuf_limited_us, before.sndbuf_limited_us)
        .min(busy_share - window_share);
    let other_share = busy_share - window_share - buffer_share;
    // Linux counts a full buffer only right after it has sent, so most of that time is missing.
    let no_data_limit =
        if is_buffer_full(buffer) { SendLimit::SendBuffer } else { SendLimit::Application };
    let shares = [
        (SendLimit::Application, 1.0 - busy_share),
        (SendLimit::PeerWindow, window_share),
        (SendLimit::SendBuffer, buffer_share),
        (subflow_limit(delta).unwrap_or(no_data_limit), other_share),
    ];
    shares.into_iter().filter(|(_, share)| *share > 0.0).collect()
}

/// Returns the limit of a subflow that has data to send; `None` without data.
fn subflow_limit(delta: &SubflowDelta<'_>) -> Option<SendLimit> {
    let now = delta.now;
    let waiting_for_timeout = now.ca_state >= 4 || now.backoff > 0;
    if waiting_for_timeout && now.unacked > 0 {
        return Some(if now.backoff > 1 { SendLimit::Stale } else { SendLimit::AfterLoss });
    }
    if now.notsent_bytes == 0 {
        return None;
    }
    let sent_bytes = u64::from(now.unacked) * u64::from(now.mss_bytes);
    let room = now.snd_wnd_bytes.map(|window| u64::from(window).saturating_sub(sent_bytes));
    if room.is_some_and(|room| room < u64::from(now.mss_bytes)) {
        return Some(SendLimit::PeerWindow);
    }
    // Linux waits until a third of the window is free, and then sends that much at once.
    if u64::from(now.in_flight()) * 3 + 6 >= u64::from(now.cwnd) * 2 {
        return Some(cwnd_limit(delta));
    }
    let cwnd_rate =
        u64::from(now.cwnd) * u64::from(now.mss_bytes) * 1_000_000 / u64::from(now.srtt_us.max(1));
    // BBR paces at the measured delivery rate, regardless of its window and the queue.
    let max_paced_rate = cwnd_rate.max(now.delivery_bytes_per_s).saturating_mul(2);
    let is_paced = now.pacing_bytes_per_s > 0 && now.pacing_bytes_per_s <= max_paced_rate;
    Some(if is_paced { SendLimit::Pacing } else { SendLimit::Unknown })
}

/// Returns the limit of a subflow of which only the window is known, such as a QUIC path. An
/// `endless` source always has something to send.
pub(crate) fn library_limit(delta: &SubflowDelta<'_>, endless: bool) -> SendLimit {
    let now = delta.now;
    if now.state == TcpInfo::QUIC_VALIDATING {
        return SendLimit::Handshake;
    }
    if delta.backup {
        return SendLimit::Backup;
    }
    if u64::from(now.in_flight()) * 10 >= u64::from(now.cwnd) * 8 {
        return cwnd_limit(delta);
    }
    if endless { SendLimit::Unknown } else { SendLimit::Application }
}

fn cwnd_limit(delta: &SubflowDelta<'_>) -> SendLimit {
    if delta.cwnd_reduced || delta.now.ca_state > 1 {
        SendLimit::AfterLoss
    } else if delta.now.cwnd < delta.now.ssthresh {
        SendLimit::SlowStart
    } else {
        SendLimit::SmallWindow
    }
}

/// Returns the limit of each subflow of a Multipath TCP connection.
pub(crate) fn mptcp_limits(
    send_state: &ConnectionSendState,
    subflows: &[SubflowDelta<'_>],
) -> Vec<SendLimit> {
    let is_usable = |subflow: &SubflowDelta<'_>| {
        subflow.now.state == TcpInfo::ESTABLISHED && !subflow.backup && subflow.now.backoff == 0
    };
    let has_regular = subflows.iter().any(is_usable);
    let max_mss = subflows.iter().map(|subflow| u64::from(subflow.now.mss_bytes)).max();
    let needed_window = send_state.outstanding_bytes + max_mss.unwrap_or(0);
    let is_window_full =
        connection_window(subflows).is_some_and(|window| needed_window > u64::from(window));
    let limit_of = |index: usize, subflow: &SubflowDelta<'_>| {
        let now = subflow.now;
        if now.state != TcpInfo::ESTABLISHED && now.bytes_sent == subflow.before.bytes_sent {
            return SendLimit::Handshake;
        }
        match subflow_limit(subflow) {
            // The window belongs to the connection; this subflow's data may be a window probe.
            Some(SendLimit::PeerWindow) => return window_blocked_limit(index, subflows),
            Some(limit) => return limit,
            None => {}
        }
        if subflow.backup && has_regular {
            return SendLimit::Backup;
        }
        if send_state.unsent_bytes > 0 {
            if is_window_full {
                return window_blocked_limit(index, subflows);
            }
            // Unsent data may still find no room in this subflow's window.
            let has_room = u64::from(now.in_flight()) * 10 < u64::from(now.cwnd) * 9;
            return if has_room { SendLimit::Scheduler } else { cwnd_limit(subflow) };
        }
        if is_buffer_full(send_state.buffer) {
            SendLimit::SendBuffer
        } else {
            SendLimit::Application
        }
    };
    subflows.iter().enumerate().map(|(index, subflow)| limit_of(index, subflow)).collect()
}

/// Returns the connection's window, which counts from the first unacknowledged byte. It is taken
/// from the subflow whose last ACK left the peer most recently.
pub fn connection_window(subflows: &[SubflowDelta<'_>]) -> Option<u32> {
    let age_us =
        |now: &TcpInfo| u64::from(now.last_ack_received_ms) * 1_000 + u64::from(now.min_rtt_us) / 2;
    let samples = subflows.iter().map(|subflow| subflow.now);
    let established = samples.filter(|now| now.state == TcpInfo::ESTABLISHED);
    let windows = established.filter_map(|now| Some((age_us(now), now.snd_wnd_bytes?)));
    windows.min().map(|(_, window)| window)
}

/// Attributes a full window to the subflow with the slowest data, if another one waits for it.
fn window_blocked_limit(index: usize, subflows: &[SubflowDelta<'_>]) -> SendLimit {
    let slowest =
        subflows.iter().enumerate().filter(|(_, subflow)| subflow.now.unacked > 0).max_by_key(
            |(_, subflow)| {
                // On a silent path, the round trip takes at least the time since the last ACK.
                let silent_us = u64::from(subflow.now.last_ack_received_ms) * 1_000;
                silent_us.max(u64::from(subflow.now.srtt_us))
            },
        );
    match slowest {
        Some((slowest, _)) if slowest != index => SendLimit::HolBlocked(slowest),
        Some(_) | None => SendLimit::PeerWindow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_448;

    /// Returns a subflow with 20 of 100 packets in flight, no unsent data and a large window.
    fn established_info() -> TcpInfo {
        TcpInfo {
            state: TcpInfo::ESTABLISHED,
            mss_bytes: MSS,
            unacked: 20,
            cwnd: 100,
            ssthresh: i32::MAX as u32,
            srtt_us: 20_000,
            snd_wnd_bytes: Some(1_000_000),
            bytes_sent: 1_000_000,
            ..TcpInfo::default()
        }
    }

    fn delta<'a>(before: &'a TcpInfo, now: &'a TcpInfo) -> SubflowDelta<'a> {
        SubflowDelta { before, now, backup: false, cwnd_reduced: false }
    }

    #[test]
    fn plain_tcp_limits_come_from_the_chronographs_first() {
        let before = TcpInfo { unacked: 0, ..established_info() };
        let now = TcpInfo {
            busy_us: 8_000,
            rwnd_limited_us: 4_000,
            sndbuf_limited_us: 2_000,
            notsent_bytes: 100_000,
            unacked: 100,
            ..before
        };
        let shares = plain_tcp_limits(&delta(&before, &now), (0, 100), Duration::from_millis(10));
        let share = |limit| shares.iter().find(|(l, _)| *l == limit).map(|(_, share)| *share);
        let is_close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(is_close(share(SendLimit::PeerWindow), 0.4), "{shares:?}");
        assert!(is_close(share(SendLimit::SendBuffer), 0.2), "{shares:?}");
        assert!(is_close(share(SendLimit::Application), 0.2), "{shares:?}");
        assert!(is_close(share(SendLimit::SlowStart), 0.2), "{shares:?}");
    }

    #[test]
    fn plain_tcp_with_a_full_and_sent_buffer_is_buffer_limited() {
        let before = established_info();
        // The 10 ms contain two jiffies of 4 ms.
        let now = TcpInfo { busy_us: 8_000, ..before };
        let shares =
            |buffer| plain_tcp_limits(&delta(&before, &now), buffer, Duration::from_millis(10));
        assert_eq!(shares((70, 100)), [(SendLimit::SendBuffer, 1.0)]);
        assert_eq!(shares((50, 100)), [(SendLimit::Application, 1.0)]);
    }

    #[test]
    fn a_sender_at_the_delivery_rate_is_paced_for_any_queue_length() {
        // A window of 100 packets in 300 ms, mostly queueing delay, is a third of the rate.
        let bbr = TcpInfo {
            notsent_bytes: 50_000,
            srtt_us: 300_000,
            pacing_bytes_per_s: 1_500_000,
            delivery_bytes_per_s: 1_250_000,
            ..established_info()
        };
        assert_eq!(subflow_limit(&delta(&bbr, &bbr)), Some(SendLimit::Pacing));
        let fast_pacing = TcpInfo { pacing_bytes_per_s: 10_000_000, ..bbr };
        assert_eq!(subflow_limit(&delta(&fast_pacing, &fast_pacing)), Some(SendLimit::Unknown));
    }

    #[test]
    fn a_full_congestion_window_names_the_cause_of_its_size() {
        let full = TcpInfo { notsent_bytes: 50_000, unacked: 100, ..established_info() };
        let limit_of = |info: &TcpInfo, cwnd_reduced| {
            subflow_limit(&SubflowDelta { before: info, now: info, backup: false, cwnd_reduced })
        };
        assert_eq!(limit_of(&full, false), Some(SendLimit::SlowStart));
        assert_eq!(limit_of(&full, true), Some(SendLimit::AfterLoss));
        assert_eq!(
            limit_of(&TcpInfo { ssthresh: 90, ..full }, false),
            Some(SendLimit::SmallWindow)
        );
        let timeout = TcpInfo { ca_state: 4, notsent_bytes: 0, ..full };
        assert_eq!(limit_of(&timeout, false), Some(SendLimit::AfterLoss));
        assert_eq!(limit_of(&TcpInfo { backoff: 3, ..timeout }, false), Some(SendLimit::Stale));
        assert_eq!(limit_of(&TcpInfo { notsent_bytes: 0, ..full }, true), None);
    }

    #[test]
    fn a_full_connection_window_names_the_path_that_is_slowest() {
        let fast = established_info();
        let slow = TcpInfo { srtt_us: 2_000_000, ..established_info() };
        let send_state = ConnectionSendState {
            unsent_bytes: 500_000,
            outstanding_bytes: 999_000,
            ..ConnectionSendState::default()
        };
        let subflows = [delta(&fast, &fast), delta(&slow, &slow)];
        assert_eq!(
            mptcp_limits(&send_state, &subflows),
            [SendLimit::HolBlocked(1), SendLimit::PeerWindow]
        );
        // The last ACK on the slow subflow carried a window relative to an earlier byte.
        let (fast, slow) = (
            TcpInfo { snd_wnd_bytes: Some(900_000), ..fast },
            TcpInfo { last_ack_received_ms: 300, ..slow },
        );
        let later_subflows = [delta(&fast, &fast), delta(&slow, &slow)];
        let less_outstanding = ConnectionSendState { outstanding_bytes: 900_000, ..send_state };
        assert_eq!(
            mptcp_limits(&less_outstanding, &later_subflows),
            [SendLimit::HolBlocked(1), SendLimit::PeerWindow]
        );
        let small_outstanding = ConnectionSendState { outstanding_bytes: 100_000, ..send_state };
        assert_eq!(
            mptcp_limits(&small_outstanding, &subflows),
            [SendLimit::Scheduler, SendLimit::Scheduler]
        );
    }

    #[test]
    fn no_unsent_data_means_the_application_or_its_buffer_limits() {
        let info = established_info();
        let subflows = [delta(&info, &info)];
        let idle = ConnectionSendState { buffer: (10, 100), ..ConnectionSendState::default() };
        assert_eq!(mptcp_limits(&idle, &subflows), [SendLimit::Application]);
        let full = ConnectionSendState { buffer: (70, 100), ..idle };
        assert_eq!(mptcp_limits(&full, &subflows), [SendLimit::SendBuffer]);
    }

    #[test]
    fn a_backup_waits_only_while_a_regular_subflow_works() {
        let info = established_info();
        let backup = SubflowDelta { backup: true, ..delta(&info, &info) };
        let send_state = ConnectionSendState { unsent_bytes: 1, ..ConnectionSendState::default() };
        let limits = mptcp_limits(&send_state, &[delta(&info, &info), backup]);
        assert_eq!(limits, [SendLimit::Scheduler, SendLimit::Backup]);
        let silent = TcpInfo { backoff: 4, ..info };
        let limits = mptcp_limits(&send_state, &[delta(&silent, &silent), backup]);
        assert_eq!(limits, [SendLimit::Stale, SendLimit::Scheduler]);
    }

    #[test]
    fn unsent_bytes_are_written_but_not_assigned_to_a_subflow() {
        let info = MptcpInfo {
            write_seq: 500, // has wrapped
            snd_una: u64::MAX - 499,
            bytes_sent: 10_300,
            bytes_acked: 10_000,
            ..MptcpInfo::default()
        };
        let send_state = ConnectionSendState::from_kernel(&info, (1, 2));
        assert_eq!((send_state.unsent_bytes, send_state.outstanding_bytes), (700, 300));
    }
}
