//! Subflows that were started and failed, and the element that made them fail.

use std::net::IpAddr;

use super::handshake::{last_hop, option_loss_hop};
use super::path::{MissingSubflow, path_label};
use super::routes::{reverse_path, routing};
use super::view::{ObservationView, private_block};
use crate::doctor::finding::{Cause, Confidence, Finding};
use crate::doctor::observation::{
    ConnectOutcome, ProbeOption, RecordedEvent, TargetReply, TestConnection,
};
use crate::doctor::text;

/// Finds the cause of a SYN without a reply.
pub(super) fn unanswered(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Finding {
    if let Some(finding) =
        one.local.and_then(|local| super::configuration::endpoint_trouble(view, local))
    {
        return finding;
    }
    if let Some(finding) = reverse_path(view, trial, one) {
        return finding;
    }
    if let Some(finding) = routing(view, one) {
        return finding;
    }
    let remote = one.remote.ip();
    let here = path_label(view, one);
    let evidence = "the SYN of the subflow is sent again, without an answer; the kernel counts such a \
                    subflow as one";
    let control = view.control(one.local, remote).or_else(|| view.control(None, remote));
    if let Some(finding) = control.and_then(|control| super::quality::lossy(view, trial, control)) {
        return finding;
    } // of few packets, those of the subflow were among the lost
    match control {
        Some(control) if control.outcome == ConnectOutcome::Connected => {
            let finding = Finding::new(
                Cause::JoinDropped,
                format!("something on {here} drops further subflows, and lets plain TCP through"),
            )
            .at_location(&here)
            .with_evidence(evidence)
            .with_evidence(format!(
                "plain TCP from {} to {}: connected",
                control.local, control.remote
            ))
            .with_optional_evidence(
                option_loss_hop(trial, ProbeOption::Join, one.local)
                    .map(|place| format!("hop by hop: {place}")),
            );
            finding.hint(
                "a firewall or middlebox of that path drops SYN packets with the option \
                          MP_JOIN: use that path for the first subflow, or a tunnel over it",
            )
        }
        Some(control) => dead_path(view, trial, one, Some(control.outcome)).with_evidence(evidence),
        None => dead_path(view, trial, one, None).with_evidence(evidence),
    }
}

/// Reports a path over which not even plain TCP connects.
fn dead_path(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
    control: Option<ConnectOutcome>,
) -> Finding {
    let (remote, here) = (one.remote.ip(), path_label(view, one));
    let (cause, sentence) = if remote != trial.target.ip() && is_private(view, trial, remote) {
        (
            Cause::AnnouncedAddressPrivate,
            format!(
                "the other host announces {remote}, a private address that is not reached from here"
            ),
        )
    } else if remote != trial.target.ip() {
        (
            Cause::AnnouncedAddressUnreachable,
            format!("the other host announces {remote}, from which nothing comes back"),
        )
    } else {
        (Cause::PathSilent, format!("nothing comes back over {here}: the path is dead"))
    };
    let finding = Finding::new(cause, sentence).at_location(&here);
    let finding = finding.with_optional_evidence(
        last_hop(trial, one.local).map(|place| format!("hop by hop: {place}")),
    );
    let finding = match control {
        Some(outcome) => finding
            .with_evidence(format!("plain TCP over the same path: {}", text::outcome(outcome))),
        None => finding.with_confidence(Confidence::Likely),
    };
    if cause == Cause::PathSilent {
        return finding.hint("look at that path alone: its link, its router, its firewall");
    }
    finding
        .fix(format!("ip mptcp endpoint delete id ID   # on the other host, that of {remote}"))
        .hint("behind a NAT, let it announce its outer address, with a port that is forwarded")
}

/// Returns true for a private address, seen from outside of its network.
fn is_private(view: &ObservationView<'_>, trial: &TestConnection, remote: IpAddr) -> bool {
    let block = private_block(remote);
    let ours = view.here.addresses.iter().any(|one| private_block(one.address) == block);
    let nat = view.peer.is_some_and(|peer| {
        peer.address.ip() == trial.target.ip()
            && peer.latest().link_of(trial.target.ip()).is_none()
            && !peer.latest().addresses.is_empty()
    });
    block.is_some() && (nat || (private_block(trial.target.ip()) != block && !ours))
}

/// Finds the cause of a subflow that was refused before it was established.
pub(super) fn closed(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
    event: Option<&RecordedEvent>,
) -> Finding {
    let error = event.and_then(|event| event.error);
    let here = path_label(view, one);
    let said = |finding: Finding| match error {
        Some(errno) => {
            finding.with_evidence(format!("the subflow was closed: {}", text::error(errno)))
        }
        None => finding.with_evidence("the subflow was closed"),
    };
    match error {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => said(refused(view, trial, one, event)),
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::EPERM) => {
            said(unreachable(view, trial, one, error.unwrap_or_default()))
        }
        Some(libc::ETIMEDOUT) => said(unanswered(view, trial, one)),
        _ if trial.counter_delta("MPJoinSynAckHMacFailure") > 0 => said(
            Finding::new(
                Cause::LoadBalancerOtherHost,
                format!("over {here}, another host answers than the one that is connected"),
            )
            .at_location(&here),
        )
        .with_evidence("its proof of the key is wrong (MPJoinSynAckHMacFailure)"),
        // Every reply had the option; other resets of this host do not matter.
        _ if all_joins_answered(trial) => said(rejected(view, one, event)),
        _ if trial.counter_delta("MPRstTx") > 0 => said(
            Finding::new(
                Cause::JoinOptionStripped,
                format!("something on {here} removes the option of Multipath TCP from SYN packets"),
            )
            .at_location(&here),
        )
        .with_evidence("the answer came without MP_JOIN, so this host reset the subflow (MPRstTx)")
        .with_optional_evidence(
            option_loss_hop(trial, ProbeOption::Join, one.local)
                .map(|place| format!("hop by hop: {place}")),
        )
        .hint(
            "plain TCP and a first subflow fall back there; use another path, or a tunnel over it",
        ),
        _ => said(cause_without_events(view, trial, one)),
    }
}

