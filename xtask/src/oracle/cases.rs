//! What is compared.

use std::path::Path;
use std::{fmt, fs};

use crate::Result;

/// One network with one receive buffer.
#[derive(Debug)]
pub(super) struct Case {
    /// Name, also of its scenario file.
    pub(super) name: &'static str,
    network: Network,
}

/// Where a case's network comes from.
#[derive(Debug)]
enum Network {
    /// Two paths that the guest's script can build of the kernel's own queues, too.
    TwoPaths {
        /// Rate in Mbit/s, one-way delay in ms, longest wait in the queue in ms.
        paths: [(u32, u32, u32); 2],
        /// `tcp_rmem` of the receiver in KB: minimum, default and maximum; the system's when `None`.
        receive_buffer_kb: Option<u32>,
        control: &'static str,
        seconds: u32,
    },
    /// A scenario file, for our emulator only.
    Scenario(String),
}

const fn wifi_3g(name: &'static str, receive_buffer_kb: u32) -> Case {
    let network = Network::TwoPaths {
        paths: [(8, 10, 80), (2, 75, 2_000)],
        receive_buffer_kb: Some(receive_buffer_kb),
        control: "reno",
        seconds: 27,
    };
    Case { name, network }
}

/// Seed 004's Wi-Fi and 3G, and two links that are equal.
pub(super) static CASES: [Case; 5] = [
    wifi_3g("wifi-3g-100", 100),
    wifi_3g("wifi-3g-200", 200),
    wifi_3g("wifi-3g-400", 400),
    wifi_3g("wifi-3g-800", 800),
    Case {
        name: "two-links",
        network: Network::TwoPaths {
            paths: [(100, 5, 100), (100, 5, 100)],
            receive_buffer_kb: None,
            control: "cubic",
            seconds: 10,
        },
    },
];

/// Who carries the packets and whose stack sends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum How {
    /// The kernel's token bucket and netem, its Multipath TCP.
    Kernel,
    /// The same, but the receiver merges no packets that wait: an experiment, run when it is named.
    KernelUnmerged,
    /// Our emulator, the kernel's Multipath TCP.
    KernelEmulated,
    /// Our emulator, our stack.
    OursEmulated,
    /// Virtual time, our stack.
    Simulated,
}

impl How {
    /// What is held beside each other.
    pub(super) const COMPARED: [Self; 4] =
        [Self::Kernel, Self::KernelEmulated, Self::OursEmulated, Self::Simulated];
    /// Those that the virtual machine plays.
    pub(super) const PLAYED: [Self; 4] =
        [Self::Kernel, Self::KernelEmulated, Self::OursEmulated, Self::KernelUnmerged];

    /// For command lines and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelUnmerged => "kernel-unmerged",
            Self::KernelEmulated => "kernel-emulated",
            Self::OursEmulated => "ours-emulated",
            Self::Simulated => "simulated",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::PLAYED.into_iter().find(|how| how.name() == name)
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
pub(super) struct Job {
    pub(super) case: &'static str,
    pub(super) transport: &'static str,
    pub(super) how: How,
    /// From 0; of this case, transport and way.
    pub(super) run: u32,
    /// What the guest's script is told.
    pub(super) command: String,
}

impl Job {
    /// For its whole result over one kernel.
    pub(super) fn file_name(&self, kernel: &str) -> String {
        let Self { case, transport, how, run, .. } = self;
        format!("{kernel}-{case}-{transport}-{}-{}.jsonl.zst", how.name(), run + 1)
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, transport, how, run, .. } = self;
        write!(f, "{case} over {transport}, {}, run {}", how.text(), run + 1)
    }
}

/// Everything that the virtual machine can run: all of it once, then again, so that what was stopped
/// has as many runs of each. TCP hardly varies, and gets two runs.
pub(super) fn jobs(cases: &[&Case], runs: u32) -> Vec<Job> {
    let mut jobs = Vec::new();
    for run in 0..runs.max(2) {
        for how in How::PLAYED {
            for case in cases {
                for (transport, wanted) in [("tcp", 2), ("mptcp", runs)] {
                    let command = case.command(transport, how).filter(|_| run < wanted);
                    let job = |command| Job { case: case.name, transport, how, run, command };
                    jobs.extend(command.map(job));
                }
            }
        }
    }
    jobs
}

impl Case {
    /// A scenario file, which is named as the file is.
    pub(super) fn of_file(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // It lives as long as the program, as the other names do.
        Ok(Self { name: name.leak(), network: Network::Scenario(text) })
    }

    /// What the guest's script is told; nothing where it cannot do so.
    fn command(&self, transport: &str, how: How) -> Option<String> {
        let stack = if how == How::OursEmulated { "towpath" } else { "kernel" };
        let packets = match how {
            How::Kernel => "merged",
            How::KernelUnmerged => "single",
            How::KernelEmulated | How::OursEmulated | How::Simulated => {
                return Some(format!("emulator {transport} {stack} {}", self.name));
            }
        };
        let Network::TwoPaths { paths, receive_buffer_kb, control, seconds } = &self.network else {
            return None;
        };
        let buffer = receive_buffer_kb.map_or("-".to_owned(), |kb| (kb * 1_000).to_string());
        let paths = paths.map(|(rate, delay, wait)| format!("{rate}mbit,{delay}ms,{wait}ms"));
        let paths = paths.join(" ");
        Some(format!("kernel {packets} {transport} {control} {seconds} {buffer} {paths}"))
    }

    /// The case for `towpath run`.
    pub(super) fn scenario(&self) -> String {
        self.scenario_off_by([0, 0])
    }

    /// The same, with delays that are up to half a millisecond longer. Nothing in the simulator is left to
    /// chance, but which of its rhythms a connection falls into hangs on details as small as a kernel's
    /// own noise; that its clock starts elsewhere is not enough.
    pub(super) fn scenario_of_run(&self, run: u32) -> String {
        // Steps that spread evenly over the half millisecond, and differ for the two paths.
        self.scenario_off_by([run * 309 % 500, run * 191 % 500])
    }

    fn scenario_off_by(&self, microseconds: [u32; 2]) -> String {
        let (paths, receive_buffer_kb, control, seconds) = match &self.network {
            Network::Scenario(text) => return text.clone(),
            Network::TwoPaths { paths, receive_buffer_kb, control, seconds } => {
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
        for (number, ((rate, delay, wait), more)) in paths.iter().zip(microseconds).enumerate() {
            let delay = delay * 1_000 + more;
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

    /// The receive buffer in KB, where it is one of several.
    pub(super) fn receive_buffer_kb(&self) -> Option<u32> {
        match &self.network {
            Network::TwoPaths { receive_buffer_kb, .. } => *receive_buffer_kb,
            Network::Scenario(_) => None,
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
        let case = Case::of_file(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(case.scenario_of_run(3), "name = \"drawn\"\n");
        let ways: Vec<_> =
            jobs(&[&case], 1).into_iter().map(|job| (job.transport, job.how)).collect();
        let twice = |how| [("tcp", how), ("mptcp", how)];
        let first = [twice(How::KernelEmulated), twice(How::OursEmulated)].concat();
        let second = [("tcp", How::KernelEmulated), ("tcp", How::OursEmulated)];
        assert_eq!(ways, [first, second.to_vec()].concat());
    }
}
