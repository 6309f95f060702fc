//! What a sender waited for, judged by what the kernel says of its connection at two moments.
//!
//! Plain TCP counts for how long the peer's window and the send buffer held it back (`tcp_info`'s
//! chronographs); the rest of the time is judged by the state at the later moment. A subflow of
//! Multipath TCP does not count these: data wait above it, so there the connection's own sequence
//! numbers decide. What nothing tells is [`Limit::NotKnown`].

use std::time::Duration;

use towpath_measure::result::Part;
use towpath_measure::scenario::Pattern;

use crate::sample::{MptcpInfo, TcpInfo};

/// What a subflow waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// It is not open yet, or not any more.
    Handshake,
    /// It is a backup, and others are there.
    Backup,
    /// Nothing has come back for several timeouts.
    Silent,
    /// The congestion window, which no loss has cut yet.
    SlowStart,
    /// The congestion window, which a loss has cut.
    AfterLoss,
    /// The congestion window, which has left slow start without a loss.
    SmallWindow,
    /// The window that the peer offers to this one subflow's data.
    PeerWindow,
    /// The connection's window is full, and the data of this subflow (by place) are in the way.
    WindowBehind(usize),
    /// The application has written nothing more, and had room to.
    Application,
    /// The send buffer is full of what waits for acknowledgements.
    SendBuffer,
    /// The sender spreads packets over time.
    Pacing,
    /// There were data and room, but they went elsewhere.
    Scheduler,
    /// Nothing tells.
    NotKnown,
}

/// What is known above the subflows of a Multipath TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Above {
    /// Written by the application and given to no subflow.
    pub(crate) unsent_bytes: u64,
    /// Given to subflows and not acknowledged at connection level.
    pub(crate) outstanding_bytes: u64,
    /// Send buffer: what is in it, and how much may be.
    pub(crate) buffer: (u64, u64),
}

impl Above {
    /// From the kernel's sequence numbers and `SO_MEMINFO`.
    pub(crate) fn of(info: &MptcpInfo, buffer: (u64, u64)) -> Self {
        // Numbers wrap, and their beginning is only known from what was acknowledged.
        let written = info.write_seq.wrapping_sub(info.snd_una);
        let outstanding = info.bytes_sent.saturating_sub(info.bytes_acked);
        Self {
            unsent_bytes: written.saturating_sub(outstanding),
            outstanding_bytes: outstanding,
            buffer,
        }
    }
}

/// Whether a writer waits for room: one that found the buffer full is woken when a third is free.
fn is_full((queued_bytes, buffer_bytes): (u64, u64)) -> bool {
    buffer_bytes > 0 && queued_bytes * 5 >= buffer_bytes * 3
}

/// A subflow at two moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between<'a> {
    pub(crate) before: &'a TcpInfo,
    pub(crate) now: &'a TcpInfo,
    pub(crate) backup: bool,
    /// A loss has cut its congestion window before.
    pub(crate) cut: bool,
}

impl Between<'_> {
    /// Whether a loss has cut the congestion window between the two moments.
    pub(crate) fn is_cut_now(&self) -> bool {
        self.now.total_retrans > self.before.total_retrans || self.now.recovery > 1
    }
}

/// Parts of a time, together 1.
pub(crate) type Shares = Vec<(Limit, f64)>;

/// Who tells of a sender, and what is known above its subflows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// The kernel, of a connection with several subflows.
    Multipath(Above),
    /// The kernel, of plain TCP and its send buffer.
    Single((u64, u64)),
    /// A library: of it, windows are known.
    Library,
}

