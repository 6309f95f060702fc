//! The live world: two real hosts, one of them a [`Server`], the other [measuring](measure()).
//!
//! What they say is in `towpath_measure::live`; here are the sockets, threads and clocks. Reading
//! order: [`server`] (who listens), `door` and `reception` (which connections get in, over TCP and
//! over UDP), `line` (what bytes go over), `end` (one end's traffic, the
//! same for both), `series` and `held` (what its kernel says meanwhile), [`client`] (a measurement from
//! beginning to end), `fetch` (how its other half comes back, whatever paths are left).

mod budget;
mod check;
mod client;
mod departure;
mod dial;
mod door;
mod echo;
mod end;
mod fetch;
mod held;
mod host;
mod identity;
pub(crate) mod introduction;
mod line;
mod nearest;
mod probe;
mod proof;
mod reception;
mod series;
mod server;
mod session;
pub(crate) mod socket;
pub(crate) mod speaker;
mod steady;
mod test;
mod watch;

use std::io;
use std::time::Duration;

use thiserror::Error;
use towpath_measure::live::AdmissionError;

use crate::clock::Clock;
use crate::interrupt;

pub use check::{ProbeKind, ProbeOutcome, ProbeResult, check};
pub use client::{MeasureRequest, measure};
pub use host::{
    LocalInterface, addresses_towards_others, interfaces_towards, path_name,
    system_congestion_control,
};
pub use identity::{IdentityFileError, load_or_create_identity, read_identity};
pub use nearest::{PINGS, PingResult, ping};
pub use server::{Server, ServerConfig, ServerEvent};
pub use session::MobileSession;
pub use socket::LocalBind;
pub use towpath_quic::{Fingerprint, Identity};
pub use watch::{NetworkChange, NetworkWatch};

/// Why there is no measurement.
#[derive(Debug, Error)]
pub enum LiveError {
    /// Nobody answers.
    #[error("cannot connect to {target} over {transport}: {reason}")]
    Connect {
        /// Address and port.
        target: String,
        /// Transport.
        transport: towpath_measure::scenario::Transport,
        /// What the system says.
        reason: String,
    },
    /// Somebody answers who is not the one that was asked for.
    #[error("{target} is not the server that is expected: {reason}")]
    Untrusted {
        /// Address and port.
        target: String,
        /// Who it is.
        reason: String,
    },
    /// It would not be seen who answers.
    #[error("over {transport} without TLS nobody shows a certificate; nothing was sent")]
    Unprotected {
        /// Transport.
        transport: towpath_measure::scenario::Transport,
    },
    /// Somebody else answers, or nobody any more.
    #[error("{0}")]
    Protocol(String),
    /// The server does not do it.
    #[error("the server refuses: {}", .0.why)]
    Refused(AdmissionError),
    /// It cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address and port.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// Something else of the system.
    #[error("{action}: {source}")]
    System {
        /// What was done.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl LiveError {
    fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    /// The way out, if there is one to tell.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Connect { target, .. } => Some(format!(
                "is `towpath server` running there? It listens on port 5210 unless told \
                 otherwise, and firewalls must let {target} through"
            )),
            Self::Untrusted { .. } => Some(
                "somebody else answers, or the server has another certificate now: it says its \
                 fingerprint when it starts, for --server-cert"
                    .to_owned(),
            ),
            Self::Unprotected { .. } => {
                Some("use TLS (--tls) or QUIC, or leave out --server-cert".to_owned())
            }
            Self::Refused(refusal) => refusal.hint.clone(),
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrNotAvailable => {
                Some(
                    "no interface of this host has it: `ip address` lists those that are"
                        .to_owned(),
                )
            }
            Self::Listen { .. } => {
                Some("another server may be running; name another port with --port".to_owned())
            }
            Self::Protocol(_) | Self::System { .. } => None,
        }
    }
}

/// Random bytes that nobody can guess.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// Waits, unless the user does not.
pub fn pause(span: Duration) {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let clock = Clock::start();
    let end = clock.now() + span;
    while clock.now() < end && !interrupt::is_interrupted() {
        clock.sleep_until(end.min(clock.now() + POLL_INTERVAL));
    }
}

/// Asks for real-time priority of the calling thread and those that it starts, so that other work
/// does not delay what is due. An ordinary user is usually refused.
pub fn real_time() -> io::Result<()> {
    crate::sys::real_time_priority(1)
}
