//! `towpath trace`: analyses a capture.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use towpath_host::capture::LiveCapture;
use towpath_os::files::OutputFile;
use towpath_os::interrupt;
use towpath_report::{CsvTable, account_table, csv};
use towpath_result::input;
use towpath_result::store::StoredRun;
use towpath_result::{Record, Warning};
use towpath_trace as trace;
use towpath_trace::{CaptureAnalysis, TakenAt};

use crate::arguments::TraceArguments;
use crate::error::CliError;
use crate::report::{unknown_table, write_report};
use crate::ui::Ui;

/// Width of the terminal table in columns, which fits every terminal.
const COLUMNS: usize = 100;

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
        (None, None) => return Err(CliError::Internal("neither file nor interface".to_owned())),
    };
    let top = arguments.top as usize;
    if let Some(table) = csv_table(arguments)? {
        let mut run = trace.run(&name, top);
        if table == CsvTable::Sequence {
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
fn csv_table(arguments: &TraceArguments) -> Result<Option<CsvTable>, CliError> {
    let Some(name) = &arguments.csv else { return Ok(None) };
    CsvTable::from_name(name).map(Some).ok_or_else(|| unknown_table(name, &[]))
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
        "{} packets are in both captures; the second clock is {:.6} s {clock_order}, at most {:.6} s wrong",
        clocks.packets,
        clocks.offset_ns.unsigned_abs() as f64 / 1e9,
        clocks.error_ns as f64 / 1e9
    ));
    Ok(())
}

/// Captures on an interface until the duration is over, or until an interrupt.
fn capture(
    interface: &str,
    arguments: &TraceArguments,
    taken_at: Option<TakenAt>,
    ui: &mut Ui,
) -> Result<CaptureAnalysis, CliError> {
    let unavailable = |what: String, hint: Option<String>| CliError::Unavailable {
        what,
        hint: hint.unwrap_or_else(|| "capture with another program and read its file".to_owned()),
    };
    let mut capture = LiveCapture::open(interface, arguments.duration)
        .map_err(|error| unavailable(error.to_string(), error.hint()))?;
    interrupt::catch();
    let end = arguments.duration.map_or("Ctrl-C".to_owned(), |span| format!("{span:?} are over"));
    ui.progress(&format!("capturing on {interface} until {end}"));
    let copy = arguments.write.as_ref().map(|path| {
        let file = OutputFile::find(path).and_then(OutputFile::create);
        file.map(BufWriter::new).map_err(|source| CliError::unwritable(path, source, None))
    });
    let copy = copy.transpose()?;
    let trace = trace::read(TeeCapture { capture: &mut capture, copy }, taken_at)
        .map_err(|source| CliError::Capture { path: interface.into(), source })?;
    let missed_packets = capture.missed_packets();
    if missed_packets > 0 {
        ui.warn(&Warning {
            text: format!("{missed_packets} packets passed too fast to be captured"),
            hint: Some("`unseen_bytes` says what they carried; figures may be wrong".to_owned()),
        });
    }
    Ok(trace)
}

/// Reader of a capture that also writes a copy.
struct TeeCapture<'a> {
    capture: &'a mut LiveCapture,
    copy: Option<BufWriter<File>>,
}

impl Read for TeeCapture<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.capture.read(buffer)?;
        if let Some(copy) = &mut self.copy {
            copy.write_all(buffer.get(..length).unwrap_or_default())?;
            if length == 0 {
                copy.flush()?;
            }
        }
        Ok(length)
    }
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
