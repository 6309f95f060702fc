use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use towpath_campaign::{EXAMPLE_MOBILE, EXAMPLE_STABLE, OutcomeState};

use super::*;
use crate::agent::journal::missing;

const HOUR_US: u64 = 3_600_000_000;
/// Start of the simulated time.
const START_US: u64 = 1_800_000_000_000_000;

fn device() -> Participant {
    Participant { name: "phone".to_owned(), joined_us: START_US }
}

fn known(text: &str, state: CampaignState) -> KnownCampaign {
    KnownCampaign { campaign: Campaign::parse("campaign", text, START_US).unwrap(), state }
}

fn stable(state: CampaignState) -> KnownCampaign {
    known(EXAMPLE_STABLE, state)
}

/// Device whose steps take no time except for runs.
#[derive(Debug, Default)]
struct SimulatedDevice {
    /// Bytes of the journal on disk.
    disk: Vec<u8>,
    state: JournalState,
    /// Executions of each run that sent its first packet.
    executed: BTreeMap<RunKey, u32>,
    /// Outcomes of each run.
    outcomes: BTreeMap<RunKey, Vec<OutcomeState>>,
}

impl SimulatedDevice {
    fn add(&mut self, entry: JournalEntry) {
        let mut line = serde_json::to_vec(&entry).unwrap();
        line.push(b'\n');
        self.disk.extend(line);
        if let JournalEntry::End { outcome, .. } = &entry {
            let outcomes = self.outcomes.entry(RunKey::of(outcome)).or_default();
            outcomes.push(outcome.state.clone());
        }
        self.state.apply(entry);
    }

    fn end(&mut self, key: &RunKey, state: OutcomeState) {
        self.add(JournalEntry::End { outcome: key.outcome(state, 0), bytes: 0 });
    }

    /// Makes steps until nothing is due. Runs take `run_us`. Returns the time of the next round.
    fn work(&mut self, campaigns: &[KnownCampaign], now_us: &mut u64, run_us: u64) -> Option<u64> {
        for _ in 0..100_000 {
            match next_step(&self.state, campaigns, &device(), *now_us) {
                NextStep::Note(entry) => self.add(entry),
                NextStep::Conclude { key, reason, detail } => {
                    self.end(&key, missing(reason, detail));
                }
                NextStep::Measure { campaign, round, until_us, runs } => {
                    assert!(*now_us < until_us && !runs.is_empty());
                    let campaign = &campaigns[campaign].campaign.name;
                    let key = |run: &PlannedRun| RunKey {
                        campaign: campaign.clone(),
                        round,
                        run: run.index,
                    };
                    let keys: Vec<_> = runs.iter().map(key).collect();
                    for key in &keys {
                        self.add(JournalEntry::Begin { key: key.clone(), day: 0, bytes: 0 });
                    }
                    for key in &keys {
                        *self.executed.entry(key.clone()).or_default() += 1;
                    }
                    *now_us += run_us;
                    for key in keys {
                        self.end(&key, OutcomeState::Stored { result: "ab".to_owned() });
                    }
                }
                NextStep::Wait(until_us) => {
                    assert!(until_us.is_none_or(|until_us| until_us > *now_us));
                    return until_us;
                }
            }
        }
        panic!("the device never waits");
    }

    fn count(&self, is_meant: impl Fn(&OutcomeState) -> bool) -> usize {
        self.outcomes.values().flatten().filter(|state| is_meant(state)).count()
    }
}

fn is_missing(state: &OutcomeState, expected: MissingReason) -> bool {
    matches!(state, OutcomeState::Missing { reason, .. } if *reason == expected)
}

fn is_stored(state: &OutcomeState) -> bool {
    matches!(state, OutcomeState::Stored { .. })
}

/// Checks that each planned run until a time has exactly one outcome, and was made at most once.
fn verify(simulated: &SimulatedDevice, campaign: &Campaign, until_us: u64) {
    let planned: BTreeSet<_> = campaign
        .planned_rounds("phone", START_US, until_us)
        .flat_map(|planned| (0..campaign.runs_per_round()).map(move |run| (planned.round, run)))
        .collect();
    let found: BTreeSet<_> = simulated.outcomes.keys().map(|key| (key.round, key.run)).collect();
    assert_eq!(found, planned);
    assert!(simulated.outcomes.values().all(|outcomes| outcomes.len() == 1));
    assert!(simulated.executed.values().all(|count| *count == 1));
}

