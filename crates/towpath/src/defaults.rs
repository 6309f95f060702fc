//! The configuration file: a user's own default options, which replace the built-in defaults.
//!
//! `$XDG_CONFIG_HOME/towpath/config.toml` (else `~/.config/towpath/config.toml`) has a table for
//! each command. Its keys are the command's long options: `[run]`, `world = "sim"`. The command
//! line overrides the file.

use std::env;
use std::io;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use towpath_measure::input::ReadBudget;
use towpath_measure::scenario::document::{
    self, KeyPresence, KeySchema, TableSchema, ValueKind, key, nearest,
};

use crate::error::CliError;

/// Options that the file adds to a command line.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    /// Arguments as the user would type them.
    pub(crate) arguments: Vec<String>,
    /// Options as results record them: `world = sim`.
    pub(crate) shown: Vec<String>,
    pub(crate) path: PathBuf,
}

const fn command_key(name: &'static str) -> KeySchema {
    key(name, ValueKind::Any("options"), KeyPresence::Optional("none"), "Options of this verb")
}

/// Shape of the file: the commands that may have defaults.
static FILE_SHAPE: TableSchema = TableSchema {
    noun: "the configuration file",
    heading: "config.toml",
    doc: "Options by verb.",
    key_groups: &[&[
        command_key("run"),
        command_key("compare"),
        command_key("sweep"),
        command_key("reproduce"),
        command_key("server"),
        command_key("measure"),
        command_key("check"),
        command_key("doctor"),
        command_key("monitor"),
        command_key("report"),
        command_key("trace"),
        command_key("lab"),
        command_key("exec"),
    ]],
};

/// Returns the path of the file; `None` without `XDG_CONFIG_HOME` and `HOME`.
fn config_path() -> Option<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let base = match named("XDG_CONFIG_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(named("HOME")?).join(".config"),
    };
    Some(base.join("towpath").join("config.toml"))
}

/// Upper bound of the file's size in bytes.
const MAX_BYTES: u64 = 1_000_000;

/// Returns the file's options that `matches` does not already have.
pub(crate) fn read(command: &Command, matches: &ArgMatches) -> Result<Defaults, CliError> {
    let Some(path) = config_path() else { return Ok(Defaults::default()) };
    // `--max-input` does not apply: the command itself reports an invalid limit.
    let text = match ReadBudget::of(MAX_BYTES).read_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Defaults::default()),
        Err(source) => return Err(CliError::Read { path, source }),
    };
    let shown = path.display().to_string();
    let mut defaults = document::read(&shown, &text, (&FILE_SHAPE, "the file"), |file, _| {
        let mut found = Defaults::default();
        let verbs = FILE_SHAPE.keys().filter_map(|key| {
            Some((key.name, command.find_subcommand(key.name)?, file.take(key.name)?))
        });
        for (name, verb, value) in verbs {
            let chosen = matches
                .subcommand()
                .filter(|(chosen, given)| *chosen == name && given.subcommand_name().is_none());
            options(verb, &value, chosen.map(|(_, given)| given), &mut found);
        }
        found
    })?;
    defaults.path = path;
    Ok(defaults)
}

/// Reads the options of one command.
///
/// All are checked. Those that were not `given` are returned if this command was called.
fn options(
    verb: &Command,
    table: &document::Value<'_>,
    given: Option<&ArgMatches>,
    found: &mut Defaults,
) {
    let Some(entries) = table.as_table() else {
        return table.fail("this is not a table", format!("expected `[{}]`", verb.get_name()));
    };
    let longs =
        || verb.get_arguments().filter_map(clap::Arg::get_long).filter(|name| !is_excluded(name));
    for (key, value) in entries {
        let name = key.get_ref().as_ref();
        let argument = verb.get_arguments().find(|argument| argument.get_long() == Some(name));
        let Some(argument) = argument.filter(|_| !is_excluded(name)) else {
            let near = nearest(name, longs()).map(|near| format!(": did you mean `{near}`?"));
            let message = format!("`towpath {}` has no option `--{name}`", verb.get_name());
            let near = near.unwrap_or_default();
            table.fail_at(&key.span(), message, format!("expected a long option{near}"));
            continue;
        };
        let switch = !matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
        let value = table.nested(name, key.span(), value);
        let Some(values) = option_arguments(&value, switch) else { continue };
        let typed = |given: &ArgMatches| {
            given.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        if given.is_none_or(typed) {
            continue;
        }
        let shown = |value| if switch { name.to_owned() } else { format!("{name} = {value}") };
        let word = |value| if switch { format!("--{name}") } else { format!("--{name}={value}") };
        found.shown.extend(values.iter().map(shown));
        found.arguments.extend(values.iter().map(word));
    }
}

/// Returns true if an option may not have a default: about the file itself, or prints and exits.
fn is_excluded(name: &str) -> bool {
    matches!(name, "no-config" | "help" | "version")
}

/// Returns the arguments that a value stands for; `None` if the value was refused.
fn option_arguments(value: &document::Value<'_>, switch: bool) -> Option<Vec<String>> {
    if switch {
        return match value.as_bool() {
            Some(true) => Some(vec![String::new()]),
            Some(false) => Some(Vec::new()),
            None => {
                value.fail("this option has no value", "expected `true` or `false`");
                None
            }
        };
    }
    let one = |value: &document::Value<'_>| {
        let found = value.as_str().map(str::to_owned).or_else(|| value.as_number());
        if found.is_none() {
            value.fail("this is no value of an option", "expected a text or a number");
        }
        found
    };
    if value.is_list() {
        return value.list("").unwrap_or_default().iter().map(one).collect();
    }
    one(value).map(|word| vec![word])
}
