//! Problems visible in the configuration alone, and those that no single subflow shows.

use std::net::IpAddr;

use towpath_host::setup::{flag_words, quoted};
use towpath_host::snapshot::HostSnapshot;
use towpath_host::snapshot::{AddressSnapshot, EndpointSnapshot, LinkSnapshot, MptcpLimits};
use towpath_netlink::EndpointFlags;

use super::addresses::share_address;
use super::limits::{MAX_LIMITS, raise_limits};
use super::view::{ObservationView, in_network};
use super::{path, routes, unannounced_links};
use crate::finding::{Cause, Confidence, Finding};

/// Returns the findings; `explained` is set if the reason for a single path is already known.
pub(super) fn findings(view: &ObservationView<'_>, explained: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(find_duplicate_managers(view));
    findings.extend(find_own_wrong_role(view));
    findings.extend(find_peer_wrong_role(view));
    findings.extend(find_unusable_endpoints(view));
    if !explained {
        findings.extend(
            find_missing_endpoints(view).or_else(|| unannounced_links::find_unannounced_link(view)),
        );
    }
    findings.extend(find_single_interface(view));
    findings.extend(find_backup_only(view));
    if view.trial.is_none() || view.closed_before_join() {
        findings.extend(predict_problems(view));
    }
    findings
}

/// Returns the problem with the address of an endpoint of this host.
pub(super) fn endpoint_trouble(view: &ObservationView<'_>, address: IpAddr) -> Option<Finding> {
    let endpoint = view.endpoint(address)?;
    let label = || format!("endpoint {} ({address})", endpoint.id);
    let Some(link) = view.here.link_of(address) else {
        return Some(
            Finding::new(
                Cause::EndpointAddressMissing,
                format!(
                    "endpoint {} has the address {address}, which this host does not have",
                    endpoint.id
                ),
            )
            .at_location(label())
            .with_evidence(format!("no interface has {address} (ip address)"))
            .fix(format!("ip mptcp endpoint delete id {}", endpoint.id))
            .hint("addresses change (DHCP, IPv6): add an endpoint for the new address"),
        );
    };
    find_down_link(view, link)
        .or_else(|| find_lost_address(view, endpoint, link))
        .or_else(|| find_wrong_interface(view, endpoint, link))
}

/// Returns the interface to which an endpoint is bound, if another one has its address. An address
/// of the loopback interface may be used over any interface.
pub(super) fn foreign_device<'a>(
    view: &ObservationView<'a>,
    endpoint: &EndpointSnapshot,
) -> Option<&'a LinkSnapshot> {
    let owner = view.here.link_of(endpoint.address).filter(|owner| !owner.loopback)?;
    let bound_to = endpoint.link.filter(|link| *link != owner.index)?;
    let has_address =
        |entry: &AddressSnapshot| (entry.link, entry.address) == (bound_to, endpoint.address);
    view.here.link(bound_to).filter(|_| !view.here.addresses.iter().any(has_address))
}

/// Reports an endpoint whose packets leave by an interface that does not have its address.
fn find_wrong_interface(
    view: &ObservationView<'_>,
    endpoint: &EndpointSnapshot,
    owner: &LinkSnapshot,
) -> Option<Finding> {
    let (id, address) = (endpoint.id, endpoint.address);
    let device = foreign_device(view, endpoint)?;
    if view.joined_subflows().any(|subflow| subflow.local.ip() == address) {
        return None;
    }
    let (wrong, right) = (&device.name, &owner.name);
    let flags = endpoint.flag_names().join(" ");
    Some(
        Finding::new(
            Cause::EndpointWrongInterface,
            format!("endpoint {id} ({address}) is bound to {wrong}, but {right} has that address"),
        )
        .at_location(format!("endpoint {id} ({address})"))
        .with_evidence(format!("ip mptcp endpoint: {address} dev {wrong}"))
        .with_evidence(format!("ip address: {address} on {right}"))
        .fix(format!("ip mptcp endpoint delete id {id}"))
        .fix(format!("ip mptcp endpoint add {address} dev {} {flags}", quoted(right))),
    )
}

