//! Verdict and warnings about a whole capture.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::{CapturePoint, CapturedConnection, CapturedDirection, CutEvidence, Warning};

use super::link::SkipReason;
use super::{CaptureAnalysis, TimestampCounts};

impl CaptureAnalysis {
    /// Returns the verdict in one sentence.
    pub(super) fn verdict(&self) -> String {
        if self.connections.is_empty() {
            return self.empty_verdict();
        }
        let is_whole =
            |c: &&CapturedConnection| matches!(c.cut_options, None | Some(CutEvidence::Tcp));
        let whole = self.connections.iter().filter(is_whole);
        let cut_count = self.connections.len() - whole.clone().count();
        if cut_count > 0 && whole.clone().count() == 0 {
            return self.cut_verdict(cut_count);
        }
        let is_open = |c: &&CapturedConnection| !is_unanswered(c);
        let count = whole.clone().filter(is_open).count();
        let unanswered: Vec<_> = whole.clone().filter(|c| is_unanswered(c)).collect();
        let multipath =
            whole.clone().filter(is_open).filter(|c| c.multipath && c.fallback.is_none());
        let with_several_subflows = multipath.clone().filter(|c| c.subflows.len() > 1).count();
        let fell_back = whole.filter(|c| c.fallback.is_some()).count();
        let plural = if count == 1 { "" } else { "s" };
        let mut text =
            format!("{count} connection{plural}, {} over Multipath TCP", multipath.count());
        if with_several_subflows > 0 {
            let _ = write!(text, " ({with_several_subflows} with several subflows)");
        }
        if fell_back > 0 {
            let _ = write!(text, ", {fell_back} fell back to TCP");
        }
        if !unanswered.is_empty() {
            let _ = write!(text, "; {}", unanswered_text(&unanswered));
        }
        if cut_count > 0 {
            let _ = write!(text, "; {}", self.cut_verdict(cut_count));
        }
        text
    }

    /// Returns a sentence about a capture without TCP.
    fn empty_verdict(&self) -> String {
        if self.frames == 0 {
            return "the capture has no packets".to_owned();
        }
        let facts = self.skipped_frames();
        let facts = facts.iter().map(|(reason, count)| format!("{count} {reason}"));
        let mut text = format!("no TCP packets: {}", facts.collect::<Vec<_>>().join(", "));
        if self.skipped.contains_key(&SkipReason::Quic) {
            text.push_str("; QUIC is encrypted: use qlog files of its hosts");
        }
        text
    }

    /// Returns a sentence about connections whose options were not captured.
    fn cut_verdict(&self, count: usize) -> String {
        let of_multipath = { self.connections.iter() }
            .filter(|connection| connection.cut_options == Some(CutEvidence::Multipath))
            .count();
        let plural = if count == 1 { "" } else { "s" };
        let mut text =
            format!("{count} TCP connection{plural} or subflow{plural} with options cut off");
        if of_multipath > 0 {
            let _ = write!(text, ", {of_multipath} of Multipath TCP");
        }
        if of_multipath < count {
            let _ = write!(text, ", {} of TCP or Multipath TCP", count - of_multipath);
        }
        if count > 1 {
            text.push_str("; it is unknown which belong together");
        }
        text
    }

    /// Returns a warning about packets of which too few bytes were captured.
    fn cut_warning(&self) -> Option<Warning> {
        let headers = self.skipped.get(&SkipReason::Cut).copied().unwrap_or(0);
        let text = match (self.tracker.cut_packets, headers) {
            (0, 0) => return None,
            (packets, 0) => format!("the snap length cut off TCP options of {packets} packets"),
            (0, packets) => format!("the snap length cut off headers of {packets} packets"),
            (options, headers) => format!(
                "the snap length cut off TCP options of {options} packets and headers of {headers}"
            ),
        };
        let hint = "capture at least 192 bytes of each packet: `tcpdump -s 192`".to_owned();
        Some(Warning { text, hint: Some(hint) })
    }

    /// Returns warnings about packets whose time is missing or wrong.
    fn timing_warnings(&self) -> impl Iterator<Item = Warning> {
        let TimestampCounts { missing, invalid, backward } = self.timing;
        let backward_text = "more than 1 s older than an earlier packet";
        let facts = [
            (missing, "has no time".to_owned(), "have no time".to_owned()),
            (invalid, "has an impossible time".to_owned(), "have an impossible time".to_owned()),
            (backward, format!("is {backward_text}"), format!("are {backward_text}")),
        ];
        facts.into_iter().filter(|(count, ..)| *count > 0).map(|(count, one, several)| {
            let text = match count {
                1 => format!("1 packet {one}"),
                _ => format!("{count} packets {several}"),
            };
            let hint = "durations, delays and rates are wrong: `reordercap` sorts a capture";
            Warning { text, hint: Some(hint.to_owned()) }
        })
    }

