//! `towpath exec`: runs a program with Multipath TCP and reports what its sockets did.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;
use towpath_host::exec;
use towpath_host::exec::{Launch, OutcomeCounts, SocketSummary};
use towpath_os::files::OutputFile;

use crate::error::CliError;
use crate::process::passed_on;
use crate::ui::Ui;

/// First argument of the supervisor's process, which is this program again.
pub(crate) const SUPERVISE: &str = "__supervise";
const JSON: &str = "json";
const TEXT: &str = "text";

/// Run any program over Multipath TCP
///
/// Every TCP socket that the program opens becomes a Multipath TCP socket, or stays plain TCP if
/// the kernel or the peer does not support it. Works for static binaries and servers, needs no
/// root, and ends with the program's exit code.
#[derive(Debug, Args)]
pub(crate) struct ExecArguments {
    /// Method that upgrades the sockets
    #[arg(long, value_enum, default_value_t = ExecMethod::Seccomp)]
    pub(crate) method: ExecMethod,
    /// Record every subflow, for `towpath report FILE`
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print no summary line at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print the summary as one line of JSON
    #[arg(short = 'J', long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecMethod {
    /// Intercepts the opening of TCP sockets (seccomp user notification, Linux 5.14)
    Seccomp,
    /// Sets GODEBUG=multipathtcp=1 for Go programs, without a supervisor process
    Godebug,
}

pub(crate) fn exec(arguments: &ExecArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match arguments.method {
        ExecMethod::Seccomp => exec_supervised(arguments, ui),
        ExecMethod::Godebug => {
            let godebug_settings = std::env::var_os("GODEBUG").filter(|value| !value.is_empty());
            Err(exec::exec(&arguments.command, ("GODEBUG", godebug(godebug_settings))).into())
        }
    }
}

fn exec_supervised(arguments: &ExecArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let output_form = if arguments.json { JSON } else { TEXT };
    let mut supervisor = vec![OsString::from(SUPERVISE), OsString::from(output_form)];
    if let Some(path) = &arguments.report {
        let unwritable = |source| CliError::unwritable(path, source, None);
        // Created before the program runs, so that a bad path does not cost its work. The
        // supervisor changes its folder, so it gets an absolute path.
        OutputFile::find(path).and_then(OutputFile::create).map_err(unwritable)?;
        let command_words: Vec<_> =
            arguments.command.iter().map(|word| word.to_string_lossy()).collect();
        supervisor.push(std::path::absolute(path).map_err(unwritable)?.into());
        supervisor.push(command_words.join(" ").into());
    }
    let program = exec::launch(&Launch { command: &arguments.command, supervisor: &supervisor })?;
    match program.summary {
        Some(summary) if !arguments.quiet || arguments.json => ui.progress(&summary),
        Some(_) => {}
        None => ui.progress("towpath: the state of the sockets is unknown"),
    }
    Ok(passed_on(program.status))
}

/// Adds Go's switch for Multipath TCP to the existing `GODEBUG` settings.
fn godebug(godebug_settings: Option<OsString>) -> OsString {
    const GODEBUG_MULTIPATH: &str = "multipathtcp=1";
    let mut value = godebug_settings.unwrap_or_default();
    if !value.is_empty() {
        value.push(",");
    }
    value.push(GODEBUG_MULTIPATH);
    value
}

