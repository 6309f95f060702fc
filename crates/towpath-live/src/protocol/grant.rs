//! Access grants of a collector: their verification, and the bytes that their tests may transfer.
//!
//! A server shares a key with its collector ([`ServerAccess`]). A client that proves the secret of a
//! grant is a device of the collector. The bytes of each of its plans are [reserved](GrantAccounts)
//! from the grant. The server stores nothing else about devices.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_campaign::{
    AccessGrant, AccessKey, MESSAGE_HEADER_BYTES, UDPING_PERIOD_BYTES, with_overhead,
};
use towpath_result::format;
use towpath_scenario::flow_plan::{directions, planned_requests, streams};
use towpath_scenario::{DataDirection, Flow, Pattern, Scenario, Schedule};

use super::limits::AdmissionError;
use super::message::TestPlan;
use super::secret::Secret;

/// Maximum number of devices with reserved bytes.
const MAX_DEVICES: usize = 10_000;
/// Time after which the bytes of a device are forgotten, in seconds. Its pseudonym is valid for a day.
const ACCOUNT_LIFETIME_S: u64 = 25 * 3_600;
const NEW_GRANT_HINT: &str = "request new access from the collector; `towpath agent` does";

/// Name of a server on its collector, with the key that both share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAccess {
    /// Name in grants for this server.
    pub name: String,
    /// Key from which the secrets of grants are derived.
    pub key: AccessKey,
}

/// Grant that a client proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvedGrant {
    grant: AccessGrant,
}

impl ServerAccess {
    /// Returns the secret that belongs to the text of a grant; `None` if it is not a grant.
    pub(super) fn secret(&self, text: &str) -> Option<Secret> {
        AccessGrant::parse(text)?;
        Secret::from_text(self.key.secret(text).as_bytes()).ok()
    }

    /// Checks the server's name in a grant, which needs no proof.
    pub(super) fn verify_name(&self, text: &str) -> Result<(), AdmissionError> {
        if AccessGrant::parse(text).is_some_and(|grant| grant.server != self.name) {
            let reason = "the access grant is for another server";
            return Err(AdmissionError::new(reason, NEW_GRANT_HINT));
        }
        Ok(())
    }

    /// Accepts a grant whose secret the client has proved, unless it is expired. `now_s` is in
    /// seconds since 1970.
    pub(crate) fn accept(&self, text: &str, now_s: u64) -> Result<ProvedGrant, AdmissionError> {
        let grant = AccessGrant::parse(text).filter(|grant| grant.server == self.name);
        let invalid = || AdmissionError::new("the access grant is not valid", NEW_GRANT_HINT);
        let grant = grant.ok_or_else(invalid)?;
        verify_expiry(&grant, now_s)?;
        Ok(ProvedGrant { grant })
    }
}

fn verify_expiry(grant: &AccessGrant, now_s: u64) -> Result<(), AdmissionError> {
    if now_s >= grant.expires_s {
        return Err(AdmissionError::new("the access grant is expired", NEW_GRANT_HINT));
    }
    Ok(())
}

/// Bytes that the tests of one device have reserved.
#[derive(Debug, Clone, Copy)]
struct GrantAccount {
    /// Time of the latest reservation in seconds since 1970.
    used_s: u64,
    reserved_bytes: u64,
}

/// Bytes reserved by the tests of each device, by its pseudonym.
///
/// A collector gives a device a new pseudonym each day. All grants with the same pseudonym share
/// their bytes, so a renewed grant adds none.
#[derive(Debug, Default)]
pub struct GrantAccounts {
    accounts: BTreeMap<String, GrantAccount>,
    /// Time of the latest removal of old accounts, in seconds since 1970.
    cleaned_s: u64,
}

