//! Configuration of towpath's own stack on a host, and of middleboxes on paths.

use std::fmt;
use std::time::Duration;

use super::model::{Host, LinkSide, Scenario};

/// TCP and Multipath TCP implementation of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StackKind {
    /// The operating system's stack (emulated world only).
    #[default]
    Kernel,
    /// The own stack of towpath.
    Towpath,
}

/// Behaviour of the host around towpath's own stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Profile {
    /// Linux 6.18, fitted to six scenarios; counts payload bytes instead of kernel memory.
    Linux6,
    /// Linux 6.18, fitted to measurements on random networks.
    #[default]
    Linux618,
    /// Linux 3.2 with mptcp.org's patch: no pacing, no small queues, but M1 and M2.
    Linux32Mptcp,
    /// Protocol without a host model: no timer granularity, no memory overhead, no batching.
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

/// Overrides of single [`Profile`] properties; `None` keeps the profile's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfileSwitches {
    /// Delay acknowledgements until a second packet arrives.
    pub delayed_ack: Option<bool>,
    /// Limit super-segments to about 1 ms of data (TSO autosizing).
    pub tso_autosizing: Option<bool>,
    /// Stop sending while the host's own queue holds enough (TCP small queues).
    pub tsq: Option<bool>,
    /// Retransmit the first SYNs every second before exponential backoff.
    pub linear_syn: Option<bool>,
    /// Granularity of timers; zero means exact timers.
    pub timer_granularity: Option<Duration>,
    /// Leave slow start early (HyStart).
    pub hystart: Option<bool>,
    /// Use Linux's HyStart rule, with CUBIC only, instead of RFC 9406's.
    pub linux_hystart: Option<bool>,
    /// Spread packets over the round-trip time (pacing).
    pub pacing: Option<bool>,
    /// Advertise only a part of the receive buffer's memory as window.
    pub rmem_scaling: Option<bool>,
    /// Send beyond the peer's window, as Linux does.
    pub window_overstep: Option<bool>,
    /// CPU time per packet, sent or received.
    pub cpu_per_packet: Option<Duration>,
    /// Charge a sent super-segment the CPU time of one packet.
    pub segmentation_offload: Option<bool>,
}

impl ProfileSwitches {
    /// Returns the values of `self`, with those of `defaults` where `self` has none.
    #[must_use]
    pub(super) fn or_defaults(self, defaults: Self) -> Self {
        Self {
            delayed_ack: self.delayed_ack.or(defaults.delayed_ack),
            tso_autosizing: self.tso_autosizing.or(defaults.tso_autosizing),
            tsq: self.tsq.or(defaults.tsq),
            linear_syn: self.linear_syn.or(defaults.linear_syn),
            timer_granularity: self.timer_granularity.or(defaults.timer_granularity),
            hystart: self.hystart.or(defaults.hystart),
            linux_hystart: self.linux_hystart.or(defaults.linux_hystart),
            pacing: self.pacing.or(defaults.pacing),
            rmem_scaling: self.rmem_scaling.or(defaults.rmem_scaling),
            window_overstep: self.window_overstep.or(defaults.window_overstep),
            cpu_per_packet: self.cpu_per_packet.or(defaults.cpu_per_packet),
            segmentation_offload: self.segmentation_offload.or(defaults.segmentation_offload),
        }
    }
}

/// Trigger of opportunistic retransmission (M1) or penalisation (M2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpportunisticMode {
    /// Never act, the default.
    #[default]
    Off,
    /// Act whenever the window is full, as in the NSDI 2012 paper.
    Nsdi12,
    /// Act with the guards of later mptcp.org versions.
    Guarded,
}

impl fmt::Display for OpportunisticMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Nsdi12 => "nsdi12",
            Self::Guarded => "mptcp-org",
        })
    }
}

/// Growth of the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceiveBufferMode {
    /// By what the application reads per round-trip time, as Linux does.
    #[default]
    Linux,
    /// Fixed at the maximum size.
    Fixed,
    /// Twice the sum of the rates times the longest round-trip time.
    Barre2011,
}

