//! Applications of the client, and the events on their subflows.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::case::{AppSocket, FailurePlan};
use super::listener;
use super::network::FailureNetwork;
use crate::clock::Clock;
use crate::netlink::{DiagSocket, MibCounters, SocketDiag, StateFilter};
use crate::network::NetworkError;
use crate::router::RouterRule;
use crate::sample::{TcpInfo, u32_at};

/// Maximum time to wait for an event; afterwards, the case is set up without it.
const SETUP_TIMEOUT: Duration = Duration::from_secs(8);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time without data or acknowledgements after which a retransmitting subflow counts as silent.
const SILENT_AFTER_MS: u32 = 1_700;

/// Starts the applications and waits for the events that the plan requires.
pub(super) fn start(
    plan: &FailurePlan,
    network: &FailureNetwork,
    target: SocketAddr,
) -> Result<(), NetworkError> {
    set(plan, network, &plan.initial_boxes);
    for kind in &plan.applications {
        listener::application(&network.client.namespace, target, *kind)
            .map_err(NetworkError::system("connect an application"))?;
    }
    let wait = |condition: fn(&AppSubflows) -> bool| {
        wait(network, target, condition).map_err(NetworkError::system("watch an application"))
    };
    if !plan.initial_boxes.is_empty() {
        wait(|seen| seen.tried && seen.subflows < 2)?;
        clear(plan, network, &plan.initial_boxes);
    }
    if !plan.temporary_boxes.is_empty() {
        wait(|seen| seen.subflows > 1)?;
        set(plan, network, &plan.temporary_boxes);
        wait(|seen| seen.subflows < 2)?;
        clear(plan, network, &plan.temporary_boxes);
    } else if plan.initial_boxes.is_empty() && plan.applications.contains(&AppSocket::Bursts) {
        wait(|seen| seen.silent)?;
    }
    Ok(())
}

fn set(plan: &FailurePlan, network: &FailureNetwork, boxes: &[(usize, &'static [RouterRule])]) {
    for (path, rules) in boxes {
        network.set_rules(*path, &[&plan.rules(*path), *rules].concat());
    }
}

fn clear(plan: &FailurePlan, network: &FailureNetwork, boxes: &[(usize, &'static [RouterRule])]) {
    for (path, _) in boxes {
        network.set_rules(*path, &plan.rules(*path));
    }
}

/// State of the applications' subflows.
#[derive(Debug)]
struct AppSubflows {
    subflows: usize,
    /// Set when the client has sent an MP_JOIN SYN.
    tried: bool,
    /// True if a subflow retransmits without a response.
    silent: bool,
}

fn wait(
    network: &FailureNetwork,
    target: SocketAddr,
    condition: fn(&AppSubflows) -> bool,
) -> io::Result<()> {
    network.client.namespace.run(|| {
        let clock = Clock::start();
        let deadline = clock.now() + SETUP_TIMEOUT;
        let mut diag = SocketDiag::open().map_err(io::Error::other)?;
        while clock.now() < deadline {
            let listed = diag.tcp(StateFilter::CONNECTED).map_err(io::Error::other)?;
            let its =
                |one: &&DiagSocket| one.subflow.is_some() && one.remote.port() == target.port();
            let its: Vec<_> = listed.iter().filter(its).collect();
            let joined = MibCounters::read().unwrap_or_default().get("MPTcpExt.MPJoinSynTx");
            let seen = AppSubflows {
                subflows: its.len(),
                tried: joined.unwrap_or(0) > 0,
                silent: its.iter().any(|one| is_silent(one)),
            };
            if condition(&seen) {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    })?
}

fn is_silent(one: &DiagSocket) -> bool {
    let info = TcpInfo::parse(&one.info);
    let last_activity_ms = u32_at(&one.info, 52).min(u32_at(&one.info, 56)); // last data, last acknowledgement
    info.backoff > 1 && last_activity_ms > SILENT_AFTER_MS
}
