//! Values derived from two snapshots: rates, shares, and states that the kernel does not report.
//!
//! Pure: connections and the time since the start are arguments.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_measure::format;

use super::limits::{self, LimitHistory, ObservedLimit};
use super::{FinalSocketStats, MonitoredConnection, MonitoredSubflow, SubflowCondition};
use crate::sample::TcpInfo;

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
    first: Duration,
    was_stale: bool,
    was_trying: bool,
    /// Set when the subflow is gone and its final counters may still arrive.
    has_gone: bool,
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
    has_gone: bool,
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
    /// `words` are final counters since the last snapshot, `None` if the kernel sends none.
    /// `interface` returns the name of an address's interface, and true if that is running.
    pub fn update(
        &mut self,
        now: Duration,
        connections: Vec<MonitoredConnection>,
        words: Option<&[FinalSocketStats]>,
        interface: &dyn Fn(IpAddr) -> Option<(String, bool)>,
    ) -> MonitorRound {
        let mut seeing = MonitorRound::default();
        let mut before = std::mem::take(&mut self.subflows);
        self.connections.values_mut().for_each(|whole| whole.has_gone = true);
        for connection in connections {
            if connection.inode == 0 && connection.subflows.is_empty() {
                continue;
            }
            self.store_name(&connection);
            let mut subflows = Vec::new();
            let mut spent = self.update_limits(now, &connection, &before).into_iter();
            for subflow in &connection.subflows {
                let old = before.remove(&subflow.cookie);
                let of = connection.cookie;
                let (mut seen, mut memory) =
                    derive(now, of, subflow, old, interface, &mut seeing.events);
                memory.limit_history = spent.next().unwrap_or_default();
                memory.last_info = subflow.internals.tcp;
                seen.limits = memory.limit_history.limits();
                self.subflows.insert(subflow.cookie, memory);
                subflows.push(seen);
            }
            // `sum` would return -0 for an empty sequence.
            let (down_bps, up_bps) = subflows
                .iter()
                .fold((0.0, 0.0), |(down, up), it| (down + it.down_bps, up + it.up_bps));
            let total = down_bps + up_bps;
            for subflow in &mut subflows {
                let own = subflow.down_bps + subflow.up_bps;
                subflow.share = (total > 0.0).then(|| own / total);
            }
            seeing.connections.push(DerivedConnection { connection, subflows, down_bps, up_bps });
        }
        for word in words.unwrap_or_default() {
            if before.contains_key(&word.cookie) || self.subflows.contains_key(&word.cookie) {
                self.final_stats.insert(word.cookie, *word);
            }
        }
        for (cookie, memory) in before {
            self.on_subflow_closed(cookie, memory, words.is_some(), &mut seeing);
        }
        self.conclude(&mut seeing);
        self.last_update = Some(now);
        seeing
    }

    /// Returns the limit history of each subflow, with the time since the snapshot before added.
    fn update_limits(
        &self,
        now: Duration,
        connection: &MonitoredConnection,
        before: &BTreeMap<u64, SubflowHistory>,
    ) -> Vec<LimitHistory> {
        let old = || connection.subflows.iter().map(|subflow| before.get(&subflow.cookie));
        let infos: Vec<_> = old().map(|memory| memory.map(|memory| memory.last_info)).collect();
        let spent = old().map(|memory| memory.map(|memory| memory.limit_history.clone()));
        let mut spent: Vec<LimitHistory> = spent.map(Option::unwrap_or_default).collect();
        let span = now.saturating_sub(self.last_update.unwrap_or(now));
        limits::record_limits(connection, &infos, &mut spent, (now, span), RATE_WINDOW);
        spent
    }

    fn store_name(&mut self, connection: &MonitoredConnection) {
        let name = format!("{} → {}", connection.local, connection.remote);
        let whole = self.connections.entry(connection.cookie).or_insert_with(|| ConnectionTotals {
            name,
            token: connection.token,
            has_gone: false,
            bytes_received: 0,
            bytes_acked: 0,
            ended: Vec::new(),
        });
        whole.has_gone = false;
        whole.bytes_received = connection.bytes_received;
        whole.bytes_acked = connection.bytes_acked;
    }

    /// Handles the end of a subflow. Its final counters may arrive a moment after its end.
    fn on_subflow_closed(
        &mut self,
        cookie: u64,
        memory: SubflowHistory,
        may_speak: bool,
        seeing: &mut MonitorRound,
    ) {
        let words = self.final_stats.remove(&cookie);
        if words.is_none() && may_speak && !memory.has_gone {
            self.subflows.insert(cookie, SubflowHistory { has_gone: true, ..memory });
            return;
        }
        let Some(whole) = self.connections.get_mut(&memory.connection) else { return };
        let (_, received, acked) = memory.samples.last().copied().unwrap_or_default();
        // Linux resets the counters of a connection's first subflow before it destroys it.
        let words = words.filter(|it| it.bytes_received >= received && it.bytes_acked >= acked);
        let ended = EndedSubflow {
            token: whole.token,
            local: memory.local,
            remote: memory.remote,
            interface: memory.interface,
            bytes_received: words.map_or(received, |words| words.bytes_received),
            bytes_acked: words.map_or(acked, |words| words.bytes_acked),
            retransmissions: words.map_or(memory.retransmissions, |words| words.retransmissions),
            is_final: words.is_some(),
        };
        // The end of a connection is one event, not one for each of its subflows.
        if !whole.has_gone {
            let name = format!("{} → {}", ended.local, ended.remote);
            let text = if memory.was_trying { "gave up".to_owned() } else { ended.carried() };
            seeing.events.push(format!("subflow {name} {text}"));
        }
        whole.ended.push(ended.clone());
        seeing.ended.push(ended);
    }

    /// Reports connections that have ended with all of their subflows.
    fn conclude(&mut self, seeing: &mut MonitorRound) {
        let subflows = &self.subflows;
        self.connections.retain(|cookie, whole| {
            let is_over =
                whole.has_gone && !subflows.values().any(|memory| memory.connection == *cookie);
            if is_over {
                seeing.events.push(whole.end());
            }
            !is_over
        });
    }
}