impl GrantAccounts {
    /// Reserves the bytes of a plan; returns their number. `now_s` is in seconds since 1970.
    pub fn reserve(
        &mut self,
        proved: &ProvedGrant,
        (plan, scenario): (&TestPlan, &Scenario),
        now_s: u64,
    ) -> Result<u64, AdmissionError> {
        let grant = &proved.grant;
        verify_expiry(grant, now_s)?;
        let Some(bytes) = planned_bytes(plan, scenario) else {
            let allowed = format::bytes(grant.max_bytes);
            let reason = format!("a transfer without a limit, but the grant allows {allowed}");
            let hint = "give a size (-n) or a rate (-b)";
            return Err(AdmissionError::new(reason, hint));
        };
        if self.cleaned_s != now_s {
            self.cleaned_s = now_s;
            self.accounts.retain(|_, account| now_s < account.used_s + ACCOUNT_LIFETIME_S);
        }
        let device = &grant.device;
        let reserved_bytes = self.accounts.get(device).map_or(0, |account| account.reserved_bytes);
        let remaining_bytes = grant.max_bytes.saturating_sub(reserved_bytes);
        if bytes > remaining_bytes {
            let (requested, remaining) = (format::bytes(bytes), format::bytes(remaining_bytes));
            let reason =
                format!("a test of up to {requested}, but the access grant has {remaining} left");
            return Err(AdmissionError::new(reason, NEW_GRANT_HINT));
        }
        if self.accounts.len() >= MAX_DEVICES && !self.accounts.contains_key(device) {
            return Err(AdmissionError::new("it has too many devices", "try again later"));
        }
        let reserved_bytes = reserved_bytes.saturating_add(bytes);
        let account = GrantAccount { used_s: now_s, reserved_bytes };
        self.accounts.insert(device.clone(), account);
        Ok(bytes)
    }

    /// Returns the bytes of a test that has not begun.
    pub fn release(&mut self, proved: &ProvedGrant, bytes: u64) {
        if let Some(account) = self.accounts.get_mut(&proved.grant.device) {
            account.reserved_bytes = account.reserved_bytes.saturating_sub(bytes);
        }
    }
}

/// Returns the bytes that a test can transfer at most, with headers, retransmissions and its
/// control connection; `None` if neither a size nor a rate limits a transfer.
pub fn planned_bytes(plan: &TestPlan, scenario: &Scenario) -> Option<u64> {
    let rate_bps = plan.settings.rate_bps;
    let payload = scenario
        .flows
        .iter()
        .try_fold(0_u64, |sum, flow| Some(sum.saturating_add(payload_bytes(flow, rate_bps)?)))?;
    Some(with_overhead(payload))
}

/// Returns the payload of a flow, without the margins with which a campaign plans.
fn payload_bytes(flow: &Flow, rate_bps: Option<u64>) -> Option<u64> {
    let pattern = &flow.pattern;
    let direction_count = directions(pattern).len() as u64;
    match pattern {
        Pattern::Bulk { size_bytes, .. } => match size_bytes {
            Some(bytes) => Some(bytes.saturating_mul(direction_count)),
            None => Some(timed_bytes(pattern, rate_bps?)),
        },
        Pattern::Iperf { .. } => Some(timed_bytes(pattern, rate_bps?)),
        Pattern::Exchange(exchange) if exchange.phases.is_some() => None,
        Pattern::Exchange(exchange) => {
            let requests = |requester| planned_requests(pattern, requester);
            let count = requests(DataDirection::Up).saturating_add(requests(DataDirection::Down));
            Some(exchange_bytes(&exchange.schedule, count))
        }
        Pattern::Video(video) => {
            let segment = u64::from(video.segment_bytes) + u64::from(video.request_bytes);
            Some(segment.saturating_mul(video.segments.into()))
        }
        Pattern::Web(web) => {
            let object = u64::from(web.object_bytes) + u64::from(web.request_bytes);
            let objects = object.saturating_mul(web.objects.into());
            Some(objects.saturating_add(web.page_bytes.into()))
        }
        Pattern::Udping(udping) => {
            let count = ratio(udping.duration, udping.period).saturating_add(1);
            Some(count.saturating_mul(UDPING_PERIOD_BYTES))
        }
        Pattern::Udp(udp) => {
            Some(rate_bytes(udp.rate_bps, udp.duration).saturating_mul(direction_count))
        }
        // A server runs no commands.
        Pattern::Run { .. } => None,
    }
}

/// Returns the bytes of a transfer whose duration alone ends it.
fn timed_bytes(pattern: &Pattern, rate_bps: u64) -> u64 {
    let stream_count = u64::from(streams(pattern)).saturating_mul(directions(pattern).len() as u64);
    rate_bytes(rate_bps, pattern.limit()).saturating_mul(stream_count)
}

fn rate_bytes(rate_bps: u64, duration: Duration) -> u64 {
    let bits = u128::from(rate_bps).saturating_mul(duration.as_nanos()) / 1_000_000_000;
    u64::try_from(bits / 8).unwrap_or(u64::MAX)
}

