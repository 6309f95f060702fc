//! The consent text: how it is shown, and how the owner of the device accepts it.

use std::io::{self, BufRead, Read as _, Write};
use std::process::ExitCode;

use clap::Args;
use towpath_result::Warning;
use towpath_result::device::ConsentText;
use towpath_result::format::number::date;
use towpath_result::format::text::{clean, wrap};

use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{AcceptedConsent, CollectorUrl, DeviceClient, DeviceFile};

/// Width of the text in columns.
const COLUMNS: usize = 100;
/// Maximum length of an answer in bytes.
const MAX_ANSWER_BYTES: u64 = 1_000;

/// Show the collector's consent text, and accept a newer one
///
/// A collector stores no runs of a device whose owner has not accepted the current text. The text
/// goes to standard error.
#[derive(Debug, Args)]
pub(super) struct ConsentArguments {
    /// Version of the text that you have read and accept, instead of the question
    #[arg(long, value_name = "VERSION")]
    accept: Option<u32>,
}

/// Shows the current text. If the owner has not accepted it, asks, and sends the acceptance.
pub(super) fn renew(
    arguments: &ConsentArguments,
    file: &DeviceFile,
    (terminal, now_us): (Option<&mut dyn BufRead>, u64),
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let mut device = file.load_joined()?;
    let (url, token) = (device.collector.clone(), Some(device.token.clone()));
    let client = DeviceClient::new(url.clone(), token, device.ca.as_deref())?;
    let state = client.state()?;
    let consent = client.consent()?;
    show(&url, &consent, ui);
    verify_version(&consent, arguments.accept)?;
    let accepted = AcceptedConsent::new(&consent, now_us);
    let is_changed = accepted.sha256 != device.consent.sha256;
    // The collector's record decides: it may be older than ours after a restored backup.
    let is_known = device.consent.version == consent.version && state.consent >= consent.version;
    if is_known && !is_changed {
        let accepted_at = date(device.consent.accepted_us.saturating_mul(1_000));
        ui.progress(&format!("version {} was accepted: {accepted_at}", consent.version));
        return Ok(ExitCode::SUCCESS);
    }
    if device.consent.version == consent.version && is_changed {
        ui.warn(&Warning {
            text: format!("the text of version {} is not the accepted one", consent.version),
            hint: Some("read it again, and ask the operator about the change".to_owned()),
        });
    }
    if !is_accepted(&consent, arguments.accept, terminal, &mut io::stderr())? {
        ui.progress("not accepted; nothing was sent");
        return Ok(ExitCode::from(1));
    }
    client.accept(consent.version)?;
    device.consent = accepted;
    file.store(&device)?;
    writeln!(ui.out, "accepted version {}", consent.version)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a text to standard error, which a redirected standard output leaves visible.
pub(super) fn show(url: &CollectorUrl, consent: &ConsentText, ui: &mut Ui) {
    ui.progress_lines(lines(url, consent));
}

/// Returns the lines of a text, with its collector and its version.
fn lines(url: &CollectorUrl, consent: &ConsentText) -> Vec<String> {
    let mut lines = vec![format!("consent text of {url}, version {}:", consent.version)];
    lines.push(String::new());
    for paragraph in consent.text.trim_end().lines() {
        lines.extend(wrap(&clean(paragraph), COLUMNS));
    }
    lines.push(String::new());
    lines
}

/// Checks that `--accept` names the version of the text.
fn verify_version(consent: &ConsentText, accept: Option<u32>) -> Result<(), CliError> {
    let current = consent.version;
    match accept {
        Some(version) if version != current => Err(CliError::Unavailable {
            what: format!("`--accept` names version {version}, and the text has version {current}"),
            hint: format!("read the text above, and repeat the command with `--accept {current}`"),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Returns true if the owner accepts the text, by `--accept` or by an answer.
pub(super) fn is_accepted(
    consent: &ConsentText,
    accept: Option<u32>,
    terminal: Option<&mut dyn BufRead>,
    output: &mut dyn Write,
) -> Result<bool, CliError> {
    verify_version(consent, accept)?;
    if accept.is_some() {
        return Ok(true);
    }
    let Some(terminal) = terminal else {
        let version = consent.version;
        return Err(CliError::Unavailable {
            what: "standard input is not a terminal, so it cannot be asked for consent".to_owned(),
            hint: format!("read the text above, and repeat the command with `--accept {version}`"),
        });
    };
    Ok(confirm("accept", terminal, output)?)
}

/// Asks for a confirmation. Only `yes` is one.
pub(super) fn confirm(
    action: &str,
    terminal: &mut dyn BufRead,
    output: &mut dyn Write,
) -> io::Result<bool> {
    write!(output, "Type \"yes\" to {action}: ")?;
    output.flush()?;
    let mut answer = Vec::new();
    terminal.take(MAX_ANSWER_BYTES).read_until(b'\n', &mut answer)?;
    if !answer.ends_with(b"\n") {
        writeln!(output)?; // the answer was ended without a new line
    }
    Ok(answer.trim_ascii() == b"yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(version: u32, text: &str) -> ConsentText {
        ConsentText { version, text: text.to_owned() }
    }

    fn answer(input: &str) -> (bool, String) {
        let mut output = Vec::new();
        let mut input = input.as_bytes();
        let is_accepted =
            is_accepted(&text(2, "text"), None, Some(&mut input), &mut output).unwrap();
        (is_accepted, String::from_utf8(output).unwrap())
    }

    #[test]
    fn only_yes_accepts_a_text() {
        assert_eq!(answer("yes\n"), (true, "Type \"yes\" to accept: ".to_owned()));
        assert!(answer(" yes \r\n").0);
        for input in ["", "\n", "y\n", "YES\n", "yes please\n", "no\n", &"yes ".repeat(1_000)] {
            assert!(!answer(input).0, "{input}");
        }
        assert!(answer("").1.ends_with('\n'), "the next line begins at the left");
    }

    #[test]
    fn without_a_terminal_the_version_must_be_named() {
        let ask = |accept| is_accepted(&text(2, "text"), accept, None, &mut Vec::new());
        assert!(ask(Some(2)).unwrap());
        let error = ask(None).unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("`--accept 2`")), "{error}");
        let error = ask(Some(1)).unwrap_err();
        assert_eq!(error.to_string(), "`--accept` names version 1, and the text has version 2");
    }

    #[test]
    fn a_text_is_shown_with_its_version_and_without_commands_for_the_terminal() {
        let url = CollectorUrl::parse("https://example.org").unwrap();
        let long = "word ".repeat(40);
        let shown = lines(&url, &text(3, &format!("a\u{1b}[2Jb\r\n\n{long}\n\n")));
        assert_eq!(
            shown.get(..4).unwrap(),
            ["consent text of https://example.org, version 3:", "", "a\u{fffd}[2Jb", ""]
        );
        assert_eq!(shown.len(), 4 + 2 + 1, "{shown:?}");
        assert!(shown.iter().all(|line| line.chars().count() <= COLUMNS));
    }
}
