//! Reader of hexadecimal digits.

/// Reads hexadecimal digits in lower case; `None` unless there are exactly `2 * N` of them.
pub(crate) fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        0..=b'/' | b':'..=b'`' | b'g'..=u8::MAX => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        let [high, low] = *pair;
        *byte = value(high)? << 4 | value(low)?;
    }
    Some(bytes)
}