impl fmt::Display for ReceiveBufferMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux => "linux",
            Self::Fixed => "fixed",
            Self::Barre2011 => "barre2011",
        })
    }
}

/// Path selection of a Multipath QUIC connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// All paths at once, except those of backup addresses.
    #[default]
    Aggregate,
    /// The first path; another one after it fails.
    Backup,
    /// The first path; another one as soon as it is slow or times out.
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

/// Resolved stack configuration of a host: its own keys, else those of `[run]`, else the profile's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostStackConfig {
    /// Stack implementation; the simulated world always uses towpath's own.
    pub stack: StackKind,
    /// Behaviour of the host around the stack.
    pub profile: Profile,
    /// Overrides of the profile.
    pub switches: ProfileSwitches,
    /// Name of the scheduler, validated by the world; `None` means the profile's.
    pub scheduler: Option<String>,
    /// Name of the path manager, validated by the world; `None` means the profile's.
    pub path_manager: Option<String>,
    /// Mode of opportunistic retransmission (M1).
    pub opportunistic_retransmission: OpportunisticMode,
    /// Mode of subflow penalisation (M2).
    pub penalisation: OpportunisticMode,
    /// Set if DSS checksums are required.
    pub checksum: bool,
    /// Growth of the receive buffer.
    pub receive_buffer_mode: ReceiveBufferMode,
    /// Set if all subflows use the smallest MSS of any subflow.
    pub smallest_mss: bool,
    /// Path selection of Multipath QUIC.
    pub path_policy: PathPolicy,
    /// Name of QUIC's congestion control, validated by the world; `None` means that of TCP.
    pub quic_congestion_control: Option<String>,
    /// Stack keys set in the scenario; a kernel stack ignores them.
    pub given: Vec<&'static str>,
}

impl Default for HostStackConfig {
    fn default() -> Self {
        StackOverrides::default().resolve(&StackOverrides::default())
    }
}

impl Scenario {
    /// Returns the configuration of `host`'s own stack as name and value, for stacks that know no
    /// scenarios. Names are the scenario's keys; sizes are in bytes, times in nanoseconds. Missing
    /// names keep the profile's value.
    pub fn stack_settings(&self, host: &Host) -> Vec<(&'static str, String)> {
        let config = &host.stack;
        let mut settings = vec![
            ("profile", config.profile.to_string()),
            ("congestion-control", self.congestion_control_of(host).to_owned()),
            ("opportunistic-retransmission", config.opportunistic_retransmission.to_string()),
            ("penalisation", config.penalisation.to_string()),
            ("checksum", config.checksum.to_string()),
            ("receive-buffer-mode", config.receive_buffer_mode.to_string()),
            ("mss", if config.smallest_mss { "smallest" } else { "own" }.to_owned()),
        ];
        let mut push =
            |name, value: Option<String>| settings.extend(value.map(|value| (name, value)));
        push("scheduler", config.scheduler.clone());
        push("path-manager", config.path_manager.clone());
        push("subflows", host.mptcp.subflows.map(|n| n.to_string()));
        push("add-addr-accepted", host.mptcp.add_addr_accepted.map(|n| n.to_string()));
        let sizes_text = |sizes: [u64; 3]| sizes.map(|size| size.to_string()).join(" ");
        push("receive-buffer", host.receive_buffer.map(sizes_text));
        push("send-buffer", host.send_buffer.map(sizes_text));
        let switches = &config.switches;
        let nanos = |span: Duration| span.as_nanos().to_string();
        push("delayed-ack", switches.delayed_ack.map(|on| on.to_string()));
        push("tso-autosizing", switches.tso_autosizing.map(|on| on.to_string()));
        push("tsq", switches.tsq.map(|on| on.to_string()));
        push("linear-syn", switches.linear_syn.map(|on| on.to_string()));
        push("timer-granularity", switches.timer_granularity.map(nanos));
        push("linux-hystart", switches.linux_hystart.map(|on| on.to_string()));
        push("hystart", switches.hystart.map(|on| on.to_string()));
        push("pacing", switches.pacing.map(|on| on.to_string()));
        push("rmem-scaling", switches.rmem_scaling.map(|on| on.to_string()));
        push("window-overstep", switches.window_overstep.map(|on| on.to_string()));
        push("cpu-per-packet", switches.cpu_per_packet.map(nanos));
        push("segmentation-offload", switches.segmentation_offload.map(|on| on.to_string()));
        settings
    }
}

