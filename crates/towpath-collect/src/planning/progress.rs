//! Comparison of the plan of a campaign with the reports and results of its devices.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_campaign::{Campaign, MissingReason, OutcomeState, PlannedRound, PlannedRun};

use crate::campaign::{CampaignEntry, StoredOutcome};
use crate::device::Device;

/// Amounts of planned runs.
///
/// The number of planned runs is always the sum of all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunCounts {
    /// Runs whose time has come.
    pub planned: u64,
    /// Runs with a valid result here.
    pub stored: u64,
    /// Runs with a result here that must not be compared with others.
    pub invalid: u64,
    /// Runs of which the device reports that they have no result, by reason.
    pub missing: BTreeMap<MissingReason, u64>,
    /// Runs whose result the device has, but the collector has not.
    pub not_uploaded: u64,
    /// Runs about which the device has reported nothing.
    pub not_reported: u64,
}

impl RunCounts {
    /// Returns the number of runs that have no result, for all reasons.
    pub fn all_missing(&self) -> u64 {
        self.missing.values().sum()
    }

    /// Counts one planned run; returns the reason and the detail if its result is not here.
    fn count_run(&mut self, stored: Option<&StoredOutcome>) -> Option<(AbsenceReason, String)> {
        self.planned += 1;
        let Some(StoredOutcome { outcome, is_uploaded }) = stored else {
            self.not_reported += 1;
            return Some((AbsenceReason::NotReported, String::new()));
        };
        match &outcome.state {
            OutcomeState::Stored { .. } if *is_uploaded => self.stored += 1,
            OutcomeState::Invalid { .. } if *is_uploaded => self.invalid += 1,
            OutcomeState::Stored { result } | OutcomeState::Invalid { result, .. } => {
                self.not_uploaded += 1;
                return Some((AbsenceReason::NotUploaded, format!("result {result}")));
            }
            OutcomeState::Missing { reason, detail } => {
                *self.missing.entry(*reason).or_default() += 1;
                return Some((AbsenceReason::Missing(*reason), detail.clone()));
            }
        }
        None
    }

    pub(super) fn add(&mut self, other: &Self) {
        let Self { planned, stored, invalid, missing, not_uploaded, not_reported } = other;
        self.planned += planned;
        self.stored += stored;
        self.invalid += invalid;
        for (reason, count) in missing {
            *self.missing.entry(*reason).or_default() += count;
        }
        self.not_uploaded += not_uploaded;
        self.not_reported += not_reported;
    }
}

/// Progress of a campaign.
#[derive(Debug, Clone, PartialEq)]
pub struct CampaignProgress {
    /// The campaign.
    pub entry: CampaignEntry,
    /// Devices that take part, or did, in order of joining.
    pub devices: Vec<DeviceProgress>,
}

impl CampaignProgress {
    /// Returns the amounts of all devices.
    pub fn counts(&self) -> RunCounts {
        let mut sum = RunCounts::default();
        for device in &self.devices {
            sum.add(&device.counts);
        }
        sum
    }
}

/// Progress of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProgress {
    /// Identifier of the device's token.
    pub id: String,
    /// Name of the device.
    pub name: String,
    /// Time from which its runs count, in microseconds since 1970.
    pub from_us: u64,
    /// Time before which its planned runs count.
    pub until_us: u64,
    /// True if its owner has withdrawn the consent and deleted its results.
    pub has_withdrawn: bool,
    /// Amounts of runs.
    pub counts: RunCounts,
}

/// Reason why a planned run has no result here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsenceReason {
    /// Reason that the device reports.
    Missing(MissingReason),
    /// The device has the result, but the collector has not: it has not arrived yet, or was purged.
    NotUploaded,
    /// The device has reported nothing.
    NotReported,
}

impl AbsenceReason {
    /// Returns the name in lists, such as `no-address` or `not-reported`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing(reason) => reason.name(),
            Self::NotUploaded => "not-uploaded",
            Self::NotReported => "not-reported",
        }
    }
}

/// A planned run without a result here.
#[derive(Debug, Clone, PartialEq)]
pub struct AbsentRun {
    /// Name of the device.
    pub device: String,
    /// Round of the schedule, from 0.
    pub round: u32,
    /// Planned start of the round, in microseconds since 1970.
    pub at_us: u64,
    /// The run.
    pub run: PlannedRun,
    /// Name of its pattern.
    pub pattern: String,
    /// Reason.
    pub reason: AbsenceReason,
    /// Detail for people; may be empty.
    pub detail: String,
}

