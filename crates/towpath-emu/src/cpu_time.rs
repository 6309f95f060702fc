//! Processor time of the threads that send and receive.
//!
//! A thread's clock counts its system calls, and so the kernel's work for the packets that it
//! sends. Most of the kernel's work for arriving packets happens in the emulator's thread, which
//! delivers them. That time is not counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_os::sys;
use towpath_result::{CpuAccounting, CpuTime};
use towpath_scenario::{Flow, Pattern, Scenario};

use crate::network::{EmulatedNetwork, HostNamespace};

/// Processor time, summed over the threads of each end.
#[derive(Debug, Default)]
pub(crate) struct CpuMeters {
    client_ns: AtomicU64,
    server_ns: AtomicU64,
}

impl CpuMeters {
    /// Counts the calling thread's processor time from now until that thread drops the guard.
    pub(crate) fn thread(&self, is_client: bool) -> CpuMeter<'_> {
        let sum = if is_client { &self.client_ns } else { &self.server_ns };
        CpuMeter { sum, start: sys::thread_cpu_time() }
    }
}

/// Guard that counts a thread's time while it lives.
#[derive(Debug)]
pub(crate) struct CpuMeter<'a> {
    sum: &'a AtomicU64,
    start: Duration,
}

impl Drop for CpuMeter<'_> {
    fn drop(&mut self) {
        let spent = sys::thread_cpu_time().saturating_sub(self.start);
        self.sum.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Times of the threads of our own stacks and QUIC at the start of the traffic.
#[derive(Debug)]
pub(crate) struct StackCpuStart {
    /// Time of each host's stack; `None` where the kernel's is used.
    stacks: Vec<Option<Duration>>,
}

impl StackCpuStart {
    pub(crate) fn now(network: &EmulatedNetwork) -> Self {
        Self { stacks: stack_times(network) }
    }

    /// Returns both ends' time since; `None` where it cannot be attributed to an end.
    pub(crate) fn until_now(
        self,
        network: &EmulatedNetwork,
        meters: &CpuMeters,
    ) -> Option<CpuTime> {
        let roles = host_roles(&network.scenario)?;
        let mut ends = [&meters.client_ns, &meters.server_ns].map(|s| s.load(Ordering::Relaxed));
        let (mut has_kernels, mut has_own_stacks) = (ends.iter().any(|spent| *spent > 0), false);
        for ((role, before), after) in roles.iter().zip(self.stacks).zip(stack_times(network)) {
            let spent = after.map(|after| after.saturating_sub(before.unwrap_or_default()));
            let [client, server] = &mut ends;
            match (role, spent) {
                (HostRole::None, _) => {}
                (HostRole::Client | HostRole::Server | HostRole::Both, None) => has_kernels = true,
                (HostRole::Client, Some(spent)) => {
                    (has_own_stacks, *client) = (true, *client + nanos(spent));
                }
                (HostRole::Server, Some(spent)) => {
                    (has_own_stacks, *server) = (true, *server + nanos(spent));
                }
                // One thread serves both ends.
                (HostRole::Both, Some(_)) => return None,
            }
        }
        let [client, server] = ends;
        let accounting = match (has_kernels, has_own_stacks) {
            (_, false) => CpuAccounting::SocketThreads,
            (false, true) => CpuAccounting::StackThreads,
            (true, true) => CpuAccounting::MixedThreads,
        };
        Some(CpuTime { client_cpu_ns: Some(client), server_cpu_ns: Some(server), accounting })
    }
}

fn nanos(span: Duration) -> u64 {
    span.as_nanos() as u64
}

fn stack_times(network: &EmulatedNetwork) -> Vec<Option<Duration>> {
    let thread_time = |host: &HostNamespace| {
        let HostNamespace { stack, quic, .. } = host;
        let stack = stack.as_ref().and_then(|stack| stack.call(|_| sys::thread_cpu_time()).ok());
        let quic = quic.as_ref().and_then(|quic| quic.call(|_| sys::thread_cpu_time()).ok());
        match (stack, quic) {
            (None, None) => None,
            (stack, quic) => Some(stack.unwrap_or_default() + quic.unwrap_or_default()),
        }
    };
    network.hosts.iter().map(thread_time).collect()
}

/// Role of a host in all flows together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostRole {
    None,
    Client,
    Server,
    Both,
}

/// Returns each host's role; `None` if a flow is a command, whose processes are not measured.
fn host_roles(scenario: &Scenario) -> Option<Vec<HostRole>> {
    let is_command = |pattern: &Pattern| matches!(pattern, Pattern::Run { .. });
    // Datagram flows over single paths use no transport whose cost is measured.
    let flows = scenario.flows.iter();
    let is_datagram_flow =
        |flow: &&Flow| matches!(flow.pattern, Pattern::Udping(_) | Pattern::Udp(_));
    let flows: Vec<_> = flows.filter(|flow| !is_datagram_flow(flow)).collect();
    if flows.is_empty() || flows.iter().any(|flow| is_command(&flow.pattern)) {
        return None;
    }
    let role = |host: usize| {
        let opens = flows.iter().any(|flow| flow.from == host);
        let accepts = flows.iter().any(|flow| flow.to == host);
        match (opens, accepts) {
            (false, false) => HostRole::None,
            (true, false) => HostRole::Client,
            (false, true) => HostRole::Server,
            (true, true) => HostRole::Both,
        }
    };
    Some((0..scenario.hosts.len()).map(role).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_of_the_thread_itself_counts() {
        let meters = CpuMeters::default();
        let before = sys::thread_cpu_time();
        {
            let _meter = meters.thread(true);
            while sys::thread_cpu_time().saturating_sub(before) < Duration::from_millis(5) {}
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _meter = meters.thread(false);
                });
            });
        }
        let client = meters.client_ns.load(Ordering::Relaxed);
        let server = meters.server_ns.load(Ordering::Relaxed);
        assert!(client >= 4_000_000 && server < client, "{client} and {server}");
    }
}
