//! Output filter for terminals: escapes characters that could control the terminal.
//!
//! Arguments, names, reasons and warnings come from users, files, kernels and other hosts. A
//! control character in them could move the cursor, or change the title or the keyboard. One that
//! reorders text could falsify a line. A newline could forge a line, such as `fix: …`.
//!
//! Each is escaped as in JSON, `\u001b`. A reader sees that something was there, and JSON output
//! stays equivalent. Colour sequences pass, since they can only change the look.
//!
//! Newlines have two rules:
//!
//! - `write!` and `writeln!` write one line. They escape every newline but the last character, so
//!   no argument of theirs starts a line.
//! - `write_all` writes a block, such as a table or a file, and its newlines pass. The code that
//!   makes a block cleans each text in it.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use towpath_result::format::text::{deceives, push_escaped};

/// Upper bound in bytes of a colour sequence without its final `m`: `ESC [ 32`.
const MAX_COLOUR_SEQUENCE: usize = 4;

/// Writer for a terminal or its replacement, such as a file.
#[derive(Debug)]
pub(crate) struct SafeTerminal<W> {
    terminal: W,
    /// Set when colour sequences pass.
    colour: bool,
    /// Incomplete input: the start of a character, of a line end or of a colour sequence.
    pending: Vec<u8>,
}

/// Action for the start of a text.
enum EscapeAction {
    /// Number of bytes to write unchanged.
    Pass(usize),
    /// Character to escape, and its length in bytes.
    Escape(char, usize),
    /// More input is needed.
    NeedMore,
}

impl<W: Write> SafeTerminal<W> {
    pub(crate) fn new(terminal: W) -> Self {
        Self { terminal, colour: false, pending: Vec::new() }
    }

    /// Sets whether colour sequences pass.
    pub(crate) fn with_colour(self, colour: bool) -> Self {
        Self { colour, ..self }
    }

    /// Returns the terminal itself, for the program's own drawing without untrusted text.
    pub(crate) fn raw(&mut self) -> &mut W {
        &mut self.terminal
    }

    /// Writes the input that is complete. At the `end` of the input, writes all of it.
    fn write_pending(&mut self, end: bool) -> io::Result<()> {
        let input = std::mem::take(&mut self.pending);
        let complete_bytes = match std::str::from_utf8(&input) {
            Ok(text) => text.len(),
            // An incomplete character waits for its remaining bytes.
            Err(error) if error.error_len().is_none() && !end => error.valid_up_to(),
            Err(_) => input.len(),
        };
        let (complete, incomplete) = input.split_at(complete_bytes);
        let text = String::from_utf8_lossy(complete);
        let mut rest = &*text;
        let mut escaped = String::with_capacity(rest.len());
        while !rest.is_empty() {
            let (length, escaped_char) = match self.classify(rest) {
                EscapeAction::Pass(length) => (length, None),
                EscapeAction::Escape(c, length) => (length, Some(c)),
                EscapeAction::NeedMore if end => match rest.chars().next() {
                    Some(c) => (c.len_utf8(), Some(c)),
                    None => break,
                },
                EscapeAction::NeedMore => break,
            };
            let (prefix, suffix) = rest.split_at(length);
            match escaped_char {
                Some(c) => push_escaped(&mut escaped, c),
                None => escaped.push_str(prefix),
            }
            rest = suffix;
        }
        self.pending.extend(rest.as_bytes());
        self.pending.extend(incomplete);
        self.terminal.write_all(escaped.as_bytes())
    }

    fn classify(&self, text: &str) -> EscapeAction {
        let needs_escape = |c: char| deceives(c) && c != '\n' && c != '\t';
        let plain_bytes = text.find(needs_escape).unwrap_or(text.len());
        if plain_bytes > 0 {
            return EscapeAction::Pass(plain_bytes);
        }
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (None, _) => EscapeAction::Pass(0),
            // Line end of other systems. A carriage return alone would let the line be overwritten.
            (Some('\r'), Some('\n')) => EscapeAction::Pass(2),
            (Some('\r'), None) => EscapeAction::NeedMore,
            (Some('\u{1b}'), None) if self.colour => EscapeAction::NeedMore,
            (Some('\u{1b}'), Some('[')) if self.colour => colour(text),
            (Some(c), _) => EscapeAction::Escape(c, c.len_utf8()),
        }
    }
}

