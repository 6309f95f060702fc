//! Random operations on whole connections. Every byte arrives once and in order, or a clean error
//! occurs. No connection hangs, and no state remains.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_mptcp::path_manager;
use towpath_mptcp::stack::{InterfaceId, LocalAddress, StackNotice};
use towpath_multipath::opportunistic::{OpportunisticConfig, OpportunisticMode};
use towpath_multipath::{congestion, scheduler};

use crate::middlebox::Mangle;
use crate::network::{PathDirection, TestApp, TestNetwork, pattern};
use crate::repetitions::repeat;

/// Profile of a host, which selects its switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Linux6x,
    Linux618,
    Ideal,
}

/// Settings of a host in a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host {
    multipath: bool,
    profile: Profile,
    scheduler: &'static str,
    path_manager: &'static str,
    congestion_control: &'static str,
    opportunistic: OpportunisticMode,
    checksum: bool,
    buffer: (ReceiveBufferMode, u64),
    send_buffer_bytes: u64,
    nagle: bool,
    no_join_to_initial: bool,
    accept_joins: bool,
    /// TCP options: timestamps, SACK, window scale.
    options: (bool, bool, bool),
    ecn_and_pacing: bool,
}

/// The smallest receive buffer that may grow.
const SMALL_BUFFER_BYTES: u64 = 3_000;

/// Host with the behaviour of Linux.
const LINUX: Host = Host {
    multipath: true,
    profile: Profile::Linux6x,
    scheduler: "linux",
    path_manager: "default",
    congestion_control: "cubic",
    opportunistic: OpportunisticMode::Off,
    checksum: false,
    buffer: (ReceiveBufferMode::Linux, 131_072),
    send_buffer_bytes: 1 << 20,
    nagle: false,
    no_join_to_initial: false,
    accept_joins: true,
    options: (true, true, true),
    ecn_and_pacing: false,
};

impl Host {
    fn config(&self) -> ConnectionConfig {
        let mut config = match self.profile {
            Profile::Linux6x => ConnectionConfig::linux(),
            Profile::Linux618 => ConnectionConfig::linux_6_18(),
            Profile::Ideal => ConnectionConfig::ideal(),
        };
        config.multipath = self.multipath;
        self.scheduler.clone_into(&mut config.scheduler);
        self.path_manager.clone_into(&mut config.path_manager);
        self.congestion_control.clone_into(&mut config.subflow.congestion_control);
        let variant = self.opportunistic;
        config.opportunistic =
            OpportunisticConfig { retransmission: variant, penalisation: variant };
        config.checksum = self.checksum;
        let (mode, initial_bytes) = self.buffer;
        // A small window must be advertised exactly, in units of bytes.
        let tiny = initial_bytes < SMALL_BUFFER_BYTES;
        let max_bytes = if tiny { initial_bytes } else { 1 << 20 };
        let window_share = match self.profile {
            _ if tiny => WindowShare::Percent(100),
            Profile::Linux6x => WindowShare::Percent(50),
            Profile::Linux618 => WindowShare::LinuxPackets,
            Profile::Ideal => WindowShare::Percent(100),
        };
        config.receive_buffer = ReceiveBuffer { mode, initial_bytes, max_bytes, window_share };
        config.send_buffer_bytes = self.send_buffer_bytes;
        config.nagle = self.nagle;
        config.no_join_to_initial = self.no_join_to_initial;
        config.accept_joins = self.accept_joins;
        let (timestamps, sack, scale) = self.options;
        config.subflow.timestamps = timestamps;
        config.subflow.sack = sack;
        config.subflow.window_scale = scale.then_some(10);
        config.subflow.ecn = self.ecn_and_pacing;
        config.subflow.pacing = self.ecn_and_pacing;
        config
    }
}

/// Permitted uses of an address.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Use {
    subflow: bool,
    signal: bool,
    backup: bool,
    fullmesh: bool,
}

/// Operation during a connection. `host` 0 opens it, 1 listens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Write {
        host: usize,
        bytes: usize,
    },
    Pause {
        host: usize,
        paused: bool,
    },
    Shutdown {
        host: usize,
    },
    Abort {
        host: usize,
    },
    Forget {
        host: usize,
    },
    /// A path drops everything, or works again.
    Path {
        path: usize,
        up: bool,
    },
    Interface {
        host: usize,
        path: usize,
        up: bool,
    },
    /// The driver's queue is full, or has room again.
    TxReady {
        host: usize,
        path: usize,
        ready: bool,
    },
    Address {
        host: usize,
        path: usize,
        flags: Use,
    },
    RemoveAddress {
        host: usize,
        path: usize,
    },
    Line {
        path: usize,
        delay_ms: u64,
        jitter_ms: u64,
        loss: u32,
        byte_nanos: u64,
    },
    Mangle {
        path: usize,
        mangle: Mangle,
    },
}

