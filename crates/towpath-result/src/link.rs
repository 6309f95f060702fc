//! Samples of the emulated or simulated links.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_net::{Packet, Topology};
use towpath_scenario::DataDirection;
use towpath_scenario::network::ReportedDirection;

/// State of one direction of a link; totals count from the start of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// Time of the sample.
    pub t_ns: u64,
    /// Name of the path or bottleneck.
    pub path: String,
    /// Direction: `up` (from the path's first host) or `down`.
    pub direction: DataDirection,
    /// IP packets that entered the link.
    pub offered_packets: u64,
    /// IP bytes that left the link.
    pub delivered_bytes: u64,
    /// IP packets that left the link.
    pub delivered_packets: u64,
    /// IP packets dropped by the queue: full, or dropped by AQM.
    pub dropped_queue_packets: u64,
    /// IP packets dropped by random loss.
    pub dropped_loss_packets: u64,
    /// IP packets dropped because the link was down.
    pub dropped_down_packets: u64,
    /// Bytes waiting in the queue.
    pub backlog_bytes: u64,
}

impl Link {
    /// Samples a link direction at `t_ns`; `None` if the topology lacks it.
    pub fn sample<P: Packet>(
        link: &ReportedDirection,
        t_ns: u64,
        topology: &Topology<P>,
    ) -> Option<Self> {
        let counters = topology.counters(link.id)?;
        Some(Self {
            t_ns,
            path: link.name.clone(),
            direction: link.direction,
            offered_packets: counters.offered.packets,
            delivered_bytes: counters.delivered.bytes,
            delivered_packets: counters.delivered.packets,
            dropped_queue_packets: counters.queue_full.packets + counters.aqm.packets,
            dropped_loss_packets: counters.loss.packets,
            dropped_down_packets: counters.down.packets,
            backlog_bytes: topology.queue_length(link.id).map_or(0, |(_, bytes)| bytes),
        })
    }
}
