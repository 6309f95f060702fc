//! Paths that are added and removed during a connection.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{ConnectionError, InterfaceId, StackNotice};

use crate::network::{PathDirection, TestNetwork, pattern};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a path of 10 Mbit/s, so that a change occurs within a transfer of a megabyte.
fn path_10_mbit() -> [PathDirection; 2] {
    [PathDirection { byte_nanos: 800, ..PathDirection::default() }; 2]
}

fn set_up(network: &mut TestNetwork, path: usize, up: bool) {
    for direction in &mut network.directions[path] {
        direction.up = up;
    }
}

fn profiles() -> [fn() -> ConnectionConfig; 2] {
    [ConnectionConfig::linux, ConnectionConfig::ideal]
}

/// Transfers data in one direction or both, with the change `change` after half a second.
fn assert_survives(label: &str, paths: usize, change: impl Fn(&mut TestNetwork, Duration)) {
    for profile in profiles() {
        for (seed, [up, down]) in
            [[1_500_000, 0], [0, 1_500_000], [800_000, 800_000]].into_iter().enumerate()
        {
            let mut network =
                TestNetwork::new(seed as u64, vec![path_10_mbit(); paths], [profile(), profile()]);
            let data = [pattern(paths * up, 1), pattern(paths * down, 2)];
            network.apps[0].send(data[0].clone());
            network.apps[1].send(data[1].clone());
            network.run(millis(500), |_| false);
            assert!(!network.is_finished(), "{label}: too early");
            change(&mut network, seconds(200));
            network.run(seconds(200), TestNetwork::is_finished);
            network.assert_delivered(&data, &format!("{label} {up} {down}"));
        }
    }
}

#[test]
fn the_only_address_is_replaced_by_another() {
    // The old path goes first: for two seconds no path exists (break before make).
    assert_survives("break before make", 1, |network, _| {
        network.stacks[0].remove_address(network.now, network.address(0, 0));
        network.run(network.elapsed() + seconds(2), |_| false);
        network.stacks[0].add_interface(InterfaceId(0), 1_500);
        let new_address = "10.64.0.77".parse().unwrap();
        network.add_address(0, 0, new_address, 9);
    });
}

#[test]
fn the_first_subflow_can_go_and_others_carry_on() {
    assert_survives("first address removed", 2, |network, _| {
        network.stacks[0].remove_address(network.now, network.address(0, 0));
    });
}

#[test]
fn a_joined_subflow_can_go_and_the_first_carries_on() {
    assert_survives("second address removed", 2, |network, _| {
        network.stacks[0].remove_address(network.now, network.address(0, 1));
    });
}

#[test]
fn the_servers_address_can_go() {
    assert_survives("server's address removed", 2, |network, _| {
        network.set_address(1, 1, false, true);
        network.run(network.elapsed() + millis(100), |_| false);
        network.stacks[1].remove_address(network.now, network.address(1, 1));
    });
}

#[test]
fn an_outage_of_all_paths_is_survived() {
    assert_survives("all paths down", 2, |network, _| {
        set_up(network, 0, false);
        set_up(network, 1, false);
        network.run(network.elapsed() + seconds(20), |_| false);
        set_up(network, 0, true);
        set_up(network, 1, true);
    });
}

#[test]
fn one_direction_of_a_path_can_die() {
    for direction in 0..2 {
        assert_survives("one way", 2, |network, _| network.directions[1][direction].up = false);
        assert_survives("one way of the first", 2, |network, _| {
            network.directions[0][direction].up = false;
        });
    }
}

#[test]
fn paths_that_die_in_turns_are_survived() {
    assert_survives("in turns", 3, |network, _| {
        for round in 0..9 {
            for path in 0..3 {
                set_up(network, path, path == round % 3);
            }
            network.run(network.elapsed() + seconds(3), TestNetwork::is_finished);
        }
        for path in 0..3 {
            set_up(network, path, true);
        }
    });
}

#[test]
fn the_interface_goes_down_and_comes_back() {
    assert_survives("interface", 2, |network, _| {
        set_up(network, 1, false);
        network.stacks[0].set_up(network.now, InterfaceId(1), false);
        network.run(network.elapsed() + seconds(3), |_| false);
        set_up(network, 1, true);
        network.stacks[0].set_up(network.now, InterfaceId(1), true);
    });
}

#[test]
fn a_silent_path_is_stale_and_alive_again_when_it_answers() {
    // A subflow is stale if it blocks the connection for several rounds of its timer. Enough data
    // must be in flight that a few retransmissions from the front do not deliver all of it.
    let profile = ConnectionConfig::linux;
    let slow = PathDirection { delay: millis(100), queue: millis(500), ..path_10_mbit()[0] };
    let mut network = TestNetwork::new(1, vec![path_10_mbit(), [slow; 2]], [profile(), profile()]);
    let data = [pattern(30_000_000, 1), pattern(0, 2)];
    network.apps[0].send(data[0].clone());
    network.apps[1].end_stream();
    network.run(seconds(1), |_| false);
    set_up(&mut network, 1, false);
    network.run(seconds(8), |_| false);
    let stale_subflows = |network: &TestNetwork| {
        let flows = network.status(0).subflows;
        flows.iter().filter(|flow| flow.stale).count()
    };
    assert_eq!(stale_subflows(&network), 1, "{:?}", network.status(0));
    set_up(&mut network, 1, true);
    network.run(seconds(40), |network| network.is_finished() || stale_subflows(network) == 0);
    assert_eq!(stale_subflows(&network), 0, "{:?}", network.status(0));
    network.run(seconds(200), TestNetwork::is_finished);
    network.assert_delivered(&data, "stale and back");
}

#[test]
fn without_any_path_the_connection_ends_after_the_configured_time() {
    for profile in profiles() {
        let mut network = TestNetwork::new(1, vec![path_10_mbit()], [profile(), profile()]);
        network.apps[0].send(pattern(1_000_000, 1));
        network.run(millis(500), |_| false);
        network.stacks[0].remove_address(network.now, network.address(0, 0));
        network.run(millis(490) + profile().close_timeout, TestNetwork::is_finished);
        assert_eq!(network.apps[0].closed, None);
        network.run(millis(510) + profile().close_timeout, TestNetwork::is_finished);
        assert_eq!(network.apps[0].closed, Some(Err(ConnectionError::NoPath)));
        // The server receives nothing of it; its own retransmissions end it.
        let has_closed_subflow = |network: &TestNetwork| {
            network.apps[0].notices.iter().any(|n| matches!(n, StackNotice::SubflowClosed { .. }))
        };
        assert!(has_closed_subflow(&network));
    }
}

#[test]
fn every_subflow_of_an_end_uses_the_congestion_control_that_the_end_was_given() {
    let mut configs = [ConnectionConfig::linux(), ConnectionConfig::linux()];
    for (config, name) in configs.iter_mut().zip(["olia", "reno"]) {
        name.clone_into(&mut config.subflow.congestion_control);
    }
    let mut network = TestNetwork::new(1, vec![path_10_mbit(); 2], configs);
    network.deliver([500_000, 500_000], seconds(100), "two controls");
    for (host, name) in ["olia", "reno"].into_iter().enumerate() {
        let subflows = network.status(host).subflows;
        let controls: Vec<_> = subflows.iter().map(|subflow| subflow.congestion_control).collect();
        assert_eq!(controls, [name; 2]);
    }
}
