//! Heartbeats of a test server to a collector ([`towpath_campaign::Heartbeat`]).

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use towpath_campaign::{AccessKey, HEARTBEAT_PATH, Heartbeat, HeartbeatReply};
use towpath_result::format::text::clean;
use towpath_result::upload::ErrorReply;
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode, header};

use super::client::{
    Refusal, Token, agent, connection_failure, is_certificate_error, no_collector, redirect_text,
    refusal,
};
use super::url::CollectorUrl;
use super::{read_roots, read_token};
use crate::error::CliError;

/// Time for one heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a reply in bytes.
const MAX_REPLY_BYTES: u64 = 64_000;
/// Maximum length of a server's name in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Range of the time between two heartbeats, whatever the collector says.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
const MAX_INTERVAL: Duration = Duration::from_secs(600);
const TOKEN_HINT: &str = "create a token on the collector's host: `towpath collect token create \
                          --name NAME --role server`";

/// Registration of a test server, as the collector confirmed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerRegistration {
    /// Name of the server on the collector.
    pub(crate) name: String,
    /// Key that verifies access grants.
    pub(crate) key: AccessKey,
    /// Time until the next heartbeat.
    pub(crate) interval: Duration,
}

/// Reason why a heartbeat is not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeartbeatError {
    /// A later heartbeat may succeed.
    Unreachable(Refusal),
    /// No heartbeat can succeed until the operator changes something.
    Refused(Refusal),
}

impl HeartbeatError {
    pub(crate) const fn refusal(&self) -> &Refusal {
        match self {
            Self::Unreachable(refusal) | Self::Refused(refusal) => refusal,
        }
    }
}

/// Client that sends the heartbeats of one test server.
#[derive(Debug)]
pub(crate) struct HeartbeatClient {
    agent: Agent,
    url: CollectorUrl,
    token: Token,
}

impl HeartbeatClient {
    /// Creates a client with the token of a file, or of the environment. `ca` names a file with the
    /// authorities to trust instead of those of Mozilla.
    pub(crate) fn new(
        url: CollectorUrl,
        token_file: Option<&Path>,
        ca: Option<&Path>,
    ) -> Result<Self, CliError> {
        let token = read_token(token_file)?;
        let roots = ca.map(read_roots).transpose()?;
        Ok(Self { agent: agent(&url, roots), url, token })
    }

