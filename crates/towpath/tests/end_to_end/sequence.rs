//! Time–sequence plots agree with `tcpdump` and with the run's counters.

use std::collections::BTreeMap;
use std::fs;

use towpath_measure::result::{Record, Sequence, SequenceKind};
use towpath_measure::store::RunResult;

use crate::program::{SIZED, TWO_PATHS, TestDir, emulator, is_long, is_root, missing, skip};
use crate::report_page::{browser, complaints, measure, open};

/// Payload range of a packet: time (ns since the first packet), source port, first number, the one
/// after the last, and true if all of it had been sent before.
type SentRange = (u64, u16, i64, i64, bool);

/// Returns the reason if tcpdump cannot read a file here. As user 0 it first switches to another
/// user.
fn tcpdump_refused() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_user_0 = status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"));
    let refused = is_user_0 && !is_root();
    let reason = || "tcpdump gives up root, which this user namespace does not allow".to_owned();
    missing("tcpdump").or_else(|| refused.then(reason))
}

/// Returns the packets sent by the capture's host, as `tcpdump` reads them.
fn read_by_tcpdump(folder: &TestDir, file: &str) -> Vec<SentRange> {
    let mut command = folder.program("tcpdump");
    command.args(["-nr", file, "-ttSv", "--time-stamp-precision=nano", "-Q", "out", "tcp"]);
    let ended = folder.start(&mut command).wait();
    assert_eq!(ended.code, Some(0), "{ended}");
    // With -v a packet has two lines: time and IP, then ports and TCP.
    let mut parts = Vec::new();
    let mut first_ns: Option<u64> = None;
    let mut now_ns = 0;
    let mut begins: BTreeMap<u16, i64> = BTreeMap::new();
    let mut seen: BTreeMap<u16, Vec<(i64, i64)>> = BTreeMap::new();
    for line in ended.out.lines() {
        let stamp = line.split(' ').next().unwrap_or("");
        if let Some((seconds, rest)) = stamp.split_once('.')
            && line.contains(" IP")
        {
            let ns = seconds.parse::<u64>().unwrap() * 1_000_000_000 + rest.parse::<u64>().unwrap();
            now_ns = ns - *first_ns.get_or_insert(ns);
        }
        let Some((ends, fields)) = line.trim().split_once(": Flags ") else { continue };
        let source = ends.split(" > ").next().unwrap();
        let port: u16 = source.rsplit('.').next().unwrap().parse().unwrap();
        let Some(seq) = fields.split(", ").find_map(|field| field.strip_prefix("seq ")) else {
            continue;
        };
        if fields.starts_with("[S") {
            begins.insert(port, seq.parse::<i64>().unwrap() + 1);
        }
        let Some((from, to)) = seq.split_once(':') else { continue };
        let begin = begins[&port];
        let near = |number: &str| (number.parse::<i64>().unwrap() - begin).rem_euclid(1 << 32);
        let (from, to) = (near(from), near(to));
        let known = seen.entry(port).or_default();
        for (start, end, again) in split_seen(known, (from, to)) {
            parts.push((now_ns, port, start, end, again));
        }
        known.push((from, to));
    }
    parts.sort_unstable();
    parts
}

