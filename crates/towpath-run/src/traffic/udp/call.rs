//! Receiving end of a call: a jitter buffer of a fixed size, and speech quality by ITU-T G.107.
//!
//! A datagram is played if its transit time exceeds the fastest so far (itself included) by at most
//! the buffer size. A later one counts as lost. The mouth-to-ear delay is therefore the sum of the
//! fastest transit, the buffer, and the time that speech waits for its packet to fill.

use serde::{Deserialize, Serialize};
use towpath_result::metrics::emodel::{Codec, mean_opinion_score, rating};
use towpath_result::{CallStats, DelayBasis};
use towpath_scenario::{Call, Medium};

use super::Slot;

/// Number of nanoseconds in a millisecond.
const NANOS_PER_MS: f64 = 1e6;
/// Duration of speech in a datagram.
const PACKET_NS: u64 = 20_000_000;
/// Look-ahead of the G.729 encoder (G.729 §2.5).
const LOOK_AHEAD_NS: u64 = 5_000_000;

/// Playout of a call, in order of numbers.
#[derive(Debug, Clone)]
pub(super) struct CallPlayout {
    buffer_ns: i64,
    packets_per_frame: u64,
    report: PlayoutReport,
    /// True if all datagrams of the current frame so far were played.
    is_frame_complete: bool,
}

/// Report of the receiver on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlayoutReport {
    /// Datagrams, or complete video frames, that arrived in time.
    pub played: u64,
    /// Datagrams that arrived too late to be played.
    pub late: u64,
    /// Number of gaps in the playout, of any length.
    pub gaps: u64,
    /// True if the last known number was not played.
    pub in_gap: bool,
    /// Shortest transit time, by the clocks of the two ends.
    pub min_transit_ns: Option<i64>,
    /// Method by which that transit time was obtained.
    pub basis: DelayBasis,
}

impl CallPlayout {
    pub(super) fn new(call: Call) -> Self {
        let buffer_ns = i64::try_from(call.jitter_buffer.as_nanos()).unwrap_or(i64::MAX);
        let packets_per_frame = u64::from(call.packets_per_frame.max(1));
        Self {
            buffer_ns,
            packets_per_frame,
            report: PlayoutReport::default(),
            is_frame_complete: true,
        }
    }

    /// Classifies a datagram by its transit time; `previous_min` is the shortest one before it.
    pub(super) fn classify(&self, transit: i64, previous_min: Option<i64>) -> Slot {
        let min_transit = previous_min.map_or(transit, |previous_min| previous_min.min(transit));
        if transit.saturating_sub(min_transit) > self.buffer_ns {
            Slot::Late
        } else {
            Slot::Arrived
        }
    }

    /// Finalises the next number.
    pub(super) fn finalize(&mut self, number: u64, slot: Slot) {
        let is_played = slot == Slot::Arrived;
        self.report.late += u64::from(slot == Slot::Late);
        self.report.gaps += u64::from(!is_played && !self.report.in_gap);
        self.report.in_gap = !is_played;
        let frame_position = number % self.packets_per_frame;
        self.is_frame_complete = is_played && (frame_position == 0 || self.is_frame_complete);
        self.report.played +=
            u64::from(self.is_frame_complete && frame_position + 1 == self.packets_per_frame);
    }

    /// Finalises numbers that never arrived.
    pub(super) fn finalize_skipped(&mut self, first_number: u64) {
        self.finalize(first_number, Slot::Missing);
        // The beginning of the next frame may be among the skipped numbers.
        self.is_frame_complete = false;
    }

    pub(super) fn finish(self, min_transit_ns: Option<i64>, one_clock: bool) -> PlayoutReport {
        let basis = if one_clock { DelayBasis::OneClock } else { DelayBasis::ClockOffset };
        PlayoutReport { min_transit_ns, basis, ..self.report }
    }
}

