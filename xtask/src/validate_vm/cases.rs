//! Cases that the oracle compares.

use std::path::Path;
use std::{fmt, fs};

use crate::Result;

/// One network with one receive buffer.
#[derive(Debug)]
pub(super) struct VmCase {
    /// Name of the case and of its scenario file.
    pub(super) name: &'static str,
    network: CaseNetwork,
}

/// Source of a case's network.
#[derive(Debug)]
enum CaseNetwork {
    /// Two paths that `guest.sh` can also build from the kernel's own queues.
    TwoPaths {
        /// Rate in Mbit/s, one-way delay in ms, longest wait in the queue in ms.
        paths: [(u32, u32, u32); 2],
        /// All three values of the receiver's `tcp_rmem`, in KB; `None` keeps the system's.
        receive_buffer_kb: Option<u32>,
        control: &'static str,
        seconds: u32,
    },
    /// A scenario file, for our emulator only.
    Scenario(String),
}

const fn wifi_3g(name: &'static str, receive_buffer_kb: u32) -> VmCase {
    let network = CaseNetwork::TwoPaths {
        paths: [(8, 10, 80), (2, 75, 2_000)],
        receive_buffer_kb: Some(receive_buffer_kb),
        control: "reno",
        seconds: 27,
    };
    VmCase { name, network }
}

/// Wi-Fi and 3G with several receive buffers, and two equal links.
pub(super) static CASES: [VmCase; 5] = [
    wifi_3g("wifi-3g-100", 100),
    wifi_3g("wifi-3g-200", 200),
    wifi_3g("wifi-3g-400", 400),
    wifi_3g("wifi-3g-800", 800),
    VmCase {
        name: "two-links",
        network: CaseNetwork::TwoPaths {
            paths: [(100, 5, 100), (100, 5, 100)],
            receive_buffer_kb: None,
            control: "cubic",
            seconds: 10,
        },
    },
];

/// Combination of packet carrier and sending stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Setup {
    /// The kernel's token bucket and netem, with its Multipath TCP.
    Kernel,
    /// As `Kernel`, but the receiver does not merge queued packets.
    ///
    /// This is an experiment, run only when it is named.
    KernelUnmerged,
    /// Our emulator, with the kernel's Multipath TCP.
    KernelEmulated,
    /// Our emulator, with our stack.
    OursEmulated,
    /// Virtual time, with our stack.
    Simulated,
}

impl Setup {
    /// Combinations that are compared with each other.
    pub(super) const COMPARED_SETUPS: [Self; 4] =
        [Self::Kernel, Self::KernelEmulated, Self::OursEmulated, Self::Simulated];
    /// Combinations that run in the virtual machine.
    pub(super) const VM_CASES: [Self; 4] =
        [Self::Kernel, Self::KernelEmulated, Self::OursEmulated, Self::KernelUnmerged];

    /// Returns the name for command lines and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelUnmerged => "kernel-unmerged",
            Self::KernelEmulated => "kernel-emulated",
            Self::OursEmulated => "ours-emulated",
            Self::Simulated => "simulated",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::VM_CASES.into_iter().find(|setup| setup.name() == name)
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Kernel => "kernel, tbf and netem",
            Self::KernelUnmerged => "kernel, tbf and netem, nothing merged",
            Self::KernelEmulated => "kernel, our emulator",
            Self::OursEmulated => "our stack, our emulator",
            Self::Simulated => "our stack, simulated",
        }
    }
}

/// One run in the virtual machine.
#[derive(Debug)]
pub(super) struct VmJob {
    pub(super) case: &'static str,
    pub(super) transport: &'static str,
    pub(super) setup: Setup,
    /// Number of the run, from 0, for this case, transport and combination.
    pub(super) run: u32,
    /// Command line for `guest.sh` in the virtual machine.
    pub(super) command: String,
}

impl VmJob {
    /// Returns the file name of the whole result with one kernel.
    pub(super) fn file_name(&self, kernel: &str) -> String {
        let Self { case, transport, setup, run, .. } = self;
        format!("{kernel}-{case}-{transport}-{}-{}.jsonl.zst", setup.name(), run + 1)
    }
}

impl fmt::Display for VmJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, transport, setup, run, .. } = self;
        write!(f, "{case} over {transport}, {}, run {}", setup.text(), run + 1)
    }
}

/// Returns all jobs for the virtual machine.
///
/// Each job runs once before any runs again, so that after an interruption all have equally many
/// runs. TCP hardly varies, and gets two runs.
pub(super) fn jobs(cases: &[&VmCase], runs: u32) -> Vec<VmJob> {
    let mut jobs = Vec::new();
    for run in 0..runs.max(2) {
        for setup in Setup::VM_CASES {
            for case in cases {
                for (transport, run_count) in [("tcp", 2), ("mptcp", runs)] {
                    let command = case.command(transport, setup).filter(|_| run < run_count);
                    let job = |command| VmJob { case: case.name, transport, setup, run, command };
                    jobs.extend(command.map(job));
                }
            }
        }
    }
    jobs
}

