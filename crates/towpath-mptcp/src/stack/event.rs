//! What a stack tells its driver and its application.

use std::fmt;
use std::net::SocketAddr;

use towpath_multipath::PathId;
use towpath_multipath::scheduler::SwitchReason;

use crate::subflow;

use super::error::ConnectionError;
use super::{ConnectionId, ListenerId};

/// What the driver and the application are told.
#[derive(Debug, Clone, PartialEq)]
pub enum StackEvent {
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
        notice: StackNotice,
    },
    /// A decision of the stack: only with [`Config::trace`].
    Trace {
        /// Connection.
        connection: ConnectionId,
        /// What.
        trace: StackDecision,
    },
}

/// Something about subflows, addresses or fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackNotice {
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
    Fallback(FallbackReason),
}

/// Why a connection is plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FallbackReason {
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

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCapableInSynAck => {
                "the answer to the SYN did not speak Multipath TCP: a plain listener, or a \
                 middlebox that removes the option"
            }
            Self::NoCapableInAck => {
                "the third packet of the handshake did not speak Multipath TCP: a middlebox \
                 removes the option"
            }
            Self::SynLost => {
                "the SYN with the Multipath TCP option got no answer, the plain one did"
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
        /// Bytes that the one before got in a row.
        run_bytes: u64,
        /// Why it is not the one that the scheduler prefers, if so.
        why: Option<SwitchReason>,
    },
    /// Data was sent again on another subflow.
    Reinjected {
        /// Where to.
        number: u32,
        /// Bytes.
        bytes: u64,
        /// Why.
        cause: ReinjectionCause,
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
pub enum ReinjectionCause {
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
