//! Values derived from two snapshots: rates, shares, and states that the kernel does not report.
//!
//! Pure: connections and the time since the start are arguments.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_kernel::sample::TcpInfo;
use towpath_result::format;

use super::limits::{self, LimitHistory, ObservedLimit};
use super::{FinalSocketStats, MonitoredConnection, MonitoredSubflow, SubflowCondition};

/// Time since its last data within which a subflow counts as active.
const ACTIVE_WITHIN: Duration = Duration::from_millis(1_500);
/// Time without an acknowledgement after which a subflow is stale.
///
/// Only a subflow with unacknowledged data and a timeout can become stale.
const STALE_AFTER: Duration = Duration::from_millis(500);
/// Idle time after which a subflow whose interface is down is stale.
///
/// Before, a route may lead over another interface.
const LINK_DOWN_AFTER: Duration = Duration::from_millis(300);
/// Period of the rates; with longer polling intervals, that interval.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// History of connections and subflows over earlier snapshots.
#[derive(Debug, Default)]
pub struct ConnectionHistory {
    /// Subflows by cookie: those of the last snapshot, and those whose final counters may still
    /// arrive.
    subflows: BTreeMap<u64, SubflowHistory>,
    /// Connections by cookie: those of the last snapshot, and those with a subflow in `subflows`.
    connections: BTreeMap<u64, ConnectionTotals>,
    /// Final counters, by cookie, of subflows in `subflows`.
    final_stats: BTreeMap<u64, FinalSocketStats>,
    /// Time of the last snapshot.
    last_update: Option<Duration>,
}

/// History of a subflow.
#[derive(Debug, Clone)]
struct SubflowHistory {
    /// Cookie of the subflow's connection.
    connection: u64,
    local: SocketAddr,
    remote: SocketAddr,
    interface: Option<String>,
    /// Time, bytes received and bytes acknowledged, for the last window.
    samples: Vec<(Duration, u64, u64)>,
    retransmissions: u32,
    /// Time when it last carried data.
    last_active: Option<Duration>,
    first_seen: Duration,
    was_stale: bool,
    was_connecting: bool,
    /// Set when the subflow is gone and its final counters may still arrive.
    is_gone: bool,
    /// Kernel counters at the last snapshot.
    last_info: TcpInfo,
    /// History of its send limits.
    limit_history: LimitHistory,
}

/// Totals of a connection over its subflows.
#[derive(Debug, Clone)]
struct ConnectionTotals {
    name: String,
    token: u32,
    is_gone: bool,
    bytes_received: u64,
    bytes_acked: u64,
    ended: Vec<EndedSubflow>,
}

/// Result of one round of monitoring.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MonitorRound {
    /// Connections that are open in a process or have a subflow.
    pub connections: Vec<DerivedConnection>,
    /// Events since the round before, one line each.
    pub events: Vec<String>,
    /// Subflows that have ended since the round before.
    pub ended: Vec<EndedSubflow>,
}

/// A subflow that has ended, with its traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedSubflow {
    /// Token of the subflow's connection.
    pub token: u32,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Name of the interface that had the local address.
    pub interface: Option<String>,
    /// Payload bytes received over the subflow.
    pub bytes_received: u64,
    /// Payload bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Packets retransmitted on the subflow.
    pub retransmissions: u32,
    /// Set when the counters are the kernel's final ones; otherwise they are of the last snapshot.
    pub is_final: bool,
}

/// A connection with derived values.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedConnection {
    /// Connection as the kernel reports it.
    pub connection: MonitoredConnection,
    /// Derived state of the subflows, in the order of `connection.subflows`.
    pub subflows: Vec<DerivedSubflow>,
    /// Received rate in bits per second, in all.
    pub down_bps: f64,
    /// Acknowledged rate in bits per second, in all.
    pub up_bps: f64,
}

