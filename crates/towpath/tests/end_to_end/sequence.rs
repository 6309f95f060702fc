//! Time–sequence plots agree with `tcpdump` and with the run's counters.

use std::collections::BTreeMap;
use std::fs;

use towpath_result::store::RunResult;
use towpath_result::{Record, Sequence, SequenceKind};

use crate::program::{
    SIZED, TWO_PATHS, TestDir, acquire_emulator, is_long, is_root, missing, skip,
};
use crate::report_page::{browser, console_errors, measure_width, open};

/// Payload range of a packet: time (ns since the first packet), source port, first number, number
/// after the last, and true if all of it had been sent before.
type SentRange = (u64, u16, i64, i64, bool);

/// Returns the reason if `tcpdump` cannot read a file here. As user 0, `tcpdump` first switches to
/// another user.
fn missing_tcpdump() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_user_0 = status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"));
    let cannot_switch = is_user_0 && !is_root();
    let reason = || "tcpdump gives up root, which this user namespace does not allow".to_owned();
    missing("tcpdump").or_else(|| cannot_switch.then(reason))
}

/// Returns the packets sent by the capture's host, as `tcpdump` reads them.
fn read_by_tcpdump(folder: &TestDir, file: &str) -> Vec<SentRange> {
    let mut command = folder.program("tcpdump");
    command.args(["-nr", file, "-ttSv", "--time-stamp-precision=nano", "-Q", "out", "tcp"]);
    let output = folder.start(&mut command).wait();
    assert_eq!(output.code, Some(0), "{output}");
    // With -v a packet has two lines: time and IP, then ports and TCP.
    let mut ranges = Vec::new();
    let mut first_ns: Option<u64> = None;
    let mut now_ns = 0;
    // Sequence number of the first payload byte, by source port.
    let mut first_numbers: BTreeMap<u16, i64> = BTreeMap::new();
    let mut sent_ranges: BTreeMap<u16, Vec<(i64, i64)>> = BTreeMap::new();
    for line in output.out.lines() {
        let stamp = line.split(' ').next().unwrap_or("");
        if let Some((seconds, fraction)) = stamp.split_once('.')
            && line.contains(" IP")
        {
            let ns =
                seconds.parse::<u64>().unwrap() * 1_000_000_000 + fraction.parse::<u64>().unwrap();
            now_ns = ns - *first_ns.get_or_insert(ns);
        }
        let Some((addresses, fields)) = line.trim().split_once(": Flags ") else { continue };
        let source = addresses.split(" > ").next().unwrap();
        let port: u16 = source.rsplit('.').next().unwrap().parse().unwrap();
        let Some(seq) = fields.split(", ").find_map(|field| field.strip_prefix("seq ")) else {
            continue;
        };
        if fields.starts_with("[S") {
            first_numbers.insert(port, seq.parse::<i64>().unwrap() + 1);
        }
        let Some((range_start, range_end)) = seq.split_once(':') else { continue };
        let first_number = first_numbers[&port];
        let relative =
            |number: &str| (number.parse::<i64>().unwrap() - first_number).rem_euclid(1 << 32);
        let (range_start, range_end) = (relative(range_start), relative(range_end));
        let port_ranges = sent_ranges.entry(port).or_default();
        for (start, end, was_sent) in split_by_sent(port_ranges, (range_start, range_end)) {
            ranges.push((now_ns, port, start, end, was_sent));
        }
        port_ranges.push((range_start, range_end));
    }
    ranges.sort_unstable();
    ranges
}

