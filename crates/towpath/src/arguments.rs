//! Command-line arguments, as clap types. Their doc comments are the help texts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use towpath_result::OrderKind;
use towpath_scenario::{Transport, World};
use towpath_trace::TakenAt;
use towpath_wire::pcapng::MIN_SNAP_BYTES;

use crate::changes::ScenarioChanges;
use crate::check::CheckArguments;
use crate::doctor::DoctorArguments;
use crate::generate::{CompletionsArguments, ManArguments};
use crate::measure::{MeasureArguments, amounts};
use crate::monitor::MonitorArguments;
use crate::reproduce::ReproduceArguments;
use crate::server::ServerArguments;
use crate::setup::SetupArguments;
use crate::stacks::StackChoice;
use crate::sweep::SweepArguments;

/// Shows what multipath transport does to real traffic
///
/// One scenario file describes hosts, paths, what happens to them and what is sent; towpath runs it
/// over real kernels in an emulated network, without root, and reports what every subflow did.
#[derive(Debug, Parser)]
#[command(version = env!("VERSION_WITH_COMMIT"), max_term_width = 100)]
pub(crate) struct Arguments {
    /// Without the configuration file (`~/.config/towpath/config.toml`)
    #[arg(long, global = true)]
    pub(crate) no_config: bool,
    #[command(subcommand)]
    pub(crate) verb: Command,
}

impl Arguments {
    /// Records options that came from the configuration file, for a result's conditions.
    pub(crate) fn configure(&mut self, defaults: Vec<String>) {
        if let Command::Run(arguments) = &mut self.verb {
            arguments.how.changes.defaults = defaults;
        } else if let Command::Compare(arguments) = &mut self.verb {
            arguments.how.changes.defaults = defaults;
        } else if let Command::Measure(arguments) = &mut self.verb {
            arguments.defaults = defaults;
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArguments),
    Compare(CompareArguments),
    Sweep(SweepArguments),
    Reproduce(ReproduceArguments),
    Lab(LabArguments),
    On(OnArguments),
    Setup(SetupArguments),
    Exec(ExecArguments),
    Server(ServerArguments),
    Measure(Box<MeasureArguments>),
    Check(CheckArguments),
    Doctor(DoctorArguments),
    Monitor(MonitorArguments),
    Report(ReportArguments),
    Trace(TraceArguments),
    Scenarios(ScenariosArguments),
    Schema(SchemaArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
}

/// Run a scenario over every transport, and compare them
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArguments {
    /// Scenario file, or the name of a built-in one (see `towpath scenarios`)
    pub(crate) scenario: String,
    /// Transports, in place of the scenario's: tcp, mptcp, quic, mpquic
    #[arg(short = 'T', long, value_delimiter = ',', value_name = "LIST", value_parser = transport)]
    pub(crate) transport: Vec<Transport>,
    #[command(flatten)]
    pub(crate) how: RunOptions,
    /// Repetitions of each transport, in place of the scenario's
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Order of the transports in each repetition: random (drawn from the seed), fixed [default:
    /// fixed]; simulated runs have none
    #[arg(long, value_name = "ORDER", value_parser = order)]
    pub(crate) order: Option<OrderKind>,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Folder for results and report [default: towpath-results/SCENARIO/NUMBER]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Interface between the emulator and the kernel
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// Print summaries as JSON, one line a run, in place of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// No interval lines while it runs
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Simulate each run again with one limit lifted, and say what it would bring
    #[arg(long, conflicts_with = "json")]
    pub(crate) explain: bool,
}

/// Options of packet capture.
#[derive(Debug, Clone, Args)]
pub(crate) struct CaptureArguments {
    /// Folder for captures (pcapng, one file for each host)
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    /// Bytes of each packet that captures keep; 100 hold all headers [default: whole packets]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = snap())]
    pub(crate) snap: Option<u32>,
    /// True if simulated runs get time–sequence plots.
    #[arg(skip = true)]
    pub(crate) pictures: bool,
}

fn snap() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(MIN_SNAP_BYTES)..=65_535)
}

/// Options of a scenario's runs, common to all commands that run one.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunOptions {
    /// Worlds: sim (virtual time, our own stack), emu (real kernels) [default: the scenario's, and
    /// sim for emu where this machine cannot emulate]
    #[arg(short = 'W', long, value_delimiter = ',', value_name = "LIST", value_parser = world)]
    pub(crate) world: Vec<World>,
    /// Seed of all randomness, in place of the scenario's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Pause between two runs, as `2` (seconds) or `200ms`; simulated runs have none
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) wait: Option<Duration>,
    /// Simulated runs at once [default: the number of processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) jobs: Option<u32>,
    /// TCP and MPTCP stack instead of the scenario's: kernel, towpath, or towpath:HOST for one host
    #[arg(long, value_delimiter = ',', value_name = "STACK")]
    pub(crate) stack: Vec<StackChoice>,
    #[command(flatten)]
    pub(crate) changes: ScenarioChanges,
    /// Reason why runs are simulated that another machine would emulate.
    #[arg(skip)]
    pub(crate) fallback: Option<String>,
}

