//! `towpath sweep --print`: the printed scripts run the same sweep.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{ProgramOutput, Running, SIZED, TWO_PATHS, TestDir, binary, names};

/// Plan of 2 curves × 3 delays × 2 seeds, in 6 chunks.
const PLAN: &str = r#"name = "delays"
scenario = "scenario.toml"
seeds = 2
[[variants]]
name = "TCP"
transport = "tcp"
[[variants]]
name = "MPTCP"
transport = "mptcp"
[[axes]]
name = "delay"
keys = ["paths.cellular.delay"]
values = ["10 ms", "50 ms", "100 ms"]
"#;

/// Folder name with every character that a shell interprets.
const SPECIAL_NAME: &str = "it's $HOME `id` \"x\" \\ & ~ * #;(é)";

/// Test folder with a plan, its scenario and the files of a local sweep.
struct PrintedSweep {
    folder: TestDir,
    plan: String,
    rows: String,
    /// Files of the local sweep, by name.
    expected: Vec<(String, Vec<u8>)>,
}

impl PrintedSweep {
    fn new() -> Self {
        let folder = TestDir::new();
        fs::create_dir(folder.work().join(SPECIAL_NAME)).unwrap();
        folder.write(&format!("{SPECIAL_NAME}/scenario.toml"), format!("{TWO_PATHS}{SIZED}"));
        let plan = format!("{SPECIAL_NAME}/plan.toml");
        folder.write(&plan, PLAN);
        let output = folder.run(&["sweep", &plan, "--out", "local", "--chunk", "2"]);
        assert_eq!(output.code, Some(0), "{output}");
        let expected = parts(&folder.work().join("local"));
        assert_eq!(expected.len(), 6);
        Self { folder, plan, rows: format!("{SPECIAL_NAME}/rows"), expected }
    }

    /// Prints a script, and checks that nothing is run.
    fn print(&self, system: &str, more: &[&str]) -> ProgramOutput {
        let arguments = ["sweep", &self.plan, "--out", &self.rows, "--chunk", "2"];
        let output = self.folder.run(&[&arguments[..], &["--print", system], more].concat());
        assert_eq!(output.code, Some(0), "{output}");
        assert!(output.err.contains("12 runs in 6 chunks, for 3 workers"), "{output}");
        assert!(!self.rows_folder().exists(), "{output}");
        output
    }

    fn rows_folder(&self) -> PathBuf {
        self.folder.work().join(&self.rows)
    }

    /// Saves a script outside of the plan's folder, and starts it there.
    fn start(&self, script: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let path = self.folder.temporary().join("script.sh");
        // A shell may be reading the same script.
        if fs::read_to_string(&path).ok().as_deref() != Some(script) {
            fs::write(&path, script).unwrap();
        }
        let mut command = self.folder.program("sh");
        command.arg(path).args(arguments).current_dir(self.folder.temporary());
        self.folder.start(command.env_remove("TOWPATH").envs(variables.iter().copied()))
    }

    /// Asserts that the rows are the same bytes as those of the local sweep.
    fn assert_same_rows(&self) {
        assert!(parts(&self.rows_folder()) == self.expected, "{:?}", names(&self.rows_folder()));
    }
}

/// Returns the files with rows, by name.
fn parts(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let with_content = |name: String| (name.clone(), fs::read(folder.join(name)).unwrap());
    names(folder).into_iter().filter(|name| name.starts_with("part-")).map(with_content).collect()
}

#[test]
fn the_elements_of_a_slurm_array_give_the_rows_of_a_local_sweep() {
    let sweep = PrintedSweep::new();
    let output = sweep.print("slurm", &["--workers", "3", "--jobs", "2"]);
    for line in ["#SBATCH --array=1-3", "#SBATCH --cpus-per-task=2", "#SBATCH --requeue"] {
        assert!(output.out.lines().any(|printed| printed == line), "{line}: {output}");
    }
    assert!(output.err.contains("`sbatch FILE`"), "{output}");
    let start = |element: &str| {
        let variables = [("SLURM_ARRAY_TASK_ID", element), ("SLURM_CPUS_PER_TASK", "2")];
        sweep.start(&output.out, &[], &variables)
    };
    let (killed, others) = (start("1"), [start("2"), start("3")]);
    // A dropped program is killed, as on a node that fails.
    drop(killed);
    let requeued = start("1");
    for element in others.into_iter().chain([requeued]) {
        let output = element.wait();
        assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
    }
    sweep.assert_same_rows();
}

