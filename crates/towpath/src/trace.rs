//! `towpath trace`: what a capture says.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use towpath_report::Run;
use towpath_report::trace::{self, Trace};

use crate::arguments::TraceArguments;
use crate::error::CliError;
use crate::report::write_report;
use crate::ui::Ui;

/// Width of the terminal table: what fits everywhere.
const COLUMNS: usize = 100;

pub(crate) fn trace(arguments: &TraceArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let mut trace = read(&arguments.file, arguments)?;
    if let Some(other) = &arguments.other {
        delays(&mut trace, &arguments.file, other, ui)?;
    }
    let top = arguments.top as usize;
    let name = arguments.file.file_name().unwrap_or(arguments.file.as_os_str()).to_string_lossy();
    if arguments.json {
        print_records(&trace.run(&name, top), ui)?;
    } else {
        ui.out.write_all(trace.table(&[], COLUMNS, top).as_bytes())?;
    }
    ui.out.flush()?;
    for warning in trace.warnings() {
        ui.warn(&warning);
    }
    if let Some(output) = &arguments.output {
        write_report(&[trace.run(&name, top)], output)?;
        ui.progress(&format!("report: {}", output.display()));
    }
    let none = trace.connections.is_empty();
    Ok(if none { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Adds what both captures tell together; the clocks' offset goes to standard error.
fn delays(trace: &mut Trace, file: &Path, other: &Path, ui: &mut Ui) -> Result<(), CliError> {
    let open = |path: &Path| {
        File::open(path).map_err(|source| CliError::Read { path: path.to_owned(), source })
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
    let ahead = if clocks.offset_ns < 0 { "behind" } else { "ahead" };
    ui.progress(&format!(
        "{} packets are in both captures; the second clock is {:.6} s {ahead}, at most {:.6} s wrong",
        clocks.packets,
        clocks.offset_ns.unsigned_abs() as f64 / 1e9,
        clocks.error_ns as f64 / 1e9
    ));
    Ok(())
}

fn read(path: &Path, arguments: &TraceArguments) -> Result<Trace, CliError> {
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path);
        Box::new(file.map_err(|source| CliError::Read { path: path.to_owned(), source })?)
    };
    let taken_at = arguments.taken_at.map(Into::into);
    trace::read(input, taken_at)
        .map_err(|source| CliError::Capture { path: path.to_owned(), source })
}

/// The capture as a result, one record a line.
fn print_records(run: &Run, ui: &mut Ui) -> Result<(), CliError> {
    for line in run.lines() {
        writeln!(ui.out, "{line}")?;
    }
    Ok(())
}
