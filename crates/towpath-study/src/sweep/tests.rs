use std::collections::BTreeSet;
use std::path::Path;
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
fn identifiers_of_chunks_are_stored_and_computed_if_they_are_missing_or_invalid() {
    let folder = TestDir::new("sweep-ids");
    let names = Sweep::begin(&folder.0, sweep_spec()).unwrap().chunk_names();
    let file = folder.0.join(SPEC_FILE);
    let stored: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(stored["chunk_ids"].as_array().unwrap().len(), 4);
    for ids in [serde_json::json!(["../../../../x", "0123456789abcdeg", ""]), serde_json::json!([])]
    {
        let mut changed = stored.clone();
        changed["chunk_ids"] = ids;
        std::fs::write(&file, changed.to_string()).unwrap();
        assert_eq!(Sweep::open(&folder.0).unwrap().chunk_names(), names);
        assert_eq!(Sweep::begin(&folder.0, sweep_spec()).unwrap().chunk_names(), names);
    }
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
    let chunks = (0..7)
        .map(|index| RunChunk { index, runs: 0..1, name: String::new(), is_damaged: false })
        .collect();
    let (own, others) = Shard { number: 2, of: 3 }.split(chunks);
    let indices = |chunks: Vec<RunChunk>| chunks.into_iter().map(|chunk| chunk.index);
    assert_eq!(indices(own).collect::<Vec<_>>(), [1, 4]);
    assert_eq!(indices(others).collect::<Vec<_>>(), [6, 5, 3, 2, 0]);
}

/// A store that overwrites whatever the request says, as servers without conditional writes do.
#[derive(Debug, Default)]
struct OverwritingStore(std::sync::Mutex<BTreeMap<String, Vec<u8>>>);

impl ChunkStore for OverwritingStore {
    fn prepare(&self) -> io::Result<()> {
        store::probe(self, 1)
    }

    fn read(&self, name: &str, _: &ReadBudget) -> io::Result<Option<store::FileContent>> {
        let bytes = self.0.lock().unwrap().get(name).cloned();
        Ok(bytes.map(|bytes| store::FileContent { bytes, version: None }))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        self.0.lock().unwrap().insert(name.to_owned(), bytes.to_vec());
        Ok(true)
    }

    fn replace(&self, name: &str, _: Option<&str>, bytes: &[u8]) -> io::Result<bool> {
        self.create(name, bytes)
    }

    fn contains(&self, name: &str) -> io::Result<bool> {
        Ok(self.0.lock().unwrap().contains_key(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().unwrap().remove(name);
        Ok(())
    }

    fn list(&self) -> io::Result<BTreeMap<String, ListedFile>> {
        Ok(BTreeMap::new())
    }

    fn seems_complete(&self, _: &str, _: ListedFile, _: usize) -> bool {
        true
    }
}

#[test]
fn a_store_that_ignores_conditions_is_refused_before_anything_is_stored() {
    let store = Box::new(OverwritingStore::default());
    let refused = Sweep::begin_in(store, "s3://lab/a".into(), sweep_spec()).unwrap_err();
    assert!(refused.to_string().contains("ignores conditional writes"), "{refused}");
    assert!(refused.hint().unwrap().contains("`If-None-Match: *`"));
    let folder = TestDir::new("sweep-probe");
    std::fs::create_dir_all(&folder.0).unwrap();
    store::probe(&files::FolderStore::new(&folder.0), 1).unwrap();
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "the probe is removed");
}

/// Executes a test with a sweep in a folder, and with one in an object store if the build has them.
fn with_each_store(name: &str, test: impl Fn(&Sweep)) {
    let folder = TestDir::new(name);
    test(&Sweep::begin(&folder.0, sweep_spec()).unwrap());
    #[cfg(feature = "objects")]
    test(&Sweep::begin_in(objects::in_memory(), "s3://lab/a".into(), sweep_spec()).unwrap());
}

/// Returns the content of every chunk's file.
fn chunk_files(sweep: &Sweep) -> Vec<Option<Vec<u8>>> {
    let read = |name: &String| sweep.store.read(name, &ReadBudget::of(1_000_000)).unwrap();
    let names = sweep.chunk_names();
    names.iter().map(|name| read(name).map(|content| content.bytes)).collect()
}

#[test]
fn each_chunk_is_executed_alone_and_stored_once() {
    with_each_store("sweep-chunks", |sweep| {
        assert_eq!(sweep.chunk_count(), 4);
        let mut seen = Vec::new();
        let mut note = |finished, total| {
            seen.push((finished, total));
            true
        };
        let outcome = sweep.work_chunk(3, 2, &instant_run, &mut note).unwrap();
        assert_eq!(outcome, ChunkOutcome::Stored);
        assert_eq!(seen, [(1, 3), (2, 3), (3, 3)]);
        let again = sweep.work_chunk(3, 2, &instant_run, &mut keep_going).unwrap();
        assert_eq!(again, ChunkOutcome::AlreadyStored);
        let stopped = sweep.work_chunk(0, 1, &instant_run, &mut |_, _| false).unwrap();
        assert_eq!(stopped, ChunkOutcome::Stopped);
        let progress = sweep.progress().unwrap();
        assert_eq!((progress.done, progress.chunks_done), (3, 1));
        let refused = sweep.work_chunk(4, 1, &instant_run, &mut keep_going).unwrap_err();
        assert_eq!(refused.to_string(), "there is no chunk 4, the sweep has 4 from 0");
        sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
        assert_eq!(sweep.rows().unwrap().len(), 15);
    });
}

#[test]
fn threads_that_create_the_same_chunks_lose_and_double_nothing() {
    with_each_store("sweep-threads", |sweep| {
        let stored = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for index in 0..sweep.chunk_count() {
                        let outcome = sweep.work_chunk(index, 2, &instant_run, &mut keep_going);
                        match outcome.unwrap() {
                            ChunkOutcome::Stored => stored.fetch_add(1, Ordering::Relaxed),
                            ChunkOutcome::AlreadyStored => 0,
                            ChunkOutcome::Stopped => panic!("no run stops the work"),
                        };
                    }
                });
            }
        });
        assert_eq!(stored.load(Ordering::Relaxed), 4, "each chunk has one winner");
        let keys: Vec<_> = sweep.rows().unwrap().into_iter().map(|row| row.key).collect();
        assert_eq!(keys, sweep_spec().keys);
    });
}

