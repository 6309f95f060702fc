//! `towpath report`, and what `towpath run` prints at the end.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use towpath_report::{Run, html, table, warnings};

use crate::arguments::ReportArguments;
use crate::error::CliError;
use crate::files::{read, results_in};
use crate::run::print_json;
use crate::ui::Ui;

/// Width of the terminal table: what fits everywhere.
const COLUMNS: usize = 100;

pub(crate) fn report(arguments: &ReportArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let mut paths = Vec::new();
    for given in &arguments.results {
        paths.extend(results_in(given)?);
    }
    let runs = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    print(&runs, arguments.json, ui)?;
    let beside = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let output = arguments.output.clone().unwrap_or_else(|| beside.join("report.html"));
    write_report(&runs, &output)?;
    ui.progress(&format!("report: {}", output.display()));
    Ok(ExitCode::SUCCESS)
}

/// The table (or JSON) on standard output, warnings on standard error.
pub(crate) fn print(runs: &[Run], as_json: bool, ui: &mut Ui) -> Result<(), CliError> {
    if as_json {
        print_json(runs, ui)?;
    } else {
        let text = table(runs, COLUMNS, ui.colour);
        ui.out.write_all(text.as_bytes())?;
    }
    ui.out.flush()?;
    for warning in warnings(runs) {
        ui.warn(&warning);
    }
    Ok(())
}

pub(crate) fn write_report(runs: &[Run], path: &Path) -> Result<(), CliError> {
    fs::write(path, html(runs)).map_err(|source| CliError::Write {
        path: path.to_owned(),
        source,
        hint: None,
    })
}
