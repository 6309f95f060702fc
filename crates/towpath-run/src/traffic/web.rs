//! Pattern `web`: a page, then all its objects, over several connections.

use towpath_net::Instant;
use towpath_scenario::Web;

use super::{Request, RequestGenerator};

/// Browser that loads one page with its objects.
#[derive(Debug)]
pub struct Browser {
    web: Web,
    /// Time at which the page, or later its objects, became due.
    due_at: Option<Instant>,
    page: PageState,
    /// Objects not requested yet.
    remaining_objects: u32,
    /// True for each connection that waits for a reply.
    busy: Vec<bool>,
}

/// Progress of the page itself, without its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageState {
    NotRequested,
    Requested,
    Loaded,
}

impl Browser {
    /// Creates a browser that loads `web`.
    pub fn new(web: &Web) -> Self {
        Self {
            due_at: None,
            page: PageState::NotRequested,
            remaining_objects: web.objects,
            busy: vec![false; web.connections as usize],
            web: web.clone(),
        }
    }

    fn is_busy(&self, stream: u32) -> bool {
        self.busy.get(stream as usize).is_none_or(|busy| *busy)
    }
}

impl RequestGenerator for Browser {
    fn begin(&mut self, now: Instant) {
        self.due_at.get_or_insert(now);
    }

    /// Returns the next request. Every object is due when the page has arrived, so the wait for a
    /// free connection is part of its delay.
    fn poll(&mut self, now: Instant, stream: u32) -> Option<Request> {
        let due = self.next_due(stream).filter(|due| *due <= now)?;
        let reply_bytes = if self.page == PageState::NotRequested {
            self.page = PageState::Requested;
            self.web.page_bytes
        } else {
            self.remaining_objects = self.remaining_objects.saturating_sub(1);
            self.web.object_bytes
        };
        if let Some(busy) = self.busy.get_mut(stream as usize) {
            *busy = true;
        }
        let request_bytes = self.web.request_bytes;
        Some(Request { due, request_bytes, reply_bytes, ack: false, warm_up: false })
    }

    fn on_reply(&mut self, now: Instant, stream: u32) {
        if let Some(busy) = self.busy.get_mut(stream as usize) {
            *busy = false;
        }
        if self.page == PageState::Requested {
            self.page = PageState::Loaded;
            self.due_at = Some(now);
        }
    }

    fn next_due(&self, stream: u32) -> Option<Instant> {
        let has_request = match self.page {
            PageState::NotRequested => stream == 0,
            PageState::Requested => false,
            PageState::Loaded => self.remaining_objects > 0,
        };
        self.due_at.filter(|_| has_request && !self.is_busy(stream))
    }

    fn is_done(&self, _: u32) -> bool {
        self.page == PageState::Loaded && self.remaining_objects == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at_ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn objects_are_due_after_the_page_and_use_any_free_connection() {
        let web = Web {
            page_bytes: 30_000,
            objects: 3,
            object_bytes: 9_000,
            request_bytes: 400,
            connections: 2,
            duration: Duration::from_secs(30),
        };
        let mut browser = Browser::new(&web);
        browser.begin(at_ms(10));
        assert_eq!(browser.poll(at_ms(10), 1), None);
        assert_eq!(browser.poll(at_ms(10), 0).unwrap().reply_bytes, 30_000);
        assert!(browser.next_due(0).is_none() && !browser.is_done(0));
        browser.on_reply(at_ms(60), 0);
        let requests = [0, 1].map(|stream| browser.poll(at_ms(60), stream).unwrap());
        assert!(
            requests.iter().all(|request| request.due == at_ms(60) && request.reply_bytes == 9_000)
        );
        assert!(browser.next_due(0).is_none() && browser.next_due(1).is_none());
        browser.on_reply(at_ms(90), 1);
        assert_eq!(browser.poll(at_ms(90), 1).unwrap().due, at_ms(60));
        assert!(browser.is_done(0) && browser.poll(at_ms(95), 0).is_none());
    }
}