impl EndedSubflow {
    /// Describes the end: `is gone: 12.1 MB sent, 3 kB received, 4 packets sent again`.
    fn carried(&self) -> String {
        let (sent, received) =
            (format::bytes(self.bytes_acked), format::bytes(self.bytes_received));
        let again = self.retransmissions;
        let plural = if again == 1 { "" } else { "s" };
        let known = if self.is_final { "" } else { ", as last seen" };
        format!(
            "is gone: {sent} sent, {received} received, {again} packet{plural} sent again{known}"
        )
    }
}

impl ConnectionTotals {
    /// Describes the end: `connection a → b is gone: 23 MB sent, 0 B received; eth0 carried 57 %,
    /// wlan0 43 %`.
    ///
    /// Data sent over two subflows counts for both.
    fn end(&self) -> String {
        let mut paths: BTreeMap<String, u64> = BTreeMap::new();
        for ended in &self.ended {
            let address = || ended.local.ip().to_canonical().to_string();
            let path = ended.interface.clone().unwrap_or_else(address);
            *paths.entry(path).or_default() += ended.bytes_acked + ended.bytes_received;
        }
        let all: u64 = paths.values().sum();
        let name = &self.name;
        if all == 0 {
            return format!("connection {name} is gone");
        }
        // The last snapshot may be older than the last byte.
        let largest = |whole: u64, part: fn(&EndedSubflow) -> u64| {
            whole.max(self.ended.iter().map(part).max().unwrap_or(0))
        };
        let sent = format::bytes(largest(self.bytes_acked, |it| it.bytes_acked));
        let received = format::bytes(largest(self.bytes_received, |it| it.bytes_received));
        let shares = paths
            .iter()
            .map(|(path, bytes)| format!("{path} {}", format::share(*bytes as f64 / all as f64)));
        let shares = shares.collect::<Vec<_>>().join(", ");
        format!("connection {name} is gone: {sent} sent, {received} received; by path: {shares}")
    }
}

