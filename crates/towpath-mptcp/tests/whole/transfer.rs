//! Transfers over clean and bad paths: every byte, once, in order.

use std::time::Duration;

use towpath_mptcp::connection::Config;
use towpath_mptcp::stack::{Fallback, Notice};

use crate::world::{Line, World, pattern};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn both(world: &mut World, bytes: usize) {
    let [a, b] = [pattern(bytes, 1), pattern(bytes, 2)];
    world.ends[0].send(a.clone());
    world.ends[1].send(b.clone());
    world.run(seconds(600), World::finished);
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

fn tcp() -> Config {
    Config { multipath: false, ..Config::linux() }
}

#[test]
fn plain_tcp_carries_data_both_ways() {
    let mut world = World::new(1, vec![[Line::default(); 2]], [tcp(), tcp()]);
    both(&mut world, 1_000_000);
    assert!(!world.status(0).multipath);
}

#[test]
fn one_path_is_multipath_tcp_without_fallback() {
    let configs = [Config::linux(), Config::linux()];
    let mut world = World::new(1, vec![[Line::default(); 2]], configs);
    both(&mut world, 1_000_000);
    for host in 0..2 {
        assert!(world.status(host).multipath, "{:?}", world.status(host));
    }
}

#[test]
fn two_paths_are_both_used() {
    for config in [Config::linux(), Config::ideal()] {
        let configs = [config.clone(), config];
        let mut world = World::new(1, vec![[Line::default(); 2]; 2], configs);
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
    let mut world = World::new(1, vec![[Line::default(); 2]], [Config::linux(), tcp()]);
    both(&mut world, 100_000);
    assert_eq!(world.status(0).fallback, Some(Fallback::NoCapableInSynAck));
    let mut world = World::new(1, vec![[Line::default(); 2]], [tcp(), Config::linux()]);
    both(&mut world, 100_000);
    assert_eq!(world.status(1).fallback, None, "nobody asked for it");
}

#[test]
fn checksums_are_used_if_either_side_asks() {
    let with = || Config { checksum: true, ..Config::linux() };
    for configs in [[with(), Config::linux()], [Config::linux(), with()], [with(), with()]] {
        let mut world = World::new(1, vec![[Line::default(); 2]; 2], configs);
        both(&mut world, 1_000_000);
        assert!(world.status(0).checksum && world.status(1).checksum);
    }
}

#[test]
fn lossy_reordering_paths_lose_nothing() {
    for seed in 0..30 {
        let bad = Line {
            loss: 20,
            duplication: 10,
            jitter: Duration::from_millis(seed % 7),
            delay: Duration::from_millis(1 + seed % 30),
            ..Line::default()
        };
        let paths = 1 + seed as usize % 3;
        let config = if seed % 2 == 0 { Config::linux() } else { Config::ideal() };
        let config = Config { checksum: seed % 5 == 0, ..config };
        let mut world = World::new(seed, vec![[bad; 2]; paths], [config.clone(), config]);
        both(&mut world, 300_000);
        let notices = &world.ends[0].notices;
        assert!(!notices.iter().any(|notice| matches!(notice, Notice::Fallback(_))), "{seed}");
    }
}

#[test]
fn a_path_that_dies_in_silence_is_survived() {
    for config in [Config::linux(), Config::ideal()] {
        let mut world = World::new(3, vec![[Line::default(); 2]; 2], [config.clone(), config]);
        let sent = pattern(8_000_000, 1);
        world.ends[0].send(sent.clone());
        world.ends[1].finish();
        world.run(seconds(1), |_| false);
        world.lines[0] = [Line { up: false, ..Line::default() }; 2];
        world.run(seconds(120), World::finished);
        assert_eq!(world.ends[1].received.len(), sent.len(), "{} {:?}", world.now, world.status(0));
        assert!(world.ends[1].received == sent[..]);
    }
}
