//! Threads and memory that a test requires from its start.

use towpath_run::traffic::session::{RECEIVED_REQUEST_BYTES, SENT_REQUEST_BYTES};
use towpath_run::traffic::udp::{RECEIVER_MEMORY_BYTES, ROW_MEMORY_BYTES, planned_rows};
use towpath_scenario::flow_plan::{directions, planned_requests, streams};
use towpath_scenario::{DataDirection, Pattern, Scenario};
use towpath_sockets::stream::kernel::BLOCK_BYTES;
use towpath_sockets::test_memory::MemoryDemand;

use crate::admission::ResourceDemand;
use crate::protocol::TestPlan;
use crate::quic_acceptor::STREAM_GAP_BYTES;

/// Memory that a thread uses, in bytes.
const THREAD_BYTES: u64 = 32 * 1024;
/// Memory of a QUIC connection: its receive window, filled with unread data.
const CONNECTION_BYTES: u64 = towpath_quic::config::MAX_WINDOW_BYTES;

/// Memory of a stream's TLS buffers, in bytes.
const TLS_STREAM_BYTES: u64 = 128 * 1024;
/// Memory of a test's fixed parts, in bytes.
const TEST_BYTES: u64 = 16 * 1024;

/// Returns the memory of a plan and its parsed form, in bytes.
pub(super) fn plan_bytes(plan: &TestPlan) -> u64 {
    TEST_BYTES + plan.scenario.len() as u64 * 4
}

/// Returns the threads and memory that a test requires from its start.
pub(super) fn resource_demand(plan: &TestPlan, scenario: &Scenario) -> ResourceDemand {
    let block =
        plan.settings.block_bytes.map_or(BLOCK_BYTES as u64, u64::from).max(BLOCK_BYTES as u64);
    let (mut threads, mut memory) = (2, MemoryDemand::default());
    for flow in &scenario.flows {
        let stream_count = u64::from(streams(&flow.pattern));
        let transfer_count = stream_count * directions(&flow.pattern).len() as u64;
        let is_exchange = matches!(
            flow.pattern,
            Pattern::Exchange(_) | Pattern::Video(_) | Pattern::Web(_) | Pattern::Udping(_)
        );
        threads += 1;
        let sent_requests = planned_requests(&flow.pattern, DataDirection::Down);
        let received_requests = planned_requests(&flow.pattern, DataDirection::Up);
        memory.planned_bytes +=
            sent_requests * SENT_REQUEST_BYTES + received_requests * RECEIVED_REQUEST_BYTES;
        if plan.settings.tls {
            memory.setup_bytes += stream_count * TLS_STREAM_BYTES;
        }
        if let Pattern::Udp(udp) = &flow.pattern {
            let rows = planned_rows(udp, scenario.run.sample) * ROW_MEMORY_BYTES;
            let direction_count = directions(&flow.pattern).len() as u64;
            memory.setup_bytes +=
                direction_count * (RECEIVER_MEMORY_BYTES + rows) + u64::from(udp.bytes);
        } else if plan.transport.is_quic() {
            memory.setup_bytes +=
                CONNECTION_BYTES + transfer_count * block + stream_count * STREAM_GAP_BYTES;
        } else if is_exchange {
            memory.setup_bytes += BLOCK_BYTES as u64;
        } else {
            threads += transfer_count;
            memory.setup_bytes += transfer_count * block;
        }
    }
    memory.setup_bytes += threads * THREAD_BYTES;
    ResourceDemand { threads, memory }
}
