//! How a host's own stack behaves, and what stands in its way.

use std::fmt;
use std::time::Duration;

use super::model::{Host, LinkSide, Scenario};

/// Whose TCP and Multipath TCP a host speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StackKind {
    /// The operating system's (emulated world only).
    #[default]
    Kernel,
    /// Ours.
    Towpath,
}

/// What the host around our stack is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Profile {
    /// As six scenarios over Linux 6.18 looked: bytes where the kernel counts memory.
    Linux6,
    /// As Linux 6.18 was seen to do it on random networks.
    #[default]
    Linux618,
    /// As Linux 3.2 with the patch of mptcp.org did it: no pacing, no small queues, M1 and M2.
    Linux32Mptcp,
    /// The protocol alone: no timer granularity, no memory overhead, no batching.
    Ideal,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux6 => "linux-6.x",
            Self::Linux618 => "linux-6.18",
            Self::Linux32Mptcp => "linux-3.2-mptcp",
            Self::Ideal => "ideal",
        })
    }
}

/// Single switches of a [`Profile`]; what is not given is as the profile has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfileSwitches {
    /// Acknowledgements wait for a second packet.
    pub delayed_ack: Option<bool>,
    /// Super-segments of about 1 ms.
    pub tso_autosizing: Option<bool>,
    /// TCP small queues: stop when the host's own queue holds enough.
    pub tsq: Option<bool>,
    /// The first SYNs are repeated each second, before the time doubles.
    pub linear_syn: Option<bool>,
    /// Timers fire at multiples of it; zero: exactly.
    pub timer_granularity: Option<Duration>,
    /// Leave slow start early.
    pub hystart: Option<bool>,
    /// By Linux's rule, with CUBIC only, and not by RFC 9406's.
    pub linux_hystart: Option<bool>,
    /// Spread packets over the round-trip time.
    pub pacing: Option<bool>,
    /// The window offers a part of the receive buffer's memory only.
    pub rmem_scaling: Option<bool>,
    /// More is sent than the peer's window admits, as Linux does.
    pub window_overstep: Option<bool>,
    /// Processor time that each packet takes, sent or received.
    pub cpu_per_packet: Option<Duration>,
    /// A super-segment that is sent costs as much as one packet.
    pub segmentation_offload: Option<bool>,
}

impl ProfileSwitches {
    /// What `self` gives, else what `other` gives.
    #[must_use]
    pub(super) fn over(self, other: Self) -> Self {
        Self {
            delayed_ack: self.delayed_ack.or(other.delayed_ack),
            tso_autosizing: self.tso_autosizing.or(other.tso_autosizing),
            tsq: self.tsq.or(other.tsq),
            linear_syn: self.linear_syn.or(other.linear_syn),
            timer_granularity: self.timer_granularity.or(other.timer_granularity),
            hystart: self.hystart.or(other.hystart),
            linux_hystart: self.linux_hystart.or(other.linux_hystart),
            pacing: self.pacing.or(other.pacing),
            rmem_scaling: self.rmem_scaling.or(other.rmem_scaling),
            window_overstep: self.window_overstep.or(other.window_overstep),
            cpu_per_packet: self.cpu_per_packet.or(other.cpu_per_packet),
            segmentation_offload: self.segmentation_offload.or(other.segmentation_offload),
        }
    }
}

/// When opportunistic retransmission (M1) or penalisation (M2) acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpportunisticMode {
    /// Never.
    #[default]
    Off,
    /// Whenever the window is full, as in the paper of 2012.
    Nsdi12,
    /// With the guards of mptcp.org's later versions.
    Guarded,
}

impl fmt::Display for OpportunisticMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Nsdi12 => "nsdi12",
            Self::Guarded => "guarded",
        })
    }
}

/// How the receive buffer grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceiveBufferMode {
    /// As Linux: by what the application reads in a round-trip time.
    #[default]
    Linux,
    /// Not at all: the largest size from the beginning.
    Fixed,
    /// Twice the sum of the rates times the longest round-trip time.
    Barre2011,
}

impl fmt::Display for ReceiveBufferMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux => "linux",
            Self::Fixed => "fixed",
            Self::Barre2011 => "seed003",
        })
    }
}

/// Which paths a Multipath QUIC connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// All at once, but for those of backup addresses.
    #[default]
    Aggregate,
    /// The first one, another when that fails.
    Backup,
    /// The first one, another already when that is slow or late.
    Ios,
}

