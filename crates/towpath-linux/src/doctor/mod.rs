//! `towpath doctor`: is Multipath TCP really used, and if not, why.
//!
//! First everything is read or tried, and kept as an [`Observation`], which is pure data. Then
//! [`diagnose`] concludes from that alone. Reading order: [`observation`], [`finding`], `rules`;
//! `look` (a host from inside), `trial` (a connection of our own), `watch` (its subflows), `controls`
//! (plain TCP over single paths), `probe` (packets with rising time to live).
//!
//! Nothing is changed on the host, and no program is run.

mod attempt;
mod controls;
mod exchange;
pub mod finding;
mod look;
pub mod observation;
mod rules;
mod session;
mod trial;
mod watch;
mod ways;
mod words;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use towpath_measure::live::Secret;

pub use finding::{Cause, Confidence, Finding, Layer, NotChecked, Report, Verdict};
pub(crate) use look::{Question, look};
pub use observation::Observation;
pub use rules::diagnose;

use self::observation::{Peer, Rights};
use crate::clock::Clock;
use crate::netlink::MptcpEvents;

/// What is to be looked at.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Whom to connect to.
    pub connect: Option<SocketAddr>,
    /// A towpath server that is asked how its host looks; the one that is connected to, if it is one,
    /// when none is named.
    pub peer: Option<SocketAddr>,
    /// What the servers want to know.
    pub secret: Option<Secret>,
}

/// Looks and tries; takes less than 5 s.
pub fn examine(order: &Order) -> Observation {
    let clock = Clock::start();
    let here = look(None);
    let mut targets: BTreeSet<_> = order.connect.iter().map(SocketAddr::ip).collect();
    let mut observation = Observation {
        ways: ways::ways(&here, &targets),
        rights: Rights { events: MptcpEvents::open().is_ok(), raw: false },
        managers: managers(),
        here,
        ..Observation::default()
    };
    let port = order.connect.map_or(0, |target| target.port());
    let secret = order.secret.as_ref();
    let mut asked = order.peer.map(|address| {
        let mut session = session::connect_and_open(address, port, secret, clock)?;
        let before = session.look()?;
        Ok::<_, String>((session, Peer { address, before, after: None }))
    });
    let mut done = order.connect.map(|target| {
        let mut before = None;
        let mut done = trial::run(target, secret, clock, |session| before = session.look().ok());
        if let (Some(before), None) = (before, &asked)
            && let Some(session) = done.session.take()
        {
            asked = Some(Ok((session, Peer { address: target, before, after: None })));
        }
        done
    });
    match asked {
        Some(Ok((mut session, peer))) => {
            let after = session.look().ok();
            observation.peer = Some(Peer { after, ..peer });
        }
        Some(Err(why)) => observation.peer_error = Some(why),
        None => {}
    }
    let after = look(None);
    if let Some(done) = &mut done {
        let mut trial = done.trial.clone();
        trial.counters = after.counters_since(&observation.here);
        targets.extend(trial.events_of("ANNOUNCED").filter_map(|event| event.remote));
        targets.extend(trial.subflows.iter().map(|one| one.remote.ip()));
        observation.ways = ways::ways(&observation.here, &targets);
        observation.trial = Some(trial);
        done.socket = None;
    }
    observation.after = Some(after);
    let controls = controls::controls(&observation, clock);
    if let Some(trial) = &mut observation.trial {
        trial.controls = controls;
    }
    observation
}

/// Programs that set up Multipath TCP by themselves.
fn managers() -> Vec<String> {
    const KNOWN: [&str; 2] = ["mptcpd", "NetworkManager"];
    let space = std::fs::read_link("/proc/self/ns/net").ok();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned();
        // Whose namespace may not be seen is taken for one of ours.
        let its = std::fs::read_link(entry.path().join("ns/net")).ok();
        let ours = its.is_none() || its == space;
        (KNOWN.contains(&name.as_str()) && ours).then_some(name)
    });
    found.collect::<BTreeSet<_>>().into_iter().collect()
}
