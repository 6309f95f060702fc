//! Standard output for data; standard error for progress, warnings, hints and errors.

mod screen;

use std::io::{self, IsTerminal, Stderr, Stdout, Write};
use std::time::Duration;

use towpath_result::Warning;

use crate::error::{CliError, describe_error};

pub(crate) use screen::SafeTerminal;
use screen::one_line;

/// Output streams of a command.
#[derive(Debug)]
pub(crate) struct Ui {
    pub(crate) out: SafeTerminal<Stdout>,
    err: SafeTerminal<Stderr>,
    /// Set when data may be coloured.
    pub(crate) colour: bool,
    /// Set when the cursor is behind a progress bar.
    is_bar_drawn: bool,
}

impl Ui {
    pub(crate) fn from_environment() -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let out = io::stdout();
        let colour = !no_colour && out.is_terminal();
        let (out, err) =
            (SafeTerminal::new(out).with_colour(colour), SafeTerminal::new(io::stderr()));
        Self { out, err, colour, is_bar_drawn: false }
    }

    /// Prints one line of progress. A closed standard error is ignored.
    pub(crate) fn progress(&mut self, line: &str) {
        self.progress_lines([line]);
    }

    /// Prints lines of progress. No line can start another one.
    pub(crate) fn progress_lines(&mut self, lines: impl IntoIterator<Item = impl AsRef<str>>) {
        self.clear_bar();
        for line in lines {
            let _ = writeln!(self.err, "{}", line.as_ref()); // stderr may be closed
        }
    }

    /// Draws a progress bar on one line. Only on a terminal.
    pub(crate) fn bar(&mut self, done: usize, total: usize) {
        self.draw_bar(done, total, "");
    }

    /// Draws a progress bar with the estimated time left.
    pub(crate) fn bar_with_time(&mut self, done: usize, total: usize, time_left: Duration) {
        let time_left = time_left.as_secs();
        self.draw_bar(done, total, &format!(", {}:{:02} left ", time_left / 60, time_left % 60));
    }

    fn draw_bar(&mut self, done: usize, total: usize, suffix: &str) {
        const WIDTH: usize = 40;
        if !self.err.is_terminal() || total < 2 {
            return;
        }
        let suffix = if done == total { "" } else { suffix };
        let filled = done * WIDTH / total;
        let (bar, remainder) = ("#".repeat(filled), ".".repeat(WIDTH - filled));
        let line_end = if done == total { "\n" } else { "" };
        let line = format!("\r[{bar}{remainder}] {done} of {total} runs{suffix}{line_end}");
        let _ = self.err.raw().write_all(line.as_bytes()); // stderr may be closed
        self.is_bar_drawn = done < total;
    }

    /// Removes the bar, so that another line can take its place. The next update draws the bar
    /// again.
    fn clear_bar(&mut self) {
        if std::mem::take(&mut self.is_bar_drawn) {
            let _ = self.err.raw().write_all(b"\r\x1b[K"); // stderr may be closed
        }
    }

    pub(crate) fn warn(&mut self, warning: &Warning) {
        self.progress_lines(wrap("warning: ", &warning.text));
        if let Some(hint) = &warning.hint {
            self.progress_lines(wrap("hint: ", hint));
        }
    }

    pub(crate) fn error(&mut self, error: &CliError) {
        if error.is_broken_pipe() {
            return;
        }
        // Scenario errors already have a layout, with source lines and carets.
        if let CliError::Scenario(errors) | CliError::ChangedScenario { errors, .. } = error {
            let lines: Vec<_> = errors.lines().iter().map(|line| one_line(line)).collect();
            self.progress_lines(describe_error(&lines.join("\n")).split('\n'));
        } else {
            self.progress_lines(wrap("error: ", &describe_error(&error.to_string())));
        }
        if let Some(hint) = error.hint() {
            self.progress_lines(wrap("hint: ", &hint));
        }
    }
}

/// Writes a text as [`wrap`] returns it.
pub(crate) fn write_wrapped(out: &mut impl Write, label: &str, text: &str) -> io::Result<()> {
    wrap(label, text).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Returns the lines of a text, wrapped at spaces so that no line is over 100 columns.
pub(crate) fn wrap(label: &str, text: &str) -> Vec<String> {
    const COLUMNS: usize = 100;
    let mut lines = vec![label.to_owned()];
    for word in text.split(' ') {
        let indent = " ".repeat(label.len());
        let Some(line) = lines.last_mut() else { break };
        let is_line_empty = line.trim().is_empty() || line == label;
        if !is_line_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(indent + word);
        } else {
            if !is_line_empty {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_warning_is_broken_below_its_own_text() {
        let text = wrap("hint: ", &"word ".repeat(40));
        assert!(text.iter().all(|line| line.chars().count() <= 100));
        assert!(text.iter().skip(1).all(|line| line.starts_with("      ")));
        assert_eq!(wrap("error: ", "short"), ["error: short"]);
    }
}
