//! Diagnoses of observations: recorded, constructed and random ones.

mod claims;
mod random;
mod several_paths;
mod topologies;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use towpath_host::snapshot::HostSnapshot;
use towpath_host::snapshot::{
    AddressSnapshot, EndpointSnapshot, LinkSnapshot, ListenerSnapshot, MptcpLimits,
};

use super::super::observation::{
    ConnectAttempt, ConnectOutcome, HopProbe, HopReply, IcmpRefusal, ObservedSubflow,
    PeerSnapshots, PlainTcpCheck, Privileges, ProbeOption, ProgramSocket, RecordedEvent,
    RouteLookup, SocketProtocol, SocketRole, TcpStats, TestConnection,
};
use super::{Confidence, Diagnosis, Observation, diagnose};
use crate::ServerKind;
use crate::finding::{Cause, Health};
use crate::fix::actions;

const TARGET: &str = "10.9.0.1:5210";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(index: u32, name: &str) -> LinkSnapshot {
    let (name, mtu_bytes) = (name.to_owned(), 1_500);
    LinkSnapshot { index, name, up: true, running: true, mtu_bytes, ..LinkSnapshot::default() }
}

fn endpoint(id: u8, address: &str, flags: u32) -> EndpointSnapshot {
    EndpointSnapshot { id, address: ip(address), port: None, link: None, flags }
}

/// Returns a host with two interfaces, each with its own network and gateway, and one endpoint.
fn local_host() -> HostSnapshot {
    let assigned =
        |link, address| AddressSnapshot { link, address: ip(address), prefix_length: 24 };
    HostSnapshot {
        kernel: "6.18.0".to_owned(),
        links: vec![link(2, "a"), link(3, "b")],
        addresses: vec![assigned(2, "10.0.1.1"), assigned(3, "10.0.2.1")],
        endpoints: vec![endpoint(1, "10.0.2.1", 2)],
        limits: Some(MptcpLimits { subflows: 2, add_addr_accepted: 2 }),
        ..HostSnapshot::default()
    }
}

fn route_lookups() -> Vec<RouteLookup> {
    let to = ip("10.9.0.1");
    let lookup = |from: Option<&str>, bound_to, link: u32| RouteLookup {
        to,
        from: from.map(ip),
        bound_to,
        link: Some(link),
        gateway: Some(ip(&format!("10.0.{}.254", link - 1))),
        errno: None,
    };
    vec![
        lookup(None, None, 2),
        lookup(Some("10.0.1.1"), None, 2),
        lookup(Some("10.0.1.1"), Some(2), 2),
        lookup(Some("10.0.2.1"), None, 3),
        lookup(Some("10.0.2.1"), Some(3), 3),
    ]
}

fn subflow(local: &str, first: bool) -> ObservedSubflow {
    ObservedSubflow {
        local: SocketAddr::new(ip(local), 40_000),
        remote: TARGET.parse().unwrap(),
        local_id: None,
        remote_id: None,
        first,
        opened_here: true,
        backup_here: false,
        backup_there: false,
        established: true,
        state: "established".to_owned(),
        gone: false,
        tcp: TcpStats {
            srtt_us: 10_000,
            mss_bytes: 1_448,
            bytes_sent: 500_000,
            bytes_acked: 500_000,
            bytes_received: 500_000,
            ..TcpStats::default()
        },
    }
}

/// Returns a subflow whose SYN was retransmitted.
fn unanswered_subflow() -> ObservedSubflow {
    let tcp = TcpStats { retransmissions: 1, ..TcpStats::default() };
    ObservedSubflow { established: false, tcp, ..subflow("10.0.2.1", false) }
}

fn test_connection() -> TestConnection {
    let (outcome, refused) = (ConnectOutcome::Connected, None);
    let attempt = |multipath| ConnectAttempt { multipath, outcome, took_ms: 10, refused };
    TestConnection {
        attempts: vec![attempt(false), attempt(true)],
        multipath: true,
        multipath_at_end: true,
        events: Some(Vec::new()),
        subflows: vec![subflow("10.0.1.1", true), subflow("10.0.2.1", false)],
        ..TestConnection::new(TARGET.parse().unwrap())
    }
}