/// Returns true if all SYN packets with MP_JOIN were answered with it.
fn all_joins_answered(trial: &TestConnection) -> bool {
    let [asked, answered] = ["MPJoinSynTx", "MPJoinSynAckRx"].map(|name| trial.counter_delta(name));
    answered > 0 && (answered >= asked || trial.counter_delta("MPRstTx") == 0)
}

/// Finds the cause without events, from the plain TCP test of the same path.
fn cause_without_events(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Finding {
    let control = view.control(one.local, one.remote.ip());
    match control.map(|control| control.outcome) {
        Some(ConnectOutcome::Refused) => refused(view, trial, one, None),
        Some(ConnectOutcome::Failed(errno)) => unreachable(view, trial, one, errno),
        Some(ConnectOutcome::Silent) => dead_path(view, trial, one, Some(ConnectOutcome::Silent)),
        Some(ConnectOutcome::Connected) | None => infer_cause(view, trial, one),
    }
}

/// Infers the cause where plain TCP passes. The kernel counts ICMP errors, but not resets.
fn infer_cause(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Finding {
    let names = ["Icmp.InDestUnreachs", "Icmp6.InDestUnreachs"];
    let told = names.into_iter().find(|name| trial.counters.contains_key(*name));
    match told {
        Some(name) => {
            let here = path_label(view, one);
            let sentence = format!("a firewall on {here} forbids further subflows");
            Finding::new(Cause::JoinProhibited, sentence)
                .at_location(&here)
                .with_evidence(format!("a router says that something is unreachable ({name})"))
                .with_evidence("plain TCP over the same path: connected")
                .hint("ask who runs that path, or use another one")
        }
        None => refused(view, trial, one, None),
    }
    .with_confidence(Confidence::Likely)
}

/// Reports a reset and its sender.
fn refused(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
    event: Option<&RecordedEvent>,
) -> Finding {
    let (remote, here) = (one.remote.ip(), path_label(view, one));
    let mut again =
        trial.controls.iter().filter(|control| control.remote == trial.target).peekable();
    if again.peek().is_some() && again.all(|control| control.outcome == ConnectOutcome::Refused) {
        return listener_closed(trial);
    }
    let reason = event.and_then(|event| event.reset_reason);
    // A host with Multipath TCP resets the probe, whose token is unknown, with a reason; a firewall
    // does not. So such a host also refused the real subflow, and it does not know the connection.
    let probed = trial.probes.iter().any(|probe| {
        (Some(probe.local), probe.remote.ip()) == (one.local, remote)
            && probe.answer == Some(TargetReply::Reset { option: true })
    });
    if probed || reason.is_some() {
        return load_balancer(&here, probed, reason);
    }
    let same = view.control(one.local, remote).or_else(|| view.control(None, remote));
    match same.map(|control| control.outcome) {
        Some(ConnectOutcome::Refused) if remote != trial.target.ip() => Finding::new(
            Cause::AnnouncedAddressUnreachable,
            format!("the other host announces {remote}, and nobody listens there"),
        )
        .at_location(&here)
        .with_evidence(format!("plain TCP to {}: refused", one.remote))
        .hint("let the program listen on all addresses, or announce the address with a port"),
        other => {
            let sentence = format!("something on {here} resets further subflows");
            let finding = Finding::new(Cause::JoinReset, sentence).at_location(&here).hint(
                "a firewall that rejects with a reset: allow SYN packets with MP_JOIN on that path",
            );
            match other {
                Some(outcome) => finding.with_evidence(format!(
                    "plain TCP over the same path: {}",
                    text::outcome(outcome)
                )),
                None => finding.with_confidence(Confidence::Likely),
            }
        }
    }
}

fn listener_closed(trial: &TestConnection) -> Finding {
    Finding::new(
        Cause::ListenerClosedAfterAccept,
        format!("nobody listens on {} any more, and further subflows arrive there", trial.target),
    )
    .at_location(trial.target)
    .with_evidence("plain TCP to the same port is refused now, and was not before")
    .hint(
        "the program closes its listener after it has accepted a connection: keep it open, or \
         announce an endpoint with a port of its own (`ip mptcp endpoint add … signal port N`)",
    )
}

fn load_balancer(here: &str, probed: bool, reason: Option<u32>) -> Finding {
    Finding::new(
        Cause::LoadBalancerOtherHost,
        format!("over {here}, another host answers, which does not know the connection"),
    )
    .at_location(here)
    .with_confidence(if probed { Confidence::Certain } else { Confidence::Likely })
    .with_evidence(match reason {
        Some(reason) => format!("its reset has a reason of Multipath TCP ({reason})"),
        None => "it speaks Multipath TCP: its resets have the option MP_TCPRST".to_owned(),
    })
    .hint(
        "a load balancer spreads subflows over several hosts: let each announce an address of its \
         own, and forbid joins to the shared one (net.mptcp.allow_join_initial_addr_port = 0)",
    )
}

/// Reports an ICMP error of a router, or a missing route on this host.
fn unreachable(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
    errno: i32,
) -> Finding {
    let (remote, here) = (one.remote.ip(), path_label(view, one));
    let no_way = view
        .route_lookup(remote, one.local, one.bound_to)
        .is_some_and(|lookup| lookup.errno.is_some());
    if remote == trial.target.ip()
        && let Some(finding) = routing(view, one)
    {
        return finding;
    }
    if let Some(finding) = too_far(view, trial, one) {
        return finding;
    }
    // A router's message about the same packet is more exact than the resulting error.
    let said = trial.probes.iter().filter(|probe| probe.remote.ip() == remote);
    let said =
        said.flat_map(|probe| &probe.hops).find_map(|hop| Some((hop.address?, hop.refused?)));
    let heard = view.control(one.local, remote).and_then(|control| control.refused);
    let said = said.or(heard.map(|one| (one.router, (one.kind, one.code))));
    let by_firewall = match said {
        Some((_, (3, code))) => matches!(code, 9 | 10 | 13),
        Some((_, (1, code))) => matches!(code, 1 | 5 | 6),
        _ => errno == libc::EHOSTUNREACH || errno == libc::EACCES || errno == libc::EPERM,
    };
    let finding = if by_firewall && !no_way && (said.is_some() || remote == trial.target.ip()) {
        Finding::new(
            Cause::JoinProhibited,
            format!("a firewall on {here} forbids further subflows"),
        )
    } else if remote != trial.target.ip() {
        return dead_path(view, trial, one, Some(ConnectOutcome::Failed(errno)));
    } else {
        Finding::new(Cause::JoinUnreachable, format!("a router on {here} knows no way to {remote}"))
    };
    let finding = finding.at_location(&here).hint("ask who runs that path, or use another one");
    let finding = match view.control(one.local, remote) {
        Some(control) => finding.with_evidence(format!(
            "plain TCP over the same path: {}",
            text::outcome(control.outcome)
        )),
        None => finding,
    };
    match said {
        Some((hop, (kind, code))) => {
            finding.with_evidence(format!("{hop} says so (ICMP type {kind}, code {code})"))
        }
        None => finding,
    }
}

/// Reports a path with more routers than this host's time to live allows.
fn too_far(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Option<Finding> {
    let allowed = view.here.number("ipv4.ip_default_ttl").filter(|_| one.remote.is_ipv4())?;
    let ends = (one.local, one.remote.ip());
    let mut same =
        trial.probes.iter().filter(|probe| (Some(probe.local), probe.remote.ip()) == ends);
    let hops = same.find(|probe| probe.answer.is_some()).map(|probe| probe.hops.len() as u64)?;
    (hops >= allowed).then(|| {
        let here = path_label(view, one);
        let sentence = format!("packets of this host do not reach the other end of {here}");
        Finding::new(Cause::JoinUnreachable, sentence)
            .at_location(&here)
            .with_evidence(format!("{hops} routers are on the way"))
            .with_evidence(format!("net.ipv4.ip_default_ttl = {allowed}"))
            .fix("sysctl -w net.ipv4.ip_default_ttl=64")
    })
}

/// Finds the cause of a subflow that was established and ended at once.
pub(super) fn rejected(
    view: &ObservationView<'_>,
    one: &MissingSubflow<'_>,
    event: Option<&RecordedEvent>,
) -> Finding {
    let here = path_label(view, one);
    if event.and_then(|event| event.reset_reason) == Some(6) {
        return Finding::new(
            Cause::PayloadRewritten,
            format!("something on {here} changes the data that is sent"),
        )
        .at_location(&here)
        .with_evidence("the subflow was reset for a middlebox's interference (reason 6)");
    }
    let limits = view.peer.and_then(|peer| peer.latest().limits);
    let counted = view.peer.map_or(0, |peer| peer.counter_delta("MPJoinRejected"));
    let finding = Finding::new(
        Cause::PeerLimit,
        "the other host accepts no more subflows: its limit is reached",
    )
    .at_location("other host")
    .with_evidence("the subflow was established and reset by the other host at once")
    .fix("ip mptcp limits set subflows 8   # on the other host");
    let finding = match limits {
        Some(limits) => {
            finding.with_evidence(format!("limits there: subflows {}", limits.subflows))
        }
        None => finding,
    };
    if counted > 0 {
        finding.with_evidence(format!("it counts MPJoinRejected {counted}"))
    } else {
        let low =
            limits.is_some_and(|limits| u64::from(limits.subflows) <= view.joined().count() as u64);
        finding.with_confidence(if low { Confidence::Certain } else { Confidence::Likely })
    }
}