impl fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aggregate => "aggregate",
            Self::Backup => "backup",
            Self::Ios => "ios",
        })
    }
}

/// How a host's own stack behaves: the host's keys over those of `[run]` over the profile's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStackConfig {
    /// Whose stack. The simulated world has only ours, whatever this says.
    pub stack: StackKind,
    /// What the host is like.
    pub profile: Profile,
    /// Deviations from the profile.
    pub switches: ProfileSwitches,
    /// Name of the scheduler, if not the profile's; the world knows which there are.
    pub scheduler: Option<String>,
    /// Name of the path manager, if not the profile's; the world knows which there are.
    pub path_manager: Option<String>,
    /// M1.
    pub opportunistic_retransmission: OpportunisticMode,
    /// M2.
    pub penalisation: OpportunisticMode,
    /// Require DSS checksums.
    pub checksum: bool,
    /// How the receive buffer grows.
    pub receive_buffer_mode: ReceiveBufferMode,
    /// Packets of all subflows are as small as the smallest.
    pub smallest_mss: bool,
    /// Which paths Multipath QUIC uses.
    pub path_policy: PathPolicy,
    /// Name of QUIC's congestion control, if not that of TCP; the world knows which there are.
    pub quic_congestion_control: Option<String>,
    /// The keys that the scenario gives, which a kernel's stack does not obey.
    pub given: Vec<&'static str>,
}

impl Default for HostStackConfig {
    fn default() -> Self {
        StackOverrides::default().resolve(&StackOverrides::default())
    }
}

impl Scenario {
    /// How `host`'s own stack is to behave, as texts by name: what a stack that knows nothing of
    /// scenarios can read. Names are those of the scenario's keys, sizes are bytes, times
    /// nanoseconds; what is missing is as the profile has it.
    pub fn stack_settings(&self, host: &Host) -> Vec<(&'static str, String)> {
        let plan = &host.stack;
        let mut all = vec![
            ("profile", plan.profile.to_string()),
            ("congestion-control", self.congestion_control_of(host).to_owned()),
            ("opportunistic-retransmission", plan.opportunistic_retransmission.to_string()),
            ("penalisation", plan.penalisation.to_string()),
            ("checksum", plan.checksum.to_string()),
            ("receive-buffer-mode", plan.receive_buffer_mode.to_string()),
            ("mss", if plan.smallest_mss { "smallest" } else { "own" }.to_owned()),
        ];
        let mut add = |name, value: Option<String>| all.extend(value.map(|value| (name, value)));
        add("scheduler", plan.scheduler.clone());
        add("path-manager", plan.path_manager.clone());
        add("subflows", host.mptcp.subflows.map(|n| n.to_string()));
        add("add-addr-accepted", host.mptcp.add_addr_accepted.map(|n| n.to_string()));
        let sizes = |sizes: [u64; 3]| sizes.map(|size| size.to_string()).join(" ");
        add("receive-buffer", host.receive_buffer.map(sizes));
        add("send-buffer", host.send_buffer.map(sizes));
        let switches = &plan.switches;
        let nanos = |span: Duration| span.as_nanos().to_string();
        add("delayed-ack", switches.delayed_ack.map(|on| on.to_string()));
        add("tso-autosizing", switches.tso_autosizing.map(|on| on.to_string()));
        add("tsq", switches.tsq.map(|on| on.to_string()));
        add("linear-syn", switches.linear_syn.map(|on| on.to_string()));
        add("timer-granularity", switches.timer_granularity.map(nanos));
        add("linux-hystart", switches.linux_hystart.map(|on| on.to_string()));
        add("hystart", switches.hystart.map(|on| on.to_string()));
        add("pacing", switches.pacing.map(|on| on.to_string()));
        add("rmem-scaling", switches.rmem_scaling.map(|on| on.to_string()));
        add("window-overstep", switches.window_overstep.map(|on| on.to_string()));
        add("cpu-per-packet", switches.cpu_per_packet.map(nanos));
        add("segmentation-offload", switches.segmentation_offload.map(|on| on.to_string()));
        all
    }
}