/// Returns an observation with two paths, both in use.
fn healthy() -> Observation {
    let (here, trial) = (local_host(), Some(test_connection()));
    Observation {
        after: Some(here.clone()),
        here,
        route_lookups: route_lookups(),
        trial,
        ..Observation::default()
    }
}

/// Diagnoses the healthy observation without its second subflow, after `change`.
fn diagnose_one_path(change: impl FnOnce(&mut Observation, &mut TestConnection)) -> Diagnosis {
    let mut observation = healthy();
    let mut trial = observation.trial.take().unwrap();
    trial.subflows.pop();
    change(&mut observation, &mut trial);
    observation.trial = Some(trial);
    diagnose(&observation)
}

fn counters(names: &[&str]) -> BTreeMap<String, u64> {
    names.iter().map(|name| (format!("MPTcpExt.{name}"), 1)).collect()
}

fn first_cause(report: &Diagnosis) -> (Cause, Confidence) {
    let finding = report.findings.first().unwrap();
    (finding.cause, finding.confidence)
}

/// Returns the event that the second subflow was closed, with the error in it.
fn close_event(error: Option<i32>) -> RecordedEvent {
    RecordedEvent {
        kind: "SF_CLOSED".to_owned(),
        local: Some(ip("10.0.2.1")),
        remote: Some(ip("10.9.0.1")),
        error,
        ..RecordedEvent::default()
    }
}

/// Returns a test of plain TCP over the second path that ended with `outcome` and sent no data.
fn plain_check(outcome: ConnectOutcome) -> PlainTcpCheck {
    PlainTcpCheck {
        local: ip("10.0.2.1"),
        bound_to: None,
        remote: TARGET.parse().unwrap(),
        outcome,
        refused: None,
        small: None,
        large: None,
        small_retry: None,
        large_retry: None,
        packets: 0,
        resent: 0,
        answers: 0,
        behind_gap: 0,
        min_rtt_us: 0,
        port_attempts: 0,
        ports_answered: 0,
        ports_answered_late: 0,
        multipath: None,
    }
}

/// Diagnoses a second link that leads only to the other host and has no endpoint, after `change`.
fn diagnose_separate_links(
    change: impl FnOnce(&mut Observation, &mut TestConnection),
) -> Diagnosis {
    diagnose_one_path(|observation, trial| {
        observation.here.endpoints.clear();
        observation.after = Some(observation.here.clone());
        for lookup in observation
            .route_lookups
            .iter_mut()
            .filter(|lookup| lookup.from == Some(ip("10.0.2.1")))
        {
            (lookup.link, lookup.gateway, lookup.errno) = (None, None, Some(libc::ENETUNREACH));
        }
        let assigned =
            |link, address| AddressSnapshot { link, address: ip(address), prefix_length: 24 };
        let addresses = vec![assigned(2, "10.9.0.1"), assigned(3, "10.0.2.9")];
        let before = HostSnapshot { addresses, endpoints: vec![], ..local_host() };
        observation.peer = Some(PeerSnapshots { address: trial.target, before, after: None });
        let remote = SocketAddr::new(ip("10.0.2.9"), trial.target.port());
        // Control experiment: plain TCP over the second link reaches the other host.
        trial.controls.push(PlainTcpCheck { remote, ..plain_check(ConnectOutcome::Connected) });
        change(observation, trial);
    })
}

#[test]
fn an_unused_shared_link_is_found_by_the_peers_addresses() {
    let report = diagnose_separate_links(|_, _| ());
    assert_eq!(first_cause(&report), (Cause::NoEndpoints, Confidence::Certain), "{report:?}");
    let finding = &report.findings[0];
    assert!(finding.sentence.contains("b also reaches the other host, as 10.0.2.9"), "{finding:?}");
    let signal = "ip mptcp endpoint add 10.0.2.9 dev b signal   # on the other host";
    assert!(finding.fix.iter().any(|fix| fix == signal), "{finding:?}");
}

