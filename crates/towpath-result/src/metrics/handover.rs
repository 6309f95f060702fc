//! Handover from a connection's first path to another one, as in De Coninck and Bonaventure's
//! `MultipathTester` (TMA 2019, §IV).
//!
//! There, a phone is carried away from its Wi-Fi. The first path is the one on which a flow's
//! connections start. All times are those of the host that opened them, as the paper's are of the
//! phone. Their precision is the sampling period.

use std::collections::{BTreeMap, BTreeSet};

use towpath_scenario::{DataDirection, Transport};

use crate::{Event, EventKind, Meta, MetaFlow, Record, ReinjectionCause, Subflow, SubflowEnd};

/// Maximum smoothed round-trip time of the first path, above which the paper's phone switches.
const MAX_PRIMARY_SRTT_US: u32 = 600_000;
/// Maximum retransmission timeout of the first path, above which the paper's phone switches.
const MAX_PRIMARY_RTO_US: u32 = 1_500_000;

/// Prefix of the [`EventKind::Scheduler`] details that give the reason for leaving the preferred
/// path.
pub const REASON_PREFIX: &str = "because ";

/// Reason for using another path than the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwitchReason {
    /// The smoothed round-trip time of the first path exceeded 600 ms.
    SlowRoundTrip,
    /// A retransmission timer of the first path had expired without an acknowledgement since.
    Timeout,
    /// The retransmission timeout of the first path exceeded 1,500 ms.
    LongTimeout,
    /// Multipath QUIC: data waited too long for its acknowledgement, with or without timer.
    InFlight,
    /// Multipath QUIC: nothing was received any more.
    Silent,
    /// None of the others.
    Other,
}

impl SwitchReason {
    /// All reasons, in the order in which they are checked.
    pub const ALL: [Self; 6] = [
        Self::SlowRoundTrip,
        Self::Timeout,
        Self::LongTimeout,
        Self::InFlight,
        Self::Silent,
        Self::Other,
    ];

    /// Returns the name in results and tables, such as `rto`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlowRoundTrip => "rtt-threshold",
            Self::Timeout => "rto",
            Self::LongTimeout => "rto-threshold",
            Self::InFlight => "in-flight",
            Self::Silent => "silent",
            Self::Other => "other",
        }
    }

    /// Returns the condition for people, in terms of the records.
    pub fn condition(self) -> &'static str {
        match self {
            Self::SlowRoundTrip => "`srtt_us` of the first subflow is above 600 ms",
            Self::Timeout => "`backoff` of the first subflow is at least 1",
            Self::LongTimeout => "`rto_us` of the first subflow is above 1,500 ms",
            Self::InFlight => "the path policy of Multipath QUIC says so: data waited too long",
            Self::Silent => "the path policy of Multipath QUIC says so: nothing was received",
            Self::Other => "no other rule applies",
        }
    }

    fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or(Self::Other)
    }

    /// Infers the reason from the first path's state alone, at the end of the sample in which the
    /// other path was used.
    pub fn inferred(state: &Subflow) -> Self {
        if state.srtt_us > MAX_PRIMARY_SRTT_US {
            Self::SlowRoundTrip
        } else if state.backoff > 0 {
            Self::Timeout
        } else if state.rto_us > MAX_PRIMARY_RTO_US {
            Self::LongTimeout
        } else {
            Self::Other
        }
    }
}

/// Time after the start of the traffic in which connections are set up: handshakes and the first
/// probes may use any path.
pub const SETUP_NS: u64 = 1_000_000_000;
/// Number of sampling periods after the setup within which a use counts as one from the start.
const START_PERIODS: u64 = 5;

/// Returns the latest first use of another path that counts as one from the start, since the start
/// of the traffic.
pub fn from_start_ns(meta: &Meta) -> u64 {
    meta.sample_ns.saturating_mul(START_PERIODS).saturating_add(SETUP_NS)
}

/// Use of other paths than the first one by a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// No data went to another path.
    Unused,
    /// Data went to another path.
    Used(HandoverTimes),
}

