//! Next step of a device: a pure function of journal, campaigns and time.

use towpath_campaign::{Campaign, CampaignMode, CampaignState, MissingReason, PlannedRun};

use super::journal::{JournalEntry, JournalState, OpenRound, RunKey};

/// Maximum number of runs that a device reports as missed at once. The collector lists older ones
/// by itself.
const MAX_MISSED_RUNS: u64 = 10_000;

/// Verified campaign with its state on the collector.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KnownCampaign {
    pub(super) campaign: Campaign,
    pub(super) state: CampaignState,
}

/// Device for which runs are planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Participant {
    pub(super) name: String,
    /// Time of joining in microseconds since 1970.
    pub(super) joined_us: u64,
}

/// Next step of a device.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NextStep {
    /// Adds an entry to the journal: a round is due, or old ones are left out.
    Note(JournalEntry),
    /// A run gets no result.
    Conclude { key: RunKey, reason: MissingReason, detail: &'static str },
    /// Runs of a round are due: one in stable mode, all in mobile mode.
    Measure { campaign: usize, round: u32, until_us: u64, runs: Vec<PlannedRun> },
    /// Nothing is due before this time in microseconds since 1970; `None` without a further round.
    Wait(Option<u64>),
}

/// Returns the next step at a time in microseconds since 1970.
pub(super) fn next_step(
    journal: &JournalState,
    campaigns: &[KnownCampaign],
    device: &Participant,
    now_us: u64,
) -> NextStep {
    if let Some((key, _)) = journal.running() {
        let (key, reason) = (key.clone(), MissingReason::Interrupted);
        return NextStep::Conclude { key, reason, detail: "the agent was killed during the run" };
    }
    // The older of two open rounds comes first.
    if let Some((name, open)) = journal.open_rounds().min_by_key(|(_, open)| open.at_us) {
        return continue_round((name, open), campaigns, device, now_us);
    }
    let next = campaigns.iter().filter_map(|known| {
        let campaign = &known.campaign;
        let (handled, from_us) = match journal.handled(&campaign.name) {
            Some((round, at_us)) => (Some(round), at_us),
            None => (None, 0),
        };
        let mut rounds =
            campaign.planned_rounds(&device.name, from_us.max(device.joined_us), u64::MAX);
        let next = rounds.find(|planned| handled.is_none_or(|handled| planned.round > handled))?;
        Some((next, campaign))
    });
    let Some((next, campaign)) = next.min_by_key(|(next, _)| next.at_us) else {
        return NextStep::Wait(None);
    };
    if next.at_us > now_us {
        return NextStep::Wait(Some(next.at_us));
    }
    let (every_us, runs) = (every_us(campaign), campaign.runs_per_round());
    // Only rounds that exist can be missed.
    let passed = (now_us.min(campaign.end_us).saturating_sub(next.at_us)) / every_us;
    let left = campaign.rounds.map_or(u64::MAX, |rounds| (rounds - 1 - next.round).into());
    let missed = passed.min(left);
    let max_missed = (MAX_MISSED_RUNS / u64::from(runs.max(1))).max(1);
    let name = campaign.name.clone();
    if missed > max_missed {
        let skipped = u32::try_from(missed - max_missed).unwrap_or(u32::MAX);
        let round = next.round.saturating_add(skipped - 1);
        // The jitter may move the round by at most one period, so its time is not known exactly.
        let at_us = next.at_us;
        return NextStep::Note(JournalEntry::Handled { campaign: name, round, at_us });
    }
    let (round, at_us) = (next.round, next.at_us);
    let until_us = at_us.saturating_add(every_us);
    NextStep::Note(JournalEntry::Round { campaign: name, round, at_us, until_us, runs })
}

/// Returns the next step in a round that has begun.
fn continue_round(
    (name, open): (&str, &OpenRound),
    campaigns: &[KnownCampaign],
    device: &Participant,
    now_us: u64,
) -> NextStep {
    let first = (0..open.runs).find(|run| !open.done.contains(run)).unwrap_or_default();
    let conclude = |run: u32, reason, detail| {
        let key = RunKey { campaign: name.to_owned(), round: open.round, run };
        NextStep::Conclude { key, reason, detail }
    };
    if now_us >= open.until_us {
        return conclude(first, MissingReason::Missed, "the period of the round has passed");
    }
    let find = |known: &&KnownCampaign| known.campaign.name == name;
    let Some((index, known)) = campaigns.iter().enumerate().find(|(_, known)| find(known)) else {
        return conclude(first, MissingReason::Stopped, "the campaign is not offered any more");
    };
    match known.state {
        CampaignState::Active if now_us < known.campaign.end_us => {}
        CampaignState::Active | CampaignState::Ended => {
            return conclude(first, MissingReason::Stopped, "the campaign has ended");
        }
        CampaignState::Paused => {
            return conclude(first, MissingReason::Stopped, "the campaign is paused");
        }
    }
    let planned = known.campaign.runs(&device.name, open.round);
    let mut left: Vec<_> =
        planned.into_iter().filter(|run| !open.done.contains(&run.index)).collect();
    match known.campaign.mode {
        // The runs must start together, so the rest cannot be made later.
        CampaignMode::Mobile if !open.done.is_empty() => {
            return conclude(first, MissingReason::Interrupted, "the session was interrupted");
        }
        CampaignMode::Mobile => {}
        CampaignMode::Stable => left.truncate(1),
    }
    if left.is_empty() {
        return conclude(first, MissingReason::Failed, "the campaign has changed");
    }
    let (round, until_us) = (open.round, open.until_us);
    NextStep::Measure { campaign: index, round, until_us, runs: left }
}

fn every_us(campaign: &Campaign) -> u64 {
    u64::try_from(campaign.every.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests;
