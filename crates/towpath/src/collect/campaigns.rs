//! What `towpath collect campaign` does.

use std::fs::File;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};
use towpath_campaign::{CampaignState, EXAMPLE_MOBILE, EXAMPLE_STABLE, MAX_CAMPAIGN_BYTES};
use towpath_collect::{
    AbsenceReason, AbsentRun, CampaignEntry, CampaignProgress, DeviceProgress, RunCounts, Store,
    run_to_end,
};
use towpath_os::clock::unix_us;
use towpath_result::{Warning, format};
use towpath_scenario::units::duration_text;

use super::server::{date, dir_option, store_config};
use super::{
    CampaignCommand, ChangeCampaignArguments, CreateCampaignArguments, ListCampaignsArguments,
    ShowCampaignArguments,
};
use crate::error::CliError;
use crate::ui::Ui;

/// Microseconds of a day.
const DAY_US: u64 = 86_400_000_000;

/// Carries out `towpath collect campaign`.
pub(super) fn administer(command: &CampaignCommand, ui: &mut Ui) -> Result<(), CliError> {
    match command {
        CampaignCommand::Example(arguments) => {
            let example = if arguments.mobile { EXAMPLE_MOBILE } else { EXAMPLE_STABLE };
            Ok(ui.out.write_all(example.as_bytes())?)
        }
        CampaignCommand::Create(arguments) => create(arguments, now_us(), ui),
        CampaignCommand::List(arguments) => list(arguments, now_us(), ui),
        CampaignCommand::Show(arguments) => show(arguments, now_us(), ui),
        CampaignCommand::Pause(arguments) => change(arguments, CampaignState::Paused, ui),
        CampaignCommand::Resume(arguments) => change(arguments, CampaignState::Active, ui),
        CampaignCommand::End(arguments) => change(arguments, CampaignState::Ended, ui),
    }
}

fn now_us() -> i64 {
    i64::try_from(unix_us()).unwrap_or(i64::MAX)
}

/// Formats a time in microseconds since 1970.
fn time(time_us: u64) -> String {
    date(Some(i64::try_from(time_us).unwrap_or(i64::MAX)))
}

fn state_name(state: CampaignState) -> &'static str {
    match state {
        CampaignState::Active => "active",
        CampaignState::Paused => "paused",
        CampaignState::Ended => "ended",
    }
}

/// Returns the maximum number of rounds of a device that takes part from the beginning.
fn rounds(entry: &CampaignEntry) -> u64 {
    let campaign = &entry.campaign;
    let every_us = u64::try_from(campaign.every.as_micros()).unwrap_or(u64::MAX).max(1);
    let rounds = campaign.end_us.saturating_sub(campaign.start_us).div_ceil(every_us);
    rounds.min(campaign.rounds.map_or(u64::MAX, u64::from))
}

fn create(arguments: &CreateCampaignArguments, now_us: i64, ui: &mut Ui) -> Result<(), CliError> {
    let path = &arguments.file;
    let read = |source| CliError::Read { path: path.clone(), source };
    let mut bytes = Vec::new();
    // One more byte shows that the text is too long.
    let limit = MAX_CAMPAIGN_BYTES as u64 + 1;
    File::open(path).map_err(read)?.take(limit).read_to_end(&mut bytes).map_err(read)?;
    let file_name = path.display().to_string();
    let entry = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.create_campaign(&file_name, &bytes, now_us).await
    })?;
    let campaign = &entry.campaign;
    writeln!(ui.out, "campaign         {} ({})", campaign.name, campaign.mode.name())?;
    writeln!(ui.out, "runs per round   {}", campaign.runs_per_round())?;
    let bytes = format::bytes(campaign.bytes_per_round());
    writeln!(ui.out, "bytes per round  at most {bytes}")?;
    let every = duration_text(campaign.every);
    writeln!(ui.out, "rounds           at most {}, one every {every}", rounds(&entry))?;
    writeln!(ui.out, "start            {}", time(campaign.start_us))?;
    writeln!(ui.out, "end              {}", time(campaign.end_us))?;
    if let Some(warning) = limit_warning(&entry) {
        ui.warn(&warning);
    }
    let (name, dir) = (&campaign.name, dir_option(&arguments.store));
    ui.progress(&format!("hint: `towpath collect campaign show {name}{dir}` shows the progress"));
    Ok(())
}

/// Warns if the rounds of a day can need more bytes than a device may transfer.
fn limit_warning(entry: &CampaignEntry) -> Option<Warning> {
    let campaign = &entry.campaign;
    let every_us = u64::try_from(campaign.every.as_micros()).unwrap_or(u64::MAX).max(1);
    let rounds = DAY_US.div_ceil(every_us).min(rounds(entry));
    let bytes = campaign.bytes_per_round().saturating_mul(rounds);
    (bytes > campaign.bytes_per_day).then(|| Warning {
        text: format!(
            "the rounds of a day can need {}, and `bytes-per-day` is {}",
            format::bytes(bytes),
            format::bytes(campaign.bytes_per_day)
        ),
        hint: Some("devices report the runs above the limit as missing".to_owned()),
    })
}

