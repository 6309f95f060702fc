//! What a user sees when the command line is wrong, or the machine does not do what is asked.

use crate::program::Folder;
use crate::wrong_scenarios::refused;

macro_rules! wrong {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(refused(&Folder::new(), &$arguments));
        })*
    };
}

wrong! {
    no_verb: [];
    unknown_verb: ["rum", "two-links"];
    no_scenario: ["run"];
    no_repetition: ["run", "two-links", "--repeat", "0"];
    too_many_repetitions: ["run", "two-links", "--repeat", "1001"];
    unknown_transport: ["run", "two-links", "--transport", "foo"];
    unknown_world: ["run", "two-links", "--world", "moon"];
    unknown_backend: ["run", "two-links", "--backend", "tap"];
    seed_that_is_no_number: ["run", "two-links", "--seed", "one"];
    option_that_is_unknown: ["run", "two-links", "--jsn"];
    world_of_a_later_version: ["run", "two-links", "--world", "live"];
    kernel_in_the_simulated_world: ["run", "two-links", "--world", "sim", "--stack", "kernel:left"];
    check_without_a_host: ["check"];
    measure_without_a_host: ["measure"];
    measure_of_an_unknown_pattern: ["measure", "127.0.0.1", "flood"];
    measure_of_a_key_without_meaning: ["measure", "127.0.0.1", "ping", "-P", "4"];
    measure_of_a_time_that_is_none: ["measure", "127.0.0.1", "-t", "soon"];
    measure_with_an_unknown_figure: ["measure", "127.0.0.1", "--expect", "speed >= 1 Mbit/s"];
    measure_from_no_address: ["measure", "127.0.0.1", "-B", "here"];
    measure_where_nobody_listens: ["measure", "127.0.0.1", "-p", "1", "--transport", "tcp"];
    server_without_its_secret: ["server", "--secret-file", "missing.txt"];
    server_on_a_port_that_is_none: ["server", "--port", "70000"];
    result_that_is_missing: ["report", "missing.zst"];
    no_result: ["report"];
    lab_on_an_unknown_host: ["lab", "two-links", "--host", "nobody", "--", "true"];
    lab_with_a_program_that_is_missing: ["lab", "two-links", "no-such-program"];
    show_of_an_unknown_scenario: ["scenarios", "show", "two-link"];
    check_of_a_missing_file: ["scenarios", "check", "missing.toml"];
    schema_of_something_else: ["schema", "reports"];
}

#[test]
fn a_file_that_is_no_result_is_refused() {
    let folder = Folder::new();
    folder.write("notes.jsonl", "{\"type\":\"note\"}\n");
    insta::assert_snapshot!(refused(&folder, &["report", "notes.jsonl"]));
}

#[test]
fn a_result_that_is_not_compressed_as_it_says_is_refused() {
    let folder = Folder::new();
    folder.write("notes.jsonl.zst", "not compressed at all");
    insta::assert_snapshot!(refused(&folder, &["report", "notes.jsonl.zst"]));
}

#[test]
fn a_folder_without_results_is_refused() {
    let folder = Folder::new();
    folder.write("notes.txt", "");
    insta::assert_snapshot!(refused(&folder, &["report", "."]));
}

#[test]
fn results_into_a_place_that_is_a_file_are_refused() {
    let folder = Folder::new();
    folder.write("results", "");
    insta::assert_snapshot!(refused(&folder, &["run", "two-links", "--out", "results"]));
}
