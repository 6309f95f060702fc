//! `towpath sweep --print`: a script with which a cluster runs a sweep.
//!
//! A script starts workers. Each of them is the same command with another `--shard`, so that any
//! worker can end and start again at any time. Nothing is run or written here.
//!
//! Shells and Kubernetes interpret what they read. [`quoted`] and the module [`kubernetes`] quote
//! every text of the user, and refuse characters that a reader of the script would not see.

mod kubernetes;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::{Args, ValueEnum};
use towpath_result::Warning;
use towpath_result::format::count;
use towpath_result::format::text::deceives;
use towpath_scenario::World;
use towpath_study::runs::RunSelection;
use towpath_study::sweep::{Sweep, SweepError, SweepLocation, SweepProgress, SweepSpec};

use super::SweepArguments;
use crate::error::CliError;
use crate::ui::Ui;

/// Maximum number of workers: Slurm's default `MaxArraySize` of 1001 permits the indices 1 to 1000.
const MAX_WORKERS: u32 = 1_000;
/// Number of chunks for each worker by default. At the end, a worker without chunks repeats those
/// of others, so that fewer workers repeat less.
const CHUNKS_PER_WORKER: usize = 4;

/// Options of job scripts.
#[derive(Debug, Args)]
pub(super) struct JobArguments {
    /// Print a script with which a cluster runs the sweep, and run nothing; `--jobs` is the number
    /// of processors of each worker [default: 1]
    #[arg(long, value_name = "SYSTEM")]
    #[arg(conflicts_with_all = ["shard", "json", "csv", "to", "token_file", "ca"])]
    pub(super) print: Option<JobSystem>,
    /// Number of workers in the script, at most 1000 [default: one for four files]
    #[arg(long, value_name = "N", requires = "print")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORKERS)))]
    workers: Option<u32>,
    /// Container image that has `towpath` and `sh`; for `--print kubernetes`
    #[arg(long, value_name = "IMAGE", requires = "print")]
    image: Option<String>,
    /// `PersistentVolumeClaim` for the rows; for `--print kubernetes`
    #[arg(long, value_name = "NAME", requires = "print")]
    claim: Option<String>,
}

/// System that starts workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum JobSystem {
    /// Slurm: a job array for `sbatch`
    Slurm,
    /// Kubernetes: an Indexed Job for `kubectl create`
    Kubernetes,
    /// A POSIX shell, on this computer or on others over ssh
    Shell,
}

/// Sweep that was checked like one that is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedSweep<'a> {
    /// Path of the plan.
    pub(super) path: &'a Path,
    /// Text of the plan.
    pub(super) text: &'a str,
    /// Name of the plan: lower-case letters, digits and hyphens.
    pub(super) plan: &'a str,
    pub(super) spec: &'a SweepSpec,
    pub(super) selection: RunSelection,
    /// Folder for the rows, or an address in an object store.
    pub(super) folder: &'a Path,
}

/// Workers of a sweep, and everything that their commands have in common.
#[derive(Debug, Clone)]
struct WorkerSet {
    /// Name of the plan.
    plan: String,
    world: World,
    /// Number of runs and chunks to do.
    size: (usize, usize),
    workers: u32,
    /// Number of processors of each worker.
    jobs: u32,
    /// Options of the sweep, quoted for a shell.
    options: String,
    /// Options of the table, quoted for a shell.
    table_options: String,
}

/// Paths of a script, quoted for a shell.
#[derive(Debug, Clone)]
struct ScriptPaths {
    program: String,
    plan: String,
    folder: String,
}

/// Reason why there cannot be a script.
#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("`{0}` has a line end or another invisible character, which a script cannot contain")]
    Character(String),
    #[error("`{}` is not UTF-8, which a script cannot contain", .0.display())]
    Encoding(PathBuf),
    #[error("`--{0}` is an option of `--print kubernetes`")]
    Option(&'static str),
    #[error("the plan and its files have {0} bytes, and a ConfigMap at most {MAX_MAP_BYTES}",
        MAX_MAP_BYTES = kubernetes::MAX_MAP_BYTES)]
    Size(usize),
    #[error("the plan names the file `{0}`, which has no place in a ConfigMap")]
    Place(String),
    #[error("`{0}` is not a folder in a volume")]
    Folder(String),
    #[error("`{0}` is not the name of an image")]
    Image(String),
    #[error("`{0}` is not the name of a PersistentVolumeClaim")]
    Claim(String),
}

