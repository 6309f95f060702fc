//! Pattern `video`: a player fetches segment after segment while its buffer has room.

use towpath_net::Instant;
use towpath_result::metrics::playout::Playout;
use towpath_scenario::Video;

use super::{Request, RequestGenerator};

/// Video player that requests one segment at a time.
#[derive(Debug)]
pub struct VideoPlayer {
    video: Video,
    playout: Option<Playout>,
    /// Segments requested so far.
    requested_segments: u32,
    /// Time at which the next segment is due; `None` while one is in flight.
    next_due: Option<Instant>,
}

impl VideoPlayer {
    /// Creates a player of `video`.
    pub fn new(video: &Video) -> Self {
        Self { video: video.clone(), playout: None, requested_segments: 0, next_due: None }
    }
}

impl RequestGenerator for VideoPlayer {
    fn begin(&mut self, now: Instant) {
        self.playout.get_or_insert_with(|| Playout::new(self.video.plan(), now));
        self.next_due = Some(now);
    }

    fn poll(&mut self, now: Instant, stream: u32) -> Option<Request> {
        let due = self.next_due(stream).filter(|due| *due <= now)?;
        self.next_due = None;
        self.requested_segments += 1;
        let Video { request_bytes, segment_bytes, .. } = self.video;
        let reply_bytes = segment_bytes;
        Some(Request { due, request_bytes, reply_bytes, ack: false, warm_up: false })
    }

    /// Makes the next segment due as soon as the buffer has room for it.
    fn on_reply(&mut self, now: Instant, _: u32) {
        let Some(playout) = &mut self.playout else { return };
        playout.segment(now);
        let max_buffered = self.video.buffer.saturating_sub(self.video.segment);
        let wait = playout.buffered(now).saturating_sub(max_buffered);
        // A player that has not started, or is stalled, does not drain its buffer.
        self.next_due = Some(now + wait);
    }

    fn next_due(&self, _: u32) -> Option<Instant> {
        self.next_due.filter(|_| self.requested_segments < self.video.segments)
    }

    fn is_done(&self, _: u32) -> bool {
        self.requested_segments >= self.video.segments
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at_secs(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_full_buffer_makes_the_player_wait_until_a_segment_has_been_played() {
        let secs = Duration::from_secs;
        let video = Video {
            segment: secs(2),
            segments: 4,
            segment_bytes: 1_000,
            request_bytes: 100,
            buffer: secs(4),
            startup: secs(2),
            max_overrun: secs(10),
        };
        let mut player = VideoPlayer::new(&video);
        player.begin(at_secs(0));
        assert!(player.poll(at_secs(0), 0).is_some() && player.next_due(0).is_none());
        player.on_reply(at_secs(1), 0);
        assert_eq!(player.poll(at_secs(1), 0).map(|request| request.due), Some(at_secs(1)));
        // Two segments have arrived and neither is fully played: the buffer of 4 s has no room.
        player.on_reply(at_secs(1), 0);
        assert_eq!(player.next_due(0), Some(at_secs(3)));
        assert!(player.poll(at_secs(2), 0).is_none());
        assert_eq!(player.poll(at_secs(5), 0).map(|request| request.due), Some(at_secs(3)));
        player.on_reply(at_secs(6), 0);
        assert!(player.poll(at_secs(6), 0).is_some() && player.is_done(0));
    }
}
