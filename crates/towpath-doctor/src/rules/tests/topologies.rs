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
