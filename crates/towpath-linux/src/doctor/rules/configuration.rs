//! Problems visible in the configuration alone, and those that no single subflow shows.

use std::net::IpAddr;

use towpath_measure::live::HostSnapshot;
use towpath_measure::live::snapshot::{EndpointSnapshot, LinkSnapshot};

use super::view::{ObservationView, in_network};
use super::{path, routes, unannounced_links};
use crate::doctor::finding::{Cause, Confidence, Finding};
use crate::setup::quoted;

/// Returns the findings; `explained` is set if the reason for a single path is already known.
pub(super) fn findings(view: &ObservationView<'_>, explained: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(managers(view));
    findings.extend(here_wrong_role(view));
    findings.extend(there_wrong_role(view));
    findings.extend(own_endpoints(view));
    if !explained {
        findings.extend(no_endpoints(view).or_else(|| unannounced_links::unannounced(view)));
    }
    findings.extend(one_interface(view));
    findings.extend(backup_only(view));
    if view.trial.is_none() || view.closed_before_join() {
        findings.extend(predicted_problems(view));
    }
    findings
}

/// Returns the problem with the address of an endpoint of this host.
pub(super) fn endpoint_trouble(view: &ObservationView<'_>, address: IpAddr) -> Option<Finding> {
    let endpoint = view.endpoint(address)?;
    let named = || format!("endpoint {} ({address})", endpoint.id);
    let Some(link) = view.here.link_of(address) else {
        return Some(
            Finding::new(
                Cause::EndpointAddressMissing,
                format!(
                    "endpoint {} has the address {address}, which this host does not have",
                    endpoint.id
                ),
            )
            .at_location(named())
            .with_evidence(format!("no interface has {address} (ip address)"))
            .fix(format!("ip mptcp endpoint delete id {}", endpoint.id))
            .hint("addresses change (DHCP, IPv6): add an endpoint for the new one"),
        );
    };
    down(view, link)
}

/// Reports an interface that carries no traffic.
fn down(view: &ObservationView<'_>, link: &LinkSnapshot) -> Option<Finding> {
    let name = &link.name;
    let after = view.all.after.as_ref().and_then(|after| after.link(link.index));
    let now = after.unwrap_or(link);
    if !link.up {
        return Some(
            Finding::new(Cause::EndpointInterfaceDown, format!("the interface {name} is down"))
                .at_location(name)
                .with_evidence(format!("{name}: not UP (ip link)"))
                .fix(format!("ip link set {} up", quoted(name))),
        );
    }
    if link.running && !now.up {
        return Some(
            Finding::new(Cause::LinkDown, format!("the interface {name} went down meanwhile"))
                .at_location(name)
                .with_evidence(format!("{name} was UP at first, and is not UP any more (ip link)"))
                .hint("the kernel sends no event of the path manager for that"),
        );
    }
    (!now.running).then(|| {
        Finding::new(Cause::LinkDown, format!("the link of {name} is down: there is no carrier"))
            .at_location(name)
            .with_evidence(format!("{name}: UP, and NO-CARRIER (ip link)"))
            .hint("cable, radio, or the other end of the link")
    })
}

/// Reports endpoints that cannot fulfil their purpose, needed or not.
fn own_endpoints(view: &ObservationView<'_>) -> Vec<Finding> {
    let used = |endpoint: &&EndpointSnapshot| {
        !endpoint.is_implicit() && (endpoint.opens_subflows() || endpoint.is_laminar())
    };
    let opening = view.here.endpoints.iter().filter(used);
    opening.filter_map(|endpoint| endpoint_trouble(view, endpoint.address)).collect()
}

/// Reports two programs that both set endpoints, or endpoints that change during the test.
fn managers(view: &ObservationView<'_>) -> Option<Finding> {
    let managers = &view.all.managers;
    let ids = |endpoints: &[EndpointSnapshot]| -> Vec<(u8, IpAddr, u32)> {
        let own = endpoints.iter().filter(|one| !one.is_implicit());
        own.map(|one| (one.id, one.address, one.flags)).collect()
    };
    let after = view.all.after.as_ref().map(|after| ids(&after.endpoints));
    let changed = after.is_some_and(|after| after != ids(&view.here.endpoints));
    let removed = view.trial.map_or(0, |trial| trial.counter_delta("RmAddrTx"));
    if managers.len() < 2 && !changed && removed == 0 {
        return None;
    }
    let mut finding = Finding::new(
        Cause::DuplicateManagers,
        "more than one program sets the endpoints of this host, and each undoes the other's work",
    );
    if managers.len() > 1 {
        finding = finding.with_evidence(format!("{} run", managers.join(" and ")));
    }
    if changed {
        finding = finding.with_evidence("the endpoints changed while they were looked at");
    }
    if removed > 0 {
        finding = finding.with_evidence(format!("{removed} withdrawn meanwhile (RmAddrTx)"));
    }
    if managers.len() < 2 && !(changed && removed > 0) {
        finding = finding.with_confidence(Confidence::Likely);
    }
    Some(finding.hint(
        "let one of them do it: `systemctl disable --now mptcp`, or \
                   `nmcli connection modify NAME connection.mptcp-flags disabled`",
    ))
}

