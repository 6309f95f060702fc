//! Configuration of one direction of a link: plain data, filled in by the scenario reader and read
//! by [`crate`]'s link model.
//!
//! A direction is a pipeline: impairments (loss, duplication, corruption) → queue and server →
//! delay → gate. netem below HTB puts the delay before the server ([`PipelineOrder`]).

use std::sync::Arc;
use std::time::Duration;

use crate::Rate;

/// Configuration of one direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectionConfig {
    /// Order of the server and the delay line.
    pub order: PipelineOrder,
    /// Random loss on entry, before the queue (as netem does it).
    pub loss: Loss,
    /// Chance that a packet enters twice.
    pub duplicate: Probability,
    /// Chance that one bit of a packet is flipped.
    pub corrupt: Probability,
    /// netem's `limit`: packets in the delay line and in the queue together.
    pub limit_packets: Option<usize>,
    /// Server that empties the queue: the rate and burst at which packets leave.
    pub shaper: Shaper,
    /// Queue before the shaper, with its limit and drop policy.
    pub queue: Queue,
    /// Queue at the sending host, with back-pressure, or in the network.
    pub position: QueuePosition,
    /// Propagation delay and its variation.
    pub delay: Delay,
    /// Largest IP packet that passes, in bytes; larger ones vanish (a PMTU black hole).
    pub mtu_bytes: u32,
    /// Bytes added to each IP packet when it is charged against rate and byte limits. 14, the
    /// Ethernet header, is what `tc` counts on veth and what Mininet therefore counts.
    pub overhead_bytes: u32,
    /// Treatment of queued packets when the link goes down.
    pub when_down: WhenDown,
}

impl Default for DirectionConfig {
    /// An ideal wire: no limit, no delay, no loss.
    fn default() -> Self {
        Self {
            order: PipelineOrder::ServerThenDelay,
            loss: Loss::None,
            duplicate: Probability::NEVER,
            corrupt: Probability::NEVER,
            limit_packets: None,
            shaper: Shaper::Unlimited,
            queue: Queue::DropTail(QueueLimit::Unlimited),
            position: QueuePosition::Network,
            delay: Delay::default(),
            mtu_bytes: u32::MAX,
            overhead_bytes: 14,
            when_down: WhenDown::Drop,
        }
    }
}

/// Order of the two parts that hold packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineOrder {
    /// Queue and shaper, then propagation: a router and its wire.
    ServerThenDelay,
    /// Delay, then the shaper paces the head of the delay line: netem as a child of HTB or TBF.
    DelayThenServer,
}

/// A chance in units of 2⁻³²; exact, so that equal scenarios give equal bytes everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    /// Probability 0; an event with it draws no random number.
    pub const NEVER: Self = Self(0);
    /// Probability 1, stored as 1 − 2⁻³²; the link model treats it as certain.
    pub const ALWAYS: Self = Self(u32::MAX);

    /// Returns the probability `numerator` / 2³².
    pub const fn from_raw(numerator: u32) -> Self {
        Self(numerator)
    }

    /// Converts millionths: 1,000 is 0.1 %. Values of a million or more are [`Self::ALWAYS`].
    pub const fn from_millionths(millionths: u32) -> Self {
        if millionths >= 1_000_000 {
            return Self::ALWAYS;
        }
        Self(((millionths as u64 * (1 << 32)) / 1_000_000) as u32)
    }

    /// Returns the numerator over 2³².
    pub const fn as_raw(self) -> u32 {
        self.0
    }

    /// Returns a number between 0 and 1, for display only.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(u32::MAX)
    }
}

/// Random loss model, applied on entry before the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// No random loss at all.
    None,
    /// Independent loss of each packet with this probability.
    Random(Probability),
    /// Two states (Gilbert–Elliott), with netem's meaning and order of draws
    /// (`netem loss gemodel p r 1-h 1-k`).
    GilbertElliott {
        /// p: good → bad.
        to_bad: Probability,
        /// r: bad → good.
        to_good: Probability,
        /// 1−h: loss in the bad state.
        loss_in_bad: Probability,
        /// 1−k: loss in the good state.
        loss_in_good: Probability,
    },
    /// Whole bursts of consecutive packets are lost; each packet outside a burst starts one with
    /// chance `start`.
    Burst {
        /// Chance that a burst starts at a packet.
        start: Probability,
        /// Packets lost in a burst.
        length_packets: u32,
    },
}