impl DeviceProgress {
    /// Returns the window in which the runs of a device count; no run is counted yet.
    ///
    /// It ends now, with the campaign, with the access of the device, or with the consent of its
    /// owner.
    pub(super) fn new(entry: &CampaignEntry, device: &Device, now_us: i64) -> Self {
        let ends = [device.token.revoked_us, device.withdrawn_us].into_iter().flatten();
        Self {
            id: device.token.id.clone(),
            name: device.token.name.clone(),
            from_us: entry.created_us.max(device.joined_us.unsigned_abs()),
            until_us: ends.fold(now_us, i64::min).unsigned_abs().min(entry.end_us),
            has_withdrawn: device.consent == 0,
            counts: RunCounts::default(),
        }
    }

    /// Returns the rounds that were planned in the window.
    pub(super) fn planned_rounds(&self, campaign: &Campaign) -> Vec<PlannedRound> {
        campaign.planned_rounds(&self.name, self.from_us, self.until_us).collect()
    }

    /// Counts the runs of some planned rounds; `outcomes` are all reported ones of these rounds.
    pub(super) fn count(
        &mut self,
        campaign: &Campaign,
        rounds: &[PlannedRound],
        outcomes: Vec<StoredOutcome>,
        on_absent: &mut impl FnMut(AbsentRun),
    ) {
        let outcomes: BTreeMap<_, _> = outcomes
            .into_iter()
            .map(|stored| ((stored.outcome.round, stored.outcome.run), stored))
            .collect();
        // Indices do not depend on the round; the order of execution does.
        let mut runs = campaign.runs(&self.name, 0);
        runs.sort_by_key(|run| run.index);
        for planned in rounds {
            for run in &runs {
                let stored = outcomes.get(&(planned.round, run.index));
                let Some((reason, mut detail)) = self.counts.count_run(stored) else { continue };
                if self.has_withdrawn {
                    "the owner has withdrawn the consent".clone_into(&mut detail);
                }
                let pattern = campaign.patterns.get(run.pattern);
                on_absent(AbsentRun {
                    device: self.name.clone(),
                    round: planned.round,
                    at_us: planned.at_us,
                    run: run.clone(),
                    pattern: pattern.map(|pattern| pattern.name.clone()).unwrap_or_default(),
                    reason,
                    detail,
                });
            }
        }
    }
}

/// Returns the start of a round on a device; `None` if the campaign does not have it.
pub(super) fn planned_us(campaign: &Campaign, device: &str, round: u32) -> Option<u64> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let begin_us = micros(campaign.every).saturating_mul(u64::from(round));
    let begin_us = begin_us.saturating_add(campaign.start_us);
    let until_us = begin_us.saturating_add(micros(campaign.jitter)).saturating_add(1);
    let mut rounds = campaign.planned_rounds(device, begin_us, until_us);
    rounds.find(|planned| planned.round == round).map(|planned| planned.at_us)
}

#[cfg(test)]
mod tests {
    use towpath_campaign::{CampaignState, Outcome};

    use super::*;
    use crate::access::{Role, Token};

    const HOUR_US: u64 = 3_600_000_000;
    const CREATED_US: u64 = 500_000 * HOUR_US;
    const RESULT: &str = "0123456789abcdef0123";

    /// Campaign with a round of two runs at each full hour.
    fn entry() -> CampaignEntry {
        let text = "name = \"hourly\"\nmode = \"stable\"\nend = 2030-01-01T00:00:00Z\n\
                    every = \"1 h\"\njitter = \"0 s\"\ntransports = [\"tcp\", \"mptcp\"]\n\
                    families = [\"ipv4\"]\nbytes-per-day = \"1 GB\"\n\
                    [[patterns]]\npattern = \"ping\"\n";
        let campaign = Campaign::parse("hourly", text, CREATED_US).unwrap();
        let end_us = campaign.end_us;
        CampaignEntry { campaign, created_us: CREATED_US, state: CampaignState::Active, end_us }
    }

    /// Device that joined half an hour after the creation.
    fn device() -> Device {
        let joined_us = (CREATED_US + HOUR_US / 2).cast_signed();
        let token = Token {
            id: "1".to_owned(),
            name: "ada".to_owned(),
            role: Role::Device,
            created_us: joined_us,
            used_us: None,
            revoked_us: None,
        };
        let (version, platform) = (String::new(), String::new());
        let withdrawn_us = None;
        Device { token, consent: 1, version, platform, joined_us, withdrawn_us, runs: 0, bytes: 0 }
    }

    fn hours(hours: u64) -> i64 {
        (CREATED_US + hours * HOUR_US).cast_signed()
    }

