//! Unusual but correct networks: tunnels, slow and shared links, several subflows of one address.

use super::*;

#[test]
fn a_point_to_point_interface_needs_no_gateway() {
    let diagnose_tunnel = |flags: i32| {
        diagnose_one_path(|observation, trial| {
            observation.here.links[1].flags = flags as u32;
            for lookup in observation
                .route_lookups
                .iter_mut()
                .filter(|lookup| lookup.from == Some(ip("10.0.2.1")))
            {
                lookup.gateway = None;
            }
            trial.events = Some(vec![close_event(Some(libc::ENETUNREACH))]);
            trial.controls.push(plain_check(ConnectOutcome::Failed(libc::ENETUNREACH)));
        })
    };
    assert_eq!(first_cause(&diagnose_tunnel(0)).0, Cause::NoGatewayOnInterface);
    for flag in [libc::IFF_POINTOPOINT, libc::IFF_NOARP] {
        assert_eq!(first_cause(&diagnose_tunnel(flag)).0, Cause::JoinUnreachable, "{flag}");
    }
}

#[test]
fn retransmissions_on_a_path_that_loses_no_spaced_packets_are_not_a_doubt() {
    let verdict = |packets, resent| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        trial.subflows[1].tcp.retransmissions = 40;
        let check = plain_check(ConnectOutcome::Connected);
        trial.controls.push(PlainTcpCheck { packets, resent, answers: packets, ..check });
        diagnose(&observation).verdict
    };
    assert_eq!(verdict(40, 0), Health::Healthy);
    assert_eq!(verdict(40, 1), Health::Undetermined);
    assert_eq!(verdict(5, 0), Health::Undetermined);
}

#[test]
fn an_idle_second_subflow_of_an_address_that_carries_data_is_not_a_doubt() {
    let mut observation = healthy();
    let trial = observation.trial.as_mut().unwrap();
    let mut announced = subflow("10.0.2.1", false);
    announced.remote = "10.9.0.2:5210".parse().unwrap();
    (announced.tcp.bytes_acked, announced.tcp.bytes_received) = (0, 0);
    trial.subflows.push(announced);
    assert_eq!(diagnose(&observation).verdict, Health::Healthy);
    let trial = observation.trial.as_mut().unwrap();
    (trial.subflows[1].tcp.bytes_acked, trial.subflows[1].tcp.bytes_received) = (0, 0);
    let report = diagnose(&observation);
    assert_eq!(report.verdict, Health::Undetermined);
    let reason = report.reason.unwrap();
    assert_eq!(reason.matches(" b ").count(), 1, "{reason}");
}

#[test]
fn a_path_without_plain_tcp_explains_more_than_a_limit_of_the_peer() {
    let report = diagnose_one_path(|_, trial| {
        let failed = ObservedSubflow { gone: true, ..unanswered_subflow() };
        trial.subflows.extend([subflow("10.0.3.1", false), failed]);
        trial.events = None;
        trial.counters = counters(&["MPJoinSynTx", "MPJoinSynAckRx"]);
        let refused = Some(IcmpRefusal { router: ip("10.5.0.1"), kind: 3, code: 1 });
        let outcome = ConnectOutcome::Failed(libc::EHOSTUNREACH);
        trial.controls.push(PlainTcpCheck { refused, ..plain_check(outcome) });
    });
    assert_eq!(first_cause(&report).0, Cause::JoinUnreachable, "{report:?}");
}

#[test]
fn an_unknown_announced_address_is_not_a_firewall_on_the_path_to_the_target() {
    let report = diagnose_one_path(|observation, trial| {
        observation.here.endpoints.clear();
        observation.after = Some(observation.here.clone());
        trial.events = None;
        trial.counters = counters(&["AddAddr", "MPJoinSynTx"]);
        trial.counters.insert("Icmp.InDestUnreachs".to_owned(), 1);
        let check = plain_check(ConnectOutcome::Connected);
        trial.controls.push(PlainTcpCheck { local: ip("10.0.1.1"), ..check });
    });
    let expected = (Cause::AnnouncedAddressUnreachable, Confidence::Likely);
    assert_eq!(first_cause(&report), expected, "{report:?}");
}

