//! Parser of one option between `<` and `>`.

use std::net::{IpAddr, SocketAddr};

use super::TokenReader;
use super::packet::parse_relative;
use crate::script::{
    AddAddressPattern, CapableKeys, CapablePattern, Checksum, DssPattern, JoinPattern, MapPattern,
    OptionPattern, Presence, TimestampPattern, TsEcho,
};

/// Parses one option with its fields.
pub(super) fn parse_option(text: &str) -> Result<OptionPattern, String> {
    let mut words = TokenReader::new(text);
    let name = words.expect_word("an option")?;
    let words = &mut words;
    let option = match name {
        "mss" => OptionPattern::Mss(parse_number(words)?),
        "wscale" => OptionPattern::WindowScale(parse_number(words)?),
        "sackok" => OptionPattern::SackPermitted,
        "sack" => OptionPattern::Sack(parse_blocks(words)?),
        "ts" => OptionPattern::Timestamps(parse_timestamps(words)?),
        "mp_capable" => OptionPattern::Capable(parse_capable(words)?),
        "mp_join" => OptionPattern::Join(parse_join(words)?),
        "dss" => OptionPattern::Dss(parse_dss(words)?),
        "add_addr" => OptionPattern::AddAddress(parse_add_address(words)?),
        "remove_addr" => {
            let mut ids = Vec::new();
            while words.peek().is_some() {
                ids.push(words.number("an identifier")?);
            }
            OptionPattern::RemoveAddress(ids)
        }
        "mp_prio" => OptionPattern::Priority { backup: words.next() == Some("backup") },
        "mp_fail" => OptionPattern::Fail(parse_number(words)?),
        "mp_fastclose" => OptionPattern::FastClose { valid: words.next() != Some("bad") },
        "mp_tcprst" => parse_reset(words)?,
        "raw" => OptionPattern::Raw(parse_bytes(words)?),
        _ => return Err(format!("`{name}` is not an option")),
    };
    match words.next() {
        None => Ok(option),
        Some(word) => Err(format!("`{word}` does not belong to `{name}`")),
    }
}

/// Parses a number; nothing or `*` means any.
fn parse_number<T: std::str::FromStr>(words: &mut TokenReader<'_>) -> Result<Option<T>, String> {
    match words.next() {
        None | Some("*") => Ok(None),
        Some(word) => word.parse().map(Some).map_err(|_| format!("`{word}` is not a number")),
    }
}

fn parse_blocks(words: &mut TokenReader<'_>) -> Result<Vec<(u32, u32)>, String> {
    let mut blocks = Vec::new();
    while let Some(word) = words.next() {
        let (start, end) = word.split_once(':').ok_or("expected blocks such as `1001:2001`")?;
        blocks.push((parse_relative(start)?, parse_relative(end)?));
    }
    Ok(blocks)
}

/// Parses `ts`, `ts 100`, `ts * 7` or `ts 100 -5`.
fn parse_timestamps(words: &mut TokenReader<'_>) -> Result<TimestampPattern, String> {
    let value = parse_number(words)?;
    let echo = match words.next() {
        None | Some("*") => None,
        Some(word) => Some(match word.strip_prefix('-') {
            Some(difference) => {
                TsEcho::Older(difference.parse().map_err(|_| format!("`{word}` is not a number"))?)
            }
            None => TsEcho::Number(word.parse().map_err(|_| format!("`{word}` is not a number"))?),
        }),
    };
    Ok(TimestampPattern { value, echo })
}

fn parse_capable(words: &mut TokenReader<'_>) -> Result<CapablePattern, String> {
    let mut capable =
        CapablePattern { version: None, flags: None, keys: None, len: None, checksum: false };
    while let Some(word) = words.next() {
        match word {
            "version" => capable.version = Some(words.number("a version")?),
            "flags" => capable.flags = Some(parse_flag_letters(words.expect_word("flags")?)?),
            "keys" => {
                capable.keys = Some(match words.expect_word("which keys")? {
                    "none" => CapableKeys::None,
                    "one" => CapableKeys::Sender,
                    "both" => CapableKeys::Both,
                    "wrong" => CapableKeys::Wrong,
                    word => return Err(format!("`{word}` says not which keys")),
                });
            }
            "len" => capable.len = Some(words.number("a length")?),
            "csum" => capable.checksum = true,
            _ => return Err(format!("`{word}` does not belong to `mp_capable`")),
        }
    }
    Ok(capable)
}

