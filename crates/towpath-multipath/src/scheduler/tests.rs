//! Table tests of each scheduler's decisions, and invariants of all schedulers.

use std::time::Duration;

use proptest::prelude::*;

use super::fixture::{ConnectionFixture, UnsentStub, full, path};
use super::*;
use crate::path::RecoveryPhase;

fn backup(path: PathView) -> PathView {
    PathView { backup: true, ..path }
}

fn stale(path: PathView) -> PathView {
    PathView { stale: true, ..path }
}

fn in_phase(path: PathView, phase: RecoveryPhase) -> PathView {
    PathView { phase, ..path }
}

fn after_timeouts(path: PathView, timeouts: u32) -> PathView {
    PathView { timeouts, ..path }
}

/// Returns the path that a fresh scheduler chooses for new data.
fn chosen_path(name: &str, paths: &[PathView]) -> Option<u8> {
    let fixture = ConnectionFixture::new(paths.iter().copied());
    match by_name(name).unwrap().next(&fixture.view()) {
        Decision::Send { path, .. } => Some(path.0),
        Decision::Wait { .. } | Decision::Idle => None,
        decision @ (Decision::Duplicate { .. } | Decision::Reinject { .. }) => {
            panic!("{name}: {decision:?}")
        }
    }
}

#[test]
fn every_scheduler_has_a_unique_name_and_min_rtt_is_first() {
    let names: std::collections::BTreeSet<_> = ALL.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), ALL.len());
    assert_eq!(ALL[0].name, "min-rtt");
    let error = by_name("fastest").unwrap_err().to_string();
    assert!(error.starts_with("unknown scheduler `fastest`, expected one of: min-rtt, linux"));
}

#[test]
fn the_common_rule_of_backups_and_dead_paths() {
    let (fast, slow) = (path(0, 20), path(1, 100));
    let cases = [
        ("the faster", vec![fast, slow], Some(0)),
        ("the one with room", vec![full(fast), slow], Some(1)),
        ("none with room", vec![full(fast), full(slow)], None),
        ("no backup if there is a regular path", vec![backup(fast), slow], Some(1)),
        ("no backup because a regular path is full", vec![backup(fast), full(slow)], None),
        ("only backups", vec![backup(fast), backup(slow)], Some(0)),
        ("a backup for a stale path", vec![stale(fast), backup(slow)], Some(1)),
        (
            "a backup in timeout recovery",
            vec![in_phase(fast, RecoveryPhase::Loss), backup(slow)],
            Some(1),
        ),
        ("recovery is no reason", vec![in_phase(fast, RecoveryPhase::Recovery), slow], Some(0)),
        ("all are dead", vec![stale(fast), in_phase(slow, RecoveryPhase::Loss)], Some(0)),
        ("no path", vec![], None),
    ];
    for (case, paths, expected) in cases {
        for name in ["min-rtt", "blest"] {
            assert_eq!(chosen_path(name, &paths), expected, "{name}: {case}");
        }
    }
}

#[test]
fn backup_aware_uses_backups_as_soon_as_the_regular_paths_have_trouble() {
    let (fast, slow) = (path(0, 20), backup(path(1, 100)));
    for (case, paths, expected) in [
        ("a healthy path", vec![fast, slow], Some(0)),
        ("a healthy path that is full", vec![full(fast), slow], None),
        ("recovery, but room", vec![in_phase(fast, RecoveryPhase::Recovery), slow], Some(0)),
        (
            "recovery, and no room",
            vec![full(in_phase(fast, RecoveryPhase::Recovery)), slow],
            Some(1),
        ),
        ("a timeout, and no room", vec![full(after_timeouts(fast, 1)), slow], Some(1)),
        ("timeout recovery", vec![in_phase(fast, RecoveryPhase::Loss), slow], Some(1)),
        ("silence", vec![stale(fast), slow], Some(1)),
        ("all are dead", vec![stale(fast), stale(slow)], Some(0)),
        (
            "another regular path",
            vec![in_phase(fast, RecoveryPhase::Loss), slow, path(2, 300)],
            Some(2),
        ),
    ] {
        assert_eq!(chosen_path("backup-aware", &paths), expected, "{case}");
    }
}

