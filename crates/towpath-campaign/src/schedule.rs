//! Schedule of a campaign: rounds, their times on a device, and the runs of a round.
//!
//! Times and orders are drawn from a hash of campaign, device and round. So a device and its
//! collector agree on them without messages.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use towpath_result::OrderKind;
use towpath_result::order::run_order;

use crate::document::{Campaign, CampaignMode};
use crate::pattern::PlannedRun;

/// One round of a campaign on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRound {
    /// Number of the round, from 0.
    pub round: u32,
    /// Start in microseconds since 1970.
    pub at_us: u64,
}

impl Campaign {
    /// Returns the rounds of a device that start at or after `from_us` and before `until_us`, both in
    /// microseconds since 1970.
    pub fn planned_rounds(
        &self,
        device: &str,
        from_us: u64,
        until_us: u64,
    ) -> impl Iterator<Item = PlannedRound> {
        let (every, jitter) = (micros(self.every).max(1), micros(self.jitter));
        // The jitter is at most the period, so earlier rounds start before `from_us`.
        let earliest = from_us.saturating_sub(self.start_us).saturating_sub(jitter) / every;
        let first = u32::try_from(earliest).unwrap_or(u32::MAX);
        let rounds = self.rounds.unwrap_or(u32::MAX);
        let until_us = until_us.min(self.end_us);
        let start_us = self.start_us;
        let begins_us = move |round: u32| start_us.saturating_add(every * u64::from(round));
        (first..rounds)
            .take_while(move |round| begins_us(*round) < until_us)
            .map(move |round| {
                let delay_us = draw(&self.name, device, round) % (jitter + 1);
                PlannedRound { round, at_us: begins_us(round).saturating_add(delay_us) }
            })
            .filter(move |planned| (from_us..until_us).contains(&planned.at_us))
    }

    /// Returns the runs of a round on a device, in order of execution.
    ///
    /// In stable mode, the transports of each pattern, family and port are in random order. In
    /// mobile mode, all runs start at the same time.
    pub fn runs(&self, device: &str, round: u32) -> Vec<PlannedRun> {
        let seed = draw(&self.name, device, round);
        let mut runs = Vec::new();
        for (pattern, target) in self.targets() {
            let transports: Vec<_> = (0..).zip(target.transports).collect();
            let order = match self.mode {
                CampaignMode::Stable => OrderKind::Random,
                CampaignMode::Mobile => OrderKind::Fixed,
            };
            let first = runs.len() as u32;
            let seed = seed.wrapping_add(u64::from(first));
            for (_, (offset, transport), _) in run_order(&transports, 1, order, seed) {
                let transport = *transport;
                let index: u32 = first + offset;
                let (family, port) = (target.family, target.port);
                runs.push(PlannedRun { index, pattern, transport, family, port });
            }
        }
        runs
    }

    /// Returns the number of runs in a round.
    pub fn runs_per_round(&self) -> u32 {
        self.targets().map(|(_, target)| target.transports.len() as u32).sum()
    }