#[test]
fn weeks_of_rounds_are_made_on_time() {
    let (campaigns, mut device) = ([stable(CampaignState::Active)], SimulatedDevice::default());
    let (mut now_us, until_us) = (START_US, START_US + 3 * 7 * 24 * HOUR_US);
    while now_us < until_us {
        let next = device.work(&campaigns, &mut now_us, 5_000_000).unwrap();
        now_us = next.min(until_us);
    }
    verify(&device, &campaigns[0].campaign, until_us);
    assert_eq!(device.count(is_stored), device.outcomes.len());
    assert!(device.outcomes.len() >= 3 * 7 * 4 * 35);
}

#[test]
fn a_pause_stops_rounds_and_a_device_that_was_off_reports_missed_ones() {
    let mut device = SimulatedDevice::default();
    let mut now_us = START_US;
    let mut until = |device: &mut SimulatedDevice, state, hours: u64| {
        let campaigns = [stable(state)];
        let until_us = now_us + hours * HOUR_US;
        while now_us < until_us {
            now_us = device.work(&campaigns, &mut now_us, 1_000).unwrap().min(until_us);
        }
        now_us
    };
    until(&mut device, CampaignState::Active, 24);
    until(&mut device, CampaignState::Paused, 24);
    let now_us = until(&mut device, CampaignState::Active, 24);
    verify(&device, &stable(CampaignState::Active).campaign, now_us);
    let runs = stable(CampaignState::Active).campaign.runs_per_round() as usize;
    let stopped = device.count(|state| is_missing(state, MissingReason::Stopped));
    assert!((3 * runs..=5 * runs).contains(&stopped), "{stopped}");
    // Off for two days.
    let mut later_us = now_us + 48 * HOUR_US;
    device.work(&[stable(CampaignState::Active)], &mut later_us, 1_000);
    let missed = device.count(|state| is_missing(state, MissingReason::Missed));
    assert!((6 * runs..=8 * runs).contains(&missed), "{missed}");
    verify(&device, &stable(CampaignState::Active).campaign, later_us);
}

#[test]
fn a_campaign_that_is_stopped_during_a_round_makes_no_further_run() {
    let mut device = SimulatedDevice::default();
    let mut now_us = START_US + 12 * HOUR_US;
    let active = [stable(CampaignState::Active)];
    for _ in 0..100 {
        if let NextStep::Note(entry) = next_step(&device.state, &active, &self::device(), now_us) {
            device.add(entry);
        }
        if device.state.open_rounds().next().is_some() {
            break;
        }
    }
    for campaigns in [&[stable(CampaignState::Paused)][..], &[stable(CampaignState::Ended)], &[]] {
        let step = next_step(&device.state, campaigns, &self::device(), START_US + HOUR_US);
        let NextStep::Conclude { reason, .. } = step else { panic!("{step:?}") };
        assert_eq!(reason, MissingReason::Stopped);
    }
    device.work(&[stable(CampaignState::Paused)], &mut now_us, 1);
    assert!(device.executed.is_empty());
}

#[test]
fn a_clock_that_is_set_back_repeats_no_round() {
    let (campaigns, mut device) = ([stable(CampaignState::Active)], SimulatedDevice::default());
    let mut now_us = START_US + 30 * HOUR_US;
    device.work(&campaigns, &mut now_us, 1_000);
    let executed = device.executed.clone();
    for back in 1..=30 {
        let mut earlier_us = now_us - back * HOUR_US;
        device.work(&campaigns, &mut earlier_us, 1_000);
    }
    assert_eq!(device.executed, executed);
    device.work(&campaigns, &mut now_us, 1_000);
    verify(&device, &campaigns[0].campaign, now_us);
}

