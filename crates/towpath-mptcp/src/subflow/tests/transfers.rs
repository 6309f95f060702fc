//! Transfers complete over lossy links.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use super::link::{Faults, Pair};
use super::repetitions::repeat;
use crate::subflow::{CloseReason, SubflowConfig, TcpState};

const MINUTE: Duration = Duration::from_secs(60);

fn both_closed(pair: &Pair) -> bool {
    pair.a.state() == TcpState::Closed && pair.b.state() == TcpState::Closed
}

fn transfer(mut pair: Pair, up: u64, down: u64, limit: Duration) -> Pair {
    (pair.a.to_send, pair.b.to_send) = (up, down);
    (pair.a.close_when_sent, pair.b.close_when_sent) = (true, true);
    pair.connect();
    pair.run_until(limit, both_closed);
    assert_eq!((pair.b.received, pair.a.received), (up, down), "{}", pair.describe());
    assert!(pair.a.fin && pair.b.fin);
    pair
}

#[test]
fn a_clean_link_needs_no_retransmission() {
    let pair = transfer(
        Pair::new(SubflowConfig::linux(), SubflowConfig::linux(), 1),
        3_000_000,
        0,
        3 * MINUTE,
    );
    let statistics = pair.a.subflow.as_ref().unwrap().statistics();
    assert_eq!((statistics.retransmissions, statistics.timeouts_total), (0, 0));
    assert_eq!(pair.a.closed.or(pair.b.closed), Some(CloseReason::Finished));
    let seconds = pair.a.log.iter().rfind(|(_, t)| t.data.is_some()).unwrap().0.as_secs_f64() - 1.0;
    assert!(seconds < 1.0, "3 MB at 10 MB/s and 20 ms take {seconds} s");
}

#[test]
fn bytes_arrive_under_loss_reordering_and_duplication() {
    let requested_seeds = std::env::var("TOWPATH_SEEDS");
    let seeds: u64 =
        requested_seeds.map_or_else(|_| repeat([30, 150, 600]), |n| n.parse().unwrap());
    let first_seed: u64 = std::env::var("TOWPATH_FIRST_SEED").map_or(0, |n| n.parse().unwrap());
    for seed in first_seed..first_seed + seeds {
        let mut pair = Pair::new(SubflowConfig::linux(), SubflowConfig::linux(), seed);
        if seed % 3 == 1 {
            (pair.a.config, pair.b.config) = (SubflowConfig::ideal(), SubflowConfig::ideal());
        }
        let faults = &mut pair.faults;
        let random = &mut pair.random;
        *faults = Faults {
            loss: random.below(21),
            reorder: random.below(40),
            duplicate: random.below(10),
            ce_mark: random.below(10),
        };
        let is_clear = |bit: u32| seed >> bit & 1 == 0;
        for config in [&mut pair.a.config, &mut pair.b.config] {
            (config.sack, config.timestamps, config.rack) = (is_clear(1), is_clear(2), is_clear(3));
            (config.undo, config.ecn, config.pacing) = (is_clear(4), is_clear(5), !is_clear(6));
            config.window_scale = Some(10).filter(|_| is_clear(7));
            config.congestion_control = if is_clear(8) { "cubic" } else { "reno" }.to_owned();
            config.black_hole_detection = !is_clear(9);
            config.retries = 1000;
            config.syn_retries = 100;
        }
        let (up, down) = (random.below(200_000), random.below(30_000));
        let result =
            std::panic::catch_unwind(AssertUnwindSafe(|| transfer(pair, up, down, 600 * MINUTE)));
        assert!(result.is_ok(), "seed {seed}");
    }
}
