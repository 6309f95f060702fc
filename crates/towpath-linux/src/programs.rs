//! The connections of programs: none of their sockets is ours, but the kernel lists them in each host.
//!
//! A connection is known by the addresses of its subflows, which both hosts list, and by the token of
//! its Multipath TCP socket. What is closed between two looks is known by the kernel's last words of
//! it. What a program sends by other means than TCP is not seen here; the interfaces count it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use towpath_measure::metrics::DeliveryLog;
use towpath_measure::network::path_and_end;
use towpath_measure::scenario::{DataDirection, Pattern, Scenario};
use towpath_net::Instant;

use crate::netlink::{DestroyedSockets, DiagSocket, SocketDiag, SocketState, States};
use crate::network::Network;
use crate::sample::{Connection, MptcpInfo, SubflowSample, TcpInfo};
use crate::subflow::ends;
use crate::sys;
use crate::traffic::{self, Stage, Stream, StreamEnd};

/// Time between two looks, unless they cost so much that they must be rarer.
const STEP: Duration = Duration::from_millis(20);
/// Rarer looks would blur the series.
const LONGEST: Duration = Duration::from_millis(50);
/// A look is followed by a rest of this many times its cost, as far as that is within the longest
/// step, and of so many times in any case.
const REST: u32 = 50;
const LEAST_REST: u32 = 4;
/// So long after its last socket has gone, the kernel may still have last words of a connection.
const SETTLED: Duration = Duration::from_secs(1);
/// Less than this part of what went the other way is little.
const LITTLE: u64 = 100;
/// Connections that are shown one by one; the bytes of further ones are counted all the same.
const MOST: usize = 100;

/// Addresses of a subflow, seen from one end.
type Ends = (SocketAddr, SocketAddr);

/// What the kernels last said of one end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramEnd(Arc<Mutex<EndState>>);

#[derive(Debug, Default)]
struct EndState {
    subflows: BTreeMap<Ends, Seen>,
    /// Of its Multipath TCP socket, if it has one.
    whole: Option<MptcpInfo>,
    /// What that socket may still do.
    whole_may: May,
    /// Bytes that several subflows have brought.
    copies: u64,
    received: u64,
}

/// What an end may still do with payload.
#[derive(Debug, Clone, Copy, Default)]
struct May {
    send: bool,
    receive: bool,
}

impl May {
    /// From a socket's state (RFC 9293 §3.3.2): who has said that nothing follows may still have to
    /// say again what was lost; who has closed altogether reads no more.
    fn of(socket: &DiagSocket) -> Self {
        use SocketState::{CloseWait, Closing, Established, FinWait1, FinWait2, LastAck};
        let half_closed = matches!(socket.state, FinWait1 | FinWait2);
        Self {
            send: matches!(socket.state, Established | CloseWait | FinWait1 | LastAck | Closing),
            receive: socket.state == Established || half_closed && socket.inode != 0,
        }
    }

    fn or(self, other: Self) -> Self {
        Self { send: self.send || other.send, receive: self.receive || other.receive }
    }
}

#[derive(Debug)]
struct Seen {
    sample: SubflowSample,
    may: May,
    alive: bool,
    /// The latest figures have been asked for.
    told: bool,
}

impl ProgramEnd {
    fn state(&self) -> MutexGuard<'_, EndState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the program asked for no more than TCP, as far as anybody has seen.
    pub(crate) fn is_plain(&self) -> bool {
        self.state().whole.is_none()
    }

    /// The latest figures of what is there.
    pub(crate) fn sample(&self) -> io::Result<Connection> {
        self.told(|seen| seen.alive)
    }

    /// The same, and once those of each subflow that has gone since this was asked.
    pub(crate) fn sample_last(&self) -> io::Result<Connection> {
        self.told(|seen| {
            let new = !seen.told;
            seen.told = true;
            seen.alive || new
        })
    }

