//! `cargo xtask attack-tests`: every attack that SECURITY.md names, in full.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::{Result, cargo};

/// Environment variable and value that make the attacks run in full. The tests read it in one
/// place.
const SCOPE_VARIABLE: (&str, &str) = ("TOWPATH_ATTACKS", "whole");

/// Test selections: the installed program, our stack and QUIC in virtual time, the memory account
/// of a server, stored inputs of the fuzz targets.
const PARTS: [&[&str]; 7] = [
    &["--package", "towpath", "--test", "end_to_end", "security::"],
    &["--package", "towpath", "--test", "end_to_end", "exec::a_program_at_its_limit"],
    &["--package", "towpath-host", "--lib", "supervise"],
    &["--package", "towpath-mptcp", "--test", "syn_flood", "--test", "memory"],
    &["--package", "towpath-quic", "--lib", "reflection"],
    &["--package", "towpath-live", "--lib", "the_account_is_the_memory"],
    &[
        "--package",
        "towpath-live",
        "--package",
        "towpath-result",
        "--package",
        "towpath-study",
        "--lib",
        "fuzz",
    ],
];

/// Runs all parts, also after a failure; returns false if one failed.
pub(crate) fn run(root: &Path, out: &mut dyn Write) -> Result<bool> {
    let mut all_passed = true;
    for part in PARTS {
        writeln!(out, "\n== cargo test {}", part.join(" "))?;
        let mut test = cargo(root);
        test.args(["test", "--locked", "--no-fail-fast"]).args(part);
        test.env(SCOPE_VARIABLE.0, SCOPE_VARIABLE.1).stdin(Stdio::null());
        all_passed &= test.status()?.success();
    }
    writeln!(out, "\n== xtask attack-tests {}", if all_passed { "passed" } else { "failed" })?;
    Ok(all_passed)
}
