//! Amplification: bytes that a server sends to addresses that have not answered.

use std::time::Duration;

use proptest::prelude::*;
use towpath_mptcp::stack::{Stack, StackConfig};

use crate::reflector::*;

/// Bytes that an address gets for each byte that caused them, until it has answered.
const FACTOR: u64 = 3;

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
            prop_assert_eq!(attack.verify(FACTOR), Ok(()));
        }
        attack.wait(Duration::from_secs(300));
        prop_assert_eq!(attack.verify(FACTOR), Ok(()));
    }
}

fn measure(name: &str, attack: &Reflector) {
    let report = |kind: &str, (received, sent): (u64, u64)| {
        let ratio = sent as f64 / received as f64;
        println!("{name}: {kind}: {sent} bytes out for {received} in: {ratio:.2}");
    };
    report("forged", attack.forged_bytes());
    let syns: Vec<usize> = attack.syns.values().map(Vec::len).collect();
    let last = attack.syns.values().flatten().max();
    report(&format!("announced, SYNs {syns:?} until {last:?}"), attack.announced_bytes());
}

const FORGED_SYN: ForgedSegment = ForgedSegment {
    source: Victim { ipv6: false, host: 0, port: 1_000 },
    flags: 2,
    seq: 1,
    ack: 0,
    options: ForgedOptions::None,
    bytes: 0,
    port: 0,
};

#[test]
fn measured_ratios() {
    let options = [
        ForgedOptions::None,
        ForgedOptions::Mss,
        ForgedOptions::Usual,
        ForgedOptions::Capable,
        ForgedOptions::Join,
        ForgedOptions::UnknownJoin,
    ];
    for (ipv6, backlog) in [(false, 128), (true, 128), (false, 0)] {
        for options in options {
            let mut attack = Reflector::new(128, "default");
            if options == ForgedOptions::Join {
                attack.step(AttackStep::Connect);
            }
            if backlog == 0 {
                attack = Reflector::new(0, "default");
            }
            let source = Victim { ipv6, ..FORGED_SYN.source };
            attack.step(AttackStep::Forge(ForgedSegment { source, options, ..FORGED_SYN }));
            attack.wait(Duration::from_secs(300));
            measure(&format!("SYN ipv6={ipv6} backlog={backlog} {options:?}"), &attack);
        }
    }
    for (flags, port) in [(16, 0), (16, 2), (2, 2), (18, 0), (4, 0), (1, 0)] {
        let mut attack = Reflector::new(128, "default");
        attack.step(AttackStep::Forge(ForgedSegment { flags, port, ..FORGED_SYN }));
        attack.wait(Duration::from_secs(300));
        measure(&format!("flags {flags} to {port}"), &attack);
    }
    for path_manager in ["default", "rejoin", "fullmesh"] {
        let mut attack = Reflector::new(128, path_manager);
        attack.step(AttackStep::Connect);
        attack.step(AttackStep::Announce {
            connection: 0,
            address_id: 3,
            victim: FORGED_SYN.source,
        });
        attack.wait(Duration::from_secs(3_600));
        measure(&format!("ADD_ADDR {path_manager}"), &attack);

        let mut attack = Reflector::new(128, path_manager);
        attack.step(AttackStep::Connect);
        for port in 0..200 {
            let victim = Victim { port: 1_000 + port, ..FORGED_SYN.source };
            attack.step(AttackStep::Announce { connection: 0, address_id: 1 + port as u8, victim });
        }
        attack.wait(Duration::from_secs(3_600));
        measure(&format!("200 ADD_ADDR {path_manager}"), &attack);

        let mut attack = Reflector::new(128, path_manager);
        attack.step(AttackStep::Connect);
        for round in 0..600 {
            let victim = Victim { port: 1_000 + round, ..FORGED_SYN.source };
            attack.step(AttackStep::Announce { connection: 0, address_id: 3, victim });
            attack.step(AttackStep::Withdraw { connection: 0, address_id: 3 });
            attack.step(AttackStep::Wait(100));
        }
        attack.wait(Duration::from_secs(600));
        measure(&format!("600 ADD_ADDR and REMOVE_ADDR {path_manager}"), &attack);

        let mut attack = Reflector::new(128, path_manager);
        for connection in 0..100 {
            attack.step(AttackStep::Connect);
            attack.step(AttackStep::Announce {
                connection,
                address_id: 3,
                victim: FORGED_SYN.source,
            });
        }
        attack.wait(Duration::from_secs(3_600));
        measure(&format!("100 connections {path_manager}"), &attack);
    }
    let _ = Stack::new(StackConfig::default());
}