/// A subflow with derived values.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedSubflow {
    /// Activity of the subflow.
    pub status: SubflowActivity,
    /// Reason for the status, where the status alone does not explain it.
    pub why: Option<String>,
    /// Set when the status is inferred from counters rather than reported by the kernel.
    pub is_inferred: bool,
    /// Name of the interface that has the local address.
    pub interface: Option<String>,
    /// Received rate in bits per second.
    pub down_bps: f64,
    /// Acknowledged rate in bits per second.
    pub up_bps: f64,
    /// Share of the connection's current throughput, 0 to 1; `None` if the connection is idle.
    pub share: Option<f64>,
    /// Send limits in the last second, longest first; empty for a subflow that sends nothing.
    pub limits: Vec<ObservedLimit>,
}

/// Activity of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubflowActivity {
    /// No reply from the peer: it carries nothing, though the kernel counts it.
    Trying,
    /// Able to carry data, but idle at the moment.
    Established,
    /// Carries data at the moment.
    Active,
    /// Idle until the other subflows fail.
    Backup,
    /// Sent data is not acknowledged, or the interface is down.
    Stale,
    /// Closing handshake in progress.
    Closing,
}

impl SubflowActivity {
    /// Returns the label for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trying => "trying",
            Self::Established => "established",
            Self::Active => "active",
            Self::Backup => "backup",
            Self::Stale => "stale",
            Self::Closing => "closing",
        }
    }
}

impl ConnectionHistory {
    /// Takes a snapshot of `connections` at `now`; returns derived values and the events since.
    ///
    /// `final_stats` are those received since the last snapshot, `None` if the kernel sends none.
    /// `interface` returns the name of an address's interface, and true if that is running.
    pub fn update(
        &mut self,
        now: Duration,
        connections: Vec<MonitoredConnection>,
        final_stats: Option<&[FinalSocketStats]>,
        interface: &dyn Fn(IpAddr) -> Option<(String, bool)>,
    ) -> MonitorRound {
        let mut round = MonitorRound::default();
        let mut previous = std::mem::take(&mut self.subflows);
        self.connections.values_mut().for_each(|totals| totals.is_gone = true);
        for connection in connections {
            if connection.inode == 0 && connection.subflows.is_empty() {
                continue;
            }
            self.update_totals(&connection);
            let mut subflows = Vec::new();
            let mut limit_histories = self.update_limits(now, &connection, &previous).into_iter();
            for subflow in &connection.subflows {
                let earlier = previous.remove(&subflow.cookie);
                let connection_cookie = connection.cookie;
                let (mut derived, mut history) = derive_subflow(
                    now,
                    connection_cookie,
                    subflow,
                    earlier,
                    interface,
                    &mut round.events,
                );
                history.limit_history = limit_histories.next().unwrap_or_default();
                history.last_info = subflow.internals.tcp;
                derived.limits = history.limit_history.limits();
                self.subflows.insert(subflow.cookie, history);
                subflows.push(derived);
            }
            // `sum` would return -0 for an empty sequence.
            let (down_bps, up_bps) = subflows
                .iter()
                .fold((0.0, 0.0), |(down, up), s| (down + s.down_bps, up + s.up_bps));
            let total = down_bps + up_bps;
            for subflow in &mut subflows {
                let subflow_bps = subflow.down_bps + subflow.up_bps;
                subflow.share = (total > 0.0).then(|| subflow_bps / total);
            }
            round.connections.push(DerivedConnection { connection, subflows, down_bps, up_bps });
        }
        for stats in final_stats.unwrap_or_default() {
            if previous.contains_key(&stats.cookie) || self.subflows.contains_key(&stats.cookie) {
                self.final_stats.insert(stats.cookie, *stats);
            }
        }
        for (cookie, history) in previous {
            self.on_subflow_closed(cookie, history, final_stats.is_some(), &mut round);
        }
        self.report_ended_connections(&mut round);
        self.last_update = Some(now);
        round
    }