#[test]
fn pushing_fills_the_queue_of_the_fastest_path_first() {
    let (slow, fast) = (path(0, 100), path(1, 20));
    assert_eq!(chosen_path("pushing", &[slow, fast]), Some(1));
    assert_eq!(chosen_path("pushing", &[slow, full(fast)]), Some(0));
    assert_eq!(chosen_path("pushing", &[full(slow), full(fast)]), None);
    assert!(by_name("pushing").unwrap().fills_subflow_queues(), "or it would wait for windows");
}

#[test]
fn aggregate_reserves_nothing() {
    let (slow, fast) = (path(0, 100), backup(path(1, 20)));
    assert_eq!(chosen_path("aggregate", &[slow, fast]), Some(1));
    assert_eq!(chosen_path("aggregate", &[slow, full(fast)]), Some(0));
    assert_eq!(chosen_path("aggregate", &[slow, stale(fast)]), Some(0));
    assert_eq!(chosen_path("aggregate", &[stale(slow), stale(fast)]), Some(1));
}

#[test]
fn apple_interactive_leaves_the_primary_for_three_reasons() {
    let (wifi, cell) = (path(0, 50), backup(path(1, 80)));
    let with_srtt = |ms| PathView { srtt: Duration::from_millis(ms), ..wifi };
    let with_rto = |of: PathView, ms| PathView { rto: Duration::from_millis(ms), ..of };
    for (case, paths, expected) in [
        ("all is well", vec![wifi, cell], Some(0)),
        ("a full primary is no reason", vec![full(wifi), cell], None),
        ("srtt 600 ms", vec![with_srtt(600), cell], Some(0)),
        ("srtt 601 ms", vec![with_srtt(601), cell], Some(1)),
        ("both slow", vec![with_srtt(601), backup(path(1, 700))], Some(0)),
        ("timeout 1500 ms", vec![with_rto(wifi, 1_500), cell], Some(0)),
        ("timeout 1501 ms", vec![with_rto(wifi, 1_501), cell], Some(1)),
        ("both late", vec![with_rto(wifi, 1_501), with_rto(cell, 1_501)], Some(0)),
        ("the timer has fired", vec![after_timeouts(wifi, 1), cell], Some(1)),
        ("on both", vec![after_timeouts(wifi, 1), after_timeouts(cell, 1)], Some(0)),
        ("silence", vec![stale(wifi), cell], Some(1)),
        ("no other room", vec![after_timeouts(wifi, 1), full(cell)], Some(0)),
        ("only a backup", vec![cell], Some(1)),
    ] {
        assert_eq!(chosen_path("apple-interactive", &paths), expected, "{case}");
    }
}

#[test]
fn apple_interactive_reports_its_switch_reason() {
    let (wifi, cell) = (path(0, 50), backup(path(1, 80)));
    let long_srtt = PathView { srtt: Duration::from_millis(601), ..wifi };
    let long_rto = PathView { rto: Duration::from_millis(1_501), ..wifi };
    let mut scheduler = by_name("apple-interactive").unwrap();
    let mut switch_reason = |paths: &[PathView]| {
        let _ = scheduler.next(&ConnectionFixture::new(paths.iter().copied()).view());
        scheduler.switch_reason()
    };
    assert_eq!(switch_reason(&[wifi, cell]), None);
    assert_eq!(switch_reason(&[after_timeouts(wifi, 1), cell]), Some(SwitchReason::Timeout));
    assert_eq!(switch_reason(&[long_srtt, cell]), Some(SwitchReason::SlowRoundTrip));
    assert_eq!(switch_reason(&[long_rto, cell]), Some(SwitchReason::LongTimeout));
    assert_eq!(switch_reason(&[long_srtt, full(cell)]), None, "it stayed");
    assert_eq!(switch_reason(&[cell]), Some(SwitchReason::Gone));
    assert_eq!(switch_reason(&[path(2, 50), cell]), None, "a regular path is preferred again");
}

