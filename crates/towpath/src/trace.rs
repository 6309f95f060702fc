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
    let trace = read(&arguments.file, arguments)?;
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