    /// Returns the limit history of each subflow, with the time since the snapshot before added.
    fn update_limits(
        &self,
        now: Duration,
        connection: &MonitoredConnection,
        previous: &BTreeMap<u64, SubflowHistory>,
    ) -> Vec<LimitHistory> {
        let earlier_histories =
            || connection.subflows.iter().map(|subflow| previous.get(&subflow.cookie));
        let earlier_infos: Vec<_> =
            earlier_histories().map(|history| history.map(|history| history.last_info)).collect();
        let limit_histories =
            earlier_histories().map(|history| history.map(|history| history.limit_history.clone()));
        let mut limit_histories: Vec<LimitHistory> =
            limit_histories.map(Option::unwrap_or_default).collect();
        let span = now.saturating_sub(self.last_update.unwrap_or(now));
        limits::record_limits(
            connection,
            &earlier_infos,
            &mut limit_histories,
            (now, span),
            RATE_WINDOW,
        );
        limit_histories
    }

    fn update_totals(&mut self, connection: &MonitoredConnection) {
        let name = format!("{} → {}", connection.local, connection.remote);
        let totals =
            self.connections.entry(connection.cookie).or_insert_with(|| ConnectionTotals {
                name,
                token: connection.token,
                is_gone: false,
                bytes_received: 0,
                bytes_acked: 0,
                ended: Vec::new(),
            });
        totals.is_gone = false;
        totals.bytes_received = connection.bytes_received;
        totals.bytes_acked = connection.bytes_acked;
    }

    /// Handles the end of a subflow. Its final counters may arrive a moment after its end.
    fn on_subflow_closed(
        &mut self,
        cookie: u64,
        history: SubflowHistory,
        awaits_final_stats: bool,
        round: &mut MonitorRound,
    ) {
        let final_stats = self.final_stats.remove(&cookie);
        if final_stats.is_none() && awaits_final_stats && !history.is_gone {
            self.subflows.insert(cookie, SubflowHistory { is_gone: true, ..history });
            return;
        }
        let Some(totals) = self.connections.get_mut(&history.connection) else { return };
        let (_, received, acked) = history.samples.last().copied().unwrap_or_default();
        // Linux resets the counters of a connection's first subflow before it destroys it.
        let final_stats = final_stats
            .filter(|stats| stats.bytes_received >= received && stats.bytes_acked >= acked);
        let ended = EndedSubflow {
            token: totals.token,
            local: history.local,
            remote: history.remote,
            interface: history.interface,
            bytes_received: final_stats.map_or(received, |final_stats| final_stats.bytes_received),
            bytes_acked: final_stats.map_or(acked, |final_stats| final_stats.bytes_acked),
            retransmissions: final_stats
                .map_or(history.retransmissions, |final_stats| final_stats.retransmissions),
            is_final: final_stats.is_some(),
        };
        // The end of a connection is one event, not one for each of its subflows.
        if !totals.is_gone {
            let name = format!("{} → {}", ended.local, ended.remote);
            let text =
                if history.was_connecting { "gave up".to_owned() } else { ended.describe_end() };
            round.events.push(format!("subflow {name} {text}"));
        }
        totals.ended.push(ended.clone());
        round.ended.push(ended);
    }

    /// Reports connections that have ended with all of their subflows.
    fn report_ended_connections(&mut self, round: &mut MonitorRound) {
        let subflows = &self.subflows;
        self.connections.retain(|cookie, totals| {
            let is_over =
                totals.is_gone && !subflows.values().any(|history| history.connection == *cookie);
            if is_over {
                round.events.push(totals.describe_end());
            }
            !is_over
        });
    }
}

impl EndedSubflow {
    /// Describes the end: `is gone: 12.1 MB sent, 3 kB received, 4 packets retransmitted`.
    fn describe_end(&self) -> String {
        let (sent, received) =
            (format::bytes(self.bytes_acked), format::bytes(self.bytes_received));
        let retransmitted = self.retransmissions;
        let plural = if retransmitted == 1 { "" } else { "s" };
        let source = if self.is_final { "" } else { ", as last seen" };
        format!(
            "is gone: {sent} sent, {received} received, {retransmitted} packet{plural} retransmitted{source}"
        )
    }
}

