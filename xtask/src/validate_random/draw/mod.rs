//! Random scenarios. The distributions are the constants below; [`describe`] puts them into words,
//! so that text and draw cannot disagree.

mod describe;

use std::fmt::Write as _;

pub(super) use describe::describe;

use super::random::RngStream;

/// Percent and number of paths.
const PATHS: [(u32, usize); 4] = [(20, 1), (40, 2), (20, 3), (20, 4)];
/// Percent and range of a path's rate in kbit/s, by logarithm.
const RATES: [(u32, [u64; 2]); 3] =
    [(10, [1_000, 2_000]), (80, [2_000, 200_000]), (10, [200_000, 1_000_000])];
/// Maximum sum of a scenario's rates in kbit/s: above it, rates are halved, from the largest on.
const MAX_RATE_SUM_KBPS: u64 = 1_200_000;
/// One-way delay in µs, by logarithm.
const DELAY: [u64; 2] = [1_000, 300_000];
/// Percent and kind of a path's queue.
const QUEUES: [(u32, QueueKind); 3] =
    [(70, QueueKind::DropTail), (15, QueueKind::Tbf), (15, QueueKind::CoDel)];
/// Range of a queue's length in µs, by logarithm. A queue always has room for
/// [`MIN_QUEUE_PACKETS`].
const QUEUE: [u64; 2] = [10_000, 2_000_000];
const MIN_QUEUE_PACKETS: u64 = 4;
/// Burst of `tbf` in bytes, by logarithm, at least two packets.
const BURST: [u64; 2] = [5_000, 50_000];
/// Percent of scenarios with random loss on a drawn path, and the loss in millionths of percent.
const LOSS: (u32, [u64; 2]) = (20, [10_000, 2_000_000]);
/// Percent of scenarios with bursts of loss, chance per packet in millionths of percent, and
/// length.
const BURST_LOSS: (u32, [u64; 2], [u64; 2]) = (8, [5_000, 100_000], [2, 20]);
/// Percent of scenarios with jitter on a path, with or without reordering.
///
/// The jitter is drawn in µs, by logarithm, and at most half of the path's delay.
const JITTER_REORDERS: u32 = 10;
const JITTER_IN_ORDER: u32 = 10;
const JITTER: [u64; 2] = [300, 30_000];
const JITTER_SHAPES: [(u32, &str); 2] = [(50, "uniform"), (50, "normal")];
/// Percent of scenarios with an unusual MTU, on one path or all; 0 in the list stands for a uniform
/// draw.
const ODD_MTU: u32 = 20;
const MTUS: [(u32, u64); 6] = [(1, 576), (1, 1_280), (1, 1_400), (1, 4_000), (1, 9_000), (1, 0)];
const MTU_RANGE: [u64; 2] = [576, 9_000];
/// Minimum MTU of IPv6.
const MIN_MTU_V6: u64 = 1_280;
/// Percent of scenarios with an outage of a drawn path, and its duration in ms.
const OUTAGE: (u32, [u64; 2]) = (15, [300, 3_000]);
const OUTAGES: [(u32, &str); 3] = [(70, "silent"), (15, "carrier"), (15, "interface")];
/// Percent with a new rate, and its range in percent of the old one, by logarithm.
const RATE_CHANGE: (u32, [u64; 2]) = (15, [20, 300]);
/// Percent with a new delay, and its range in percent of the old one, by logarithm.
const DELAY_CHANGE: (u32, [u64; 2]) = (10, [30, 300]);
/// Percent in which the client gets a new address on a path.
const NEW_ADDRESS: u32 = 5;
/// Percent with a flapping rate: ms between changes, and the low rate in percent of the full one.
const FLAPPING: (u32, [u64; 2], [u64; 2]) = (5, [300, 1_000], [5, 50]);
/// Percent and range of the receiver's buffer in KB, by logarithm; `None` keeps the system's.
const RECEIVE_BUFFERS: [(u32, Option<[u64; 2]>); 3] =
    [(60, None), (25, Some([64, 1_000])), (15, Some([4_000, 32_000]))];