fn derive(
    now: Duration,
    connection: u64,
    subflow: &MonitoredSubflow,
    old: Option<SubflowHistory>,
    interface: &dyn Fn(IpAddr) -> Option<(String, bool)>,
    events: &mut Vec<String>,
) -> (DerivedSubflow, SubflowHistory) {
    let own = interface(subflow.local.ip().to_canonical());
    let name = format!("{} → {}", subflow.local, subflow.remote);
    let mut memory = old.unwrap_or_else(|| SubflowHistory {
        connection,
        local: subflow.local,
        remote: subflow.remote,
        interface: None,
        samples: Vec::new(),
        retransmissions: 0,
        last_active: None,
        first: now,
        was_stale: false,
        was_trying: false,
        has_gone: false,
        last_info: TcpInfo::default(),
        limit_history: LimitHistory::default(),
    });
    memory.has_gone = false;
    memory.retransmissions = subflow.retransmissions;
    let moved = memory.samples.last().is_some_and(|(_, received, acked)| {
        subflow.bytes_received > *received || subflow.bytes_acked > *acked
    });
    if moved {
        memory.last_active = Some(now);
    }
    memory.samples.push((now, subflow.bytes_received, subflow.bytes_acked));
    // Keep the newest snapshot that is a window old: rates count from there.
    let old_enough = |(time, _, _): &(Duration, u64, u64)| now.saturating_sub(*time) >= RATE_WINDOW;
    let outdated = memory.samples.iter().rposition(old_enough).unwrap_or(0);
    memory.samples.drain(..outdated);
    let (down_bps, up_bps) = rates(&memory.samples);
    let idle = memory.last_active.map(|moved| now.saturating_sub(moved));
    let (status, why, is_inferred) = status(subflow, own.as_ref(), idle, now, memory.first);
    let is_stale = status == SubflowActivity::Stale;
    if is_stale && !memory.was_stale {
        let why = why.clone().unwrap_or_default();
        events.push(format!("subflow {name} is stale: {why}"));
    } else if !is_stale && memory.was_stale {
        events.push(format!("subflow {name} is answered again"));
    }
    memory.was_stale = is_stale;
    memory.was_trying = status == SubflowActivity::Trying;
    let interface = own.map(|(name, _)| name);
    // A subflow whose address is gone keeps the interface that had it.
    memory.interface = interface.clone().or(memory.interface);
    let (share, limits) = (None, Vec::new());
    let seen =
        DerivedSubflow { status, why, is_inferred, interface, down_bps, up_bps, share, limits };
    (seen, memory)
}