impl ConnectionTotals {
    /// Describes the end: `connection a → b is gone: 23 MB sent, 0 B received; eth0 carried 57 %,
    /// wlan0 43 %`.
    ///
    /// Data sent over two subflows counts for both.
    fn describe_end(&self) -> String {
        let mut paths: BTreeMap<String, u64> = BTreeMap::new();
        for ended in &self.ended {
            let address = || ended.local.ip().to_canonical().to_string();
            let path = ended.interface.clone().unwrap_or_else(address);
            *paths.entry(path).or_default() += ended.bytes_acked + ended.bytes_received;
        }
        let total: u64 = paths.values().sum();
        let name = &self.name;
        if total == 0 {
            return format!("connection {name} is gone");
        }
        // The last snapshot may be older than the last byte.
        let at_least = |total: u64, subflow_bytes: fn(&EndedSubflow) -> u64| {
            total.max(self.ended.iter().map(subflow_bytes).max().unwrap_or(0))
        };
        let sent = format::bytes(at_least(self.bytes_acked, |s| s.bytes_acked));
        let received = format::bytes(at_least(self.bytes_received, |s| s.bytes_received));
        let shares = paths
            .iter()
            .map(|(path, bytes)| format!("{path} {}", format::share(*bytes as f64 / total as f64)));
        let shares = shares.collect::<Vec<_>>().join(", ");
        format!("connection {name} is gone: {sent} sent, {received} received; by path: {shares}")
    }
}

fn derive_subflow(
    now: Duration,
    connection: u64,
    subflow: &MonitoredSubflow,
    earlier: Option<SubflowHistory>,
    interface: &dyn Fn(IpAddr) -> Option<(String, bool)>,
    events: &mut Vec<String>,
) -> (DerivedSubflow, SubflowHistory) {
    let local_interface = interface(subflow.local.ip().to_canonical());
    let name = format!("{} → {}", subflow.local, subflow.remote);
    let mut history = earlier.unwrap_or_else(|| SubflowHistory {
        connection,
        local: subflow.local,
        remote: subflow.remote,
        interface: None,
        samples: Vec::new(),
        retransmissions: 0,
        last_active: None,
        first_seen: now,
        was_stale: false,
        was_connecting: false,
        is_gone: false,
        last_info: TcpInfo::default(),
        limit_history: LimitHistory::default(),
    });
    history.is_gone = false;
    history.retransmissions = subflow.retransmissions;
    let has_carried_data = history.samples.last().is_some_and(|(_, received, acked)| {
        subflow.bytes_received > *received || subflow.bytes_acked > *acked
    });
    if has_carried_data {
        history.last_active = Some(now);
    }
    history.samples.push((now, subflow.bytes_received, subflow.bytes_acked));
    // Keep the newest snapshot that is a window old: rates count from there.
    let old_enough = |(time, _, _): &(Duration, u64, u64)| now.saturating_sub(*time) >= RATE_WINDOW;
    let outdated = history.samples.iter().rposition(old_enough).unwrap_or(0);
    history.samples.drain(..outdated);
    let (down_bps, up_bps) = rates(&history.samples);
    let idle = history.last_active.map(|last_active| now.saturating_sub(last_active));
    let (status, why, is_inferred) =
        status(subflow, local_interface.as_ref(), idle, now, history.first_seen);
    let is_stale = status == SubflowActivity::Stale;
    if is_stale && !history.was_stale {
        let why = why.clone().unwrap_or_default();
        events.push(format!("subflow {name} is stale: {why}"));
    } else if !is_stale && history.was_stale {
        events.push(format!("subflow {name} is answered again"));
    }
    history.was_stale = is_stale;
    history.was_connecting = status == SubflowActivity::Trying;
    let interface = local_interface.map(|(name, _)| name);
    // A subflow whose address is gone keeps the interface that had it.
    history.interface = interface.clone().or(history.interface);
    let (share, limits) = (None, Vec::new());
    let derived =
        DerivedSubflow { status, why, is_inferred, interface, down_bps, up_bps, share, limits };
    (derived, history)
}

