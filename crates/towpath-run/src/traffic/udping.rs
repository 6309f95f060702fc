//! Datagrams over one path that the other end echoes at once.
//!
//! As with messages, nothing shifts the schedule. A request that cannot be sent when due still
//! counts, as one without a reply. Nothing is retransmitted.

use towpath_net::Instant;
use towpath_result::Probe;
use towpath_scenario::Udping;
use towpath_scenario::flow_plan::requests_in;

/// Sender of echo requests on one path.
#[derive(Debug, Clone)]
pub struct Pinger {
    plan: Udping,
    start: Instant,
    /// Total number of requests in the schedule.
    count: u32,
    requests: Vec<SentProbe>,
    /// Number of leading requests that have a reply or have timed out.
    finished_requests: usize,
}

/// Echo request of the schedule, sent or skipped.
#[derive(Debug, Clone, Copy)]
struct SentProbe {
    due: Instant,
    sent: Option<Instant>,
    replied: Option<Instant>,
}

impl Pinger {
    /// Creates a pinger that follows `plan` from `start` on.
    pub fn new(plan: Udping, start: Instant) -> Self {
        let count = requests_in(plan.duration, plan.period);
        Self { plan, start, count, requests: Vec::new(), finished_requests: 0 }
    }

    /// Stops new requests; replies to earlier ones are still awaited.
    pub fn stop(&mut self) {
        self.count = self.next_number();
    }

    fn due_time(&self, number: u32) -> Instant {
        self.start + self.plan.period.saturating_mul(number)
    }