    fn told(&self, wanted: impl Fn(&mut Seen) -> bool) -> io::Result<Connection> {
        let mut state = self.state();
        let seen = state.subflows.values_mut();
        let samples: Vec<_> = seen.filter_map(|one| wanted(one).then_some(one.sample)).collect();
        match (state.whole, samples.as_slice()) {
            (_, []) => Err(io::ErrorKind::NotConnected.into()),
            (Some(info), _) if !info.fallback => Ok(Connection::Multipath(info, samples)),
            (_, [first, ..]) => Ok(Connection::Single(*first, None)),
        }
    }
}

impl EndState {
    fn is_alive(&self) -> bool {
        self.subflows.values().any(|seen| seen.alive)
    }

    /// What the end may still do, as far as a socket of it is there.
    fn may(&self) -> May {
        let alive = self.subflows.values().filter(|seen| seen.alive);
        let subflows = alive.fold(May::default(), |all, seen| all.or(seen.may));
        match self.whole.filter(|whole| !whole.fallback) {
            Some(_) => May {
                send: subflows.send && self.whole_may.send,
                receive: subflows.receive && self.whole_may.receive,
            },
            None => subflows,
        }
    }

    fn subflow(&mut self, socket: &DiagSocket, alive: bool) {
        let info = TcpInfo::parse(&socket.info);
        let (local, remote) = ends(socket);
        let sample = SubflowSample {
            number: 0,
            local,
            remote,
            backup: None,
            stream_frames: None,
            congestion_control: None,
            info,
        };
        let seen = self.subflows.entry((local, remote));
        let may = May::of(socket);
        let seen = seen.or_insert(Seen { sample, may, alive, told: false });
        seen.may = may;
        let before = &seen.sample.info;
        seen.alive = alive;
        // Linux wipes the figures of a connection's first subflow before it is destroyed.
        if info.bytes_received >= before.bytes_received && info.bytes_acked >= before.bytes_acked {
            (seen.sample, seen.told) = (sample, false);
        }
    }

    /// Payload that has arrived here, each byte once; never less than before.
    fn count(&mut self, fresh: bool) -> u64 {
        let sum: u64 = self.subflows.values().map(|seen| seen.sample.info.bytes_received).sum();
        let whole = self.whole.filter(|whole| whole.bytes_received + whole.bytes_acked > 0);
        if let Some(whole) = whole.filter(|_| fresh) {
            self.copies = sum.saturating_sub(whole.bytes_received);
            self.received = self.received.max(whole.bytes_received);
        }
        self.received = self.received.max(sum.saturating_sub(self.copies));
        self.received
    }
}

/// A connection between two hosts.
#[derive(Debug)]
struct Found {
    flow: u32,
    /// The flow's first host and its second.
    hosts: [usize; 2],
    ends: [ProgramEnd; 2],
    /// Bytes that have gone up and down.
    received: [Arc<AtomicU64>; 2],
    /// When its last socket was gone.
    ended: Option<Instant>,
    /// Nothing more is heard of it.
    settled: bool,
}

/// What one host's kernel is asked.
#[derive(Debug)]
struct Ears {
    diag: SocketDiag,
    destroyed: Option<DestroyedSockets>,
}

/// One host's sockets at one time.
#[derive(Debug, Default)]
struct Look {
    tcp: Vec<DiagSocket>,
    whole: Vec<DiagSocket>,
    listening: Vec<u16>,
    gone: Vec<DiagSocket>,
}

/// A flow that runs a command.
#[derive(Debug, Clone, Copy)]
struct Commanded {
    flow: u32,
    hosts: [usize; 2],
}

/// Follows the connections of all commands of a run.
#[derive(Debug)]
pub(crate) struct Programs {
    ears: Vec<Option<Ears>>,
    flows: Vec<Commanded>,
    /// Ports at which our own traffic is received.
    ours: BTreeSet<u16>,
    /// Where programs have listened.
    listened: BTreeSet<(usize, u16)>,
    found: Vec<Found>,
    by_ends: BTreeMap<Ends, usize>,
    by_token: BTreeMap<(usize, u32), usize>,
    /// By the number that a socket has for ever.
    by_cookie: BTreeMap<(usize, u64), usize>,
    logs: BTreeMap<(u32, DataDirection), DeliveryLog>,
    last: Instant,
}

