//! The controls compared with their formulas, and invariants of all of them.

use proptest::prelude::*;

use super::*;

const MSS: u32 = 1_000;
const MSS_BYTES: u64 = MSS as u64;
const RTT: Duration = Duration::from_millis(100);

fn config() -> CongestionConfig {
    CongestionConfig { mss_bytes: MSS, initial_packets: 10, hystart: HyStartRule::Off }
}

fn new_control(name: &str) -> Box<dyn CongestionControl> {
    by_name(name, config()).unwrap()
}

fn instant(now: Duration) -> Instant {
    Instant::ZERO + now
}

fn ack(now: Duration, acked_bytes: u64) -> AckSample {
    AckSample {
        now: instant(now),
        acked_bytes,
        in_flight_bytes: acked_bytes,
        rtt: Some(RTT),
        srtt: RTT,
        min_rtt: RTT,
        cwnd_limited: true,
        round_ended: false,
        in_recovery: false,
    }
}

fn sibling(id: u8, packets: u64, srtt: Duration) -> Sibling {
    Sibling {
        id: PathId(id),
        cwnd_bytes: packets * MSS_BYTES,
        srtt,
        between_losses: (0, 0),
        mss_bytes: MSS,
        slow_start: false,
    }
}

/// Acknowledges one window, packet by packet.
fn ack_window(control: &mut dyn CongestionControl, now: Duration, group: &[Sibling]) {
    let packets = control.cwnd_bytes() / MSS_BYTES;
    for packet in 1..=packets {
        let sample = AckSample { round_ended: packet == packets, ..ack(now, MSS_BYTES) };
        control.on_ack(&sample, PathId(0), group);
    }
}

/// Creates a control in congestion avoidance at this window.
fn in_avoidance(name: &str, packets: u64) -> Box<dyn CongestionControl> {
    let mut control = new_control(name);
    control.on_congestion(Instant::ZERO, 0, PathId(0), &[]);
    control.on_recovered(Instant::ZERO, packets * MSS_BYTES);
    control
}

/// Returns the growth in bytes of a window of 100 packets in a round trip, with `group` as the
/// other paths.
fn growth(name: &str, group: &[Sibling]) -> i64 {
    let mut control = in_avoidance(name, 100);
    ack_window(control.as_mut(), Duration::ZERO, group);
    control.cwnd_bytes().cast_signed() - 100 * MSS_BYTES.cast_signed()
}

#[test]
fn every_control_is_found_by_its_name() {
    for entry in ALL {
        assert_eq!(new_control(entry.name).name(), entry.name);
    }
    let error = by_name("vegas", config()).unwrap_err().to_string();
    assert!(error.starts_with("unknown congestion control `vegas`, expected one of: cubic, reno"));
}

#[test]
fn slow_start_doubles_the_window_each_rtt_despite_siblings() {
    let others = [sibling(1, 500, RTT), sibling(2, 1, RTT)];
    for entry in ALL {
        let mut control = new_control(entry.name);
        assert_eq!(control.ssthresh_bytes(), u64::MAX);
        ack_window(control.as_mut(), RTT, &others);
        assert_eq!(control.cwnd_bytes(), 20 * MSS_BYTES, "{}", entry.name);
        assert_eq!(control.pacing_percent(), 200);
    }
}

#[test]
fn slow_start_ends_at_ssthresh_and_the_excess_goes_to_avoidance() {
    let mut control = in_avoidance("reno", 1);
    assert_eq!(control.ssthresh_bytes(), 5 * MSS_BYTES);
    control.on_ack(&ack(RTT, 9 * MSS_BYTES), PathId(0), &[]);
    // 4 packets up to the threshold; the other 5 are a window's worth: one packet more.
    assert_eq!(control.cwnd_bytes(), 6 * MSS_BYTES);
}

