//! Escaping of text for HTML.

use std::fmt::{self, Write as _};

use towpath_result::format::text::deceives;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_file_cannot_become_markup() {
        assert_eq!(
            esc("<b a='\"'>&\u{1b}").to_string(),
            "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}"
        );
    }

    #[test]
    fn backticks_mark_code_in_a_sentence() {
        assert_eq!(prose("after `a<b` it"), "after <code>a&lt;b</code> it");
        assert_eq!(prose("a ` b"), "a ` b");
    }
}
