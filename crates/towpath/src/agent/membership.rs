//! `towpath agent join` and `towpath agent forget`.

use std::env::consts::{ARCH, OS};
use std::io::{self, BufRead, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use towpath_result::Warning;
use towpath_result::device::{ForgetReply, JoinRequest};
use towpath_result::format;

use super::consent::{confirm, is_accepted, show};
use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{
    AcceptedConsent, CollectorUrl, DeviceClient, DeviceFile, JoinedDevice, OwnerLimits,
    discard_waiting, warn_if_exposed,
};

/// Maximum length of a code in bytes.
const MAX_CODE_BYTES: usize = 64;
const URL_HINT: &str = "give the address of a collector, such as `https://towpath.example.org`";

/// Join a collector, after its consent text is accepted
///
/// Shows the text, and asks. Nothing about this device is sent before the text is accepted. Exit
/// code 1 if it is not.
#[derive(Debug, Args)]
pub(super) struct JoinArguments {
    /// Address of the collector
    #[arg(value_name = "URL")]
    url: String,
    /// One-time code from the collector's operator, such as `7K3M-9QPX-VB2D`
    #[arg(value_name = "CODE")]
    code: String,
    /// File with the authorities (PEM) that may issue the collector's certificate [default: those
    /// of Mozilla]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Version of the text that you have read and accept, instead of the question
    #[arg(long, value_name = "VERSION")]
    accept: Option<u32>,
}

/// Delete all runs of this device from the collector, and leave it
///
/// Also removes results that still wait to be uploaded to this collector. Result files on this
/// host stay. Exit code 1 if the collector still has something.
#[derive(Debug, Args)]
pub(super) struct ForgetArguments {
    /// Delete without a question
    #[arg(long)]
    yes: bool,
    /// Remove only the state on this host; stored runs stay on the collector
    #[arg(long)]
    local: bool,
    /// Folder of the results that wait [default: ~/.local/state/towpath/spool]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
}

pub(super) fn join(
    arguments: &JoinArguments,
    file: &DeviceFile,
    (terminal, now_us): (Option<&mut dyn BufRead>, u64),
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let url = CollectorUrl::parse(&arguments.url).map_err(|error| CliError::Unavailable {
        what: error.to_string(),
        hint: URL_HINT.to_owned(),
    })?;
    let code = code(&arguments.code)?;
    if let Some(device) = file.load()? {
        return Err(CliError::Unavailable {
            what: format!(
                "this device has already joined {} as `{}`",
                device.collector, device.name
            ),
            hint: "leave it with `towpath agent forget`, or use another file: `towpath agent \
                   --config FILE`"
                .to_owned(),
        });
    }
    let ca = arguments.ca.as_deref().map(absolute).transpose()?;
    let client = DeviceClient::new(url.clone(), None, ca.as_deref())?;
    warn_if_exposed(&url, ui);
    let consent = client.consent()?;
    show(&url, &consent, ui);
    if !is_accepted(&consent, arguments.accept, terminal, &mut io::stderr())? {
        ui.progress("not accepted; nothing was sent");
        return Ok(ExitCode::from(1));
    }
    // The code works once, so the token must not be lost.
    file.verify_writable()?;
    let (name, token, campaign_key) = client.join(&JoinRequest {
        code,
        consent: consent.version,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: format!("{OS} {ARCH}"),
    })?;
    let consent = AcceptedConsent::new(&consent, now_us);
    let (collector, limits) = (url.clone(), OwnerLimits::default());
    let device = JoinedDevice { collector, name, token, ca, consent, campaign_key, limits };
    if let Err(error) = file.store(&device) {
        let text = format!("{url} knows this device as `{}`, but its token is lost", device.name);
        let hint = "ask the operator to revoke the device, and for a new code".to_owned();
        ui.warn(&Warning { text, hint: Some(hint) });
        return Err(error);
    }
    writeln!(ui.out, "joined {url} as `{}`", device.name)?;
    ui.progress(&format!("the state of the device is in {}", file.path().display()));
    Ok(ExitCode::SUCCESS)
}

/// Checks a code as typed.
fn code(typed: &str) -> Result<String, CliError> {
    let code = typed.trim();
    let is_valid = (1..=MAX_CODE_BYTES).contains(&code.len())
        && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_valid.then(|| code.to_owned()).ok_or_else(|| CliError::Unavailable {
        what: format!("`{typed}` is not a code"),
        hint: "expected letters and digits, such as `7K3M-9QPX-VB2D`".to_owned(),
    })
}

/// Returns a path that does not depend on the working directory, for a file of text.
fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    let absolute = std::path::absolute(path)
        .map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    if absolute.to_str().is_none() {
        return Err(CliError::Unavailable {
            what: format!("the path `{}` is not valid UTF-8", absolute.display()),
            hint: "rename the file of `--ca`".to_owned(),
        });
    }
    Ok(absolute)
}

