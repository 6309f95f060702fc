//! `towpath lab`, `towpath on` and `towpath lab failure`: programs in an emulated network.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write as _};
use std::process::{ExitCode, Stdio};

use serde_json::{Value, json};
use towpath_doctor::Cause;
use towpath_emu::failures;
use towpath_emu::failures::{FailureCase, GroundTruth};
use towpath_emu::lab::Roles;
use towpath_os::{interrupt, sandbox};
use towpath_report::{table, warnings};
use towpath_result::FlowSummary;
use towpath_scenario::{Scenario, Transport};

use crate::arguments::{BackendChoice, FailureArguments, LabAction, LabArguments, OnArguments};
use crate::changes::ScenarioChanges;
use crate::error::CliError;
use crate::fallback;
use crate::files::{self, ResultFolder};
use crate::inner::{CaptureSpec, InnerJob, InnerTask, passed_on};
use crate::load::load;
use crate::report::store_report;
use crate::ui::Ui;

/// Name of a lab's result.
const RESULT_NAME: &str = "lab-1";
/// Width of the table in columns.
const COLUMNS: usize = 100;

pub(crate) fn lab(arguments: &LabArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if let Some(LabAction::Failure(arguments)) = &arguments.action {
        return run_failure(arguments, ui);
    }
    let name = arguments.scenario.clone().unwrap_or_default();
    let scenario = load(&name)?;
    let programs = programs(arguments, &scenario)?;
    fallback::require_emulation()?;
    let is_measured = !arguments.on.is_empty() || arguments.out.is_some();
    let folder = || ResultFolder::create(arguments.out.as_deref(), &scenario.name);
    let folder = is_measured.then(folder).transpose()?;
    let raw_name = format!("{RESULT_NAME}.jsonl");
    let exit_code = run_job(&InnerJob {
        scenario: name,
        seed: None,
        stacks: Vec::new(),
        changes: ScenarioChanges::default(),
        backend: arguments.backend,
        pcap: CaptureSpec::of(&arguments.capture, RESULT_NAME.to_owned()),
        task: InnerTask::Lab {
            programs,
            result: folder.as_ref().map(|folder| (folder.path.clone(), raw_name.clone())),
        },
    });
    if let Some(folder) = &folder {
        let path = folder.path.join(&raw_name);
        if fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
            conclude(folder, &raw_name, arguments.quiet, ui)?;
        } else {
            // Interrupted before the last program began.
            let _ = fs::remove_file(&path); // the file may not exist
            folder.remove_if_empty();
        }
    }
    exit_code
}

/// Completes the result, prints it and writes a report.
fn conclude(
    folder: &ResultFolder,
    raw_name: &str,
    quiet: bool,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let mut run = files::read_back(&folder.path.join(raw_name))?;
    if let Some(summary) = &run.summary {
        // The transport and the duration are known only after the programs have ended.
        let multipath = summary.multipath.requested;
        run.meta.transport = if multipath { Transport::Mptcp } else { Transport::Tcp };
        let duration = |flow: &FlowSummary| flow.duration_ns;
        run.meta.duration_ns = summary.flows.iter().map(duration).max().unwrap_or_default();
    }
    run.meta.run = format!("{}-{RESULT_NAME}", run.meta.scenario);
    let mut file = folder.begin(RESULT_NAME)?;
    for line in run.lines() {
        file.add(&format!("{line}\n"))?;
    }
    let run = files::read_back(&file.finish()?)?;
    let runs = [run];
    let report = store_report(&runs, folder)?;
    if !quiet {
        ui.progress("");
        ui.progress(&table(&runs, COLUMNS, false));
        for warning in warnings(&runs) {
            ui.warn(&warning);
        }
        ui.progress(&format!("results: {}", folder.path.display()));
        ui.progress(&format!("report:  {}", report.display()));
    }
    Ok(())
}

/// Returns the programs of the command line, in its order.
fn programs(
    arguments: &LabArguments,
    scenario: &Scenario,
) -> Result<Vec<(usize, Vec<String>)>, CliError> {
    let roles = Roles::of(scenario);
    let find_host = |name: &str| {
        roles.find(scenario, name).ok_or_else(|| {
            let names: Vec<_> = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
            CliError::Unavailable {
                what: format!("`{}` has no host `{name}`", scenario.name),
                hint: format!("its hosts are: {}", names.join(", ")),
            }
        })
    };
    let mut programs = Vec::new();
    for pair in texts(&arguments.on)?.chunks_exact(2) {
        if let [host, command] = pair {
            let words = ["sh", "-c", command].map(str::to_owned);
            programs.push((find_host(host)?, words.to_vec()));
        }
    }
    let host = arguments.host.as_deref().map(find_host).transpose()?.unwrap_or(0);
    if !arguments.command.is_empty() || programs.is_empty() {
        programs.push((host, texts(&arguments.command)?));
    }
    Ok(programs)
}

/// `towpath on`: runs a command in another host's namespace, from within a lab.
pub(crate) fn on(arguments: &OnArguments) -> Result<ExitCode, CliError> {
    let status = towpath_emu::lab::run_on_host(&arguments.host, &arguments.command);
    Ok(passed_on(status.map_err(CliError::from)?))
}

/// Returns the words of a command as UTF-8, which the job's JSON needs.
fn texts(command: &[OsString]) -> Result<Vec<String>, CliError> {
    let words = command.iter().map(|word| word.to_str().map(str::to_owned));
    words.collect::<Option<_>>().ok_or_else(|| CliError::Unavailable {
        what: "the command is not UTF-8 text".to_owned(),
        hint: "put it into a script and run that".to_owned(),
    })
}

fn run_job(job: &InnerJob) -> Result<ExitCode, CliError> {
    interrupt::ignore();
    let mut child = sandbox::spawn(&job.arguments()?, Stdio::inherit(), Stdio::inherit())
        .map_err(CliError::Spawn)?;
    Ok(passed_on(sandbox::wait(&mut child).map_err(CliError::Spawn)?))
}

fn run_failure(arguments: &FailureArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
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
        writeln!(ui.out, "{json:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.command.is_empty() && !io::stdin().is_terminal() {
        writeln!(ui.out, "{}", introduction(situation))?;
        return Ok(ExitCode::SUCCESS);
    }
    fallback::require_emulation()?;
    run_job(&InnerJob {
        scenario: name.clone(),
        seed: None,
        stacks: Vec::new(),
        changes: ScenarioChanges::default(),
        backend: BackendChoice::Auto,
        pcap: None,
        task: InnerTask::Failure { command: texts(&arguments.command)? },
    })
}

pub(crate) fn find(name: &str) -> Result<&'static FailureCase, CliError> {
    failures::find(name).ok_or_else(|| CliError::Unavailable {
        what: format!("no situation `{name}`"),
        hint: "`towpath lab failure` lists them".to_owned(),
    })
}

fn list(arguments: &FailureArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.markdown {
        write!(ui.out, "{}", failures_page())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        let cases: Vec<_> = failures::cases().map(as_json).collect();
        writeln!(ui.out, "{:#}", Value::from(cases))?;
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

/// Returns the text of `docs/failures.md`.
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
