//! Devices of a collector: grants of access, their bytes, and a full server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use towpath_campaign::{AccessGrant, AccessKey};
use towpath_live::protocol::{Secret, ServerAccess, ServerLimits};
use towpath_live::{
    DeviceAccess, LiveError, MeasureRequest, Server, ServerConfig, ServerEvent, measure,
};
use towpath_os::clock::unix_us;
use towpath_scenario::Transport;

use super::{HANG_TIMEOUT, SMALL_FLOW, measure_request, parse_secret, run_honest_test, summary};

const NAME: &str = "eu-1";
const SECRET: &str = "the secret of this server";

fn key() -> AccessKey {
    AccessKey::new([7; 32])
}

/// Starts a server of a collector, whose key it has or waits for.
fn serve(
    (secret, is_required): (Option<&str>, bool),
    limits: ServerLimits,
) -> (SocketAddr, DeviceAccess, Receiver<ServerEvent>) {
    let access = DeviceAccess::new(is_required);
    let server = Server::open(ServerConfig {
        ports: vec![0],
        bind: Some(Ipv4Addr::LOCALHOST.into()),
        secret: secret.map(parse_secret),
        limits,
        once: false,
        public_diagnostics: false,
        quic_migration: false,
        identity: None,
        access: Some(access.clone()),
    })
    .unwrap();
    let address = server.addresses()[0];
    let (events, received) = mpsc::channel();
    thread::spawn(move || {
        let on_event = move |event| {
            let _ = events.send(event); // the test may not need it
        };
        server.run(on_event).unwrap();
    });
    (address, access, received)
}

fn serve_with_key(secret: Option<&str>, is_required: bool) -> SocketAddr {
    let (address, access, _) = serve((secret, is_required), ServerLimits::default());
    access.set(ServerAccess { name: NAME.to_owned(), key: key() });
    address
}

fn grant(max_bytes: u64) -> AccessGrant {
    let expires_s = unix_us() / 1_000_000 + 600;
    AccessGrant { server: NAME.to_owned(), device: "a7f3".to_owned(), expires_s, max_bytes }
}

fn request(
    server: SocketAddr,
    transport: Transport,
    flow: &str,
    grant: &AccessGrant,
) -> MeasureRequest {
    let text = grant.to_string();
    let secret = Secret::from_text(key().secret(&text).as_bytes()).unwrap();
    let request = measure_request(server, transport, flow);
    MeasureRequest { secret: Some(secret), grant: Some(text), ..request }
}

fn refusal(request: &MeasureRequest) -> LiveError {
    let error = measure(request, &mut |_| {}).unwrap_err();
    assert!(matches!(error, LiveError::Refused(_)), "{error}");
    assert!(error.hint().is_some(), "{error}");
    error
}

#[test]
fn a_grant_opens_a_server_for_every_transport_until_its_bytes_are_used() {
    for (secret, is_required) in [(None, true), (Some(SECRET), true), (None, false)] {
        let server = serve_with_key(secret, is_required);
        // Three tests of 725 kB.
        let grant = grant(2_200_000);
        for transport in [Transport::Tcp, Transport::Quic, Transport::Mpquic] {
            let request = request(server, transport, SMALL_FLOW, &grant);
            let records = measure(&request, &mut |_| {}).unwrap();
            assert!(summary(&records).ok, "{transport}: {:?}", summary(&records));
        }
        let error = refusal(&request(server, Transport::Tcp, SMALL_FLOW, &grant)).to_string();
        assert!(error.contains("725 kB") && error.contains("25.0 kB left"), "{error}");
    }
}

#[test]
fn clients_without_a_valid_grant_are_refused() {
    let server = serve_with_key(None, true);
    let valid = grant(1_000_000);
    let error = refusal(&measure_request(server, Transport::Tcp, SMALL_FLOW)).to_string();
    assert!(error.contains("devices of a collector only"), "{error}");
    let expired = AccessGrant { expires_s: 1_700_000_000, ..valid.clone() };
    let error = refusal(&request(server, Transport::Tcp, SMALL_FLOW, &expired)).to_string();
    assert!(error.contains("expired"), "{error}");
    let foreign = AccessGrant { server: "eu-2".to_owned(), ..valid.clone() };
    let error = refusal(&request(server, Transport::Tcp, SMALL_FLOW, &foreign)).to_string();
    assert!(error.contains("another server"), "{error}");
    let timed = "pattern = \"iperf\"\nduration = \"1 s\"";
    let error = refusal(&request(server, Transport::Tcp, timed, &valid)).to_string();
    assert!(error.contains("without a limit"), "{error}");
    let mut altered = request(server, Transport::Tcp, SMALL_FLOW, &valid);
    altered.grant = Some(grant(2_000_000).to_string());
    let error = refusal(&altered).to_string();
    assert!(error.contains("is wrong"), "{error}");
    // The refusals cost nothing of the grant.
    let records = measure(&request(server, Transport::Tcp, SMALL_FLOW, &valid), &mut |_| {});
    assert!(summary(&records.unwrap()).ok);
}

#[test]
fn other_clients_use_an_open_server_or_its_secret_as_before() {
    run_honest_test(serve_with_key(None, false), None, SMALL_FLOW);
    run_honest_test(serve_with_key(Some(SECRET), true), Some(SECRET), SMALL_FLOW);
    let without_collector = super::serve(Some(SECRET), ServerLimits::default());
    let request = request(without_collector, Transport::Tcp, SMALL_FLOW, &grant(1_000_000));
    let error = refusal(&request).to_string();
    assert!(error.contains("no devices of a collector"), "{error}");
}

#[test]
fn the_key_may_arrive_while_the_server_runs() {
    let (server, access, _) = serve((None, true), ServerLimits::default());
    let request = request(server, Transport::Tcp, SMALL_FLOW, &grant(1_000_000));
    let error = refusal(&request);
    assert!(error.to_string().contains("has not sent the key"), "{error}");
    assert!(error.retry_after().is_some());
    access.set(ServerAccess { name: NAME.to_owned(), key: key() });
    assert!(summary(&measure(&request, &mut |_| {}).unwrap()).ok);
}

#[test]
fn a_full_server_says_when_to_try_again_and_keeps_the_bytes_of_the_grant() {
    let limits = ServerLimits { tests: 1, ..ServerLimits::default() };
    let (server, access, events) = serve((None, true), limits);
    access.set(ServerAccess { name: NAME.to_owned(), key: key() });
    let grant = grant(725_000);
    let request = request(server, Transport::Tcp, SMALL_FLOW, &grant);
    thread::scope(|scope| {
        scope.spawn(|| {
            let other = AccessGrant { device: "other".to_owned(), ..self::grant(10_000_000) };
            let flow = "pattern = \"iperf\"\nduration = \"3 s\"";
            let mut request = self::request(server, Transport::Tcp, flow, &other);
            request.plan.settings.rate_bps = Some(1_000_000);
            assert!(summary(&measure(&request, &mut |_| {}).unwrap()).ok);
        });
        let event = events.recv_timeout(HANG_TIMEOUT).unwrap();
        assert!(matches!(event, ServerEvent::Begun { .. }), "{event:?}");
        let error = refusal(&request);
        let retry_after = error.retry_after().unwrap();
        assert!((Duration::from_secs(1)..=Duration::from_secs(4)).contains(&retry_after));
        let hint = error.hint().unwrap();
        assert_eq!(hint, format!("try again in {} s", retry_after.as_secs()));
    });
    assert!(summary(&measure(&request, &mut |_| {}).unwrap()).ok);
}
