//! `towpath reproduce`: reproduces published figures.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use towpath_os::{Clock, interrupt};
use towpath_report::figure;
use towpath_report::gallery::{self, GalleryEntry};
use towpath_result::Warning;
use towpath_result::input;
use towpath_result::input::{DEFAULT_RESULT_LIMIT, ReadBudget};
use towpath_scenario::World;
use towpath_study::figure::sparks;
use towpath_study::plan::Plan;
use towpath_study::reproduction::{self, Reproduction};
use towpath_study::row::RunRow;
use towpath_study::runs::RunSelection;
use towpath_study::sweep::{Shard, Sweep, SweepSpec};
use towpath_study::table::{self, TableError};

use crate::error::CliError;
use crate::files::{self, write_in};
use crate::options::world;
use crate::study_runner::StudyRunner;
use crate::ui::{Ui, wrap, write_wrapped};
use crate::upload::{UploadArguments, Uploader};

/// Reproduce published figures, and check their claims against new runs
///
/// Without a name, it lists all. The same command resumes an interrupted reproduction. Exit code 1
/// if the result of a claim differs from the reproduction's expectation.
#[derive(Debug, Args)]
pub(crate) struct ReproduceArguments {
    /// Names such as miguel-singh-c, or folders such as ./my-study; `all` for all built-in ones
    names: Vec<String>,
    /// World: sim (virtual time, towpath's stack), emu (real kernels), or sim,emu for both in one
    /// figure [default: the plan's first]
    #[arg(short = 'W', long, value_delimiter = ',', value_name = "LIST", value_parser = world)]
    world: Vec<World>,
    /// Run only the points and seeds that the plan marks as quick
    #[arg(long)]
    quick: bool,
    /// Number of seeds for each point [default: the plan's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,
    /// Number of runs in parallel [default: the number of processors; 1 for emulated runs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Run nothing; check the claims and draw the figures from the rows in the folder
    #[arg(long)]
    redraw: bool,
    /// Folder for figures, data and the page
    #[arg(short, long, value_name = "DIR", default_value = "towpath-reproductions")]
    out: PathBuf,
    /// Print JSON, one line per figure
    #[arg(short = 'J', long)]
    json: bool,
    /// With `all`: also write reproductions.md (or reproductions-sim-emu.md) and its images to this
    /// folder
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    #[command(flatten)]
    upload: UploadArguments,
}

/// Returns the text of a reproduction's file by its name.
type FileLoader = dyn Fn(&str) -> io::Result<String> + Sync;

/// Reproduction with a loader for its files.
struct LoadedReproduction {
    reproduction: Reproduction,
    load: Box<FileLoader>,
}

pub(crate) fn reproduce(arguments: &ReproduceArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if arguments.names.is_empty() {
        return list(arguments.json, ui);
    }
    let is_all = arguments.names.iter().any(|name| name == "all");
    if arguments.docs.is_some() && !is_all {
        return Err(CliError::Unavailable {
            what: "`--docs` needs all figures".to_owned(),
            hint: "use `all`, or omit `--docs`: every run writes index.html".to_owned(),
        });
    }
    let find_named = |name: &String| find(name);
    let mut reproductions = if is_all {
        reproduction::names().into_iter().map(find).collect::<Result<Vec<_>, _>>()?
    } else {
        arguments.names.iter().map(find_named).collect::<Result<Vec<_>, _>>()?
    };
    if is_all {
        let has_worlds =
            |plan: &Plan| arguments.world.iter().all(|world| plan.worlds.contains(world));
        reproductions.retain(|loaded| has_worlds(&loaded.reproduction.plan));
    }
    if is_all && arguments.redraw {
        reproductions = drawable(reproductions, arguments, ui)?;
    }
    let uploader = Uploader::prepare(&arguments.upload, ui)?;
    interrupt::catch();
    let mut entries = Vec::new();
    for reproduction in &reproductions {
        match reproduce_figures(reproduction, (arguments, uploader.as_ref()), ui)? {
            Some(entry) => entries.push(entry),
            None => return Ok(report_stop(ui)),
        }
    }
    let page = write_page(&arguments.out)?;
    if let Some(folder) = &arguments.docs {
        write_docs(folder, &entries)?;
    }
    ui.progress(&format!("page: {}", page.display()));
    let is_surprising = entries.iter().flat_map(|entry| &entry.claims).any(|claim| !claim.expected);
    Ok(ExitCode::from(u8::from(is_surprising)))
}

fn report_stop(ui: &mut Ui) -> ExitCode {
    if !interrupt::is_interrupted() {
        return ExitCode::from(2);
    }
    let hint = Some("repeat the command to run the missing ones".to_owned());
    ui.warn(&Warning { text: "stopped before all runs were done".to_owned(), hint });
    ExitCode::from(130)
}

