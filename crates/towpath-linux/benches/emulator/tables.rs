//! Tables of the measurements in Markdown.

use crate::Plan;
use crate::cases::{Case, Network, PACKET_BYTES, RATE_BPS, Traffic};
use crate::figures::{Series, Spread, load};
use crate::trial::line_of;

type Row = (Case, Series);

/// Returns the header with versions, machine, user and load.
pub(crate) fn header(plan: &Plan, load_before: &str) -> String {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = line_of("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_matches(['\t', ' ', ':']));
    let user = if nix::unistd::geteuid().is_root() { "root" } else { "an ordinary user" };
    format!(
        "towpath {}, Linux {}, {processors} × {model}, started by {user}; rounds: {}; \
         load before: {load_before}, after: {}\n",
        env!("CARGO_PKG_VERSION"),
        line_of("/proc/sys/kernel/osrelease"),
        plan.rounds,
        load(),
    )
}

/// Returns all tables that have rows.
pub(crate) fn all(rows: &[Row]) -> String {
    let of = |traffic: Traffic| rows.iter().filter(move |(case, _)| case.traffic == traffic);
    let base = of(Traffic::Tcp).find(|(case, _)| case.network == Network::Veth);
    let mut text = table(
        "One TCP connection over a link without limits",
        "network | Gbit/s | × veth | CPU s per GB | emulator's share | others' CPU | rounds",
        of(Traffic::Tcp).map(|row| throughput(row, base)),
    );
    for per_second in [8_333, 100] {
        text.push_str(&table(
            &format!(
                "Error of an added 10 ms delay, µs: {per_second} packets/s of {PACKET_BYTES} B"
            ),
            "network | priority | p1 | p50 | p90 | p99 | p99.9 | max | p99 of the emulator's own \
             lateness | emulator's CPU, % of one | busy-polling share | lost | others' CPU | rounds",
            of(Traffic::Paced { per_second }).map(delay),
        ));
    }
    text.push_str(&table(
        "A link of 100 Mbit/s under 150 Mbit/s of UDP, Mbit/s with Ethernet headers",
        "network | at the interface | error | by the link's counters | others' CPU | rounds",
        of(Traffic::Overload).map(rate),
    ));
    text
}

fn table(title: &str, columns: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    let rule = "---|".repeat(columns.split('|').count());
    format!("\n### {title}\n\n| {columns} |\n|{rule}\n{}\n", lines.join("\n"))
}

fn throughput((case, series): &Row, base: Option<&Row>) -> String {
    let ratio = base.and_then(|(_, base)| series.ratio(base, "gbps"));
    line(
        case,
        series,
        &[
            cell(series.spread("gbps"), 1),
            cell(ratio, 2),
            cell(series.spread("cpu_per_gb"), 2),
            cell(series.spread("emulator_per_gb"), 2),
        ],
    )
}

fn delay((case, series): &Row) -> String {
    let priority = match case.network {
        Network::Veth => "–",
        Network::Bare { .. } => "as the emulator's",
        Network::Emulated { .. } => series.note("priority").unwrap_or("?"),
        Network::Rattan { real_time: true } => "real-time 40",
        Network::Rattan { real_time: false } => "normal",
    };
    let mut cells = vec![priority.to_owned()];
    for name in [
        "p1",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "late_p99",
        "emulator_share",
        "awake_share",
        "missing",
    ] {
        cells.push(cell(series.spread(name), 0));
    }
    line(case, series, &cells)
}

fn rate((case, series): &Row) -> String {
    let measured = series.spread("interface_mbps");
    let nominal = RATE_BPS as f64 / 1e6;
    let error = measured.map_or("–".to_owned(), |spread| {
        format!("{:+.2} %", (spread.median / nominal - 1.0) * 100.0)
    });
    line(case, series, &[cell(measured, 2), error, cell(series.spread("link_mbps"), 2)])
}

fn line(case: &Case, series: &Series, cells: &[String]) -> String {
    let name = case.name();
    let name = name.split_once('/').map_or(name.as_str(), |(_, network)| network);
    let (good, all) = series.good();
    let others = series.spread("others").map_or("–".to_owned(), |s| format!("{:.0} %", s.median));
    let rounds = if good == all { all.to_string() } else { format!("{good} of {all}") };
    format!("| {name} | {} | {others} | {rounds} |", cells.join(" | "))
}

/// Formats `median (minimum–maximum)`; the median alone when there was one round.
fn cell(spread: Option<Spread>, digits: usize) -> String {
    let Some(Spread { median, min: least, max: most }) = spread else { return "–".to_owned() };
    if (most - least).abs() < f64::EPSILON {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
}
