//! `towpath scenarios` and `towpath schema`: lists built-in scenarios and their keys.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Command, Subcommand, ValueEnum};
use serde_json::json;
use towpath_result::store::result_schema;
use towpath_result::{format, limits, path_text};
use towpath_scenario::{Builtin, World, builtin, json_schema, reference_markdown};

use crate::commands;
use crate::error::CliError;
use crate::load::load;
use crate::ui::Ui;

/// List the built-in scenarios, or show one
#[derive(Debug, Args)]
pub(crate) struct ScenariosArguments {
    #[command(subcommand)]
    pub(crate) action: Option<ScenariosAction>,
    /// Print the list as JSON
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScenariosAction {
    /// Print a built-in scenario, to read or to start from
    Show {
        /// Name of the scenario
        name: String,
    },
    /// Check a scenario file, and print a summary and the limits of its network
    Check {
        /// Scenario file, or the name of a built-in one
        scenario: String,
    },
}

/// Print a reference: JSON Schema of scenarios or results, or pages of keys and commands
#[derive(Debug, Args)]
pub(crate) struct SchemaArguments {
    /// Reference to print
    #[arg(value_enum, default_value_t = SchemaKind::Scenario)]
    pub(crate) kind: SchemaKind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum SchemaKind {
    /// Scenario files, as JSON Schema
    Scenario,
    /// One line of a result, as JSON Schema
    Result,
    /// Keys of scenario files, as a Markdown page
    ScenarioKeys,
    /// Keys of plans for sweeps, as a Markdown page
    PlanKeys,
    /// Keys of campaigns for volunteers' devices, as a Markdown page
    CampaignKeys,
    /// All commands with their options, as a Markdown page
    Commands,
}

pub(crate) fn scenarios(arguments: &ScenariosArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match &arguments.action {
        None => list(arguments.json, ui)?,
        Some(ScenariosAction::Show { name }) => {
            match builtin().iter().find(|builtin| builtin.name == name.as_str()) {
                Some(builtin) => ui.out.write_all(builtin.text.as_bytes())?,
                // Not built in: a file, or an error from the usual loader.
                None => ui.out.write_all(load(name)?.source.as_bytes())?,
            }
        }
        Some(ScenariosAction::Check { scenario }) => {
            let scenario = load(scenario)?;
            let counts = [
                (scenario.hosts.len(), "host"),
                (scenario.paths.len(), "path"),
                (scenario.flows.len(), "flow"),
                (scenario.timeline.len(), "event"),
                (scenario.expect.len(), "expectation"),
            ];
            let counts = counts.map(|(count, noun)| format::count(count as u64, noun));
            writeln!(ui.out, "{}: {}", scenario.name, counts.join(", "))?;
            for path in &scenario.paths {
                writeln!(ui.out, "  {}: {}", path.name, path_text(&scenario, path))?;
            }
            let worlds = [World::Emu, World::Sim];
            for warning in limits::warnings(&scenario, &scenario.run.transports, &worlds) {
                ui.warn(&warning);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(as_json: bool, ui: &mut Ui) -> Result<(), CliError> {
    if as_json {
        let entries: Vec<_> = builtin()
            .iter()
            .map(|builtin| json!({ "name": builtin.name, "description": builtin.description() }))
            .collect();
        writeln!(ui.out, "{}", json!(entries))?;
        return Ok(());
    }
    let width = builtin().iter().map(|builtin| builtin.name.len()).max().unwrap_or(0);
    for Builtin { name, .. } in builtin() {
        let description = load(name)?.description;
        let mut indent = format!("{name:<width$}  ");
        let mut line = String::new();
        for word in description.split_whitespace() {
            if !line.is_empty() && indent.len() + line.len() + word.len() >= 99 {
                writeln!(ui.out, "{indent}{line}")?;
                (indent, line) = (" ".repeat(width + 2), String::new());
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        writeln!(ui.out, "{indent}{line}")?;
    }
    Ok(())
}

/// Prints a reference; `command` is the whole command line.
pub(crate) fn schema(
    arguments: &SchemaArguments,
    command: Command,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    match arguments.kind {
        SchemaKind::Scenario => ui.out.write_all(format!("{:#}\n", json_schema()).as_bytes())?,
        SchemaKind::Result => ui.out.write_all(format!("{:#}\n", result_schema()).as_bytes())?,
        SchemaKind::PlanKeys => {
            ui.out.write_all(towpath_study::plan::reference_markdown().as_bytes())?;
        }
        SchemaKind::CampaignKeys => {
            ui.out.write_all(towpath_campaign::reference_markdown().as_bytes())?;
        }
        SchemaKind::Commands => {
            ui.out.write_all(commands::markdown(command).as_bytes())?;
        }
        SchemaKind::ScenarioKeys => ui.out.write_all(reference_markdown().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