const DIRECTIONS: [DataDirection; 2] = [DataDirection::Up, DataDirection::Down];

impl Programs {
    /// Gets ready, before any program starts; `None` where no flow runs one.
    pub(crate) fn open(network: &Network) -> Option<Self> {
        let scenario = &network.scenario;
        let flows = commanded(scenario);
        if flows.is_empty() {
            return None;
        }
        let ears = network.hosts.iter().map(|host| {
            let open = || Some(Ears { diag: SocketDiag::open().ok()?, destroyed: None });
            let mut ears = host.namespace.run(open).ok()??;
            let destroyed = host.namespace.run(DestroyedSockets::open);
            // Without last words, what is closed between two looks stays unseen.
            ears.destroyed = destroyed.ok().and_then(Result::ok);
            host.stack.is_none().then_some(ears)
        });
        let ears = ears.collect();
        Some(Self {
            ears,
            flows,
            ours: traffic::ports(scenario),
            listened: BTreeSet::new(),
            found: Vec::new(),
            by_ends: BTreeMap::new(),
            by_token: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            logs: BTreeMap::new(),
            last: Instant::ZERO,
        })
    }

    /// Looks again and again until `done`, and once more.
    pub(crate) fn follow(&mut self, stage: &Stage, done: &AtomicBool) {
        loop {
            let last = done.load(Ordering::Acquire);
            let began = sys::thread_cpu_time();
            self.look(stage);
            if last {
                return;
            }
            let cost = sys::thread_cpu_time().saturating_sub(began);
            thread::sleep((cost * REST).clamp(STEP, LONGEST).max(cost * LEAST_REST));
        }
    }

    /// What arrived of a flow, by direction: of a direction that carried little beside the other one,
    /// such as a program's own control, nothing is told, as its pauses say nothing.
    pub(crate) fn logs(&self, flow: u32) -> Vec<(DataDirection, &DeliveryLog)> {
        let logs = DIRECTIONS.iter().filter_map(|direction| {
            let log = self.logs.get(&(flow, *direction))?;
            Some((*direction, log))
        });
        let mut logs: Vec<_> = logs.collect();
        let most = logs.iter().map(|(_, log)| log.total_bytes()).max().unwrap_or_default();
        logs.retain(|(_, log)| log.total_bytes() > most / LITTLE);
        logs
    }

    /// What is not shown of all this, for people.
    pub(crate) fn warning(&self) -> Option<String> {
        let count = self.found.len();
        (count > MOST).then(|| {
            format!(
                "the programs opened {count} connections; the first {MOST} are shown one by one, \
                 of the others the bytes"
            )
        })
    }

    fn look(&mut self, stage: &Stage) {
        // What the kernels say is of now, however long they take to say it.
        let now = stage.now();
        let looks: Vec<_> = self.ears.iter_mut().map(Ears::look).collect();
        for (host, look) in looks.iter().enumerate() {
            self.note(host, look, stage);
        }
        self.count(now);
    }

    fn note(&mut self, host: usize, look: &Look, stage: &Stage) {
        let mut present = BTreeSet::new();
        self.listened.extend(look.listening.iter().map(|port| (host, *port)));
        for (socket, alive) in
            look.tcp.iter().map(|s| (s, true)).chain(look.gone.iter().map(|s| (s, false)))
        {
            let Some(id) = self.connection(host, socket, stage) else { continue };
            let Some(end) = self.end(id, host) else { continue };
            end.state().subflow(socket, alive);
            if alive {
                present.insert((id, ends(socket)));
            }
        }
        for socket in &look.whole {
            let info = MptcpInfo::parse(&socket.info);
            let id = self.by_token.get(&(host, info.token)).or_else(|| {
                let (local, remote) = ends(socket);
                self.by_ends.get(&(local, remote))
            });
            let Some(end) = id.and_then(|id| self.end(*id, host)) else { continue };
            let mut known = end.state();
            // One that has fallen back never returns.
            let fallback = info.fallback || known.whole.is_some_and(|whole| whole.fallback);
            known.whole = Some(MptcpInfo { fallback, ..info });
            known.whole_may = May::of(socket);
            known.count(true);
        }
        for (id, found) in self.found.iter().enumerate() {
            let Some(end) = found.end(host) else { continue };
            for (addresses, seen) in &mut end.state().subflows {
                seen.alive &= present.contains(&(id, *addresses));
            }
        }
    }

