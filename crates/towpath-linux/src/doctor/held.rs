//! What holds the connections of programs back: looked at for a second, where they have something to
//! send.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::result::Part;
use towpath_net::Instant;

use super::look::plain_end;
use super::observation::{HeldBack, Program};
use super::programs::Whose;
use crate::clock::Clock;
use crate::limit::Above;
use crate::monitor::{self, Connection, Inside, Spent};
use crate::netlink::{DiagSocket, SocketDiag, SocketState, States};
use crate::sample::{MptcpInfo, TcpInfo};

/// How long it is looked, and how often.
const LASTS: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(40);
/// A listing of more sockets takes too long to be made so often.
const MOST_SOCKETS: usize = 2_000;

/// Both ends of a connection.
type Ends = (SocketAddr, SocketAddr);

/// A connection while it is looked at.
#[derive(Debug)]
struct Known {
    before: Vec<(u64, TcpInfo)>,
    spent: BTreeMap<u64, Spent>,
    seconds: BTreeMap<Part, f64>,
    held: HeldBack,
    acked_bytes: u64,
    latest: Instant,
}

/// Looks until `end` at the latest; nothing where no connection sends.
pub(super) fn watch(whose: Whose, clock: Clock, end: Instant) -> BTreeMap<Ends, HeldBack> {
    let mut known: BTreeMap<Ends, Known> = BTreeMap::new();
    let end = end.min(clock.now() + LASTS);
    let Ok(mut diag) = SocketDiag::open() else { return BTreeMap::new() };
    loop {
        let now = clock.now();
        let Some(connections) = connections(&mut diag, whose) else { break };
        let sends = |one: &Connection| {
            one.subflows.iter().any(|subflow| {
                subflow.inside.tcp.unacked > 0 || subflow.inside.tcp.notsent_bytes > 0
            })
        };
        if known.is_empty() && !connections.iter().any(sends) {
            break;
        }
        for connection in &connections {
            let ends = (plain_end(connection.local), plain_end(connection.remote));
            let one = known.entry(ends).or_insert_with(|| Known::new(connection, now));
            one.look(connection, now);
        }
        if now + PAUSE > end {
            break;
        }
        clock.sleep_until(now + PAUSE);
    }
    known.into_iter().map(|(ends, one)| (ends, one.close())).collect()
}

/// The connections to look at.
fn connections(diag: &mut SocketDiag, whose: Whose) -> Option<Vec<Connection>> {
    let tcp = diag.tcp(States::CONNECTED).ok()?;
    let mptcp = diag.mptcp(States::CONNECTED).unwrap_or_default();
    if tcp.len() + mptcp.len() > MOST_SOCKETS {
        return None;
    }
    let mut all = monitor::join(&mptcp, &tcp);
    if whose != Whose::Multipath {
        let tokens: Vec<u32> =
            mptcp.iter().map(|whole| MptcpInfo::parse(&whole.info).token).collect();
        let is_part = |part: &DiagSocket| {
            part.subflow.and_then(|flow| flow.token_local).is_some_and(|one| tokens.contains(&one))
        };
        all.extend(tcp.iter().filter(|one| !is_part(one)).map(plain));
    }
    all.retain(|one| one.state == SocketState::Established);
    Some(all)
}

/// A connection of plain TCP, as its only subflow.
fn plain(socket: &DiagSocket) -> Connection {
    let subflow = monitor::subflow(socket);
    let above = Above { buffer: socket.send_buffer, ..Above::default() };
    Connection {
        token: 0,
        state: socket.state,
        fallback: true,
        local: socket.local,
        remote: socket.remote,
        inode: socket.inode,
        uid: socket.uid,
        processes: Vec::new(),
        bytes_received: subflow.bytes_received,
        bytes_acked: subflow.bytes_acked,
        bytes_reinjected: 0,
        cookie: socket.cookie,
        subflows: vec![subflow],
        inside: Inside { above, ..Inside::default() },
    }
}

impl Known {
    fn new(connection: &Connection, now: Instant) -> Self {
        Self {
            before: Vec::new(),
            spent: BTreeMap::new(),
            seconds: BTreeMap::new(),
            held: HeldBack { smallest_window_bytes: u64::MAX, ..HeldBack::default() },
            acked_bytes: acked(connection),
            latest: now,
        }
    }

    fn look(&mut self, connection: &Connection, now: Instant) {
        let span = now.saturating_since(self.latest);
        let before: Vec<Option<TcpInfo>> = { connection.subflows.iter() }
            .map(|subflow| {
                let same = |(cookie, _): &&(u64, TcpInfo)| *cookie == subflow.cookie;
                self.before.iter().find(same).map(|(_, info)| *info)
            })
            .collect();
        let mut spent: Vec<Spent> = { connection.subflows.iter() }
            .map(|subflow| self.spent.remove(&subflow.cookie).unwrap_or_default())
            .collect();
        let at = Duration::from_nanos(now.as_nanos());
        monitor::note(connection, &before, &mut spent, (at, span), Duration::ZERO);
        if !span.is_zero() {
            for (part, seconds) in spent.iter().flat_map(Spent::latest) {
                *self.seconds.entry(part).or_default() += seconds;
            }
        }
        let held = &mut self.held;
        for (subflow, spent) in connection.subflows.iter().zip(spent) {
            let info = &subflow.inside.tcp;
            if let Some(window) = info.snd_wnd_bytes.map(u64::from) {
                held.window_bytes = held.window_bytes.max(window);
                held.smallest_window_bytes = held.smallest_window_bytes.min(window);
            }
            held.srtt_us = held.srtt_us.max(info.srtt_us);
            self.spent.insert(subflow.cookie, spent);
        }
        held.buffer_bytes = held.buffer_bytes.max(connection.inside.above.buffer.1);
        held.acked_bytes = acked(connection).saturating_sub(self.acked_bytes);
        held.span_ms += span.as_millis() as u64;
        let cookie = connection.subflows.iter().map(|it| (it.cookie, it.inside.tcp));
        (self.before, self.latest) = (cookie.collect(), now);
    }

    fn close(self) -> HeldBack {
        let of = |parts: &[Part]| -> u64 {
            let own = self.seconds.iter().filter(|(part, _)| parts.contains(part));
            (own.map(|(_, seconds)| seconds).sum::<f64>() * 1e3) as u64
        };
        let idle = [Part::Application, Part::Backup, Part::Scheduler, Part::Handshake];
        let all: f64 = self.seconds.values().sum();
        HeldBack {
            busy_ms: ((all * 1e3) as u64).saturating_sub(of(&idle)),
            receive_window_ms: of(&[Part::PeerWindow, Part::HeadOfLineBlocking]),
            send_buffer_ms: of(&[Part::SendBuffer]),
            ..self.held
        }
    }
}

fn acked(connection: &Connection) -> u64 {
    connection.subflows.iter().map(|subflow| subflow.bytes_acked).sum()
}

/// Gives each program's connection what was seen of it.
pub(super) fn tell(programs: &mut [Program], held: &BTreeMap<Ends, HeldBack>) {
    for program in programs {
        program.held_back = held.get(&(program.local, program.remote)).copied();
    }
}