/// Times of a handover, in nanoseconds since the start of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoverTimes {
    /// First use of another path.
    pub start_ns: u64,
    /// Last packet that came over the first path; `None` if none came.
    pub last_received_ns: Option<u64>,
    /// Last packet that was sent on the first path; `None` if none was sent.
    pub last_sent_ns: Option<u64>,
    /// Reason that the scheduler or the path policy gives.
    pub stated_reason: Option<SwitchReason>,
    /// Reason that follows from the first path's state at the next sample. `None` where only events
    /// show a switch.
    pub inferred_reason: Option<SwitchReason>,
}

impl Handover {
    /// Returns the handover of the first flow that has several paths; `None` if no flow has.
    pub fn of(meta: &Meta, records: &[Record]) -> Option<Self> {
        Self::between(meta, records, 0, u64::MAX)
    }

    /// Returns the same for uses after the first second, in which connections are set up.
    ///
    /// `lost_ns` is the time at which the host lost the first network. Later packets on it belong to
    /// a network that came back.
    pub fn after_setup(meta: &Meta, records: &[Record], lost_ns: Option<u64>) -> Option<Self> {
        let end_ns = lost_ns.map_or(u64::MAX, |lost_ns| lost_ns.saturating_add(meta.sample_ns));
        Self::between(meta, records, SETUP_NS, end_ns)
    }

    fn between(meta: &Meta, records: &[Record], from_ns: u64, end_ns: u64) -> Option<Self> {
        let flow = meta.flows.iter().find(|flow| has_two_paths(records, flow))?;
        let opener = OpenerView { meta, flow, from_ns, end_ns };
        let activity = opener.activity(records);
        let Some(start) = activity.start else { return Some(Self::Unused) };
        Some(Self::Used(HandoverTimes {
            start_ns: start.at_ns,
            last_received_ns: activity.last_received_ns,
            last_sent_ns: activity.last_sent_ns,
            stated_reason: opener.stated_reason(records),
            inferred_reason: start.inferred_reason,
        }))
    }
}

fn has_two_paths(records: &[Record], flow: &MetaFlow) -> bool {
    let paths: BTreeSet<&str> = records
        .iter()
        .filter_map(|record| {
            let Record::Subflow(subflow) = record else { return None };
            (subflow.flow == flow.flow).then_some(&*subflow.path)
        })
        .collect();
    paths.len() > 1
}

/// View of the host that opened a flow's connections.
struct OpenerView<'a> {
    meta: &'a Meta,
    flow: &'a MetaFlow,
    /// Time from which a use counts.
    from_ns: u64,
    /// Time until which packets on the first path count.
    end_ns: u64,
}

/// First use of another path.
#[derive(Debug, Clone, Copy)]
struct FirstSwitch {
    at_ns: u64,
    inferred_reason: Option<SwitchReason>,
}

#[derive(Debug, Default)]
struct Activity {
    start: Option<FirstSwitch>,
    last_sent_ns: Option<u64>,
    last_received_ns: Option<u64>,
}

