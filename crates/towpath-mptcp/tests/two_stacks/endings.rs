//! Ends of connections: half close, lost ends, aborts, and simultaneous combinations.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::ConnectionError;
use towpath_mptcp::subflow::TcpState;

use crate::network::{PathDirection, TestNetwork, pattern};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn lossy(loss: u32) -> [PathDirection; 2] {
    [PathDirection { loss, jitter: millis(5), ..PathDirection::default() }; 2]
}

#[test]
fn one_direction_continues_after_the_other_has_ended() {
    for (first_closer, seed) in [(0, 1), (1, 2)] {
        for paths in 1..3 {
            let configs = [ConnectionConfig::linux(), ConnectionConfig::linux()];
            let mut network = TestNetwork::new(seed, vec![lossy(20); paths], configs);
            network.apps[first_closer].end_stream();
            network.run(seconds(20), |_| false);
            assert!(network.apps[1 - first_closer].received_end, "the end was not seen");
            assert_eq!(network.apps.each_ref().map(|app| app.closed), [None; 2]);
            let data = pattern(300_000, 3);
            network.apps[1 - first_closer].send(data.clone());
            network.run(seconds(60), TestNetwork::is_finished);
            let mut expected = [pattern(0, 0), pattern(0, 0)];
            expected[1 - first_closer] = data;
            network.assert_delivered(&expected, "half close");
        }
    }
}

#[test]
fn crossing_data_fins_are_both_delivered_under_loss() {
    for seed in 0..60 {
        let paths = 1 + seed as usize % 3;
        let config =
            || if seed % 2 == 0 { ConnectionConfig::linux() } else { ConnectionConfig::ideal() };
        let mut network = TestNetwork::new(seed, vec![lossy(250); paths], [config(), config()]);
        let size = |host: u64| [0, 1, 1_400, 5_000][(seed + host) as usize % 4];
        network.deliver([size(0), size(1)], seconds(300), &format!("seed {seed}"));
    }
}

/// All data has arrived except its end; then the path that would have carried it is removed.
#[test]
fn the_end_of_data_outlives_the_subflow_that_carried_it() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        for dead_path in 0..2 {
            let mut network = TestNetwork::new(1, vec![lossy(0); 2], [profile(), profile()]);
            network.apps[0].send_without_end(pattern(50_000, 1));
            network.run(seconds(2), |_| false);
            assert_eq!(network.apps[1].received.len(), 50_000);
            network.directions[dead_path] =
                [PathDirection { up: false, ..PathDirection::default() }; 2];
            network.apps[0].end_stream();
            network.apps[1].end_stream();
            network.run(seconds(4), |_| false);
            assert!(
                network.apps[0].received_end && network.apps[1].received_end,
                "{dead_path} {:?}",
                network.status(0)
            );
            network.run(seconds(400), TestNetwork::is_finished);
            network.assert_delivered(&[pattern(50_000, 1), pattern(0, 0)], "end of data");
        }
    }
}

/// Both ends have sent their end, and neither has received the other's. Then the only address is
/// removed and another one is added.
#[test]
fn the_end_of_data_outlives_the_last_subflow() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        let mut network = TestNetwork::new(1, vec![lossy(0); 1], [profile(), profile()]);
        network.apps[0].send_without_end(pattern(50_000, 1));
        network.run(seconds(2), |_| false);
        network.directions[0][0].up = false;
        network.apps[0].end_stream();
        network.apps[1].end_stream();
        network.run(millis(2_100), |_| false);
        network.stacks[0].remove_address(network.now, network.address(0, 0));
        network.directions[0][0].up = true;
        network.add_address(0, 0, "10.64.0.77".parse().unwrap(), 9);
        network.run(seconds(100), TestNetwork::is_finished);
        network
            .assert_delivered(&[pattern(50_000, 1), pattern(0, 0)], "end of data on a new subflow");
    }
}

#[test]
fn an_abort_ends_both_at_once() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        for aborting_host in 0..2 {
            for paths in 1..4 {
                // No overflow: a lost MP_FASTCLOSE is another test.
                let deep_queue = [PathDirection { queue: seconds(5), ..lossy(0)[0] }; 2];
                let mut network =
                    TestNetwork::new(1, vec![deep_queue; paths], [profile(), profile()]);
                network.apps[0].send(pattern(12_000_000, 1));
                network.apps[1].send(pattern(12_000_000, 2));
                network.run(millis(400), |_| false);
                let id = network.apps[aborting_host].connection.unwrap();
                network.stacks[aborting_host].abort(network.now, id);
                network.run(seconds(2), |_| false);
                let closed = network.apps.each_ref().map(|app| app.closed);
                let mut expected = [Some(Err(ConnectionError::Reset)); 2];
                expected[aborting_host] = Some(Err(ConnectionError::Aborted));
                assert_eq!(closed, expected, "{aborting_host} of {paths}");
                for host in 0..2 {
                    let flows = network.status(host).subflows;
                    assert!(flows.iter().all(|flow| flow.state == TcpState::Closed), "{flows:?}");
                }
            }
        }
    }
}

/// Every `MP_FASTCLOSE` is lost: the peer learns of the abort when it sends data.
#[test]
fn an_abort_that_is_lost_is_noticed() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        let mut network = TestNetwork::new(1, vec![lossy(0); 2], [profile(), profile()]);
        network.apps[1].send(pattern(30_000_000, 2));
        network.run(millis(400), |_| false);
        for path in &mut network.directions {
            path[0].up = false;
        }
        let id = network.apps[0].connection.unwrap();
        network.stacks[0].abort(network.now, id);
        network.run(millis(401), |_| false);
        for path in &mut network.directions {
            path[0].up = true;
        }
        network.run(seconds(120), TestNetwork::is_finished);
        assert!(matches!(network.apps[1].closed, Some(Err(_))), "{:?}", network.status(1));
    }
}
