//! One case of the matrix: its scenario, its transfer and the checks after it.

use std::fmt;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_linux::LabNetwork;
use towpath_linux::netlink::MibCounters;
use towpath_linux::sandbox::EmulatorThread;
use towpath_measure::scenario::{Family, Scenario, no_files};

use crate::ends::{EndpointOutput, Expected, InteropEnd};

/// Port on which the second host listens.
pub(crate) const PORT: u16 = 5_301;
/// Bytes sent in each direction.
pub(crate) const BYTES: usize = 20_000_000;
/// Timeout of a case, which takes about two seconds, or ten times as long on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

/// Stacks of the two hosts. The first host opens the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Kernels,
    Client,
    Server,
    Both,
}

/// Condition of the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Clean,
    Loss,
    Bursts,
    /// Delays vary, but the order is kept.
    Jitter,
    Reorder,
    Damage,
    /// Several impairments at the same time.
    Rough,
}

impl Condition {
    /// Returns the rate and further keys of every path.
    fn link(self) -> &'static str {
        match self {
            Self::Clean => "rate = \"500 Mbit/s\"\ndelay = \"1 ms\"\n",
            Self::Loss => "rate = \"300 Mbit/s\"\ndelay = \"1 ms\"\nloss = \"0.1 %\"\n",
            Self::Bursts => {
                "rate = \"300 Mbit/s\"\ndelay = \"1 ms\"\n\
                 loss = { gilbert-elliott = { p = \"0.02 %\", r = \"30 %\" } }\n"
            }
            Self::Jitter => {
                "rate = \"300 Mbit/s\"\ndelay = \"2 ms\"\n\
                 jitter = { distribution = \"normal\", sd = \"1 ms\", reorder = false }\n"
            }
            Self::Reorder => {
                "rate = \"300 Mbit/s\"\ndelay = \"2 ms\"\n\
                 jitter = { distribution = \"normal\", sd = \"200 us\", reorder = true }\n"
            }
            Self::Damage => {
                "rate = \"300 Mbit/s\"\ndelay = \"1 ms\"\nduplicate = \"1 %\"\n\
                 corrupt = \"0.05 %\"\n"
            }
            Self::Rough => {
                "rate = \"300 Mbit/s\"\ndelay = \"2 ms\"\nloss = \"0.1 %\"\n\
                 jitter = { distribution = \"normal\", sd = \"200 us\", reorder = true }\n\
                 duplicate = \"0.5 %\"\ncorrupt = \"0.02 %\"\n"
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) role: Role,
    pub(crate) condition: Condition,
    pub(crate) paths: usize,
    pub(crate) family: Family,
    pub(crate) checksum: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, condition, paths, family, checksum } = self;
        write!(f, "{role:?} {condition:?}, {paths} paths, {family:?}, checksum {checksum}")
    }
}

impl Case {
    /// Returns cases with every number of paths and one family each, with or without the checksum.
    ///
    /// Over all roles and conditions every combination occurs; with `cargo xtask test --all`, in
    /// each.
    pub(crate) fn all(role: Role, condition: Condition) -> Vec<Self> {
        let kinds = [Family::V4, Family::V6].map(|family| [(family, false), (family, true)]);
        let kinds = kinds.concat();
        let is_long = std::env::var("TOWPATH_REPEAT").is_ok_and(|value| value == "long");
        let mut all = Vec::new();
        // Runs between two kernels only test the harness.
        let counts: &[usize] = if role == Role::Kernels { &[1, 3] } else { &[1, 2, 3, 4] };
        for paths in counts {
            let usual = (paths + role as usize + condition as usize) % kinds.len();
            for (number, (family, checksum)) in kinds.iter().copied().enumerate() {
                if is_long || number == usual {
                    all.push(Self { role, condition, paths: *paths, family, checksum });
                }
            }
        }
        all
    }

    /// Returns true if the client sends nothing before it has received data from the server.
    ///
    /// A Linux server falls back when data overtakes the third packet of the handshake. (Seen with
    /// Linux 6.18 at both ends, in three of four transfers.) So reordering must begin after the
    /// handshake.
    pub(crate) fn client_waits(&self) -> bool {
        matches!(self.condition, Condition::Reorder | Condition::Rough) && !self.is_own(1)
    }

    /// Returns the number of additional subflows that must exist.
    ///
    /// A lost SYN may delay one beyond the end of a short transfer.
    fn joins(&self) -> usize {
        match self.condition {
            Condition::Clean | Condition::Jitter | Condition::Reorder => self.paths - 1,
            Condition::Loss | Condition::Bursts | Condition::Damage | Condition::Rough => 0,
        }
    }

    /// Returns the number of joins that both ends wait for.
    ///
    /// A kernel opens these subflows, and its worker may be late.
    fn awaited_joins(&self) -> usize {
        if self.is_own(0) { 0 } else { self.joins() }
    }

    fn is_own(&self, host: usize) -> bool {
        match self.role {
            Role::Kernels => false,
            Role::Both => true,
            Role::Client => host == 0,
            Role::Server => host == 1,
        }
    }

    pub(crate) fn scenario(&self) -> String {
        let mut text = "name = \"interop\"\n".to_owned();
        for (host, name) in ["near", "far"].into_iter().enumerate() {
            let checksum = self.checksum;
            let keys = if self.is_own(host) {
                // The kernel drops segments beyond its window, and once stalled for 60 s behind
                // such a gap.
                let switches = "{ window-overstep = false }";
                format!(
                    "stack = \"towpath\"\nchecksum = {checksum}\nprofile-switches = {switches}\n"
                )
            } else {
                let on = u8::from(checksum);
                format!("sysctl = {{ \"net.mptcp.checksum_enabled\" = {on} }}\n")
            };
            write!(text, "[hosts.{name}]\n{keys}").unwrap();
        }
        for path in 0..self.paths {
            let link = self.condition.link();
            write!(text, "[paths.p{path}]\nbetween = [\"near\", \"far\"]\n{link}").unwrap();
        }
        text
    }

