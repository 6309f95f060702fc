//! Observations of hosts with several paths of which one is unused, silent, doubled or closing.

use super::*;

/// Addresses of one family: those of the interfaces `a`, `b`, `c` and `d`, and the server's.
fn network(v4: bool, path_count: usize) -> (Vec<IpAddr>, SocketAddr) {
    let address = |path: usize, host: &str| {
        ip(&if v4 { format!("10.0.{path}.{host}") } else { format!("2001:db8:{path}::{host}") })
    };
    let locals = (1..=path_count).map(|path| address(path, "1")).collect();
    (locals, SocketAddr::new(address(9, "1"), 5210))
}

/// Returns a host with one interface, gateway and endpoint for each path, and a connection that got
/// `first_outcome` over the path `first_route`. Plain TCP over each single path gets its outcome.
fn host_with_checks(
    v4: bool,
    first_route: usize,
    first_outcome: ConnectOutcome,
    outcomes: &[ConnectOutcome],
) -> Observation {
    let (locals, target) = network(v4, outcomes.len());
    let names = ["a", "b", "c", "d"];
    let index = |path: usize| path as u32 + 2;
    let gateway = |path: usize| {
        Some(ip(&if v4 { format!("10.0.{path}.254") } else { format!("2001:db8:{path}::fe") }))
    };
    let lookup = |from, bound_to, path: usize| RouteLookup {
        to: target.ip(),
        from,
        bound_to,
        link: Some(index(path)),
        gateway: gateway(path + 1),
        errno: None,
    };
    let mut observation = Observation {
        route_lookups: vec![lookup(None, None, first_route)],
        ..Observation::default()
    };
    let attempt = |multipath| ConnectAttempt {
        multipath,
        outcome: first_outcome,
        took_ms: 1_450,
        refused: None,
    };
    let mut trial = TestConnection {
        attempts: vec![attempt(false), attempt(true)],
        ..TestConnection::new(target)
    };
    for (path, (local, outcome)) in locals.iter().zip(outcomes).enumerate() {
        let prefix_length = if v4 { 24 } else { 64 };
        let assigned = AddressSnapshot { link: index(path), address: *local, prefix_length };
        observation.here.links.push(link(index(path), names[path]));
        observation.here.addresses.push(assigned);
        observation.route_lookups.push(lookup(Some(*local), None, path));
        observation.route_lookups.push(lookup(Some(*local), Some(index(path)), path));
        trial.controls.push(PlainTcpCheck {
            local: *local,
            bound_to: Some(index(path)),
            remote: target,
            ..plain_check(*outcome)
        });
    }
    observation.after = Some(observation.here.clone());
    observation.trial = Some(trial);
    observation
}

#[test]
fn a_server_that_answers_on_another_path_is_not_down() {
    use ConnectOutcome::{Connected, Failed, Refused, Silent};
    for v4 in [true, false] {
        for path_count in 2..=4_usize {
            for first in 0..path_count {
                for dead in [Silent, Refused, Failed(libc::EHOSTUNREACH)] {
                    let good = (first + 1) % path_count;
                    let mut outcomes = vec![Silent; path_count];
                    (outcomes[first], outcomes[good]) = (dead, Connected);
                    let report = diagnose(&host_with_checks(v4, first, dead, &outcomes));
                    let finding = &report.findings[0];
                    assert_eq!(finding.cause.id(), "first-path-unusable", "{report:?}");
                    assert_eq!(finding.confidence, Confidence::Certain);
                    assert_eq!(report.verdict, Health::Broken);
                    let (locals, target) = network(v4, path_count);
                    let (first, name) = (["a", "b", "c", "d"][first], ["a", "b", "c", "d"][good]);
                    let answers = format!("{target} answers from {} on {name}", locals[good]);
                    assert!(finding.sentence.contains(&answers), "{finding:?}");
                    let starts = format!("new connections start on the first route ({first})");
                    assert!(finding.sentence.contains(&starts), "{finding:?}");
                    let ip_command = if v4 { "ip route add" } else { "ip -6 route add" };
                    let command = &finding.fix[0];
                    assert!(command.starts_with(&format!("{ip_command} {} via", target.ip())));
                    assert!(command.ends_with(&format!("dev {name} src {}", locals[good])));
                    let evidence = finding.evidence.join("\n");
                    assert!(
                        evidence.contains(&format!("from {} ({name}): connected", locals[good]))
                    );
                }
            }
        }
    }
}

