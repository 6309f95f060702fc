//! Every scheduler with every path manager, on different paths: each byte arrives once, in order.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::path_manager;
use towpath_mptcp::stack::StackNotice;
use towpath_multipath::scheduler;

use crate::network::{PathDirection, TestNetwork};

/// Returns Wi-Fi with loss and reordering, a slow long path with a deep queue, and a fast far one
/// with high loss.
fn path_directions(count: usize, seed: u64) -> Vec<[PathDirection; 2]> {
    let near = PathDirection {
        delay: Duration::from_millis(8),
        jitter: Duration::from_millis(4),
        loss: 15,
        duplication: 5,
        byte_nanos: 800,
        ..PathDirection::default()
    };
    let slow = PathDirection {
        delay: Duration::from_millis(90),
        loss: 3,
        byte_nanos: 8_000,
        queue: Duration::from_millis(900),
        ..PathDirection::default()
    };
    let far =
        PathDirection { delay: Duration::from_millis(150), loss: 40, ..PathDirection::default() };
    let mut directions = vec![[near; 2], [slow; 2], [far; 2]];
    directions.rotate_left(seed as usize % 3);
    directions.truncate(count);
    directions
}

fn assert_everything_arrives(profile: fn() -> ConnectionConfig) {
    let mut seed = 0;
    for scheduler in scheduler::ALL {
        for manager in path_manager::ALL {
            seed += 1;
            let config = || ConnectionConfig {
                scheduler: scheduler.name.to_owned(),
                path_manager: manager.name.to_owned(),
                ..profile()
            };
            let label = format!("{} with {}, seed {seed}", scheduler.name, manager.name);
            let directions = path_directions(2 + seed as usize % 2, seed);
            let mut network = TestNetwork::new(seed, directions, [config(), config()]);
            for path in 0..network.directions.len() {
                network.set_address(1, path, false, seed % 4 == 0);
            }
            network.deliver([120_000, 80_000], Duration::from_secs(120), &label);
            let notices = network.apps.iter().flat_map(|app| &app.notices);
            let fallback = notices.clone().any(|notice| matches!(notice, StackNotice::Fallback(_)));
            assert!(!fallback, "{label} fell back");
        }
    }
}

#[test]
fn every_scheduler_and_path_manager_carries_everything_as_linux_does() {
    assert_everything_arrives(ConnectionConfig::linux);
}

#[test]
fn every_scheduler_and_path_manager_carries_everything_without_limits() {
    assert_everything_arrives(ConnectionConfig::ideal);
}