fn list(arguments: &ListCampaignsArguments, now_us: i64, ui: &mut Ui) -> Result<(), CliError> {
    let campaigns = run_to_end(async {
        Store::open(&store_config(&arguments.store)).await?.campaigns(now_us).await
    })?;
    if !arguments.json {
        writeln!(
            ui.out,
            "{:20} {:6} {:6} {:6} {:27} end",
            "name", "mode", "state", "every", "created"
        )?;
    }
    for entry in campaigns {
        if arguments.json {
            writeln!(ui.out, "{}", entry_json(&entry))?;
            continue;
        }
        let (mode, state) = (entry.campaign.mode.name(), state_name(entry.state));
        let (created, end) = (time(entry.created_us), time(entry.end_us));
        let (name, every) = (&entry.campaign.name, duration_text(entry.campaign.every));
        writeln!(ui.out, "{name:20} {mode:6} {state:6} {every:6} {created:27} {end}")?;
    }
    Ok(())
}

fn entry_json(entry: &CampaignEntry) -> Value {
    let CampaignEntry { campaign, created_us, state, end_us } = entry;
    json!({
        "name": campaign.name,
        "description": campaign.description,
        "mode": campaign.mode.name(),
        "state": state_name(*state),
        "created_us": created_us,
        "start_us": campaign.start_us,
        "end_us": end_us,
        "every_s": campaign.every.as_secs_f64(),
        "runs_per_round": campaign.runs_per_round(),
        "bytes_per_round": campaign.bytes_per_round(),
        "bytes_per_day": campaign.bytes_per_day,
        "rounds": rounds(entry),
    })
}

fn show(arguments: &ShowCampaignArguments, now_us: i64, ui: &mut Ui) -> Result<(), CliError> {
    let mut absent = Vec::new();
    let progress = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        let keep = |run| {
            if arguments.missing {
                absent.push(run);
            }
        };
        store.campaign_progress(&arguments.name, now_us, keep).await
    })?;
    if arguments.json {
        let absent = arguments.missing.then_some(absent);
        writeln!(ui.out, "{}", progress_json(&progress, absent.as_deref()))?;
        return Ok(());
    }
    write_progress(&progress, ui)?;
    if arguments.missing {
        write_absent(&absent, ui)?;
    }
    Ok(())
}

fn write_progress(progress: &CampaignProgress, ui: &mut Ui) -> Result<(), CliError> {
    let CampaignProgress { entry, devices } = progress;
    let campaign = &entry.campaign;
    let (mode, state) = (campaign.mode.name(), state_name(entry.state));
    writeln!(ui.out, "campaign         {} ({mode}, {state})", campaign.name)?;
    writeln!(ui.out, "created          {}", time(entry.created_us))?;
    writeln!(ui.out, "end              {}", time(entry.end_us))?;
    writeln!(ui.out, "devices          {}", devices.len())?;
    let counts = progress.counts();
    writeln!(ui.out, "planned runs     {}", counts.planned)?;
    writeln!(ui.out, "  stored         {}", counts.stored)?;
    writeln!(ui.out, "  invalid        {}", counts.invalid)?;
    writeln!(ui.out, "  missing        {}", counts.all_missing())?;
    for (reason, count) in &counts.missing {
        let name = AbsenceReason::Missing(*reason).name();
        writeln!(ui.out, "    {name:14} {count}")?;
    }
    writeln!(ui.out, "  not uploaded   {}", counts.not_uploaded)?;
    writeln!(ui.out, "  not reported   {}", counts.not_reported)?;
    if devices.is_empty() {
        return Ok(());
    }
    writeln!(ui.out)?;
    writeln!(
        ui.out,
        "{:24} {:>8} {:>8} {:>8} {:>8} {:>13} {:>13}",
        "device", "planned", "stored", "invalid", "missing", "not uploaded", "not reported"
    )?;
    for DeviceProgress { name, counts, .. } in devices {
        let missing = counts.all_missing();
        let RunCounts { planned, stored, invalid, not_uploaded, not_reported, .. } = counts;
        writeln!(
            ui.out,
            "{name:24} {planned:>8} {stored:>8} {invalid:>8} {missing:>8} {not_uploaded:>13} \
             {not_reported:>13}"
        )?;
    }
    Ok(())
}

/// Writes one line for each run, and its detail below.
fn write_absent(absent: &[AbsentRun], ui: &mut Ui) -> Result<(), CliError> {
    if absent.is_empty() {
        return Ok(());
    }
    writeln!(ui.out)?;
    writeln!(
        ui.out,
        "{:16} {:>5} {:27} {:11} {:6} {:4} {:>5} reason",
        "device", "round", "planned", "pattern", "over", "", "port"
    )?;
    for AbsentRun { device, round, at_us, run, pattern, reason, detail } in absent {
        let (at, transport) = (time(*at_us), run.transport.to_string());
        let (family, port, reason) = (run.family, run.port, reason.name());
        writeln!(
            ui.out,
            "{device:16} {round:>5} {at:27} {pattern:11} {transport:6} {family:4} {port:>5} {reason}"
        )?;
        for line in format::text::wrap(detail, 96).iter().filter(|line| !line.is_empty()) {
            writeln!(ui.out, "    {line}")?;
        }
    }
    Ok(())
}

