//! One host: interfaces, listeners, connections, and their packets and timers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_multipath::PathId;
use towpath_net::Instant;

use crate::connection;
pub use crate::path_manager::{InterfaceId, LocalAddress};
use crate::subflow;
use crate::wire::Packet;

/// A host's own settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Seed of keys, nonces, ports and initial sequence numbers.
    pub seed: u64,
    /// Most half-open connections of a listener.
    pub syn_backlog: usize,
    /// Most connections in TIME-WAIT.
    pub time_wait_limit: usize,
    /// Report [`Event::Trace`]s.
    pub trace: bool,
}

/// Names a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// Names a connection; never reused within a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// What the driver and the application are told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A listener has a new connection; it can be read and written.
    Accepted {
        /// Listener.
        listener: ListenerId,
        /// Connection.
        connection: ConnectionId,
    },
    /// A connection that we opened is established.
    Connected(ConnectionId),
    /// There is something to read: data, or the end of it.
    Readable(ConnectionId),
    /// The send buffer has room again after [`Stack::write`] took less than offered.
    Writable(ConnectionId),
    /// The connection is gone; `None` when both sides ended it in order. Its status can still be
    /// read until [`Stack::forget`].
    Closed {
        /// Connection.
        connection: ConnectionId,
        /// Why, if not in order.
        error: Option<ConnectionError>,
    },
    /// Something about subflows, addresses, fallback: always reported.
    Notice {
        /// Connection.
        connection: ConnectionId,
        /// What.
        notice: Notice,
    },
    /// A decision of the stack: only with [`Config::trace`].
    Trace {
        /// Connection.
        connection: ConnectionId,
        /// What.
        trace: Trace,
    },
}

/// Something about subflows, addresses or fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A subflow's handshake is complete. `number` counts the connection's subflows and is never
    /// reused.
    SubflowEstablished {
        /// Slot.
        path: PathId,
        /// Number.
        number: u32,
    },
    /// A subflow is gone.
    SubflowClosed {
        /// Slot.
        path: PathId,
        /// Number.
        number: u32,
        /// Why.
        reason: subflow::CloseReason,
    },
    /// The peer changed a subflow's priority.
    Priority {
        /// Number.
        number: u32,
        /// To.
        backup: bool,
    },
    /// A subflow became stale, or is alive again.
    Stale {
        /// Number.
        number: u32,
        /// Which.
        stale: bool,
    },
    /// The peer announced an address.
    AddressAnnounced {
        /// Identifier.
        address_id: u8,
        /// Address.
        address: SocketAddr,
    },
    /// The peer withdrew an address.
    AddressWithdrawn {
        /// Identifier.
        address_id: u8,
    },
    /// The connection is plain TCP from now on.
    Fallback(Fallback),
}

/// Why a connection is plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fallback {
    /// The SYN/ACK had no MP_CAPABLE (or one of a version or with flags that we do not know).
    NoCapableInSynAck,
    /// The third packet and the first data had no MP_CAPABLE.
    NoCapableInAck,
    /// SYNs with MP_CAPABLE were lost; one without was answered.
    SynLost,
    /// Data came without DSS before Multipath TCP was confirmed.
    NoDss,
    /// A mapping made no sense.
    BadMapping,
    /// A DSS checksum was wrong.
    Checksum,
    /// The peer said so (MP_FAIL, infinite mapping).
    Peer,
    /// Both sides opened at once.
    SimultaneousOpen,
}

/// A decision of the stack, for marks in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// The scheduler gave new data to another subflow than before.
    Scheduled {
        /// Number of the subflow.
        number: u32,
        /// Bytes that the one before got in a row.
        run_bytes: u64,
    },
    /// Data was sent again on another subflow.
    Reinjected {
        /// Where to.
        number: u32,
        /// Bytes.
        bytes: u64,
        /// Why.
        cause: Reinjection,
    },
    /// M2 halved a window.
    Penalised {
        /// Which.
        number: u32,
    },
    /// There is data and room, but the connection-level window is full (`true`), or open again.
    WindowBlocked(bool),
}

/// Why data was sent again on another subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reinjection {
    /// The subflow's retransmission timer fired.
    Timeout,
    /// The subflow was closed or reset.
    Closed,
    /// The connection's own timer fired.
    Connection,
    /// M1.
    Opportunistic,
    /// The scheduler wanted it (redundant).
    Scheduler,
}

/// Why a connection ended out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ConnectionError {
    /// RST, or MP_FASTCLOSE.
    #[error("the peer reset the connection")]
    Reset,
    /// RST to our SYN.
    #[error("the peer refused the connection")]
    Refused,
    /// No answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// All subflows are gone and none came back in time.
    #[error("no path is left")]
    NoPath,
    /// We aborted it.
    #[error("aborted by this host")]
    Aborted,
    /// The peer broke a rule of the protocol that leaves no way on.
    #[error("the peer violated the protocol: {0}")]
    Protocol(&'static str),
}

