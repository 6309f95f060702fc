//! `towpath lab`, and `towpath lab break`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::{ExitCode, Stdio};

use serde_json::{Value, json};
use towpath_linux::zoo::{self, Situation};
use towpath_linux::{interrupt, sandbox};

use crate::arguments::{BackendChoice, BreakArguments, LabAction, LabArguments};
use crate::error::CliError;
use crate::inner::{Order, Work, passed_on};
use crate::load::load;
use crate::ui::Ui;

pub(crate) fn lab(arguments: &LabArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if let Some(LabAction::Break(arguments)) = &arguments.action {
        return lab_break(arguments, ui);
    }
    let name = arguments.scenario.clone().unwrap_or_default();
    let scenario = load(&name)?;
    let names: Vec<&str> = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
    let host = match &arguments.host {
        None => 0,
        Some(name) => {
            names.iter().position(|known| known == name).ok_or_else(|| CliError::Unavailable {
                what: format!("`{}` has no host `{name}`", scenario.name),
                hint: format!("its hosts are: {}", names.join(", ")),
            })?
        }
    };
    let command = texts(&arguments.command)?;
    start(&Order {
        scenario: name,
        seed: None,
        stacks: Vec::new(),
        backend: arguments.backend,
        work: Work::Lab { host, command },
    })
}

/// The words of a command, which are handed down as text.
fn texts(command: &[OsString]) -> Result<Vec<String>, CliError> {
    let words = command.iter().map(|word| word.to_str().map(str::to_owned));
    words.collect::<Option<_>>().ok_or_else(|| CliError::Unavailable {
        what: "the command is not UTF-8 text".to_owned(),
        hint: "put it into a script and run that".to_owned(),
    })
}

fn start(order: &Order) -> Result<ExitCode, CliError> {
    interrupt::leave_to_children();
    let mut child = sandbox::spawn(&order.arguments()?, Stdio::inherit(), Stdio::inherit())
        .map_err(CliError::Spawn)?;
    Ok(passed_on(sandbox::wait(&mut child).map_err(CliError::Spawn)?))
}

fn lab_break(arguments: &BreakArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let Some(name) = &arguments.name else {
        return list(arguments, ui);
    };
    let situation = find(name)?;
    if arguments.json {
        writeln!(ui.out, "{:#}", as_json(situation))?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.command.is_empty() && !io::stdin().is_terminal() {
        writeln!(ui.out, "{}", introduction(situation))?;
        return Ok(ExitCode::SUCCESS);
    }
    start(&Order {
        scenario: name.clone(),
        seed: None,
        stacks: Vec::new(),
        backend: BackendChoice::Auto,
        work: Work::Break { command: texts(&arguments.command)? },
    })
}

pub(crate) fn find(name: &str) -> Result<&'static Situation, CliError> {
    zoo::find(name).ok_or_else(|| CliError::Unavailable {
        what: format!("no situation `{name}`"),
        hint: "`towpath lab break` lists them".to_owned(),
    })
}

fn list(arguments: &BreakArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.markdown {
        write!(ui.out, "{}", page())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.json {
        let all: Vec<_> = zoo::situations().map(as_json).collect();
        writeln!(ui.out, "{:#}", Value::from(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = zoo::situations().map(|situation| situation.name.len()).max().unwrap_or(0);
    for Situation { name, title, .. } in zoo::situations() {
        writeln!(ui.out, "{name:<width$}  {title}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(situation: &Situation) -> Value {
    let Situation { name, title, seen, why, cause, two_ends, .. } = situation;
    json!({
        "name": name, "title": title, "seen": seen, "why": why, "cause": cause,
        "two_ends": two_ends,
    })
}

/// `docs/zoo.md`.
fn page() -> String {
    let (broken, healthy): (Vec<&Situation>, Vec<_>) =
        zoo::situations().partition(|situation| situation.cause.is_some());
    let mut page = include_str!("zoo.md").to_owned();
    for (title, all) in [("Failures", broken), ("Healthy networks", healthy)] {
        let _infallible = writeln!(page, "\n## {title}");
        for situation in all {
            let Situation { name, title, seen, why, cause, two_ends, .. } = *situation;
            let cause = cause.map_or_else(String::new, |cause| format!(" *Cause:* `{cause}`."));
            let server = if two_ends { " *Server:* `towpath server`." } else { "" };
            let _infallible = writeln!(page, "\n### `{name}`: {title}\n");
            let _infallible = writeln!(page, "{seen} *Why:* {why}{cause}{server}");
        }
    }
    page
}

/// What people are told of a situation, in several lines.
pub(crate) fn introduction(situation: &Situation) -> String {
    let Situation { name, title, seen, why, cause, .. } = situation;
    let target = situation.target();
    let cause = cause.unwrap_or("none: this network is healthy");
    format!(
        "{name}: {title}\n  seen   {seen}\n  why    {why}\n  cause  {cause}\n  \
         try    towpath doctor --connect {target}"
    )
}
