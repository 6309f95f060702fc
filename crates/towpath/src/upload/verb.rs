//! `towpath upload`: sends stored results, and those that wait.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use towpath_os::interrupt;
use towpath_result::format;
use towpath_result::format::number::date;
use towpath_result::upload::MAX_HOST_BYTES;

use super::send::{SendEvent, WaitReason};
use super::spool::clean_host;
use super::{UploadArguments, Uploader, spool, spool_error, waiting_text};
use crate::error::CliError;
use crate::files::results_in;
use crate::ui::Ui;

/// Send stored results to a collector, and those that wait
///
/// A result that could not be sent waits in a folder of this user. Without RESULT, only those that
/// wait are sent. The collector stores each result once, so a second upload has no effect. Exit
/// code 1 if a result still waits or was refused.
#[derive(Debug, Args)]
pub(crate) struct UploadVerbArguments {
    /// Result files (`*.jsonl.zst`, `*.jsonl`), or folders of them
    #[arg(value_name = "RESULT")]
    results: Vec<PathBuf>,
    #[command(flatten)]
    collector: UploadArguments,
    /// Name of the host that made the runs [default: the name of this host]
    #[arg(long, value_name = "NAME", value_parser = host)]
    host: Option<String>,
    /// Folder of the results that wait [default: ~/.local/state/towpath/spool]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Print the results that wait, and send nothing
    #[arg(long, conflicts_with = "results")]
    list: bool,
    /// Print JSON, one line for each run, instead of its address
    #[arg(short = 'J', long)]
    json: bool,
}

fn host(text: &str) -> Result<String, String> {
    let name = clean_host(text);
    let is_valid = !name.is_empty() && name == text.trim();
    is_valid.then_some(name).ok_or_else(|| format!("expected 1 to {MAX_HOST_BYTES} bytes of text"))
}

pub(crate) fn upload(arguments: &UploadVerbArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.list {
        return list(arguments, ui);
    }
    if arguments.collector.to.is_none() {
        return Err(CliError::Unavailable {
            what: "no collector was given".to_owned(),
            hint: "give its address: `--to https://towpath.example.org`".to_owned(),
        });
    }
    let mut paths = Vec::new();
    for input in &arguments.results {
        paths.extend(results_in(input)?);
    }
    if let Some((path, source)) =
        paths.iter().find_map(|path| Some((path, fs::metadata(path).err()?)))
    {
        return Err(CliError::Read { path: path.clone(), source });
    }
    let host = arguments.host.clone();
    let uploader = Uploader::new(&arguments.collector, (host, arguments.spool.as_deref()), ui)?;
    interrupt::catch();
    let all_queued = uploader.queue_all(&paths, ui);
    // If the disk is full, sending makes room.
    let report = uploader.send(&mut |event, ui| print_stored(&event, arguments.json, ui), ui)?;
    if let Some(WaitReason::Blocked(refusal)) = report.reason {
        ui.progress(&waiting_text(report.waiting));
        return Err(refusal.into());
    }
    uploader.warn_of_waiting(&report, ui);
    let all_queued = all_queued?;
    if report.reason == Some(WaitReason::Interrupted) {
        return Ok(ExitCode::from(130));
    }
    if report.stored == 0 && report.waiting == 0 && report.refused == 0 && all_queued {
        ui.progress("no result waits");
    }
    let is_complete = all_queued && report.waiting == 0 && report.refused == 0;
    Ok(ExitCode::from(u8::from(!is_complete)))
}

/// Prints the address of a run that the collector has.
fn print_stored(event: &SendEvent<'_>, as_json: bool, ui: &mut Ui) -> Result<(), CliError> {
    let SendEvent::Stored { run, reply } = event else { return Ok(()) };
    if as_json {
        let line = json!({
            "id": reply.id, "url": reply.url, "created": reply.created, "file": run.file,
        });
        writeln!(ui.out, "{line}")?;
    } else {
        writeln!(ui.out, "{}", reply.url)?;
    }
    Ok(ui.out.flush()?)
}

/// Prints the results that wait, for one collector or all.
fn list(arguments: &UploadVerbArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let spool = spool(arguments.spool.as_deref())?;
    let url = arguments.collector.to.as_deref().map(super::url::CollectorUrl::parse).transpose()?;
    let queues = spool.queues().map_err(|source| unreadable(spool.root(), source))?;
    let is_selected =
        |queue_url: &str| url.as_ref().is_none_or(|selected| selected.as_str() == queue_url);
    for queue in queues.iter().filter(|queue| is_selected(queue.url())) {
        let hashes = queue.waiting().map_err(|source| unreadable(queue.path(), source))?;
        for hash in hashes {
            let run = queue.describe(&hash).map_err(|source| unreadable(queue.path(), source))?;
            let Some(run) = run else { continue };
            if arguments.json {
                let line = json!({
                    "hash": hash, "url": queue.url(), "host": run.host, "file": run.file,
                    "queued_us": run.queued_us, "bytes": run.compressed_bytes,
                });
                writeln!(ui.out, "{line}")?;
                continue;
            }
            let queued_at = date(run.queued_us.saturating_mul(1_000));
            let size = format::bytes(run.compressed_bytes);
            writeln!(
                ui.out,
                "{queued_at}  {size:>8}  {}  {}  {}",
                queue.url(),
                run.host,
                run.file
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unreadable(path: &Path, source: std::io::Error) -> CliError {
    spool_error(path, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_host_is_one_line_of_text() {
        assert_eq!(host(" lab-3 "), Ok("lab-3".to_owned()));
        assert_eq!(host("größer"), Ok("größer".to_owned()));
        for text in ["", " ", "a\nb", "\u{1b}[2J", &"x".repeat(256)] {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