impl VmCase {
    /// Reads a scenario file; the case is named after the file.
    pub(super) fn of_file(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // Leaked: all names live as long as the program.
        Ok(Self { name: name.leak(), network: CaseNetwork::Scenario(text) })
    }

    /// Returns the command for `guest.sh`; `None` where that cannot run the case.
    fn command(&self, transport: &str, setup: Setup) -> Option<String> {
        let stack = if setup == Setup::OursEmulated { "towpath" } else { "kernel" };
        let packets = match setup {
            Setup::Kernel => "merged",
            Setup::KernelUnmerged => "single",
            Setup::KernelEmulated | Setup::OursEmulated | Setup::Simulated => {
                return Some(format!("emulator {transport} {stack} {}", self.name));
            }
        };
        let CaseNetwork::TwoPaths { paths, receive_buffer_kb, control, seconds } = &self.network
        else {
            return None;
        };
        let buffer = receive_buffer_kb.map_or("-".to_owned(), |kb| (kb * 1_000).to_string());
        let paths = paths.map(|(rate, delay, wait)| format!("{rate}mbit,{delay}ms,{wait}ms"));
        let paths = paths.join(" ");
        Some(format!("kernel {packets} {transport} {control} {seconds} {buffer} {paths}"))
    }

    /// Returns the case as a scenario for `towpath run`.
    pub(super) fn scenario(&self) -> String {
        self.scenario_with_extra_delays([0, 0])
    }

    /// Returns the scenario with delays that are up to half a millisecond longer.
    ///
    /// The simulator is deterministic. A connection's long-term pattern depends on details as small
    /// as a kernel's own noise; another start of the clock is not enough.
    pub(super) fn scenario_of_run(&self, run: u32) -> String {
        // Steps that spread evenly over half a millisecond, and differ between the two paths.
        self.scenario_with_extra_delays([run * 309 % 500, run * 191 % 500])
    }

    fn scenario_with_extra_delays(&self, microseconds: [u32; 2]) -> String {
        let (paths, receive_buffer_kb, control, seconds) = match &self.network {
            CaseNetwork::Scenario(text) => return text.clone(),
            CaseNetwork::TwoPaths { paths, receive_buffer_kb, control, seconds } => {
                (paths, receive_buffer_kb, control, seconds)
            }
        };
        let server = receive_buffer_kb.map(|kb| format!("receive-buffer = \"{kb} KB\"\n"));
        let mut text = format!(
            "name = \"{}\"\n[run]\ncongestion-control = \"{control}\"\n[hosts.phone]\n\
             [hosts.server]\n{}",
            self.name,
            server.unwrap_or_default()
        );
        for (number, ((rate, delay, wait), extra_us)) in paths.iter().zip(microseconds).enumerate()
        {
            let delay = delay * 1_000 + extra_us;
            text.extend([format!(
                "[paths.path{number}]\nbetween = [\"phone\", \"server\"]\nrate = \"{rate} Mbit/s\"\n\
                 delay = \"{delay} us\"\n\
                 queue = {{ tbf = {{ burst = \"15 KB\", latency = \"{wait} ms\" }} }}\n"
            )]);
        }
        text + &format!(
            "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"iperf\"\n\
             duration = \"{seconds} s\"\n"
        )
    }

    /// Returns the receive buffer in KB; `None` for the system's.
    pub(super) fn receive_buffer_kb(&self) -> Option<u32> {
        match &self.network {
            CaseNetwork::TwoPaths { receive_buffer_kb, .. } => *receive_buffer_kb,
            CaseNetwork::Scenario(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_file_is_run_over_our_emulator_only_and_unchanged() {
        let file = std::env::temp_dir().join(format!("drawn-{}.toml", std::process::id()));
        fs::write(&file, "name = \"drawn\"\n").unwrap();
        let case = VmCase::of_file(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(case.scenario_of_run(3), "name = \"drawn\"\n");
        let routes: Vec<_> =
            jobs(&[&case], 1).into_iter().map(|job| (job.transport, job.setup)).collect();
        let both_transports = |setup| [("tcp", setup), ("mptcp", setup)];
        let first_runs =
            [both_transports(Setup::KernelEmulated), both_transports(Setup::OursEmulated)].concat();
        let second_runs = [("tcp", Setup::KernelEmulated), ("tcp", Setup::OursEmulated)];
        assert_eq!(routes, [first_runs, second_runs.to_vec()].concat());
    }
}
