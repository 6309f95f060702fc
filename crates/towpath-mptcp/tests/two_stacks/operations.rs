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
        let mode = self.opportunistic;
        config.opportunistic = OpportunisticConfig { retransmission: mode, penalisation: mode };
        config.checksum = self.checksum;
        let (buffer_mode, initial_bytes) = self.buffer;
        // A small window must be advertised exactly, in units of bytes.
        let is_small = initial_bytes < SMALL_BUFFER_BYTES;
        let max_bytes = if is_small { initial_bytes } else { 1 << 20 };
        let window_share = match self.profile {
            _ if is_small => WindowShare::Percent(100),
            Profile::Linux6x => WindowShare::Percent(50),
            Profile::Linux618 => WindowShare::LinuxPackets,
            Profile::Ideal => WindowShare::Percent(100),
        };
        config.receive_buffer =
            ReceiveBuffer { mode: buffer_mode, initial_bytes, max_bytes, window_share };
        config.send_buffer_bytes = self.send_buffer_bytes;
        config.nagle = self.nagle;
        config.no_join_to_initial = self.no_join_to_initial;
        config.accept_joins = self.accept_joins;
        let (timestamps, sack, window_scale) = self.options;
        config.subflow.timestamps = timestamps;
        config.subflow.sack = sack;
        config.subflow.window_scale = window_scale.then_some(10);
        config.subflow.ecn = self.ecn_and_pacing;
        config.subflow.pacing = self.ecn_and_pacing;
        config
    }
}

/// Permitted uses of an address.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AddressUse {
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
    /// The application closes its handle.
    Release {
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
        flags: AddressUse,
    },
    RemoveAddress {
        host: usize,
        path: usize,
    },
    ChangePath {
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
    /// Set to let all paths work again at the end.
    restores_paths: bool,
}

/// Virtual time that a connection may take to end after both applications have ended. 15
/// retransmissions take a quarter of an hour, plus the connection's own back-off.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(7_200);
/// Maximum number of windows within `MAX_CLOSE_TIME` if each takes the longest timeout, and some
/// are lost.
const MAX_SINGLE_PACKET_WINDOWS: usize = 40;
/// Time after which no state may be left: TIME-WAIT lasts 60 s.
const MAX_CLEANUP_TIME: Duration = Duration::from_secs(1_800);

impl Plan {
    fn may_fail(&self) -> bool {
        let has_faults = self.operations.iter().any(|(_, operation)| match operation {
            Operation::Mangle { mangle, .. } => may_break_connections(*mangle),
            Operation::Abort { .. } | Operation::Release { .. } => true,
            Operation::Path { up, .. } | Operation::Interface { up, .. } => !up,
            Operation::RemoveAddress { .. } => true,
            Operation::ChangePath { loss, .. } => *loss > 50,
            Operation::Write { .. } | Operation::Pause { .. } | Operation::Shutdown { .. } => false,
            Operation::TxReady { ready, .. } => !ready,
            Operation::Address { .. } => false,
        });
        has_faults || may_break_connections(self.middlebox)
    }

    fn changes_payload(&self) -> bool {
        self.middlebox == Mangle::ChangePayload
            || self.operations.iter().any(|(_, operation)| {
                matches!(operation, Operation::Mangle { mangle: Mangle::ChangePayload, .. })
            })
    }

    /// Returns true if data must arrive unchanged.
    fn is_protected(&self, network: &TestNetwork) -> bool {
        let multipath = self.hosts.iter().all(|host| host.multipath);
        let checksum = self.hosts.iter().any(|host| host.checksum);
        let fell_back = network.apps.iter().any(fell_back);
        !self.changes_payload() || (multipath && checksum && !fell_back)
    }

    fn build_network(&self) -> TestNetwork {
        let direction = |delay_ms: &u64| PathDirection {
            delay: Duration::from_millis(*delay_ms),
            ..PathDirection::default()
        };
        let directions = self.delays_ms.iter().map(|delay_ms| [direction(delay_ms); 2]).collect();
        let configs = self.hosts.map(|host| host.config());
        let mtus = &self.mtus[..self.delays_ms.len()];
        let mut network = TestNetwork::with_mtus(self.v6, self.seed, directions, mtus, configs);
        network.step_limit = 300_000;
        for path in 0..self.delays_ms.len() {
            network.middleboxes[path] = self.middlebox.middlebox();
        }
        network
    }