/// Reports an endpoint whose address disappeared during the test.
fn find_lost_address(
    view: &ObservationView<'_>,
    endpoint: &EndpointSnapshot,
    owner: &LinkSnapshot,
) -> Option<Finding> {
    let (id, address) = (endpoint.id, endpoint.address);
    let after = view.observation.after.as_ref()?;
    after.link_of(address).is_none().then(|| {
        Finding::new(
            Cause::EndpointAddressMissing,
            format!("{} lost the address {address} of endpoint {id} during the test", owner.name),
        )
        .at_location(format!("endpoint {id} ({address})"))
        .with_evidence("ip address: present before the test, and missing after it")
        .hint("check the DHCP client, the modem, or the program that manages this interface")
    })
}

/// Reports an interface that is down or has no carrier.
fn find_down_link(view: &ObservationView<'_>, link: &LinkSnapshot) -> Option<Finding> {
    let name = &link.name;
    let after = view.observation.after.as_ref().and_then(|after| after.link(link.index));
    let current = after.unwrap_or(link);
    if !link.up {
        return Some(
            Finding::new(Cause::EndpointInterfaceDown, format!("the interface {name} is down"))
                .at_location(name)
                .with_evidence(format!("{name}: not UP (ip link)"))
                .fix(format!("ip link set {} up", quoted(name))),
        );
    }
    if link.running && !current.up {
        return Some(
            Finding::new(
                Cause::LinkDown,
                format!("the interface {name} went down during the test"),
            )
            .at_location(name)
            .with_evidence(format!("{name} was UP at the start and is not UP now (ip link)"))
            .hint("the kernel sends no path manager event for this"),
        );
    }
    (!current.running).then(|| {
        Finding::new(Cause::LinkDown, format!("the link of {name} is down: there is no carrier"))
            .at_location(name)
            .with_evidence(format!("{name}: UP, and NO-CARRIER (ip link)"))
            .hint("check the cable, the radio, and the other end of the link")
    })
}

/// Reports endpoints that cannot fulfil their purpose, needed or not.
fn find_unusable_endpoints(view: &ObservationView<'_>) -> Vec<Finding> {
    let is_used = |endpoint: &&EndpointSnapshot| {
        !endpoint.is_implicit() && (endpoint.opens_subflows() || endpoint.is_laminar())
    };
    let used_endpoints = view.here.endpoints.iter().filter(is_used);
    used_endpoints.filter_map(|endpoint| endpoint_trouble(view, endpoint.address)).collect()
}

/// Reports two programs that both set endpoints, or endpoints that change during the test.
pub(super) fn find_duplicate_managers(view: &ObservationView<'_>) -> Option<Finding> {
    let managers = &view.observation.managers;
    let configured_endpoints = |endpoints: &[EndpointSnapshot]| -> Vec<(u8, IpAddr, u32)> {
        let configured = endpoints.iter().filter(|endpoint| !endpoint.is_implicit());
        configured.map(|endpoint| (endpoint.id, endpoint.address, endpoint.flags)).collect()
    };
    let after = view.observation.after.as_ref().map(|after| configured_endpoints(&after.endpoints));
    let changed = after.is_some_and(|after| after != configured_endpoints(&view.here.endpoints));
    let removed = view.trial.map_or(0, |trial| trial.counter_delta("RmAddrTx"));
    if managers.len() < 2 && !changed && removed == 0 {
        return None;
    }
    let mut finding = Finding::new(
        Cause::DuplicateManagers,
        "several programs set the endpoints of this host and undo each other's changes",
    );
    if managers.len() > 1 {
        finding = finding.with_evidence(format!("{} run", managers.join(" and ")));
    }
    if changed {
        finding = finding.with_evidence("the endpoints changed during the test");
    }
    if removed > 0 {
        finding = finding.with_evidence(format!("{removed} withdrawn during the test (RmAddrTx)"));
    }
    if managers.len() < 2 && !(changed && removed > 0) {
        finding = finding.with_confidence(Confidence::Likely);
    }
    Some(finding.hint(
        "keep one of them: `systemctl disable --now mptcp`, or \
                   `nmcli connection modify NAME connection.mptcp-flags disabled`",
    ))
}

