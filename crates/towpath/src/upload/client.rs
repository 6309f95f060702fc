//! HTTP requests to a collector (RFC 9110), and the meaning of its replies.

use std::fmt;
use std::io::{self, Read as _};
use std::time::Duration;

use towpath_result::format::text::{clean, cut};
use towpath_result::prefix::shorten_all;
use towpath_result::upload::{
    ErrorReply, FIRST_HEADER, HOST_HEADER, LIVE_MEDIA_TYPE, RESULT_MEDIA_TYPE, SIZE_HEADER,
    TIME_HEADER, UploadReply,
};
use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::spool::QueuedRun;
use super::url::CollectorUrl;
use crate::error::describe_error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_mins(2);
/// Time for a request with records of a run in progress.
const LIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum size of a reply's body in bytes.
const MAX_REPLY_BYTES: u64 = 64_000;
/// Size in bytes from which the collector may refuse a result before it is sent.
const MIN_EXPECT_BYTES: usize = 1_000_000;
/// Maximum length of a token in bytes.
const MAX_TOKEN_BYTES: usize = 1_000;
/// Maximum length in characters of what a collector says.
const MAX_TEXT_CHARS: usize = 400;
const TOKEN_HINT: &str = "create a token on the collector's host: `towpath collect token create \
                          --name HOST --role uploader`";
const DEVICE_HINT: &str = "`towpath agent status` shows the state of this device";

/// Secret that permits uploads.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    /// Checks a token; surrounding white space is ignored. `None` if it cannot be one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let token = text.trim();
        let is_valid = !token.is_empty()
            && token.len() <= MAX_TOKEN_BYTES
            && token.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(token.to_owned()))
    }

    /// Returns the secret, for a request or a private file.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Statement of a collector about a request that it does not fulfil.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PutOutcome {
    /// The collector has the run.
    Stored(UploadReply),
    /// The collector will never accept this run.
    Refused(Refusal),
    /// No request can succeed until the user changes something.
    Blocked(Refusal),
    /// A later request may succeed, at the earliest after this time if the collector names one.
    Failed { reason: String, retry_after: Option<Duration> },
}

/// Outcome of a request with records of a run in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostOutcome {
    /// The collector shows the records.
    Accepted,
    /// The collector does not want records of this run.
    Refused,
    /// A later request may succeed.
    Failed,
}

/// Client of one collector.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: Agent,
    token: Token,
    url: CollectorUrl,
    /// True if the token is that of a device that has joined.
    is_device: bool,
}

impl Client {
    /// Creates a client. It trusts the certificate authorities in `roots` only, if there are some,
    /// else those of Mozilla.
    pub(super) fn new(url: CollectorUrl, token: Token, roots: Option<RootCerts>) -> Self {
        Self { agent: agent(&url, roots), token, url, is_device: false }
    }

    /// Sets whether the token is that of a device that has joined, which changes hints.
    pub(super) fn with_device(self, is_device: bool) -> Self {
        Self { is_device, ..self }
    }

    /// Returns true if the token is that of a device that has joined.
    pub(super) fn is_device(&self) -> bool {
        self.is_device
    }

