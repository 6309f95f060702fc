//! `towpath doctor`: checks if Multipath TCP is really used and explains why not.

mod claims;
mod fixes;

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use towpath_doctor::{
    Confidence, Diagnosis, DoctorOptions, Finding, Health, PathShare, ProcessScope, causes_page,
    diagnose, examine,
};

use crate::error::CliError;
use crate::self_check::self_check;
use crate::ui::{Ui, write_wrapped};

/// Find out if Multipath TCP is really used, and if not, why
///
/// Checks the kernel and the configuration, and opens test connections to any TCP server. With a
/// `towpath server` as peer, it also checks the other host's observations and the paths of the
/// data. Prints each finding with evidence and the commands that fix it. Takes less than 5 s and
/// changes nothing. Exit code 1 if something is wrong.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of the command line")]
pub(crate) struct DoctorArguments {
    /// Only check which worlds and commands of towpath work on this machine (under a second)
    #[arg(long = "self", conflicts_with_all = ["connect", "peer", "pid", "all", "secret_file", "fix"])]
    pub(crate) itself: bool,
    /// Server to connect to, over Multipath TCP and TCP
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<String>,
    /// `towpath server` that reports its host's observations [default: the host of --connect, if it
    /// runs one]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer: Option<String>,
    /// Also check the sockets of one process
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub(crate) pid: Option<u32>,
    /// Also check the sockets of all programs
    #[arg(long)]
    pub(crate) all: bool,
    /// File with the secret of these servers
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Run the safe fixes: settings, limits and endpoints of this host, for problems that this host
    /// observed itself
    #[arg(long)]
    pub(crate) fix: bool,
    /// Revert the changes of `--fix` since this machine started
    #[arg(long, conflicts_with_all = [
        "itself", "connect", "peer", "pid", "all", "secret_file", "fix", "claims", "observation",
    ])]
    pub(crate) undo: bool,
    /// List every cause as shown, contradicted or not judged, with the reason
    #[arg(long)]
    pub(crate) claims: bool,
    /// Print the documentation of all causes and of the facts that judge them (Markdown)
    #[arg(long, exclusive = true)]
    pub(crate) causes: bool,
    /// Print the findings as JSON
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Also print everything that was seen, for a bug report or a test (JSON)
    #[arg(long, hide = true)]
    pub(crate) observation: bool,
}