/// Server that empties the queue.
#[derive(Debug, Clone, PartialEq)]
pub enum Shaper {
    /// No rate limit: each packet leaves at once.
    Unlimited,
    /// Packets leave one after the other at the line rate, never in a burst.
    Line(Rate),
    /// `tc tbf`: starts with a full bucket, so an idle link passes `burst` at once.
    TokenBucket {
        /// Rate at which tokens arrive.
        rate: Rate,
        /// Bucket size in bytes; larger packets are dropped.
        burst_bytes: u64,
    },
    /// A leaf class of `tc htb` with ceil = rate: two buckets, charged after the packet.
    Htb {
        /// `rate` and `ceil`, which are equal.
        rate: Rate,
        /// `burst` of the class, in bytes.
        burst_bytes: u64,
        /// `cburst` of the class, in bytes.
        cburst_bytes: u64,
    },
    /// Delivery opportunities of a recorded link, in Mahimahi's format.
    Trace(Arc<LinkTrace>),
}

/// A recorded link: at each of these times 1,504 bytes may pass; the trace repeats without end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTrace {
    /// Delivery opportunities in milliseconds since the start, ascending, at least one; the last
    /// one is the period.
    pub opportunities_ms: Vec<u64>,
}

/// The queue before the shaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// First in, first out; arrivals that do not fit are dropped.
    DropTail(QueueLimit),
    /// `CoDel` (RFC 8289), which drops at dequeue.
    CoDel {
        /// Acceptable standing queue delay (RFC 8289's TARGET).
        target: Duration,
        /// Time above the target before the first drop (RFC 8289's INTERVAL).
        interval: Duration,
        /// Hard limit; arrivals beyond it are dropped.
        limit: QueueLimit,
    },
    /// PIE (RFC 8033), which drops at enqueue.
    Pie {
        /// Reference queue delay (RFC 8033's `QDELAY_REF`).
        target: Duration,
        /// Time between updates of the drop probability.
        update: Duration,
        /// Hard limit; arrivals beyond it are dropped.
        limit: QueueLimit,
    },
}

/// Size at which a queue drops arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// No limit: the queue never drops arrivals.
    Unlimited,
    /// Full when the waiting bytes (overhead included) would exceed this.
    Bytes(u64),
    /// Full when this many packets wait.
    Packets(u64),
    /// Full when the waiting bytes would exceed what the rate carries in this time. With a token
    /// bucket this is tbf's `latency`, and the burst is added as `tc` does.
    Time(Duration),
}

/// Location of a queue: in the network or at the sending host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePosition {
    /// In the network: the sender notices it only by loss and delay.
    Network,
    /// At the sending host's egress: a full queue pushes back on the sender's sockets.
    Host,
}

/// Propagation delay and jitter of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delay {
    /// Mean one-way propagation delay.
    pub base: Duration,
    /// Random variation around `base`; `None` is a constant delay.
    pub jitter: Option<Jitter>,
    /// netem's own `rate`: serialisation inside the delay line, which keeps the order.
    pub rate: Option<Rate>,
}

/// Variation of the delay, with netem's meaning of the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter {
    /// Shape of the random variation.
    pub distribution: JitterDistribution,
    /// netem's `jitter`: the factor of the distribution table (for uniform: half the width).
    pub sd: Duration,
    /// True if a packet may overtake another, as netem allows.
    pub reorder: bool,
}

/// Probability distribution of jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JitterDistribution {
    /// Uniform between mean − sd and mean + sd.
    Uniform,
    /// Normal distribution, from netem's table.
    Normal,
    /// Pareto, from netem's table: mean −0.03 sd, real standard deviation 0.82 sd.
    Pareto,
    /// A quarter normal, three quarters Pareto, from netem's table.
    ParetoNormal,
}

/// Treatment of packets by a link that goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenDown {
    /// Packets in the queue, on the wire and arriving are lost.
    Drop,
    /// Queued packets wait for the link to come back; arrivals queue up.
    Hold,
}
