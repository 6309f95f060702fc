//! Random scenario of one connection: drawn from a seed, executed, checked.

use std::time::Duration;

use mptcp_rs::{CloseReason, ConnectConfig, SubflowId};
use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_mptcp::path_manager;
use towpath_mptcp::stack::StackNotice;
use towpath_multipath::opportunistic::{OpportunisticConfig, OpportunisticMode};
use towpath_multipath::scheduler;
use towpath_net::Instant;

use crate::network::{ClientSubflow, Network, PathParams, Random, pattern, server_address};

/// Topic of a group of seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Nothing is lost: every join succeeds.
    Clean,
    /// Paths with loss, reordering and duplication.
    Lossy,
    /// Addresses and paths are added and removed, and priorities change.
    Mobile,
    /// Little data: the ends of both directions and of subflows cross.
    Close,
    /// One end aborts the connection.
    Abort,
    /// Slow readers and small buffers.
    Blocked,
}

/// Action of an end, or a change of a path.
#[derive(Debug, Clone, Copy)]
enum Action {
    Join { path: usize, server: usize, backup: bool },
    CloseSubflow(usize),
    RemoveClientAddress(usize),
    ClientBackup { nth: usize, backup: bool },
    Announce { server: usize },
    RemoveServerAddress { server: usize },
    ServerBackup { server: usize, backup: bool },
    Down(usize),
    Up(usize),
    AbortClient,
    AbortServer,
}

/// Time limit of the transfers.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(240);
/// Time limit for closing after that: TIME-WAIT of the client's subflows is 120 s.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval in which a client without a path opens a subflow again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) struct Scenario {
    topic: Topic,
    random: Random,
    network: Network,
    servers: usize,
    /// Client's path and server's address that are never removed.
    permanent_pair: (usize, usize),
    actions: Vec<(Instant, Action)>,
    /// Numbers of the addresses that the server has removed.
    removed_servers: Vec<usize>,
    /// Time of the last attempt to open the subflow between the permanent pair.
    permanent_tried_at: Option<Instant>,
    /// Bytes that client and server send.
    sent_bytes: [usize; 2],
}

/// Results of a run, for metrics over all seeds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) joined: usize,
    pub(crate) packets: u64,
    /// Time when both had all data.
    pub(crate) data_at: Duration,
}