#[test]
fn equal_prefixes_alone_do_not_imply_a_shared_link() {
    let assert_no_findings = |report: Diagnosis| assert!(report.findings.is_empty(), "{report:?}");
    // On our link, a third host has that address and refuses, or no host has it.
    for outcome in [ConnectOutcome::Refused, ConnectOutcome::Silent] {
        assert_no_findings(diagnose_separate_links(|_, trial| trial.controls[0].outcome = outcome));
    }
    // Both hosts have a separate network with the same addresses.
    assert_no_findings(diagnose_separate_links(|observation, _| {
        observation.peer.as_mut().unwrap().before.addresses[1].address = ip("10.0.2.1");
    }));
    assert_no_findings(diagnose_separate_links(|observation, _| {
        observation.here.links[1].running = false;
    }));
}

#[test]
fn an_untested_interface_that_may_reach_the_peer_is_named() {
    let names_untested = |report: &Diagnosis| {
        let is_untested = |text: &str| text.starts_with("other addresses of the host through b");
        report
            .not_checked
            .iter()
            .any(|check| is_untested(&check.what) && check.why.contains("--peer"))
    };
    let without_peer = diagnose_separate_links(|observation, _| observation.peer = None);
    assert!(
        without_peer.verdict == Health::OnePath && names_untested(&without_peer),
        "{without_peer:?}"
    );
    assert!(!names_untested(&diagnose_separate_links(|observation, _| (
        observation.peer,
        observation.here.links[1].running
    ) = (None, false))));
    assert!(!names_untested(&diagnose_separate_links(|_, _| ())), "it is known");
    assert!(!names_untested(&diagnose(&healthy())), "both are in use");
}

#[test]
fn two_paths_that_are_both_used_are_healthy() {
    let report = diagnose(&healthy());
    assert_eq!((report.verdict, report.findings), (Health::Healthy, vec![]));
    let shares: Vec<_> =
        report.paths.iter().map(|path| (path.interface.as_deref(), path.percent)).collect();
    assert_eq!((shares, report.reason), (vec![(Some("a"), 50), (Some("b"), 50)], None));
    assert!(report.not_checked.iter().any(|check| check.why.contains("--peer")));
}

#[test]
fn checks_that_need_root_are_listed_before_a_connection_attempt() {
    let checks_that_need_root = |events, raw| {
        let mut observation = Observation {
            here: local_host(),
            route_lookups: route_lookups(),
            ..Observation::default()
        };
        observation.rights = Privileges { events, raw };
        observation.programs = Some(vec![ProgramSocket {
            id: None,
            name: String::new(),
            role: SocketRole::Listens,
            local: "10.0.1.1:80".parse().unwrap(),
            remote: "0.0.0.0:0".parse().unwrap(),
            speaks: SocketProtocol::Multipath,
            subflows: vec![],
            sender: None,
        }]);
        let skipped = diagnose(&observation).not_checked.into_iter();
        skipped
            .filter(|check| check.why.contains("root"))
            .map(|check| check.what)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        checks_that_need_root(false, false),
        [
            "programs that own 1 socket",
            "causes of closed subflows, and the hop that drops or strips packets"
        ]
    );
    assert!(checks_that_need_root(true, true).is_empty());
}

#[test]
fn a_kernel_without_mptcp_is_the_only_finding() {
    for (errno, setting, cause) in [
        (libc::ENOPROTOOPT, "mptcp.enabled", Cause::MptcpDisabled),
        (libc::EPROTONOSUPPORT, "other", Cause::KernelWithoutMptcp),
        (libc::EINVAL, "mptcp.mptcp_enabled", Cause::OldMptcpFork),
    ] {
        let mut observation = healthy();
        observation.here.socket_errno = errno;
        observation.here.settings.insert(setting.to_owned(), "0".to_owned());
        observation.here.endpoints.clear();
        let report = diagnose(&observation);
        assert_eq!((first_cause(&report).0, report.findings.len()), (cause, 1));
        assert_eq!(report.verdict, Health::Broken);
    }
}

#[test]
fn host_limits_precede_findings_of_the_path() {
    let report = diagnose_one_path(|observation, _| {
        observation.here.limits = Some(MptcpLimits { subflows: 0, add_addr_accepted: 0 });
    });
    assert_eq!(first_cause(&report), (Cause::SubflowLimit, Confidence::Certain));
    let fix = &report.findings[0].fix[0];
    assert!(fix.starts_with("ip mptcp limits set subflows"), "{fix}");
}

