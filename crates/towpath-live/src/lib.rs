//! Measurements between two real hosts, a [`Server`] and a [client](measure()).
//!
//! The protocol is in [`protocol`]; the rest of this crate has sockets, threads and clocks.
//! Reading order:
//!
//! - [`server`]: listening and control connections
//! - `acceptor` and `quic_acceptor`: acceptors for TCP and QUIC
//! - `data_stream`: data streams
//! - `flow_runner`: all flows at one endpoint, client or server
//! - `series` and `sender_sampler`: samples of connections and senders
//! - [`client`]: a measurement from start to end
//! - `fetch`: retrieval of the server's report over any remaining path

#![expect(clippy::disallowed_methods, reason = "this crate reads the real clock")]

mod acceptor;
mod admission;
pub mod authenticator;
mod byte_intervals;
mod check;
mod client;
pub mod control_channel;
mod data_stream;
mod dial;
mod echo;
mod eviction;
mod evidence;
mod fetch;
mod first_path;
mod flow_runner;
mod host_info;
mod identity;
mod mobile;
mod nearest;
mod network_loss;
mod network_watch;
mod probe;
pub mod protocol;
mod quic_acceptor;
mod report_text;
mod reservation;
mod sender_sampler;
mod series;
mod server;
mod server_test;
pub(crate) mod socket;
mod udp_flows;

use std::io;
use std::time::Duration;

use thiserror::Error;
use towpath_os::clock::Clock;
use towpath_os::interrupt;

use crate::protocol::AdmissionError;

pub use check::{ProbeKind, ProbeOutcome, ProbeResult, check};
pub use client::{MeasureRequest, measure};
pub use first_path::UnusableFirstPath;
pub use host_info::{
    LocalInterface, addresses_towards_others, interfaces_towards, path_name,
    system_congestion_control,
};
pub use identity::{IdentityFileError, load_or_create_identity, read_identity};
pub use mobile::MobileSession;
pub use nearest::{PINGS, PingResult, ping};
pub use network_watch::{NetworkChange, NetworkWatch};
pub use server::{DeviceAccess, Server, ServerConfig, ServerEvent};
pub use socket::LocalBind;
pub use towpath_quic::{Fingerprint, Identity};

/// Failure of a measurement or of a server.
#[derive(Debug, Error)]
pub enum LiveError {
    /// Connecting to the server failed.
    #[error("cannot connect to {target} over {transport}: {reason}")]
    Connect {
        /// Name or address of the server.
        target: String,
        /// Transport of the connection attempt.
        transport: towpath_scenario::Transport,
        /// Error text of the operating system.
        reason: String,
    },
    /// Lack of descriptors or memory of this host for another connection.
    #[error("cannot open a connection over {transport}: {source}")]
    Exhausted {
        /// Transport of the connection.
        transport: towpath_scenario::Transport,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The server answers on another path than the one on which new connections start.
    #[error("cannot connect over {transport}: {}", .path.describe(.target))]
    FirstPath {
        /// Name or address of the server.
        target: String,
        /// Transport of the connection attempt.
        transport: towpath_scenario::Transport,
        /// Interfaces of both paths.
        path: UnusableFirstPath,
    },
    /// The server's certificate is not the expected one.
    #[error("{target} is not the expected server: {reason}")]
    Untrusted {
        /// Name or address of the server.
        target: String,
        /// Details of the certificate mismatch.
        reason: String,
    },
    /// A certificate was expected, but the transport would not authenticate the server.
    #[error("{transport} without TLS has no certificate to verify; nothing was sent")]
    Unprotected {
        /// Transport that has no TLS.
        transport: towpath_scenario::Transport,
    },
    /// The other endpoint violated the protocol or stopped responding.
    #[error("{0}")]
    Protocol(String),
    /// The server refused the request.
    #[error("the server refuses: {}", .0.reason)]
    Refused(AdmissionError),
    /// Opening a listening socket failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address and port to bind.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("{action}: {source}")]
    System {
        /// Attempted action, as an infinitive.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl LiveError {
    fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    /// Returns the time after which the same request may succeed, if the server estimates it.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => {
                refusal.retry_after_s.map(|seconds| Duration::from_secs(seconds.into()))
            }
            Self::Connect { .. }
            | Self::Exhausted { .. }
            | Self::FirstPath { .. }
            | Self::Untrusted { .. }
            | Self::Unprotected { .. }
            | Self::Protocol(_)
            | Self::Listen { .. }
            | Self::System { .. } => None,
        }
    }

    /// Returns a hint for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Connect { target, .. } => Some(format!(
                "is `towpath server` running there? Its default port is 5210, and firewalls must allow {target}"
            )),
            Self::Exhausted { .. } => Some(
                "raise the limit of open files of this host (`ulimit -n`), or use fewer streams (-P)"
                    .to_owned(),
            ),
            Self::FirstPath { path, .. } => Some(path.hint()),
            Self::Untrusted { .. } => Some(
                "a different server answers, or the server has a new certificate: it prints the fingerprint for --server-cert when it starts"
                    .to_owned(),
            ),
            Self::Unprotected { .. } => {
                Some("use TLS (--tls) or QUIC, or omit --server-cert".to_owned())
            }
            Self::Refused(refusal) => refusal.hint.clone(),
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrNotAvailable => {
                Some(
                    "no interface of this host has this address: `ip address` lists all"
                        .to_owned(),
                )
            }
            Self::Listen { .. } => {
                Some("another server may be running: choose another port with --port".to_owned())
            }
            Self::Protocol(_) | Self::System { .. } => None,
        }
    }
}

/// Returns random bytes from the kernel's generator.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

/// Sleeps for `span`, or until an interrupt.
pub fn pause(span: Duration) {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let clock = Clock::start();
    let end = clock.now() + span;
    while clock.now() < end && !interrupt::is_interrupted() {
        clock.sleep_until(end.min(clock.now() + POLL_INTERVAL));
    }
}

/// Requests real-time priority for the calling thread and the threads it starts, to reduce
/// scheduling delay. Unprivileged users usually lack the permission.
pub fn real_time() -> io::Result<()> {
    towpath_os::sys::set_real_time_priority(1)
}