/// Runs the supervisor's process: watches the sockets and prints the report.
pub(crate) fn supervise(
    mut arguments: impl Iterator<Item = OsString>,
) -> Result<ExitCode, CliError> {
    let output_form = arguments.next();
    let describe =
        if output_form.as_deref() == Some(OsStr::new(JSON)) { summary_json } else { summary_text };
    let (path, command) = (arguments.next(), arguments.next().unwrap_or_default());
    let command = command.to_string_lossy();
    let record_target =
        path.map(|path| exec::RecordTarget { path: path.into(), command: &command });
    exec::supervise(record_target, &describe)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns one line for people, such as
/// `towpath: 3 sockets upgraded: 1 listened; of 2 connections opened, 2 were Multipath TCP`.
fn summary_text(tally: &SocketSummary) -> String {
    let mut parts = Vec::new();
    if tally.listening > 0 {
        parts.push(format!("{} listened", tally.listening));
    }
    let outcomes = [("opened", tally.opened), ("accepted", tally.accepted)];
    for (verb, outcomes) in outcomes {
        let connections = outcomes.multipath + outcomes.single;
        if connections == 0 {
            continue;
        }
        let mut part = format!(
            "of {} {verb}, {} {} Multipath TCP",
            count(connections, "connection"),
            outcomes.multipath,
            if outcomes.multipath == 1 { "was" } else { "were" }
        );
        if outcomes.several_subflows > 0 {
            let _ = write!(part, " ({} over several paths)", outcomes.several_subflows);
        }
        if outcomes.single > 0 {
            let _ = write!(part, " and {} plain TCP", outcomes.single);
        }
        parts.push(part);
    }
    if tally.unanswered > 0 {
        parts.push(format!("{} got no reply", tally.unanswered));
    }
    if tally.unseen > 0 {
        // Other programs in this network namespace may have raised these counters.
        let counters = match tally.handshakes {
            0 => String::new(),
            handshakes => format!(
                " (kernel counters: {} requested Multipath TCP, {} got it)",
                count(handshakes, "handshake"),
                tally.answered
            ),
        };
        parts.push(format!("{} unused or closed too fast to be observed{counters}", tally.unseen));
    }
    if tally.refusals() > 0 {
        let causes: Vec<_> = tally.refused.keys().map(ToString::to_string).collect();
        let stayed_tcp = count(tally.refusals(), "socket");
        parts.push(format!("{stayed_tcp} stayed TCP ({})", causes.join("; ")));
    }
    let mut text = format!("towpath: {} upgraded", count(tally.upgraded, "socket"));
    if !parts.is_empty() {
        let _ = write!(text, ": {}", parts.join("; "));
    }
    if let Some(error) = &tally.record_error {
        let _ = write!(text, ". The report could not be written: {error}");
    }
    if let Some(fallback) = tally.fallbacks.first().filter(|_| fell_back(tally)) {
        let _ = write!(text, ". Why: {} (counter {})", fallback.meaning, fallback.counter);
    }
    text
}

fn fell_back(tally: &SocketSummary) -> bool {
    let single = tally.opened.single + tally.accepted.single;
    single > 0 || (tally.unseen > 0 && tally.answered < tally.handshakes)
}

fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

fn summary_json(tally: &SocketSummary) -> String {
    let refused = tally.refused.iter();
    let refused =
        refused.map(|(cause, sockets)| json!({"cause": cause.to_string(), "sockets": sockets}));
    let outcomes_json = |outcomes: OutcomeCounts| {
        json!({
            "multipath": outcomes.multipath,
            "several_subflows": outcomes.several_subflows,
            "tcp": outcomes.single,
        })
    };
    let fallbacks = tally.fallbacks.iter();
    let fallbacks = fallbacks.map(
        |cause| json!({"counter": cause.counter, "meaning": cause.meaning, "count": cause.count}),
    );
    json!({
        "upgraded": tally.upgraded,
        "refused": refused.collect::<Vec<_>>(),
        "listening": tally.listening,
        "opened": outcomes_json(tally.opened),
        "accepted": outcomes_json(tally.accepted),
        "unanswered": tally.unanswered,
        "unseen": tally.unseen,
        "handshakes": {"begun": tally.handshakes, "answered": tally.answered},
        "report_error": tally.record_error,
        "fallback_counters": fallbacks.collect::<Vec<_>>(),
    })
    .to_string()
}

impl From<exec::ExecError> for CliError {
    fn from(error: exec::ExecError) -> Self {
        let hint = error.hint();
        Self::failed(error, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_reports_the_outcome_of_every_socket() {
        assert_eq!(summary_text(&SocketSummary::default()), "towpath: 0 sockets upgraded");
        let cause = exec::FallbackCounter { counter: "C", meaning: "a plain listener", count: 1 };
        let tally = SocketSummary {
            upgraded: 6,
            refused: [(exec::UpgradeRefusal::Disabled, 2)].into(),
            listening: 1,
            unseen: 1,
            opened: OutcomeCounts { multipath: 3, several_subflows: 2, single: 1 },
            fallbacks: vec![cause],
            ..SocketSummary::default()
        };
        assert_eq!(
            summary_text(&tally),
            "towpath: 6 sockets upgraded: 1 listened; of 4 connections opened, 3 were Multipath \
             TCP (2 over several paths) and 1 plain TCP; 1 unused or closed too fast to be observed; \
             2 sockets stayed TCP (net.mptcp.enabled is 0). Why: a plain listener (counter C)"
        );
        // A fallback counter that another program raised is not printed when nothing of ours fell
        // back.
        let without_fallback = SocketSummary { opened: OutcomeCounts::default(), ..tally };
        assert!(!summary_text(&without_fallback).contains("Why"));
        assert!(summary_json(&without_fallback).contains("\"fallback_counters\":[{"));
    }

    #[test]
    fn existing_godebug_settings_are_preserved() {
        assert_eq!(godebug(None), "multipathtcp=1");
        assert_eq!(godebug(Some("http2debug=1".into())), "http2debug=1,multipathtcp=1");
    }
}
