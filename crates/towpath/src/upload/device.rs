//! Requests of a volunteer's device to a collector ([`towpath_result::device`]).

use std::io::{self, Read as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_campaign::{
    CAMPAIGNS_PATH, CampaignList, OUTCOMES_PATH, Outcome, OutcomeReply, OutcomeReport, PublicKey,
    SERVERS_PATH, ServerList,
};
use towpath_result::device::{
    CONSENT_PATH, ConsentChange, ConsentText, DEVICE_CONSENT_PATH, DEVICE_PATH, DEVICE_RUNS_PATH,
    DeviceRun, DeviceState, ForgetReply, JOIN_PATH, JoinReply, JoinRequest, MAX_CONSENT_BYTES,
    MAX_DEVICE_NAME_BYTES,
};
use towpath_result::format;
use towpath_result::format::text::clean;
use towpath_result::upload::ErrorReply;
use ureq::http::{Method, Request, StatusCode, header};
use ureq::{Agent, AsSendBody, Body};

use super::client::{
    Refusal, Token, agent, connection_failure, no_collector, redirect_text, refusal,
};
use super::read_roots;
use super::url::CollectorUrl;
use crate::error::CliError;

/// Maximum size of a reply's body in bytes. A list of runs has about 300 bytes for each run.
const MAX_REPLY_BYTES: u64 = 16_000_000;

/// Hint for a device whose token the collector does not know.
pub(crate) const LOCAL_HINT: &str = "ask the operator about runs that are still stored; `towpath \
                                     agent forget --local` removes the state from this host";

/// Reason why a collector does not do what a device asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceError {
    /// No reply of the collector came. A later request may succeed.
    Unreachable(Refusal),
    /// The collector does not know the device's token: it is revoked, or the device has left.
    UnknownToken(Refusal),
    /// The reply is not one of a collector, for instance that of a network's login page.
    Foreign(Refusal),
    /// The collector refuses the request.
    Refused(Refusal),
}

impl DeviceError {
    pub(crate) const fn refusal(&self) -> &Refusal {
        match self {
            Self::Unreachable(refusal)
            | Self::UnknownToken(refusal)
            | Self::Foreign(refusal)
            | Self::Refused(refusal) => refusal,
        }
    }
}

impl From<DeviceError> for CliError {
    fn from(error: DeviceError) -> Self {
        let Refusal { text, hint } = error.refusal().clone();
        let hint = match &error {
            DeviceError::UnknownToken(_) => None, // the device has to leave before it joins again
            DeviceError::Unreachable(_) | DeviceError::Foreign(_) | DeviceError::Refused(_) => hint,
        };
        let default_hint = match &error {
            DeviceError::Unreachable(_) | DeviceError::Foreign(_) => {
                "try it again later, or check the address"
            }
            DeviceError::UnknownToken(_) => LOCAL_HINT,
            DeviceError::Refused(_) => "ask the operator of the collector",
        };
        Self::Unavailable { what: text, hint: hint.unwrap_or_else(|| default_hint.to_owned()) }
    }
}

/// Client of the device interface of one collector.
#[derive(Debug)]
pub(crate) struct DeviceClient {
    agent: Agent,
    url: CollectorUrl,
    token: Option<Token>,
}

impl DeviceClient {
    /// Creates a client; `None` as token for a device that has not joined. `ca` names a file with
    /// the authorities to trust instead of those of Mozilla.
    pub(crate) fn new(
        url: CollectorUrl,
        token: Option<Token>,
        ca: Option<&Path>,
    ) -> Result<Self, CliError> {
        let roots = ca.map(read_roots).transpose()?;
        Ok(Self { agent: agent(&url, roots), url, token })
    }

    /// Fetches the current consent text.
    pub(crate) fn consent(&self) -> Result<ConsentText, DeviceError> {
        let consent: ConsentText = self.json(&self.send(Method::GET, CONSENT_PATH, ())?)?;
        if consent.version == 0 || consent.text.trim().is_empty() {
            return Err(self.wrong_reply("its consent text is empty"));
        }
        if consent.text.len() > MAX_CONSENT_BYTES {
            let max = format::bytes(MAX_CONSENT_BYTES as u64);
            return Err(self.wrong_reply(&format!("its consent text has more than {max}")));
        }
        Ok(consent)
    }