#[test]
fn an_unanswered_announcement_is_a_limit_with_or_without_events() {
    for has_events in [true, false] {
        let report = diagnose_one_path(|observation, trial| {
            observation.here.endpoints.clear();
            observation.after = None;
            observation.here.limits = Some(MptcpLimits { subflows: 2, add_addr_accepted: 0 });
            trial.counters = counters(&["AddAddr"]);
            let kind = "ANNOUNCED".to_owned();
            let remote = Some(ip("10.9.2.1"));
            let event = RecordedEvent { kind, remote, ..RecordedEvent::default() };
            trial.events = has_events.then(|| vec![event]);
        });
        assert_eq!(
            first_cause(&report),
            (Cause::AddAddrLimit, Confidence::Certain),
            "{has_events}"
        );
    }
}

#[test]
fn plain_tcp_distinguishes_path_faults_from_option_faults() {
    for (outcome, cause) in [
        (ConnectOutcome::Connected, Cause::JoinDropped),
        (ConnectOutcome::Silent, Cause::PathSilent),
    ] {
        let report = diagnose_one_path(|_, trial| {
            let unanswered = unanswered_subflow();
            trial.subflows.push(unanswered);
            trial.controls.push(plain_check(outcome));
        });
        assert_eq!(first_cause(&report), (cause, Confidence::Certain));
    }
}

#[test]
fn a_subflow_that_has_just_started_is_not_a_finding() {
    let report = diagnose_one_path(|_, trial| {
        let starting = ObservedSubflow { tcp: TcpStats::default(), ..unanswered_subflow() };
        trial.subflows.push(starting);
        trial.controls.push(plain_check(ConnectOutcome::Connected));
    });
    assert_eq!((report.verdict, report.findings.len()), (Health::Undetermined, 0), "{report:?}");
}

/// Returns the health and its reason if a changed connection has no findings.
fn verdict_of(change: impl FnOnce(&mut Observation, &mut TestConnection)) -> (Health, String) {
    let mut observation = healthy();
    let mut trial = observation.trial.take().unwrap();
    change(&mut observation, &mut trial);
    observation.trial = Some(trial);
    let report = diagnose(&observation);
    assert!(report.findings.is_empty(), "{report:?}");
    (report.verdict, report.reason.unwrap_or_default())
}

#[test]
fn healthy_requires_observed_data_on_every_path() {
    let idle = verdict_of(|_, trial| {
        trial.server = ServerKind::Tls;
        trial.subflows[1].tcp = TcpStats { bytes_acked: 1, ..trial.subflows[1].tcp };
        trial.subflows[1].tcp.bytes_received = 0;
    });
    assert_eq!(idle.0, Health::Undetermined);
    let expected = "b carried little or no data: not more was exchanged with a TLS server";
    assert!(idle.1.contains(expected), "{}", idle.1);

    let backup = verdict_of(|observation, trial| {
        trial.subflows.push(ObservedSubflow { backup_here: true, ..subflow("10.0.3.1", false) });
        trial.subflows[2].tcp = TcpStats::default();
        observation.here.addresses.push(AddressSnapshot {
            link: 2,
            address: ip("10.0.3.1"),
            prefix_length: 24,
        });
    });
    assert_eq!(backup.0, Health::Healthy, "a backup is to carry nothing");

    let one_path = verdict_of(|observation, trial| {
        observation.after = None;
        observation.here.endpoints.clear();
        observation.here.links[1].up = false;
        trial.subflows.pop();
    });
    assert_eq!(one_path, (Health::OnePath, "a".to_owned()));

    let lossy = verdict_of(|_, trial| {
        trial.server = ServerKind::Web;
        trial.subflows[1].tcp.retransmissions = 40;
    });
    assert_eq!(lossy.0, Health::Undetermined);
    assert!(lossy.1.contains("40 packets had to be retransmitted on b"), "{}", lossy.1);

    let without_connection = diagnose(&Observation {
        here: local_host(),
        route_lookups: route_lookups(),
        ..Observation::default()
    });
    assert_eq!(without_connection.verdict, Health::Undetermined);
    assert_eq!(without_connection.reason.unwrap(), "no connection was tried");
}