#[test]
fn a_damaged_chunk_counts_as_missing_until_it_is_replaced() {
    with_each_store("sweep-damaged", |sweep| {
        sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
        let undisturbed = chunk_files(sweep);
        let names = sweep.chunk_names();
        let other = undisturbed[0].clone().unwrap();
        let half = other[..other.len() / 2].to_vec();
        // The last is complete, but has the rows of another chunk with as many runs.
        for (name, bytes) in [(&names[0], half), (&names[1], Vec::new()), (&names[2], other)] {
            sweep.store.remove(name).unwrap();
            assert!(sweep.store.create(name, &bytes).unwrap());
        }
        let stored = sweep.read().unwrap();
        let damaged: Vec<_> = names[..3].iter().map(|name| sweep.place.join(name)).collect();
        assert_eq!((stored.rows.len(), &stored.damaged), (3, &damaged));
        let refused = sweep.rows().unwrap_err();
        assert!(refused.to_string().contains(&names[0]), "{refused}");
        assert!(sweep.progress().unwrap().chunks_done < 4);
        let report = sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
        assert_eq!(report.replaced, damaged);
        assert_eq!(chunk_files(sweep), undisturbed);
        assert!(sweep.read().unwrap().damaged.is_empty());
        let report = sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
        assert_eq!(report, WorkReport::default());
    });
}

#[test]
fn a_truncated_file_is_found_from_its_end_alone() {
    let folder = TestDir::new("sweep-truncated");
    let sweep = Sweep::begin(&folder.0, sweep_spec()).unwrap();
    sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
    let path = folder.0.join(&sweep.chunk_names()[1]);
    let complete = std::fs::read(&path).unwrap();
    for length in [0, 3, 11, complete.len() / 2, complete.len() - 1] {
        std::fs::write(&path, &complete[..length]).unwrap();
        assert_eq!(sweep.progress().unwrap().chunks_done, 3, "{length} bytes");
    }
    std::fs::write(&path, &complete).unwrap();
    assert_eq!(sweep.progress().unwrap().chunks_done, 4);
}

#[test]
fn compact_files_have_all_rows_in_order_and_replace_earlier_ones() {
    with_each_store("sweep-compact", |sweep| {
        sweep.work_chunk(0, 1, &instant_run, &mut keep_going).unwrap();
        let refused = sweep.compact(10).unwrap_err();
        assert_eq!(refused.to_string(), "4 of 15 runs are done");
        sweep.work(Shard::WHOLE, 2, &instant_run, &mut keep_going).unwrap();
        let rows = sweep.rows().unwrap();
        for (rows_per_file, files) in [(4, 4), (100, 1), (6, 3), (6, 3)] {
            let report = sweep.compact(rows_per_file).unwrap();
            assert_eq!((report.rows, report.files.len()), (15, files));
            let listed = sweep.list().unwrap();
            let compact: Vec<_> = listed.keys().filter(|name| name.starts_with("rows-")).collect();
            assert_eq!(compact.len(), files);
            let mut all = Vec::new();
            for name in compact {
                let content = sweep.store.read(name, &ReadBudget::of(1_000_000)).unwrap().unwrap();
                let file = table::read(content.bytes, 15, &ReadBudget::of(10_000_000)).unwrap();
                assert!(file.len() <= rows_per_file);
                all.extend(file);
            }
            assert_eq!(all, rows);
        }
        assert_eq!(sweep.progress().unwrap().done, 15, "the parts are still there");
    });
}

#[test]
fn the_estimate_is_the_mean_time_between_files() {
    let progress = SweepProgress {
        done: 8,
        runs: 15,
        chunks_done: 2,
        chunks: 4,
        time_per_chunk: Some(Duration::from_secs(3)),
    };
    assert_eq!(progress.time_left(), Some(Duration::from_secs(6)));
    assert_eq!(SweepProgress { time_per_chunk: None, ..progress }.time_left(), None);
    let folder = TestDir::new("sweep-estimate");
    let sweep = Sweep::begin(&folder.0, sweep_spec()).unwrap();
    let second = |seconds| std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    for (index, expected) in [(0, None), (1, Some(10)), (2, Some(20))] {
        sweep.work_chunk(index, 1, &instant_run, &mut keep_going).unwrap();
        let path = folder.0.join(&sweep.chunk_names()[index]);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(second(1_000 + [0, 10, 40][index])).unwrap();
        let time = sweep.progress().unwrap().time_per_chunk;
        assert_eq!(time, expected.map(Duration::from_secs));
    }
}