#[test]
fn a_server_that_answers_nowhere_or_by_now_on_the_first_path_keeps_its_cause() {
    use ConnectOutcome::{Connected, Refused, Silent};
    for v4 in [true, false] {
        for path_count in 1..=4 {
            let all = |outcome| vec![outcome; path_count];
            let silent = diagnose(&host_with_checks(v4, 0, Silent, &all(Silent)));
            assert_eq!(first_cause(&silent).0, Cause::RemoteSilent);
            let refused = diagnose(&host_with_checks(v4, 0, Refused, &all(Refused)));
            assert_eq!(first_cause(&refused).0, Cause::RemoteRefused);
            // The server has started in the meantime, or the first packets were lost by chance.
            let late = diagnose(&host_with_checks(v4, 0, Silent, &all(Connected)));
            assert_eq!(first_cause(&late).0, Cause::RemoteSilent);
        }
    }
}

#[test]
fn equal_routes_of_which_one_fails_are_not_a_server_that_is_down() {
    use ConnectOutcome::{Connected, Silent};
    for v4 in [true, false] {
        // The lookup returns the path that works; the attempts went over the other one.
        let report = diagnose(&host_with_checks(v4, 0, Silent, &[Connected, Silent]));
        assert_eq!(first_cause(&report), (Cause::FirstPathUnusable, Confidence::Likely));
        let (locals, target) = network(v4, 2);
        let expected = format!("{target} answers from {} on a, but not over b:", locals[0]);
        assert!(report.findings[0].sentence.starts_with(&expected), "{report:?}");
        assert!(report.findings[0].fix[0].contains(" dev a "), "{report:?}");
    }
}

#[test]
fn an_option_that_is_removed_on_one_port_only_is_named_with_both_ports() {
    let mut observation = healthy();
    let trial = observation.trial.as_mut().unwrap();
    (trial.multipath, trial.multipath_at_end) = (false, false);
    trial.subflows.clear();
    let multipath = Some(true);
    trial.controls.push(PlainTcpCheck { multipath, ..plain_check(ConnectOutcome::Connected) });
    let sentence = |observation: &Observation| {
        let report = diagnose(observation);
        assert_eq!(first_cause(&report).0, Cause::SynOptionStripped, "{report:?}");
        report.findings[0].sentence.clone()
    };
    let path = "something on the path to 10.9.0.1:5210 over a removes the Multipath TCP option";
    assert_eq!(sentence(&observation), path);
    let program = |local: &str, port| ProgramSocket {
        id: None,
        name: String::new(),
        role: SocketRole::Connected,
        local: SocketAddr::new(ip(local), 40_000),
        remote: SocketAddr::new(ip("10.9.0.1"), port),
        speaks: SocketProtocol::Multipath,
        subflows: Vec::new(),
        sender: None,
    };
    // Connections over another path, or to the same port, prove nothing about the port.
    observation.programs = Some(vec![program("10.0.2.1", 8_080), program("10.0.1.1", 5_210)]);
    assert_eq!(sentence(&observation), path);
    observation.programs = Some(vec![program("10.0.1.1", 8_080)]);
    let expected = format!("{path} from connections to port 5210, but not to port 8080");
    assert_eq!(sentence(&observation), expected);
    // The other host's towpath server on another port, tested over the first path.
    observation.programs = None;
    let (local, remote) = (ip("10.0.1.1"), SocketAddr::new(ip("10.9.0.1"), 5_300));
    let check = PlainTcpCheck { local, remote, ..plain_check(ConnectOutcome::Connected) };
    let trial = observation.trial.as_mut().unwrap();
    trial.controls.push(PlainTcpCheck { multipath, ..check });
    assert!(sentence(&observation).ends_with("port 5210, but not to port 5300"));
}

#[test]
fn an_announced_address_is_named_with_its_port_and_judged_from_here() {
    let announced = |address: &str, target: &str| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        trial.target = target.parse().unwrap();
        let remote = SocketAddr::new(ip(address), 12_345);
        let mut failed = unanswered_subflow();
        (failed.remote, failed.remote_id) = (remote, Some(4));
        trial.subflows.push(failed);
        trial.controls.push(PlainTcpCheck { remote, ..plain_check(ConnectOutcome::Silent) });
        for lookup in &mut observation.route_lookups {
            lookup.to = remote.ip();
        }
        let report = diagnose(&observation);
        let finding = report.findings.into_iter().next().unwrap();
        assert!(finding.sentence.contains(&format!("announces {remote}, ")), "{finding:?}");
        assert!(finding.fix[0].starts_with("ip mptcp endpoint delete id 4 "), "{finding:?}");
        finding.cause
    };
    // A server with a public address has a private one only behind a NAT, even if this host's
    // networks are private as well.
    assert_eq!(announced("10.7.0.2", "198.51.100.2:5210"), Cause::AnnouncedAddressPrivate);
    assert_eq!(announced("10.0.2.9", "198.51.100.2:5210"), Cause::AnnouncedAddressUnreachable);
    assert_eq!(announced("10.7.0.2", "10.9.0.1:5210"), Cause::AnnouncedAddressUnreachable);
    assert_eq!(announced("203.0.113.2", "198.51.100.2:5210"), Cause::AnnouncedAddressUnreachable);
}