#[test]
fn the_end_of_the_connection_is_not_a_path_fault() {
    let diagnose_closed = |error| {
        diagnose_one_path(|_, trial| {
            (trial.closed_by_peer, trial.server) = (true, ServerKind::ClosesOnData);
            trial.events = Some(vec![close_event(error)]);
            trial.counters = counters(&["MPJoinSynTx", "MPRstTx"]);
            trial.controls.push(plain_check(ConnectOutcome::Connected));
        })
    };
    let report = diagnose_closed(Some(libc::ECONNREFUSED));
    assert_eq!((report.verdict, report.findings.len()), (Health::Undetermined, 0), "{report:?}");
    assert!(report.reason.unwrap().starts_with("a server that accepts no test data"));
    assert_eq!(
        first_cause(&diagnose_closed(Some(libc::EACCES))).0,
        Cause::JoinProhibited,
        "a router said so"
    );
}

#[test]
fn after_a_server_disconnects_configuration_findings_remain() {
    let report = diagnose_one_path(|observation, trial| {
        (trial.closed_by_peer, trial.server) = (true, ServerKind::ClosesOnData);
        let lookup = observation
            .route_lookups
            .iter_mut()
            .find(|lookup| lookup.from == Some(ip("10.0.2.1")))
            .unwrap();
        lookup.link = Some(2);
    });
    assert_eq!(first_cause(&report), (Cause::NoSourceRoute, Confidence::Likely));
}

#[test]
fn a_limit_is_never_lowered() {
    let report = diagnose_one_path(|observation, trial| {
        observation.after = None;
        observation.here.endpoints.clear();
        observation.here.limits = Some(MptcpLimits { subflows: 7, add_addr_accepted: 0 });
        trial.counters = counters(&["AddAddr"]);
        let (kind, remote) = ("ANNOUNCED".to_owned(), Some(ip("10.9.2.1")));
        trial.events = Some(vec![RecordedEvent { kind, remote, ..RecordedEvent::default() }]);
    });
    assert_eq!(report.findings[0].fix, ["ip mptcp limits set subflows 7 add_addr_accepted 2"]);
}

#[test]
fn small_packets_distinguish_a_black_hole_from_a_slow_path() {
    let report = |small_retry, rtt_us| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        trial.subflows[1].tcp.bytes_acked = 1_000;
        let sizes = (Some(true), Some(false));
        let mut check = plain_check(ConnectOutcome::Connected);
        (check.small, check.large, check.small_retry) = (sizes.0, sizes.1, small_retry);
        check.min_rtt_us = rtt_us;
        trial.controls.push(check);
        diagnose(&observation)
    };
    assert_eq!(first_cause(&report(Some(true), 80_000)).0, Cause::PathMtuHole);
    for slow in [report(Some(false), 80_000), report(None, 80_000), report(Some(true), 155_000)] {
        assert!(slow.findings.is_empty(), "{slow:?}");
    }
}

#[test]
fn random_loss_is_not_a_black_hole_if_large_packets_pass() {
    let report = |large_retry, (acked, received), unacked| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        let tcp = &mut trial.subflows[1].tcp;
        (tcp.bytes_acked, tcp.bytes_received) = (acked, received);
        (tcp.unacked, tcp.retransmissions) = (unacked, unacked);
        let mut check = plain_check(ConnectOutcome::Connected);
        (check.small, check.large) = (Some(true), Some(false));
        (check.small_retry, check.large_retry) = (Some(true), large_retry);
        check.min_rtt_us = 60_000;
        trial.controls.push(check);
        diagnose(&observation)
    };
    let healthy_reports = [
        report(None, (51_000, 53_000), 0),
        report(Some(false), (51_000, 53_000), 0),
        report(Some(true), (1_000, 1_000), 0),
        report(Some(true), (51_000, 53_000), 3),
    ];
    for report in healthy_reports {
        assert!(report.findings.is_empty(), "{report:?}");
    }
    // Only one direction passes, or neither.
    for transferred in [(51_000, 1_000), (1_000, 53_000), (1_000, 1_000)] {
        for unacked in [0, 3] {
            let report = report(Some(false), transferred, unacked);
            assert_eq!(first_cause(&report).0, Cause::PathMtuHole, "{transferred:?}");
        }
    }
}

