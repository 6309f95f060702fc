//! One connection: the library's state plus path management, policy and records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use noq_proto::{ConnectionEvent, ConnectionHandle, Dir, Endpoint, PathId, StreamEvent, VarInt};
use towpath_net::Instant;

use crate::config::{QuicConfig, var_int};
use crate::congestion::{PathControllerHandle, UnknownCongestionControl};
use crate::error::ConnectionError;
use crate::host::LocalAddress;
use crate::identity::Fingerprint;
use crate::paths::PathRecord;
use crate::policy::Policy;
use crate::remotes::RemoteAddresses;
use crate::status::{ConnectionId, ConnectionStatus, PathNotice, QuicEvent, StreamId};
use crate::time::TimeConverter;
use crate::tls::EXPORT_LABEL;

/// A connection of a host.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) inner: noq_proto::Connection,
    pub(crate) id: ConnectionId,
    pub(crate) handle: ConnectionHandle,
    /// Local port of the connection's socket.
    pub(crate) socket: u16,
    /// True if this end opened the connection.
    pub(crate) opener: bool,
    pub(crate) config: QuicConfig,
    pub(crate) clock: TimeConverter,
    /// Local address at the start.
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Source address of packets for which the library sets none.
    pub(crate) source: IpAddr,
    /// Interface at the start.
    pub(crate) interface: u32,
    pub(crate) established: bool,
    /// Addresses of the peer and their validation.
    remotes: RemoteAddresses,
    /// Fingerprint of the peer's certificate.
    peer: Option<Fingerprint>,
    pub(crate) error: Option<ConnectionError>,
    closed: bool,
    pub(crate) paths: Vec<PathRecord>,
    pub(crate) policy: Policy,
    /// Time at which the application last read or wrote something.
    pub(crate) last_activity_at: Instant,
    /// Time of the last ping on all paths.
    pub(crate) last_ping_at: Instant,
    /// Time of the next path check.
    pub(crate) next_path_check: Option<Instant>,
    /// Earliest time at which a path from each address may be opened again.
    pub(crate) reopen_at: BTreeMap<IpAddr, Instant>,
    /// Index of the stream that last accepted data from the application.
    pub(crate) last_writer: u64,
    /// Indexes of the streams that accept data again.
    writable: BTreeSet<u64>,
}

/// Arguments of [`Connection::new`], by name.
pub(crate) struct ConnectionParams {
    pub(crate) inner: noq_proto::Connection,
    pub(crate) id: ConnectionId,
    pub(crate) handle: ConnectionHandle,
    pub(crate) socket: u16,
    pub(crate) config: QuicConfig,
    pub(crate) clock: TimeConverter,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) interface: u32,
}

impl Connection {
    pub(crate) fn new(now: Instant, params: ConnectionParams) -> Self {
        let ConnectionParams { inner, id, handle, socket, config, clock, local, remote, interface } =
            params;
        let opener = inner.side().is_client();
        let remotes = if opener || config.validation.migration {
            RemoteAddresses::unlimited()
        } else {
            RemoteAddresses::limited(now, remote)
        };
        Self {
            opener,
            remotes,
            inner,
            id,
            handle,
            socket,
            policy: Policy::new(config.policy),
            config,
            clock,
            local,
            remote,
            source: local.ip(),
            interface,
            established: false,
            peer: None,
            error: None,
            closed: false,
            paths: vec![PathRecord::first_path(now, local, remote)],
            last_activity_at: now,
            last_ping_at: now,
            next_path_check: None,
            reopen_at: BTreeMap::new(),
            last_writer: 0,
            writable: BTreeSet::new(),
        }
    }

