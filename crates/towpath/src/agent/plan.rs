//! `towpath agent plan`: what the collector's campaigns plan for this device.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use towpath_campaign::{Campaign, CampaignMode, CampaignState, PlannedRound, PlannedRun};
use towpath_os::clock::unix_us;
use towpath_result::Warning;
use towpath_result::format;
use towpath_result::format::number::date;
use towpath_result::format::text::{clean, cut, wrap};
use towpath_scenario::Transport;

use super::journal::{Journal, JournalState, day_of};
use super::offers::{RefusedOffer, campaign_key, verify};
use super::round::{interfaces_of_family, verify_interfaces};
use super::schedule::{KnownCampaign, Participant};
use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{DeviceClient, DeviceFile, OwnerLimits};

/// Width of the output in columns.
const COLUMNS: usize = 100;

/// Show what the collector's campaigns plan for this device
///
/// Shows the runs of each campaign's next round, their maximum bytes, and which of them the owner's
/// limits refuse. Nothing is measured. Exit code 1 if a campaign does not have the signature of the
/// collector.
#[derive(Debug, Args)]
pub(super) struct PlanArguments {
    /// Print JSON, one line for each campaign
    #[arg(short = 'J', long)]
    json: bool,
}

/// Next round of a campaign.
#[derive(Debug)]
struct RoundPlan {
    planned: PlannedRound,
    /// Runs in order, each with its maximum bytes and the reason why the owner's limits refuse it.
    runs: Vec<(PlannedRun, u64, Option<String>)>,
}

pub(super) fn plan(
    arguments: &PlanArguments,
    file: &DeviceFile,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let device = file.load_joined()?;
    let key = campaign_key(&device, file)?;
    let (url, token) = (device.collector.clone(), Some(device.token.clone()));
    let client = DeviceClient::new(url, token, device.ca.as_deref())?;
    let joined_us = u64::try_from(client.state()?.joined_us).unwrap_or_default();
    let participant = Participant { name: device.name.clone(), joined_us };
    let list = client.campaigns()?;
    let (known, refused) = verify(&list.campaigns, &key);
    let (journal, now_us) = (Journal::peek(file), unix_us());
    for known in &known {
        let round = next_round(known, &participant, (&journal, &device.limits), now_us);
        if arguments.json {
            writeln!(ui.out, "{}", to_json(known, round.as_ref()))?;
            continue;
        }
        for line in lines(known, round.as_ref()) {
            writeln!(ui.out, "{line}")?;
        }
    }
    if arguments.json {
        for RefusedOffer { number, reason } in &refused {
            writeln!(
                ui.out,
                "{}",
                json!({ "campaign": null, "number": number, "refused": reason })
            )?;
        }
    }
    ui.out.flush()?;
    if known.is_empty() && refused.is_empty() {
        ui.progress("the collector has no campaign for this device");
    }
    for RefusedOffer { number, reason } in &refused {
        ui.warn(&Warning {
            text: format!("campaign {number} is refused: {reason}"),
            hint: Some("ask the operator of the collector".to_owned()),
        });
    }
    Ok(ExitCode::from(u8::from(!refused.is_empty())))
}

/// Returns the next round that is not handled, with what the owner's limits refuse.
fn next_round(
    known: &KnownCampaign,
    device: &Participant,
    (journal, limits): (&JournalState, &OwnerLimits),
    now_us: u64,
) -> Option<RoundPlan> {
    let campaign = &known.campaign;
    let handled = journal.handled(&campaign.name).map(|(round, _)| round);
    let every_us = u64::try_from(campaign.every.as_micros()).unwrap_or(u64::MAX);
    // A round of the current period is still made.
    let from_us = now_us.saturating_sub(every_us).max(device.joined_us);
    let planned = campaign
        .planned_rounds(&device.name, from_us, u64::MAX)
        .find(|planned| handled.is_none_or(|handled| planned.round > handled))?;
    let at_us = planned.at_us.max(now_us);
    let mut used = journal.used(day_of(at_us), None);
    let runs = campaign.runs(&device.name, planned.round).into_iter().filter_map(|run| {
        let pattern = campaign.patterns.get(run.pattern)?;
        let is_mobile = campaign.mode == CampaignMode::Mobile;
        let bytes = pattern.max_bytes;
        let is_multipath = matches!(run.transport, Transport::Mptcp | Transport::Mpquic);
        let interfaces = interfaces_of_family(run.family, is_multipath || is_mobile);
        let refusal = limits
            .verify_time(at_us, pattern.duration)
            .and_then(|()| limits.verify_bytes(used, bytes))
            .and_then(|()| verify_interfaces(limits, &interfaces))
            .err();
        if refusal.is_none() {
            used = used.saturating_add(bytes);
        }
        Some((run, bytes, refusal))
    });
    Some(RoundPlan { planned, runs: runs.collect() })
}

