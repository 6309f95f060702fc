//! Two real hosts: what they say to each other, without sockets and clocks.
//!
//! Every connection and every QUIC stream begins with a [`Preamble`]; nothing is said before it.
//! Control connections then carry [frames](frame) with [messages](message); a server's end of one is
//! a [`ControlSession`]. What one host saw is a [`Half`]; both are [merged](merge()) into the records of a
//! run. `docs/live.md` has the protocol in words.
//!
//! Nothing received can panic, and nothing received makes anything grow without a [limit](limits).

pub mod account;
pub mod clock;
pub mod control;
pub mod datagram;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod guesses;
pub mod half;
pub mod limits;
pub mod look;
pub mod merge;
pub mod message;
pub mod preamble;
pub mod secret;
pub mod stamp;

pub use account::account;
pub use clock::{ClockEstimator, ClockOffset};
pub use control::{ControlAction, ControlSession};
pub use frame::{FrameDecoder, FrameError};
pub use guesses::AuthRateLimiter;
pub use half::{ConnectionReport, DatagramReport, FlowReport, HostInfo, HostReport, SubflowReport};
pub use limits::{AdmissionError, ServerLimits, length};
pub use look::HostSnapshot;
pub use merge::{MergedRun, merge};
pub use message::{ClientMessage, ObservedProtocol, ServerMessage, TestPlan, TransferSettings};
pub use preamble::{ConnectionKind, InvalidPreamble, Preamble, TestToken};
pub use secret::{Secret, SecretError};

/// Where a server listens unless it is told otherwise.
pub const DEFAULT_PORT: u16 = 5_210;
/// Names of the two hosts in scenarios and results.
pub const HOSTS: [&str; 2] = ["client", "server"];
