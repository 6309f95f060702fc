//! The controls, driven as the library drives them.

use super::*;

const MTU: u16 = 1_200;

/// A path that sends a window and has it acknowledged, round after round.
struct Path {
    handle: PathControllerHandle,
    rtt: Duration,
    next: u64,
    clock: TimeConverter,
}

impl Path {
    fn new(factory: &Arc<CongestionFactory>, rtt: Duration) -> Self {
        let clock = factory.clock;
        let built = Arc::clone(factory).build(clock.to_std(Instant::ZERO), MTU);
        Self { handle: *built.into_any().downcast().unwrap(), rtt, next: 0, clock }
    }

    fn window(&self) -> f64 {
        self.handle.window() as f64 / f64::from(MTU)
    }

    /// Sends a window at `sent`; all of it is acknowledged after a round-trip time.
    fn round(&mut self, sent: Instant) {
        let (at, acked) = (self.clock.to_std(sent), self.clock.to_std(sent + self.rtt));
        let packets = self.handle.window() / u64::from(MTU);
        let all = self.next..self.next + packets;
        self.next = all.end;
        for pn in all.clone() {
            self.handle.on_packet_sent(at, MTU, pn);
        }
        for pn in all.clone() {
            let rtt = (self.rtt, self.rtt);
            self.handle.with(|member| member.on_ack(acked, (at, pn), u64::from(MTU), rtt));
            let left = (all.end - 1 - pn) * u64::from(MTU);
            self.handle.on_end_acks(acked, left, false, Some(pn));
        }
    }

    fn lose(&mut self, sent: Instant) {
        let (at, now) = (self.clock.to_std(sent), self.clock.to_std(sent + self.rtt));
        self.handle.on_packet_sent(at, MTU, self.next);
        self.handle.on_packet_lost(MTU, self.next, now);
        self.handle.on_congestion_event(now, at, false, false, u64::from(MTU), self.next);
        self.next += 1;
    }
}

fn factory(name: &str) -> Arc<CongestionFactory> {
    Arc::new(CongestionFactory::new(name, TimeConverter::new()).unwrap())
}

const RTT: Duration = Duration::from_millis(50);

/// Returns the packets by which each of two equal paths grows per round trip, long after a loss.
fn growth(name: &str, one_leaves: bool) -> f64 {
    let factory = factory(name);
    let mut paths = [Path::new(&factory, RTT), Path::new(&factory, RTT)];
    let mut now = Instant::ZERO;
    for _ in 0..4 {
        for path in &mut paths {
            path.round(now);
        }
        now += RTT * 2;
    }
    for path in &mut paths {
        path.lose(now);
    }
    now += RTT * 2;
    if one_leaves {
        paths[1].handle.abandon();
    }
    let before = paths[0].window();
    for _ in 0..40 {
        paths[0].round(now);
        if !one_leaves {
            paths[1].round(now);
        }
        now += RTT * 2;
    }
    (paths[0].window() - before) / 40.0
}

#[test]
fn lia_couples_the_paths_of_a_connection() {
    // RFC 6356 §3: two equal paths grow by a quarter of a packet each, Reno's by a whole one.
    let (reno, lia) = (growth("reno", false), growth("lia", false));
    assert!((0.9..1.1).contains(&reno), "reno grows by {reno}");
    assert!((0.2..0.3).contains(&lia), "lia grows by {lia}");
}

#[test]
fn a_path_that_has_left_does_not_count_for_the_others() {
    let alone = growth("lia", true);
    assert!((0.9..1.1).contains(&alone), "lia grows by {alone}");
}

#[test]
fn connections_are_not_coupled_with_each_other() {
    let (one, other) = (factory("lia"), factory("lia"));
    let mut path = Path::new(&one, RTT);
    let mut foreign = Path::new(&other, RTT);
    let mut now = Instant::ZERO;
    path.lose(now);
    foreign.lose(now);
    now += RTT * 2;
    let before = path.window();
    for _ in 0..20 {
        path.round(now);
        foreign.round(now);
        now += RTT * 2;
    }
    let grown = (path.window() - before) / 20.0;
    assert!((0.9..1.1).contains(&grown), "lia grows by {grown}");
}

#[test]
fn losses_of_one_window_reduce_it_once() {
    let factory = factory("reno");
    let mut path = Path::new(&factory, RTT);
    path.round(Instant::ZERO);
    let before = path.window();
    let sent = Instant::ZERO + RTT * 2;
    path.lose(sent);
    path.lose(sent);
    assert!((path.window() - before / 2.0).abs() < 1.0, "{before}, then {}", path.window());
}

#[test]
fn the_oldest_unacked_packet_is_known_without_abandoned_probes() {
    let factory = factory("cubic");
    let mut path = Path::new(&factory, RTT);
    let clock = factory.clock;
    path.handle.on_packet_sent(clock.to_std(Instant::ZERO), 1_400, 1_000);
    assert_eq!(path.handle.path_metrics().waiting_since, Some(Instant::ZERO));
    path.round(Instant::ZERO + RTT);
    assert_eq!(path.handle.path_metrics().waiting_since, Some(Instant::ZERO));
    path.round(Instant::ZERO + RTT * 10);
    assert_eq!(path.handle.path_metrics().waiting_since, None);
}

#[test]
fn a_path_slot_is_free_after_its_last_controller_is_dropped() {
    let factory = factory("olia");
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