#[test]
fn wifi_assist_halves_the_tolerated_thresholds() {
    let (wifi, cell) = (path(0, 50), backup(path(1, 80)));
    let long_srtt = PathView { srtt: Duration::from_millis(301), ..wifi };
    let long_rto = PathView { rto: Duration::from_millis(751), ..wifi };
    for paths in [[long_srtt, cell], [long_rto, cell]] {
        assert_eq!(chosen_path("apple-interactive", &paths), Some(0));
        assert_eq!(chosen_path("apple-interactive-assist", &paths), Some(1));
    }
}

#[test]
fn apple_handover_stays_until_the_primary_has_failed() {
    let (wifi, cell) = (path(0, 5_000), backup(path(1, 80)));
    for (case, paths, expected) in [
        ("slow is not failed", vec![wifi, cell], Some(0)),
        ("one timeout", vec![after_timeouts(wifi, 1), cell], Some(0)),
        ("two timeouts", vec![after_timeouts(wifi, 2), cell], Some(1)),
        ("silence", vec![stale(wifi), cell], Some(1)),
        ("both failed", vec![stale(wifi), stale(cell)], Some(0)),
    ] {
        assert_eq!(chosen_path("apple-handover", &paths), expected, "{case}");
    }
}

#[test]
fn the_primary_is_kept_until_it_goes_and_is_then_chosen_again() {
    let mut handover = by_name("apple-handover").unwrap();
    let mut next = |paths: &[PathView]| {
        let fixture = ConnectionFixture::new(paths.iter().copied());
        handover.next(&fixture.view())
    };
    let send = |id| Decision::Send { path: PathId(id), max_bytes: 10_000 };
    assert_eq!(next(&[path(3, 50)]), send(3));
    assert_eq!(next(&[path(1, 10), path(3, 50)]), send(3));
    assert_eq!(next(&[path(1, 10)]), send(1));
}

#[test]
fn round_robin_gives_each_path_a_packet_in_turn() {
    let mut fixture =
        ConnectionFixture::new([path(0, 20), path(2, 100), backup(path(1, 5)), path(5, 50)]);
    let mut scheduler = by_name("round-robin").unwrap();
    let mut order = Vec::new();
    for round in 0..7 {
        if round == 4 {
            fixture.paths[1].room_bytes = 0;
        }
        let Decision::Send { path, max_bytes } = scheduler.next(&fixture.view()) else { panic!() };
        assert_eq!(max_bytes, 1_000);
        order.push(path.0);
        scheduler.on_event(SchedulerEvent::Sent { path, bytes: max_bytes });
    }
    assert_eq!(order, [0, 2, 5, 0, 5, 0, 5]);
}

#[test]
fn linux_takes_the_shortest_linger_time() {
    let with_in_flight = |path: PathView, bytes| PathView { in_flight_bytes: bytes, ..path };
    let (fast, slow) = (path(0, 20), path(1, 100));
    // 500 and 100 bytes per millisecond.
    for (case, paths, expected) in [
        ("nothing waits", vec![fast, slow], Some(0)),
        ("10 ms against 0", vec![with_in_flight(fast, 5_000), slow], Some(1)),
        (
            "10 ms against 20 ms",
            vec![with_in_flight(fast, 5_000), with_in_flight(slow, 2_000)],
            Some(0),
        ),
        (
            "the best queue is full: no other path",
            vec![full(fast), with_in_flight(slow, 9_000)],
            None,
        ),
        ("timeout recovery is no reason", vec![in_phase(fast, RecoveryPhase::Loss), slow], Some(0)),
        ("stale", vec![stale(fast), slow], Some(1)),
        ("a backup is idle", vec![with_in_flight(fast, 5_000), backup(slow)], Some(0)),
        ("only a backup lives", vec![stale(fast), backup(slow)], Some(1)),
        ("all are stale", vec![stale(fast), stale(slow)], Some(0)),
        (
            "no rate yet",
            vec![PathView { pacing_rate: 0, ..fast }, with_in_flight(slow, 9_000)],
            Some(1),
        ),
    ] {
        assert_eq!(chosen_path("linux", &paths), expected, "{case}");
    }
}

