//! What held the senders of a connection back between two looks, in the words of the account of
//! capacity (`docs/metrics.md`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use towpath_measure::result::Part;

use super::{Connection, Subflow};
use crate::limit::{self, Above, Between, Limit, Source};
use crate::sample::TcpInfo;

/// What the kernel says of a socket's inside; only this crate looks into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inside {
    pub(crate) tcp: TcpInfo,
    pub(crate) above: Above,
}

/// What held a subflow's sender back.
#[derive(Debug, Clone, PartialEq)]
pub struct Limited {
    /// The limit.
    pub part: Part,
    /// For which part of the time, 0 to 1.
    pub share: f64,
    /// The subflow (by cookie) whose data were waited for.
    pub waits_for: Option<u64>,
}

impl Limited {
    /// As people call it: `receive window`.
    pub fn name(&self) -> &'static str {
        const NAMES: [(Part, &str); 8] = [
            (Part::Application, "application"),
            (Part::HeadOfLineBlocking, "receive window, full of data that waits for another path"),
            (Part::SlowStart, "congestion window (slow start)"),
            (Part::AfterLoss, "congestion window (after loss)"),
            (Part::CongestionAvoidance, "congestion window"),
            (Part::Scheduler, "scheduler"),
            (Part::Backup, "backup"),
            (Part::Stale, "silence"),
        ];
        let named = NAMES.iter().find(|(part, _)| *part == self.part);
        named.map_or(self.part.label(), |(_, name)| name)
    }

    /// The same for programs: `peer-window`.
    pub fn id(&self) -> String {
        let value = serde_json::to_value(self.part).unwrap_or_default();
        value.as_str().unwrap_or("unknown").to_owned()
    }
}

/// A limit, the subflow that was waited for, and for how many seconds.
type Share = (Part, Option<u64>, f64);

/// What was held back by what, and for how long: from one window ago until now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spent {
    all: VecDeque<(Duration, Vec<Share>)>,
    is_cut: bool,
}

impl Spent {
    /// Forgets what is older than `window`, but the latest.
    fn forget(&mut self, now: Duration, window: Duration) {
        while self.all.len() > 1
            && self.all.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= window)
        {
            self.all.pop_front();
        }
    }

    /// What the latest look added, in seconds.
    pub(crate) fn latest(&self) -> impl Iterator<Item = (Part, f64)> + '_ {
        let parts = self.all.back().into_iter().flat_map(|(_, parts)| parts);
        parts.map(|(part, _, seconds)| (*part, *seconds))
    }

    /// The limits, longest first.
    pub(crate) fn limits(&self) -> Vec<Limited> {
        let mut sums: BTreeMap<(Part, Option<u64>), f64> = BTreeMap::new();
        for (part, waits_for, seconds) in self.all.iter().flat_map(|(_, parts)| parts) {
            *sums.entry((*part, *waits_for)).or_default() += seconds;
        }
        let total: f64 = sums.values().sum();
        let mut limits: Vec<Limited> = { sums.into_iter() }
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|((part, waits_for), seconds)| {
                let share = seconds / total;
                Limited { part, share, waits_for }
            })
            .collect();
        limits.sort_by(|a, b| b.share.total_cmp(&a.share));
        limits
    }
}

/// Whether a subflow sends at all: what only receives is held back by nothing here.
fn sends(before: &TcpInfo, now: &TcpInfo) -> bool {
    now.bytes_sent > before.bytes_sent || now.unacked > 0 || now.notsent_bytes > 0
}

/// Notes for each subflow what it waited for since the look before (none: it is new).
pub(crate) fn note(
    connection: &Connection,
    before: &[Option<TcpInfo>],
    spent: &mut [Spent],
    (now, span): (Duration, Duration),
    window: Duration,
) {
    let infos: Vec<(TcpInfo, &Subflow)> = { connection.subflows.iter() }
        .zip(before)
        .map(|(subflow, before)| (before.unwrap_or(subflow.inside.tcp), subflow))
        .collect();
    for ((before, subflow), spent) in infos.iter().zip(spent.iter_mut()) {
        let now = &subflow.inside.tcp;
        spent.is_cut |= Between { before, now, backup: false, cut: false }.is_cut_now();
    }
    let between: Vec<Between<'_>> = { infos.iter() }
        .zip(spent.iter())
        .map(|((before, subflow), spent)| Between {
            before,
            now: &subflow.inside.tcp,
            backup: subflow.backup,
            cut: spent.is_cut,
        })
        .collect();
    let source = if connection.fallback {
        Source::Single(connection.inside.above.buffer)
    } else {
        Source::Multipath(connection.inside.above)
    };
    let shares = limit::of_connection(source, &between, false, span);
    let any = infos.iter().any(|(before, subflow)| sends(before, &subflow.inside.tcp));
    for (at, (shares, spent)) in shares.iter().zip(spent.iter_mut()).enumerate() {
        if !any || before.get(at).copied().flatten().is_none() {
            spent.forget(now, window);
            if !any {
                spent.all.clear();
            }
            continue;
        }
        let parts = shares.iter().map(|(limit, share)| {
            let part = limit::part(*limit, None, false);
            let waits_for = if let Limit::WindowBehind(other) = limit {
                infos.get(*other).map(|(_, it)| it.cookie)
            } else {
                None
            };
            (part, waits_for, share * span.as_secs_f64())
        });
        let parts = parts.collect();
        spent.all.push_back((now, parts));
        spent.forget(now, window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_last_window_and_the_longest_is_first() {
        let mut spent = Spent::default();
        let second = Duration::from_secs;
        spent.all.push_back((second(1), vec![(Part::Application, None, 1.0)]));
        spent.all.push_back((second(2), vec![(Part::PeerWindow, None, 0.8)]));
        spent.all.push_back((second(2), vec![(Part::Application, None, 0.2)]));
        spent.forget(second(2), second(1));
        let limits = spent.limits();
        assert_eq!(limits[0].part, Part::PeerWindow);
        assert!((limits[0].share - 0.8).abs() < 1e-9, "{limits:?}");
        assert_eq!((limits[0].name(), limits[0].id().as_str()), ("receive window", "peer-window"));
    }
}
