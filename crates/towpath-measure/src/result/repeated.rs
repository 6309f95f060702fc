//! What makes a run comparable with others: its place among them, and what it cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A run's place among those that were made together, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunOrder {
    /// How the order came about.
    pub kind: OrderKind,
    /// Seed of the random order.
    pub seed: u64,
    /// Number of this run, from 1.
    pub position: u32,
    /// Number of all runs.
    pub of: u32,
}

/// How the transports of a repetition follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// As they were named, in every repetition.
    #[default]
    Fixed,
    /// Shuffled in each repetition.
    Random,
}

/// Processor time that the two ends of all flows used; see `docs/metrics.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// Of the hosts that opened connections; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_ns: Option<u64>,
    /// Of the hosts that accepted them; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<u64>,
    /// What was counted.
    #[serde(rename = "counted")]
    pub accounting: CpuAccounting,
}

/// Whose time a [`CpuTime`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CpuAccounting {
    /// Threads that move data through the kernel's sockets, with their system calls.
    SocketThreads,
    /// Threads that move data and run the transport itself, with their system calls.
    StackThreads,
    /// Some of each.
    MixedThreads,
    /// The whole process on each host.
    Process,
}

impl CpuTime {
    /// Seconds for each gigabyte (10⁹ bytes) that was delivered, both ends together; `None` when one
    /// of them is not known, or nothing was delivered.
    pub fn seconds_per_gigabyte(&self, delivered_bytes: u64) -> Option<f64> {
        let both = self.client_cpu_ns? as f64 + self.server_cpu_ns? as f64;
        // Nanoseconds for each byte are seconds for each gigabyte.
        (delivered_bytes > 0).then(|| both / delivered_bytes as f64)
    }
}