/// Compare transports: run a scenario many times over each, or take stored results
///
/// Prints medians with quartiles and 95 % confidence intervals, then how many times as large each
/// figure of one transport is as another's, and makes a page of it.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// A scenario (file or name), or results: files (`*.jsonl.zst`, `*.jsonl`) or folders of them
    #[arg(required = true, value_name = "SCENARIO|RESULT")]
    pub(crate) inputs: Vec<String>,
    /// Transports [default: all that the world has]
    #[arg(short = 'T', long, value_delimiter = ',', value_name = "LIST", value_parser = transport)]
    pub(crate) transport: Vec<Transport>,
    #[command(flatten)]
    pub(crate) how: RunOptions,
    /// Repetitions of each transport [default: 10]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Order of the transports in each repetition: random (drawn from the seed), fixed [default:
    /// random]; simulated runs have none
    #[arg(long, value_name = "ORDER", value_parser = order)]
    pub(crate) order: Option<OrderKind>,
    /// Folder for results and page [default: towpath-results/SCENARIO/NUMBER; of stored results,
    /// where the first one is]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Interface between the emulator and the kernel [default: auto]
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendChoice>,
    /// Print the comparison as JSON, in place of the tables
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// No interval lines while it runs
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Run any programs in a scenario's network
///
/// Programs start in the order of the command line, each when the one before listens, or has opened
/// another socket. With the last one the scenario's timeline starts; when it ends, the others are
/// ended and its exit code is passed on. Without a program, a shell is opened in a network that
/// stays as it is. `client` and `server` are the hosts of the first flow where none is called so.
/// Addresses are in variables such as `TOWPATH_SERVER`, and `TOWPATH_SERVER_WIFI` for one path.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_negates_reqs = true,
    override_usage = "towpath lab [OPTIONS] <SCENARIO> --on <HOST> <COMMAND> --on <HOST> <COMMAND>...\n       \
                      towpath lab [OPTIONS] <SCENARIO> [-- <COMMAND>...]\n       \
                      towpath lab failure [NAME] [-- <COMMAND>...]"
)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    pub(crate) action: Option<LabAction>,
    /// Scenario file, or the name of a built-in one (see `towpath scenarios`)
    #[arg(required = true)]
    pub(crate) scenario: Option<String>,
    /// Run a command for `sh -c` on a host; again for the next one. What they move is measured
    #[arg(long, num_args = 2, value_names = ["HOST", "COMMAND"], action = clap::ArgAction::Append)]
    pub(crate) on: Vec<OsString>,
    /// Host in which the program behind `--`, or the shell, runs [default: the first one]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Measure what the programs move: folder for result and report [default with --on:
    /// towpath-results/SCENARIO/NUMBER; else none]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// No table at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Interface between the emulator and the kernel
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// Program and its arguments, after those of `--on`; without any of them your shell
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Run a command on another host of the lab that this shell is in
#[derive(Debug, Args)]
pub(crate) struct OnArguments {
    /// Host, as `towpath lab` has named it
    pub(crate) host: String,
    /// Program and its arguments; your shell when left out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabAction {
    Failure(FailureArguments),
}

/// Open a network in which something about Multipath TCP is broken, or list them
///
/// Each situation is a failure as people meet it, or a healthy network: with what one sees, and
/// why. The program runs on the client; `TOWPATH_CONNECT` says where the server listens.
#[derive(Debug, Args)]
pub(crate) struct FailureArguments {
    /// Name of a situation; all are listed when left out
    pub(crate) name: Option<String>,
    /// Print the list as JSON
    #[arg(short = 'J', long, conflicts_with = "command")]
    pub(crate) json: bool,
    /// Print the list as a Markdown page for people
    #[arg(long, conflicts_with_all = ["command", "json", "name"])]
    pub(crate) markdown: bool,
    /// Program and its arguments; when left out your shell, on a terminal
    #[arg(last = true, value_name = "COMMAND", requires = "name")]
    pub(crate) command: Vec<OsString>,
}

