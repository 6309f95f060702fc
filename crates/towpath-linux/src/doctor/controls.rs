//! Plain TCP over single paths: is it the path that does not work, or Multipath TCP on it?

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_net::Instant;

use super::attempt::{self, Manner};
use super::exchange::{Exchanging, comes_back};
use super::observation::{Control, Observation, SubflowSeen};
use super::session;
use crate::clock::Clock;
use crate::sample::TcpInfo;
use crate::sys;

/// Paths that are tried at the same time.
const MOST: usize = 8;
/// For the connection; for the small and for the large packets.
const CONNECTING: Duration = Duration::from_millis(1_250);
const ANSWERING: Duration = Duration::from_millis(500);
const SMALL_BYTES: u64 = 64;
/// Some packets of full size on every link that there is.
const LARGE_BYTES: u64 = 12_000;
/// Small packets with room between them: what is lost of them was not lost in a full queue.
const PACKETS: u32 = 40;
const GAP: Duration = Duration::from_millis(12);
const PACKET_BYTES: u64 = 100;

/// A path that is to be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) local: Option<IpAddr>,
    pub(super) bound_to: Option<u32>,
    pub(super) remote: SocketAddr,
}

/// Tries every path that was used, or that could be, until `end` at the latest.
pub(super) fn controls(observation: &Observation, clock: Clock, end: Instant) -> Vec<Control> {
    let paths = suspects(observation);
    let Some(trial) = &observation.trial else { return Vec::new() };
    let speaks = (trial.echoes, trial.is_towpath);
    let device = |path: &Path| {
        let link = path.bound_to.and_then(|index| observation.here.link(index));
        link.map(|link| link.name.clone())
    };
    thread::scope(|scope| {
        let tried: Vec<_> = paths
            .iter()
            .map(|path| {
                let (path, device) = (*path, device(path));
                scope.spawn(move || control(path, device, speaks, (clock, end)))
            })
            .collect();
        tried.into_iter().filter_map(|one| one.join().ok()).collect()
    })
}

/// Tries one path. The peer may give back what it gets, and may want a preamble first.
fn control(
    path: Path,
    device: Option<String>,
    (echoes, is_towpath): (bool, bool),
    (clock, end): (Clock, Instant),
) -> Control {
    let patience = CONNECTING.min(end.saturating_since(clock.now()));
    let manner = Manner { source: path.local, device, patience, ..Manner::tcp() };
    let (attempt, socket) = attempt::connect(path.remote, &manner, clock);
    let chosen = socket.as_ref().and_then(|one| one.local_addr().ok()?.as_socket());
    let local = path.local.or(chosen.map(|end| end.ip().to_canonical()));
    let mut control = Control {
        local: local.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        bound_to: path.bound_to,
        remote: path.remote,
        outcome: attempt.outcome,
        small: None,
        large: None,
        packets: 0,
        resent: 0,
        min_rtt_us: 0,
    };
    let Some(mut socket) = socket.filter(|_| echoes) else { return control };
    let _small_at_once = socket.set_tcp_nodelay(true);
    let greeted = !is_towpath || io::Write::write(&mut socket, &session::echo()).is_ok();
    if greeted && socket.set_nonblocking(true).is_ok() {
        send(&mut control, &socket, (clock, end));
    }
    control
}

/// One small packet, then many with room between them, then large ones.
fn send(control: &mut Control, socket: &Socket, (clock, end): (Clock, Instant)) {
    let patience = || ANSWERING.min(end.saturating_since(clock.now()));
    let mut exchanging = Exchanging::new(clock);
    let small = comes_back(&mut exchanging, socket, SMALL_BYTES, patience());
    control.small = Some(small);
    let before = information(socket).total_retrans;
    for _ in 0..PACKETS {
        let end = clock.now() + GAP;
        let limit = exchanging.sent().saturating_add(PACKET_BYTES);
        exchanging.step(socket, limit);
        clock.sleep_until(end);
    }
    let after = information(socket);
    (control.packets, control.resent) = (PACKETS, after.total_retrans.saturating_sub(before));
    control.min_rtt_us = after.srtt_us;
    let even = comes_back(&mut exchanging, socket, 0, patience());
    if even {
        control.small = Some(true);
        control.large = Some(comes_back(&mut exchanging, socket, LARGE_BYTES, patience()));
    }
}

/// What the kernel knows of a connection.
fn information(socket: &Socket) -> TcpInfo {
    let mut bytes = [0; 256];
    let read = sys::get_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes);
    TcpInfo::parse(bytes.get(..read.unwrap_or(0)).unwrap_or_default())
}

/// Paths that were used, those with trouble, and those that nobody has tried.
pub(super) fn suspects(observation: &Observation) -> Vec<Path> {
    let Some(trial) = &observation.trial else { return Vec::new() };
    let here = &observation.here;
    let mut paths: Vec<Path> = Vec::new();
    let mut add = |path: Path| {
        if !paths.contains(&path) {
            paths.push(path);
        }
    };
    let binding = |address: IpAddr| {
        let endpoint = here.endpoints.iter().find(|endpoint| endpoint.address == address);
        endpoint.and_then(|endpoint| endpoint.link)
    };
    let works = |one: &SubflowSeen| one.established && !one.gone && one.tcp.backoff == 0;
    for one in trial.subflows.iter().filter(|one| !works(one)) {
        let local = one.local.ip();
        add(Path { local: Some(local), bound_to: binding(local), remote: one.remote });
    }
    for event in trial.events_of("SF_CLOSED") {
        if let (Some(local), Some(remote)) = (event.local, event.remote) {
            let remote = SocketAddr::new(remote, event.remote_port.unwrap_or(trial.target.port()));
            add(Path { local: Some(local), bound_to: binding(local), remote });
        }
    }
    let joined = trial.subflows.iter().any(|one| !one.first && works(one));
    for one in trial.subflows.iter().filter(|one| works(one)) {
        let local = one.local.ip();
        add(Path { local: Some(local), bound_to: binding(local), remote: one.remote });
    }
    let used = |address: IpAddr| trial.subflows.iter().any(|one| one.local.ip() == address);
    for endpoint in here.endpoints.iter().filter(|one| one.opens() && !used(one.address)) {
        if endpoint.address.is_ipv4() == trial.target.is_ipv4() {
            let (local, bound_to) = (Some(endpoint.address), endpoint.link);
            add(Path { local, bound_to, remote: trial.target });
        }
    }
    for event in trial.events_of("ANNOUNCED") {
        let reached = |remote| trial.subflows.iter().any(|one| one.remote.ip() == remote);
        if let Some(remote) = event.remote.filter(|remote| !reached(*remote)) {
            let port = event.remote_port.filter(|port| *port != 0).unwrap_or(trial.target.port());
            add(Path { local: None, bound_to: None, remote: SocketAddr::new(remote, port) });
        }
    }
    for source in super::ways::sources(here) {
        let inside = trial.target.ip().is_loopback();
        if !joined && !inside && !used(source) && source.is_ipv4() == trial.target.is_ipv4() {
            let bound_to = here.link_of(source).map(|link| link.index);
            add(Path { local: Some(source), bound_to, remote: trial.target });
        }
    }
    paths.truncate(MOST);
    paths
}
