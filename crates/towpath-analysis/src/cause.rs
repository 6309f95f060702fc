//! Cause of the longest delay of a run, derived from the state of its subflows.
//!
//! The first rule of [`DelayCause::RULES`] that applies gives the cause. Rules look at the time from
//! the due time of the message until its reply, and at the host that sent the message.

use std::collections::BTreeMap;

use towpath_result::store::StoredRun;
use towpath_result::{Message, Part, Record, Subflow, SubflowEnd};
use towpath_scenario::DataDirection;

/// Share of a delay that a condition must cover to be its cause.
const MIN_SHARE: f64 = 0.5;

/// Cause of a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DelayCause {
    /// No subflow on another network existed.
    NoSubflow,
    /// The subflow on another network came late.
    LateSubflow,
    /// A retransmission timer expired repeatedly, although another network had a subflow.
    Backoff,
    /// The receive window of the connection was full.
    ReceiveWindow,
    /// The network had a long round-trip time.
    SlowNetwork,
    /// Packets were in flight, and no acknowledgement came.
    SilentNetwork,
    /// Data was delivered all the time, but more slowly than it was due.
    LowRate,
    /// All data was acknowledged: an application was late.
    Application,
    /// None of the others.
    Other,
}

/// Rule for a cause, for documents.
#[derive(Debug, Clone, Copy)]
pub struct CauseRule {
    /// Cause that the rule gives.
    pub cause: DelayCause,
    /// Condition, in terms of the records.
    pub condition: &'static str,
    /// Meaning for people.
    pub meaning: &'static str,
}

impl DelayCause {
    /// Rules in the order in which they are checked.
    pub const RULES: [CauseRule; 9] = [
        CauseRule {
            cause: Self::NoSubflow,
            condition: "no sample shows an established subflow on a path other than that of the \
                        first subflow",
            meaning: "the connection had no second network",
        },
        CauseRule {
            cause: Self::LateSubflow,
            condition: "the first established subflow on another path appears after at least half \
                        of the delay",
            meaning: "the path manager opened the second subflow late",
        },
        CauseRule {
            cause: Self::Backoff,
            condition: "a sample of the sender has `backoff` of at least 1",
            meaning: "a retransmission timeout expired, and the data waited for it",
        },
        CauseRule {
            cause: Self::ReceiveWindow,
            condition: "`limits_ns` of the sender has `peer-window` or `head-of-line-blocking` for \
                        at least half of the delay",
            meaning: "the receive window was full",
        },
        CauseRule {
            cause: Self::SlowNetwork,
            condition: "`srtt_us` of a subflow with packets in flight reaches half of the delay",
            meaning: "packets waited in the network, for instance in a long queue",
        },
        CauseRule {
            cause: Self::SilentNetwork,
            condition: "a subflow has packets in flight, and its `bytes_acked` stays the same for at \
                        least half of the delay",
            meaning: "the network carried nothing, and no timeout is known",
        },
        CauseRule {
            cause: Self::LowRate,
            condition: "`bytes_acked` of all subflows together grows in at least half of the samples",
            meaning: "congestion window or pacing limited the rate: data waited at the sender",
        },
        CauseRule {
            cause: Self::Application,
            condition: "`in_flight_packets` of all subflows is 0 in at least half of the samples",
            meaning: "nothing was in flight: the application or the host was late",
        },
        CauseRule {
            cause: Self::Other,
            condition: "no other rule applies, or there are no samples",
            meaning: "unknown",
        },
    ];

    /// Returns the name in tables, such as `rto-backoff`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSubflow => "no-subflow",
            Self::LateSubflow => "late-subflow",
            Self::Backoff => "rto-backoff",
            Self::ReceiveWindow => "receive-window",
            Self::SlowNetwork => "slow-network",
            Self::SilentNetwork => "silent-network",
            Self::LowRate => "low-rate",
            Self::Application => "application",
            Self::Other => "other",
        }
    }
}

