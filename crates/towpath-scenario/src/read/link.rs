//! Parses the keys that paths and bottlenecks share.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use towpath_net::config::{
    DirectionConfig, JitterDistribution, LinkTrace, Loss, Probability, QueueLimit, QueuePosition,
    WhenDown,
};

use super::preset::{
    DirectionKeys, JitterKeys, Preset, QUEUE_WITHOUT_RATE, QueueKeys, RateSource, assemble,
};
use super::{MAX_DELAY, ReadContext};
use crate::keys::{BURST, CODEL, GILBERT_ELLIOTT, HTB, JITTER, LOSS, PIE, QUEUE, RATE, TBF};
use crate::problem::{SpannedProblem, quote};
use crate::section::{Section, Value};
use crate::units;
use crate::units::Dimension;

const EXPECTED_RATE: &str =
    "expected a rate such as `40 Mbit/s`, `{ up = …, down = … }` or a trace";
const EXPECTED_LOSS: &str = "expected a percentage such as `0.1 %`, or `{ gilbert-elliott = … }`";
const EXPECTED_QUEUE: &str =
    "expected a limit such as `80 ms`, `100 KB`, `50 packets` or `unlimited`, or a kind of queue";
const EXPECTED_LIMIT: &str =
    "expected a limit such as `80 ms`, `100 KB`, `50 packets` or `unlimited`";
/// Default packet limit of `codel` and `pie`, as in `tc`.
const DEFAULT_AQM_LIMIT: QueueLimit = QueueLimit::Packets(1_000);

