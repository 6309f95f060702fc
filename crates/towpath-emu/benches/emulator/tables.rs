//! Tables of the measurements in Markdown.

use crate::Plan;
use crate::cases::{Case, Network, PACKET_BYTES, RATE_BPS, Traffic};
use crate::figures::{Series, Spread, load};
use crate::trial::read_trimmed;

type Row = (Case, Series);

/// Returns the header with versions, machine, user and load.
pub(crate) fn header(plan: &Plan, load_before: &str) -> String {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = read_trimmed("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_matches(['\t', ' ', ':']));
    let user = if nix::unistd::geteuid().is_root() { "root" } else { "an ordinary user" };
    format!(
        "towpath {}, Linux {}, {processors} × {model}, started by {user}; rounds: {}; \
         load before: {load_before}, after: {}\n",
        env!("CARGO_PKG_VERSION"),
        read_trimmed("/proc/sys/kernel/osrelease"),
        plan.rounds,
        load(),
    )
}

/// Returns all tables that have rows.
pub(crate) fn all_tables(rows: &[Row]) -> String {
    let rows_with = |traffic: Traffic| rows.iter().filter(move |(case, _)| case.traffic == traffic);
    let veth_row = rows_with(Traffic::Tcp).find(|(case, _)| case.network == Network::Veth);
    let mut text = table(
        "One TCP connection over a link without limits",
        "network | Gbit/s | × veth | CPU s per GB | emulator's share | others' CPU | rounds",
        rows_with(Traffic::Tcp).map(|row| throughput_line(row, veth_row)),
    );
    for per_second in [8_333, 100] {
        text.push_str(&table(
            &format!(
                "Error of an added 10 ms delay, µs: {per_second} packets/s of {PACKET_BYTES} B"
            ),
            "network | priority | p1 | p50 | p90 | p99 | p99.9 | max | p99 of the emulator's own \
             lateness | emulator's CPU, % of one | busy-polling share | lost | others' CPU | rounds",
            rows_with(Traffic::Paced { per_second }).map(delay_line),
        ));
    }
    text.push_str(&table(
        "A link of 100 Mbit/s under 150 Mbit/s of UDP, Mbit/s with Ethernet headers",
        "network | at the interface | error | by the link's counters | others' CPU | rounds",
        rows_with(Traffic::Overload).map(rate_line),
    ));
    text
}

fn table(title: &str, columns: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    let separator = "---|".repeat(columns.split('|').count());
    format!("\n### {title}\n\n| {columns} |\n|{separator}\n{}\n", lines.join("\n"))
}

fn throughput_line((case, series): &Row, base: Option<&Row>) -> String {
    let ratio = base.and_then(|(_, base)| series.ratio(base, "gbps"));
    format_line(
        case,
        series,
        &[
            cell(series.spread("gbps"), 1),
            cell(ratio, 2),
            cell(series.spread("cpu_per_gb"), 2),
            cell(series.spread("emulator_cpu_per_gb"), 2),
        ],
    )
}

fn delay_line((case, series): &Row) -> String {
    let priority = match case.network {
        Network::Veth => "–",
        // A bare thread has the priority that this table shows for the caller's emulator.
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
        "emulator_cpu_percent",
        "busy_poll_percent",
        "missing",
    ] {
        cells.push(cell(series.spread(name), 0));
    }
    format_line(case, series, &cells)
}

fn rate_line((case, series): &Row) -> String {
    let measured = series.spread("interface_mbps");
    let nominal = RATE_BPS as f64 / 1e6;
    let error = measured.map_or("–".to_owned(), |spread| {
        format!("{:+.2} %", (spread.median / nominal - 1.0) * 100.0)
    });
    format_line(case, series, &[cell(measured, 2), error, cell(series.spread("link_mbps"), 2)])
}

fn format_line(case: &Case, series: &Series, cells: &[String]) -> String {
    let name = case.name();
    let name = name.split_once('/').map_or(name.as_str(), |(_, network)| network);
    let (measured, total) = series.trial_counts();
    let others_cpu =
        series.spread("others").map_or("–".to_owned(), |s| format!("{:.0} %", s.median));
    let rounds =
        if measured == total { total.to_string() } else { format!("{measured} of {total}") };
    format!("| {name} | {} | {others_cpu} | {rounds} |", cells.join(" | "))
}

/// Formats `median (minimum–maximum)`; the median alone when there was one round.
fn cell(spread: Option<Spread>, digits: usize) -> String {
    let Some(Spread { median, min, max }) = spread else { return "–".to_owned() };
    if (max - min).abs() < f64::EPSILON {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
}
