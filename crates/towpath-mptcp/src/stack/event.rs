//! Events for the driver and the application.

use std::fmt;
use std::net::SocketAddr;

use towpath_multipath::PathId;
use towpath_multipath::scheduler::SwitchReason;
use towpath_wire::ConnectionId;

use super::ListenerId;
use super::error::ConnectionError;
use crate::subflow;

/// Event for the driver and the application.
#[derive(Debug, Clone, PartialEq)]
pub enum StackEvent {
    /// A listener has a new connection; it can be read and written.
    Accepted {
        /// Listener that accepted the connection.
        listener: ListenerId,
        /// Connection that was accepted.
        connection: ConnectionId,
    },
    /// A connection that we opened is established.
    Connected(ConnectionId),
    /// Data or the end of the stream can be read.
    Readable(ConnectionId),
    /// The send buffer has room again after [`super::Stack::write`] took less than offered.
    Writable(ConnectionId),
    /// The connection has ended; `error` is `None` when both sides closed it regularly. Its status
    /// can still be read until [`super::Stack::release`].
    Closed {
        /// Connection that has ended.
        connection: ConnectionId,
        /// Error that ended the connection; `None` after a regular close.
        error: Option<ConnectionError>,
    },
    /// Change of subflows, addresses or fallback: always reported.
    Notice {
        /// Connection that the notice concerns.
        connection: ConnectionId,
        /// Change that occurred on the connection.
        notice: StackNotice,
    },
    /// Decision of the stack: only with [`super::StackConfig::report_decisions`].
    Trace {
        /// Connection that made the decision.
        connection: ConnectionId,
        /// Decision, such as a switch of the subflow.
        decision: StackDecision,
    },
}

/// Change of subflows, addresses or fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackNotice {
    /// A subflow's handshake is complete. `number` counts the connection's subflows and is never
    /// reused.
    SubflowEstablished {
        /// Path slot of the subflow.
        path: PathId,
        /// Number within the connection, never reused.
        number: u32,
    },
    /// A subflow was closed and removed.
    SubflowClosed {
        /// Path slot of the subflow.
        path: PathId,
        /// Number within the connection, never reused.
        number: u32,
        /// Reason why the subflow was closed.
        reason: subflow::CloseReason,
    },
    /// The peer changed a subflow's priority.
    Priority {
        /// Number of the subflow.
        number: u32,
        /// Set when the subflow is now a backup.
        backup: bool,
    },
    /// A subflow became stale, or recovered.
    Stale {
        /// Number of the subflow.
        number: u32,
        /// Set when the subflow became stale, cleared when it recovered.
        stale: bool,
    },
    /// The peer announced an address.
    AddressAnnounced {
        /// Address identifier of the peer's address.
        address_id: u8,
        /// Announced address, with its port.
        address: SocketAddr,
    },
    /// The peer withdrew an address.
    AddressWithdrawn {
        /// Address identifier of the withdrawn address.
        address_id: u8,
    },
    /// The connection uses plain TCP from now on.
    Fallback(FallbackReason),
}

/// Reason why a connection uses plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FallbackReason {
    /// The SYN/ACK had no MP_CAPABLE, or one with an unknown version or flags.
    NoCapableInSynAck,
    /// The third packet and the first data had no MP_CAPABLE.
    NoCapableInAck,
    /// SYNs with MP_CAPABLE were lost; one without it succeeded.
    SynLost,
    /// Data came without DSS before Multipath TCP was confirmed.
    NoDss,
    /// A mapping was invalid.
    BadMapping,
    /// A DSS checksum was wrong.
    Checksum,
    /// The peer requested it (MP_FAIL, infinite mapping).
    Peer,
    /// Both sides sent a SYN simultaneously.
    SimultaneousOpen,
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCapableInSynAck => {
                "the SYN/ACK had no Multipath TCP option: a plain listener, or a middlebox that removes the option"
            }
            Self::NoCapableInAck => {
                "the third packet of the handshake had no Multipath TCP option: a middlebox removes it"
            }
            Self::SynLost => {
                "the SYN with the Multipath TCP option got no reply, the plain SYN did"
            }
            Self::NoDss => "the option was removed from data packets",
            Self::BadMapping => "a mapping of data to the connection was damaged",
            Self::Checksum => "a middlebox changed the payload",
            Self::Peer => "the peer asked for it",
            Self::SimultaneousOpen => "both sides opened at once",
        })
    }
}

/// A decision of the stack, for marks in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackDecision {
    /// The scheduler gave new data to another subflow than before.
    Scheduled {
        /// Number of the subflow.
        number: u32,
        /// Bytes that the previous subflow got in a row.
        run_bytes: u64,
        /// Reason why the scheduler's preferred subflow was not used; `None` if it was.
        reason: Option<SwitchReason>,
    },
    /// Data was reinjected on another subflow.
    Reinjected {
        /// Number of the subflow that now carries the data.
        number: u32,
        /// Number of bytes reinjected.
        bytes: u64,
        /// Reason for the reinjection.
        cause: ReinjectionCause,
    },
    /// M2 halved a window.
    Penalised {
        /// Number of the subflow whose window was halved.
        number: u32,
    },
    /// The connection-level window is full although there is data and room (`true`), or open again.
    WindowBlocked(bool),
}

/// Reason why data was reinjected on another subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReinjectionCause {
    /// The subflow's retransmission timer fired.
    Timeout,
    /// The subflow was closed or reset.
    Closed,
    /// The connection's own timer fired.
    Connection,
    /// Opportunistic retransmission (M1) was triggered.
    Opportunistic,
    /// The scheduler requested it (redundant).
    Scheduler,
}