/// Reports a host that opens connections and announces addresses instead of using them.
pub(super) fn find_own_wrong_role(view: &ObservationView<'_>) -> Option<Finding> {
    let first_local = view.trial.and_then(|trial| trial.first()).map(|subflow| subflow.local.ip());
    let joined_locals: Vec<_> = view.joined_subflows().map(|subflow| subflow.local.ip()).collect();
    let is_unused = |link: u32| {
        let is_on_link =
            |address: IpAddr| view.here.link_of(address).is_some_and(|other| other.index == link);
        !first_local.into_iter().chain(joined_locals.iter().copied()).any(is_on_link)
    };
    let announces = |endpoint: &&EndpointSnapshot| {
        endpoint.is_signal()
            && !endpoint.opens_subflows()
            && !endpoint.is_laminar()
            && endpoint.port.is_none()
    };
    // Without a connection that this host opened, its role is unknown.
    let trial = view.trial.filter(|trial| trial.multipath)?;
    let wrong_endpoints: Vec<_> = view
        .here
        .endpoints
        .iter()
        .filter(announces)
        .filter(|endpoint| {
            view.here.link_of(endpoint.address).is_some_and(|link| is_unused(link.index))
        })
        .collect();
    let endpoint = wrong_endpoints.first()?;
    let mut finding = Finding::new(
        Cause::EndpointWrongRole,
        format!(
            "endpoint {} ({}) is `signal`: it is announced to peers, but this host opens the connection and never uses it",
            endpoint.id, endpoint.address
        ),
    )
    .at_location("this host")
    .with_evidence(format!("{} announced by the host that connects (AddAddrTx)", trial.counter_delta("AddAddrTx")));
    if trial.counter_delta("AddAddrTx") == 0 {
        finding = finding.with_confidence(Confidence::Likely);
    }
    for endpoint in wrong_endpoints {
        let device = view.here.link_of(endpoint.address);
        let device = device.map_or_else(|| "DEVICE".to_owned(), |link| quoted(&link.name));
        let kept = endpoint.flag_names().into_iter().filter(|name| *name != "signal");
        let flags = ["subflow"].into_iter().chain(kept).collect::<Vec<_>>().join(" ");
        finding = finding
            .fix(format!("ip mptcp endpoint delete id {}", endpoint.id))
            .fix(format!("ip mptcp endpoint add {} dev {device} {flags}", endpoint.address));
    }
    Some(finding.hint(
        "`signal` is for the host that accepts connections, `subflow` for the host that opens them",
    ))
}

/// Reports a host that accepts connections and tries to open subflows instead of announcing its
/// addresses.
pub(super) fn find_peer_wrong_role(view: &ObservationView<'_>) -> Option<Finding> {
    let (peer, trial) = (view.peer?, view.trial.filter(|trial| trial.multipath)?);
    let snapshot = peer.latest();
    let attempt_counters =
        ["MPJoinSynTx", "MPJoinSynTxCreatSkErr", "MPJoinSynTxBindErr", "MPJoinSynTxConnectErr"];
    let counter_texts: Vec<String> = attempt_counters
        .into_iter()
        .filter(|name| peer.counter_delta(name) > 0)
        .map(|name| format!("{name} {}", peer.counter_delta(name)))
        .collect();
    let is_wrong = |endpoint: &&EndpointSnapshot| {
        endpoint.opens_subflows()
            && !endpoint.is_signal()
            && !endpoint.is_implicit()
            && endpoint.address != trial.target.ip()
    };
    let wrong_endpoints: Vec<_> = snapshot.endpoints.iter().filter(is_wrong).collect();
    let announces_nothing = !snapshot.endpoints.iter().any(|endpoint| endpoint.is_signal());
    let endpoint =
        wrong_endpoints.first().filter(|_| announces_nothing || !counter_texts.is_empty())?;
    let is_foreign = snapshot.link_of(endpoint.address).is_none();
    let mut finding = Finding::new(
        Cause::EndpointWrongRole,
        format!(
            "on the other host, endpoint {} ({}) is `{}`: a host that accepts connections announces \
             its addresses, it cannot open subflows to a client",
            endpoint.id,
            endpoint.address,
            endpoint.flag_names().join(" ")
        ),
    )
    .at_location("other host")
    .with_evidence(if counter_texts.is_empty() {
        "it announces no address".to_owned()
    } else {
        format!("it tried to open subflows: {}", counter_texts.join(", "))
    });
    if counter_texts.is_empty() && !is_foreign {
        finding = finding.with_confidence(Confidence::Likely);
    }
    if is_foreign {
        finding = finding
            .with_evidence(format!("it does not even have the address {}", endpoint.address));
    }
    for endpoint in wrong_endpoints {
        finding = finding
            .fix(format!("ip mptcp endpoint delete id {}   # on the other host", endpoint.id));
        if snapshot.link_of(endpoint.address).is_some() {
            finding = finding.fix(format!(
                "ip mptcp endpoint add {} signal   # on the other host",
                endpoint.address
            ));
        }
    }
    if is_foreign {
        for address in further_addresses(snapshot, trial.target.ip()) {
            finding = finding
                .fix(format!("ip mptcp endpoint add {address} signal   # on the other host"));
        }
    }
    Some(finding)
}

