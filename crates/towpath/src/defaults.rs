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
use towpath_result::input::ReadBudget;
use towpath_scenario::document;
use towpath_scenario::document::{KeyPresence, KeySchema, TableSchema, ValueKind, key, nearest};

use crate::error::CliError;

/// Options that the file adds to a command line.
#[derive(Debug, Default)]
pub(crate) struct Defaults {
    /// Arguments as the user would type them.
    pub(crate) arguments: Vec<String>,
    /// Options in the form in which results record them: `world = sim`.
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
        command_key("upload"),
        command_key("report"),
        command_key("trace"),
        command_key("lab"),
        command_key("exec"),
    ]],
};

/// Returns the path of the file; `None` without `XDG_CONFIG_HOME` and `HOME`.
fn config_path() -> Option<PathBuf> {
    let env_path = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let base = match env_path("XDG_CONFIG_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env_path("HOME")?).join(".config"),
    };
    Some(base.join("towpath").join("config.toml"))
}

/// Upper bound of the file's size in bytes.
const MAX_FILE_BYTES: u64 = 1_000_000;

/// Returns the file's options that `matches` does not already have.
pub(crate) fn read(command: &Command, matches: &ArgMatches) -> Result<Defaults, CliError> {
    let Some(path) = config_path() else { return Ok(Defaults::default()) };
    // `--max-input` does not apply: the command itself reports an invalid limit.
    let text = match ReadBudget::of(MAX_FILE_BYTES).read_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Defaults::default()),
        Err(source) => return Err(CliError::Read { path, source }),
    };
    let shown = path.display().to_string();
    let mut defaults = document::read(&shown, &text, (&FILE_SHAPE, "the file"), |file, _| {
        let mut file_defaults = Defaults::default();
        let verbs = FILE_SHAPE.keys().filter_map(|key| {
            Some((key.name, command.find_subcommand(key.name)?, file.take(key.name)?))
        });
        for (name, verb, value) in verbs {
            let called = matches.subcommand().filter(|(called, sub_matches)| {
                *called == name && sub_matches.subcommand_name().is_none()
            });
            options(verb, &value, called.map(|(_, sub_matches)| sub_matches), &mut file_defaults);
        }
        file_defaults
    })?;
    defaults.path = path;
    Ok(defaults)
}

/// Reads the options of one command into `defaults`.
///
/// Checks all of them. Adds only options that the user did not type, and only if this command was
/// called: `typed` holds its arguments, or `None` for another command.
fn options(
    verb: &Command,
    table: &document::Value<'_>,
    typed: Option<&ArgMatches>,
    defaults: &mut Defaults,
) {
    let Some(entries) = table.as_table() else {
        return table.fail("this is not a table", format!("expected `[{}]`", verb.get_name()));
    };
    let long_names =
        || verb.get_arguments().filter_map(clap::Arg::get_long).filter(|name| !is_excluded(name));
    for (key, value) in entries {
        let name = key.get_ref().as_ref();
        let argument = verb.get_arguments().find(|argument| argument.get_long() == Some(name));
        let Some(argument) = argument.filter(|_| !is_excluded(name)) else {
            let suggestion = nearest(name, long_names())
                .map(|suggestion| format!(": did you mean `{suggestion}`?"));
            let message = format!("`towpath {}` has no option `--{name}`", verb.get_name());
            let suggestion = suggestion.unwrap_or_default();
            table.fail_at(&key.span(), message, format!("expected a long option{suggestion}"));
            continue;
        };
        let is_switch = !matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
        let value = table.nested(name, key.span(), value);
        let Some(values) = option_arguments(&value, is_switch) else { continue };
        let is_typed = |typed: &ArgMatches| {
            typed.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        if typed.is_none_or(is_typed) {
            continue;
        }
        let shown = |value| if is_switch { name.to_owned() } else { format!("{name} = {value}") };
        let cli_argument =
            |value| if is_switch { format!("--{name}") } else { format!("--{name}={value}") };
        if !is_upload_option(name) {
            defaults.shown.extend(values.iter().map(shown));
        }
        defaults.arguments.extend(values.iter().map(cli_argument));
    }
}

/// Returns true for options that do not affect a run, so that its result does not record them.
fn is_upload_option(name: &str) -> bool {
    matches!(name, "to" | "token-file" | "ca")
}

/// Returns true for options that cannot have a default: `--no-config`, and those that print and
/// exit.
fn is_excluded(name: &str) -> bool {
    matches!(name, "no-config" | "help" | "version")
}

/// Returns the arguments that a value stands for; `None` if the value is invalid, which is
/// reported.
fn option_arguments(value: &document::Value<'_>, is_switch: bool) -> Option<Vec<String>> {
    if is_switch {
        return match value.as_bool() {
            Some(true) => Some(vec![String::new()]),
            Some(false) => Some(Vec::new()),
            None => {
                value.fail("this option has no value", "expected `true` or `false`");
                None
            }
        };
    }
    let text_of = |value: &document::Value<'_>| {
        let text = value.as_str().map(str::to_owned).or_else(|| value.as_number());
        if text.is_none() {
            value.fail("this is not an option value", "expected a text or a number");
        }
        text
    };
    if value.is_list() {
        return value.list("").unwrap_or_default().iter().map(text_of).collect();
    }
    text_of(value).map(|argument| vec![argument])
}
