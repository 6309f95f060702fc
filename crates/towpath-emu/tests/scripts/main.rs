//! Every script of the repository on the running kernel, each in a network namespace of its own.
//!
//! The same scripts run on our own stack in `towpath-script`. Times are real here, so a script with
//! wrong times is tried again after the others. Real errors of the kernel repeat.

#![expect(clippy::disallowed_methods, reason = "these tests wait for a real kernel")]
#![expect(clippy::indexing_slicing, reason = "what the kernel says it read is there")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![expect(clippy::print_stdout, reason = "shown only on request")]

mod kernel;

use std::io::{self, Write as _};
use std::sync::Mutex;
use std::thread;

use towpath_os::Namespace;
use towpath_script::{Script, library, run};
use towpath_sockets::stack::StackDevice;

use kernel::Kernel;

/// Maximum concurrent scripts at the first try: they mostly wait.
const MAX_CONCURRENT: usize = 16;
/// Maximum concurrent scripts at the second try and later.
const MAX_CONCURRENT_RETRIES: usize = 4;
/// Maximum number of tries.
const MAX_TRIES: usize = 4;

/// Environment variable that selects scripts by a part of their names.
const FILTER_ENV: &str = "TOWPATH_SCRIPT";

/// Returns the reason why scripts cannot run here; `None` if they can.
fn missing_prerequisite() -> Option<String> {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(reason) => return Some(format!("no network namespaces: {reason}")),
    };
    match namespace.run(|| StackDevice::plain_tun("probe").map(drop)) {
        Ok(Ok(())) => None,
        Ok(Err(reason)) | Err(reason) => Some(format!("no TUN devices: {reason}")),
    }
}

/// Runs one script in the calling thread, which must not be used afterwards.
fn run_script(script: &Script) -> Result<(), String> {
    let mut host = Kernel::new(script.transport)?;
    let trace = run(script, &mut host).map_err(|failure| failure.to_string())?;
    if std::env::var_os(FILTER_ENV).is_some() {
        println!("{}\n{trace}", script.name);
    }
    Ok(())
}

/// Runs scripts on `max_concurrent` threads; returns the failed ones, each with its reason.
fn run_scripts<'a>(scripts: &[&'a Script], max_concurrent: usize) -> Vec<(&'a Script, String)> {
    let remaining = Mutex::new(scripts.iter());
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..max_concurrent.min(scripts.len()) {
            scope.spawn(|| {
                loop {
                    let Some(script) = remaining.lock().unwrap().next() else { break };
                    // A namespace belongs to a thread.
                    let result = thread::scope(|scope| scope.spawn(|| run_script(script)).join());
                    if let Err(reason) = result.unwrap_or_else(|_| Err("panicked".to_owned())) {
                        failures.lock().unwrap().push((*script, reason));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    failures
}

#[test]
fn every_script_passes_on_the_kernel() {
    if let Some(reason) = missing_prerequisite() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "scripts cannot run: {reason}");
        // Not `eprintln!`, which is hidden when a test passes.
        let text = format!("SKIPPED scripts against the kernel: {reason}\n");
        io::stderr().write_all(text.as_bytes()).unwrap();
        return;
    }
    let filter = std::env::var(FILTER_ENV).ok();
    let scripts = library::all().unwrap_or_else(|error| panic!("{error}"));
    let selected: Vec<&Script> = scripts
        .iter()
        .filter(|script| filter.as_deref().is_none_or(|filter| script.name.contains(filter)))
        .collect();
    let mut failures = run_scripts(&selected, MAX_CONCURRENT);
    for _ in 1..MAX_TRIES {
        for (script, _) in &failures {
            println!("again: {}", script.name);
        }
        let retried: Vec<&Script> = failures.iter().map(|(script, _)| *script).collect();
        failures = run_scripts(&retried, MAX_CONCURRENT_RETRIES);
    }
    let reasons: Vec<&str> = failures.iter().map(|(_, reason)| reason.as_str()).collect();
    assert!(reasons.is_empty(), "{} failed:\n{}", reasons.len(), reasons.join("\n"));
}
