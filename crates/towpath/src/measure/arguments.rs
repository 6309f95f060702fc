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

/// Transports that `--mobile` measures at the same time.
const MOBILE_TRANSPORTS: [Transport; 2] = [Transport::Mptcp, Transport::Mpquic];

/// Measure towards a host that runs `towpath server`
///
/// Sends a traffic pattern over each transport, with lines for every subflow while it runs, a table
/// and a report at the end. Letters mean what they mean to iperf3. Whatever path is lost, the
/// result is not: the server keeps its half until it was fetched.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(crate) struct MeasureArguments {
    /// Name or address of the server; not with `--server`
    #[arg(value_name = "HOST")]
    first: Option<String>,
    /// Pattern: iperf, bulk, ping, reqres, interactive, onoff, video, web, trace, udping, udp,
    /// call, latency (idle, then beside loads: -t is for each phase)
    /// [default: iperf; with --mobile: interactive]
    #[arg(value_name = "PATTERN")]
    second: Option<String>,
    /// The server, in place of HOST; `auto` for the nearest of --servers
    #[arg(long, value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// File of servers, one a line: a name or address, and its port if it has another
    #[arg(long, value_name = "FILE")]
    pub(crate) servers: Option<PathBuf>,
    /// Port of the server
    #[arg(short, long, default_value_t = towpath_live::protocol::DEFAULT_PORT)]
    pub(crate) port: u16,
    /// Transports: tcp, mptcp, quic, mpquic [default: mptcp; with --mobile: mptcp, mpquic]
    #[arg(short = 'T', long = "transport", value_delimiter = ',', value_name = "LIST", value_parser = transport)]
    transports: Vec<Transport>,
    /// Duration, as `10` (seconds), `10s` or `"500 ms"`
    #[arg(short = 't', long = "duration", alias = "time", value_name = "TIME", value_parser = amounts::time)]
    pub(crate) time: Option<Duration>,
    /// Send so many bytes in place of a time, as `10M` or `"10 MB"`
    #[arg(short = 'n', long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) bytes: Option<u64>,
    /// No stream sends faster, as `50M` or `"50 Mbit/s"`; with udp: what is sent [default: 1
    /// Mbit/s]
    #[arg(short, long, value_name = "RATE", value_parser = amounts::rate)]
    pub(crate) bitrate: Option<Rate>,
    /// Parallel connections
    #[arg(short = 'P', long, value_name = "N")]
    pub(crate) parallel: Option<u32>,
    /// The server sends (or asks)
    #[arg(short = 'R', long, conflicts_with = "bidir")]
    pub(crate) reverse: bool,
    /// Both send (or ask)
    #[arg(long)]
    pub(crate) bidir: bool,
    /// Begin with the figures of a named setting: multipathtester,
    /// multipathtester-app, voice-assistant
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// A bulk flow beside messages: up, down or both
    #[arg(long, value_name = "DIRECTION")]
    pub(crate) load: Option<String>,
    /// Datagrams over each interface beside it: what every path is like by itself
    #[arg(long)]
    pub(crate) udping: bool,
    /// Any other key of a scenario's flow, as `request=2KB` (see `towpath schema scenario-keys`)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Bytes written or read at once [default: 128K; 512K for a stream above 1 Gbit/s]; with udp:
    /// of a datagram [default: 1448]
    #[arg(short, long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) length: Option<u64>,
    /// Buffers of the sockets on both hosts [default: the systems']
    #[arg(short, long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) window: Option<u64>,
    /// Congestion control on both hosts [default: the systems']
    #[arg(short = 'C', long = "congestion-control", alias = "congestion", value_name = "NAME")]
    pub(crate) congestion: Option<String>,
    /// Multipath QUIC's use of paths, on both hosts: aggregate, backup, ios
    #[arg(long, value_name = "NAME", default_value = "aggregate", value_parser = ["aggregate", "backup", "ios"])]
    pub(crate) path_policy: String,
    /// Address (or %interface) from which connections start
    #[arg(short = 'B', long, value_name = "ADDRESS")]
    pub(crate) bind: Option<String>,
    /// IPv4 only
    #[arg(short = '4', long = "ipv4", conflicts_with = "v6")]
    pub(crate) v4: bool,
    /// IPv6 only
    #[arg(short = '6', long = "ipv6")]
    pub(crate) v6: bool,
    /// Let the kernel count received data instead of copying it
    #[arg(long, conflicts_with = "tls")]
    pub(crate) skip_rx_copy: bool,
    /// TLS on TCP and MPTCP, too, as QUIC always has it: for comparisons on equal terms
    #[arg(long)]
    pub(crate) tls: bool,
    /// Repetitions of each transport
    #[arg(short = 'r', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,
    /// Order of the transports in each repetition: random (drawn from the seed), fixed
    #[arg(long, value_name = "ORDER", default_value = "fixed", value_parser = order)]
    pub(crate) order: OrderKind,
    /// Seed of a random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Pause between two runs
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = amounts::time)]
    pub(crate) wait: Duration,
    /// Interval between samples of the subflows' state on both hosts
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = amounts::time)]
    pub(crate) sample: Duration,
    /// Length of an interval line
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = amounts::time)]
    pub(crate) interval: Duration,
    /// Exit with 1 unless a multipath transport was used to the end, and N paths carried data
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "2", require_equals = true)]
    pub(crate) require_multipath: Option<usize>,
    /// Exit with 1 unless this holds, as `"goodput >= 20 Mbit/s"` or `mptcp.stall.longest=<1s`
    #[arg(long, value_name = "KEY=BOUND")]
    pub(crate) expect: Vec<String>,
    /// Real-time priority for what is due at a certain time
    #[arg(long)]
    pub(crate) rt: bool,
    /// File with the secret that the server wants
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// SHA-256 fingerprint of the server's certificate. Everything goes over QUIC or TLS then,
    /// which means --tls for TCP and MPTCP [default: anybody is taken, and named]
    #[arg(long, value_name = "SHA256")]
    pub(crate) server_cert: Option<Fingerprint>,
    /// Folder for a log of all that this host's QUIC does (qlog), one file for each flow
    #[arg(long, value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
    /// Timeout for the server's results after the traffic
    #[arg(long, value_name = "TIME", default_value = "20", value_parser = amounts::time)]
    pub(crate) result_timeout: Duration,
    /// Measure while this host moves: changes of its network do not invalidate a run. Requests and
    /// datagrams (interactive, reqres, onoff, udping) run over all transports at the same time,
    /// with --udping, until a network that was there at first is gone (or -t, 10 min, is over)
    #[arg(long)]
    pub(crate) mobile: bool,
    /// Folder for results and report [default: towpath-results/live-PATTERN/NUMBER]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print summaries as JSON, one line a run, in place of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// No interval lines while it runs
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Options from the configuration file, for the result's conditions.
    #[arg(skip)]
    pub(crate) defaults: Vec<String>,
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
