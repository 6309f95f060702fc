//! What follows from looking twice: rates, shares, and states that the kernel does not tell.
//!
//! Pure: connections and the time since the start are arguments.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::{Condition, Connection, Subflow};

/// A subflow that moved something within this time is active.
const ACTIVE: Duration = Duration::from_millis(1_500);
/// Without an acknowledgement for at least this long, a subflow with unacknowledged data and a
/// timeout is stale.
const STALE: Duration = Duration::from_millis(500);
/// Rates are of this time, or of the time between two looks if that is longer.
const WINDOW: Duration = Duration::from_secs(1);

/// Remembers earlier looks.
#[derive(Debug, Default)]
pub struct Watch {
    subflows: BTreeMap<u64, Memory>,
    /// By cookie, the addresses for those who have gone.
    connections: BTreeMap<u64, String>,
    looked: bool,
}

/// What was known of a subflow.
#[derive(Debug, Clone)]
struct Memory {
    /// Time, bytes received, bytes acknowledged: from one window ago until now.
    looks: Vec<(Duration, u64, u64)>,
    /// When it last moved something.
    moved: Option<Duration>,
    first: Duration,
    was_stale: bool,
    was_trying: bool,
    name: String,
}

/// A connection with what follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// As the kernel says it.
    pub connection: Connection,
    /// Its subflows, in the same order.
    pub subflows: Vec<SeenSubflow>,
    /// Bits per second that arrive, in all.
    pub down_bps: f64,
    /// Bits per second that are acknowledged, in all.
    pub up_bps: f64,
}

/// A subflow with what follows.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenSubflow {
    /// What it does.
    pub status: Status,
    /// Why, where the status alone does not say it.
    pub why: Option<String>,
    /// Whether the kernel does not say so, but it follows from what it says.
    pub is_inferred: bool,
    /// Name of the interface that has its local address.
    pub interface: Option<String>,
    /// Bits per second that arrive.
    pub down_bps: f64,
    /// Bits per second that are acknowledged.
    pub up_bps: f64,
    /// Its part of what the connection moves now, 0 to 1; `None` if that is nothing.
    pub share: Option<f64>,
}

/// What a subflow does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The peer has not answered: it carries nothing, though the kernel counts it.
    Trying,
    /// It could carry data, and does not at the moment.
    Established,
    /// It carries data.
    Active,
    /// It waits until the others fail.
    Backup,
    /// What was sent on it is not answered, or its interface is down.
    Stale,
    /// It is being closed.
    Closing,
}