pub(super) fn forget(
    arguments: &ForgetArguments,
    file: &DeviceFile,
    terminal: Option<&mut dyn BufRead>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    if arguments.local {
        return forget_locally(arguments, file, terminal, ui);
    }
    let device = file.load_joined()?;
    #[cfg(target_os = "linux")]
    super::journal::verify_unused(file)?;
    let (url, token) = (device.collector.clone(), Some(device.token.clone()));
    let client = DeviceClient::new(url.clone(), token, device.ca.as_deref())?;
    ui.progress(&format!("all runs of `{}` on {url} will be deleted", device.name));
    if !is_confirmed(arguments, terminal)? {
        ui.progress("nothing was deleted");
        return Ok(ExitCode::from(1));
    }
    let reply = client.forget()?;
    let ForgetReply { runs, bytes, remaining_runs, remaining_objects } = reply;
    let (deleted, size) = (format::count(runs, "run"), format::bytes(bytes));
    writeln!(ui.out, "deleted {deleted} ({size}); {remaining_runs} remain on the collector")?;
    if remaining_runs > 0 || remaining_objects > 0 {
        let (runs, files) =
            (format::count(remaining_runs, "run"), format::count(remaining_objects, "file"));
        ui.warn(&Warning {
            text: format!("the collector still has {runs} and {files} of this device"),
            hint: Some("repeat `towpath agent forget`, or ask the operator".to_owned()),
        });
        return Ok(ExitCode::from(1));
    }
    discard_queue(&url, arguments, ui);
    #[cfg(target_os = "linux")]
    super::journal::remove(file)?;
    file.remove()?;
    Ok(ExitCode::SUCCESS)
}

/// Removes the state of the device from this host, also if it is damaged.
fn forget_locally(
    arguments: &ForgetArguments,
    file: &DeviceFile,
    terminal: Option<&mut dyn BufRead>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let path = file.path().display();
    if file.path().symlink_metadata().is_err() {
        ui.progress(&format!("nothing to remove: no {path}"));
        return Ok(ExitCode::SUCCESS);
    }
    #[cfg(target_os = "linux")]
    super::journal::verify_unused(file)?;
    // An unreadable state is removed without its queue.
    let device = file.load().unwrap_or_default();
    ui.progress(&format!("{path} will be removed; stored runs stay on the collector"));
    if !is_confirmed(arguments, terminal)? {
        ui.progress("nothing was removed");
        return Ok(ExitCode::from(1));
    }
    if let Some(device) = device {
        discard_queue(&device.collector, arguments, ui);
    }
    #[cfg(target_os = "linux")]
    super::journal::remove(file)?;
    file.remove()?;
    writeln!(ui.out, "removed {path}")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns true if the owner confirms, by `--yes` or by an answer.
fn is_confirmed(
    arguments: &ForgetArguments,
    terminal: Option<&mut dyn BufRead>,
) -> Result<bool, CliError> {
    if arguments.yes {
        return Ok(true);
    }
    let Some(terminal) = terminal else {
        return Err(CliError::Unavailable {
            what: "standard input is not a terminal, so it cannot be asked for confirmation"
                .to_owned(),
            hint: "confirm with `--yes`".to_owned(),
        });
    };
    Ok(confirm("delete", terminal, &mut io::stderr())?)
}

/// Removes results that wait for the collector. A failure is a warning.
fn discard_queue(url: &CollectorUrl, arguments: &ForgetArguments, ui: &mut Ui) {
    match discard_waiting(url, arguments.spool.as_deref()) {
        Ok(0) => {}
        Ok(count) => {
            let runs = format::count(count, "run");
            ui.progress(&format!("removed {runs} that waited to be uploaded"));
        }
        Err(error) => ui.warn(&Warning {
            text: format!("results that wait to be uploaded are not removed: {error}"),
            hint: error.hint(),
        }),
    }
}

#[cfg(test)]
mod tests;
