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
    for (first, seed) in [(0, 1), (1, 2)] {
        for paths in 1..3 {
            let configs = [ConnectionConfig::linux(), ConnectionConfig::linux()];
            let mut world = TestNetwork::new(seed, vec![lossy(20); paths], configs);
            world.ends[first].finish();
            world.run(seconds(20), |_| false);
            assert!(world.ends[1 - first].ended, "the end was not seen");
            assert_eq!(world.ends.each_ref().map(|end| end.closed), [None; 2]);
            let sent = pattern(300_000, 3);
            world.ends[1 - first].send(sent.clone());
            world.run(seconds(60), TestNetwork::finished);
            let mut both = [pattern(0, 0), pattern(0, 0)];
            both[1 - first] = sent;
            world.check(&both, "half close");
        }
    }
}

#[test]
fn crossing_data_fins_are_both_delivered_under_loss() {
    for seed in 0..60 {
        let paths = 1 + seed as usize % 3;
        let config =
            || if seed % 2 == 0 { ConnectionConfig::linux() } else { ConnectionConfig::ideal() };
        let mut world = TestNetwork::new(seed, vec![lossy(250); paths], [config(), config()]);
        let size = |host: u64| [0, 1, 1_400, 5_000][(seed + host) as usize % 4];
        world.deliver([size(0), size(1)], seconds(300), &format!("seed {seed}"));
    }
}

/// All data has arrived except its end; then the path that would have carried it is removed.
#[test]
fn the_end_of_data_outlives_the_subflow_that_carried_it() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        for dead in 0..2 {
            let mut world = TestNetwork::new(1, vec![lossy(0); 2], [profile(), profile()]);
            world.ends[0].leave_open(pattern(50_000, 1));
            world.run(seconds(2), |_| false);
            assert_eq!(world.ends[1].received.len(), 50_000);
            world.lines[dead] = [PathDirection { up: false, ..PathDirection::default() }; 2];
            world.ends[0].finish();
            world.ends[1].finish();
            world.run(seconds(4), |_| false);
            assert!(world.ends[0].ended && world.ends[1].ended, "{dead} {:?}", world.status(0));
            world.run(seconds(400), TestNetwork::finished);
            world.check(&[pattern(50_000, 1), pattern(0, 0)], "end of data");
        }
    }
}

/// Both ends have sent their end, and neither has received the other's. Then the only address is
/// removed and another one is added.
#[test]
fn the_end_of_data_outlives_the_last_subflow() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        let mut world = TestNetwork::new(1, vec![lossy(0); 1], [profile(), profile()]);
        world.ends[0].leave_open(pattern(50_000, 1));
        world.run(seconds(2), |_| false);
        world.lines[0][0].up = false;
        world.ends[0].finish();
        world.ends[1].finish();
        world.run(millis(2_100), |_| false);
        world.stacks[0].remove_address(world.now, world.address(0, 0));
        world.lines[0][0].up = true;
        world.give_other_address(0, 0, "10.64.0.77".parse().unwrap(), 9);
        world.run(seconds(100), TestNetwork::finished);
        world.check(&[pattern(50_000, 1), pattern(0, 0)], "end of data on a new subflow");
    }
}

#[test]
fn an_abort_ends_both_at_once() {
    for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
        for who in 0..2 {
            for paths in 1..4 {
                // No overflow: a lost MP_FASTCLOSE is another test.
                let deep = [PathDirection { queue: seconds(5), ..lossy(0)[0] }; 2];
                let mut world = TestNetwork::new(1, vec![deep; paths], [profile(), profile()]);
                world.ends[0].send(pattern(12_000_000, 1));
                world.ends[1].send(pattern(12_000_000, 2));
                world.run(millis(400), |_| false);
                let id = world.ends[who].connection.unwrap();
                world.stacks[who].abort(world.now, id);
                world.run(seconds(2), |_| false);
                let closed = world.ends.each_ref().map(|end| end.closed);
                let mut expected = [Some(Err(ConnectionError::Reset)); 2];
                expected[who] = Some(Err(ConnectionError::Aborted));
                assert_eq!(closed, expected, "{who} of {paths}");
                for host in 0..2 {
                    let flows = world.status(host).subflows;
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
        let mut world = TestNetwork::new(1, vec![lossy(0); 2], [profile(), profile()]);
        world.ends[1].send(pattern(30_000_000, 2));
        world.run(millis(400), |_| false);
        for path in &mut world.lines {
            path[0].up = false;
        }
        let id = world.ends[0].connection.unwrap();
        world.stacks[0].abort(world.now, id);
        world.run(millis(401), |_| false);
        for path in &mut world.lines {
            path[0].up = true;
        }
        world.run(seconds(120), TestNetwork::finished);
        assert!(matches!(world.ends[1].closed, Some(Err(_))), "{:?}", world.status(1));
    }
}
