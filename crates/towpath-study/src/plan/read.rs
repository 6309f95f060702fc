//! Reader of `plan.toml`, which reports every mistake in the file.

use std::collections::BTreeSet;
use std::time::Duration;

use toml::Table;
use towpath_scenario::document::{
    Section, SpannedProblem, Value, nearest, present_key, quote, read,
};
use towpath_scenario::units;
use towpath_scenario::units::Dimension;
use towpath_scenario::{ScenarioErrors, Transport, World, builtin, unreadable};

use super::document::KeyPath;
use super::drawing::{KnownNames, read_panel};
use super::keys::{
    AXIS, DRAW, LOGNORMAL, MAX_NAME_CHARS, MAX_RUNS, MAX_SAMPLES, MAX_SEEDS, PLAN, RANDOM, VARIANT,
};
use super::{
    Axis, AxisValue, Distribution, DrawUnit, FileLoader, Plan, RandomDraw, RandomSampling, Variant,
};

const WORLDS: [(&str, World); 2] = [("sim", World::Sim), ("emu", World::Emu)];
const TRANSPORTS: [(&str, Transport); 4] = [
    ("tcp", Transport::Tcp),
    ("mptcp", Transport::Mptcp),
    ("quic", Transport::Quic),
    ("mpquic", Transport::Mpquic),
];
/// Maximum duration of a run.
const MAX_RUN_DURATION: Duration = Duration::from_secs(24 * 3_600);

/// Reads the whole file into a plan.
pub(super) fn plan(
    file_name: &str,
    text: &str,
    load: FileLoader<'_>,
) -> Result<Plan, ScenarioErrors> {
    read(file_name, text, (&PLAN, "the plan"), |top, _| decode(top, load))
}

fn decode(section: &mut Section<'_>, load: FileLoader<'_>) -> Plan {
    let name = section.require("name", "name = \"buffers\"").and_then(|v| file_name(&v));
    let title = section.take("title").and_then(|v| v.text()).unwrap_or("").to_owned();
    let scenario = section.require("scenario", "scenario = \"scenario.toml\"");
    let (scenario_name, scenario) =
        scenario.and_then(|v| scenario_of(&v, load)).unwrap_or_default();
    let worlds =
        section.take("worlds").and_then(|v| worlds(&v)).unwrap_or_else(|| vec![World::Sim]);
    let whole_number = |v: Value<'_>, max| v.integer(1, max).map(|n| n as u32);
    let seeds = section.take("seeds").and_then(|v| whole_number(v, MAX_SEEDS)).unwrap_or(1);
    let thin_seeds =
        section.take("quick-seeds").and_then(|v| whole_number(v, MAX_SEEDS)).unwrap_or(1);
    let emulated_seeds = section.take("emulated-seeds").and_then(|v| whole_number(v, MAX_SEEDS));
    let window = section.take("window").and_then(|v| window(&v));
    let mut names = BTreeSet::new();
    let variants_value = section.require("variants", "[[variants]]");
    let variants = variants_value
        .clone()
        .map_or_else(Vec::new, |v| decode_each(&v, |value| variant(value, &worlds, &mut names)));
    let mut names = BTreeSet::new();
    let axes = section
        .take("axes")
        .map_or_else(Vec::new, |v| decode_each(&v, |value| axis(value, &mut names)));
    let random = section.take("random").and_then(|v| random(&v, &mut names));
    let samples = random.as_ref().map_or(1, |random: &RandomSampling| random.samples as usize);
    let max_seeds = seeds.max(thin_seeds).max(emulated_seeds.unwrap_or(seeds)) as usize;
    let axes_values = axes.iter().map(|axis| axis.values.len());
    let runs = axes_values.chain([variants.len(), samples, max_seeds]);
    let runs = runs.fold(1, usize::saturating_mul);
    if let Some(variants_value) = variants_value.filter(|_| runs > MAX_RUNS) {
        // Every run is checked before the first starts.
        let count_text = if runs == usize::MAX { "too many".to_owned() } else { runs.to_string() };
        variants_value.fail(format!("the plan has {count_text} runs"), "expected at most 10000000");
    }
    let panels = section.take("figures").map_or_else(Vec::new, |v| {
        let draws = random.iter().flat_map(|random: &RandomSampling| &random.draws);
        let axes = axes.iter().map(|axis| axis.name.as_str());
        let axes: Vec<_> = axes.chain(draws.map(|draw| draw.name.as_str())).collect();
        let variants: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
        let names = KnownNames { variants: &variants, axes: &axes };
        decode_each(&v, |value| read_panel(value, names))
    });
    Plan {
        name: name.unwrap_or_default(),
        title,
        scenario_name,
        scenario,
        worlds,
        seeds,
        quick_seeds: thin_seeds,
        emulated_seeds: emulated_seeds.unwrap_or(seeds),
        window,
        variants,
        axes,
        random,
        panels,
    }
}