#[test]
fn the_rest_of_an_interrupted_mobile_session_is_not_made_later() {
    let campaigns = [known(EXAMPLE_MOBILE, CampaignState::Active)];
    let mut device = SimulatedDevice::default();
    let mut now_us = START_US + 3 * HOUR_US;
    while device.state.open_rounds().next().is_none() {
        let step = next_step(&device.state, &campaigns, &self::device(), now_us);
        let NextStep::Note(entry) = step else { panic!("{step:?}") };
        device.add(entry);
    }
    let step = next_step(&device.state, &campaigns, &self::device(), now_us);
    let NextStep::Measure { runs, round, .. } = step else { panic!("{step:?}") };
    assert_eq!(runs.len(), 2);
    let key = RunKey { campaign: "mobile-1".to_owned(), round, run: runs[0].index };
    device.add(JournalEntry::Begin { key, day: 0, bytes: 0 });
    device.work(&campaigns, &mut now_us, 1);
    let interrupted = device.count(|state| is_missing(state, MissingReason::Interrupted));
    assert_eq!((interrupted, device.executed.len()), (2, 0));
}

#[test]
fn years_of_missed_rounds_are_reported_up_to_a_limit() {
    let text = EXAMPLE_STABLE.replace("\"6 h\"", "\"1 min\"").replace("\"1 h\"", "\"10 s\"");
    let text = text.replace("bytes-per-day = \"1 GB\"", "bytes-per-day = \"9 GB\"");
    let campaigns = [known(&text, CampaignState::Active)];
    let mut device = SimulatedDevice::default();
    let mut now_us = START_US + 60 * 24 * HOUR_US;
    device.work(&campaigns, &mut now_us, 1);
    let missed = device.count(|state| is_missing(state, MissingReason::Missed));
    assert!((5_000..=11_000).contains(&missed), "{missed}");
    assert!(device.count(is_stored) <= 36);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The process is killed at any byte of the journal, several times.
    #[test]
    fn a_killed_agent_repeats_no_run_and_forgets_none(
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..4), is_mobile: bool,
    ) {
        let text = if is_mobile { EXAMPLE_MOBILE } else { EXAMPLE_STABLE };
        let campaigns = [known(text, CampaignState::Active)];
        let mut device = SimulatedDevice::default();
        let mut now_us = START_US + 8 * HOUR_US;
        for cut in cuts {
            device.work(&campaigns, &mut now_us, 1_000_000);
            let length = cut.index(device.disk.len() + 1);
            device = restart(&device.disk[..length]);
        }
        device.work(&campaigns, &mut now_us, 1_000_000);
        verify(&device, &campaigns[0].campaign, now_us);
    }
}

/// Returns the device as it was when the disk had these bytes, after its restart.
fn restart(disk: &[u8]) -> SimulatedDevice {
    let state = JournalState::parse(disk).unwrap();
    let complete = disk.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut device =
        SimulatedDevice { disk: disk[..complete].to_vec(), state, ..SimulatedDevice::default() };
    for line in disk[..complete].split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice(line).unwrap() {
            // The first packet may have left since the line was complete.
            JournalEntry::Begin { key, .. } => *device.executed.entry(key).or_default() += 1,
            JournalEntry::End { outcome, .. } => {
                device.outcomes.entry(RunKey::of(&outcome)).or_default().push(outcome.state);
            }
            JournalEntry::Round { .. }
            | JournalEntry::Handled { .. }
            | JournalEntry::Pending { .. }
            | JournalEntry::Reported { .. }
            | JournalEntry::Used { .. } => {}
        }
    }
    device
}

/// Simulated owner who walks whenever it is possible.
fn walk(device_state: &mut SimulatedDevice, known: &KnownCampaign, now_us: u64) -> WalkStep {
    for _ in 0..1_000 {
        match next_walk_step(&device_state.state, known, &device(), now_us) {
            WalkStep::Note(entry) => device_state.add(entry),
            WalkStep::Conclude { key, reason, detail } => {
                device_state.end(&key, missing(reason, detail));
            }
            step @ (WalkStep::Walk(_) | WalkStep::TooEarly { .. } | WalkStep::NoRound) => {
                return step;
            }
        }
    }
    panic!("the walk never begins");
}

/// Carries out a walk; with `is_killed`, its process ends in the middle.
fn carry_out(device: &mut SimulatedDevice, name: &str, round: &WalkRound, is_killed: bool) {
    let key =
        |run: &PlannedRun| RunKey { campaign: name.to_owned(), round: round.round, run: run.index };
    if let Some(entry) = round.entry.clone() {
        device.add(entry);
    }
    for run in &round.runs {
        device.add(JournalEntry::Begin { key: key(run), day: 0, bytes: 0 });
        *device.executed.entry(key(run)).or_default() += 1;
    }
    for run in round.runs.iter().filter(|_| !is_killed) {
        device.end(&key(run), OutcomeState::Stored { result: "ab".to_owned() });
    }
}

