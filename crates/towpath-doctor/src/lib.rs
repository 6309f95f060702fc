//! `towpath doctor`: checks that connections use Multipath TCP, and finds the reason if not.
//!
//! First everything is read or tested, and stored as an [`Observation`], which is pure data. Then
//! [`diagnose`] concludes from that alone.
//!
//! Reading order: [`observation`], [`finding`] and `rules`. Then `snapshot` (snapshot of a host),
//! `sender_stats` (limits of its senders), `test_connection` (our test connection) and
//! `connection_watch` (its subflows). Last, `path_checks` (plain TCP over single paths) and
//! `traceroute` (packets with rising time to live).
//!
//! Nothing changes on the host unless `fix` is requested, and no program is run. `tried_commands`
//! separates advice that was tried before (`fix_step` parses a command). Reports of the
//! other host are shown, but never lead to a fix: `local_findings` has the findings without them.

mod attempt;
mod connection_watch;
mod echo;
pub mod finding;
mod fix;
mod fix_step;
mod local_findings;
pub mod observation;
mod path_checks;
mod programs;
mod route_lookups;
mod rules;
mod sender_stats;
mod server_kind;
mod server_session;
mod test_connection;
mod text;
mod traceroute;
mod tried_commands;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use towpath_live::protocol::Secret;

pub use finding::{
    Cause, Claim, ClaimState, Confidence, Diagnosis, Finding, Health, Layer, PathShare,
    SkippedCheck, UnusedInterface,
};
pub use fix::{FixAction, actions, observed_settings, plan_fixes};
pub use observation::{Observation, ServerKind};
pub use programs::ProcessScope;
pub use rules::{causes_page, diagnose};

use towpath_host::setup::{StateOwner, recorded_changes};
use towpath_host::snapshot::take::snapshot;
use towpath_netlink::MptcpEvents;
use towpath_os::clock::Clock;

use self::observation::{PeerSnapshots, Privileges, ProbeOption};

/// Limit on all waiting in total; CPU time on this machine comes on top.
const TOTAL_TIMEOUT: Duration = Duration::from_millis(4_200);
/// Part of [`TOTAL_TIMEOUT`] for our own connection; the rest is for the tests of single paths.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Limit on traceroutes, counted by path and option.
const MAX_PROBES: usize = 12;

/// Options of an examination.
#[derive(Debug, Clone, Default)]
pub struct DoctorOptions {
    /// Server to connect to; `None` tests no connection.
    pub connect: Option<SocketAddr>,
    /// Host name of that server, without its port; sent to virtual hosts.
    pub server_name: String,
    /// A towpath server to query for a snapshot of its host. If `None`, the server of the test
    /// connection is queried, provided it is a towpath server.
    pub peer: Option<SocketAddr>,
    /// Shared secret for the towpath servers.
    pub secret: Option<Secret>,
    /// Processes whose sockets are examined.
    pub programs: ProcessScope,
}

/// Reads and tests everything; takes less than 5 s.
pub fn examine(options: &DoctorOptions) -> Observation {
    let clock = Clock::start();
    let started = clock.now();
    let here = snapshot(None);
    let targets: BTreeSet<_> = options.connect.iter().map(SocketAddr::ip).collect();
    let mut observation = Observation {
        route_lookups: route_lookups::route_lookups(&here, &targets),
        rights: Privileges { events: MptcpEvents::open().is_ok(), raw: traceroute::is_allowed() },
        managers: managers(),
        applied_fixes: recorded_changes(StateOwner::Doctor),
        asked_for_programs: options.programs != ProcessScope::Multipath,
        here,
        ..Observation::default()
    };
    let port = options.connect.map_or(0, |target| target.port());
    let secret = options.secret.as_ref();
    let mut peer_session = options.peer.map(|address| {
        let mut session = server_session::connect_and_open(address, port, secret, clock)?;
        let before = session.snapshot()?;
        Ok((session, PeerSnapshots { address, before, after: None }))
    });
    let outcome = options.connect.map(|target| {
        let mut peer_before = None;
        let deadline = started + CONNECTION_TIMEOUT;
        let poll =
            |session: &mut server_session::ServerSession| peer_before = Some(session.snapshot());
        let test_target =
            test_connection::TestTarget { target, server_name: &options.server_name, secret };
        let mut outcome = test_connection::run(test_target, (clock, deadline), poll);
        if let (Some(peer_before), None, Some(session)) =
            (peer_before, &peer_session, outcome.session.take())
        {
            let peer = |before| (session, PeerSnapshots { address: target, before, after: None });
            peer_session = Some(peer_before.map(peer));
        }
        outcome
    });
    finish_observation(&mut observation, peer_session, outcome);
    let end = started + TOTAL_TIMEOUT;
    let (controls, probes, sender_stats) = thread::scope(|scope| {
        let probes = scope.spawn(|| traceroute::probe(&probe_specs(&observation), clock, end));
        let sender_stats = scope.spawn(|| sender_stats::watch(options.programs, clock, end));
        let controls = path_checks::check_paths(&observation, clock, end);
        (controls, probes.join().unwrap_or_default(), sender_stats.join().unwrap_or_default())
    });
    if let Some(trial) = &mut observation.trial {
        (trial.controls, trial.probes) = (controls, probes);
    }
    // Read last: a connection that has just started has its further subflows by now.
    observation.programs = programs::program_sockets(options.programs).ok();
    sender_stats::attach_stats(
        observation.programs.as_deref_mut().unwrap_or_default(),
        &sender_stats,
    );
    observation
}