/// Reports a host that opens connections and announces addresses instead of using them.
fn here_wrong_role(view: &ObservationView<'_>) -> Option<Finding> {
    let first = view.trial.and_then(|trial| trial.first()).map(|one| one.local.ip());
    let used: Vec<_> = view.joined().map(|one| one.local.ip()).collect();
    let idle = |link: u32| {
        let on = |address: IpAddr| view.here.link_of(address).is_some_and(|one| one.index == link);
        !first.into_iter().chain(used.iter().copied()).any(on)
    };
    let announces = |one: &&EndpointSnapshot| {
        one.is_signal() && !one.opens_subflows() && !one.is_laminar() && one.port.is_none()
    };
    // Without a connection opened here, the role of this host is unknown.
    let trial = view.trial.filter(|trial| trial.multipath)?;
    let wrong: Vec<_> = view
        .here
        .endpoints
        .iter()
        .filter(announces)
        .filter(|one| view.here.link_of(one.address).is_some_and(|link| idle(link.index)))
        .collect();
    let one = wrong.first()?;
    let mut finding = Finding::new(
        Cause::EndpointWrongRole,
        format!(
            "endpoint {} ({}) is `signal`: it is announced to others, and this host, which opens the \
             connection, never uses it",
            one.id, one.address
        ),
    )
    .at_location("this host")
    .with_evidence(format!("{} announced by the side that connects (AddAddrTx)", trial.counter_delta("AddAddrTx")));
    if trial.counter_delta("AddAddrTx") == 0 {
        finding = finding.with_confidence(Confidence::Likely);
    }
    for one in wrong {
        let device = view.here.link_of(one.address);
        let device = device.map_or_else(|| "DEVICE".to_owned(), |link| quoted(&link.name));
        finding = finding
            .fix(format!("ip mptcp endpoint delete id {}", one.id))
            .fix(format!("ip mptcp endpoint add {} dev {device} subflow", one.address));
    }
    Some(finding.hint("`signal` is for the host that accepts connections, `subflow` for the other"))
}

/// Reports a host that accepts connections and tries to open subflows instead of announcing its
/// addresses.
fn there_wrong_role(view: &ObservationView<'_>) -> Option<Finding> {
    let (peer, trial) = (view.peer?, view.trial.filter(|trial| trial.multipath)?);
    let snapshot = peer.latest();
    let tried =
        ["MPJoinSynTx", "MPJoinSynTxCreatSkErr", "MPJoinSynTxBindErr", "MPJoinSynTxConnectErr"];
    let counted: Vec<String> = tried
        .into_iter()
        .filter(|name| peer.counter_delta(name) > 0)
        .map(|name| format!("{name} {}", peer.counter_delta(name)))
        .collect();
    let wrong = |one: &&EndpointSnapshot| {
        one.opens_subflows()
            && !one.is_signal()
            && !one.is_implicit()
            && one.address != trial.target.ip()
    };
    let wrong: Vec<_> = snapshot.endpoints.iter().filter(wrong).collect();
    let silent = !snapshot.endpoints.iter().any(|one| one.is_signal());
    let one = wrong.first().filter(|_| silent || !counted.is_empty())?;
    let foreign = snapshot.link_of(one.address).is_none();
    let mut finding = Finding::new(
        Cause::EndpointWrongRole,
        format!(
            "on the other host, endpoint {} ({}) is `{}`: a host that accepts connections announces \
             its addresses, it cannot open subflows to a client",
            one.id,
            one.address,
            one.flag_names().join(" ")
        ),
    )
    .at_location("other host")
    .with_evidence(if counted.is_empty() {
        "it announces no address at all".to_owned()
    } else {
        format!("it tried to open subflows: {}", counted.join(", "))
    });
    if counted.is_empty() && !foreign {
        finding = finding.with_confidence(Confidence::Likely);
    }
    if foreign {
        finding =
            finding.with_evidence(format!("it does not even have the address {}", one.address));
    }
    for one in wrong {
        finding =
            finding.fix(format!("ip mptcp endpoint delete id {}   # on the other host", one.id));
        if snapshot.link_of(one.address).is_some() {
            finding = finding
                .fix(format!("ip mptcp endpoint add {} signal   # on the other host", one.address));
        }
    }
    if foreign {
        for address in further_addresses(snapshot, trial.target.ip()) {
            finding = finding
                .fix(format!("ip mptcp endpoint add {address} signal   # on the other host"));
        }
    }
    Some(finding)
}

