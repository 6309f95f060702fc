//! `towpath agent walk`: one mobile round now, started by the owner of the device.
//!
//! A walk makes a round that the campaign plans, earlier or later than its planned time (see
//! [`next_walk_step`]). It has the checks, the journal and the reports of `towpath agent run`.

#[cfg(test)]
mod fixtures;
mod progress;
mod summary;

use std::io::{BufRead, Write as _};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use towpath_campaign::{
    AddressFamily, Campaign, CampaignMode, CampaignState, OutcomeState, PublicKey,
};
use towpath_os::clock::unix_us;
use towpath_os::interrupt;
use towpath_result::Warning;
use towpath_result::format;
use towpath_result::format::number::date;
use towpath_result::format::text::clean;

use super::consent::confirm;
use super::offers::{RefusedOffer, verify};
use super::reporting::AgentEnd;
use super::round::{MeasuredRun, RunMaker, interfaces_of_family};
use super::schedule::{KnownCampaign, Participant, WalkRound, WalkStep, next_walk_step};
use crate::error::CliError;
use crate::ui::{Ui, wrap};
use crate::upload::{DeviceFile, UploadState};

use progress::WalkProgress;
use summary::{WalkSummary, span};

/// Measure how far your Wi-Fi reaches, while you walk away from it
///
/// Makes one round of a mobile campaign now: the one that is due, or the next one up to 23 hours
/// early. Shows what will be measured and sent, and asks. All transports run at the same time, until
/// the first network is lost or changes, the longest duration has passed, or you press Ctrl-C. The
/// result then counts as well. It is uploaded as by `towpath agent run`, which does not repeat the
/// round. Exit code 1 if you do not agree, or if a run has no valid result.
#[derive(Debug, Args)]
pub(super) struct WalkArguments {
    /// Name of the mobile campaign [default: the only active one]
    #[arg(value_name = "CAMPAIGN")]
    campaign: Option<String>,
    /// Start without a question
    #[arg(long)]
    yes: bool,
    /// Print the summary as one JSON object
    #[arg(short = 'J', long)]
    json: bool,
}

pub(super) fn walk(
    arguments: &WalkArguments,
    file: &DeviceFile,
    terminal: Option<&mut dyn BufRead>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let device = file.load_joined()?;
    let (maker, key) = RunMaker::open(&device, file)?;
    let maker = RunMaker { keeps_interrupted: true, ..maker };
    let participant = Participant { name: device.name, joined_us: 0 };
    let mut walk = Walk { maker, key, participant };
    walk.run(arguments, terminal, ui).or_else(|end| end.conclude(ui))
}

/// Device whose owner starts a walk.
#[derive(Debug)]
struct Walk {
    maker: RunMaker,
    key: PublicKey,
    participant: Participant,
}

impl Walk {
    fn run(
        &mut self,
        arguments: &WalkArguments,
        terminal: Option<&mut dyn BufRead>,
        ui: &mut Ui,
    ) -> Result<ExitCode, AgentEnd> {
        let name = arguments.campaign.as_deref();
        let mut known = self.campaign(name, ui)?;
        let mut round = self.next_round(&known, ui)?;
        self.maker.verify_limits(&known, &round.runs).map_err(|(_, detail)| refusal(&detail))?;
        ui.progress_lines(offer_lines(&known.campaign, &round, unix_us()));
        if !arguments.yes {
            if !is_confirmed(terminal)? {
                ui.progress("not started; nothing was measured");
                return Ok(ExitCode::from(1));
            }
            // The answer may have taken long: the campaign may be paused, or the round be over.
            known = self.campaign(Some(&known.campaign.name), ui)?;
            round = self.next_round(&known, ui)?;
        }
        interrupt::catch();
        let progress = Mutex::new(WalkProgress::default());
        let observer = |run: usize, record: &towpath_result::Record| {
            progress.lock().unwrap_or_else(PoisonError::into_inner).push(run, record)
        };
        let made = self.maker.walk(&known, &round, &observer, ui)?;
        let runs = made.map_err(|(_, detail)| refusal(&detail))?;
        // What was measured is shown in any case.
        let sent = self.maker.send_all(ui);
        let summary = self.summarize(&known.campaign, round.round, runs)?;
        print(&summary, arguments.json, ui)?;
        sent?;
        Ok(match (summary.is_interrupted(), summary.is_complete()) {
            (true, _) => ExitCode::from(130),
            (false, is_complete) => ExitCode::from(u8::from(!is_complete)),
        })
    }

