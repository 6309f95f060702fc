use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use towpath_scenario::{DataDirection, Scenario, Transport};

use super::capacity::OfferedCapacity;
use super::ledger::split;
use super::*;
use crate::{Basis, Part, Parts};

const MS: u64 = 1_000_000;

fn parse_scenario(text: &str) -> Scenario {
    let text = format!("name = \"account\"\n[hosts.left]\n[hosts.right]\n{text}");
    Scenario::parse("account.toml", &text, &|_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

fn two_paths(extra: &str) -> Scenario {
    parse_scenario(&format!(
        "[paths.wifi]\nbetween = [\"left\", \"right\"]\nrate = \"40 Mbit/s\"\ndelay = \"10 ms\"\n\
         [paths.lte]\nbetween = [\"left\", \"right\"]\nrate = \"20 Mbit/s\"\ndelay = \"30 ms\"\n\
         {extra}\n[[flows]]\nfrom = \"left\"\nto = \"right\"\npattern = \"bulk\"\nduration = \"5 s\"\n"
    ))
}

fn offered_until_ms(link: &AccountedLink, at_ms: u64) -> OfferedCapacity {
    link.offered_until(at_ms * MS)
}

#[test]
fn a_link_offers_its_rate_over_time_and_reports_outages() {
    let scenario = two_paths(
        "[[timeline]]\nat = \"1 s\"\npath = \"wifi\"\nset = \"down\"\n\
         [[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"up\"\n\
         [[timeline]]\nat = \"3 s\"\npath = \"wifi\"\nset = \"rate\"\nrate = \"8 Mbit/s\"\n",
    );
    let (links, unlimited) = accounted_links(&scenario, Transport::Mptcp);
    assert!(unlimited.is_empty());
    let names: Vec<_> = links.iter().map(|link| (link.name.as_str(), link.direction)).collect();
    assert_eq!(names, [("wifi", DataDirection::Up), ("lte", DataDirection::Up)]);
    assert_eq!(offered_until_ms(&links[0], 1_000).capacity_bytes, 5_000_000);
    let offered = OfferedCapacity { capacity_bytes: 7_500_000, down_bytes: 2_500_000 };
    assert_eq!(offered_until_ms(&links[0], 1_500), offered);
    let offered = OfferedCapacity { capacity_bytes: 16_000_000, down_bytes: 5_000_000 };
    assert_eq!(offered_until_ms(&links[0], 4_000), offered);
}

#[test]
fn a_limiting_bottleneck_owns_the_capacity_of_its_paths() {
    let through = |rate: &str| {
        parse_scenario(&format!(
            "[bottlenecks.shared]\nrate = \"{rate}\"\n\
             [paths.a]\nbetween = [\"left\", \"right\"]\nrate = \"40 Mbit/s\"\nthrough = [\"shared\"]\n\
             [paths.b]\nbetween = [\"left\", \"right\"]\nrate = \"20 Mbit/s\"\nthrough = [\"shared\"]\n\
             [paths.c]\nbetween = [\"left\", \"right\"]\n\
             [[flows]]\nfrom = \"left\"\nto = \"right\"\npattern = \"bulk\"\nduration = \"5 s\"\n"
        ))
    };
    let (links, unlimited) = accounted_links(&through("30 Mbit/s"), Transport::Mptcp);
    assert_eq!(unlimited, ["c"]);
    let [link] = links.as_slice() else { panic!("{links:?}") };
    assert_eq!((link.name.as_str(), link.paths.as_slice()), ("shared", &[0, 1][..]));
    assert_eq!(offered_until_ms(link, 1_000).capacity_bytes, 3_750_000);
    let (links, _) = accounted_links(&through("100 Mbit/s"), Transport::Mptcp);
    let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

fn carried(delivered: u64, headers: u64) -> CarriedBytes {
    CarriedBytes { delivered, headers, ..CarriedBytes::default() }
}

fn period(number: u64, carried: CarriedBytes, limits: &[(Part, u64)]) -> Period {
    Period {
        t_ns: number * 100 * MS,
        span_ns: 100 * MS,
        carried,
        partial_packet_bytes: 0,
        limits: limits.iter().map(|(part, weight)| (IdleCause::from(*part), *weight)).collect(),
    }
}

fn account_parts(periods: Vec<Period>) -> Vec<Parts> {
    let mut ledger = Ledger::new(&two_paths(""), Transport::Mptcp);
    for period in periods {
        ledger.add(0, period);
    }
    let (accounts, _) = ledger.finish(Basis::Model, &BufferSizes::default());
    accounts.into_iter().map(|account| account.parts).collect()
}

#[test]
fn unused_capacity_is_attributed_to_the_senders_limit() {
    // 40 Mbit/s in 100 ms are 500,000 bytes.
    let limits = [(Part::PeerWindow, 3), (Part::Application, 1)];
    let parts = account_parts(vec![period(1, carried(300_000, 20_000), &limits)]);
    let expected = [
        (Part::Delivered, 300_000),
        (Part::Headers, 20_000),
        (Part::Application, 45_000),
        (Part::PeerWindow, 135_000),
    ];
    assert_eq!(parts[0].bytes, BTreeMap::from(expected));
    assert_eq!((parts[0].capacity_bytes, parts[0].sum()), (500_000, 500_000));
    let parts = account_parts(vec![period(1, carried(300_000, 20_000), &[])]);
    assert_eq!(parts[0].of(Part::Unknown), 180_000, "the reason is unknown");
}

#[test]
fn a_token_bucket_burst_is_carried_over_to_the_next_periods() {
    let burst = vec![
        period(1, carried(600_000, 0), &[]),
        period(2, carried(100_000, 0), &[(Part::Application, 1)]),
    ];
    let parts = account_parts(burst);
    assert_eq!(parts[0].bytes, BTreeMap::from([(Part::Delivered, 500_000)]));
    let limits = [(Part::Delivered, 200_000), (Part::Application, 300_000)];
    assert_eq!(parts[1].bytes, BTreeMap::from(limits));
}

#[test]
fn a_packet_across_the_end_of_a_period_belongs_to_both() {
    let mut first = period(1, carried(499_000, 0), &[]);
    first.partial_packet_bytes = 1_000;
    let parts = account_parts(vec![first, period(2, carried(500_000, 0), &[(Part::Pacing, 1)])]);
    assert_eq!(parts[0].of(Part::Delivered), 500_000);
    assert_eq!((parts[1].of(Part::Delivered), parts[1].of(Part::Pacing)), (499_000, 1_000));
}

#[test]
fn the_sentence_names_the_largest_causes_and_sufficient_values() {
    let mut ledger = Ledger::new(&two_paths(""), Transport::Mptcp);
    for number in 1..=10 {
        let blocked = IdleCause { part: Part::HeadOfLineBlocking, waits_for: Some(1) };
        let mut wifi = period(number, carried(250_000, 10_000), &[(Part::Application, 1)]);
        wifi.limits.insert(blocked, 9);
        ledger.add(0, wifi);
        ledger.add(1, period(number, carried(240_000, 10_000), &[]));
    }
    let sizes = BufferSizes {
        receive_window_bytes: Some(400_000),
        sufficient_bytes: Some(1_100_000),
        ..BufferSizes::default()
    };
    let (_, summary) = ledger.finish(Basis::Model, &sizes);
    let summary = summary.unwrap();
    assert_eq!(
        summary.sentence,
        "of 60 Mbit/s, 19 were not used: 17 because the receive window of 400 kB was full of data \
         waiting for lte, 1.9 because there was nothing to send; hosts.right.receive-buffer = \
         \"2.20 MB\" would suffice"
    );
    let advice = summary.advice.unwrap();
    assert_eq!(
        (advice.part, advice.key.as_str()),
        (Part::HeadOfLineBlocking, "hosts.right.receive-buffer")
    );
    assert_eq!(summary.total.blocked_by, BTreeMap::from([("lte".to_owned(), 2_160_000)]));
    assert_eq!(summary.total.sum(), summary.total.capacity_bytes);
}

/// Returns the sentence of one period of 1 s over a path of `rate`.
fn sentence_of(rate: &str, pattern: &str, carried: CarriedBytes, limits: &[(Part, u64)]) -> String {
    let scenario = parse_scenario(&format!(
        "[paths.wire]\nbetween = [\"left\", \"right\"]\nrate = \"{rate}\"\n\
         [[flows]]\nfrom = \"left\"\nto = \"right\"\n{pattern}\nduration = \"1 s\"\n"
    ));
    let mut ledger = Ledger::new(&scenario, Transport::Tcp);
    for link in 0..ledger.links().len() {
        let mut period = period(10, carried, limits);
        period.span_ns = 1_000 * MS;
        ledger.add(link, period);
    }
    ledger.finish(Basis::Model, &BufferSizes::default()).1.unwrap().sentence
}

const BULK: &str = "pattern = \"bulk\"";

#[test]
fn no_share_is_rounded_to_zero() {
    // Of 125,000 bytes 12,000 are missing, 1,000 of them for a third reason.
    let limits = [(Part::SlowStart, 6_000), (Part::Pacing, 5_000), (Part::AfterLoss, 1_000)];
    assert_eq!(
        sentence_of("1 Mbit/s", BULK, carried(105_000, 8_000), &limits),
        "of 1 Mbit/s, 96 kbit/s were not used: 48 because the congestion window was still growing \
         (slow start), 40 because pacing limited the sender, 8 because packets were lost on wire"
    );
    assert_eq!(
        sentence_of("1 Gbit/s", BULK, carried(115_000_000, 8_000_000), &limits),
        "of 1 Gbit/s, 920 Mbit/s were payload and 64 headers; 16 were not used"
    );
    // Nearly all capacity is used.
    assert_eq!(
        sentence_of("1 Mbit/s", BULK, carried(116_990, 8_000), &limits),
        "of 1 Mbit/s, 936 kbit/s were payload and 64 headers"
    );
}

#[test]
fn data_in_flight_at_the_end_is_neither_payload_nor_lost() {
    let carried =
        CarriedBytes { out_of_order: 200_000, in_flight: 100_000, ..carried(700_000, 50_000) };
    let sentence = sentence_of("10 Mbit/s", BULK, carried, &[(Part::SlowStart, 1)]);
    assert_eq!(
        sentence,
        "of 10 Mbit/s, 4 were not used: 1.6 because data had arrived and waited for earlier data at \
         the end, 1.6 because the congestion window was still growing (slow start), 0.8 because data \
         was in flight at the end"
    );
}

#[test]
fn request_and_reply_flows_report_idle_time() {
    let limits = [(Part::Application, 980), (Part::SlowStart, 15), (Part::PeerWindow, 5)];
    let pattern = "pattern = \"reqres\"";
    let sentence = sentence_of("10 Mbit/s", pattern, carried(12_000, 1_000), &limits);
    let text = "96 kbit/s were payload; of the capacity, 97 % went unused because there was nothing to \
               send, 1.5 % because the congestion window was still growing (slow start) and 0.5 % \
               because the receive window was full";
    assert_eq!(sentence, format!("up: {text}; down: {text}"));
}

#[test]
fn replies_alongside_a_transfer_are_not_in_its_sentence() {
    let patterns = "pattern = \"bulk\"\nduration = \"1 s\"\n[[flows]]\nfrom = \"left\"\nto = \"right\"\n\
               pattern = \"reqres\"";
    let sentence = sentence_of("10 Mbit/s", patterns, carried(625_000, 0), &[(Part::Pacing, 1)]);
    assert_eq!(sentence, "of 10 Mbit/s up, 5 were not used: 5 because pacing limited the sender");
}

#[test]
fn an_account_without_newer_parts_is_readable() {
    let text = r#"{"capacity_bytes":10,"bytes":{"delivered":7,"lost":3}}"#;
    let parts: Parts = serde_json::from_str(text).unwrap();
    assert_eq!(
        (parts.of(Part::Delivered), parts.of(Part::Lost), parts.of(Part::OutOfOrder)),
        (7, 3, 0)
    );
}

#[test]
fn the_sufficient_window_covers_the_longest_queue() {
    // 60 Mbit/s; cellular has a round trip of 60 ms and a queue of 100 ms.
    let ledger = Ledger::new(&two_paths(""), Transport::Mptcp);
    let window_bytes = |ms: u64| 60_000_000 / 8 * (2 * ms + 200) / 1_000;
    assert_eq!(ledger.sufficient_window_bytes(Duration::ZERO), window_bytes(160));
    assert_eq!(ledger.sufficient_window_bytes(Duration::from_millis(500)), window_bytes(500));
}

#[test]
fn links_without_a_rate_have_no_account() {
    let scenario = parse_scenario(
        "[paths.wire]\nbetween = [\"left\", \"right\"]\n\
         [[flows]]\nfrom = \"left\"\nto = \"right\"\npattern = \"bulk\"\nduration = \"5 s\"\n",
    );
    let (accounts, summary) =
        Ledger::new(&scenario, Transport::Tcp).finish(Basis::Model, &BufferSizes::default());
    assert!(accounts.is_empty());
    let sentence = summary.unwrap().sentence;
    assert_eq!(sentence, "nothing limits the rate of wire, so there is no capacity to account for");
}

fn any_period() -> impl Strategy<Value = (CarriedBytes, u64, Vec<(usize, u64)>)> {
    let carried = prop::array::uniform8(0_u64..300_000).prop_map(
        |[delivered, headers, out_of_order, in_flight, lost, spurious, reinjected, redundant]| {
            CarriedBytes {
                delivered,
                headers,
                out_of_order,
                in_flight,
                lost,
                spurious,
                reinjected,
                redundant,
            }
        },
    );
    (
        carried,
        0_u64..3_000,
        prop::collection::vec((0_usize..Part::ALL.len(), 0_u64..1_000_000), 0..6),
    )
}

proptest! {
    #[test]
    fn the_parts_always_sum_to_the_capacity(
        periods in prop::collection::vec(any_period(), 1..30),
        spans in prop::collection::vec(1_u64..200, 30),
        down_ms in 0_u64..3_000, up_ms in 0_u64..3_000, rate in 1_u64..100_000,
    ) {
        let scenario = two_paths(&format!(
            "[[timeline]]\nat = \"{down_ms} ms\"\npath = \"wifi\"\nset = \"down\"\n\
             [[timeline]]\nat = \"{up_ms} ms\"\npath = \"wifi\"\nset = \"rate\"\nrate = \"{rate} kbit/s\"\n\
             [[timeline]]\nat = \"{} ms\"\npath = \"wifi\"\nset = \"up\"\n", down_ms.max(up_ms) + 500,
        ));
        let mut ledger = Ledger::new(&scenario, Transport::Mptcp);
        let (mut end_ns, mut carried_total, mut last_partial_bytes) = (0, 0, 0);
        for ((carried, partial_packet_bytes, limits), span) in periods.into_iter().zip(spans) {
            end_ns += span * MS;
            let CarriedBytes { delivered, headers, out_of_order, in_flight, .. } = carried;
            let CarriedBytes { lost, spurious, reinjected, redundant, .. } = carried;
            carried_total += delivered + headers + out_of_order + in_flight;
            carried_total += lost + spurious + reinjected + redundant;
            last_partial_bytes = partial_packet_bytes;
            let limits = limits.iter().map(|(part, weight)| (Part::ALL[*part], *weight));
            let limits = limits.filter(|(part, _)| !part.is_carried());
            let limits = limits.map(|(part, weight)| (IdleCause::from(part), weight)).collect();
            ledger.add(0, Period { t_ns: end_ns, span_ns: span * MS, carried, partial_packet_bytes, limits });
        }
        let offered = ledger.links()[0].offered_until(end_ns).capacity_bytes;
        let (accounts, summary) = ledger.finish(Basis::Model, &BufferSizes::default());
        for account in &accounts {
            prop_assert_eq!(account.parts.sum(), account.parts.capacity_bytes);
        }
        let total = summary.unwrap().total;
        prop_assert_eq!(total.sum(), total.capacity_bytes);
        prop_assert_eq!(total.carried_bytes(), carried_total + last_partial_bytes, "nothing that was carried is left out");
        prop_assert!(total.capacity_bytes >= offered);
        let last = accounts.len() - 1;
        let until_last: u64 =
            accounts[..last].iter().map(|account| account.parts.capacity_bytes).sum();
        prop_assert!(until_last <= offered, "only the last period takes a burst in");
    }

    #[test]
    fn a_split_is_exact_and_in_proportion(
        total: u64, weights in prop::collection::vec(any::<u64>(), 1..9),
    ) {
        let shares = split(total, &weights);
        let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        if sum > 0 {
            prop_assert_eq!(shares.iter().map(|share| u128::from(*share)).sum::<u128>(), u128::from(total));
        }
        for (share, weight) in shares.iter().zip(&weights) {
            let exact = (u128::from(total) * u128::from(*weight)).checked_div(sum).unwrap_or(0);
            prop_assert!((exact..=exact + 1).contains(&u128::from(*share)));
        }
    }
}