#[test]
fn one_late_handshake_does_not_make_a_path_slow() {
    let slow = |handshake_us, subflow_us| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        trial.subflows[1].tcp.srtt_us = subflow_us;
        let check = plain_check(ConnectOutcome::Connected);
        trial.controls.push(PlainTcpCheck { min_rtt_us: handshake_us, ..check });
        diagnose(&observation).findings.iter().any(|it| it.cause == Cause::PathMuchSlower)
    };
    assert!(slow(411_000, 400_000));
    assert!(!slow(411_000, 80_000) && !slow(80_000, 411_000));
}

#[test]
fn data_on_a_path_without_new_connections_need_no_timeout_to_be_a_finding() {
    for (unacked, outcome, expected) in [
        (5, ConnectOutcome::Silent, Some(Cause::PathSilent)),
        (5, ConnectOutcome::Connected, None),
        (0, ConnectOutcome::Silent, None),
    ] {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        (trial.subflows[1].tcp.unacked, trial.subflows[1].tcp.silent_ms) = (unacked, 300);
        trial.controls.push(plain_check(outcome));
        let cause = diagnose(&observation).findings.first().map(|finding| finding.cause);
        assert_eq!(cause, expected, "{unacked} {outcome:?}");
    }
}

#[test]
fn on_a_long_path_one_lost_reply_delays_many_packets() {
    let is_lossy = |min_rtt_us| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        (trial.subflows[1].tcp.retransmissions, trial.subflows[1].tcp.out_of_order) = (3, 60);
        let check = plain_check(ConnectOutcome::Connected);
        let (packets, answers, behind_gap) = (36, 27, 6);
        trial.controls.push(PlainTcpCheck { packets, answers, behind_gap, min_rtt_us, ..check });
        diagnose(&observation).findings.iter().any(|it| it.cause == Cause::PathLossy)
    };
    assert!(is_lossy(10_000) && !is_lossy(90_000));
}

#[test]
fn a_large_transfer_with_few_losses_contradicts_a_lossy_path() {
    let is_lossy = |retransmissions| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        trial.subflows[1].tcp.retransmissions = retransmissions;
        let check = plain_check(ConnectOutcome::Connected);
        trial.controls.push(PlainTcpCheck { packets: 40, resent: 3, answers: 24, ..check });
        diagnose(&observation).findings.iter().any(|it| it.cause == Cause::PathLossy)
    };
    assert!(!is_lossy(4) && is_lossy(60));
}

#[test]
fn data_that_are_lost_where_new_connections_pass_show_lost_large_packets() {
    let first_finding = |bytes_acked| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        let tcp = &mut trial.subflows[1].tcp;
        (tcp.unacked, tcp.backoff, tcp.silent_ms, tcp.bytes_acked) = (5, 2, 900, bytes_acked);
        trial.controls.push(plain_check(ConnectOutcome::Connected));
        diagnose(&observation).findings.first().map(|it| (it.cause, it.confidence))
    };
    assert_eq!(first_finding(1), Some((Cause::PathMtuHole, Confidence::Likely)));
    assert_eq!(first_finding(60_000), None, "large packets have passed");
}

#[test]
fn a_subflow_to_a_port_of_its_own_that_ends_with_the_connection_is_not_a_finding() {
    for (remote, has_finding) in [("10.9.0.2:4001", false), ("10.9.0.2:5210", true)] {
        let report = diagnose_one_path(|observation, trial| {
            observation.here.endpoints.clear();
            observation.after = Some(observation.here.clone());
            trial.closed_by_peer = true;
            let remote = remote.parse().unwrap();
            let local = "10.0.1.1";
            let ended = ObservedSubflow { gone: true, established: false, ..subflow(local, false) };
            trial.subflows.push(ObservedSubflow { remote, ..ended });
            let check = plain_check(ConnectOutcome::Refused);
            trial.controls.push(PlainTcpCheck { local: ip(local), remote, ..check });
        });
        let causes: Vec<_> = report.findings.iter().map(|finding| finding.cause).collect();
        let is_listed = causes.contains(&Cause::AnnouncedAddressUnreachable);
        assert_eq!(is_listed, has_finding, "{remote}: {causes:?}");
    }
}

