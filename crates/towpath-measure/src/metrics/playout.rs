//! What somebody sees who watches a video whose segments arrive at these times.

use std::time::Duration;

use towpath_net::Instant;

use crate::result::VideoFigures;
use crate::scenario::Video;

/// The play-out buffer of a player.
///
/// `Filling` ─buffer at `startup`, or everything there▶ `Playing` ─buffer empty▶ `Filling` (a stall).
#[derive(Debug, Clone)]
pub struct Playout {
    segment: Duration,
    segments: u32,
    startup: Duration,
    state: State,
    /// What was in the buffer at `at`.
    buffered: Duration,
    at: Instant,
    received: u32,
    figures: VideoFigures,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Since then.
    Filling(Instant),
    Playing,
}

impl Playout {
    /// A player that is told to play at `begin`.
    pub fn new(video: &Video, begin: Instant) -> Self {
        Self {
            segment: video.segment,
            segments: video.segments,
            startup: video.startup,
            state: State::Filling(begin),
            buffered: Duration::ZERO,
            at: begin,
            received: 0,
            figures: VideoFigures::default(),
        }
    }

    /// What the buffer holds.
    pub fn buffered(&self, now: Instant) -> Duration {
        match self.state {
            State::Filling(_) => self.buffered,
            State::Playing => self.buffered.saturating_sub(now.saturating_since(self.at)),
        }
    }

    /// The next segment is there.
    pub fn segment(&mut self, now: Instant) {
        self.play(now);
        self.buffered += self.segment;
        self.received += 1;
        if let State::Filling(since) = self.state
            && (self.buffered >= self.startup || self.received >= self.segments)
        {
            self.state = State::Playing;
            let waited = now.saturating_since(since).as_nanos() as u64;
            if self.figures.startup_ns.is_none() {
                self.figures.startup_ns = Some(waited);
            } else {
                self.figures.rebuffer_ns += waited;
            }
        }
    }

    /// Plays until `now`.
    fn play(&mut self, now: Instant) {
        let empty = self.at + self.buffered;
        self.buffered = self.buffered(now);
        if self.state == State::Playing && now > empty && self.received < self.segments {
            self.state = State::Filling(empty);
            self.figures.stalls += 1;
        }
        self.at = self.at.max(now);
    }

    /// What was seen until `until`, where the watching ended.
    #[must_use]
    pub fn finish(mut self, until: Instant) -> VideoFigures {
        self.play(until);
        if let State::Filling(since) = self.state
            && self.figures.startup_ns.is_some()
        {
            self.figures.rebuffer_ns += until.saturating_since(since).as_nanos() as u64;
        }
        VideoFigures { segments: self.received, ..self.figures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn video(segments: u32) -> Video {
        let second = Duration::from_secs;
        Video {
            segment: second(2),
            segments,
            segment_bytes: 1_000_000,
            request_bytes: 100,
            buffer: second(10),
            startup: second(2),
            patience: second(10),
        }
    }

    #[test]
    fn an_empty_buffer_is_a_stall_until_it_is_filled_again() {
        let mut playout = Playout::new(&video(4), at(1_000));
        playout.segment(at(1_500));
        playout.segment(at(2_000));
        // Played from 1.5 s on: empty at 5.5 s.
        playout.segment(at(8_000));
        assert_eq!(playout.buffered(at(9_000)), Duration::from_secs(1));
        playout.segment(at(9_500));
        let figures = playout.finish(at(60_000));
        assert_eq!(figures.startup_ns, Some(500_000_000));
        assert_eq!((figures.stalls, figures.rebuffer_ns), (1, 2_500_000_000));
        assert_eq!(figures.segments, 4);
    }

    #[test]
    fn the_end_of_the_video_is_no_stall_but_a_video_that_never_ends_is() {
        let mut whole = Playout::new(&video(1), at(0));
        whole.segment(at(300));
        assert_eq!(whole.finish(at(20_000)).stalls, 0);
        let mut part = Playout::new(&video(2), at(0));
        part.segment(at(300));
        let figures = part.finish(at(20_300));
        assert_eq!((figures.stalls, figures.rebuffer_ns), (1, 18_000_000_000));
        let never = Playout::new(&video(2), at(0)).finish(at(9_000));
        assert_eq!((never.startup_ns, never.stalls, never.rebuffer_ns), (None, 0, 0));
    }
}
