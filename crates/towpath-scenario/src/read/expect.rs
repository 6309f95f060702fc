//! Parses the table `[expect]`.

use super::NameTable;
use crate::keys::{METRICS, MetricKind};
use crate::model::{Expectation, Operator, RunPlan, Transport};
use crate::nearest::nearest;
use crate::problem::{SpannedProblem, alternatives, quote};
use crate::section::Value;
use crate::units;

/// Longer operators come first, since shorter ones are their prefixes.
const OPERATORS: [(&str, Operator); 5] = [
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("==", Operator::Equal),
    ("<", Operator::Less),
    (">", Operator::More),
];
const TRANSPORTS: [(&str, Transport); 4] = [
    ("tcp", Transport::Tcp),
    ("mptcp", Transport::Mptcp),
    ("quic", Transport::Quic),
    ("mpquic", Transport::Mpquic),
];

pub(super) fn expect(value: &Value<'_>, names: &NameTable, run: &RunPlan) -> Vec<Expectation> {
    if value.as_table().is_none() {
        value.wrong_type("expected a table: `[expect]`");
    }
    let mut expectations = Vec::new();
    collect_expectations(value, "", names, run, &mut expectations);
    expectations
}

/// An unquoted `mptcp.goodput = …` is a nested table in TOML, with the same meaning.
fn collect_expectations(
    value: &Value<'_>,
    prefix: &str,
    names: &NameTable,
    run: &RunPlan,
    expectations: &mut Vec<Expectation>,
) {
    for (key, inner) in value.as_table().into_iter().flatten() {
        let name = format!("{prefix}{}", key.get_ref());
        let inner = value.nested(&name, key.span(), inner);
        if inner.as_table().is_some() {
            collect_expectations(&inner, &format!("{name}."), names, run, expectations);
        } else {
            expectations.extend(expectation(&name, &inner, names, run));
        }
    }
}

fn expectation(
    name: &str,
    value: &Value<'_>,
    names: &NameTable,
    run: &RunPlan,
) -> Option<Expectation> {
    let transport = TRANSPORTS.iter().find_map(|&(word, transport)| {
        let rest = name.strip_prefix(word)?.strip_prefix('.')?;
        Some((transport, rest))
    });
    let (transport, metric) = match transport {
        Some((transport, rest)) => (Some(transport), rest),
        None => (None, name),
    };
    let kind = find_metric(metric, value, names)?;
    if let Some(transport) = transport.filter(|t| !run.transports.contains(t)) {
        let message = format!("this is never checked: the run has no `{transport}`");
        value.fail_at(&value.key_span(), message, "expected one of the run's transports");
    }
    let (operator, bound, bound_text) = bound(value, kind)?;
    let text = format!("{name} {bound_text}");
    Some(Expectation { transport, metric: metric.to_owned(), operator, bound, text })
}

fn find_metric(metric: &str, value: &Value<'_>, names: &NameTable) -> Option<MetricKind> {
    let report = |message: String, expected: &str, hint: String| {
        value.push(SpannedProblem::new(value.key_span(), message, expected).hint(hint));
        None
    };
    let path_metric = METRICS.iter().find_map(|(name, kind)| {
        let prefix = name.strip_suffix("PATH")?;
        Some((prefix, metric.strip_prefix(prefix)?, *kind))
    });
    if let Some((prefix, path, kind)) = path_metric {
        if names.paths.iter().any(|name| name == path) {
            return Some(kind);
        }
        let path_names = || names.paths.iter().map(String::as_str);
        let hint = match nearest(path, path_names()) {
            Some(suggested) => format!("did you mean `{prefix}{suggested}`?"),
            None => {
                format!("the paths of this scenario are {}", alternatives(path_names().take(10)))
            }
        };
        let message = format!("no path is called {}", quote(path));
        let expected = format!("expected the name of a path after `{prefix}`");
        return report(message, &expected, hint);
    }
    if let Some(&(_, kind)) = METRICS.iter().find(|(name, _)| *name == metric) {
        return Some(kind);
    }
    let metric_names = || METRICS.iter().map(|&(name, _)| name);
    let last_part = metric.rsplit('.').next().unwrap_or(metric);
    let hint = match nearest(metric, metric_names()).or_else(|| nearest(last_part, metric_names()))
    {
        Some(suggested) => format!("did you mean `{suggested}`?"),
        None => format!("the metrics are {}", alternatives(metric_names())),
    };
    let expected = "expected a metric, alone or after a transport: `mptcp.goodput`";
    report(format!("no metric is called {}", quote(metric)), expected, hint)
}

/// Parses operator and bound; also returns both as normalized text.
fn bound(value: &Value<'_>, metric: MetricKind) -> Option<(Operator, f64, String)> {
    let expected = match metric {
        MetricKind::Truth => "expected `true` or `false`".to_owned(),
        MetricKind::Quantity(dimension) => {
            format!(
                "expected an operator and {} such as `>= {}`",
                dimension.noun(),
                dimension.example()
            )
        }
    };
    if let (MetricKind::Truth, Some(boolean)) = (metric, value.as_bool()) {
        return Some((Operator::Equal, f64::from(u8::from(boolean)), format!("== {boolean}")));
    }
    let Some(text) = value.as_str() else {
        value.wrong_type(&expected);
        return None;
    };
    let operator = OPERATORS.iter().find_map(|&(sign, operator)| {
        Some((operator, sign, text.trim().strip_prefix(sign)?.trim()))
    });
    let Some((operator, sign, rest)) = operator else {
        let hint = "the operators are `<`, `<=`, `==`, `>=` and `>`";
        value.fail_with_hint(format!("{} has no operator", quote(text)), expected, hint);
        return None;
    };
    let bound = match (metric, rest) {
        (MetricKind::Truth, "true") if operator == Operator::Equal => 1.0,
        (MetricKind::Truth, "false") if operator == Operator::Equal => 0.0,
        (MetricKind::Truth, _) => {
            value.fail(format!("{} is neither true nor false", quote(text)), expected);
            return None;
        }
        (MetricKind::Quantity(dimension), rest) => {
            match units::quantity(rest).and_then(|q| q.of(dimension)) {
                Ok(quantity) => quantity.as_f64(),
                Err(error) => {
                    value.unit_error(&error, dimension, expected);
                    return None;
                }
            }
        }
    };
    Some((operator, bound, format!("{sign} {rest}")))
}
