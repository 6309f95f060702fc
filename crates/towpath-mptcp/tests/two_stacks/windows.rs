//! The connection's window: readers that pause, small buffers, a slow path that blocks a fast one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_multipath::opportunistic::{OpportunisticConfig, OpportunisticMode};

use crate::network::{PathDirection, TestNetwork, pattern};

fn fixed(bytes: u64) -> ReceiveBuffer {
    ReceiveBuffer {
        mode: ReceiveBufferMode::Fixed,
        initial_bytes: bytes,
        max_bytes: bytes,
        window_share: WindowShare::Percent(100),
    }
}

fn line(millis: u64, byte_nanos: u64, loss: u32) -> [PathDirection; 2] {
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
            let config = || ConnectionConfig { receive_buffer: fixed(30_000), ..profile() };
            let lines = vec![line(15, 500, loss); paths];
            let mut world = TestNetwork::new(seed, lines, [config(), config()]);
            let sent = pattern(200_000, 1);
            world.ends[0].send(sent.clone());
            world.ends[1].finish();
            for (until, limit) in [(20, 0), (60, 40_000), (150, 41_000)] {
                world.read_limit = limit;
                world.run(seconds(until), TestNetwork::finished);
                assert!(world.ends[0].closed.is_none(), "seed {seed}: gave up");
            }
            world.read_limit = usize::MAX;
            world.run(seconds(400), TestNetwork::finished);
            assert_eq!(world.ends[1].received.len(), sent.len(), "{seed} {:?}", world.status(0));
            assert!(world.ends[1].received == sent[..]);
            assert_eq!(world.ends[0].closed, Some(Ok(())), "seed {seed} at {}", world.now);
        }
    }
}

/// A single window update reopens the transfer; if it is lost, probes must replace it.
#[test]
fn a_window_that_opens_is_noticed_soon_although_updates_are_lost() {
    for seed in 0..10 {
        let config =
            || ConnectionConfig { receive_buffer: fixed(20_000), ..ConnectionConfig::linux() };
        let mut world = TestNetwork::new(seed, vec![line(10, 500, 0); 2], [config(), config()]);
        world.ends[0].send(pattern(100_000, 1));
        world.ends[1].finish();
        world.read_limit = 0;
        world.run(seconds(3), TestNetwork::finished);
        for path in &mut world.lines {
            path[1].up = false;
        }
        world.read_limit = usize::MAX;
        world.run(Duration::from_millis(3_500), TestNetwork::finished);
        for path in &mut world.lines {
            path[1].up = true;
        }
        world.run(seconds(20), TestNetwork::finished);
        assert!(world.finished(), "{seed}: {:?}", world.status(0));
    }
}

#[test]
fn very_small_receive_buffers_are_enough() {
    for bytes in [100, 1_000, 1_400, 1_500, 2_900, 5_000] {
        for (paths, loss) in [(1, 0), (2, 0), (2, 20)] {
            for profile in [ConnectionConfig::linux, ConnectionConfig::ideal] {
                let config = || ConnectionConfig { receive_buffer: fixed(bytes), ..profile() };
                let mut lines = vec![line(5, 500, loss), line(40, 2_000, loss)];
                lines.truncate(paths);
                let mut world = TestNetwork::new(bytes, lines, [config(), config()]);
                let what = format!("{bytes} bytes, {paths} paths, loss {loss}");
                world.deliver([30_000, 3_000], seconds(600), &what);
            }
        }
    }
}

#[test]
fn very_small_send_buffers_are_enough() {
    for bytes in [1, 700, 3_000, 20_000] {
        let config = || ConnectionConfig { send_buffer_bytes: bytes, ..ConnectionConfig::linux() };
        let lines = vec![line(5, 500, 10), line(20, 2_000, 10)];
        let mut world = TestNetwork::new(bytes, lines, [config(), config()]);
        let size = if bytes == 1 { 60 } else { 40_000 };
        world.deliver([size, size], seconds(600), &format!("{bytes} bytes"));
    }
}

fn blocked_world(seed: u64, opportunistic: OpportunisticConfig, scheduler: &str) -> TestNetwork {
    let config = || ConnectionConfig {
        receive_buffer: fixed(60_000),
        send_buffer_bytes: 200_000,
        opportunistic,
        scheduler: scheduler.to_owned(),
        ..ConnectionConfig::ideal()
    };
    let loss = if seed.is_multiple_of(2) { 0 } else { 10 };
    let lines = vec![line(10, 400, loss), line(250, 6_000, loss)];
    TestNetwork::new(seed, lines, [config(), config()])
}