impl OpenerView<'_> {
    /// Returns true if only events show a switch. Pings keep all paths of Multipath QUIC alive, so
    /// bytes do not show one.
    fn uses_events(&self) -> bool {
        self.meta.transport == Transport::Mpquic
    }

    fn is_of_opener(&self, event: &Event) -> bool {
        event.host.as_deref() == Some(&self.flow.from)
    }

    fn is_sampled_by_opener(&self, subflow: &Subflow) -> bool {
        let sends = subflow.side == SubflowEnd::Sender;
        subflow.flow == self.flow.flow && sends == (subflow.direction == DataDirection::Up)
    }

    fn activity(&self, records: &[Record]) -> Activity {
        let mut activity = Activity::default();
        let mut latest: BTreeMap<(u32, u32), &Subflow> = BTreeMap::new();
        let (mut offered_packets, mut last_offered_ns) = (0, None);
        for record in records {
            if let Record::Link(link) = record
                && link.path == self.flow.via
                && link.direction == self.outbound_direction()
            {
                if link.offered_packets > offered_packets {
                    last_offered_ns = Some(link.t_ns);
                }
                offered_packets = link.offered_packets;
            }
            if let Record::Subflow(sample) = record
                && self.is_sampled_by_opener(sample)
            {
                let previous = latest.insert((sample.stream, sample.subflow), sample);
                self.on_sample(sample, previous, &latest, &mut activity);
            } else if let Record::Event(event) = record
                && self.uses_events()
                && self.is_of_opener(event)
                && event.t_ns >= self.from_ns
                && self.switch_reason(event).is_some()
                && activity.start.is_none()
            {
                activity.start = Some(FirstSwitch { at_ns: event.t_ns, inferred_reason: None });
            }
        }
        // A stack may retransmit on an interface that is down, but nothing of it leaves the host.
        activity.last_sent_ns = last_offered_ns.or(activity.last_sent_ns);
        activity
    }

    /// Returns the direction away from the opener on its first path's link.
    fn outbound_direction(&self) -> DataDirection {
        let first = self.meta.paths.iter().find(|path| path.name == self.flow.via);
        match first.map(|path| &path.between) {
            Some([_, second]) if *second == self.flow.from => DataDirection::Down,
            _ => DataDirection::Up,
        }
    }

    /// Processes a sample of one subflow; `last` is its previous sample.
    fn on_sample(
        &self,
        sample: &Subflow,
        previous: Option<&Subflow>,
        latest: &BTreeMap<(u32, u32), &Subflow>,
        activity: &mut Activity,
    ) {
        let has_grown =
            |counter: fn(&Subflow) -> u64| counter(sample) > previous.map_or(0, counter);
        let (sent, acked) = (has_grown(|s| s.bytes_sent), has_grown(|s| s.bytes_acked));
        let received = has_grown(|s| s.bytes_received);
        if sample.path == self.flow.via && sample.t_ns > self.end_ns {
            return;
        }
        if sample.path == self.flow.via {
            // Arriving data is acknowledged, and sent data is acknowledged by arriving packets.
            if sent || received {
                activity.last_sent_ns = Some(sample.t_ns);
            }
            if acked || received {
                activity.last_received_ns = Some(sample.t_ns);
            }
        } else if sent
            && sample.t_ns > self.from_ns
            && !self.uses_events()
            && activity.start.is_none()
        {
            let primary = latest
                .values()
                .find(|subflow| subflow.stream == sample.stream && subflow.path == self.flow.via);
            let inferred_reason = primary.map(|state| SwitchReason::inferred(state));
            activity.start = Some(FirstSwitch { at_ns: sample.t_ns, inferred_reason });
        }
    }

    /// Returns the reason of the scheduler or the path policy for first leaving the path.
    fn stated_reason(&self, records: &[Record]) -> Option<SwitchReason> {
        records.iter().find_map(|record| {
            let Record::Event(event) = record else { return None };
            let counts = self.is_of_opener(event) && event.t_ns >= self.from_ns;
            if counts { self.switch_reason(event) } else { None }
        })
    }

    fn switch_reason(&self, event: &Event) -> Option<SwitchReason> {
        let is_other_path = event.path.as_deref().is_some_and(|path| path != self.flow.via);
        match event.kind {
            EventKind::Scheduler => {
                let mut targets = event.detail.keys().filter_map(|key| key.strip_prefix("to "));
                targets.find(|path| *path != self.flow.via)?;
                let reason = event.detail.keys().find_map(|key| key.strip_prefix(REASON_PREFIX));
                Some(reason.map_or(SwitchReason::Other, SwitchReason::named))
            }
            EventKind::Reinjection if is_other_path => {
                let cause = event.detail.get("cause")?;
                let timer_causes = [ReinjectionCause::Timeout, ReinjectionCause::Connection]
                    .map(ReinjectionCause::text);
                let is_timer = timer_causes.contains(&cause.as_str());
                Some(if is_timer { SwitchReason::Timeout } else { SwitchReason::Other })
            }
            EventKind::Subflow if is_other_path => {
                let is_used = event.detail.get("backup").is_some_and(|backup| backup == "false");
                is_used.then(|| {
                    event
                        .detail
                        .get("why")
                        .map_or(SwitchReason::Other, |reason| SwitchReason::named(reason))
                })
            }
            EventKind::Reinjection
            | EventKind::Subflow
            | EventKind::Timeline
            | EventKind::Flow
            | EventKind::PathManager
            | EventKind::Link
            | EventKind::Address
            | EventKind::Stall
            | EventKind::Penalisation
            | EventKind::Window
            | EventKind::Fallback => None,
        }
    }
}