/// Decodes each value of an array, and reports an empty array.
fn decode_each<'a, T>(
    value: &Value<'a>,
    mut decode: impl FnMut(&Value<'a>) -> Option<T>,
) -> Vec<T> {
    let list = value.list("expected a list").unwrap_or_default();
    if list.is_empty() && value.to_toml().is_array() {
        value.fail("there is nothing in it", "expected at least one");
    }
    list.iter().filter_map(&mut decode).collect()
}

/// Reads a name that is also used for file names.
fn file_name(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > MAX_NAME_CHARS || !text.chars().all(is_allowed) {
        value.fail(
            format!("{} is not the name of a plan", quote(text)),
            "expected lower-case letters, digits and hyphens, at most 64",
        );
        return None;
    }
    Some(text.to_owned())
}

/// Reads a name for people that must be unique among its kind.
fn unique_name(section: &mut Section<'_>, names: &mut BTreeSet<String>) -> Option<String> {
    let value = section.require("name", "name = \"…\"")?;
    let text = value.text()?;
    if text.is_empty()
        || text.chars().count() > MAX_NAME_CHARS
        || text.chars().any(char::is_control)
    {
        value.fail("this is not a name", "expected 1 to 64 characters on one line");
        return None;
    }
    if !names.insert(text.to_owned()) {
        value.fail(format!("{} is named twice", quote(text)), "expected a name of its own");
        return None;
    }
    Some(text.to_owned())
}

/// Renames keys that an earlier version wrote, so that changes find them. Such keys are in tables
/// with a name or number (`paths.wifi`, `flows.0`), whose own names stay.
fn with_present_keys(mut scenario: Table) -> Table {
    let rename = |value: &mut toml::Value| {
        if let toml::Value::Table(table) = value {
            let entries = std::mem::take(table).into_iter();
            *table = entries.map(|(key, value)| (present_key(&key).to_owned(), value)).collect();
        }
    };
    for (_, value) in &mut scenario {
        match value {
            toml::Value::Table(tables) => tables.iter_mut().for_each(|(_, value)| rename(value)),
            toml::Value::Array(tables) => tables.iter_mut().for_each(rename),
            toml::Value::String(_)
            | toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_) => {}
        }
    }
    scenario
}

fn scenario_of(value: &Value<'_>, load: FileLoader<'_>) -> Option<(String, Table)> {
    let name = value.text()?;
    let text = if let Some(builtin_name) = name.strip_prefix("builtin:") {
        let builtin_names = || builtin().iter().map(|builtin| builtin.name);
        let Some(scenario) = builtin().iter().find(|builtin| builtin.name == builtin_name) else {
            let hint = match nearest(builtin_name, builtin_names()) {
                Some(suggestion) => format!("did you mean `builtin:{suggestion}`?"),
                None => "`towpath scenarios` lists them".to_owned(),
            };
            let message = format!("no built-in scenario is called {}", quote(builtin_name));
            value.fail_with_hint(message, "expected the name of a scenario", hint);
            return None;
        };
        scenario.text.to_owned()
    } else {
        match load(name) {
            Ok(text) => text,
            Err(error) => {
                let reason = unreadable(&error);
                let message = format!("the scenario {} cannot be read: {reason}", quote(name));
                let hint =
                    "the name is relative to the plan's folder; `builtin:NAME` is a built-in one";
                value.fail_with_hint(message, "expected a file", hint);
                return None;
            }
        }
    };
    match text.parse::<Table>() {
        Ok(table) => Some((name.to_owned(), with_present_keys(table))),
        Err(error) => {
            let message = format!("the scenario {} is not TOML: {}", quote(name), error.message());
            let hint = format!("`towpath run {name}` says where");
            value.fail_with_hint(message, "expected a scenario", hint);
            None
        }
    }
}

fn worlds(value: &Value<'_>) -> Option<Vec<World>> {
    let list = value.list("expected a list of worlds: `[\"sim\", \"emu\"]`")?;
    if list.is_empty() {
        value.fail("the list has no world", "expected `sim`, `emu` or both");
    }
    list.iter().map(|value| value.word(&WORLDS)).collect()
}