impl JobError {
    /// Returns the way out.
    fn hint(&self) -> &'static str {
        match self {
            Self::Character(_) | Self::Encoding(_) => "rename it, or use a symbolic link",
            Self::Option(_) => "leave it out",
            Self::Size(_) => {
                "use shorter traces, or a cluster with a shared file system: `--print slurm`"
            }
            Self::Place(_) => "name it relative to the plan, such as `traces/a.txt`",
            Self::Folder(_) => "give a relative one; it is created in the volume of `--claim`",
            Self::Image(_) => "give one such as `registry.example.org/towpath:1`",
            Self::Claim(_) => "expected lower-case letters, digits, hyphens and dots",
        }
    }
}

impl From<JobError> for CliError {
    fn from(error: JobError) -> Self {
        let hint = error.hint().to_owned();
        Self::failed(error, Some(hint))
    }
}

/// Prints the script of a sweep, and hints on standard error.
pub(super) fn print(
    system: JobSystem,
    arguments: &SweepArguments,
    sweep: CheckedSweep<'_>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let set = WorkerSet::new(system, arguments, (sweep, remaining(system, sweep)?), processors)?;
    let JobArguments { image, claim, .. } = &arguments.script;
    let (script, folder) = match system {
        JobSystem::Slurm | JobSystem::Shell => {
            let foreign = image.as_ref().map(|_| "image").or(claim.as_ref().map(|_| "claim"));
            if let Some(option) = foreign {
                return Err(JobError::Option(option).into());
            }
            let paths = ScriptPaths::new(sweep.path, sweep.folder)?;
            let script =
                if system == JobSystem::Slurm { set.slurm(&paths) } else { set.shell(&paths) };
            (script, paths.folder)
        }
        JobSystem::Kubernetes => {
            let cluster = kubernetes::Cluster::new(image.as_deref(), claim.as_deref())?;
            if image.is_none() || (claim.is_none() && !is_address(sweep.folder)) {
                ui.warn(&Warning {
                    text: "the manifest has placeholders".to_owned(),
                    hint: Some("give `--image` and `--claim`, or edit the manifest".to_owned()),
                });
            }
            (cluster.manifest(&set, sweep)?, kubernetes::rows_folder(sweep.folder)?)
        }
    };
    ui.out.write_all(script.as_bytes())?;
    ui.out.flush()?;
    set.print_hints(system, &folder, ui);
    Ok(ExitCode::SUCCESS)
}

