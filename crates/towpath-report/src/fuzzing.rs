//! Body of the fuzz target `result`.

use std::io::BufRead;

use towpath_result::input::ReadBudget;
use towpath_result::store::StoredRun;
use towpath_result::store::read_run_within;

use crate::{Comparison, html, table, warnings};

/// Read limit, far below a command's, so that the fuzzer finds excessive memory use soon.
const MAX_BYTES: u64 = 4_000_000;

/// Reads an untrusted result and renders it in every form.
pub fn result(input: impl BufRead) {
    let Ok(run) = read_run_within(input, &ReadBudget::of(MAX_BYTES)) else { return };
    let runs = [StoredRun::new(run, Some("fuzz".to_owned()))];
    let text = table(&runs, 100, false);
    assert!(
        !text.chars().any(|c| towpath_result::format::text::deceives(c) && c != '\n'),
        "a terminal is commanded"
    );
    assert!(html(&runs).matches("<script").count() == 2, "a page has another script");
    let comparison = Comparison::of(&runs, 1);
    let _ = (comparison.table(100, false), comparison.html(), comparison.json(), warnings(&runs));
}
