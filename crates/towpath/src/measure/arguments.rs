//! Command-line arguments of `towpath measure`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use towpath_live::Fingerprint;
use towpath_net::Rate;
use towpath_result::OrderKind;
use towpath_scenario::Transport;

use crate::amounts;
use crate::options::{order, transport};
use crate::upload::UploadArguments;

/// Transports that `--mobile` measures at the same time.
const MOBILE_TRANSPORTS: [Transport; 2] = [Transport::Mptcp, Transport::Mpquic];

/// Measure between this host and a host that runs `towpath server`
///
/// Sends a traffic pattern over each transport. Prints a line for every subflow while it runs, then
/// a table, and writes a report. Most short options are those of iperf3. A lost path does not lose the
/// result: the server stores its results until the client has fetched them.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(crate) struct MeasureArguments {
    /// Name or address of the server; excludes `--server`
    #[arg(value_name = "HOST")]
    first: Option<String>,
    /// Traffic pattern: iperf, bulk, ping, reqres, interactive, onoff, video, web, trace, udping,
    /// udp, call, or latency (idle, then under load; -t applies to each phase) [default: iperf;
    /// with --mobile: interactive]
    #[arg(value_name = "PATTERN")]
    second: Option<String>,
    /// Server, instead of HOST; `auto` selects the nearest of --servers
    #[arg(long, value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// File with one server per line: a name or address, with the port if it is not the default
    #[arg(long, value_name = "FILE")]
    pub(crate) servers: Option<PathBuf>,
    /// Port of the server
    #[arg(short, long, default_value_t = towpath_live::protocol::DEFAULT_PORT)]
    pub(crate) port: u16,
    /// Transports: tcp, mptcp, quic, mpquic [default: mptcp; with --mobile: mptcp, mpquic]
    #[arg(short = 'T', long = "transport", value_delimiter = ',', value_name = "LIST", value_parser = transport)]
    transports: Vec<Transport>,
    /// Duration, such as `10` (seconds), `10s` or `"500 ms"`
    #[arg(short = 't', long = "duration", alias = "time", value_name = "TIME", value_parser = amounts::time)]
    pub(crate) time: Option<Duration>,
    /// Number of bytes to send instead of a duration, such as `10M` or `"10 MB"`
    #[arg(short = 'n', long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) bytes: Option<u64>,
    /// Maximum rate of each stream, such as `50M` or `"50 Mbit/s"`; with udp: the rate [default: 1
    /// Mbit/s]
    #[arg(short, long, value_name = "RATE", value_parser = amounts::rate)]
    pub(crate) bitrate: Option<Rate>,
    /// Parallel connections
    #[arg(short = 'P', long, value_name = "N")]
    pub(crate) parallel: Option<u32>,
    /// The server sends (or makes the requests)
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    pub(crate) reverse: bool,
    /// Both hosts send (or make requests)
    #[arg(long)]
    pub(crate) bidir: bool,
    /// Start from the values of a preset: multipathtester, multipathtester-app, voice-assistant
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Add a bulk flow to a pattern of messages: up, down or both
    #[arg(long, value_name = "DIRECTION")]
    pub(crate) load: Option<String>,
    /// Also send datagrams over each interface, to measure each path by itself
    #[arg(long)]
    pub(crate) udping: bool,
    /// Set another key of a scenario's flow, such as `request=2KB` (see `towpath schema
    /// scenario-keys`)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Bytes per write or read [default: 128K; 512K for a stream above 1 Gbit/s]; with udp: bytes
    /// per datagram [default: 1448]
    #[arg(short, long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) length: Option<u64>,
    /// Socket buffer size on both hosts [default: the systems']
    #[arg(short, long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) window: Option<u64>,
    /// Congestion control on both hosts [default: the systems']
    #[arg(short = 'C', long = "congestion-control", alias = "congestion", value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Use of paths by Multipath QUIC, on both hosts
    #[arg(long, value_name = "NAME", default_value = "aggregate", value_parser = ["aggregate", "backup", "ios"])]
    pub(crate) path_policy: String,
    /// Local address (or %interface) of connections
    #[arg(short = 'B', long, value_name = "ADDRESS")]
    pub(crate) bind: Option<String>,
    /// IPv4 only
    #[arg(short = '4', long = "ipv4", conflicts_with = "v6")]
    pub(crate) v4: bool,
    /// IPv6 only
    #[arg(short = '6', long = "ipv6")]
    pub(crate) v6: bool,
    /// Count received data in the kernel instead of copying it
    #[arg(long, conflicts_with = "tls")]
    pub(crate) skip_rx_copy: bool,
    /// Use TLS for TCP and MPTCP, for a fair comparison with QUIC
    #[arg(long)]
    pub(crate) tls: bool,
    /// Repetitions of each transport
    #[arg(short = 'r', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,
    /// Order of the transports in each repetition: random (from the seed) or fixed
    #[arg(long, value_name = "ORDER", default_value = "fixed", value_parser = order)]
    pub(crate) order: OrderKind,
    /// Seed of a random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Pause between two runs
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = amounts::time)]
    pub(crate) wait: Duration,
    /// Time between two samples of the subflows on both hosts
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = amounts::time)]
    pub(crate) sample: Duration,
    /// Time covered by an interval line
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = amounts::time)]
    pub(crate) interval: Duration,
    /// Exit with 1 unless a multipath transport was used to the end and N paths carried data
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "2", require_equals = true)]
    pub(crate) require_multipath: Option<usize>,
    /// Exit with 1 unless this holds, such as `"goodput >= 20 Mbit/s"` or `mptcp.stall.longest=<1s`
    #[arg(long, value_name = "KEY=BOUND")]
    pub(crate) expect: Vec<String>,
    /// Use real-time priority for scheduled requests and datagrams
    #[arg(long)]
    pub(crate) rt: bool,
    /// File with the secret of the server
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Require a server certificate with this SHA-256 fingerprint; implies --tls for TCP and MPTCP
    /// [default: accept any certificate and print its fingerprint]
    #[arg(long, value_name = "SHA256")]
    pub(crate) server_cert: Option<Fingerprint>,
    /// Folder for qlog files of this host's QUIC, one file per flow
    #[arg(long, value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
    /// Timeout for fetching the server's results
    #[arg(long, value_name = "TIME", default_value = "20", value_parser = amounts::time)]
    pub(crate) result_timeout: Duration,
    /// Measure while this host moves: network changes do not invalidate a run.
    ///
    /// Patterns of requests and datagrams (interactive, reqres, onoff, udping) run over all
    /// transports at the same time, and --udping is implied. The test ends when an initial network
    /// disappears, or after -t (by default 10 min).
    #[arg(long)]
    pub(crate) mobile: bool,
    /// Folder for results and report [default: towpath-results/live-PATTERN/NUMBER]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print summaries as JSON, one line per run, instead of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print no interval lines
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) upload: UploadArguments,
    /// Options from the configuration file, for the result's conditions.
    #[arg(skip)]
    pub(crate) defaults: Vec<String>,
    /// Keys of the flow with values as TOML, from a campaign, whose patterns have no other defaults
    /// than a scenario's. `None` for a command line.
    #[arg(skip)]
    pub(crate) flow_keys: Option<Vec<(String, String)>>,
    /// Further conditions of the result.
    #[arg(skip)]
    pub(crate) conditions: Vec<(String, String)>,
}