/// Splits a range into parts that were sent before and parts that were not. Simple and slow on
/// purpose.
fn split_by_sent(
    sent_ranges: &mut Vec<(i64, i64)>,
    (range_start, range_end): (i64, i64),
) -> Vec<(i64, i64, bool)> {
    sent_ranges.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for &(start, end) in sent_ranges.iter() {
        match merged.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged.clone_into(sent_ranges);
    let (mut position, mut parts) = (range_start, Vec::new());
    for (start, end) in merged {
        if end <= position || start >= range_end {
            continue;
        }
        if start > position {
            parts.push((position, start, false));
        }
        parts.push((start.max(position), end.min(range_end), true));
        position = end;
    }
    if position < range_end {
        parts.push((position, range_end, false));
    }
    parts
}

/// Returns the packets sent by the capture's host, from `towpath trace --csv sequence`. `ports`
/// has the source port of each subflow.
fn plotted_ranges(folder: &TestDir, file: &str, ports: &BTreeMap<u32, u16>) -> Vec<SentRange> {
    let output = folder.run(&["trace", file, "--csv", "sequence"]);
    assert_eq!(output.code, Some(0), "{output}");
    let mut lines = output.out.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
    let [time, subflow, direction, kind, numbers, start, end, column_width] = [
        "t_ns",
        "subflow",
        "direction",
        "kind",
        "numbers",
        "start_bytes",
        "end_bytes",
        "column_ns",
    ]
    .map(column);
    let mut ranges = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        if fields[numbers] != "subflow" || fields[direction] != "up" {
            continue;
        }
        assert_eq!(fields[column_width], "0", "each packet by itself: {line}");
        let was_sent = match fields[kind] {
            "sent" | "out-of-order" | "reinjected" => false,
            "retransmitted" | "spurious" => true,
            _ => continue,
        };
        let number = |column_index: usize| fields[column_index].parse::<i64>().unwrap();
        let port = ports[&fields[subflow].parse().unwrap()];
        ranges.push((fields[time].parse().unwrap(), port, number(start), number(end), was_sent));
    }
    ranges.sort_unstable();
    ranges
}

/// Returns the ports of the connecting host, by subflow of the capture.
fn ports(folder: &TestDir, file: &str) -> BTreeMap<u32, u16> {
    let output = folder.run(&["trace", file, "--json"]);
    let run = towpath_result::store::read_run(output.out.as_bytes()).unwrap();
    let subflows = run.summary.unwrap().subflows;
    subflows
        .iter()
        .map(|s| (s.subflow, s.local.rsplit(':').next().unwrap().parse().unwrap()))
        .collect()
}

/// Returns the plots of a result.
fn sequences(run: &RunResult) -> Vec<&Sequence> {
    let sequence_records = run.records.iter().filter_map(|record| {
        let Record::Sequence(sequence) = record else { return None };
        Some(&**sequence)
    });
    sequence_records.collect()
}

/// Compares the plot of a capture with `tcpdump`. Returns the number of ranges, and of
/// retransmitted ones.
fn compare(folder: &TestDir, file: &str) -> (usize, usize) {
    let tcpdump_ranges = read_by_tcpdump(folder, file);
    let plotted = plotted_ranges(folder, file, &ports(folder, file));
    let difference = tcpdump_ranges
        .iter()
        .zip(&plotted)
        .find(|(tcpdump_range, plotted_range)| tcpdump_range != plotted_range);
    assert_eq!(difference, None, "{file}: tcpdump, picture");
    assert_eq!(tcpdump_ranges.len(), plotted.len(), "{file}");
    (tcpdump_ranges.len(), tcpdump_ranges.iter().filter(|range| range.4).count())
}

const LOSS_CHANGE: &str = "paths.*.loss=0.5 %";

#[test]
fn a_simulated_picture_matches_tcpdump() {
    let test = "a_simulated_picture_matches_tcpdump";
    if let Some(reason) = missing_tcpdump() {
        return skip(test, &reason);
    }
    for transport in ["tcp", "mptcp"] {
        let folder = TestDir::new();
        folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
        let fixed_arguments =
            ["-q", "--world", "sim", "-T", transport, "--set", LOSS_CHANGE, "--pcap", "kept"];
        let size_arguments = ["--set", "flows.0.size=3 MB", "--out", "r"];
        let output = folder
            .run(&[&["run", "scenario.toml"][..], &fixed_arguments, &size_arguments].concat());
        assert_eq!(output.code, Some(0), "{output}");
        let (ranges, retransmitted) =
            compare(&folder, &format!("kept/sim-{transport}-1-phone.pcapng"));
        assert!(
            ranges > 1_500 && retransmitted > 0,
            "{transport}: {ranges} parts, {retransmitted} again"
        );
    }
}