/// Plan of a connection's whole life.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    seed: u64,
    v6: bool,
    hosts: [Host; 2],
    /// One-way delay of each path in ms; `mtus` holds the MTUs.
    delays_ms: Vec<u64>,
    mtus: [u32; 3],
    /// Middlebox on the path for the whole run; operations may add others.
    middlebox: Mangle,
    /// Operations, each with the milliseconds since the previous one.
    operations: Vec<(u64, Operation)>,
    /// Set when all paths work again at the end.
    heal: bool,
}

/// Virtual time that a connection may take to end after both applications have ended. 15
/// retransmissions take a quarter of an hour, plus the connection's own back-off.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(7_200);
/// Windows that pass within it if each takes the longest timeout, and some are lost.
const MAX_LONE_WINDOWS: usize = 40;
/// Time after which no state may be left: TIME-WAIT lasts 60 s.
const MAX_CLEANUP_TIME: Duration = Duration::from_secs(1_800);

impl Plan {
    fn is_hostile(&self) -> bool {
        let changes = self.operations.iter().any(|(_, operation)| match operation {
            Operation::Mangle { mangle, .. } => hostile(*mangle),
            Operation::Abort { .. } | Operation::Forget { .. } => true,
            Operation::Path { up, .. } | Operation::Interface { up, .. } => !up,
            Operation::RemoveAddress { .. } => true,
            Operation::Line { loss, .. } => *loss > 50,
            Operation::Write { .. } | Operation::Pause { .. } | Operation::Shutdown { .. } => false,
            Operation::TxReady { ready: room, .. } => !room,
            Operation::Address { .. } => false,
        });
        changes || hostile(self.middlebox)
    }

    fn changes_payload(&self) -> bool {
        self.middlebox == Mangle::ChangePayload
            || self.operations.iter().any(|(_, operation)| {
                matches!(operation, Operation::Mangle { mangle: Mangle::ChangePayload, .. })
            })
    }

    /// Returns true if data must arrive unchanged.
    fn is_protected(&self, world: &TestNetwork) -> bool {
        let multipath = self.hosts.iter().all(|host| host.multipath);
        let checksum = self.hosts.iter().any(|host| host.checksum);
        let fell_back = world.ends.iter().any(fell_back);
        !self.changes_payload() || (multipath && checksum && !fell_back)
    }

    fn world(&self) -> TestNetwork {
        let line = |delay_ms: &u64| PathDirection {
            delay: Duration::from_millis(*delay_ms),
            ..PathDirection::default()
        };
        let lines = self.delays_ms.iter().map(|delay| [line(delay); 2]).collect();
        let configs = self.hosts.map(|host| host.config());
        let mtus = &self.mtus[..self.delays_ms.len()];
        let mut world = TestNetwork::with_mtus(self.v6, self.seed, lines, mtus, configs);
        world.step_limit = 300_000;
        for path in 0..self.delays_ms.len() {
            world.middleboxes[path] = self.middlebox.middlebox();
        }
        world
    }