#[test]
fn hystart_leaves_slow_start_when_delay_grows_and_not_before() {
    let with_hystart = CongestionConfig { hystart: HyStartRule::Rfc9406, ..config() };
    for (queueing_ms, expected) in [(0, false), (5, false), (20, true)] {
        let mut control = by_name("reno", with_hystart).unwrap();
        for round in 0..9 {
            let packets = control.cwnd_bytes() / MSS_BYTES;
            let queueing = Duration::from_millis(if round < 2 { 0 } else { queueing_ms });
            for packet in 1..=packets {
                let rtt = Some(RTT + queueing);
                let round_ended = packet == packets;
                let sample = AckSample { rtt, round_ended, ..ack(RTT * round, MSS_BYTES) };
                control.on_ack(&sample, PathId(0), &[]);
            }
        }
        assert_eq!(control.ssthresh_bytes() != u64::MAX, expected, "{queueing_ms} ms");
        // Nine doublings make 5120 packets; conservative slow start grew by a quarter.
        assert_eq!(control.cwnd_bytes() < 200 * MSS_BYTES, expected, "{queueing_ms} ms");
    }
}

#[test]
fn hystart_resumes_slow_start_if_the_delay_was_jitter() {
    let mut control =
        by_name("reno", CongestionConfig { hystart: HyStartRule::Rfc9406, ..config() }).unwrap();
    for round in 0..12 {
        let packets = control.cwnd_bytes() / MSS_BYTES;
        let jitter = Duration::from_millis(if round == 2 { 20 } else { 0 });
        for packet in 1..=packets {
            let round_ended = packet == packets;
            let sample = AckSample { rtt: Some(RTT + jitter), round_ended, ..ack(RTT, MSS_BYTES) };
            control.on_ack(&sample, PathId(0), &[]);
        }
    }
    assert_eq!(control.ssthresh_bytes(), u64::MAX);
    assert!(control.cwnd_bytes() > 5_000 * MSS_BYTES);
}

#[test]
fn css_grows_by_a_quarter_and_other_slow_start_by_all() {
    let mut control =
        by_name("reno", CongestionConfig { hystart: HyStartRule::Rfc9406, ..config() }).unwrap();
    let grow = |control: &mut dyn CongestionControl, queueing_ms: u64| {
        let cwnd_before = control.cwnd_bytes();
        let queueing = Duration::from_millis(queueing_ms);
        for packet in 1..=20 {
            let (rtt, round_ended) = (Some(RTT + queueing), packet == 20);
            let sample = AckSample { rtt, round_ended, ..ack(RTT, MSS_BYTES) };
            control.on_ack(&sample, PathId(0), &[]);
        }
        control.cwnd_bytes() - cwnd_before
    };
    assert_eq!(grow(control.as_mut(), 0), 20 * MSS_BYTES);
    grow(control.as_mut(), 20);
    // A quarter of the acknowledged bytes, regardless of their number.
    assert_eq!(grow(control.as_mut(), 20), 5 * MSS_BYTES);
    control.on_timeout(instant(RTT), 0);
    assert_eq!(control.cwnd_bytes(), MSS_BYTES);
    let threshold = control.ssthresh_bytes();
    assert!(threshold > 21 * MSS_BYTES);
    // The next slow start has no detector: delay does not matter.
    for queueing_ms in [0, 40] {
        control.on_timeout(instant(RTT), 0);
        control.undo(instant(RTT));
        control.on_timeout(instant(RTT), 0);
        let grown = grow(control.as_mut(), queueing_ms);
        assert!(grown >= control.ssthresh_bytes().min(21 * MSS_BYTES) - MSS_BYTES, "{grown}");
    }
}

#[test]
fn after_a_timeout_cubic_keeps_its_share_as_threshold() {
    let mut control = in_avoidance("cubic", 100);
    control.on_timeout(instant(RTT), 0);
    assert_eq!((control.cwnd_bytes(), control.ssthresh_bytes()), (MSS_BYTES, 70 * MSS_BYTES));
}

