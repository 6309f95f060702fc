//! Reader of `expected.toml`, which reports every mistake in the file.

use KeyPresence::{Optional, Required};
use ValueKind::{Any, Bool, List, OneOf, Tables, Text, Words};
use towpath_scenario::document;
use towpath_scenario::document::{
    KeyPresence, Section, SpannedProblem, TableSchema, Value, ValueKind, alternatives, key,
    nearest, quote,
};
use towpath_scenario::units;
use towpath_scenario::units::Dimension;
use towpath_scenario::{Operator, ScenarioErrors, World};

use super::filter::{ParameterFilter, RunFilter};
use super::{
    Bound, CheckBound, Claim, ClaimCheck, ClaimOutcome, ClaimSet, PointQuantifier, Statistic,
};
use crate::plan::Plan;
use crate::row::{Parameter, present_name};

const BOUNDS: ValueKind = OneOf(&[ValueKind::Bound, List(&ValueKind::Bound)]);
const FILTER: ValueKind = Any("A table: `variant`, `world`, and axes or draws by name");

static EXPECTED: TableSchema = TableSchema {
    noun: "a file of claims",
    heading: "The claims",
    doc: "Claims of a source and their checks.",
    key_groups: &[&[key(
        "claims",
        Tables(&CLAIM),
        Optional("none"),
        "One for each sentence of the source",
    )]],
};

static CLAIM: TableSchema = TableSchema {
    noun: "a claim",
    heading: "[[claims]]",
    doc: "It holds when all its checks do.",
    key_groups: &[&[
        key("text", Text, Required, "The claim in one sentence"),
        key("source", Text, Required, "Who claims it, and where"),
        key("outcome", Words(&["holds", "fails"]), Required, "What we found"),
        key("deviation", Text, Optional("none"), "Why it fails, and the experiment that shows it"),
        key("worlds", List(&Words(&["sim", "emu"])), Optional("all"), "Where it is checked"),
        key("checks", Tables(&CHECK), Required, "At least one"),
    ]],
};

static CHECK: TableSchema = TableSchema {
    noun: "a check",
    heading: "[[claims.checks]]",
    doc: "A metric of some runs, compared with bounds or with other runs.",
    key_groups: &[&[
        key("metric", Text, Required, "A metric of the rows, such as `goodput`").formerly("figure"),
        key("of", FILTER, Optional("all runs"), "Which runs"),
        key("is", BOUNDS, Optional("none"), "What each point must keep, such as `>= 9 Mbit/s`"),
        key(
            "than",
            FILTER,
            Optional("none"),
            "Other runs, at the same point but for what this says",
        ),
        key("ratio", BOUNDS, Optional("none"), "With `than`: what the ratio must keep"),
        key(
            "statistic",
            Text,
            Optional("`median`"),
            "Of a point's runs: `median`, `mean`, `min`, `max`, `percentile 70` or `share`",
        ),
        key(
            "keeps",
            ValueKind::Bound,
            Optional("none"),
            "With `share`: of the runs that keep this",
        ),
        key("over", Words(&["all", "any", "mean"]), Optional("`all`"), "Which points must keep it"),
        key("quick", Bool, Optional("`true`"), "False if a run with `--quick` cannot show it")
            .formerly("thin"),
    ]],
};

/// Returns every key of `expected.toml`, as Markdown.
pub fn reference_markdown() -> String {
    document::reference("# Keys of expected.toml", [&EXPECTED, &CLAIM, &CHECK])
}

pub(super) fn read_claims(
    file_name: &str,
    text: &str,
    plan: &Plan,
) -> Result<ClaimSet, ScenarioErrors> {
    document::read(file_name, text, (&EXPECTED, "the file"), |top, _| {
        let claims = top.take("claims").and_then(|value| value.list("expected `[[claims]]`"));
        let claims = claims.unwrap_or_default();
        let claims = claims.iter().filter_map(|value| read_claim(value, plan)).collect();
        let axes = plan.axes.iter().map(|axis| axis.name.clone()).collect();
        ClaimSet { claims, axes }
    })
}