#[test]
fn an_announcement_that_does_not_fit_into_a_packet_is_the_other_hosts_problem() {
    let mut observation = healthy();
    let too_long = EndpointSnapshot { port: Some(4_001), ..endpoint(3, "2001:db8::2", 1) };
    let before = HostSnapshot { endpoints: vec![too_long], ..HostSnapshot::default() };
    let dropped = BTreeMap::from([("MPTcpExt.AddAddrTxDrop".to_owned(), 1)]);
    let after = Some(HostSnapshot { counters: dropped, ..before.clone() });
    let address = TARGET.parse().unwrap();
    observation.peer = Some(PeerSnapshots { address, before, after });
    let report = diagnose(&observation);
    assert_eq!(first_cause(&report).0, Cause::AnnouncementStripped, "{report:?}");
    let finding = &report.findings[0];
    assert_eq!(finding.location.as_deref(), Some("other host"));
    assert!(finding.sentence.contains("[2001:db8::2]:4001"), "{finding:?}");
    assert!(finding.fix[0].starts_with("ip mptcp endpoint delete id 3 "), "{finding:?}");
}

#[test]
fn the_other_of_two_equal_addresses_gets_commands_if_its_gateway_is_known() {
    let mut observation = same_addresses("192.168.8.100", 24, 2);
    let fix = |observation: &Observation| diagnose(observation).findings[0].fix.clone();
    assert!(fix(&observation).is_empty());
    let address = Some(ip("192.168.8.100"));
    observation.route_lookups.push(RouteLookup {
        to: ip("10.9.0.1"),
        from: address,
        bound_to: Some(11),
        link: Some(11),
        gateway: Some(ip("192.168.8.101")),
        errno: None,
    });
    let expected = [
        "ip address delete 192.168.8.100/24 dev usb1",
        "ip address add 192.168.8.102/24 dev usb1",
        "ip rule add from 192.168.8.102 table 111",
        "ip route add default via 192.168.8.101 dev usb1 table 111",
    ];
    assert_eq!(fix(&observation), expected);
}

#[test]
fn the_way_to_choose_the_other_path_depends_on_its_source_route() {
    use ConnectOutcome::{Connected, Silent};
    let hint = |has_source_route: bool| {
        let mut observation = host_with_checks(true, 0, Silent, &[Silent, Connected]);
        if !has_source_route {
            observation.route_lookups[3].link = Some(2);
        }
        diagnose(&observation).findings[0].hint.clone().unwrap()
    };
    assert!(hint(true).contains("bind the program to 10.0.2.1"), "{}", hint(true));
    assert!(hint(false).contains("bind the program to the interface b"), "{}", hint(false));
    assert!(hint(true).contains("lower metric than that of a"), "{}", hint(true));
}

/// Returns a connection of one family with a subflow from each of the first `used` interfaces, on a
/// host whose other interfaces have an address of the other family only.
fn mixed_families(v4: bool, used: usize, unused: usize) -> Observation {
    let outcomes = vec![ConnectOutcome::Connected; used];
    let mut observation = host_with_checks(v4, 0, ConnectOutcome::Connected, &outcomes);
    let (locals, target) = network(v4, used);
    let trial = observation.trial.as_mut().unwrap();
    (trial.multipath, trial.multipath_at_end) = (true, true);
    for (path, local) in locals.iter().enumerate() {
        let local = SocketAddr::new(*local, 40_000);
        trial.subflows.push(ObservedSubflow {
            local,
            remote: target,
            ..subflow("10.0.1.1", path == 0)
        });
        if path > 0 {
            observation.here.endpoints.push(EndpointSnapshot {
                address: local.ip(),
                ..endpoint(path as u8, "10.0.1.1", 2)
            });
        }
    }
    observation.here.limits = Some(MptcpLimits { subflows: 8, add_addr_accepted: 8 });
    let (others, _) = network(!v4, 4);
    for path in used..used + unused {
        let index = path as u32 + 2;
        observation.here.links.push(link(index, ["a", "b", "c", "d"][path]));
        let prefix_length = if v4 { 64 } else { 24 };
        let address = others[path];
        observation.here.addresses.push(AddressSnapshot { link: index, address, prefix_length });
    }
    observation.after = Some(observation.here.clone());
    observation
}

