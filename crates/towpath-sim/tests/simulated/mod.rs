//! Helpers that run scenarios in virtual time and keep their results.

use std::sync::Arc;

use towpath_result::store::write_record;
use towpath_result::{EventKind, Record, Summary};
use towpath_scenario::{Scenario, Transport, builtin, no_files};
use towpath_sim::{Components, SimJob, SimReport, run};

/// Completed run with its records and captures.
pub(crate) struct CompletedRun {
    pub(crate) report: SimReport,
    pub(crate) records: Vec<Record>,
    /// Content of the result file.
    pub(crate) bytes: Vec<u8>,
    /// Captures, one for each host, or empty.
    pub(crate) captures: Vec<Vec<u8>>,
}

impl CompletedRun {
    pub(crate) fn summary(&self) -> &Summary {
        match self.records.last() {
            Some(Record::Summary(summary)) => summary,
            other => panic!("no summary: {other:?}, {:?}", self.report),
        }
    }

    pub(crate) fn goodput_mbps(&self) -> f64 {
        self.summary().flows[0].goodput_bps / 1e6
    }

    pub(crate) fn events(&self, kind: EventKind) -> Vec<&str> {
        let events = self.records.iter().filter_map(|record| {
            let Record::Event(event) = record else { return None };
            (event.kind == kind).then_some(event.text.as_str())
        });
        events.collect()
    }
}

pub(crate) fn scenario(text: &str) -> Scenario {
    Scenario::parse("test.toml", text, &no_files).unwrap_or_else(|errors| panic!("{errors}"))
}

pub(crate) fn builtin_scenario(name: &str) -> Scenario {
    let entry = builtin().iter().find(|builtin| builtin.name == name).unwrap();
    entry.scenario().unwrap()
}

pub(crate) fn simulate(
    scenario: &Scenario,
    transport: Transport,
    repeat: u32,
    capture: bool,
) -> CompletedRun {
    let job = SimJob {
        scenario: Arc::new(scenario.clone()),
        transport,
        repeat,
        trace: true,
        components: Components::default(),
    };
    let (mut records, mut bytes, mut captures) = (Vec::new(), Vec::new(), Vec::<Vec<u8>>::new());
    if capture {
        captures = vec![Vec::new(); scenario.hosts.len()];
    }
    let writers = captures.iter_mut().map(|out| out as &mut (dyn std::io::Write + Send)).collect();
    let report = run(&job, writers, &mut |record| {
        write_record(&mut bytes, record)?;
        records.push(record.clone());
        Ok(())
    });
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    CompletedRun { report, records, bytes, captures }
}
