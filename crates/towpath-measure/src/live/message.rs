//! What client and server say on a control connection.

use serde::{Deserialize, Serialize};

use super::look::HostSnapshot;
use super::preamble::TestToken;
use super::secret::{AuthProof, Challenge};
use crate::scenario::Transport;

/// Said by the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ClientMessage {
    /// The first word of a new test.
    Hello {
        /// Version of towpath.
        towpath: String,
    },
    /// The answer to a challenge, and one for the server.
    Proof {
        /// The answer.
        proof: AuthProof,
        /// The server must prove the secret with this.
        challenge: Challenge,
    },
    /// What is to be done.
    Plan(Box<TestPlan>),
    /// In place of a plan: how does the server look from inside?
    #[serde(rename = "look")]
    Snapshot {
        /// The port in question.
        port: u16,
    },
    /// What time is it?
    Probe {
        /// The client's clock, to be given back.
        client_ns: u64,
    },
    /// The traffic starts.
    Begin {
        /// When, on the server's clock.
        at_ns: u64,
    },
    /// The traffic ends early, at once.
    Stop,
    /// The traffic ends early: nothing is asked that is due later, and what was asked is answered.
    End {
        /// When, on the server's clock.
        at_ns: u64,
    },
    /// The result, from some byte on.
    Fetch {
        /// Bytes that are there already.
        offset: u64,
    },
    /// The result is there; nothing more is wanted.
    Bye,
}

/// What a server saw of a connection: what arrived may not be what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObservedProtocol {
    /// Multipath TCP.
    Multipath,
    /// Plain TCP, where it would have accepted Multipath TCP.
    Plain,
    /// Plain TCP, since its kernel has nothing else.
    #[serde(rename = "without")]
    Unsupported,
}

/// Said by the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ServerMessage {
    /// The answer to hello.
    Welcome {
        /// Version of towpath.
        towpath: String,
        /// The secret must be proved with this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        challenge: Option<Challenge>,
        /// What it saw of this connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seen: Option<ObservedProtocol>,
        /// Whether it sends [datagrams](super::datagram) back on this port.
        #[serde(default)]
        datagrams: bool,
        /// Whether it speaks QUIC on this port.
        #[serde(default)]
        quic: bool,
    },
    /// It knows the secret, too.
    Proved {
        /// The answer to the client's challenge.
        proof: AuthProof,
    },
    /// The plan is accepted; the connections can be opened.
    Accepted {
        /// What they are opened with.
        token: TestToken,
    },
    /// Not like that.
    Refused {
        /// Why.
        why: String,
        /// The way out.
        hint: Option<String>,
    },
    /// All connections are there.
    Ready,
    /// It is.
    Clock {
        /// What was asked with.
        client_ns: u64,
        /// The server's clock.
        server_ns: u64,
    },
    /// It looks like that.
    #[serde(rename = "looked")]
    Snapshot(Box<HostSnapshot>),
    /// There is no result yet.
    Pending,
    /// A part of the result.
    Part {
        /// Where it begins.
        offset: u64,
        /// Length of the whole.
        total: u64,
        /// The part.
        text: String,
    },
}

impl ServerMessage {
    /// The word as it is on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Welcome { .. } => "welcome",
            Self::Proved { .. } => "proved",
            Self::Accepted { .. } => "accepted",
            Self::Refused { .. } => "refused",
            Self::Ready => "ready",
            Self::Clock { .. } => "clock",
            Self::Snapshot(_) => "looked",
            Self::Pending => "pending",
            Self::Part { .. } => "part",
        }
    }
}

/// Text that another host has said, for people: without characters that steer a terminal, and not
/// longer than anybody reads.
pub fn sanitize(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    let shown = |c: char| if c.is_control() || is_invisible(c) { '\u{fffd}' } else { c };
    let mut plain: String = text.chars().take(MAX_CHARS).map(shown).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        plain.push('…');
    }
    plain
}

/// Marks that turn the direction of what follows, or cannot be seen.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPlan {
    /// Hosts `client` and `server`, and what is sent between them, as a scenario.
    pub scenario: String,
    /// Over which transport.
    pub transport: Transport,
    /// How.
    pub settings: TransferSettings,
}

/// How bytes are moved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TransferSettings {
    /// Bytes written or read at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u32>,
    /// Buffers of sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u32>,
    /// Each stream's sender is not faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Congestion control; the system's when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// What a transfer delivers is counted, not copied.
    #[serde(default)]
    pub discard: bool,
    /// TCP and Multipath TCP carry TLS, as QUIC always does.
    #[serde(default)]
    pub tls: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_messages_cannot_control_the_terminal() {
        assert_eq!(sanitize("busy: 3 tests"), "busy: 3 tests");
        let said = sanitize("a\u{1b}]0;title\u{7}b\r\n\u{9b}2Jc\u{202e}d");
        assert!(!said.chars().any(|c| c.is_control() || is_invisible(c)), "{said:?}");
        assert!(sanitize(&"x".repeat(100_000)).chars().count() <= 401);
    }
}
