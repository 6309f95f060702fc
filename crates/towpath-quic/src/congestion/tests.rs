//! The controls, driven as the library drives them.

use super::*;

const MTU: u16 = 1_200;

/// A path that sends a window and has it acknowledged, round after round.
struct Path {
    handle: PathControllerHandle,
    rtt: Duration,
    next_number: u64,
    clock: TimeConverter,
}

impl Path {
    fn new(factory: &Arc<CongestionFactory>, rtt: Duration) -> Self {
        let clock = factory.clock;
        let controller = Arc::clone(factory).build(clock.to_std(Instant::ZERO), MTU);
        Self { handle: *controller.into_any().downcast().unwrap(), rtt, next_number: 0, clock }
    }

    fn window(&self) -> f64 {
        self.handle.window() as f64 / f64::from(MTU)
    }

    /// Sends a window at `sent`; all of it is acknowledged after a round-trip time.
    fn run_round(&mut self, sent: Instant) {
        let (sent_at, acked_at) = (self.clock.to_std(sent), self.clock.to_std(sent + self.rtt));
        let packets = self.handle.window() / u64::from(MTU);
        let numbers = self.next_number..self.next_number + packets;
        self.next_number = numbers.end;
        for pn in numbers.clone() {
            self.handle.on_packet_sent(sent_at, MTU, pn);
        }
        for pn in numbers.clone() {
            let rtt = (self.rtt, self.rtt);
            self.handle
                .with_path(|member| member.on_ack(acked_at, (sent_at, pn), u64::from(MTU), rtt));
            let in_flight = (numbers.end - 1 - pn) * u64::from(MTU);
            self.handle.on_end_acks(acked_at, in_flight, false, Some(pn));
        }
    }

    fn lose(&mut self, sent: Instant) {
        let (sent_at, now) = (self.clock.to_std(sent), self.clock.to_std(sent + self.rtt));
        self.handle.on_packet_sent(sent_at, MTU, self.next_number);
        self.handle.on_packet_lost(MTU, self.next_number, now);
        self.handle.on_congestion_event(
            now,
            sent_at,
            false,
            false,
            u64::from(MTU),
            self.next_number,
        );
        self.next_number += 1;
    }
}

fn new_factory(name: &str) -> Arc<CongestionFactory> {
    Arc::new(CongestionFactory::new(name, TimeConverter::new()).unwrap())
}

const RTT: Duration = Duration::from_millis(50);

/// Returns the packets by which each of two equal paths grows per round trip, long after a loss.
fn growth_per_round(name: &str, abandon_second: bool) -> f64 {
    let factory = new_factory(name);
    let mut paths = [Path::new(&factory, RTT), Path::new(&factory, RTT)];
    let mut now = Instant::ZERO;
    for _ in 0..4 {
        for path in &mut paths {
            path.run_round(now);
        }
        now += RTT * 2;
    }
    for path in &mut paths {
        path.lose(now);
    }
    now += RTT * 2;
    if abandon_second {
        paths[1].handle.abandon();
    }
    let window_before = paths[0].window();
    for _ in 0..40 {
        paths[0].run_round(now);
        if !abandon_second {
            paths[1].run_round(now);
        }
        now += RTT * 2;
    }
    (paths[0].window() - window_before) / 40.0
}

#[test]
fn lia_couples_the_paths_of_a_connection() {
    // RFC 6356 §3: two equal paths grow by a quarter of a packet each, Reno's by a whole one.
    let (reno, lia) = (growth_per_round("reno", false), growth_per_round("lia", false));
    assert!((0.9..1.1).contains(&reno), "reno grows by {reno}");
    assert!((0.2..0.3).contains(&lia), "lia grows by {lia}");
}

#[test]
fn a_path_that_has_left_does_not_count_for_the_others() {
    let growth = growth_per_round("lia", true);
    assert!((0.9..1.1).contains(&growth), "lia grows by {growth}");
}

#[test]
fn connections_are_not_coupled_with_each_other() {
    let (first, second) = (new_factory("lia"), new_factory("lia"));
    let mut path = Path::new(&first, RTT);
    let mut other_path = Path::new(&second, RTT);
    let mut now = Instant::ZERO;
    path.lose(now);
    other_path.lose(now);
    now += RTT * 2;
    let window_before = path.window();
    for _ in 0..20 {
        path.run_round(now);
        other_path.run_round(now);
        now += RTT * 2;
    }
    let grown = (path.window() - window_before) / 20.0;
    assert!((0.9..1.1).contains(&grown), "lia grows by {grown}");
}

#[test]
fn losses_of_one_window_reduce_it_once() {
    let factory = new_factory("reno");
    let mut path = Path::new(&factory, RTT);
    path.run_round(Instant::ZERO);
    let window_before = path.window();
    let sent = Instant::ZERO + RTT * 2;
    path.lose(sent);
    path.lose(sent);
    assert!(
        (path.window() - window_before / 2.0).abs() < 1.0,
        "{window_before}, then {}",
        path.window()
    );
}

#[test]
fn the_oldest_unacked_packet_is_known_without_abandoned_probes() {
    let factory = new_factory("cubic");
    let mut path = Path::new(&factory, RTT);
    let clock = factory.clock;
    path.handle.on_packet_sent(clock.to_std(Instant::ZERO), 1_400, 1_000);
    assert_eq!(path.handle.path_metrics().oldest_unacked_sent_at, Some(Instant::ZERO));
    path.run_round(Instant::ZERO + RTT);
    assert_eq!(path.handle.path_metrics().oldest_unacked_sent_at, Some(Instant::ZERO));
    path.run_round(Instant::ZERO + RTT * 10);
    assert_eq!(path.handle.path_metrics().oldest_unacked_sent_at, None);
}

#[test]
fn a_path_slot_is_free_after_its_last_controller_is_dropped() {
    let factory = new_factory("olia");
    let path = Path::new(&factory, RTT);
    let copy = path.handle.clone_box();
    assert_eq!(
        PathControllerHandle::of(&*copy).unwrap().path_metrics(),
        path.handle.path_metrics()
    );
    drop(path);
    assert!(factory.group.lock()[0].is_some());
    drop(copy);
    assert!(factory.group.lock()[0].is_none());
}

#[test]
fn every_name_is_known_and_unknown_names_list_the_choices() {
    for (name, _) in names() {
        assert!(CongestionFactory::new(name, TimeConverter::new()).is_ok(), "{name}");
    }
    let error = CongestionFactory::new("fast", TimeConverter::new()).unwrap_err().to_string();
    assert!(error.contains("`fast`") && error.contains("lia") && error.contains("newreno"));
}
