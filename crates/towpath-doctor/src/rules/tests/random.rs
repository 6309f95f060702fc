//! Random observations, and those that a lying peer reports.

use super::*;

/// Generates observations: a good one with random defects.
pub(super) fn any_observation() -> impl Strategy<Value = Observation> {
    let flags = proptest::collection::vec(any::<bool>(), 24);
    let numbers = proptest::collection::vec(0_u32..6, 16);
    let names = proptest::sample::subsequence(
        vec![
            "MPCapableFallbackSYNACK",
            "MPCapableSYNTXDisabled",
            "MPJoinSynTx",
            "MPJoinSynAckRx",
            "MPRstTx",
            "MPRstRx",
            "AddAddr",
            "AddAddrTx",
            "RmAddrTx",
            "MPFailRx",
            "MPCapableDataFallback",
            "MPJoinSynTxBindErr",
            "MPJoinSynAckHMacFailure",
        ],
        0..6,
    );
    let errors = proptest::option::of(prop_oneof![Just(101), Just(104), Just(111), Just(113)]);
    (flags, numbers, names, errors).prop_map(|(flags, numbers, names, error)| {
        arbitrary_observation(&flags, &numbers, &names, error)
    })
}

fn arbitrary_observation(
    flags: &[bool],
    numbers: &[u32],
    names: &[&str],
    error: Option<i32>,
) -> Observation {
    let mut observation = healthy();
    let mut trial = observation.trial.take().unwrap();
    let (mut flags, mut numbers) = (flags.iter().copied(), numbers.iter().copied());
    let mut flag = || flags.next().unwrap_or(false);
    let mut number = || numbers.next().unwrap_or(0);
    observation.here.limits =
        flag().then(|| MptcpLimits { subflows: number(), add_addr_accepted: number() });
    observation.here.links[1].up = flag();
    observation.here.links[1].running = flag();
    observation.here.links[1].rp_filter = u8::try_from(number()).unwrap();
    observation.here.endpoints[0].flags = number() << number();
    if flag() {
        observation.here.addresses.pop();
    }
    if flag() {
        observation.here.settings.insert("mptcp.pm_type".into(), "1".into());
    }
    if flag() {
        observation.route_lookups[3].link = Some(number());
        observation.route_lookups[3].gateway = None;
    }
    (trial.multipath, trial.multipath_at_end, trial.closed_by_peer) = (flag(), flag(), flag());
    trial.echoes = flag();
    let changes_multipath = flag();
    let changed = |attempt: &&mut ConnectAttempt| attempt.multipath == changes_multipath;
    for attempt in trial.attempts.iter_mut().filter(changed) {
        attempt.outcome = [
            ConnectOutcome::Silent,
            ConnectOutcome::Refused,
            ConnectOutcome::Failed(101),
            ConnectOutcome::Connected,
        ][number().min(3) as usize];
    }
    trial.subflows[1].established = flag();
    trial.subflows[1].gone = flag();
    trial.subflows[1].backup_there = flag();
    trial.subflows[1].tcp.unacked = number();
    trial.subflows[1].tcp.backoff = number();
    trial.subflows[1].tcp.silent_ms = number() * 300;
    if flag() {
        trial.subflows.pop();
    }
    trial.counters = counters(names);
    trial.events = flag().then(|| vec![close_event(error)]);
    trial.controls.push(plain_check(if flag() {
        ConnectOutcome::Connected
    } else {
        ConnectOutcome::Silent
    }));
    observation.trial = flag().then_some(trial);
    observation
}

proptest! {
    #[test]
    fn diagnoses_of_random_observations_are_consistent(observation in any_observation()) {
        let report = diagnose(&observation);
        let has_problem = matches!(report.verdict, Health::Impaired | Health::Broken);
        prop_assert_eq!(has_problem, !report.findings.is_empty());
        let needs_reason = matches!(report.verdict, Health::OnePath | Health::Undetermined);
        prop_assert_eq!(needs_reason, report.reason.is_some());
        let carrying_count = report.paths.iter().filter(|path| path.bytes >= 10_000).count();
        prop_assert!(report.verdict != Health::Healthy || carrying_count > 1, "{:?}", report.paths);
        let mut keys: Vec<_> =
            report.findings.iter().map(|finding| (finding.cause, finding.location.clone())).collect();
        let has_cause = |cause| report.findings.iter().any(|finding| finding.cause == cause);
        // A connection has one of these causes at most.
        let exclusive_causes = [
            Cause::RemoteRefused, Cause::RemoteSilent, Cause::FirstPathUnusable, Cause::SynOptionDropped,
            Cause::SynOptionStripped, Cause::SynackOptionStripped, Cause::ListenerPlainTcp,
        ];
        prop_assert!(exclusive_causes.into_iter().filter(|cause| has_cause(*cause)).count() <= 1, "{:?}", keys);
        prop_assert!(!(has_cause(Cause::NoEndpoints) && has_cause(Cause::SubflowLimit)), "{:?}", keys);
        for finding in &report.findings {
            prop_assert!(!finding.sentence.is_empty() && !finding.evidence.is_empty());
            let has_placeholder = |command: &String| command.contains("GATEWAY");
            prop_assert!(!finding.fix.iter().any(has_placeholder), "{:?}", finding.fix);
            prop_assert_eq!(finding.layer, finding.cause.layer());
        }
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        prop_assert_eq!(keys.len(), count, "one thing is told once");
        prop_assert_eq!(diagnose(&observation), report, "the same evidence, the same words");
    }
}

