//! `towpath agent status` and `towpath agent results`: what the collector has of this device.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use towpath_result::Warning;
use towpath_result::device::{DeviceRun, DeviceState};
use towpath_result::format;
use towpath_result::format::number::date;
use towpath_result::format::text::{clean, cut, pad};

use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{DeviceClient, DeviceError, DeviceFile, JoinedDevice, LOCAL_HINT, Refusal};

/// Maximum width of a scenario's name in the table, in columns.
const MAX_SCENARIO_COLUMNS: usize = 40;

/// Show this device, its consent and its stored runs
///
/// Exit code 1 if the collector cannot be reached, or does not know the device any more.
#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    /// Print JSON
    #[arg(short = 'J', long)]
    json: bool,
}

/// List the stored runs of this device
#[derive(Debug, Args)]
pub(super) struct ResultsArguments {
    /// Print JSON, one line for each run
    #[arg(short = 'J', long)]
    json: bool,
}

pub(super) fn status(
    arguments: &StatusArguments,
    file: &DeviceFile,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let device = file.load_joined()?;
    let state = client(&device)?.state();
    if arguments.json {
        writeln!(ui.out, "{}", status_json(&device, &state))?;
    } else {
        for (label, value) in status_rows(&device, state.as_ref().ok()) {
            writeln!(ui.out, "{label:9}  {value}")?;
        }
    }
    ui.out.flush()?;
    match &state {
        Ok(state) => {
            if let Some(warning) = consent_warning(state) {
                ui.warn(&warning);
            }
        }
        Err(error) => ui.warn(&error_warning(error)),
    }
    Ok(ExitCode::from(u8::from(state.is_err())))
}

/// Returns true if the collector stores no further runs of the device.
const fn needs_consent(state: &DeviceState) -> bool {
    state.consent < state.current_consent
}

/// Returns the warning about a consent that is not the current one.
fn consent_warning(state: &DeviceState) -> Option<Warning> {
    // The collector ends the consent first when it deletes the runs of a device.
    let (text, hint) = match state.consent {
        _ if !needs_consent(state) => return None,
        0 => (
            "the consent is withdrawn, and the deletion of the runs has not ended".to_owned(),
            "repeat `towpath agent forget`",
        ),
        _ => (
            format!(
                "the collector has a newer consent text, version {}: it stores no further runs \
                 until you accept it",
                state.current_consent
            ),
            "read it with `towpath agent consent`",
        ),
    };
    Some(Warning { text, hint: Some(hint.to_owned()) })
}

/// Returns the warning about a state that the collector did not give.
fn error_warning(error: &DeviceError) -> Warning {
    let Refusal { text, hint } = error.refusal().clone();
    match error {
        DeviceError::UnknownToken(_) => Warning { text, hint: Some(LOCAL_HINT.to_owned()) },
        DeviceError::Unreachable(_) | DeviceError::Foreign(_) | DeviceError::Refused(_) => {
            Warning { text, hint }
        }
    }
}

/// Returns the labels and values of a status. `None` if the collector did not give its part.
fn status_rows(device: &JoinedDevice, state: Option<&DeviceState>) -> Vec<(&'static str, String)> {
    let consent = &device.consent;
    let accepted_at = date(consent.accepted_us.saturating_mul(1_000));
    let mut rows = vec![
        ("device", clean(&device.name)),
        ("collector", device.collector.to_string()),
        ("consent", format!("version {}, accepted {accepted_at}", consent.version)),
    ];
    if let Some(state) = state {
        rows.push(("current", format!("version {} of the consent text", state.current_consent)));
        rows.push(("joined", date_of(state.joined_us)));
        let (runs, size) = (format::count(state.runs, "run"), format::bytes(state.bytes));
        rows.push(("stored", format!("{runs}, {size}")));
    }
    rows
}

fn status_json(device: &JoinedDevice, state: &Result<DeviceState, DeviceError>) -> Value {
    let (status, reason) = match state {
        Ok(state) if needs_consent(state) => ("consent-needed", None),
        Ok(_) => ("active", None),
        Err(DeviceError::Unreachable(refusal)) => ("unreachable", Some(&refusal.text)),
        Err(DeviceError::UnknownToken(refusal)) => ("unknown", Some(&refusal.text)),
        Err(DeviceError::Foreign(refusal) | DeviceError::Refused(refusal)) => {
            ("refused", Some(&refusal.text))
        }
    };
    let state = state.as_ref().ok();
    json!({
        "status": status,
        "reason": reason,
        "name": device.name,
        "collector": device.collector.as_str(),
        "consent": device.consent.version,
        "consent_sha256": device.consent.sha256,
        "accepted_us": device.consent.accepted_us,
        "current_consent": state.map(|state| state.current_consent),
        "joined_us": state.map(|state| state.joined_us),
        "runs": state.map(|state| state.runs),
        "bytes": state.map(|state| state.bytes),
    })
}

