//! Error messages for scenario files, with source position and hint.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Maximum width of a message line, except for long file names.
const MAX_LINE_WIDTH: usize = 100;
/// Maximum number of problems shown.
const MAX_SHOWN: usize = 10;
/// Maximum length of quoted input, in characters.
const MAX_QUOTED_CHARS: usize = 40;

/// Errors of a scenario: up to ten problems in order of position, and the number of further ones.
///
/// [`ScenarioErrors::lines`] formats them for the command line. [`fmt::Display`] joins these lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioErrors {
    file_name: String,
    problems: Vec<Problem>,
    /// Number of problems beyond the shown ones.
    hidden_count: usize,
}

/// One error in a scenario file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line and column, both counted from 1, the column in characters; `None` for the whole file.
    pub position: Option<(usize, usize)>,
    /// Description of the error.
    pub message: String,
    /// Expected input at this position; may be empty.
    pub expected: String,
    /// Suggested fix, if there is one.
    pub hint: Option<String>,
    /// Lines below the hint.
    example: &'static [&'static str],
    excerpt: Option<Excerpt>,
}

/// Source line of a problem, with the marked range.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    line_number: usize,
    /// Visible part of the line.
    text: String,
    /// Number of characters before the marked ones.
    indent: usize,
    /// Number of marked characters.
    marked_chars: usize,
}

impl ScenarioErrors {
    /// Returns the first problems in order of position, at most ten.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of all problems found, shown or not.
    pub fn count(&self) -> usize {
        self.problems.len() + self.hidden_count
    }

    /// Returns the lines of the message. Line breaks of a quoted text stay within its line, and the
    /// caller escapes them.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                lines.push(String::new());
            }
            problem.write(&mut lines, &self.file_name);
        }
        if self.hidden_count > 0 {
            let s = if self.hidden_count == 1 { "" } else { "s" };
            lines.push(String::new());
            lines.push(format!("… and {} more problem{s}", self.hidden_count));
        }
        lines
    }

    pub(super) fn single(file_name: &str, text: &str, problem: SpannedProblem) -> Self {
        Self::new(file_name, text, vec![problem])
    }

    pub(super) fn new(file_name: &str, text: &str, mut problems: Vec<SpannedProblem>) -> Self {
        problems.sort_by_key(|f| f.span.as_ref().map(|s| (s.start, s.end)));
        problems.dedup();
        let hidden_count = problems.len().saturating_sub(MAX_SHOWN);
        let problems = problems.into_iter().take(MAX_SHOWN).map(|f| f.locate(text)).collect();
        Self { file_name: file_name.to_owned(), problems, hidden_count }
    }
}

impl fmt::Display for ScenarioErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl Problem {
    fn write(&self, lines: &mut Vec<String>, file_name: &str) {
        let location = match self.position {
            Some((line, column)) => format!("error: {file_name}:{line}:{column}: "),
            None => format!("error: {file_name}: "),
        };
        lines.extend(wrap(&format!("{location}{}", self.message), "  "));
        match &self.excerpt {
            Some(excerpt) => excerpt.write(lines, &self.expected),
            None if self.expected.is_empty() => {}
            None => lines.extend(wrap(&self.expected, "  ")),
        }
        if let Some(hint) = &self.hint {
            lines.extend(wrap(&format!("hint: {hint}"), "  "));
        }
        lines.extend(self.example.iter().map(|line| format!("  {line}")));
    }
}

impl Excerpt {
    /// Cuts `line` to fit, with the mark (in characters) visible.
    fn new(number: usize, line: &str, marked_range: Range<usize>) -> Self {
        let text_width = MAX_LINE_WIDTH - number.to_string().len() - " | ".len();
        let length = line.chars().count();
        let replace_control = |c: char| match c {
            '\t' => ' ',
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        };
        let (start, end) = if length <= text_width {
            (0, length)
        } else {
            let start = marked_range.start.saturating_sub(text_width / 3).min(length - text_width);
            (start, start + text_width)
        };
        let mut text: Vec<char> =
            line.chars().skip(start).take(end - start).map(replace_control).collect();
        if start > 0
            && let Some(first) = text.first_mut()
        {
            *first = '…';
        }
        if end < length
            && let Some(last) = text.last_mut()
        {
            *last = '…';
        }
        let indent = marked_range.start.saturating_sub(start).min(text_width - 1);
        let marked_chars =
            marked_range.end.min(end).saturating_sub(marked_range.start.max(start)).max(1);
        Self {
            line_number: number,
            text: text.into_iter().collect(),
            indent,
            marked_chars: marked_chars.min(text_width - indent),
        }
    }

    fn write(&self, lines: &mut Vec<String>, label: &str) {
        let number = self.line_number.to_string();
        let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(self.indent));
        lines.push(format!("{gutter} |"));
        lines.push(format!("{number} | {}", self.text).trim_end().to_owned());
        let marks = format!("{gutter} | {indent}{}", "^".repeat(self.marked_chars));
        if label.is_empty() {
            lines.push(marks);
            return;
        }
        let width = gutter.len() + 3 + self.indent + self.marked_chars + 1;
        if width + label.chars().count() <= MAX_LINE_WIDTH {
            lines.push(format!("{marks} {label}"));
            return;
        }
        let margin = format!("{gutter} | ");
        lines.push(marks);
        lines.extend(wrap(&format!("{margin}{label}"), &margin));
    }
}

/// A problem as found by the reader, with its byte range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpannedProblem {
    pub(super) span: Option<Range<usize>>,
    pub(super) message: String,
    pub(super) expected: String,
    pub(super) hint: Option<String>,
    pub(super) example: &'static [&'static str],
}