/// Returns further addresses that the other host could announce.
fn further_addresses(snapshot: &HostSnapshot, target: IpAddr) -> impl Iterator<Item = IpAddr> {
    let is_link_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let entries = snapshot
        .addresses
        .iter()
        .filter(|entry| snapshot.link(entry.link).is_some_and(|link| link.up));
    entries.map(|entry| entry.address).filter(move |address| {
        address.is_ipv4() == target.is_ipv4()
            && *address != target
            && !address.is_loopback()
            && !is_link_local(address)
    })
}

/// Reports a second path that has no endpoint.
fn find_missing_endpoints(view: &ObservationView<'_>) -> Option<Finding> {
    if view.joined_subflows().next().is_some() || view.trial.is_some_and(|trial| !trial.multipath) {
        return None;
    }
    let interfaces = view.usable_interfaces();
    let first_local = view.trial.and_then(|trial| trial.first()).map(|subflow| subflow.local.ip());
    let further_links: Vec<_> = interfaces
        .iter()
        .filter(|(link, _)| match first_local {
            Some(first_local) => view
                .here
                .link_of(first_local)
                .is_none_or(|first_link| first_link.index != link.index),
            None => true,
        })
        .collect();
    let has_endpoint = view
        .here
        .endpoints
        .iter()
        .any(|endpoint| !endpoint.is_implicit() && Some(endpoint.address) != first_local);
    if has_endpoint || interfaces.len() < 2 || further_links.is_empty() {
        return None;
    }
    let target = view.trial.map(|trial| trial.target.ip());
    let connects =
        |address: IpAddr| target.and_then(|target| view.plain_tcp_connects(Some(address), target));
    let connecting_links: Vec<_> =
        further_links.iter().filter(|(_, address)| connects(*address) == Some(true)).collect();
    if target.is_some()
        && connecting_links.is_empty()
        && further_links.iter().any(|(_, address)| connects(*address).is_some())
    {
        return None; // plain TCP does not connect over the other interfaces
    }
    let names: Vec<_> = interfaces.iter().map(|(link, _)| link.name.as_str()).collect();
    let mut finding = Finding::new(
        Cause::NoEndpoints,
        format!(
            "this host has several paths ({}) but no endpoint for a second one",
            names.join(", ")
        ),
    )
    .at_location("this host")
    .with_evidence("ip mptcp endpoint: no address to open subflows from");
    for (link, address) in &connecting_links {
        finding =
            finding.with_evidence(format!("plain TCP from {address} ({}): connected", link.name));
    }
    if connecting_links.is_empty() {
        finding = finding.with_confidence(Confidence::Likely);
    }
    for (link, address) in &further_links {
        let device = quoted(&link.name);
        finding = finding.fix(format!("ip mptcp endpoint add {address} dev {device} subflow"));
    }
    if view.here.limits.is_some_and(|limits| (limits.subflows as usize) < further_links.len()) {
        finding = raise_limits(finding, view.here.limits, MAX_LIMITS, "");
    }
    Some(finding.hint("`towpath setup` does this, and sets the necessary routes"))
}