const fn state_name(state: CampaignState) -> &'static str {
    match state {
        CampaignState::Active => "active",
        CampaignState::Paused => "paused",
        CampaignState::Ended => "ended",
    }
}

/// Returns a time in microseconds since 1970 as text.
fn time_text(time_us: u64) -> String {
    date(time_us.saturating_mul(1_000))
}

/// Returns the pattern of a run with its keys.
fn pattern_text(campaign: &Campaign, run: &PlannedRun) -> String {
    let Some(pattern) = campaign.patterns.get(run.pattern) else { return String::new() };
    let keys = pattern.keys.iter().map(|(key, value)| format!(" {key}={value}"));
    clean(&format!("{}{}", pattern.name, keys.collect::<String>()))
}

/// Returns the lines of a campaign.
fn lines(known: &KnownCampaign, round: Option<&RoundPlan>) -> Vec<String> {
    let KnownCampaign { campaign, state } = known;
    let (state, mode) = (state_name(*state), campaign.mode.name());
    let mut lines = vec![format!("{} ({mode}, {state})", campaign.name)];
    for paragraph in campaign.description.lines() {
        let wrapped = wrap(&clean(paragraph), COLUMNS - 2);
        lines.extend(wrapped.into_iter().map(|line| format!("  {line}")));
    }
    let (end, per_day) = (time_text(campaign.end_us), format::bytes(campaign.bytes_per_day));
    lines.push(format!("  until {end}, at most {per_day} per day"));
    let Some(round) = round else {
        lines.push("  no further round for this device".to_owned());
        return lines;
    };
    let total = round.runs.iter().map(|(_, bytes, _)| *bytes).fold(0, u64::saturating_add);
    let (number, at) = (round.planned.round, time_text(round.planned.at_us));
    let count = format::count(round.runs.len() as u64, "run");
    lines.push(format!("  round {number} at {at}: {count}, at most {}", format::bytes(total)));
    for (run, bytes, refusal) in &round.runs {
        let PlannedRun { index, transport, family, port, .. } = run;
        let (transport, bytes) = (transport.to_string(), format::bytes(*bytes));
        let pattern = pattern_text(campaign, run);
        let line =
            format!("  {index:>4}  {transport:6}  {family}  {port:>5}  {bytes:>8}  {pattern}");
        lines.push(cut(&line, COLUMNS));
        let refused = refusal.iter().flat_map(|reason| wrap(&format!("refused: {reason}"), 90));
        lines.extend(refused.map(|line| format!("        {line}")));
    }
    lines
}

fn to_json(known: &KnownCampaign, round: Option<&RoundPlan>) -> Value {
    let KnownCampaign { campaign, state } = known;
    let runs = |round: &RoundPlan| -> Vec<Value> {
        let run = |(run, bytes, refusal): &(PlannedRun, u64, Option<String>)| {
            let pattern = campaign.patterns.get(run.pattern);
            let keys = pattern.map(|pattern| {
                let keys = pattern.keys.iter();
                keys.map(|(key, value)| (key.clone(), Value::from(value.as_str())))
                    .collect::<serde_json::Map<_, _>>()
            });
            json!({
                "run": run.index,
                "pattern": pattern.map(|pattern| &pattern.name),
                "keys": keys,
                "transport": run.transport,
                "family": run.family,
                "port": run.port,
                "max_bytes": bytes,
                "refused": refusal,
            })
        };
        round.runs.iter().map(run).collect()
    };
    json!({
        "campaign": campaign.name,
        "description": campaign.description,
        "mode": campaign.mode.name(),
        "state": state,
        "end_us": campaign.end_us,
        "bytes_per_day": campaign.bytes_per_day,
        "round": round.map(|round| round.planned.round),
        "at_us": round.map(|round| round.planned.at_us),
        "max_bytes": round.map(|round| {
            round.runs.iter().map(|(_, bytes, _)| *bytes).fold(0, u64::saturating_add)
        }),
        "runs": round.map(runs),
    })
}
