//! Pattern `call`: an audio flow, and an optional video flow.

use std::time::Duration;

use super::MAX_RUN;
use super::pattern::{DEFAULT_DURATION, DEFAULT_LATE_TIMEOUT, direction, duration_or};
use crate::flow_plan::MIN_DATAGRAM_BYTES;
use crate::model::DataDirection;
use crate::pattern::{Call, Medium, Pattern, Udp};
use crate::section::Section;

/// Audio datagrams per second (20 ms each), and the RTP header size (RFC 3550 §5.1).
const PACKETS_PER_SECOND: u64 = 50;
const RTP_HEADER_BYTES: u32 = 12;
/// Video frames per second, and the maximum part of a frame per datagram.
const FRAMES_PER_SECOND: u64 = 30;
const MAX_FRAME_PART_BYTES: u32 = 1_200;
const VIDEO_BPS_RANGE: std::ops::RangeInclusive<u64> = 100_000..=100_000_000;
const DEFAULT_JITTER_BUFFER: Duration = Duration::from_millis(60);
const MAX_JITTER_BUFFER: Duration = Duration::from_secs(10);

/// Parses the audio flow, 20 ms per datagram; the video becomes a separate flow.
pub(super) fn call(section: &mut Section<'_>) -> Option<Pattern> {
    let duration = duration_or(section.take("duration"), DEFAULT_DURATION);
    let codecs = [Medium::G711, Medium::G729a].map(|medium| (medium.name(), medium));
    let medium = section.take("codec").map_or(Some(Medium::G711), |v| v.word(&codecs));
    let jitter_buffer = section.take("jitter-buffer");
    let jitter_buffer =
        jitter_buffer.map_or(Some(DEFAULT_JITTER_BUFFER), |v| v.duration(MAX_JITTER_BUFFER));
    let video_bps = section.take("video").map_or(Some(None), |value| {
        let rate = value.rate()?.as_bps();
        if !VIDEO_BPS_RANGE.contains(&rate) {
            value.fail("no call has such a picture", "expected `100 kbit/s` to `100 Mbit/s`");
            return None;
        }
        Some(Some(rate))
    });
    let direction = direction(section, DataDirection::Both);
    let late_timeout = section.take("reply-timeout");
    let late_timeout = late_timeout.map_or(Some(DEFAULT_LATE_TIMEOUT), |v| v.duration(MAX_RUN));
    let speech_bytes = match medium? {
        Medium::G711 | Medium::Video => 160,
        Medium::G729a => 20,
    };
    let bytes = (speech_bytes + RTP_HEADER_BYTES).max(MIN_DATAGRAM_BYTES);
    let (direction, duration, late_timeout) = (direction?, duration?, late_timeout?);
    let (medium, jitter_buffer, video_bps) = (medium?, jitter_buffer?, video_bps?);
    let rate_bps = u64::from(bytes) * 8 * PACKETS_PER_SECOND;
    let call = Some(Call { medium, packets_per_frame: 1, jitter_buffer, video_bps });
    Some(Pattern::Udp(Udp {
        rate_bps,
        bytes,
        direction,
        duration,
        late_timeout,
        is_bound: false,
        call,
    }))
}

/// Returns the video flow of a call: frames at a constant rate, each sent as a burst of datagrams.
pub(super) fn companion_video(audio: &Udp) -> Option<Udp> {
    let call = audio.call?;
    let frame_bytes = call.video_bps?.div_ceil(8 * FRAMES_PER_SECOND).max(1);
    let packets_per_frame = frame_bytes.div_ceil(u64::from(MAX_FRAME_PART_BYTES));
    let bytes =
        u32::try_from(frame_bytes.div_ceil(packets_per_frame)).ok()?.max(MIN_DATAGRAM_BYTES);
    let rate_bps = u64::from(bytes) * packets_per_frame * 8 * FRAMES_PER_SECOND;
    let packets_per_frame = u32::try_from(packets_per_frame).ok()?;
    let call = Some(Call { medium: Medium::Video, packets_per_frame, video_bps: None, ..call });
    Some(Udp { rate_bps, bytes, call, ..*audio })
}
