//! Every timeline action, during a transfer that Multipath TCP completes.

use crate::program::{TWO_PATHS, TestDir, acquire_emulator_for_timing, timeline_events};

/// Runs the events during a transfer that lasts longer than all of them.
fn assert_survived(size: &str, events: &[&str], expected: &[&str]) {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let folder = TestDir::new();
    let events: Vec<_> = events.iter().map(|keys| format!("[[timeline]]\n{keys}\n")).collect();
    let flow = format!(
        "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\nsize = \"{size}\"\n"
    );
    let result = folder.result(&format!("{TWO_PATHS}{}{flow}", events.concat()), "mptcp");
    assert_eq!(timeline_events(&result), expected);
    let summary = result.summary.unwrap();
    assert!(summary.flows[0].completed, "{summary:#?}");
    assert!(summary.multipath.used, "{summary:#?}");
    let failed_events: Vec<_> =
        summary.warnings.iter().filter(|w| w.text.contains("was not done")).collect();
    assert!(failed_events.is_empty(), "{failed_events:?}");
}

macro_rules! survives {
    ($($name:ident: $size:literal, $events:expr, $expected:expr;)*) => {
        $(#[test]
        fn $name() {
            assert_survived($size, &$events, &$expected);
        })*
    };
}

// 6 MB take at least 0.6 s over both paths, 10 MB at least 1 s.
survives! {
    a_path_that_vanishes_silently: "6 MB",
        ["at = \"300 ms\"\npath = \"wifi\"\nset = \"down\""],
        ["wifi down"];
    a_path_that_loses_its_carrier: "6 MB",
        ["at = \"300 ms\"\npath = \"wifi\"\nset = \"down\"\nmode = \"carrier\""],
        ["wifi down (carrier)"];
    an_interface_switched_off_on_the_first_host: "6 MB",
        ["at = \"300 ms\"\npath = \"wifi\"\nset = \"down\"\nmode = \"interface\"\nhost = \"phone\""],
        ["wifi down (interface of phone)"];
    an_interface_switched_off_on_the_second_host: "6 MB",
        ["at = \"300 ms\"\npath = \"cellular\"\nset = \"down\"\nmode = \"interface\"\n\
          host = \"server\""],
        ["cellular down (interface of server)"];
    a_path_that_comes_back: "10 MB",
        ["at = \"200 ms\"\npath = \"wifi\"\nset = \"down\"",
         "at = \"500 ms\"\npath = \"wifi\"\nset = \"up\""],
        ["wifi down", "wifi up"];
    a_carrier_that_comes_back: "10 MB",
        ["at = \"200 ms\"\npath = \"wifi\"\nset = \"down\"\nmode = \"carrier\"",
         "at = \"500 ms\"\npath = \"wifi\"\nset = \"up\""],
        ["wifi down (carrier)", "wifi up"];
    an_interface_that_comes_back: "10 MB",
        ["at = \"200 ms\"\npath = \"wifi\"\nset = \"down\"\nmode = \"interface\"\nhost = \"phone\"",
         "at = \"500 ms\"\npath = \"wifi\"\nset = \"up\""],
        ["wifi down (interface of phone)", "wifi up"];
    rate_delay_and_loss_that_change: "6 MB",
        ["at = \"200 ms\"\npath = \"wifi\"\nset = \"rate\"\nrate = \"20 Mbit/s\"",
         "at = \"300 ms\"\npath = \"wifi\"\nset = \"delay\"\ndelay = \"20 ms\"",
         "at = \"400 ms\"\npath = \"cellular\"\nset = \"loss\"\nloss = \"1 %\""],
        ["wifi rate 20 Mbit/s", "wifi delay 20 ms", "cellular loss 1 %"];
    an_address_that_changes: "6 MB",
        ["at = \"300 ms\"\npath = \"wifi\"\nset = \"address\"\nhost = \"phone\""],
        ["wifi new address of phone"];
}

#[test]
fn a_path_that_fades() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let events = "[[timeline]]\nat = \"100 ms\"\npath = \"wifi\"\nset = \"fade\"\n\
        over = \"200 ms\"\nrate = \"10 Mbit/s\"\n";
    let flow =
        "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\nsize = \"6 MB\"\n";
    let result = TestDir::new().result(&format!("{TWO_PATHS}{events}{flow}"), "mptcp");
    let steps = timeline_events(&result);
    assert!(steps.len() >= 4, "a step each 50 ms: {steps:?}");
    assert!(steps.last().unwrap().contains("10 Mbit/s"), "{steps:?}");
    assert!(result.summary.unwrap().flows[0].completed);
}