impl Scenario {
    /// How `host`'s QUIC is to behave, as [`Self::stack_settings`].
    pub fn quic_settings(&self, host: &Host) -> Vec<(&'static str, String)> {
        let plan = &host.stack;
        let control = plan.quic_congestion_control.as_deref();
        let control = control.unwrap_or_else(|| self.congestion_control_of(host));
        let mut all = vec![
            ("congestion-control", control.to_owned()),
            ("path-policy", plan.path_policy.to_string()),
        ];
        let sizes = |sizes: [u64; 3]| sizes.map(|size| size.to_string()).join(" ");
        all.extend(host.receive_buffer.map(|buffer| ("receive-buffer", sizes(buffer))));
        all.extend(host.send_buffer.map(|buffer| ("send-buffer", sizes(buffer))));
        all
    }
}

/// The keys of a host or of `[run]`, as far as they are given.
#[derive(Debug, Clone, Default)]
pub(super) struct StackOverrides {
    pub(super) stack: Option<StackKind>,
    pub(super) profile: Option<Profile>,
    pub(super) switches: ProfileSwitches,
    pub(super) scheduler: Option<String>,
    pub(super) path_manager: Option<String>,
    pub(super) opportunistic_retransmission: Option<OpportunisticMode>,
    pub(super) penalisation: Option<OpportunisticMode>,
    pub(super) checksum: Option<bool>,
    pub(super) receive_buffer_mode: Option<ReceiveBufferMode>,
    pub(super) smallest_mss: Option<bool>,
    pub(super) path_policy: Option<PathPolicy>,
    pub(super) quic_congestion_control: Option<String>,
    pub(super) given: Vec<&'static str>,
}

impl StackOverrides {
    /// A host's plan: its own keys, else those of `run`, else the profile's.
    pub(super) fn resolve(&self, run: &Self) -> HostStackConfig {
        let profile = self.profile.or(run.profile).unwrap_or_default();
        // mptcp.org's versions always had both; kernels since 5.6 have neither.
        let variant = match profile {
            Profile::Linux32Mptcp => OpportunisticMode::Guarded,
            Profile::Linux6 | Profile::Linux618 | Profile::Ideal => OpportunisticMode::Off,
        };
        let mode = match profile {
            Profile::Linux6 | Profile::Linux618 | Profile::Linux32Mptcp => ReceiveBufferMode::Linux,
            Profile::Ideal => ReceiveBufferMode::Fixed,
        };
        let mut given = self.given.clone();
        given.extend(run.given.iter().filter(|key| !self.given.contains(key)));
        HostStackConfig {
            stack: self.stack.or(run.stack).unwrap_or_default(),
            profile,
            switches: self.switches.over(run.switches),
            scheduler: self.scheduler.clone().or_else(|| run.scheduler.clone()),
            path_manager: self.path_manager.clone().or_else(|| run.path_manager.clone()),
            opportunistic_retransmission: self
                .opportunistic_retransmission
                .or(run.opportunistic_retransmission)
                .unwrap_or(variant),
            penalisation: self.penalisation.or(run.penalisation).unwrap_or(variant),
            checksum: self.checksum.or(run.checksum).unwrap_or(false),
            receive_buffer_mode: self
                .receive_buffer_mode
                .or(run.receive_buffer_mode)
                .unwrap_or(mode),
            smallest_mss: self.smallest_mss.or(run.smallest_mss).unwrap_or(false),
            path_policy: self.path_policy.or(run.path_policy).unwrap_or_default(),
            quic_congestion_control: self
                .quic_congestion_control
                .clone()
                .or_else(|| run.quic_congestion_control.clone()),
            given,
        }
    }
}

/// A box on a path that changes packets (simulated world only).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Middlebox {
    /// Index of the path; the box stands at the first host's end.
    pub path: usize,
    /// Which packets it sees.
    pub side: LinkSide,
    /// What it does.
    pub action: MiddleboxAction,
}

/// What a middlebox does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MiddleboxAction {
    /// Removes Multipath TCP options from every packet.
    StripMptcp,
    /// Removes them from SYNs only.
    StripMptcpSyn,
    /// Removes DSS options only.
    StripDss,
    /// Removes ADD_ADDR options only.
    StripAddAddr,
    /// Cuts packets with data in two, with the options on both.
    Split,
    /// Joins two neighbouring packets with data into one, with the options of the first.
    Coalesce,
    /// Translates the first host's addresses and ports.
    Nat,
    /// Shifts sequence numbers, as some firewalls do.
    ShiftSequence,
    /// Changes a byte of the payload and mends the TCP checksum.
    RewritePayload,
}