    /// Returns a warning about packets that the capture contains twice.
    fn copy_warnings(&self) -> impl Iterator<Item = Warning> {
        let subflows = || self.tracker.subflows.iter().map(|subflow| &subflow.copies);
        let count_if = |is_merged: bool| -> u64 {
            let chosen = subflows().filter(|copies| copies.is_merged() == is_merged);
            chosen.map(|copies| copies.packets).sum()
        };
        let undecided: BTreeSet<&str> = { self.connections.iter() }
            .flat_map(|connection| connection.undecided.iter().map(String::as_str))
            .collect();
        let merged = count_if(true);
        let mut copies_text = match merged {
            0 => String::new(),
            1 => "1 packet is in the capture twice; it counts once".to_owned(),
            _ => format!("{merged} packets are in the capture twice; each counts once"),
        };
        if !undecided.is_empty() {
            let names = undecided.into_iter().collect::<Vec<_>>().join(", ");
            let subject = if merged == 0 { "copies and retransmissions look alike" } else { "" };
            let _ = write!(copies_text, "{subject}; not decidable: {names}");
        }
        let duplicates = count_if(false);
        let duplicates_text = match duplicates {
            0 => String::new(),
            1 => "1 packet was duplicated; it counts once".to_owned(),
            _ => format!("{duplicates} packets were duplicated; each counts once"),
        };
        let facts = [
            (copies_text, "it was taken at two places: analyse each place's capture by itself"),
            (duplicates_text, "the network, or the capture, duplicated them"),
        ];
        facts.into_iter().filter(|(text, _)| !text.is_empty()).map(|(text, hint)| {
            let hint = Some(hint.to_owned());
            Warning { text, hint }
        })
    }

    /// Returns reasons to distrust the metrics of this capture.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings: Vec<_> = self.cut_warning().into_iter().collect();
        warnings.extend(self.copy_warnings());
        warnings.extend(self.timing_warnings());
        let mut warn = |text: String, hint: &str| {
            warnings.push(Warning { text, hint: Some(hint.to_owned()) });
        };
        if self.truncated {
            let text = "the file ends in the middle of a packet".to_owned();
            warn(text, "all packets before it are included");
        }
        let unseen: u64 =
            self.connections.iter().flat_map(|c| &c.directions).map(|w| w.unseen_bytes).sum();
        if unseen > 0 {
            let text = format!(
                "{} were acknowledged but are not in the capture",
                number::bytes(unseen as f64)
            );
            warn(
                text,
                "the capture lost packets, or contains only one path: capture with a larger buffer",
            );
        }
        if self.tracker.untracked > 0 {
            let text = format!(
                "{} packets exceed the maximum number of connections",
                self.tracker.untracked
            );
            warn(text, "split the capture, or filter it");
        }
        let has_unknown_place = |direction: &CapturedDirection| {
            direction.bytes > 0 && matches!(direction.capture_point, CapturePoint::Unknown)
        };
        if self.connections.iter().flat_map(|c| &c.directions).any(has_unknown_place) {
            let text = "the capture point of some connections is unknown";
            warn(
                text.to_owned(),
                "set it with `--capture-point opener` or `--capture-point acceptor`",
            );
        }
        warnings
    }
}

/// Number of unanswered SYNs above which they are named as a flood.
const MIN_FLOOD_SYNS: u64 = 100;

/// Returns true if the capture has only SYNs of the connection.
fn is_unanswered(connection: &CapturedConnection) -> bool {
    connection.subflows.iter().all(|subflow| subflow.state == "syn-sent")
}

/// Returns a clause about connections of which only SYNs were captured.
fn unanswered_text(connections: &[&CapturedConnection]) -> String {
    let subflows = || connections.iter().flat_map(|connection| &connection.subflows);
    let syns: u64 = subflows().map(|subflow| u64::from(subflow.syns)).sum();
    let joins: u64 = subflows().filter(|s| s.join).map(|subflow| u64::from(subflow.syns)).sum();
    let plural = if syns == 1 { "" } else { "s" };
    let mut text = format!("{syns} SYN{plural} without an answer");
    if joins > 0 {
        let _ = write!(
            text,
            ", {joins} of them with MP_JOIN for {} connections",
            connections.iter().filter(|c| c.subflows.iter().any(|s| s.join)).count()
        );
    }
    let sources = subflows().map(|subflow| subflow.local.as_str()).collect::<BTreeSet<_>>().len();
    if syns >= MIN_FLOOD_SYNS && sources as u64 >= MIN_FLOOD_SYNS {
        text.push_str(": a SYN flood, or a scan");
    }
    text
}
