//! Transfers over good and bad paths: each byte arrives once, in order.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{FallbackReason, StackNotice};

use crate::network::{PathDirection, TestNetwork, pattern};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn both(world: &mut TestNetwork, bytes: usize) {
    let [a, b] = [pattern(bytes, 1), pattern(bytes, 2)];
    world.ends[0].send(a.clone());
    world.ends[1].send(b.clone());
    world.run(seconds(600), TestNetwork::finished);
    for (end, sent) in [(&world.ends[1], &a), (&world.ends[0], &b)] {
        assert_eq!(
            end.received.len(),
            sent.len(),
            "{:?} {:?} at {}",
            end.closed,
            end.notices,
            world.now
        );
        assert!(end.received == sent[..], "other bytes");
        assert_eq!(end.closed, Some(Ok(())));
    }
}

fn tcp() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

#[test]
fn plain_tcp_carries_data_in_both_directions() {
    let mut world = TestNetwork::new(1, vec![[PathDirection::default(); 2]], [tcp(), tcp()]);
    both(&mut world, 1_000_000);
    assert!(!world.status(0).multipath);
}

#[test]
fn one_path_is_multipath_tcp_without_fallback() {
    let configs = [ConnectionConfig::linux(), ConnectionConfig::linux()];
    let mut world = TestNetwork::new(1, vec![[PathDirection::default(); 2]], configs);
    both(&mut world, 1_000_000);
    for host in 0..2 {
        assert!(world.status(host).multipath, "{:?}", world.status(host));
    }
}

#[test]
fn two_paths_are_both_used() {
    for config in [ConnectionConfig::linux(), ConnectionConfig::ideal()] {
        let configs = [config.clone(), config];
        let mut world = TestNetwork::new(1, vec![[PathDirection::default(); 2]; 2], configs);
        both(&mut world, 8_000_000);
        let status = world.status(0);
        let carried: Vec<u64> = status.subflows.iter().map(|flow| flow.tcp.acked_bytes).collect();
        assert!(
            carried.len() == 2 && carried.iter().all(|bytes| *bytes > 2_000_000),
            "{carried:?}"
        );
    }
}

#[test]
fn a_peer_without_multipath_tcp_gets_tcp() {
    let mut world = TestNetwork::new(
        1,
        vec![[PathDirection::default(); 2]],
        [ConnectionConfig::linux(), tcp()],
    );
    both(&mut world, 100_000);
    assert_eq!(world.status(0).fallback, Some(FallbackReason::NoCapableInSynAck));
    let mut world = TestNetwork::new(
        1,
        vec![[PathDirection::default(); 2]],
        [tcp(), ConnectionConfig::linux()],
    );
    both(&mut world, 100_000);
    assert_eq!(world.status(1).fallback, None, "nobody asked for it");
}

#[test]
fn checksums_are_used_if_either_side_asks() {
    let with = || ConnectionConfig { checksum: true, ..ConnectionConfig::linux() };
    for configs in
        [[with(), ConnectionConfig::linux()], [ConnectionConfig::linux(), with()], [with(), with()]]
    {
        let mut world = TestNetwork::new(1, vec![[PathDirection::default(); 2]; 2], configs);
        both(&mut world, 1_000_000);
        assert!(world.status(0).checksum && world.status(1).checksum);
    }
}

#[test]
fn lossy_reordering_paths_lose_nothing() {
    for seed in 0..30 {
        let bad = PathDirection {
            loss: 20,
            duplication: 10,
            jitter: Duration::from_millis(seed % 7),
            delay: Duration::from_millis(1 + seed % 30),
            ..PathDirection::default()
        };
        let paths = 1 + seed as usize % 3;
        let config =
            if seed % 2 == 0 { ConnectionConfig::linux() } else { ConnectionConfig::ideal() };
        let config = ConnectionConfig { checksum: seed % 5 == 0, ..config };
        let mut world = TestNetwork::new(seed, vec![[bad; 2]; paths], [config.clone(), config]);
        both(&mut world, 300_000);
        let notices = &world.ends[0].notices;
        assert!(!notices.iter().any(|notice| matches!(notice, StackNotice::Fallback(_))), "{seed}");
    }
}

#[test]
fn a_path_that_dies_in_silence_is_survived() {
    for config in [ConnectionConfig::linux(), ConnectionConfig::ideal()] {
        let mut world =
            TestNetwork::new(3, vec![[PathDirection::default(); 2]; 2], [config.clone(), config]);
        let sent = pattern(8_000_000, 1);
        world.ends[0].send(sent.clone());
        world.ends[1].finish();
        world.run(seconds(1), |_| false);
        world.lines[0] = [PathDirection { up: false, ..PathDirection::default() }; 2];
        world.run(seconds(120), TestNetwork::finished);
        assert_eq!(world.ends[1].received.len(), sent.len(), "{} {:?}", world.now, world.status(0));
        assert!(world.ends[1].received == sent[..]);
    }
}