/// What each subflow of a connection waited for in a time of `span`; an `endless` source always has
/// something to send.
pub(crate) fn of_connection(
    source: Source,
    subflows: &[Between<'_>],
    endless: bool,
    span: Duration,
) -> Vec<Shares> {
    match source {
        Source::Multipath(above) => {
            multipath(&above, subflows).into_iter().map(|limit| vec![(limit, 1.0)]).collect()
        }
        Source::Single(buffer) => subflows.iter().map(|one| single(one, buffer, span)).collect(),
        Source::Library => {
            subflows.iter().map(|one| vec![(by_window(one, endless), 1.0)]).collect()
        }
    }
}

/// Whether the source of a flow never runs dry.
pub(crate) fn is_endless(pattern: &Pattern) -> bool {
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

/// What an account calls it; `cut` is what has cut the congestion window, and a source that is
/// `endless` was only not there in time.
pub(crate) fn part(limit: Limit, cut: Option<Part>, endless: bool) -> Part {
    match limit {
        Limit::Handshake => Part::Handshake,
        Limit::Backup => Part::Backup,
        Limit::Silent => Part::Stale,
        Limit::SlowStart => Part::SlowStart,
        Limit::AfterLoss => cut.unwrap_or(Part::AfterLoss),
        Limit::SmallWindow => Part::CongestionAvoidance,
        Limit::PeerWindow => Part::PeerWindow,
        Limit::WindowBehind(_) => Part::HeadOfLineBlocking,
        Limit::Application if endless => Part::SenderCpu,
        Limit::Application => Part::Application,
        Limit::SendBuffer => Part::SendBuffer,
        Limit::Pacing => Part::Pacing,
        Limit::Scheduler => Part::Scheduler,
        Limit::NotKnown => Part::Unknown,
    }
}

/// What a connection of plain TCP waited for; its send buffer holds so much, and may so much.
pub(crate) fn single(between: &Between<'_>, buffer: (u64, u64), span: Duration) -> Shares {
    let Between { before, now, .. } = *between;
    if now.state != TcpInfo::ESTABLISHED && now.bytes_sent == before.bytes_sent {
        return vec![(Limit::Handshake, 1.0)];
    }
    let span = span.as_micros().max(1) as f64;
    let since = |now: u64, before: u64| (now.saturating_sub(before) as f64 / span).min(1.0);
    // Jiffies are coarse: who had something to send or to have acknowledged at both moments was busy
    // between them.
    let waiting = |info: &TcpInfo| info.unacked > 0 || info.notsent_bytes > 0;
    let both = waiting(before) && waiting(now);
    let busy = if both { 1.0 } else { since(now.busy_us, before.busy_us) };
    let window = since(now.rwnd_limited_us, before.rwnd_limited_us).min(busy);
    let sent = since(now.sndbuf_limited_us, before.sndbuf_limited_us).min(busy - window);
    let rest = busy - window - sent;
    // Linux counts the buffer only while it has just sent, so most of such a time goes uncounted.
    let nothing = if is_full(buffer) { Limit::SendBuffer } else { Limit::Application };
    let all = [
        (Limit::Application, 1.0 - busy),
        (Limit::PeerWindow, window),
        (Limit::SendBuffer, sent),
        (own_limit(between).unwrap_or(nothing), rest),
    ];
    all.into_iter().filter(|(_, share)| *share > 0.0).collect()
}

/// What keeps a subflow from sending what it has; `None` when it has nothing.
fn own_limit(between: &Between<'_>) -> Option<Limit> {
    let now = between.now;
    let waiting_for_timeout = now.recovery >= 4 || now.backoff > 0;
    if waiting_for_timeout && now.unacked > 0 {
        return Some(if now.backoff > 1 { Limit::Silent } else { Limit::AfterLoss });
    }
    if now.notsent_bytes == 0 {
        return None;
    }
    let sent_bytes = u64::from(now.unacked) * u64::from(now.mss_bytes);
    let room = now.snd_wnd_bytes.map(|window| u64::from(window).saturating_sub(sent_bytes));
    if room.is_some_and(|room| room < u64::from(now.mss_bytes)) {
        return Some(Limit::PeerWindow);
    }
    // Linux waits until a third of the window is free, and then sends it at once.
    if u64::from(now.in_flight()) * 3 + 6 >= u64::from(now.cwnd) * 2 {
        return Some(window_limit(between));
    }
    let fair =
        u64::from(now.cwnd) * u64::from(now.mss_bytes) * 1_000_000 / u64::from(now.srtt_us.max(1));
    // BBR paces at what it has seen delivered, whatever its window and the queue before it are.
    let most = fair.max(now.delivery_bytes_per_s).saturating_mul(2);
    let paced = now.pacing_bytes_per_s > 0 && now.pacing_bytes_per_s <= most;
    Some(if paced { Limit::Pacing } else { Limit::NotKnown })
}

/// What a subflow waited for of which only the window is known, such as a path of QUIC; an `endless`
/// source always has something to send.
pub(crate) fn by_window(between: &Between<'_>, endless: bool) -> Limit {
    let now = between.now;
    if now.state == TcpInfo::VALIDATING {
        return Limit::Handshake;
    }
    if between.backup {
        return Limit::Backup;
    }
    if u64::from(now.in_flight()) * 10 >= u64::from(now.cwnd) * 8 {
        return window_limit(between);
    }
    if endless { Limit::NotKnown } else { Limit::Application }
}

fn window_limit(between: &Between<'_>) -> Limit {
    if between.cut || between.now.recovery > 1 {
        Limit::AfterLoss
    } else if between.now.cwnd < between.now.ssthresh {
        Limit::SlowStart
    } else {
        Limit::SmallWindow
    }
}

/// What each subflow of a Multipath TCP connection waited for.
pub(crate) fn multipath(above: &Above, subflows: &[Between<'_>]) -> Vec<Limit> {
    let carries = |subflow: &Between<'_>| {
        subflow.now.state == TcpInfo::ESTABLISHED && !subflow.backup && subflow.now.backoff == 0
    };
    let regular = subflows.iter().any(carries);
    let packet = subflows.iter().map(|subflow| u64::from(subflow.now.mss_bytes)).max();
    let needed = above.outstanding_bytes + packet.unwrap_or(0);
    let full = window(subflows).is_some_and(|window| needed > u64::from(window));
    let of = |at: usize, subflow: &Between<'_>| {
        let now = subflow.now;
        if now.state != TcpInfo::ESTABLISHED && now.bytes_sent == subflow.before.bytes_sent {
            return Limit::Handshake;
        }
        match own_limit(subflow) {
            // The window belongs to the connection; what the subflow has may be a probe of it.
            Some(Limit::PeerWindow) => return blocked(at, subflows),
            Some(limit) => return limit,
            None => {}
        }
        if subflow.backup && regular {
            return Limit::Backup;
        }
        if above.unsent_bytes > 0 {
            if full {
                return blocked(at, subflows);
            }
            // What is to be sent may well have no room here.
            let room = u64::from(now.in_flight()) * 10 < u64::from(now.cwnd) * 9;
            return if room { Limit::Scheduler } else { window_limit(subflow) };
        }
        if is_full(above.buffer) { Limit::SendBuffer } else { Limit::Application }
    };
    subflows.iter().enumerate().map(|(at, subflow)| of(at, subflow)).collect()
}

/// The connection's window counts from the first byte without acknowledgement; so the subflow knows it
/// whose latest news left the peer last.
pub(crate) fn window(subflows: &[Between<'_>]) -> Option<u32> {
    let age_us =
        |now: &TcpInfo| u64::from(now.last_ack_received_ms) * 1_000 + u64::from(now.min_rtt_us) / 2;
    let all = subflows.iter().map(|subflow| subflow.now);
    let open = all.filter(|now| now.state == TcpInfo::ESTABLISHED);
    let known = open.filter_map(|now| Some((age_us(now), now.snd_wnd_bytes?)));
    known.min().map(|(_, window)| window)
}

/// A full window is in the hands of the subflow whose data take longest, if another one waits for it.
fn blocked(at: usize, subflows: &[Between<'_>]) -> Limit {
    let slowest =
        subflows.iter().enumerate().filter(|(_, subflow)| subflow.now.unacked > 0).max_by_key(
            |(_, subflow)| {
                // A round trip that nobody has measured since the path went silent is longer than that.
                let silent_us = u64::from(subflow.now.last_ack_received_ms) * 1_000;
                silent_us.max(u64::from(subflow.now.srtt_us))
            },
        );
    match slowest {
        Some((slowest, _)) if slowest != at => Limit::WindowBehind(slowest),
        Some(_) | None => Limit::PeerWindow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_448;

    /// 20 of 100 packets in flight, nothing waiting, a large window.
    fn open() -> TcpInfo {
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

    fn between<'a>(before: &'a TcpInfo, now: &'a TcpInfo) -> Between<'a> {
        Between { before, now, backup: false, cut: false }
    }

    #[test]
    fn plain_tcp_is_judged_by_its_chronographs_first() {
        let before = TcpInfo { unacked: 0, ..open() };
        let now = TcpInfo {
            busy_us: 8_000,
            rwnd_limited_us: 4_000,
            sndbuf_limited_us: 2_000,
            notsent_bytes: 100_000,
            unacked: 100,
            ..before
        };
        let shares = single(&between(&before, &now), (0, 100), Duration::from_millis(10));
        let share = |limit| shares.iter().find(|(l, _)| *l == limit).map(|(_, share)| *share);
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(close(share(Limit::PeerWindow), 0.4), "{shares:?}");
        assert!(close(share(Limit::SendBuffer), 0.2), "{shares:?}");
        assert!(close(share(Limit::Application), 0.2), "{shares:?}");
        assert!(close(share(Limit::SlowStart), 0.2), "{shares:?}");
    }

    #[test]
    fn plain_tcp_with_a_full_and_sent_buffer_is_buffer_limited() {
        let before = open();
        // Two jiffies of 4 ms have passed in the 10 ms.
        let now = TcpInfo { busy_us: 8_000, ..before };
        let shares = |buffer| single(&between(&before, &now), buffer, Duration::from_millis(10));
        assert_eq!(shares((70, 100)), [(Limit::SendBuffer, 1.0)]);
        assert_eq!(shares((50, 100)), [(Limit::Application, 1.0)]);
    }

    #[test]
    fn a_sender_at_the_delivery_rate_is_paced_for_any_queue_length() {
        // 100 packets of window in 300 ms, of which the queue is most, are a third of the rate.
        let bbr = TcpInfo {
            notsent_bytes: 50_000,
            srtt_us: 300_000,
            pacing_bytes_per_s: 1_500_000,
            delivery_bytes_per_s: 1_250_000,
            ..open()
        };
        assert_eq!(own_limit(&between(&bbr, &bbr)), Some(Limit::Pacing));
        let free = TcpInfo { pacing_bytes_per_s: 10_000_000, ..bbr };
        assert_eq!(own_limit(&between(&free, &free)), Some(Limit::NotKnown));
    }

    #[test]
    fn a_full_congestion_window_names_the_cause_of_its_size() {
        let full = TcpInfo { notsent_bytes: 50_000, unacked: 100, ..open() };
        let judged = |info: &TcpInfo, cut| {
            own_limit(&Between { before: info, now: info, backup: false, cut })
        };
        assert_eq!(judged(&full, false), Some(Limit::SlowStart));
        assert_eq!(judged(&full, true), Some(Limit::AfterLoss));
        assert_eq!(judged(&TcpInfo { ssthresh: 90, ..full }, false), Some(Limit::SmallWindow));
        let timeout = TcpInfo { recovery: 4, notsent_bytes: 0, ..full };
        assert_eq!(judged(&timeout, false), Some(Limit::AfterLoss));
        assert_eq!(judged(&TcpInfo { backoff: 3, ..timeout }, false), Some(Limit::Silent));
        assert_eq!(judged(&TcpInfo { notsent_bytes: 0, ..full }, true), None);
    }

    #[test]
    fn a_full_connection_window_names_the_path_that_is_slowest() {
        let fast = open();
        let slow = TcpInfo { srtt_us: 2_000_000, ..open() };
        let above = Above { unsent_bytes: 500_000, outstanding_bytes: 999_000, ..Above::default() };
        let both = [between(&fast, &fast), between(&slow, &slow)];
        assert_eq!(multipath(&above, &both), [Limit::WindowBehind(1), Limit::PeerWindow]);
        // What the slow subflow heard long ago was the window behind an earlier byte.
        let (fast, slow) = (
            TcpInfo { snd_wnd_bytes: Some(900_000), ..fast },
            TcpInfo { last_ack_received_ms: 300, ..slow },
        );
        let later = [between(&fast, &fast), between(&slow, &slow)];
        let less = Above { outstanding_bytes: 900_000, ..above };
        assert_eq!(multipath(&less, &later), [Limit::WindowBehind(1), Limit::PeerWindow]);
        let room = Above { outstanding_bytes: 100_000, ..above };
        assert_eq!(multipath(&room, &both), [Limit::Scheduler, Limit::Scheduler]);
    }

    #[test]
    fn no_unsent_data_means_the_application_or_its_buffer_limits() {
        let info = open();
        let all = [between(&info, &info)];
        let idle = Above { buffer: (10, 100), ..Above::default() };
        assert_eq!(multipath(&idle, &all), [Limit::Application]);
        let full = Above { buffer: (70, 100), ..idle };
        assert_eq!(multipath(&full, &all), [Limit::SendBuffer]);
    }

    #[test]
    fn a_backup_waits_only_while_there_is_something_else() {
        let info = open();
        let backup = Between { backup: true, ..between(&info, &info) };
        let above = Above { unsent_bytes: 1, ..Above::default() };
        let limits = multipath(&above, &[between(&info, &info), backup]);
        assert_eq!(limits, [Limit::Scheduler, Limit::Backup]);
        let silent = TcpInfo { backoff: 4, ..info };
        let limits = multipath(&above, &[between(&silent, &silent), backup]);
        assert_eq!(limits, [Limit::Silent, Limit::Scheduler]);
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
        let above = Above::of(&info, (1, 2));
        assert_eq!((above.unsent_bytes, above.outstanding_bytes), (700, 300));
    }
}