fn read_claim(value: &Value<'_>, plan: &Plan) -> Option<Claim> {
    let mut section = value.section(&CLAIM, "a claim", "expected a table")?;
    let text = section.require("text", "text = \"…\"").and_then(|value| value.text());
    let source = section.require("source", "source = \"section 4.2\"").and_then(|v| v.text());
    let outcomes = [("holds", ClaimOutcome::Holds), ("fails", ClaimOutcome::Fails)];
    let outcome = section.require("outcome", "outcome = \"holds\"").and_then(|v| v.word(&outcomes));
    let deviation = section.take("deviation").and_then(|value| value.text());
    if outcome == Some(ClaimOutcome::Fails) && deviation.is_none() {
        section.fail("a claim that fails has no `deviation`", "expected why, and what shows it");
    }
    let worlds = section.take("worlds").and_then(|value| value.list("expected a list"));
    let worlds = worlds.unwrap_or_default();
    let worlds = worlds.iter().filter_map(|value| value.word(&WORLDS)).collect();
    let checks = section.require("checks", "[[claims.checks]]");
    let checks = checks.and_then(|value| value.list("expected `[[claims.checks]]`"))?;
    let checks: Vec<_> = checks.iter().filter_map(|value| read_check(value, plan)).collect();
    section.finish();
    Some(Claim {
        text: text?.to_owned(),
        source: source?.to_owned(),
        outcome: outcome?,
        deviation: deviation.map(str::to_owned),
        worlds,
        checks,
    })
}

const WORLDS: [(&str, World); 2] = [("sim", World::Sim), ("emu", World::Emu)];

fn read_check(value: &Value<'_>, plan: &Plan) -> Option<ClaimCheck> {
    let mut section = value.section(&CHECK, "a check", "expected a table")?;
    let metric = section.require("metric", "metric = \"goodput\"").and_then(|v| v.text());
    let metric = metric.map(|name| present_name(name.to_owned()));
    let filter =
        section.take("of").map_or_else(RunFilter::default, |value| read_filter(&value, plan));
    let statistic = read_statistic(&mut section);
    let bound = read_bound(&mut section, plan);
    let quantifiers = [
        ("all", PointQuantifier::All),
        ("any", PointQuantifier::Any),
        ("mean", PointQuantifier::Mean),
    ];
    let quantifier = section
        .take("over")
        .and_then(|value| value.word(&quantifiers))
        .unwrap_or(PointQuantifier::All);
    let quick = section.take("quick").and_then(|value| value.boolean()).unwrap_or(true);
    section.finish();
    let metric = metric?;
    Some(ClaimCheck { metric, filter, statistic: statistic?, bound: bound?, quantifier, quick })
}

/// Reads the bound: either `is`, or `than` with `ratio`.
fn read_bound(section: &mut Section<'_>, plan: &Plan) -> Option<CheckBound> {
    let is = section.take("is");
    let (than, ratio) = (section.take("than"), section.take("ratio"));
    match (is, than, ratio) {
        (Some(is), None, None) => Some(CheckBound::Is(read_bounds(&is, None))),
        (None, Some(than), Some(ratio)) => {
            let bounds = read_bounds(&ratio, Some(Dimension::Count));
            Some(CheckBound::Ratio { than: read_filter(&than, plan), bounds })
        }
        _ => {
            let expected = "expected either `is`, or `than` and `ratio`";
            section.fail("this does not say what is asked", expected);
            None
        }
    }
}

fn read_statistic(section: &mut Section<'_>) -> Option<Statistic> {
    let (value, share_bound) = (section.take("statistic"), section.take("keeps"));
    let text = value.as_ref().map_or(Some("median"), Value::text)?;
    let share_bound = share_bound.and_then(|value| Some((read_one_bound(&value, None)?, value)));
    let statistic = match (text, text.strip_prefix("percentile ")) {
        ("median", _) => Statistic::Median,
        ("mean", _) => Statistic::Mean,
        ("min", _) => Statistic::Min,
        ("max", _) => Statistic::Max,
        ("share", _) => {
            let Some((bound, _)) = share_bound else {
                section.fail("`share` of which runs?", "expected `keeps = \">= 10 s\"`");
                return None;
            };
            return Some(Statistic::Share(bound));
        }
        (_, Some(number)) => match number.parse() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Statistic::Percentile(percent),
            _ => return unknown_statistic(&value?),
        },
        _ => return unknown_statistic(&value?),
    };
    if let Some((_, value)) = share_bound {
        value.fail("`keeps` says of which runs a `share` is", "expected `statistic = \"share\"`");
    }
    Some(statistic)
}

fn unknown_statistic(value: &Value<'_>) -> Option<Statistic> {
    let expected = "expected median, mean, min, max, share or `percentile 70`";
    value.fail("this is not a statistic", expected);
    None
}

fn read_bounds(value: &Value<'_>, dimension: Option<Dimension>) -> Vec<Bound> {
    if value.as_str().is_some() {
        return read_one_bound(value, dimension).into_iter().collect();
    }
    let list = value.list("expected a bound such as `>= 9 Mbit/s`, or a list of bounds");
    list.unwrap_or_default().iter().filter_map(|value| read_one_bound(value, dimension)).collect()
}

/// Operators, longer ones first, because the shorter ones are their prefixes.
const OPERATORS: [(&str, Operator); 5] = [
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("==", Operator::Equal),
    ("<", Operator::Less),
    (">", Operator::More),
];