impl Scenario {
    /// Returns the configuration of `host`'s QUIC stack, in the format of [`Self::stack_settings`].
    pub fn quic_settings(&self, host: &Host) -> Vec<(&'static str, String)> {
        let config = &host.stack;
        let congestion_control = config.quic_congestion_control.as_deref();
        let congestion_control =
            congestion_control.unwrap_or_else(|| self.congestion_control_of(host));
        let mut settings = vec![
            ("congestion-control", congestion_control.to_owned()),
            ("path-policy", config.path_policy.to_string()),
        ];
        let sizes_text = |sizes: [u64; 3]| sizes.map(|size| size.to_string()).join(" ");
        settings.extend(host.receive_buffer.map(|buffer| ("receive-buffer", sizes_text(buffer))));
        settings.extend(host.send_buffer.map(|buffer| ("send-buffer", sizes_text(buffer))));
        settings
    }
}

/// Stack keys of a host or of `[run]` that the scenario sets.
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
    /// Returns a host's configuration: its own keys, else those of `run`, else the profile's.
    pub(super) fn resolve(&self, run: &Self) -> HostStackConfig {
        let profile = self.profile.or(run.profile).unwrap_or_default();
        // All mptcp.org versions had both M1 and M2; kernels since 5.6 have neither.
        let default_m1_m2 = match profile {
            Profile::Linux32Mptcp => OpportunisticMode::Guarded,
            Profile::Linux6 | Profile::Linux618 | Profile::Ideal => OpportunisticMode::Off,
        };
        let default_buffer_mode = match profile {
            Profile::Linux6 | Profile::Linux618 | Profile::Linux32Mptcp => ReceiveBufferMode::Linux,
            Profile::Ideal => ReceiveBufferMode::Fixed,
        };
        let mut given = self.given.clone();
        given.extend(run.given.iter().filter(|key| !self.given.contains(key)));
        HostStackConfig {
            stack: self.stack.or(run.stack).unwrap_or_default(),
            profile,
            switches: self.switches.or_defaults(run.switches),
            scheduler: self.scheduler.clone().or_else(|| run.scheduler.clone()),
            path_manager: self.path_manager.clone().or_else(|| run.path_manager.clone()),
            opportunistic_retransmission: self
                .opportunistic_retransmission
                .or(run.opportunistic_retransmission)
                .unwrap_or(default_m1_m2),
            penalisation: self.penalisation.or(run.penalisation).unwrap_or(default_m1_m2),
            checksum: self.checksum.or(run.checksum).unwrap_or(false),
            receive_buffer_mode: self
                .receive_buffer_mode
                .or(run.receive_buffer_mode)
                .unwrap_or(default_buffer_mode),
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

/// A middlebox on a path that modifies packets (simulated world only).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Middlebox {
    /// Index of the path; the middlebox is at the first host's end.
    pub path: usize,
    /// Direction of the packets that the middlebox sees.
    pub side: LinkSide,
    /// Modification that the middlebox makes.
    pub action: MiddleboxAction,
}

/// Modification of packets by a middlebox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MiddleboxAction {
    /// Removes Multipath TCP options from every packet.
    StripMptcp,
    /// Removes Multipath TCP options from SYNs only.
    StripMptcpSyn,
    /// Removes DSS options only.
    StripDss,
    /// Removes ADD_ADDR options only.
    StripAddAddr,
    /// Splits packets with data in two, with the options on both.
    Split,
    /// Joins two neighbouring packets with data into one, with the options of the first.
    Coalesce,
    /// Translates the first host's addresses and ports.
    Nat,
    /// Shifts sequence numbers, as some firewalls do.
    ShiftSequence,
    /// Changes a byte of the payload and fixes the TCP checksum.
    RewritePayload,
}