/// Parses flags A to H by their letters; `-` is the empty set.
fn parse_flag_letters(word: &str) -> Result<u8, String> {
    word.bytes().try_fold(0, |flags, letter| match letter {
        b'A'..=b'H' => Ok(flags | 0x80 >> (letter - b'A')),
        b'-' => Ok(flags),
        _ => Err(format!("`{word}` are no flags")),
    })
}

fn parse_join(words: &mut TokenReader<'_>) -> Result<JoinPattern, String> {
    let mut join = JoinPattern { address_id: None, backup: None, valid: true };
    while let Some(word) = words.next() {
        match word {
            "id" => join.address_id = Some(words.number("an identifier")?),
            "backup" => join.backup = Some(true),
            "regular" => join.backup = Some(false),
            "bad" => join.valid = false,
            _ => return Err(format!("`{word}` does not belong to `mp_join`")),
        }
    }
    Ok(join)
}

fn parse_dss(words: &mut TokenReader<'_>) -> Result<DssPattern, String> {
    let mut dss = DssPattern::default();
    let mut mapping = MapPattern::default();
    let mut has_mapping = false;
    while let Some(word) = words.next() {
        match word {
            "noack" => dss.ack = Presence::Absent,
            "nomap" => dss.map = Presence::Absent,
            "fin" => dss.fin = true,
            "ack" => dss.ack = Presence::Given(words.number("a data sequence number")?),
            "ack4" => dss.ack_octets = Some(4),
            "ack8" => dss.ack_octets = Some(8),
            _ => {
                has_mapping = true;
                parse_mapping_field(&mut mapping, word, words)?;
            }
        }
    }
    if has_mapping {
        dss.map = Presence::Given(mapping);
    }
    Ok(dss)
}

fn parse_mapping_field(
    mapping: &mut MapPattern,
    word: &str,
    words: &mut TokenReader<'_>,
) -> Result<(), String> {
    match word {
        "map" => {}
        "dsn" => mapping.dsn = Some(words.number("a data sequence number")?),
        "ssn" => {
            mapping.ssn = Some(parse_relative(words.expect_word("a subflow sequence number")?)?);
        }
        "len" => mapping.len = Some(words.number("a length")?),
        "dsn4" => mapping.octets = Some(4),
        "dsn8" => mapping.octets = Some(8),
        "csum" => mapping.checksum = Checksum::Valid,
        "badcsum" => mapping.checksum = Checksum::Invalid,
        _ => return Err(format!("`{word}` does not belong to `dss`")),
    }
    Ok(())
}

fn parse_add_address(words: &mut TokenReader<'_>) -> Result<AddAddressPattern, String> {
    let word = words.expect_word("an address")?;
    let (address, port) = match word.parse::<SocketAddr>() {
        Ok(socket_address) => (socket_address.ip(), Some(socket_address.port())),
        Err(_) => {
            (word.parse::<IpAddr>().map_err(|_| format!("`{word}` is not an address"))?, None)
        }
    };
    let mut pattern = AddAddressPattern { address_id: 0, address, port, echo: false, valid: true };
    while let Some(word) = words.next() {
        match word {
            "id" => pattern.address_id = words.number("an identifier")?,
            "echo" => pattern.echo = true,
            "bad" => pattern.valid = false,
            _ => return Err(format!("`{word}` does not belong to `add_addr`")),
        }
    }
    Ok(pattern)
}

fn parse_reset(words: &mut TokenReader<'_>) -> Result<OptionPattern, String> {
    let (mut reason, mut transient) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "transient" => transient = Some(true),
            "final" => transient = Some(false),
            "*" => {}
            _ => reason = Some(word.parse().map_err(|_| format!("`{word}` is not a reason"))?),
        }
    }
    Ok(OptionPattern::Reset { reason, transient })
}

/// Parses pairs of hexadecimal digits.
fn parse_bytes(words: &mut TokenReader<'_>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while let Some(word) = words.next() {
        bytes.push(u8::from_str_radix(word, 16).map_err(|_| format!("`{word}` is not a byte"))?);
    }
    Ok(bytes)
}