#[test]
fn a_silent_subflow_next_to_a_new_connection_that_passes_shows_dropped_state() {
    let causes = |backoff, silent_ms, change: fn(&mut PlainTcpCheck)| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        let tcp = &mut trial.subflows[1].tcp;
        (tcp.unacked, tcp.backoff, tcp.silent_ms, tcp.bytes_acked) =
            (23, backoff, silent_ms, 16_385);
        (tcp.retransmissions, tcp.bytes_received) = (3, 1);
        let mut check = plain_check(ConnectOutcome::Connected);
        (check.small, check.large) = (Some(true), Some(true));
        (check.packets, check.port_attempts, check.ports_answered) = (40, 16, 16);
        change(&mut check);
        trial.controls.push(check);
        let findings = diagnose(&observation).findings;
        findings.into_iter().map(|finding| (finding.cause, finding.sentence)).collect::<Vec<_>>()
    };
    let [(cause, sentence)] = &causes(2, 1_312, |_| {})[..] else { panic!("one finding") };
    assert_eq!(*cause, Cause::NatTimeout);
    assert!(sentence.starts_with("b (10.0.2.1) -> 10.9.0.1 stopped answering after 16 kB, but"));
    assert_eq!(causes(1, 1_312, |_| {}), [], "one timeout");
    assert_eq!(causes(2, 56, |_| {}), [], "an answer has just arrived");
    let slow: [fn(&mut PlainTcpCheck); 5] = [
        |check| check.resent = 1,
        |check| check.ports_answered_late = 1,
        |check| check.ports_answered = 15,
        |check| check.min_rtt_us = 250_000,
        |check| (check.large, check.small_retry) = (Some(false), Some(false)),
    ];
    for change in slow {
        let found = causes(2, 1_312, change);
        assert!(found.iter().all(|(cause, _)| *cause != Cause::NatTimeout), "{found:?}");
    }
}

#[test]
fn a_throttled_path_is_not_an_mtu_hole() {
    let has_hole = |change: fn(&mut TcpStats, &mut PlainTcpCheck)| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        let mut check = plain_check(ConnectOutcome::Connected);
        (check.small, check.large, check.min_rtt_us) = (Some(true), Some(false), 169_000);
        let tcp = &mut trial.subflows[1].tcp;
        (tcp.unacked, tcp.backoff, tcp.silent_ms) = (10, 2, 560);
        (tcp.bytes_acked, tcp.bytes_received) = (2_841, 8_522);
        change(tcp, &mut check);
        trial.controls.push(check);
        !diagnose(&observation).findings.is_empty()
    };
    assert!(has_hole(|_, check| check.small_retry = Some(true)));
    assert!(!has_hole(|_, check| check.small_retry = Some(false)));
    assert!(!has_hole(|_, check| check.ports_answered_late = 15));
    assert!(!has_hole(|tcp, _| (tcp.backoff, tcp.silent_ms) = (0, 56)));
}

#[test]
fn the_smallest_round_trip_time_decides_if_a_path_is_slow() {
    let is_slow = |min_rtt_us| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        (trial.subflows[1].tcp.srtt_us, trial.subflows[1].tcp.min_rtt_us) = (410_000, min_rtt_us);
        let check = plain_check(ConnectOutcome::Connected);
        trial.controls.push(PlainTcpCheck { min_rtt_us: 290_000, ..check });
        diagnose(&observation).findings.iter().any(|it| it.cause == Cause::PathMuchSlower)
    };
    assert!(is_slow(0) && is_slow(290_000) && !is_slow(900));
}

/// Returns a test of plain TCP whose packets this host itself reports as undeliverable.
fn unresolved_check() -> PlainTcpCheck {
    let refused = Some(IcmpRefusal { router: ip("10.0.2.1"), kind: 3, code: 1 });
    let outcome = ConnectOutcome::Failed(libc::EHOSTUNREACH);
    PlainTcpCheck { refused, ..plain_check(outcome) }
}

#[test]
fn a_gateway_that_does_not_answer_is_named_in_every_observation_of_it() {
    let expected = "the gateway 10.0.2.254 of b does not answer (ARP)";
    for (error, check) in [
        (Some(libc::EHOSTUNREACH), unresolved_check()),
        (Some(libc::EHOSTUNREACH), plain_check(ConnectOutcome::Silent)),
        (None, unresolved_check()),
    ] {
        let report = diagnose_one_path(|_, trial| {
            trial.events = Some(vec![close_event(error)]);
            trial.controls.push(check);
        });
        let finding = &report.findings[0];
        assert_eq!(finding.cause, Cause::PathSilent, "{finding:?}");
        assert!(finding.sentence.ends_with(expected), "{finding:?}");
    }
    let report = diagnose_one_path(|_, trial| {
        trial.subflows.push(unanswered_subflow());
        trial.controls.push(plain_check(ConnectOutcome::Silent));
    });
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Cause::PathSilent);
    assert!(!finding.sentence.contains("gateway"), "nothing shows it: {finding:?}");
}