/// Returns the text with escaped line ends. The filter escapes the other characters.
pub(crate) fn one_line(text: &str) -> String {
    text.replace('\n', "\\u000a").replace('\r', "\\u000d")
}

/// Classifies a text that begins like a colour sequence: `ESC [ 32 m`.
fn colour(text: &str) -> EscapeAction {
    let end = text.char_indices().skip(2).find(|(_, c)| !c.is_ascii_digit());
    match end {
        Some((length, 'm')) if length <= MAX_COLOUR_SEQUENCE => EscapeAction::Pass(length + 1),
        None if text.len() <= MAX_COLOUR_SEQUENCE => EscapeAction::NeedMore,
        _ => EscapeAction::Escape('\u{1b}', 1),
    }
}

impl<W: Write> Write for SafeTerminal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend(bytes);
        self.write_pending(false)?;
        Ok(bytes.len())
    }

    /// Writes one line, or a part of it. Only a newline at its end passes.
    fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) -> io::Result<()> {
        let text = arguments.to_string();
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (text.as_str(), ""),
        };
        self.write_all(one_line(line).as_bytes())?;
        self.write_all(end.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_pending(true)?;
        self.terminal.flush()
    }
}

impl<W: IsTerminal> SafeTerminal<W> {
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal.is_terminal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_and_read(colour: bool, parts: &[&[u8]]) -> String {
        let mut screen = SafeTerminal::new(Vec::new()).with_colour(colour);
        for part in parts {
            screen.write_all(part).unwrap();
        }
        screen.flush().unwrap();
        String::from_utf8(screen.terminal).unwrap()
    }

    #[test]
    fn control_characters_are_shown_escaped() {
        let text = "a\u{1b}]0;title\u{7}b\u{9b}2Jc\u{202e}d\u{2066}e\u{7f}f\rg";
        let expected = "a\\u001b]0;title\\u0007b\\u009b2Jc\\u202ed\\u2066e\\u007ff\\u000dg";
        for colour in [false, true] {
            assert_eq!(write_and_read(colour, &[text.as_bytes()]), expected);
            // The result does not depend on the boundaries of the writes.
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(write_and_read(colour, &bytes), expected);
        }
    }

    #[test]
    fn ordinary_text_and_line_ends_are_unchanged() {
        let text = "größer → ✓\tx\r\ny · “z” 日本\n";
        assert_eq!(write_and_read(false, &[text.as_bytes()]), text);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(write_and_read(true, &bytes), text);
        assert_eq!(write_and_read(false, &[b"\xff\xfe"]), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn no_argument_of_a_line_starts_another_one() {
        let mut screen = SafeTerminal::new(Vec::new());
        let name = "x\nfix: y\r\n\u{2028}hint: z\u{85}\r";
        writeln!(screen, "`{name}`").unwrap();
        writeln!(screen, "{name}").unwrap();
        screen.write_all(b"a\nb\n").unwrap();
        screen.flush().unwrap();
        let escaped = "x\\u000afix: y\\u000d\\u000a\\u2028hint: z\\u0085\\u000d";
        let text = String::from_utf8(screen.terminal).unwrap();
        assert_eq!(text, format!("`{escaped}`\n{escaped}\na\nb\n"));
    }

    #[test]
    fn colour_codes_pass_only_if_enabled_and_lookalikes_never() {
        let green = "\u{1b}[32m✓\u{1b}[0m";
        assert_eq!(write_and_read(true, &[green.as_bytes()]), green);
        assert_eq!(write_and_read(false, &[green.as_bytes()]), "\\u001b[32m✓\\u001b[0m");
        assert_eq!(
            write_and_read(true, &[b"\x1b[2J \x1b[31;8m \x1b["]),
            "\\u001b[2J \\u001b[31;8m \\u001b["
        );
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "n\u{202e}ame": "\u{1b}[31m\u{9b}\u{7f}" });
        let text = write_and_read(true, &[value.to_string().as_bytes()]);
        assert!(!text.chars().any(deceives));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