impl Scenario {
    pub(crate) fn new(topic: Topic, seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ topic as u64);
        let paths = 1 + random.below(3) as usize;
        let servers = 1 + random.below(3) as usize;
        let path_list = (0..paths).map(|_| path_params(topic, &mut random)).collect();
        let config = server_config(topic, &mut random);
        let client = client_config(topic, &mut random);
        let mut network = Network::new(seed, path_list, servers, client, config);
        let sent_bytes = [data_bytes(topic, &mut random), data_bytes(topic, &mut random)];
        let last_closer = random.below(4);
        for (host, bytes) in sent_bytes.into_iter().enumerate() {
            let application = &mut network.applications[host];
            application.to_send = pattern(bytes, host as u64);
            application.closes_last = last_closer == host as u64;
            application.read_limit_bytes = (topic == Topic::Blocked && random.chance(50))
                .then(|| 1_000 + random.below(20_000) as usize);
        }
        let permanent_pair =
            (random.below(paths as u64) as usize, random.below(servers as u64) as usize);
        let permanent_pair = if topic == Topic::Mobile { permanent_pair } else { (0, 0) };
        let mut scenario = Self {
            topic,
            random,
            network,
            servers,
            permanent_pair,
            actions: Vec::new(),
            removed_servers: Vec::new(),
            permanent_tried_at: None,
            sent_bytes,
        };
        scenario.plan_actions(paths);
        scenario
    }

    fn plan_actions(&mut self, paths: usize) {
        let span_ms = if self.topic == Topic::Close { 300 } else { 3_000 };
        for path in 0..paths {
            for _ in 0..self.random.below(2) + u64::from(path > 0) {
                let server = self.random.below(self.servers as u64) as usize;
                let backup = self.random.chance(20);
                self.add_action(span_ms, Action::Join { path, server, backup });
            }
        }
        for server in 0..self.servers {
            if self.random.chance(40) {
                self.add_action(span_ms, Action::Announce { server });
            }
        }
        match self.topic {
            Topic::Clean | Topic::Lossy | Topic::Blocked => {}
            Topic::Close => {
                for _ in 0..self.random.below(3) {
                    let nth = self.random.below(4) as usize;
                    self.add_action(span_ms, Action::CloseSubflow(nth));
                }
            }
            Topic::Abort => {
                let aborts = [Action::AbortClient, Action::AbortServer];
                let first = self.random.below(2) as usize;
                self.add_action(span_ms, aborts[first]);
                if self.random.chance(20) {
                    self.add_action(span_ms, aborts[1 - first]);
                }
            }
            Topic::Mobile => self.plan_changes(paths),
        }
        self.actions.sort_by_key(|(time, _)| *time);
    }

    fn plan_changes(&mut self, paths: usize) {
        for _ in 0..2 + self.random.below(6) {
            let path = self.random.below(paths as u64) as usize;
            let server = self.random.below(self.servers as u64) as usize;
            let (nth, backup) = (self.random.below(4) as usize, self.random.chance(50));
            let action = match self.random.below(7) {
                0 if path != self.permanent_pair.0 => Action::RemoveClientAddress(path),
                1 if server != self.permanent_pair.1 => Action::RemoveServerAddress { server },
                2 => Action::CloseSubflow(nth),
                3 => Action::ServerBackup { server, backup },
                4 if path != self.permanent_pair.0 => {
                    let up_at_ms = 5_500 + self.random.below(3_000);
                    let time = Instant::ZERO + Duration::from_millis(up_at_ms);
                    self.actions.push((time, Action::Up(path)));
                    Action::Down(path)
                }
                5 => Action::Join { path, server, backup },
                _ => Action::ClientBackup { nth, backup },
            };
            // Before the first DSS the client may not open a replacement for a closed subflow.
            let time = Instant::ZERO + self.random.millis(1_500, 5_500);
            self.actions.push((time, action));
        }
    }

    fn add_action(&mut self, span_ms: u64, action: Action) {
        let time = Instant::ZERO + self.random.millis(0, span_ms);
        self.actions.push((time, action));
    }

    /// Runs the whole scenario, up to the close of both ends.
    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        self.network.print_trace(format_args!("{:?} {:?}", self.permanent_pair, self.actions));
        while !self.actions.is_empty()
            || self.topic == Topic::Mobile && !self.has_permanent_subflow()
        {
            if self.network.now > Instant::ZERO + TRANSFER_TIMEOUT {
                return Err("the refuge was never reached".to_owned());
            }
            // In half of the runs the ends do not wait for the remaining actions.
            let wait = self.topic == Topic::Mobile || self.random.chance(50);
            for application in &mut self.network.applications {
                application.may_close |= !wait;
            }
            self.step();
            if self.network.client_closed.is_some() && self.network.server_closed.is_some() {
                break;
            }
        }
        for application in &mut self.network.applications {
            application.may_close = true;
        }
        if self.topic == Topic::Abort {
            return self.check_abort();
        }
        self.network.run(Instant::ZERO + TRANSFER_TIMEOUT, |network| {
            network.applications.iter().all(|application| application.read_eof)
                && network.server_closed.is_some()
        });
        let data_at = self.network.now.saturating_since(Instant::ZERO);
        self.network.run(Instant::ZERO + TRANSFER_TIMEOUT + CLOSE_TIMEOUT, |network| {
            network.client_closed.is_some() && network.server_closed.is_some()
        });
        self.check_outcome(data_at)
    }

    /// Runs until the next planned change and applies it.
    fn step(&mut self) {
        let latest = self.network.now + REOPEN_INTERVAL;
        let stop_at = self.actions.first().map_or(latest, |(time, _)| *time).min(latest);
        self.network.run(stop_at, |_| false);
        self.answer_announcements();
        self.open_permanent_subflow();
        while let Some((time, action)) = self.actions.first().copied() {
            if time > self.network.now {
                break;
            }
            self.actions.remove(0);
            self.apply_action(action);
        }
    }

    fn has_permanent_subflow(&self) -> bool {
        let (path, remote) = (self.permanent_pair.0, server_address(self.permanent_pair.1));
        let is_permanent = |subflow: &&ClientSubflow| {
            subflow.path == path && subflow.remote == remote && subflow.up
        };
        self.network.client_connected.is_some()
            && self
                .network
                .subflows
                .iter()
                .filter(is_permanent)
                .any(|subflow| subflow.id != SubflowId::INITIAL)
    }

    /// Keeps one path for break before make: opens the permanent pair's subflow until it is up.
    fn open_permanent_subflow(&mut self) {
        if self.topic != Topic::Mobile || self.network.client_connected.is_none() {
            return;
        }
        let due =
            self.permanent_tried_at.is_none_or(|time| time + REOPEN_INTERVAL <= self.network.now);
        if due && !self.has_permanent_subflow() {
            self.permanent_tried_at = Some(self.network.now);
            self.network.join(self.permanent_pair.0, server_address(self.permanent_pair.1), false);
        }
    }

    fn answer_announcements(&mut self) {
        while let Some(address) = self.network.announced.pop() {
            let path = self.random.below(self.network.paths.len() as u64) as usize;
            if self.random.chance(70) {
                self.network.join(path, address, false);
            }
        }
    }

    fn apply_action(&mut self, action: Action) {
        self.network.print_trace(format_args!("{action:?}"));
        match action {
            Action::Join { path, server, backup } => {
                if !self.removed_servers.contains(&server) {
                    self.network.join(path, server_address(server), backup);
                }
            }
            Action::CloseSubflow(nth) => {
                if let Some(subflow) = self.network.subflows.get(nth).copied() {
                    self.network.close_subflow(subflow.id);
                }
            }
            Action::RemoveClientAddress(path) => self.network.remove_client_address(path),
            Action::ClientBackup { nth, backup } => {
                if let Some(subflow) = self.network.subflows.get(nth).copied() {
                    self.network.set_backup(subflow.id, backup);
                }
            }
            Action::Announce { server } | Action::ServerBackup { server, .. }
                if self.removed_servers.contains(&server) => {}
            Action::Announce { server } => {
                self.network.set_server_address(server, true, false);
            }
            Action::ServerBackup { server, backup } => {
                self.network.set_server_address(server, false, backup);
            }
            Action::RemoveServerAddress { server } => {
                // Without a connection, the address would simply never have existed.
                if self.network.connection.is_some() && !self.removed_servers.contains(&server) {
                    self.removed_servers.push(server);
                    let address = server_address(server).ip();
                    self.network.server.remove_address(self.network.now, address);
                }
            }
            Action::Down(path) => self.network.paths[path].up = false,
            Action::Up(path) => self.network.paths[path].up = true,
            Action::AbortClient => self.network.abort_client(),
            Action::AbortServer => self.network.abort_server(),
        }
    }

    fn check_outcome(&self, data_at: Duration) -> Result<Outcome, String> {
        let network = &self.network;
        if self.client_is_stuck() {
            self.check_data(false)?;
            return Ok(Outcome { joined: network.joined, packets: network.packets, data_at });
        }
        self.check_data(true)?;
        if network.server_closed != Some(Ok(())) {
            return Err(format!(
                "server closed {:?}: {}",
                network.server_closed,
                self.describe_state()
            ));
        }
        if network.client_closed != Some(CloseReason::Normal) {
            return Err(format!(
                "client closed {:?}: {}",
                network.client_closed,
                self.describe_state()
            ));
        }
        self.check_multipath()?;
        Ok(Outcome { joined: network.joined, packets: network.packets, data_at })
    }

    /// Returns true if the client is stuck: it retransmits DATA_FIN on one subflow only. If that
    /// leads to an address that the server removed, and REMOVE_ADDR is lost, it never tries
    /// another. Only DATA_FIN is then missing, and REMOVE_ADDR is not retransmitted. RFC 8684
    /// §3.3.3 allows any subflow to carry DATA_FIN.
    fn client_is_stuck(&self) -> bool {
        let network = &self.network;
        let is_removed =
            |remote| self.removed_servers.iter().any(|server| server_address(*server) == remote);
        let client = &network.applications[0];
        let bytes = [0, 1].map(|host: usize| network.applications[1 - host].received.len());
        client.write_closed
            && !network.applications[1].read_eof
            && bytes == self.sent_bytes
            && network.subflows.iter().any(|subflow| is_removed(subflow.remote))
    }

    /// Checks that no end fell back to TCP, as options pass on all paths.
    fn check_multipath(&self) -> Result<(), String> {
        let network = &self.network;
        let fallback =
            network.notices.iter().find(|notice| matches!(notice, StackNotice::Fallback(_)));
        if network.client_connected == Some(false) || network.client_fell_back || fallback.is_some()
        {
            return Err(format!("fell back: {fallback:?}"));
        }
        Ok(())
    }

    fn check_data(&self, complete: bool) -> Result<(), String> {
        for (host, application) in self.network.applications.iter().enumerate() {
            let data = pattern(self.sent_bytes[1 - host], 1 - host as u64);
            let received = &application.received;
            if !data.starts_with(received) {
                return Err(format!("host {host} got other bytes"));
            }
            if complete && (received.len() != data.len() || !application.read_eof) {
                let (received, data) = (received.len(), data.len());
                return Err(format!(
                    "host {host} got {received} of {data}: {}",
                    self.describe_state()
                ));
            }
        }
        Ok(())
    }

    /// Checks an abort. MP_FASTCLOSE may be lost, and an end without data to send may miss it. But
    /// all notices of the aborting side must be correct, and both ends must be able to close.
    fn check_abort(mut self) -> Result<Outcome, String> {
        self.network.run(Instant::ZERO + TRANSFER_TIMEOUT, |network| {
            network.client_closed.is_some() && network.server_closed.is_some()
        });
        self.check_data(false)?;
        let closed_ends = |scenario: &Self| {
            (scenario.network.client_closed.is_some(), scenario.network.server_closed.is_some())
        };
        let lossless = self.network.paths.iter().all(|line| line.loss == 0);
        let accepted = self.network.connection.is_some();
        if lossless && accepted && closed_ends(&self) != (true, true) {
            return Err(format!("an end does not know: {}", self.describe_state()));
        }
        self.network.abort_client();
        self.network.abort_server();
        self.network.run(self.network.now + CLOSE_TIMEOUT, |_| false);
        if closed_ends(&self) != (true, accepted) {
            return Err(format!("does not end: {}", self.describe_state()));
        }
        let status = self.network.status();
        if status.is_some_and(|status| {
            status
                .subflows
                .iter()
                .any(|subflow| subflow.state != towpath_mptcp::subflow::TcpState::Closed)
        }) {
            return Err(format!("a subflow stays: {}", self.describe_state()));
        }
        self.check_multipath()?;
        let (joined, packets) = (self.network.joined, self.network.packets);
        Ok(Outcome { joined, packets, data_at: Duration::ZERO })
    }

    fn describe_state(&self) -> String {
        let network = &self.network;
        format!(
            "at {} client {:?} fell back {} closed {:?} subflows {:?}; server {:?} {:?} {:#?}",
            network.now,
            network.client_connected,
            network.client_fell_back,
            network.client_closed,
            network.subflows,
            network.server_closed,
            network.notices,
            network.status(),
        )
    }
}

