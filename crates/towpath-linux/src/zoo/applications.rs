//! Applications of the client's, and what becomes of their subflows.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::listener;
use super::network::ZooNetwork;
use super::situation::{Plan, Socket};
use crate::clock::Clock;
use crate::hop::Rule;
use crate::netlink::{Counters, DiagSocket, SocketDiag, States};
use crate::network::NetworkError;
use crate::sample::{TcpInfo, u32_at};

/// What has not happened by then does not happen; the situation is then another one.
const PATIENCE: Duration = Duration::from_secs(8);
const PERIOD: Duration = Duration::from_millis(20);
/// A subflow is dead when nothing has been heard for so long, and it was sent to again.
const SILENT_MS: u32 = 1_700;

/// Starts them, and waits until all has happened to them that shall.
pub(super) fn start(
    plan: &Plan,
    network: &ZooNetwork,
    target: SocketAddr,
) -> Result<(), NetworkError> {
    set(plan, network, &plan.first_boxes);
    for kind in &plan.applications {
        listener::application(&network.client.namespace, target, *kind)
            .map_err(NetworkError::system("connect an application"))?;
    }
    let wait = |what: fn(&Seen) -> bool| {
        wait(network, target, what).map_err(NetworkError::system("watch an application"))
    };
    if !plan.first_boxes.is_empty() {
        wait(|seen| seen.tried && seen.subflows < 2)?;
        clear(plan, network, &plan.first_boxes);
    }
    if !plan.passing_boxes.is_empty() {
        wait(|seen| seen.subflows > 1)?;
        set(plan, network, &plan.passing_boxes);
        wait(|seen| seen.subflows < 2)?;
        clear(plan, network, &plan.passing_boxes);
    } else if plan.first_boxes.is_empty() && plan.applications.contains(&Socket::Bursts) {
        wait(|seen| seen.silent)?;
    }
    Ok(())
}

fn set(plan: &Plan, network: &ZooNetwork, boxes: &[(usize, &'static [Rule])]) {
    for (path, rules) in boxes {
        network.set_rules(*path, &[&plan.rules(*path), *rules].concat());
    }
}

fn clear(plan: &Plan, network: &ZooNetwork, boxes: &[(usize, &'static [Rule])]) {
    for (path, _) in boxes {
        network.set_rules(*path, &plan.rules(*path));
    }
}

/// What has become of the applications' subflows.
#[derive(Debug)]
struct Seen {
    subflows: usize,
    /// A further one was begun.
    tried: bool,
    /// One of them is waited for in vain.
    silent: bool,
}

fn wait(network: &ZooNetwork, target: SocketAddr, what: fn(&Seen) -> bool) -> io::Result<()> {
    network.client.namespace.run(|| {
        let clock = Clock::start();
        let deadline = clock.now() + PATIENCE;
        let mut diag = SocketDiag::open().map_err(io::Error::other)?;
        while clock.now() < deadline {
            let listed = diag.tcp(States::CONNECTED).map_err(io::Error::other)?;
            let its =
                |one: &&DiagSocket| one.subflow.is_some() && one.remote.port() == target.port();
            let its: Vec<_> = listed.iter().filter(its).collect();
            let joined = Counters::read().unwrap_or_default().get("MPTcpExt.MPJoinSynTx");
            let seen = Seen {
                subflows: its.len(),
                tried: joined.unwrap_or(0) > 0,
                silent: its.iter().any(|one| is_silent(one)),
            };
            if what(&seen) {
                break;
            }
            std::thread::sleep(PERIOD);
        }
        Ok(())
    })?
}

fn is_silent(one: &DiagSocket) -> bool {
    let info = TcpInfo::parse(&one.info);
    let heard_ms = u32_at(&one.info, 52).min(u32_at(&one.info, 56)); // last data, last acknowledgement
    info.backoff > 1 && heard_ms > SILENT_MS
}