/// Reports endpoints that are all on one interface although another one is usable.
fn find_single_interface(view: &ObservationView<'_>) -> Option<Finding> {
    let opens_subflows = |endpoint: &&EndpointSnapshot| {
        (endpoint.opens_subflows() || endpoint.is_laminar()) && !endpoint.is_implicit()
    };
    let mut links = Vec::new();
    for endpoint in view.here.endpoints.iter().filter(opens_subflows) {
        let remote = view.trial.map_or(endpoint.address, |trial| trial.target.ip());
        links.push(view.path_link(endpoint.address, remote)?);
    }
    let (endpoint_link, other_links) = links.split_first()?;
    let first_link = view.trial.and_then(|trial| trial.first()).map(|subflow| subflow.local.ip());
    let first_link = first_link.and_then(|address| view.here.link_of(address));
    let is_one_interface = other_links.iter().all(|link| link.index == endpoint_link.index)
        && first_link.is_none_or(|first_link| first_link.index == endpoint_link.index);
    let interfaces = view.usable_interfaces();
    let (other, address) = interfaces.iter().find(|(link, _)| link.index != endpoint_link.index)?;
    // An endpoint with the wrong role is a problem of its own.
    let has_other_endpoint = view.here.endpoints.iter().any(|endpoint| {
        !endpoint.is_implicit()
            && view.here.link_of(endpoint.address).is_some_and(|link| link.index == other.index)
    });
    let is_single_endpoint = other_links.is_empty() && first_link.is_none();
    let joined_elsewhere = view.joined_subflows().any(|subflow| {
        view.here.link_of(subflow.local.ip()).is_some_and(|link| link.index != endpoint_link.index)
    });
    if !is_one_interface || is_single_endpoint || joined_elsewhere || has_other_endpoint {
        return None;
    }
    let target = view.trial.map(|trial| trial.target.ip());
    if target.and_then(|target| view.plain_tcp_connects(Some(*address), target)) == Some(false) {
        return None;
    }
    let sentence = format!(
        "all subflows leave through {}, and {} has no endpoint: they share one link",
        endpoint_link.name, other.name
    );
    let finding = Finding::new(Cause::AllEndpointsOneInterface, sentence)
        .at_location("this host")
        .with_evidence(format!("every endpoint's address is on {}", endpoint_link.name))
        .with_evidence(format!("{} has {address} and leads to the same place", other.name));
    let finding = raise_limit_for_another(view, finding, links.len());
    Some(
        finding.fix(format!("ip mptcp endpoint add {address} dev {} subflow", quoted(&other.name))),
    )
}

/// Adds the command that raises the limit of subflows if it leaves no place for one more than those
/// of `endpoints` endpoints.
fn raise_limit_for_another(
    view: &ObservationView<'_>,
    finding: Finding,
    endpoints: usize,
) -> Finding {
    let needed = u32::try_from(endpoints).unwrap_or(u32::MAX).saturating_add(1);
    match view.here.limits {
        Some(limits) if limits.subflows < needed.min(MAX_LIMITS.subflows) => {
            let needed = MptcpLimits { subflows: needed, add_addr_accepted: 0 };
            raise_limits(finding, Some(limits), needed, "")
        }
        Some(_) | None => finding,
    }
}

/// Reports that every further subflow is a backup.
fn find_backup_only(view: &ObservationView<'_>) -> Option<Finding> {
    let first_local = view.trial.and_then(|trial| trial.first()).map(|subflow| subflow.local.ip());
    let is_further = |endpoint: &&EndpointSnapshot| {
        (endpoint.opens_subflows() || endpoint.is_laminar())
            && !endpoint.is_implicit()
            && Some(endpoint.address) != first_local
    };
    let further_endpoints: Vec<_> = view.here.endpoints.iter().filter(is_further).collect();
    let has_regular =
        view.joined_subflows().any(|subflow| !subflow.backup_here && !subflow.backup_there);
    let are_all_backups = !further_endpoints.is_empty()
        && further_endpoints.iter().all(|endpoint| endpoint.is_backup());
    if !are_all_backups || has_regular {
        return None;
    }
    let mut finding = Finding::new(
        Cause::EndpointBackupOnly,
        "all other paths are backups: they carry no data while the first path works",
    )
    .at_location("this host");
    for endpoint in further_endpoints {
        finding = finding
            .with_evidence(format!(
                "endpoint {} ({}): {}",
                endpoint.id,
                endpoint.address,
                endpoint.flag_names().join(" ")
            ))
            .fix(format!(
                "ip mptcp endpoint change id {} {}",
                endpoint.id,
                without_backup(endpoint)
            ));
    }
    Some(finding.hint("if this is intended (a metered link), no change is needed"))
}

