//! Our own stack in virtual time, where every time is exact.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_mptcp::settings::HostSettings;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{ConnectionError, InterfaceId, LocalAddress, Stack, StackEvent};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::Packet;

use crate::host::{CallResult, HostUnderTest, Tolerance};
use crate::parse::endpoint;
use crate::script::{
    Call, EndpointUse, FailureReason, HostKind, MAX_PATHS, Setting, Transport, host_address,
    peer_address,
};

/// Port of listening sockets and of connections.
const PORT: u16 = 80;

/// A host with our own stack, profile `linux-6.18`.
#[derive(Debug)]
pub struct OwnStack {
    stack: Stack,
    config: ConnectionConfig,
    now: Instant,
    endpoints: Vec<(u8, EndpointUse)>,
    mtu_bytes: u32,
    /// Connection that the application opened or accepted.
    id: Option<ConnectionId>,
    /// Connection that waits to be accepted.
    accepted: Option<ConnectionId>,
    connected: bool,
    closed: Option<Result<(), ConnectionError>>,
    /// Packets of the stack that the runner has not taken yet, each with its time.
    emitted: VecDeque<(Duration, Vec<u8>)>,
    /// Set when interfaces and addresses are configured.
    configured: bool,
    write_closed: bool,
}

impl OwnStack {
    /// Creates a host before its first packet.
    pub fn new(transport: Transport) -> Self {
        let mut config = HostSettings::linux_6_18().connection;
        config.multipath = transport == Transport::Mptcp;
        // Scripts disable Nagle's algorithm unless they enable it, also on the kernel.
        config.subflow.nagle = false;
        Self {
            stack: Stack::new(stack::StackConfig::default()),
            config,
            now: Instant::ZERO,
            endpoints: Vec::new(),
            mtu_bytes: 1_500,
            id: None,
            accepted: None,
            connected: false,
            closed: None,
            emitted: VecDeque::new(),
            configured: false,
            write_closed: false,
        }
    }

    /// Configures interfaces and addresses, once all settings are known.
    fn configure_addresses(&mut self) {
        if std::mem::replace(&mut self.configured, true) {
            return;
        }
        for path in 0..MAX_PATHS {
            self.stack.add_interface(InterfaceId(path.into()), self.mtu_bytes);
            let usage = self.endpoints.iter().find(|(endpoint_path, _)| *endpoint_path == path);
            let usage = usage.map_or_else(EndpointUse::default, |(_, usage)| *usage);
            self.set_address(path, usage);
        }
    }

    fn set_address(&mut self, path: u8, usage: EndpointUse) {
        let EndpointUse { subflow, signal, backup, fullmesh } = usage;
        let address = LocalAddress {
            address_id: path + 1,
            address: host_address(path),
            port: None,
            interface: InterfaceId(path.into()),
            up: true,
            subflow,
            signal,
            backup,
            fullmesh,
            laminar: false,
        };
        self.stack.set_address(self.now, address);
    }

    /// Collects the packets and events of the stack.
    fn drain(&mut self) {
        let now = Duration::from_nanos(self.now.as_nanos());
        while let Some((_, packet)) = self.stack.poll_transmit(self.now) {
            self.emitted.extend(packet.split().map(|packet| (now, packet.to_vec())));
        }
        while let Some(event) = self.stack.poll_event() {
            match event {
                StackEvent::Accepted { connection, .. } => self.accepted = Some(connection),
                StackEvent::Connected(_) => self.connected = true,
                StackEvent::Closed { connection, error } if self.is_current(connection) => {
                    self.closed = Some(error.map_or(Ok(()), Err));
                }
                StackEvent::Closed { .. }
                | StackEvent::Notice { .. }
                | StackEvent::Readable(_)
                | StackEvent::Writable(_)
                | StackEvent::Trace { .. } => {}
            }
        }
    }

    fn is_current(&self, connection: ConnectionId) -> bool {
        self.id.or(self.accepted) == Some(connection)
    }

    fn failure(&self) -> Option<CallResult> {
        let error = self.closed?.err()?;
        Some(CallResult::Failed(match error {
            ConnectionError::Reset | ConnectionError::Protocol(_) => FailureReason::Reset,
            ConnectionError::Refused => FailureReason::Refused,
            ConnectionError::TimedOut => FailureReason::TimedOut,
            ConnectionError::NoPath => FailureReason::Unreachable,
            ConnectionError::Aborted => FailureReason::Closed,
        }))
    }

    fn read(&mut self, id: ConnectionId) -> CallResult {
        let mut data = Vec::new();
        loop {
            match self.stack.read(self.now, id) {
                Some(bytes) if bytes.is_empty() && data.is_empty() => {
                    return self.failure().unwrap_or(CallResult::End);
                }
                Some(bytes) if bytes.is_empty() => break,
                Some(bytes) => data.extend_from_slice(&bytes),
                None => break,
            }
        }
        if !data.is_empty() {
            return CallResult::Data(data);
        }
        self.failure().unwrap_or(CallResult::Nothing)
    }

    fn write(&mut self, id: ConnectionId, data: &[u8]) -> CallResult {
        if self.write_closed || self.closed.is_some() {
            return self.failure().unwrap_or(CallResult::Failed(FailureReason::Closed));
        }
        let mut data = Bytes::copy_from_slice(data);
        match self.stack.write(self.now, id, &mut data) {
            0 => CallResult::Nothing,
            len => CallResult::Taken(len),
        }
    }

    fn connect(&mut self) -> Result<CallResult, String> {
        let remote = SocketAddr::new(peer_address(0), PORT);
        let id = self.stack.connect(self.now, None, remote, self.config.clone());
        self.id = Some(id.map_err(|error| error.to_string())?);
        Ok(CallResult::Done)
    }
}

