//! Transfers over good and bad paths: each byte arrives once, in order.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{FallbackReason, StackNotice};

use crate::network::{PathDirection, TestNetwork, pattern};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn transfer_both_ways(network: &mut TestNetwork, bytes: usize) {
    let [a, b] = [pattern(bytes, 1), pattern(bytes, 2)];
    network.apps[0].send(a.clone());
    network.apps[1].send(b.clone());
    network.run(seconds(600), TestNetwork::is_finished);
    for (app, data) in [(&network.apps[1], &a), (&network.apps[0], &b)] {
        assert_eq!(
            app.received.len(),
            data.len(),
            "{:?} {:?} at {}",
            app.closed,
            app.notices,
            network.now
        );
        assert!(app.received == data[..], "other bytes");
        assert_eq!(app.closed, Some(Ok(())));
    }
}

fn plain_tcp() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

#[test]
fn plain_tcp_carries_data_in_both_directions() {
    let mut network =
        TestNetwork::new(1, vec![[PathDirection::default(); 2]], [plain_tcp(), plain_tcp()]);
    transfer_both_ways(&mut network, 1_000_000);
    assert!(!network.status(0).multipath);
}

#[test]
fn one_path_is_multipath_tcp_without_fallback() {
    let configs = [ConnectionConfig::linux(), ConnectionConfig::linux()];
    let mut network = TestNetwork::new(1, vec![[PathDirection::default(); 2]], configs);
    transfer_both_ways(&mut network, 1_000_000);
    for host in 0..2 {
        assert!(network.status(host).multipath, "{:?}", network.status(host));
    }
}

#[test]
fn two_paths_are_both_used() {
    for config in [ConnectionConfig::linux(), ConnectionConfig::ideal()] {
        let configs = [config.clone(), config];
        let mut network = TestNetwork::new(1, vec![[PathDirection::default(); 2]; 2], configs);
        transfer_both_ways(&mut network, 8_000_000);
        let status = network.status(0);
        let bytes_per_subflow: Vec<u64> =
            status.subflows.iter().map(|flow| flow.tcp.acked_bytes).collect();
        assert!(
            bytes_per_subflow.len() == 2
                && bytes_per_subflow.iter().all(|bytes| *bytes > 2_000_000),
            "{bytes_per_subflow:?}"
        );
    }
}

#[test]
fn a_peer_without_multipath_tcp_gets_tcp() {
    let mut network = TestNetwork::new(
        1,
        vec![[PathDirection::default(); 2]],
        [ConnectionConfig::linux(), plain_tcp()],
    );
    transfer_both_ways(&mut network, 100_000);
    assert_eq!(network.status(0).fallback, Some(FallbackReason::NoCapableInSynAck));
    let mut network = TestNetwork::new(
        1,
        vec![[PathDirection::default(); 2]],
        [plain_tcp(), ConnectionConfig::linux()],
    );
    transfer_both_ways(&mut network, 100_000);
    assert_eq!(network.status(1).fallback, None, "it was not requested");
}

#[test]
fn checksums_are_used_if_either_side_asks() {
    let with_checksum = || ConnectionConfig { checksum: true, ..ConnectionConfig::linux() };
    for configs in [
        [with_checksum(), ConnectionConfig::linux()],
        [ConnectionConfig::linux(), with_checksum()],
        [with_checksum(), with_checksum()],
    ] {
        let mut network = TestNetwork::new(1, vec![[PathDirection::default(); 2]; 2], configs);
        transfer_both_ways(&mut network, 1_000_000);
        assert!(network.status(0).checksum && network.status(1).checksum);
    }
}

#[test]
fn lossy_reordering_paths_lose_nothing() {
    for seed in 0..30 {
        let lossy = PathDirection {
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
        let mut network = TestNetwork::new(seed, vec![[lossy; 2]; paths], [config.clone(), config]);
        transfer_both_ways(&mut network, 300_000);
        let notices = &network.apps[0].notices;
        assert!(!notices.iter().any(|notice| matches!(notice, StackNotice::Fallback(_))), "{seed}");
    }
}

#[test]
fn a_path_that_dies_in_silence_is_survived() {
    for config in [ConnectionConfig::linux(), ConnectionConfig::ideal()] {
        let mut network =
            TestNetwork::new(3, vec![[PathDirection::default(); 2]; 2], [config.clone(), config]);
        let data = pattern(8_000_000, 1);
        network.apps[0].send(data.clone());
        network.apps[1].end_stream();
        network.run(seconds(1), |_| false);
        network.directions[0] = [PathDirection { up: false, ..PathDirection::default() }; 2];
        network.run(seconds(120), TestNetwork::is_finished);
        assert_eq!(
            network.apps[1].received.len(),
            data.len(),
            "{} {:?}",
            network.now,
            network.status(0)
        );
        assert!(network.apps[1].received == data[..]);
    }
}