impl Status {
    /// As it is shown.
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

impl Watch {
    /// Takes a look at `connections` at `now`, and says what follows and what has happened in
    /// between. `interface` tells the name of an address's interface and whether that runs.
    pub fn look(
        &mut self,
        now: Duration,
        connections: Vec<Connection>,
        interface: &dyn Fn(IpAddr) -> Option<(String, bool)>,
    ) -> (Vec<Seen>, Vec<String>) {
        let mut events = Vec::new();
        let mut before = std::mem::take(&mut self.subflows);
        let mut gone = std::mem::take(&mut self.connections);
        let mut all = Vec::new();
        for connection in connections {
            let name = format!("{} → {}", connection.local, connection.remote);
            gone.remove(&connection.cookie);
            self.connections.insert(connection.cookie, name);
            let mut subflows = Vec::new();
            for subflow in &connection.subflows {
                let old = before.remove(&subflow.cookie);
                let (seen, memory) = see(now, subflow, old, interface, &mut events);
                self.subflows.insert(subflow.cookie, memory);
                subflows.push(seen);
            }
            let sum = |rate: fn(&SeenSubflow) -> f64| subflows.iter().map(rate).sum::<f64>();
            let (down_bps, up_bps) = (sum(|it| it.down_bps), sum(|it| it.up_bps));
            let total = down_bps + up_bps;
            for subflow in &mut subflows {
                let own = subflow.down_bps + subflow.up_bps;
                subflow.share = (total > 0.0).then(|| own / total);
            }
            all.push(Seen { connection, subflows, down_bps, up_bps });
        }
        // Of a connection that has ended, its subflows are no news.
        for memory in before.values().filter(|_| gone.is_empty() && self.looked) {
            let was = if memory.was_trying { "gave up" } else { "is gone" };
            events.push(format!("subflow {} {was}", memory.name));
        }
        events.extend(gone.values().map(|name| format!("connection {name} is gone")));
        self.looked = true;
        (all, events)
    }
}

fn see(
    now: Duration,
    subflow: &Subflow,
    old: Option<Memory>,
    interface: &dyn Fn(IpAddr) -> Option<(String, bool)>,
    events: &mut Vec<String>,
) -> (SeenSubflow, Memory) {
    let own = interface(subflow.local.ip().to_canonical());
    let name = format!("{} → {}", subflow.local, subflow.remote);
    let mut memory = old.unwrap_or_else(|| Memory {
        looks: Vec::new(),
        moved: None,
        first: now,
        was_stale: false,
        was_trying: false,
        name: name.clone(),
    });
    let moved = memory.looks.last().is_some_and(|(_, received, acked)| {
        subflow.bytes_received > *received || subflow.bytes_acked > *acked
    });
    if moved {
        memory.moved = Some(now);
    }
    memory.looks.push((now, subflow.bytes_received, subflow.bytes_acked));
    // The newest look that is a window old stays: rates count from there.
    let old_enough = |(time, _, _): &(Duration, u64, u64)| now.saturating_sub(*time) >= WINDOW;
    let outdated = memory.looks.iter().rposition(old_enough).unwrap_or(0);
    memory.looks.drain(..outdated);
    let (down_bps, up_bps) = rates(&memory.looks);
    let is_active = memory.moved.is_some_and(|moved| now.saturating_sub(moved) <= ACTIVE);
    let (status, why, is_inferred) = status(subflow, own.as_ref(), is_active, now, memory.first);
    let is_stale = status == Status::Stale;
    if is_stale && !memory.was_stale {
        let why = why.clone().unwrap_or_default();
        events.push(format!("subflow {name} is stale: {why}"));
    } else if !is_stale && memory.was_stale {
        events.push(format!("subflow {name} is answered again"));
    }
    memory.was_stale = is_stale;
    memory.was_trying = status == Status::Trying;
    let interface = own.map(|(name, _)| name);
    let seen = SeenSubflow { status, why, is_inferred, interface, down_bps, up_bps, share: None };
    (seen, memory)
}

/// Bits per second between the first and the last look.
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

/// Status, why, and whether that is inferred.
fn status(
    subflow: &Subflow,
    interface: Option<&(String, bool)>,
    is_active: bool,
    now: Duration,
    first: Duration,
) -> (Status, Option<String>, bool) {
    match subflow.condition {
        Condition::Trying => {
            let tried = format!("no answer for {}", seconds(now.saturating_sub(first)));
            return (Status::Trying, Some(tried), false);
        }
        Condition::Closing => return (Status::Closing, None, false),
        Condition::Established | Condition::Silent => {}
    }
    let waits = subflow.unacked_packets > 0 && subflow.backoff > 0 && subflow.since_ack >= STALE;
    if waits || subflow.condition == Condition::Silent {
        let silence = seconds(subflow.since_ack);
        let (packets, timeouts) = (subflow.unacked_packets, subflow.backoff);
        let why = format!("nothing heard for {silence}, {packets} unanswered, {timeouts} timeouts");
        return (Status::Stale, Some(why), true);
    }
    // A route may lead over another interface: what moves is not stale.
    match interface.filter(|_| !is_active) {
        None if is_active => {}
        Some((name, false)) => {
            return (Status::Stale, Some(format!("interface {name} is down")), true);
        }
        None => {
            let why = format!("no interface has {}", subflow.local.ip().to_canonical());
            return (Status::Stale, Some(why), true);
        }
        Some((_, true)) => {}
    }
    match (subflow.backup, is_active) {
        (true, true) => (Status::Active, Some("a backup, in use".to_owned()), false),
        (true, false) => (Status::Backup, None, false),
        (false, true) => (Status::Active, None, false),
        (false, false) => (Status::Established, None, false),
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.1} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::SocketState;

    fn subflow(condition: Condition) -> Subflow {
        Subflow {
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.9.0.1:443".parse().unwrap(),
            state: SocketState::Established,
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
        }
    }

    fn connection(subflows: Vec<Subflow>) -> Connection {
        Connection {
            token: 1,
            state: SocketState::Established,
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
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a watch asks for")]
    fn all_run(_: IpAddr) -> Option<(String, bool)> {
        Some(("wifi".to_owned(), true))
    }

    /// The only subflow's status after each look, with all that happened.
    fn statuses(looks: Vec<(u64, Subflow)>) -> (Vec<Status>, Vec<String>) {
        let (mut watch, mut statuses, mut all) = (Watch::default(), Vec::new(), Vec::new());
        for (at_ms, subflow) in looks {
            let now = Duration::from_millis(at_ms);
            let (seen, events) = watch.look(now, vec![connection(vec![subflow])], &all_run);
            statuses.push(seen[0].subflows[0].status);
            all.extend(events);
        }
        (statuses, all)
    }

    #[test]
    fn what_moves_is_active_and_what_rests_is_not() {
        let moved = Subflow { bytes_acked: 1_000, ..subflow(Condition::Established) };
        let looks = vec![
            (0, subflow(Condition::Established)),
            (500, moved.clone()),
            (1_000, moved.clone()),
            (5_000, moved),
        ];
        let (statuses, events) = statuses(looks);
        let expected = [Status::Established, Status::Active, Status::Active, Status::Established];
        assert_eq!(statuses, expected);
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn a_subflow_that_is_not_answered_is_stale_until_it_is() {
        let silent = Subflow {
            backoff: 1,
            unacked_packets: 12,
            since_ack: Duration::from_millis(900),
            ..subflow(Condition::Established)
        };
        let looks = vec![
            (0, subflow(Condition::Established)),
            (500, silent),
            (1_000, subflow(Condition::Established)),
        ];
        let (statuses, events) = statuses(looks);
        assert_eq!(statuses, [Status::Established, Status::Stale, Status::Established]);
        let stale = "subflow 10.0.0.1:4000 → 10.9.0.1:443 is stale: nothing heard for 0.9 s, 12 \
                     unanswered, 1 timeouts";
        assert_eq!(events, [stale, "subflow 10.0.0.1:4000 → 10.9.0.1:443 is answered again"]);
    }

    #[test]
    fn a_subflow_of_an_interface_that_is_down_is_stale_and_one_in_handshake_only_tries() {
        let mut watch = Watch::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let both = vec![
            subflow(Condition::Established),
            Subflow { cookie: 8, ..subflow(Condition::Trying) },
        ];
        let (seen, _) = watch.look(Duration::ZERO, vec![connection(both)], &down);
        let [established, trying] = &seen[0].subflows[..] else { panic!() };
        assert_eq!((established.status, established.is_inferred), (Status::Stale, true));
        assert_eq!(established.why.as_deref(), Some("interface wifi is down"));
        assert_eq!((trying.status, trying.is_inferred), (Status::Trying, false));
    }

    #[test]
    fn what_moves_is_active_even_if_the_interface_of_its_address_is_down() {
        let mut watch = Watch::default();
        let down = |_: IpAddr| Some(("wifi".to_owned(), false));
        let mut status = None;
        for round in 0..3 {
            let moved = Subflow { bytes_acked: 500 * round, ..subflow(Condition::Established) };
            let now = Duration::from_millis(500 * round);
            let (seen, _) = watch.look(now, vec![connection(vec![moved])], &down);
            status = Some(seen[0].subflows[0].status);
        }
        assert_eq!(status, Some(Status::Active));
    }

    #[test]
    fn rates_are_of_the_last_second_and_shares_add_up() {
        let mut watch = Watch::default();
        let at = |received: u64, cookie: u64| Subflow {
            bytes_received: received,
            cookie,
            ..subflow(Condition::Established)
        };
        let mut last = Vec::new();
        for tenth in 0..30_u64 {
            let now = Duration::from_millis(100 * tenth);
            let both = vec![at(30_000 * tenth, 7), at(10_000 * tenth, 8)];
            last = watch.look(now, vec![connection(both)], &all_run).0;
        }
        let [fast, slow] = &last[0].subflows[..] else { panic!() };
        assert!((fast.down_bps - 2_400_000.0).abs() < 1.0, "{fast:?}");
        assert_eq!((fast.share, slow.share), (Some(0.75), Some(0.25)));
        assert!((last[0].down_bps - 3_200_000.0).abs() < 1.0);
    }

    #[test]
    fn what_goes_is_said_once() {
        let mut watch = Watch::default();
        let tried = Subflow { cookie: 8, ..subflow(Condition::Trying) };
        let both = connection(vec![subflow(Condition::Established), tried]);
        watch.look(Duration::ZERO, vec![both], &all_run);
        let one = connection(vec![subflow(Condition::Established)]);
        let (_, events) = watch.look(Duration::from_secs(1), vec![one], &all_run);
        assert_eq!(events, ["subflow 10.0.0.1:4000 → 10.9.0.1:443 gave up"]);
        let (_, events) = watch.look(Duration::from_secs(2), Vec::new(), &all_run);
        assert_eq!(events, ["connection 10.0.0.1:4000 → 10.9.0.1:443 is gone"]);
        let (_, events) = watch.look(Duration::from_secs(3), Vec::new(), &all_run);
        assert!(events.is_empty(), "{events:?}");
    }
}
