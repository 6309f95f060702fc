//! One case of the matrix: its scenario, its transfer and the checks after it.

use std::fmt;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_emu::LabNetwork;
use towpath_netlink::MibCounters;
use towpath_os::sandbox::EmulatorThread;
use towpath_scenario::{Family, Scenario, no_files};

use crate::ends::{EndpointOutput, InteropEnd, TestData};

/// Port on which the second host listens.
pub(crate) const PORT: u16 = 5_301;
/// Bytes sent in each direction.
pub(crate) const BYTES: usize = 20_000_000;
/// Timeout of a case, which takes about two seconds, or ten times as long on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

/// Hosts that run our own stack; the first host (the client) opens the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// None: two kernels.
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
    /// Every combination occurs for some role and condition; with `cargo xtask test --all`, for
    /// each.
    pub(crate) fn matrix(role: Role, condition: Condition) -> Vec<Self> {
        let variants = [Family::V4, Family::V6].map(|family| [(family, false), (family, true)]);
        let variants = variants.concat();
        let is_long = std::env::var("TOWPATH_REPEAT").is_ok_and(|value| value == "long");
        let mut cases = Vec::new();
        // Runs between two kernels only test the harness.
        let path_counts: &[usize] = if role == Role::Kernels { &[1, 3] } else { &[1, 2, 3, 4] };
        for paths in path_counts {
            let usual_variant = (paths + role as usize + condition as usize) % variants.len();
            for (number, (family, checksum)) in variants.iter().copied().enumerate() {
                if is_long || number == usual_variant {
                    cases.push(Self { role, condition, paths: *paths, family, checksum });
                }
            }
        }
        cases
    }

    /// Returns true if the client sends nothing before it has received data from the server.
    ///
    /// A Linux server falls back when data overtakes the third packet of the handshake. (Seen with
    /// Linux 6.18 at both ends, in three of four transfers.) So reordering must begin after the
    /// handshake.
    pub(crate) fn client_reads_first(&self) -> bool {
        matches!(self.condition, Condition::Reorder | Condition::Rough) && !self.is_own(1)
    }

    /// Returns the number of additional subflows that must exist.
    ///
    /// A lost SYN may delay a join beyond the end of a short transfer.
    fn required_joins(&self) -> usize {
        match self.condition {
            Condition::Clean | Condition::Jitter | Condition::Reorder => self.paths - 1,
            Condition::Loss | Condition::Bursts | Condition::Damage | Condition::Rough => 0,
        }
    }

    /// Returns the number of joins that both ends wait for.
    ///
    /// A kernel opens these subflows, and its worker may be late.
    fn awaited_joins(&self) -> usize {
        if self.is_own(0) { 0 } else { self.required_joins() }
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
                let profile_switches = "{ window-overstep = false }";
                format!(
                    "stack = \"towpath\"\nchecksum = {checksum}\nprofile-switches = {profile_switches}\n"
                )
            } else {
                let enabled = u8::from(checksum);
                format!("sysctl = {{ \"net.mptcp.checksum_enabled\" = {enabled} }}\n")
            };
            write!(text, "[hosts.{name}]\n{keys}").unwrap();
        }
        for path in 0..self.paths {
            let link = self.condition.link();
            write!(text, "[paths.p{path}]\nbetween = [\"near\", \"far\"]\n{link}").unwrap();
        }
        text
    }

    pub(crate) fn start_lab(&self) -> Result<LabNetwork, String> {
        let text = self.scenario();
        let scenario = Scenario::parse("interop.toml", &text, &no_files);
        let scenario = Arc::new(scenario.map_err(|error| format!("{error}\n{text}"))?);
        let thread = EmulatorThread::ordinary().map_err(|error| error.to_string())?;
        LabNetwork::start(&scenario, thread, 1, None).map_err(|error| error.to_string())
    }

    pub(crate) fn target(&self, lab: &LabNetwork) -> SocketAddr {
        SocketAddr::new(lab.address(0, 1, self.family), PORT)
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let lab = self.start_lab()?;
        let (client_data, server_data) = (TestData::new(1), TestData::new(2));
        let server = InteropEnd::listen(self, &lab, &server_data, self.awaited_joins())?;
        let client = InteropEnd::connect(self, &lab, &client_data, self.awaited_joins())?;
        let deadline = Instant::now() + HANG_TIMEOUT;
        let results = [client.wait(deadline), server.wait(deadline)];
        let counters = self.counters(&lab);
        let [client, server] = match results {
            [Ok(client), Ok(server)] => [client, server],
            [client, server] => {
                let failure_text =
                    |result: Result<EndpointOutput, String>| result.err().unwrap_or("done".into());
                let (client, server) = (failure_text(client), failure_text(server));
                return Err(format!("client: {client}; server: {server}; {counters:?}"));
            }
        };
        let lost_packets = lab.finish().map_err(|error| error.to_string())?;
        let mut errors = Vec::new();
        if client.digest != server_data.digest || server.digest != client_data.digest {
            errors.push(format!("what arrived is not what was sent: {client:?} {server:?}"));
        }
        errors.extend(self.find_errors(&counters, [&client, &server]));
        if errors.is_empty() {
            Ok(())
        } else {
            Err(format!("{} (lost {lost_packets})", errors.join("; ")))
        }
    }

    /// Returns the counters of the hosts with a kernel's stack.
    fn counters(&self, lab: &LabNetwork) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        for host in 0..2 {
            if self.is_own(host) {
                continue;
            }
            let mib = lab.namespace(host).unwrap().run(MibCounters::read).unwrap().unwrap();
            let mptcp = mib.iter().filter_map(|(name, value)| {
                let name = name.strip_prefix("MPTcpExt.")?;
                (value > 0).then(|| (name.to_owned(), value))
            });
            counters.extend(mptcp);
        }
        counters
    }

    fn find_errors(&self, counters: &[(String, u64)], ends: [&EndpointOutput; 2]) -> Vec<String> {
        let value = |name: &str| {
            counters
                .iter()
                .filter(|(counter, _)| counter == name)
                .map(|(_, value)| *value)
                .sum::<u64>()
        };
        let mut errors: Vec<String> = counters
            .iter()
            .filter(|(name, _)| is_error_counter(name))
            .map(|(name, value)| format!("{name} is {value}"))
            .collect();
        if matches!(self.role, Role::Client | Role::Server) {
            let beyond_window = value("NoDSSInWindow");
            if beyond_window > 0 {
                errors.push(format!("{beyond_window} segments beyond the kernel's window"));
            }
        }
        if self.checksum && self.role != Role::Both {
            // A DSS checksum error with a correct TCP checksum is our stack's error.
            let checksum_errors = value("DataCsumErr");
            if checksum_errors > 0 {
                errors.push(format!("{checksum_errors} wrong DSS checksums"));
            }
        }
        if self.required_joins() > 0 {
            let joins = self.required_joins() as u64;
            let joined = value("MPJoinSynAckRx").max(value("MPJoinAckRx"));
            if self.role != Role::Both && joined < joins {
                errors.push(format!("{joined} of {joins} subflows joined"));
            }
            // A reset subflow is one that an end rejected. A Linux client resets one whose first
            // data overtakes the fourth packet of its handshake; a Linux server allows that.
            let resets = value("MPRstTx") + value("MPRstRx");
            if resets > 0 && self.role != Role::Kernels {
                errors.push(format!("{resets} subflows were reset"));
            }
            for output in ends {
                if output.paths.is_some_and(|paths| paths < self.paths) {
                    errors.push(format!("{:?} of {} subflows", output.paths, self.paths));
                }
            }
        }
        for reason in ends.iter().filter_map(|output| output.fallback_reason.as_ref()) {
            errors.push(format!("an end says that it is plain TCP: {reason}"));
        }
        errors
    }
}

/// Returns true for counters that rise only after an error (`net/mptcp/mib.c`).
fn is_error_counter(name: &str) -> bool {
    const ERROR_COUNTERS: [&str; 12] = [
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
    let is_join_error = |name: &str| {
        ["Failure", "Err", "Rejected", "NoTokenFound"].iter().any(|suffix| name.ends_with(suffix))
    };
    ERROR_COUNTERS.contains(&name)
        || name.contains("Fallback")
        || name.strip_prefix("MPJoin").is_some_and(is_join_error)
}
