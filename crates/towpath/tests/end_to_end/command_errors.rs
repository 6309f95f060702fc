//! Error messages for wrong command lines and missing features of the machine.

use crate::program::TestDir;
use crate::scenario_errors::refused;

macro_rules! error_snapshots {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(refused(&TestDir::new(), &$arguments));
        })*
    };
}

error_snapshots! {
    no_verb: [];
    unknown_verb: ["rum", "two-links"];
    no_scenario: ["run"];
    no_repetition: ["run", "two-links", "--repeat", "0"];
    too_many_repetitions: ["run", "two-links", "--repeat", "1001"];
    unknown_transport: ["run", "two-links", "--transport", "foo"];
    unknown_world: ["run", "two-links", "--world", "moon"];
    unknown_backend: ["run", "two-links", "--backend", "tap"];
    seed_that_is_not_a_number: ["run", "two-links", "--seed", "one"];
    option_that_is_unknown: ["run", "two-links", "--jsn"];
    world_of_a_later_version: ["run", "two-links", "--world", "live"];
    kernel_in_the_simulated_world: ["run", "two-links", "--world", "sim", "--stack", "kernel:left"];
    check_without_a_host: ["check"];
    measure_without_a_host: ["measure"];
    measure_of_an_unknown_pattern: ["measure", "127.0.0.1", "flood"];
    measure_of_a_key_without_meaning: ["measure", "127.0.0.1", "ping", "-P", "4"];
    measure_of_an_invalid_time: ["measure", "127.0.0.1", "-t", "soon"];
    measure_with_an_unknown_metric: ["measure", "127.0.0.1", "--expect", "speed >= 1 Mbit/s"];
    measure_from_an_invalid_address: ["measure", "127.0.0.1", "-B", "here"];
    measure_on_a_closed_port: ["measure", "127.0.0.1", "-p", "1", "--transport", "tcp"];
    server_without_its_secret: ["server", "--secret-file", "missing.txt"];
    server_on_an_invalid_port: ["server", "--port", "70000"];
    result_that_is_missing: ["report", "missing.zst"];
    no_result: ["report"];
    lab_on_an_unknown_host: ["lab", "two-links", "--host", "nobody", "--", "true"];
    lab_with_a_program_that_is_missing: ["lab", "two-links", "no-such-program"];
    show_of_an_unknown_scenario: ["scenarios", "show", "two-link"];
    check_of_a_missing_file: ["scenarios", "check", "missing.toml"];
    schema_of_something_else: ["schema", "reports"];
    set_of_a_mistyped_key: ["run", "two-links", "--set", "paths.first.dely=3ms"];
    set_of_a_key_without_its_table: ["run", "two-links", "--set", "delay=3ms"];
    set_that_does_not_say_which_path: ["run", "two-links", "--set", "paths.rate=3 Mbit/s"];
    set_of_an_unknown_path: ["run", "two-links", "--set", "path.wifi.delay=3ms"];
    set_without_a_value: ["run", "two-links", "--set", "paths.first.rate"];
    set_to_a_wrong_unit: ["run", "two-links", "--set", "paths.first.rate=50 Mbps"];
    set_to_a_number_without_unit: ["compare", "two-links", "--set", "flows.duration=5"];
    duration_of_a_ping: ["run", "latency-under-load", "--set", "flows.9.duration=5 s"];
    duration_before_an_event: ["run", "wifi-cellular-handover", "--duration", "2s"];
    duration_that_is_a_transport: ["run", "two-links", "-t", "tcp,mptcp"];
    scheduler_that_does_not_exist:
        ["run", "two-links", "--world", "sim", "--scheduler", "fastest"];
    congestion_control_that_does_not_exist: ["run", "two-links", "--world", "sim", "-C", "vegas2"];
    world_by_its_old_short_option: ["run", "two-links", "-w", "sim"];
    repetitions_by_their_old_letter: ["run", "two-links", "-n", "3"];
    seeds_by_their_old_letter: ["sweep", "plan.toml", "-n", "3"];
    rounds_by_their_old_letter: ["monitor", "-n", "3"];
    interface_by_tcpdumps_letter: ["trace", "-i", "any"];
    file_by_tcpdumps_letter: ["trace", "-r", "capture.pcap"];
    reverse_in_a_scenario: ["run", "two-links", "-R"];
    two_scenarios: ["run", "two-links", "wifi-3g"];
    measure_of_udp_as_iperf3: ["measure", "127.0.0.1", "-u"];
    measure_with_iperf3s_client_option: ["measure", "-c", "127.0.0.1"];
    measure_of_a_ping_for_a_time: ["measure", "127.0.0.1", "ping", "-t", "1"];
    measure_of_bytes_of_a_video: ["measure", "127.0.0.1", "video", "-n", "1M"];
    measure_with_an_unknown_preset: ["measure", "127.0.0.1", "--preset", "fast"];
    measure_with_an_unknown_key: ["measure", "127.0.0.1", "ping", "--set", "cuont=5"];
    measure_of_two_patterns: ["measure", "127.0.0.1", "ping", "web"];
    measure_with_an_unknown_congestion_control: ["measure", "127.0.0.1", "-C", "Cubic"];
    server_as_a_daemon: ["server", "-D"];
    doctor_of_a_server_without_its_option: ["doctor", "127.0.0.1:5210"];
    exec_without_dashes: ["exec", "curl", "https://example.org"];
    lab_without_dashes: ["lab", "two-links", "ping", "10.64.1.2"];
    sweep_without_a_plan: ["sweep"];
    trace_of_nothing: ["trace"];
    verb_of_another_tool: ["iperf3", "-c", "127.0.0.1"];
    verb_that_is_a_world: ["sim", "two-links"];
    verb_that_is_a_scenario: ["two-links"];
    completions_of_an_unknown_shell: ["completions", "tcsh"];
    man_without_a_folder: ["man"];
}

#[test]
fn a_file_that_is_not_a_result_is_refused() {
    let folder = TestDir::new();
    folder.write("notes.jsonl", "{\"type\":\"note\"}\n");
    insta::assert_snapshot!(refused(&folder, &["report", "notes.jsonl"]));
}

#[test]
fn a_result_with_an_invalid_compression_is_refused() {
    let folder = TestDir::new();
    folder.write("notes.jsonl.zst", "not compressed at all");
    insta::assert_snapshot!(refused(&folder, &["report", "notes.jsonl.zst"]));
}

#[test]
fn a_folder_without_results_is_refused() {
    let folder = TestDir::new();
    folder.write("notes.txt", "");
    insta::assert_snapshot!(refused(&folder, &["report", "."]));
}

#[test]
fn an_output_directory_that_is_a_file_is_refused() {
    let folder = TestDir::new();
    folder.write("results", "");
    insta::assert_snapshot!(refused(
        &folder,
        &["run", "two-links", "--world", "sim", "--out", "results"]
    ));
}