fn list(as_json: bool, ui: &mut Ui) -> Result<ExitCode, CliError> {
    for name in reproduction::names() {
        let LoadedReproduction { reproduction, .. } = find(name)?;
        let plan = &reproduction.plan;
        let worlds: Vec<_> = plan.worlds.iter().map(World::to_string).collect();
        let claims = reproduction.expected.claims.len();
        if as_json {
            let line = json!({
                "name": name, "title": plan.title, "source": reproduction.source(),
                "worlds": worlds, "claims": claims,
            });
            writeln!(ui.out, "{line}")?;
            continue;
        }
        write_wrapped(&mut ui.out, &format!("{name:<16} "), &plan.title)?;
        write_wrapped(&mut ui.out, &" ".repeat(17), reproduction.source())?;
        let text = format!("{}; claims: {claims}", worlds.join(", "));
        writeln!(ui.out, "{}{text}", " ".repeat(17))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds a reproduction: a folder if `name` has a `/` or holds a plan, else a built-in one.
fn find(name: &(impl AsRef<str> + ?Sized)) -> Result<LoadedReproduction, CliError> {
    let name = name.as_ref();
    let folder = Path::new(name);
    if name.contains('/') || folder.join("plan.toml").is_file() {
        let load = input::sibling_files(folder);
        let prefix = format!("{}/", name.trim_end_matches('/'));
        let reproduction = Reproduction::read(&prefix, &load)?;
        return Ok(LoadedReproduction { reproduction, load: Box::new(load) });
    }
    if !reproduction::names().contains(&name) {
        return Err(CliError::Unavailable {
            what: format!("no reproduction is called `{name}`"),
            hint: "`towpath reproduce` lists them; the name of a folder needs a `/`".to_owned(),
        });
    }
    let load = reproduction::load(name);
    let reproduction = Reproduction::read(&format!("{name}/"), &load)?;
    Ok(LoadedReproduction { reproduction, load: Box::new(load) })
}

/// Keeps the reproductions that have all their rows, and warns about the others.
fn drawable(
    candidates: Vec<LoadedReproduction>,
    arguments: &ReproduceArguments,
    ui: &mut Ui,
) -> Result<Vec<LoadedReproduction>, CliError> {
    let mut complete = Vec::new();
    for candidate in candidates {
        let mut first_error = None;
        for world in worlds(&candidate.reproduction.plan, &arguments.world)? {
            let selection = RunSelection { world, quick: arguments.quick, seeds: arguments.seeds };
            first_error = first_error.or(stored_rows(&candidate, selection, &arguments.out).err());
        }
        match first_error {
            None => complete.push(candidate),
            Some(error @ CliError::Unavailable { .. }) => {
                ui.warn(&Warning { text: format!("left out: {error}"), hint: error.hint() });
            }
            Some(error) => return Err(error),
        }
    }
    Ok(complete)
}

/// Returns the worlds to run a plan in; by default its first one.
fn worlds(plan: &Plan, requested: &[World]) -> Result<Vec<World>, CliError> {
    if let Some(world) = requested.iter().find(|world| !plan.worlds.contains(world)) {
        let worlds: Vec<_> = plan.worlds.iter().map(|world| format!("`{world}`")).collect();
        return Err(CliError::Unavailable {
            what: format!("`{}` is not run in the world `{world}`", plan.name),
            hint: format!("its `worlds` are {}", worlds.join(", ")),
        });
    }
    let mut worlds = requested.to_vec();
    worlds.sort();
    worlds.dedup();
    if worlds.is_empty() {
        worlds.extend(plan.worlds.first());
    }
    Ok(worlds)
}

/// Runs and draws one reproduction and prints the result; `None` if it was stopped.
fn reproduce_figures(
    loaded: &LoadedReproduction,
    (arguments, uploader): (&ReproduceArguments, Option<&Uploader>),
    ui: &mut Ui,
) -> Result<Option<GalleryEntry>, CliError> {
    let plan = &loaded.reproduction.plan;
    let worlds = worlds(plan, &arguments.world)?;
    let (mut rows, mut folders) = (Vec::new(), Vec::new());
    for &world in &worlds {
        let selection = RunSelection { world, quick: arguments.quick, seeds: arguments.seeds };
        if arguments.redraw {
            rows.extend(stored_rows(loaded, selection, &arguments.out)?);
            continue;
        }
        let Some((new_rows, folder)) = run_sweep(loaded, selection, (arguments, uploader), ui)?
        else {
            return Ok(None);
        };
        rows.extend(new_rows);
        folders.push(folder);
    }
    let mut entry = loaded.reproduction.entry(&rows, &worlds, arguments.quick);
    write_files(&mut entry, &rows, &arguments.out)?;
    for folder in &folders {
        // Removed only after the figure is written, so that a killed process keeps its rows. A
        // leftover folder does no harm.
        let _ = fs::remove_dir_all(folder);
    }
    if arguments.json {
        writeln!(ui.out, "{}", summary(&entry))?;
    } else {
        print_entry(&entry, ui)?;
    }
    ui.out.flush()?;
    if let Some(row) = rows.iter().find(|row| row.error.is_some()) {
        let reason = row.error.as_deref().unwrap_or_default();
        let text =
            format!("{}: {} of {} runs failed: {reason}", plan.name, entry.failed, entry.runs);
        ui.warn(&Warning { text, hint: None });
    }
    Ok(Some(entry))
}

/// Returns the rows of all runs in a world, and the folder that stores them one by one.
///
/// An interrupted call continues from that folder. It is removed after the figure is written, so
/// that the next call measures everything again.
fn run_sweep(
    loaded: &LoadedReproduction,
    selection: RunSelection,
    (arguments, uploader): (&ReproduceArguments, Option<&Uploader>),
    ui: &mut Ui,
) -> Result<Option<(Vec<RunRow>, PathBuf)>, CliError> {
    let Reproduction { plan, plan_text, .. } = &loaded.reproduction;
    let spec = SweepSpec::new((&plan.name, plan_text), selection, None, &*loaded.load)?;
    let seeds = selection.seeds.map_or(String::new(), |seeds| format!("-{seeds}"));
    let stem = stem(&plan.name, &[selection.world.to_string()], selection.quick);
    let folder = arguments.out.join(format!(".{stem}{seeds}"));
    files::folder(&folder)?;
    let sweep = Sweep::begin(&folder, spec)?;
    let runner = StudyRunner::new(sweep.traces()).with_uploader(uploader, &plan.name);
    let threads = StudyRunner::threads(selection.world, arguments.jobs);
    ui.progress(&format!("{}: {} runs in {}", plan.name, sweep.status().runs, selection.world));
    let clock = Clock::start();
    let (start, mut done_before) = (clock.now(), None);
    sweep.work(Shard::WHOLE, threads, &|run| runner.execute(run), &mut |done, total| {
        // Runs of an earlier call took no time in this one.
        let done_before = *done_before.get_or_insert(done - 1);
        let seconds_per_run =
            clock.now().saturating_since(start).as_secs_f64() / (done - done_before) as f64;
        let time_left = Duration::try_from_secs_f64(seconds_per_run * (total - done) as f64)
            .unwrap_or_default();
        ui.bar_with_time(done, total, time_left);
        !runner.is_stopped()
    })?;
    runner.send_queued(ui);
    let status = sweep.status();
    if status.done < status.runs {
        return Ok(None);
    }
    Ok(Some((sweep.rows()?, folder)))
}

/// Returns the stored rows of the current plan, from any of its files in the folder.
fn stored_rows(
    loaded: &LoadedReproduction,
    selection: RunSelection,
    folder: &Path,
) -> Result<Vec<RunRow>, CliError> {
    let Reproduction { plan, .. } = &loaded.reproduction;
    let unreadable = |source| CliError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&plan.name) && name.ends_with(".parquet") {
            let modified =
                entry.metadata().and_then(|metadata| metadata.modified()).map_err(unreadable)?;
            files.push((modified, entry.path()));
        }
    }
    // Of duplicate runs the later one counts.
    files.sort();
    let mut rows_by_key = BTreeMap::new();
    let input_budget = ReadBudget::new(DEFAULT_RESULT_LIMIT).map_err(unreadable)?;
    let memory_budget = ReadBudget::new(DEFAULT_RESULT_LIMIT).map_err(unreadable)?;
    for (_, path) in files {
        let unreadable = |source| CliError::Read { path: path.clone(), source };
        let bytes = input_budget.read(&path).map_err(unreadable)?;
        let rows = match table::read(bytes, usize::MAX, &memory_budget) {
            Ok(rows) => rows,
            Err(error @ (TableError::TooMuch(_) | TableError::Limit(_))) => {
                return Err(CliError::Read { path, source: io::Error::other(error) });
            }
            // A Parquet file of another origin has no rows for this plan.
            Err(_) => Vec::new(),
        };
        rows_by_key.extend(rows.into_iter().map(|row| (row.key.clone(), row)));
    }
    let runs = plan.runs(selection, &*loaded.load);
    let keys = (0..runs.len()).filter_map(|index| Some(runs.get(index)?.row.key));
    let rows: Vec<_> = keys.filter_map(|key| rows_by_key.remove(&key)).collect();
    if rows.len() < runs.len() {
        let (name, world) = (&plan.name, selection.world);
        let missing = runs.len() - rows.len();
        return Err(CliError::Unavailable {
            what: format!(
                "{missing} of {} runs of `{name}` in `{world}` are not in `{}`",
                runs.len(),
                folder.display()
            ),
            hint: "omit `--redraw` to run them".to_owned(),
        });
    }
    Ok(rows)
}

