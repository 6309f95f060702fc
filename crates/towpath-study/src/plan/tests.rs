use std::io;

use super::*;
use crate::runs::RunSelection;

fn load(name: &str) -> io::Result<String> {
    match name {
        "two-links.toml" => Ok("name = \"two-links\"\n[hosts.a]\n".to_owned()),
        "broken.toml" => Ok("name = two-links\n".to_owned()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

const PLAN_HEAD: &str = "name = \"p\"\nscenario = \"two-links.toml\"\n";
const TCP_VARIANT: &str = "[[variants]]\nname = \"TCP\"\ntransport = \"tcp\"\n";

fn plan_error(text: &str) -> String {
    Plan::parse("plan.toml", text, &load).unwrap_err().to_string()
}

macro_rules! wrong {
    ($($name:ident: $text:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(plan_error($text.as_ref()));
        })*
    };
}

wrong! {
    an_empty_plan: "";
    an_unknown_key: format!("{PLAN_HEAD}sedes = 5\n{TCP_VARIANT}");
    a_scenario_that_is_not_there: format!("name = \"p\"\nscenario = \"two-link.toml\"\n{TCP_VARIANT}");
    a_scenario_that_is_not_toml: format!("name = \"p\"\nscenario = \"broken.toml\"\n{TCP_VARIANT}");
    a_builtin_scenario_that_does_not_exist:
        format!("name = \"p\"\nscenario = \"builtin:wifi-4g\"\n{TCP_VARIANT}");
    a_name_no_file_can_have: format!("name = \"A plan\"\nscenario = \"two-links.toml\"\n{TCP_VARIANT}");
    no_curve: PLAN_HEAD;
    a_window_that_ends_before_it_begins: format!("{PLAN_HEAD}window = [\"5 s\", \"2 s\"]\n{TCP_VARIANT}");
    a_transport_that_does_not_exist: format!("{PLAN_HEAD}{TCP_VARIANT}").replace("\"tcp\"", "\"mtcp\"");
    two_curves_of_one_name: format!("{PLAN_HEAD}{TCP_VARIANT}{TCP_VARIANT}");
    a_curve_for_a_world_the_plan_is_not_run_in: format!("{PLAN_HEAD}{TCP_VARIANT}worlds = [\"emu\"]\n");
    an_unknown_plan_key: format!("{PLAN_HEAD}{TCP_VARIANT}remove = [\"paths..wifi\"]\n");
    a_whole_table_replaced: format!("{PLAN_HEAD}{TCP_VARIANT}set = {{ hosts.a.mtu = 1400 }}\n");
    a_key_that_the_plan_sets_itself: format!("{PLAN_HEAD}{TCP_VARIANT}set = {{ \"run.seed\" = 7 }}\n");
    an_axis_without_values: format!("{PLAN_HEAD}{TCP_VARIANT}[[axes]]\nname = \"x\"\nkeys = [\"a.b\"]\n");
    a_value_twice:
        format!("{PLAN_HEAD}{TCP_VARIANT}[[axes]]\nname = \"x\"\nkeys = [\"a.b\"]\nvalues = [1, 2, 1]\n");
    a_quick_value_that_is_none:
        format!("{PLAN_HEAD}{TCP_VARIANT}[[axes]]\nname = \"x\"\nkeys = [\"a.b\"]\nvalues = [1]\nquick = [2]\n");
    an_emulated_value_that_does_not_exist: format!(
        "{PLAN_HEAD}{TCP_VARIANT}[[axes]]\nname = \"x\"\nkeys = [\"a.b\"]\nvalues = [1]\nemulated = [2]\n"
    );
    an_axis_called_like_a_column:
        format!("{PLAN_HEAD}{TCP_VARIANT}[[axes]]\nname = \"seed\"\nkeys = [\"a.b\"]\nvalues = [1]\n");
    a_draw_from_nothing:
        format!("{PLAN_HEAD}{TCP_VARIANT}[random]\nsamples = 2\n[[random.draws]]\nname = \"d\"\nkeys = [\"a\"]\n");
    a_draw_without_a_unit: format!(
        "{PLAN_HEAD}{TCP_VARIANT}[random]\nsamples = 2\n[[random.draws]]\nname = \"d\"\nkeys = [\"a.b\"]\n\
         uniform = [\"2 s\", \"8 sek\"]\n"
    );
    a_draw_between_things_of_two_kinds: format!(
        "{PLAN_HEAD}{TCP_VARIANT}[random]\nsamples = 2\n[[random.draws]]\nname = \"d\"\nkeys = [\"a.b\"]\n\
         uniform = [\"2 s\", \"8 KB\"]\n"
    );
}

#[test]
fn plans_with_former_names_are_read_like_plans_with_present_names() {
    let text = "name = \"p\"\nscenario = \"two-links.toml\"\nquick-seeds = 2\nseeds = 5
        [[variants]]\nname = \"TCP\"\ntransport = \"tcp\"
        [[axes]]\nname = \"x\"\nkeys = [\"run.checksum\"]\nvalues = [true, false]\nquick = [true]
        [random]\nsamples = 4\nquick = 3
        [[random.draws]]\nname = \"d\"\nkeys = [\"run.wait\"]
        exponential = \"2 s\"\nmin = \"1 s\"\nmax = \"9 s\"
        [[figures]]\nkind = \"lines\"\nx = \"x\"\ny = \"goodput\"\nstatistic = \"mean\"\n";
    let former_text = text
        .replace("quick", "thin")
        .replace("min =", "least =")
        .replace("max =", "most =")
        .replace("statistic", "middle");
    assert_ne!(text, former_text);
    let [present, former] =
        [text, &former_text].map(|text| Plan::parse("plan.toml", text, &load).unwrap());
    assert_eq!(present.quick_seeds, 2);
    assert_eq!(format!("{former:?}"), format!("{present:?}"));
}

#[test]
fn a_plan_with_former_keys_changes_scenarios_with_present_and_former_keys() {
    let scenario = |key| format!("name = \"s\"\n[hosts.do]\n[paths.how]\n{key} = \"split\"\n");
    for (in_plan, in_scenario) in [("segments", "segmentation"), ("segmentation", "segments")] {
        let load = |_: &str| Ok(scenario(in_scenario));
        let plan =
            format!("{PLAN_HEAD}{TCP_VARIANT}set = {{ \"paths.how.{in_plan}\" = \"auto\" }}\n");
        let plan = Plan::parse("plan.toml", &plan, &load).unwrap();
        let (mut scenario, (key, value)) = (plan.scenario.clone(), &plan.variants[0].set[0]);
        set(&mut scenario, key, value.clone()).unwrap();
        let path = scenario["paths"]["how"].as_table().unwrap();
        assert_eq!((path.len(), path["segmentation"].as_str()), (1, Some("auto")));
        assert!(scenario["hosts"].get("do").is_some());
    }
}

#[test]
fn the_example_is_a_plan_whose_points_are_scenarios() {
    let plan = Plan::parse("plan.toml", EXAMPLE, &load).unwrap_or_else(|e| panic!("{e}"));
    let world = World::Sim;
    let runs = plan.runs(RunSelection { world, quick: false, seeds: None }, &load);
    assert_eq!(runs.len(), 27);
    for index in 0..runs.len() {
        assert!(runs.get(index).unwrap().scenario.is_ok(), "{:?}", runs.get(index));
    }
}

#[test]
fn the_documented_page_is_up_to_date() {
    let page = include_str!("../../../../docs/reference/plan.md");
    assert!(
        page == reference_markdown(),
        "docs/reference/plan.md is old: write it again with `towpath schema plan-keys`"
    );
}