    /// Returns the bytes that a round can need at most.
    pub fn bytes_per_round(&self) -> u64 {
        let bytes = self.patterns.iter().map(|pattern| {
            let places = pattern.families.len() * pattern.ports.len() * pattern.transports.len();
            pattern.max_bytes.saturating_mul(places as u64)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the bytes that a device may reserve on a test server in a day: those of
    /// `bytes-per-day`, or of all rounds of a day if these reserve more than they use.
    pub fn reservable_bytes_per_day(&self) -> u64 {
        const DAY_US: u64 = 86_400_000_000;
        let rounds = DAY_US.div_ceil(micros(self.every).max(1)) + 1;
        let rounds = rounds.min(self.rounds.unwrap_or(u32::MAX).into());
        self.bytes_per_round().saturating_mul(rounds).max(self.bytes_per_day)
    }

    /// Returns each combination of pattern, family and port.
    fn targets(&self) -> impl Iterator<Item = (usize, TestTarget<'_>)> {
        self.patterns.iter().enumerate().flat_map(|(index, pattern)| {
            let families = pattern.families.iter();
            families.flat_map(move |family| {
                pattern.ports.iter().map(move |port| {
                    let transports = pattern.transports.as_slice();
                    (index, TestTarget { family: *family, port: *port, transports })
                })
            })
        })
    }
}

/// Family and port of some runs.
#[derive(Debug, Clone, Copy)]
struct TestTarget<'a> {
    family: crate::AddressFamily,
    port: u16,
    transports: &'a [towpath_scenario::Transport],
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a number that campaign, device and round determine.
fn draw(campaign: &str, device: &str, round: u32) -> u64 {
    let digest = Sha256::digest(format!("{campaign}\n{round}\n{device}"));
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::document::{EXAMPLE_MOBILE, EXAMPLE_STABLE};

    const HOUR_US: u64 = 3_600_000_000;

    fn stable() -> Campaign {
        Campaign::parse("example", EXAMPLE_STABLE, 1_700_000_000_000_000).unwrap()
    }

    #[test]
    fn every_combination_is_one_run_with_a_fixed_index() {
        let campaign = stable();
        let runs = campaign.runs("ada", 3);
        assert_eq!(runs.len() as u32, campaign.runs_per_round());
        // ping: 2 families, 2 ports; bulk and interactive: 2 families; iperf: 1 family.
        assert_eq!(runs.len(), 4 * (4 + 2 + 1 + 2));
        let indices: BTreeSet<_> = runs.iter().map(|run| run.index).collect();
        assert_eq!(indices, (0..runs.len() as u32).collect());
        let key = |run: &PlannedRun| (run.pattern, run.transport.to_string(), run.family, run.port);
        let places: BTreeSet<_> = runs.iter().map(key).collect();
        assert_eq!(places.len(), runs.len());
        // Another round has the same indices in another order.
        let mut other = campaign.runs("ada", 4);
        assert_ne!(other, runs);
        let (mut first, by_index) = (runs, |run: &PlannedRun| run.index);
        first.sort_by_key(by_index);
        other.sort_by_key(by_index);
        assert_eq!(first, other);
    }

    #[test]
    fn mobile_runs_start_together_in_the_order_of_the_file() {
        let campaign = Campaign::parse("example", EXAMPLE_MOBILE, 0).unwrap();
        let runs = campaign.runs("ada", 0);
        let transports: Vec<_> = runs.iter().map(|run| run.transport.to_string()).collect();
        assert_eq!(transports, ["mptcp", "mpquic"]);
    }

    #[test]
    fn rounds_end_with_the_campaign_and_after_their_number() {
        let campaign = stable();
        let start = campaign.start_us;
        let until = start + 50 * HOUR_US;
        assert_eq!(campaign.planned_rounds("ada", 0, until).count(), 9);
        let limited = Campaign { rounds: Some(3), ..campaign.clone() };
        assert_eq!(limited.planned_rounds("ada", 0, u64::MAX).count(), 3);
        let short = Campaign { end_us: start + 7 * HOUR_US, ..campaign };
        assert_eq!(short.planned_rounds("ada", 0, u64::MAX).count(), 2);
    }

    #[test]
    fn a_day_has_the_bytes_of_its_rounds_at_least() {
        let campaign = stable();
        let five_rounds = 5 * campaign.bytes_per_round();
        let limited = |bytes_per_day| Campaign { bytes_per_day, ..campaign.clone() };
        assert_eq!(limited(five_rounds - 1).reservable_bytes_per_day(), five_rounds);
        assert_eq!(limited(five_rounds + 1).reservable_bytes_per_day(), five_rounds + 1);
        let once = Campaign { rounds: Some(1), ..limited(1) };
        assert_eq!(once.reservable_bytes_per_day(), campaign.bytes_per_round());
    }

    proptest! {
        #[test]
        fn a_window_has_exactly_the_rounds_that_start_in_it(
            device in "[a-z]{1,8}", from in 0_u64..400, length in 0_u64..400, jitter in 0_u64..=6,
        ) {
            let jitter = Duration::from_secs(jitter * 3_600);
            let campaign = Campaign { jitter, ..stable() };
            let from_us = campaign.start_us - 100 * HOUR_US + from * HOUR_US;
            let until_us = from_us + length * HOUR_US;
            let all = campaign.planned_rounds(&device, 0, campaign.start_us + 900 * HOUR_US);
            let expected: Vec<_> =
                all.filter(|round| (from_us..until_us).contains(&round.at_us)).collect();
            let found: Vec<_> = campaign.planned_rounds(&device, from_us, until_us).collect();
            prop_assert_eq!(&found, &expected);
            for planned in found {
                let begin = campaign.start_us + u64::from(planned.round) * 6 * HOUR_US;
                prop_assert!((begin..=begin + micros(jitter)).contains(&planned.at_us));
            }
        }
    }
}