/// Splits a range into parts that were seen and parts that were not; simple and slow on purpose.
fn split_seen(known: &mut Vec<(i64, i64)>, (from, to): (i64, i64)) -> Vec<(i64, i64, bool)> {
    known.sort_unstable();
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for &(start, end) in known.iter() {
        match joined.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined.clone_into(known);
    let (mut at, mut parts) = (from, Vec::new());
    for (start, end) in joined {
        if end <= at || start >= to {
            continue;
        }
        if start > at {
            parts.push((at, start, false));
        }
        parts.push((start.max(at), end.min(to), true));
        at = end;
    }
    if at < to {
        parts.push((at, to, false));
    }
    parts
}

/// Returns the same from `towpath trace --csv sequence`.
fn plotted_ranges(folder: &TestDir, file: &str, ports: &BTreeMap<u32, u16>) -> Vec<SentRange> {
    let ended = folder.run(&["trace", file, "--csv", "sequence"]);
    assert_eq!(ended.code, Some(0), "{ended}");
    let mut lines = ended.out.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
    let [t, subflow, direction, kind, numbers, start, end, width] = [
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
    let mut found = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        if fields[numbers] != "subflow" || fields[direction] != "up" {
            continue;
        }
        assert_eq!(fields[width], "0", "each packet by itself: {line}");
        let again = match fields[kind] {
            "sent" | "out-of-order" | "reinjected" => false,
            "retransmitted" | "spurious" => true,
            _ => continue,
        };
        let number = |at: usize| fields[at].parse::<i64>().unwrap();
        let port = ports[&fields[subflow].parse().unwrap()];
        found.push((fields[t].parse().unwrap(), port, number(start), number(end), again));
    }
    found.sort_unstable();
    found
}

/// Returns the ports of the connecting host, by subflow of the capture.
fn ports(folder: &TestDir, file: &str) -> BTreeMap<u32, u16> {
    let ended = folder.run(&["trace", file, "--json"]);
    let run = towpath_measure::store::read_run(ended.out.as_bytes()).unwrap();
    let all = run.summary.unwrap().subflows;
    all.iter().map(|s| (s.subflow, s.local.rsplit(':').next().unwrap().parse().unwrap())).collect()
}

fn sequences(run: &RunResult) -> Vec<&Sequence> {
    let all = run.records.iter().filter_map(|record| {
        let Record::Sequence(sequence) = record else { return None };
        Some(&**sequence)
    });
    all.collect()
}

/// Compares the plot of a capture with `tcpdump`. Returns the number of ranges, and of
/// retransmitted ones.
fn compare(folder: &TestDir, file: &str) -> (usize, usize) {
    let read = read_by_tcpdump(folder, file);
    let drawn = plotted_ranges(folder, file, &ports(folder, file));
    let differ = read.iter().zip(&drawn).find(|(read, drawn)| read != drawn);
    assert_eq!(differ, None, "{file}: tcpdump, picture");
    assert_eq!(read.len(), drawn.len(), "{file}");
    (read.len(), read.iter().filter(|part| part.4).count())
}

const LOSS_CHANGE: &str = "paths.*.loss=0.5 %";

#[test]
fn a_simulated_picture_matches_tcpdump() {
    let test = "a_simulated_picture_matches_tcpdump";
    if let Some(reason) = tcpdump_refused() {
        return skip(test, &reason);
    }
    for transport in ["tcp", "mptcp"] {
        let folder = TestDir::new();
        folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
        let how = ["-q", "--world", "sim", "-T", transport, "--set", LOSS_CHANGE, "--pcap", "kept"];
        let more = ["--set", "flows.0.size=3 MB", "--out", "r"];
        let ended = folder.run(&[&["run", "scenario.toml"][..], &how, &more].concat());
        assert_eq!(ended.code, Some(0), "{ended}");
        let (parts, again) = compare(&folder, &format!("kept/sim-{transport}-1-phone.pcapng"));
        assert!(parts > 1_500 && again > 0, "{transport}: {parts} parts, {again} again");
    }
}

#[test]
fn an_emulated_picture_matches_tcpdump_and_is_in_the_report() {
    let test = "an_emulated_picture_matches_tcpdump_and_is_in_the_report";
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let run = |more: &[&str]| {
        let how = ["-q", "-T", "mptcp", "--set", LOSS_CHANGE, "--set", "flows.0.size=2 MB"];
        let ended = folder.run(&[&["run", "scenario.toml"][..], &how, more].concat());
        assert_eq!(ended.code, Some(0), "{ended}");
    };
    run(&["--out", "r", "--pcap", "kept", "--snap", "100"]);
    let stored = folder.stored("r/mptcp-1.jsonl.zst");
    let pictures = sequences(&stored);
    assert!(pictures.iter().any(|picture| picture.subflow.is_none()), "{pictures:?}");
    // Times are those of the run: no packet before it begins, and none long after its end.
    let summary = stored.summary.as_ref().unwrap();
    for picture in &pictures {
        let known = summary.subflows.iter().any(|s| Some(s.subflow) == picture.subflow);
        assert!(known || picture.subflow.is_none());
        let end_ns = summary.flows[0].duration_ns;
        let sent = picture.views[0].marks.iter().find(|m| m.kind == SequenceKind::Sent).unwrap();
        let (first, last) = (sent.t_ns[0], sent.t_ns[sent.t_ns.len() - 1]);
        assert!(first > 0 && first < end_ns && last < end_ns + 1_000_000_000, "{first}, {last}");
    }
    let page = fs::read_to_string(folder.work().join("r/report.html")).unwrap();
    assert!(page.contains("Sequence numbers over time</summary>"));
    if let Some(reason) = tcpdump_refused() {
        return skip(test, &reason);
    }
    let (parts, _) = compare(&folder, "kept/emu-mptcp-1-phone.pcapng");
    assert!(parts > 1_000, "{parts}");
}

#[test]
fn a_report_without_packets_explains_how_to_get_pictures() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let ended = folder.run(&["run", "scenario.toml", "-q", "-T", "tcp", "--out", "r"]);
    assert_eq!(ended.code, Some(0), "{ended}");
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
    let how =
        ["-q", "-W", "sim", "-T", "mptcp", "--set", LOSS_CHANGE, "--set", "flows.0.size=9 MB"];
    let ended = folder.run(&[&["run", "scenario.toml", "--out", "r"][..], &how].concat());
    assert_eq!(ended.code, Some(0), "{ended}");
    let page = fs::read_to_string(folder.work().join("r/report.html")).unwrap();
    assert_eq!(measure(&folder, &browser, &page, 390), "wide 390, loaded 0");
    // The page's policy allows no other script.
    let free = page.replace("http-equiv=\"Content-Security-Policy\"", "name=\"no-policy\"");
    folder.write("zoom.html", free.replace("</body>", ZOOM_SCRIPT));
    let opened = open(&folder, &browser, &folder.work().join("zoom.html"), 1_280);
    assert_eq!(complaints(&opened), [""; 0]);
    let title = opened.out.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(title, Some("all 1000, top true, less true, levels true"));
}

