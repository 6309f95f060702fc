//! Announcements of the other host that do not arrive, or that lead to this host itself.

use std::net::SocketAddr;

use towpath_host::setup::quoted;
use towpath_host::snapshot::EndpointSnapshot;

use super::path::{MissingSubflow, path_label, remote_name};
use super::view::ObservationView;
use crate::finding::{Cause, Finding};
use crate::observation::{PeerSnapshots, TestConnection};

/// Reports an announcement of the other host that did not arrive.
pub(super) fn find_lost_announcement(
    view: &ObservationView<'_>,
    trial: &TestConnection,
) -> Option<Finding> {
    let peer = view.peer?;
    let sent = peer.counter_delta("AddAddrTx");
    if trial.counter_delta("AddAddr") > 0 || trial.counter_delta("AddAddrDrop") > 0 {
        return None;
    }
    if sent == 0 {
        return find_unsent_announcement(peer);
    }
    let peer_snapshot = peer.latest();
    let endpoint = peer_snapshot.endpoints.iter().find(|endpoint| endpoint.is_signal())?;
    Some(
        Finding::new(
            Cause::AnnouncementStripped,
            format!(
                "the other host announces {}, but something on the path removes the announcement",
                endpoint_name(endpoint)
            ),
        )
        .at_location(trial.target.ip())
        .with_evidence(format!(
            "sent there: {sent} (AddAddrTx), answered: {} (EchoAdd)",
            peer.counter_delta("EchoAdd")
        ))
        .with_evidence("arrived here: 0 (AddAddr)")
        .hint(
            "open subflows from this host's own addresses (`subflow` endpoints), which need no announcement",
        ),
    )
}

/// Reports an announcement that the other host drops, as it does not fit into a packet: with an IPv6
/// address and a port it has 30 bytes (RFC 8684 §3.4.1), and TCP timestamps have 12 of the 40.
fn find_unsent_announcement(peer: &PeerSnapshots) -> Option<Finding> {
    let dropped = peer.counter_delta("AddAddrTxDrop");
    let snapshot = peer.latest();
    let is_too_long = |endpoint: &&EndpointSnapshot| {
        endpoint.is_signal() && endpoint.address.is_ipv6() && endpoint.port.is_some()
    };
    let endpoint = snapshot.endpoints.iter().find(is_too_long).filter(|_| dropped > 0)?;
    let device = snapshot.link_of(endpoint.address);
    let device = device.map_or_else(String::new, |link| format!(" dev {}", quoted(&link.name)));
    let comment = "   # on the other host";
    Some(
        Finding::new(
            Cause::AnnouncementStripped,
            format!(
                "the other host does not send the announcement of {}: an IPv6 address with a port \
                 does not fit into a packet with TCP timestamps",
                endpoint_name(endpoint)
            ),
        )
        .at_location("other host")
        .with_evidence(format!("dropped there before it was sent: {dropped} (AddAddrTxDrop)"))
        .fix(format!("ip mptcp endpoint delete id {}{comment}", endpoint.id))
        .fix(format!("ip mptcp endpoint add {}{device} signal{comment}", endpoint.address))
        .hint(
            "without a port, subflows use the port of the connection. The alternative is \
             net.ipv4.tcp_timestamps = 0 on the other host",
        ),
    )
}

/// Returns the address of an endpoint, with its port if it has one.
fn endpoint_name(endpoint: &EndpointSnapshot) -> String {
    match endpoint.port {
        Some(port) => SocketAddr::new(endpoint.address, port).to_string(),
        None => endpoint.address.to_string(),
    }
}

/// Returns true if the other host announces an address that this host has as well.
pub(super) fn announces_own_address(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    subflow: &MissingSubflow<'_>,
) -> bool {
    let remote = subflow.remote.ip();
    remote != trial.target.ip() && view.here.link_of(remote).is_some()
}

/// Reports an announced address that leads to this host itself.
pub(super) fn report_own_address(
    view: &ObservationView<'_>,
    subflow: &MissingSubflow<'_>,
) -> Finding {
    let announced = remote_name(view, subflow.remote);
    let link = view.here.link_of(subflow.remote.ip());
    let interface = link.map_or("an interface", |link| link.name.as_str());
    Finding::new(
        Cause::AnnouncedAddressPrivate,
        format!(
            "the other host announces {announced}, which is also an address of this host ({interface}): \
             the subflow ends here"
        ),
    )
    .at_location(path_label(view, subflow))
    .with_evidence(format!("ip address: {} on {interface}", subflow.remote.ip()))
    .hint(
        "both hosts have the same private network, such as that of a container bridge: on the other \
         host, delete the endpoint of that address",
    )
}