    /// Fetches and verifies the campaigns. Returns the one that is meant.
    fn campaign(&mut self, name: Option<&str>, ui: &mut Ui) -> Result<KnownCampaign, AgentEnd> {
        let (state, list) = self.maker.fetch()?;
        self.participant.joined_us = u64::try_from(state.joined_us).unwrap_or_default();
        let (known, refused) = verify(&list.campaigns, &self.key);
        for RefusedOffer { number, reason } in refused {
            let text = format!("campaign {number} is refused: {reason}");
            let hint = Some("ask the operator of the collector".to_owned());
            ui.warn(&Warning { text, hint });
        }
        Ok(select(known, name, unix_us())?)
    }

    /// Notes what is over, and returns the round that a walk can make now.
    fn next_round(&mut self, known: &KnownCampaign, ui: &mut Ui) -> Result<WalkRound, CliError> {
        loop {
            let state = self.maker.journal.state();
            match next_walk_step(state, known, &self.participant, unix_us()) {
                WalkStep::Note(entry) => self.maker.journal.add([entry])?,
                WalkStep::Conclude { key, reason, detail } => {
                    self.maker.conclude_planned(&key, reason, detail, ui)?;
                }
                WalkStep::Walk(round) => return Ok(round),
                WalkStep::TooEarly { at_us, from_us } => {
                    let name = &known.campaign.name;
                    return Err(CliError::Unavailable {
                        what: format!("the next round of `{name}` is planned for {}", at(at_us)),
                        hint: format!("a walk can make it from {} on", at(from_us)),
                    });
                }
                WalkStep::NoRound => {
                    let name = &known.campaign.name;
                    return Err(CliError::Unavailable {
                        what: format!("`{name}` has no further round for this device"),
                        hint: "see the campaigns with `towpath agent plan`".to_owned(),
                    });
                }
            }
        }
    }

    fn summarize(
        &self,
        campaign: &Campaign,
        round: u32,
        runs: Vec<MeasuredRun>,
    ) -> Result<WalkSummary, CliError> {
        let upload = |run: &MeasuredRun| -> Result<Option<UploadState>, CliError> {
            match &run.state {
                OutcomeState::Stored { result } | OutcomeState::Invalid { result, .. } => {
                    self.maker.uploader.upload_state(result).map(Some)
                }
                OutcomeState::Missing { .. } => Ok(None),
            }
        };
        let uploads = runs.iter().map(upload).collect::<Result<Vec<_>, _>>()?;
        Ok(WalkSummary::new((&campaign.name, round), runs, uploads))
    }
}

/// Returns the active mobile campaign of this name, or the only one.
fn select(
    known: Vec<KnownCampaign>,
    name: Option<&str>,
    now_us: u64,
) -> Result<KnownCampaign, CliError> {
    let unavailable =
        |what: String, hint: &str| Err(CliError::Unavailable { what, hint: hint.to_owned() });
    let plan_hint = "see the campaigns with `towpath agent plan`";
    let is_active = |known: &KnownCampaign| {
        known.state == CampaignState::Active && now_us < known.campaign.end_us
    };
    let is_mobile = |known: &KnownCampaign| known.campaign.mode == CampaignMode::Mobile;
    if let Some(name) = name {
        let Some(known) = known.into_iter().find(|known| known.campaign.name == name) else {
            return unavailable(format!("the collector has no campaign `{name}`"), plan_hint);
        };
        return match (is_mobile(&known), known.state) {
            (false, _) => unavailable(
                format!("`{name}` is a stable campaign, and a walk needs a mobile one"),
                "its runs are made by `towpath agent run`",
            ),
            (true, CampaignState::Paused) => {
                unavailable(format!("`{name}` is paused"), "try it again later")
            }
            (true, _) if is_active(&known) => Ok(known),
            (true, CampaignState::Active | CampaignState::Ended) => {
                unavailable(format!("`{name}` has ended"), plan_hint)
            }
        };
    }
    let mut mobile: Vec<_> =
        known.into_iter().filter(|known| is_mobile(known) && is_active(known)).collect();
    match (mobile.pop(), mobile.is_empty()) {
        (None, _) => {
            unavailable("the collector has no active mobile campaign".to_owned(), plan_hint)
        }
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            mobile.push(last);
            let names = mobile.iter().map(|known| format!("`{}`", known.campaign.name));
            let names: Vec<_> = names.collect();
            let what = format!("there are several mobile campaigns: {}", format::list(&names));
            unavailable(what, "name one: `towpath agent walk CAMPAIGN`")
        }
    }
}

