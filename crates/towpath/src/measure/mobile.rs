//! Measures from a moving host: over all transports at the same time, until the host has left a
//! network.

use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use towpath_live as live;
use towpath_live::{MeasureRequest, MobileSession};
use towpath_os::interrupt;
use towpath_result::store::StoredRun;
use towpath_scenario::Transport;

use super::{MeasureArguments, conclude, measure_once};
use crate::error::CliError;
use crate::files::ResultFolder;
use crate::ui::Ui;
use crate::upload::Uploader;

/// Builds the request of a run from the transport's index, the transport and the repetition.
type RequestFn<'a> = &'a dyn Fn(usize, Transport, u32) -> Result<MeasureRequest, CliError>;

/// Measures over all transports at the same time, `--repeat` times.
pub(super) fn measure(
    arguments: &MeasureArguments,
    (transports, make_request): (&[Transport], RequestFn<'_>),
    (folder, uploader): (&ResultFolder, Option<&Uploader>),
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
        let mut requests: Vec<MeasureRequest> = Vec::new();
        for (index, transport) in transports.iter().enumerate() {
            let request = make_request(index, *transport, repeat)?;
            let first_session =
                requests.first().and_then(|first_request| first_request.session.clone());
            let session = first_session.unwrap_or_else(|| MobileSession::new(&request.scenario));
            requests.push(MeasureRequest { session: Some(session), ..request });
        }
        for run in measure_in_parallel(arguments, &requests, (folder, uploader), ui) {
            match run {
                Ok(run) => runs.push(run),
                Err(_) if interrupt::is_interrupted() => {}
                Err(error) if runs.is_empty() && requests.len() == 1 => {
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
    conclude(arguments, (&runs, planned), (folder, uploader), ui)
}

fn measure_in_parallel(
    arguments: &MeasureArguments,
    requests: &[MeasureRequest],
    (folder, uploader): (&ResultFolder, Option<&Uploader>),
    ui: &mut Ui,
) -> Vec<Result<StoredRun, CliError>> {
    thread::scope(|scope| {
        let (lines, received_lines) = mpsc::channel::<Vec<String>>();
        let threads: Vec<_> = requests
            .iter()
            .map(|request| {
                let lines = lines.clone();
                scope.spawn(move || {
                    measure_once(arguments, request, (folder, uploader), &mut |message| {
                        let _ = lines.send(message); // the receiver may be gone
                    })
                })
            })
            .collect();
        drop(lines);
        for message in received_lines {
            ui.progress_lines(message);
        }
        let panicked = || CliError::Internal("a thread panicked".to_owned());
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect()
    })
}