#[test]
fn linux_keeps_a_path_for_a_burst() {
    let mut fixture = ConnectionFixture::new([path(0, 20), path(1, 20)]);
    for path in &mut fixture.paths {
        path.room_bytes = 40_000;
    }
    let mut scheduler = by_name("linux").unwrap();
    let mut sent = Vec::new();
    for _ in 0..5 {
        let Decision::Send { path, max_bytes } = scheduler.next(&fixture.view()) else { panic!() };
        sent.push((path.0, max_bytes));
        fixture.paths[usize::from(path.0)].in_flight_bytes += max_bytes;
        scheduler.on_event(SchedulerEvent::Sent { path, bytes: max_bytes });
    }
    // A burst of 64 KiB ends within 28 bytes of the second fragment's end.
    let rest = 2 * 32_728 - 40_000;
    assert_eq!(sent, [(0, 40_000), (0, rest), (1, 40_000), (1, rest), (0, 40_000)]);
    // A path that is full loses its turn.
    fixture.paths[0].room_bytes = 0;
    assert!(matches!(scheduler.next(&fixture.view()), Decision::Send { path: PathId(1), .. }));
}

#[test]
fn linux_ends_a_burst_with_the_run_in_which_it_is_sent() {
    for (room_bytes, expected) in [(0, 1), (1_000, 0)] {
        let mut fixture = ConnectionFixture::new([path(0, 20), path(1, 20)]);
        let mut scheduler = by_name("linux").unwrap();
        let Decision::Send { path, .. } = scheduler.next(&fixture.view()) else { panic!() };
        scheduler.on_event(SchedulerEvent::Sent { path, bytes: 10_000 });
        // The first path has more data waiting than the second: only an open burst keeps it.
        fixture.paths[0].in_flight_bytes = 20_000;
        fixture.paths[0].room_bytes = room_bytes;
        fixture.paths[1].room_bytes = 0;
        scheduler.next(&fixture.view());
        fixture.paths[0].room_bytes = 10_000;
        fixture.paths[1].room_bytes = 10_000;
        let Decision::Send { path, .. } = scheduler.next(&fixture.view()) else { panic!() };
        assert_eq!(path, PathId(expected), "after a room of {room_bytes}");
    }
}

#[test]
fn linux_ends_a_burst_with_a_partial_write() {
    for (unsent_from, burst_bytes) in
        [(0, 65_456), (10_000, 88_184), (32_728, 65_456), (32_700, 65_484)]
    {
        let mut fixture = ConnectionFixture::new([PathView { room_bytes: 200_000, ..path(0, 20) }]);
        fixture.unsent_from = unsent_from;
        let mut scheduler = by_name("linux").unwrap();
        let full_burst = Decision::Send { path: PathId(0), max_bytes: burst_bytes };
        assert_eq!(scheduler.next(&fixture.view()), full_burst, "from {unsent_from}");
        // But never beyond the window.
        fixture.window_bytes = 70_000;
        let window_limited = Decision::Send { path: PathId(0), max_bytes: burst_bytes.min(70_000) };
        assert_eq!(
            by_name("linux").unwrap().next(&fixture.view()),
            window_limited,
            "from {unsent_from}"
        );
    }
}

#[test]
fn linux_ends_a_burst_with_the_data() {
    let mut fixture = ConnectionFixture::new([path(0, 20), path(1, 20)]);
    let mut scheduler = by_name("linux").unwrap();
    let mut write = |bytes| {
        fixture.unsent_bytes = bytes;
        let Decision::Send { path, max_bytes } = scheduler.next(&fixture.view()) else { panic!() };
        let bytes = max_bytes.min(bytes);
        fixture.paths[usize::from(path.0)].in_flight_bytes += bytes;
        scheduler.on_event(SchedulerEvent::Sent { path, bytes });
        path.0
    };
    assert_eq!([write(2_000), write(1_000), write(2_000), write(2_000)], [0, 1, 1, 0]);
}

