//! Applications of the client, and the events on their subflows.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_kernel::sample::TcpInfo;
use towpath_netlink::u32_at;
use towpath_netlink::{DiagSocket, MibCounters, SocketDiag, StateFilter};
use towpath_os::clock::Clock;

use super::case::{AppSocket, FailurePlan, ServerBehaviour};
use super::listener;
use super::network::FailureNetwork;
use crate::network::NetworkError;
use crate::router::RouterRule;

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
    apply_boxes(plan, network, &plan.initial_boxes);
    for kind in &plan.applications {
        listener::start_application(&network.client.namespace, target, *kind)
            .map_err(NetworkError::system("connect an application"))?;
    }
    if let Some(port) = plan.second_port {
        let service = SocketAddr::new(target.ip(), port);
        listener::serve(&network.server.namespace, port, ServerBehaviour::Multipath)
            .map_err(NetworkError::system("listen on the second port"))?;
        listener::start_application(&network.client.namespace, service, AppSocket::Multipath)
            .map_err(NetworkError::system("connect to the second port"))?;
    }
    let wait_until = |condition: fn(&AppSubflows) -> bool| {
        wait_until(network, target, condition).map_err(NetworkError::system("watch an application"))
    };
    if !plan.initial_boxes.is_empty() {
        wait_until(|state| state.join_sent && state.subflows < 2)?;
        remove_boxes(plan, network, &plan.initial_boxes);
    }
    if !plan.temporary_boxes.is_empty() {
        wait_until(|state| state.subflows > 1)?;
        apply_boxes(plan, network, &plan.temporary_boxes);
        wait_until(|state| state.subflows < 2)?;
        remove_boxes(plan, network, &plan.temporary_boxes);
    } else if plan.initial_boxes.is_empty() && plan.applications.contains(&AppSocket::Bursts) {
        wait_until(|state| state.silent)?;
    }
    Ok(())
}

fn apply_boxes(
    plan: &FailurePlan,
    network: &FailureNetwork,
    boxes: &[(usize, &'static [RouterRule])],
) {
    for (path, rules) in boxes {
        network.set_rules(*path, &[&plan.rules(*path), *rules].concat());
    }
}

fn remove_boxes(
    plan: &FailurePlan,
    network: &FailureNetwork,
    boxes: &[(usize, &'static [RouterRule])],
) {
    for (path, _) in boxes {
        network.set_rules(*path, &plan.rules(*path));
    }
}

/// State of the applications' subflows.
#[derive(Debug)]
struct AppSubflows {
    subflows: usize,
    /// Set when the client has sent an MP_JOIN SYN.
    join_sent: bool,
    /// True if a subflow retransmits without a response.
    silent: bool,
}

fn wait_until(
    network: &FailureNetwork,
    target: SocketAddr,
    condition: fn(&AppSubflows) -> bool,
) -> io::Result<()> {
    network.client.namespace.run(|| {
        let clock = Clock::start();
        let deadline = clock.now() + SETUP_TIMEOUT;
        let mut diag = SocketDiag::open().map_err(io::Error::other)?;
        while clock.now() < deadline {
            let sockets = diag.tcp(StateFilter::CONNECTED).map_err(io::Error::other)?;
            let is_app_subflow = |socket: &&DiagSocket| {
                socket.subflow.is_some() && socket.remote.port() == target.port()
            };
            let subflows: Vec<_> = sockets.iter().filter(is_app_subflow).collect();
            let join_syns = MibCounters::read().unwrap_or_default().get("MPTcpExt.MPJoinSynTx");
            let state = AppSubflows {
                subflows: subflows.len(),
                join_sent: join_syns.unwrap_or(0) > 0,
                silent: subflows.iter().any(|socket| is_silent(socket)),
            };
            if condition(&state) {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    })?
}

fn is_silent(socket: &DiagSocket) -> bool {
    let info = TcpInfo::parse(&socket.info);
    let last_activity_ms = u32_at(&socket.info, 52).min(u32_at(&socket.info, 56)); // last data, last acknowledgement
    info.backoff > 1 && last_activity_ms > SILENT_AFTER_MS
}
