//! Test servers: their data, valid heartbeats, and the access that devices get to them.

use serde::{Deserialize, Serialize};
use towpath_campaign::{Access, AccessGrant, AccessKey, Campaign, Heartbeat, ServerOffer};
use towpath_result::format::text::deceives;

use crate::access::Token;
use crate::time::day;

/// Age of a heartbeat from which a server counts as absent.
const MAX_HEARTBEAT_AGE_US: i64 = 90 * 1_000_000;
/// Lifetime of an access grant in seconds. A device uses a grant for four minutes, then asks again.
const GRANT_LIFETIME_S: u64 = 600;
/// Digits of a device's pseudonym in grants.
const PSEUDONYM_DIGITS: usize = 16;
/// Maximum number of hosts in a heartbeat, and of ports.
const MAX_ADDRESSES: usize = 16;
/// Maximum length of a server's place, and of its version, in bytes.
const MAX_TEXT_BYTES: usize = 64;
/// Maximum length of a server's name in bytes. A grant contains it.
const MAX_NAME_BYTES: usize = 64;
/// Maximum length of a host's name (RFC 1035 §2.3.4).
const MAX_HOST_BYTES: usize = 253;
/// Maximum number of tests at the same time that a server may report.
const MAX_TESTS: u32 = 1_000_000;

/// A test server as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestServer {
    /// Token of the server, with its name and its revocation.
    pub token: Token,
    /// Latest heartbeat; `None` before the first.
    pub heartbeat: Option<Heartbeat>,
    /// Time of the latest heartbeat, in microseconds since 1970.
    pub seen_us: Option<i64>,
}

impl TestServer {
    /// Returns true if devices are sent to the server now.
    pub fn is_up(&self, now_us: i64) -> bool {
        let is_recent = self.seen_us.is_some_and(|seen_us| seen_us > oldest_us(now_us));
        self.token.revoked_us.is_none() && is_recent
    }
}

/// Row of a test server, with its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestServerRow {
    /// Identifier of the server's token.
    pub(crate) token: String,
    pub(crate) heartbeat: Heartbeat,
    /// Key of access grants, in hexadecimal digits.
    pub(crate) access_key: String,
    pub(crate) seen_us: i64,
}

/// Test server that devices may use, with its name.
#[derive(Debug, Clone)]
pub(crate) struct AvailableServer {
    pub(crate) name: String,
    pub(crate) row: TestServerRow,
}

impl AvailableServer {
    /// Returns the offer for a device; `None` if the stored key is damaged.
    ///
    /// All grants of a day (UTC) have the same pseudonym, so they share their bytes on the server.
    pub(crate) fn offer(
        self,
        device: &Token,
        campaign: &Campaign,
        now_us: i64,
    ) -> Option<ServerOffer> {
        let Self { name, row: TestServerRow { heartbeat, access_key, .. } } = self;
        let key = AccessKey::parse(&access_key)?;
        let grant = AccessGrant {
            server: name.clone(),
            device: pseudonym(&key, (&device.id, &campaign.name), day(now_us)),
            expires_s: now_us.unsigned_abs() / 1_000_000 + GRANT_LIFETIME_S,
            max_bytes: campaign.reservable_bytes_per_day(),
        };
        let grant = grant.to_string();
        let access = Access { secret: key.secret(&grant), grant };
        Some(ServerOffer { name, heartbeat, access })
    }
}

/// Returns the pseudonym of a device towards one server, for one campaign and day. Servers cannot
/// compare their pseudonyms.
fn pseudonym(key: &AccessKey, (token, campaign): (&str, &str), day: i64) -> String {
    // The text of a grant never begins like this, so the digits belong to no grant.
    let digest = key.secret(&format!("device\n{day}\n{campaign}\n{token}"));
    digest.chars().take(PSEUDONYM_DIGITS).collect()
}

/// Returns the time of a heartbeat that is too old at `now_us`.
pub(crate) fn oldest_us(now_us: i64) -> i64 {
    now_us.saturating_sub(MAX_HEARTBEAT_AGE_US)
}

