//! Order and processor time of runs, for comparing them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Position of a run among those made together, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunOrder {
    /// Kind of the order.
    pub kind: OrderKind,
    /// Seed of the random order.
    pub seed: u64,
    /// Position of this run, from 1.
    pub position: u32,
    /// Total number of runs.
    pub of: u32,
}

/// Order of the transports within each repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// Order as listed, in every repetition.
    #[default]
    Fixed,
    /// Random order, shuffled for each repetition.
    Random,
}

/// Processor time that the two ends of all flows used; see `docs/reference/metrics.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// Processor time of the hosts that opened connections; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_ns: Option<u64>,
    /// Processor time of the hosts that accepted connections; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<u64>,
    /// Threads or processes whose time was counted.
    #[serde(alias = "counted")]
    pub accounting: CpuAccounting,
}

/// Scope of a processor-time measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CpuAccounting {
    /// Threads that move data through the kernel's sockets, with their system calls.
    SocketThreads,
    /// Threads that move data and run the transport itself, with their system calls.
    StackThreads,
    /// Some threads of each kind.
    MixedThreads,
    /// The whole process on each host.
    Process,
}

impl CpuTime {
    /// Returns processor seconds per gigabyte (10⁹ bytes) delivered, both ends together. `None`
    /// when either end is unknown or nothing was delivered.
    pub fn seconds_per_gigabyte(&self, delivered_bytes: u64) -> Option<f64> {
        let total_ns = self.client_cpu_ns? as f64 + self.server_cpu_ns? as f64;
        // Nanoseconds for each byte are seconds for each gigabyte.
        (delivered_bytes > 0).then(|| total_ns / delivered_bytes as f64)
    }
}