pub(super) fn results(
    arguments: &ResultsArguments,
    file: &DeviceFile,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let device = file.load_joined()?;
    let client = client(&device)?;
    let (runs, total) = (client.runs()?, client.state()?.runs);
    if arguments.json {
        for run in &runs {
            writeln!(ui.out, "{}", json!(run))?;
        }
    } else if runs.is_empty() {
        ui.progress(&format!("{} has no runs of this device", device.collector));
    } else {
        for line in table(&runs) {
            writeln!(ui.out, "{line}")?;
        }
    }
    ui.out.flush()?;
    let older = total.saturating_sub(runs.len() as u64);
    if older > 0 {
        ui.progress(&format!("{} not shown", format::count(older, "older run")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines of the table of runs. The address comes last: it is the longest.
fn table(runs: &[DeviceRun]) -> Vec<String> {
    let head = ["start", "scenario", "transport", "goodput", "page"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(runs.iter().map(|run| {
        [
            date_of(run.started_us),
            cut(&clean(&run.scenario), MAX_SCENARIO_COLUMNS),
            cut(&clean(&run.transport), MAX_SCENARIO_COLUMNS),
            run.goodput_bps.map_or("-".to_owned(), format::rate),
            clean(&run.url),
        ]
    }));
    let width =
        |cell: fn(&[String; 5]) -> &str| rows.iter().map(|row| cell(row).chars().count()).max();
    let widths = [width(|[cell, ..]| cell), width(|[_, cell, ..]| cell)];
    let [start_width, scenario_width] = widths.map(Option::unwrap_or_default);
    rows.iter()
        .map(|[start, scenario, transport, goodput, page]| {
            let (start, scenario) = (pad(start, start_width), pad(scenario, scenario_width));
            format!("{start}  {scenario}  {transport:9}  {goodput:>12}  {page}")
        })
        .collect()
}

fn client(device: &JoinedDevice) -> Result<DeviceClient, CliError> {
    let (url, token) = (device.collector.clone(), Some(device.token.clone()));
    DeviceClient::new(url, token, device.ca.as_deref())
}

/// Formats microseconds since 1970.
fn date_of(time_us: i64) -> String {
    date(u64::try_from(time_us).unwrap_or_default().saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::{AcceptedConsent, CollectorUrl, OwnerLimits, Token};

    fn device() -> JoinedDevice {
        JoinedDevice {
            collector: CollectorUrl::parse("https://example.org").unwrap(),
            name: "phone".to_owned(),
            token: Token::parse("towpath_secret").unwrap(),
            ca: None,
            consent: AcceptedConsent {
                version: 1,
                sha256: "0".repeat(64),
                accepted_us: 1_790_000_000_000_000,
            },
            campaign_key: None,
            limits: OwnerLimits::default(),
        }
    }

    fn state(current_consent: u32) -> DeviceState {
        DeviceState {
            name: "phone".to_owned(),
            consent: 1,
            current_consent,
            joined_us: 1_790_000_000_000_000,
            runs: 12,
            bytes: 3_100_000,
        }
    }

    #[test]
    fn a_status_says_which_part_is_known() {
        let rows = |state| -> Vec<String> {
            status_rows(&device(), state).into_iter().map(|(_, value)| value).collect()
        };
        assert_eq!(rows(None).len(), 3);
        let all = rows(Some(&state(2)));
        assert!(all.contains(&"12 runs, 3.10 MB".to_owned()), "{all:?}");
        let refusal = Refusal { text: "no".to_owned(), hint: None };
        for (state, status) in [
            (Ok(state(1)), "active"),
            (Ok(state(2)), "consent-needed"),
            (Err(DeviceError::Unreachable(refusal.clone())), "unreachable"),
            (Err(DeviceError::UnknownToken(refusal.clone())), "unknown"),
            (Err(DeviceError::Refused(refusal)), "refused"),
        ] {
            let json = status_json(&device(), &state);
            assert_eq!(json["status"], status);
            assert_eq!(json["reason"].is_null(), state.is_ok());
            assert!(!json.to_string().contains("towpath_secret"));
        }
    }

    #[test]
    fn a_consent_that_does_not_suffice_is_named_with_the_way_out() {
        let hint =
            |consent, current| consent_warning(&DeviceState { consent, ..state(current) })?.hint;
        assert_eq!(hint(1, 1), None);
        assert_eq!(hint(2, 1), None, "the collector accepts a newer consent");
        assert!(hint(1, 2).unwrap().contains("agent consent"));
        assert!(hint(0, 1).unwrap().contains("agent forget"));
    }

    #[test]
    fn runs_of_a_collector_cannot_forge_lines_of_the_table() {
        let run = DeviceRun {
            id: "ab".to_owned(),
            url: "https://example.org/runs/ab".to_owned(),
            started_us: -1,
            scenario: "two\nlines\u{1b}[2J".to_owned(),
            transport: "mptcp".to_owned(),
            goodput_bps: Some(24e6),
        };
        let lines = table(&[run.clone(), DeviceRun { goodput_bps: None, ..run }]);
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| !line.contains(['\n', '\u{1b}'])), "{lines:?}");
        assert!(lines.iter().skip(1).all(|line| line.ends_with("  https://example.org/runs/ab")));
    }
}
