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
    "Keys of the scenario that get the value, such as `paths.wifi.delay` or `timeline.0.at`",
);

pub(super) static PLAN: TableSchema = TableSchema {
    noun: "a plan",
    heading: "The plan",
    doc: "Keys at the top of the file. A plan runs every variant at every point, with every seed.",
    key_groups: &[&[
        key("name", Name(MAX_NAME_CHARS), Required, "Short name, also used for results"),
        key("title", Text, Optional("empty"), "One line for lists and pages"),
        key(
            "scenario",
            Text,
            Required,
            "Scenario of all runs: a file in the plan's folder, or `builtin:NAME`",
        ),
        key(
            "worlds",
            WORLDS,
            Optional("`[\"sim\"]`"),
            "Worlds in which the plan can run; the first is the default",
        ),
        key(
            "seeds",
            Integer(1, MAX_SEEDS),
            Optional("1"),
            "Number of runs of each point and variant, with the seeds 1, 2, …",
        ),
        key("quick-seeds", Integer(1, MAX_SEEDS), Optional("1"), "Number of seeds with `--quick`")
            .formerly("thin-seeds"),
        key(
            "emulated-seeds",
            Integer(1, MAX_SEEDS),
            Optional("as `seeds`"),
            "Number of seeds in the emulated world, where a run takes real time",
        ),
        key(
            "window",
            List(&Duration),
            Optional("the whole run"),
            "Start and end of the period in which delivery counts, since the start of the \
             traffic: `[\"1 s\", \"5 s\"]`",
        ),
        key(
            "variants",
            Tables(&VARIANT),
            Required,
            "Variants of the scenario, at least one; each is a curve",
        ),
        key(
            "axes",
            Tables(&AXIS),
            Optional("one point"),
            "Axes of the grid; every combination of their values is a point",
        ),
        key(
            "random",
            Table(&RANDOM),
            Optional("no draws"),
            "Random samples, at each point of the grid",
        ),
        key("figures", Tables(&FIGURE), Optional("no figure"), "Panels of the plan's figure"),
    ]],
};

pub(super) static VARIANT: TableSchema = TableSchema {
    noun: "a variant",
    heading: "[[variants]]",
    doc: "A variant is one curve: the transport and the scenario keys in which its runs differ. \
        Its changes come before those of axes and draws.",
    key_groups: &[&[
        key("name", Text, Required, "Name of the curve in legends and results"),
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
            "Keys of the scenario with their new values; elements of an array are numbered from 0",
        ),
        key(
            "remove",
            List(&Text),
            Optional("nothing"),
            "Keys to remove from the scenario, before `set` applies",
        ),
        key(
            "worlds",
            WORLDS,
            Optional("the plan's"),
            "Worlds in which this variant runs, some of those of the plan",
        ),
    ]],
};

pub(super) static AXIS: TableSchema = TableSchema {
    noun: "an axis",
    heading: "[[axes]]",
    doc: "An axis is one dimension of the grid. If a variant removes a part of the scenario, keys \
        below that part are skipped.",
    key_groups: &[&[
        key(
            "name",
            Text,
            Required,
            "Name of the axis: the column in the results, and the name for `x` of a figure",
        ),
        KEYS,
        key(
            "values",
            List(&Any("any value")),
            Required,
            "Values of the axis; each is set in all `keys`",
        ),
        key(
            "quick",
            List(&Any("any of them")),
            Optional("all of them"),
            "Values that run with `--quick`",
        )
        .formerly("thin"),
        key(
            "emulated",
            List(&Any("any of them")),
            Optional("all of them"),
            "Values that run in the emulated world; with `--quick`, those that are also in \
             `quick`",
        ),
    ]],
};

pub(super) static RANDOM: TableSchema = TableSchema {
    noun: "a table of draws",
    heading: "[random]",
    doc: "Each sample draws all quantities below. All variants use the same samples. The seeds of \
        sample *n* start at 1000 · (*n* − 1) + 1.",
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
            "Name from which the draws are seeded; keeps the samples of a plan that was renamed",
        ),
        key("draws", Tables(&DRAW), Required, "Quantities that each sample draws"),
    ]],
};

pub(super) static DRAW: TableSchema = TableSchema {
    noun: "a draw",
    heading: "[[random.draws]]",
    doc: "One quantity of a sample, with exactly one of `uniform`, `exponential`, `lognormal` and \
        `choice`. Its value depends only on the plan's name, the draw's name and the number of \
        the sample.",
    key_groups: &[&[
        key("name", Text, Required, "Name of the draw: the column in the results"),
        KEYS,
        key(
            "uniform",
            List(&Any("quantity")),
            Optional("—"),
            "Uniform distribution between a minimum and a maximum; between integers, every value \
             is an integer",
        ),
        key(
            "exponential",
            OneOf(&[Any("quantity")]),
            Optional("—"),
            "Exponential distribution with this mean",
        ),
        key("lognormal", Table(&LOGNORMAL), Optional("—"), "Lognormal distribution"),
        key(
            "choice",
            List(&Any("`[value, weight]`")),
            Optional("—"),
            "Values, each with the weight of its probability",
        ),
        key(
            "min",
            Any("quantity"),
            Optional("no limit"),
            "Smallest value; the draw is repeated if it is smaller, at most 1000 times",
        )
        .formerly("least"),
        key(
            "max",
            Any("quantity"),
            Optional("no limit"),
            "Largest value; the draw is repeated if it is larger, at most 1000 times",
        )
        .formerly("most"),
        key(
            "after",
            Text,
            Optional("nothing"),
            "Name of an earlier draw whose value is added, for example for an event after another",
        ),
    ]],
};

pub(super) static LOGNORMAL: TableSchema = TableSchema {
    noun: "a lognormal distribution",
    heading: "lognormal",
    doc: "Table such as `{ median = \"3 s\", sigma = 0.8 }`.",
    key_groups: &[&[
        key("median", Any("quantity"), Required, "Median, a quantity with its unit"),
        key(
            "sigma",
            Any("number"),
            Required,
            "Standard deviation of the natural logarithm, without unit",
        ),
    ]],
};

/// Beginning of the page.
const INTRODUCTION: &str = r#"# Plan files

*For authors of sweeps and reproductions. Assumes that you know [scenario files](scenario.md). See also [sweep](../guides/sweep.md) and
[reproduce](../guides/reproduce.md).*

A plan is a TOML file that runs one scenario with many variants, values and seeds. This page lists all its keys, as printed by
`towpath schema plan-keys`. An example with 1 variant × 3 values × 2 seeds = 6 runs, for `towpath sweep FILE`:

```toml
name = "buffers"                      # names the results
scenario = "builtin:wifi-3g"          # or a file next to the plan
seeds = 2                             # runs of each point

[[variants]]                          # one curve
name = "MPTCP"
transport = "mptcp"
set = { "flows.0.duration" = "2 s" }  # changes keys of the scenario

[[axes]]                              # one dimension of the grid
name = "receive buffer"
keys = ["hosts.server.receive-buffer"]
values = ["50 KB", "200 KB", "800 KB"]

[[figures]]                           # one panel, optional
kind = "lines"
x = "receive buffer"
y = "goodput"
```

`towpath sweep example` prints a longer annotated plan."#;

/// Returns every key that a plan may have, as Markdown.
pub fn reference_markdown() -> String {
    let plan_schemas = [&PLAN, &VARIANT, &AXIS, &RANDOM, &DRAW, &LOGNORMAL];
    document::reference(INTRODUCTION, plan_schemas.into_iter().chain(SCHEMAS))
}