impl MeasureArguments {
    /// Returns the server: the word before the pattern. With `--server`, a single word is the
    /// pattern and there is no host.
    pub(crate) fn host(&self) -> Option<&str> {
        let is_single_word = self.server.is_some() && self.second.is_none();
        self.first.as_deref().filter(|_| !is_single_word)
    }

    /// Returns the traffic pattern, or the default one.
    pub(crate) fn pattern(&self) -> &str {
        let is_single_word = self.server.is_some() && self.second.is_none();
        let word = if is_single_word { self.first.as_deref() } else { self.second.as_deref() };
        word.unwrap_or(if self.mobile { "interactive" } else { "iperf" })
    }

    /// Returns the transports to measure over.
    pub(crate) fn transports(&self) -> &[Transport] {
        match (self.transports.as_slice(), self.is_session()) {
            // Datagrams have no transport; TCP only carries the control connection.
            ([], _) if self.sends_datagrams() => &[Transport::Tcp],
            ([], true) => &MOBILE_TRANSPORTS,
            ([], false) => &[Transport::Mptcp],
            (given, _) => given,
        }
    }

    /// Returns true if the pattern sends datagrams, which have no transport.
    pub(crate) fn sends_datagrams(&self) -> bool {
        matches!(self.pattern(), "udp" | "call")
    }

    /// Returns true if the pattern runs until the host has left a network. Transfers, pages and
    /// videos end by themselves.
    pub(crate) fn is_session(&self) -> bool {
        self.mobile && matches!(self.pattern(), "interactive" | "reqres" | "onoff" | "udping")
    }
}