fn ratio(whole: Duration, part: Duration) -> u64 {
    let count = whole.as_nanos().checked_div(part.as_nanos()).unwrap_or(0);
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns the bytes of `count` requests and their replies.
fn exchange_bytes(schedule: &Schedule, count: u64) -> u64 {
    let message =
        |request: u32, reply: u32| u64::from(request) + u64::from(reply) + MESSAGE_HEADER_BYTES;
    match schedule {
        Schedule::Every { request_bytes, reply_bytes, .. }
        | Schedule::Bursts { request_bytes, reply_bytes, .. } => {
            message(*request_bytes, *reply_bytes).saturating_mul(count)
        }
        Schedule::Listed { up, down } => up
            .iter()
            .chain(down.iter())
            .map(|planned| message(planned.request_bytes, planned.reply_bytes))
            .fold(0, u64::saturating_add),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;
    use towpath_campaign::{
        Campaign, CampaignPattern, EXAMPLE_MOBILE, EXAMPLE_STABLE, RUN_OVERHEAD_BYTES,
    };
    use towpath_scenario::Transport;

    use super::*;
    use crate::protocol::control::{ControlAction, ControlSession, GrantPolicy};
    use crate::protocol::message::{ClientMessage, ServerMessage};
    use crate::protocol::secret::{AuthRole, AuthTranscript, Challenge, ChannelBinding};
    use crate::protocol::{ServerLimits, TransferSettings};

    const NOW_S: u64 = 1_800_000_000;
    const KEY: [u8; 32] = [7; 32];
    const SERVER_SECRET: &str = "a key of 16 bytes";
    const SERVER: Challenge = Challenge([9; 32]);
    const CLIENT: Challenge = Challenge([8; 32]);
    const BINDING: ChannelBinding = ChannelBinding([3; 32]);

    fn grant() -> AccessGrant {
        AccessGrant {
            server: "eu-1".to_owned(),
            device: "a7f3".to_owned(),
            expires_s: NOW_S + 600,
            max_bytes: 10_000_000,
        }
    }

    fn access() -> ServerAccess {
        ServerAccess { name: "eu-1".to_owned(), key: AccessKey::new(KEY) }
    }

    fn plan(flow: &str, rate_bps: Option<u64>) -> (TestPlan, Scenario) {
        let scenario = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.p]\n\
             between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{flow}"
        );
        let settings = TransferSettings { rate_bps, ..TransferSettings::default() };
        let plan = TestPlan { scenario, transport: Transport::Tcp, settings };
        let scenario = ServerLimits::default().admit(&plan).unwrap();
        (plan, scenario)
    }

    /// Returns the session of a registered server after the client's hello.
    fn session(secret: Option<&str>, is_required: bool, now_s: u64) -> ControlSession {
        let secret = secret.map(|text| Secret::from_text(text.as_bytes()).unwrap());
        let grants = GrantPolicy { access: Some(access()), is_required, now_s };
        let mut session = ControlSession::new(None, secret, SERVER)
            .with_binding(Some(BINDING))
            .with_grants(Some(grants));
        let hello = ClientMessage::Hello { towpath: String::new() };
        let actions = session.on_message(hello, &ServerLimits::default());
        let [ControlAction::Send(ServerMessage::Welcome { grant_challenge, challenge, .. })] =
            &actions[..]
        else {
            panic!("{actions:?}")
        };
        assert_eq!(*grant_challenge, Some(SERVER));
        assert_eq!(*challenge, session.requires_proof().then_some(SERVER));
        session
    }

    /// Returns a client's proof of `secret`, which may not be that of the grant.
    fn proof(grant: Option<&str>, secret: &str, binding: ChannelBinding) -> ClientMessage {
        let transcript = AuthTranscript { binding, server: SERVER, client: CLIENT };
        let secret = Secret::from_text(secret.as_bytes()).unwrap();
        let proof = secret.prove(AuthRole::Client, &transcript).unwrap();
        ClientMessage::Proof { proof, challenge: CLIENT, grant: grant.map(str::to_owned) }
    }

    fn grant_proof(grant: &AccessGrant) -> ClientMessage {
        let text = grant.to_string();
        proof(Some(&text), &AccessKey::new(KEY).secret(&text), BINDING)
    }

    /// Returns the reason of a refusal that closes the connection, and whether it is a failed
    /// attempt.
    fn refusal(mut session: ControlSession, message: ClientMessage) -> (String, bool) {
        let mut actions = session.on_message(message, &ServerLimits::default());
        let is_failed = actions.first() == Some(&ControlAction::AuthFailed);
        actions.retain(|action| *action != ControlAction::AuthFailed);
        let [ControlAction::Send(ServerMessage::Refused { reason, .. }), ControlAction::Close] =
            &actions[..]
        else {
            panic!("{actions:?}")
        };
        assert_eq!(session.proved_grant(), None);
        (reason.clone(), is_failed)
    }

    #[test]
    fn a_device_with_a_grant_gets_a_test_and_the_servers_proof() {
        for (secret, is_required) in [(None, true), (None, false), (Some(SERVER_SECRET), true)] {
            let mut session = session(secret, is_required, NOW_S);
            let actions = session.on_message(grant_proof(&grant()), &ServerLimits::default());
            let [ControlAction::Send(ServerMessage::Proved { proof })] = actions[..] else {
                panic!("{actions:?}")
            };
            let transcript = AuthTranscript { binding: BINDING, server: SERVER, client: CLIENT };
            let secret = AccessKey::new(KEY).secret(&grant().to_string());
            let secret = Secret::from_text(secret.as_bytes()).unwrap();
            assert!(secret.accepts(AuthRole::Server, &transcript, proof));
            assert!(session.proved_grant().is_some());
            // A grant gives access to tests, and not to the setup of the server's host.
            let snapshot = ClientMessage::Snapshot { port: 80 };
            let actions = session.on_message(snapshot, &ServerLimits::default());
            assert_eq!(actions, [ControlAction::Snapshot { port: 80, complete: false }]);
            let (plan, _) = plan("pattern = \"bulk\"\nsize = \"1 MB\"\n", None);
            let plan = ClientMessage::Plan(Box::new(plan));
            let actions = session.on_message(plan, &ServerLimits::default());
            assert!(matches!(&actions[..], [ControlAction::Admit(_)]));
            let again = session.on_message(grant_proof(&grant()), &ServerLimits::default());
            assert_eq!(again, [ControlAction::Close]);
        }
    }

    #[test]
    fn a_client_without_a_grant_is_refused_unless_the_server_is_open() {
        let (plan, _) = plan("pattern = \"bulk\"\nsize = \"1 MB\"\n", None);
        let plan = ClientMessage::Plan(Box::new(plan));
        let (reason, is_failed) = refusal(session(None, true, NOW_S), plan.clone());
        assert!(reason.contains("devices of a collector only") && !is_failed, "{reason}");
        let (reason, _) = refusal(session(Some(SERVER_SECRET), true, NOW_S), plan.clone());
        assert!(reason.contains("requires a secret"), "{reason}");
        let actions = session(None, false, NOW_S).on_message(plan, &ServerLimits::default());
        assert!(matches!(&actions[..], [ControlAction::Admit(_)]));
        // The secret of `--secret-file` still works, but not where the server has none.
        let old = proof(None, SERVER_SECRET, BINDING);
        let actions = session(Some(SERVER_SECRET), true, NOW_S)
            .on_message(old.clone(), &ServerLimits::default());
        assert!(matches!(&actions[..], [ControlAction::Send(ServerMessage::Proved { .. })]));
        let (reason, is_failed) = refusal(session(None, true, NOW_S), old);
        assert!(reason.contains("devices of a collector only") && !is_failed, "{reason}");
    }

    #[test]
    fn old_messages_have_no_grant_and_are_read() {
        let message = proof(None, SERVER_SECRET, BINDING);
        let text = serde_json::to_string(&message).unwrap();
        assert!(!text.contains("grant"), "{text}");
        assert_eq!(serde_json::from_str::<ClientMessage>(&text).unwrap(), message);
        let welcome = "{\"type\":\"welcome\",\"towpath\":\"0.1\"}";
        let welcome: ServerMessage = serde_json::from_str(welcome).unwrap();
        assert!(matches!(welcome, ServerMessage::Welcome { grant_challenge: None, .. }));
        let refused = "{\"type\":\"refused\",\"reason\":\"r\",\"hint\":null}";
        let refused: ServerMessage = serde_json::from_str(refused).unwrap();
        assert!(matches!(refused, ServerMessage::Refused { retry_after_s: None, .. }));
    }

    #[test]
    fn expired_foreign_and_early_grants_get_clear_refusals() {
        let expired = session(None, true, NOW_S + 600);
        let (reason, is_failed) = refusal(expired, grant_proof(&grant()));
        assert!(reason.contains("expired") && !is_failed, "{reason}");
        let foreign = AccessGrant { server: "eu-2".to_owned(), ..grant() };
        let (reason, is_failed) = refusal(session(None, true, NOW_S), grant_proof(&foreign));
        assert!(reason.contains("another server") && !is_failed, "{reason}");
        let grants = GrantPolicy { access: None, is_required: true, now_s: NOW_S };
        let early = session(None, true, NOW_S).with_grants(Some(grants));
        let mut actions = early.clone().on_message(grant_proof(&grant()), &ServerLimits::default());
        assert!(matches!(
            actions.remove(0),
            ControlAction::Send(ServerMessage::Refused { retry_after_s: Some(30), .. })
        ));
        let (reason, _) = refusal(early.with_grants(None), grant_proof(&grant()));
        assert!(reason.contains("no devices"), "{reason}");
    }

    #[test]
    fn a_proof_that_was_recorded_is_worthless_on_another_connection() {
        let text = grant().to_string();
        let secret = AccessKey::new(KEY).secret(&text);
        let relayed = proof(Some(&text), &secret, ChannelBinding([4; 32]));
        let (_, is_failed) = refusal(session(None, true, NOW_S), relayed);
        assert!(is_failed);
        let unencrypted = session(None, true, NOW_S).with_binding(None);
        let (reason, _) = refusal(unencrypted, grant_proof(&grant()));
        assert!(reason.contains("encrypted"), "{reason}");
    }

    proptest! {
        #[test]
        fn an_altered_grant_or_secret_is_a_failed_attempt(
            expires_s in NOW_S + 1.., max_bytes: u64, device in "[0-9a-z]{1,8}", key: [u8; 32],
        ) {
            let altered = AccessGrant { expires_s, max_bytes, device, ..grant() };
            let own = AccessKey::new(KEY).secret(&grant().to_string());
            let other = AccessKey::new(key).secret(&altered.to_string());
            prop_assume!(altered != grant() && key != KEY);
            for secret in [own, other] {
                let message = proof(Some(&altered.to_string()), &secret, BINDING);
                let (_, is_failed) = refusal(session(None, true, NOW_S), message);
                prop_assert!(is_failed);
            }
        }

        #[test]
        fn any_text_in_a_proof_is_refused_without_a_panic(text in ".{0,300}") {
            let message = proof(Some(&text), SERVER_SECRET, BINDING);
            refusal(session(Some(SERVER_SECRET), true, NOW_S), message);
        }

        #[test]
        fn tests_of_one_grant_never_reserve_more_than_it_allows(
            sizes in proptest::collection::vec((1_u64..4_000, any::<bool>()), 1..12),
        ) {
            let mut accounts = GrantAccounts::default();
            let proved = access().accept(&grant().to_string(), NOW_S).unwrap();
            let mut reserved_bytes = 0;
            for (size, begins) in sizes {
                let flow = format!("pattern = \"bulk\"\nsize = \"{size} KB\"\n");
                let (plan, scenario) = plan(&flow, None);
                let needed_bytes = planned_bytes(&plan, &scenario).unwrap();
                let result = accounts.reserve(&proved, (&plan, &scenario), NOW_S);
                let fits = reserved_bytes + needed_bytes <= grant().max_bytes;
                prop_assert_eq!(result.is_ok(), fits);
                if result.is_ok() && begins {
                    reserved_bytes += needed_bytes;
                } else if let Ok(bytes) = result {
                    accounts.release(&proved, bytes);
                }
            }
        }
    }

    #[test]
    fn renewed_grants_of_a_device_share_their_bytes() {
        let mut accounts = GrantAccounts::default();
        let (plan, scenario) = plan("pattern = \"bulk\"\nsize = \"5 MB\"\n", None);
        let accept = |grant: &AccessGrant| access().accept(&grant.to_string(), NOW_S).unwrap();
        let first = accept(&grant());
        assert_eq!(accounts.reserve(&first, (&plan, &scenario), NOW_S), Ok(6_125_000));
        let refusal = accounts.reserve(&first, (&plan, &scenario), NOW_S).unwrap_err();
        assert!(refusal.reason.contains("3.88 MB left") && refusal.hint.is_some(), "{refusal:?}");
        let renewed = accept(&AccessGrant { expires_s: NOW_S + 1_200, ..grant() });
        let refusal = accounts.reserve(&renewed, (&plan, &scenario), NOW_S + 600).unwrap_err();
        assert!(refusal.reason.contains("3.88 MB left"), "{refusal:?}");
        let late = accounts.reserve(&first, (&plan, &scenario), NOW_S + 600).unwrap_err();
        assert!(late.reason.contains("expired"), "{late:?}");
        // Another device has its own bytes, and the same one on the next day.
        let other = accept(&AccessGrant { device: "b".to_owned(), ..grant() });
        assert!(accounts.reserve(&other, (&plan, &scenario), NOW_S).is_ok());
        let next_s = NOW_S + ACCOUNT_LIFETIME_S;
        let next =
            accept(&AccessGrant { expires_s: next_s + 600, device: "c".to_owned(), ..grant() });
        assert!(accounts.reserve(&next, (&plan, &scenario), next_s).is_ok());
        assert_eq!(accounts.accounts.len(), 1);
    }

    #[test]
    fn the_number_of_accounts_is_bounded() {
        let mut accounts = GrantAccounts::default();
        let (plan, scenario) = plan("pattern = \"bulk\"\nsize = \"1 KB\"\n", None);
        for number in 0..=MAX_DEVICES {
            let text = AccessGrant { device: number.to_string(), ..grant() }.to_string();
            let proved = access().accept(&text, NOW_S).unwrap();
            let result = accounts.reserve(&proved, (&plan, &scenario), NOW_S);
            assert_eq!(result.is_ok(), number < MAX_DEVICES);
        }
    }

    #[test]
    fn a_timed_transfer_needs_a_rate_limit() {
        let flow = "pattern = \"iperf\"\nduration = \"2 s\"\nstreams = 3\ndirection = \"both\"\n";
        let (unlimited, scenario) = plan(flow, None);
        let proved = access().accept(&grant().to_string(), NOW_S).unwrap();
        let result = GrantAccounts::default().reserve(&proved, (&unlimited, &scenario), NOW_S);
        let refusal = result.unwrap_err();
        assert!(refusal.reason.contains("without a limit"), "{refusal:?}");
        let (limited, scenario) = plan(flow, Some(800_000));
        // 100 kB/s for two seconds, three streams and two directions, and an eighth of it.
        assert_eq!(planned_bytes(&limited, &scenario), Some(1_350_000 + RUN_OVERHEAD_BYTES));
        let (latency, scenario) = plan("pattern = \"latency\"\n", Some(800_000));
        assert_eq!(planned_bytes(&latency, &scenario), None);
    }

    #[test]
    fn a_round_of_a_campaign_fits_into_its_grant() {
        let others = "name = \"others\"\nmode = \"stable\"\nend = 2199-01-01T00:00:00Z\n\
             every = \"24 h\"\nbytes-per-day = \"10 GB\"\n\
             [[patterns]]\npattern = \"bulk\"\nduration = \"7 s\"\nmax-bytes = \"9 MB\"\n\
             [[patterns]]\npattern = \"iperf\"\nduration = \"7 s\"\nstreams = 3\n\
             direction = \"both\"\nmax-bytes = \"9 MB\"\n\
             [[patterns]]\npattern = \"interactive\"\nduration = \"1.3 s\"\n\
             [[patterns]]\npattern = \"web\"\nobjects = 20\n\
             [[patterns]]\npattern = \"video\"\n\
             [[patterns]]\npattern = \"udping\"\nduration = \"1 s\"\n";
        for example in [EXAMPLE_STABLE, EXAMPLE_MOBILE, others] {
            let campaign = Campaign::parse("example", example, 0).unwrap();
            for CampaignPattern { name, keys, max_bytes, rate_limit_bps, .. } in &campaign.patterns
            {
                let mut flow = format!("pattern = \"{name}\"\n");
                for (key, value) in keys {
                    writeln!(flow, "{key} = {value}").unwrap();
                }
                let (plan, scenario) = plan(&flow, *rate_limit_bps);
                let bytes = planned_bytes(&plan, &scenario).unwrap();
                assert!(bytes <= *max_bytes, "{name}: {bytes} of {max_bytes}");
            }
        }
    }
}