#[test]
fn a_walk_makes_the_due_round_then_the_next_one_at_most_a_day_early() {
    let known = known(EXAMPLE_MOBILE, CampaignState::Active);
    let (campaigns, mut simulated) = ([known.clone()], SimulatedDevice::default());
    let first = known.campaign.planned_rounds("phone", START_US, u64::MAX).next().unwrap();
    let mut now_us = first.at_us + HOUR_US;
    for number in 0..2 {
        let WalkStep::Walk(round) = walk(&mut simulated, &known, now_us) else { panic!() };
        assert_eq!((round.round, round.runs.len()), (first.round + number, 2));
        carry_out(&mut simulated, "mobile-1", &round, false);
        let next = simulated.work(&campaigns, &mut now_us, 1_000).unwrap();
        assert!(next > now_us, "the agent does not repeat the round");
        now_us = next - 22 * HOUR_US;
    }
    let now_us = now_us - 3 * HOUR_US;
    let WalkStep::TooEarly { at_us, from_us } = walk(&mut simulated, &known, now_us) else {
        panic!()
    };
    assert_eq!(at_us - from_us, 23 * HOUR_US);
    assert!(from_us > now_us);
}

#[test]
fn a_campaign_that_has_not_begun_or_has_no_round_left_has_no_walk() {
    let mut later = known(EXAMPLE_MOBILE, CampaignState::Active);
    later.campaign.start_us = START_US + HOUR_US;
    let mut simulated = SimulatedDevice::default();
    let step = walk(&mut simulated, &later, START_US);
    assert!(matches!(step, WalkStep::TooEarly { from_us, .. } if from_us == START_US + HOUR_US));
    later.campaign.rounds = Some(0);
    assert_eq!(walk(&mut simulated, &later, START_US), WalkStep::NoRound);
}

#[test]
fn an_early_round_that_did_not_begin_is_made_at_its_time_and_delays_no_other() {
    let known_mobile = known(EXAMPLE_MOBILE, CampaignState::Active);
    let campaigns = [known_mobile.clone(), stable(CampaignState::Active)];
    let (mut simulated, mut now_us) = (SimulatedDevice::default(), START_US);
    let WalkStep::Walk(round) = walk(&mut simulated, &known_mobile, now_us) else { panic!() };
    assert!(round.at_us > now_us);
    simulated.add(round.entry.clone().unwrap());
    while now_us <= round.at_us {
        let next = simulated.work(&campaigns, &mut now_us, 1_000).unwrap();
        let is_made = simulated.executed.keys().any(|key| key.campaign == "mobile-1");
        assert_eq!(is_made, now_us >= round.at_us, "{now_us}");
        now_us = next;
    }
    let stable_runs = simulated.executed.keys().filter(|key| key.campaign == "stable-1").count();
    assert!(stable_runs > 0 || round.at_us < START_US + HOUR_US);
}

proptest! {
    #[test]
    fn walks_and_their_crashes_change_the_outcome_of_no_other_round(
        pauses in proptest::collection::vec((0_u64..30, any::<bool>(), any::<bool>()), 1..12),
    ) {
        let known = known(EXAMPLE_MOBILE, CampaignState::Active);
        let (campaigns, mut simulated) = ([known.clone()], SimulatedDevice::default());
        let mut now_us = START_US;
        for (hours, walks, is_killed) in pauses {
            let until_us = now_us + hours * HOUR_US;
            while now_us < until_us {
                let next = simulated.work(&campaigns, &mut now_us, 1_000);
                now_us = next.unwrap().min(until_us);
            }
            if walks && let WalkStep::Walk(round) = walk(&mut simulated, &known, now_us) {
                carry_out(&mut simulated, "mobile-1", &round, is_killed);
            }
        }
        // All planned runs have their outcome once the last walked round is over.
        let until_us = now_us + 60 * HOUR_US;
        while now_us < until_us {
            now_us = simulated.work(&campaigns, &mut now_us, 1_000).unwrap().min(until_us);
        }
        verify(&simulated, &known.campaign, until_us);
    }
}