#[test]
fn a_missing_source_route_is_found_by_the_outgoing_interface() {
    let report = diagnose_one_path(|observation, trial| {
        let lookup = observation
            .route_lookups
            .iter_mut()
            .find(|lookup| lookup.from == Some(ip("10.0.2.1")))
            .unwrap();
        lookup.link = Some(2);
        let unanswered = unanswered_subflow();
        trial.subflows.push(unanswered);
        trial.controls.push(plain_check(ConnectOutcome::Silent));
    });
    assert_eq!(first_cause(&report).0, Cause::NoSourceRoute);
    assert!(report.findings[0].fix[0].contains("ip rule add from 10.0.2.1"));
}

#[test]
fn each_reason_that_ends_a_subflow_has_its_own_cause() {
    for (error, names, cause) in [
        (Some(libc::ECONNREFUSED), &[][..], Cause::JoinReset),
        (None, &["MPRstTx"], Cause::JoinOptionStripped),
        (Some(libc::EHOSTUNREACH), &[], Cause::JoinProhibited),
        (Some(libc::ENETUNREACH), &[], Cause::JoinUnreachable),
        (None, &["MPJoinSynAckRx"], Cause::PeerLimit),
    ] {
        let report = diagnose_one_path(|_, trial| {
            trial.events = Some(vec![close_event(error)]);
            trial.counters = counters(names);
            trial.controls.push(plain_check(ConnectOutcome::Connected));
        });
        assert_eq!(first_cause(&report).0, cause, "{error:?} {names:?}");
    }
}

#[test]
fn a_router_that_quotes_the_packet_without_its_option_is_named() {
    let mut observation = healthy();
    let trial = observation.trial.as_mut().unwrap();
    (trial.multipath, trial.multipath_at_end) = (false, false);
    trial.subflows.clear();
    trial.counters = counters(&["MPCapableFallbackSYNACK"]);
    let hop = |address, has_option| HopReply {
        address: Some(ip(address)),
        has_option: Some(has_option),
        refused: None,
    };
    trial.probes.push(HopProbe {
        local: ip("10.0.1.1"),
        remote: trial.target,
        option: ProbeOption::Capable,
        hops: vec![hop("10.0.1.254", true), hop("10.5.0.1", false)],
        answer: None,
    });
    let report = diagnose(&observation);
    assert_eq!(first_cause(&report), (Cause::SynOptionStripped, Confidence::Certain));
    let evidence = report.findings[0].evidence.join(" ");
    assert!(evidence.contains("between 10.0.1.254 and 10.5.0.1"), "{evidence}");
    assert_eq!(report.verdict, Health::Broken);
}

#[test]
fn peer_observations_distinguish_the_directions() {
    for (received_syns, cause) in [(0, Cause::SynOptionStripped), (1, Cause::SynackOptionStripped)]
    {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        (trial.multipath, trial.multipath_at_end) = (false, false);
        trial.subflows.clear();
        let listener = Some(ListenerSnapshot { plain: false, multipath: true });
        let mut after = HostSnapshot { listener, ..HostSnapshot::default() };
        after.counters.insert("MPTcpExt.MPCapableSYNRX".to_owned(), received_syns);
        let (address, before) =
            (trial.target, HostSnapshot { listener, ..HostSnapshot::default() });
        observation.peer = Some(PeerSnapshots { address, before, after: Some(after) });
        assert_eq!(first_cause(&diagnose(&observation)).0, cause);
    }
}

#[test]
fn counters_reveal_an_unobserved_subflow_without_events() {
    use Confidence::{Certain, Likely};
    for (names, expected) in [
        (&["MPJoinSynTx", "MPJoinSynAckRx"][..], (Cause::PeerLimit, Likely)),
        (&["MPJoinSynTx", "MPRstTx"], (Cause::JoinOptionStripped, Certain)),
        (&["MPJoinSynTx"], (Cause::JoinReset, Likely)),
        (&[], (Cause::JoinId0Denied, Likely)),
    ] {
        let report = diagnose_one_path(|_, trial| {
            trial.events = None;
            trial.counters = counters(names);
            trial.controls.push(plain_check(ConnectOutcome::Connected));
        });
        assert_eq!(first_cause(&report), expected, "{names:?}");
    }
}