impl SpannedProblem {
    /// Creates a problem at `span` (bytes of the text; `None` for the whole file). `expected`
    /// describes the expected input there.
    pub fn new(
        span: impl Into<Option<Range<usize>>>,
        message: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        let (message, expected) = (message.into(), expected.into());
        Self { span: span.into(), message, expected, hint: None, example: &[] }
    }

    /// Adds a suggested fix.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds lines of an example, which follow the hint.
    #[must_use]
    pub(super) fn example(self, lines: &'static [&'static str]) -> Self {
        Self { example: lines, ..self }
    }

    fn locate(self, text: &str) -> Problem {
        let Self { span, message, expected, hint, example } = self;
        let Some(span) = span else {
            return Problem { position: None, message, expected, hint, example, excerpt: None };
        };
        // A span at the end of the text (missing input) is shown on the last non-empty line.
        let start = if span.start >= text.trim_end().len() && span.start >= text.len() {
            text.trim_end().len()
        } else {
            span.start
        };
        let before = text.get(..start).unwrap_or(text);
        let number = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |index| index + 1);
        let line = text.get(line_start..).unwrap_or("").lines().next().unwrap_or("");
        let indent = text.get(line_start..start).map_or(0, |s| s.chars().count());
        let marked_chars = text
            .get(start..span.end)
            .map_or(1, |s| s.lines().next().map_or(1, |first| first.chars().count()));
        let excerpt = Excerpt::new(number, line, indent..indent + marked_chars.max(1));
        let position = Some((number, indent + 1));
        Problem { position, message, expected, hint, example, excerpt: Some(excerpt) }
    }
}

/// Collector of problems, shared by all parts of the reader.
#[derive(Debug, Default)]
pub struct Problems(RefCell<Vec<SpannedProblem>>);

impl Problems {
    /// Adds a problem to the list.
    pub fn push(&self, problem: SpannedProblem) {
        self.0.borrow_mut().push(problem);
    }

    pub(super) fn into_problems(self) -> Vec<SpannedProblem> {
        self.0.into_inner()
    }
}

/// Quotes input in backticks, on one line and truncated.
pub fn quote(input: &str) -> String {
    let mut text: String = input
        .chars()
        .take(MAX_QUOTED_CHARS)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if input.chars().nth(MAX_QUOTED_CHARS).is_some() {
        text.push('…');
    }
    format!("`{text}`")
}

/// Joins alternatives: `a`, `b` or `c`.
pub fn alternatives<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut quoted: Vec<String> = words.into_iter().map(quote).collect();
    match (quoted.pop(), quoted.is_empty()) {
        (None, _) => String::new(),
        (Some(last), true) => last,
        (Some(last), false) => format!("{} or {last}", quoted.join(", ")),
    }
}

/// Wraps text at spaces to the maximum width; continuation lines start with `indent`.
fn wrap(text: &str, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut width) = (String::new(), 0);
    for (i, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if i > 0 && width + 1 + length > MAX_LINE_WIDTH {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            width = indent.chars().count();
        } else if i > 0 {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += length;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn render(text: &str, span: Range<usize>) -> String {
        let problem = SpannedProblem::new(span, "it is wrong", "expected something else");
        ScenarioErrors::single("a.toml", text, problem).to_string()
    }

    #[test]
    fn the_mark_is_below_the_marked_text() {
        let text = "name = 1\nrate = 40\n";
        let expected = "error: a.toml:2:8: it is wrong\n  |\n2 | rate = 40\n  \
            |        ^^ expected something else";
        assert_eq!(render(text, 16..18), expected);
    }

    #[test]
    fn a_long_line_is_cut_around_the_mark() {
        let text = format!("x = [{}, 77, {}]", "1, ".repeat(100), "2, ".repeat(100));
        let start = text.find("77").unwrap();
        let rendered = render(&text, start..start + 2);
        assert!(rendered.contains("| …") && rendered.contains("2,…\n"), "{rendered}");
        let lines: Vec<&str> = rendered.lines().collect();
        let mark = lines[3].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[2].chars().skip(mark).take(2).collect::<String>(), "77");
    }

    #[test]
    fn only_ten_problems_are_shown() {
        let text = "a = 1\n".repeat(30);
        let problems = (0..30)
            .map(|i| SpannedProblem::new(i * 6..i * 6 + 1, format!("wrong {i}"), ""))
            .collect();
        let errors = ScenarioErrors::new("a.toml", &text, problems);
        assert_eq!((errors.problems().len(), errors.count()), (10, 30));
        assert!(errors.to_string().ends_with("… and 20 more problems"));
    }

    #[test]
    fn a_line_break_of_a_name_adds_no_line() {
        let problem = SpannedProblem::new(0..1, "`a\nb`", "c\nd").hint("e\nf");
        let lines = ScenarioErrors::single("g\nh", "x", problem).lines();
        assert_eq!(lines[0], "error: g\nh:1:1: `a\nb`");
        assert_eq!(lines[3..], ["  | ^ c\nd", "hint: e\nf"]);
    }

    proptest! {
        #[test]
        fn no_text_or_span_causes_a_panic_or_a_long_line(
            text in "(?s).{0,300}",
            a in 0..400_usize,
            b in 0..400_usize,
        ) {
            for line in render(&text, a..b).lines() {
                prop_assert!(line.chars().count() <= MAX_LINE_WIDTH, "{line}");
            }
        }
    }
}
