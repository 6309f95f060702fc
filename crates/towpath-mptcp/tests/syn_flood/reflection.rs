//! Amplification: bytes that a server sends to addresses that have not answered.

use std::time::Duration;

use proptest::prelude::*;

use towpath_mptcp::stack::{Stack, StackConfig};

use crate::reflector::*;

fn victim() -> impl Strategy<Value = Victim> {
    (any::<bool>(), 0..VICTIMS, 1_000_u16..1_003).prop_map(|(ipv6, host, port)| Victim {
        ipv6,
        host,
        port,
    })
}

fn forged_segment() -> impl Strategy<Value = ForgedSegment> {
    let flags = prop_oneof![6 => Just(2_u8), 2 => Just(16), 1 => Just(18), 1 => any::<u8>()];
    let options = prop_oneof![
        Just(ForgedOptions::None),
        Just(ForgedOptions::Mss),
        Just(ForgedOptions::Usual),
        Just(ForgedOptions::Capable),
        Just(ForgedOptions::Join),
        Just(ForgedOptions::UnknownJoin),
        Just(ForgedOptions::Failure),
        Just(ForgedOptions::Dss),
    ];
    let numbers = (0_u32..3, prop_oneof![Just(0), any::<u32>()]);
    let bytes = prop_oneof![3 => Just(0), 1 => 0_u16..1_400];
    let port = prop_oneof![6 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    let parts = (victim(), flags, numbers, options, bytes, port);
    parts.prop_map(|(source, flags, (seq, ack), options, bytes, port)| ForgedSegment {
        source,
        flags,
        seq,
        ack,
        options,
        bytes,
        port,
    })
}

fn step() -> impl Strategy<Value = AttackStep> {
    let wait = prop_oneof![3 => 0_u32..50, 3 => 0_u32..3_000, 1 => 0_u32..70_000];
    prop_oneof![
        4 => wait.prop_map(AttackStep::Wait),
        8 => forged_segment().prop_map(AttackStep::Forge),
        1 => Just(AttackStep::Connect),
        1 => Just(AttackStep::ConnectToAttacker),
        5 => (0_u8..4, 0_u8..12, victim()).prop_map(|(connection, address_id, victim)| {
            AttackStep::Announce { connection, address_id, victim }
        }),
        2 => (0_u8..4, 1_u8..12).prop_map(|(connection, address_id)| {
            AttackStep::Withdraw { connection, address_id }
        }),
        1 => (0_u8..4, 1_u16..4_000).prop_map(|(connection, bytes)| {
            AttackStep::Write { connection, bytes }
        }),
        1 => (0_u8..3).prop_map(|kind| AttackStep::Icmp { kind }),
    ]
}

/// Number of random sequences: the attack tests run many.
fn case_count() -> u32 {
    match std::env::var("TOWPATH_ATTACKS").as_deref() {
        Ok("whole") => 10_000,
        _ => 100,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count()))]

    #[test]
    fn no_sequence_of_packets_is_amplified(
        steps in proptest::collection::vec(step(), 1..60),
        backlog in 0_usize..20,
        path_manager in prop_oneof![Just("default"), Just("rejoin"), Just("fullmesh")],
    ) {
        let mut attack = Reflector::new(backlog, path_manager);
        attack.step(AttackStep::Connect);
        for step in steps {
            attack.step(step);
            prop_assert_eq!(attack.verify(), Ok(()));
        }
        attack.wait(Duration::from_secs(300));
        prop_assert_eq!(attack.verify(), Ok(()));
    }
}

const VICTIM: Victim = Victim { ipv6: false, host: 0, port: 1_000 };

fn forged_syn(options: ForgedOptions, ipv6: bool) -> AttackStep {
    let source = Victim { ipv6, ..VICTIM };
    let (flags, seq, ack, bytes, port) = (2, 1, 0, 0, 0);
    AttackStep::Forge(ForgedSegment { source, flags, seq, ack, options, bytes, port })
}

const fn announce(connection: u8, address_id: u8, port: u16) -> AttackStep {
    AttackStep::Announce { connection, address_id, victim: Victim { port, ..VICTIM } }
}