/// Checks the sizes and characters of a heartbeat; the error is the reason for its sender.
pub(crate) fn verify_heartbeat(name: &str, heartbeat: &Heartbeat) -> Result<(), String> {
    let Heartbeat { place, hosts, ports, transports, certificate, version, tests, max_tests } =
        heartbeat;
    let is_count = |count: usize| (1..=MAX_ADDRESSES).contains(&count);
    let is_text = |text: &str| text.len() <= MAX_TEXT_BYTES && !text.contains(deceives);
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    let is_host = |host: &String| {
        !host.is_empty() && host.len() <= MAX_HOST_BYTES && host.chars().all(is_host_char)
    };
    let is_hash = |hash: &String| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let is_repeated = |index: usize| {
        transports.get(index).is_some_and(|transport| {
            transports.iter().take(index).any(|earlier| earlier == transport)
        })
    };
    let checks = [
        (is_name(name), "the name of a server has 1 to 64 bytes without control characters"),
        (is_text(place), "`place` has at most 64 bytes without control characters"),
        (is_count(hosts.len()), "`hosts` has 1 to 16 entries"),
        (hosts.iter().all(is_host), "`hosts` has names or addresses without ports"),
        (is_count(ports.len()), "`ports` has 1 to 16 entries"),
        (!ports.contains(&0), "a port is not 0"),
        (!transports.is_empty(), "`transports` is empty"),
        (!(0..transports.len()).any(is_repeated), "`transports` has a repetition"),
        (certificate.iter().all(is_hash), "`certificate` has 64 hexadecimal digits"),
        (is_text(version), "`version` has at most 64 bytes without control characters"),
        (*tests <= MAX_TESTS && *max_tests <= MAX_TESTS, "too many tests"),
    ];
    match checks.into_iter().find(|(is_valid, _)| !is_valid) {
        Some((_, reason)) => Err(reason.to_owned()),
        None => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(deceives)
}

#[cfg(test)]
mod tests {
    use towpath_scenario::Transport;

    use super::*;

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            place: "Brussels".to_owned(),
            hosts: vec!["test.example.org".to_owned(), "2001:db8::1".to_owned()],
            ports: vec![5_210, 443],
            transports: vec![Transport::Tcp, Transport::Mpquic],
            certificate: Some("ab".repeat(32)),
            version: "0.1.0".to_owned(),
            tests: 1,
            max_tests: 16,
        }
    }

    #[test]
    fn a_heartbeat_beyond_the_limits_is_refused_with_a_reason() {
        assert_eq!(verify_heartbeat("eu-1", &heartbeat()), Ok(()));
        assert_eq!(
            verify_heartbeat("eu-1", &Heartbeat { certificate: None, ..heartbeat() }),
            Ok(())
        );
        let host = |host: &str| Heartbeat { hosts: vec![host.to_owned()], ..heartbeat() };
        for (wrong, reason) in [
            (Heartbeat { place: "x".repeat(65), ..heartbeat() }, "place"),
            (Heartbeat { place: "a\nb".to_owned(), ..heartbeat() }, "place"),
            (Heartbeat { hosts: Vec::new(), ..heartbeat() }, "hosts"),
            (Heartbeat { hosts: vec!["h".to_owned(); 17], ..heartbeat() }, "hosts"),
            (host(""), "hosts"),
            (host("a b"), "hosts"),
            (host("a/b"), "hosts"),
            (host(&"h".repeat(254)), "hosts"),
            (Heartbeat { ports: Vec::new(), ..heartbeat() }, "ports"),
            (Heartbeat { ports: vec![1; 17], ..heartbeat() }, "ports"),
            (Heartbeat { ports: vec![0], ..heartbeat() }, "port"),
            (Heartbeat { transports: Vec::new(), ..heartbeat() }, "transports"),
            (Heartbeat { transports: vec![Transport::Tcp; 2], ..heartbeat() }, "transports"),
            (Heartbeat { certificate: Some("ab".to_owned()), ..heartbeat() }, "certificate"),
            (Heartbeat { version: "v".repeat(65), ..heartbeat() }, "version"),
            (Heartbeat { tests: u32::MAX, ..heartbeat() }, "tests"),
        ] {
            let error = verify_heartbeat("eu-1", &wrong).unwrap_err();
            assert!(error.contains(reason), "{error}: {reason}");
        }
        assert!(verify_heartbeat(&"n".repeat(65), &heartbeat()).is_err());
    }

    #[test]
    fn pseudonyms_differ_between_devices_servers_campaigns_and_days() {
        let (first, second) = (AccessKey::new([1; 32]), AccessKey::new([2; 32]));
        let own = pseudonym(&first, ("a1b2", "c"), 7);
        assert_eq!((own.len(), &own), (16, &pseudonym(&first, ("a1b2", "c"), 7)));
        assert!(own.bytes().all(|b| b.is_ascii_hexdigit()));
        for other in [
            pseudonym(&first, ("a1b3", "c"), 7),
            pseudonym(&first, ("a1b2", "d"), 7),
            pseudonym(&first, ("a1b2", "c"), 8),
            pseudonym(&second, ("a1b2", "c"), 7),
        ] {
            assert_ne!(own, other);
        }
    }
}