    /// Joins, which uses up the code. Returns the device's name, its token, and the key of campaigns.
    pub(crate) fn join(
        &self,
        request: &JoinRequest,
    ) -> Result<(String, Token, Option<PublicKey>), DeviceError> {
        let reply: JoinReply = self.json(&self.send_json(Method::POST, JOIN_PATH, request)?)?;
        let name = clean(reply.name.trim());
        if name.is_empty() || name.len() > MAX_DEVICE_NAME_BYTES {
            return Err(self.wrong_reply("the name of the device is invalid"));
        }
        let token = Token::parse(&reply.token)
            .ok_or_else(|| self.wrong_reply("the token of the device is invalid"))?;
        let key = reply.campaign_key.map(PublicKey::try_from).transpose();
        let key = key.map_err(|_| self.wrong_reply("the key of campaigns is invalid"))?;
        Ok((name, token, key))
    }

    /// Fetches the device's state on the collector.
    pub(crate) fn state(&self) -> Result<DeviceState, DeviceError> {
        self.json(&self.send(Method::GET, DEVICE_PATH, ())?)
    }

    /// Fetches the device's own runs.
    pub(crate) fn runs(&self) -> Result<Vec<DeviceRun>, DeviceError> {
        self.json(&self.send(Method::GET, DEVICE_RUNS_PATH, ())?)
    }

    /// Fetches the campaigns that are not ended, which are not verified yet.
    pub(crate) fn campaigns(&self) -> Result<CampaignList, DeviceError> {
        self.json(&self.send(Method::GET, CAMPAIGNS_PATH, ())?)
    }

    /// Fetches the test servers of a campaign, with the access of this device.
    pub(crate) fn servers(&self, campaign: &str) -> Result<ServerList, DeviceError> {
        self.json(&self.send(Method::GET, &format!("{SERVERS_PATH}?campaign={campaign}"), ())?)
    }

    /// Sends outcomes of planned runs, at most [`towpath_campaign::MAX_OUTCOMES`].
    pub(crate) fn report(&self, outcomes: Vec<Outcome>) -> Result<OutcomeReply, DeviceError> {
        let report = OutcomeReport { outcomes };
        self.json(&self.send_json(Method::POST, OUTCOMES_PATH, &report)?)
    }

    /// Sends the acceptance of a newer consent text.
    pub(crate) fn accept(&self, version: u32) -> Result<(), DeviceError> {
        let change = ConsentChange { consent: version };
        self.send_json(Method::PUT, DEVICE_CONSENT_PATH, &change).map(drop)
    }

    /// Deletes everything that the device has sent, and the device itself.
    pub(crate) fn forget(&self) -> Result<ForgetReply, DeviceError> {
        self.json(&self.send(Method::DELETE, DEVICE_PATH, ())?)
    }

    fn send_json(
        &self,
        method: Method,
        path: &str,
        content: &impl Serialize,
    ) -> Result<Vec<u8>, DeviceError> {
        let body = serde_json::to_vec(content).map_err(|error| self.wrong(&error.to_string()))?;
        self.send(method, path, body)
    }

