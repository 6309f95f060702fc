//! `towpath exec`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;
use towpath_linux::exec::{self, Launch, Tally};

use crate::arguments::{ExecArguments, ExecMethod};
use crate::error::CliError;
use crate::inner::passed_on;
use crate::ui::Ui;

/// First argument of the supervisor's process, which is this program again.
pub(crate) const SUPERVISE: &str = "__supervise";
const JSON: &str = "json";
const TEXT: &str = "text";

pub(crate) fn exec(arguments: &ExecArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match arguments.method {
        ExecMethod::Seccomp => supervised(arguments, ui),
        ExecMethod::Godebug => {
            let others = std::env::var_os("GODEBUG").filter(|value| !value.is_empty());
            Err(exec::replace_by(&arguments.command, ("GODEBUG", godebug(others))).into())
        }
    }
}

fn supervised(arguments: &ExecArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let form = if arguments.json { JSON } else { TEXT };
    let supervisor = [OsString::from(SUPERVISE), OsString::from(form)];
    let ended = exec::launch(&Launch { command: &arguments.command, supervisor: &supervisor })?;
    match ended.said {
        Some(said) if !arguments.quiet || arguments.json => ui.progress(&said),
        Some(_) => {}
        None => ui.progress("towpath: what became of the sockets is not known"),
    }
    Ok(passed_on(ended.status))
}

/// Go's switch, added to those that are set already.
fn godebug(others: Option<OsString>) -> OsString {
    const SWITCH: &str = "multipathtcp=1";
    let mut value = others.unwrap_or_default();
    if !value.is_empty() {
        value.push(",");
    }
    value.push(SWITCH);
    value
}

/// What the supervisor's process does.
pub(crate) fn supervise(form: Option<&OsStr>) -> Result<ExitCode, CliError> {
    let describe = if form == Some(OsStr::new(JSON)) { as_json } else { sentence };
    exec::supervise(&describe)?;
    Ok(ExitCode::SUCCESS)
}

/// `towpath: 12 sockets upgraded, 2 stayed TCP (net.mptcp.enabled is 0)`.
fn sentence(tally: &Tally) -> String {
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let mut text = format!("towpath: {} socket{} upgraded", tally.upgraded, plural(tally.upgraded));
    if tally.refusals() > 0 {
        let causes: Vec<_> =
            tally.refused.iter().map(|(cause, count)| format!("{count}: {cause}")).collect();
        let _infallible = write!(text, ", {} stayed TCP ({})", tally.refusals(), causes.join("; "));
    }
    text
}

fn as_json(tally: &Tally) -> String {
    let refused: Vec<_> = tally
        .refused
        .iter()
        .map(|(cause, count)| json!({"cause": cause.to_string(), "sockets": count}))
        .collect();
    json!({"upgraded": tally.upgraded, "refused": refused}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_switches_that_are_set_are_kept() {
        assert_eq!(godebug(None), "multipathtcp=1");
        assert_eq!(godebug(Some("http2debug=1".into())), "http2debug=1,multipathtcp=1");
    }
}