    fn next_number(&self) -> u32 {
        u32::try_from(self.requests.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of a request to be sent now, once.
    pub fn poll(&mut self, now: Instant) -> Option<u32> {
        let number = self.next_number();
        let due = self.due_time(number);
        if number >= self.count || due > now {
            return None;
        }
        self.requests.push(SentProbe { due, sent: None, replied: None });
        Some(number)
    }

    /// Records that the system accepted the request.
    pub fn on_sent(&mut self, now: Instant, number: u32) {
        if let Some(request) = self.requests.get_mut(number as usize) {
            request.sent.get_or_insert(now);
        }
    }

    /// Records a reply. A late or duplicate reply is ignored.
    pub fn on_reply(&mut self, now: Instant, number: u32) {
        let timeout = self.plan.reply_timeout;
        if let Some(probe) = self.requests.get_mut(number as usize)
            && now <= probe.due + timeout
        {
            probe.replied.get_or_insert(now);
        }
        while let Some(probe) = self.requests.get(self.finished_requests)
            && (probe.replied.is_some() || now > probe.due + timeout)
        {
            self.finished_requests += 1;
        }
    }

    /// Returns the time at which the next request is due. After the last one, returns the time at
    /// which the last missing reply times out.
    pub fn next_due(&self) -> Option<Instant> {
        if self.next_number() < self.count {
            return Some(self.due_time(self.next_number()));
        }
        let unfinished = self.requests.iter().skip(self.finished_requests).rev();
        let last_unanswered = { unfinished }.find(|request| request.replied.is_none())?;
        Some(last_unanswered.due + self.plan.reply_timeout)
    }

    /// Returns true if all requests were made, and each has a reply or has timed out.
    pub fn is_over(&self, now: Instant) -> bool {
        self.next_number() >= self.count && self.next_due().is_none_or(|due| due <= now)
    }

    /// Returns the outcome of every request. After an early end, requests that could still get a
    /// reply are omitted.
    pub fn finish(&self, now: Instant, flow: u32, path: &str) -> Vec<Probe> {
        let numbered = (0_u32..).zip(&self.requests);
        let finished = numbered.filter(|(_, probe)| {
            probe.replied.is_some() || probe.due + self.plan.reply_timeout <= now
        });
        finished
            .map(|(number, SentProbe { due, sent, replied })| Probe {
                flow,
                path: path.to_owned(),
                number,
                due_ns: due.as_nanos(),
                sent_ns: sent.map(Instant::as_nanos),
                answered_ns: replied.map(Instant::as_nanos),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at_ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn plan() -> Udping {
        let millis = Duration::from_millis;
        Udping { period: millis(100), duration: millis(500), reply_timeout: millis(1_000) }
    }

    #[test]
    fn requests_keep_their_due_times_when_sent_late() {
        let mut pinger = Pinger::new(plan(), at_ms(1_000));
        assert_eq!((pinger.poll(at_ms(999)), pinger.next_due()), (None, Some(at_ms(1_000))));
        assert_eq!(pinger.poll(at_ms(1_000)), Some(0));
        pinger.on_sent(at_ms(1_001), 0);
        pinger.on_reply(at_ms(1_030), 0);
        // The pinger was not polled for 250 ms: overdue requests are sent late, with their original
        // due times.
        let late: Vec<_> = std::iter::from_fn(|| pinger.poll(at_ms(1_350))).collect();
        assert_eq!(late, [1, 2, 3]);
        assert_eq!((pinger.poll(at_ms(1_400)), pinger.poll(at_ms(9_000))), (Some(4), None));
        assert_eq!(pinger.next_due(), Some(at_ms(2_400)));
        assert!(!pinger.is_over(at_ms(2_399)) && pinger.is_over(at_ms(2_400)));
        pinger.on_sent(at_ms(1_400), 4);
        // The first reply is too late, the second is not.
        pinger.on_reply(at_ms(2_101), 1);
        pinger.on_reply(at_ms(2_400), 4);
        pinger.on_reply(at_ms(2_450), 4);
        pinger.on_reply(at_ms(2_450), 77);
        let probes = pinger.finish(at_ms(2_400), 7, "wifi");
        let outcomes: Vec<_> =
            probes.iter().map(|p| (p.due_ns / 1_000_000, p.answered_ns.is_some())).collect();
        let expected =
            [(1_000, true), (1_100, false), (1_200, false), (1_300, false), (1_400, true)];
        assert_eq!(outcomes, expected);
        assert_eq!(probes[4].answered_ns, Some(at_ms(2_400).as_nanos()));
        assert_eq!((probes[1].sent_ns, probes[4].sent_ns), (None, Some(at_ms(1_400).as_nanos())));
    }

    #[test]
    fn a_stopped_prober_waits_for_outstanding_replies() {
        let mut pinger = Pinger::new(plan(), at_ms(0));
        while pinger.poll(at_ms(100)).is_some() {}
        pinger.stop();
        assert_eq!((pinger.poll(at_ms(400)), pinger.next_due()), (None, Some(at_ms(1_100))));
        pinger.on_reply(at_ms(450), 1);
        assert!(!pinger.is_over(at_ms(999)) && pinger.is_over(at_ms(1_000)));
        assert_eq!(pinger.finish(at_ms(1_000), 0, "wifi").len(), 2);
    }

    #[test]
    fn after_an_early_end_only_known_outcomes_count() {
        let mut pinger = Pinger::new(plan(), at_ms(0));
        while pinger.poll(at_ms(300)).is_some() {}
        pinger.on_reply(at_ms(310), 2);
        let numbers = |now| -> Vec<u32> {
            pinger.finish(at_ms(now), 0, "wifi").iter().map(|probe| probe.number).collect()
        };
        assert_eq!(numbers(400), [2]);
        assert_eq!(numbers(1_100), [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn every_probe_is_sent_once_for_any_polling_times(
            polls in prop::collection::vec((0_u64..2_000, any::<Option<u8>>()), 1..60),
        ) {
            let mut polls = polls;
            polls.sort_unstable_by_key(|(now, _)| *now);
            let mut pinger = Pinger::new(plan(), at_ms(0));
            let mut numbers = Vec::new();
            for (now, reply_number) in polls {
                while let Some(number) = pinger.poll(at_ms(now)) {
                    numbers.push(number);
                    pinger.on_sent(at_ms(now), number);
                }
                if let Some(reply_number) = reply_number {
                    pinger.on_reply(at_ms(now), u32::from(reply_number));
                }
            }
            while let Some(number) = pinger.poll(at_ms(5_000)) {
                numbers.push(number);
            }
            prop_assert_eq!(numbers, [0, 1, 2, 3, 4]);
            prop_assert!(pinger.is_over(at_ms(5_000)));
            let probes = pinger.finish(at_ms(5_000), 0, "wifi");
            prop_assert_eq!(probes.len(), 5);
            for probe in probes {
                prop_assert!(probe.answered_ns.is_none_or(|answered| answered <= probe.due_ns + 1_000_000_000));
            }
        }
    }
}
