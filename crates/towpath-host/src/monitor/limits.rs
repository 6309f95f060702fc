//! Limits of a connection's senders between two snapshots, as the account of capacity names them
//! (`docs/reference/metrics.md`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use towpath_kernel::sample::TcpInfo;
use towpath_kernel::send_limit;
use towpath_kernel::send_limit::{ConnectionSendState, InfoSource, SendLimit, SubflowDelta};
use towpath_result::Part;

use super::{MonitoredConnection, MonitoredSubflow};

/// Kernel counters of a socket, readable only in this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketInternals {
    /// Latest `TCP_INFO` of the subflow.
    pub tcp: TcpInfo,
    /// State of the connection that its send limit depends on.
    pub send_state: ConnectionSendState,
}

/// Limit of a subflow's sender, with its share of the time.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedLimit {
    /// Limit, as a part of the account of capacity.
    pub part: Part,
    /// Share of the time, 0 to 1.
    pub share: f64,
    /// Cookie of the subflow whose data blocks this one; `None` for other limits.
    pub waits_for: Option<u64>,
}

impl ObservedLimit {
    /// Returns the label for users: `receive window`.
    pub fn name(&self) -> &'static str {
        const PART_NAMES: [(Part, &str); 8] = [
            (Part::Application, "application"),
            (Part::HeadOfLineBlocking, "receive window, full of data waiting for another path"),
            (Part::SlowStart, "congestion window (slow start)"),
            (Part::AfterLoss, "congestion window (after loss)"),
            (Part::CongestionAvoidance, "congestion window"),
            (Part::Scheduler, "scheduler"),
            (Part::Backup, "backup"),
            (Part::Stale, "silence"),
        ];
        let entry = PART_NAMES.iter().find(|(part, _)| *part == self.part);
        entry.map_or(self.part.label(), |(_, name)| name)
    }

    /// Returns the identifier for programs: `peer-window`.
    pub fn id(&self) -> String {
        let value = serde_json::to_value(self.part).unwrap_or_default();
        value.as_str().unwrap_or("unknown").to_owned()
    }
}

/// Limit, cookie of the subflow that was waited for, and seconds.
type LimitTime = (Part, Option<u64>, f64);

/// History of send limits and their durations, for the last window.
#[derive(Debug, Clone, Default)]
pub struct LimitHistory {
    entries: VecDeque<(Duration, Vec<LimitTime>)>,
    cwnd_reduced: bool,
}

impl LimitHistory {
    /// Removes entries older than `window`, except the latest.
    fn expire(&mut self, now: Duration, window: Duration) {
        while self.entries.len() > 1
            && self.entries.front().is_some_and(|(time, _)| now.saturating_sub(*time) >= window)
        {
            self.entries.pop_front();
        }
    }

    /// Returns the limits since the snapshot before the latest, in seconds.
    pub fn latest(&self) -> impl Iterator<Item = (Part, f64)> + '_ {
        let parts = self.entries.back().into_iter().flat_map(|(_, parts)| parts);
        parts.map(|(part, _, seconds)| (*part, *seconds))
    }

    /// Returns the limits, longest first.
    pub(crate) fn limits(&self) -> Vec<ObservedLimit> {
        let mut sums: BTreeMap<(Part, Option<u64>), f64> = BTreeMap::new();
        for (part, waits_for, seconds) in self.entries.iter().flat_map(|(_, parts)| parts) {
            *sums.entry((*part, *waits_for)).or_default() += seconds;
        }
        let total: f64 = sums.values().sum();
        let mut limits: Vec<ObservedLimit> = { sums.into_iter() }
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|((part, waits_for), seconds)| {
                let share = seconds / total;
                ObservedLimit { part, share, waits_for }
            })
            .collect();
        limits.sort_by(|a, b| b.share.total_cmp(&a.share));
        limits
    }
}

/// Returns true if a subflow sends data; a pure receiver has no send limit.
fn is_sending(before: &TcpInfo, now: &TcpInfo) -> bool {
    now.bytes_sent > before.bytes_sent || now.unacked > 0 || now.notsent_bytes > 0
}

/// Adds each subflow's limits since the previous snapshot; `None` in `before` marks a new subflow.
pub fn record_limits(
    connection: &MonitoredConnection,
    before: &[Option<TcpInfo>],
    histories: &mut [LimitHistory],
    (now, span): (Duration, Duration),
    window: Duration,
) {
    let infos: Vec<(TcpInfo, &MonitoredSubflow)> = { connection.subflows.iter() }
        .zip(before)
        .map(|(subflow, before)| (before.unwrap_or(subflow.internals.tcp), subflow))
        .collect();
    for ((before, subflow), history) in infos.iter().zip(histories.iter_mut()) {
        let now = &subflow.internals.tcp;
        history.cwnd_reduced |=
            SubflowDelta { before, now, backup: false, cwnd_reduced: false }.is_cwnd_reduced();
    }
    let deltas: Vec<SubflowDelta<'_>> = { infos.iter() }
        .zip(histories.iter())
        .map(|((before, subflow), history)| SubflowDelta {
            before,
            now: &subflow.internals.tcp,
            backup: subflow.backup,
            cwnd_reduced: history.cwnd_reduced,
        })
        .collect();
    let source = if connection.fallback {
        InfoSource::Single(connection.internals.send_state.buffer)
    } else {
        InfoSource::Multipath(connection.internals.send_state)
    };
    let shares = send_limit::connection_limits(source, &deltas, false, span);
    let is_any_sending =
        infos.iter().any(|(before, subflow)| is_sending(before, &subflow.internals.tcp));
    for (index, (shares, history)) in shares.iter().zip(histories.iter_mut()).enumerate() {
        if !is_any_sending || before.get(index).copied().flatten().is_none() {
            history.expire(now, window);
            if !is_any_sending {
                history.entries.clear();
            }
            continue;
        }
        let parts = shares.iter().map(|(limit, share)| {
            let part = send_limit::account_part(*limit, None, false);
            let waits_for = if let SendLimit::HolBlocked(blocker) = limit {
                infos.get(*blocker).map(|(_, subflow)| subflow.cookie)
            } else {
                None
            };
            (part, waits_for, share * span.as_secs_f64())
        });
        let parts = parts.collect();
        history.entries.push_back((now, parts));
        history.expire(now, window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_last_window_and_the_longest_is_first() {
        let mut history = LimitHistory::default();
        let second = Duration::from_secs;
        history.entries.push_back((second(1), vec![(Part::Application, None, 1.0)]));
        history.entries.push_back((second(2), vec![(Part::PeerWindow, None, 0.8)]));
        history.entries.push_back((second(2), vec![(Part::Application, None, 0.2)]));
        history.expire(second(2), second(1));
        let limits = history.limits();
        assert_eq!(limits[0].part, Part::PeerWindow);
        assert!((limits[0].share - 0.8).abs() < 1e-9, "{limits:?}");
        assert_eq!((limits[0].name(), limits[0].id().as_str()), ("receive window", "peer-window"));
    }
}