impl WorkerSet {
    fn new(
        system: JobSystem,
        arguments: &SweepArguments,
        (sweep, size): (CheckedSweep<'_>, (usize, usize)),
        processors: usize,
    ) -> Result<Self, JobError> {
        let RunSelection { world, quick, seeds } = sweep.selection;
        let jobs = arguments.jobs.unwrap_or(1);
        let workers = default_workers(size.1, max_workers(system, world, processors as u32 / jobs));
        let mut options = format!("--world {world}");
        if quick {
            options.push_str(" --quick");
        }
        for (name, value) in [("seeds", seeds), ("chunk", arguments.chunk)] {
            if let Some(value) = value {
                // Writing to a `String` cannot fail.
                let _ = write!(options, " --{name} {value}");
            }
        }
        let metrics = &arguments.shown.metrics;
        let table_options = if metrics.is_empty() {
            String::new()
        } else {
            format!(" --metrics {}", quoted(&metrics.join(","))?)
        };
        Ok(Self {
            plan: sweep.plan.to_owned(),
            world,
            size,
            workers: arguments.script.workers.unwrap_or(workers),
            jobs,
            // The options of the user's configuration are among these already.
            options: format!("{options}{table_options} --no-config"),
            table_options,
        })
    }

    /// Returns the first lines of a script's comment.
    fn title(&self) -> String {
        let Self { plan, world, size: (runs, chunks), workers, .. } = self;
        format!(
            "# Sweep `{plan}` in the world {world}: {}, {}, {}.\n",
            count(*runs as u64, "run"),
            count(*chunks as u64, "chunk"),
            count(u64::from(*workers), "worker")
        )
    }

    /// Returns a worker's command, without the program. `shard` and `jobs` are shell words.
    ///
    /// Every worker would print the same table.
    fn command(&self, (plan, folder): (&str, &str), shard: &str, jobs: &str) -> String {
        format!(
            "sweep {plan} --out {folder} \\\n    {} \\\n    --shard {shard}/{} --jobs {jobs} \
             > /dev/null < /dev/null",
            self.options, self.workers
        )
    }

    /// Returns a script for `sbatch`.
    fn slurm(&self, paths: &ScriptPaths) -> String {
        let ScriptPaths { program, plan, folder } = paths;
        let command = self.command(
            (plan, folder),
            "\"$((SLURM_ARRAY_TASK_ID))\"",
            "\"$SLURM_CPUS_PER_TASK\"",
        );
        let title = self.title();
        let exclusive = match self.world {
            World::Sim => "",
            // Emulated runs take place in real time.
            World::Emu | World::Live => "#SBATCH --exclusive\n",
        };
        let (name, workers, jobs) = (job_name(&self.plan, self.world), self.workers, self.jobs);
        format!(
            "#!/bin/sh\n{title}\
             # Submit this file with `sbatch FILE`. Options such as --time, --partition and --account\n\
             # can be added to that command. Submit it again to run what is missing.\n\
             # All nodes need the program, the plan and the folder at these paths.\n\
             # Progress: towpath sweep status {folder}\n\
             #SBATCH --job-name={name}\n\
             #SBATCH --array=1-{workers}\n\
             #SBATCH --ntasks=1\n\
             #SBATCH --cpus-per-task={jobs}\n\
             {exclusive}\
             #SBATCH --requeue\n\
             #SBATCH --open-mode=append\n\
             set -eu\n\
             program={program}\n\
             # The variable TOWPATH can name another program.\n\
             exec \"${{TOWPATH:-$program}}\" {command}\n"
        )
    }

    /// Returns a script for a POSIX shell.
    fn shell(&self, paths: &ScriptPaths) -> String {
        let ScriptPaths { program, plan, folder } = paths;
        let command = self.command((plan, folder), "\"$(($1))\"", &self.jobs.to_string());
        let (title, workers, table_options) = (self.title(), self.workers, &self.table_options);
        format!(
            "#!/bin/sh\n{title}\
             # `sh FILE` runs all workers on this computer. `sh FILE HOST…` runs them on these hosts,\n\
             # over ssh. All hosts need the program, the plan and the folder at these paths.\n\
             # Run it again to run what is missing. An interrupt does not end workers on other hosts.\n\
             # Progress: towpath sweep status {folder}\n\
             set -eu\n\
             workers={workers}\n\
             program={program}\n\
             # The variable TOWPATH can name another program on this computer.\n\
             towpath=${{TOWPATH:-$program}}\n\
             \n\
             worker() {{\n    exec \"$towpath\" {command}\n}}\n{SHELL_BODY}\
             exec \"$towpath\" sweep status {folder}{table_options} --no-config\n"
        )
    }

    /// Prints the size of the sweep, and the next commands.
    fn print_hints(&self, system: JobSystem, folder: &str, ui: &mut Ui) {
        let Self { size: (runs, chunks), workers, jobs, .. } = self;
        if *chunks == 0 {
            ui.warn(&Warning { text: "all runs are done already".to_owned(), hint: None });
        } else if *workers as usize > *chunks {
            ui.warn(&Warning {
                text: format!("only {chunks} of {workers} workers have a chunk of their own"),
                hint: Some("use smaller chunks: `--chunk N`".to_owned()),
            });
        }
        ui.progress(&format!(
            "{} in {}, for {} with {} each",
            count(*runs as u64, "run"),
            count(*chunks as u64, "chunk"),
            count(u64::from(*workers), "worker"),
            count(u64::from(*jobs), "processor")
        ));
        let status = format!("towpath sweep status {folder}");
        let (submit, progress) = match system {
            JobSystem::Slurm => ("sbatch FILE", status),
            JobSystem::Shell => ("sh FILE", status),
            JobSystem::Kubernetes => {
                let name = job_name(&self.plan, self.world);
                let job = format!("kubectl get job {name}");
                (
                    "kubectl create -f FILE",
                    format!("{job}`, or in a pod with the volume: `{status}"),
                )
            }
        };
        ui.progress(&format!("save the output in a file, and submit it: `{submit}`"));
        ui.progress(&format!("progress: `{progress}`"));
    }
}

/// Remainder of a script for a POSIX shell, after the function `worker`.
///
/// A remote shell reads the same script from its standard input, so that no command is quoted
/// twice.
const SHELL_BODY: &str = r#"
if [ "${1-}" = --worker ]; then
    worker "$2"
fi

pids=
stop() {
    trap - INT TERM
    for pid in $pids; do
        kill "$pid" 2> /dev/null || :
    done
    wait
    exit 130
}
trap stop INT TERM
number=1
while [ "$number" -le "$workers" ]; do
    if [ "$#" -gt 0 ]; then
        host=$1
        shift
        set -- "$@" "$host"
        ssh -o BatchMode=yes "$host" sh -s -- --worker "$number" < "$0" &
    else
        worker "$number" &
    fi
    pids="$pids $!"
    number=$((number + 1))
done
failed=0
for pid in $pids; do
    wait "$pid" || failed=$((failed + 1))
done
trap - INT TERM
if [ "$failed" -gt 0 ]; then
    echo "$failed of $workers workers failed; run this script again" >&2
    exit 1
fi
"#;

impl ScriptPaths {
    /// Makes the paths absolute, because a worker may have another working directory.
    fn new(plan: &Path, folder: &Path) -> Result<Self, CliError> {
        let absolute = |path: &Path| {
            let unreadable = |source| CliError::Read { path: path.to_owned(), source };
            std::path::absolute(path).map_err(unreadable)
        };
        // Without its own path, the program is searched in `PATH`.
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("towpath"));
        let folder = if is_address(folder) { folder.to_owned() } else { absolute(folder)? };
        Ok(Self {
            program: quoted_path(&program)?,
            plan: quoted_path(&absolute(plan)?)?,
            folder: quoted_path(&folder)?,
        })
    }
}