/// Returns the rates in bits per second between the first and the last snapshot.
fn rates(looks: &[(Duration, u64, u64)]) -> (f64, f64) {
    let (Some((start, received, acked)), Some((end, received_now, acked_now))) =
        (looks.first(), looks.last())
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
    first: Duration,
) -> (SubflowActivity, Option<String>, bool) {
    match subflow.condition {
        SubflowCondition::Trying => {
            let tried = format!("no answer for {}", seconds(now.saturating_sub(first)));
            return (SubflowActivity::Trying, Some(tried), false);
        }
        SubflowCondition::Closing => return (SubflowActivity::Closing, None, false),
        SubflowCondition::Established | SubflowCondition::Silent => {}
    }
    let waits =
        subflow.unacked_packets > 0 && subflow.backoff > 0 && subflow.since_ack >= STALE_AFTER;
    if waits || subflow.condition == SubflowCondition::Silent {
        let silence = seconds(subflow.since_ack);
        let (packets, timeouts) = (subflow.unacked_packets, subflow.backoff);
        let plural = if timeouts == 1 { "" } else { "s" };
        let why = format!(
            "nothing heard for {silence}, {packets} unanswered, {timeouts} timeout{plural}"
        );
        return (SubflowActivity::Stale, Some(why), true);
    }
    // A route may lead over another interface: a subflow that carries data is not stale.
    let moves = idle.is_some_and(|idle| idle < LINK_DOWN_AFTER);
    match interface.filter(|_| !moves) {
        None if moves => {}
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
    use super::*;
    use crate::netlink::TcpState;

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
    fn all_run(_: IpAddr) -> Option<(String, bool)> {
        Some(("wifi".to_owned(), true))
    }

    /// Returns the only subflow's status after each snapshot, and all events.
    fn statuses(looks: Vec<(u64, MonitoredSubflow)>) -> (Vec<SubflowActivity>, Vec<String>) {
        let (mut watch, mut statuses, mut all) =
            (ConnectionHistory::default(), Vec::new(), Vec::new());
        for (at_ms, subflow) in looks {
            let now = Duration::from_millis(at_ms);
            let seeing = watch.update(now, vec![connection(vec![subflow])], None, &all_run);
            statuses.push(seeing.connections[0].subflows[0].status);
            all.extend(seeing.events);
        }
        (statuses, all)
    }

    #[test]
    fn a_transferring_subflow_is_active_and_an_idle_one_is_not() {
        let moved =
            MonitoredSubflow { bytes_acked: 1_000, ..subflow(SubflowCondition::Established) };
        let looks = vec![
            (0, subflow(SubflowCondition::Established)),
            (500, moved.clone()),
            (1_000, moved.clone()),
            (5_000, moved),
        ];
        let (statuses, events) = statuses(looks);
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
        let looks = vec![
            (0, subflow(SubflowCondition::Established)),
            (500, silent),
            (1_000, subflow(SubflowCondition::Established)),
        ];
        let (statuses, events) = statuses(looks);
        assert_eq!(
            statuses,
            [SubflowActivity::Established, SubflowActivity::Stale, SubflowActivity::Established]
        );
        let stale = "subflow 10.0.0.1:4000 → 10.9.0.1:443 is stale: nothing heard for 0.9 s, 12 \
                     unanswered, 1 timeout";
        assert_eq!(events, [stale, "subflow 10.0.0.1:4000 → 10.9.0.1:443 is answered again"]);
    }

    #[test]
    fn a_subflow_on_a_down_interface_is_stale_but_not_in_handshake() {
        let mut watch = ConnectionHistory::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let both = vec![
            subflow(SubflowCondition::Established),
            MonitoredSubflow { cookie: 8, ..subflow(SubflowCondition::Trying) },
        ];
        let seen = watch.update(Duration::ZERO, vec![connection(both)], None, &down).connections;
        let [established, trying] = &seen[0].subflows[..] else { panic!() };
        assert_eq!((established.status, established.is_inferred), (SubflowActivity::Stale, true));
        assert_eq!(established.why.as_deref(), Some("interface wifi is down"));
        assert_eq!((trying.status, trying.is_inferred), (SubflowActivity::Trying, false));
    }

    #[test]
    fn a_transferring_subflow_is_active_on_a_down_interface() {
        let mut watch = ConnectionHistory::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let mut status = None;
        for round in 0..3 {
            let moved = MonitoredSubflow {
                bytes_acked: 500 * round,
                ..subflow(SubflowCondition::Established)
            };
            let now = Duration::from_millis(500 * round);
            let seen = watch.update(now, vec![connection(vec![moved])], None, &down).connections;
            status = Some(seen[0].subflows[0].status);
        }
        assert_eq!(status, Some(SubflowActivity::Active));
    }

    #[test]
    fn rates_are_of_the_last_second_and_shares_add_up() {
        let mut watch = ConnectionHistory::default();
        let at = |received: u64, cookie: u64| MonitoredSubflow {
            bytes_received: received,
            cookie,
            ..subflow(SubflowCondition::Established)
        };
        let mut last = Vec::new();
        for tenth in 0..30_u64 {
            let now = Duration::from_millis(100 * tenth);
            let both = vec![at(30_000 * tenth, 7), at(10_000 * tenth, 8)];
            last = watch.update(now, vec![connection(both)], None, &all_run).connections;
        }
        let [fast, slow] = &last[0].subflows[..] else { panic!() };
        assert!((fast.down_bps - 2_400_000.0).abs() < 1.0, "{fast:?}");
        assert_eq!((fast.share, slow.share), (Some(0.75), Some(0.25)));
        assert!((last[0].down_bps - 3_200_000.0).abs() < 1.0);
    }

    #[test]
    fn an_idle_subflow_on_a_down_interface_is_stale_at_once() {
        let mut watch = ConnectionHistory::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let mut poll = |at_ms: u64, bytes_acked: u64, runs: bool| {
            let one = MonitoredSubflow { bytes_acked, ..subflow(SubflowCondition::Established) };
            let interface: &dyn Fn(IpAddr) -> _ = if runs { &all_run } else { &down };
            let now = Duration::from_millis(at_ms);
            let seeing = watch.update(now, vec![connection(vec![one])], None, interface);
            seeing.connections[0].subflows[0].status
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
        let mut watch = ConnectionHistory::default();
        let mut poll = |at_ms: u64, sent: u64, unacked: u32| {
            let mut one = subflow(SubflowCondition::Established);
            one.internals.tcp = TcpInfo {
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
            let seeing = watch.update(now, vec![connection(vec![one])], None, &all_run);
            seeing.connections[0].subflows[0].limits.clone()
        };
        assert_eq!(poll(0, 0, 20), [], "one look tells nothing");
        let limits = poll(500, 1_000_000, 20);
        assert_eq!((limits[0].name(), limits[0].share), ("receive window", 1.0));
        poll(1_000, 1_000_000, 0);
        assert_eq!(poll(3_000, 1_000_000, 0), [], "nothing is sent");
    }

    #[test]
    fn a_disappearance_is_reported_once() {
        let mut watch = ConnectionHistory::default();
        let mut poll = |at: u64, subflows: Option<Vec<MonitoredSubflow>>| {
            let all = subflows.map(connection).into_iter().collect();
            watch.update(Duration::from_secs(at), all, None, &all_run).events
        };
        let tried = MonitoredSubflow { cookie: 8, ..subflow(SubflowCondition::Trying) };
        poll(0, Some(vec![subflow(SubflowCondition::Established), tried]));
        let events = poll(1, Some(vec![subflow(SubflowCondition::Established)]));
        assert_eq!(events, ["subflow 10.0.0.1:4000 → 10.9.0.1:443 gave up"]);
        assert_eq!(poll(2, None), ["connection 10.0.0.1:4000 → 10.9.0.1:443 is gone"]);
        assert_eq!(poll(3, None), [""; 0]);
    }

    #[test]
    fn an_ended_connection_is_reported_with_its_last_metrics() {
        let mut watch = ConnectionHistory::default();
        let carried = |bytes_acked: u64, cookie: u64| MonitoredSubflow {
            bytes_acked,
            cookie,
            ..subflow(SubflowCondition::Established)
        };
        let words = |cookie: u64, bytes_acked: u64| FinalSocketStats {
            cookie,
            bytes_received: 0,
            bytes_acked,
            retransmissions: 1,
        };
        let both = connection(vec![carried(1_000_000, 7), carried(500_000, 8)]);
        watch.update(Duration::ZERO, vec![both], Some(&[]), &all_run);
        // The second subflow ends; its final counters come one round later, with a plain TCP
        // socket's.
        let one = || connection(vec![carried(2_000_000, 7)]);
        let second =
            watch.update(Duration::from_secs(1), vec![one()], Some(&[words(99, 1)]), &all_run);
        assert_eq!((second.events, second.ended), (Vec::new(), Vec::new()));
        let said = [words(8, 600_000), words(7, 0)];
        let third = watch.update(Duration::from_secs(2), vec![one()], Some(&said), &all_run);
        let gone = "subflow 10.0.0.1:4000 → 10.9.0.1:443 is gone: 600 kB sent, 0 B received, 1 \
                    packet sent again";
        assert_eq!(third.events, [gone]);
        assert!(third.ended[0].is_final && third.ended[0].bytes_acked == 600_000);
        // Then the connection ends, after the kernel has reset its last subflow's counters.
        let last = watch.update(Duration::from_secs(3), Vec::new(), Some(&[]), &all_run);
        let gone = "connection 10.0.0.1:4000 → 10.9.0.1:443 is gone: 2.00 MB sent, 0 B received; by \
                    path: wifi 100 %";
        assert_eq!(last.events, [gone]);
        assert_eq!((last.ended[0].bytes_acked, last.ended[0].is_final), (2_000_000, false));
    }

    #[test]
    fn final_statistics_are_awaited_once() {
        let mut watch = ConnectionHistory::default();
        let mut poll = |at: u64, subflows: Option<Vec<MonitoredSubflow>>| {
            let all = subflows.map(connection).into_iter().collect();
            watch.update(Duration::from_secs(at), all, Some(&[]), &all_run).events
        };
        poll(0, Some(vec![subflow(SubflowCondition::Established)]));
        assert_eq!(poll(1, None), [""; 0]);
        assert_eq!(poll(2, None), ["connection 10.0.0.1:4000 → 10.9.0.1:443 is gone"]);
        assert_eq!(poll(3, None), [""; 0]);
    }

    #[test]
    fn an_orphaned_socket_counts_as_ended() {
        let mut watch = ConnectionHistory::default();
        let waiting = MonitoredConnection { inode: 0, ..connection(Vec::new()) };
        let seeing = watch.update(Duration::ZERO, vec![waiting], None, &all_run);
        assert_eq!(seeing, MonitorRound::default());
        let unused = connection(Vec::new());
        let seen = watch.update(Duration::ZERO, vec![unused], None, &all_run).connections;
        assert!(seen[0].up_bps.is_sign_positive(), "no -0");
    }
}