#[test]
fn linux_averages_the_rate_of_a_path_over_its_bursts() {
    let mut fixture = ConnectionFixture::new([path(0, 20), path(1, 20)]);
    let mut scheduler = by_name("linux").unwrap();
    let mut first_is_chosen = |rate: u64, in_flight: [u64; 2]| {
        for (path, bytes) in fixture.paths.iter_mut().zip(in_flight) {
            path.in_flight_bytes = bytes;
        }
        fixture.paths[0].pacing_rate = rate;
        fixture.window_bytes = 10_000;
        let Decision::Send { path, max_bytes } = scheduler.next(&fixture.view()) else { panic!() };
        scheduler.on_event(SchedulerEvent::Sent { path, bytes: max_bytes });
        path == PathId(0)
    };
    assert!(first_is_chosen(500_000, [0, 0]));
    // The current rate is ten times the previous one; the average of half old and half new is 5.5
    // times. 55 kB then wait as long as 10 kB on the other path.
    assert!(first_is_chosen(5_000_000, [10_000, 20_000]));
    assert!(!first_is_chosen(5_000_000, [60_000, 10_000]));
    assert!(first_is_chosen(5_000_000, [50_000, 10_000]));
}

#[test]
fn linux_bursts_end_with_the_window_of_the_peer() {
    let mut fixture = ConnectionFixture::new([path(0, 20)]);
    fixture.window_bytes = 700;
    let mut scheduler = by_name("linux").unwrap();
    let expected = Decision::Send { path: PathId(0), max_bytes: 700 };
    assert_eq!(scheduler.next(&fixture.view()), expected);
}

#[test]
fn linux_reinjects_only_on_an_idle_subflow() {
    let busy = |path: PathView| PathView { in_flight_bytes: 1, ..path };
    let silent = |path: PathView, rounds| PathView { silent_rounds: rounds, ..path };
    let (first, second, backup_path) = (path(0, 20), path(1, 100), backup(path(2, 5)));
    let range = DataRange { start: 0, bytes: 1_000 };
    for (case, paths, expected) in [
        ("the first idle one", vec![first, second], Some(0)),
        ("the idle one", vec![busy(first), second], Some(1)),
        ("all busy", vec![busy(first), busy(second), backup_path], None),
        ("silent for one round", vec![busy(silent(first, 1)), backup_path], None),
        ("the backup, when nothing moves", vec![busy(silent(first, 2)), backup_path], Some(2)),
        (
            "one that moves",
            vec![busy(silent(first, 9)), busy(silent(second, 1)), backup_path],
            None,
        ),
    ] {
        let fixture = ConnectionFixture::new(paths);
        let mut scheduler = by_name("linux").unwrap();
        let path = scheduler.reinject(&fixture.view(), range, PathSet::only(PathId(0)));
        assert_eq!(path.map(|path| path.0), expected, "{case}");
    }
}

#[test]
fn redundant_sends_on_each_path_the_data_it_has_not_sent() {
    let range = |start, bytes| DataRange { start, bytes };
    let mut fixture = ConnectionFixture::new([path(0, 20), path(1, 100)]);
    // 100..3100 are outstanding; path 0 has sent them all, path 1 up to 1100.
    fixture.head = Some((range(100, 1_000), PathSet::only(PathId(0))));
    fixture.unacked_bytes = 3_000;
    fixture.store.0 = vec![(PathId(0), range(3_100, 5_000)), (PathId(1), range(1_100, 2_000))];
    let mut scheduler = by_name("redundant").unwrap();
    assert!(scheduler.duplicates_data());
    let new_data = Decision::Send { path: PathId(0), max_bytes: 10_000 };
    assert_eq!(scheduler.next(&fixture.view()), new_data);
    fixture.paths[0].room_bytes = 0;
    let reinjection = Decision::Reinject { path: PathId(1), range: range(1_100, 2_000) };
    assert_eq!(scheduler.next(&fixture.view()), reinjection);
    fixture.paths[1].room_bytes = 500;
    let shorter_reinjection = Decision::Reinject { path: PathId(1), range: range(1_100, 500) };
    assert_eq!(scheduler.next(&fixture.view()), shorter_reinjection);
    fixture.store.0.clear();
    assert_eq!(scheduler.next(&fixture.view()), Decision::Idle);
}

#[test]
fn redundant_cuts_where_outstanding_data_ends() {
    let mut fixture = ConnectionFixture::new([path(0, 20)]);
    fixture.head = Some((DataRange { start: u64::MAX, bytes: 1_000 }, PathSet::EMPTY));
    fixture.unacked_bytes = 1_000;
    fixture.store.0 = vec![(PathId(0), DataRange { start: 499, bytes: 3_000 })];
    let mut scheduler = by_name("redundant").unwrap();
    let range = DataRange { start: 499, bytes: 500 };
    let reinjection = Decision::Reinject { path: PathId(0), range };
    assert_eq!(scheduler.next(&fixture.view()), reinjection, "sequence numbers wrap");
}