pub(crate) fn doctor(arguments: &DoctorArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.itself {
        return self_check(arguments.json, ui);
    }
    if arguments.undo {
        return fixes::undo_fixes(arguments.json, ui);
    }
    if arguments.causes {
        ui.out.write_all(causes_page().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let address = |text: &Option<String>| text.as_deref().map(resolve).transpose();
    let secret =
        arguments.secret_file.as_deref().map(crate::live_hosts::read_secret).transpose()?;
    let programs = match arguments.pid {
        Some(id) => ProcessScope::Process(id),
        None if arguments.all => ProcessScope::All,
        None => ProcessScope::Multipath,
    };
    if let (Err(error), ProcessScope::Process(id)) = (programs.can_be_seen(), programs) {
        let reason = error.to_string().to_lowercase();
        let reason = reason.split(" (os error").next().unwrap_or_default();
        return Err(CliError::Unavailable {
            what: format!("cannot read the sockets of process {id}: {reason}"),
            hint: "the process must run as the same user; otherwise this needs root".to_owned(),
        });
    }
    let (connect, peer) = (address(&arguments.connect)?, address(&arguments.peer)?);
    let name = arguments.connect.as_deref().map(host).unwrap_or_default().to_owned();
    let options = DoctorOptions { connect, server_name: name, peer, secret, programs };
    let observation = examine(&options);
    let report = diagnose(&observation);
    let json_or_error = |text: Result<String, serde_json::Error>| {
        text.map_err(|error| CliError::Internal(error.to_string()))
    };
    if arguments.observation {
        writeln!(ui.out, "{}", json_or_error(serde_json::to_string(&observation))?)?;
    } else if arguments.json {
        writeln!(ui.out, "{}", json_or_error(serde_json::to_string(&report))?)?;
    } else {
        print(&report, arguments.claims, ui)?;
    }
    if arguments.fix {
        fixes::apply_fixes(&options, &observation, &report, ui)?;
    }
    let unhealthy = matches!(report.verdict, Health::Impaired | Health::Broken);
    Ok(if unhealthy { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Returns the host of `HOST:PORT`.
fn host(text: &str) -> &str {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Resolves `HOST:PORT`, with an IPv6 address in brackets. Returns the first address, which
/// programs use, in the system's order (RFC 6724).
fn resolve(text: &str) -> Result<SocketAddr, CliError> {
    let unusable = |reason: String| CliError::Unavailable {
        what: format!("`{text}` is not usable: {reason}"),
        hint: "expected HOST:PORT, such as example.org:443 or [2001:db8::1]:5210".to_owned(),
    };
    let mut addresses = text.to_socket_addrs().map_err(|error| {
        let reason = error.to_string();
        unusable(reason.split(": ").last().unwrap_or_default().to_lowercase())
    })?;
    addresses.next().ok_or_else(|| unusable("the host has no address".to_owned()))
}

fn print(report: &Diagnosis, all_claims: bool, ui: &mut Ui) -> Result<(), CliError> {
    let (count, out) = (report.findings.len(), &mut ui.out);
    write_wrapped(out, "", &verdict(report))?;
    if !report.paths.is_empty() {
        write_wrapped(out, "paths: ", &shares(&report.paths))?;
    }
    for unused in &report.unused {
        let text = format!("{} ({}): {}", unused.interface, unused.address, unused.sentence);
        write_wrapped(out, "unused: ", &text)?;
    }
    for (number, finding) in report.findings.iter().enumerate() {
        writeln!(out)?;
        let label = if count > 1 { format!("{}. ", number + 1) } else { String::new() };
        let qualifier = match finding.confidence {
            Confidence::Certain => "",
            Confidence::Likely => "probably ",
            Confidence::Possible => "perhaps ",
        };
        let (label, cause) = (format!("{label}{qualifier}"), finding.cause);
        write_wrapped(out, &label, &format!("{} [{cause}]", finding.sentence))?;
        print_details(finding, out)?;
    }
    writeln!(out)?;
    if all_claims {
        claims::print_all(report, out)?;
        writeln!(out)?;
    } else {
        claims::print_summary(report, out)?;
    }
    write_wrapped(out, "checked: ", &report.checked.join(", "))?;
    for check in &report.not_checked {
        write_wrapped(out, "not checked: ", &format!("{}: {}", check.what, check.why))?;
    }
    Ok(())
}

/// Returns the overall verdict in one sentence.
fn verdict(report: &Diagnosis) -> String {
    let reason = report.reason.as_deref().unwrap_or_default();
    match report.verdict {
        Health::Healthy => format!("healthy: {}", report.traffic_text()),
        Health::OnePath => format!("1 path: Multipath TCP works, over {reason} alone"),
        Health::Undetermined => {
            format!("undetermined: no problem was found, but {reason}")
        }
        Health::Impaired => "impaired: Multipath TCP works, but less well than it could".to_owned(),
        Health::Broken => "broken: Multipath TCP does not work here".to_owned(),
    }
}

/// Returns each path's share with its addresses: `c1 52 % (10.0.0.1 -> 10.0.0.2)`.
fn shares(paths: &[PathShare]) -> String {
    let share = |path: &PathShare| {
        let name = path.label();
        let backup = if path.backup { ", backup" } else { "" };
        format!("{name} {} % ({} -> {}{backup})", path.percent, path.local, path.remote)
    };
    paths.iter().map(share).collect::<Vec<_>>().join(", ")
}

fn print_details(finding: &Finding, out: &mut impl Write) -> Result<(), CliError> {
    for evidence in &finding.evidence {
        write_wrapped(out, "   seen: ", evidence)?;
    }
    if finding.unverified {
        let text = "reported by the other host only, which may be wrong: --fix ignores it";
        write_wrapped(out, "   note: ", text)?;
    }
    for command in &finding.tried {
        write_wrapped(out, "   tried: ", command)?;
    }
    for command in &finding.fix {
        // Not wrapped, so that the user can copy the line.
        writeln!(out, "   fix:  {command}")?;
    }
    if let Some(hint) = &finding.hint {
        write_wrapped(out, "   hint: ", hint)?;
    }
    Ok(())
}