/// Returns the words of `ip mptcp endpoint change` that clear only the backup flag.
fn without_backup(endpoint: &EndpointSnapshot) -> String {
    flag_words(endpoint.flags & !EndpointFlags::BACKUP.bits())
}

/// Returns expected problems of future connections, if there was no test connection, or the server
/// closed it early.
fn predict_problems(view: &ObservationView<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = path::find_userspace_manager(view).into_iter().collect();
    let endpoints: Vec<_> = view
        .here
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.opens_subflows() && !endpoint.is_implicit())
        .collect();
    let as_likely = |finding: Finding| finding.with_confidence(Confidence::Likely);
    for endpoint in &endpoints {
        let target = view.observation.route_lookups.iter().map(|lookup| lookup.to);
        let target = target.filter(|target| target.is_ipv4() == endpoint.address.is_ipv4()).min();
        // The first subflow uses the default route; only a further one needs a routing rule.
        let default_link = target
            .and_then(|target| view.route_lookup(target, None, None))
            .and_then(|lookup| lookup.link);
        let link = view.here.link_of(endpoint.address).map(|link| link.index);
        if let (Some(target), true) = (target, default_link.is_some() && default_link != link) {
            let routing = routes::routing_of(view, endpoint.address, endpoint.link, target);
            findings.extend(routing.map(as_likely));
        }
    }
    if let Some(limits) = view.here.limits.filter(|limits| limits.subflows == 0)
        && !endpoints.is_empty()
    {
        let sentence = "this host's limit allows no subflow beyond the first";
        let finding = Finding::new(Cause::SubflowLimit, sentence)
            .at_location("this host")
            .with_evidence(format!("limits: subflows {}", limits.subflows));
        findings.push(raise_limits(finding, Some(limits), MAX_LIMITS, ""));
    }
    findings.extend(find_shared_network(view).map(as_likely));
    findings
}

/// Reports two interfaces in one network that reply to ARP for each other.
fn find_shared_network(view: &ObservationView<'_>) -> Option<Finding> {
    let addresses: Vec<_> =
        view.here.addresses.iter().filter(|entry| entry.address.is_ipv4()).collect();
    let replies_for_others = |index: u32| {
        view.here
            .link(index)
            .is_some_and(|link| link.up && link.running && !link.loopback && link.arp_ignore == 0)
    };
    let has_endpoint = |address: IpAddr| view.endpoint(address).is_some();
    for entry in &addresses {
        let other = addresses.iter().find(|other| {
            let length = entry.prefix_length.min(other.prefix_length);
            other.link != entry.link
                && length < 32
                // A common address is a problem of its own.
                && !share_address(view.here, entry.link, other.link)
                && in_network(entry.address, length, other.address)
                && (replies_for_others(entry.link) || replies_for_others(other.link))
                && (has_endpoint(entry.address) || has_endpoint(other.address))
        });
        if let Some(other) = other {
            return Some(arp_finding(
                &view.interface_name(entry.link),
                &view.interface_name(other.link),
                "this host",
            ));
        }
    }
    None
}

/// Reports that two interfaces in one network share one link.
pub(super) fn arp_finding(first: &str, second: &str, host: &str) -> Finding {
    let comment = if host == "this host" { "" } else { "   # on the other host" };
    Finding::new(
        Cause::SameSubnetArp,
        format!(
            "{first} and {second} are in the same network and answer for each other's address (ARP), so \
             that two paths become one link"
        ),
    )
    .at_location(format!("{host}, {first} and {second}"))
    .fix(format!("sysctl -w net.ipv4.conf.all.arp_ignore=1{comment}"))
    .fix(format!("sysctl -w net.ipv4.conf.all.arp_announce=2{comment}"))
    .hint("neighbours keep old ARP entries for a while: run `ip neighbour flush all` on them. Each source address also needs a route of its own (`towpath setup`)")
}
