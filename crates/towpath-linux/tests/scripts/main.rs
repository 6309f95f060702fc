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

use kernel::Kernel;
use towpath_linux::Namespace;
use towpath_linux::stack::StackDevice;
use towpath_script::{Script, library, run};

/// Concurrent scripts at the first try: they mostly wait.
const MAX_CONCURRENT: usize = 16;
/// Concurrent scripts at the second try and later.
const MAX_CONCURRENT_RETRIES: usize = 4;
/// Maximum number of tries.
const MAX_TRIES: usize = 4;

/// Environment variable that selects scripts by a part of their names.
const ONLY: &str = "TOWPATH_SCRIPT";

/// Returns the reason why scripts cannot run here; `None` if they can.
fn forbidden() -> Option<String> {
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
fn try_one(script: &Script) -> Result<(), String> {
    let mut host = Kernel::new(script.transport)?;
    let trace = run(script, &mut host).map_err(|failure| failure.to_string())?;
    if std::env::var_os(ONLY).is_some() {
        println!("{}\n{trace}", script.name);
    }
    Ok(())
}

/// Runs scripts on `at_once` threads; returns failed ones with the reason.
fn try_all<'a>(scripts: &[&'a Script], at_once: usize) -> Vec<(&'a Script, String)> {
    let left = Mutex::new(scripts.iter());
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once.min(scripts.len()) {
            scope.spawn(|| {
                loop {
                    let Some(script) = left.lock().unwrap().next() else { break };
                    // A namespace belongs to a thread.
                    let done = thread::scope(|scope| scope.spawn(|| try_one(script)).join());
                    if let Err(reason) = done.unwrap_or_else(|_| Err("panicked".to_owned())) {
                        failed.lock().unwrap().push((*script, reason));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    failed
}

#[test]
fn every_script_passes_on_the_kernel() {
    if let Some(reason) = forbidden() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "scripts cannot run: {reason}");
        // Not `eprintln!`, which is hidden when a test passes.
        let text = format!("SKIPPED scripts against the kernel: {reason}\n");
        io::stderr().write_all(text.as_bytes()).unwrap();
        return;
    }
    let only = std::env::var(ONLY).ok();
    let scripts = library::all().unwrap_or_else(|error| panic!("{error}"));
    let wanted: Vec<&Script> = scripts
        .iter()
        .filter(|script| only.as_deref().is_none_or(|only| script.name.contains(only)))
        .collect();
    let mut failed = try_all(&wanted, MAX_CONCURRENT);
    for _ in 1..MAX_TRIES {
        for (script, _) in &failed {
            println!("again: {}", script.name);
        }
        let again: Vec<&Script> = failed.iter().map(|(script, _)| *script).collect();
        failed = try_all(&again, MAX_CONCURRENT_RETRIES);
    }
    let reasons: Vec<&str> = failed.iter().map(|(_, reason)| reason.as_str()).collect();
    assert!(reasons.is_empty(), "{} failed:\n{}", reasons.len(), reasons.join("\n"));
}
