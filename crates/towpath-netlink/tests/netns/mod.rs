//! A user and network namespace of a test's own.

use std::env;
use std::io::{self, Write};
use std::process::Command;

/// Environment variable set in the process that runs a test inside its namespaces.
const INSIDE_ENV: &str = "TOWPATH_TEST_INSIDE";

/// Runs `body` in a new user and network namespace, by running the test `name` once more there.
pub(crate) fn in_namespace(name: &str, body: fn()) {
    if env::var_os(INSIDE_ENV).is_some() {
        return body();
    }
    if let Err(reason) = namespaces_permitted() {
        assert!(env::var("CI").as_deref() != Ok("true"), "{name} cannot run: {reason}");
        // Not `eprintln!`, which is hidden when a test passes.
        io::stderr().write_all(format!("SKIPPED {name}: {reason}\n").as_bytes()).unwrap();
        return;
    }
    let output = Command::new("timeout")
        .args(["--foreground", "--kill-after=5", "200", "unshare", "-Urn"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE_ENV, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "no test is called {name}:\n{stdout}");
}

fn namespaces_permitted() -> Result<(), String> {
    let output = Command::new("unshare").args(["-Urn", "true"]).output();
    let output = output.map_err(|error| format!("cannot run `unshare`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("no user namespaces here: {}", stderr.trim()))
}
