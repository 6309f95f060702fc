//! Suggestions for wrong command lines: an addition to clap's message for options of other tools
//! and for missing arguments.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use towpath_result::format::text::escape;

use crate::load::is_scenario;
use crate::ui::wrap;

/// Verbs that other systems do not have.
const LINUX_VERBS: [&str; 9] =
    ["lab", "on", "setup", "exec", "server", "measure", "check", "doctor", "monitor"];

/// Suggestions for options of other tools and earlier versions: commands, options, and the
/// replacement.
static SUGGESTIONS: [(&[&str], &[&str], &str); 30] = [
    (
        &["measure"],
        &["-u", "--udp"],
        "use the pattern `udp`: `towpath measure HOST udp -b 10M`; `udping` probes each path",
    ),
    (
        &["measure"],
        &["-c", "--client"],
        "give the server without an option: `towpath measure HOST`",
    ),
    (&["measure"], &["-s", "--server"], "use `towpath server` for iperf3 -s"),
    (
        &["measure"],
        &["-m", "--mptcp", "--multipath"],
        "Multipath TCP is the default: `-T tcp,mptcp` compares both",
    ),
    (&["measure"], &["-O", "--omit"], "the report shows the first seconds; none are omitted"),
    (&["measure"], &["-f", "--format"], "every value has its unit; `--json` prints plain numbers"),
    (
        &["measure"],
        &["-V", "--verbose"],
        "the report contains this; its name is printed at the end",
    ),
    (
        &["measure"],
        &["-d", "-r", "--dualtest", "--tradeoff"],
        "use `--bidir` for both directions at the same time, or `-R` for the other one",
    ),
    (&["measure"], &["-Z", "--zerocopy"], "use `--skip-rx-copy` for the receiver"),
    (&["server"], &["-s"], "`towpath server` always listens"),
    (
        &["server"],
        &["-D", "--daemon"],
        "the server runs in the foreground: append `&`, or run it as a service",
    ),
    (&["server"], &["-i", "--interval"], "the client prints the metrics: `towpath measure -i 1`"),
    (
        &["run", "compare", "sweep", "reproduce"],
        &["-w"],
        "use `-W sim` or `--world sim`; `-w` is the socket buffer of `towpath measure`",
    ),
    (
        &["run", "compare"],
        &["-n", "--runs", "--count"],
        "use `-r 5` or `--repeat 5`; `-n` is a number of bytes in `towpath measure`",
    ),
    (&["run", "compare"], &["-R", "--reverse"], "write `--set flows.direction=down`"),
    (&["run", "compare"], &["-P", "--parallel"], "write `--set flows.streams=4`"),
    (&["run", "compare"], &["-b", "--bitrate", "--rate"], "write `--set paths.*.rate=10Mbit/s`"),
    (&["run", "compare"], &["--delay", "--latency"], "write `--set paths.*.delay=30ms`"),
    (&["run", "compare"], &["--loss"], "write `--set paths.*.loss=1%`"),
    (
        &["run", "compare"],
        &["--cc", "--congestion"],
        "write `-C NAME` or `--congestion-control NAME`",
    ),
    (&["sweep", "reproduce"], &["-n", "-r", "--repeat"], "use `--seeds 5`: each seed is a run"),
    (&["monitor"], &["-n", "-c"], "use `--count 3` for the number of samples"),
    (&["monitor"], &["-t", "--time", "--duration"], "use `--count 3` to end after some samples"),
    (&["trace"], &["-i"], "write `--interface any`; `-i` is the interval in `towpath measure`"),
    (&["trace"], &["-w"], "use `--write FILE`; `-w` is the socket buffer of `towpath measure`"),
    (&["trace"], &["-r", "--read"], "give the file without an option: `towpath trace FILE`"),
    (&["doctor"], &["-c", "-p", "--host", "--server"], "give the server: `--connect HOST:PORT`"),
    (&["check", "doctor"], &["-t", "--time", "--duration"], "it ends by itself within seconds"),
    (&["setup"], &["-i", "--interface"], "use `--dev IF` for interfaces"),
    (&["report"], &["--html"], "it always writes a page; `--out FILE` sets its name"),
];

/// Command names of other tools, with the command here that replaces them.
static COMMAND_ALIASES: [(&[&str], &str); 10] = [
    (&["sim", "simulate"], "`towpath run SCENARIO --world sim`"),
    (&["emu", "emulate", "start"], "`towpath run SCENARIO`"),
    (&["client", "iperf", "iperf3", "ping", "bench"], "`towpath measure HOST`"),
    (&["list", "ls"], "`towpath scenarios`"),
    (&["show", "cat", "validate"], "`towpath scenarios show NAME`, `towpath scenarios check FILE`"),
    (&["version"], "`towpath --version`"),
    (&["shell", "sh", "netns"], "`towpath lab SCENARIO`"),
    (&["pcap", "capture", "dump", "analyze", "analyse"], "`towpath trace FILE`"),
    (&["push", "send", "submit"], "`towpath upload RESULT --to URL`"),
    (&["diff", "plot", "html"], "`towpath compare RESULT…`, `towpath report RESULT`"),
];