    fn end(&self, id: usize, host: usize) -> Option<&ProgramEnd> {
        self.found.get(id)?.end(host)
    }

    /// The connection of a TCP socket, which may be a new one.
    fn connection(&mut self, host: usize, socket: &DiagSocket, stage: &Stage) -> Option<usize> {
        let (local, remote) = ends(socket);
        if self.ours.contains(&local.port()) || self.ours.contains(&remote.port()) {
            return None;
        }
        let path = Network::path_of(local.ip(), remote.ip())?;
        let token = socket.subflow.and_then(|subflow| subflow.token_local);
        let by_cookie = self.by_cookie.get(&(host, socket.cookie));
        let by_token = || self.by_token.get(&(host, token?));
        let by_ends = || self.by_ends.get(&(local, remote));
        let known = by_cookie.or_else(by_token).or_else(by_ends).copied();
        let id = if let Some(id) = known {
            id
        } else {
            let paths = &stage.network.scenario.paths;
            let [one, other] = paths.get(path)?.between;
            let owner = |(path, end): (usize, usize)| paths.get(path)?.between.get(end).copied();
            // Behind a router that is a host of the scenario, the peer is on another path.
            let peer = path_and_end(remote.ip()).and_then(owner).filter(|peer| *peer != host);
            let peer = peer.unwrap_or(if host == one { other } else { one });
            let accepted = self.listened.contains(&(host, local.port()));
            self.add(if accepted { [peer, host] } else { [host, peer] }, stage)?
        };
        if self.by_cookie.insert((host, socket.cookie), id) == Some(id) {
            return Some(id);
        }
        self.by_ends.insert((local, remote), id);
        self.by_ends.insert((remote, local), id);
        if let Some(token) = token {
            self.by_token.insert((host, token), id);
        }
        Some(id)
    }

    /// A connection of the first of two hosts to the second.
    fn add(&mut self, between: [usize; 2], stage: &Stage) -> Option<usize> {
        let [opener, acceptor] = between;
        let of = |hosts: [usize; 2]| self.flows.iter().find(move |own| own.hosts == hosts);
        let own = of(between).or_else(|| of([acceptor, opener]));
        let hosts = own.map_or(between, |own| own.hosts);
        let own = own.or(self.flows.first())?;
        let found = Found {
            flow: own.flow,
            hosts,
            ends: Default::default(),
            received: Default::default(),
            ended: None,
            settled: false,
        };
        if self.found.len() < MOST {
            let number = self.found.iter().filter(|other| other.flow == own.flow).count() as u32;
            let [client, server] = found.ends.clone().map(StreamEnd::Program);
            let received = DIRECTIONS.into_iter().zip(found.received.clone()).collect();
            let stream = Stream { flow: own.flow, number, client, server, received };
            stage.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        }
        self.found.push(found);
        Some(self.found.len() - 1)
    }

