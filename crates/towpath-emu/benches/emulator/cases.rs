//! Cases of the benchmark: networks, and traffic over them.

use towpath_emu::Backend;

/// Rate of the shaped link in bit/s.
pub(crate) const RATE_BPS: u64 = 100_000_000;
/// Size of the probes' IP packets in bytes.
pub(crate) const PACKET_BYTES: usize = 1_500;
/// Delay that the link adds, in ms.
pub(crate) const DELAY_MILLIS: u64 = 10;

/// Network between the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// A veth pair from host to host, without any emulator; shaped by `tbf` for shaped traffic.
    Veth,
    /// Towpath's emulator, run by `user`; `segments` is the scenario's `segmentation` of the link.
    Emulated { backend: Backend, segments: &'static str, user: User },
    /// `rattan`, at ordinary or at real-time priority.
    Rattan { real_time: bool },
    /// No network and no packets: the best that this machine can do.
    ///
    /// A thread with the emulator's priority sleeps until each deadline of a steady pace, or polls
    /// the clock without sleeping.
    Bare { wait_method: WaitMethod },
}

/// Waiting method of a bare thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMethod {
    Sleep,
    Spin,
}

/// User that runs the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// User that started the benchmark; root gets real-time priority.
    Caller,
    /// An ordinary user (`nobody`), when root started the benchmark.
    Nobody,
}

/// Traffic from the first host to the second, with the link that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// One TCP connection at full speed, over a link without rate or delay.
    Tcp,
    /// UDP packets at a steady pace, over a link that delays them (all but a plain veth pair do).
    Paced { per_second: u32 },
    /// UDP packets at one and a half times the link's rate.
    Overload,
}

/// One row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) network: Network,
    pub(crate) traffic: Traffic,
}

/// Returns every case, in the order of the tables.
pub(crate) fn all_cases() -> Vec<Case> {
    let emulated = |segments, user| {
        [Backend::Tun, Backend::Packet]
            .map(|backend| Network::Emulated { backend, segments, user })
            .to_vec()
    };
    let rattan = |real_time| {
        let is_requested = std::env::var_os("RATTAN").is_some();
        if is_requested { vec![Network::Rattan { real_time }] } else { Vec::new() }
    };
    let cases = |traffic, networks: Vec<Vec<Network>>| {
        [vec![Network::Veth]]
            .into_iter()
            .chain(networks)
            .flatten()
            .map(move |network| Case { network, traffic })
    };
    let tcp_networks = [
        emulated("coalesced", User::Caller),
        emulated("split", User::Caller),
        rattan(false),
        rattan(true),
    ];
    let paced = |per_second| {
        let networks = [
            emulated("auto", User::Caller),
            emulated("auto", User::Nobody),
            rattan(false),
            rattan(true),
        ];
        let bare_threads =
            [WaitMethod::Sleep, WaitMethod::Spin].map(|wait_method| Network::Bare { wait_method });
        let networks = [networks.to_vec(), vec![bare_threads.to_vec()]].concat();
        cases(Traffic::Paced { per_second }, networks)
    };
    let overload_networks = [emulated("auto", User::Caller), rattan(false), rattan(true)];
    cases(Traffic::Tcp, tcp_networks.to_vec())
        .chain(paced(8_333))
        .chain(paced(100))
        .chain(cases(Traffic::Overload, overload_networks.to_vec()))
        .collect()
}

impl Case {
    /// Returns the case with this name.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        all_cases().into_iter().find(|case| case.name() == name)
    }

    /// Returns the name for the command line: `throughput/tun-coalesced`.
    pub(crate) fn name(&self) -> String {
        let traffic = match self.traffic {
            Traffic::Tcp => "throughput".to_owned(),
            Traffic::Paced { per_second } => format!("delay-{per_second}"),
            Traffic::Overload => "rate".to_owned(),
        };
        let network = match self.network {
            Network::Veth if self.traffic == Traffic::Overload => "veth-tbf".to_owned(),
            Network::Veth => "veth".to_owned(),
            Network::Emulated { backend, segments, user } => {
                let segments = if segments == "auto" { "" } else { segments };
                let user = if user == User::Nobody { "nobody" } else { "" };
                let words = [backend.name(), segments, user];
                words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
            }
            Network::Rattan { real_time: false } => "rattan".to_owned(),
            Network::Rattan { real_time: true } => "rattan-real-time".to_owned(),
            Network::Bare { wait_method: WaitMethod::Sleep } => "bare-sleep".to_owned(),
            Network::Bare { wait_method: WaitMethod::Spin } => "bare-spin".to_owned(),
        };
        format!("{traffic}/{network}")
    }

    /// Returns the scenario's keys of the emulated path.
    pub(crate) fn link(&self) -> String {
        match self.traffic {
            Traffic::Tcp => String::new(),
            Traffic::Paced { .. } => format!("delay = \"{DELAY_MILLIS} ms\""),
            Traffic::Overload => "rate = \"100 Mbit/s\"\nqueue = \"50 ms\"".to_owned(),
        }
    }

    /// Returns the delay that the link must add.
    pub(crate) fn delay_millis(&self) -> u64 {
        match (self.traffic, self.network) {
            (Traffic::Paced { .. }, Network::Emulated { .. } | Network::Rattan { .. }) => {
                DELAY_MILLIS
            }
            (Traffic::Tcp | Traffic::Overload, _) | (_, Network::Veth | Network::Bare { .. }) => 0,
        }
    }
}
