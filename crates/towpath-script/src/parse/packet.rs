//! Parser of a packet's fields: `SYN ACK 0 ack 1 win 65535 <mss 1460, sackok>`.

use towpath_wire::{Ecn, Flags};

use super::{TokenReader, options};
use crate::script::{NumberRange, OptionName, PacketPattern};

/// Parses fields up to the end of the line.
pub(super) fn parse_packet(words: &mut TokenReader<'_>) -> Result<PacketPattern, String> {
    let mut packet = PacketPattern::default();
    let mut has_flag = false;
    while let Some(word) = words.next() {
        if let Some(start) = word.strip_prefix('<') {
            let text = read_brackets(start, words)?;
            for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                packet.options.push(options::parse_option(part)?);
            }
            continue;
        }
        if let Some(flag) = parse_flag(word) {
            packet.flags = packet.flags.with(flag);
            has_flag = true;
            continue;
        }
        parse_field(&mut packet, word, words)?;
    }
    if !has_flag {
        packet.flags = Flags::ACK;
    }
    Ok(packet)
}

fn parse_flag(word: &str) -> Option<Flags> {
    match word {
        "SYN" => Some(Flags::SYN),
        "ACK" => Some(Flags::ACK),
        "FIN" => Some(Flags::FIN),
        "RST" => Some(Flags::RST),
        "URG" => Some(Flags::URG),
        "ECE" => Some(Flags::ECE),
        "CWR" => Some(Flags::CWR),
        "none" => Some(Flags::default()),
        _ => None,
    }
}

fn parse_field(
    packet: &mut PacketPattern,
    word: &str,
    words: &mut TokenReader<'_>,
) -> Result<(), String> {
    match word {
        "PSH" => packet.push = Some(true),
        "!PSH" => packet.push = Some(false),
        "ack" => {
            packet.ack = Some(parse_relative(words.expect_word("an acknowledgement number")?)?);
        }
        "win" => packet.window = Some(parse_range(words.expect_word("a window")?)?),
        "len" => packet.len = parse_range(words.expect_word("a length")?)?,
        "urgent" => packet.urgent = Some(words.number("an urgent pointer")?),
        "damaged" => packet.bad_checksum = true,
        "no" => {
            packet.without.push(parse_option_name(words.expect_word("the name of an option")?)?);
        }
        "not-ect" => packet.ecn = Some(Ecn::NotCapable),
        "ect0" => packet.ecn = Some(Ecn::Capable0),
        "ect1" => packet.ecn = Some(Ecn::Capable1),
        "ce" => packet.ecn = Some(Ecn::Marked),
        _ => match word.split_once(':') {
            Some((start, end)) => {
                let (start, end) = (parse_relative(start)?, parse_relative(end)?);
                packet.seq = Some(start);
                packet.len = NumberRange::exactly(end.wrapping_sub(start).into());
            }
            None => packet.seq = Some(parse_relative(word)?),
        },
    }
    Ok(())
}

/// Reads options up to `>`; `start` is the text before the next word.
fn read_brackets(start: &str, words: &mut TokenReader<'_>) -> Result<String, String> {
    let mut text = start.to_owned();
    while !text.ends_with('>') {
        let word = words.next().ok_or("expected `>` behind the options")?;
        text.push(' ');
        text.push_str(word);
    }
    let _ = text.pop();
    Ok(text)
}

/// Parses a relative sequence number, which may be negative.
pub(super) fn parse_relative(word: &str) -> Result<u32, String> {
    let number: i64 = word.parse().map_err(|_| format!("`{word}` is not a number"))?;
    Ok(number as u32)
}

/// Parses a range: `*`, `7`, `3..9`, `3..` or `..9`.
fn parse_range(word: &str) -> Result<NumberRange, String> {
    let parse = |text: &str| text.parse().map_err(|_| format!("`{word}` is not a number or range"));
    match word.split_once("..") {
        _ if word == "*" => Ok(NumberRange::ANY),
        Some((min, max)) => Ok(NumberRange {
            from: if min.is_empty() { 0 } else { parse(min)? },
            to: if max.is_empty() { u64::MAX } else { parse(max)? },
        }),
        None => Ok(NumberRange::exactly(parse(word)?)),
    }
}

fn parse_option_name(word: &str) -> Result<OptionName, String> {
    Ok(match word {
        "mss" => OptionName::Mss,
        "wscale" => OptionName::WindowScale,
        "sackok" => OptionName::SackPermitted,
        "sack" => OptionName::Sack,
        "ts" => OptionName::Timestamps,
        "mptcp" => OptionName::Mptcp,
        "dss" => OptionName::Dss,
        "mp_capable" => OptionName::Capable,
        "mp_tcprst" => OptionName::Reset,
        "add_addr" => OptionName::AddAddress,
        "mp_fail" => OptionName::Fail,
        "mp_fastclose" => OptionName::FastClose,
        _ => return Err(format!("`{word}` is not an option")),
    })
}