#[test]
fn an_emulated_picture_matches_tcpdump_and_is_in_the_report() {
    let test = "an_emulated_picture_matches_tcpdump_and_is_in_the_report";
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let run = |output_arguments: &[&str]| {
        let fixed_arguments =
            ["-q", "-T", "mptcp", "--set", LOSS_CHANGE, "--set", "flows.0.size=2 MB"];
        let output = folder
            .run(&[&["run", "scenario.toml"][..], &fixed_arguments, output_arguments].concat());
        assert_eq!(output.code, Some(0), "{output}");
    };
    run(&["--out", "r", "--pcap", "kept", "--snap", "100"]);
    let stored = folder.stored("r/mptcp-1.jsonl.zst");
    let plots = sequences(&stored);
    assert!(plots.iter().any(|plot| plot.subflow.is_none()), "{plots:?}");
    // Times are those of the run: no packet before it begins, and none long after its end.
    let summary = stored.summary.as_ref().unwrap();
    for plot in &plots {
        let has_subflow = summary.subflows.iter().any(|s| Some(s.subflow) == plot.subflow);
        assert!(has_subflow || plot.subflow.is_none());
        let end_ns = summary.flows[0].duration_ns;
        let sent = plot.views[0].marks.iter().find(|m| m.kind == SequenceKind::Sent).unwrap();
        let (first, last) = (sent.t_ns[0], sent.t_ns[sent.t_ns.len() - 1]);
        assert!(first > 0 && first < end_ns && last < end_ns + 1_000_000_000, "{first}, {last}");
    }
    let page = fs::read_to_string(folder.work().join("r/report.html")).unwrap();
    assert!(page.contains("Sequence numbers over time</summary>"));
    if let Some(reason) = missing_tcpdump() {
        return skip(test, &reason);
    }
    let (ranges, _) = compare(&folder, "kept/emu-mptcp-1-phone.pcapng");
    assert!(ranges > 1_000, "{ranges}");
}

#[test]
fn a_report_without_packets_explains_how_to_get_pictures() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let output = folder.run(&["run", "scenario.toml", "-q", "-T", "tcp", "--out", "r"]);
    assert_eq!(output.code, Some(0), "{output}");
    let page = fs::read_to_string(folder.work().join("r/report.html")).unwrap();
    assert!(page.contains("run it with <code>--pcap DIR</code>"));
}

/// Script that zooms in twice around the middle of the first plot and returns the visible part of
/// its height.
const ZOOM_SCRIPT: &str = r#"<script>
const figure = document.querySelector(".sequences figure[data-chart]");
const plot = figure.querySelector("svg.plot");
const [, , , all] = plot.querySelector(".data").getAttribute("viewBox").split(" ");
for (const key of ["Home", ...Array(50).fill("ArrowRight"), "+", "+"])
  plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
const [, upper, , height] = plot.querySelector(".data").getAttribute("viewBox").split(" ").map(Number);
const levels = plot.querySelectorAll(".levels text").length;
document.title = `all ${all}, top ${upper > 0}, less ${height < 900}, levels ${levels >= 2}`;
</script></body>"#;

#[test]
fn a_zoomed_picture_adapts_its_height_and_fits_on_a_phone() {
    let test = "a_zoomed_picture_adapts_its_height_and_fits_on_a_phone";
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return skip(test, &reason),
    };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let arguments =
        ["-q", "-W", "sim", "-T", "mptcp", "--set", LOSS_CHANGE, "--set", "flows.0.size=9 MB"];
    let output = folder.run(&[&["run", "scenario.toml", "--out", "r"][..], &arguments].concat());
    assert_eq!(output.code, Some(0), "{output}");
    let page = fs::read_to_string(folder.work().join("r/report.html")).unwrap();
    assert_eq!(measure_width(&folder, &browser, &page, 390), "wide 390, loaded 0");
    // The page's policy allows no other script.
    let page_without_policy =
        page.replace("http-equiv=\"Content-Security-Policy\"", "name=\"no-policy\"");
    folder.write("zoom.html", page_without_policy.replace("</body>", ZOOM_SCRIPT));
    let opened = open(&folder, &browser, &folder.work().join("zoom.html"), 1_280);
    assert_eq!(console_errors(&opened), [""; 0]);
    let title = opened.out.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(title, Some("all 1000, top true, less true, levels true"));
}