    /// Sends a heartbeat, which takes at most [`HEARTBEAT_TIMEOUT`].
    pub(crate) fn send(&self, heartbeat: &Heartbeat) -> Result<ServerRegistration, HeartbeatError> {
        let failed = |error: ureq::Error| {
            let refusal = connection_failure(&self.url, &error);
            if is_certificate_error(&error) {
                HeartbeatError::Refused(refusal)
            } else {
                HeartbeatError::Unreachable(refusal)
            }
        };
        let request = self
            .agent
            .put(self.url.at(HEARTBEAT_PATH))
            .config()
            .timeout_global(Some(HEARTBEAT_TIMEOUT))
            .build()
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token.expose()))
            .header(header::CONTENT_TYPE, "application/json");
        let body = serde_json::to_vec(heartbeat).map_err(|error| self.wrong(&error.to_string()))?;
        let (parts, body) = request.send(body.as_slice()).map_err(failed)?.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX_REPLY_BYTES).read_to_end(&mut bytes);
        if !parts.status.is_success() {
            return Err(self.refused(parts.status, &parts.headers, &bytes));
        }
        read.map_err(|error| failed(error.into()))?;
        self.registration(&bytes)
    }

    /// Checks that a reply comes from a collector, not from the login page of a network.
    fn registration(&self, body: &[u8]) -> Result<ServerRegistration, HeartbeatError> {
        let wrong = || self.wrong("the reply is not one of a collector");
        let reply: HeartbeatReply = serde_json::from_slice(body).map_err(|_| wrong())?;
        // Grants contain the name, so it must be the collector's, and printable.
        let is_name = !reply.name.is_empty()
            && reply.name.len() <= MAX_NAME_BYTES
            && clean(&reply.name) == reply.name;
        let key = AccessKey::parse(&reply.access_key).filter(|_| is_name).ok_or_else(wrong)?;
        let interval = Duration::from_secs(reply.interval_s.into());
        let interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
        Ok(ServerRegistration { name: reply.name, key, interval })
    }

    /// Interprets a reply that does not report success.
    fn refused(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> HeartbeatError {
        let url = &self.url;
        if status.is_redirection() {
            let hint = Some("give the address of the collector itself".to_owned());
            let text = redirect_text(url, headers);
            return HeartbeatError::Refused(Refusal { text, hint });
        }
        let Refusal { text, hint } = refusal(status, body);
        match status.as_u16() {
            401 | 403 => HeartbeatError::Refused(Refusal {
                text: format!("`{url}` does not accept the token: {text}"),
                hint: hint.or_else(|| Some(TOKEN_HINT.to_owned())),
            }),
            408 | 429 | 500.. => HeartbeatError::Unreachable(Refusal {
                text: format!("`{url}` cannot answer now: {text}"),
                hint,
            }),
            _ if serde_json::from_slice::<ErrorReply>(body).is_ok() => {
                let text = format!("`{url}` refuses the server: {text}");
                let default = || "check --place, --announce and --port".to_owned();
                HeartbeatError::Refused(Refusal { text, hint: hint.or_else(|| Some(default())) })
            }
            _ => self.wrong(&text),
        }
    }

    /// Returns the error for a server that is not a collector with test servers.
    fn wrong(&self, reason: &str) -> HeartbeatError {
        HeartbeatError::Refused(no_collector(&self.url, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::fixtures::{TestServer, response};

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            place: "Brussels".to_owned(),
            hosts: vec!["192.0.2.1".to_owned()],
            ports: vec![5_210],
            transports: vec![towpath_scenario::Transport::Tcp],
            certificate: None,
            version: "0.1.0".to_owned(),
            tests: 0,
            max_tests: 16,
        }
    }

    fn send_to(url: &str) -> Result<ServerRegistration, HeartbeatError> {
        let url = CollectorUrl::parse(url).unwrap();
        let token = Token::parse("towpath_secret").unwrap();
        let client = HeartbeatClient { agent: agent(&url, None), url, token };
        client.send(&heartbeat())
    }

    fn send(status: &'static str, body: &str) -> Result<ServerRegistration, HeartbeatError> {
        let body = body.to_owned();
        send_to(&TestServer::start(move |_, _| response(status, "", &body)).url)
    }

    fn reply(name: &str, key: &str, interval_s: u32) -> String {
        let (name, access_key) = (name.to_owned(), key.to_owned());
        serde_json::to_string(&HeartbeatReply { name, access_key, interval_s }).unwrap()
    }

    #[test]
    fn a_heartbeat_has_the_token_and_yields_the_key() {
        let key = "07".repeat(32);
        let body = reply("eu-1", &key, 30);
        let server = TestServer::start(move |_, _| response("200 OK", "", &body));
        let registration = send_to(&server.url).unwrap();
        assert_eq!(registration.name, "eu-1");
        assert_eq!(registration.key, AccessKey::new([7; 32]));
        assert_eq!(registration.interval, Duration::from_secs(30));
        let request = server.requests().remove(0);
        assert_eq!(request.target, "PUT /api/v1/server");
        assert_eq!(request.header("authorization"), Some("Bearer towpath_secret"));
        assert_eq!(serde_json::from_slice::<Heartbeat>(&request.body).unwrap(), heartbeat());
    }

    #[test]
    fn a_reply_that_is_not_one_of_a_collector_is_refused() {
        let key = "07".repeat(32);
        for body in [
            "<html>log in</html>".to_owned(),
            "{}".to_owned(),
            reply("", &key, 30),
            reply("a\u{1b}[2J", &key, 30),
            reply("eu-1", "short", 30),
        ] {
            let error = send("200 OK", &body).unwrap_err();
            assert!(matches!(error, HeartbeatError::Refused(_)), "{body}: {error:?}");
        }
        for (interval_s, expected) in [(0, MIN_INTERVAL), (u32::MAX, MAX_INTERVAL)] {
            let registration = send("200 OK", &reply("eu-1", &key, interval_s)).unwrap();
            assert_eq!(registration.interval, expected);
        }
    }

    #[test]
    fn a_wrong_token_is_permanent_and_an_outage_is_not() {
        for status in ["401 A", "403 A"] {
            let HeartbeatError::Refused(refusal) = send(status, "{\"error\":\"no\"}").unwrap_err()
            else {
                panic!("{status}")
            };
            assert!(refusal.text.contains("does not accept the token: no"), "{refusal:?}");
            assert!(refusal.hint.unwrap().contains("--role server"));
        }
        for status in ["400 A", "404 A", "308 A"] {
            let error = send(status, "{\"error\":\"no\"}").unwrap_err();
            assert!(matches!(error, HeartbeatError::Refused(_)), "{status}: {error:?}");
        }
        for status in ["408 A", "429 A", "500 A", "503 A"] {
            let error = send(status, "x").unwrap_err();
            assert!(matches!(error, HeartbeatError::Unreachable(_)), "{status}: {error:?}");
        }
        // A port that was just closed refuses connections.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let error = send_to(&url).unwrap_err();
        assert!(matches!(&error, HeartbeatError::Unreachable(_)), "{error:?}");
        assert!(error.refusal().text.contains("connection refused"), "{error:?}");
    }
}