/// Returns the rates in bits per second between the first and the last snapshot.
fn rates(samples: &[(Duration, u64, u64)]) -> (f64, f64) {
    let (Some((start, received, acked)), Some((end, received_now, acked_now))) =
        (samples.first(), samples.last())
    else {
        return (0.0, 0.0);
    };
    let seconds = end.saturating_sub(*start).as_secs_f64();
    if seconds <= 0.0 {
        return (0.0, 0.0);
    }
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 * 8.0 / seconds;
    (rate(*received, *received_now), rate(*acked, *acked_now))
}

/// Returns the status, its reason, and true if it is inferred.
fn status(
    subflow: &MonitoredSubflow,
    interface: Option<&(String, bool)>,
    idle: Option<Duration>,
    now: Duration,
    first_seen: Duration,
) -> (SubflowActivity, Option<String>, bool) {
    match subflow.condition {
        SubflowCondition::Trying => {
            let reason = format!("no answer for {}", seconds(now.saturating_sub(first_seen)));
            return (SubflowActivity::Trying, Some(reason), false);
        }
        SubflowCondition::Closing => return (SubflowActivity::Closing, None, false),
        SubflowCondition::Established | SubflowCondition::Silent => {}
    }
    let is_unanswered =
        subflow.unacked_packets > 0 && subflow.backoff > 0 && subflow.since_ack >= STALE_AFTER;
    if is_unanswered || subflow.condition == SubflowCondition::Silent {
        let silence = seconds(subflow.since_ack);
        let (packets, timeouts) = (subflow.unacked_packets, subflow.backoff);
        let plural = if timeouts == 1 { "" } else { "s" };
        let why = format!(
            "no packet received for {silence}, {packets} unanswered, {timeouts} timeout{plural}"
        );
        return (SubflowActivity::Stale, Some(why), true);
    }
    // A route may lead over another interface: a subflow that carries data is not stale.
    let carried_recently = idle.is_some_and(|idle| idle < LINK_DOWN_AFTER);
    match interface.filter(|_| !carried_recently) {
        None if carried_recently => {}
        Some((name, false)) => {
            return (SubflowActivity::Stale, Some(format!("interface {name} is down")), true);
        }
        None => {
            let why = format!("no interface has {}", subflow.local.ip().to_canonical());
            return (SubflowActivity::Stale, Some(why), true);
        }
        Some((_, true)) => {}
    }
    let is_active = idle.is_some_and(|idle| idle <= ACTIVE_WITHIN);
    match (subflow.backup, is_active) {
        (true, true) => (SubflowActivity::Active, Some("a backup, in use".to_owned()), false),
        (true, false) => (SubflowActivity::Backup, None, false),
        (false, true) => (SubflowActivity::Active, None, false),
        (false, false) => (SubflowActivity::Established, None, false),
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use towpath_netlink::TcpState;

    use super::*;

    fn subflow(condition: SubflowCondition) -> MonitoredSubflow {
        MonitoredSubflow {
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.9.0.1:443".parse().unwrap(),
            state: TcpState::Established,
            condition,
            backup: false,
            local_id: Some(0),
            remote_id: Some(0),
            congestion: None,
            srtt_us: 12_000,
            cwnd_packets: 10,
            backoff: 0,
            unacked_packets: 0,
            retransmissions: 0,
            bytes_received: 0,
            bytes_acked: 0,
            cookie: 7,
            since_ack: Duration::ZERO,
            since_sent: Duration::ZERO,
            internals: super::super::SocketInternals::default(),
        }
    }

    fn connection(subflows: Vec<MonitoredSubflow>) -> MonitoredConnection {
        MonitoredConnection {
            token: 1,
            state: TcpState::Established,
            fallback: false,
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.9.0.1:443".parse().unwrap(),
            inode: 5,
            uid: 0,
            processes: Vec::new(),
            bytes_received: 0,
            bytes_acked: 0,
            bytes_reinjected: 0,
            cookie: 1,
            subflows,
            internals: super::super::SocketInternals::default(),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a watch asks for")]
    fn interface_up(_: IpAddr) -> Option<(String, bool)> {
        Some(("wifi".to_owned(), true))
    }

    /// Returns the only subflow's status after each snapshot, and all events.
    fn statuses_and_events(
        snapshots: Vec<(u64, MonitoredSubflow)>,
    ) -> (Vec<SubflowActivity>, Vec<String>) {
        let (mut history, mut statuses, mut events) =
            (ConnectionHistory::default(), Vec::new(), Vec::new());
        for (at_ms, subflow) in snapshots {
            let now = Duration::from_millis(at_ms);
            let round = history.update(now, vec![connection(vec![subflow])], None, &interface_up);
            statuses.push(round.connections[0].subflows[0].status);
            events.extend(round.events);
        }
        (statuses, events)
    }

    #[test]
    fn a_transferring_subflow_is_active_and_an_idle_one_is_not() {
        let after_transfer =
            MonitoredSubflow { bytes_acked: 1_000, ..subflow(SubflowCondition::Established) };
        let snapshots = vec![
            (0, subflow(SubflowCondition::Established)),
            (500, after_transfer.clone()),
            (1_000, after_transfer.clone()),
            (5_000, after_transfer),
        ];
        let (statuses, events) = statuses_and_events(snapshots);
        let expected = [
            SubflowActivity::Established,
            SubflowActivity::Active,
            SubflowActivity::Active,
            SubflowActivity::Established,
        ];
        assert_eq!(statuses, expected);
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn a_subflow_that_is_not_answered_is_stale_until_it_is() {
        let silent = MonitoredSubflow {
            backoff: 1,
            unacked_packets: 12,
            since_ack: Duration::from_millis(900),
            ..subflow(SubflowCondition::Established)
        };
        let snapshots = vec![
            (0, subflow(SubflowCondition::Established)),
            (500, silent),
            (1_000, subflow(SubflowCondition::Established)),
        ];
        let (statuses, events) = statuses_and_events(snapshots);
        assert_eq!(
            statuses,
            [SubflowActivity::Established, SubflowActivity::Stale, SubflowActivity::Established]
        );
        let stale = "subflow 10.0.0.1:4000 → 10.9.0.1:443 is stale: no packet received for 0.9 s, 12 \
                     unanswered, 1 timeout";
        assert_eq!(events, [stale, "subflow 10.0.0.1:4000 → 10.9.0.1:443 is answered again"]);
    }

    #[test]
    fn a_subflow_on_a_down_interface_is_stale_but_not_in_handshake() {
        let mut history = ConnectionHistory::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let subflows = vec![
            subflow(SubflowCondition::Established),
            MonitoredSubflow { cookie: 8, ..subflow(SubflowCondition::Trying) },
        ];
        let connections =
            history.update(Duration::ZERO, vec![connection(subflows)], None, &down).connections;
        let [established, connecting] = &connections[0].subflows[..] else { panic!() };
        assert_eq!((established.status, established.is_inferred), (SubflowActivity::Stale, true));
        assert_eq!(established.why.as_deref(), Some("interface wifi is down"));
        assert_eq!((connecting.status, connecting.is_inferred), (SubflowActivity::Trying, false));
    }

    #[test]
    fn a_transferring_subflow_is_active_on_a_down_interface() {
        let mut history = ConnectionHistory::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let mut status = None;
        for round in 0..3 {
            let active = MonitoredSubflow {
                bytes_acked: 500 * round,
                ..subflow(SubflowCondition::Established)
            };
            let now = Duration::from_millis(500 * round);
            let connections =
                history.update(now, vec![connection(vec![active])], None, &down).connections;
            status = Some(connections[0].subflows[0].status);
        }
        assert_eq!(status, Some(SubflowActivity::Active));
    }

    #[test]
    fn rates_are_of_the_last_second_and_shares_add_up() {
        let mut history = ConnectionHistory::default();
        let subflow_with = |received: u64, cookie: u64| MonitoredSubflow {
            bytes_received: received,
            cookie,
            ..subflow(SubflowCondition::Established)
        };
        let mut connections = Vec::new();
        for tenth_s in 0..30_u64 {
            let now = Duration::from_millis(100 * tenth_s);
            let subflows =
                vec![subflow_with(30_000 * tenth_s, 7), subflow_with(10_000 * tenth_s, 8)];
            connections =
                history.update(now, vec![connection(subflows)], None, &interface_up).connections;
        }
        let [fast, slow] = &connections[0].subflows[..] else { panic!() };
        assert!((fast.down_bps - 2_400_000.0).abs() < 1.0, "{fast:?}");
        assert_eq!((fast.share, slow.share), (Some(0.75), Some(0.25)));
        assert!((connections[0].down_bps - 3_200_000.0).abs() < 1.0);
    }

    #[test]
    fn an_idle_subflow_on_a_down_interface_is_stale_at_once() {
        let mut history = ConnectionHistory::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let mut poll = |at_ms: u64, bytes_acked: u64, interface_is_up: bool| {
            let subflow =
                MonitoredSubflow { bytes_acked, ..subflow(SubflowCondition::Established) };
            let interface: &dyn Fn(IpAddr) -> _ =
                if interface_is_up { &interface_up } else { &down };
            let now = Duration::from_millis(at_ms);
            let round = history.update(now, vec![connection(vec![subflow])], None, interface);
            round.connections[0].subflows[0].status
        };
        poll(0, 0, true);
        assert_eq!(poll(200, 1_000, true), SubflowActivity::Active);
        assert_eq!(
            poll(400, 1_000, false),
            SubflowActivity::Active,
            "it may have moved a moment ago"
        );
        assert_eq!(poll(600, 1_000, false), SubflowActivity::Stale);
    }

    #[test]
    fn the_senders_limit_is_reported_with_its_share() {
        let mut history = ConnectionHistory::default();
        let mut poll = |at_ms: u64, sent: u64, unacked: u32| {
            let mut sender = subflow(SubflowCondition::Established);
            sender.internals.tcp = TcpInfo {
                state: TcpInfo::ESTABLISHED,
                mss_bytes: 1_000,
                bytes_sent: sent,
                unacked,
                cwnd: 100,
                snd_wnd_bytes: Some(20_000),
                notsent_bytes: if unacked > 0 { 50_000 } else { 0 },
                ..TcpInfo::default()
            };
            let now = Duration::from_millis(at_ms);
            let round = history.update(now, vec![connection(vec![sender])], None, &interface_up);
            round.connections[0].subflows[0].limits.clone()
        };
        assert_eq!(poll(0, 0, 20), [], "one look tells nothing");
        let limits = poll(500, 1_000_000, 20);
        assert_eq!((limits[0].name(), limits[0].share), ("receive window", 1.0));
        poll(1_000, 1_000_000, 0);
        assert_eq!(poll(3_000, 1_000_000, 0), [], "nothing is sent");
    }

    #[test]
    fn a_disappearance_is_reported_once() {
        let mut history = ConnectionHistory::default();
        let mut poll = |at_s: u64, subflows: Option<Vec<MonitoredSubflow>>| {
            let connections = subflows.map(connection).into_iter().collect();
            history.update(Duration::from_secs(at_s), connections, None, &interface_up).events
        };
        let connecting = MonitoredSubflow { cookie: 8, ..subflow(SubflowCondition::Trying) };
        poll(0, Some(vec![subflow(SubflowCondition::Established), connecting]));
        let events = poll(1, Some(vec![subflow(SubflowCondition::Established)]));
        assert_eq!(events, ["subflow 10.0.0.1:4000 → 10.9.0.1:443 gave up"]);
        assert_eq!(poll(2, None), ["connection 10.0.0.1:4000 → 10.9.0.1:443 is gone"]);
        assert_eq!(poll(3, None), [""; 0]);
    }

    #[test]
    fn an_ended_connection_is_reported_with_its_last_metrics() {
        let mut history = ConnectionHistory::default();
        let subflow_with = |bytes_acked: u64, cookie: u64| MonitoredSubflow {
            bytes_acked,
            cookie,
            ..subflow(SubflowCondition::Established)
        };
        let final_stats = |cookie: u64, bytes_acked: u64| FinalSocketStats {
            cookie,
            bytes_received: 0,
            bytes_acked,
            retransmissions: 1,
        };
        let two_subflows = connection(vec![subflow_with(1_000_000, 7), subflow_with(500_000, 8)]);
        history.update(Duration::ZERO, vec![two_subflows], Some(&[]), &interface_up);
        // The second subflow ends; its final counters come one round later, with a plain TCP
        // socket's.
        let first_subflow = || connection(vec![subflow_with(2_000_000, 7)]);
        let second = history.update(
            Duration::from_secs(1),
            vec![first_subflow()],
            Some(&[final_stats(99, 1)]),
            &interface_up,
        );
        assert_eq!((second.events, second.ended), (Vec::new(), Vec::new()));
        let late_stats = [final_stats(8, 600_000), final_stats(7, 0)];
        let third = history.update(
            Duration::from_secs(2),
            vec![first_subflow()],
            Some(&late_stats),
            &interface_up,
        );
        let expected = "subflow 10.0.0.1:4000 → 10.9.0.1:443 is gone: 600 kB sent, 0 B received, 1 \
                    packet retransmitted";
        assert_eq!(third.events, [expected]);
        assert!(third.ended[0].is_final && third.ended[0].bytes_acked == 600_000);
        // Then the connection ends, after the kernel has reset its last subflow's counters.
        let last = history.update(Duration::from_secs(3), Vec::new(), Some(&[]), &interface_up);
        let expected = "connection 10.0.0.1:4000 → 10.9.0.1:443 is gone: 2.00 MB sent, 0 B received; by \
                    path: wifi 100 %";
        assert_eq!(last.events, [expected]);
        assert_eq!((last.ended[0].bytes_acked, last.ended[0].is_final), (2_000_000, false));
    }

    #[test]
    fn final_statistics_are_awaited_once() {
        let mut history = ConnectionHistory::default();
        let mut poll = |at_s: u64, subflows: Option<Vec<MonitoredSubflow>>| {
            let connections = subflows.map(connection).into_iter().collect();
            history.update(Duration::from_secs(at_s), connections, Some(&[]), &interface_up).events
        };
        poll(0, Some(vec![subflow(SubflowCondition::Established)]));
        assert_eq!(poll(1, None), [""; 0]);
        assert_eq!(poll(2, None), ["connection 10.0.0.1:4000 → 10.9.0.1:443 is gone"]);
        assert_eq!(poll(3, None), [""; 0]);
    }

    #[test]
    fn an_orphaned_socket_counts_as_ended() {
        let mut history = ConnectionHistory::default();
        let orphaned = MonitoredConnection { inode: 0, ..connection(Vec::new()) };
        let round = history.update(Duration::ZERO, vec![orphaned], None, &interface_up);
        assert_eq!(round, MonitorRound::default());
        let unused = connection(Vec::new());
        let connections =
            history.update(Duration::ZERO, vec![unused], None, &interface_up).connections;
        assert!(connections[0].up_bps.is_sign_positive(), "no -0");
    }
}
