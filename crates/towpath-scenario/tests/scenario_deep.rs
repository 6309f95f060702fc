//! Scenarios designed to exhaust the reader (denial of service).

use towpath_scenario::{Scenario, no_files};

/// Asserts that the text is rejected quickly, with a short message.
fn assert_rejected(text: &str) {
    let errors =
        Scenario::parse("deep.toml", text, &no_files).expect_err("nothing of this is a scenario");
    assert!(errors.to_string().lines().count() < 100);
}

#[test]
fn deep_tables_do_not_exhaust_the_stack() {
    let dotted = vec!["a"; 400_000].join(".");
    assert_rejected(&format!("[expect]\n{dotted} = 1"));
    assert_rejected(&format!("[hosts.x.sysctl]\n{dotted} = 1"));
    assert_rejected(&format!("[expect.{dotted}]\n"));
    assert_rejected(&format!("name = {}", "[".repeat(900_000)));
    assert_rejected(&format!("name = {}", "{a=".repeat(300_000)));
}
