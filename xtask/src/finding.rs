//! Violations of the repository's rules.

use std::fmt;

/// Violation to fix, printed as `path:line: problem, expected …`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LintFinding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) severity: Severity,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Violation that fails the check.
    Error,
    /// Printed, but the check passes.
    Warning,
}

impl LintFinding {
    pub(crate) fn error(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.into(), line, severity: Severity::Error, text: text.into() }
    }

    pub(crate) fn warning(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.into(), line, severity: Severity::Warning, text: text.into() }
    }
}

impl fmt::Display for LintFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, severity, text } = self;
        match severity {
            Severity::Error => write!(f, "{path}:{line}: {text}"),
            Severity::Warning => write!(f, "{path}:{line}: warning: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_can_be_clicked() {
        let finding = LintFinding::error("a/b.rs", 7, "`unsafe` here, expected it elsewhere");
        assert_eq!(finding.to_string(), "a/b.rs:7: `unsafe` here, expected it elsewhere");
        let finding = LintFinding::warning("a/b.rs", 1, "long");
        assert_eq!(finding.to_string(), "a/b.rs:1: warning: long");
    }
}
