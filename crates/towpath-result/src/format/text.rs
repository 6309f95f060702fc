//! Text from files for terminals: cleaning, escaping, cutting, wrapping and padding.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns a sentence with a capital first letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Returns one line without anything that a terminal could take for a command.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => ' ',
            c if deceives(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Returns true for control characters, line separators, and characters that reorder the text
/// around them.
pub fn deceives(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns one line in which each character that [`deceives`] is escaped as in JSON: `\u000a`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(deceives) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if deceives(c) {
            push_escaped(&mut escaped, c);
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Appends one character in the form of JSON: `\u001b`.
pub fn push_escaped(text: &mut String, c: char) {
    // Writing to a `String` cannot fail.
    let _ = write!(text, "\\u{:04x}", u32::from(c));
}

/// Shortens to at most `width` characters, with `…` where something was cut.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut shortened: String = text.chars().take(width.saturating_sub(1)).collect();
    shortened.push('…');
    shortened
}

/// Wraps into lines of at most `width` characters, broken at spaces where possible.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let used = line.chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if line.chars().count() == width {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Pads with spaces to `width` characters.
pub fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_cannot_command_a_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc\u{202e}"), "a\u{fffd}[31mb c\u{fffd}");
        assert_eq!(clean("a\u{2028}b\u{85}c"), "a\u{fffd}b\u{fffd}c");
    }

    #[test]
    fn an_escaped_text_is_one_line() {
        let text = "a\nb\r\u{2028}c\u{2029}d\u{85}e\u{1b}\u{202e}f";
        assert_eq!(escape(text), "a\\u000ab\\u000d\\u2028c\\u2029d\\u0085e\\u001b\\u202ef");
        assert_eq!(escape("größer → ✓ 日本"), "größer → ✓ 日本");
    }

    #[test]
    fn text_is_wrapped_at_spaces_and_inside_words_that_are_too_long() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("", 3), [""]);
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