fn counts_json(counts: &RunCounts) -> Value {
    let reasons = counts.missing.iter();
    let reasons = reasons
        .map(|(reason, count)| (AbsenceReason::Missing(*reason).name().to_owned(), json!(count)));
    json!({
        "planned": counts.planned,
        "stored": counts.stored,
        "invalid": counts.invalid,
        "missing": counts.all_missing(),
        "missing_by_reason": Value::Object(reasons.collect()),
        "not_uploaded": counts.not_uploaded,
        "not_reported": counts.not_reported,
    })
}

fn progress_json(progress: &CampaignProgress, absent: Option<&[AbsentRun]>) -> Value {
    let devices = progress.devices.iter().map(|device| {
        json!({
            "id": device.id,
            "name": device.name,
            "from_us": device.from_us,
            "until_us": device.until_us,
            "withdrawn": device.has_withdrawn,
            "counts": counts_json(&device.counts),
        })
    });
    let mut value = json!({
        "campaign": entry_json(&progress.entry),
        "counts": counts_json(&progress.counts()),
        "devices": devices.collect::<Vec<_>>(),
    });
    if let (Some(absent), Some(object)) = (absent, value.as_object_mut()) {
        let runs = absent.iter().map(|absent| {
            json!({
                "device": absent.device,
                "round": absent.round,
                "planned_us": absent.at_us,
                "run": absent.run.index,
                "pattern": absent.pattern,
                "transport": absent.run.transport.to_string(),
                "family": absent.run.family.name(),
                "port": absent.run.port,
                "reason": absent.reason.name(),
                "detail": absent.detail,
            })
        });
        object.insert("without_result".to_owned(), runs.collect());
    }
    value
}

fn change(
    arguments: &ChangeCampaignArguments,
    state: CampaignState,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let name = &arguments.name;
    run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.change_campaign(name, state, now_us()).await
    })?;
    ui.progress(&match state {
        CampaignState::Active => format!("resumed {name}"),
        CampaignState::Paused => format!("paused {name}"),
        CampaignState::Ended => format!("ended {name}"),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use towpath_campaign::{Campaign, MissingReason};

    use super::*;

    fn entry(every: &str, rounds: &str) -> CampaignEntry {
        let text = format!(
            "name = \"bulk\"\nmode = \"stable\"\nend = 1970-01-11T00:00:00Z\n\
             every = \"{every}\"\n{rounds}\ntransports = [\"tcp\"]\nfamilies = [\"ipv4\"]\n\
             bytes-per-day = \"100 MB\"\n[[patterns]]\npattern = \"bulk\"\nsize = \"40 MB\"\n"
        );
        let campaign = Campaign::parse("bulk", &text, 0).unwrap();
        let end_us = campaign.end_us;
        CampaignEntry { campaign, created_us: 0, state: CampaignState::Active, end_us }
    }

    #[test]
    fn a_campaign_of_ten_days_has_as_many_rounds_as_periods() {
        for (every, limit, expected) in
            [("24 h", "", 10), ("6 h", "", 40), ("7 h", "", 35), ("6 h", "rounds = 3", 3)]
        {
            assert_eq!(rounds(&entry(every, limit)), expected, "{every} {limit}");
        }
    }

    #[test]
    fn a_warning_says_that_the_rounds_of_a_day_need_more_bytes_than_allowed() {
        assert_eq!(limit_warning(&entry("12 h", "")), None);
        let warning = limit_warning(&entry("6 h", "")).unwrap();
        assert!(warning.text.contains("182 MB") && warning.text.contains("100 MB"), "{warning:?}");
        // Two rounds in all fit into one day.
        assert_eq!(limit_warning(&entry("6 h", "rounds = 2")), None);
    }

    #[test]
    fn the_planned_runs_are_the_sum_of_all_others_in_json() {
        let missing = [(MissingReason::NoAddress, 3), (MissingReason::Missed, 4)];
        let counts = RunCounts {
            planned: 36,
            stored: 1,
            invalid: 2,
            missing: BTreeMap::from(missing),
            not_uploaded: 8,
            not_reported: 18,
        };
        let json = counts_json(&counts);
        let sum: u64 = ["stored", "invalid", "missing", "not_uploaded", "not_reported"]
            .iter()
            .map(|name| json[name].as_u64().unwrap())
            .sum();
        assert_eq!(json["planned"], sum);
        assert_eq!(json["missing_by_reason"], json!({ "no-address": 3, "missed": 4 }));
    }
}