#[test]
fn reno_adds_a_packet_each_round_trip_however_small_the_acknowledgements_are() {
    for bytes in [1, 7, 100, MSS_BYTES] {
        let mut control = in_avoidance("reno", 100);
        for _ in 0..100 * MSS_BYTES / bytes {
            control.on_ack(&ack(RTT, bytes), PathId(0), &[]);
        }
        let grown = control.cwnd_bytes() - 100 * MSS_BYTES;
        assert!((994..=1_000).contains(&grown), "{grown} bytes by {bytes} each");
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for entry in ALL.iter().filter(|entry| entry.name != "wvegas") {
        for mut control in [new_control(entry.name), in_avoidance(entry.name, 10)] {
            let cwnd_before = control.cwnd_bytes();
            for sample in [
                AckSample { cwnd_limited: false, ..ack(RTT, 5 * MSS_BYTES) },
                AckSample { in_recovery: true, ..ack(RTT, 5 * MSS_BYTES) },
            ] {
                control.on_ack(&sample, PathId(0), &[]);
            }
            assert_eq!(control.cwnd_bytes(), cwnd_before, "{}", entry.name);
        }
    }
}

#[test]
fn loss_leaves_the_window_that_each_control_defines() {
    let slower = [sibling(0, 100, RTT), sibling(1, 50, RTT)];
    let faster = [sibling(0, 100, RTT), sibling(1, 120, RTT)];
    let much_faster = [sibling(0, 100, RTT), sibling(1, 400, RTT)];
    for (name, group, expected_packets) in [
        ("reno", &slower, 50),
        ("lia", &faster, 50),
        ("olia", &faster, 50),
        ("wvegas", &faster, 50),
        ("cubic", &slower, 70),
        ("balia", &slower, 50),
        ("balia", &faster, 40),
        ("balia", &much_faster, 25),
    ] {
        let mut control = in_avoidance(name, 100);
        control.on_congestion(instant(RTT), 0, PathId(0), group);
        assert_eq!(control.ssthresh_bytes(), expected_packets * MSS_BYTES, "{name}");
        assert_eq!(control.cwnd_bytes(), expected_packets * MSS_BYTES, "{name}");
    }
}

#[test]
fn a_timeout_leaves_one_packet_and_a_spurious_one_nothing_at_all() {
    for entry in ALL {
        let mut control = in_avoidance(entry.name, 100);
        let state_before =
            (control.cwnd_bytes(), control.ssthresh_bytes(), control.between_losses());
        control.on_timeout(instant(RTT), 0);
        assert_eq!(control.cwnd_bytes(), MSS_BYTES, "{}", entry.name);
        assert!(control.ssthresh_bytes() < 100 * MSS_BYTES);
        control.undo(instant(RTT));
        let state_after =
            (control.cwnd_bytes(), control.ssthresh_bytes(), control.between_losses());
        assert_eq!(state_after, state_before, "{}", entry.name);
        control.undo(instant(RTT));
        assert_eq!(control.cwnd_bytes(), 100 * MSS_BYTES, "undone once");
    }
}

#[test]
fn idle_time_halves_the_window_to_the_restart_window_at_least() {
    for (timeouts, bytes) in
        [(0, 100_000), (1, 50_000), (3, 12_500), (9, 10_000), (u32::MAX, 10_000)]
    {
        let mut control = in_avoidance("reno", 100);
        control.on_idle(Instant::MAX, RTT.saturating_mul(timeouts), RTT);
        assert_eq!(control.cwnd_bytes(), bytes, "{timeouts} timeouts");
        assert!(timeouts == 0 || control.ssthresh_bytes() == 75 * MSS_BYTES);
    }
}

#[test]
fn a_penalty_halves_and_spares_the_threshold_of_slow_start() {
    let mut control = new_control("reno");
    control.penalise(Instant::ZERO, false);
    assert_eq!((control.cwnd_bytes(), control.ssthresh_bytes()), (5 * MSS_BYTES, u64::MAX));
    control.penalise(Instant::ZERO, true);
    assert_eq!((control.cwnd_bytes(), control.ssthresh_bytes()), (2_500, 2_500), "as in the paper");
    let mut control = in_avoidance("reno", 5);
    for expected in [(2_500, 2_500), (1_250, 2_000), (1_000, 2_000)] {
        control.penalise(Instant::ZERO, false);
        assert_eq!((control.cwnd_bytes(), control.ssthresh_bytes()), expected);
    }
}

#[test]
fn a_larger_packet_raises_the_smallest_window() {
    let mut control = new_control("reno");
    control.on_timeout(Instant::ZERO, 0);
    control.set_mss(4 * MSS);
    assert_eq!((control.cwnd_bytes(), control.ssthresh_bytes()), (4_000, 8_000));
}

#[test]
fn the_initial_window_counts_packets_of_the_size_that_was_agreed_on() {
    let mut control = new_control("reno");
    control.set_mss(536);
    assert_eq!(control.cwnd_bytes(), 5_360);
    control.set_mss(900);
    assert_eq!(control.cwnd_bytes(), 9_000);
}

#[test]
fn a_smaller_packet_leaves_as_many_of_them_in_the_window() {
    let mut control = in_avoidance("reno", 40);
    control.set_mss(500);
    assert_eq!(control.cwnd_bytes(), 20_000);
    control.set_mss(1_000);
    assert_eq!(control.cwnd_bytes(), 20_000, "larger packets prove nothing about the path");
}

#[test]
fn bytes_between_losses_are_counted() {
    let mut control = new_control("olia");
    control.on_ack(&ack(RTT, 5_000), PathId(0), &[]);
    control.on_congestion(instant(RTT), 0, PathId(0), &[]);
    control.on_ack(&ack(RTT, 300), PathId(0), &[]);
    assert_eq!(control.between_losses(), (300, 5_000));
}

#[test]
fn cubic_is_back_at_its_top_after_k_and_flat_around_it() {
    // RFC 9438 §4.2: K = ∛(100 · 0.3 / 0.4) = 4.217 s after loss at 100 packets. At 1 ms a Reno
    // flow would be far slower, so only the curve counts.
    let mut control = new_control("cubic");
    control.on_recovered(Instant::ZERO, 100 * MSS_BYTES);
    control.on_congestion(Instant::ZERO, 0, PathId(0), &[]);
    let mut windows = Vec::new();
    let round_trip = Duration::from_millis(400);
    for number in 0..25 {
        let packets = control.cwnd_bytes() / MSS_BYTES;
        for _ in 0..packets {
            let sample = AckSample { srtt: round_trip, ..ack(round_trip * number, MSS_BYTES) };
            control.on_ack(&sample, PathId(0), &[]);
        }
        windows.push(control.cwnd_bytes() / MSS_BYTES);
    }
    assert_eq!(windows[0], windows[0].clamp(74, 80), "steep at first: {windows:?}");
    assert_eq!(windows[10], windows[10].clamp(98, 101), "top at 4.2 s: {windows:?}");
    // 0.4 · (9.6 + 0.4 - 4.217)³ = 77 above the top.
    assert_eq!(windows[24], windows[24].clamp(160, 178), "probing: {windows:?}");
}

#[test]
fn cubic_is_not_slower_than_reno_with_the_same_average_where_windows_are_small() {
    let mut control = in_avoidance("cubic", 10);
    control.on_congestion(Instant::ZERO, 0, PathId(0), &[]);
    let round_trip = Duration::from_millis(1);
    for number in 0..20 {
        for _ in 0..control.cwnd_bytes() / MSS_BYTES {
            let sample = AckSample { srtt: round_trip, ..ack(round_trip * number, MSS_BYTES) };
            control.on_ack(&sample, PathId(0), &[]);
        }
    }
    // From 7 at 0.53 a round trip up to 10, then at 1; the curve alone would still be at 7.
    let packets = control.cwnd_bytes() / MSS_BYTES;
    assert_eq!(packets, packets.clamp(20, 24));
}

#[test]
fn cubic_that_loses_below_its_top_aims_lower() {
    // Both lose at 90 packets, one of them on the way back to 100: it aims at 76.5. After 1.5 s its
    // curve is at 76.5 - 0.4 · (1.5 - 3.23)³ = 74.4, the other's at 90 - 0.4 · (1.5 - 4.07)³ =
    // 83.2.
    let packets_after_regrowth = |first_packets: u64| {
        let mut control = new_control("cubic");
        control.on_recovered(Instant::ZERO, first_packets * MSS_BYTES);
        control.on_congestion(Instant::ZERO, 0, PathId(0), &[]);
        control.on_recovered(Instant::ZERO, 90 * MSS_BYTES);
        control.on_congestion(Instant::ZERO, 0, PathId(0), &[]);
        for number in 0..15 {
            ack_window(control.as_mut(), RTT * number, &[]);
        }
        control.cwnd_bytes() / MSS_BYTES
    };
    assert_eq!((packets_after_regrowth(100), packets_after_regrowth(80)), (74, 82));
}

#[test]
fn application_limited_time_does_not_count_for_cubic() {
    let run = |pause: Duration| {
        let mut control = in_avoidance("cubic", 100);
        ack_window(control.as_mut(), RTT, &[]);
        let unused = AckSample { cwnd_limited: false, ..ack(RTT, MSS_BYTES) };
        control.on_ack(&unused, PathId(0), &[]);
        ack_window(control.as_mut(), RTT + pause, &[]);
        control.cwnd_bytes()
    };
    assert_eq!(run(Duration::from_secs(8)), run(Duration::ZERO));
}

#[test]
fn coupled_controls_with_two_equal_paths_grow_as_published() {
    let mut group = [sibling(0, 100, RTT), sibling(1, 100, RTT)];
    // LIA: α = ½, so a quarter of a packet each; OLIA: 1/4 too; BALIA: α = 1, the same.
    for name in ["lia", "olia", "balia"] {
        let bytes = growth(name, &group);
        assert!((240..=250).contains(&bytes), "{name}: {bytes}");
    }
    // A sibling with a quarter of the round-trip time and the same window has 16 times the gain.
    group[1].srtt = RTT / 4;
    // RFC 6356: α = 200 · 1600 / 25 = 12.8 in units of 1/100, so 0.64 of a packet.
    // OLIA: (1/5)² of Reno. BALIA: α = 4, so 1/25 · 2.5 · 1.6 of Reno.
    for (name, expected) in [("lia", 640), ("olia", 40), ("balia", 160)] {
        let bytes = growth(name, &group);
        assert!((expected - 3..=expected).contains(&bytes), "{name}: {bytes}");
    }
}

#[test]
fn lia_never_outgrows_reno_even_where_its_formula_would() {
    // RFC 6356 §3: the best path has a hundredth of the round-trip time; α / total is 1/40 packets.
    let group = [sibling(0, 100, RTT * 10), sibling(1, 10, RTT / 10)];
    let bytes = growth("lia", &group);
    assert_eq!(bytes, growth("reno", &[]));
}

#[test]
fn olia_moves_window_from_the_largest_path_to_the_best() {
    let mut group = [sibling(0, 100, RTT), sibling(1, 10, RTT)];
    group[1].between_losses = (1_000_000, 0);
    // Own: largest, not best. 1/(1.1)² - 1/2 of a packet.
    let growth_as_largest = growth("olia", &group);
    assert_eq!(growth_as_largest, growth_as_largest.clamp(320, 328));
    // Own: best, not largest. (1/5)² + 1/2.
    let mut control = in_avoidance("olia", 100);
    control.on_ack(&AckSample { in_recovery: true, ..ack(RTT, 1 << 30) }, PathId(0), &[]);
    ack_window(control.as_mut(), RTT, &[sibling(1, 400, RTT)]);
    let growth_as_best = control.cwnd_bytes().cast_signed() - 100_000;
    assert_eq!(growth_as_best, growth_as_best.clamp(530, 540));
    // Own: largest by a little. 1/4 - 1/2: it shrinks.
    group[1].cwnd_bytes = 99_000;
    let growth_as_slightly_largest = growth("olia", &group);
    assert_eq!(growth_as_slightly_largest, growth_as_slightly_largest.clamp(-260, -240));
}

#[test]
fn wvegas_keeps_a_few_packets_queued_and_its_share_depends_on_its_rate() {
    // A link of 100 packets in 100 ms without queue: the round-trip time follows the window.
    let settled_packets = |sibling_packets: u64| {
        let mut control = new_control("wvegas");
        for number in 0..400 {
            let packets = control.cwnd_bytes() / MSS_BYTES;
            let rtt = RTT.max(Duration::from_millis(packets));
            for packet in 1..=packets {
                let round_ended = packet == packets;
                let sample = ack(RTT * number, MSS_BYTES);
                let sample = AckSample { rtt: Some(rtt), srtt: rtt, round_ended, ..sample };
                control.on_ack(&sample, PathId(0), &[sibling(1, sibling_packets, RTT)]);
            }
        }
        control.cwnd_bytes() / MSS_BYTES
    };
    let with_slow_sibling = settled_packets(1);
    assert_eq!(with_slow_sibling, with_slow_sibling.clamp(108, 112), "about ten packets queued");
    let with_fast_sibling = settled_packets(900);
    assert_eq!(with_fast_sibling, with_fast_sibling.clamp(100, 104), "about two packets queued");
}

#[test]
fn wvegas_drains_a_queue_that_has_doubled() {
    let mut control = in_avoidance("wvegas", 100);
    let mut windows = Vec::new();
    for (number, rtt_ms) in [(1, 100), (2, 102), (3, 103), (4, 105)] {
        for packet in 1..=10 {
            let rtt = Some(Duration::from_millis(rtt_ms));
            let sample =
                AckSample { rtt, round_ended: packet == 10, ..ack(RTT * number, MSS_BYTES) };
            control.on_ack(&sample, PathId(0), &[]);
        }
        windows.push(control.cwnd_bytes() / MSS_BYTES);
    }
    // One packet more each round trip while fewer than α are queued. 5 ms are more than twice 2 ms,
    // so 104 · 100 / 210 are left. Slow start continues from there.
    assert_eq!(windows, [101, 102, 103, 50]);
}

/// Average packets in flight of two paths of `name` together, when every packet is lost with the
/// same probability, as at a bottleneck with many flows.
fn pair_under_random_loss(name: &str) -> f64 {
    let mut controls = [in_avoidance(name, 10), in_avoidance(name, 10)];
    let mut random_state: u64 = 7;
    let mut total_packets = 0;
    for number in 0..20_000_u32 {
        let now = RTT * number;
        for path_index in 0..2 {
            let as_sibling = |(id, control): (usize, &dyn CongestionControl)| Sibling {
                between_losses: control.between_losses(),
                cwnd_bytes: control.cwnd_bytes(),
                ..sibling(id as u8, 1, RTT)
            };
            let group: Vec<_> =
                controls.iter().map(AsRef::as_ref).enumerate().map(as_sibling).collect();
            let control = &mut controls[path_index];
            let packets = (control.cwnd_bytes() / MSS_BYTES).max(1);
            total_packets += packets;
            let mut lost = false;
            for _ in 0..packets {
                random_state = random_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                lost |= random_state >> 33 < (1 << 31) / 500;
            }
            let id = PathId(path_index as u8);
            control.on_ack(&ack(now, packets * MSS_BYTES), id, &group);
            if lost {
                control.on_congestion(instant(now), 0, id, &group);
            }
        }
    }
    total_packets as f64 / 20_000.0
}

#[test]
fn two_coupled_paths_take_about_the_share_of_one_reno_flow() {
    let one_reno_flow = pair_under_random_loss("reno") / 2.0;
    for name in ["lia", "olia", "balia"] {
        let share = pair_under_random_loss(name) / one_reno_flow;
        assert!((0.85..1.2).contains(&share), "{name}: {share:.2} of one Reno flow");
    }
    assert!(
        pair_under_random_loss("cubic") / one_reno_flow > 1.8,
        "uncoupled ones take that of two"
    );
}

/// One event of a control.
#[derive(Debug, Clone)]
enum Step {
    Ack { bytes: u64, rtt_us: u64, limited: bool, round_ended: bool, in_recovery: bool },
    Congestion,
    Recovered(u64),
    Timeout,
    Undo,
    Idle(u64),
    Penalise(bool),
    Mss(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let flags = (prop::bool::weighted(0.9), any::<bool>(), prop::bool::weighted(0.1));
    let acks = (0..200_000_u64, 0..2_000_000_u64, flags);
    let acks = acks.prop_map(|(bytes, rtt_us, (limited, round_ended, in_recovery))| Step::Ack {
        bytes,
        rtt_us,
        limited,
        round_ended,
        in_recovery,
    });
    prop_oneof![
        20 => acks,
        1 => Just(Step::Congestion),
        1 => (0..1_000_000_u64).prop_map(Step::Recovered),
        1 => Just(Step::Timeout),
        1 => Just(Step::Undo),
        1 => (0..100_000_000_u64).prop_map(Step::Idle),
        1 => any::<bool>().prop_map(Step::Penalise),
        1 => (0..9_000_u32).prop_map(Step::Mss),
    ]
}

fn apply(control: &mut dyn CongestionControl, step: &Step, now: Instant, group: &[Sibling]) {
    let path_id = PathId(0);
    match *step {
        Step::Ack { bytes, rtt_us, limited, round_ended, in_recovery } => {
            let rtt = Duration::from_micros(rtt_us);
            let sample = AckSample {
                now,
                acked_bytes: bytes,
                in_flight_bytes: bytes,
                rtt: Some(rtt),
                srtt: rtt,
                min_rtt: rtt,
                cwnd_limited: limited,
                round_ended,
                in_recovery,
            };
            control.on_ack(&sample, path_id, group);
        }
        Step::Congestion => control.on_congestion(now, 0, path_id, group),
        Step::Recovered(bytes) => control.on_recovered(now, bytes),
        Step::Timeout => control.on_timeout(now, 0),
        Step::Undo => control.undo(now),
        Step::Idle(us) => control.on_idle(now, Duration::from_micros(us), RTT),
        Step::Penalise(ends) => control.penalise(now, ends),
        Step::Mss(bytes) => control.set_mss(bytes),
    }
}

fn any_siblings() -> impl Strategy<Value = Vec<Sibling>> {
    let any_sibling = (0..8_u8, 0..2_000_u64, 0..2_000_u64, any::<(u32, u32)>());
    let any_sibling = any_sibling.prop_map(|(id, packets, rtt_ms, (since, between))| Sibling {
        between_losses: (u64::from(since), u64::from(between)),
        ..sibling(id, packets, Duration::from_millis(rtt_ms))
    });
    prop::collection::vec(any_sibling, 0..5)
}

proptest! {
    #[test]
    fn no_window_is_ever_below_a_packet(
        steps in prop::collection::vec(any_step(), 1..200),
        group in any_siblings(),
        hystart in prop::sample::select(vec![HyStartRule::Off, HyStartRule::Rfc9406, HyStartRule::Linux]),
    ) {
        for entry in ALL {
            let mut control = (entry.make)(CongestionConfig { hystart, ..config() });
            let mut mss = MSS_BYTES;
            for (number, step) in steps.iter().enumerate() {
                apply(control.as_mut(), step, Instant::from_nanos(number as u64 * 50_000_000), &group);
                if let Step::Mss(bytes) = step {
                    mss = u64::from(*bytes).max(1);
                }
                prop_assert!(control.cwnd_bytes() >= mss, "{} after {step:?}", entry.name);
                prop_assert!(control.ssthresh_bytes() >= 2 * mss, "{} after {step:?}", entry.name);
            }
        }
    }

    #[test]
    fn lia_on_a_single_path_is_reno_to_the_byte(steps in prop::collection::vec(any_step(), 1..300)) {
        let (mut reno, mut lia) = (new_control("reno"), new_control("lia"));
        for (number, step) in steps.iter().enumerate() {
            let now = Instant::from_nanos(number as u64 * 50_000_000);
            let lia_view = Sibling { cwnd_bytes: lia.cwnd_bytes(), ..sibling(0, 1, RTT) };
            apply(reno.as_mut(), step, now, &[]);
            apply(lia.as_mut(), step, now, &[lia_view]);
            prop_assert_eq!(
                (reno.cwnd_bytes(), reno.ssthresh_bytes()),
                (lia.cwnd_bytes(), lia.ssthresh_bytes())
            );
        }
    }

    #[test]
    fn windows_do_not_shrink_in_avoidance_and_coupled_ones_do_not_outgrow_reno(
        acks in prop::collection::vec(0..100_000_u64, 1..100),
        packets in 1..500_u64,
        group in any_siblings(),
    ) {
        let mut reno = in_avoidance("reno", packets);
        let mut controls: Vec<_> =
            ["cubic", "lia", "balia"].into_iter().map(|name| in_avoidance(name, packets)).collect();
        for (round, bytes) in acks.into_iter().enumerate() {
            let sample = ack(RTT * round as u32, bytes);
            reno.on_ack(&sample, PathId(0), &[]);
            for control in &mut controls {
                let cwnd_before = control.cwnd_bytes();
                control.on_ack(&sample, PathId(0), &group);
                prop_assert!(control.cwnd_bytes() >= cwnd_before, "{}", control.name());
                // A byte may round the other way.
                let bounded = control.name() == "cubic" || control.cwnd_bytes() <= reno.cwnd_bytes() + 1;
                prop_assert!(bounded, "{}", control.name());
            }
        }
    }

    #[test]
    fn the_same_steps_give_the_same_windows(
        steps in prop::collection::vec(any_step(), 1..100),
        group in any_siblings(),
    ) {
        for entry in ALL {
            let run = || {
                let mut control = new_control(entry.name);
                for step in &steps {
                    apply(control.as_mut(), step, Instant::ZERO, &group);
                }
                (control.cwnd_bytes(), control.ssthresh_bytes())
            };
            prop_assert_eq!(run(), run());
        }
    }
}