    /// Runs the plan, and returns the first violation.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut world = self.world();
        let mut written = [0, 0];
        let mut forgotten = [false, false];
        for (gap_ms, operation) in &self.operations {
            world.pass(Duration::from_millis(*gap_ms));
            self.operate(&mut world, operation, &mut written, &mut forgotten);
        }
        self.end(&mut world);
        world.run(
            world.now.saturating_since(towpath_net::Instant::ZERO) + MAX_CLOSE_TIME,
            |world| {
                world
                    .ends
                    .iter()
                    .zip(forgotten)
                    .all(|(end, forgotten)| forgotten || over(end, world))
            },
        );
        self.check_ends(&mut world, written, forgotten)?;
        world.pass(MAX_CLEANUP_TIME);
        for (host, stack) in world.stacks.iter().enumerate() {
            if !stack.is_idle() {
                return Err(format!(
                    "host {host} has something left: {:?} {stack:?}",
                    stack.poll_timeout()
                ));
            }
        }
        Ok(())
    }

    fn operate(
        &self,
        world: &mut TestNetwork,
        operation: &Operation,
        written: &mut [usize; 2],
        forgotten: &mut [bool; 2],
    ) {
        let now = world.now;
        match *operation {
            Operation::Write { host, bytes } => {
                if !world.ends[host].finishes() && !forgotten[host] {
                    let bytes = bytes.min(self.max_write_bytes(host, written[host]));
                    let from = written[host];
                    written[host] += bytes;
                    let data = pattern(written[host], host as u64);
                    world.ends[host].append(&data[from..]);
                }
            }
            Operation::Pause { host, paused } => world.ends[host].paused = paused,
            Operation::Shutdown { host } => world.ends[host].finish(),
            Operation::Abort { host } => {
                if let Some(id) = world.ends[host].connection {
                    world.stacks[host].abort(now, id);
                }
            }
            Operation::Forget { host } => {
                if let Some(id) = world.ends[host].connection {
                    world.stacks[host].release(now, id);
                    forgotten[host] = true;
                }
            }
            Operation::Path { path, up } => {
                for line in world.lines.get_mut(path).into_iter().flatten() {
                    line.up = up;
                }
            }
            Operation::Interface { host, path, up } => {
                world.stacks[host].set_up(now, InterfaceId(path as u32), up);
            }
            Operation::TxReady { host, path, ready: room } => {
                world.set_room(host, path, room);
            }
            Operation::Address { host, path, flags: what } => {
                if path < world.lines.len() {
                    let Use { subflow, signal, backup, fullmesh } = what;
                    let local = world.local(host, path);
                    let local = LocalAddress { subflow, signal, backup, fullmesh, ..local };
                    world.stacks[host].set_address(now, local);
                }
            }
            Operation::RemoveAddress { host, path } => {
                let address = world.address(host, path);
                world.stacks[host].remove_address(now, address);
            }
            Operation::Line { path, delay_ms, jitter_ms, loss, byte_nanos } => {
                for line in world.lines.get_mut(path).into_iter().flatten() {
                    line.delay = Duration::from_millis(delay_ms);
                    line.jitter = Duration::from_millis(jitter_ms);
                    (line.loss, line.byte_nanos) = (loss, byte_nanos);
                }
            }
            Operation::Mangle { path, mangle } => {
                if path < world.lines.len() {
                    world.middleboxes[path] = mangle.middlebox();
                }
            }
        }
    }

    /// Returns the bytes that a host may write now: single-byte windows would take too long for
    /// much data. A middlebox that merges packets holds a single packet until the next comes. A
    /// window of less than a packet then costs a timeout for each. The timeout doubles to two
    /// minutes and stays there, since only retransmissions are acknowledged (RFC 6298 §3, §5.5).
    /// All writes of the host are limited in this case.
    fn max_write_bytes(&self, host: usize, written: usize) -> usize {
        let window = self.hosts[1 - host].buffer.1;
        let merges = |(_, operation): &(u64, Operation)| {
            matches!(operation, Operation::Mangle { mangle: Mangle::Coalesce, .. })
        };
        let lone = self.middlebox == Mangle::Coalesce || self.operations.iter().any(merges);
        if lone && window < SMALL_BUFFER_BYTES {
            (window as usize * MAX_LONE_WINDOWS).saturating_sub(written)
        } else {
            window as usize * 100
        }
    }

    /// Lets both applications read and end their writes; faults may be removed.
    fn end(&self, world: &mut TestNetwork) {
        for end in &mut world.ends {
            end.paused = false;
            end.finish();
        }
        for path in 0..world.lines.len() {
            world.middleboxes[path] = self.middlebox.middlebox();
            for host in 0..2 {
                world.set_room(host, path, true);
            }
            if self.heal {
                for line in &mut world.lines[path] {
                    (line.up, line.loss) = (true, 0);
                }
                for stack in &mut world.stacks {
                    stack.set_up(world.now, InterfaceId(path as u32), true);
                }
            }
        }
    }

    fn check_ends(
        &self,
        world: &mut TestNetwork,
        written: [usize; 2],
        forgotten: [bool; 2],
    ) -> Result<(), String> {
        let protected = self.is_protected(world);
        let failed = |end: &TestApp| matches!(end.closed, Some(Err(_)));
        for host in 0..2 {
            let (end, other) = (&world.ends[host], &world.ends[1 - host]);
            if forgotten[host] {
                continue;
            }
            let sent = pattern(written[1 - host], 1 - host as u64);
            let state = || {
                let outcome = format!("{:?} then {:?}", end.notices, end.closed);
                format!("host {host} got {} of {}: {outcome}", end.received.len(), sent.len())
            };
            if protected && !sent.starts_with(&end.received) {
                return Err(format!("wrong data: {}", state()));
            }
            let complete = end.received.len() + other.unsent() == sent.len();
            if end.closed == Some(Ok(())) && !complete {
                return Err(format!("data is missing: {}", state()));
            }
            if !self.is_hostile() && end.closed != Some(Ok(())) {
                return Err(format!("an error for no reason: {} {:?}", state(), other.closed));
            }
            // Without keep-alives, an end whose peer is gone waits forever.
            let deserted = forgotten[1 - host] || failed(other) || other.connection.is_none();
            if let (None, Some(id)) = (end.closed, end.connection) {
                if !deserted {
                    return Err(format!("it hangs at {}: {}", world.now, state()));
                }
                let now = world.now;
                world.stacks[host].abort(now, id);
            }
        }
        Ok(())
    }
}

