//! Every script of the repository on our own stack, in virtual time.

#![expect(clippy::print_stdout, reason = "shown only on request")]

use towpath_script::{OwnStack, library, run};

#[test]
fn every_script_passes_on_our_own_stack() {
    let name_filter = std::env::var("TOWPATH_SCRIPT").ok();
    let scripts = library::all().unwrap_or_else(|error| panic!("{error}"));
    let selected = scripts.iter().filter(|script| {
        name_filter.as_deref().is_none_or(|name_filter| script.name.contains(name_filter))
    });
    let mut failures = Vec::new();
    for script in selected {
        let mut host = OwnStack::new(script.transport);
        match run(script, &mut host) {
            // Printed with `--nocapture`, for writing new scripts.
            Ok(trace) if name_filter.is_some() => println!("{}\n{trace}", script.name),
            Ok(_) => {}
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
