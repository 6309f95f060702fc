//! QUIC and Multipath QUIC in the emulated world.

use std::fs::File;

use towpath_result::{EventKind, Record};
use towpath_scenario::DataDirection;

use crate::program::{
    TWO_PATHS, TestDir, acquire_emulator, acquire_emulator_for_timing, busy, skip,
};

fn scenario_with_flow(keys: &str) -> String {
    format!("{TWO_PATHS}[[flows]]\nfrom = \"phone\"\nto = \"server\"\n{keys}\n")
}

#[test]
fn both_run_over_every_back_end_and_leave_results_and_a_proof() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", scenario_with_flow("pattern = \"bulk\"\nsize = \"3 MB\""));
    for backend in ["packet", "tun"] {
        let tun = File::options().read(true).write(true).open("/dev/net/tun");
        if let (Err(error), "tun") = (tun, backend) {
            skip("both_run_over_every_back_end", &format!("/dev/net/tun: {error}"));
            continue;
        }
        let arguments = ["run", "scenario.toml", "-T", "quic,mpquic", "--backend", backend];
        let output = folder.run(&[&arguments[..], &["--json", "-o", backend]].concat());
        assert_eq!(output.code, Some(0), "{output}");
        let [quic, mpquic] = output.json().try_into().unwrap();
        for (line, used) in [(&quic, false), (&mpquic, true)] {
            let summary = &line["summary"];
            assert_eq!(summary["flows"][0]["completed"], true, "{output}");
            assert_eq!(summary["flows"][0]["bytes"], 3_000_000, "{output}");
            assert_eq!(summary["multipath"]["used"], used, "{output}");
        }
        let paths = &quic["summary"]["multipath"]["paths_used"];
        assert_eq!(*paths, serde_json::json!(["wifi"]), "{output}");
        let paths = &mpquic["summary"]["multipath"]["paths_used"];
        assert_eq!(*paths, serde_json::json!(["wifi", "cellular"]), "{output}");
        let stored = folder.stored(&format!("{backend}/mpquic-1.jsonl.zst"));
        assert!(stored.meta.conditions["quic"].contains("noq-proto"));
        let has_counter = |name: &str| {
            stored.records.iter().any(|record| {
                matches!(record, Record::Counter(counter) if counter.name == name && counter.after > 0)
            })
        };
        assert!(has_counter("Towpath.PathsEstablished"), "{output}");
    }
}

#[test]
fn data_flows_down_and_in_both_directions_over_parallel_streams() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "pattern = \"bulk\"\nsize = \"2 MB\"\ndirection = \"down\"";
    let summary = TestDir::new().result(&scenario_with_flow(keys), "quic").summary.unwrap();
    let [flow] = summary.flows.as_slice() else { panic!("{:#?}", summary.flows) };
    assert_eq!((flow.direction, flow.bytes), (DataDirection::Down, 2_000_000));
    let keys = "pattern = \"iperf\"\nduration = \"1 s\"\ndirection = \"both\"\nstreams = 3";
    let summary = TestDir::new().result(&scenario_with_flow(keys), "mpquic").summary.unwrap();
    let directions: Vec<_> = summary.flows.iter().map(|flow| flow.direction).collect();
    assert_eq!(directions, [DataDirection::Up, DataDirection::Down]);
    assert!(summary.flows.iter().all(|flow| flow.bytes > 0), "{:#?}", summary.flows);
}

#[test]
fn requests_of_both_ends_are_answered_on_streams_of_one_connection() {
    let Some(_permit) = acquire_emulator() else { return };
    let keys = "pattern = \"interactive\"\nduration = \"1 s\"";
    let result = TestDir::new().result(&scenario_with_flow(keys), "mpquic");
    let answers = result.records.iter().filter_map(|record| {
        let Record::Message(message) = record else { return None };
        Some(message.answered_ns.is_some())
    });
    // Ten of each end.
    assert_eq!(answers.collect::<Vec<_>>(), [true; 20]);
    let summary = result.summary.unwrap();
    assert!(summary.flows.iter().all(|flow| flow.completed), "{:#?}", summary.flows);
}

#[test]
fn a_path_whose_interface_goes_down_is_given_up_at_once_and_comes_back() {
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let keys = "pattern = \"iperf\"\nduration = \"4 s\"\n\
                [[timeline]]\nat = \"1 s\"\npath = \"wifi\"\nset = \"down\"\nmode = \"interface\"\nhost = \"phone\"\n\
                [[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"up\"";
    let result = TestDir::new().result(&scenario_with_flow(keys), "mpquic");
    let event_ns = |text: &str| {
        result.records.iter().find_map(|record| {
            let Record::Event(event) = record else { return None };
            let is_on_phone =
                event.kind == EventKind::Subflow && event.host.as_deref() == Some("phone");
            (is_on_phone && event.text.contains(text)).then_some(event.t_ns)
        })
    };
    // Not at the idle timeout, which would have another reason.
    let abandoned_ns = event_ns("on wifi abandoned: its address is gone").unwrap();
    // The first path has no event at its start, so this is the second one.
    let established_ns = event_ns("on wifi established").unwrap();
    assert!(
        abandoned_ns >= 1_000_000_000 && established_ns > 2_000_000_000,
        "{abandoned_ns} ns, {established_ns} ns"
    );
    let is_immediate = abandoned_ns < 1_500_000_000;
    assert!(is_immediate || busy(&result).is_some(), "given up at {abandoned_ns} ns");
    let summary = result.summary.unwrap();
    assert!(summary.flows[0].completed, "{:#?}", summary.flows);
}