    pub(crate) fn world(&self) -> Result<LabNetwork, String> {
        let text = self.scenario();
        let scenario = Scenario::parse("interop.toml", &text, &no_files);
        let scenario = Arc::new(scenario.map_err(|error| format!("{error}\n{text}"))?);
        let thread = EmulatorThread::ordinary().map_err(|error| error.to_string())?;
        LabNetwork::start(&scenario, thread, 1, None).map_err(|error| error.to_string())
    }

    pub(crate) fn target(&self, world: &LabNetwork) -> SocketAddr {
        SocketAddr::new(world.address(0, 1, self.family), PORT)
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let world = self.world()?;
        let (near, far) = (Expected::new(1), Expected::new(2));
        let server = InteropEnd::listen(self, &world, &far, self.awaited_joins())?;
        let client = InteropEnd::connect(self, &world, &near, self.awaited_joins())?;
        let deadline = Instant::now() + HANG_TIMEOUT;
        let ended = [client.wait(deadline), server.wait(deadline)];
        let counters = self.counters(&world);
        let [client, server] = match ended {
            [Ok(client), Ok(server)] => [client, server],
            [client, server] => {
                let said =
                    |ended: Result<EndpointOutput, String>| ended.err().unwrap_or("done".into());
                let (client, server) = (said(client), said(server));
                return Err(format!("client: {client}; server: {server}; {counters:?}"));
            }
        };
        let lost = world.finish().map_err(|error| error.to_string())?;
        let mut wrong = Vec::new();
        if client.digest != far.digest || server.digest != near.digest {
            wrong.push(format!("what arrived is not what was sent: {client:?} {server:?}"));
        }
        wrong.extend(self.complaints(&counters, [&client, &server]));
        if wrong.is_empty() { Ok(()) } else { Err(format!("{} (lost {lost})", wrong.join("; "))) }
    }

    /// Returns the counters of the hosts with a kernel's stack.
    fn counters(&self, world: &LabNetwork) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for host in 0..2 {
            if self.is_own(host) {
                continue;
            }
            let read = world.namespace(host).unwrap().run(MibCounters::read).unwrap().unwrap();
            let mptcp = read.iter().filter_map(|(name, value)| {
                let name = name.strip_prefix("MPTcpExt.")?;
                (value > 0).then(|| (name.to_owned(), value))
            });
            all.extend(mptcp);
        }
        all
    }

    fn complaints(&self, counters: &[(String, u64)], ends: [&EndpointOutput; 2]) -> Vec<String> {
        let value = |name: &str| {
            counters.iter().filter(|(own, _)| own == name).map(|(_, value)| *value).sum::<u64>()
        };
        let mut wrong: Vec<String> = counters
            .iter()
            .filter(|(name, _)| is_bad(name))
            .map(|(name, value)| format!("{name} is {value}"))
            .collect();
        if matches!(self.role, Role::Client | Role::Server) {
            let beyond = value("NoDSSInWindow");
            if beyond > 0 {
                wrong.push(format!("{beyond} segments beyond the kernel's window"));
            }
        }
        if self.checksum && self.role != Role::Both {
            // A DSS checksum error with a correct TCP checksum is our stack's error.
            let bad = value("DataCsumErr");
            if bad > 0 {
                wrong.push(format!("{bad} wrong DSS checksums"));
            }
        }
        if self.joins() > 0 {
            let joins = self.joins() as u64;
            let seen = value("MPJoinSynAckRx").max(value("MPJoinAckRx"));
            if self.role != Role::Both && seen < joins {
                wrong.push(format!("{seen} of {joins} subflows joined"));
            }
            // A reset subflow is one that an end rejected. A Linux client resets one whose first
            // data overtakes the fourth packet of its handshake; a Linux server allows that.
            let resets = value("MPRstTx") + value("MPRstRx");
            if resets > 0 && self.role != Role::Kernels {
                wrong.push(format!("{resets} subflows were reset"));
            }
            for ended in ends {
                if ended.paths.is_some_and(|paths| paths < self.paths) {
                    wrong.push(format!("{:?} of {} subflows", ended.paths, self.paths));
                }
            }
        }
        for reason in ends.iter().filter_map(|ended| ended.plain.as_ref()) {
            wrong.push(format!("an end says that it is plain TCP: {reason}"));
        }
        wrong
    }
}

/// Returns true for counters that rise only after an error (`net/mptcp/mib.c`).
fn is_bad(name: &str) -> bool {
    const BAD: [&str; 12] = [
        "DSSCorruptionReset",
        "DSSNotMatching",
        "DSSNoMatchTCP",
        "DataCsumErr",
        "InfiniteMapTx",
        "InfiniteMapRx",
        "MPFailTx",
        "MPFailRx",
        "MPFastcloseTx",
        "MPFastcloseRx",
        "MPCapableSYNTXDrop",
        "MPCapableSYNTXDisabled",
    ];
    let join = |name: &str| {
        ["Failure", "Err", "Rejected", "NoTokenFound"].iter().any(|end| name.ends_with(end))
    };
    BAD.contains(&name)
        || name.contains("Fallback")
        || name.strip_prefix("MPJoin").is_some_and(join)
}