/// Message with the longest delay of its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedMessage {
    /// Time at which the request was due, since the start of the traffic.
    pub due_ns: u64,
    /// Time of the reply; without one, the end of the flow.
    pub end_ns: u64,
    /// Cause of the delay.
    pub cause: DelayCause,
}

impl DelayedMessage {
    /// Returns the delay in nanoseconds.
    pub fn delay_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.due_ns)
    }
}

/// Returns the message with the longest delay in a direction; `None` without messages.
pub fn longest_delay(run: &StoredRun, direction: DataDirection) -> Option<DelayedMessage> {
    let messages = || {
        run.records.iter().filter_map(|record| {
            let Record::Message(message) = record else { return None };
            (message.direction == direction && !message.warm_up).then_some(message)
        })
    };
    // A message without a reply has waited until the end of its flow.
    let flow = messages().next()?.flow;
    let flows = run.summary.iter().flat_map(|summary| &summary.flows);
    let of_flow = flows.filter(|other| other.flow == flow && other.direction == direction);
    let times = messages().flat_map(|message| [Some(message.due_ns), message.answered_ns]);
    let end_ns = of_flow.map(|flow| flow.duration_ns).chain(times.flatten()).max()?;
    let end = |message: &Message| message.answered_ns.unwrap_or(end_ns);
    let longest = messages().max_by_key(|message| end(message).saturating_sub(message.due_ns))?;
    let delay = Delay::new(run, longest, end(longest));
    Some(DelayedMessage { due_ns: longest.due_ns, end_ns: end(longest), cause: delay.cause() })
}

/// Samples of the sender during a delay.
#[derive(Debug)]
struct Delay<'a> {
    due_ns: u64,
    end_ns: u64,
    /// Path of the first subflow.
    first_path: &'a str,
    /// Samples of the message's connection at its sender, until the end of the delay.
    samples: Vec<&'a Subflow>,
}

impl<'a> Delay<'a> {
    fn new(run: &'a StoredRun, message: &Message, end_ns: u64) -> Self {
        let of_flow = |subflow: &&Subflow| {
            subflow.flow == message.flow
                && subflow.side == SubflowEnd::Sender
                && subflow.direction == message.direction
        };
        let all = run.records.iter().filter_map(|record| {
            let Record::Subflow(subflow) = record else { return None };
            Some(&**subflow).filter(of_flow)
        });
        let all: Vec<&Subflow> = all.collect();
        // QUIC carries all streams in one connection, whose samples have one number.
        let is_own = |subflow: &&&Subflow| subflow.stream == message.stream;
        let own: Vec<_> = all.iter().filter(is_own).copied().collect();
        let mut samples = if own.is_empty() { all } else { own };
        samples.retain(|sample| sample.t_ns.saturating_sub(sample.span_ns) < end_ns);
        let flow = run.meta.flows.iter().find(|flow| flow.flow == message.flow);
        let first_path = flow.map_or("", |flow| flow.via.as_str());
        Self { due_ns: message.due_ns, end_ns, first_path, samples }
    }

    fn duration_ns(&self) -> f64 {
        self.end_ns.saturating_sub(self.due_ns).max(1) as f64
    }