#[test]
fn an_interface_of_the_other_family_is_named_as_unused() {
    for v4 in [true, false] {
        for (used, unused) in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)] {
            let report = diagnose(&mixed_families(v4, used, unused));
            assert!(report.findings.is_empty(), "{report:?}");
            let expected = if used == 1 { Health::OnePath } else { Health::Healthy };
            assert_eq!(report.verdict, expected, "{report:?}");
            assert_eq!(report.unused.len(), unused, "{report:?}");
            let (paths, subflows) =
                (if used == 1 { "1 path carries" } else { "paths carry" }, used);
            let traffic = report.traffic_text();
            assert!(traffic.contains(paths) && traffic.contains(&format!("({subflows} subflow")));
            assert!(traffic.contains("a 1.0 MB"), "{traffic}");
            for entry in &report.unused {
                let (own, other) = if v4 { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
                assert!(entry.sentence.contains(&format!("only {other} addresses")), "{entry:?}");
                assert!(entry.sentence.contains(&format!("connection is {own}")), "{entry:?}");
                let announces = format!("server announces an {other} address");
                assert!(entry.sentence.contains(&announces), "{entry:?}");
                assert_eq!(entry.sentence.contains("AF_INET6"), v4, "{entry:?}");
            }
        }
    }
}

#[test]
fn only_an_interface_that_could_be_a_path_is_named_as_unused() {
    type Change = fn(&mut Observation);
    let changes: [Change; 5] = [
        |observation| observation.here.links[1].up = false,
        |observation| observation.here.links[1].running = false,
        |observation| observation.here.links[1].loopback = true,
        |observation| observation.here.addresses[1].address = ip("fe80::1"),
        |observation| observation.trial.as_mut().unwrap().target = "127.0.0.1:1".parse().unwrap(),
    ];
    for change in changes {
        let mut observation = mixed_families(true, 1, 1);
        change(&mut observation);
        let report = diagnose(&observation);
        assert!(report.unused.is_empty(), "{report:?}");
    }
    // An announced address of the other family made the interface a path.
    let mut observation = mixed_families(true, 1, 1);
    let (others, target) = network(false, 2);
    let local = SocketAddr::new(others[1], 40_000);
    let joined = ObservedSubflow { local, remote: target, ..subflow("10.0.1.1", false) };
    observation.trial.as_mut().unwrap().subflows.push(joined);
    let report = diagnose(&observation);
    assert_eq!((report.verdict, report.unused.len()), (Health::Healthy, 0), "{report:?}");
}

#[test]
fn several_subflows_from_one_address_are_one_path() {
    for v4 in [true, false] {
        for (subflow_count, unused) in [(2, 0), (2, 1), (3, 0), (3, 2)] {
            let mut observation = mixed_families(v4, 1, unused);
            let trial = observation.trial.as_mut().unwrap();
            for number in 1..subflow_count {
                let mut remote = trial.target;
                remote.set_port(5_210 + number);
                trial.subflows.push(ObservedSubflow {
                    remote,
                    first: false,
                    ..trial.subflows[0].clone()
                });
            }
            let report = diagnose(&observation);
            assert_eq!(report.verdict, Health::OnePath, "{report:?}");
            assert_eq!(report.reason.as_deref(), Some("a"), "{report:?}");
        }
    }
}

/// Returns the healthy observation with `count` more interfaces that all have `address`.
fn same_addresses(address: &str, prefix_length: u8, count: u32) -> Observation {
    let mut observation = healthy();
    for index in 10..10 + count {
        observation.here.links.push(link(index, &format!("usb{}", index - 10)));
        let address = ip(address);
        observation.here.addresses.push(AddressSnapshot { link: index, address, prefix_length });
    }
    observation.after = Some(observation.here.clone());
    observation
}

