//! What one direction of a link can be told to do: plain data, read by [`crate`]'s link model and
//! filled in by the scenario reader.
//!
//! A direction is a pipeline: impairments (loss, duplication, corruption) → queue and server →
//! delay → gate. netem below HTB has delay and server the other way round ([`PipelineOrder`]).

use std::sync::Arc;
use std::time::Duration;

use crate::Rate;

/// One direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectionConfig {
    /// Whether the server or the delay comes first.
    pub order: PipelineOrder,
    /// Random loss on entry, before the queue (as netem does it).
    pub loss: Loss,
    /// Chance that a packet enters twice.
    pub duplicate: Probability,
    /// Chance that one bit of a packet is flipped.
    pub corrupt: Probability,
    /// netem's `limit`: packets in the whole direction, in delay *and* waiting.
    pub limit_packets: Option<usize>,
    /// How packets leave the queue.
    pub shaper: Shaper,
    /// What waits before the shaper, and what is dropped.
    pub queue: Queue,
    /// Where the queue stands.
    pub position: QueuePosition,
    /// Propagation delay and its variation.
    pub delay: Delay,
    /// Largest IP packet that passes, in bytes; larger ones vanish (a PMTU black hole).
    pub mtu_bytes: u32,
    /// Bytes added to each IP packet when it is charged against rate and byte limits. 14, the
    /// Ethernet header, is what `tc` counts on veth and what Mininet therefore counts.
    pub overhead_bytes: u32,
    /// What happens to queued packets when the link goes down.
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
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always (as near as 32 bits come: 1 − 2⁻³²; the link model treats it as certain).
    pub const ALWAYS: Self = Self(u32::MAX);

    /// `numerator` in 2³² draws.
    pub const fn from_raw(numerator: u32) -> Self {
        Self(numerator)
    }

    /// From millionths: 1,000 is 0.1 %. Values of a million or more are [`Self::ALWAYS`].
    pub const fn from_millionths(millionths: u32) -> Self {
        if millionths >= 1_000_000 {
            return Self::ALWAYS;
        }
        Self(((millionths as u64 * (1 << 32)) / 1_000_000) as u32)
    }

    /// The chance as a 32-bit fraction.
    pub const fn as_raw(self) -> u32 {
        self.0
    }

    /// The chance as a number between 0 and 1, for display only.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(u32::MAX)
    }
}

/// Loss on entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// No loss.
    None,
    /// Each packet on its own.
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

/// How packets leave the queue.
#[derive(Debug, Clone, PartialEq)]
pub enum Shaper {
    /// At once.
    Unlimited,
    /// One after the other at the line rate, never a burst.
    Line(Rate),
    /// `tc tbf`: starts with a full bucket, so an idle link passes `burst` at once.
    TokenBucket {
        /// Token rate.
        rate: Rate,
        /// Bucket size.
        burst_bytes: u64,
    },
    /// A leaf class of `tc htb` with ceil = rate: two buckets, charged after the packet.
    Htb {
        /// Rate and ceil.
        rate: Rate,
        /// `burst`.
        burst_bytes: u64,
        /// `cburst`.
        cburst_bytes: u64,
    },
    /// Delivery opportunities of a recorded link, in Mahimahi's format.
    Trace(Arc<LinkTrace>),
}

/// A recorded link: at each of these times 1,504 bytes may pass; it repeats for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTrace {
    /// Delivery opportunities in milliseconds since the start, ascending, at least one; the last
    /// one is the period.
    pub opportunities_ms: Vec<u64>,
}

/// The queue before the shaper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// First in, first out; what does not fit is dropped.
    DropTail(QueueLimit),
    /// `CoDel` (RFC 8289).
    CoDel {
        /// Acceptable standing delay.
        target: Duration,
        /// Sliding window.
        interval: Duration,
        /// Hard limit.
        limit: QueueLimit,
    },
    /// PIE (RFC 8033).
    Pie {
        /// Target delay.
        target: Duration,
        /// Time between updates of the drop probability.
        update: Duration,
        /// Hard limit.
        limit: QueueLimit,
    },
}

/// When a queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// Never.
    Unlimited,
    /// When the waiting bytes (overhead included) would exceed this.
    Bytes(u64),
    /// When this many packets wait.
    Packets(u64),
    /// When the waiting bytes would exceed what the rate carries in this time; with a token bucket
    /// this is tbf's `latency`, and the burst is added as `tc` does.
    Time(Duration),
}

/// Where a queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePosition {
    /// In the network: the sender does not feel it but by loss and delay.
    Network,
    /// At the sending host's egress: a full queue pushes back on the sender's sockets.
    Host,
}

/// Propagation delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delay {
    /// One way.
    pub base: Duration,
    /// Variation around it.
    pub jitter: Option<Jitter>,
    /// netem's own `rate`: serialisation inside the delay line, which keeps the order.
    pub rate: Option<Rate>,
}

/// Variation of the delay, with netem's meaning of the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter {
    /// Shape.
    pub distribution: JitterDistribution,
    /// netem's `jitter`: the factor of the distribution table (for uniform: half the width).
    pub sd: Duration,
    /// Whether a packet may overtake another, as netem lets it.
    pub reorder: bool,
}

/// Shapes of jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JitterDistribution {
    /// mean ± sd, evenly.
    Uniform,
    /// Normal, from netem's table.
    Normal,
    /// Pareto, from netem's table: mean −0.03 sd, real standard deviation 0.82 sd.
    Pareto,
    /// A quarter normal, three quarters Pareto, from netem's table.
    ParetoNormal,
}

/// What a link does when it goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenDown {
    /// Everything queued or on the wire is lost, and so is what arrives.
    Drop,
    /// Queued packets wait for the link to come back; arrivals queue up.
    Hold,
}