    /// Adds up what has arrived since the last look.
    fn count(&mut self, now: Instant) {
        let span = now.saturating_since(self.last);
        self.last = now;
        let (mut settled, mut sums) = (BTreeSet::new(), BTreeMap::new());
        for (id, found) in self.found.iter_mut().enumerate().filter(|(_, found)| !found.settled) {
            let [client, server] = &found.ends;
            let alive = [client, server].iter().any(|end| end.state().is_alive());
            found.ended = if alive { None } else { Some(found.ended.unwrap_or(now)) };
            found.settled = found.ended.is_some_and(|ended| now >= ended + SETTLED);
            if found.settled {
                settled.insert(id);
            }
            for ((direction, [sender, receiver]), counter) in DIRECTIONS
                .into_iter()
                .zip([[client, server], [server, client]])
                .zip(&found.received)
            {
                let total = receiver.state().count(false);
                let bytes = total.saturating_sub(counter.swap(total, Ordering::Relaxed));
                let (sum, open) = sums.entry((found.flow, direction)).or_insert((0, false));
                *sum += bytes;
                // A server may leave a connection open whose client has gone.
                *open |= sender.state().may().send && receiver.state().may().receive;
            }
        }
        for (key, (bytes, open)) in sums {
            if bytes > 0 {
                // How long a program takes to begin is its own affair.
                let log = self.logs.entry(key);
                let log = log.or_insert_with(|| DeliveryLog::new(now - span));
                log.record_evenly(bytes, (now, span));
            }
            if let Some(log) = self.logs.get_mut(&key).filter(|_| open) {
                // What does not come over a connection that is open for it is missed.
                log.watch_until(now);
            }
        }
        // Its addresses may be used again.
        self.by_ends.retain(|_, id| !settled.contains(id));
        self.by_token.retain(|_, id| !settled.contains(id));
    }
}

impl Found {
    fn end(&self, host: usize) -> Option<&ProgramEnd> {
        let place = self.hosts.iter().position(|own| *own == host)?;
        self.ends.get(place)
    }
}

impl Ears {
    fn look(ears: &mut Option<Self>) -> Look {
        let Some(Self { diag, destroyed }) = ears else { return Look::default() };
        // In this order, so that a connection's sum is not older than its parts.
        let tcp = diag.tcp(States::ALL).unwrap_or_default();
        let listens = |socket: &DiagSocket| socket.state == SocketState::Listen;
        let listening = tcp.iter().filter(|socket| listens(socket));
        let listening = listening.map(|socket| socket.local.port()).collect();
        let whole = diag.mptcp(States::CONNECTED).unwrap_or_default();
        let gone = destroyed.as_mut().and_then(|sockets| sockets.drain().ok());
        let has_info = |socket: &DiagSocket| !socket.info.is_empty();
        let connected = |socket: &DiagSocket| {
            let over = matches!(socket.state, SocketState::Closed | SocketState::TimeWait);
            has_info(socket) && !over && !listens(socket)
        };
        Look {
            tcp: tcp.into_iter().filter(connected).collect(),
            whole: whole.into_iter().filter(has_info).collect(),
            listening,
            gone: gone.map(|gone| gone.events).unwrap_or_default(),
        }
    }
}

fn commanded(scenario: &Scenario) -> Vec<Commanded> {
    let flows = (0_u32..).zip(&scenario.flows);
    let run = flows.filter(|(_, flow)| matches!(flow.pattern, Pattern::Run { .. }));
    run.map(|(number, flow)| Commanded { flow: number, hosts: [flow.from, flow.to] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(state: SocketState, inode: u32) -> (bool, bool) {
        let any = "10.64.0.1:80".parse().unwrap();
        let socket = DiagSocket {
            state,
            local: any,
            remote: any,
            link_index: None,
            cookie: 1,
            inode,
            uid: 0,
            receive_queue: 0,
            send_queue: 0,
            send_buffer: (0, 0),
            info: Vec::new(),
            congestion: None,
            subflow: None,
        };
        let May { send, receive } = May::of(&socket);
        (send, receive)
    }

    #[test]
    fn a_closed_socket_receives_no_more_but_a_half_closed_one_does() {
        use SocketState::{CloseWait, Established, FinWait1, FinWait2, LastAck, TimeWait};
        // In a queue for `accept` it is nobody's yet.
        assert_eq!([may(Established, 7), may(Established, 0)], [(true, true); 2]);
        assert_eq!(may(FinWait2, 7), (false, true));
        assert_eq!(may(FinWait2, 0), (false, false));
        // What was sent before may still have to be sent again.
        assert_eq!(may(FinWait1, 0), (true, false));
        assert_eq!([may(CloseWait, 7), may(LastAck, 0)], [(true, false); 2]);
        assert_eq!(may(TimeWait, 0), (false, false));
    }
}