/// Returns the number of runs and chunks that are not done yet. Fails if the folder holds another
/// sweep. Folders of a cluster's volume and object stores are not read.
fn remaining(system: JobSystem, sweep: CheckedSweep<'_>) -> Result<(usize, usize), CliError> {
    let all = (sweep.spec.runs(), sweep.spec.chunks());
    if system == JobSystem::Kubernetes || is_address(sweep.folder) {
        return Ok(all);
    }
    match Sweep::resume(sweep.folder, sweep.spec.clone()) {
        Ok(begun) => {
            let SweepProgress { done, runs, chunks_done, chunks, .. } = begun.progress()?;
            Ok((runs - done, chunks - chunks_done))
        }
        Err(SweepError::None(_)) => Ok(all),
        Err(error) => Err(error.into()),
    }
}

/// Returns the maximum number of workers by default. `fitting` is the number for which this computer
/// has processors.
fn max_workers(system: JobSystem, world: World, fitting: u32) -> u32 {
    match (system, world) {
        (JobSystem::Slurm | JobSystem::Kubernetes, _) => MAX_WORKERS,
        (JobSystem::Shell, World::Sim) => fitting.clamp(1, MAX_WORKERS),
        // Emulated runs of one computer would disturb each other.
        (JobSystem::Shell, World::Emu | World::Live) => 1,
    }
}

/// Returns the default number of workers, at most `max`.
fn default_workers(chunks: usize, max: u32) -> u32 {
    u32::try_from(chunks.div_ceil(CHUNKS_PER_WORKER)).unwrap_or(max).clamp(1, max)
}

/// Returns true for an address in an object store.
fn is_address(folder: &Path) -> bool {
    match SweepLocation::parse(folder) {
        SweepLocation::Objects(_) => true,
        SweepLocation::Folder(_) => false,
    }
}

/// Returns the name of a job: a DNS label of at most 52 bytes. The host name of a pod adds an index.
fn job_name(plan: &str, world: World) -> String {
    const MAX_PLAN_BYTES: usize = 40;
    let plan = plan.get(..MAX_PLAN_BYTES).unwrap_or(plan);
    format!("towpath-{}-{world}", plan.trim_matches('-'))
}

/// Returns a path as a word of a POSIX shell.
fn quoted_path(path: &Path) -> Result<String, JobError> {
    quoted(path.to_str().ok_or_else(|| JobError::Encoding(path.to_owned()))?)
}

/// Returns a text as one word of a POSIX shell. Between single quotes, only the single quote has a
/// meaning (POSIX.1-2017, Shell Command Language §2.2.2).
fn quoted(text: &str) -> Result<String, JobError> {
    if text.contains(deceives) {
        return Err(JobError::Character(text.to_owned()));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@,+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}