    /// Runs the plan, and returns the first violation.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut network = self.build_network();
        let mut written = [0, 0];
        let mut released = [false, false];
        for (gap_ms, operation) in &self.operations {
            network.advance(Duration::from_millis(*gap_ms));
            self.apply_operation(&mut network, operation, &mut written, &mut released);
        }
        self.end_connection(&mut network);
        network.run(
            network.now.saturating_since(towpath_net::Instant::ZERO) + MAX_CLOSE_TIME,
            |network| {
                network
                    .apps
                    .iter()
                    .zip(released)
                    .all(|(app, released)| released || is_over(app, network))
            },
        );
        self.check_apps(&mut network, written, released)?;
        network.advance(MAX_CLEANUP_TIME);
        for (host, stack) in network.stacks.iter().enumerate() {
            if !stack.is_idle() {
                return Err(format!(
                    "host {host} has something left: {:?} {stack:?}",
                    stack.poll_timeout()
                ));
            }
        }
        Ok(())
    }

    fn apply_operation(
        &self,
        network: &mut TestNetwork,
        operation: &Operation,
        written: &mut [usize; 2],
        released: &mut [bool; 2],
    ) {
        let now = network.now;
        match *operation {
            Operation::Write { host, bytes } => {
                if !network.apps[host].ends_stream() && !released[host] {
                    let bytes = bytes.min(self.max_write_bytes(host, written[host]));
                    let start = written[host];
                    written[host] += bytes;
                    let data = pattern(written[host], host as u64);
                    network.apps[host].append(&data[start..]);
                }
            }
            Operation::Pause { host, paused } => network.apps[host].paused = paused,
            Operation::Shutdown { host } => network.apps[host].end_stream(),
            Operation::Abort { host } => {
                if let Some(id) = network.apps[host].connection {
                    network.stacks[host].abort(now, id);
                }
            }
            Operation::Release { host } => {
                if let Some(id) = network.apps[host].connection {
                    network.stacks[host].release(now, id);
                    released[host] = true;
                }
            }
            Operation::Path { path, up } => {
                for direction in network.directions.get_mut(path).into_iter().flatten() {
                    direction.up = up;
                }
            }
            Operation::Interface { host, path, up } => {
                network.stacks[host].set_up(now, InterfaceId(path as u32), up);
            }
            Operation::TxReady { host, path, ready } => {
                network.set_tx_ready(host, path, ready);
            }
            Operation::Address { host, path, flags: uses } => {
                if path < network.directions.len() {
                    let AddressUse { subflow, signal, backup, fullmesh } = uses;
                    let address = network.local_address(host, path);
                    let address = LocalAddress { subflow, signal, backup, fullmesh, ..address };
                    network.stacks[host].set_address(now, address);
                }
            }
            Operation::RemoveAddress { host, path } => {
                let address = network.address(host, path);
                network.stacks[host].remove_address(now, address);
            }
            Operation::ChangePath { path, delay_ms, jitter_ms, loss, byte_nanos } => {
                for direction in network.directions.get_mut(path).into_iter().flatten() {
                    direction.delay = Duration::from_millis(delay_ms);
                    direction.jitter = Duration::from_millis(jitter_ms);
                    (direction.loss, direction.byte_nanos) = (loss, byte_nanos);
                }
            }
            Operation::Mangle { path, mangle } => {
                if path < network.directions.len() {
                    network.middleboxes[path] = mangle.middlebox();
                }
            }
        }
    }

    /// Returns the bytes that a host may write now. Much data would take too long with a window of
    /// a few bytes. A middlebox that merges packets holds a single packet until the next one; each
    /// window of less than a packet then costs a timeout. The timeout doubles to two minutes and
    /// stays there, since only retransmissions are acknowledged (RFC 6298 §3, §5.5).
    fn max_write_bytes(&self, host: usize, written: usize) -> usize {
        let window = self.hosts[1 - host].buffer.1;
        let merges = |(_, operation): &(u64, Operation)| {
            matches!(operation, Operation::Mangle { mangle: Mangle::Coalesce, .. })
        };
        let holds_single_packets =
            self.middlebox == Mangle::Coalesce || self.operations.iter().any(merges);
        if holds_single_packets && window < SMALL_BUFFER_BYTES {
            (window as usize * MAX_SINGLE_PACKET_WINDOWS).saturating_sub(written)
        } else {
            window as usize * 100
        }
    }

    /// Lets both applications read and end their streams; faults may be removed.
    fn end_connection(&self, network: &mut TestNetwork) {
        for app in &mut network.apps {
            app.paused = false;
            app.end_stream();
        }
        for path in 0..network.directions.len() {
            network.middleboxes[path] = self.middlebox.middlebox();
            for host in 0..2 {
                network.set_tx_ready(host, path, true);
            }
            if self.restores_paths {
                for direction in &mut network.directions[path] {
                    (direction.up, direction.loss) = (true, 0);
                }
                for stack in &mut network.stacks {
                    stack.set_up(network.now, InterfaceId(path as u32), true);
                }
            }
        }
    }

    fn check_apps(
        &self,
        network: &mut TestNetwork,
        written: [usize; 2],
        released: [bool; 2],
    ) -> Result<(), String> {
        let must_be_intact = self.is_protected(network);
        let has_failed = |app: &TestApp| matches!(app.closed, Some(Err(_)));
        for host in 0..2 {
            let (app, other) = (&network.apps[host], &network.apps[1 - host]);
            if released[host] {
                continue;
            }
            let data = pattern(written[1 - host], 1 - host as u64);
            let describe = || {
                let outcome = format!("{:?} then {:?}", app.notices, app.closed);
                format!("host {host} got {} of {}: {outcome}", app.received.len(), data.len())
            };
            if must_be_intact && !data.starts_with(&app.received) {
                return Err(format!("wrong data: {}", describe()));
            }
            let complete = app.received.len() + other.unsent() == data.len();
            if app.closed == Some(Ok(())) && !complete {
                return Err(format!("data is missing: {}", describe()));
            }
            if !self.may_fail() && app.closed != Some(Ok(())) {
                return Err(format!("an error for no reason: {} {:?}", describe(), other.closed));
            }
            // Without keep-alives, an end whose peer is gone waits forever.
            let peer_is_gone =
                released[1 - host] || has_failed(other) || other.connection.is_none();
            if let (None, Some(id)) = (app.closed, app.connection) {
                if !peer_is_gone {
                    return Err(format!("it hangs at {}: {}", network.now, describe()));
                }
                let now = network.now;
                network.stacks[host].abort(now, id);
            }
        }
        Ok(())
    }
}