fn window(value: &Value<'_>) -> Option<[Duration; 2]> {
    let list = value.list("expected two times: `[\"5 s\", \"25 s\"]`")?;
    let [start, end] = list.as_slice() else {
        value.fail("a window is two times", "expected `[\"5 s\", \"25 s\"]`");
        return None;
    };
    let window = [start.duration(MAX_RUN_DURATION)?, end.duration(MAX_RUN_DURATION)?];
    if window.is_sorted_by(|start, end| start < end) {
        return Some(window);
    }
    value.fail("the window ends before it begins", "expected a later time at the end");
    None
}

fn path(value: &Value<'_>) -> Option<KeyPath> {
    key_path(value.text()?, value, value.span())
}

fn key_path(text: &str, value: &Value<'_>, span: std::ops::Range<usize>) -> Option<KeyPath> {
    let path = KeyPath::parse(text);
    if path.is_none() {
        let message = format!("{} is not a dotted key", quote(text));
        let expected = "expected one such as `paths.wifi.delay` or `flows.0.duration`";
        value.push(SpannedProblem::new(span, message, expected));
    }
    // The study sets a run's own keys.
    let reserved = ["run.seed", "run.repeat", "run.transports", "run.worlds", "expect"];
    let reserved = reserved.iter().filter_map(|reserved| KeyPath::parse(reserved));
    if let Some(path) = &path
        && reserved.into_iter().any(|reserved| path.is_in(&reserved))
    {
        let hint =
            "seeds, transports and worlds are said by the plan; what is expected is not checked";
        value.fail_with_hint(
            format!("{} is not for a plan to set", quote(text)),
            "remove it",
            hint,
        );
    }
    path
}

fn paths(section: &mut Section<'_>) -> Vec<KeyPath> {
    let value = section.require("keys", "keys = [\"paths.wifi.delay\"]");
    value.map_or_else(Vec::new, |value| decode_each(&value, path))
}

fn variant(
    value: &Value<'_>,
    plan_worlds: &[World],
    names: &mut BTreeSet<String>,
) -> Option<Variant> {
    let mut section = value.section(&VARIANT, "the variant", "expected `[[variants]]`")?;
    let name = unique_name(&mut section, names);
    if let Some(name) = &name {
        section.set_label(format!("variant {}", quote(name)));
    }
    let transport = section.require("transport", "transport = \"mptcp\"");
    let transport = transport.and_then(|v| v.word(&TRANSPORTS));
    let set = section.take("set").map_or_else(Vec::new, |v| settings(&v));
    let remove = section.take("remove").map_or_else(Vec::new, |v| {
        let list = v.list("expected a list of keys").unwrap_or_default();
        list.iter().filter_map(path).collect()
    });
    let worlds = section.take("worlds").and_then(|v| {
        let variant_worlds = worlds(&v)?;
        if variant_worlds.iter().any(|world| !plan_worlds.contains(world)) {
            v.fail("the plan is not run there", "expected some of the plan's `worlds`");
        }
        Some(variant_worlds)
    });
    section.finish();
    Some(Variant { name: name?, transport: transport?, set, remove, worlds })
}

/// Reads `{ "a.b" = 1 }`. Rejects `a.b = 1` without quotes: this is a nested table, which could
/// contain further keys.
fn settings(value: &Value<'_>) -> Vec<(KeyPath, toml::Value)> {
    let Some(table) = value.as_table() else {
        value.wrong_type("expected a table: `{ \"flows.0.duration\" = \"27 s\" }`");
        return Vec::new();
    };
    let setting = |(key, entry)| {
        let (key, entry): (&toml::Spanned<_>, &toml::Spanned<_>) = (key, entry);
        let name: &std::borrow::Cow<'_, str> = key.get_ref();
        let path = key_path(name, value, key.span())?;
        let setting = value.nested(name, key.span(), entry).to_toml();
        if setting.is_table() && !name.contains('.') {
            let hint = format!("write `\"{name}.KEY\" = VALUE`, with the quotes");
            let message = format!("this would replace all of `{name}`");
            value
                .push(SpannedProblem::new(key.span(), message, "expected a dotted key").hint(hint));
        }
        Some((path, setting))
    };
    table.iter().filter_map(setting).collect()
}

