//! Separates code from comments and strings, so that a rule about code ignores sentences about it.
//!
//! Lines keep their numbers.

/// Parts of a Rust file, each with as many lines as the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ScannedSource {
    /// Code without comments and without the content of strings.
    pub(super) code: String,
    /// Comments without the code, line by line.
    pub(super) comments: String,
}

/// State of the scanner.
/// ```text
/// Code ─//▶ LineComment ─newline▶ Code        Code ─"▶ Text ─"▶ Code
/// Code ─/*▶ BlockComment(1…n) ─*/▶ Code       Code ─r#"▶ RawText(1) ─"#▶ Code
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    Code,
    LineComment,
    /// Nested block comments, with their depth.
    BlockComment(usize),
    Text,
    /// Raw string, with the number of `#` before the quote.
    RawText(usize),
}

/// Splits a file into its parts.
pub(super) fn scan(text: &str) -> ScannedSource {
    let mut scanned = ScannedSource::default();
    let (mut state, mut rest) = (ScanState::Code, text);
    while !rest.is_empty() {
        let (next, length) = step(state, rest);
        // An opening `//` or `/*` is part of the comment.
        let kind = if state == ScanState::Code { next } else { state };
        let (part, remaining) = rest.split_at_checked(length.max(1)).unwrap_or((rest, ""));
        let ScannedSource { code, comments } = &mut scanned;
        let (kept_in, blanked_in) = match kind {
            ScanState::Code => (Some(code), comments),
            ScanState::LineComment | ScanState::BlockComment(_) => (Some(comments), code),
            ScanState::Text | ScanState::RawText(_) => {
                blank(code, part);
                (None, comments)
            }
        };
        blank(blanked_in, part);
        if let Some(kept_in) = kept_in {
            kept_in.push_str(part);
        }
        (state, rest) = (next, remaining);
    }
    scanned
}

/// Keeps only line ends, and a space so that words do not merge.
fn blank(out: &mut String, part: &str) {
    out.push(' ');
    out.extend(part.chars().filter(|c| *c == '\n'));
}

/// Returns the next state, and the number of bytes before it.
fn step(state: ScanState, rest: &str) -> (ScanState, usize) {
    let first = rest.chars().next().map_or(1, char::len_utf8);
    match state {
        ScanState::Code => step_in_code(rest),
        ScanState::LineComment => match rest.find('\n') {
            Some(end) => (ScanState::Code, end + 1),
            None => (ScanState::Code, rest.len()),
        },
        ScanState::BlockComment(1) if rest.starts_with("*/") => (ScanState::Code, 2),
        ScanState::BlockComment(depth) if rest.starts_with("*/") => {
            (ScanState::BlockComment(depth - 1), 2)
        }
        ScanState::BlockComment(depth) if rest.starts_with("/*") => {
            (ScanState::BlockComment(depth + 1), 2)
        }
        ScanState::Text if rest.starts_with('\\') => {
            (ScanState::Text, 1 + rest.chars().nth(1).map_or(0, char::len_utf8))
        }
        ScanState::Text if rest.starts_with('"') => (ScanState::Code, 1),
        ScanState::RawText(hashes) if closes_raw_text(rest, hashes) => {
            (ScanState::Code, 1 + hashes)
        }
        ScanState::BlockComment(_) | ScanState::Text | ScanState::RawText(_) => (state, first),
    }
}

fn step_in_code(rest: &str) -> (ScanState, usize) {
    if rest.starts_with("//") {
        return (ScanState::LineComment, 2);
    }
    if rest.starts_with("/*") {
        return (ScanState::BlockComment(1), 2);
    }
    if rest.starts_with('"') {
        return (ScanState::Text, 1);
    }
    if rest.starts_with('\'') {
        return (ScanState::Code, quote_length(rest));
    }
    let word_bytes = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    if word_bytes == 0 {
        return (ScanState::Code, rest.chars().next().map_or(1, char::len_utf8));
    }
    let (name, after_word) = rest.split_at(word_bytes);
    let hashes = after_word.len() - after_word.trim_start_matches('#').len();
    if matches!(name, "r" | "br" | "cr") && after_word.trim_start_matches('#').starts_with('"') {
        return (ScanState::RawText(hashes), word_bytes + hashes + 1);
    }
    (ScanState::Code, word_bytes)
}

/// Returns the length of a character literal, or of a lifetime's quote.
fn quote_length(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((escape_index, _))) => {
            // The escaped character itself may be a quote.
            let body = rest.get(escape_index + 1..).and_then(|body| body.find('\''));
            body.map_or(1, |end| escape_index + 1 + end + 1)
        }
        (Some(_), Some((closing_index, '\''))) => closing_index + 1,
        (_, _) => 1,
    }
}

fn closes_raw_text(rest: &str, hashes: usize) -> bool {
    let Some(after) = rest.strip_prefix('"') else { return false };
    after.chars().take_while(|c| *c == '#').take(hashes).count() == hashes
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns true if `line` contains `word` as a whole word.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(index, _)| {
        let before = line.get(..index).and_then(|before| before.chars().next_back());
        let after = line.get(index + word.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_words(text: &str) -> String {
        scan(text).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        assert_eq!(code_words("a // b \"\n/* c /* d */ e */ f"), "a f");
        assert_eq!(code_words(r##"a("b \" // c"); d(r#"e " f"#); g"##), "a( ); d( ); g");
        assert_eq!(code_words("b\"x\" br\"y\\\" c"), "b c");
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_open_no_string() {
        assert_eq!(code_words(r#"'"' x '\'' y '\u{22}' z"#), r#"'"' x '\'' y '\u{22}' z"#);
        assert_eq!(code_words("fn f<'a>(x: &'a str) // y"), "fn f<'a>(x: &'a str)");
        assert_eq!(code_words("r#type \"s\" x"), "r#type x");
    }

    #[test]
    fn every_part_has_the_lines_of_the_file() {
        let text = "a\n// b\n/* c\nd */ e\n\"f\ng\"\nh\n";
        let ScannedSource { code, comments } = scan(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(comments.lines().count(), text.lines().count());
        assert_eq!(code.lines().position(|line| line.trim() == "h"), Some(6));
        assert_eq!(comments.lines().position(|line| line.contains('d')), Some(3));
    }

    #[test]
    fn unterminated_literals_do_not_hang() {
        for text in ["\"a", "/* a", "r#\"a", "'", "'\\", "\"\\", "é\"é", "//"] {
            scan(text);
        }
    }

    #[test]
    fn only_whole_words_match() {
        assert!(has_word("an unsafe { }", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
    }
}