    /// Fetches the row of a run. Fails with a reason and a hint.
    pub(super) fn get(
        url: &CollectorUrl,
        token: Option<&Token>,
        roots: Option<RootCerts>,
        id: &str,
    ) -> Result<Vec<u8>, (String, String)> {
        let mut request = agent(url, roots).get(url.run(id));
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.0));
        }
        let response = request.call().map_err(|error| {
            let text = shown(&describe_error(&error.to_string()));
            (format!("cannot reach `{url}`: {text}"), "check the address with a browser".to_owned())
        })?;
        let (parts, body) = response.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX_REPLY_BYTES).read_to_end(&mut bytes);
        if !parts.status.is_success() {
            let refusal = refusal(parts.status, &bytes);
            let hint = refusal.hint.unwrap_or_else(|| "open the run in a browser".to_owned());
            return Err((format!("`{url}` refuses the run: {}", refusal.text), hint));
        }
        let failed = |error: io::Error| {
            let text = describe_error(&error.to_string());
            (format!("the reply of `{url}` ended early: {text}"), "try it again".to_owned())
        };
        read.map(|_| bytes).map_err(failed)
    }

    /// Sends a result, which may take [`REQUEST_TIMEOUT`].
    pub(super) fn put(&self, hash: &str, run: &QueuedRun, bytes: &[u8]) -> PutOutcome {
        let mut request = self
            .agent
            .put(self.url.run(hash))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token.0))
            .header(header::CONTENT_TYPE, RESULT_MEDIA_TYPE)
            .header(SIZE_HEADER, run.expanded_bytes.to_string())
            .header(HOST_HEADER, &run.host);
        if let Some(time_us) = run.time_us {
            request = request.header(TIME_HEADER, time_us.to_string());
        }
        if bytes.len() >= MIN_EXPECT_BYTES {
            request = request.header(header::EXPECT, "100-continue");
        }
        match request.send(bytes) {
            Ok(response) => self.interpret(hash, response),
            Err(error) => self.failure(&error),
        }
    }

    /// Sends records of a run in progress. `text` begins with its conditions.
    pub(super) fn post_live(
        &self,
        (id, host): (&str, &str),
        first: u64,
        text: &str,
    ) -> PostOutcome {
        let request = self
            .agent
            .post(self.url.live(id))
            .config()
            .timeout_global(Some(LIVE_TIMEOUT))
            .build()
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token.0))
            .header(header::CONTENT_TYPE, LIVE_MEDIA_TYPE)
            .header(FIRST_HEADER, first.to_string())
            .header(HOST_HEADER, host);
        // The owner of a device has agreed to network prefixes only.
        let text = if self.is_device { shorten_all(text) } else { text.into() };
        match request.send(text.as_ref()) {
            Ok(response) if response.status().is_success() => PostOutcome::Accepted,
            Ok(response) if response.status().is_server_error() => PostOutcome::Failed,
            Ok(_) => PostOutcome::Refused,
            Err(_) => PostOutcome::Failed,
        }
    }

    /// Returns the address of the page of a run in progress.
    pub(super) fn live_page(&self, id: &str) -> String {
        format!("{}/live/{id}", self.url)
    }

    fn interpret(&self, hash: &str, response: Response<ureq::Body>) -> PutOutcome {
        let (parts, body) = response.into_parts();
        let mut bytes = Vec::new();
        let read = body.into_reader().take(MAX_REPLY_BYTES).read_to_end(&mut bytes);
        if parts.status.is_success() {
            if let Err(error) = read {
                return self.failure(&error.into());
            }
            return self.confirmation(hash, &bytes);
        }
        let refusal = refusal(parts.status, &bytes);
        if parts.status.is_redirection() {
            let hint = "give the address of the collector itself with `--to`".to_owned();
            let text = redirect_text(&self.url, &parts.headers);
            return PutOutcome::Blocked(Refusal { text, hint: Some(hint) });
        }
        match parts.status.as_u16() {
            400 | 409 | 413 | 415 | 422 => PutOutcome::Refused(refusal),
            status @ (401 | 403) => PutOutcome::Blocked(self.denial(status, refusal)),
            408 | 429 | 500.. => PutOutcome::Failed {
                reason: format!("`{}` cannot take runs now: {}", self.url, refusal.text),
                retry_after: retry_after(&parts.headers),
            },
            _ => self.no_collector(&refusal.text),
        }
    }

    /// Returns the refusal of a token (401), or of its rights (403).
    fn denial(&self, status: u16, refusal: Refusal) -> Refusal {
        let Refusal { text, hint } = refusal;
        let object = if status == 401 { "the token" } else { "runs with this token" };
        // An operator's hint about tokens does not help the owner of a device.
        let hint = hint.filter(|_| status != 401 || !self.is_device);
        let default_hint = if self.is_device { DEVICE_HINT } else { TOKEN_HINT };
        Refusal {
            text: format!("`{}` does not accept {object}: {text}", self.url),
            hint: hint.or_else(|| Some(default_hint.to_owned())),
        }
    }

    /// Checks that a reply comes from a collector, not from the login page of a network.
    fn confirmation(&self, hash: &str, body: &[u8]) -> PutOutcome {
        match serde_json::from_slice::<UploadReply>(body) {
            Ok(reply) if !reply.id.is_empty() && hash.starts_with(&reply.id) => {
                PutOutcome::Stored(reply)
            }
            _ => self.no_collector("the reply is not one of a collector"),
        }
    }

    fn no_collector(&self, reason: &str) -> PutOutcome {
        PutOutcome::Blocked(no_collector(&self.url, reason))
    }

    fn failure(&self, error: &ureq::Error) -> PutOutcome {
        let refusal = connection_failure(&self.url, error);
        if is_certificate_error(error) {
            PutOutcome::Blocked(refusal)
        } else {
            PutOutcome::Failed { reason: refusal.text, retry_after: None }
        }
    }
}

/// Returns the refusal of a reply that does not come from a collector.
pub(super) fn no_collector(url: &CollectorUrl, reason: &str) -> Refusal {
    Refusal {
        text: format!("`{url}` is not a collector: {reason}"),
        hint: Some("check the address with a browser".to_owned()),
    }
}