#[test]
fn the_icmp_code_distinguishes_a_firewall_from_a_missing_route() {
    for (code, cause) in [(13, Cause::JoinProhibited), (1, Cause::JoinUnreachable)] {
        let report = diagnose_one_path(|_, trial| {
            trial.events = None;
            trial.counters = counters(&["MPJoinSynTx"]);
            let refused = Some(IcmpRefusal { router: ip("10.5.0.1"), kind: 3, code });
            let outcome = ConnectOutcome::Failed(libc::EHOSTUNREACH);
            trial.controls.push(PlainTcpCheck { refused, ..plain_check(outcome) });
        });
        assert_eq!(first_cause(&report), (cause, Confidence::Certain), "{code}");
        assert!(report.findings[0].evidence.join(" ").contains("10.5.0.1 reports it"));
    }
}

#[test]
fn a_path_is_lossy_if_both_plain_tcp_and_the_subflow_lose_packets() {
    for (resent, retransmissions, lossy) in
        [(3, 12, true), (3, 1, false), (1, 9, false), (9, 0, false), (0, 9, false)]
    {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        trial.subflows[1].tcp.retransmissions = retransmissions;
        trial.controls.push(PlainTcpCheck {
            packets: 40,
            resent,
            ..plain_check(ConnectOutcome::Connected)
        });
        let causes: Vec<_> =
            diagnose(&observation).findings.iter().map(|finding| finding.cause).collect();
        assert_eq!(
            causes.contains(&Cause::PathLossy),
            lossy,
            "{resent} {retransmissions}: {causes:?}"
        );
    }
}

#[test]
fn a_listener_that_offers_mptcp_over_another_path_is_not_plain() {
    for (works_elsewhere, cause) in
        [(true, Cause::SynOptionStripped), (false, Cause::ListenerPlainTcp)]
    {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        (trial.multipath, trial.multipath_at_end) = (false, false);
        trial.subflows.clear();
        // A further attempt, over Multipath TCP and another path than the first one.
        let multipath = Some(works_elsewhere);
        trial.controls.push(PlainTcpCheck { multipath, ..plain_check(ConnectOutcome::Connected) });
        assert_eq!(first_cause(&diagnose(&observation)).0, cause);
    }
}

#[test]
fn a_silent_subflow_is_a_nat_timeout_if_a_new_one_works_on_its_path() {
    for (new_subflow_works, cause) in [(true, Cause::NatTimeout), (false, Cause::PathSilent)] {
        let mut observation = healthy();
        if !new_subflow_works {
            observation.trial = None;
        }
        let mut silent = subflow("10.0.2.1", false);
        silent.tcp = TcpStats { unacked: 9, backoff: 3, silent_ms: 2_000, ..silent.tcp };
        observation.programs = Some(vec![ProgramSocket {
            id: Some(7),
            name: "backup".to_owned(),
            role: SocketRole::Connected,
            local: "10.0.1.1:40000".parse().unwrap(),
            remote: TARGET.parse().unwrap(),
            speaks: SocketProtocol::Multipath,
            subflows: vec![subflow("10.0.1.1", true), silent],
            sender: None,
        }]);
        assert_eq!(first_cause(&diagnose(&observation)).0, cause);
    }
}

#[test]
fn bytes_on_the_wrong_interface_show_a_shared_link() {
    let mut observation = healthy();
    let after = observation.after.as_mut().unwrap();
    (after.links[0].rx_bytes, after.links[1].rx_bytes) = (1_100_000, 900);
    (after.links[0].tx_bytes, after.links[1].tx_bytes) = (600_000, 600_000);
    assert!(diagnose(&observation).findings.is_empty(), "not the same network");
    for snapshot in [Some(&mut observation.here), observation.after.as_mut()].into_iter().flatten()
    {
        snapshot.addresses.iter_mut().for_each(|entry| entry.prefix_length = 16);
    }
    assert_eq!(first_cause(&diagnose(&observation)).0, Cause::SameSubnetArp);
}

#[test]
fn every_cause_has_a_unique_id_and_an_explanation() {
    let page = include_str!("../../../../docs/reference/causes.md");
    let hint = "run `towpath doctor --causes > docs/reference/causes.md`";
    assert!(page == super::causes_page(), "{hint}");
    let mut names: Vec<_> = Cause::ALL.iter().map(|cause| cause.id()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
