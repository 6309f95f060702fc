//! Reference page of all commands, generated from the command line's own definition.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

const INTRODUCTION: &str = "# Commands\n\n\
    *For users of the command line. Assumes nothing. Options that all commands share are explained \
    in [command line](command-line.md).*\n\n\
    This page has the text of `towpath COMMAND --help`. Made by `towpath schema commands`; do not \
    edit.\n\n| command | purpose |\n|---|---|\n";

/// Returns the page as Markdown, with a section for each subcommand.
pub(crate) fn markdown(mut command: Command) -> String {
    command.build();
    let mut verbs = Vec::new();
    collect_verbs(&command, "towpath", &mut verbs);
    let mut page = INTRODUCTION.to_owned();
    for (name, verb) in &verbs {
        let anchor = name.replace(' ', "-");
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(page, "| [`{name}`](#{anchor}) | {} |", cell(&about));
    }
    for (name, verb) in &verbs {
        section(&mut page, name, verb);
    }
    page
}

/// Collects all visible subcommands, depth first.
fn collect_verbs(command: &Command, prefix: &str, verbs: &mut Vec<(String, Command)>) {
    let is_shown = |verb: &&Command| !verb.is_hide_set() && verb.get_name() != "help";
    for verb in command.get_subcommands().filter(is_shown) {
        let name = format!("{prefix} {}", verb.get_name());
        verbs.push((name.clone(), verb.clone()));
        collect_verbs(verb, &name, verbs);
    }
}

fn section(page: &mut String, name: &str, verb: &Command) {
    let about = verb.get_long_about().or(verb.get_about()).map(ToString::to_string);
    let usage = verb.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace("\n       ", "\n");
    let _ = write!(
        page,
        "\n## `{name}`\n\n{}\n\n```text\n{}\n```\n",
        about.unwrap_or_default().trim(),
        usage.trim()
    );
    let is_shown = |argument: &&Arg| !argument.is_hide_set() && argument.get_id() != "help";
    let arguments: Vec<&Arg> = verb.get_arguments().filter(is_shown).collect();
    if arguments.is_empty() {
        return;
    }
    page.push_str("\n| option | meaning |\n|---|---|\n");
    for argument in arguments {
        let _ = writeln!(page, "| {} | {} |", syntax(argument), meaning(argument));
    }
}

/// Returns the argument as it is typed, such as `` `-T`, `--transport LIST` ``.
fn syntax(argument: &Arg) -> String {
    let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(clap::builder::Str::as_str).collect::<Vec<_>>().join(" ");
    let Some(long) = argument.get_long() else { return format!("`{value}`") };
    let long = if takes_value && !value.is_empty() {
        let is_optional = argument.get_num_args().is_some_and(|range| range.min_values() == 0);
        let value = if is_optional { format!("[={value}]") } else { format!(" {value}") };
        format!("`--{long}{value}`")
    } else {
        format!("`--{long}`")
    };
    match argument.get_short() {
        Some(short) => format!("`-{short}`, {long}"),
        None => long,
    }
}

/// Returns the help of an argument with its values and its default, for a table cell.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    // Paragraphs become sentences of one line.
    let help = help.map(ToString::to_string).unwrap_or_default();
    let paragraphs = help.split("\n\n").map(|paragraph| paragraph.trim_end_matches('.'));
    let mut text = paragraphs.collect::<Vec<_>>().join(". ");
    let is_flag = !argument.get_action().takes_values();
    let values = argument.get_possible_values();
    let shown: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set() && !is_flag)
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !shown.is_empty() {
        let _ = write!(text, ". One of {}", shown.join(", "));
    }
    let default = argument.get_default_values();
    if !is_flag && !default.is_empty() {
        let words: Vec<_> = default.iter().map(|value| value.to_string_lossy()).collect();
        let _ = write!(text, " [default: {}]", words.join(" "));
    }
    cell(&text)
}

/// Returns the text in one line, without what would end a table cell or begin markup.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out = String::with_capacity(line.len());
    for (index, part) in line.split('`').enumerate() {
        if index > 0 {
            out.push('`');
        }
        let escaped = part.replace('|', "\\|");
        // Outside code, a bare `*` or `<` would be markup.
        let is_code = index % 2 == 1;
        out.push_str(&if is_code {
            escaped
        } else {
            escaped.replace('<', "\\<").replace('*', "\\*")
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Arguments;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_reference_page_is_current() {
        let page = include_str!("../../../docs/reference/commands.md");
        assert!(
            page == markdown(Arguments::command()),
            "run `towpath schema commands > docs/reference/commands.md`"
        );
    }

    #[test]
    fn cells_stay_cells() {
        assert_eq!(cell("a | b\n  `c|d` *e* <f>"), "a \\| b `c\\|d` \\*e\\* \\<f>");
    }

    #[test]
    fn values_and_defaults_are_listed() {
        let argument = Arg::new("x")
            .long("world")
            .short('W')
            .value_name("LIST")
            .action(ArgAction::Set)
            .value_parser(["sim", "emu"])
            .default_value("sim")
            .help("World");
        assert_eq!(syntax(&argument), "`-W`, `--world LIST`");
        assert_eq!(meaning(&argument), "World. One of `sim`, `emu` [default: sim]");
    }
}