#[test]
fn blest_leaves_a_slow_path_alone_only_if_the_window_is_small() {
    // In its 100 ms the slow path costs 6 round trips of the fast one:
    // 1.2 · (10 + 2) · 6 = 86.4 packets.
    for (window, expected) in [(40_000, None), (87_000, None), (88_000, Some(1))] {
        let mut fixture = ConnectionFixture::new([full(path(0, 20)), path(1, 100)]);
        fixture.unacked_bytes = 10_000;
        fixture.window_bytes = window - 10_000;
        let mut scheduler = by_name("blest").unwrap();
        let expected = match expected {
            Some(id) => Decision::Send { path: PathId(id), max_bytes: 10_000 },
            None => Decision::Wait { until: Some(Instant::ZERO + Duration::from_millis(20)) },
        };
        assert_eq!(scheduler.next(&fixture.view()), expected, "window of {window}");
    }
}

#[test]
fn blest_foresees_that_slow_start_doubles() {
    // 1.2 · 10 · (2⁶ - 1) = 756 packets instead of 86.
    for (window, expected) in [(757_000, true), (758_000, false)] {
        let fast = PathView { slow_start: true, ..full(path(0, 20)) };
        let mut fixture = ConnectionFixture::new([fast, path(1, 100)]);
        fixture.window_bytes = window - 1;
        let decision = by_name("blest").unwrap().next(&fixture.view());
        assert_eq!(matches!(decision, Decision::Wait { .. }), expected, "window of {window}");
    }
}

#[test]
fn blest_learns_from_a_full_window() {
    let waits = |blocked: bool| {
        let mut fixture = ConnectionFixture::new([full(path(0, 20)), path(1, 100)]);
        let mut scheduler = by_name("blest").unwrap();
        for round in 1..=6_u32 {
            fixture.now = Instant::ZERO + Duration::from_millis(100) * round;
            if blocked {
                scheduler.on_event(SchedulerEvent::WindowBlocked);
            }
            scheduler.next(&fixture.view());
        }
        // λ is 1.14 or 1.3: 82 or 94 packets.
        fixture.window_bytes = 90_000;
        matches!(scheduler.next(&fixture.view()), Decision::Wait { .. })
    };
    assert_eq!((waits(false), waits(true)), (false, true));
}

#[test]
fn ecf_waits_at_the_end_of_a_transfer_and_not_in_its_middle() {
    let decide = |unsent_bytes: u64| {
        let mut fixture = ConnectionFixture::new([full(path(0, 20)), path(1, 200)]);
        fixture.unsent_bytes = unsent_bytes;
        by_name("ecf").unwrap().next(&fixture.view())
    };
    // 10 packets in flight and 30 to send need 4 · 20 ms on the fast path, 200 ms on the slow one.
    assert!(matches!(decide(30_000), Decision::Wait { .. }));
    assert!(matches!(decide(1), Decision::Wait { .. }));
    // 1 MB needs 101 · 20 ms.
    assert_eq!(decide(1_000_000), Decision::Send { path: PathId(1), max_bytes: 10_000 });
}

#[test]
fn ecf_goes_on_waiting_by_hysteresis() {
    // (1 + k / 10) · 20 ms < 220 ms up to k = 100 packets; while waiting, < 275 ms up to k = 127.
    let mut fixture = ConnectionFixture::new([full(path(0, 20)), path(1, 200)]);
    let mut scheduler = by_name("ecf").unwrap();
    let mut waits = |kilobytes: u64| {
        fixture.unsent_bytes = kilobytes * 1_000;
        matches!(scheduler.next(&fixture.view()), Decision::Wait { .. })
    };
    assert_eq!([110, 90, 110, 130, 110].map(&mut waits), [false, true, true, false, false]);
}

#[test]
fn ecf_does_not_wait_for_a_path_that_is_hardly_faster() {
    assert_eq!(chosen_path("ecf", &[full(path(0, 90)), path(1, 100)]), Some(1));
}

