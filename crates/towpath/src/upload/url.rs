//! Address of a collector.

use std::fmt;
use std::net::IpAddr;

use towpath_result::upload::{LIVE_PATH, RUNS_PATH};
use ureq::http::Uri;

use crate::error::CliError;

/// Maximum length of an address in bytes.
const MAX_URL_BYTES: usize = 2_000;
const URL_HINT: &str =
    "give the address of a collector, such as `--to https://towpath.example.org`";

/// Address of a collector, without a slash at its end. Equal collectors have equal texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CollectorUrl {
    text: String,
    is_encrypted: bool,
    is_loopback: bool,
}

impl CollectorUrl {
    /// Checks an address that the user typed.
    pub(crate) fn parse(typed: &str) -> Result<Self, CliError> {
        let wrong = |reason: &str| CliError::Unavailable {
            what: format!("`{typed}` is not the address of a collector: {reason}"),
            hint: URL_HINT.to_owned(),
        };
        if typed.len() > MAX_URL_BYTES {
            return Err(wrong("it is too long"));
        }
        let uri: Uri = typed.trim().parse().map_err(|_| wrong("expected `https://HOST`"))?;
        let scheme = uri.scheme_str().map(str::to_ascii_lowercase).unwrap_or_default();
        let is_encrypted = match scheme.as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(wrong("expected `https://` or `http://`")),
        };
        let Some(authority) = uri.authority() else { return Err(wrong("it has no host")) };
        if authority.as_str().contains('@') {
            return Err(wrong("it contains a user name, expected only a host"));
        }
        // RFC 3986 §3.2.3 allows a colon without a port.
        let host = authority.host();
        if host.is_empty() || (authority.as_str() != host && authority.port_u16().is_none()) {
            return Err(wrong("its host or port is invalid"));
        }
        if uri.query().is_some() || typed.contains('#') {
            return Err(wrong("expected no `?` and no `#`"));
        }
        let path = uri.path().trim_end_matches('/');
        let text = format!("{scheme}://{}{path}", authority.as_str().to_ascii_lowercase());
        Ok(Self { text, is_encrypted, is_loopback: is_loopback(host) })
    }

    /// Returns the address of the run with this content hash.
    pub(super) fn run(&self, hash: &str) -> String {
        format!("{}{RUNS_PATH}/{hash}", self.text)
    }

    /// Returns the address for records of a run in progress.
    pub(super) fn live(&self, id: &str) -> String {
        format!("{}{LIVE_PATH}/{id}", self.text)
    }

    /// Returns the address of a path of the collector, which begins with a slash.
    pub(super) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.text)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if other hosts could read what is sent.
    pub(super) fn is_exposed(&self) -> bool {
        !self.is_encrypted && !self.is_loopback
    }

    pub(super) const fn is_loopback(&self) -> bool {
        self.is_loopback
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns true for a host name or address of this host (RFC 6761 §6.3).
fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_collectors_have_equal_addresses() {
        for typed in ["https://Example.org", "HTTPS://example.org/", " https://example.org// "] {
            assert_eq!(CollectorUrl::parse(typed).unwrap().as_str(), "https://example.org");
        }
        let below = CollectorUrl::parse("http://[::1]:7080/Lab/").unwrap();
        assert_eq!(below.run("ab"), "http://[::1]:7080/Lab/api/v1/runs/ab");
    }

    #[test]
    fn other_addresses_are_refused_with_a_hint() {
        for typed in [
            "",
            "example.org",
            "ftp://example.org",
            "https://",
            "https:///x",
            "https://user:secret@example.org",
            "https://example.org:port",
            "https://example.org:",
            "https://example.org:99999",
            "https://example.org/?a=b",
            "https://example.org/#a",
            "https://exa mple.org",
            "https://example.org/\u{1b}[2J",
            "/api",
        ] {
            let error = CollectorUrl::parse(typed).expect_err(typed);
            assert!(error.hint().is_some_and(|hint| hint.contains("--to https://")), "{typed}");
        }
    }

    #[test]
    fn only_plain_http_to_other_hosts_is_exposed() {
        let is_exposed = |typed| CollectorUrl::parse(typed).unwrap().is_exposed();
        assert!(is_exposed("http://example.org") && is_exposed("http://10.0.0.1:7080"));
        assert!(!is_exposed("https://example.org"));
        for typed in
            ["http://localhost:1", "http://127.0.0.2", "http://[::1]", "http://a.localhost"]
        {
            assert!(!is_exposed(typed), "{typed}");
        }
    }
}
