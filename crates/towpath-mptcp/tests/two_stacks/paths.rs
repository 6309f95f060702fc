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
fn line() -> [PathDirection; 2] {
    [PathDirection { byte_nanos: 800, ..PathDirection::default() }; 2]
}

fn set_up(world: &mut TestNetwork, path: usize, up: bool) {
    for line in &mut world.lines[path] {
        line.up = up;
    }
}

fn profiles() -> [fn() -> ConnectionConfig; 2] {
    [ConnectionConfig::linux, ConnectionConfig::ideal]
}

/// Transfers data in one direction or both, with the change `change` after half a second.
fn survives(what: &str, paths: usize, change: impl Fn(&mut TestNetwork, Duration)) {
    for profile in profiles() {
        for (seed, [up, down]) in
            [[1_500_000, 0], [0, 1_500_000], [800_000, 800_000]].into_iter().enumerate()
        {
            let mut world =
                TestNetwork::new(seed as u64, vec![line(); paths], [profile(), profile()]);
            let sent = [pattern(paths * up, 1), pattern(paths * down, 2)];
            world.ends[0].send(sent[0].clone());
            world.ends[1].send(sent[1].clone());
            world.run(millis(500), |_| false);
            assert!(!world.finished(), "{what}: too early");
            change(&mut world, seconds(200));
            world.run(seconds(200), TestNetwork::finished);
            world.check(&sent, &format!("{what} {up} {down}"));
        }
    }
}

#[test]
fn the_only_address_is_replaced_by_another() {
    // The old path goes first: for two seconds no path exists (break before make).
    survives("break before make", 1, |world, _| {
        world.stacks[0].remove_address(world.now, world.address(0, 0));
        world.run(world.elapsed() + seconds(2), |_| false);
        world.stacks[0].add_interface(InterfaceId(0), 1_500);
        let other = "10.64.0.77".parse().unwrap();
        world.give_other_address(0, 0, other, 9);
    });
}

#[test]
fn the_first_subflow_can_go_and_others_carry_on() {
    survives("first address removed", 2, |world, _| {
        world.stacks[0].remove_address(world.now, world.address(0, 0));
    });
}

#[test]
fn a_joined_subflow_can_go_and_the_first_carries_on() {
    survives("second address removed", 2, |world, _| {
        world.stacks[0].remove_address(world.now, world.address(0, 1));
    });
}

#[test]
fn the_servers_address_can_go() {
    survives("server's address removed", 2, |world, _| {
        world.give_address(1, 1, false, true);
        world.run(world.elapsed() + millis(100), |_| false);
        world.stacks[1].remove_address(world.now, world.address(1, 1));
    });
}

#[test]
fn an_outage_of_all_paths_is_survived() {
    survives("all paths down", 2, |world, _| {
        set_up(world, 0, false);
        set_up(world, 1, false);
        world.run(world.elapsed() + seconds(20), |_| false);
        set_up(world, 0, true);
        set_up(world, 1, true);
    });
}

#[test]
fn one_direction_of_a_path_can_die() {
    for direction in 0..2 {
        survives("one way", 2, |world, _| world.lines[1][direction].up = false);
        survives("one way of the first", 2, |world, _| world.lines[0][direction].up = false);
    }
}

#[test]
fn paths_that_die_in_turns_are_survived() {
    survives("in turns", 3, |world, _| {
        for round in 0..9 {
            for path in 0..3 {
                set_up(world, path, path == round % 3);
            }
            world.run(world.elapsed() + seconds(3), TestNetwork::finished);
        }
        for path in 0..3 {
            set_up(world, path, true);
        }
    });
}

#[test]
fn the_interface_goes_down_and_comes_back() {
    survives("interface", 2, |world, _| {
        set_up(world, 1, false);
        world.stacks[0].set_up(world.now, InterfaceId(1), false);
        world.run(world.elapsed() + seconds(3), |_| false);
        set_up(world, 1, true);
        world.stacks[0].set_up(world.now, InterfaceId(1), true);
    });
}

#[test]
fn a_silent_path_is_stale_and_alive_again_when_it_answers() {
    // A subflow is stale if it blocks the connection for several rounds of its timer. Enough data
    // must be in flight that a few retransmissions from the front do not deliver all of it.
    let profile = ConnectionConfig::linux;
    let slow = PathDirection { delay: millis(100), queue: millis(500), ..line()[0] };
    let mut world = TestNetwork::new(1, vec![line(), [slow; 2]], [profile(), profile()]);
    let sent = [pattern(30_000_000, 1), pattern(0, 2)];
    world.ends[0].send(sent[0].clone());
    world.ends[1].finish();
    world.run(seconds(1), |_| false);
    set_up(&mut world, 1, false);
    world.run(seconds(8), |_| false);
    let stale = |world: &TestNetwork| {
        let flows = world.status(0).subflows;
        flows.iter().filter(|flow| flow.stale).count()
    };
    assert_eq!(stale(&world), 1, "{:?}", world.status(0));
    set_up(&mut world, 1, true);
    world.run(seconds(40), |world| world.finished() || stale(world) == 0);
    assert_eq!(stale(&world), 0, "{:?}", world.status(0));
    world.run(seconds(200), TestNetwork::finished);
    world.check(&sent, "stale and back");
}

#[test]
fn without_any_path_the_connection_ends_after_the_configured_time() {
    for profile in profiles() {
        let mut world = TestNetwork::new(1, vec![line()], [profile(), profile()]);
        world.ends[0].send(pattern(1_000_000, 1));
        world.run(millis(500), |_| false);
        world.stacks[0].remove_address(world.now, world.address(0, 0));
        world.run(millis(490) + profile().close_timeout, TestNetwork::finished);
        assert_eq!(world.ends[0].closed, None);
        world.run(millis(510) + profile().close_timeout, TestNetwork::finished);
        assert_eq!(world.ends[0].closed, Some(Err(ConnectionError::NoPath)));
        // The server receives nothing of it; its own retransmissions end it.
        let closed = |world: &TestNetwork| {
            world.ends[0].notices.iter().any(|n| matches!(n, StackNotice::SubflowClosed { .. }))
        };
        assert!(closed(&world));
    }
}

#[test]
fn every_subflow_of_an_end_uses_the_congestion_control_that_the_end_was_given() {
    let mut configs = [ConnectionConfig::linux(), ConnectionConfig::linux()];
    for (config, name) in configs.iter_mut().zip(["olia", "reno"]) {
        name.clone_into(&mut config.subflow.congestion_control);
    }
    let mut world = TestNetwork::new(1, vec![line(); 2], configs);
    world.deliver([500_000, 500_000], seconds(100), "two controls");
    for (host, name) in ["olia", "reno"].into_iter().enumerate() {
        let subflows = world.status(host).subflows;
        let used: Vec<_> = subflows.iter().map(|subflow| subflow.congestion_control).collect();
        assert_eq!(used, [name; 2]);
    }
}