fn axis(value: &Value<'_>, names: &mut BTreeSet<String>) -> Option<Axis> {
    let mut section = value.section(&AXIS, "the axis", "expected `[[axes]]`")?;
    let name = unique_name(&mut section, names);
    if let Some(name) = &name {
        section.set_label(format!("axis {}", quote(name)));
    }
    reject_column_name(&section, name.as_deref());
    let keys = paths(&mut section);
    let values = section.require("values", "values = [\"10 ms\", \"20 ms\"]");
    let mut texts = BTreeSet::new();
    let values = values.map_or_else(Vec::new, |v| {
        decode_each(&v, |value| {
            let setting = AxisValue::new(value.to_toml());
            if !texts.insert(setting.text.clone()) {
                value.fail("this value is there twice", "remove one of them");
            }
            Some(setting)
        })
    });
    let [quick, emulated] = ["quick", "emulated"]
        .map(|key| section.take(key).map_or_else(|| values.clone(), |v| subset_of(&v, &values)));
    section.finish();
    Some(Axis { name: name?, keys, values, quick, emulated })
}

/// Reads a subset of an axis' values.
fn subset_of(value: &Value<'_>, values: &[AxisValue]) -> Vec<AxisValue> {
    decode_each(value, |value| {
        let setting = AxisValue::new(value.to_toml());
        if !values.contains(&setting) {
            value.fail("this is not one of the `values`", "expected some of the `values`");
        }
        Some(setting)
    })
}

fn random(value: &Value<'_>, names: &mut BTreeSet<String>) -> Option<RandomSampling> {
    let mut section = value.section(&RANDOM, "`[random]`", "expected a table: `[random]`")?;
    let whole_number = |v: Value<'_>| v.integer(1, MAX_SAMPLES).map(|n| n as u32);
    let samples = section.require("samples", "samples = 100").and_then(whole_number);
    let quick = section.take("quick").and_then(whole_number);
    let seed_name = section.take("seed-name").and_then(|v| v.text()).map(str::to_owned);
    let draws = section.require("draws", "[[random.draws]]");
    names.insert(super::SAMPLE_PARAMETER.to_owned());
    let mut earlier_draws = Vec::new();
    let mut draw = |value: &Value<'_>| {
        let draw = draw(value, names, &earlier_draws)?;
        earlier_draws.push((draw.name.clone(), draw.from.measure()));
        Some(draw)
    };
    let draws = draws.map_or_else(Vec::new, |v| decode_each(&v, &mut draw));
    section.finish();
    let samples = samples?;
    let quick = quick.unwrap_or(samples).min(samples);
    Some(RandomSampling { samples, quick, seed_name, draws })
}

fn draw(
    value: &Value<'_>,
    names: &mut BTreeSet<String>,
    earlier_draws: &[(String, Option<DrawUnit>)],
) -> Option<RandomDraw> {
    let mut section = value.section(&DRAW, "the draw", "expected `[[random.draws]]`")?;
    let name = unique_name(&mut section, names);
    if let Some(name) = &name {
        section.set_label(format!("draw {}", quote(name)));
    }
    reject_column_name(&section, name.as_deref());
    let keys = paths(&mut section);
    let distributions = [
        section.take("uniform").map(|v| uniform(&v)),
        section.take("exponential").map(|v| {
            let (mean, measure) = number(&v)?;
            Some(Distribution::Exponential(positive(&v, mean)?, measure))
        }),
        section.take("lognormal").map(|v| lognormal(&v)),
        section.take("choice").map(|v| Some(Distribution::Choice(decode_each(&v, choice)))),
    ];
    let limit = |v: Value<'_>| number(&v).map(|(limit, _)| limit);
    let limits = [section.take("min").and_then(limit), section.take("max").and_then(limit)];
    let mut distributions = distributions.into_iter().flatten();
    let (from, second) = (distributions.next(), distributions.next());
    if from.is_none() || second.is_some() {
        section.fail(
            "a draw is from one distribution",
            "expected one of `uniform`, `exponential`, `lognormal` and `choice`",
        );
    }
    let after = section.take("after");
    let from = from.flatten();
    let measure = from.as_ref().and_then(Distribution::measure);
    let after = after.and_then(|v| {
        let name = v.text()?;
        let earlier_draw = earlier_draws.iter().find(|(other, _)| other == name);
        match earlier_draw {
            Some((_, earlier_measure))
                if from.is_none() || (earlier_measure.is_some() && *earlier_measure == measure) => {
            }
            Some(_) => v.fail("the two draws cannot be added", "expected two of a kind"),
            None => v.fail("no draw before this one has the name", "expected an earlier draw"),
        }
        Some(name.to_owned())
    });
    section.finish();
    Some(RandomDraw { name: name?, keys, from: from?, limits, added_draw: after })
}

