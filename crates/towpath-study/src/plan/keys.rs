//! Keys of a plan: the reader and the reference follow these tables.

use KeyPresence::{Optional, Required};
use ValueKind::{Any, Duration, Integer, List, Name, OneOf, Table, Tables, Text, Words};
use towpath_scenario::document;
use towpath_scenario::document::{KeyPresence, KeySchema, TableSchema, ValueKind, key};

use super::drawing::{FIGURE, SCHEMAS};

/// Longest name of anything in a plan, in characters.
pub(super) const MAX_NAME_CHARS: usize = 64;
/// Maximum number of seeds of a point: those of a sample begin at a multiple of this.
pub(crate) const MAX_SEEDS: u64 = 1_000;
/// Maximum number of random samples.
pub(super) const MAX_SAMPLES: u64 = 1_000_000;
/// Maximum number of runs of a plan.
pub(super) const MAX_RUNS: usize = 10_000_000;

const WORLDS: ValueKind = List(&Words(&["sim", "emu"]));
const KEYS: KeySchema = key(
    "keys",
    List(&Text),
    Required,
    "Keys of the scenario that get the value, such as `paths.wifi.delay`",
);

pub(super) static PLAN: TableSchema = TableSchema {
    noun: "a plan",
    heading: "The plan",
    doc: "Runs of a plan: every variant at every point, with every seed.",
    key_groups: &[&[
        key("name", Name(MAX_NAME_CHARS), Required, "Short name, for results"),
        key("title", Text, Optional("empty"), "One line for lists and pages"),
        key("scenario", Text, Required, "File in the plan's folder, or `builtin:NAME`"),
        key(
            "worlds",
            WORLDS,
            Optional("`[\"sim\"]`"),
            "Worlds in which it can run; the first is the default",
        ),
        key(
            "seeds",
            Integer(1, MAX_SEEDS),
            Optional("1"),
            "Runs of each point, with the seeds 1, 2, …",
        ),
        key("quick-seeds", Integer(1, MAX_SEEDS), Optional("1"), "The same with `--quick`")
            .formerly("thin-seeds"),
        key(
            "emulated-seeds",
            Integer(1, MAX_SEEDS),
            Optional("as `seeds`"),
            "The same in the emulated world, where runs take real time",
        ),
        key(
            "window",
            List(&Duration),
            Optional("the whole run"),
            "Time window in which delivery counts",
        ),
        key("variants", Tables(&VARIANT), Required, "Curves, at least one"),
        key(
            "axes",
            Tables(&AXIS),
            Optional("one point"),
            "Axes of the grid; every combination is a point",
        ),
        key("random", Table(&RANDOM), Optional("no draws"), "Random samples"),
        key("figures", Tables(&FIGURE), Optional("no figure"), "Figures of the plan"),
    ]],
};

pub(super) static VARIANT: TableSchema = TableSchema {
    noun: "a variant",
    heading: "[[variants]]",
    doc: "One curve: the keys in which its runs differ from the scenario.",
    key_groups: &[&[
        key("name", Text, Required, "Name in the legend"),
        key(
            "transport",
            Words(&["tcp", "mptcp", "quic", "mpquic"]),
            Required,
            "Transport of its runs",
        ),
        key(
            "set",
            Any("table of dotted keys: `{ \"hosts.phone.scheduler\" = \"redundant\" }`"),
            Optional("nothing"),
            "Values of scenario keys; array elements by number, from 0",
        ),
        key(
            "remove",
            List(&Text),
            Optional("nothing"),
            "Keys to remove from the scenario before others are set",
        ),
        key("worlds", WORLDS, Optional("the plan's"), "Worlds to which it is restricted"),
    ]],
};

pub(super) static AXIS: TableSchema = TableSchema {
    noun: "an axis",
    heading: "[[axes]]",
    doc: "One dimension of the grid. Keys below a key that a variant removes are omitted.",
    key_groups: &[&[
        key("name", Text, Required, "Column of the table, and of the figure's axis"),
        KEYS,
        key(
            "values",
            List(&Any("any value")),
            Required,
            "Values for the keys, one after the other",
        ),
        key(
            "quick",
            List(&Any("any of them")),
            Optional("all of them"),
            "Values that are run with `--quick`",
        )
        .formerly("thin"),
        key(
            "emulated",
            List(&Any("any of them")),
            Optional("all of them"),
            "Values that are run in the emulated world; with `--quick`, only those also in `quick`",
        ),
    ]],
};

pub(super) static RANDOM: TableSchema = TableSchema {
    noun: "a table of draws",
    heading: "[random]",
    doc: "Samples: each draws everything below. Seeds of sample *n* begin at 1000 · (*n* − 1) + 1.",
    key_groups: &[&[
        key(
            "samples",
            Integer(1, MAX_SAMPLES),
            Required,
            "Number of samples at each point of the grid",
        ),
        key(
            "quick",
            Integer(1, MAX_SAMPLES),
            Optional("all of them"),
            "Number of samples with `--quick`",
        )
        .formerly("thin"),
        key(
            "seed-name",
            Text,
            Optional("the plan's name"),
            "Name that seeds the draws; preserves the samples of a renamed plan",
        ),
        key("draws", Tables(&DRAW), Required, "Quantities to draw for each sample"),
    ]],
};

pub(super) static DRAW: TableSchema = TableSchema {
    noun: "a draw",
    heading: "[[random.draws]]",
    doc: "One drawn quantity, with exactly one distribution. The value depends only on the plan, the draw and the number of the sample.",
    key_groups: &[&[
        key("name", Text, Required, "Column of the table"),
        KEYS,
        key(
            "uniform",
            List(&Any("quantity")),
            Optional("another"),
            "Minimum and maximum; integers stay integers",
        ),
        key("exponential", OneOf(&[Any("quantity")]), Optional("another"), "The mean"),
        key("lognormal", Table(&LOGNORMAL), Optional("another"), "Lognormal distribution"),
        key("choice", List(&Any("`[value, weight]`")), Optional("another"), "Choice among values"),
        key(
            "min",
            Any("quantity"),
            Optional("no limit"),
            "Smallest value; a smaller one is drawn again",
        )
        .formerly("least"),
        key(
            "max",
            Any("quantity"),
            Optional("no limit"),
            "Largest value; a larger one is drawn again",
        )
        .formerly("most"),
        key("after", Text, Optional("nothing"), "Name of an earlier draw whose value is added"),
    ]],
};

pub(super) static LOGNORMAL: TableSchema = TableSchema {
    noun: "a lognormal distribution",
    heading: "lognormal",
    doc: "`{ median = \"3 s\", sigma = 0.8 }`",
    key_groups: &[&[
        key("median", Any("quantity"), Required, "The median"),
        key("sigma", Any("number"), Required, "Standard deviation of the natural logarithm"),
    ]],
};

/// Returns every key that a plan may have, as Markdown.
pub fn reference_markdown() -> String {
    let title = "# Plan files\n\n*For authors of sweeps and reproductions. Assumes [scenario files](scenario.md). See also [sweep](../guides/sweep.md) and [reproduce](../guides/reproduce.md).*\n\nAll keys of a plan, as printed by `towpath schema plan-keys`. `towpath sweep example` prints an annotated example.";
    let plan_schemas = [&PLAN, &VARIANT, &AXIS, &RANDOM, &DRAW, &LOGNORMAL];
    document::reference(title, plan_schemas.into_iter().chain(SCHEMAS))
}