/// Returns the file name stem, which differs by worlds and selection so that results do not
/// collide.
fn stem(name: &str, worlds: &[String], quick: bool) -> String {
    format!("{}{}", gallery::stem(name, worlds), if quick { "-quick" } else { "" })
}

fn write_files(entry: &mut GalleryEntry, rows: &[RunRow], folder: &Path) -> Result<(), CliError> {
    let stem = stem(&entry.name, &entry.worlds, entry.quick);
    let metadata = [("towpath.plan", entry.name.clone())];
    let internal_error = |error: &dyn std::fmt::Display| CliError::Internal(error.to_string());
    let parquet = table::write(rows, &metadata).map_err(|error| internal_error(&error))?;
    let outputs = [
        ("svg", figure::svg(&entry.figure).into_bytes()),
        ("png", figure::png(&entry.figure).map_err(|error| internal_error(&error))?),
        ("csv", figure::csv(&entry.figure).into_bytes()),
        ("parquet", parquet),
    ];
    entry.files = outputs.iter().map(|(extension, _)| format!("{stem}.{extension}")).collect();
    let json = serde_json::to_vec(entry).map_err(|error| internal_error(&error))?;
    let folder = files::folder(folder)?;
    for (extension, bytes) in outputs.into_iter().chain([("json", json)]) {
        write_in(&folder, &format!("{stem}.{extension}"), &bytes)?;
    }
    Ok(())
}

