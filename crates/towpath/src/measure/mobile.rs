//! Measures from a moving host: all transports at the same time, until it has left a network.

use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use towpath_linux::interrupt;
use towpath_linux::live::{self, MeasureRequest, MobileSession};
use towpath_measure::scenario::Transport;
use towpath_report::StoredRun;

use super::{MeasureArguments, conclude, one};
use crate::error::CliError;
use crate::files::ResultFolder;
use crate::ui::Ui;

/// Builds the request of a run from the transport's index, the transport and the repetition.
type RequestFn<'a> = &'a dyn Fn(usize, Transport, u32) -> Result<MeasureRequest, CliError>;

/// Measures over all transports at the same time, `--repeat` times.
pub(super) fn measure(
    arguments: &MeasureArguments,
    (transports, make): (&[Transport], RequestFn<'_>),
    folder: &ResultFolder,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let mut runs = Vec::new();
    for repeat in 1..=arguments.repeat {
        if repeat > 1 {
            live::pause(arguments.wait);
        }
        if interrupt::is_interrupted() {
            break;
        }
        let mut orders: Vec<MeasureRequest> = Vec::new();
        for (at, transport) in transports.iter().enumerate() {
            let order = make(at, *transport, repeat)?;
            let first = orders.first().and_then(|first| first.session.clone());
            let session = first.unwrap_or_else(|| MobileSession::new(&order.scenario));
            orders.push(MeasureRequest { session: Some(session), ..order });
        }
        for run in at_once(arguments, &orders, folder, ui) {
            match run {
                Ok(run) => runs.push(run),
                Err(_) if interrupt::is_interrupted() => {}
                Err(error) if runs.is_empty() && orders.len() == 1 => {
                    folder.remove_if_empty();
                    return Err(error);
                }
                // The other runs still deserve a report.
                Err(error) => ui.error(&error),
            }
        }
    }
    if runs.is_empty() {
        folder.remove_if_empty();
        return Ok(ExitCode::from(if interrupt::is_interrupted() { 130 } else { 2 }));
    }
    let planned = transports.len() * arguments.repeat as usize;
    conclude(arguments, (&runs, planned), folder, ui)
}

fn at_once(
    arguments: &MeasureArguments,
    orders: &[MeasureRequest],
    folder: &ResultFolder,
    ui: &mut Ui,
) -> Vec<Result<StoredRun, CliError>> {
    thread::scope(|scope| {
        let (lines, said) = mpsc::channel::<String>();
        let measured: Vec<_> = orders
            .iter()
            .map(|order| {
                let lines = lines.clone();
                scope.spawn(move || {
                    one(arguments, order, folder, &mut |text| {
                        let _ = lines.send(text.to_owned()); // the receiver may be gone
                    })
                })
            })
            .collect();
        drop(lines);
        for line in said {
            ui.progress(&line);
        }
        let failed = || CliError::Internal("a thread panicked".to_owned());
        measured.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(failed()))).collect()
    })
}
