//! Frames of the control connection: a length of four bytes, then JSON of that length.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Maximum length of a frame's JSON.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// Reason why no further frames can be read from a connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Length above the maximum.
    #[error("a frame of {0} bytes exceeds the limit of {MAX_FRAME_BYTES}")]
    TooLong(usize),
    /// JSON that does not match the expected type.
    #[error("an invalid frame: {0}")]
    NotUnderstood(String),
}

/// Decoder that splits a byte stream into frames.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
}

impl FrameDecoder {
    /// Appends received bytes. Callers drain [`Self::take`] before they push more. So the buffer
    /// holds at most one frame and one read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the number of buffered bytes.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next frame, or `None` if it is incomplete.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let parsed = serde_json::from_slice(content);
        let parsed = parsed.map_err(|error| FrameError::NotUnderstood(error.to_string()))?;
        self.buffer.drain(..length.saturating_add(4));
        Ok(Some(parsed))
    }
}

/// Serializes a frame; fails if its content is too long.
pub fn to_bytes<T: Serialize>(content: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, content)
        .map_err(|error| FrameError::NotUnderstood(error.to_string()))?;
    let length = bytes.len().saturating_sub(4);
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong(length));
    }
    if let Some(head) = bytes.first_chunk_mut() {
        *head = (length as u32).to_be_bytes();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use proptest::prelude::*;
    use towpath_host::snapshot::{
        AddressSnapshot, ConnectionSnapshot, EndpointSnapshot, HostSnapshot, LinkSnapshot,
        SubflowSnapshot,
    };

    use super::*;

    proptest! {
        #[test]
        fn any_segmentation_gives_the_same_frames(
            texts in proptest::collection::vec(".{0,200}", 1..8), chunk_bytes in 1_usize..50,
        ) {
            let bytes: Vec<u8> = texts.iter().flat_map(|text| to_bytes(text).unwrap()).collect();
            let (mut decoder, mut received) = (FrameDecoder::default(), Vec::new());
            for chunk in bytes.chunks(chunk_bytes) {
                decoder.push(chunk);
                while let Some(text) = decoder.take::<String>().unwrap() {
                    received.push(text);
                }
            }
            prop_assert_eq!(received, texts);
            prop_assert_eq!(decoder.buffered(), 0);
        }

        #[test]
        fn garbage_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = FrameDecoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.take::<serde_json::Value>() {}
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_length_alone() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&u32::MAX.to_be_bytes());
        assert_eq!(decoder.take::<String>(), Err(FrameError::TooLong(u32::MAX as usize)));
        let long = "x".repeat(MAX_FRAME_BYTES);
        assert_eq!(to_bytes(&long), Err(FrameError::TooLong(MAX_FRAME_BYTES + 2)));
    }

    #[test]
    fn the_largest_snapshot_reply_fits_into_a_frame() {
        let address: IpAddr = "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        let socket_address = SocketAddr::new(address, 65_535);
        let link = LinkSnapshot {
            index: u32::MAX,
            name: "n".repeat(15),
            mtu_bytes: u32::MAX,
            rx_bytes: u64::MAX,
            tx_bytes: u64::MAX,
            flags: u32::MAX,
            ..LinkSnapshot::default()
        };
        let subflow = SubflowSnapshot {
            local: socket_address,
            remote: socket_address,
            established: true,
            backup: true,
            bytes_acked: u64::MAX,
            bytes_received: u64::MAX,
        };
        let subflows = vec![subflow; 100];
        let connection = ConnectionSnapshot {
            local: socket_address,
            remote: socket_address,
            multipath: true,
            subflows,
        };
        let endpoint =
            EndpointSnapshot { id: 255, address, port: Some(1), link: Some(1), flags: u32::MAX };
        let snapshot = HostSnapshot {
            links: vec![link; 500],
            addresses: vec![AddressSnapshot { link: u32::MAX, address, prefix_length: 128 }; 500],
            endpoints: vec![endpoint; 500],
            connections: vec![connection; 500],
            ..HostSnapshot::default()
        };
        assert!(to_bytes(&snapshot).is_err(), "it is too long without limits");
        let bytes = to_bytes(&snapshot.truncated()).unwrap();
        assert!(bytes.len() < 60_000, "{} bytes leave no room for the counters", bytes.len());
    }
}