fn path_params(topic: Topic, random: &mut Random) -> PathParams {
    let lossless = topic == Topic::Clean
        || (topic == Topic::Abort && random.chance(50))
        || (topic == Topic::Mobile && random.chance(40));
    let jitter = if random.chance(50) { Duration::ZERO } else { random.millis(1, 12) };
    PathParams {
        delay: random.millis(1, 60),
        jitter: if lossless { Duration::ZERO } else { jitter },
        loss: if lossless { 0 } else { random.below(50) },
        duplication: if lossless { 0 } else { random.below(30) },
        byte_nanos: 200 + random.below(2_000),
        // Room for a whole transfer: an overflow would be loss.
        queue: Duration::from_millis(if lossless { 5_000 } else { 150 }),
        up: true,
    }
}

fn data_bytes(topic: Topic, random: &mut Random) -> usize {
    let max = match topic {
        Topic::Close => 3_000,
        _ => [20_000, 120_000][random.below(2) as usize],
    };
    // No subflow may be opened before a DSS has come (RFC 8684 §3.1), so some data must be sent.
    let min = usize::from(topic == Topic::Mobile);
    if random.chance(25) { min } else { min + random.below(max) as usize }
}

fn client_config(topic: Topic, random: &mut Random) -> ConnectConfig {
    let mut config = ConnectConfig::default();
    if topic == Topic::Blocked {
        config.recv_buffer = 4_000 + random.below(60_000) as u32;
        config.send_buffer = 4_000 + random.below(60_000) as u32;
    }
    config
}

