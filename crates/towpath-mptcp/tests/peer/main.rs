//! Our server against a client of another, independent implementation (`mptcp-rs`), in virtual
//! time.
//!
//! Each seed draws paths, configurations, transfers and changes. `PEER_SEED=7 PEER_TRACE=1 cargo
//! test -p towpath-mptcp --test peer lossy -- --nocapture` prints every packet of one seed;
//! `PEER_SEEDS=10000` runs more of them, `cargo xtask test` fewer or more.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "tests fail by panicking; the peer's enums are not exhaustive"
)]

mod network;
#[path = "../repetitions/mod.rs"]
mod repetitions;
mod scenario;

use std::panic::catch_unwind;
use std::time::Duration;

use mptcp_rs::ConnectConfig;
use network::{Network, PathParams, pattern};
use repetitions::repeat;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_net::Instant;

use scenario::{Outcome, Scenario, Topic};

/// Runs a number of seeds, scaled by `cargo xtask test`, or only `PEER_SEED`. Names those that
/// fail.
fn run_seeds(topic: Topic, seeds: u64) {
    let seeds = repeat([seeds / 5, seeds, seeds * 10]);
    let env_number =
        |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = 0..env_number("PEER_SEEDS").unwrap_or(seeds);
    let seeds = env_number("PEER_SEED").map_or(seeds, |seed| seed..seed + 1);
    let mut failures = Vec::new();
    let mut total = Outcome::default();
    for seed in seeds.clone() {
        match catch_unwind(|| Scenario::new(topic, seed).run()) {
            Ok(Ok(outcome)) => {
                total.joined += outcome.joined;
                total.packets += outcome.packets;
                total.data_at = total.data_at.max(outcome.data_at);
            }
            Ok(Err(error)) => failures.push(format!("seed {seed}: {error}")),
            Err(_) => failures.push(format!("seed {seed} panics")),
        }
    }
    println!("{topic:?} {seeds:?}: {total:?}");
    let enough_joins =
        seeds.end - seeds.start < 20 || total.joined as u64 * 5 > seeds.end - seeds.start;
    assert!(enough_joins, "{topic:?}: only {} subflows were joined", total.joined);
    assert!(failures.is_empty(), "{topic:?}: {} fail\n{}", failures.len(), failures.join("\n"));
}

/// RFC 8684 §3.3.3: an end that has sent its DATA_FIN may close its direction of the subflows
/// immediately, while the other direction continues.
#[test]
fn our_data_continues_after_the_client_half_closes_its_subflows() {
    let paths = vec![
        PathParams {
            delay: Duration::from_millis(40),
            jitter: Duration::ZERO,
            loss: 0,
            duplication: 0,
            byte_nanos: 1_000,
            queue: Duration::from_secs(5),
            up: true,
        };
        2
    ];
    let mut network =
        Network::new(1, paths, 1, ConnectConfig::default(), ConnectionConfig::linux());
    let data = pattern(500_000, 1);
    network.applications[1].to_send = data.clone();
    for application in &mut network.applications {
        application.may_close = true;
    }
    let end = Instant::ZERO + Duration::from_secs(30);
    assert!(network.run(end, |network| network.server_closed.is_some()), "at {}", network.now);
    assert!(network.applications[0].received == data[..]);
    assert_eq!(network.server_closed, Some(Ok(())));
}

/// A server with small application data that ends first, independent of the client's reply.
#[test]
fn address_and_end_of_data_in_one_packet_are_no_fallback() {
    // At this seed, ADD_ADDR and DATA_FIN met before the client was confirmed.
    Scenario::new(Topic::Close, 230).run().unwrap();
}

#[test]
fn clean() {
    run_seeds(Topic::Clean, 150);
}

#[test]
fn lossy() {
    run_seeds(Topic::Lossy, 250);
}

#[test]
fn mobile() {
    run_seeds(Topic::Mobile, 300);
}

#[test]
fn close() {
    run_seeds(Topic::Close, 200);
}

#[test]
fn abort() {
    run_seeds(Topic::Abort, 150);
}

#[test]
fn blocked() {
    run_seeds(Topic::Blocked, 100);
}
