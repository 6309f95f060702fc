//! `cargo xtask abuse`: every attack that SECURITY.md names, in full.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::{Result, cargo};

/// Says to the attacks that they need not spare time. They read it in one place.
const EXTENT: (&str, &str) = ("TOWPATH_ABUSE", "whole");

/// What runs: on the installed program, on our stack in virtual time, and stored inputs of the fuzz
/// targets.
const PARTS: [&[&str]; 3] = [
    &["--package", "towpath", "--test", "end_to_end", "abuse::"],
    &["--package", "towpath-mptcp", "--test", "strangers", "--test", "memory"],
    &["--package", "towpath-measure", "--package", "towpath-study", "--lib", "fuzz"],
];

/// Runs all, whatever fails; false if something did.
pub(crate) fn run(root: &Path, out: &mut dyn Write) -> Result<bool> {
    let mut held = true;
    for part in PARTS {
        writeln!(out, "\n== cargo test {}", part.join(" "))?;
        let mut test = cargo(root);
        test.args(["test", "--locked", "--no-fail-fast"]).args(part);
        test.env(EXTENT.0, EXTENT.1).stdin(Stdio::null());
        held &= test.status()?.success();
    }
    writeln!(out, "\n== xtask abuse {}", if held { "passed" } else { "failed" })?;
    Ok(held)
}
