//! Path policies: which paths are used, and when one is abandoned. Decisions use metrics only,
//! without a protocol.
//!
//! The library moves nothing away from a silent path, and acknowledges the packets of all paths on
//! the first one. Therefore both ends monitor all paths with their own pings ([`PING_INTERVAL`]). A
//! path counts as alive while *anything* is received on it or acknowledged for it. A path that is
//! silent while another is not is abandoned, by whichever end notices first.

use std::time::Duration;

use towpath_net::Instant;

use crate::config::PathPolicy;
use crate::status::SwitchReason;

/// Interval of path checks while data moves.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of pings on every path while data moves.
pub(crate) const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Silence after which a path is abandoned. Our own value: the source's 600 ms,
/// [`MAX_UNACKED_TIME`], are for using the backup, not for abandoning a path (`docs/explanation/quic.md` has
/// experiments with less).
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_millis(600);
/// Longest silence of a path that counts as working.
const ALIVE_WITHIN: Duration = Duration::from_millis(400);
/// Silence after which a path is not used until something is received on it, if another path is not
/// silent. Lost acknowledgements would otherwise delay the other paths.
const SUSPECT_AFTER: Duration = Duration::from_millis(250);
/// Longest silence of a path that replaces a suspected one.
const RECENT_WITHIN: Duration = Duration::from_millis(150);
/// Time after the application's last activity during which data counts as moving.
pub(crate) const ACTIVE_WITHIN: Duration = Duration::from_secs(2);
/// `ios`: age of unacknowledged data above which the backup is used.
const MAX_UNACKED_TIME: Duration = Duration::from_millis(600);
/// `ios`: smoothed round-trip time above which the backup is used.
const MAX_SRTT: Duration = Duration::from_millis(600);
/// `ios`: timeout above which the backup is used.
const MAX_PTO: Duration = Duration::from_millis(1_500);
/// `ios`: time for which the primary must be good before it is used again.
const RETURN_HOLD_TIME: Duration = Duration::from_millis(500);

/// An established path, as the policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyPathView {
    /// Path number in the protocol.
    pub(crate) number: u32,
    /// True if the opener prefers this path over others.
    pub(crate) primary: bool,
    /// True if this host uses the path only when nothing else works.
    pub(crate) backup: bool,
    /// Time at which the path last worked: a datagram arrived on it, or its packets were
    /// acknowledged.
    pub(crate) last_received_at: Instant,
    /// Sending time of the oldest unacknowledged packet.
    pub(crate) oldest_unacked_sent_at: Option<Instant>,
    pub(crate) srtt: Duration,
    /// Probe timeout without back-off.
    pub(crate) pto: Duration,
}

impl PolicyPathView {
    fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_since(self.last_received_at)
    }

    /// Returns the reason for switching to a better path, if any.
    fn switch_reason(&self, now: Instant) -> Option<SwitchReason> {
        let unacked_time = self
            .oldest_unacked_sent_at
            .map_or(Duration::ZERO, |sent_at| now.saturating_since(sent_at));
        if unacked_time > MAX_UNACKED_TIME {
            Some(SwitchReason::DataInFlight(unacked_time))
        } else if unacked_time > self.pto {
            Some(SwitchReason::Timeout)
        } else if self.srtt > MAX_SRTT {
            Some(SwitchReason::SlowRoundTrip(self.srtt))
        } else if self.pto > MAX_PTO {
            Some(SwitchReason::LongTimeout(self.pto))
        } else {
            None
        }
    }
}

/// Returns the path to abandon now, and its silence; never the last one that works.
pub(crate) fn path_to_abandon(now: Instant, paths: &[PolicyPathView]) -> Option<(u32, Duration)> {
    let other_works = paths.iter().any(|path| path.idle_time(now) < ALIVE_WITHIN);
    let most_silent =
        paths.iter().max_by_key(|path| path.idle_time(now)).filter(|_| other_works)?;
    let silence = most_silent.idle_time(now);
    (silence > SILENCE_TIMEOUT).then_some((most_silent.number, silence))
}

/// Change of the use of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathSwitch {
    pub(crate) number: u32,
    pub(crate) backup: bool,
    pub(crate) reason: SwitchReason,
}

/// State of a connection's policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    kind: PathPolicy,
    /// `ios`: reason for using the backup, and the time at which the primary became good again.
    backup_use: Option<(SwitchReason, Option<Instant>)>,
    /// Suspected paths: silent, and nothing received since.
    silent: Vec<u32>,
}