fn split_operator(text: &str) -> Option<(Operator, &str)> {
    OPERATORS.iter().find_map(|(word, operator)| Some((*operator, text.strip_prefix(word)?)))
}

fn read_one_bound(value: &Value<'_>, dimension: Option<Dimension>) -> Option<Bound> {
    let Some((operator, quantity_text)) = split_operator(value.text()?) else {
        value.fail("this is not a bound", "expected an operator and a value such as `>= 9 Mbit/s`");
        return None;
    };
    let parsed = units::quantity(quantity_text).and_then(|quantity| match dimension {
        Some(dimension) => quantity.of(dimension),
        None => Ok(quantity),
    });
    match parsed {
        Ok(quantity) => {
            let (value, dimension) = (quantity.as_f64(), quantity.dimension);
            Some(Bound { operator, value, dimension })
        }
        Err(error) => {
            let dimension = dimension.unwrap_or(Dimension::Rate);
            value.unit_error(&error, dimension, "expected a number with its unit".to_owned());
            None
        }
    }
}

fn read_filter(value: &Value<'_>, plan: &Plan) -> RunFilter {
    let mut filter = RunFilter::default();
    let Some(table) = value.as_table() else {
        value.wrong_type("expected a table such as `{ variant = \"…\" }`");
        return filter;
    };
    for (name, entry) in table {
        let entry = value.nested(name.get_ref(), name.span(), entry);
        match name.get_ref().as_ref() {
            "variant" => filter.variants = read_variants(&entry, plan),
            "world" => filter.world = entry.word(&WORLDS),
            parameter => {
                let condition =
                    require_known(parameter, &entry, plan).and_then(|()| parameter_filter(&entry));
                filter
                    .parameters
                    .extend(condition.map(|condition| (parameter.to_owned(), condition)));
            }
        }
    }
    filter
}

/// Reads a text or a list of texts.
fn text_or_list<'a>(value: &Value<'a>) -> Vec<Value<'a>> {
    match value.as_str() {
        Some(_) => vec![value.clone()],
        None => value.list("expected a text or a list of texts").unwrap_or_default(),
    }
}

fn read_variants(value: &Value<'_>, plan: &Plan) -> Vec<String> {
    let plan_variants = || plan.variants.iter().map(|variant| variant.name.as_str());
    let mut variants = Vec::new();
    for value in text_or_list(value) {
        let Some(name) = value.text() else { continue };
        if plan_variants().any(|v| v == name) {
            variants.push(name.to_owned());
        } else {
            report_not_in_plan(
                &value,
                value.span(),
                format!("no variant is called {}", quote(name)),
                || {
                    nearest(name, plan_variants())
                        .map_or_else(|| alternatives(plan_variants().take(10)), quote)
                },
            );
        }
    }
    variants
}

/// Returns `Some` if the plan has such an axis or draw; otherwise reports an error.
fn require_known(name: &str, value: &Value<'_>, plan: &Plan) -> Option<()> {
    let axes = plan.axes.iter().map(|axis| axis.name.as_str());
    let draws = plan.random.iter().flat_map(|random| &random.draws).map(|draw| draw.name.as_str());
    let known: Vec<&str> = axes.chain(draws).chain(["variant", "world"]).collect();
    if known.contains(&name) {
        return Some(());
    }
    let message = format!("no axis or draw is called {}", quote(name));
    report_not_in_plan(value, value.key_span(), message, || {
        nearest(name, known.iter().copied())
            .map_or_else(|| alternatives(known.iter().copied()), quote)
    });
    None
}

fn report_not_in_plan(
    value: &Value<'_>,
    span: std::ops::Range<usize>,
    message: String,
    names: impl Fn() -> String,
) {
    let finding = SpannedProblem::new(span, message, "expected a name of the plan");
    value.push(finding.hint(format!("the plan has {}", names())));
}

/// Reads the condition on a parameter: bounds, or values as the plan writes them.
fn parameter_filter(value: &Value<'_>) -> Option<ParameterFilter> {
    let is_bound =
        |value: &Value<'_>| value.as_str().is_some_and(|text| split_operator(text).is_some());
    let list = if value.as_str().is_some() || value.as_number().is_some() {
        vec![value.clone()]
    } else {
        value.list("expected a value, a comparison or a list of them")?
    };
    if !list.is_empty() && list.iter().all(is_bound) {
        return Some(ParameterFilter::Bounds(
            list.iter().filter_map(|v| read_one_bound(v, None)).collect(),
        ));
    }
    let parameter = |value: &Value<'_>| {
        let number = value.as_number();
        let text = value.as_str().map(str::to_owned).or(number)?;
        let number = units::quantity(&text).ok().map(units::Quantity::as_f64);
        Some(Parameter { text, number })
    };
    Some(ParameterFilter::OneOf(list.iter().filter_map(parameter).collect()))
}
