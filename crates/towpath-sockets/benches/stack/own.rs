//! Our own stack.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use socket2::Protocol;
use towpath_mptcp::connection;
use towpath_mptcp::path_manager::{InterfaceId, LocalAddress};
use towpath_mptcp::stack::{ConnectionError, Stack, StackConfig, StackNotice};
use towpath_net::Instant;
use towpath_os::Clock;
use towpath_sockets::stack::{ConnectionHandler, StackDevice, StackHandle};
use towpath_wire::ConnectionId;

use crate::network::{MTU, Network, address, target};
use crate::{Case, Failure, Shared, TrialMetrics, kernel, observe};

const CHUNK_BYTES: usize = 128 * 1024;

pub(crate) fn trial(case: Case, length: Duration) -> Result<TrialMetrics, Failure> {
    let network = Network::new(case.paths)?;
    let shared = Arc::new(Shared::default());
    let server = kernel::serve(&network.namespace, Protocol::MPTCP, case.sends, &shared)?;
    let clock = Clock::start();
    let host = start_stack(clock, network.devices)?;
    let handler = TowpathEnd {
        sends: case.sends,
        shared: Arc::clone(&shared),
        data: Bytes::from(vec![0x74; CHUNK_BYTES]),
        calls: 0,
    };
    let notice_shared = Arc::clone(&shared);
    host.call(move |driver| {
        driver.on_notice(move |_, _, notice| {
            if matches!(notice, StackNotice::SubflowEstablished { .. }) {
                notice_shared.subflows.fetch_add(1, Ordering::Relaxed);
            }
        });
        let config = connection::ConnectionConfig::linux();
        let local = Some(address(0, 2));
        let connection = driver.stack.connect(driver.now, local, target(), config)?;
        driver.attach(connection, Box::new(handler));
        Ok::<_, towpath_mptcp::stack::ConnectError>(connection)
    })??;
    let metrics = observe(case, length, &shared);
    shared.over.store(true, Ordering::Relaxed);
    host.finish()?;
    let _ = server.join(); // a panic has already been printed
    metrics
}

fn start_stack(clock: Clock, devices: Vec<StackDevice>) -> Result<StackHandle, Failure> {
    let mut stack = Stack::new(StackConfig {
        seed: 1,
        syn_backlog: 8,
        time_wait_limit: 8,
        report_decisions: false,
    });
    let mut interfaces = Vec::new();
    for (path, device) in (0_u8..).zip(devices) {
        let interface = InterfaceId(u32::from(path));
        stack.add_interface(interface, u32::from(MTU));
        let address = LocalAddress {
            address_id: path + 1,
            address: address(path, 2),
            port: None,
            interface,
            up: true,
            subflow: true,
            signal: false,
            backup: false,
            fullmesh: false,
            laminar: false,
        };
        stack.set_address(clock.now(), address);
        interfaces.push((interface, device));
    }
    Ok(StackHandle::start("bench", clock, stack, interfaces)?)
}

struct TowpathEnd {
    sends: bool,
    shared: Arc<Shared>,
    data: Bytes,
    calls: u32,
}

impl ConnectionHandler for TowpathEnd {
    fn progress(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        while let Some(data) = stack.read(now, connection) {
            if data.is_empty() {
                break;
            }
            self.shared.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        if self.sends {
            loop {
                let mut chunk = self.data.clone();
                if stack.write(now, connection, &mut chunk) < self.data.len() {
                    break;
                }
            }
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(16) {
            self.shared.store_cpu_time();
        }
    }

    fn closed(&mut self, _: Instant, _: &Stack, _: ConnectionId, _: Option<ConnectionError>) {}
}