    /// Processes a datagram for this connection; `addresses` are the local and the remote one.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        addresses: (SocketAddr, SocketAddr),
        event: ConnectionEvent,
    ) {
        self.on_received(now, addresses);
        self.inner.handle_event(event);
    }

    /// Processes a datagram from an address that is not validated. A Handshake packet validates it
    /// (RFC 9000 §8.1): its sender has received a packet of the server. The library does not report
    /// whether a packet was valid, but it counts the frames of valid ones.
    pub(crate) fn receive_unvalidated(
        &mut self,
        now: Instant,
        addresses: (SocketAddr, SocketAddr),
        event: ConnectionEvent,
        is_handshake: bool,
    ) {
        let frames_of =
            |inner: &mut noq_proto::Connection| inner.path_stats(PathId::ZERO).map(|s| s.frame_rx);
        let frames_before = frames_of(&mut self.inner);
        self.receive(now, addresses, event);
        if is_handshake && frames_of(&mut self.inner) != frames_before {
            self.on_path_validated(PathId::ZERO);
        }
    }

    /// Returns true if packets to this address need no limit.
    pub(crate) fn has_validated(&self, remote: SocketAddr) -> bool {
        self.remotes.has_validated(remote)
    }

    /// Returns true if the peer's addresses are limited, because it is not trusted.
    pub(crate) fn limits_remotes(&self) -> bool {
        self.remotes.are_limited()
    }

    /// Returns true if a datagram from an address that is not validated may be processed.
    pub(crate) fn admits_remote(&mut self, now: Instant, remote: SocketAddr) -> bool {
        self.remotes.admits(now, remote)
    }

    /// Records that the peer has answered from the address of a path.
    pub(crate) fn on_path_validated(&mut self, id: PathId) {
        let remote_of = |id| self.inner.network_path(id).map(|tuple| tuple.remote());
        if let Ok(remote) = remote_of(id) {
            let in_use: Vec<SocketAddr> =
                self.inner.paths().into_iter().flat_map(remote_of).collect();
            self.remotes.on_validated(remote, &in_use);
        }
    }

    /// Returns the time at which [`Self::wake`] must be called.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.inner.is_drained() {
            return None;
        }
        let library_due = self.inner.poll_timeout().map(|at| self.clock.to_virtual(at));
        [library_due, self.next_path_check].into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.inner.handle_timeout(self.clock.to_std(now));
    }

    /// Exchanges events between library, paths and application until none is left.
    pub(crate) fn drive(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        addresses: &[LocalAddress],
        events: &mut VecDeque<QuicEvent>,
    ) {
        loop {
            while let Some(event) = self.inner.poll_endpoint_events() {
                if let Some(reply) = endpoint.handle_event(self.handle, event) {
                    self.inner.handle_event(reply);
                }
            }
            let mut active = false;
            while let Some(event) = self.inner.poll() {
                active = true;
                self.on_event(now, event, events);
            }
            if self.next_path_check.is_some_and(|due| due <= now) {
                self.check_paths(now, addresses, events);
                active = true;
            }
            self.emit_writable(events);
            if !active {
                return;
            }
        }
    }

    /// Emits the writable streams in turn, because the first one notified can use up all the room.
    fn emit_writable(&mut self, events: &mut VecDeque<QuicEvent>) {
        let after_last_writer = self.writable.split_off(&self.last_writer.saturating_add(1));
        let up_to_last_writer = std::mem::take(&mut self.writable);
        let streams = after_last_writer.into_iter().chain(up_to_last_writer);
        events.extend(streams.map(|stream| QuicEvent::Writable(self.id, StreamId(stream))));
    }

    fn on_event(
        &mut self,
        now: Instant,
        event: noq_proto::Event,
        events: &mut VecDeque<QuicEvent>,
    ) {
        use noq_proto::Event as Library;
        match event {
            Library::Connected => self.on_connected(now, events),
            Library::HandshakeConfirmed => self.end_handshake(),
            Library::ConnectionLost { reason } => {
                self.next_path_check = None;
                self.error = Some(reason.into());
                if !self.closed {
                    self.closed = true;
                    let error = self.error.clone();
                    events.push_back(QuicEvent::Closed { connection: self.id, error });
                }
            }
            Library::Stream(event) => self.on_stream_event(&event, events),
            Library::Path(event) => self.on_path_event(now, event, events),
            Library::HandshakeDataReady
            | Library::DatagramReceived
            | Library::DatagramsUnblocked
            | Library::NatTraversal(_) => {}
        }
    }

    fn on_connected(&mut self, now: Instant, events: &mut VecDeque<QuicEvent>) {
        self.established = true;
        self.peer = Fingerprint::of_peer(self.inner.crypto_session());
        self.last_activity_at = now;
        self.on_first_path_validated(now);
        self.on_path_validated(PathId::ZERO);
        if self.opener {
            events.push_back(QuicEvent::Connected(self.id));
        }
        if self.inner.is_multipath_negotiated() {
            self.next_path_check = Some(now);
        } else if self.config.multipath {
            events.push_back(QuicEvent::Notice {
                connection: self.id,
                notice: PathNotice::SinglePath,
            });
        }
    }

    /// Returns a secret that only both ends of this connection can derive, once it is established.
    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        let mut binding = [0; 32];
        let session = self.inner.crypto_session();
        session.export_keying_material(&mut binding, EXPORT_LABEL, &[]).ok()?;
        self.established.then_some(binding)
    }

    fn end_handshake(&self) {
        for id in self.inner.paths() {
            if let Some(handle) = self.inner.congestion_state(id).and_then(PathControllerHandle::of)
            {
                handle.end_handshake();
            }
        }
    }

    fn on_stream_event(&mut self, event: &StreamEvent, events: &mut VecDeque<QuicEvent>) {
        let id = self.id;
        let queued_event = match *event {
            StreamEvent::Opened { .. } => {
                while let Some(stream) = self.accept_stream() {
                    events.push_back(QuicEvent::StreamOpened(id, stream));
                }
                None
            }
            StreamEvent::Readable { id: stream } => {
                Some(QuicEvent::Readable(id, StreamId(stream.index())))
            }
            // A stream that the peer stopped is reported as writable; the next write returns the
            // error.
            StreamEvent::Writable { id: stream } | StreamEvent::Stopped { id: stream, .. } => {
                self.writable.insert(stream.index());
                None
            }
            StreamEvent::Finished { id: stream } => {
                Some(QuicEvent::Finished(id, StreamId(stream.index())))
            }
            StreamEvent::Available { .. } => None,
        };
        events.extend(queued_event);
    }

    /// Applies the settings that can change during a connection.
    pub(crate) fn configure(
        &mut self,
        now: Instant,
        config: &QuicConfig,
    ) -> Result<(), UnknownCongestionControl> {
        if config.congestion_control != self.config.congestion_control {
            let std_now = self.clock.to_std(now);
            let paths = self.inner.paths();
            let any_controller = paths.into_iter().find_map(|id| self.inner.congestion_state(id));
            any_controller
                .and_then(PathControllerHandle::of)
                .map_or(Ok(()), |handle| handle.switch(&config.congestion_control, std_now))?;
        }
        self.policy = Policy::new(config.policy);
        self.inner.set_max_concurrent_streams(Dir::Bi, config.max_streams.into());
        self.inner.set_receive_window(var_int(config.window_bytes()));
        self.inner.set_send_window(config.send_window_bytes.max(1));
        self.config.congestion_control.clone_from(&config.congestion_control);
        self.config.policy = config.policy;
        self.config.receive_window_bytes = config.receive_window_bytes;
        self.config.send_window_bytes = config.send_window_bytes;
        self.config.initial_window_bytes = None;
        self.next_path_check = Some(now);
        Ok(())
    }

    /// Closes the connection; unacknowledged data is lost.
    pub(crate) fn close(&mut self, now: Instant) {
        if !self.closed {
            self.closed = true;
            self.next_path_check = None;
            self.inner.close(self.clock.to_std(now), VarInt::from_u32(0), Bytes::new());
        }
    }

    /// Returns true if the connection is closed and its closing period has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.inner.is_drained()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn status(&mut self) -> ConnectionStatus {
        ConnectionStatus {
            local: self.local,
            remote: self.remote,
            opener: self.opener,
            established: self.established,
            multipath: self.established && self.inner.is_multipath_negotiated(),
            error: self.error.clone(),
            peer: self.peer,
            congestion_control: self.config.congestion_control.clone(),
            paths: self.path_statuses(),
        }
    }
}
