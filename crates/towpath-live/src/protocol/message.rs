//! Messages of the control connection between client and server.

use serde::{Deserialize, Serialize};
use towpath_host::snapshot::HostSnapshot;
use towpath_run::token::TestToken;
use towpath_scenario::Transport;

use super::secret::{AuthProof, Challenge};

/// Message from the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ClientMessage {
    /// Start of a new test.
    Hello {
        /// Version of towpath on the client.
        towpath: String,
    },
    /// Client's authentication proof, with a challenge for the server.
    Proof {
        /// Proof of the secret, for the server's challenge.
        proof: AuthProof,
        /// Challenge from which the server must compute its own proof.
        challenge: Challenge,
        /// Text of the access grant whose secret is proved; `None` for the server's own secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grant: Option<String>,
    },
    /// Test that the client requests.
    Plan(Box<TestPlan>),
    /// Request for a host snapshot of the server, sent instead of a plan.
    Snapshot {
        /// Port whose listener and connections are of interest.
        port: u16,
    },
    /// Clock probe for offset estimation.
    Probe {
        /// Client's clock in nanoseconds, echoed in the reply.
        client_ns: u64,
    },
    /// Start time of the traffic.
    Begin {
        /// Start time on the server's clock, in nanoseconds.
        at_ns: u64,
    },
    /// Immediate stop of the traffic.
    Stop,
    /// Early end of the traffic: later requests are dropped, pending ones still get their replies.
    End {
        /// End time on the server's clock, in nanoseconds.
        at_ns: u64,
    },
    /// Request for the result, starting at an offset.
    Fetch {
        /// Number of bytes already received.
        offset: u64,
    },
    /// End of the session; the client has the complete result.
    Bye,
}

/// Protocol that the server observed on a connection; middleboxes may have changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObservedProtocol {
    /// Multipath TCP without fallback.
    Multipath,
    /// Plain TCP, although the server supports Multipath TCP.
    Plain,
    /// Plain TCP, since the server's kernel supports nothing else.
    Unsupported,
}

/// Message from the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum ServerMessage {
    /// Reply to [`ClientMessage::Hello`], with the server's abilities.
    Welcome {
        /// Version of towpath on the server.
        towpath: String,
        /// Challenge for the client; `None` if the server needs no secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        challenge: Option<Challenge>,
        /// Challenge for a client with an access grant; `None` if the server accepts no grants.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grant_challenge: Option<Challenge>,
        /// Protocol that the server observed on this connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        observed: Option<ObservedProtocol>,
        /// Set if the server echoes [datagrams](towpath_run::datagram) on this port.
        #[serde(default)]
        datagrams: bool,
        /// Set if the server accepts QUIC on this port.
        #[serde(default)]
        quic: bool,
    },
    /// Server's authentication proof; the client is authenticated.
    Proved {
        /// Proof for the client's challenge.
        proof: AuthProof,
    },
    /// The plan is accepted; the client may open the test connections.
    Accepted {
        /// Token that each test connection must carry.
        token: TestToken,
    },
    /// The request is rejected.
    Refused {
        /// Reason for the rejection.
        reason: String,
        /// Suggested fix, if there is one.
        hint: Option<String>,
        /// Estimated time until the same request can succeed, in seconds; `None` if unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_s: Option<u32>,
    },
    /// All test connections are open.
    Ready,
    /// Reply to a clock probe.
    Clock {
        /// Client's clock, as in the probe.
        client_ns: u64,
        /// Server's clock in nanoseconds.
        server_ns: u64,
    },
    /// Host snapshot of the server.
    Snapshot(Box<HostSnapshot>),
    /// The result is not available yet.
    Pending,
    /// A chunk of the result.
    Part {
        /// Offset of the chunk in the result, in bytes.
        offset: u64,
        /// Length of the whole result in bytes.
        total: u64,
        /// Text of the chunk.
        text: String,
    },
}

impl ServerMessage {
    /// Returns the message's name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Welcome { .. } => "welcome",
            Self::Proved { .. } => "proved",
            Self::Accepted { .. } => "accepted",
            Self::Refused { .. } => "refused",
            Self::Ready => "ready",
            Self::Clock { .. } => "clock",
            Self::Snapshot(_) => "snapshot",
            Self::Pending => "pending",
            Self::Part { .. } => "part",
        }
    }
}

/// Returns text from another host in a form safe to print. Replaces control and invisible
/// characters, and truncates to 400 characters.
pub fn sanitize(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    let replace_unprintable =
        |c: char| if c.is_control() || is_invisible(c) { '\u{fffd}' } else { c };
    let mut sanitized: String = text.chars().take(MAX_CHARS).map(replace_unprintable).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        sanitized.push('…');
    }
    sanitized
}

/// Returns true for invisible characters and those that change the text direction.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Test requested by the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPlan {
    /// Scenario text with the hosts `client` and `server` and the flows between them.
    pub scenario: String,
    /// Transport of the test.
    pub transport: Transport,
    /// Settings of the transfers.
    pub settings: TransferSettings,
}

/// Settings of bulk transfers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TransferSettings {
    /// Bytes per read or write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// Socket buffer size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u32>,
    /// Maximum rate of each stream's sender, in bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Name of the congestion control; `None` means the system's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// Set if received data is counted, but not copied to the application.
    #[serde(default)]
    pub discard: bool,
    /// Set if TCP and Multipath TCP carry TLS, as QUIC always does.
    #[serde(default)]
    pub tls: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_messages_cannot_control_the_terminal() {
        assert_eq!(sanitize("busy: 3 tests"), "busy: 3 tests");
        let sanitized = sanitize("a\u{1b}]0;title\u{7}b\r\n\u{9b}2Jc\u{202e}d");
        assert!(!sanitized.chars().any(|c| c.is_control() || is_invisible(c)), "{sanitized:?}");
        assert!(sanitize(&"x".repeat(100_000)).chars().count() <= 401);
    }
}