/// Run any program over Multipath TCP
///
/// Every TCP socket that the program opens becomes a Multipath TCP socket, and plain TCP where the
/// kernel or the peer has none. Works for static binaries and servers, needs no root, and ends with
/// the program's own exit code.
#[derive(Debug, Args)]
pub(crate) struct ExecArguments {
    /// Method that changes the sockets
    #[arg(long, value_enum, default_value_t = ExecMethod::Seccomp)]
    pub(crate) method: ExecMethod,
    /// Record what every subflow does, for `towpath report FILE`
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// No line at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Say at the end what became of the sockets as one line of JSON
    #[arg(short = 'J', long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecMethod {
    /// The kernel asks before it opens a TCP socket (seccomp user notification, Linux 5.14)
    Seccomp,
    /// Go's own switch, GODEBUG=multipathtcp=1; nothing stays beside the program
    Godebug,
}

/// Make an HTML report of stored results
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Result files (`*.jsonl.zst`, `*.jsonl`), or folders of them; together at most 256 MB without
    /// compression, unless the environment says otherwise (`TOWPATH_MAX_INPUT=2GB`)
    #[arg(required_unless_present = "csv", value_name = "RESULT")]
    pub(crate) results: Vec<PathBuf>,
    /// File of the report [default: report.html next to the first result]
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print summaries as JSON, one line a run, in place of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print as CSV in place of the table: seconds (goodput in each, one line a run and direction),
    /// flows, subflow-totals, recoveries, paths, expectations, shares, intervals, subflows, links,
    /// events, messages, probes, sequence, datagrams, latency, counters or interfaces; without a
    /// name: seconds
    #[arg(long, conflicts_with = "json", value_name = "TABLE", num_args = 0..=1)]
    #[arg(default_missing_value = "seconds")]
    pub(crate) csv: Option<String>,
    /// Print where the capacity of each link went, in place of the table
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub(crate) account: bool,
}

/// Say what a capture of packets holds: connections, subflows, figures
///
/// Reads pcap and pcapng, Multipath TCP of both versions and TCP, in one pass and without root.
/// With a capture of the other host as second file, also the delay of each direction. With
/// --interface, what passes an interface from now on, until Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct TraceArguments {
    /// Capture (`*.pcap`, `*.pcapng`); `-` for standard input
    #[arg(value_name = "FILE", required_unless_present = "interface")]
    pub(crate) file: Option<PathBuf>,
    /// Capture of the same packets at the other host: adds the delay of each direction
    #[arg(value_name = "FILE2")]
    pub(crate) other: Option<PathBuf>,
    /// Capture here and now: an interface of this host, or `any`; needs `CAP_NET_RAW`
    #[arg(long, value_name = "IF", conflicts_with_all = ["file", "other"])]
    pub(crate) interface: Option<String>,
    /// End of a capture, as `10s` [default: Ctrl-C]
    #[arg(short = 't', long, alias = "time", value_name = "TIME", value_parser = time, requires = "interface")]
    pub(crate) duration: Option<Duration>,
    /// Keep the headers of what was captured, as pcap
    #[arg(long, value_name = "FILE", requires = "interface")]
    pub(crate) write: Option<PathBuf>,
    /// Capture point, if the capture does not show it
    #[arg(long, value_enum, value_name = "END")]
    pub(crate) capture_point: Option<CaptureEnd>,
    /// Connections to show, those with most data first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) top: u32,
    /// Also write an HTML report
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print a result (JSON Lines, as `towpath report` reads it), in place of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print where the capacity of each path went, in place of the table
    #[arg(long, conflicts_with = "json")]
    pub(crate) account: bool,
    /// Print a table as CSV, in place of the table; `sequence` has every packet
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["json", "account"])]
    pub(crate) csv: Option<String>,
}

/// Capture point: the end of the connections at which a capture was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaptureEnd {
    /// At the host that opened the connections
    Opener,
    /// At the host that accepted them
    Acceptor,
    /// Between the two
    Between,
}

impl From<CaptureEnd> for TakenAt {
    fn from(choice: CaptureEnd) -> Self {
        match choice {
            CaptureEnd::Opener => Self::Opener,
            CaptureEnd::Acceptor => Self::Acceptor,
            CaptureEnd::Between => Self::Between,
        }
    }
}

