use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use towpath_result::{MultipathUse, PathStats, Summary};

use super::*;

const SCENARIO: &str = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
    rate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n[[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"bulk\"\n\
    duration = \"1 s\"\n";
const PLAN: &str = "name = \"t\"\nscenario = \"t.toml\"\nseeds = 5\n[[variants]]\nname = \"TCP\"\n\
    transport = \"tcp\"\n[[axes]]\nname = \"delay\"\nkeys = [\"paths.p.delay\"]\n\
    values = [\"1 ms\", \"2 ms\", \"3 ms\"]\n";
const SIM: RunSelection = RunSelection { world: World::Sim, quick: false, seeds: None };

fn load(name: &str) -> io::Result<String> {
    if name == "t.toml" { Ok(SCENARIO.to_owned()) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn sweep_spec() -> SweepSpec {
    SweepSpec::new(("plan.toml", PLAN), SIM, Some(4), &load).unwrap()
}

/// A temporary folder, removed when the test ends.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path); // may be left over from an earlier run
        Self(path)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // best effort
    }
}

/// Executes a run at once; every third one fails.
fn instant_run(run: &StudyRun) -> Result<Vec<Record>, String> {
    if run.index % 3 == 2 {
        return Err(format!("run {} fails", run.index));
    }
    let lost = PathStats { path: "p".into(), count: 100, answered: 50, ..PathStats::default() };
    let summary = Summary {
        ok: true,
        verdict: String::new(),
        flows: vec![],
        subflows: vec![],
        paths: vec![lost],
        multipath: MultipathUse::default(),
        cpu: None,
        account: None,
        warnings: vec![],
        expectations: vec![],
    };
    Ok(vec![Record::Summary(Box::new(summary))])
}

fn keep_going(_: usize, _: usize) -> bool {
    true
}

#[test]
fn the_keys_of_a_spec_are_computed_once_and_name_the_same_files() {
    let folder = TestDir::new("sweep-keys");
    let spec = sweep_spec();
    assert_eq!(spec.keys.iter().collect::<BTreeSet<_>>().len(), 15);
    let sweep = Sweep::begin(&folder.0, spec).unwrap();
    sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
    let reopened = Sweep::open(&folder.0).unwrap();
    assert!(reopened.spec.keys.is_empty(), "they are not stored");
    assert_eq!(reopened.status(), sweep.status());
    assert_eq!(reopened.status().chunks_done, 4);
    // Given keys are used as they are: those of another world name no existing file.
    let mut reversed = sweep_spec();
    reversed.keys.reverse();
    assert_eq!(Sweep::begin(&folder.0, reversed).unwrap().status().chunks_done, 0);
}

#[test]
fn a_stopped_sweep_resumes_and_has_every_run_once() {
    let folder = TestDir::new("sweep-stopped");
    let sweep = Sweep::begin(&folder.0, sweep_spec()).unwrap();
    sweep.work(Shard::WHOLE, 2, &instant_run, &mut |finished, _| finished < 10).unwrap();
    let status = sweep.status();
    assert_eq!((status.runs, status.chunks, status.done), (15, 4, 8));
    std::fs::write(folder.0.join(".tmp-left-over"), "half a file").unwrap();
    let sweep = Sweep::begin(&folder.0, sweep_spec()).unwrap();
    let performed = AtomicUsize::new(0);
    let counting_run = |run: &StudyRun| {
        performed.fetch_add(1, Ordering::Relaxed);
        instant_run(run)
    };
    sweep.work(Shard::WHOLE, 2, &counting_run, &mut keep_going).unwrap();
    sweep.remove_leftovers();
    assert_eq!(performed.load(Ordering::Relaxed), 15 - 8);
    let rows = sweep.rows().unwrap();
    let keys: BTreeSet<_> = rows.iter().map(|row| &row.key).collect();
    assert_eq!((rows.len(), keys.len()), (15, 15));
    assert_eq!(rows.iter().filter(|row| row.error.is_some()).count(), 5);
    assert!(!folder.0.join(".tmp-left-over").exists());
}

#[test]
fn the_files_are_the_same_for_any_worker() {
    let (first_folder, second_folder) = (TestDir::new("sweep-one"), TestDir::new("sweep-two"));
    let single_worker = Sweep::begin(&first_folder.0, sweep_spec()).unwrap();
    single_worker.work(Shard::WHOLE, 1, &instant_run, &mut keep_going).unwrap();
    let shared_sweep = Sweep::begin(&second_folder.0, sweep_spec()).unwrap();
    std::thread::scope(|scope| {
        for number in 1..=3 {
            let shared_sweep = &shared_sweep;
            let shard = Shard { number, of: 3 };
            scope
                .spawn(move || shared_sweep.work(shard, 2, &instant_run, &mut keep_going).unwrap());
        }
    });
    let content = |folder: &Path| -> BTreeMap<_, _> {
        let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap())).collect()
    };
    assert_eq!(content(&first_folder.0), content(&second_folder.0));
    assert_eq!(content(&first_folder.0).len(), 4 + 1);
}

#[test]
fn another_plan_is_refused_in_the_same_folder() {
    let folder = TestDir::new("sweep-another");
    Sweep::begin(&folder.0, sweep_spec()).unwrap();
    let other = PLAN.replace("3 ms", "4 ms");
    let other = SweepSpec::new(("plan.toml", &other), SIM, None, &load).unwrap();
    let refused = Sweep::begin(&folder.0, other).unwrap_err();
    assert!(matches!(refused, SweepError::Another(_)), "{refused}");
    // The existing sweep keeps its chunk size.
    let same = SweepSpec::new(("plan.toml", PLAN), SIM, Some(9), &load).unwrap();
    assert_eq!(Sweep::begin(&folder.0, same).unwrap().status().chunks, 4);
}

#[test]
fn a_point_with_an_invalid_scenario_is_refused_before_any_run() {
    let plan = PLAN.replace("3 ms", "3 mz");
    let refused = SweepSpec::new(("plan.toml", &plan), SIM, None, &load).unwrap_err().to_string();
    assert!(refused.contains("variant `TCP`, delay `3 mz`"), "{refused}");
    assert!(refused.contains("unknown unit `mz`"), "{refused}");
}

#[test]
fn verifying_finds_a_row_that_is_not_reproduced() {
    let folder = TestDir::new("sweep-verify");
    let sweep = Sweep::begin(&folder.0, sweep_spec()).unwrap();
    sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
    assert_eq!(sweep.verify((15, 1), 2, &instant_run, &mut keep_going).unwrap(), []);
    let run_7_differs = |run: &StudyRun| match run.index {
        7 => Err("not as before".to_owned()),
        _ => instant_run(run),
    };
    let differing = sweep.verify((15, 1), 2, &run_7_differs, &mut keep_going).unwrap();
    let [(old, new)] = differing.as_slice() else { panic!("{differing:?}") };
    assert_eq!((old.error.as_deref(), new.error.as_deref()), (None, Some("not as before")));
}

#[test]
fn a_shard_runs_its_own_part_and_then_helps_from_the_end() {
    let chunks = (0..7).map(|index| RunChunk { index, runs: 0..1, path: PathBuf::new() }).collect();
    let order = Shard { number: 2, of: 3 }.order(chunks);
    let order: Vec<_> = order.iter().map(|chunk| chunk.index).collect();
    assert_eq!(order, [1, 4, 6, 5, 3, 2, 0]);
}
