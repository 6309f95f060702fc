//! Comparison of sample output in documents with the output of the command.
//!
//! A line `…` omits lines; one that ends in `…` omits the rest of the line. Numbers, their units
//! and volatile values (ports, tokens, process IDs) are not compared; words and addresses are.

use std::net::{IpAddr, SocketAddr};

/// First port of the kernel's ephemeral range.
const MIN_EPHEMERAL_PORT: u16 = 32_768;
const TIME_UNITS: [&str; 5] = ["ns", "µs", "ms", "s", "min"];
const RATE_UNITS: [&str; 4] = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"];
const SIZE_UNITS: [&str; 4] = ["B", "kB", "MB", "GB"];

/// Returns a line without its volatile values.
fn normalize(line: &str) -> String {
    let mut is_after_number = false;
    let words = line.split_whitespace().map(|word| {
        let word = normalize_word(word, is_after_number);
        is_after_number = word.contains('N') && !word.chars().any(char::is_lowercase);
        word
    });
    words.collect::<Vec<_>>().join(" ")
}

fn normalize_word(word: &str, is_after_number: bool) -> String {
    let trimmed = word.trim_matches(|c: char| "(),;".contains(c));
    if let Ok(socket_address) = trimmed.parse::<SocketAddr>() {
        let port = if socket_address.port() >= MIN_EPHEMERAL_PORT {
            "PORT".into()
        } else {
            socket_address.port().to_string()
        };
        return word.replace(trimmed, &format!("{}:{port}", socket_address.ip()));
    }
    let (address, _) = trimmed.split_once('/').unwrap_or((trimmed, ""));
    if address.parse::<IpAddr>().is_ok() {
        return word.to_owned();
    }
    let token = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
    if token.is_some_and(|hex| hex.len() == 8 && hex.bytes().all(|b| b.is_ascii_hexdigit())) {
        return "[TOKEN]".to_owned();
    }
    if is_after_number {
        let unit = word.trim_end_matches(|c: char| "),;:.".contains(c));
        for (units, name) in [(&TIME_UNITS[..], "T"), (&RATE_UNITS, "RATE"), (&SIZE_UNITS, "SIZE")]
        {
            if units.contains(&unit) {
                return word.replacen(unit, name, 1);
            }
        }
    }
    // The number before it is not compared, so `1 timeout` equals `2 timeouts`.
    without_numbers(word).replace("timeouts", "timeout")
}

/// Replaces numbers like `12.5` and `7` by `N`; names like `eth0` stay.
fn without_numbers(word: &str) -> String {
    let trimmed = word.trim_matches(|c: char| "()[],;:.".contains(c));
    let is_number = trimmed.bytes().all(|b| b.is_ascii_digit() || b"-.,".contains(&b))
        && trimmed.bytes().any(|b| b.is_ascii_digit());
    if is_number { word.replace(trimmed, "N") } else { word.to_owned() }
}

/// Compares a command's output with the document; the first difference is the error.
pub(crate) fn compare(documented: &[String], printed: &str) -> Result<(), String> {
    compare_lines(documented, printed, normalize)
}

/// Like [`compare`], but numbers must be equal.
pub(crate) fn compare_exactly(documented: &[String], printed: &str) -> Result<(), String> {
    compare_lines(documented, printed, |line| line.trim_end().to_owned())
}

fn compare_lines(
    documented: &[String],
    printed: &str,
    normalize: impl Fn(&str) -> String,
) -> Result<(), String> {
    let printed: Vec<String> = printed.lines().map(&normalize).collect();
    let line_matches = |documented: &String, printed: &String| match documented.strip_suffix('…')
    {
        Some(start) => printed.starts_with(&normalize(start)),
        None => *printed == normalize(documented),
    };
    let mut rest = &printed[..];
    let mut is_gap_allowed = false;
    for (index, group) in documented.split(|line| line == "…").enumerate() {
        is_gap_allowed |= index > 0;
        if group.is_empty() {
            continue;
        }
        let starts = 0..=rest.len().saturating_sub(group.len());
        let matches_at = |start: &usize| {
            let lines = rest.get(*start..*start + group.len());
            lines.is_some_and(|lines| {
                group
                    .iter()
                    .zip(lines)
                    .all(|(documented, printed)| line_matches(documented, printed))
            })
        };
        let start =
            starts.into_iter().find(matches_at).filter(|start| is_gap_allowed || *start == 0);
        let start = start.ok_or_else(|| format!("these lines are missing: {group:#?}"))?;
        rest = &rest[start + group.len()..];
        is_gap_allowed = false;
    }
    let is_end = rest.is_empty() || documented.last().is_some_and(|line| line == "…");
    if is_end { Ok(()) } else { Err(format!("this line is not in the document: {}", rest[0])) }
}

#[test]
fn volatile_output_is_not_compared_and_all_else_is() {
    let shapes = [
        (
            "12.5 iperf3 (122) 10.0.0.1:44486 → 10.0.0.2:5201,",
            "N iperf3 (N) 10.0.0.1:PORT → 10.0.0.2:5201,",
        ),
        ("[  5]   0.00-3.00   sec [dcd8a1ab]", "[ N] N sec [TOKEN]"),
        ("sysctl -w net.ipv4.conf.eth0.arp_ignore=1", "sysctl -w net.ipv4.conf.eth0.arp_ignore=1"),
        ("for 980 ms, at 1.5 Mbit/s (2 MB)", "for N T, at N RATE (N SIZE)"),
        ("MB of s", "MB of s"),
    ];
    for (line, expected) in shapes {
        assert_eq!(normalize(line), expected);
    }
    let owned_lines =
        |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    let printed = "one\ntwo 2\nthree\n";
    assert_eq!(compare(&owned_lines(&["one", "two 3", "three"]), printed), Ok(()));
    assert_eq!(compare(&owned_lines(&["…", "two 3", "…"]), printed), Ok(()));
    assert_eq!(compare(&owned_lines(&["one", "tw…", "…"]), printed), Ok(()));
    assert_eq!(compare_exactly(&owned_lines(&["…", "two 2", "…"]), printed), Ok(()));
    assert!(compare_exactly(&owned_lines(&["…", "two 3", "…"]), printed).is_err());
    // The first lines of a group may also match a place where the rest differs.
    assert_eq!(compare(&owned_lines(&["…", "one", "two 3", "…"]), "one\none\ntwo 2\n"), Ok(()));
    for mismatch in
        [&["one", "two 3"][..], &["…", "two 3"], &["…", "two", "…"], &["two 2", "…"], &[]]
    {
        assert!(compare(&owned_lines(mismatch), printed).is_err(), "{mismatch:?}");
    }
}