/// Returns plotted and counted retransmissions for each subflow.
fn retransmission_counts(run: &RunResult) -> Vec<(u32, u64, u64)> {
    let subflows = &run.summary.as_ref().unwrap().subflows;
    let counts_of = |plot: &&Sequence| {
        let counted_subflow = subflows.iter().find(|subflow| {
            (subflow.flow, Some(subflow.subflow), subflow.direction)
                == (plot.flow, plot.subflow, plot.direction)
        })?;
        let kinds = [SequenceKind::Retransmitted, SequenceKind::Spurious];
        let plotted_packets =
            plot.views[0].marks.iter().filter(|marks| kinds.contains(&marks.kind));
        let plotted_packets: u64 =
            plotted_packets.flat_map(|marks| &marks.packets).map(|n| u64::from(*n)).sum();
        assert_eq!(plotted_packets, plot.retransmitted_packets, "none is left out");
        // The sender also counts a retransmitted FIN.
        let fins = plot.views[0].marks.iter().filter(|marks| marks.kind == SequenceKind::Fin);
        let fins = fins.map(|marks| marks.t_ns.len()).sum::<usize>() as u64;
        Some((
            counted_subflow.subflow,
            plotted_packets + fins.saturating_sub(1),
            counted_subflow.retransmissions,
        ))
    };
    sequences(run).iter().filter_map(counts_of).collect()
}

#[test]
fn drawn_resent_data_equals_sender_counts_on_random_scenarios() {
    let (mut subflows, mut packets, mut mismatches) = (0, 0, Vec::new());
    for seed in 0..if is_long() { 24 } else { 6 } {
        let folder = TestDir::new();
        folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
        // Random number from the seed, by the last step of SplitMix64.
        let random = |number: u64, limit: u64| {
            let bits = (seed * 16 + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (bits >> 33) % limit
        };
        let changes = [
            format!("paths.wifi.rate={} Mbit/s", 2 + random(0, 60)),
            format!("paths.wifi.delay={} ms", 1 + random(1, 60)),
            format!("paths.wifi.loss={}.{} %", random(2, 3), random(3, 10)),
            format!("paths.cellular.rate={} Mbit/s", 1 + random(4, 40)),
            format!("paths.cellular.delay={} ms", 5 + random(5, 150)),
            format!("paths.cellular.loss={}.{} %", random(6, 2), random(7, 10)),
            format!("flows.0.size={} kB", 500 + random(8, 6_000)),
        ];
        let seed = seed.to_string();
        let mut arguments = vec!["run", "scenario.toml", "-q", "-W", "sim", "-T", "tcp,mptcp"];
        arguments.extend(["--out", "r", "--seed", &seed]);
        arguments.extend(changes.iter().flat_map(|change| ["--set", change]));
        let output = folder.run(&arguments);
        assert_eq!(output.code, Some(0), "{output}");
        for transport in ["tcp", "mptcp"] {
            let run = folder.stored(&format!("r/sim-{transport}-1.jsonl.zst"));
            let counts = retransmission_counts(&run);
            assert!(!counts.is_empty(), "{transport}, seed {seed}");
            for (subflow, plotted, counted) in counts {
                (subflows, packets) = (subflows + 1, packets + counted);
                if plotted != counted {
                    mismatches.push(format!(
                        "seed {seed}, {transport} {subflow}: {plotted}, not {counted}"
                    ));
                }
            }
        }
    }
    assert!(packets > 20, "{packets} packets retransmitted on {subflows} subflows");
    assert_eq!(mismatches, Vec::<String>::new());
}