fn is_over(app: &TestApp, network: &TestNetwork) -> bool {
    app.closed.is_some() || (app.connection.is_none() && network.apps[0].closed.is_some())
}

fn fell_back(app: &TestApp) -> bool {
    app.notices.iter().any(|notice| matches!(notice, StackNotice::Fallback(_)))
}

/// Returns true if the middlebox may break correct connections.
fn may_break_connections(mangle: Mangle) -> bool {
    match mangle {
        Mangle::Nothing | Mangle::Split | Mangle::Duplicate | Mangle::StripAddAddress => false,
        Mangle::StripAll | Mangle::StripDss | Mangle::StripJoin | Mangle::Coalesce => true,
        Mangle::ChangePayload | Mangle::Corrupt => true,
    }
}

fn select_name(names: impl Iterator<Item = &'static str>) -> impl Strategy<Value = &'static str> {
    select(names.collect::<Vec<_>>())
}

fn host() -> impl Strategy<Value = Host> {
    let profiles = vec![Profile::Linux6x, Profile::Linux618, Profile::Ideal];
    let kinds = (prop::bool::weighted(0.95), select(profiles), prop::bool::weighted(0.3));
    let algorithms = (
        select_name(scheduler::ALL.iter().map(|entry| entry.name)),
        select_name(path_manager::ALL.iter().map(|entry| entry.name)),
        select_name(congestion::ALL.iter().map(|entry| entry.name)),
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
    (kinds, algorithms, receive, send, flags, (often(), often(), often())).prop_map(
        |(kinds, algorithms, buffer, send_buffer_bytes, flags, options)| {
            let (multipath, profile, checksum) = kinds;
            let (scheduler, path_manager, congestion_control, opportunistic) = algorithms;
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
    let path_change = (0..3_usize, 0..60_u64, jitter, 0..50_u32, 50..5_000_u64).prop_map(
        |(path, delay_ms, jitter_ms, loss, byte_nanos)| Operation::ChangePath {
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
            flags: AddressUse { subflow, signal, backup, fullmesh },
        },
    );
    prop_oneof![
        8 => (0..2_usize, 1..20_000_usize)
            .prop_map(|(host, bytes)| Operation::Write { host, bytes }),
        2 => (0..2_usize, any::<bool>())
            .prop_map(|(host, paused)| Operation::Pause { host, paused }),
        1 => (0..2_usize).prop_map(|host| Operation::Shutdown { host }),
        2 => path_change,
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
        1 => (0..2_usize).prop_map(|host| Operation::Release { host }),
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
    let network_params = (any::<u32>(), prop::bool::weighted(0.3), prop::bool::weighted(0.7), mtus);
    ([host(), host()], delays, middlebox, operations, network_params).prop_map(
        |(hosts, delays_ms, middlebox, operations, (seed, v6, restores_paths, mtus))| {
            let seed = u64::from(seed);
            Plan { seed, v6, hosts, delays_ms, mtus, middlebox, operations, restores_paths }
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

fn no_middlebox() -> BoxedStrategy<Mangle> {
    Just(Mangle::Nothing).boxed()
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn applications_receive_all_sent_data_over_any_paths(plan in plan(benign_ops(), no_middlebox())) {
        prop_assert_eq!(plan.check(), Ok(()), "{:?}", plan);
    }

    #[test]
    fn changing_paths_and_addresses_loses_no_data(plan in plan(mobility_ops(), no_middlebox())) {
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
        plan in plan(all_ops(), prop_oneof![3 => no_middlebox(), 1 => select(MANGLES.to_vec())].boxed()),
    ) {
        prop_assert_eq!(plan.check(), Ok(()), "{:?}", plan);
    }
}

fn small_plan() -> Plan {
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
        restores_paths: false,
    }
}

fn plan_with(operations: &[(u64, Operation)]) -> Plan {
    Plan { operations: operations.to_vec(), ..small_plan() }
}

#[test]
fn regression_an_aborted_syn_leaves_nothing() {
    assert_eq!(plan_with(&[(0, Operation::Abort { host: 0 })]).check(), Ok(()));
}

#[test]
fn regression_a_shutdown_before_the_peer_confirms_is_delivered() {
    let shutdown = (0, Operation::Shutdown { host: 0 });
    let write = (2_000_000, Operation::Write { host: 0, bytes: 1 });
    assert_eq!(plan_with(&[shutdown, write]).check(), Ok(()));
}

#[test]
fn regression_a_released_connection_behind_a_dead_path_ends() {
    for failure in [
        Operation::Interface { host: 0, path: 0, up: false },
        Operation::Path { path: 0, up: false },
    ] {
        let write = Operation::Write { host: 0, bytes: 1 };
        let plan = plan_with(&[(0, write), (3, failure), (0, Operation::Release { host: 0 })]);
        assert_eq!(plan.check(), Ok(()));
    }
}

#[test]
fn regression_a_window_of_less_than_a_packet_opens_again() {
    let plan = plan_with(&[(0, Operation::Write { host: 1, bytes: 2_050 })]);
    assert_eq!(Plan { middlebox: Mangle::StripDss, ..plan }.check(), Ok(()));
}

#[test]
fn regression_a_write_that_outgrows_a_small_window_is_sent_in_time() {
    let [client, server] = small_plan().hosts;
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
    let plan = plan_with(&operations);
    let plan = Plan { hosts, delays_ms: vec![13], mtus: [4_000, 1_500, 1_500], ..plan };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_infinite_mappings_that_overtake_each_other_are_joined() {
    let path_change =
        Operation::ChangePath { path: 0, delay_ms: 0, jitter_ms: 2, loss: 9, byte_nanos: 50 };
    let plan = plan_with(&[(2, path_change), (0, Operation::Write { host: 0, bytes: 2_001 })]);
    let [client, server] = plan.hosts;
    let hosts = [client, Host { checksum: true, ..server }];
    let middlebox = Mangle::ChangePayload;
    assert_eq!(Plan { seed: 1_232_681_230, hosts, middlebox, ..plan }.check(), Ok(()));
}

#[test]
fn regression_options_that_vanish_early_end_no_data_before_its_time() {
    let strip = (0, Operation::Mangle { path: 0, mangle: Mangle::StripAll });
    for (server_bytes, client_bytes) in [(1, 1_433), (13_113, 1)] {
        let server_write = (50, Operation::Write { host: 1, bytes: server_bytes });
        let client_write = (16, Operation::Write { host: 0, bytes: client_bytes });
        let plan = Plan { delays_ms: vec![15], ..plan_with(&[server_write, strip, client_write]) };
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
    let [client, server] = small_plan().hosts;
    let client =
        Host { scheduler: "min-rtt", send_buffer_bytes: 10_000, accept_joins: false, ..client };
    let hosts = [client, Host { scheduler: "min-rtt", accept_joins: false, ..server }];
    let delays_ms = vec![1, 9];
    let plan = Plan { hosts, delays_ms, middlebox: Mangle::StripDss, ..plan_with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_a_released_connection_ends_when_its_peers_address_is_removed() {
    let operations = [
        (0, Operation::Pause { host: 1, paused: true }),
        (0, Operation::Write { host: 0, bytes: 1_413 }),
        (8, Operation::RemoveAddress { host: 1, path: 0 }),
        (0, Operation::Release { host: 0 }),
    ];
    let [client, server] = small_plan().hosts;
    let client = Host { accept_joins: false, ..client };
    let hosts = [client, Host { scheduler: "min-rtt", path_manager: "ndiffports", ..server }];
    let plan = Plan { v6: true, hosts, delays_ms: vec![1, 1], ..plan_with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_an_announcement_does_not_displace_a_data_ack() {
    let signal = AddressUse { signal: true, ..AddressUse::default() };
    let operations = [
        (0, Operation::Address { host: 0, path: 0, flags: signal }),
        (0, Operation::Write { host: 1, bytes: 1 }),
        (2_000_000, Operation::Write { host: 0, bytes: 1 }),
    ];
    let options = (true, false, false);
    let [client, server] = small_plan().hosts.map(|host| Host {
        scheduler: "min-rtt",
        accept_joins: false,
        options,
        ..host
    });
    let client = Host { buffer: (ReceiveBufferMode::Fixed, 8_000), ..client };
    let hosts = [client, Host { profile: Profile::Ideal, nagle: true, ..server }];
    let plan = Plan { v6: true, hosts, delays_ms: vec![1, 1], ..plan_with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_a_withdrawn_signal_flag_keeps_the_first_subflow() {
    let address = |signal| Operation::Address {
        host: 1,
        path: 0,
        flags: AddressUse { signal, ..AddressUse::default() },
    };
    let write = Operation::Write { host: 0, bytes: 1_413 };
    assert_eq!(plan_with(&[(0, address(true)), (0, write), (6, address(false))]).check(), Ok(()));
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
    let plan = Plan { seed: 3_165_725_460, v6: true, ..plan_with(&operations) };
    assert_eq!(Plan { hosts: [client, server], ..plan }.check(), Ok(()));
}

#[test]
fn regression_a_window_without_a_data_ack_opens_after_a_fallback() {
    let [host, _] = small_plan().hosts;
    let host = Host {
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
        hosts: [host, host],
        ..plan_with(&operations)
    };
    assert_eq!(plan.check(), Ok(()));
}

/// One byte at a time, each of which waits in the middlebox until a timeout retransmits it: slow,
/// but no stall.
#[test]
fn regression_a_middlebox_that_delays_packets_costs_one_timeout_each() {
    let [host, _] = small_plan().hosts;
    let host = Host { multipath: false, scheduler: "min-rtt", accept_joins: false, ..host };
    let hosts = [Host { buffer: (ReceiveBufferMode::Fixed, 1), ..host }, host];
    let plan = Plan { hosts, middlebox: Mangle::Coalesce, ..small_plan() };
    let mut network = plan.build_network();
    let bytes = 70;
    let data = pattern(bytes, 1);
    network.run(Duration::from_secs(1), |network| network.apps[1].connection.is_some());
    network.apps[1].append(&data);
    // The connection's own timeout is at most two minutes, and the path takes milliseconds.
    let max_timeout = Duration::from_millis(120_010);
    for received in 1..=bytes {
        let until = network.elapsed() + max_timeout;
        network.run(until, |network| network.apps[0].received.len() >= received);
        assert_eq!(network.apps[0].received, data[..received], "at {}", network.now);
    }
}

#[test]
fn regression_an_infinite_mapping_acknowledges_what_was_sent_before_it() {
    let [host, _] = small_plan().hosts;
    let host = Host { scheduler: "min-rtt", accept_joins: false, ..host };
    let host = Host { buffer: (ReceiveBufferMode::Fixed, 1), ..host };
    let operations = [
        (26, Operation::Write { host: 0, bytes: 12 }),
        (411, Operation::Write { host: 1, bytes: 10 }),
        (300, Operation::Mangle { path: 0, mangle: Mangle::StripAll }),
        (23, Operation::Write { host: 0, bytes: 2 }),
    ];
    let plan = Plan { delays_ms: vec![23], hosts: [host, host], ..plan_with(&operations) };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_an_infinite_mapping_may_overtake_mp_fail() {
    let [host, _] = small_plan().hosts;
    let host = Host { scheduler: "min-rtt", options: (true, false, false), ..host };
    let host = Host { accept_joins: false, ..host };
    let client = Host {
        path_manager: "single",
        checksum: true,
        buffer: (ReceiveBufferMode::Fixed, 8_000),
        ..host
    };
    let server = Host { path_manager: "fullmesh", send_buffer_bytes: 10_000, ..host };
    let path_change =
        Operation::ChangePath { path: 0, delay_ms: 0, jitter_ms: 1, loss: 8, byte_nanos: 50 };
    let operations = [
        (0, Operation::Write { host: 0, bytes: 1 }),
        (0, Operation::Write { host: 1, bytes: 5_601 }),
        (500, Operation::Mangle { path: 0, mangle: Mangle::ChangePayload }),
        (0, path_change),
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
        ..plan_with(&operations)
    };
    assert_eq!(plan.check(), Ok(()));
}

#[test]
fn regression_a_peer_whose_window_stays_closed_is_alive() {
    let [host, _] = small_plan().hosts;
    let host = Host { scheduler: "min-rtt", ..host };
    let client = Host {
        profile: Profile::Ideal,
        path_manager: "ndiffports",
        buffer: (ReceiveBufferMode::Fixed, 8_000),
        accept_joins: false,
        ..host
    };
    let server = Host { scheduler: "blest", buffer: (ReceiveBufferMode::Fixed, 1), ..host };
    let path_change =
        Operation::ChangePath { path: 0, delay_ms: 29, jitter_ms: 7, loss: 43, byte_nanos: 1_675 };
    let operations = [
        (6, path_change),
        (89, Operation::Write { host: 1, bytes: 8_001 }),
        (35, Operation::Write { host: 0, bytes: 2 }),
        (0, Operation::Pause { host: 0, paused: true }),
        (2_000_000, Operation::Write { host: 0, bytes: 1 }),
    ];
    for profile in [Profile::Linux6x, Profile::Linux618] {
        let hosts = [client, Host { profile, ..server }];
        let plan =
            Plan { seed: 2_263_234_249, hosts, delays_ms: vec![47], ..plan_with(&operations) };
        assert_eq!(plan.check(), Ok(()), "{profile:?}");
    }
}