/// List the built-in scenarios, or show one
#[derive(Debug, Args)]
pub(crate) struct ScenariosArguments {
    #[command(subcommand)]
    pub(crate) action: Option<ScenariosAction>,
    /// Print the list as JSON
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScenariosAction {
    /// Print a built-in scenario, to read or to start your own from
    Show {
        /// Name of the scenario
        name: String,
    },
    /// Check a scenario file and say what it holds
    Check {
        /// Scenario file, or the name of a built-in one
        scenario: String,
    },
}

/// Print the JSON Schema of scenarios or results
#[derive(Debug, Args)]
pub(crate) struct SchemaArguments {
    /// Of what
    #[arg(value_enum, default_value_t = SchemaKind::Scenario)]
    pub(crate) kind: SchemaKind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaKind {
    /// Scenario files, as JSON Schema
    Scenario,
    /// One line of a result, as JSON Schema
    Result,
    /// Keys of scenario files, as a Markdown page
    ScenarioKeys,
    /// Keys of plans for sweeps, as a Markdown page
    PlanKeys,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendChoice {
    /// TUN devices where `/dev/net/tun` may be opened, else packet sockets
    Auto,
    /// TUN devices
    Tun,
    /// Packet sockets on veth pairs
    Packet,
}

impl BackendChoice {
    pub(crate) fn backend(self) -> Option<towpath_emu::Backend> {
        match self {
            Self::Auto => None,
            Self::Tun => Some(towpath_emu::Backend::Tun),
            Self::Packet => Some(towpath_emu::Backend::Packet),
        }
    }
}

/// Parses the interval between two polls, 10 ms to 1 h.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let in_range =
        |span: &Duration| (Duration::from_millis(10)..=Duration::from_secs(3600)).contains(span);
    let span = Some(time(text)?).filter(in_range);
    span.ok_or_else(|| "expected 10 ms to 1 h".to_owned())
}

pub(crate) fn transport(text: &str) -> Result<Transport, String> {
    match text.trim() {
        "tcp" => Ok(Transport::Tcp),
        "mptcp" => Ok(Transport::Mptcp),
        "quic" => Ok(Transport::Quic),
        "mpquic" => Ok(Transport::Mpquic),
        _ => Err("expected tcp, mptcp, quic or mpquic".to_owned()),
    }
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

fn time(text: &str) -> Result<Duration, String> {
    amounts::time(text)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::{Command, CommandFactory};

    use super::*;

    /// Returns the long options of each letter, over all commands.
    fn short_options(command: &Command, names_by_letter: &mut BTreeMap<char, BTreeSet<String>>) {
        for argument in command.get_arguments() {
            let letters = argument.get_short_and_visible_aliases().unwrap_or_default();
            for letter in
                letters.into_iter().chain(argument.get_all_short_aliases().unwrap_or_default())
            {
                let name = argument.get_long().unwrap_or_default().to_owned();
                names_by_letter.entry(letter).or_default().insert(name);
            }
        }
        command.get_subcommands().for_each(|verb| short_options(verb, names_by_letter));
    }

    #[test]
    fn a_short_option_means_the_same_in_every_subcommand() {
        let mut command = Arguments::command();
        command.build();
        let mut names_by_letter = BTreeMap::new();
        short_options(&command, &mut names_by_letter);
        for (letter, names) in &names_by_letter {
            assert_eq!(names.len(), 1, "-{letter} is {names:?}");
        }
        // Letters that iperf3 also has keep iperf3's meaning.
        let iperf3 = [
            ('p', "port"),
            ('i', "interval"),
            ('B', "bind"),
            ('t', "duration"),
            ('n', "bytes"),
            ('b', "bitrate"),
            ('P', "parallel"),
            ('R', "reverse"),
            ('l', "length"),
            ('w', "window"),
            ('C', "congestion-control"),
            ('J', "json"),
            ('1', "once"),
        ];
        for (letter, name) in iperf3 {
            assert!(
                names_by_letter[&letter].contains(name),
                "-{letter} is {:?}",
                names_by_letter[&letter]
            );
        }
        let page = include_str!("../../../docs/command-line.md");
        for (letter, names) in names_by_letter.iter().filter(|(letter, _)| !"hV".contains(**letter))
        {
            for name in names {
                let (letter, name) = (format!("`-{letter}`"), format!("`--{name}`"));
                let row = |line: &str| line.contains(&letter) && line.contains(&name);
                assert!(page.lines().any(row), "docs/command-line.md has no {letter}, {name}");
            }
        }
    }

    #[test]
    fn the_reference_lists_all_choices() {
        let page = towpath_scenario::reference_markdown();
        let [schedulers, managers, controls] = towpath_sim::known_names();
        let quic_controls = ["newreno", "noq-cubic", "bbr"];
        for (key, names) in [
            ("scheduler", &schedulers[..]),
            ("path-manager", &managers),
            ("congestion-control", &controls),
            ("quic-congestion-control", &quic_controls),
        ] {
            let start = format!("| `{key}` |");
            let rows: Vec<_> = page.lines().filter(|line| line.starts_with(&start)).collect();
            for name in names {
                let name = format!("`{name}`");
                assert!(rows.iter().any(|row| row.contains(&name)), "{key}: no {name}");
            }
        }
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        for text in ["2", "2s", "2 s", "2000ms", "2000 ms"] {
            assert_eq!(time(text), Ok(Duration::from_secs(2)), "{text}");
        }
        assert!(interval("1 us").is_err() && interval("0.01").is_ok());
    }
}
