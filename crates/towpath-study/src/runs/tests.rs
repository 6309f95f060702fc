use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;

use proptest::prelude::*;

use super::*;
use crate::plan::Plan;

const SCENARIO: &str = r#"
name = "two-links"
[hosts.client]
[hosts.server]
[paths.a]
between = ["client", "server"]
rate = "10 Mbit/s"
delay = "10 ms"
[paths.b]
between = ["client", "server"]
rate = "5 Mbit/s"
delay = "10 ms"
[[flows]]
from = "client"
to = "server"
pattern = "bulk"
duration = "2 s"
[expect]
"mptcp.goodput" = ">= 12 Mbit/s"
"#;

const PLAN: &str = r#"
name = "delays"
title = "Goodput over the delay of the second link"
scenario = "two-links.toml"
worlds = ["sim", "emu"]
seeds = 3
quick-seeds = 2
window = ["500 ms", "2 s"]
[[variants]]
name = "TCP over a"
transport = "tcp"
remove = ["paths.b"]
worlds = ["sim"]
[[variants]]
name = "MPTCP"
transport = "mptcp"
set = { "flows.0.duration" = "3 s", "hosts.server.receive-buffer" = "1 MB" }
[[axes]]
name = "delay of b"
keys = ["paths.b.delay"]
values = ["10 ms", "100 ms", "500 ms"]
quick = ["100 ms"]
[[axes]]
name = "rate of a"
keys = ["paths.a.rate"]
values = ["10 Mbit/s", { up = "1 Mbit/s", down = "2 Mbit/s" }]
"#;

