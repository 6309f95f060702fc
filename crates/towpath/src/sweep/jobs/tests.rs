use std::io;

use clap::Parser as _;

use super::*;
use crate::cli::{Arguments, Command};

const SCENARIO: &str = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
    rate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n[[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"bulk\"\n\
    duration = \"1 s\"\n";
const PLAN: &str = "name = \"delays\"\nscenario = \"../t.toml\"\nseeds = 5\n[[variants]]\n\
    name = \"TCP\"\ntransport = \"tcp\"\n[[axes]]\nname = \"delay\"\nkeys = [\"paths.p.delay\"]\n\
    values = [\"1 ms\", \"2 ms\", \"3 ms\"]\n";

/// Paths with characters that a shell interprets, quoted.
fn paths() -> ScriptPaths {
    let quoted = |text| quoted(text).unwrap();
    ScriptPaths {
        program: quoted("/opt/towpath"),
        plan: quoted("/home/it's mine/plan.toml"),
        folder: quoted("/data/$HOME `rows`"),
    }
}

/// Returns the arguments of `towpath sweep plan.toml --print SYSTEM`, with more options.
fn arguments(system: &str, more: &[&str]) -> SweepArguments {
    let words = [&["towpath", "sweep", "plan.toml", "--print", system], more].concat();
    let Command::Sweep(arguments) = Arguments::try_parse_from(words).unwrap().verb else {
        panic!("another verb");
    };
    arguments
}

/// Calls an action with the sweep of [`PLAN`] whose plan has this path and whose scenario this name.
fn with_sweep<T>(
    (path, scenario): (&str, &str),
    arguments: &SweepArguments,
    action: impl FnOnce(CheckedSweep<'_>) -> T,
) -> T {
    let text = PLAN.replace("../t.toml", scenario);
    let selection =
        RunSelection { world: World::Sim, quick: arguments.quick, seeds: arguments.seeds };
    let load = |name: &str| {
        assert_eq!(name, scenario);
        io::Result::Ok(SCENARIO.to_owned())
    };
    let spec = SweepSpec::new((path, &text), selection, arguments.chunk, &load).unwrap();
    let folder = arguments.out.clone().unwrap_or_else(|| "rows".into());
    action(CheckedSweep {
        path: Path::new(path),
        text: &text,
        plan: "delays",
        spec: &spec,
        selection,
        folder: &folder,
    })
}

/// Returns the workers for these options.
fn workers(system: &str, more: &[&str]) -> WorkerSet {
    let arguments = arguments(system, more);
    let system = arguments.script.print.unwrap();
    with_sweep(("plan.toml", "t.toml"), &arguments, |sweep| {
        WorkerSet::new(system, &arguments, (sweep, (15, sweep.spec.chunks())), 8).unwrap()
    })
}

/// Returns the manifest of a plan at this path, or the reason why there is none.
fn manifest(plan: (&str, &str), more: &[&str]) -> Result<String, JobError> {
    let arguments = arguments("kubernetes", more);
    with_sweep(plan, &arguments, |sweep| {
        let set = WorkerSet::new(JobSystem::Kubernetes, &arguments, (sweep, (15, 4)), 8)?;
        let JobArguments { image, claim, .. } = &arguments.script;
        kubernetes::Cluster::new(image.as_deref(), claim.as_deref())?.manifest(&set, sweep)
    })
}

#[test]
fn the_script_for_slurm_is_a_job_array_with_all_options_of_the_sweep() {
    let options =
        ["--quick", "--seeds", "3", "--chunk", "2", "--workers", "7", "--metrics", "goodput,it's"];
    let options = [&options[..], &["--jobs", "4"]].concat();
    insta::assert_snapshot!(workers("slurm", &options).slurm(&paths()));
}

#[test]
fn the_script_for_a_shell_starts_and_awaits_all_workers() {
    let options = ["--chunk", "1", "--metrics", "goodput"];
    insta::assert_snapshot!(workers("shell", &options).shell(&paths()));
}

#[test]
fn the_manifest_for_kubernetes_has_the_plan_with_its_files() {
    let options = ["--chunk", "1", "--image", "example.org/towpath:1", "--claim", "rows"];
    let options = [&options[..], &["--out", "a b/rows", "--jobs", "2"]].concat();
    insta::assert_snapshot!(manifest(("plans/delays.toml", "../t.toml"), &options).unwrap());
}

#[test]
fn a_manifest_without_names_has_placeholders_and_needs_no_volume_for_an_object_store() {
    let plan = ("plan.toml", "t.toml");
    let text = manifest(plan, &[]).unwrap();
    assert!(text.contains("image: IMAGE # placeholder"), "{text}");
    assert!(text.contains("claimName: CLAIM # placeholder"), "{text}");
    let text = manifest(plan, &["--out", "s3://bucket/rows"]).unwrap();
    assert!(text.contains("--out s3://bucket/rows") && text.contains("secretRef"), "{text}");
    assert!(!text.contains("claimName"), "{text}");
}

#[test]
fn a_shell_reads_every_quoted_text_as_one_word() {
    let word = |text| quoted(text).unwrap();
    assert_eq!(word("/a/b-c_d.toml"), "/a/b-c_d.toml");
    assert_eq!(word("a b"), "'a b'");
    assert_eq!(word("it's"), r"'it'\''s'");
    assert_eq!(word("$HOME `x` \"y\" \\"), "'$HOME `x` \"y\" \\'");
    assert_eq!(word("~/é*"), "'~/é*'");
    assert_eq!(word(""), "''");
}

#[test]
fn names_that_a_reader_would_not_see_completely_are_refused() {
    for name in ["a\nb", "a\rb", "a\tb", "a\u{1b}b", "a\u{202e}b"] {
        assert!(matches!(quoted(name), Err(JobError::Character(_))), "{name:?}");
    }
    let invisible = manifest(("a\nb.toml", "t.toml"), &[]);
    assert!(matches!(invisible, Err(JobError::Character(_))), "{invisible:?}");
}

#[test]
fn workers_have_four_chunks_and_never_exceed_the_size_of_an_array() {
    let max = max_workers(JobSystem::Slurm, World::Sim, 2);
    let counts = [1, 4, 5, 40, 4_000, 5_000, usize::MAX].map(|chunks| default_workers(chunks, max));
    assert_eq!(counts, [1, 1, 2, 10, 1_000, 1_000, 1_000]);
    // One computer runs as many workers as it has processors for.
    assert_eq!(workers("shell", &["--chunk", "1", "--jobs", "4"]).workers, 2);
    assert_eq!(workers("shell", &["--chunk", "1", "--jobs", "99"]).workers, 1);
    assert_eq!(max_workers(JobSystem::Shell, World::Emu, 64), 1);
    let words = ["towpath", "sweep", "plan.toml", "--print", "slurm", "--workers", "1001"];
    assert!(Arguments::try_parse_from(words).is_err());
}

#[test]
fn options_that_a_script_cannot_keep_are_refused() {
    let is_refused = |words: &[&str]| {
        Arguments::try_parse_from([&["towpath", "sweep", "plan.toml"], words].concat()).is_err()
    };
    for option in [["--shard", "1/2"], ["--csv", "f"], ["--to", "http://c"]] {
        assert!(is_refused(&["--print", "shell", option[0], option[1]]), "{option:?}");
    }
    for option in ["--workers", "--image", "--claim"] {
        assert!(is_refused(&[option, "2"]), "{option} without --print");
    }
}

#[test]
fn a_job_has_a_valid_name_for_every_plan() {
    assert_eq!(job_name("delays", World::Sim), "towpath-delays-sim");
    let long = job_name(&format!("{}-{}", "x".repeat(39), "y".repeat(24)), World::Emu);
    assert_eq!(long, format!("towpath-{}-emu", "x".repeat(39)));
    assert_eq!(long.len() + "-999".len(), 55);
    assert_eq!(job_name("---", World::Sim), "towpath--sim");
}

#[test]
fn a_config_map_that_cannot_hold_the_plan_is_refused() {
    let refused = |plan, more: &[&str]| manifest(plan, more).unwrap_err().to_string();
    let plan = ("plan.toml", "t.toml");
    assert!(refused(("plan.toml", "/t.toml"), &[]).contains("no place in a ConfigMap"));
    assert!(refused(("plan.toml", "none/../t.toml"), &[]).contains("no place in a ConfigMap"));
    assert!(refused(plan, &["--out", "/data"]).contains("not a folder in a volume"));
    assert!(refused(plan, &["--out", "../data"]).contains("not a folder in a volume"));
    assert!(refused(plan, &["--claim", "Rows"]).contains("PersistentVolumeClaim"));
    assert!(refused(plan, &["--image", "a b"]).contains("name of an image"));
    let text = format!("{PLAN}# {}\n", "x".repeat(kubernetes::MAX_MAP_BYTES));
    let arguments = arguments("kubernetes", &[]);
    let error = with_sweep(plan, &arguments, |sweep| {
        let set = WorkerSet::new(JobSystem::Kubernetes, &arguments, (sweep, (15, 4)), 8)?;
        kubernetes::Cluster::new(None, None)?.manifest(&set, CheckedSweep { text: &text, ..sweep })
    });
    assert!(matches!(error, Err(JobError::Size(bytes)) if bytes > 1_048_576), "{error:?}");
}