fn server_config(topic: Topic, random: &mut Random) -> ConnectionConfig {
    let base =
        if random.chance(50) { ConnectionConfig::linux() } else { ConnectionConfig::ideal() };
    let schedulers = scheduler::ALL;
    let managers = path_manager::ALL;
    let random_index = |random: &mut Random, count: usize| random.below(count as u64) as usize;
    let scheduler = schedulers[random_index(random, schedulers.len())].name.to_owned();
    let manager = if random.chance(60) { 0 } else { random_index(random, managers.len()) };
    let variants = [OpportunisticMode::Off, OpportunisticMode::Nsdi12, OpportunisticMode::MptcpOrg];
    let opportunistic = OpportunisticConfig {
        retransmission: variants[random_index(random, 3)],
        penalisation: variants[random_index(random, 3)],
    };
    let mut config = ConnectionConfig {
        scheduler: if random.chance(50) { base.scheduler.clone() } else { scheduler },
        path_manager: managers[manager].name.to_owned(),
        opportunistic: if random.chance(30) { opportunistic } else { base.opportunistic },
        ..base
    };
    if topic == Topic::Blocked {
        let bytes = 4_000 + random.below(60_000);
        config.send_buffer_bytes = 4_000 + random.below(60_000);
        config.receive_buffer = ReceiveBuffer {
            mode: ReceiveBufferMode::Fixed,
            initial_bytes: bytes,
            max_bytes: bytes,
            window_share: WindowShare::Percent(100),
        };
    }
    config
}
