//! Shortens IP addresses in texts to network prefixes, so that a result identifies no subscriber.
//!
//! An IPv4 address becomes its /24, an IPv6 address its /48 (as in RFC 6973 §6.1, data
//! minimisation). Loopback and unspecified addresses are kept. Ports are kept.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns the /24 of an IPv4 address or the /48 of an IPv6 address, as an address.
pub fn shorten(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    if address.is_loopback() || address.is_unspecified() {
        return address;
    }
    match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & !0xff)),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !((1 << 80) - 1))),
    }
}

/// Shortens all addresses in a text, in any of the usual notations.
///
/// Works on JSON as well: addresses have no characters that JSON escapes, and a JSON number is not
/// an address.
pub fn shorten_all(text: &str) -> Cow<'_, str> {
    let mut shortened = String::new();
    let mut copied = 0;
    for (start, candidate) in candidates(text) {
        let Some((range, replacement)) = shorten_candidate(candidate) else { continue };
        shortened.push_str(text.get(copied..start + range.start).unwrap_or_default());
        shortened.push_str(&replacement);
        copied = start + range.end;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    shortened.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(shortened)
}

/// Returns the longest runs of characters that addresses consist of, with their positions.
fn candidates(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let mut rest = (0, text);
    std::iter::from_fn(move || {
        let (offset, text) = rest;
        let start = text.find(is_part)?;
        let from = text.get(start..)?;
        let length = from.find(|c| !is_part(c)).unwrap_or(from.len());
        let (candidate, after) = from.split_at(length);
        rest = (offset + start + length, after);
        Some((offset + start, candidate))
    })
}

/// Finds an address in a candidate; returns its byte range and its short form.
///
/// Punctuation before and after the address does not belong to it. Letters before it may be the end
/// of a word.
fn shorten_candidate(candidate: &str) -> Option<(std::ops::Range<usize>, String)> {
    const MIN_BYTES: usize = "::".len();
    if candidate.len() < MIN_BYTES || !candidate.contains([':', '.']) {
        return None;
    }
    let ends = candidate.trim_end_matches(['.', ':']).len();
    let ends = [candidate.len(), (ends + 2).min(candidate.len()), ends];
    let starts = candidate.char_indices().map(|(start, _)| start);
    starts.take_while(|start| *start < 8).find_map(|start| {
        ends.into_iter().find_map(|end| {
            let text = candidate.get(start..end)?;
            Some((start..end, shorten_one(text)?))
        })
    })
}

/// Returns the short form of an address, with or without a port.
fn shorten_one(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        let short = shorten(address);
        return Some(if short == address { text.to_owned() } else { short.to_string() });
    }
    let socket = text.parse::<SocketAddr>().ok()?;
    Some(SocketAddr::new(shorten(socket.ip()), socket.port()).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_in_all_notations_are_shortened() {
        for (text, expected) in [
            ("203.0.113.77", "203.0.113.0"),
            ("203.0.113.77:443", "203.0.113.0:443"),
            ("[2001:db8:1:2::77]:443", "[2001:db8:1::]:443"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
            ("fe80::8171:8afe:ba07:8ee6%wlan0", "fe80::%wlan0"),
            ("::ffff:203.0.113.77", "203.0.113.0"),
            ("from 203.0.113.77, to 198.51.100.9.", "from 203.0.113.0, to 198.51.100.0."),
            ("2001:db8:1:2::1: refused", "2001:db8:1::: refused"),
            ("wlan0:203.0.113.77", "wlan0:203.0.113.0"),
            (r#"{"local":"10.1.2.3:5","t_ns":12.5}"#, r#"{"local":"10.1.2.0:5","t_ns":12.5}"#),
            ("10.1.2.3→10.9.8.7", "10.1.2.0→10.9.8.0"),
            ("10.1.2.3/24", "10.1.2.0/24"),
        ] {
            assert_eq!(shorten_all(text), expected);
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [
            "",
            "127.0.0.1:7080 and [::1]:80 and 0.0.0.0 and ::",
            "6.18.44-fc-v782",
            "12:30:45.123",
            "sha256:b892c983c05488baab8ca2b0825238d5",
            "rate 10.5 Mbit/s, 1.96 1.19 2.91 6/142 611",
            r#"{"a":1.5,"b":[0.25,3],"c":"cafe: bad"}"#,
            "10.0.0.0 2001:db8:1::",
            "…ünï:cödé…",
        ] {
            assert_eq!(shorten_all(text), text);
        }
    }

    proptest! {
        #[test]
        fn the_host_part_of_any_address_disappears(
            v4 in any::<u32>(), v6 in any::<u128>(), port in any::<u16>(),
            before in "[ ,;\\[(\"=]{0,2}|via |wifi1: |→", after in "[ ,;\\])\"/]{0,2}|\\. |: |→",
        ) {
            for address in [IpAddr::from(Ipv4Addr::from_bits(v4)), IpAddr::from(Ipv6Addr::from_bits(v6))] {
                let forms = [address.to_string(), SocketAddr::new(address, port).to_string()];
                for form in forms {
                    let text = format!("{before}{form}{after}");
                    let short = shorten(address);
                    let changed = shorten_all(&text).into_owned();
                    prop_assert!(changed.contains(&short.to_string()), "{} in {}", short, changed);
                    prop_assert!(address.to_canonical() == short || !changed.contains(&form), "{}", changed);
                    // A second pass changes nothing.
                    prop_assert_eq!(shorten_all(&changed), changed.as_str());
                }
            }
        }

        #[test]
        fn any_text_is_accepted(text in ".{0,200}", near in "[0-9a-f:.]{0,60}") {
            let _ = shorten_all(&text);
            let _ = shorten_all(&near);
        }
    }
}
