//! Control protocol between two real hosts, without sockets and clocks.
//!
//! Every connection and every QUIC stream begins with a [`Preamble`]. Control connections then
//! carry [frames](frame) with [messages](message); their server side is a [`ControlSession`]. Each
//! host's measurements are a [`HostReport`]; both are [merged](merge()) into the records of a run.
//! `docs/reference/protocol.md` describes the protocol.
//!
//! No received data can cause a panic or unlimited memory use; [limits] apply to everything.

pub mod account;
pub mod auth_limit;
pub mod clock;
pub mod control;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod grant;
pub mod host_report;
pub mod limits;
pub mod merge;
pub mod message;
pub mod preamble;
pub mod secret;

pub use account::account;
pub use auth_limit::AuthRateLimiter;
pub use clock::{ClockEstimator, ClockOffset};
pub use control::{ControlAction, ControlSession, GrantPolicy};
pub use frame::{FrameDecoder, FrameError};
pub use grant::{GrantAccounts, ProvedGrant, ServerAccess};
pub use host_report::{
    ConnectionReport, DatagramReport, FlowReport, HostInfo, HostReport, ReportLineRef,
    SubflowReport,
};
pub use limits::{AdmissionError, ServerLimits, max_duration};
pub use merge::{MergedRun, merge};
pub use message::{ClientMessage, ObservedProtocol, ServerMessage, TestPlan, TransferSettings};
pub use preamble::{ConnectionKind, InvalidPreamble, Preamble};
pub use secret::{Secret, SecretError};

/// Default TCP and UDP port of a server.
pub const DEFAULT_PORT: u16 = 5_210;
/// Names of the two hosts in scenarios and results.
pub const HOSTS: [&str; 2] = ["client", "server"];