/// Returns the lines of the message for a command line that `command` rejects.
///
/// Clap quotes arguments without escapes, in a text of several lines. It therefore gets them again,
/// escaped. If it accepts them so, the whole text becomes one line.
pub(crate) fn explain(
    error: clap::Error,
    command: clap::Command,
    arguments: &[OsString],
) -> Vec<String> {
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let escaped_words: Vec<_> = words.iter().map(|word| escape(word).into_owned()).collect();
    let is_harmless = words.iter().zip(&escaped_words).all(|(word, escaped)| word == escaped);
    let error = if is_harmless {
        error
    } else {
        match command.try_get_matches_from(&escaped_words) {
            Err(escaped_error) => escaped_error,
            Ok(_) => return vec![error.render().to_string().trim_end().to_owned()],
        }
    };
    let words = escaped_words.get(1..).unwrap_or_default();
    let text = error.render().to_string();
    let text = match hint(&error, words) {
        Some(hint) => with_hint(&text, &hint),
        None => text,
    };
    text.trim_end_matches('\n').split('\n').map(str::to_owned).collect()
}

/// Returns clap's text with our hint as second paragraph, instead of clap's own tips.
fn with_hint(text: &str, hint: &str) -> String {
    let paragraphs = text.split("\n\n").filter(|part| !part.trim_start().starts_with("tip:"));
    let mut paragraphs: Vec<String> = paragraphs.map(str::to_owned).collect();
    paragraphs.insert(1.min(paragraphs.len()), wrap("hint: ", hint).join("\n"));
    paragraphs.join("\n\n")
}

fn hint(error: &clap::Error, words: &[String]) -> Option<String> {
    let verb = words.iter().find(|word| !word.starts_with('-')).map_or("", String::as_str);
    let context_text = |kind| match error.get(kind) {
        Some(ContextValue::String(context_text)) => Some(context_text.as_str()),
        Some(_) | None => None,
    };
    if error.kind() == ErrorKind::InvalidSubcommand {
        let typed = context_text(ContextKind::InvalidSubcommand)?;
        if is_scenario(typed) {
            return Some(format!("write `towpath run {typed}`"));
        }
        if cfg!(not(target_os = "linux")) && LINUX_VERBS.contains(&typed) {
            return Some(format!("`towpath {typed}` exists on Linux only"));
        }
        let (_, replacement) =
            COMMAND_ALIASES.iter().find(|(aliases, _)| aliases.contains(&typed))?;
        return Some(format!("there is {replacement}"));
    }
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return missing_argument(verb, error);
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let typed = context_text(ContextKind::InvalidArg)?;
    let option = typed.split(['=', ' ']).next().unwrap_or(typed);
    let suggestion = SUGGESTIONS
        .iter()
        .find(|(verbs, options, _)| verbs.contains(&verb) && options.contains(&option));
    suggestion
        .map(|(.., replacement)| (*replacement).to_owned())
        .or_else(|| unexpected_argument(verb, typed, words))
}

/// Returns a suggestion for an unexpected argument.
fn unexpected_argument(verb: &str, typed: &str, words: &[String]) -> Option<String> {
    let suggest_dashes = |command: &str| {
        let typed_index = words.iter().position(|word| word == typed)?;
        let program_words = words.get(typed_index..)?.join(" ");
        Some(format!("put `--` before the program: `towpath {command}-- {program_words}`"))
    };
    match verb {
        "exec" => suggest_dashes("exec "),
        "lab" if !words.iter().any(|word| word == "--") => {
            let scenario = words.iter().skip(1).find(|word| !word.starts_with('-'))?;
            suggest_dashes(&format!("lab {scenario} "))
        }
        "doctor" if !typed.starts_with('-') => {
            Some(format!("write `towpath doctor --connect {typed}`"))
        }
        "run" if !typed.starts_with('-') => {
            Some("give one scenario; use `-T tcp,mptcp` for transports".to_owned())
        }
        "measure" if !typed.starts_with('-') => {
            Some("give one pattern; set its keys with `--set KEY=VALUE`".to_owned())
        }
        "check" if !typed.starts_with('-') => {
            Some("give one host; use `-p 5210,443` for its ports".to_owned())
        }
        _ => None,
    }
}

/// Returns a suggestion for a missing argument.
fn missing_argument(verb: &str, error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_scenario = names.iter().any(|name| name.contains("SCENARIO"));
    match verb {
        "run" | "compare" | "lab" if is_scenario => {
            Some("a file, or a built-in one: `towpath scenarios` lists them".to_owned())
        }
        "check" => Some("give a host, such as one that runs `towpath server`".to_owned()),
        "report" => Some("give a result or folder in `towpath-results`".to_owned()),
        "sweep" => {
            Some("`towpath sweep example > plan.toml` writes a plan to start from".to_owned())
        }
        "trace" => Some("give a capture, or `--interface any`".to_owned()),
        _ => None,
    }
}