#[test]
fn a_slow_path_that_blocks_the_window_is_relieved_without_harm() {
    for variant in [OpportunisticMode::Off, OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg]
    {
        for other in
            [OpportunisticMode::Off, OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg]
        {
            for (seed, scheduler) in ["min-rtt", "linux", "round-robin", "ecf"].iter().enumerate() {
                let switches = OpportunisticConfig { retransmission: variant, penalisation: other };
                let mut world = blocked_world(seed as u64, switches, scheduler);
                let what = format!("{switches:?} {scheduler}");
                world.deliver([400_000, 50_000], seconds(120), &what);
            }
        }
    }
}

#[test]
fn opportunistic_retransmission_and_penalisation_act_and_help() {
    let time = |variant| {
        let switches = OpportunisticConfig { retransmission: variant, penalisation: variant };
        let mut world = blocked_world(0, switches, "round-robin");
        world.deliver([20_000_000, 0], seconds(300), "blocked");
        let status = world.status(0);
        let acted = status.reinjected_bytes[3] > 0 && status.penalisations > 0;
        assert_eq!(acted, variant != OpportunisticMode::Off, "{status:?}");
        world.ended_at[1]
    };
    let (off, on) = (time(OpportunisticMode::Off), time(OpportunisticMode::Nsdi12));
    assert!(on < off, "{on} with, {off} without");
}

/// Written data is kept in pieces of 32 KiB, whose ends do not show on the wire. The end of a
/// scheduler's burst may: 51 of 2,113 packets (117 when each piece was sent alone).
#[test]
fn as_linux_packets_are_full_for_any_write_sizes() {
    let lines = vec![line(10, 400, 0), line(30, 800, 0)];
    let mut world = TestNetwork::new(
        1,
        lines,
        [ConnectionConfig::linux_6_18(), ConnectionConfig::linux_6_18()],
    );
    let sizes = Rc::new(RefCell::new(Vec::new()));
    for middlebox in &mut world.middleboxes {
        let sizes = Rc::clone(&sizes);
        *middlebox = Some(Box::new(move |packet| {
            let len = packet.payload.len();
            let whole = if packet.segment_bytes == 0 { len } else { packet.segment_bytes.into() };
            sizes.borrow_mut().extend((0..len).step_by(whole.max(1)).map(|at| whole.min(len - at)));
            vec![packet]
        }));
    }
    world.ends[0].send(pattern(3_000_000, 1));
    world.ends[1].finish();
    world.run(seconds(60), TestNetwork::finished);
    assert_eq!(world.ends[0].closed, Some(Ok(())));
    let (packets, full) = (sizes.borrow().len(), sizes.borrow().iter().copied().max());
    let small = sizes.borrow().iter().filter(|size| Some(**size) < full).count();
    assert!(small * 30 < packets, "{small} of {packets} packets are not full");
}

/// Linux adds the smallest buffer of `tcp_wmem` to those of the subflows (`__mptcp_sync_sndbuf`).
#[test]
fn as_linux_the_minimum_buffer_is_added_to_that_of_subflows() {
    let taken = |least: u64, multipath: bool| {
        let config = || ConnectionConfig {
            send_buffer_min_bytes: least,
            multipath,
            ..ConnectionConfig::linux_6_18()
        };
        let mut world = TestNetwork::new(1, vec![line(10, 400, 0)], [config(), config()]);
        world.ends[0].leave_open(pattern(3_000_000, 1));
        world.run(Duration::from_millis(25), |_| false);
        3_000_000 - world.ends[0].unsent()
    };
    let more = taken(260_000, true) - taken(4_096, true);
    assert!((255_904..255_904 + 32_728).contains(&more), "{more}");
    assert_eq!(taken(260_000, false), taken(4_096, false), "TCP has only its own");
}

/// Linux checks for room in the send buffer only where a queued packet begins
/// (`tcp_sendmsg_locked`): 3.1 MB in flight were observed with a buffer of 252 KB. Multipath TCP
/// checks for each fragment that is written.
#[test]
fn as_linux_plain_tcp_sends_more_than_its_send_buffer() {
    const BYTES: usize = 30_000_000;
    const BUFFER: usize = 252_000;
    let most_held = |multipath: bool| {
        let mut config = ConnectionConfig { multipath, ..ConnectionConfig::linux_6_18() };
        config.send_buffer_min_bytes = 4_096;
        config.subflow.send_buffer_initial_bytes = BUFFER as u32;
        config.subflow.send_buffer_max_bytes = BUFFER as u32;
        let lines = vec![line(60, 250, 0)];
        let mut world = TestNetwork::new(1, lines, [config, ConnectionConfig::linux_6_18()]);
        world.ends[0].leave_open(pattern(BYTES, 1));
        let mut most = 0;
        world.run(seconds(4), |world| {
            let held = BYTES - world.ends[0].unsent() - world.ends[1].received.len();
            most = most.max(held);
            false
        });
        most
    };
    assert!(most_held(false) > 3 * BUFFER, "{}", most_held(false));
    assert!(most_held(true) < BUFFER + 40_000, "{}", most_held(true));
}
