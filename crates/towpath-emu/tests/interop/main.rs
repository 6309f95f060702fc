//! Our own stack with the kernel's, over emulated links.
//!
//! The matrix has both roles, one to four paths, both families, with and without DSS checksums, on
//! clean and on impaired links.
//!
//! Every case sends a stream in each direction concurrently, compares SHA-256 at both ends, and
//! checks the kernel's counters for fallbacks and damage. Two kernels run the same cases first, to
//! test the harness.
//!
//! Without permission to make network namespaces the cases are skipped with a message; in CI they
//! fail.

#![expect(clippy::disallowed_methods, reason = "these tests wait for a real kernel")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::indexing_slicing, reason = "what the kernel says it read is there")]
#![expect(clippy::print_stdout, reason = "shown only on request")]

mod case;
mod ends;
mod joins;
mod selftest;

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use towpath_os::Namespace;

use case::{Case, Condition, Role};

/// One case at a time: they share two processors with their emulator.
static SERIAL: Mutex<()> = Mutex::new(());

/// Returns true if this process may make network namespaces; prints the reason otherwise.
fn can_create_namespaces(tests: &str) -> bool {
    let Err(reason) = Namespace::create() else { return true };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{tests} cannot run: {reason}");
    skip(tests, &format!("no network namespaces: {reason}"));
    false
}

/// Prints why tests are skipped. Not with `eprintln!`, which is hidden when a test passes.
fn skip(tests: &str, reason: &str) {
    io::stderr().write_all(format!("SKIPPED {tests}: {reason}\n").as_bytes()).unwrap();
}

/// Runs the cases one by one and reports all that failed.
fn run(role: Role, condition: Condition) {
    let tests = format!("{role:?} over {condition:?} links");
    if !can_create_namespaces(&tests) {
        return;
    }
    let mut failures = Vec::new();
    let cases = Case::matrix(role, condition);
    let count = cases.len();
    for case in cases {
        let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        if let Err(reason) = case.run() {
            failures.push(format!("{case}: {reason}"));
        }
        // Shown with `--nocapture`, to see what takes time.
        println!("{case}: {:.2} s", start.elapsed().as_secs_f64());
    }
    assert!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n"));
}

macro_rules! matrix {
    ($($name:ident: $role:ident, $condition:ident;)*) => {
        $(
            #[test]
            fn $name() {
                run(Role::$role, Condition::$condition);
            }
        )*
    };
}

matrix! {
    two_kernels_over_clean_links: Kernels, Clean;
    two_kernels_over_lossy_links: Kernels, Loss;
    two_kernels_over_reordering_links: Kernels, Reorder;
    our_client_over_clean_links: Client, Clean;
    our_client_over_lossy_links: Client, Loss;
    our_client_over_links_with_bursts_of_loss: Client, Bursts;
    our_client_over_links_with_jitter: Client, Jitter;
    our_client_over_reordering_links: Client, Reorder;
    our_client_over_duplicating_and_corrupting_links: Client, Damage;
    our_client_over_rough_links: Client, Rough;
    our_server_over_clean_links: Server, Clean;
    our_server_over_lossy_links: Server, Loss;
    our_server_over_links_with_bursts_of_loss: Server, Bursts;
    our_server_over_links_with_jitter: Server, Jitter;
    our_server_over_reordering_links: Server, Reorder;
    our_server_over_duplicating_and_corrupting_links: Server, Damage;
    our_server_over_rough_links: Server, Rough;
    our_stack_at_both_ends_over_clean_links: Both, Clean;
    our_stack_at_both_ends_over_lossy_links: Both, Loss;
    our_stack_at_both_ends_over_reordering_links: Both, Reorder;
}