/// Describes a redirect, with its target if it has one.
pub(super) fn redirect_text(url: &CollectorUrl, headers: &HeaderMap) -> String {
    let target = headers.get(header::LOCATION);
    let target = target.map(|target| shown(&String::from_utf8_lossy(target.as_bytes())));
    let target = target.map_or(String::new(), |target| format!(" to `{target}`"));
    format!("`{url}` redirects{target}, which is not followed")
}

/// Describes a request without a complete reply. The hint is `None` if a repetition may help.
pub(super) fn connection_failure(url: &CollectorUrl, error: &ureq::Error) -> Refusal {
    let text = if let ureq::Error::Io(error) = error {
        describe_error(&error.to_string())
    } else if matches!(error, ureq::Error::Timeout(_)) {
        "it did not reply in time".to_owned()
    } else if matches!(error, ureq::Error::HostNotFound) {
        "its name has no address".to_owned()
    } else {
        describe_error(&error.to_string())
    };
    let text = shown(&text);
    if is_certificate_error(error) {
        return Refusal {
            text: format!("the certificate of `{url}` is not trusted: {text}"),
            hint: Some("give the authority that issued it with `--ca FILE`".to_owned()),
        };
    }
    Refusal { text: format!("cannot reach `{url}`: {text}"), hint: None }
}

/// Creates an HTTP agent that trusts the authorities in `roots`, or those of Mozilla.
pub(super) fn agent(url: &CollectorUrl, roots: Option<RootCerts>) -> Agent {
    let tls = TlsConfig::builder().root_certs(roots.unwrap_or(RootCerts::WebPki)).build();
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(Some(REQUEST_TIMEOUT))
        .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
        .accept("application/json")
        .tls_config(tls);
    if url.is_loopback() {
        config = config.proxy(None);
    }
    config.build().into()
}

/// Returns true if the server's certificate was refused, which rustls reports as invalid data.
pub(super) fn is_certificate_error(error: &ureq::Error) -> bool {
    let ureq::Error::Io(error) = error else { return matches!(error, ureq::Error::Rustls(_)) };
    error.kind() == io::ErrorKind::InvalidData
        && error.get_ref().is_some_and(|inner| {
            let source = inner.source().map(ToString::to_string).unwrap_or_default();
            inner.to_string().contains("certificate") || source.contains("certificate")
        })
}

/// Returns what a collector, or a proxy before it, says about a request.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> Refusal {
    match serde_json::from_slice::<ErrorReply>(body) {
        Ok(reply) => {
            Refusal { text: shown(&reply.error), hint: reply.hint.map(|hint| shown(&hint)) }
        }
        Err(_) => Refusal { text: format!("status {status}"), hint: None },
    }
}

/// Returns another host's text in one line of limited length.
pub(super) fn shown(text: &str) -> String {
    cut(clean(text).trim(), MAX_TEXT_CHARS)
}