/// Returns plotted and counted retransmissions for each subflow.
fn retransmission_counts(run: &RunResult) -> Vec<(u32, u64, u64)> {
    let subflows = &run.summary.as_ref().unwrap().subflows;
    let pair = |picture: &&Sequence| {
        let known = subflows.iter().find(|subflow| {
            (subflow.flow, Some(subflow.subflow), subflow.direction)
                == (picture.flow, picture.subflow, picture.direction)
        })?;
        let kinds = [SequenceKind::Retransmitted, SequenceKind::Spurious];
        let drawn = picture.views[0].marks.iter().filter(|marks| kinds.contains(&marks.kind));
        let drawn: u64 = drawn.flat_map(|marks| &marks.packets).map(|n| u64::from(*n)).sum();
        assert_eq!(drawn, picture.retransmitted_packets, "none is left out");
        // The sender also counts a retransmitted FIN.
        let fins = picture.views[0].marks.iter().filter(|marks| marks.kind == SequenceKind::Fin);
        let fins = fins.map(|marks| marks.t_ns.len()).sum::<usize>() as u64;
        Some((known.subflow, drawn + fins.saturating_sub(1), known.retransmissions))
    };
    sequences(run).iter().filter_map(pair).collect()
}

#[test]
fn drawn_resent_data_equals_sender_counts_on_random_scenarios() {
    let (mut subflows, mut packets, mut missed) = (0, 0, Vec::new());
    for seed in 0..if is_long() { 24 } else { 6 } {
        let folder = TestDir::new();
        folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
        // Random number from the seed, by the last step of SplitMix64.
        let draw = |number: u64, most: u64| {
            let mixed = (seed * 16 + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 33) % most
        };
        let set = [
            format!("paths.wifi.rate={} Mbit/s", 2 + draw(0, 60)),
            format!("paths.wifi.delay={} ms", 1 + draw(1, 60)),
            format!("paths.wifi.loss={}.{} %", draw(2, 3), draw(3, 10)),
            format!("paths.cellular.rate={} Mbit/s", 1 + draw(4, 40)),
            format!("paths.cellular.delay={} ms", 5 + draw(5, 150)),
            format!("paths.cellular.loss={}.{} %", draw(6, 2), draw(7, 10)),
            format!("flows.0.size={} kB", 500 + draw(8, 6_000)),
        ];
        let seed = seed.to_string();
        let mut call = vec!["run", "scenario.toml", "-q", "-W", "sim", "-T", "tcp,mptcp"];
        call.extend(["--out", "r", "--seed", &seed]);
        call.extend(set.iter().flat_map(|change| ["--set", change]));
        let ended = folder.run(&call);
        assert_eq!(ended.code, Some(0), "{ended}");
        for transport in ["tcp", "mptcp"] {
            let run = folder.stored(&format!("r/sim-{transport}-1.jsonl.zst"));
            let all = retransmission_counts(&run);
            assert!(!all.is_empty(), "{transport}, seed {seed}");
            for (subflow, drawn, told) in all {
                (subflows, packets) = (subflows + 1, packets + told);
                if drawn != told {
                    missed.push(format!("seed {seed}, {transport} {subflow}: {drawn}, not {told}"));
                }
            }
        }
    }
    assert!(packets > 20, "{packets} packets sent again on {subflows} subflows");
    assert_eq!(missed, Vec::<String>::new());
}