/// Returns further addresses that the other host could announce.
fn further_addresses(look: &HostSnapshot, target: IpAddr) -> impl Iterator<Item = IpAddr> {
    let link_local = |one: &IpAddr| matches!(one, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let own = look.addresses.iter().filter(|one| look.link(one.link).is_some_and(|link| link.up));
    own.map(|one| one.address).filter(move |one| {
        one.is_ipv4() == target.is_ipv4()
            && *one != target
            && !one.is_loopback()
            && !link_local(one)
    })
}

/// Reports a second path that has no endpoint.
fn no_endpoints(view: &ObservationView<'_>) -> Option<Finding> {
    if view.joined().next().is_some() || view.trial.is_some_and(|trial| !trial.multipath) {
        return None;
    }
    let usable = view.usable();
    let first = view.trial.and_then(|trial| trial.first()).map(|one| one.local.ip());
    let other: Vec<_> = usable
        .iter()
        .filter(|(link, _)| match first {
            Some(first) => view.here.link_of(first).is_none_or(|one| one.index != link.index),
            None => true,
        })
        .collect();
    let has =
        view.here.endpoints.iter().any(|one| !one.is_implicit() && Some(one.address) != first);
    if has || usable.len() < 2 || other.is_empty() {
        return None;
    }
    let target = view.trial.map(|trial| trial.target.ip());
    let works = |address: IpAddr| target.and_then(|target| view.connects(Some(address), target));
    let good: Vec<_> = other.iter().filter(|(_, address)| works(*address) == Some(true)).collect();
    if target.is_some() && good.is_empty() && other.iter().any(|(_, one)| works(*one).is_some()) {
        return None; // the other interfaces lead nowhere
    }
    let names: Vec<_> = usable.iter().map(|(link, _)| link.name.as_str()).collect();
    let mut finding = Finding::new(
        Cause::NoEndpoints,
        format!(
            "this host has several ways ({}) and no endpoint for any further one",
            names.join(", ")
        ),
    )
    .at_location("this host")
    .with_evidence("ip mptcp endpoint: no address to open subflows from");
    for (link, address) in &good {
        finding =
            finding.with_evidence(format!("plain TCP from {address} ({}): connected", link.name));
    }
    if good.is_empty() {
        finding = finding.with_confidence(Confidence::Likely);
    }
    for (link, address) in &other {
        let device = quoted(&link.name);
        finding = finding.fix(format!("ip mptcp endpoint add {address} dev {device} subflow"));
    }
    if view.here.limits.is_some_and(|limits| (limits.subflows as usize) < other.len()) {
        finding = finding.fix("ip mptcp limits set subflows 8 add_addr_accepted 8");
    }
    Some(finding.hint("`towpath setup` does it, with the routes that it takes"))
}

/// Reports endpoints that are all on one interface although another one is usable.
fn one_interface(view: &ObservationView<'_>) -> Option<Finding> {
    let opening =
        |one: &&EndpointSnapshot| (one.opens_subflows() || one.is_laminar()) && !one.is_implicit();
    let mut links = Vec::new();
    for endpoint in view.here.endpoints.iter().filter(opening) {
        links.push(view.here.link_of(endpoint.address)?);
    }
    let (first, rest) = links.split_first()?;
    let start = view.trial.and_then(|trial| trial.first()).map(|one| one.local.ip());
    let start = start.and_then(|address| view.here.link_of(address));
    let same = rest.iter().all(|link| link.index == first.index)
        && start.is_none_or(|start| start.index == first.index);
    let usable = view.usable();
    let (other, address) = usable.iter().find(|(link, _)| link.index != first.index)?;
    let alone = rest.is_empty() && start.is_none();
    let joined_elsewhere = view
        .joined()
        .any(|one| view.here.link_of(one.local.ip()).is_some_and(|link| link.index != first.index));
    if !same || alone || joined_elsewhere {
        return None;
    }
    let target = view.trial.map(|trial| trial.target.ip());
    if target.and_then(|target| view.connects(Some(*address), target)) == Some(false) {
        return None;
    }
    Some(
        Finding::new(
            Cause::AllEndpointsOneInterface,
            format!(
                "all subflows leave by {}, and {} has no endpoint: they share one link",
                first.name, other.name
            ),
        )
        .at_location("this host")
        .with_evidence(format!("every endpoint's address is on {}", first.name))
        .with_evidence(format!("{} has {address} and leads to the same place", other.name))
        .fix(format!("ip mptcp endpoint add {address} dev {} subflow", quoted(&other.name))),
    )
}

/// Reports that every further subflow is a backup.
fn backup_only(view: &ObservationView<'_>) -> Option<Finding> {
    let first = view.trial.and_then(|trial| trial.first()).map(|one| one.local.ip());
    let further = |one: &&EndpointSnapshot| {
        (one.opens_subflows() || one.is_laminar())
            && !one.is_implicit()
            && Some(one.address) != first
    };
    let further: Vec<_> = view.here.endpoints.iter().filter(further).collect();
    let regular = view.joined().any(|one| !one.backup_here && !one.backup_there);
    let all = !further.is_empty() && further.iter().all(|one| one.is_backup());
    if !all || regular {
        return None;
    }
    let mut finding = Finding::new(
        Cause::EndpointBackupOnly,
        "every further path is a backup: it carries nothing while the first one works",
    )
    .at_location("this host");
    for one in further {
        finding = finding
            .with_evidence(format!(
                "endpoint {} ({}): {}",
                one.id,
                one.address,
                one.flag_names().join(" ")
            ))
            .fix(format!("ip mptcp endpoint change id {} nobackup", one.id));
    }
    Some(finding.hint("if that is what you want (a metered link), all is well"))
}

/// Returns problems of future connections, if no own connection lasted.
fn predicted_problems(view: &ObservationView<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = path::userspace(view).into_iter().collect();
    let opening: Vec<_> = view
        .here
        .endpoints
        .iter()
        .filter(|one| one.opens_subflows() && !one.is_implicit())
        .collect();
    let likely = |finding: Finding| finding.with_confidence(Confidence::Likely);
    for endpoint in &opening {
        let to = view.all.route_lookups.iter().map(|way| way.to);
        let to = to.filter(|to| to.is_ipv4() == endpoint.address.is_ipv4()).min();
        // The first subflow needs no rule of its own.
        let plain = to.and_then(|to| view.route_lookup(to, None, None)).and_then(|way| way.link);
        let link = view.here.link_of(endpoint.address).map(|link| link.index);
        if let (Some(to), true) = (to, plain.is_some() && plain != link) {
            let routing = routes::routing_of(view, endpoint.address, endpoint.link, to);
            findings.extend(routing.map(likely));
        }
    }
    if let Some(limits) = view.here.limits.filter(|limits| limits.subflows == 0)
        && !opening.is_empty()
    {
        findings.push(
            Finding::new(
                Cause::SubflowLimit,
                "this host's limit allows no subflow beyond the first",
            )
            .at_location("this host")
            .with_evidence(format!("limits: subflows {}", limits.subflows))
            .fix("ip mptcp limits set subflows 8 add_addr_accepted 8"),
        );
    }
    findings.extend(shared_network(view).map(likely));
    findings
}

/// Reports two interfaces in one network that reply to ARP for each other.
fn shared_network(view: &ObservationView<'_>) -> Option<Finding> {
    let addresses: Vec<_> =
        view.here.addresses.iter().filter(|one| one.address.is_ipv4()).collect();
    let lax = |index: u32| {
        view.here
            .link(index)
            .is_some_and(|link| link.up && link.running && !link.loopback && link.arp_ignore == 0)
    };
    let has_endpoint = |address: IpAddr| view.endpoint(address).is_some();
    for one in &addresses {
        let other = addresses.iter().find(|other| {
            let length = one.prefix_length.min(other.prefix_length);
            other.link != one.link
                && length < 32
                && in_network(one.address, length, other.address)
                && (lax(one.link) || lax(other.link))
                && (has_endpoint(one.address) || has_endpoint(other.address))
        });
        if let Some(other) = other {
            return Some(arp_finding(&view.name(one.link), &view.name(other.link), "this host"));
        }
    }
    None
}

/// Reports that two interfaces in one network share one link.
pub(super) fn arp_finding(one: &str, other: &str, host: &str) -> Finding {
    let there = if host == "this host" { "" } else { "   # on the other host" };
    Finding::new(
        Cause::SameSubnetArp,
        format!(
            "{one} and {other} are in the same network and answer for each other's address (ARP), so \
             that two paths become one link"
        ),
    )
    .at_location(format!("{host}, {one} and {other}"))
    .fix(format!("sysctl -w net.ipv4.conf.all.arp_ignore=1{there}"))
    .fix(format!("sysctl -w net.ipv4.conf.all.arp_announce=2{there}"))
    .hint("neighbours keep what they have learnt for a while; `ip neighbour flush all` there helps. \
           Each source address needs a route of its own as well (`towpath setup`)")
}
