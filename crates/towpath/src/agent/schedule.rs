//! Next step of a device: a pure function of journal, campaigns and time.

use std::slice;
use std::time::Duration;

use towpath_campaign::{
    Campaign, CampaignMode, CampaignState, MissingReason, PlannedRound, PlannedRun,
};

use super::journal::{JournalEntry, JournalState, OpenRound, RunKey};

/// Maximum number of runs that a device reports as missed at once. The collector lists older ones
/// by itself.
const MAX_MISSED_RUNS: u64 = 10_000;
/// Time by which a walk may precede its planned round. The collector accepts outcomes of rounds up
/// to one day ahead of its own clock; the rest is for clocks that differ.
const MAX_WALK_LEAD: Duration = Duration::from_hours(23);

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
    // The older of two open rounds comes first. One that a walk has opened early, and whose runs
    // have not begun, is made at its time.
    let oldest = journal.open_rounds().min_by_key(|(_, open)| open.at_us);
    if let Some((name, open)) = oldest.filter(|(_, open)| open.at_us <= now_us) {
        return continue_round((name, open), campaigns, device, now_us);
    }
    let is_open = |name: &str| journal.open_rounds().any(|(open, _)| open == name);
    let next = campaigns.iter().map(|known| &known.campaign).filter_map(|campaign| {
        let next = next_round(journal, campaign, device)?;
        (!is_open(&campaign.name)).then_some((next, campaign))
    });
    let next = next.min_by_key(|(next, _)| next.at_us);
    if let Some((next, campaign)) = next.filter(|(next, _)| next.at_us <= now_us) {
        return NextStep::Note(open_or_skip(campaign, next, now_us));
    }
    let opened_us = oldest.map(|(_, open)| open.at_us);
    NextStep::Wait(next.map(|(next, _)| next.at_us).into_iter().chain(opened_us).min())
}

/// Returns the first round of a campaign that is not handled; `None` without a further round.
fn next_round(
    journal: &JournalState,
    campaign: &Campaign,
    device: &Participant,
) -> Option<PlannedRound> {
    let (handled, from_us) = match journal.handled(&campaign.name) {
        Some((round, at_us)) => (Some(round), at_us),
        None => (None, 0),
    };
    let mut rounds = campaign.planned_rounds(&device.name, from_us.max(device.joined_us), u64::MAX);
    rounds.find(|planned| handled.is_none_or(|handled| planned.round > handled))
}

/// Returns the entry that opens a round, or that leaves out old ones if there are too many.
fn open_or_skip(campaign: &Campaign, next: PlannedRound, now_us: u64) -> JournalEntry {
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
        return JournalEntry::Handled { campaign: name, round, at_us };
    }
    let (round, at_us) = (next.round, next.at_us);
    let until_us = at_us.saturating_add(every_us);
    JournalEntry::Round { campaign: name, round, at_us, until_us, runs }
}

/// Step towards a walk: a mobile round that the owner starts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum WalkStep {
    /// Adds an entry to the journal: old rounds are over.
    Note(JournalEntry),
    /// A run gets no result.
    Conclude { key: RunKey, reason: MissingReason, detail: &'static str },
    /// A round can be made now.
    Walk(WalkRound),
    /// The next round is planned at `at_us`, and a walk can make it from `from_us` on.
    TooEarly { at_us: u64, from_us: u64 },
    /// The campaign has no further round for the device.
    NoRound,
}

/// Round that a walk makes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WalkRound {
    pub(super) round: u32,
    /// Planned start in microseconds since 1970, which may be in the future.
    pub(super) at_us: u64,
    /// End of the period in microseconds since 1970.
    pub(super) until_us: u64,
    pub(super) runs: Vec<PlannedRun>,
    /// Entry that opens the round in the journal; `None` if it is open.
    pub(super) entry: Option<JournalEntry>,
}

/// Returns the next step towards a walk of a mobile campaign at a time in microseconds since 1970.
///
/// A walk makes the first round that is not handled: the one whose period has begun, or the next
/// one up to [`MAX_WALK_LEAD`] early. So every planned run still has exactly one outcome.
pub(super) fn next_walk_step(
    journal: &JournalState,
    known: &KnownCampaign,
    device: &Participant,
    now_us: u64,
) -> WalkStep {
    if let Some((key, _)) = journal.running() {
        let (key, reason) = (key.clone(), MissingReason::Interrupted);
        return WalkStep::Conclude { key, reason, detail: "the agent was killed during the run" };
    }
    let campaign = &known.campaign;
    if let Some((name, open)) = journal.open_rounds().find(|(name, _)| *name == campaign.name) {
        let at_us = open.at_us;
        return match continue_round((name, open), slice::from_ref(known), device, now_us) {
            NextStep::Note(entry) => WalkStep::Note(entry),
            NextStep::Conclude { key, reason, detail } => {
                WalkStep::Conclude { key, reason, detail }
            }
            NextStep::Measure { round, until_us, runs, .. } => {
                WalkStep::Walk(WalkRound { round, at_us, until_us, runs, entry: None })
            }
            NextStep::Wait(_) => WalkStep::NoRound,
        };
    }
    let Some(next) = next_round(journal, campaign, device) else { return WalkStep::NoRound };
    let lead_us = u64::try_from(MAX_WALK_LEAD.as_micros()).unwrap_or(u64::MAX);
    let from_us = next.at_us.saturating_sub(lead_us).max(campaign.start_us);
    if now_us < from_us {
        return WalkStep::TooEarly { at_us: next.at_us, from_us };
    }
    let entry = open_or_skip(campaign, next, now_us);
    match &entry {
        JournalEntry::Round { round, at_us, until_us, .. } if now_us < *until_us => {
            let (round, at_us, until_us) = (*round, *at_us, *until_us);
            let runs = campaign.runs(&device.name, round);
            WalkStep::Walk(WalkRound { round, at_us, until_us, runs, entry: Some(entry) })
        }
        JournalEntry::Round { .. }
        | JournalEntry::Handled { .. }
        | JournalEntry::Begin { .. }
        | JournalEntry::End { .. }
        | JournalEntry::Pending { .. }
        | JournalEntry::Reported { .. }
        | JournalEntry::Used { .. } => WalkStep::Note(entry),
    }
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