#[test]
fn a_server_behind_a_silent_gateway_is_not_down() {
    let mut observation = healthy();
    let trial = observation.trial.as_mut().unwrap();
    trial.subflows.clear();
    for attempt in &mut trial.attempts {
        attempt.outcome = ConnectOutcome::Silent;
    }
    let refused = Some(IcmpRefusal { router: ip("10.0.1.1"), kind: 3, code: 1 });
    trial.controls = vec![PlainTcpCheck { local: ip("10.0.1.1"), refused, ..unresolved_check() }];
    let report = diagnose(&observation);
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Cause::RemoteSilent);
    assert!(finding.sentence.contains("the gateway 10.0.1.254 of a does not answer (ARP)"));
}

#[test]
fn answers_that_this_host_resets_are_late_and_not_missing() {
    let cause = |resets| {
        let report = diagnose_one_path(|_, trial| {
            trial.subflows.push(unanswered_subflow());
            trial.counters.insert("Tcp.OutRsts".to_owned(), resets);
            let check = plain_check(ConnectOutcome::Silent);
            trial.controls.push(PlainTcpCheck { port_attempts: 16, ..check });
        });
        first_cause(&report)
    };
    assert_eq!(cause(9), (Cause::PathMuchSlower, Confidence::Likely));
    assert_eq!(cause(3), (Cause::PathSilent, Confidence::Certain));
}

#[test]
fn another_source_on_the_first_interface_may_have_a_gateway() {
    let mut observation = healthy();
    // The first route treats the server as a neighbour on `b`.
    let first = &mut observation.route_lookups[0];
    (first.link, first.gateway) = (Some(3), None);
    let trial = observation.trial.as_mut().unwrap();
    trial.subflows.clear();
    for attempt in &mut trial.attempts {
        attempt.outcome = ConnectOutcome::Silent;
    }
    let check = plain_check(ConnectOutcome::Connected);
    trial.controls = vec![PlainTcpCheck { local: ip("10.0.1.1"), ..check }, check];
    let report = diagnose(&observation);
    assert_eq!(first_cause(&report).0, Cause::FirstPathUnusable);
    let evidence = &report.findings[0].evidence;
    assert!(evidence.iter().any(|it| it.contains("as a neighbour on b")), "{evidence:?}");
}

#[test]
fn an_answer_within_the_round_trip_time_of_a_long_queue_is_not_silence() {
    let cause = |silent_ms| {
        let mut observation = healthy();
        let trial = observation.trial.as_mut().unwrap();
        let tcp = &mut trial.subflows[1].tcp;
        (tcp.srtt_us, tcp.unacked, tcp.silent_ms) = (400_000, 11, silent_ms);
        (tcp.retransmissions, tcp.min_rtt_us) = (11, 57);
        trial.controls.push(plain_check(ConnectOutcome::Silent));
        diagnose(&observation).findings.first().map(|finding| finding.cause)
    };
    assert_eq!(cause(140), None);
    assert_eq!(cause(1_700), Some(Cause::PathSilent));
}

#[test]
fn an_announced_address_that_this_host_has_as_well_is_named() {
    let mut observation = healthy();
    let own_bridge = AddressSnapshot { link: 3, address: ip("172.17.0.1"), prefix_length: 16 };
    observation.here.addresses.push(own_bridge);
    let trial = observation.trial.as_mut().unwrap();
    let mut refused = unanswered_subflow();
    (refused.remote, refused.gone) = ("172.17.0.1:5210".parse().unwrap(), true);
    trial.subflows.push(refused);
    let report = diagnose(&observation);
    assert_eq!(first_cause(&report).0, Cause::AnnouncedAddressPrivate);
    let sentence = &report.findings[0].sentence;
    assert!(
        sentence.contains("172.17.0.1, which is also an address of this host (b)"),
        "{sentence}"
    );
}

#[test]
fn a_server_on_this_host_has_no_broken_path() {
    let report = diagnose_one_path(|observation, trial| {
        let own = AddressSnapshot { link: 2, address: trial.target.ip(), prefix_length: 24 };
        observation.here.addresses.push(own);
        trial.subflows.push(unanswered_subflow());
    });
    assert_eq!((report.verdict, report.findings.len()), (Health::Undetermined, 0), "{report:?}");
    assert!(report.reason.unwrap().starts_with("the server is on this host"));
}