#[test]
fn interfaces_with_the_same_address_are_named_with_or_without_a_connection() {
    for (address, prefix_length) in [("192.168.8.100", 24), ("fd00:8::100", 64)] {
        for count in 2..=4 {
            for has_trial in [true, false] {
                let mut observation = same_addresses(address, prefix_length, count);
                if !has_trial {
                    observation.trial = None;
                }
                let report = diagnose(&observation);
                let finding = &report.findings[0];
                assert_eq!(finding.cause.id(), "duplicate-address", "{report:?}");
                assert_eq!(report.findings.len(), 1, "{report:?}");
                assert!(finding.sentence.contains(address), "{finding:?}");
                for index in 0..count {
                    assert!(finding.sentence.contains(&format!("usb{index}")), "{finding:?}");
                }
                let hint = finding.hint.as_deref().unwrap();
                assert!(hint.contains("NAT") && hint.contains("namespace"), "{hint}");
            }
        }
    }
}

#[test]
fn one_address_each_or_an_unnumbered_link_is_no_duplicate() {
    let has_duplicate = |observation: &Observation| {
        let report = diagnose(observation);
        report.findings.iter().any(|finding| finding.cause.id() == "duplicate-address")
    };
    assert!(!has_duplicate(&same_addresses("192.168.8.100", 24, 1)));
    // Unnumbered point-to-point links borrow an address, and link-local ones repeat by design.
    assert!(!has_duplicate(&same_addresses("10.255.0.1", 32, 3)));
    assert!(!has_duplicate(&same_addresses("fe80::1", 64, 3)));
    let mut observation = same_addresses("192.168.8.100", 24, 2);
    observation.here.links.last_mut().unwrap().up = false;
    assert!(!has_duplicate(&observation));
}

/// Returns an observation with a program whose second subflow, from `local`, gets no replies.
fn silent_program_subflow(local: &str, state: &str) -> Observation {
    let mut observation = healthy();
    let mut silent = subflow(local, false);
    silent.tcp = TcpStats { unacked: 1, backoff: 5, silent_ms: 9_000, ..silent.tcp };
    silent.state = state.to_owned();
    observation.programs = Some(vec![ProgramSocket {
        id: Some(7),
        name: "backup".to_owned(),
        role: SocketRole::Connected,
        local: "10.0.1.1:40000".parse().unwrap(),
        remote: TARGET.parse().unwrap(),
        speaks: SocketProtocol::Multipath,
        subflows: vec![subflow("10.0.1.1", true), subflow("10.0.2.1", false), silent],
        sender: None,
    }]);
    observation
}

#[test]
fn a_subflow_that_is_being_closed_is_not_a_dead_path() {
    // The address was removed, or was removed and assigned again.
    for local in ["10.0.7.7", "10.0.2.1"] {
        for state in ["fin-wait-1", "fin-wait-2", "closing", "last-ack", "time-wait"] {
            let report = diagnose(&silent_program_subflow(local, state));
            assert!(report.findings.is_empty(), "{state}: {report:?}");
            assert_eq!(report.verdict, Health::Healthy, "{report:?}");
        }
        let report = diagnose(&silent_program_subflow(local, "established"));
        assert_eq!(report.findings.len(), 1, "{report:?}");
    }
    // The test connection itself lost an address meanwhile.
    for state in ["fin-wait-1", "closing"] {
        let mut observation = healthy();
        let closing = &mut observation.trial.as_mut().unwrap().subflows[1];
        closing.state = state.to_owned();
        (closing.tcp.unacked, closing.tcp.backoff, closing.tcp.silent_ms) = (1, 4, 2_000);
        let causes: Vec<_> =
            diagnose(&observation).findings.iter().map(|finding| finding.cause).collect();
        assert!(!causes.contains(&Cause::PathSilent), "{causes:?}");
    }
}

#[test]
fn an_established_subflow_without_its_address_is_not_a_link_that_is_down() {
    let report = diagnose(&silent_program_subflow("10.0.7.7", "established"));
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Cause::EndpointAddressMissing, "{finding:?}");
    assert!(finding.sentence.contains("no longer has its address 10.0.7.7"), "{finding:?}");
}

#[test]
fn a_path_that_refuses_plain_tcp_as_well_needs_no_rule_for_mptcp() {
    for (plain_outcome, cause) in
        [(ConnectOutcome::Refused, "path-refused"), (ConnectOutcome::Connected, "join-reset")]
    {
        for events in [true, false] {
            let report = diagnose_one_path(|_, trial| {
                trial.events = events.then(|| vec![close_event(Some(libc::ECONNREFUSED))]);
                trial.counters = counters(&["MPJoinSynTx"]);
                let first = ip("10.0.1.1");
                trial
                    .controls
                    .push(PlainTcpCheck { local: first, ..plain_check(ConnectOutcome::Connected) });
                trial.controls.push(plain_check(plain_outcome));
            });
            let finding = &report.findings[0];
            assert_eq!(finding.cause.id(), cause, "{finding:?}");
            let hint = finding.hint.as_deref().unwrap();
            assert_eq!(hint.contains("MP_JOIN"), cause == "join-reset", "{hint}");
        }
    }
}