#[test]
fn a_forged_syn_gets_two_or_three_replies() {
    let cases = [
        (ForgedOptions::None, (40, 2 * 44), (60, 2 * 64)),
        (ForgedOptions::Mss, (44, 3 * 44), (64, 3 * 64)),
        (ForgedOptions::Usual, (60, 3 * 60), (80, 3 * 80)),
        (ForgedOptions::Capable, (64, 2 * 72), (84, 2 * 92)),
    ];
    for (options, ipv4, ipv6) in cases {
        for (is_ipv6, expected) in [(false, ipv4), (true, ipv6)] {
            let mut attack = Reflector::new(128, "default");
            attack.step(forged_syn(options, is_ipv6));
            attack.wait(Duration::from_secs(300));
            assert_eq!(attack.forged_bytes(), expected, "{options:?}");
        }
    }
}

#[test]
fn a_cookie_a_join_and_a_reset_are_sent_once() {
    let cases = [
        (0, ForgedOptions::Capable, (64, 72)),
        (0, ForgedOptions::None, (40, 44)),
        (128, ForgedOptions::Join, (72, 76)),
        (128, ForgedOptions::UnknownJoin, (72, 56)),
    ];
    for (backlog, options, expected) in cases {
        let mut attack = Reflector::new(backlog, "default");
        attack.step(AttackStep::Connect);
        attack.step(forged_syn(options, false));
        attack.wait(Duration::from_secs(300));
        assert_eq!(attack.forged_bytes(), expected, "{options:?}");
    }
}

#[test]
fn an_announced_address_gets_three_syns() {
    for path_manager in ["default", "rejoin", "fullmesh"] {
        let mut attack = Reflector::new(128, path_manager);
        attack.step(AttackStep::ConnectToAttacker);
        attack.step(announce(0, 3, 1_000));
        attack.wait(Duration::from_secs(3_600));
        assert_eq!(attack.announced_bytes(), (72, 3 * 72));
    }
}

#[test]
fn an_address_announced_and_withdrawn_repeatedly_gets_few_syns() {
    let mut attack = Reflector::new(128, "default");
    attack.step(AttackStep::Connect);
    for port in 0..600 {
        attack.step(announce(0, 3, port));
        attack.step(AttackStep::Withdraw { connection: 0, address_id: 3 });
        attack.step(AttackStep::Wait(100));
    }
    assert_eq!(attack.syn_count(), 8 + 60 / 8);
}

#[test]
fn an_address_announced_on_100_connections_gets_one_syn_in_eight_seconds() {
    let mut attack = Reflector::new(128, "rejoin");
    for connection in 0..100 {
        attack.step(AttackStep::Connect);
        attack.step(announce(connection, 3, 1_000));
    }
    attack.wait(Duration::from_secs(64));
    assert!((9..=8 + 8).contains(&attack.syn_count()), "{} SYNs", attack.syn_count());
    attack.wait(Duration::from_secs(3_600));
    assert_eq!(attack.verify(), Ok(()));
}

/// Regression: echoes of ADD_ADDR that could not be sent yet had no limit.
#[test]
fn regression_echoes_of_announcements_that_wait_are_bounded() {
    let mut attack = Reflector::new(128, "default");
    attack.step(AttackStep::Connect);
    attack.driver_busy = true;
    for port in 0..1_000 {
        attack.step(announce(0, 3, port));
    }
    attack.driver_busy = false;
    attack.exchange();
    attack.wait(Duration::from_secs(300));
    assert_eq!(attack.echoes, 32);
}

#[test]
fn without_protection_packets_are_amplified() {
    let unprotected = || Reflector::with_server(Stack::new(StackConfig::default()), "rejoin");
    let mut attack = unprotected();
    attack.step(forged_syn(ForgedOptions::Capable, false));
    attack.wait(Duration::from_secs(300));
    assert_eq!(attack.forged_bytes(), (64, 7 * 72), "otherwise these tests show nothing");
    let mut attack = unprotected();
    attack.step(AttackStep::Connect);
    attack.step(announce(0, 3, 1_000));
    attack.wait(Duration::from_secs(3_600));
    assert!(attack.syn_count() > 100, "{} SYNs", attack.syn_count());
}