/// Why a connection cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No interface that is up has an address of this family (or the asked one).
    #[error("no local address can reach {0}")]
    NoAddress(SocketAddr),
    /// All ports are taken.
    #[error("no free port to {0}")]
    NoPort(SocketAddr),
    /// A name in the configuration is unknown.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A name in the configuration is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Scheduler.
    #[error(transparent)]
    Scheduler(#[from] towpath_multipath::scheduler::UnknownScheduler),
    /// Congestion control.
    #[error(transparent)]
    CongestionControl(#[from] towpath_multipath::congestion::UnknownCongestionControl),
    /// Path manager.
    #[error(transparent)]
    PathManager(#[from] crate::path_manager::UnknownPathManager),
}

/// State of a connection, for series and proofs.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Whether the handshake is complete.
    pub established: bool,
    /// Whether it speaks Multipath TCP (and has not fallen back).
    pub multipath: bool,
    /// Why not, if it was asked for.
    pub fallback: Option<Fallback>,
    /// Whether DSS checksums are in use.
    pub checksum: bool,
    /// All subflows, the closed ones too, by number.
    pub subflows: Vec<SubflowStatus>,
    /// Application bytes that were written.
    pub written_bytes: u64,
    /// Bytes that the peer acknowledged at connection level.
    pub acked_bytes: u64,
    /// Application bytes that can be or were read.
    pub received_bytes: u64,
    /// Bytes that wait for earlier data, at both levels.
    pub reorder_bytes: u64,
    /// Most of them so far.
    pub reorder_peak_bytes: u64,
    /// The receive buffer as it is now.
    pub receive_buffer_bytes: u64,
    /// Bytes sent again on another subflow, by cause.
    pub reinjected_bytes: [u64; 5],
    /// Payload bytes that arrived and were not needed any more.
    pub discarded_bytes: u64,
    /// Times M2 acted.
    pub penalisations: u64,
    /// Time during which data and room were there, but the connection-level window was full.
    pub window_blocked: Duration,
}

/// A subflow's part of [`Status`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowStatus {
    /// Number, never reused; 0 is the first.
    pub number: u32,
    /// Slot.
    pub path: PathId,
    /// Interface.
    pub interface: InterfaceId,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Identifiers of the two addresses.
    pub address_ids: (u8, u8),
    /// State.
    pub state: subflow::State,
    /// Whether either end wants it as a backup.
    pub backup: bool,
    /// Whether it is stale.
    pub stale: bool,
    /// TCP's figures.
    pub tcp: subflow::Statistics,
}

/// One host's TCP and Multipath TCP.
#[derive(Debug)]
pub struct Stack {
    config: Config,
}

impl Stack {
    /// A host without interfaces.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Adds an interface, up, with its MTU.
    pub fn add_interface(&mut self, interface: InterfaceId, mtu_bytes: u32) {
        let _ = (interface, mtu_bytes, &self.config);
        todo!()
    }

    /// Gives an interface an address (or changes what it may be used for).
    pub fn set_address(&mut self, now: Instant, address: LocalAddress) {
        let _ = (now, address);
        todo!()
    }

    /// Takes an address away: its subflows are reset, and peers are told (REMOVE_ADDR).
    pub fn remove_address(&mut self, now: Instant, address: IpAddr) {
        let _ = (now, address);
        todo!()
    }

    /// The interface has, or has no, carrier. Down: subflows stay, but send nothing there and the path
    /// manager may replace them.
    pub fn set_up(&mut self, now: Instant, interface: InterfaceId, up: bool) {
        let _ = (now, interface, up);
        todo!()
    }

    /// Back-pressure: while `false`, nothing is taken from [`Stack::poll_transmit`] for this
    /// interface, and schedulers see its subflows without room (as TCP small queues do).
    pub fn set_room(&mut self, now: Instant, interface: InterfaceId, room: bool) {
        let _ = (now, interface, room);
        todo!()
    }

    /// Accepts connections to `port` on every address.
    pub fn listen(
        &mut self,
        port: u16,
        config: connection::Config,
    ) -> Result<ListenerId, ConfigError> {
        let _ = (port, config);
        todo!()
    }

    /// Opens a connection from `local` (or the first address of the family).
    pub fn connect(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: connection::Config,
    ) -> Result<ConnectionId, ConnectError> {
        let _ = (now, local, remote, config);
        todo!()
    }

    /// Gives data to send; takes as much of the front as fits and leaves the rest. No copy is made.
    pub fn write(&mut self, now: Instant, connection: ConnectionId, data: &mut Bytes) -> usize {
        let _ = (now, connection, data);
        todo!()
    }

    /// Room in the send buffer.
    pub fn writable_bytes(&self, connection: ConnectionId) -> u64 {
        let _ = connection;
        todo!()
    }

    /// Takes the next data in order: `None` when there is none now, empty at its end.
    pub fn read(&mut self, now: Instant, connection: ConnectionId) -> Option<Bytes> {
        let _ = (now, connection);
        todo!()
    }

    /// No more data will be written; what was written is still delivered.
    pub fn shutdown(&mut self, now: Instant, connection: ConnectionId) {
        let _ = (now, connection);
        todo!()
    }

    /// Ends the connection at once (MP_FASTCLOSE, RST).
    pub fn abort(&mut self, now: Instant, connection: ConnectionId) {
        let _ = (now, connection);
        todo!()
    }

    /// Drops what is known of a closed connection. An open one is first shut down, read no more, and
    /// forgotten when it ends.
    pub fn forget(&mut self, now: Instant, connection: ConnectionId) {
        let _ = (now, connection);
        todo!()
    }

    /// State of a connection.
    pub fn status(&self, connection: ConnectionId) -> Option<Status> {
        let _ = connection;
        todo!()
    }

    /// A packet arrived (TCP, or ICMP about TCP). What makes no sense is counted and dropped.
    pub fn handle_packet(&mut self, now: Instant, interface: InterfaceId, packet: Packet) {
        let _ = (now, interface, packet);
        todo!()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }

    /// The next packet to send, for an interface that is up and has room.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(InterfaceId, Packet)> {
        let _ = now;
        todo!()
    }

    /// When [`Stack::handle_timeout`] must be called, and what for.
    pub fn poll_timeout(&self) -> Option<(Instant, TimeoutReason)> {
        todo!()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }
}

/// What a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeoutReason {
    /// A subflow's timer.
    Subflow(subflow::Timer),
    /// The connection's own: retransmission, ADD_ADDR, closing.
    Connection,
    /// The path manager's.
    PathManager,
}