/// Writes one page of all figures in the folder, including those of earlier calls.
fn write_page(folder: &Path) -> Result<PathBuf, CliError> {
    let unreadable = |source| CliError::Read { path: folder.to_owned(), source };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    paths.sort();
    // Another version may have written a different format; such files are left out.
    let budget = ReadBudget::new(DEFAULT_RESULT_LIMIT).map_err(unreadable)?;
    let parse_entry = |path: &PathBuf| serde_json::from_slice(&budget.read(path).ok()?).ok();
    let entries: Vec<GalleryEntry> = paths.iter().filter_map(parse_entry).collect();
    write_in(&files::folder(folder)?, "index.html", gallery::page(&entries).as_bytes())
}

fn write_docs(folder: &Path, entries: &[GalleryEntry]) -> Result<(), CliError> {
    const IMAGE_DIR: &str = "images/reproductions";
    let images = files::folder(&folder.join(IMAGE_DIR))?;
    for entry in entries {
        let picture = figure::svg(&entry.figure);
        write_in(&images, &format!("{}.svg", entry.stem()), picture.as_bytes())?;
    }
    let worlds = entries.first().map(|entry| entry.worlds.as_slice()).unwrap_or_default();
    let name = if worlds.len() > 1 { worlds } else { &["sim".to_owned()] };
    let page = format!("{}.md", gallery::stem("reproductions", name));
    write_in(&files::folder(folder)?, &page, gallery::markdown(entries, IMAGE_DIR).as_bytes())
        .map(drop)
}

/// Returns the JSON output; the figure itself is in the folder.
fn summary(entry: &GalleryEntry) -> serde_json::Value {
    json!({
        "name": entry.name, "title": entry.title, "source": entry.source, "worlds": entry.worlds,
        "quick": entry.quick, "runs": entry.runs, "failed": entry.failed, "unreliable": entry.unreliable, "claims": entry.claims,
        "verdict": entry.verdict, "files": entry.files,
    })
}

fn print_entry(entry: &GalleryEntry, ui: &mut Ui) -> Result<(), CliError> {
    write_wrapped(&mut ui.out, &format!("{}: ", entry.name), &entry.title)?;
    for line in sparks(&entry.figure) {
        writeln!(ui.out, "  {line}")?;
    }
    for claim in &entry.claims {
        let sign = match (claim.sign(), ui.colour) {
            ("✓", true) => "\u{1b}[32m✓\u{1b}[0m",
            ("✗", true) => "\u{1b}[31m✗\u{1b}[0m",
            (sign, _) => sign,
        };
        let mut lines = wrap("    ", &claim.text);
        if let Some(first) = lines.first_mut() {
            *first = format!("  {sign} {}", first.trim_start());
        }
        for line in lines {
            writeln!(ui.out, "{line}")?;
        }
        let world_prefix =
            claim.world.as_ref().map(|world| format!("in {world}: ")).unwrap_or_default();
        let surprise_note = if claim.expected { "" } else { "this differs from the expectation; " };
        let text = format!("{world_prefix}{surprise_note}{}", claim.measured);
        write_wrapped(&mut ui.out, "      ", &text)?;
    }
    write_wrapped(&mut ui.out, "  ", &format!("Verdict: {}.", entry.verdict))?;
    writeln!(ui.out)?;
    Ok(())
}
