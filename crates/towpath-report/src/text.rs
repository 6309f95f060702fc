//! Cleaning of text from files for terminals, and escaping for HTML.

use std::fmt::{self, Write as _};

/// Displays text with the five special characters of HTML replaced, and control characters (which
/// HTML forbids) made visible.
pub(crate) struct Escaped<'a>(&'a str);

/// Escapes text for element content and quoted attributes.
pub(crate) fn esc(text: &str) -> Escaped<'_> {
    Escaped(text)
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                c if deceives(c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Returns a sentence with a capital first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Escapes a sentence in which backticks mark names and commands.
pub(crate) fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return esc(text).to_string(); // a backtick without its partner is only a character
    }
    let mut out = String::new();
    for (number, part) in parts.into_iter().enumerate() {
        let _ = if number % 2 == 1 {
            write!(out, "<code>{}</code>", esc(part))
        } else {
            write!(out, "{}", esc(part))
        };
    }
    out
}

/// Returns one line without anything that a terminal could take for a command.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => ' ',
            c if deceives(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Returns true for control characters, and for those that reorder the text around them.
pub fn deceives(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Shortens to at most `width` characters, with `…` where something was cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut shortened: String = text.chars().take(width.saturating_sub(1)).collect();
    shortened.push('…');
    shortened
}

/// Wraps into lines of at most `width` characters, broken at spaces where possible.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
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
pub(crate) fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_cannot_become_markup_or_a_terminal_command() {
        assert_eq!(
            esc("<b a='\"'>&\u{1b}").to_string(),
            "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}"
        );
        assert_eq!(clean("a\u{1b}[31mb\nc\u{202e}"), "a\u{fffd}[31mb c\u{fffd}");
    }

    #[test]
    fn backticks_mark_code_in_a_sentence() {
        assert_eq!(prose("after `a<b` it"), "after <code>a&lt;b</code> it");
        assert_eq!(prose("a ` b"), "a ` b");
    }

    #[test]
    fn text_is_wrapped_at_spaces_and_inside_words_that_are_too_long() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("", 3), [""]);
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