/// Diagnoses a second path on which a SYN got no answer, after connections from 16 ports.
fn diagnose_ports(answered: u32, late: u32, lost_packets: u32) -> Diagnosis {
    diagnose_one_path(|_, trial| {
        trial.subflows.push(unanswered_subflow());
        trial.controls.push(PlainTcpCheck {
            port_attempts: 16,
            ports_answered: answered,
            ports_answered_late: late,
            packets: 40,
            resent: lost_packets,
            ..plain_check(ConnectOutcome::Connected)
        });
    })
}

#[test]
fn connections_that_pass_or_fail_by_their_ports_show_a_silent_parallel_link() {
    let report = diagnose_ports(9, 0, 0);
    let (cause, _) = first_cause(&report);
    assert_eq!(cause, Cause::ParallelLinkSilent);
    let evidence = "of 16 connections from different ports, 9 were answered at once, and 7 never";
    assert!(report.findings[0].evidence.iter().any(|text| text == evidence), "{report:?}");
    // All ports agree, too few differ, a retransmission was answered, or packets were lost.
    for (answered, late, lost_packets) in [(16, 0, 0), (13, 0, 0), (9, 1, 0), (9, 0, 1)] {
        let report = diagnose_ports(answered, late, lost_packets);
        assert_eq!(first_cause(&report).0, Cause::JoinDropped, "{answered} {late} {lost_packets}");
    }
}

#[test]
fn an_endpoint_on_a_foreign_interface_is_named_unless_its_subflow_works() {
    let bound_to = |link, owner| {
        move |observation: &mut Observation, _: &mut TestConnection| {
            observation.here.endpoints[0].link = Some(link);
            observation.here.addresses[1].link = owner;
        }
    };
    let report = diagnose_one_path(bound_to(2, 3));
    assert_eq!(first_cause(&report), (Cause::EndpointWrongInterface, Confidence::Certain));
    let fix = &report.findings[0].fix;
    assert_eq!(fix[1], "ip mptcp endpoint add 10.0.2.1 dev b subflow");
    let has_cause = |report: &Diagnosis| {
        report.findings.iter().any(|finding| finding.cause == Cause::EndpointWrongInterface)
    };
    // Bound to its own interface, and an address of the loopback interface.
    assert!(!has_cause(&diagnose_one_path(bound_to(3, 3))));
    let on_loopback = diagnose_one_path(|observation, trial| {
        bound_to(2, 3)(observation, trial);
        observation.here.links[1].loopback = true;
    });
    assert!(!has_cause(&on_loopback));
    let mut working = healthy();
    working.here.endpoints[0].link = Some(2);
    assert!(!has_cause(&diagnose(&working)));
}

#[test]
fn an_address_that_disappears_during_the_test_is_named() {
    let report = diagnose_one_path(|observation, _| {
        observation.after.as_mut().unwrap().addresses.pop();
    });
    assert_eq!(first_cause(&report).0, Cause::EndpointAddressMissing);
    let claim = report.claims.iter().find(|claim| claim.cause == Cause::EndpointAddressMissing);
    assert_eq!(claim.unwrap().state, crate::ClaimState::Shown);
}

#[test]
fn two_addresses_of_one_interface_are_one_path() {
    let mut observation = healthy();
    observation.here.addresses[1].link = 2;
    observation.here.links.pop();
    let report = diagnose(&observation);
    assert_eq!((report.verdict, report.reason.as_deref()), (Health::OnePath, Some("a")));
}

#[test]
fn data_that_arrive_over_another_interface_are_not_healthy() {
    let mut observation = healthy();
    let after = observation.after.as_mut().unwrap();
    (after.links[0].rx_bytes, after.links[1].rx_bytes) = (1_000_000, 600);
    let report = diagnose(&observation);
    assert_eq!(report.verdict, Health::Undetermined);
    assert!(report.reason.unwrap().starts_with("the subflows of b received 500 kB"));
    let after = observation.after.as_mut().unwrap();
    (after.links[0].rx_bytes, after.links[1].rx_bytes) = (500_000, 500_000);
    assert_eq!(diagnose(&observation).verdict, Health::Healthy);
}
