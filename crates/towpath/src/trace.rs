//! `towpath trace`: analyses a capture.

#[cfg(target_os = "linux")]
mod interface;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use towpath_report::{ResultTable, account_table, csv};
use towpath_result::Record;
use towpath_result::input;
use towpath_result::store::StoredRun;
use towpath_trace as trace;
use towpath_trace::{CaptureAnalysis, TakenAt};

use crate::error::CliError;
use crate::options::time;
use crate::report::{unknown_table, write_report};
use crate::ui::Ui;
#[cfg(target_os = "linux")]
use interface::capture;

/// Width of the terminal table in columns, which fits every terminal.
const COLUMNS: usize = 100;

/// Analyse a packet capture: connections, subflows, metrics
///
/// Reads pcap and pcapng files with TCP and both versions of Multipath TCP, in one pass and without
/// root. A capture of the other host as second file adds the delay of each direction. --interface
/// captures from an interface until Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct TraceArguments {
    /// Capture (`*.pcap`, `*.pcapng`); `-` for standard input
    #[arg(value_name = "FILE", required_unless_present = "interface")]
    pub(crate) file: Option<PathBuf>,
    /// Capture of the same packets at the other host: adds the delay of each direction
    #[arg(value_name = "FILE2")]
    pub(crate) other: Option<PathBuf>,
    /// Capture from an interface of this host, or from `any`; needs `CAP_NET_RAW`
    #[arg(long, value_name = "IF", conflicts_with_all = ["file", "other"])]
    pub(crate) interface: Option<String>,
    /// Duration of a capture, such as `10s` [default: until Ctrl-C]
    #[arg(short = 't', long, alias = "time", value_name = "TIME", value_parser = time, requires = "interface")]
    pub(crate) duration: Option<Duration>,
    /// Write the captured headers to a pcap file
    #[arg(long, value_name = "FILE", requires = "interface")]
    pub(crate) write: Option<PathBuf>,
    /// Capture point, if it is not evident from the capture
    #[arg(long, value_enum, value_name = "END")]
    pub(crate) capture_point: Option<CaptureEnd>,
    /// Number of connections to show, largest first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) top: u32,
    /// Also write an HTML report
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print a result (JSON Lines for `towpath report`) instead of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print the capacity account of each path instead of the table
    #[arg(long, conflicts_with = "json")]
    pub(crate) account: bool,
    /// Print a table as CSV instead; `sequence` has one row for each packet
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

pub(crate) fn trace(arguments: &TraceArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let taken_at = arguments.capture_point.map(Into::into);
    let (trace, name) = match (&arguments.file, &arguments.interface) {
        (Some(file), _) => {
            let mut trace = read(file, taken_at)?;
            if let Some(other) = &arguments.other {
                add_delays(&mut trace, file, other, ui)?;
            }
            (trace, file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
        }
        (None, Some(interface)) => {
            (capture(interface, arguments, taken_at, ui)?, interface.as_str().into())
        }
        (None, None) => {
            return Err(CliError::Internal("neither a file nor an interface is given".to_owned()));
        }
    };
    let top = arguments.top as usize;
    if let Some(table) = csv_table(arguments)? {
        let mut run = trace.run(&name, top);
        if table == ResultTable::Sequence {
            // The table lists every packet, while the page plots only a selection.
            let sequences = trace.unreduced_sequences(top).into_iter();
            run.records = sequences.map(|sequence| Record::Sequence(Box::new(sequence))).collect();
        }
        ui.out.write_all(csv(&[run], table).as_bytes())?;
    } else if arguments.json {
        print_records(&trace.run(&name, top), ui)?;
    } else if arguments.account {
        let runs = [trace.run(&name, top)];
        ui.out.write_all(account_table(&runs, COLUMNS).as_bytes())?;
    } else {
        ui.out.write_all(trace.table(&[], COLUMNS, top).as_bytes())?;
    }
    ui.out.flush()?;
    for warning in trace.warnings() {
        ui.warn(&warning);
    }
    if let Some(output) = &arguments.out {
        write_report(&[trace.run(&name, top)], output)?;
        ui.progress(&format!("report: {}", output.display()));
    }
    let is_empty = trace.connections.is_empty();
    Ok(if is_empty { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Returns the table that `--csv` names.
fn csv_table(arguments: &TraceArguments) -> Result<Option<ResultTable>, CliError> {
    let Some(name) = &arguments.csv else { return Ok(None) };
    ResultTable::from_name(name).map(Some).ok_or_else(|| unknown_table(name, &[]))
}

/// Adds one-way delays from a second capture, and prints the clocks' offset on standard error.
fn add_delays(
    trace: &mut CaptureAnalysis,
    file: &Path,
    other: &Path,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let open = |path: &Path| {
        input::open(path).map_err(|source| CliError::Read { path: path.to_owned(), source })
    };
    let clocks = trace
        .add_delays(open(file)?, open(other)?)
        .map_err(|source| CliError::Capture { path: other.to_owned(), source })?;
    let Some(clocks) = clocks else {
        return Err(CliError::Unavailable {
            what: "the two captures do not have the same packets in both directions".to_owned(),
            hint: "both hosts must be captured at the same time, without translated addresses"
                .to_owned(),
        });
    };
    let clock_order = if clocks.offset_ns < 0 { "behind" } else { "ahead" };
    ui.progress(&format!(
        "{} packets are in both captures; the second clock is {:.6} s {clock_order}, with an error of at most {:.6} s",
        clocks.packets,
        clocks.offset_ns.unsigned_abs() as f64 / 1e9,
        clocks.error_ns as f64 / 1e9
    ));
    Ok(())
}

/// Refuses to capture.
#[cfg(not(target_os = "linux"))]
fn capture(
    _interface: &str,
    _arguments: &TraceArguments,
    _taken_at: Option<TakenAt>,
    _ui: &mut Ui,
) -> Result<CaptureAnalysis, CliError> {
    Err(CliError::Unavailable {
        what: "`--interface` needs Linux".to_owned(),
        hint: "capture with another program and read its file".to_owned(),
    })
}

fn read(path: &Path, taken_at: Option<TakenAt>) -> Result<CaptureAnalysis, CliError> {
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = input::open(path);
        Box::new(file.map_err(|source| CliError::Read { path: path.to_owned(), source })?)
    };
    trace::read(input, taken_at)
        .map_err(|source| CliError::Capture { path: path.to_owned(), source })
}

/// Prints the capture as a result, one record a line.
fn print_records(run: &StoredRun, ui: &mut Ui) -> Result<(), CliError> {
    for line in run.lines() {
        writeln!(ui.out, "{line}")?;
    }
    Ok(())
}
