//! The pattern `call`: its sound, and the picture beside it.

use std::time::Duration;

use super::LONGEST_RUN;
use super::pattern::{STRAGGLERS, TEN_SECONDS, direction, time_or};
use crate::live::stamp::Stamp;
use crate::scenario::model::DataDirection;
use crate::scenario::pattern::{Call, Medium, Pattern, Udp};
use crate::scenario::section::Section;

/// Datagrams of a call's sound, 20 ms each, and what RTP puts before it (RFC 3550 §5.1).
const PACKETS_PER_SECOND: u64 = 50;
const RTP_BYTES: u32 = 12;
/// Of a call's picture, and the largest part of a frame in a datagram.
const FRAMES_PER_SECOND: u64 = 30;
const MOST_PART_BYTES: u32 = 1_200;
const VIDEO_BPS: std::ops::RangeInclusive<u64> = 100_000..=100_000_000;
const JITTER_BUFFER: Duration = Duration::from_millis(60);
const LONGEST_BUFFER: Duration = Duration::from_secs(10);

/// Sound, 20 ms in a datagram; the picture that goes with it becomes a flow of its own.
pub(super) fn call(section: &mut Section<'_>) -> Option<Pattern> {
    let duration = time_or(section.take("duration"), TEN_SECONDS);
    let codecs = [Medium::G711, Medium::G729a].map(|medium| (medium.name(), medium));
    let medium = section.take("codec").map_or(Some(Medium::G711), |v| v.word(&codecs));
    let jitter_buffer = section.take("jitter-buffer");
    let jitter_buffer = jitter_buffer.map_or(Some(JITTER_BUFFER), |v| v.duration(LONGEST_BUFFER));
    let video_bps = section.take("video").map_or(Some(None), |value| {
        let rate = value.rate()?.as_bps();
        if !VIDEO_BPS.contains(&rate) {
            value.fail("no call has such a picture", "expected `100 kbit/s` to `100 Mbit/s`");
            return None;
        }
        Some(Some(rate))
    });
    let direction = direction(section, DataDirection::Both);
    let patience = section.take("patience");
    let patience = patience.map_or(Some(STRAGGLERS), |v| v.duration(LONGEST_RUN));
    let speech_bytes = match medium? {
        Medium::G711 | Medium::Video => 160,
        Medium::G729a => 20,
    };
    let bytes = (speech_bytes + RTP_BYTES).max(Stamp::BYTES as u32);
    let (direction, duration, patience) = (direction?, duration?, patience?);
    let (medium, jitter_buffer, video_bps) = (medium?, jitter_buffer?, video_bps?);
    let rate_bps = u64::from(bytes) * 8 * PACKETS_PER_SECOND;
    let call = Some(Call { medium, together: 1, jitter_buffer, video_bps });
    Some(Pattern::Udp(Udp {
        rate_bps,
        bytes,
        direction,
        duration,
        patience,
        is_bound: false,
        call,
    }))
}

/// The picture of a call: frames at a constant rate, each cut into datagrams that are sent at once.
pub(super) fn picture(sound: &Udp) -> Option<Udp> {
    let call = sound.call?;
    let frame_bytes = call.video_bps?.div_ceil(8 * FRAMES_PER_SECOND).max(1);
    let together = frame_bytes.div_ceil(u64::from(MOST_PART_BYTES));
    let bytes = u32::try_from(frame_bytes.div_ceil(together)).ok()?.max(Stamp::BYTES as u32);
    let rate_bps = u64::from(bytes) * together * 8 * FRAMES_PER_SECOND;
    let together = u32::try_from(together).ok()?;
    let call = Some(Call { medium: Medium::Video, together, video_bps: None, ..call });
    Some(Udp { rate_bps, bytes, call, ..*sound })
}