/// Rejects names of table columns: parameters and metrics share one table.
fn reject_column_name(section: &Section<'_>, name: Option<&str>) {
    if let Some(name) = name.filter(|name| crate::table::is_taken(name)) {
        let message = format!("{} is what a column of the table is called", quote(name));
        section.fail(message, "expected another name");
    }
}

fn uniform(value: &Value<'_>) -> Option<Distribution> {
    let list = value.list("expected two quantities: `[\"2 s\", \"8 s\"]`")?;
    let [min_value, max_value] = list.as_slice() else {
        value.fail("`uniform` is two quantities", "expected `[\"2 s\", \"8 s\"]`");
        return None;
    };
    let ((min, measure), (max, max_measure)) = (number(min_value)?, number(max_value)?);
    let measure = match (measure, max_measure) {
        (DrawUnit::Whole, DrawUnit::Number) => DrawUnit::Number,
        (DrawUnit::Number, DrawUnit::Whole) => DrawUnit::Number,
        (measure, max_measure) if measure == max_measure => measure,
        _ => {
            value.fail("the two are not of a kind", "expected two of the same");
            return None;
        }
    };
    if min > max {
        value.fail("the first is more than the second", "expected the least and the most");
    }
    Some(Distribution::Uniform([min, max], measure))
}

fn lognormal(value: &Value<'_>) -> Option<Distribution> {
    let example = "expected `{ median = \"3 s\", sigma = 0.8 }`";
    let mut section = value.section(&LOGNORMAL, "`lognormal`", example)?;
    let median = section.require("median", "median = \"3 s\"");
    let sigma = section.require("sigma", "sigma = 0.8");
    section.finish();
    let (median, sigma) = (median?, sigma?);
    let ((median_number, measure), (sigma, _)) = (number(&median)?, number(&sigma)?);
    Some(Distribution::LogNormal { median: positive(&median, median_number)?, sigma, measure })
}

fn choice(value: &Value<'_>) -> Option<(AxisValue, f64)> {
    let list = value.list("expected a value and its weight: `[\"a\", 0.5]`")?;
    let [setting, weight] = list.as_slice() else {
        value.fail("a choice is a value and its weight", "expected `[\"a\", 0.5]`");
        return None;
    };
    let (weight_number, _) = number(weight)?;
    Some((AxisValue::new(setting.to_toml()), positive(weight, weight_number)?))
}

fn positive(value: &Value<'_>, number: f64) -> Option<f64> {
    if number > 0.0 {
        return Some(number);
    }
    value.fail("this is zero", "expected more than zero");
    None
}

/// Reads a quantity or a plain number, in base units.
fn number(value: &Value<'_>) -> Option<(f64, DrawUnit)> {
    let toml_value = value.to_toml();
    match &toml_value {
        toml::Value::Integer(integer) if *integer >= 0 => {
            return Some((*integer as f64, DrawUnit::Whole));
        }
        toml::Value::Float(float) if float.is_finite() && *float >= 0.0 => {
            return Some((*float, DrawUnit::Number));
        }
        toml::Value::String(text) => match units::quantity(text) {
            Ok(quantity) => {
                let measure = match quantity.dimension {
                    Dimension::Rate => DrawUnit::Rate,
                    Dimension::Duration => DrawUnit::Time,
                    Dimension::Size => DrawUnit::Size,
                    Dimension::Packets => DrawUnit::Packets,
                    Dimension::Share => DrawUnit::Share,
                    Dimension::Count => DrawUnit::Number,
                };
                return Some((quantity.as_f64(), measure));
            }
            Err(error) => {
                let expected = "expected a quantity such as `3 s` or `40 Mbit/s`".to_owned();
                value.unit_error(&error, Dimension::Duration, expected);
                return None;
            }
        },
        toml::Value::Integer(_)
        | toml::Value::Float(_)
        | toml::Value::Boolean(_)
        | toml::Value::Datetime(_)
        | toml::Value::Array(_)
        | toml::Value::Table(_) => {}
    }
    value
        .fail("this is not a quantity", "expected one such as `\"3 s\"`, or a number of 0 or more");
    None
}

/// Parses a quantity as a number of base units; `None` if the text is not a quantity.
pub(super) fn quantity(text: &str) -> Option<f64> {
    units::quantity(text).ok().map(units::Quantity::as_f64)
}