/// Percent and range of the sender's buffer in KB.
const SEND_BUFFER: (u32, [u64; 2]) = (10, [64, 4_000]);
const CONTROLS: [(u32, &str); 2] = [(75, "cubic"), (25, "reno")];
const DIRECTIONS: [(u32, &str); 2] = [(50, "up"), (50, "down")];
const FAMILIES: [(u32, &str); 2] = [(80, "v4"), (20, "v6")];
/// Percent of scenarios over Multipath TCP, for one path and for several; the others use TCP.
const MULTIPATH: [u32; 2] = [50, 80];
const PATTERNS: [(u32, PatternKind); 3] =
    [(80, PatternKind::Bulk), (12, PatternKind::Requests), (8, PatternKind::Video)];
/// Bytes of a request and of a reply, and the time between two requests in ms, by logarithm.
const REQUEST: [u64; 2] = [100, 10_000];
const REPLY: [u64; 2] = [100, 200_000];
const REQUEST_PERIOD: [u64; 2] = [50, 500];
/// Rate of a video in kbit/s, by logarithm.
const VIDEO: [u64; 2] = [1_000, 20_000];
/// Maximum rate of requests and video, in percent of the paths' total rate.
const MAX_APP_LOAD_PERCENT: u64 = 60;
/// Duration of the traffic in ms: longer where a path's delay is above this limit in µs.
const DURATIONS: [u64; 2] = [8_000, 12_000];
const LONG_DELAY_US: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueKind {
    DropTail,
    Tbf,
    CoDel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternKind {
    Bulk,
    Requests,
    Video,
}

/// Drawn properties of one path.
#[derive(Debug, Clone)]
struct DrawnPath {
    rate_kbps: u64,
    delay_us: u64,
    mtu: u64,
    queue: String,
    /// Further lines of the path's table in the scenario file.
    extra_lines: String,
}

/// Returns the name of scenario `number` of `seed`.
pub(crate) fn name(seed: u64, number: u32) -> String {
    format!("twin-{seed}-{number}")
}

/// Returns scenario `number` of `seed` as a scenario file, which depends on nothing else.
pub(crate) fn scenario(seed: u64, number: u32) -> String {
    let draws = ScenarioDraw { seed, number };
    let family = draws.choice("family", &FAMILIES);
    let paths = draws.paths(family);
    let has_long_delay = paths.iter().any(|path| path.delay_us > LONG_DELAY_US);
    let [short_duration, long_duration] = DURATIONS;
    let duration = if has_long_delay { long_duration } else { short_duration };
    let direction = draws.choice("direction", &DIRECTIONS);
    let multipath = MULTIPATH.get(paths.len().min(2) - 1).copied().unwrap_or_default();
    let transport = if draws.stream("transport").chance(multipath) { "mptcp" } else { "tcp" };
    let mut text = format!(
        "name = \"{}\"\n\n[run]\ntransports = [\"{transport}\"]\ncongestion-control = \"{}\"\n",
        name(seed, number),
        draws.choice("control", &CONTROLS),
    );
    let pattern = draws.pattern(&paths);
    // In flows of requests and video, the replies are large.
    let (sender, receiver) = match (pattern.0, direction) {
        (PatternKind::Bulk, "up") | (PatternKind::Requests, "down") => ("client", "server"),
        (PatternKind::Bulk | PatternKind::Requests | PatternKind::Video, _) => ("server", "client"),
    };
    for host in ["client", "server"] {
        let _ = write!(text, "\n[hosts.{host}]\n");
        if host == receiver {
            text += &draws.receive_buffer();
        }
        if host == sender {
            text += &draws.send_buffer();
        }
    }
    for (number, path) in paths.iter().enumerate() {
        let DrawnPath { rate_kbps, delay_us, mtu, queue, extra_lines } = path;
        let _ = write!(
            text,
            "\n[paths.p{number}]\nbetween = [\"client\", \"server\"]\nrate = \"{rate_kbps} kbit/s\"\n\
             delay = \"{delay_us} us\"\nqueue = {queue}\nmtu = {mtu}\n{extra_lines}"
        );
    }
    text += &draws.timeline(&paths, duration);
    let direction = if pattern.0 == PatternKind::Video {
        String::new()
    } else {
        format!("direction = \"{direction}\"\n")
    };
    let _ = write!(
        text,
        "\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{}{direction}family = \"{family}\"\n\
         duration = \"{duration} ms\"\n",
        pattern.1
    );
    text
}

/// Random draws of one scenario.
#[derive(Debug, Clone, Copy)]
struct ScenarioDraw {
    seed: u64,
    number: u32,
}

impl ScenarioDraw {
    /// Returns the random stream for a question about the scenario.
    fn stream(self, question: &str) -> RngStream {
        RngStream::new(self.seed, self.number, question)
    }

    /// Returns the random stream for a question about one path.
    fn path_stream(self, question: &str, path: usize) -> RngStream {
        self.stream(&format!("{question} {path}"))
    }

    fn choice(self, question: &str, entries: &[(u32, &'static str)]) -> &'static str {
        self.stream(question).weighted(entries).copied().unwrap_or_default()
    }

    fn paths(self, family: &str) -> Vec<DrawnPath> {
        let count = self.stream("paths").weighted(&PATHS).copied().unwrap_or(1);
        let mut rates: Vec<u64> = (0..count)
            .map(|path| {
                let mut stream = self.path_stream("rate", path);
                let range = stream.weighted(&RATES).copied().unwrap_or(RATES[0].1);
                stream.log_even(range)
            })
            .collect();
        while rates.iter().sum::<u64>() > MAX_RATE_SUM_KBPS {
            if let Some(largest) = rates.iter_mut().max() {
                *largest /= 2;
            }
        }
        let mtus = self.mtus(count, family);
        let mut paths: Vec<_> = rates
            .into_iter()
            .zip(mtus)
            .enumerate()
            .map(|(number, (rate_kbps, mtu))| {
                let delay_us = self.path_stream("delay", number).log_even(DELAY);
                let queue = self.queue(number, rate_kbps, mtu);
                DrawnPath { rate_kbps, delay_us, mtu, queue, extra_lines: String::new() }
            })
            .collect();
        self.loss(&mut paths);
        self.jitter(&mut paths);
        paths
    }

    fn mtus(self, count: usize, family: &str) -> Vec<u64> {
        let mut stream = self.stream("mtu");
        if !stream.chance(ODD_MTU) {
            return vec![1_500; count];
        }
        let unusual_mtu = match stream.weighted(&MTUS) {
            Some(0) | None => stream.even(MTU_RANGE),
            Some(mtu) => *mtu,
        };
        let unusual_mtu = if family == "v6" { unusual_mtu.max(MIN_MTU_V6) } else { unusual_mtu };
        let on_all_paths = stream.chance(50);
        let path_index = stream.below(count as u64) as usize;
        (0..count)
            .map(|path| if on_all_paths || path == path_index { unusual_mtu } else { 1_500 })
            .collect()
    }

    fn queue(self, number: usize, rate_kbps: u64, mtu: u64) -> String {
        let mut stream = self.path_stream("queue", number);
        let kind = stream.weighted(&QUEUES).copied().unwrap_or(QueueKind::DropTail);
        let packet = mtu + 14;
        let min_micros = MIN_QUEUE_PACKETS * packet * 8_000 / rate_kbps;
        let micros = stream.log_even(QUEUE).max(min_micros);
        let burst = stream.log_even(BURST).max(2 * packet);
        match kind {
            QueueKind::DropTail => format!("\"{micros} us\""),
            QueueKind::Tbf => {
                format!("{{ tbf = {{ burst = \"{burst} B\", latency = \"{micros} us\" }} }}")
            }
            QueueKind::CoDel => {
                "{ codel = { target = \"5 ms\", interval = \"100 ms\" } }".to_owned()
            }
        }
    }

    fn loss(self, paths: &mut [DrawnPath]) {
        let mut stream = self.stream("burst loss");
        let (percent, start, length) = BURST_LOSS;
        let burst_path = stream.chance(percent).then(|| stream.below(paths.len() as u64) as usize);
        if let Some(path) = burst_path.and_then(|index| paths.get_mut(index)) {
            let _ = writeln!(
                path.extra_lines,
                "loss = {{ burst = {{ start = \"{} %\", length = \"{} packets\" }} }}",
                percent_text(stream.log_even(start)),
                stream.even(length)
            );
        }
        let mut stream = self.stream("loss");
        let (percent, range) = LOSS;
        let loss_path = stream.chance(percent).then(|| stream.below(paths.len() as u64) as usize);
        // A path has one kind of loss.
        if let Some(path) =
            loss_path.filter(|_| loss_path != burst_path).and_then(|index| paths.get_mut(index))
        {
            let _ =
                writeln!(path.extra_lines, "loss = \"{} %\"", percent_text(stream.log_even(range)));
        }
    }

    fn jitter(self, paths: &mut [DrawnPath]) {
        let mut earlier_path = None;
        for (percent, reorder) in [(JITTER_REORDERS, true), (JITTER_IN_ORDER, false)] {
            let mut stream = self.stream(&format!("jitter {reorder}"));
            let jitter_path =
                stream.chance(percent).then(|| stream.below(paths.len() as u64) as usize);
            // A path has one kind of jitter.
            let path = jitter_path
                .filter(|_| jitter_path != earlier_path)
                .and_then(|index| paths.get_mut(index));
            if let Some(path) = path {
                earlier_path = jitter_path;
                let jitter_us = stream.log_even(JITTER).min(path.delay_us / 2);
                let shape = stream.weighted(&JITTER_SHAPES).copied().unwrap_or_default();
                let _ = writeln!(
                    path.extra_lines,
                    "jitter = {{ distribution = \"{shape}\", sd = \"{jitter_us} us\", \
                     reorder = {reorder} }}"
                );
            }
        }
    }

    fn receive_buffer(self) -> String {
        let mut stream = self.stream("receive buffer");
        let range = stream.weighted(&RECEIVE_BUFFERS).copied().flatten();
        range.map_or_else(String::new, |range| {
            format!("receive-buffer = \"{} KB\"\n", stream.log_even(range))
        })
    }

    fn send_buffer(self) -> String {
        let mut stream = self.stream("send buffer");
        let (percent, range) = SEND_BUFFER;
        if !stream.chance(percent) {
            return String::new();
        }
        format!("send-buffer = \"{} KB\"\n", stream.log_even(range))
    }

    fn pattern(self, paths: &[DrawnPath]) -> (PatternKind, String) {
        let pattern =
            self.stream("pattern").weighted(&PATTERNS).copied().unwrap_or(PatternKind::Bulk);
        let max_rate_kbps =
            paths.iter().map(|path| path.rate_kbps).sum::<u64>() * MAX_APP_LOAD_PERCENT / 100;
        let mut stream = self.stream("pattern's figures");
        let lines = match pattern {
            PatternKind::Bulk => "pattern = \"bulk\"\n".to_owned(),
            PatternKind::Requests => {
                let period = stream.log_even(REQUEST_PERIOD);
                // kbit/s by ms is bits.
                let max_bytes = period * max_rate_kbps / 8;
                let request = stream.log_even(REQUEST).min(max_bytes).max(REQUEST[0]);
                let reply = stream.log_even(REPLY).min(max_bytes).max(REPLY[0]);
                format!(
                    "pattern = \"reqres\"\nrequest = \"{request} B\"\nreply = \"{reply} B\"\n\
                     period = \"{period} ms\"\n"
                )
            }
            PatternKind::Video => format!(
                "pattern = \"video\"\nbitrate = \"{} kbit/s\"\nsegment = \"1 s\"\nbuffer = \"4 s\"\n",
                stream.log_even(VIDEO).min(max_rate_kbps)
            ),
        };
        (pattern, lines)
    }

    /// Draws the events of paths, in order of time.
    fn timeline(self, paths: &[DrawnPath], duration: u64) -> String {
        let mut events: Vec<(u64, usize, String)> = Vec::new();
        // Events begin after slow start as a rule, and leave time to observe their effects.
        let time_range = [1_500, duration - 3_500];
        let draw_event = |question: &str, percent: u32| {
            let mut stream = self.stream(question);
            let path = stream.chance(percent).then(|| stream.below(paths.len() as u64) as usize)?;
            let at_ms = stream.even(time_range);
            Some((stream, path, at_ms, paths.get(path)?))
        };
        if let Some((mut stream, path, at_ms, _)) = draw_event("outage", OUTAGE.0) {
            let how = stream.weighted(&OUTAGES).copied().unwrap_or_default();
            let host = if how == "interface" { "host = \"client\"\n" } else { "" };
            events.push((at_ms, path, format!("set = \"down\"\nmode = \"{how}\"\n{host}")));
            events.push((at_ms + stream.log_even(OUTAGE.1), path, "set = \"up\"\n".to_owned()));
        }
        if let Some((mut stream, path, at_ms, drawn)) = draw_event("rate change", RATE_CHANGE.0) {
            let rate = (drawn.rate_kbps * stream.log_even(RATE_CHANGE.1) / 100).max(200);
            events.push((
                at_ms,
                path,
                set_lines("rate", &format!("{} kbit/s", rate.min(MAX_RATE_SUM_KBPS))),
            ));
        }
        if let Some((mut stream, path, at_ms, drawn)) = draw_event("delay change", DELAY_CHANGE.0) {
            let delay = drawn.delay_us * stream.log_even(DELAY_CHANGE.1) / 100;
            events.push((at_ms, path, set_lines("delay", &format!("{delay} us"))));
        }
        if let Some((_, path, at_ms, _)) = draw_event("new address", NEW_ADDRESS) {
            events.push((at_ms, path, "set = \"address\"\nhost = \"client\"\n".to_owned()));
        }
        if let Some((mut stream, path, _, drawn)) = draw_event("flapping", FLAPPING.0) {
            let interval_ms = stream.log_even(FLAPPING.1);
            let low_rate = (drawn.rate_kbps * stream.log_even(FLAPPING.2) / 100).max(200);
            for change in 1..duration / interval_ms {
                let rate = if change % 2 == 1 { low_rate } else { drawn.rate_kbps };
                events.push((
                    change * interval_ms,
                    path,
                    set_lines("rate", &format!("{rate} kbit/s")),
                ));
            }
        }
        events.sort();
        let table = |(at_ms, path, action): &(u64, usize, String)| {
            format!("\n[[timeline]]\nat = \"{at_ms} ms\"\npath = \"p{path}\"\n{action}")
        };
        events.iter().map(table).collect()
    }
}

fn set_lines(key: &str, value: &str) -> String {
    format!("set = \"{key}\"\n{key} = \"{value}\"\n")
}

/// Formats millionths of a percent as percent: `0.0123`.
fn percent_text(value: u64) -> String {
    let text = format!("{}.{:06}", value / 1_000_000, value % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_depends_on_its_seed_and_number_alone() {
        assert_eq!(scenario(3, 7), scenario(3, 7));
        assert_ne!(scenario(3, 7), scenario(4, 7));
        assert_ne!(scenario(3, 7), scenario(3, 8));
    }

    #[test]
    fn every_drawn_scenario_is_toml() {
        for seed in [1, 2, 99] {
            for number in 0..200 {
                let text = scenario(seed, number);
                let table = text.parse::<toml::Table>();
                assert!(table.is_ok(), "{text}\n{table:?}");
            }
        }
    }

    #[test]
    fn small_percentages_are_written_out() {
        assert_eq!(percent_text(12_300), "0.0123");
        assert_eq!(percent_text(2_000_000), "2");
    }
}