/// Parses both directions of a link; `mtu_bytes` is the interface MTU.
pub(super) fn link(
    section: &mut Section<'_>,
    context: &ReadContext<'_>,
    mtu_bytes: Option<u32>,
) -> [DirectionConfig; 2] {
    let mut spans: Vec<(&'static str, Range<usize>)> = Vec::new();
    let mut record_span = |key: &'static str, value: &Option<Value<'_>>| {
        spans.extend(value.as_ref().map(|v| (key, v.span())));
    };
    let rate = section.take("rate");
    let queue = section.take("queue");
    let position = section.take("queue-position");
    let preset = section.take("preset");
    record_span("rate", &rate);
    record_span("queue", &queue);
    record_span("queue-position", &position);
    record_span("preset", &preset);
    let [up_rate, down_rate] = rate.map_or([None, None], |value| rates(&value, context));
    let [up_queue, down_queue] = per_direction(queue, queue_keys);
    let [up_delay, down_delay] = per_direction(section.take("delay"), |v| v.duration(MAX_DELAY));
    let [up_loss, down_loss] = per_direction(section.take("loss"), loss);
    let percent = |value: Option<Value<'_>>| value.and_then(|v| v.percent());
    let up = DirectionKeys {
        preset: preset.and_then(|v| v.word(&PRESETS)),
        rate: up_rate,
        delay: up_delay.unwrap_or_default(),
        jitter: section.take("jitter").and_then(|v| jitter(&v)),
        loss: up_loss.unwrap_or(Loss::None),
        duplicate: percent(section.take("duplicate")).unwrap_or(Probability::NEVER),
        corrupt: percent(section.take("corrupt")).unwrap_or(Probability::NEVER),
        queue: up_queue,
        position: position.and_then(|v| v.word(&POSITIONS)),
        overhead_bytes: integer(section.take("overhead"), 0, 1_000),
        mtu_bytes: link_mtu(section, mtu_bytes),
        when_down: section
            .take("when-down")
            .and_then(|v| v.word(&WHEN_DOWN))
            .unwrap_or(WhenDown::Drop),
    };
    let down = DirectionKeys {
        rate: down_rate,
        delay: down_delay.unwrap_or_default(),
        loss: down_loss.unwrap_or(Loss::None),
        queue: down_queue,
        ..up
    };
    let is_rate_invalid =
        |keys: &DirectionKeys| keys.rate.is_none() && spans.iter().any(|(key, _)| *key == "rate");
    [&up, &down].map(|keys| {
        assemble(keys).unwrap_or_else(|conflict| {
            // An invalid rate has already been reported.
            if conflict == QUEUE_WITHOUT_RATE && is_rate_invalid(keys) {
                return DirectionConfig::default();
            }
            let span =
                spans.iter().find(|(key, _)| *key == conflict.key).map(|(_, span)| span.clone());
            let span = span.unwrap_or_else(|| section.span());
            context.problems.push(SpannedProblem::new(span, conflict.message, conflict.expected));
            DirectionConfig::default()
        })
    })
}

const PRESETS: [(&str, Preset); 5] = [
    ("tbf", Preset::Tbf),
    ("netem", Preset::Netem),
    ("htb+netem", Preset::HtbNetem),
    ("mininet", Preset::Mininet),
    ("mahimahi", Preset::Mahimahi),
];
const POSITIONS: [(&str, QueuePosition); 2] =
    [("network", QueuePosition::Network), ("host", QueuePosition::Host)];
const WHEN_DOWN: [(&str, WhenDown); 2] = [("drop", WhenDown::Drop), ("hold", WhenDown::Hold)];
const DISTRIBUTIONS: [(&str, JitterDistribution); 4] = [
    ("uniform", JitterDistribution::Uniform),
    ("normal", JitterDistribution::Normal),
    ("pareto", JitterDistribution::Pareto),
    ("pareto-normal", JitterDistribution::ParetoNormal),
];

pub(super) fn integer(value: Option<Value<'_>>, min: u64, max: u64) -> Option<u32> {
    value.and_then(|v| v.integer(min, max)).and_then(|n| u32::try_from(n).ok())
}

/// Parses a value for both directions, or one for each.
fn per_direction<T>(
    value: Option<Value<'_>>,
    parse: impl Fn(&Value<'_>) -> Option<T>,
) -> [Option<T>; 2] {
    value.and_then(|v| v.sides()).map_or([None, None], |sides| sides.map(|side| parse(&side)))
}

fn link_mtu(section: &mut Section<'_>, mtu_bytes: Option<u32>) -> u32 {
    let Some(value) = section.take("link-mtu") else { return u32::MAX };
    let Some(link_mtu_bytes) = integer(Some(value.clone()), 68, 65_535) else { return u32::MAX };
    if mtu_bytes.is_some_and(|interface_mtu| link_mtu_bytes >= interface_mtu) {
        let expected = format!("expected less than the MTU of {}", mtu_bytes.unwrap_or_default());
        value.fail("`link-mtu` is not smaller than the interfaces' MTU", expected);
    }
    link_mtu_bytes
}

fn rates(value: &Value<'_>, context: &ReadContext<'_>) -> [Option<RateSource>; 2] {
    if value.as_str().is_some() || value.as_number().is_some() {
        let rate = value.rate().map(RateSource::Rate);
        return [rate.clone(), rate];
    }
    let Some(mut section) = value.section(&RATE, "`rate`", EXPECTED_RATE) else {
        return [None, None];
    };
    let shared_trace = section.take("trace");
    let keys = [("up", "up-trace"), ("down", "down-trace")];
    let sides = keys.map(|(key, trace_key)| {
        let (rate, file) = (section.take(key), section.take(trace_key));
        match (rate, file, &shared_trace) {
            (Some(rate), None, None) => rate.rate().map(RateSource::Rate),
            (None, Some(file), None) => trace(&file, context).map(RateSource::Trace),
            (None, None, Some(file)) => trace(file, context).map(RateSource::Trace),
            (None, None, None) => {
                let expected = format!("expected `{key}`, `{trace_key}` or `trace`");
                section.fail(format!("`rate` has nothing for the direction `{key}`"), expected);
                None
            }
            (Some(duplicate), ..) | (_, Some(duplicate), _) => {
                duplicate
                    .fail(format!("the rate of the direction `{key}` is given twice"), "keep one");
                None
            }
        }
    });
    section.finish();
    sides
}

/// Loads a trace; links with the same trace share one copy.
fn trace(value: &Value<'_>, context: &ReadContext<'_>) -> Option<Arc<LinkTrace>> {
    let name = value.text()?;
    match context.trace(name) {
        Ok(trace) => Some(trace),
        Err(reason) => {
            value.fail(
                format!("trace {} cannot be used", quote(name)),
                format!("{reason}; expected a Mahimahi trace"),
            );
            None
        }
    }
}

fn jitter(value: &Value<'_>) -> Option<JitterKeys> {
    let expected = "expected a table such as `{ distribution = \"pareto\", sd = \"2 ms\" }`";
    let mut section = value.section(&JITTER, "the jitter", expected)?;
    let distribution = section.take("distribution").map(|v| v.word(&DISTRIBUTIONS));
    let sd = section.require("sd", "sd = \"2 ms\"").and_then(|v| v.duration(MAX_DELAY));
    let reorder = section.take("reorder").and_then(|v| v.boolean());
    section.finish();
    let distribution = distribution.unwrap_or(Some(JitterDistribution::Normal))?;
    Some(JitterKeys { distribution, sd: sd?, reorder })
}

pub(super) fn loss(value: &Value<'_>) -> Option<Loss> {
    if value.as_table().is_none() {
        if value.as_str().is_none() && value.as_number().is_none() {
            value.wrong_type(EXPECTED_LOSS);
            return None;
        }
        return value.percent().map(|chance| match chance {
            Probability::NEVER => Loss::None,
            chance => Loss::Random(chance),
        });
    }
    let mut section = value.section(&LOSS, "the loss", EXPECTED_LOSS)?;
    let (model, burst) = (section.take("gilbert-elliott"), section.take("burst"));
    let loss = match (model, burst) {
        (Some(model), None) => gilbert_elliott(&model),
        (None, Some(burst)) => burst_loss(&burst),
        _ => {
            if section.is_used_up() {
                section.fail("a loss is of one kind", "expected `gilbert-elliott` or `burst`");
            }
            None
        }
    };
    section.finish();
    loss
}

fn gilbert_elliott(value: &Value<'_>) -> Option<Loss> {
    let expected = "expected a table such as `{ p = \"1 %\", r = \"30 %\" }`";
    let mut section = value.section(&GILBERT_ELLIOTT, "the Gilbert-Elliott loss", expected)?;
    let to_bad = section.require("p", "p = \"1 %\"").and_then(|v| v.percent());
    let to_good = section.require("r", "r = \"30 %\"").and_then(|v| v.percent());
    let mut percent_or = |key, default| section.take(key).map_or(Some(default), |v| v.percent());
    let loss_in_bad = percent_or("loss-in-bad", Probability::ALWAYS);
    let loss_in_good = percent_or("loss-in-good", Probability::NEVER);
    section.finish();
    Some(Loss::GilbertElliott {
        to_bad: to_bad?,
        to_good: to_good?,
        loss_in_bad: loss_in_bad?,
        loss_in_good: loss_in_good?,
    })
}

fn burst_loss(value: &Value<'_>) -> Option<Loss> {
    let expected = "expected a table such as `{ start = \"0.1 %\", length = \"5 packets\" }`";
    let mut section = value.section(&BURST, "the burst loss", expected)?;
    let start = section.require("start", "start = \"0.1 %\"").and_then(|v| v.percent());
    let length = section.require("length", "length = \"5 packets\"").and_then(|v| v.packets());
    section.finish();
    Some(Loss::Burst { start: start?, length_packets: u32::try_from(length?).ok()? })
}

fn queue_keys(value: &Value<'_>) -> Option<QueueKeys> {
    if value.as_table().is_none() {
        return queue_limit(value, EXPECTED_QUEUE).map(QueueKeys::Limit);
    }
    let mut section = value.section(&QUEUE, "the queue", EXPECTED_QUEUE)?;
    let kinds = ["tbf", "htb", "codel", "pie"].map(|kind| section.take(kind));
    let keys = match kinds {
        [Some(tbf), None, None, None] => tbf_keys(&tbf),
        [None, Some(htb), None, None] => htb_keys(&htb),
        [None, None, Some(codel), None] => codel_keys(&codel),
        [None, None, None, Some(pie)] => pie_keys(&pie),
        _ => {
            if section.is_used_up() {
                let expected = "expected one of `tbf`, `htb`, `codel` or `pie`";
                section.fail("a queue is of one kind", expected);
            }
            None
        }
    };
    section.finish();
    keys
}

/// Parses a droptail limit; `expected` lists the alternatives for messages.
fn queue_limit(value: &Value<'_>, expected: &str) -> Option<QueueLimit> {
    let number = value.as_number();
    let Some(text) = value.as_str().or(number.as_deref()) else {
        value.wrong_type(expected);
        return None;
    };
    if text.trim() == "unlimited" {
        return Some(QueueLimit::Unlimited);
    }
    let quantity = match units::quantity(text) {
        Ok(quantity) => quantity,
        Err(error) => {
            value.unit_error(&error, Dimension::Duration, expected.to_owned());
            return None;
        }
    };
    match quantity.dimension {
        Dimension::Duration => value.positive_duration(MAX_DELAY).map(QueueLimit::Time),
        Dimension::Size => value.size().map(QueueLimit::Bytes),
        Dimension::Packets => value.packets().map(QueueLimit::Packets),
        Dimension::Count => {
            value.fail_with_hint("`queue` has no unit", expected, "units are mandatory");
            None
        }
        Dimension::Rate | Dimension::Share => {
            value.fail(format!("`queue` is {}", quantity.dimension.noun()), expected);
            None
        }
    }
}

fn tbf_keys(value: &Value<'_>) -> Option<QueueKeys> {
    let expected = "expected a table such as `{ burst = \"15 KB\", latency = \"80 ms\" }`";
    let mut section = value.section(&TBF, "the tbf queue", expected)?;
    let burst_bytes = section.require("burst", "burst = \"15 KB\"").and_then(|v| v.size());
    let limit = match (section.take("latency"), section.take("limit")) {
        (Some(latency), None) => latency.positive_duration(MAX_DELAY).map(QueueLimit::Time),
        (None, Some(limit)) => limit.size().map(QueueLimit::Bytes),
        _ => {
            section
                .fail("the limit of the tbf queue is not clear", "expected `latency` or `limit`");
            None
        }
    };
    section.finish();
    Some(QueueKeys::Tbf { burst_bytes: burst_bytes?, limit: limit? })
}

fn htb_keys(value: &Value<'_>) -> Option<QueueKeys> {
    let expected = "expected a table such as `{ burst = \"15 KB\" }`";
    let mut section = value.section(&HTB, "the htb queue", expected)?;
    let burst_bytes = section.take("burst").and_then(|v| v.size());
    let cburst_bytes = section.take("cburst").and_then(|v| v.size());
    let limit_packets = section.take("limit").and_then(|v| v.packets());
    section.finish();
    Some(QueueKeys::Htb { burst_bytes, cburst_bytes, limit_packets })
}

fn codel_keys(value: &Value<'_>) -> Option<QueueKeys> {
    let mut section = value.section(&CODEL, "the codel queue", "expected a table such as `{}`")?;
    let target = duration_or_ms(section.take("target"), 5);
    let interval = duration_or_ms(section.take("interval"), 100);
    let limit = aqm_limit(section.take("limit"));
    section.finish();
    Some(QueueKeys::CoDel { target, interval, limit })
}

fn pie_keys(value: &Value<'_>) -> Option<QueueKeys> {
    let mut section = value.section(&PIE, "the pie queue", "expected a table such as `{}`")?;
    let target = duration_or_ms(section.take("target"), 15);
    let update = duration_or_ms(section.take("update"), 15);
    let limit = aqm_limit(section.take("limit"));
    section.finish();
    Some(QueueKeys::Pie { target, update, limit })
}

fn duration_or_ms(value: Option<Value<'_>>, default_ms: u64) -> Duration {
    let duration = value.and_then(|v| v.positive_duration(MAX_DELAY));
    duration.unwrap_or(Duration::from_millis(default_ms))
}

fn aqm_limit(value: Option<Value<'_>>) -> QueueLimit {
    value.and_then(|v| queue_limit(&v, EXPECTED_LIMIT)).unwrap_or(DEFAULT_AQM_LIMIT)
}