impl HostUnderTest for OwnStack {
    fn kind(&self) -> HostKind {
        HostKind::Towpath
    }

    fn tolerance(&self) -> Tolerance {
        // Timers of the profile fire at multiples of 4 ms.
        let (early, late) = (Duration::ZERO, Duration::from_millis(8));
        Tolerance { early, late, at_once: Duration::ZERO }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.as_nanos())
    }

    fn set(&mut self, setting: &Setting) -> Result<(), String> {
        let value = setting.value.as_str();
        let on = value == "on";
        let config = &mut self.config;
        match setting.name.as_str() {
            "nagle" => config.nagle = on,
            "congestion" => value.clone_into(&mut config.subflow.congestion_control),
            "timestamps" => config.subflow.timestamps = on,
            "sack" => config.subflow.sack = on,
            "window-scaling" if !on => config.subflow.window_scale = None,
            "ecn" => config.subflow.ecn = on,
            "idle-restart" => config.subflow.restart_after_idle = on,
            "mtu-probing" => config.subflow.black_hole_detection = on,
            "checksum" => config.checksum = on,
            "receive-buffer" => {
                let bytes = parse_number(value)?;
                config.receive_buffer = ReceiveBuffer {
                    mode: ReceiveBufferMode::Fixed,
                    initial_bytes: bytes,
                    max_bytes: bytes,
                    window_share: WindowShare::Percent(100),
                };
            }
            "send-buffer" => {
                config.send_buffer_bytes = parse_number(value)?;
                config.send_buffer_grows = false;
            }
            "subflows" => config.subflow_limit = parse_number(value)?,
            "add-addr-accepted" => config.accept_limit = parse_number(value)?,
            "add-addr-timeout" => {
                config.add_address_timeout = Duration::from_secs(parse_number(value)?);
            }
            "close-timeout" => config.close_timeout = Duration::from_secs(parse_number(value)?),
            "user-timeout" => {
                config.subflow.user_timeout = Some(Duration::from_millis(parse_number(value)?));
            }
            "syn-retries" => config.subflow.syn_retries = parse_number(value)?,
            "retries" => config.subflow.retries = parse_number(value)?,
            "keepalive" => {
                let numbers: Vec<u64> =
                    value.split(' ').map(parse_number).collect::<Result<_, _>>()?;
                let [idle, interval, count] = *numbers else {
                    return Err("expected three numbers".to_owned());
                };
                let seconds = Duration::from_secs;
                config.subflow.keepalive = Some((seconds(idle), seconds(interval), count as u32));
            }
            "mtu" => self.mtu_bytes = parse_number(value)?,
            "endpoint" => self.endpoints.push(endpoint(value)?),
            _ => return Err("our own stack has no such setting".to_owned()),
        }
        Ok(())
    }

    fn inject(&mut self, packet: &[u8]) -> Result<(), String> {
        self.configure_addresses();
        let bytes = Bytes::copy_from_slice(packet);
        // A packet that cannot be parsed at all is lost, as at any device.
        if let Ok(packet) = Packet::from_bytes(&bytes, false, 0) {
            let path = match packet.destination() {
                Some(IpAddr::V4(address)) => address.octets()[2],
                Some(IpAddr::V6(_)) | None => 0,
            };
            self.stack.handle_packet(self.now, InterfaceId(path.into()), packet);
        }
        self.drain();
        Ok(())
    }

    fn next(&mut self, until: Duration) -> Result<Option<(Duration, Vec<u8>)>, String> {
        self.configure_addresses();
        self.drain();
        let until = Instant::from_nanos(until.as_nanos() as u64);
        while self.emitted.is_empty() {
            let timeout = self.stack.poll_timeout().filter(|(deadline, _)| *deadline <= until);
            let Some((deadline, _)) = timeout else { break };
            self.now = self.now.max(deadline);
            self.stack.handle_timeout(self.now);
            self.drain();
        }
        let packet = self.emitted.pop_front();
        if packet.is_none() {
            self.now = self.now.max(until);
        }
        Ok(packet)
    }

    fn call(&mut self, call: Call, data: &[u8]) -> Result<CallResult, String> {
        self.configure_addresses();
        let result = match (call, self.id) {
            (Call::Listen, _) => {
                let listener = self.stack.listen(PORT, self.config.clone());
                listener.map_err(|error| error.to_string())?;
                CallResult::Done
            }
            (Call::Connect, _) => self.connect()?,
            (Call::Accept, _) => match self.accepted.take() {
                Some(id) => {
                    self.id = Some(id);
                    CallResult::Done
                }
                None => CallResult::Nothing,
            },
            (Call::Connected, _) if self.connected => CallResult::Done,
            (Call::Connected, _) => self.failure().unwrap_or(CallResult::Nothing),
            (Call::RemoveAddress(path), _) => {
                self.stack.remove_address(self.now, host_address(path));
                CallResult::Done
            }
            (Call::AddEndpoint(path, usage), _) => {
                self.set_address(path, usage);
                CallResult::Done
            }
            (_, None) => return Err("there is no connection yet".to_owned()),
            (Call::Write(_), Some(id)) => self.write(id, data),
            (Call::Read, Some(id)) => self.read(id),
            (Call::Shutdown, Some(id)) => {
                self.write_closed = true;
                self.stack.shutdown(self.now, id);
                CallResult::Done
            }
            (Call::Close, Some(id)) => {
                self.stack.release(self.now, id);
                CallResult::Done
            }
            (Call::Abort, Some(id)) => {
                self.stack.abort(self.now, id);
                CallResult::Done
            }
        };
        self.drain();
        Ok(result)
    }
}

fn parse_number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{value}` is not a number"))
}