    fn planned(entry: &CampaignEntry, device: &Device, now_us: i64) -> u64 {
        let mut progress = DeviceProgress::new(entry, device, now_us);
        let rounds = progress.planned_rounds(&entry.campaign);
        progress.count(&entry.campaign, &rounds, Vec::new(), &mut |_| {});
        progress.counts.planned
    }

    #[test]
    fn runs_count_from_joining_until_now_or_the_end_of_the_campaign_access_or_consent() {
        let (entry, device) = (entry(), device());
        // The round at the time of creation is before the device joined.
        assert_eq!(planned(&entry, &device, hours(1)), 0);
        assert_eq!(planned(&entry, &device, hours(1) + 1), 2);
        assert_eq!(planned(&entry, &device, hours(10) + 1), 20);
        let ended = CampaignEntry { end_us: hours(4).unsigned_abs(), ..entry.clone() };
        assert_eq!(planned(&ended, &device, hours(10)), 6);
        let withdrawn = Device { withdrawn_us: Some(hours(3)), consent: 0, ..device.clone() };
        assert_eq!(planned(&entry, &withdrawn, hours(10)), 4);
        let token = Token { revoked_us: Some(hours(2)), ..device.token };
        assert_eq!(planned(&entry, &Device { token, ..withdrawn }, hours(10)), 2);
    }

    #[test]
    fn every_planned_run_is_counted_once_and_listed_unless_its_result_is_here() {
        let (entry, device) = (entry(), device());
        let (result, detail) = (RESULT.to_owned(), "why".to_owned());
        let reason = MissingReason::NoServer;
        let states = [
            OutcomeState::Stored { result: result.clone() },
            OutcomeState::Invalid { result, detail: detail.clone() },
            OutcomeState::Missing { reason, detail },
        ];
        // Outcomes of the rounds 0 to 29; those of round 0 were not planned for this device.
        let outcomes = (0..60_u32).filter(|number| number % 7 != 0).map(|number| {
            let (round, run) = (number / 2, number % 2);
            let state = states[number as usize % 3].clone();
            let campaign = "hourly".to_owned();
            let outcome = Outcome { campaign, round, run, state, at_us: 0 };
            StoredOutcome { outcome, is_uploaded: number % 5 != 0 }
        });
        let outcomes: Vec<_> = outcomes.collect();
        let mut absent = Vec::new();
        let mut progress = DeviceProgress::new(&entry, &device, hours(20) + 1);
        let rounds = progress.planned_rounds(&entry.campaign);
        progress.count(&entry.campaign, &rounds, outcomes, &mut |run| absent.push(run));
        let counts = &progress.counts;
        let RunCounts { planned, stored, invalid, not_uploaded, not_reported, .. } = *counts;
        assert_eq!(planned, 40);
        // Numbers 2 to 41: 14, 13 and 13 of each state; those of 7, 14, 21, 28 and 35 are lacking.
        assert_eq!((not_reported, counts.missing[&reason]), (5, 12));
        assert_eq!(stored + invalid + counts.all_missing() + not_uploaded + not_reported, planned);
        assert_eq!(absent.len() as u64, planned - stored - invalid);
        let first = &absent[0];
        assert_eq!((first.round, first.run.index, first.reason.name()), (1, 0, "no-server"));
        assert_eq!((first.pattern.as_str(), first.detail.as_str()), ("ping", "why"));
        let of_device = progress.clone();
        let sum = CampaignProgress { entry, devices: vec![progress, of_device] }.counts();
        assert_eq!((sum.planned, sum.missing[&reason]), (80, 24));
    }

    #[test]
    fn names_of_reasons_are_those_of_the_reports() {
        for reason in ["owner-limit", "no-address", "missed", "interrupted", "failed"] {
            let value = serde_json::Value::String(reason.to_owned());
            let parsed: MissingReason = serde_json::from_value(value).unwrap();
            assert_eq!(AbsenceReason::Missing(parsed).name(), reason);
        }
    }

    #[test]
    fn any_round_number_has_a_time_within_the_campaign_or_none() {
        let campaign = entry().campaign;
        assert_eq!(planned_us(&campaign, "ada", 0), Some(CREATED_US));
        assert_eq!(planned_us(&campaign, "ada", 7), Some(CREATED_US + 7 * HOUR_US));
        for every in [campaign.every, Duration::from_secs(366 * 86_400)] {
            let campaign = Campaign { every, ..campaign.clone() };
            assert_eq!(planned_us(&campaign, "ada", u32::MAX), None);
        }
        let limited = Campaign { rounds: Some(7), ..campaign };
        assert_eq!(planned_us(&limited, "ada", 7), None);
    }
}