fn load(name: &str) -> io::Result<String> {
    if name.ends_with("two-links.toml") {
        Ok(SCENARIO.to_owned())
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn plan(text: &str) -> Plan {
    Plan::parse("plan.toml", text, &load).unwrap_or_else(|errors| panic!("{errors}"))
}

const SIM: RunSelection = RunSelection { world: World::Sim, quick: false, seeds: None };

fn all_runs(runs: &RunGrid<'_>) -> Vec<StudyRun> {
    (0..runs.len()).map(|index| runs.get(index).unwrap()).collect()
}

#[test]
fn every_variant_meets_every_point_and_every_seed_once() {
    let plan = plan(PLAN);
    let runs = plan.runs(SIM, &load);
    let runs_made = all_runs(&runs);
    assert_eq!(runs_made.len(), 2 * 3 * 2 * 3);
    assert!(runs.get(runs_made.len()).is_none());
    let points: BTreeSet<_> = runs_made
        .iter()
        .map(|run| {
            let text = |name: &str| run.row.parameters[name].text.clone();
            (run.row.variant.clone(), text("delay of b"), text("rate of a"), run.row.seed)
        })
        .collect();
    assert_eq!(points.len(), runs_made.len());
    let keys: BTreeSet<_> = runs_made.iter().map(|run| run.row.key.clone()).collect();
    assert_eq!(keys.len(), runs_made.len());
    assert!(runs_made.iter().all(|run| run.scenario.is_ok()), "{runs_made:#?}");
}

#[test]
fn the_emulated_world_runs_its_own_part_of_the_plan() {
    let delays = |plan: &Plan, thin: bool| {
        let selection = RunSelection { world: World::Emu, quick: thin, seeds: None };
        let runs = all_runs(&plan.runs(selection, &load));
        let delays: BTreeSet<_> =
            runs.iter().map(|run| run.row.parameters["delay of b"].text.clone()).collect();
        let seeds = runs.iter().map(|run| run.row.seed).max().unwrap();
        (Vec::from_iter(delays), seeds)
    };
    let full_plan = plan(PLAN);
    assert_eq!(
        delays(&full_plan, false),
        (vec!["10 ms".into(), "100 ms".into(), "500 ms".into()], 3)
    );
    assert_eq!(delays(&full_plan, true), (vec!["100 ms".into()], 2));
    let plan_with_emulated = |emulated: &str| {
        let values = format!("emulated = {emulated}\nquick = [\"100 ms\", \"500 ms\"]\n");
        let text = PLAN.replace("quick = [\"100 ms\"]\n", &values);
        plan(&text.replace("quick-seeds = 2\n", "quick-seeds = 2\nemulated-seeds = 1\n"))
    };
    let two_values = plan_with_emulated("[\"10 ms\", \"500 ms\"]");
    assert_eq!(delays(&two_values, false), (vec!["10 ms".into(), "500 ms".into()], 1));
    assert_eq!(delays(&two_values, true), (vec!["500 ms".into()], 1));
    // If a quick run would have no value, it uses the quick ones.
    assert_eq!(
        delays(&plan_with_emulated("[\"10 ms\"]"), true),
        (vec!["100 ms".into(), "500 ms".into()], 1)
    );
    let simulated = two_values.runs(SIM, &load).len();
    assert_eq!(simulated, full_plan.runs(SIM, &load).len());
}

#[test]
fn a_run_is_the_scenario_with_variant_and_point_applied() {
    let plan = plan(PLAN);
    let runs = all_runs(&plan.runs(SIM, &load));
    let (first, last) = (runs.first().unwrap(), runs.last().unwrap());
    let scenario = first.scenario.as_ref().unwrap();
    let names: Vec<_> = scenario.paths.iter().map(|path| path.name.as_str()).collect();
    assert_eq!((names, scenario.run.seed), (vec!["a"], 1));
    insta::assert_snapshot!(last.text);
    let scenario = last.scenario.as_ref().unwrap();
    assert_eq!(scenario.run.transports, [Transport::Mptcp]);
    assert_eq!((scenario.run.seed, last.row.parameters["delay of b"].number), (3, Some(0.5)));
}

#[test]
fn quick_mode_world_and_seed_count_select_the_runs() {
    let plan = plan(PLAN);
    assert_eq!(plan.runs(RunSelection { quick: true, ..SIM }, &load).len(), 2 * 2 * 2);
    assert_eq!(plan.runs(RunSelection { world: World::Emu, ..SIM }, &load).len(), 3 * 2 * 3);
    assert_eq!(plan.runs(RunSelection { seeds: Some(1), ..SIM }, &load).len(), 2 * 3 * 2);
}

#[test]
fn everything_that_affects_a_row_changes_its_key() {
    let key = |text: &str, selection| {
        let plan = plan(text);
        plan.runs(selection, &load).get(20).unwrap().row.key
    };
    let first = key(PLAN, SIM);
    assert_eq!(first, key(PLAN, SIM));
    assert_eq!(first.len(), 32);
    assert_ne!(first, key(&PLAN.replace("500 ms\", \"2 s", "600 ms\", \"2 s"), SIM));
    assert_ne!(first, key(&PLAN.replace("1 MB", "2 MB"), SIM));
}

#[test]
fn the_keys_of_a_point_are_those_of_its_runs() {
    let random = "[random]\nsamples = 4\n[[random.draws]]\nname = \"d\"\n\
         keys = [\"paths.a.delay\"]\nuniform = [\"5 ms\", \"9 ms\"]\n";
    for text in [PLAN, &format!("{PLAN}{random}")] {
        let plan = plan(text);
        for seeds in [Some(1), Some(2), Some(12), None] {
            let selection = RunSelection { world: World::Sim, quick: false, seeds };
            let runs = plan.runs(selection, &load);
            let points = (0..runs.point_count()).map(|point| runs.check_point(point).unwrap());
            let keys: Vec<_> = points.flat_map(|point| point.keys).collect();
            let expected: Vec<_> = all_runs(&runs).into_iter().map(|run| run.row.key).collect();
            assert_eq!(keys, expected, "{seeds:?} seeds of {text}");
        }
    }
}

#[test]
fn only_the_seed_of_the_run_is_replaced() {
    let text = "# p\nseed = 1\n[run]\nrepeat = 1\nseed = 1\n\n[x]\nseed = 1\n";
    let expected = "# p\nseed = 1\n[run]\nrepeat = 1\nseed = 27\n\n[x]\nseed = 1\n";
    assert_eq!(with_seed(text, 1, 27).as_deref(), Some(expected));
    assert_eq!(with_seed(text, 27, 1), None);
    assert_eq!(with_seed("\n[run]\nseed = 12\n", 1, 2), None, "a longer number");
    assert_eq!(with_seed("\n[run]\nrepeat = 1\n[x]\nseed = 1\n", 1, 2), None, "another table");
    assert_eq!(with_seed("seed = 1\n", 1, 2), None);
}

#[test]
fn an_invalid_scenario_and_a_panic_are_error_rows() {
    let plan = plan(&PLAN.replace("receive-buffer", "recieve-buffer"));
    let runs = all_runs(&plan.runs(SIM, &load));
    let row = runs.last().unwrap().execute(|_| panic!("not called"));
    let error = row.error.unwrap();
    assert!(error.contains("unknown key `recieve-buffer`"), "{error}");
    let row = runs.first().unwrap().execute(|_| panic!("{}", "oh no"));
    assert_eq!(row.error.as_deref(), Some("panic: oh no"));
    let row = runs.first().unwrap().execute(|_| Err("no".to_owned()));
    assert_eq!((row.error.as_deref(), row.metrics.len()), (Some("no"), 0));
}

const DRAWS: &str = r#"
[random]
samples = 40
quick = 5
[[random.draws]]
name = "rate"
keys = ["paths.a.rate"]
uniform = ["1 Mbit/s", "20 Mbit/s"]
[[random.draws]]
name = "delay"
keys = ["paths.a.delay", "paths.b.delay"]
lognormal = { median = "30 ms", sigma = 0.8 }
max = "200 ms"
[[random.draws]]
name = "length"
keys = ["flows.0.duration"]
exponential = "3 s"
min = "1 s"
[[random.draws]]
name = "scheduler"
keys = ["hosts.client.scheduler"]
choice = [["min-rtt", 0.7], ["redundant", 0.3]]
[[random.draws]]
name = "subflows"
keys = ["hosts.client.mptcp.subflows"]
uniform = [1, 3]
"#;

fn sampled_runs(text: &str) -> Vec<StudyRun> {
    let plan = plan(text);
    let selection = RunSelection { seeds: Some(1), ..SIM };
    let runs = plan.runs(selection, &load);
    let runs_made = all_runs(&runs);
    runs_made.into_iter().filter(|run| run.row.variant == "MPTCP").take(40).collect()
}

#[test]
fn samples_are_drawn_from_the_distributions_of_the_plan() {
    let runs = sampled_runs(&format!("{PLAN}{DRAWS}"));
    let (mut schedulers, mut subflows) = (BTreeSet::new(), BTreeSet::new());
    for run in &runs {
        let parameter = |name: &str| &run.row.parameters[name];
        let number = |name: &str| parameter(name).number.unwrap();
        assert!((1e6..=20e6).contains(&number("rate")), "{run:?}");
        assert!((0.0..=0.2).contains(&number("delay")), "{run:?}");
        assert!(number("length") >= 1.0, "{run:?}");
        schedulers.insert(parameter("scheduler").text.clone());
        subflows.insert(parameter("subflows").text.clone());
        assert!(run.scenario.is_ok(), "{:?}", run.scenario);
    }
    assert_eq!(schedulers, ["min-rtt", "redundant"].map(str::to_owned).into());
    assert_eq!(subflows, ["1", "2", "3"].map(str::to_owned).into());
    let mut delays: Vec<_> =
        runs.iter().map(|run| run.row.parameters["delay"].number.unwrap()).collect();
    delays.sort_by(f64::total_cmp);
    assert!((0.02..0.045).contains(&delays[20]), "{delays:?}");
    let seeds: BTreeSet<_> = runs.iter().map(|run| run.row.seed).collect();
    assert_eq!(seeds.len(), 40);
}

#[test]
fn a_renamed_plan_keeps_its_draws_by_the_seed_name() {
    let text = format!("{PLAN}{DRAWS}");
    let renamed = text.replacen("name = \"delays\"", "name = \"other\"", 1);
    let kept = renamed.replace("[random]\n", "[random]\nseed-name = \"delays\"\n");
    let drawn = |text: &str| -> Vec<_> {
        sampled_runs(text).into_iter().map(|run| run.row.parameters).collect()
    };
    assert_ne!(drawn(&renamed), drawn(&text));
    assert_eq!(drawn(&kept), drawn(&text));
}

#[test]
fn a_draw_can_be_added_to_an_earlier_one() {
    let later = "[[random.draws]]\nname = \"later\"\nkeys = [\"flows.0.start\"]\n\
        uniform = [\"1 s\", \"2 s\"]\nafter = \"length\"\n";
    for run in sampled_runs(&format!("{PLAN}{DRAWS}{later}")) {
        let number = |name: &str| run.row.parameters[name].number.unwrap();
        let wait = number("later") - number("length");
        assert!((0.999..2.001).contains(&wait), "{wait}");
    }
}

#[test]
fn only_an_earlier_draw_of_the_same_kind_can_be_added() {
    for (name, expected) in [
        ("delay", None),
        ("rate", Some("the two draws cannot be added")),
        ("scheduler", Some("the two draws cannot be added")),
        ("later", Some("no draw before this one has the name")),
    ] {
        let text = format!(
            "{PLAN}{DRAWS}[[random.draws]]\nname = \"later\"\nkeys = [\"flows.0.start\"]\n\
            exponential = \"1 s\"\nafter = \"{name}\"\n"
        );
        let errors = Plan::parse("plan.toml", &text, &load).err().map(|errors| errors.to_string());
        assert_eq!(errors.is_some(), expected.is_some(), "{errors:?}");
        assert!(errors.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}

#[test]
fn another_draw_and_more_samples_do_not_change_earlier_values() {
    let text = format!("{PLAN}{DRAWS}");
    let without = text.replace(
        "[[random.draws]]\nname = \"rate\"\nkeys = [\"paths.a.rate\"]\n\
        uniform = [\"1 Mbit/s\", \"20 Mbit/s\"]\n",
        "",
    );
    assert_ne!(without, text);
    let delays = |text: &str| -> Vec<_> {
        sampled_runs(text).iter().map(|run| run.row.parameters["delay"].text.clone()).collect()
    };
    assert_eq!(delays(&without), delays(&text));
    assert_eq!(delays(&text.replace("samples = 40", "samples = 400")), delays(&text));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn no_two_runs_have_the_same_key(
        variants in 1_usize..4,
        values in proptest::collection::vec(1_usize..4, 0..4),
        seeds in 1_u32..4,
        samples in proptest::option::of(1_u32..4),
    ) {
        let mut text = format!(
            "name = \"p\"\nscenario = \"two-links.toml\"\nseeds = {seeds}\n"
        );
        for variant in 0..variants {
            let _ = write!(text, "[[variants]]\nname = \"v{variant}\"\ntransport = \"tcp\"\n");
        }
        for (axis, count) in values.iter().enumerate() {
            let values: Vec<_> = (1..=*count).map(|n| format!("\"{n} Mbit/s\"")).collect();
            // All change the same key, so only the last one has an effect.
            let _ = write!(
                text,
                "[[axes]]\nname = \"x{axis}\"\nkeys = [\"paths.a.rate\"]\nvalues = [{}]\n",
                values.join(", ")
            );
        }
        if let Some(samples) = samples {
            let _ = write!(text, "[random]\nsamples = {samples}\n[[random.draws]]\nname = \"d\"\n\
                keys = [\"paths.a.delay\"]\nchoice = [[\"1 ms\", 1]]\n");
        }
        let plan = plan(&text);
        let runs = plan.runs(SIM, &load);
        let expected = variants
            * values.iter().product::<usize>()
            * seeds as usize
            * samples.unwrap_or(1) as usize;
        prop_assert_eq!(runs.len(), expected);
        let keys: BTreeSet<_> = all_runs(&runs).into_iter().map(|run| run.row.key).collect();
        prop_assert_eq!(keys.len(), expected);
    }
}