    /// Sends a request. Returns the body of a reply that reports success.
    fn send(
        &self,
        method: Method,
        path: &str,
        body: impl AsSendBody,
    ) -> Result<Vec<u8>, DeviceError> {
        let mut request = Request::builder().method(method).uri(self.url.at(path));
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let request = request.body(body).map_err(|error| self.wrong(&error.to_string()))?;
        let unreachable =
            |error: ureq::Error| DeviceError::Unreachable(connection_failure(&self.url, &error));
        let (parts, body): (_, Body) = self.agent.run(request).map_err(unreachable)?.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX_REPLY_BYTES).read_to_end(&mut bytes);
        if parts.status.is_redirection() {
            let hint = Some("give the address of the collector itself".to_owned());
            let text = redirect_text(&self.url, &parts.headers);
            return Err(DeviceError::Foreign(Refusal { text, hint }));
        }
        if !parts.status.is_success() {
            return Err(self.refused(parts.status, &bytes));
        }
        read.map_err(|error: io::Error| unreachable(error.into()))?;
        Ok(bytes)
    }

    fn json<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, DeviceError> {
        serde_json::from_slice(body).map_err(|_| self.wrong("the reply is not one of a collector"))
    }

    /// Interprets a reply that does not report success.
    fn refused(&self, status: StatusCode, body: &[u8]) -> DeviceError {
        let url = &self.url;
        let Refusal { text, hint } = refusal(status, body);
        let with = |text| Refusal { text, hint };
        match status.as_u16() {
            401 if self.token.is_some() => DeviceError::UnknownToken(with(format!(
                "`{url}` does not know this device any more, because it was revoked or has left: \
                 {text}"
            ))),
            408 | 429 | 500.. => {
                DeviceError::Unreachable(with(format!("`{url}` cannot answer now: {text}")))
            }
            _ if serde_json::from_slice::<ErrorReply>(body).is_ok() => {
                DeviceError::Refused(with(format!("`{url}` refuses the request: {text}")))
            }
            _ => self.wrong(&text),
        }
    }

    /// Returns the error for a server that is not a collector.
    fn wrong(&self, reason: &str) -> DeviceError {
        DeviceError::Foreign(no_collector(&self.url, reason))
    }

    /// Returns the error for a reply of a collector that cannot be used.
    fn wrong_reply(&self, reason: &str) -> DeviceError {
        let text = format!("the reply of `{}` cannot be used: {reason}", self.url);
        DeviceError::Refused(Refusal { text, hint: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::fixtures::{TestServer, response};

    fn client(url: &str) -> DeviceClient {
        let token = Token::parse("towpath_secret");
        DeviceClient::new(CollectorUrl::parse(url).unwrap(), token, None).unwrap()
    }

    /// Returns a client of a server that always replies in this way.
    fn client_for(status: &'static str, body: &str) -> DeviceClient {
        let body = body.to_owned();
        client(&TestServer::start(move |_, _| response(status, "", &body)).url)
    }

    #[test]
    fn requests_have_the_token_and_the_body_of_the_contract() {
        let server = TestServer::start(|_, _| response("204 No Content", "", ""));
        client(&server.url).accept(2).unwrap();
        let request = server.requests().remove(0);
        assert_eq!(request.target, "PUT /api/v1/device/consent");
        assert_eq!(request.header("authorization"), Some("Bearer towpath_secret"));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.body, b"{\"consent\":2}");
    }

    #[test]
    fn statuses_tell_an_unknown_token_from_a_refusal_and_an_outage() {
        let json = "{\"error\":\"no\\u001b[2J\",\"hint\":\"try\"}";
        let error = |status, body| client_for(status, body).state().unwrap_err();
        let DeviceError::UnknownToken(refusal) = error("401 A", json) else { panic!() };
        assert!(refusal.text.ends_with("no\u{fffd}[2J"), "{refusal:?}");
        assert_eq!(refusal.hint.as_deref(), Some("try"));
        for status in ["400 A", "403 A", "404 A", "409 A", "422 A"] {
            assert!(matches!(error(status, json), DeviceError::Refused(_)), "{status}");
        }
        for status in ["408 A", "429 A", "500 A", "503 A"] {
            assert!(matches!(error(status, "x"), DeviceError::Unreachable(_)), "{status}");
        }
        for (status, body) in [("404 A", "<html>"), ("200 A", "<html>log in</html>")] {
            let DeviceError::Foreign(refusal) = error(status, body) else { panic!("{status}") };
            assert!(refusal.text.contains("is not a collector"), "{refusal:?}");
        }
    }

    #[test]
    fn a_consent_text_without_a_version_or_beyond_the_limit_is_refused() {
        let with = |version: u32, text: &str| {
            let text = text.to_owned();
            let body = serde_json::to_string(&ConsentText { version, text }).unwrap();
            client_for("200 OK", &body).consent()
        };
        assert_eq!(with(3, "text").unwrap().version, 3);
        for (version, text) in [(0, "text"), (1, " \n"), (1, &"x".repeat(MAX_CONSENT_BYTES + 1))] {
            assert!(matches!(with(version, text), Err(DeviceError::Refused(_))), "{version}");
        }
    }

    #[test]
    fn a_reply_with_a_wrong_name_or_token_does_not_make_a_device() {
        let request = JoinRequest {
            code: "7K3M-9QPX-VB2D".to_owned(),
            consent: 1,
            version: "1".to_owned(),
            platform: "linux x86_64".to_owned(),
        };
        let join = |name: &str, token: &str| {
            let (name, token) = (name.to_owned(), token.to_owned());
            let body =
                serde_json::to_string(&JoinReply { name, token, campaign_key: None }).unwrap();
            client_for("201 Created", &body).join(&request)
        };
        assert_eq!(join("phone", "towpath_ab").unwrap().0, "phone");
        for (name, token) in [("", "a"), (&*"x".repeat(65), "a"), ("phone", ""), ("phone", "a b")] {
            assert!(matches!(join(name, token), Err(DeviceError::Refused(_))), "{name} {token}");
        }
    }
}
