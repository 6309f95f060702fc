//! Options that several verbs share, and the types of their values.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use towpath_result::OrderKind;
use towpath_scenario::{Transport, World};
use towpath_wire::pcapng::MIN_SNAP_BYTES;

use crate::amounts;
use crate::changes::ScenarioChanges;
use crate::stacks::StackChoice;

/// Options of a scenario's runs, common to all commands that run one.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    /// Worlds: sim (virtual time, towpath's stack), emu (real kernels) [default: the scenario's;
    /// sim if this machine cannot emulate]
    #[arg(short = 'W', long, value_delimiter = ',', value_name = "LIST", value_parser = world)]
    pub(crate) world: Vec<World>,
    /// Seed of all random draws [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Pause between two runs, such as `2` (seconds) or `200ms`; not for simulated runs
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// Number of simulated runs in parallel [default: the number of processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) jobs: Option<u32>,
    /// TCP and MPTCP stack: kernel, towpath, or towpath:HOST for one host [default: the scenario's]
    #[arg(long, value_delimiter = ',', value_name = "STACK")]
    pub(crate) stack: Vec<StackChoice>,
    #[command(flatten)]
    pub(crate) changes: ScenarioChanges,
    /// Reason why runs are simulated that another machine would emulate.
    #[arg(skip)]
    pub(crate) fallback: Option<String>,
}

/// Options of packet capture.
#[derive(Debug, Clone, Args)]
pub(crate) struct CaptureArguments {
    /// Folder for packet captures (pcapng, one file per host)
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    /// Bytes of each packet to capture; 128 include all headers [default: entire packets]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = snap())]
    pub(crate) snap: Option<u32>,
    /// True if simulated runs get time–sequence plots.
    #[arg(skip = true)]
    pub(crate) pictures: bool,
}

fn snap() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(MIN_SNAP_BYTES)..=65_535)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendChoice {
    /// TUN devices if `/dev/net/tun` can be opened, otherwise packet sockets
    Auto,
    /// TUN devices
    Tun,
    /// Packet sockets on veth pairs
    Packet,
}

/// Parses the interval between two polls, 10 ms to 1 h.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let in_range =
        |span: &Duration| (Duration::from_millis(10)..=Duration::from_secs(3600)).contains(span);
    let span = Some(time(text)?).filter(in_range);
    span.ok_or_else(|| "expected 10 ms to 1 h".to_owned())
}

pub(crate) fn transport(text: &str) -> Result<Transport, String> {
    let known = Transport::ALL.into_iter().find(|known| known.to_string() == text.trim());
    known.ok_or_else(|| "expected tcp, mptcp, quic or mpquic".to_owned())
}

pub(crate) fn world(text: &str) -> Result<World, String> {
    match text.trim() {
        "sim" => Ok(World::Sim),
        "emu" => Ok(World::Emu),
        "live" => Ok(World::Live),
        _ => Err("expected sim, emu or live".to_owned()),
    }
}

pub(crate) fn order(text: &str) -> Result<OrderKind, String> {
    match text.trim() {
        "random" => Ok(OrderKind::Random),
        "fixed" => Ok(OrderKind::Fixed),
        _ => Err("expected random or fixed".to_owned()),
    }
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    amounts::time(text)
}

/// Folder and name prefix of captures, and the bytes kept of each packet (`None`: all).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CaptureSpec {
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) snap_bytes: Option<u32>,
}

impl CaptureSpec {
    pub(crate) fn of(arguments: &CaptureArguments, name: String) -> Option<Self> {
        let folder = arguments.pcap.clone()?;
        Some(Self { folder, name, snap_bytes: arguments.snap })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        for text in ["2", "2s", "2 s", "2000ms", "2000 ms"] {
            assert_eq!(time(text), Ok(Duration::from_secs(2)), "{text}");
        }
        assert!(interval("1 us").is_err() && interval("0.01").is_ok());
    }
}