fn over(end: &TestApp, world: &TestNetwork) -> bool {
    end.closed.is_some() || (end.connection.is_none() && world.ends[0].closed.is_some())
}

fn fell_back(end: &TestApp) -> bool {
    end.notices.iter().any(|notice| matches!(notice, StackNotice::Fallback(_)))
}

/// Returns true if the middlebox may break correct connections.
fn hostile(mangle: Mangle) -> bool {
    match mangle {
        Mangle::Nothing | Mangle::Split | Mangle::Duplicate | Mangle::StripAddAddress => false,
        Mangle::StripAll | Mangle::StripDss | Mangle::StripJoin | Mangle::Coalesce => true,
        Mangle::ChangePayload | Mangle::Corrupt => true,
    }
}

fn names(all: impl Iterator<Item = &'static str>) -> impl Strategy<Value = &'static str> {
    select(all.collect::<Vec<_>>())
}

fn host() -> impl Strategy<Value = Host> {
    let profiles = vec![Profile::Linux6x, Profile::Linux618, Profile::Ideal];
    let kinds = (prop::bool::weighted(0.95), select(profiles), prop::bool::weighted(0.3));
    let chosen = (
        names(scheduler::ALL.iter().map(|entry| entry.name)),
        names(path_manager::ALL.iter().map(|entry| entry.name)),
        names(congestion::ALL.iter().map(|entry| entry.name)),
        select(vec![
            OpportunisticMode::Off,
            OpportunisticMode::Nsdi12,
            OpportunisticMode::MptcpOrg,
        ]),
    );
    let modes =
        [ReceiveBufferMode::Fixed, ReceiveBufferMode::Linux, ReceiveBufferMode::Barre2011].to_vec();
    let tiny = vec![1, 2, 10, 100, 500, 1_200, 1_500, 2_900];
    let receive = prop_oneof![
        3 => (select(modes), select(vec![SMALL_BUFFER_BYTES, 8_000, 20_000, 131_072])),
        1 => (Just(ReceiveBufferMode::Fixed), select(tiny)),
    ];
    let send = select(vec![2_000, 10_000, 50_000, 1 << 20]);
    let rare = || prop::bool::weighted(0.1);
    let often = || prop::bool::weighted(0.9);
    let flags = (rare(), rare(), often(), rare());
    (kinds, chosen, receive, send, flags, (often(), often(), often())).prop_map(
        |(kinds, chosen, buffer, send_buffer_bytes, flags, options)| {
            let (multipath, profile, checksum) = kinds;
            let (scheduler, path_manager, congestion_control, opportunistic) = chosen;
            let (nagle, no_join_to_initial, accept_joins, ecn_and_pacing) = flags;
            Host {
                multipath,
                profile,
                scheduler,
                path_manager,
                congestion_control,
                opportunistic,
                checksum,
                buffer,
                send_buffer_bytes,
                nagle,
                no_join_to_initial,
                accept_joins,
                options,
                ecn_and_pacing,
            }
        },
    )
}

/// Middleboxes that plans put on paths.
const MANGLES: [Mangle; 10] = [
    Mangle::Nothing,
    Mangle::StripAll,
    Mangle::StripDss,
    Mangle::StripJoin,
    Mangle::StripAddAddress,
    Mangle::Split,
    Mangle::Coalesce,
    Mangle::ChangePayload,
    Mangle::Duplicate,
    Mangle::Corrupt,
];

/// Returns operations of applications without any fault.
fn benign_ops() -> BoxedStrategy<Operation> {
    let jitter = prop_oneof![3 => 0..10_u64, 1 => 10..200_u64];
    let line = (0..3_usize, 0..60_u64, jitter, 0..50_u32, 50..5_000_u64).prop_map(
        |(path, delay_ms, jitter_ms, loss, byte_nanos)| Operation::Line {
            path,
            delay_ms,
            jitter_ms,
            loss,
            byte_nanos,
        },
    );
    let address = (0..2_usize, 0..3_usize, any::<(bool, bool, bool, bool)>()).prop_map(
        |(host, path, (subflow, signal, backup, fullmesh))| Operation::Address {
            host,
            path,
            flags: Use { subflow, signal, backup, fullmesh },
        },
    );
    prop_oneof![
        8 => (0..2_usize, 1..20_000_usize)
            .prop_map(|(host, bytes)| Operation::Write { host, bytes }),
        2 => (0..2_usize, any::<bool>())
            .prop_map(|(host, paused)| Operation::Pause { host, paused }),
        1 => (0..2_usize).prop_map(|host| Operation::Shutdown { host }),
        2 => line,
        2 => address,
    ]
    .boxed()
}

/// Returns operations that add and remove paths and addresses.
fn mobility_ops() -> BoxedStrategy<Operation> {
    prop_oneof![
        3 => benign_ops(),
        1 => (0..2_usize, 0..3_usize, any::<bool>())
            .prop_map(|(host, path, ready)| Operation::TxReady { host, path, ready }),
        1 => (0..3_usize, any::<bool>()).prop_map(|(path, up)| Operation::Path { path, up }),
        1 => (0..2_usize, 0..3_usize, any::<bool>())
            .prop_map(|(host, path, up)| Operation::Interface { host, path, up }),
        1 => (0..2_usize, 0..3_usize)
            .prop_map(|(host, path)| Operation::RemoveAddress { host, path }),
    ]
    .boxed()
}

/// Returns operations that add and remove middleboxes.
fn middlebox_ops() -> BoxedStrategy<Operation> {
    let mangle = (0..3_usize, select(MANGLES.to_vec()))
        .prop_map(|(path, mangle)| Operation::Mangle { path, mangle });
    prop_oneof![3 => benign_ops(), 1 => mangle].boxed()
}

/// Returns all operations, including early ends.
fn all_ops() -> BoxedStrategy<Operation> {
    prop_oneof![
        4 => mobility_ops(),
        4 => middlebox_ops(),
        1 => (0..2_usize).prop_map(|host| Operation::Abort { host }),
        1 => (0..2_usize).prop_map(|host| Operation::Forget { host }),
    ]
    .boxed()
}

fn plan(
    operation: BoxedStrategy<Operation>,
    middlebox: BoxedStrategy<Mangle>,
) -> impl Strategy<Value = Plan> {
    let gap = prop_oneof![3 => 0..50_u64, 2 => 50..500_u64, 1 => 500..5_000_u64, 1 => select(vec![70_000, 2_000_000])];
    let operations = prop::collection::vec((gap, operation), 1..12);
    let delays = prop::collection::vec(1..60_u64, 1..4);
    let mtu = || select(vec![1_500, 1_500, 1_500, 1_280, 1_400, 4_000, 8_920, 9_000, 65_535]);
    let mtus = [mtu(), mtu(), mtu()];
    let world = (any::<u32>(), prop::bool::weighted(0.3), prop::bool::weighted(0.7), mtus);
    ([host(), host()], delays, middlebox, operations, world).prop_map(
        |(hosts, delays_ms, middlebox, operations, (seed, v6, heal, mtus))| {
            let seed = u64::from(seed);
            Plan { seed, v6, hosts, delays_ms, mtus, middlebox, operations, heal }
        },
    )
}

/// Returns the settings: the same plans on every run, and more with `cargo xtask test --all`.
/// `PROPTEST_RNG_SEED` selects other plans, and `PROPTEST_CASES` their number.
fn settings() -> ProptestConfig {
    let mut settings = ProptestConfig {
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        settings.cases = repeat([60, 600, 5_000]);
    }
    if settings.rng_seed == RngSeed::Random {
        settings.rng_seed = RngSeed::Fixed(1);
    }
    settings
}

fn nothing() -> BoxedStrategy<Mangle> {
    Just(Mangle::Nothing).boxed()
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn applications_receive_all_sent_data_over_any_paths(plan in plan(benign_ops(), nothing())) {
        prop_assert_eq!(plan.check(), Ok(()), "{:?}", plan);
    }

    #[test]
    fn changing_paths_and_addresses_loses_no_data(plan in plan(mobility_ops(), nothing())) {
        prop_assert_eq!(plan.check(), Ok(()), "{:?}", plan);
    }

    #[test]
    fn middleboxes_make_no_connection_hang(
        plan in plan(middlebox_ops(), select(MANGLES.to_vec()).boxed()),
    ) {
        prop_assert_eq!(plan.check(), Ok(()), "{:?}", plan);
    }

    #[test]
    fn every_connection_ends_and_leaves_no_state(
        plan in plan(all_ops(), prop_oneof![3 => nothing(), 1 => select(MANGLES.to_vec())].boxed()),
    ) {
        prop_assert_eq!(plan.check(), Ok(()), "{:?}", plan);
    }
}

fn small() -> Plan {
    let buffer = (ReceiveBufferMode::Fixed, 3_000);
    let host = Host { buffer, send_buffer_bytes: 2_000, options: (false, false, false), ..LINUX };
    Plan {
        seed: 0,
        v6: false,
        hosts: [host; 2],
        delays_ms: vec![1],
        mtus: [1_500; 3],
        middlebox: Mangle::Nothing,
        operations: Vec::new(),
        heal: false,
    }
}

fn with(operations: &[(u64, Operation)]) -> Plan {
    Plan { operations: operations.to_vec(), ..small() }
}

#[test]
fn regression_an_aborted_syn_leaves_nothing() {
    assert_eq!(with(&[(0, Operation::Abort { host: 0 })]).check(), Ok(()));
}

#[test]
fn regression_a_shutdown_before_the_peer_confirms_is_delivered() {
    let shutdown = (0, Operation::Shutdown { host: 0 });
    let write = (2_000_000, Operation::Write { host: 0, bytes: 1 });
    assert_eq!(with(&[shutdown, write]).check(), Ok(()));
}

#[test]
fn regression_a_released_connection_behind_a_dead_path_ends() {
    for gone in [
        Operation::Interface { host: 0, path: 0, up: false },
        Operation::Path { path: 0, up: false },
    ] {
        let write = Operation::Write { host: 0, bytes: 1 };
        let plan = with(&[(0, write), (3, gone), (0, Operation::Forget { host: 0 })]);
        assert_eq!(plan.check(), Ok(()));
    }
}

#[test]
fn regression_a_window_of_less_than_a_packet_opens_again() {
    let plan = with(&[(0, Operation::Write { host: 1, bytes: 2_050 })]);
    assert_eq!(Plan { middlebox: Mangle::StripDss, ..plan }.check(), Ok(()));
}

#[test]
fn regression_a_write_that_outgrows_a_small_window_is_sent_in_time() {
    let [client, server] = small().hosts;
    let client = Host {
        multipath: false,
        profile: Profile::Ideal,
        buffer: (ReceiveBufferMode::Fixed, 8_000),
        send_buffer_bytes: 10_000,
        options: (false, false, true),
        ..client
    };
    let server = Host {
        multipath: false,
        profile: Profile::Linux6x,
        buffer: (ReceiveBufferMode::Fixed, 20_000),
        send_buffer_bytes: 2_000,
        options: (false, false, true),
        ..server
    };
    let operations = [
        (16, Operation::Write { host: 1, bytes: 10_049 }),
        (37, Operation::Pause { host: 0, paused: true }),
        (333, Operation::Write { host: 0, bytes: 1 }),
    ];
    let hosts = [client, server];
    let plan = with(&operations);
    let plan = Plan { hosts, delays_ms: vec![13], mtus: [4_000, 1_500, 1_500], ..plan };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_infinite_mappings_that_overtake_each_other_are_joined() {
    let line = Operation::Line { path: 0, delay_ms: 0, jitter_ms: 2, loss: 9, byte_nanos: 50 };
    let plan = with(&[(2, line), (0, Operation::Write { host: 0, bytes: 2_001 })]);
    let [client, server] = plan.hosts;
    let hosts = [client, Host { checksum: true, ..server }];
    let middlebox = Mangle::ChangePayload;
    assert_eq!(Plan { seed: 1_232_681_230, hosts, middlebox, ..plan }.check(), Ok(()));
}

#[test]
fn regression_options_that_vanish_early_end_no_data_before_its_time() {
    let strip = (0, Operation::Mangle { path: 0, mangle: Mangle::StripAll });
    for (there, back) in [(1, 1_433), (13_113, 1)] {
        let there = (50, Operation::Write { host: 1, bytes: there });
        let back = (16, Operation::Write { host: 0, bytes: back });
        let plan = Plan { delays_ms: vec![15], ..with(&[there, strip, back]) };
        assert_eq!(plan.check(), Ok(()));
    }
}

#[test]
fn regression_a_peer_that_fell_back_gets_no_fin_before_the_end_of_data() {
    let operations = [
        (0, Operation::Mangle { path: 0, mangle: Mangle::Nothing }),
        (0, Operation::Write { host: 0, bytes: 1 }),
        (4, Operation::Write { host: 0, bytes: 1_433 }),
    ];
    let [client, server] = small().hosts;
    let client =
        Host { scheduler: "min-rtt", send_buffer_bytes: 10_000, accept_joins: false, ..client };
    let hosts = [client, Host { scheduler: "min-rtt", accept_joins: false, ..server }];
    let delays_ms = vec![1, 9];
    let plan = Plan { hosts, delays_ms, middlebox: Mangle::StripDss, ..with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_a_released_connection_ends_when_its_peers_address_is_removed() {
    let operations = [
        (0, Operation::Pause { host: 1, paused: true }),
        (0, Operation::Write { host: 0, bytes: 1_413 }),
        (8, Operation::RemoveAddress { host: 1, path: 0 }),
        (0, Operation::Forget { host: 0 }),
    ];
    let [client, server] = small().hosts;
    let client = Host { accept_joins: false, ..client };
    let hosts = [client, Host { scheduler: "min-rtt", path_manager: "ndiffports", ..server }];
    let plan = Plan { v6: true, hosts, delays_ms: vec![1, 1], ..with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_an_announcement_does_not_displace_a_data_ack() {
    let signal = Use { signal: true, ..Use::default() };
    let operations = [
        (0, Operation::Address { host: 0, path: 0, flags: signal }),
        (0, Operation::Write { host: 1, bytes: 1 }),
        (2_000_000, Operation::Write { host: 0, bytes: 1 }),
    ];
    let options = (true, false, false);
    let [client, server] = small().hosts.map(|host| Host {
        scheduler: "min-rtt",
        accept_joins: false,
        options,
        ..host
    });
    let client = Host { buffer: (ReceiveBufferMode::Fixed, 8_000), ..client };
    let hosts = [client, Host { profile: Profile::Ideal, nagle: true, ..server }];
    let plan = Plan { v6: true, hosts, delays_ms: vec![1, 1], ..with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_a_withdrawn_signal_flag_keeps_the_first_subflow() {
    let address =
        |signal| Operation::Address { host: 1, path: 0, flags: Use { signal, ..Use::default() } };
    let write = Operation::Write { host: 0, bytes: 1_413 };
    assert_eq!(with(&[(0, address(true)), (0, write), (6, address(false))]).check(), Ok(()));
}

#[test]
fn regression_the_connections_timer_waits_longer_when_it_can_do_nothing() {
    let operations = [
        (0, Operation::Write { host: 1, bytes: 3_531 }),
        (70_000, Operation::Interface { host: 1, path: 0, up: false }),
        (36, Operation::Write { host: 1, bytes: 11_265 }),
        (37, Operation::Write { host: 0, bytes: 9_023 }),
    ];
    let [client, server] =
        [(ReceiveBufferMode::Barre2011, 3_000), (ReceiveBufferMode::Fixed, 8_000)].map(|buffer| {
            Host {
                profile: Profile::Ideal,
                scheduler: "min-rtt",
                buffer,
                send_buffer_bytes: 10_000,
                options: (false, true, false),
                ..LINUX
            }
        });
    let plan = Plan { seed: 3_165_725_460, v6: true, ..with(&operations) };
    assert_eq!(Plan { hosts: [client, server], ..plan }.check(), Ok(()));
}

#[test]
fn regression_a_window_without_a_data_ack_opens_after_a_fallback() {
    let [host, _] = small().hosts;
    let one = Host {
        scheduler: "min-rtt",
        options: (false, false, false),
        accept_joins: false,
        profile: Profile::Linux6x,
        multipath: true,
        buffer: (ReceiveBufferMode::Fixed, 3_000),
        send_buffer_bytes: 2_000,
        ..host
    };
    let operations = [
        (0, Operation::Mangle { path: 0, mangle: Mangle::StripJoin }),
        (0, Operation::Pause { host: 1, paused: true }),
        (0, Operation::Write { host: 0, bytes: 1_500 }),
        (0, Operation::Shutdown { host: 1 }),
        (4, Operation::Write { host: 0, bytes: 1 }),
    ];
    let plan = Plan {
        delays_ms: vec![1],
        middlebox: Mangle::StripDss,
        hosts: [one, one],
        ..with(&operations)
    };
    assert_eq!(plan.check(), Ok(()));
}

/// One byte at a time, each of which waits in the middlebox until a timeout retransmits it: slow,
/// but no stall.
#[test]
fn regression_a_middlebox_that_delays_packets_costs_one_timeout_each() {
    let [host, _] = small().hosts;
    let host = Host { multipath: false, scheduler: "min-rtt", accept_joins: false, ..host };
    let hosts = [Host { buffer: (ReceiveBufferMode::Fixed, 1), ..host }, host];
    let plan = Plan { hosts, middlebox: Mangle::Coalesce, ..small() };
    let mut world = plan.world();
    let bytes = 70;
    let sent = pattern(bytes, 1);
    world.run(Duration::from_secs(1), |world| world.ends[1].connection.is_some());
    world.ends[1].append(&sent);
    // The connection's own timeout is at most two minutes, and the path takes milliseconds.
    let longest = Duration::from_millis(120_010);
    for got in 1..=bytes {
        let until = world.elapsed() + longest;
        world.run(until, |world| world.ends[0].received.len() >= got);
        assert_eq!(world.ends[0].received, sent[..got], "at {}", world.now);
    }
}

#[test]
fn regression_an_infinite_mapping_acknowledges_what_was_sent_before_it() {
    let [host, _] = small().hosts;
    let host = Host { scheduler: "min-rtt", accept_joins: false, ..host };
    let one = Host { buffer: (ReceiveBufferMode::Fixed, 1), ..host };
    let operations = [
        (26, Operation::Write { host: 0, bytes: 12 }),
        (411, Operation::Write { host: 1, bytes: 10 }),
        (300, Operation::Mangle { path: 0, mangle: Mangle::StripAll }),
        (23, Operation::Write { host: 0, bytes: 2 }),
    ];
    let plan = Plan { delays_ms: vec![23], hosts: [one, one], ..with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_an_infinite_mapping_may_overtake_mp_fail() {
    let [host, _] = small().hosts;
    let host = Host { scheduler: "min-rtt", options: (true, false, false), ..host };
    let host = Host { accept_joins: false, ..host };
    let client = Host {
        path_manager: "single",
        checksum: true,
        buffer: (ReceiveBufferMode::Fixed, 8_000),
        ..host
    };
    let server = Host { path_manager: "fullmesh", send_buffer_bytes: 10_000, ..host };
    let line = Operation::Line { path: 0, delay_ms: 0, jitter_ms: 1, loss: 8, byte_nanos: 50 };
    let operations = [
        (0, Operation::Write { host: 0, bytes: 1 }),
        (0, Operation::Write { host: 1, bytes: 5_601 }),
        (500, Operation::Mangle { path: 0, mangle: Mangle::ChangePayload }),
        (0, line),
        (0, Operation::Write { host: 1, bytes: 1_401 }),
        (1, Operation::Write { host: 0, bytes: 1 }),
        (2, Operation::Write { host: 0, bytes: 1 }),
    ];
    let plan = Plan {
        seed: 1_494_783_678,
        v6: true,
        hosts: [client, server],
        delays_ms: vec![1, 1],
        middlebox: Mangle::Coalesce,
        ..with(&operations)
    };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_a_peer_whose_window_stays_closed_is_alive() {
    let [host, _] = small().hosts;
    let host = Host { scheduler: "min-rtt", ..host };
    let client = Host {
        profile: Profile::Ideal,
        path_manager: "ndiffports",
        buffer: (ReceiveBufferMode::Fixed, 8_000),
        accept_joins: false,
        ..host
    };
    let server = Host { scheduler: "blest", buffer: (ReceiveBufferMode::Fixed, 1), ..host };
    let line = Operation::Line { path: 0, delay_ms: 29, jitter_ms: 7, loss: 43, byte_nanos: 1_675 };
    let operations = [
        (6, line),
        (89, Operation::Write { host: 1, bytes: 8_001 }),
        (35, Operation::Write { host: 0, bytes: 2 }),
        (0, Operation::Pause { host: 0, paused: true }),
        (2_000_000, Operation::Write { host: 0, bytes: 1 }),
    ];
    for profile in [Profile::Linux6x, Profile::Linux618] {
        let hosts = [client, Host { profile, ..server }];
        let plan = Plan { seed: 2_263_234_249, hosts, delays_ms: vec![47], ..with(&operations) };
        assert_eq!(plan.check(), Ok(()), "{profile:?}");
    }
}
