//! The connection's window: readers that pause, small buffers, a slow path that blocks a fast one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_multipath::opportunistic::{OpportunisticConfig, OpportunisticMode};

use crate::network::{PathDirection, TestNetwork, pattern};

fn fixed_buffer(bytes: u64) -> ReceiveBuffer {
    ReceiveBuffer {
        mode: ReceiveBufferMode::Fixed,
        initial_bytes: bytes,
        max_bytes: bytes,
        window_share: WindowShare::Percent(100),
    }
}

fn path_directions(millis: u64, byte_nanos: u64, loss: u32) -> [PathDirection; 2] {
    let delay = Duration::from_millis(millis);
    [PathDirection {
        delay,
        byte_nanos,
        loss,
        queue: Duration::from_millis(300),
        ..PathDirection::default()
    }; 2]
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The reader pauses for a long time, twice; the window is closed during each pause.
#[test]
fn a_reader_that_pauses_gets_everything() {
    for (seed, paths, loss) in [(1, 1, 0), (2, 2, 0), (3, 1, 100), (4, 2, 100), (5, 3, 200)] {
        for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
            let config = || ConnectionConfig { receive_buffer: fixed_buffer(30_000), ..profile() };
            let directions = vec![path_directions(15, 500, loss); paths];
            let mut network = TestNetwork::new(seed, directions, [config(), config()]);
            let data = pattern(200_000, 1);
            network.apps[0].send(data.clone());
            network.apps[1].end_stream();
            for (until, limit) in [(20, 0), (60, 40_000), (150, 41_000)] {
                network.read_limit = limit;
                network.run(seconds(until), TestNetwork::is_finished);
                assert!(network.apps[0].closed.is_none(), "seed {seed}: gave up");
            }
            network.read_limit = usize::MAX;
            network.run(seconds(400), TestNetwork::is_finished);
            assert_eq!(
                network.apps[1].received.len(),
                data.len(),
                "{seed} {:?}",
                network.status(0)
            );
            assert!(network.apps[1].received == data[..]);
            assert_eq!(network.apps[0].closed, Some(Ok(())), "seed {seed} at {}", network.now);
        }
    }
}

/// A single window update reopens the transfer; if it is lost, probes must replace it.
#[test]
fn a_window_that_opens_is_noticed_soon_although_updates_are_lost() {
    for seed in 0..10 {
        let config = || ConnectionConfig {
            receive_buffer: fixed_buffer(20_000),
            ..ConnectionConfig::linux()
        };
        let mut network =
            TestNetwork::new(seed, vec![path_directions(10, 500, 0); 2], [config(), config()]);
        network.apps[0].send(pattern(100_000, 1));
        network.apps[1].end_stream();
        network.read_limit = 0;
        network.run(seconds(3), TestNetwork::is_finished);
        for path in &mut network.directions {
            path[1].up = false;
        }
        network.read_limit = usize::MAX;
        network.run(Duration::from_millis(3_500), TestNetwork::is_finished);
        for path in &mut network.directions {
            path[1].up = true;
        }
        network.run(seconds(20), TestNetwork::is_finished);
        assert!(network.is_finished(), "{seed}: {:?}", network.status(0));
    }
}

#[test]
fn very_small_receive_buffers_are_enough() {
    for bytes in [100, 1_000, 1_400, 1_500, 2_900, 5_000] {
        for (paths, loss) in [(1, 0), (2, 0), (2, 20)] {
            for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
                let config =
                    || ConnectionConfig { receive_buffer: fixed_buffer(bytes), ..profile() };
                let mut directions =
                    vec![path_directions(5, 500, loss), path_directions(40, 2_000, loss)];
                directions.truncate(paths);
                let mut network = TestNetwork::new(bytes, directions, [config(), config()]);
                let label = format!("{bytes} bytes, {paths} paths, loss {loss}");
                network.deliver([30_000, 3_000], seconds(600), &label);
            }
        }
    }
}

#[test]
fn very_small_send_buffers_are_enough() {
    for bytes in [1, 700, 3_000, 20_000] {
        let config = || ConnectionConfig { send_buffer_bytes: bytes, ..ConnectionConfig::linux() };
        let directions = vec![path_directions(5, 500, 10), path_directions(20, 2_000, 10)];
        let mut network = TestNetwork::new(bytes, directions, [config(), config()]);
        let size = if bytes == 1 { 60 } else { 40_000 };
        network.deliver([size, size], seconds(600), &format!("{bytes} bytes"));
    }
}

fn blocked_network(seed: u64, opportunistic: OpportunisticConfig, scheduler: &str) -> TestNetwork {
    let config = || ConnectionConfig {
        receive_buffer: fixed_buffer(60_000),
        send_buffer_bytes: 200_000,
        opportunistic,
        scheduler: scheduler.to_owned(),
        ..ConnectionConfig::ideal()
    };
    let loss = if seed.is_multiple_of(2) { 0 } else { 10 };
    let directions = vec![path_directions(10, 400, loss), path_directions(250, 6_000, loss)];
    TestNetwork::new(seed, directions, [config(), config()])
}