#[test]
fn the_shell_script_runs_all_workers_here_or_on_other_hosts() {
    let sweep = PrintedSweep::new();
    let script = sweep.print("shell", &["--workers", "3"]).out;
    let output = sweep.start(&script, &[], &[]).wait();
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.out.contains("Mbit/s") && output.err.contains("12 of 12 runs"), "{output}");
    sweep.assert_same_rows();
    fs::remove_dir_all(sweep.rows_folder()).unwrap();
    // Replaces ssh, and runs the remote command on this host.
    let ssh = "#!/bin/sh\necho \"$3\" >> hosts\nshift 3\nexec \"$@\"\n";
    sweep.folder.write_program("ssh", ssh);
    let path = format!("{}:{}", sweep.folder.work().display(), std::env::var("PATH").unwrap());
    let output = sweep.start(&script, &["first", "second"], &[("PATH", &path)]).wait();
    assert_eq!(output.code, Some(0), "{output}");
    sweep.assert_same_rows();
    let hosts = fs::read_to_string(sweep.folder.temporary().join("hosts")).unwrap();
    let mut hosts: Vec<_> = hosts.lines().collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["first", "first", "second"]);
}

#[test]
fn the_shell_script_fails_if_a_worker_fails() {
    let sweep = PrintedSweep::new();
    let script = sweep.print("shell", &["--workers", "3"]).out;
    let program = format!(
        "#!/bin/sh\ncase $* in *'--shard 2/3'*) exit 9;; esac\nexec {} \"$@\"\n",
        fs::canonicalize(binary()).unwrap().display()
    );
    let program = sweep.folder.write_program("faulty", &program);
    let variables = [("TOWPATH", program.to_str().unwrap())];
    let output = sweep.start(&script, &[], &variables).wait();
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains("1 of 3 workers failed"), "{output}");
    // The other workers have run its share.
    sweep.assert_same_rows();
}

#[test]
fn a_worker_of_kubernetes_runs_its_share() {
    let sweep = PrintedSweep::new();
    let manifest = sweep.folder.run(&["sweep", &sweep.plan, "--print", "kubernetes"]);
    assert_eq!(manifest.code, Some(0), "{manifest}");
    assert!(manifest.err.contains("the manifest has placeholders"), "{manifest}");
    let lines = manifest.out.lines().skip_while(|line| *line != "  worker.sh: |2").skip(1);
    let script: String = lines
        .map_while(|line| line.strip_prefix("    "))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let work = sweep.folder.work();
    fs::rename(work.join(&sweep.plan), work.join("plan.toml")).unwrap();
    fs::rename(work.join(format!("{SPECIAL_NAME}/scenario.toml")), work.join("scenario.toml"))
        .unwrap();
    let work = work.display().to_string();
    let script = script
        .replace("/plan/files", &work)
        .replace("/rows/towpath-sweeps/delays-sim", &format!("{work}/pod --chunk 2"))
        .replace(
            "exec towpath",
            &format!("exec {}", fs::canonicalize(binary()).unwrap().display()),
        );
    let output = sweep.start(&script, &[], &[("JOB_COMPLETION_INDEX", "0")]).wait();
    assert_eq!(output.code, Some(0), "{output}\n{script}");
    assert!(parts(&sweep.folder.work().join("pod")) == sweep.expected);
}

#[test]
fn a_failed_run_fails_the_sweep_but_no_worker() {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let axis = "[[axes]]\nname = \"scheduler\"\nkeys = [\"hosts.phone.scheduler\"]\n\
        values = [\"min-rtt\", \"fastest\"]\n";
    folder.write("plan.toml", format!("{PLAN}{axis}"));
    let arguments = ["sweep", "plan.toml", "--out", "rows", "--seeds", "1"];
    let output = folder.run(&[&arguments[..], &["--shard", "1/2"]].concat());
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains("runs failed"), "{output}");
    assert_eq!(folder.run(&["sweep", "status", "rows"]).code, Some(1));
    assert_eq!(folder.run(&arguments).code, Some(1));
}

#[test]
fn a_wrong_plan_or_name_is_refused_before_a_script_is_printed() {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    folder.write("plan.toml", PLAN.replace("100 ms", "100 mz"));
    folder.write("good\nplan.toml", PLAN);
    let refusal = |arguments: &[&str]| {
        let output = folder.run(&[&["sweep"][..], arguments].concat());
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
        output.err
    };
    for system in ["slurm", "kubernetes", "shell"] {
        let wrong = refusal(&["plan.toml", "--print", system]);
        assert!(wrong.contains("variant `TCP`, delay `100 mz`"), "{wrong}");
        let invisible = refusal(&["good\nplan.toml", "--print", system]);
        assert!(invisible.contains("cannot contain"), "{invisible}");
    }
    let foreign = refusal(&["good\nplan.toml", "--print", "slurm", "--claim", "rows"]);
    assert!(foreign.contains("`--claim` is an option of `--print kubernetes`"), "{foreign}");
    assert_eq!(folder.names(), ["good\nplan.toml", "plan.toml", "scenario.toml"]);
}