/// Rates a call of `count` datagrams, of which `received` arrived. The receiver has accounted
/// for the numbers below `accounted`.
pub(super) fn assess(
    call: Call,
    report: &PlayoutReport,
    (count, received, accounted): (u64, u64, u64),
) -> CallStats {
    let packets_per_frame = u64::from(call.packets_per_frame.max(1));
    let planned = count.div_ceil(packets_per_frame);
    let network_ns =
        report.min_transit_ns.map(|min_transit| u64::try_from(min_transit).unwrap_or(0));
    let buffer_ns = u64::try_from(call.jitter_buffer.as_nanos()).unwrap_or(u64::MAX);
    let mut stats = CallStats {
        medium: call.medium.name().to_owned(),
        jitter_buffer_ns: buffer_ns,
        planned,
        played: report.played.min(planned),
        lost: count.saturating_sub(received),
        late: report.late,
        network_ns,
        basis: report.basis,
        burst_ratio: None,
        mouth_to_ear_ns: None,
        rating: None,
        score: None,
    };
    let (codec, look_ahead_ns) = match call.medium {
        Medium::G711 => (Codec::G711_PLC, 0),
        Medium::G729a => (Codec::G729A, LOOK_AHEAD_NS),
        Medium::Video => return stats,
    };
    let unplayed = planned.saturating_sub(stats.played);
    let unplayed_share = unplayed as f64 / planned.max(1) as f64;
    let gaps = report.gaps.saturating_add(u64::from(count > accounted && !report.in_gap));
    // G.107 §7.5: mean length of loss runs, relative to that of random losses.
    let burst_ratio = unplayed as f64 / gaps.max(1) as f64 * (1.0 - unplayed_share);
    stats.burst_ratio = (gaps > 0).then_some(burst_ratio.max(1.0));
    let Some(network_ns) = network_ns.filter(|_| stats.played > 0) else {
        // A delay can only be rated if something was played.
        (stats.rating, stats.score) = (Some(0.0), Some(1.0));
        return stats;
    };
    let delay_ns =
        [buffer_ns, PACKET_NS, look_ahead_ns].into_iter().fold(network_ns, u64::saturating_add);
    let r = rating(codec, unplayed_share, burst_ratio, delay_ns as f64 / NANOS_PER_MS);
    stats.mouth_to_ear_ns = Some(delay_ns);
    (stats.rating, stats.score) = (Some(r.clamp(0.0, 100.0)), Some(mean_opinion_score(r)));
    stats
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use towpath_net::Instant;
    use towpath_scenario::flow_plan::planned_datagrams;
    use towpath_scenario::{DataDirection, Pattern, Scenario, Udp, no_files};

    use super::super::{UdpReceiver, UdpSender, merge_reports};
    use super::*;

    const SAMPLE: Duration = Duration::from_millis(100);
    const TEXT: &str = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
        [[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"call\"\n";

    /// Returns the flows of a call with these keys.
    fn plans(keys: &str) -> Vec<Udp> {
        let scenario = Scenario::parse("the test", &format!("{TEXT}{keys}"), &no_files).unwrap();
        let flows = scenario.flows.iter();
        flows.filter_map(|flow| flow.pattern.udp().copied()).collect()
    }

    fn at_us(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// Simulates a call over a network that returns each datagram's transit time in microseconds;
    /// `None` is a loss.
    fn call_over(plan: &Udp, network: impl Fn(u64) -> Option<u64>) -> CallStats {
        let mut sender = UdpSender::new(*plan, at_us(0), SAMPLE);
        let mut receiver = UdpReceiver::new(plan, at_us(0), SAMPLE);
        let mut arrivals = Vec::new();
        while let Some(due) = sender.next_due() {
            let number = sender.poll(due).unwrap();
            sender.on_sent(due);
            arrivals.extend(
                network(number)
                    .map(|transit_us| (due + Duration::from_micros(transit_us), number, due)),
            );
        }
        arrivals.sort();
        for (arrival, number, due) in arrivals {
            receiver.on_datagram(arrival, (number, due), 172);
        }
        let (sent, receiver_report) = (sender.finish(), receiver.finish(true));
        let direction = (DataDirection::Up, "p");
        let merged = merge_reports(
            plan,
            (0, at_us(0), SAMPLE),
            direction,
            (Some(&sent), Some(&receiver_report)),
        );
        merged.unwrap().0.call.unwrap()
    }

    fn assert_near(value: Option<f64>, expected: f64, tolerance: f64) {
        assert!(
            value.is_some_and(|value| (value - expected).abs() <= tolerance),
            "{value:?} {expected}"
        );
    }

    #[test]
    fn audio_sends_50_datagrams_per_second_and_video_30_frames() {
        let [sound] = plans("")[..] else { panic!() };
        assert_eq!(
            (sound.bytes, sound.rate_bps, sound.direction),
            (172, 68_800, DataDirection::Both)
        );
        assert_eq!((planned_datagrams(&sound), Pattern::Udp(sound).name()), (500, "call"));
        let [g729] = plans("codec = \"g729a\"\nduration = \"1 s\"")[..] else { panic!() };
        assert_eq!((g729.bytes, planned_datagrams(&g729)), (40, 50));
        // 1 Mbit/s are 4,167 bytes a frame: four datagrams.
        let [_, video] = plans("video = \"1 Mbit/s\"\nduration = \"1 s\"")[..] else { panic!() };
        let call = video.call.unwrap();
        assert_eq!(
            (video.bytes, call.packets_per_frame, planned_datagrams(&video)),
            (1_042, 4, 120)
        );
        assert_eq!(Pattern::Udp(video).name(), "call-video");
        let mut sender = UdpSender::new(video, at_us(0), SAMPLE);
        let mut sent = 0;
        while sender.poll(at_us(33_334)).is_some() {
            sender.on_sent(at_us(33_334));
            sent += 1;
        }
        assert_eq!((sent, sender.next_due()), (8, Some(Instant::from_nanos(66_666_666))));
    }

    /// Expects the R of G.107: 93.2 without loss, minus the impairment of 100 ms mouth-to-ear
    /// delay.
    #[test]
    fn a_call_over_a_clean_network_is_as_good_as_its_codec() {
        let [plan] = plans("")[..] else { panic!() };
        let call = call_over(&plan, |_| Some(20_000));
        assert_eq!((call.planned, call.played, call.lost, call.late), (500, 500, 0, 0));
        assert_eq!((call.network_ns, call.mouth_to_ear_ns), (Some(20_000_000), Some(100_000_000)));
        let expected = rating(Codec::G711_PLC, 0.0, 1.0, 100.0);
        assert_near(call.rating, expected, 1e-9);
        assert!((90.0..93.2).contains(&expected) && call.burst_ratio.is_none(), "{call:?}");
        let [plan] = plans("codec = \"g729a\"")[..] else { panic!() };
        let g729 = call_over(&plan, |_| Some(20_000));
        assert_eq!(g729.mouth_to_ear_ns, Some(105_000_000));
        assert_near(g729.rating, expected - 11.0, 0.5);
    }

    #[test]
    fn datagrams_later_than_the_buffer_count_as_lost() {
        let [plan] = plans("jitter-buffer = \"40 ms\"")[..] else { panic!() };
        // Every tenth datagram is 40 ms later than the others, every twentieth slightly more.
        let late_call = call_over(&plan, |number| {
            Some(20_000 + if number % 20 == 19 { 40_001 } else { (number % 10 / 9) * 40_000 })
        });
        assert_eq!((late_call.played, late_call.late, late_call.lost), (475, 25, 0));
        let lossy_call = call_over(&plan, |number| (number % 20 != 19).then_some(20_000));
        assert_eq!((lossy_call.played, lossy_call.late, lossy_call.lost), (475, 0, 25));
        assert_eq!((late_call.rating, late_call.score), (lossy_call.rating, lossy_call.score));
        // G.113: 5 % of random losses cost 95 × 5 / (5 + 25.1) with concealment.
        let clean_call = call_over(&plan, |_| Some(20_000));
        assert_near(
            clean_call.rating.zip(lossy_call.rating).map(|(a, b)| a - b),
            95.0 * 5.0 / 30.1,
            1e-6,
        );
    }

    #[test]
    fn consecutive_losses_are_worse_than_isolated_ones() {
        let [plan] = plans("")[..] else { panic!() };
        let isolated = call_over(&plan, |number| (number % 20 != 7).then_some(20_000));
        let consecutive = call_over(&plan, |number| (number % 100 >= 5).then_some(20_000));
        assert_eq!((isolated.lost, consecutive.lost), (25, 25));
        assert_near(isolated.burst_ratio, 1.0, 0.0);
        assert_near(consecutive.burst_ratio, 5.0 * 0.95, 1e-9);
        assert!(consecutive.score < isolated.score, "{consecutive:?} {isolated:?}");
        // The end is silent: one run of 100 losses.
        let silent_end = call_over(&plan, |number| (number < 400).then_some(20_000));
        assert_eq!((silent_end.played, silent_end.lost), (400, 100));
        assert_near(silent_end.burst_ratio, 100.0 * 0.8, 1e-9);
    }

    #[test]
    fn unsent_datagrams_count_as_lost_in_the_rating() {
        let [plan] = plans("duration = \"1 s\"")[..] else { panic!() };
        let mut sender = UdpSender::new(plan, at_us(0), SAMPLE);
        let mut receiver = UdpReceiver::new(&plan, at_us(0), SAMPLE);
        while let Some(due) = sender.next_due() {
            let number = sender.poll(due).unwrap();
            if (10..20).contains(&number) {
                sender.on_refused();
                continue;
            }
            sender.on_sent(due);
            receiver.on_datagram(due + SAMPLE, (number, due), 172);
        }
        let (sent, receiver_report) = (sender.finish(), receiver.finish(false));
        let flow_direction = (DataDirection::Up, "p");
        let reports = (Some(&sent), Some(&receiver_report));
        let (stats, _) =
            merge_reports(&plan, (0, at_us(0), SAMPLE), flow_direction, reports).unwrap();
        let call = stats.call.unwrap();
        assert_eq!((stats.sent, stats.unsent, stats.lost), (40, 10, 0));
        assert_eq!((call.planned, call.played, call.lost), (50, 40, 10));
        assert_eq!(call.basis, DelayBasis::ClockOffset);
        assert_near(call.burst_ratio, 8.0, 1e-9);
        let silent_call = call_over(&plan, |_| None);
        assert_eq!((silent_call.rating, silent_call.score), (Some(0.0), Some(1.0)));
        assert_eq!(silent_call.mouth_to_ear_ns, None);
    }

    #[test]
    fn a_frame_counts_if_all_of_it_arrives_in_time() {
        let plan = plans("video = \"1 Mbit/s\"")[1];
        // Frame 3 lacks its last part, frame 5 its first, and part of frame 7 is late.
        let call = call_over(&plan, |number| match number {
            15 | 20 => None,
            30 => Some(90_000),
            _ => Some(20_000 + number % 4 * 800),
        });
        assert_eq!((call.planned, call.played, call.lost, call.late), (300, 297, 2, 1));
        assert_eq!((call.score, call.rating, call.mouth_to_ear_ns), (None, None, None));
    }
}
