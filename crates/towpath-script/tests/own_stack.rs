//! Every script of the repository on our own stack, in virtual time.

#![expect(clippy::print_stdout, reason = "shown only on request")]

use towpath_script::{OwnStack, library, run};

#[test]
fn every_script_passes_on_our_own_stack() {
    let only = std::env::var("TOWPATH_SCRIPT").ok();
    let scripts = library::all().unwrap_or_else(|error| panic!("{error}"));
    let wanted = scripts
        .iter()
        .filter(|script| only.as_deref().is_none_or(|only| script.name.contains(only)));
    let mut failures = Vec::new();
    for script in wanted {
        let mut host = OwnStack::new(script.transport);
        match run(script, &mut host) {
            // Printed with `--nocapture`, for writing new scripts.
            Ok(trace) if only.is_some() => println!("{}\n{trace}", script.name),
            Ok(_) => {}
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