#[test]
fn a_slow_path_that_blocks_the_window_is_relieved_without_harm() {
    for retransmission in
        [OpportunisticMode::Off, OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg]
    {
        for penalisation in
            [OpportunisticMode::Off, OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg]
        {
            for (seed, scheduler) in ["min-rtt", "linux", "round-robin", "ecf"].iter().enumerate() {
                let opportunistic = OpportunisticConfig { retransmission, penalisation };
                let mut network = blocked_network(seed as u64, opportunistic, scheduler);
                let label = format!("{opportunistic:?} {scheduler}");
                network.deliver([400_000, 50_000], seconds(120), &label);
            }
        }
    }
}

#[test]
fn opportunistic_retransmission_and_penalisation_act_and_help() {
    let finish_time = |mode| {
        let opportunistic = OpportunisticConfig { retransmission: mode, penalisation: mode };
        let mut network = blocked_network(0, opportunistic, "round-robin");
        network.deliver([20_000_000, 0], seconds(300), "blocked");
        let status = network.status(0);
        let has_acted = status.reinjected_bytes[3] > 0 && status.penalisations > 0;
        assert_eq!(has_acted, mode != OpportunisticMode::Off, "{status:?}");
        network.ended_at[1]
    };
    let (off, on) = (finish_time(OpportunisticMode::Off), finish_time(OpportunisticMode::Nsdi12));
    assert!(on < off, "{on} with, {off} without");
}

/// Written data is kept in pieces of 32 KiB, whose ends do not show on the wire. The end of a
/// scheduler's burst may: 51 of 2,113 packets (117 when each piece was sent alone).
#[test]
fn as_linux_packets_are_full_for_any_write_sizes() {
    let directions = vec![path_directions(10, 400, 0), path_directions(30, 800, 0)];
    let mut network = TestNetwork::new(
        1,
        directions,
        [ConnectionConfig::linux_6_18(), ConnectionConfig::linux_6_18()],
    );
    let sizes = Rc::new(RefCell::new(Vec::new()));
    for middlebox in &mut network.middleboxes {
        let sizes = Rc::clone(&sizes);
        *middlebox = Some(Box::new(move |packet| {
            let len = packet.payload.len();
            let packet_bytes =
                if packet.segment_bytes == 0 { len } else { packet.segment_bytes.into() };
            sizes.borrow_mut().extend(
                (0..len).step_by(packet_bytes.max(1)).map(|offset| packet_bytes.min(len - offset)),
            );
            vec![packet]
        }));
    }
    network.apps[0].send(pattern(3_000_000, 1));
    network.apps[1].end_stream();
    network.run(seconds(60), TestNetwork::is_finished);
    assert_eq!(network.apps[0].closed, Some(Ok(())));
    let (packets, full_bytes) = (sizes.borrow().len(), sizes.borrow().iter().copied().max());
    let small_packets = sizes.borrow().iter().filter(|size| Some(**size) < full_bytes).count();
    assert!(small_packets * 30 < packets, "{small_packets} of {packets} packets are not full");
}

/// Linux adds the smallest buffer of `tcp_wmem` to those of the subflows (`__mptcp_sync_sndbuf`).
#[test]
fn as_linux_the_minimum_buffer_is_added_to_that_of_subflows() {
    let accepted_bytes = |min_bytes: u64, multipath: bool| {
        let config = || ConnectionConfig {
            send_buffer_min_bytes: min_bytes,
            multipath,
            ..ConnectionConfig::linux_6_18()
        };
        let mut network =
            TestNetwork::new(1, vec![path_directions(10, 400, 0)], [config(), config()]);
        network.apps[0].send_without_end(pattern(3_000_000, 1));
        network.run(Duration::from_millis(25), |_| false);
        3_000_000 - network.apps[0].unsent()
    };
    let difference = accepted_bytes(260_000, true) - accepted_bytes(4_096, true);
    assert!((255_904..255_904 + 32_728).contains(&difference), "{difference}");
    assert_eq!(
        accepted_bytes(260_000, false),
        accepted_bytes(4_096, false),
        "TCP has only its own"
    );
}

/// Linux checks for room in the send buffer only where a queued packet begins
/// (`tcp_sendmsg_locked`): 3.1 MB in flight were observed with a buffer of 252 KB. Multipath TCP
/// checks for each fragment that is written.
#[test]
fn as_linux_plain_tcp_sends_more_than_its_send_buffer() {
    const BYTES: usize = 30_000_000;
    const BUFFER: usize = 252_000;
    let max_held_bytes = |multipath: bool| {
        let mut config = ConnectionConfig { multipath, ..ConnectionConfig::linux_6_18() };
        config.send_buffer_min_bytes = 4_096;
        config.subflow.send_buffer_initial_bytes = BUFFER as u32;
        config.subflow.send_buffer_max_bytes = BUFFER as u32;
        let directions = vec![path_directions(60, 250, 0)];
        let mut network = TestNetwork::new(1, directions, [config, ConnectionConfig::linux_6_18()]);
        network.apps[0].send_without_end(pattern(BYTES, 1));
        let mut max = 0;
        network.run(seconds(4), |network| {
            let held = BYTES - network.apps[0].unsent() - network.apps[1].received.len();
            max = max.max(held);
            false
        });
        max
    };
    assert!(max_held_bytes(false) > 3 * BUFFER, "{}", max_held_bytes(false));
    assert!(max_held_bytes(true) < BUFFER + 40_000, "{}", max_held_bytes(true));
}