/// Returns the time of the header `Retry-After`; `None` if it is a date (RFC 9110 §10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Reads certificate authorities in PEM. `None` without any.
pub(super) fn parse_roots(pem: &[u8]) -> Option<RootCerts> {
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.ok()? {
            certificates.push(certificate);
        }
    }
    (!certificates.is_empty()).then(|| RootCerts::from(certificates))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::fixtures::{Received, TestServer, queued, response, stored};

    /// Returns the outcome of one request, and the request, for this reply.
    fn put(reply: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static) -> (PutOutcome, Received) {
        let server = TestServer::start(move |_, request| reply(request));
        let outcome = put_to(&server.url);
        (outcome, server.requests().remove(0))
    }

    fn put_to(url: &str) -> PutOutcome {
        let token = Token::parse("towpath_secret\n").unwrap();
        let client = Client::new(CollectorUrl::parse(url).unwrap(), token, None);
        let (run, bytes) = queued(1);
        let hash = super::super::content::inspect(&bytes).unwrap().hash;
        client.put(&hash, &run, &bytes)
    }

    #[test]
    fn a_run_is_sent_with_all_headers() {
        let (outcome, request) = put(|request| stored(request, true));
        let PutOutcome::Stored(reply) = outcome else { panic!("{outcome:?}") };
        assert!(reply.created && reply.url.ends_with(&reply.id));
        assert_eq!(request.header("authorization"), Some("Bearer towpath_secret"));
        assert_eq!(request.header("content-type"), Some(RESULT_MEDIA_TYPE));
        assert_eq!(request.header("towpath-host"), Some("lab"));
        assert_eq!(request.header("towpath-time"), Some("1700000000000001"));
        assert_eq!(request.header("content-length"), Some(&*queued(1).1.len().to_string()));
        assert_eq!(request.header("transfer-encoding"), None);
    }

    #[test]
    fn a_duplicate_is_stored_and_not_created() {
        let (outcome, _) = put(|request| stored(request, false));
        assert!(matches!(outcome, PutOutcome::Stored(reply) if !reply.created));
    }

    #[test]
    fn a_reply_of_another_server_does_not_confirm_a_run() {
        for body in ["<html>log in</html>", "{}", "{\"id\":\"\",\"url\":\"x\",\"created\":true}"] {
            let (outcome, _) = put(|_| response("200 OK", "", body));
            assert!(matches!(outcome, PutOutcome::Blocked(_)), "{body}");
        }
        let (outcome, _) = put(|request| {
            let id = if request.hash().starts_with('0') { "1" } else { "0" };
            response(
                "201 Created",
                "",
                &format!("{{\"id\":\"{id}\",\"url\":\"x\",\"created\":true}}"),
            )
        });
        assert!(matches!(outcome, PutOutcome::Blocked(_)));
    }

    #[test]
    fn statuses_decide_what_happens_to_a_run() {
        let json = "{\"error\":\"no\\u001b[2J\\nhint: x\",\"hint\":\"try\"}";
        for status in ["400 A", "409 A", "413 A", "415 A", "422 A"] {
            let (outcome, _) = put(move |_| response(status, "", json));
            let PutOutcome::Refused(refusal) = outcome else { panic!("{status}: {outcome:?}") };
            assert_eq!(refusal.text, "no\u{fffd}[2J hint: x");
            assert_eq!(refusal.hint.as_deref(), Some("try"));
        }
        for status in ["401 A", "403 A", "404 A", "405 A", "204 A"] {
            let (outcome, _) = put(move |_| response(status, "", ""));
            assert!(matches!(&outcome, PutOutcome::Blocked(_)), "{status}: {outcome:?}");
        }
        for status in ["408 A", "429 A", "500 A", "502 A", "503 A", "599 A"] {
            let (outcome, _) = put(move |_| response(status, "retry-after: 7\r\n", "x"));
            let PutOutcome::Failed { retry_after, .. } = outcome else { panic!("{status}") };
            assert_eq!(retry_after, Some(Duration::from_secs(7)));
        }
    }

    #[test]
    fn a_redirect_is_reported_and_not_followed() {
        let (outcome, _) =
            put(|_| response("308 Moved", "location: https://other.example/\r\n", ""));
        let PutOutcome::Blocked(refusal) = outcome else { panic!("{outcome:?}") };
        assert!(refusal.text.contains("`https://other.example/`"), "{}", refusal.text);
    }

    #[test]
    fn a_huge_reply_is_not_read_to_its_end() {
        // The server declares more than it ever sends, so reading all of it would take until the
        // timeout.
        let huge = |status: &'static str| {
            move |_: &Received| {
                let mut bytes = response(status, "", "");
                bytes.clear();
                bytes.extend(
                    format!("HTTP/1.1 {status}\r\ncontent-length: 999999999\r\n\r\n").bytes(),
                );
                bytes.extend(std::iter::repeat_n(b' ', 200_000));
                bytes
            }
        };
        assert!(matches!(put(huge("201 Created")).0, PutOutcome::Blocked(_)));
        assert!(matches!(put(huge("422 A")).0, PutOutcome::Refused(_)));
        let (outcome, _) =
            put(|_| response("201 A", &format!("x: {}\r\n", "y".repeat(200_000)), ""));
        assert!(matches!(outcome, PutOutcome::Failed { .. }), "{outcome:?}");
    }

    #[test]
    fn connection_errors_are_temporary() {
        let (outcome, _) = put(|_| Vec::new());
        assert!(matches!(outcome, PutOutcome::Failed { .. }), "{outcome:?}");
        let (outcome, _) = put(|_| b"SSH-2.0-x\r\n".to_vec());
        assert!(matches!(outcome, PutOutcome::Failed { .. }), "{outcome:?}");
        // A port that was just closed refuses connections.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let PutOutcome::Failed { reason, .. } = put_to(&url) else { panic!() };
        assert_eq!(reason, format!("cannot reach `{url}`: connection refused"));
    }

    #[test]
    fn a_token_is_one_word_and_never_printed() {
        assert!(Token::parse(" towpath_ab12\r\n").is_some());
        for text in ["", "  \n", "two words", "a\nb", "tökén", &"x".repeat(2_000)] {
            assert!(Token::parse(text).is_none(), "{text}");
        }
        assert!(!format!("{:?}", Token::parse("abc").unwrap()).contains("abc"));
    }

    #[test]
    fn authorities_are_read_from_pem() {
        let pem = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        assert!(parse_roots(pem.repeat(2).as_bytes()).is_some());
        assert!(parse_roots(b"").is_none() && parse_roots(b"text").is_none());
    }
}