#[test]
fn data_of_a_failed_path_goes_to_one_that_has_not_had_it() {
    let range = DataRange { start: 0, bytes: 1_000 };
    let path_set = |paths: &[u8]| paths.iter().map(|id| PathId(*id)).collect::<PathSet>();
    let fixture = ConnectionFixture::new([path(0, 20), path(1, 100), backup(path(2, 5))]);
    for entry in ALL.iter().filter(|entry| entry.name != "linux") {
        let reinjection_path = |sent_on| (entry.make)().reinject(&fixture.view(), range, sent_on);
        assert_eq!(reinjection_path(path_set(&[0])), Some(PathId(1)), "{}", entry.name);
        assert_eq!(reinjection_path(path_set(&[0, 1])), None, "{}", entry.name);
    }
}

fn any_path(id: u8) -> impl Strategy<Value = PathView> {
    let flags = any::<(bool, bool, bool)>();
    let phase = prop_oneof![
        Just(RecoveryPhase::Open),
        Just(RecoveryPhase::Recovery),
        Just(RecoveryPhase::Loss)
    ];
    let bytes = (0..100_000_u64, 0..100_000_u64, any::<u64>(), any::<u64>());
    (flags, phase, 0..3_000_u64, 0..4_u32, bytes).prop_map(
        move |((backup, stale, slow_start), phase, srtt_ms, timeouts, bytes)| PathView {
            backup,
            stale,
            slow_start,
            phase,
            timeouts,
            room_bytes: bytes.0.saturating_sub(50_000),
            queued_bytes: bytes.1,
            memory_bytes: bytes.1.saturating_add(bytes.2 % 1_000_000),
            in_flight_bytes: bytes.2 % 1_000_000,
            cwnd_bytes: bytes.3,
            pacing_rate: bytes.3,
            ..path(id, srtt_ms)
        },
    )
}

fn any_fixture() -> impl Strategy<Value = ConnectionFixture> {
    let paths = (0..8_u8).map(any_path).collect::<Vec<_>>();
    let store = prop::collection::vec((0..8_u8, any::<u64>(), 1..100_000_u64), 0..8);
    (paths, 0..9_usize, any::<[u64; 4]>(), store).prop_map(|(paths, count, bytes, store)| {
        let [unsent_bytes, window_bytes, unacked_bytes, start] = bytes;
        let unsent_range = |(id, start, bytes)| (PathId(id), DataRange { start, bytes });
        let head = Some((DataRange { start, bytes: 1_000 }, PathSet::only(PathId(1))));
        let store = UnsentStub(store.into_iter().map(unsent_range).collect());
        let paths = paths.into_iter().take(count);
        ConnectionFixture {
            unsent_bytes,
            window_bytes,
            unacked_bytes,
            head,
            store,
            ..ConnectionFixture::new(paths)
        }
    })
}

proptest! {
    #[test]
    fn decisions_are_deterministic_and_use_only_existing_paths_with_room(
        fixtures in prop::collection::vec(any_fixture(), 1..8),
    ) {
        for entry in ALL {
            let (mut first, mut second) = ((entry.make)(), (entry.make)());
            for fixture in &fixtures {
                let view = fixture.view();
                let decision = first.next(&view);
                prop_assert_eq!(decision, second.next(&view), "{}", entry.name);
                let (id, bytes) = match decision {
                    Decision::Send { path, max_bytes } => (path, max_bytes),
                    Decision::Reinject { path, range } => (path, range.bytes),
                    Decision::Duplicate { .. } | Decision::Wait { .. } | Decision::Idle => continue,
                };
                let room = view.path(id).map(|path| path.room_bytes);
                prop_assert!(bytes > 0 && Some(bytes) <= room, "{}: {decision:?}", entry.name);
                for scheduler in [&mut first, &mut second] {
                    scheduler.on_event(SchedulerEvent::Sent { path: id, bytes });
                }
                let sent_on = PathSet::only(id);
                let range = DataRange { start: 0, bytes: 1 };
                if let Some(other_path) = first.reinject(&view, range, sent_on) {
                    prop_assert!(view.path(other_path).is_some_and(|path| path.room_bytes > 0));
                }
            }
        }
    }
}
