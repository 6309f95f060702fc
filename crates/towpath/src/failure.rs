//! `towpath lab failure`: networks in which something about Multipath TCP is broken.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use towpath_doctor::Cause;
use towpath_emu::failures;
use towpath_emu::failures::{FailureCase, GroundTruth};

use crate::error::CliError;
use crate::fallback;
use crate::process::{InnerJob, run_attached, texts};
use crate::ui::Ui;

/// Open a network in which Multipath TCP fails in a known way, or list the cases
///
/// Each case is a failure from practice, with its symptom and cause; some are healthy networks. The
/// program runs on the client; `TOWPATH_CONNECT` is the address of the server.
#[derive(Debug, Args)]
pub(crate) struct FailureArguments {
    /// Name of a failure case [default: list all]
    pub(crate) name: Option<String>,
    /// Print the list as JSON
    #[arg(short = 'J', long, conflicts_with = "command")]
    pub(crate) json: bool,
    /// Print the list as a Markdown page
    #[arg(long, conflicts_with_all = ["command", "json", "name"])]
    pub(crate) markdown: bool,
    /// Program and its arguments [default: your shell, on a terminal]
    #[arg(last = true, value_name = "COMMAND", requires = "name")]
    pub(crate) command: Vec<OsString>,
}

pub(crate) fn run(arguments: &FailureArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let Some(name) = &arguments.name else {
        return list(arguments, ui);
    };
    let situation = find(name)?;
    if arguments.json {
        let mut json = as_json(situation);
        if let (Some(drawn), Some(fields)) = (failures::random_case(name), json.as_object_mut()) {
            let GroundTruth { causes, accepted, decidable, all_decidable, paths, summary: drawn } =
                drawn.truth;
            let find_cause = |id: &&str| Cause::ALL.iter().find(|cause| cause.id() == *id);
            let areas: Vec<_> =
                causes.iter().filter_map(find_cause).map(|cause| cause.layer()).collect();
            fields.insert("areas".to_owned(), json!(areas));
            fields.insert("causes".to_owned(), json!(causes));
            fields.insert("accepted".to_owned(), json!(accepted));
            fields.insert("decidable".to_owned(), json!(decidable));
            fields.insert("all_decidable".to_owned(), json!(all_decidable));
            fields.insert("paths".to_owned(), json!(paths));
            fields.insert("drawn".to_owned(), json!(drawn));
        }
        ui.out.write_all(format!("{json:#}\n").as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.command.is_empty() && !io::stdin().is_terminal() {
        ui.out.write_all(format!("{}\n", introduction(situation)).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    fallback::require_emulation()?;
    run_attached(&InnerJob::Failure { name: name.clone(), command: texts(&arguments.command)? })
}

pub(crate) fn find(name: &str) -> Result<&'static FailureCase, CliError> {
    failures::find(name).ok_or_else(|| CliError::Unavailable {
        what: format!("unknown failure case `{name}`"),
        hint: "`towpath lab failure` lists them".to_owned(),
    })
}

fn list(arguments: &FailureArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.markdown {
        ui.out.write_all(failures_page().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        let cases: Vec<_> = failures::cases().map(as_json).collect();
        ui.out.write_all(format!("{:#}\n", Value::from(cases)).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = failures::cases().map(|situation| situation.name.len()).max().unwrap_or(0);
    for FailureCase { name, title, .. } in failures::cases() {
        writeln!(ui.out, "{name:<width$}  {title}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(situation: &FailureCase) -> Value {
    let FailureCase { name, title, symptom, explanation, cause, needs_server_report, .. } =
        situation;
    json!({
        "name": name, "title": title, "seen": symptom, "why": explanation, "cause": cause,
        "two_ends": needs_server_report,
    })
}

/// Returns the text of `docs/reference/failures.md`.
fn failures_page() -> String {
    let (broken, healthy): (Vec<&FailureCase>, Vec<_>) =
        failures::cases().partition(|situation| situation.cause.is_some());
    let mut page = include_str!("failures.md").to_owned();
    for (title, cases) in [("Failures", broken), ("Healthy networks", healthy)] {
        let _ = writeln!(page, "\n## {title}");
        for situation in cases {
            let FailureCase {
                name, title, symptom, explanation, cause, needs_server_report, ..
            } = *situation;
            let cause = cause.map_or_else(String::new, |cause| format!(" *Cause:* `{cause}`."));
            let server = if needs_server_report { " *Server:* `towpath server`." } else { "" };
            let _ = writeln!(page, "\n### `{name}`: {title}\n");
            let _ = writeln!(page, "{symptom} *Why:* {explanation}{cause}{server}");
        }
    }
    page
}

/// Returns the description of a situation, in several lines.
pub(crate) fn introduction(situation: &FailureCase) -> String {
    let FailureCase { name, title, symptom, explanation, cause, .. } = situation;
    let target = situation.target();
    let cause = cause.unwrap_or("none: this network is healthy");
    format!(
        "{name}: {title}\n  seen   {symptom}\n  why    {explanation}\n  cause  {cause}\n  \
         try    towpath doctor --connect {target}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_knows_every_cause_of_a_random_case() {
        for number in 0..400 {
            let random = failures::random_case(&format!("random-1-{number}")).unwrap();
            for id in random.truth.causes {
                assert!(Cause::ALL.iter().any(|cause| cause.id() == id), "{number}: {id}");
            }
        }
    }
}
