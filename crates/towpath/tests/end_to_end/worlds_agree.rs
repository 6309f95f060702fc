//! Our own stack in the simulated and in the emulated world: the same traffic, the same behaviour.

use std::time::Duration;

use towpath_result::Record;
use towpath_result::store::RunResult;
use towpath_scenario::World;

use crate::program::{TestDir, acquire_emulator_for_timing, busy};

/// Runs a scenario over our own stack on both hosts in the simulated and the emulated world.
///
/// `None` if this machine cannot emulate.
fn results(flow: &str, transport: &str) -> Option<[RunResult; 2]> {
    let _permit = acquire_emulator_for_timing()?;
    let folder = TestDir::new();
    let host = "stack = \"towpath\"\n";
    let path = |name: &str, delay: &str| {
        format!(
            "[paths.{name}]\nbetween = [\"phone\", \"server\"]\nrate = \"20 Mbit/s\"\ndelay = \"{delay}\"\n"
        )
    };
    let scenario = format!(
        "name = \"worlds\"\n[hosts.phone]\n{host}[hosts.server]\n{host}{}{}[[flows]]\n\
         from = \"phone\"\nto = \"server\"\n{flow}",
        path("wifi", "60 ms"),
        path("cellular", "80 ms"),
    );
    folder.write("scenario.toml", scenario);
    let run = |world: &str, file: &str| {
        let arguments = ["run", "scenario.toml", "-q", "-T", transport, "-W", world, "-o", world];
        let output = folder.run(&arguments);
        assert_eq!(output.code, Some(0), "{output}");
        folder.stored(&format!("{world}/{file}{transport}-1.jsonl.zst"))
    };
    let results = [run("sim", "sim-"), run("emu", "")];
    assert_eq!(results.each_ref().map(|run| run.meta.world), [World::Sim, World::Emu]);
    Some(results)
}

/// Returns the median time from the due time of a request until the other end has read it.
fn median_delivery(run: &RunResult) -> Duration {
    let mut times: Vec<_> = run
        .records
        .iter()
        .filter_map(|record| {
            let Record::Message(message) = record else { return None };
            Some(message.delivered_ns?.saturating_sub(message.due_ns))
        })
        .collect();
    times.sort_unstable();
    Duration::from_nanos(times[times.len() / 2])
}

#[test]
fn a_message_does_not_wait_for_the_acknowledgement_of_the_previous_one() {
    // With Nagle's algorithm, a request waits for the next one or for the acknowledgement of the
    // previous one, so for 20 ms.
    let flow = "pattern = \"reqres\"\nrequest = \"100 B\"\nreply = \"20 B\"\nperiod = \"20 ms\"\n\
                duration = \"2 s\"\n";
    let Some([simulated, emulated]) = results(flow, "tcp") else { return };
    let (expected, measured) = (median_delivery(&simulated), median_delivery(&emulated));
    assert!(expected.as_millis() == 60, "{expected:?}");
    if busy(&emulated).is_none() {
        assert!(measured < expected + Duration::from_millis(10), "{measured:?}");
    }
}

#[test]
fn switches_of_the_scheduler_are_kept_after_the_connection_has_closed() {
    // The connections of the first flow close before the first sample, which is due at 1 s.
    let flow = "pattern = \"reqres\"\nrequest = \"30 kB\"\nreply = \"30 kB\"\nperiod = \"20 ms\"\n\
                duration = \"300 ms\"\n[[flows]]\nfrom = \"phone\"\nto = \"server\"\n\
                pattern = \"bulk\"\nsize = \"100 kB\"\nstart = \"1.5 s\"\n\
                [run]\nsample = \"1 s\"\n";
    let Some(results) = results(flow, "mptcp") else { return };
    for run in &results {
        let stack = run.summary.as_ref().unwrap().flows[0].stack;
        let switches = stack.and_then(|stack| stack.switches).unwrap_or(0);
        assert!(switches > 0, "{:?}: {stack:?}", run.meta.world);
    }
}
