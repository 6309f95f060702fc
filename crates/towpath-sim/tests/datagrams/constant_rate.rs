//! Datagrams at a constant rate.

use towpath_result::{DatagramRow, DatagramStats, Record};
use towpath_scenario::{DataDirection, Scenario, Transport};

use crate::simulated::{CompletedRun, scenario, simulate};

/// Returns one path of 10 Mbit/s and 20 ms. 2 Mbit/s of 1,000 bytes for 10 s are 2,500 datagrams
/// in each direction.
fn udp(path: &str, flow: &str) -> Scenario {
    scenario(&format!(
        "name = \"steady\"\n[hosts.phone]\n[hosts.server]\n[paths.wifi]\n\
         between = [\"phone\", \"server\"]\nrate = \"10 Mbit/s\"\ndelay = \"20 ms\"\n{path}\n\
         [[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"udp\"\n\
         bitrate = \"2 Mbit/s\"\nlength = \"1000 B\"\nduration = \"10 s\"\n{flow}"
    ))
}

fn datagram_stats(run: &CompletedRun, packet_direction: DataDirection) -> &DatagramStats {
    let flow = run.summary().flows.iter().find(|flow| flow.direction == packet_direction).unwrap();
    flow.datagrams.as_ref().unwrap()
}

fn rows(run: &CompletedRun) -> Vec<&DatagramRow> {
    let rows = run.records.iter();
    rows.filter_map(|record| if let Record::Datagrams(row) = record { Some(row) } else { None })
        .collect()
}

#[test]
fn over_a_clean_path_all_arrive_after_the_delay_and_nothing_jitters() {
    for transport in [Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic] {
        let run = simulate(&udp("", "direction = \"both\""), transport, 1, false);
        let summary = run.summary();
        assert!(summary.ok && summary.warnings.is_empty(), "{summary:#?}");
        for direction in [DataDirection::Up, DataDirection::Down] {
            let stats = datagram_stats(&run, direction);
            assert_eq!((stats.sent, stats.received, stats.unsent), (2_500, 2_500, 0));
            assert_eq!((stats.lost, stats.longest_loss_run, stats.out_of_order), (0, 0, 0));
            assert_eq!((stats.jitter_ns, stats.jitter_max_ns), (0, 0));
            // 1,028 bytes of IP and 14 of Ethernet at 10 Mbit/s, then 20 ms.
            let delay = stats.delay.unwrap();
            assert_eq!((delay.min_ns, delay.max_ns), (20_833_600, 20_833_600));
            assert_eq!(stats.variation.unwrap().max_ns, 0);
        }
        let rows = rows(&run);
        assert_eq!(rows.len(), 200);
        assert!(rows.iter().all(|row| row.sent == Some(25) && row.lost == Some(0)), "{rows:?}");
    }
}

#[test]
fn losses_duplicates_and_overtaking_are_those_of_the_link() {
    let path = "loss = \"5 %\"\nduplicate = \"2 %\"\n\
                jitter = { distribution = \"uniform\", sd = \"5 ms\", reorder = true }";
    let run = simulate(&udp(path, ""), Transport::Tcp, 1, false);
    let stats = datagram_stats(&run, DataDirection::Up);
    let link = run.records.iter().rev().find_map(|record| {
        let Record::Link(link) = record else { return None };
        Some(link).filter(|link| link.direction == DataDirection::Up)
    });
    let link = link.unwrap();
    assert_eq!(stats.received + stats.duplicated, link.delivered_packets);
    assert_eq!(stats.lost, stats.sent - stats.received);
    // 2,500 trials: four standard deviations are 1.8 and 1.1 percent points.
    assert!((80..=170).contains(&stats.lost), "{stats:?}");
    assert!((15..=85).contains(&stats.duplicated), "{stats:?}");
    assert!(stats.longest_loss_run >= 2 && stats.out_of_order > 100, "{stats:?}");
    // Two draws from ± 5 ms are 3.3 ms apart on average.
    assert!((2_000_000..4_500_000).contains(&stats.jitter_mean_ns), "{stats:?}");
    let lost: u64 = rows(&run).iter().filter_map(|row| row.lost).sum();
    assert_eq!(lost, stats.lost);
}

#[test]
fn an_outage_is_a_run_of_losses_without_the_unsent_datagrams() {
    let event = |how: &str| {
        format!(
            "[[timeline]]\nat = \"4 s\"\npath = \"wifi\"\nset = \"down\"\nmode = \"{how}\"\n\
             [[timeline]]\nat = \"5 s\"\npath = \"wifi\"\nset = \"up\"\n"
        )
    };
    let silent = simulate(&udp("", &event("silent")), Transport::Mptcp, 1, false);
    let stats = datagram_stats(&silent, DataDirection::Up);
    assert_eq!((stats.sent, stats.unsent), (2_500, 0));
    // One second of datagrams, plus those in flight when the outage began.
    assert!((250..=256).contains(&stats.lost) && stats.longest_loss_run == stats.lost, "{stats:?}");
    assert!(silent.summary().ok, "{}", silent.summary().verdict);
    let carrier = simulate(&udp("", &event("carrier")), Transport::Mptcp, 1, false);
    let stats = datagram_stats(&carrier, DataDirection::Up);
    assert_eq!(stats.sent + stats.unsent, 2_500);
    assert!((249..=251).contains(&stats.unsent) && stats.lost <= 6, "{stats:?}");
}

#[test]
fn excess_datagrams_wait_in_the_queue_and_are_lost() {
    let text = udp("queue = \"50 ms\"", "").source.replace("2 Mbit/s", "20 Mbit/s");
    let run = simulate(&scenario(&text), Transport::Tcp, 1, false);
    let stats = datagram_stats(&run, DataDirection::Up);
    assert_eq!(stats.sent, 25_000);
    // 10 of 20.84 Mbit/s pass.
    assert!((0.51..0.53).contains(&stats.lost_share()), "{stats:?}");
    let delay = stats.delay.unwrap();
    assert!((69_000_000..72_000_000).contains(&delay.p50_ns), "{delay:?}");
}

#[test]
fn oversized_datagrams_are_not_sent() {
    let text = udp("", "").source.replace("1000 B", "1473 B");
    let run = simulate(&scenario(&text), Transport::Tcp, 1, false);
    let flow = &run.summary().flows[0];
    assert!(!run.summary().ok && flow.datagrams.is_none());
    assert!(flow.failure.as_ref().unwrap().contains("`length` can be 1472"), "{flow:?}");
}

#[test]
fn equal_seeds_give_equal_bytes() {
    let lossy = udp("loss = \"5 %\"", "load = \"up\"");
    let simulate_seed = |seed| simulate(&lossy, Transport::Mptcp, seed, false);
    assert_eq!(simulate_seed(3).bytes, simulate_seed(3).bytes);
    assert_ne!(simulate_seed(3).bytes, simulate_seed(4).bytes);
}