    /// Returns the samples that overlap the delay.
    fn during(&self) -> impl Iterator<Item = &&'a Subflow> {
        self.samples.iter().filter(|sample| sample.t_ns > self.due_ns)
    }

    /// Returns the cause by the first rule that applies.
    fn cause(&self) -> DelayCause {
        let rule = DelayCause::RULES.iter().find(|rule| self.applies(rule.cause));
        rule.map_or(DelayCause::Other, |rule| rule.cause)
    }

    fn applies(&self, cause: DelayCause) -> bool {
        if self.during().next().is_none() {
            return cause == DelayCause::Other;
        }
        match cause {
            DelayCause::NoSubflow => self.second_since_ns().is_none(),
            DelayCause::LateSubflow => self.second_since_ns().is_some_and(|since_ns| {
                since_ns.saturating_sub(self.due_ns) as f64 >= MIN_SHARE * self.duration_ns()
            }),
            DelayCause::Backoff => self.during().any(|sample| sample.backoff > 0),
            DelayCause::ReceiveWindow => self.window_ns() >= MIN_SHARE * self.duration_ns(),
            DelayCause::SlowNetwork => self.during().any(|sample| {
                let srtt_ns = f64::from(sample.srtt_us) * 1e3;
                sample.in_flight_packets > 0 && srtt_ns >= MIN_SHARE * self.duration_ns()
            }),
            DelayCause::SilentNetwork => self.silence_ns() >= MIN_SHARE * self.duration_ns(),
            DelayCause::LowRate => self.period_share(|period| period.has_acknowledged) >= MIN_SHARE,
            DelayCause::Application => {
                self.period_share(|period| !period.is_in_flight) >= MIN_SHARE
            }
            DelayCause::Other => true,
        }
    }

    /// Returns the begin of the first sample with an established subflow on another path.
    fn second_since_ns(&self) -> Option<u64> {
        let is_second =
            |sample: &&&Subflow| sample.path != self.first_path && sample.state == "established";
        let begin = |sample: &&Subflow| sample.t_ns.saturating_sub(sample.span_ns);
        self.samples.iter().filter(is_second).map(begin).min()
    }

    /// Returns the longest time for which the receive window limited a subflow.
    fn window_ns(&self) -> f64 {
        let mut by_subflow = BTreeMap::<u32, u64>::new();
        for sample in self.during() {
            let limits = sample.sender_activity.as_ref().map(|activity| &activity.limits_ns);
            let window = limits.map_or(0, |limits| {
                let limit = |part| limits.get(&part).copied().unwrap_or_default();
                limit(Part::PeerWindow).saturating_add(limit(Part::HeadOfLineBlocking))
            });
            let sum = by_subflow.entry(sample.subflow).or_default();
            *sum = window.saturating_add(*sum);
        }
        by_subflow.into_values().max().unwrap_or_default() as f64
    }

    /// Returns the longest time during the delay for which a subflow had packets in flight without
    /// an acknowledgement.
    fn silence_ns(&self) -> f64 {
        let mut silences = BTreeMap::<u32, (u64, u64)>::new();
        let mut longest = 0;
        for sample in self.during() {
            let (acked, silent_ns) = silences.entry(sample.subflow).or_insert((u64::MAX, 0));
            let is_silent = *acked == sample.bytes_acked && sample.in_flight_packets > 0;
            *silent_ns = if is_silent { silent_ns.saturating_add(sample.span_ns) } else { 0 };
            *acked = sample.bytes_acked;
            longest = longest.max(*silent_ns);
        }
        longest as f64
    }

    /// Returns the share of sampling periods that `is_counted` selects.
    fn period_share(&self, is_counted: impl Fn(&Period) -> bool) -> f64 {
        let mut acked = BTreeMap::<u32, u64>::new();
        let mut periods = BTreeMap::<u64, Period>::new();
        for sample in self.during() {
            let before = acked.insert(sample.subflow, sample.bytes_acked);
            let period = periods.entry(sample.t_ns / sample.span_ns.max(1)).or_default();
            period.is_in_flight |= sample.in_flight_packets > 0;
            // The first sample during the delay has nothing to compare with.
            let before = before.unwrap_or(sample.bytes_acked);
            period.has_acknowledged |= sample.bytes_acked > before;
        }
        let counted = periods.values().filter(|period| is_counted(period)).count();
        counted as f64 / periods.len().max(1) as f64
    }
}

/// State of all subflows in one sampling period.
#[derive(Debug, Default)]
struct Period {
    /// True if a subflow had packets in flight at the end of the period.
    is_in_flight: bool,
    /// True if data was acknowledged in the period.
    has_acknowledged: bool,
}

#[cfg(test)]
mod tests;