/// Generates interfaces, addresses and endpoints that another host might report.
fn any_network() -> impl Strategy<Value = HostSnapshot> {
    let name = prop_oneof![
        Just("a".to_owned()),
        Just("eth0".to_owned()),
        Just("x; reboot #".to_owned()),
        Just("all.rp_filter=2 net.ipv4.conf.a".to_owned()),
        "[ -~]{0,20}",
    ];
    let address = || {
        proptest::sample::select(vec!["10.0.1.1", "10.0.1.9", "10.0.2.9", "10.9.0.1", "fd00::1"])
    };
    let link_parts = (name, any::<[bool; 2]>(), 0..3_u8, 0..2_000_000_u64, 1..5_u32);
    let link =
        link_parts.prop_map(|(name, [up, running], rp_filter, rx_bytes, index)| LinkSnapshot {
            up,
            running,
            rp_filter,
            rx_bytes,
            tx_bytes: rx_bytes / 2,
            ..link(index, &name)
        });
    let address_parts = (1..5_u32, address(), 0..33_u8);
    let address_parts = address_parts.prop_map(|(link, text, prefix_length)| AddressSnapshot {
        link,
        address: ip(text),
        prefix_length,
    });
    let endpoint_parts = (0..9_u8, address(), 0..64_u32);
    let endpoint_parts =
        endpoint_parts.prop_map(|(id, address, flags)| endpoint(id, address, flags));
    let parts = (
        proptest::collection::vec(link, 0..4),
        proptest::collection::vec(address_parts, 0..5),
        proptest::collection::vec(endpoint_parts, 0..5),
    );
    parts.prop_map(|(links, addresses, endpoints)| HostSnapshot {
        links,
        addresses,
        endpoints,
        ..HostSnapshot::default()
    })
}

/// Generates a snapshot that another host might report, honest or not.
fn any_snapshot() -> impl Strategy<Value = HostSnapshot> {
    const SETTINGS: [(&str, &str); 8] = [
        ("ipv4.tcp_rmem", "1 2 3"),
        ("ipv4.tcp_rmem", "x; reboot"),
        ("mptcp.enabled", "0"),
        ("mptcp.pm_type", "1"),
        ("mptcp.path_manager", "userspace"),
        ("mptcp.allow_join_initial_addr_port", "0"),
        ("mptcp.blackhole_timeout", "7"),
        ("ipv4.ip_default_ttl", "1"),
    ];
    const COUNTERS: [&str; 8] = [
        "MPTcpExt.MPJoinSynTx",
        "MPTcpExt.AddAddrTx",
        "MPTcpExt.EchoAdd",
        "MPTcpExt.MPJoinRejected",
        "MPTcpExt.MPCapableSYNRX",
        "MPTcpExt.MPJoinSynTxBindErr",
        "TcpExt.IPReversePathFilter",
        "MPTcpExt.RmAddrTx",
    ];
    let settings = proptest::sample::subsequence(SETTINGS.to_vec(), 0..8);
    let counts = proptest::collection::vec(0..9_u64, COUNTERS.len());
    let listener = proptest::option::of(any::<[bool; 2]>());
    let limits = proptest::option::of((0..9_u32, 0..9_u32));
    let parts = (any_network(), settings, counts, listener, limits, any::<bool>());
    parts.prop_map(|(network, settings, counts, listener, limits, has_mptcp)| HostSnapshot {
        settings: settings.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        counters: COUNTERS.into_iter().map(str::to_owned).zip(counts).collect(),
        listener: listener.map(|[plain, multipath]| ListenerSnapshot { plain, multipath }),
        limits: limits
            .map(|(subflows, add_addr_accepted)| MptcpLimits { subflows, add_addr_accepted }),
        socket_errno: if has_mptcp { 0 } else { 92 },
        ..network
    })
}

#[test]
fn findings_of_the_peer_are_attributed_to_it_and_not_fixed() {
    let mut observation = healthy();
    let mut peer_snapshot = local_host();
    peer_snapshot.endpoints.clear();
    peer_snapshot.settings.insert("ipv4.tcp_rmem".into(), "4096 8192 8192".into());
    let address = TARGET.parse().unwrap();
    observation.peer = Some(PeerSnapshots { address, before: peer_snapshot.clone(), after: None });
    let report = diagnose(&observation);
    let finding = &report.findings[0];
    assert_eq!((finding.cause, finding.unverified), (Cause::ReceiveBufferTooSmall, true));
    assert!(finding.fix.iter().all(|fix| fix.ends_with("   # on the other host")), "{finding:?}");
    assert_eq!(actions(&observation), [], "{report:?}");
    // Observations of this host itself lead to a fix, regardless of the other host's report.
    observation.here.settings = peer_snapshot.settings.clone();
    let commands: Vec<_> = actions(&observation).into_iter().map(|action| action.command).collect();
    assert_eq!(commands, ["sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\""]);
    assert!(!diagnose(&observation).findings[0].unverified);
}

proptest! {
    #[test]
    fn no_message_of_the_peer_triggers_a_fix(
        observation in any_observation(),
        before in any_snapshot(),
        after in proptest::option::of(any_snapshot()),
    ) {
        let local_actions = actions(&observation);
        let address = TARGET.parse().unwrap();
        let with_peer = Observation {
            peer: Some(PeerSnapshots { address, before, after }),
            peer_error: Some("sysctl -w net.mptcp.enabled=0".into()),
            ..observation
        };
        for action in actions(&with_peer) {
            prop_assert!(local_actions.contains(&action), "{:?}, not one of {:?}", action, local_actions);
        }
    }
}
