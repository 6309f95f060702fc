use proptest::prelude::*;

use super::*;

const SAMPLE: Duration = Duration::from_millis(100);

fn at_us(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

/// Plans 100 datagrams of 1,000 bytes in one second.
fn plan() -> Udp {
    Udp {
        rate_bps: 800_000,
        bytes: 1_000,
        direction: DataDirection::Up,
        duration: Duration::from_secs(1),
        late_timeout: Duration::from_secs(1),
        is_bound: false,
        call: None,
    }
}

fn receiver() -> UdpReceiver {
    UdpReceiver::new(&plan(), at_us(0), SAMPLE)
}

#[test]
fn the_schedule_is_fixed_and_late_datagrams_get_no_number() {
    let mut sender = UdpSender::new(plan(), at_us(0), SAMPLE);
    assert_eq!(planned_datagrams(&plan()), 100);
    assert_eq!((sender.poll(at_us(0)), sender.next_due()), (Some(0), Some(at_us(0))));
    sender.on_sent(at_us(0));
    assert_eq!((sender.poll(at_us(9_999)), sender.next_due()), (None, Some(at_us(10_000))));
    // The sender was not polled for 250 ms: 100 ms are caught up, 14 datagrams are skipped.
    let mut numbers = Vec::new();
    while let Some(number) = sender.poll(at_us(250_000)) {
        numbers.push(number);
        sender.on_sent(at_us(250_000));
    }
    assert_eq!(numbers, (1..=11).collect::<Vec<_>>());
    assert_eq!(sender.next_due(), Some(at_us(260_000)));
    assert_eq!(sender.poll(at_us(260_000)), Some(12));
    sender.on_refused();
    assert_eq!(sender.poll(at_us(270_000)), Some(12), "what was not sent has no number");
    sender.stop();
    assert_eq!((sender.poll(at_us(270_000)), sender.next_due()), (None, None));
    let sent = sender.finish();
    assert_eq!((sent.sent, sent.unsent), (12, 15));
    assert_eq!(sent.rows.iter().map(|row| row.0).collect::<Vec<_>>()[..4], [1, 0, 11, 0]);
    assert_eq!(sent.rows.iter().map(|row| row.1).sum::<u64>(), 15);
}

#[test]
fn losses_duplicates_and_order_are_counted() {
    let mut receiver = receiver();
    // 0 1 _ _ 4 3 4 … 9: one reordered, one duplicated, two lost; the last ninety are lost.
    for (number, arrival) in [(0, 5), (1, 15), (4, 45), (3, 46), (4, 47), (9, 95), (70, 96)] {
        let sent = at_us(number * 10_000);
        receiver.on_datagram(at_us(arrival * 1_000), (number, sent), 1_000);
    }
    assert!(!receiver.on_datagram(at_us(1), (100, at_us(0)), 1_000), "the plan has no such number");
    assert!(!receiver.on_datagram(at_us(1), (u64::MAX, at_us(0)), 1_000));
    let report = receiver.finish(true);
    assert_eq!((report.received, report.duplicated, report.out_of_order), (6, 1, 1));
    assert_eq!((report.highest, report.longest_loss, report.bytes), (Some(70), 60, 6_000));
    let sent = UdpSenderReport { sent: 100, unsent: 0, rows: vec![(10, 0); 10] };
    let flow = (3, at_us(0), SAMPLE);
    let reports = (Some(&sent), Some(&report));
    let (stats, rows) = merge_reports(&plan(), flow, (DataDirection::Up, "wifi"), reports).unwrap();
    assert_eq!((stats.lost, stats.longest_loss_run), (94, 60));
    assert_eq!((rows.len(), rows[0].lost, rows[1].lost), (10, Some(5), Some(10)));
    assert_eq!((rows[9].t_ns, rows[9].span_ns), (1_000_000_000, 100_000_000));
    // Without the sender's report, as far as the receiver knows.
    let (receiver_only, rows) =
        merge_reports(&plan(), flow, (DataDirection::Up, "wifi"), (None, Some(&report))).unwrap();
    assert_eq!((receiver_only.sent, receiver_only.lost, rows[0].lost), (71, 65, None));
}

#[test]
fn jitter_follows_rfc_3550() {
    // One datagram per 10 ms, with transit times of 20 ms and 36 ms in turn. |D| is always 16 ms,
    // so J approaches it by a sixteenth of the difference.
    let mut receiver = receiver();
    let mut expected = 0.0_f64;
    for number in 0..100_u64 {
        let transit = if number % 2 == 0 { 20_000 } else { 36_000 };
        let sent = at_us(number * 10_000);
        receiver.on_datagram(at_us(number * 10_000 + transit), (number, sent), 1_000);
        if number > 0 {
            expected += (16e6 - expected) / 16.0;
        }
    }
    let report = receiver.finish(true);
    assert_eq!(report.jitter_ns[0], expected.round() as u64);
    assert!((15_900_000..16_000_000).contains(&report.jitter_ns[0]));
    let (delay, variation) = (report.delay.unwrap(), report.variation.unwrap());
    assert_eq!((delay.min_ns, delay.max_ns, delay.mean_ns), (20_000_000, 36_000_000, 28_000_000));
    assert_eq!((variation.min_ns, variation.max_ns), (0, 16_000_000));
    assert!(delay.p50_ns.abs_diff(20_000_000) < 1_000 && delay.p99_ns.abs_diff(36_000_000) < 1_000);
}

#[test]
fn different_clocks_give_a_variation_and_no_delay() {
    let mut receiver = receiver();
    for number in 0..10_u64 {
        // The receiver's clock is 5 s behind.
        let sent = at_us(10_000_000 + number * 10_000);
        receiver.on_datagram(
            at_us(5_000_000 + number * 10_000 + number * 100),
            (number, sent),
            1_000,
        );
    }
    let report = receiver.finish(false);
    assert_eq!(report.delay, None);
    let variation = report.variation.unwrap();
    assert_eq!((variation.min_ns, variation.max_ns), (0, 900_000));
    assert_eq!(report.rows[9].received, 10, "unplanned packets");
}

#[test]
fn a_long_flow_has_longer_rows() {
    let plan = Udp { duration: Duration::from_secs(3_600), ..plan() };
    assert_eq!(planned_rows(&plan, SAMPLE), 9_000);
    assert_eq!(Periods::new(&plan, at_us(0), SAMPLE).span, Duration::from_millis(400));
}

proptest! {
    /// Checks that arbitrary arrivals keep the counts consistent and the memory bounded.
    #[test]
    fn the_counters_are_consistent_for_any_arrivals(
        arrivals in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..300),
    ) {
        let plan = Udp { rate_bps: 8_000_000_000, duration: Duration::from_secs(3_600), ..plan() };
        let planned = planned_datagrams(&plan);
        let mut receiver = UdpReceiver::new(&plan, at_us(0), SAMPLE);
        let mut counted = std::collections::BTreeSet::new();
        for (number, sent, now, is_near) in arrivals {
            let number = if is_near { number % 200 } else { number % planned.saturating_mul(2) };
            let is_counted = receiver.on_datagram(Instant::from_nanos(now), (number, Instant::from_nanos(sent)), 1);
            if is_counted {
                prop_assert!(counted.insert(number), "{number} counted twice");
            }
            prop_assert!(receiver.slots.len() as u64 <= REORDER_WINDOW);
        }
        let report = receiver.finish(true);
        prop_assert_eq!(report.received, counted.len() as u64);
        prop_assert_eq!(report.highest, counted.last().copied());
        let rows: u64 = report.rows.iter().map(|row| row.received).sum();
        prop_assert_eq!(rows, report.received);
        let flow = (0, at_us(0), SAMPLE);
        let (stats, _) =
            merge_reports(&plan, flow, (DataDirection::Up, ""), (None, Some(&report))).unwrap();
        prop_assert_eq!(stats.lost + stats.received, stats.sent);
        prop_assert!(stats.longest_loss_run <= stats.lost);
    }

    #[test]
    fn every_datagram_is_sent_once_or_skipped(
        polls in prop::collection::vec((0_u64..2_000_000, any::<bool>()), 1..80),
    ) {
        let mut polls = polls;
        polls.sort_unstable();
        let mut sender = UdpSender::new(plan(), at_us(0), SAMPLE);
        let mut next = 0;
        for (now, accepts) in polls.into_iter().chain([(9_000_000, true)]) {
            while let Some(number) = sender.poll(at_us(now)) {
                prop_assert_eq!(number, next);
                if accepts {
                    sender.on_sent(at_us(now));
                    next += 1;
                } else {
                    sender.on_refused();
                }
            }
        }
        let report = sender.finish();
        prop_assert_eq!(report.sent + report.unsent, 100);
        let rows: u64 = report.rows.iter().map(|(report, unsent)| report + unsent).sum();
        prop_assert_eq!(rows, 100);
    }
}
