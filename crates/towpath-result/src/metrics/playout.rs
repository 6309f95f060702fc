//! Play-out buffer of a video player, driven by the arrival times of segments.

use std::time::Duration;

use towpath_net::Instant;
use towpath_scenario::VideoPlan;

use crate::VideoStats;

/// Play-out buffer of a video player.
///
/// `Filling` ─buffer reaches `startup`, or video complete▶ `Playing` ─buffer empty▶ `Filling` (a
/// stall).
#[derive(Debug, Clone)]
pub struct Playout {
    plan: VideoPlan,
    state: PlayoutState,
    /// Playing time in the buffer at `updated_at`.
    buffered: Duration,
    updated_at: Instant,
    received: u32,
    stats: VideoStats,
    rebuffer_intervals: Vec<RebufferInterval>,
}

/// Time without playback; the first is the start-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebufferInterval {
    /// Time at which playback stopped, or was requested.
    pub from: Instant,
    /// Time at which playback starts or resumes.
    pub until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlayoutState {
    /// Waiting for the buffer to fill, since this time.
    Filling(Instant),
    Playing,
}

impl Playout {
    /// Creates a player that is started at `begin`.
    pub fn new(plan: VideoPlan, begin: Instant) -> Self {
        Self {
            plan,
            state: PlayoutState::Filling(begin),
            buffered: Duration::ZERO,
            updated_at: begin,
            received: 0,
            stats: VideoStats::default(),
            rebuffer_intervals: Vec::new(),
        }
    }

    /// Returns the playing time in the buffer.
    pub fn buffered(&self, now: Instant) -> Duration {
        match self.state {
            PlayoutState::Filling(_) => self.buffered,
            PlayoutState::Playing => {
                self.buffered.saturating_sub(now.saturating_since(self.updated_at))
            }
        }
    }

    /// Adds the next segment, which arrived at `now`.
    pub fn segment(&mut self, now: Instant) {
        self.advance_to(now);
        let segment = Duration::from_nanos(self.plan.segment_ns);
        self.buffered = self.buffered.saturating_add(segment);
        self.received += 1;
        if let PlayoutState::Filling(since) = self.state
            && (self.buffered >= Duration::from_nanos(self.plan.startup_ns)
                || self.received >= self.plan.segments)
        {
            self.state = PlayoutState::Playing;
            self.rebuffer_intervals.push(RebufferInterval { from: since, until: now });
            let waited = now.saturating_since(since).as_nanos() as u64;
            if self.stats.startup_ns.is_none() {
                self.stats.startup_ns = Some(waited);
            } else {
                self.stats.rebuffer_ns = self.stats.rebuffer_ns.saturating_add(waited);
            }
        }
    }

    /// Advances playback to `now`, and detects a stall.
    fn advance_to(&mut self, now: Instant) {
        let empty_at = self.updated_at + self.buffered;
        self.buffered = self.buffered(now);
        if self.state == PlayoutState::Playing
            && now > empty_at
            && self.received < self.plan.segments
        {
            self.state = PlayoutState::Filling(empty_at);
            self.stats.stalls += 1;
        }
        self.updated_at = self.updated_at.max(now);
    }

    /// Returns the playback statistics, for a viewer who stops at `until`.
    #[must_use]
    pub fn finish(self, until: Instant) -> VideoStats {
        self.finish_with_waits(until).0
    }

    /// Returns the playback statistics and the times without playback.
    #[must_use]
    pub fn finish_with_waits(mut self, until: Instant) -> (VideoStats, Vec<RebufferInterval>) {
        self.advance_to(until);
        if let PlayoutState::Filling(since) = self.state {
            self.rebuffer_intervals.push(RebufferInterval { from: since, until });
            if self.stats.startup_ns.is_some() {
                let waited = until.saturating_since(since).as_nanos() as u64;
                self.stats.rebuffer_ns = self.stats.rebuffer_ns.saturating_add(waited);
            }
        }
        (VideoStats { segments: self.received, ..self.stats }, self.rebuffer_intervals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_millis(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn video(segments: u32) -> VideoPlan {
        VideoPlan { segment_ns: 2_000_000_000, segments, startup_ns: 2_000_000_000 }
    }

    #[test]
    fn an_empty_buffer_is_a_stall_until_it_is_filled_again() {
        let mut playout = Playout::new(video(4), at_millis(1_000));
        playout.segment(at_millis(1_500));
        playout.segment(at_millis(2_000));
        // Playing from 1.5 s on, the buffer is empty at 5.5 s.
        playout.segment(at_millis(8_000));
        assert_eq!(playout.buffered(at_millis(9_000)), Duration::from_secs(1));
        playout.segment(at_millis(9_500));
        let (stats, waits) = playout.finish_with_waits(at_millis(60_000));
        let wait =
            |from, until| RebufferInterval { from: at_millis(from), until: at_millis(until) };
        assert_eq!(waits, [wait(1_000, 1_500), wait(5_500, 8_000)]);
        assert_eq!(stats.startup_ns, Some(500_000_000));
        assert_eq!((stats.stalls, stats.rebuffer_ns), (1, 2_500_000_000));
        assert_eq!(stats.segments, 4);
    }

    #[test]
    fn the_end_of_a_video_is_not_a_stall_but_a_stuck_video_is() {
        let mut complete = Playout::new(video(1), at_millis(0));
        complete.segment(at_millis(300));
        assert_eq!(complete.finish(at_millis(20_000)).stalls, 0);
        let mut incomplete = Playout::new(video(2), at_millis(0));
        incomplete.segment(at_millis(300));
        let stats = incomplete.finish(at_millis(20_300));
        assert_eq!((stats.stalls, stats.rebuffer_ns), (1, 18_000_000_000));
        let empty = Playout::new(video(2), at_millis(0)).finish(at_millis(9_000));
        assert_eq!((empty.startup_ns, empty.stalls, empty.rebuffer_ns), (None, 0, 0));
    }
}