/// Returns the error of a walk that cannot begin. Its round can be made later.
fn refusal(detail: &str) -> CliError {
    CliError::Unavailable {
        what: format!("the walk cannot begin: {detail}"),
        hint: "the round is not used up; see also `towpath agent limits`".to_owned(),
    }
}

/// Asks the owner, who must be at a terminal.
fn is_confirmed(terminal: Option<&mut dyn BufRead>) -> Result<bool, CliError> {
    let Some(terminal) = terminal else {
        return Err(CliError::Unavailable {
            what: "standard input is not a terminal, so it cannot be asked for a confirmation"
                .to_owned(),
            hint: "read the text above, and confirm with `--yes`".to_owned(),
        });
    };
    Ok(confirm("start", terminal, &mut std::io::stderr())?)
}

/// Returns what a walk is about to do, for people.
fn offer_lines(campaign: &Campaign, round: &WalkRound, now_us: u64) -> Vec<String> {
    let patterns = || round.runs.iter().filter_map(|run| campaign.patterns.get(run.pattern));
    let bytes = patterns().map(|pattern| pattern.max_bytes).fold(0, u64::saturating_add);
    let duration = patterns().map(|pattern| pattern.duration).max().unwrap_or_default();
    let duration = span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    let transports: Vec<_> = round.runs.iter().map(|run| run.transport.to_string()).collect();
    let transports = format::list(&transports);
    let pattern = patterns().next().map(|pattern| pattern.name.as_str()).unwrap_or_default();
    let (number, at_us) = (round.round, round.at_us);
    let planned = if at_us > now_us {
        format!("{number}, planned for {}, is made now", at(at_us))
    } else {
        format!("{number}, due since {}", at(at_us))
    };
    let addresses = if campaign.full_addresses {
        "complete addresses"
    } else {
        "addresses shortened to network prefixes"
    };
    let rows = [
        ("walk", format!("{}: {}", campaign.name, campaign.description)),
        ("round", planned),
        ("server", "the nearest one, by the median of five pings".to_owned()),
        ("networks", networks(round)),
        (
            "traffic",
            format!(
                "{pattern} over {transports} at the same time, and datagrams over each network"
            ),
        ),
        (
            "end",
            format!(
                "when the first network is lost or changes, after {duration} at the latest, or \
                 with Ctrl-C"
            ),
        ),
        ("bytes", format!("at most {}", format::bytes(bytes))),
        (
            "sent",
            format!(
                "to the collector: times, delays, losses and bytes over each network, names and \
                 kinds of the interfaces, {addresses}, kernel version and system counters; no \
                 contents, no position"
            ),
        ),
    ];
    rows.iter().flat_map(|(label, text)| wrap(&format!("{label:8}  "), &clean(text))).collect()
}

/// Returns the interfaces that a round can use, that of the route first.
fn networks(round: &WalkRound) -> String {
    let mut names: Vec<String> = Vec::new();
    for family in AddressFamily::ALL {
        if round.runs.iter().any(|run| run.family == family) {
            names.extend(interfaces_of_family(family, true));
        }
    }
    let mut unique: Vec<String> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    if unique.is_empty() { "that of the route".to_owned() } else { format::list(&unique) }
}

fn print(summary: &WalkSummary, json: bool, ui: &mut Ui) -> Result<(), CliError> {
    if json {
        writeln!(ui.out, "{}", summary.to_json())?;
    } else {
        for line in summary.lines() {
            writeln!(ui.out, "{line}")?;
        }
    }
    ui.out.flush()?;
    Ok(())
}

/// Returns a time in microseconds since 1970 as text.
fn at(time_us: u64) -> String {
    date(time_us.saturating_mul(1_000))
}

#[cfg(test)]
mod tests;