/// Control session with the other host, and its snapshot before the connection.
type PeerSession = Result<(server_session::ServerSession, PeerSnapshots), String>;

/// Takes a second snapshot of both hosts while the connection still exists.
fn finish_observation(
    observation: &mut Observation,
    peer_session: Option<PeerSession>,
    outcome: Option<test_connection::TestOutcome>,
) {
    match peer_session {
        Some(Ok((mut session, peer))) => {
            let after = session.snapshot().ok();
            observation.peer = Some(PeerSnapshots { after, ..peer });
        }
        Some(Err(reason)) => observation.peer_error = Some(reason),
        None => {
            observation.peer_error =
                outcome.as_ref().and_then(|outcome| outcome.other_server_reason.clone());
        }
    }
    let after = snapshot(None);
    if let Some(outcome) = outcome {
        let mut trial = outcome.trial;
        trial.counters = after.counters_since(&observation.here);
        let announced = trial.events_of("ANNOUNCED").filter_map(|event| event.remote);
        let joined = trial.subflows.iter().map(|subflow| subflow.remote.ip());
        let targets = announced.chain(joined).chain([trial.target.ip()]).collect();
        observation.route_lookups = route_lookups::route_lookups(&observation.here, &targets);
        observation.trial = Some(trial);
        drop(outcome.socket);
    }
    observation.after = Some(after);
}

/// Returns the paths to trace hop by hop: those over which Multipath TCP does not work.
fn probe_specs(observation: &Observation) -> Vec<traceroute::ProbeSpec> {
    let Some(trial) = observation.trial.as_ref().filter(|_| observation.rights.raw) else {
        return Vec::new();
    };
    let mut specs = Vec::new();
    let mut add = |local, bound_to: Option<u32>, remote, option| {
        let link = bound_to.and_then(|index| observation.here.link(index));
        let device = link.map(|link| link.name.clone());
        for option in [ProbeOption::Plain, option] {
            specs.push(traceroute::ProbeSpec { local, device: device.clone(), remote, option });
        }
    };
    if !(trial.multipath && trial.multipath_at_end)
        && let Some(local) = local_address_towards(trial.target)
    {
        add(local, None, trial.target, ProbeOption::Capable);
    }
    let is_working = |local, remote| {
        let mut subflows = trial.subflows.iter();
        subflows.any(|subflow| {
            subflow.established
                && !subflow.gone
                && subflow.local.ip() == local
                && subflow.remote.ip() == remote
        })
    };
    for path in path_checks::suspect_paths(observation) {
        let local = path.local.or_else(|| local_address_towards(path.remote));
        let Some(local) = local.filter(|local| !is_working(*local, path.remote.ip())) else {
            continue;
        };
        let is_local = observation.here.link_of(local).is_some();
        if is_local && trial.multipath && local.is_ipv4() == path.remote.is_ipv4() {
            add(local, path.bound_to, path.remote, ProbeOption::Join);
        }
    }
    specs.truncate(MAX_PROBES);
    specs
}

/// Returns the source address that this host would use; sends nothing.
fn local_address_towards(target: SocketAddr) -> Option<IpAddr> {
    let unspecified: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns the running programs that configure Multipath TCP by themselves.
fn managers() -> Vec<String> {
    const KNOWN_MANAGERS: [&str; 2] = ["mptcpd", "NetworkManager"];
    let own_netns = std::fs::read_link("/proc/self/ns/net").ok();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let managers = entries.filter_map(|entry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned();
        // A process without readable namespace could be in ours.
        let netns = std::fs::read_link(entry.path().join("ns/net")).ok();
        let is_local = netns.is_none() || netns == own_netns;
        (KNOWN_MANAGERS.contains(&name.as_str()) && is_local).then_some(name)
    });
    managers.collect::<BTreeSet<_>>().into_iter().collect()
}