impl Policy {
    pub(crate) fn new(kind: PathPolicy) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Returns true if the policy switches while paths live; then the peer's requests count only at
    /// first.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.kind == PathPolicy::Ios
    }

    /// Returns true if a path that the opener adds is used at once. `first`: from the address with
    /// which the connection began; `backup`: from a backup address.
    pub(crate) fn is_primary(&self, first: bool, backup: bool) -> bool {
        match self.kind {
            PathPolicy::Aggregate => !backup,
            PathPolicy::Backup | PathPolicy::Ios => first,
        }
    }

    /// Returns the changes that are due now.
    pub(crate) fn switches(&mut self, now: Instant, paths: &[PolicyPathView]) -> Vec<PathSwitch> {
        self.update_backup_use(now, paths);
        let any_recent = paths.iter().any(|path| path.idle_time(now) < RECENT_WITHIN);
        self.silent = paths
            .iter()
            .filter(|path| path.idle_time(now) > SUSPECT_AFTER)
            .map(|path| path.number)
            .filter(|number| any_recent || self.silent.contains(number))
            .collect();
        let is_silent = |path: &PolicyPathView| self.silent.contains(&path.number);
        let backup_use = self.backup_use;
        let is_second_choice = |path: &PolicyPathView| path.primary == backup_use.is_some();
        let first_choice_works =
            paths.iter().any(|path| !is_second_choice(path) && !is_silent(path));
        let change = |path: &PolicyPathView| {
            let silent = is_silent(path);
            let backup = silent || (first_choice_works && is_second_choice(path));
            let reason = match backup_use {
                _ if silent => SwitchReason::Silent(path.idle_time(now)),
                _ if !backup && is_second_choice(path) => SwitchReason::NothingElse,
                Some((reason, _)) => reason,
                None => SwitchReason::Recovered,
            };
            (path.backup != backup).then_some(PathSwitch { number: path.number, backup, reason })
        };
        paths.iter().filter_map(change).collect()
    }

    /// `ios`: updates the use of the backup while the primary lives.
    fn update_backup_use(&mut self, now: Instant, paths: &[PolicyPathView]) {
        if !self.is_dynamic() {
            return;
        }
        let is_working_backup =
            |path: &PolicyPathView| !path.primary && path.idle_time(now) < ALIVE_WITHIN;
        let has_backup = paths.iter().any(is_working_backup);
        let primaries = || paths.iter().filter(|path| path.primary);
        let reason = primaries().find_map(|path| path.switch_reason(now));
        self.backup_use = match (self.backup_use, reason) {
            (None, Some(reason)) if has_backup => Some((reason, None)),
            (None, _) => None,
            // No working backup or no primary is left.
            (Some(_), _) if !has_backup || primaries().next().is_none() => None,
            (Some((reason, _)), Some(_)) => Some((reason, None)),
            (Some((reason, good_since)), None) => {
                let since = good_since.unwrap_or(now);
                (now.saturating_since(since) < RETURN_HOLD_TIME).then_some((reason, Some(since)))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_millis(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Returns the primary, and a backup that received something just now. Times are milliseconds.
    fn primary_and_backup(
        now_ms: u64,
        last_received_ms: u64,
        oldest_unacked_ms: Option<u64>,
        srtt_ms: u64,
        on_backup: bool,
    ) -> [PolicyPathView; 2] {
        let primary = PolicyPathView {
            number: 0,
            primary: true,
            backup: on_backup,
            last_received_at: at_millis(last_received_ms),
            oldest_unacked_sent_at: oldest_unacked_ms.map(at_millis),
            srtt: Duration::from_millis(srtt_ms),
            pto: Duration::from_millis(srtt_ms + 50),
        };
        let backup_path = PolicyPathView {
            number: 1,
            primary: false,
            backup: !on_backup,
            last_received_at: at_millis(now_ms),
            oldest_unacked_sent_at: None,
            srtt: Duration::from_millis(80),
            pto: Duration::from_millis(130),
        };
        [primary, backup_path]
    }

    #[test]
    fn a_path_that_is_silent_while_another_works_is_given_up() {
        assert_eq!(
            path_to_abandon(at_millis(1_500), &primary_and_backup(1_500, 1_000, None, 30, false)),
            None
        );
        let abandoned =
            path_to_abandon(at_millis(1_601), &primary_and_backup(1_601, 1_000, None, 30, false));
        assert_eq!(abandoned, Some((0, Duration::from_millis(601))));
    }

    #[test]
    fn no_path_is_given_up_when_all_are_silent() {
        let mut paths = primary_and_backup(2_000, 1_000, None, 30, false);
        paths[1].last_received_at = at_millis(1_200);
        assert_eq!(path_to_abandon(at_millis(2_000), &paths), None);
    }

    #[test]
    fn the_backup_is_used_for_each_of_the_four_reasons() {
        let reason = |oldest_unacked_ms: Option<u64>, srtt_ms: u64, pto_ms: u64| {
            let mut policy = Policy::new(PathPolicy::Ios);
            let mut paths = primary_and_backup(5_000, 5_000, oldest_unacked_ms, srtt_ms, false);
            paths[0].pto = Duration::from_millis(pto_ms);
            let switches = policy.switches(at_millis(5_000), &paths);
            let statuses: Vec<_> = switches.iter().map(|s| (s.number, s.backup)).collect();
            assert!(switches.is_empty() || statuses == [(0, true), (1, false)], "{switches:?}");
            switches.first().map(|switch| switch.reason)
        };
        let millis = Duration::from_millis;
        assert_eq!(reason(Some(4_950), 30, 80), None);
        assert_eq!(reason(Some(4_900), 30, 80), Some(SwitchReason::Timeout));
        let unacked_700_ms = SwitchReason::DataInFlight(millis(700));
        assert_eq!(reason(Some(4_300), 30, 1_200), Some(unacked_700_ms));
        assert_eq!(reason(None, 601, 900), Some(SwitchReason::SlowRoundTrip(millis(601))));
        assert_eq!(reason(None, 500, 1_501), Some(SwitchReason::LongTimeout(millis(1_501))));
    }

    #[test]
    fn the_primary_is_used_again_after_500_ms_of_good_quality() {
        let mut policy = Policy::new(PathPolicy::Ios);
        assert_eq!(
            policy.switches(at_millis(0), &primary_and_backup(0, 0, None, 700, false)).len(),
            2
        );
        for now in [50, 100, 500] {
            assert_eq!(
                policy.switches(at_millis(now), &primary_and_backup(now, now, None, 100, true)),
                []
            );
        }
        let switches =
            policy.switches(at_millis(550), &primary_and_backup(550, 550, None, 100, true));
        let expected = [(0, false), (1, true)];
        assert_eq!(switches.iter().map(|s| (s.number, s.backup)).collect::<Vec<_>>(), expected);
        assert!(switches.iter().all(|switch| switch.reason == SwitchReason::Recovered));
    }

    #[test]
    fn without_a_working_backup_the_primary_is_kept() {
        let mut policy = Policy::new(PathPolicy::Ios);
        let mut paths = primary_and_backup(5_000, 5_000, None, 900, false);
        paths[1].last_received_at = at_millis(4_000);
        assert_eq!(policy.switches(at_millis(5_000), &paths), []);
        assert_eq!(policy.switches(at_millis(5_000), &paths[..1]), []);
    }

    #[test]
    fn a_silent_path_is_not_used_until_it_answers_again() {
        for kind in [PathPolicy::Aggregate, PathPolicy::Backup, PathPolicy::Ios] {
            let mut policy = Policy::new(kind);
            let statuses = |switches: Vec<PathSwitch>| {
                switches.iter().map(|s| (s.number, s.backup)).collect::<Vec<_>>()
            };
            let while_silent = statuses(
                policy
                    .switches(at_millis(5_000), &primary_and_backup(5_000, 4_749, None, 30, false)),
            );
            assert_eq!(while_silent, [(0, true), (1, false)], "{kind:?}");
            let after_answer = statuses(
                policy
                    .switches(at_millis(5_100), &primary_and_backup(5_100, 5_100, None, 30, true)),
            );
            assert_eq!(after_answer, [(0, false), (1, true)], "{kind:?}");
        }
    }

    #[test]
    fn other_policies_tolerate_slow_paths() {
        for kind in [PathPolicy::Aggregate, PathPolicy::Backup] {
            let mut policy = Policy::new(kind);
            let slow = primary_and_backup(5_000, 5_000, Some(3_000), 900, false);
            assert_eq!(policy.switches(at_millis(5_000), &slow), []);
        }
    }
}
