//! Patterns `ping`, `reqres`, `interactive`, `onoff` and `trace`: requests on a fixed schedule.
//!
//! The schedule begins when the flow's connections are open. A request that cannot be written when
//! due waits, and the wait is part of its delay. Later requests keep their own due times.

use towpath_net::Instant;
use towpath_scenario::{DataDirection, MessageExchange, PlannedRequest, Schedule};

use super::{Request, RequestGenerator};

/// Requests of one end, on a fixed schedule.
#[derive(Debug)]
pub struct ScheduledRequests {
    schedule: Schedule,
    /// Direction of the requests.
    direction: DataDirection,
    /// Number of leading requests that do not count.
    warm_up: u32,
    begin: Option<Instant>,
    /// Number of requests so far.
    next: u32,
}

impl ScheduledRequests {
    /// Creates the schedule of the end that sends requests in this direction.
    pub fn new(exchange: &MessageExchange, direction: DataDirection) -> Self {
        let (schedule, warm_up) = (exchange.schedule.clone(), exchange.warm_up);
        Self { schedule, direction, warm_up, begin: None, next: 0 }
    }

    fn next_request(&self) -> Option<PlannedRequest> {
        self.schedule.get(self.direction, self.next)
    }
}

impl RequestGenerator for ScheduledRequests {
    fn begin(&mut self, now: Instant) {
        self.begin.get_or_insert(now);
    }

    fn poll(&mut self, now: Instant, stream: u32) -> Option<Request> {
        let due = self.next_due(stream).filter(|due| *due <= now)?;
        let PlannedRequest { request_bytes, reply_bytes, ack, .. } = self.next_request()?;
        let warm_up = self.next < self.warm_up;
        self.next += 1;
        Some(Request { due, request_bytes, reply_bytes, ack, warm_up })
    }

    fn on_reply(&mut self, _: Instant, _: u32) {}

    fn next_due(&self, _: u32) -> Option<Instant> {
        Some(self.begin? + self.next_request()?.at)
    }

    fn is_done(&self, _: u32) -> bool {
        self.next_request().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at_ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn scheduled_requests(schedule: Schedule) -> ScheduledRequests {
        ScheduledRequests {
            schedule,
            direction: DataDirection::Up,
            warm_up: 1,
            begin: None,
            next: 0,
        }
    }

    #[test]
    fn requests_keep_their_due_time_when_polled_late() {
        let (request_bytes, reply_bytes) = (100, 10);
        let period = Duration::from_millis(100);
        let schedule = Schedule::Every { period, count: 5, request_bytes, reply_bytes, ack: true };
        let mut requests = scheduled_requests(schedule);
        assert_eq!(requests.poll(at_ms(9_000), 0), None);
        requests.begin(at_ms(50));
        let first = requests.poll(at_ms(50), 0).unwrap();
        assert!(first.due == at_ms(50) && first.warm_up && first.ack);
        assert_eq!(requests.poll(at_ms(60), 0), None);
        // The stream accepted nothing for 300 ms.
        let late: Vec<_> = std::iter::from_fn(|| requests.poll(at_ms(360), 0)).collect();
        assert_eq!(
            late.iter().map(|request| request.due).collect::<Vec<_>>(),
            [at_ms(150), at_ms(250), at_ms(350)]
        );
        assert!(late.iter().all(|request| !request.warm_up));
        assert!(requests.poll(at_ms(500), 0).is_some() && requests.is_done(0));
    }

    #[test]
    fn bursts_leave_out_the_pauses() {
        let millis = Duration::from_millis;
        let bursts = Schedule::Bursts {
            period: millis(300),
            on: millis(2_700),
            off: millis(3_000),
            duration: millis(6_100),
            request_bytes: 2_500,
            reply_bytes: 750,
        };
        let requests = (0..).map_while(|index| bursts.get(DataDirection::Up, index));
        let due_ms: Vec<_> = requests.map(|request| request.at.as_millis()).collect();
        assert_eq!(due_ms, [0, 300, 600, 900, 1_200, 1_500, 1_800, 2_100, 2_400, 5_700, 6_000]);
    }
}
