//! Parser from the text of a script to its data.
//!
//! A head of `name: value` lines, an empty line, then one step per line; `#` begins a comment.

mod options;
mod packet;

use std::time::Duration;

use crate::script::{
    Call, CallOutcome, EndpointUse, FailureReason, HostKind, Icmp, IcmpError, Role, Script,
    ScriptStep, Setting, StepAction, SubflowRoute, TimeWindow, Transport,
};

/// Syntax error of a script, with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct ScriptParseError {
    /// Line number in the file.
    pub line: usize,
    /// Description of the error.
    pub text: String,
}

/// Parses a script; `name` is its path below `specs/scripts/` without the ending.
pub fn parse(name: &str, text: &str) -> Result<Script, ScriptParseError> {
    let mut script = Script {
        name: name.to_owned(),
        title: String::new(),
        sections: Vec::new(),
        role: Role::Server,
        transport: Transport::Tcp,
        settings: Vec::new(),
        routes: Vec::new(),
        steps: Vec::new(),
    };
    let mut in_head = true;
    for (index, raw_line) in text.lines().enumerate() {
        let line = index + 1;
        let content = raw_line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            in_head &= script.title.is_empty() || !raw_line.trim().is_empty();
            continue;
        }
        let result = if in_head {
            parse_head(&mut script, line, content)
        } else {
            parse_step(&script, line, content).map(|step| script.steps.push(step))
        };
        result.map_err(|text| ScriptParseError { line, text })?;
    }
    let missing = if script.title.is_empty() {
        Some("no `title:`")
    } else if script.sections.is_empty() {
        Some("no `section:`")
    } else if script.steps.is_empty() {
        Some("no step")
    } else {
        None
    };
    match missing {
        Some(text) => Err(ScriptParseError { line: 1, text: text.to_owned() }),
        None => Ok(script),
    }
}

fn parse_head(script: &mut Script, line: usize, content: &str) -> Result<(), String> {
    let (name, value) = content.split_once(':').ok_or("expected `name: value`")?;
    let value = value.trim();
    match (name.trim(), value) {
        ("title", _) => value.clone_into(&mut script.title),
        ("section", _) => {
            script.sections.extend(value.split(',').map(|section| section.trim().to_owned()));
        }
        ("role", "client") => script.role = Role::Client,
        ("role", "server") => script.role = Role::Server,
        ("transport", "tcp") => script.transport = Transport::Tcp,
        ("transport", "mptcp") => script.transport = Transport::Mptcp,
        ("set", _) => {
            let (name, value) = value.split_once(' ').ok_or("expected `set: NAME VALUE`")?;
            let (name, value) = (name.to_owned(), value.trim().to_owned());
            script.settings.push(Setting { line, name, value });
        }
        ("line", _) => {
            let route = parse_route(&mut TokenReader::new(value), script.role)?;
            script.routes.push(route);
        }
        _ => return Err(format!("`{content}` is unknown in the head")),
    }
    Ok(())
}

/// Parses `NUMBER host PATH peer PATH port PORT by peer|host`; all but the number are optional.
fn parse_route(words: &mut TokenReader<'_>, role: Role) -> Result<SubflowRoute, String> {
    let mut route = SubflowRoute::default_for(words.number("a subflow's number")?, role);
    while let Some(word) = words.next() {
        match word {
            "host" => route.host = words.number("a path")?,
            "peer" => route.peer = words.number("a path")?,
            "port" => route.port = words.number("a port")?,
            "by" => route.by_peer = words.expect_word("`peer` or `host`")? == "peer",
            _ => return Err(format!("`{word}` is not a part of a route")),
        }
    }
    Ok(route)
}

fn parse_step(script: &Script, line: usize, content: &str) -> Result<ScriptStep, String> {
    let (only, rest) = parse_tag(content)?;
    let mut words = TokenReader::new(rest);
    let when = match words.peek() {
        Some(word) if word.starts_with('+') => {
            let _ = words.next();
            parse_time_window(word)?
        }
        Some(_) | None => TimeWindow::default(),
    };
    let action = parse_action(script, &mut words)?;
    match words.next() {
        None => Ok(ScriptStep { line, text: content.to_owned(), only, when, action }),
        Some(word) => Err(format!("`{word}` was not expected here")),
    }
}

/// Parses `[linux: NAME]` or `[towpath: NAME]` before a step, and returns the rest of the line.
#[expect(clippy::type_complexity, reason = "what is in front, and what is behind it")]
fn parse_tag(content: &str) -> Result<(Option<(HostKind, String)>, &str), String> {
    let Some(rest) = content.strip_prefix('[') else { return Ok((None, content)) };
    let (tag, rest) = rest.split_once(']').ok_or("expected `]`")?;
    let (host_kind, name) = tag.split_once(':').ok_or("expected `[linux: NAME]`")?;
    let host_kind = match host_kind.trim() {
        "linux" => HostKind::Linux,
        "towpath" => HostKind::Towpath,
        word => return Err(format!("`{word}` is neither `linux` nor `towpath`")),
    };
    let name = name.trim();
    if name.is_empty() {
        return Err("expected the name of a difference".to_owned());
    }
    Ok((Some((host_kind, name.to_owned())), rest.trim()))
}

/// Parses a time window: `+200ms` or `+1s..3s`.
fn parse_time_window(word: &str) -> Result<TimeWindow, String> {
    let word = word.trim_start_matches('+');
    let (earliest, latest) = word.split_once("..").unwrap_or((word, word));
    let (earliest, latest) = (parse_time(earliest)?, parse_time(latest)?);
    Ok(TimeWindow { from: earliest, to: latest })
}

fn parse_time(word: &str) -> Result<Duration, String> {
    let invalid = || format!("`{word}` is not a time, expected such as `200ms` or `1.5s`");
    let (digits, unit) = match word.strip_suffix("ms") {
        Some(digits) => (digits, 1e-3),
        None => (word.strip_suffix('s').ok_or_else(invalid)?, 1.0),
    };
    let number: f64 = digits.parse().map_err(|_| invalid())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| invalid())
}

fn parse_action(script: &Script, words: &mut TokenReader<'_>) -> Result<StepAction, String> {
    let word = words.expect_word("a step")?;
    if let Some(number) = word.strip_suffix('<') {
        let subflow = parse_subflow_number(number)?;
        if words.peek() == Some("icmp") {
            let _ = words.next();
            return Ok(StepAction::Icmp { subflow, message: parse_icmp(words)? });
        }
        return Ok(StepAction::Inject { subflow, packet: packet::parse_packet(words)? });
    }
    if let Some(number) = word.strip_suffix('>') {
        return Ok(StepAction::Expect {
            subflow: parse_subflow_number(number)?,
            packet: packet::parse_packet(words)?,
        });
    }
    match word {
        "handshake" => Ok(StepAction::Handshake(packet::parse_packet(words)?)),
        "join" => parse_join(words),
        "silence" => Ok(StepAction::Silence(parse_time(words.expect_word("a time")?)?)),
        "ignore" => Ok(StepAction::Ignore(parse_time(words.expect_word("a time")?)?)),
        _ => {
            let call = parse_call(script, word, words)?;
            Ok(StepAction::Call(call, parse_outcome(words)?))
        }
    }
}

fn parse_subflow_number(number: &str) -> Result<usize, String> {
    match number {
        "" => Ok(0),
        _ => number.parse().map_err(|_| format!("`{number}` is not a subflow's number")),
    }
}

fn parse_join(words: &mut TokenReader<'_>) -> Result<StepAction, String> {
    let subflow = words.number("a subflow's number")?;
    let backup = words.peek() == Some("backup");
    if backup {
        let _ = words.next();
    }
    Ok(StepAction::Join { subflow, backup })
}

fn parse_icmp(words: &mut TokenReader<'_>) -> Result<Icmp, String> {
    let word = words.expect_word("what the ICMP error says")?;
    let kind = match word {
        "too-big" => IcmpError::TooBig(words.number("an MTU")?),
        "unreachable" => IcmpError::Unreachable,
        "refused" => IcmpError::Refused,
        _ => return Err(format!("`{word}` is not an ICMP error")),
    };
    let mut seq = None;
    if words.peek() == Some("seq") {
        let _ = words.next();
        seq = Some(words.number("a sequence number")?);
    }
    Ok(Icmp { kind, seq })
}

fn parse_call(_script: &Script, word: &str, words: &mut TokenReader<'_>) -> Result<Call, String> {
    Ok(match word {
        "listen" => Call::Listen,
        "connect" => Call::Connect,
        "accept" => Call::Accept,
        "connected" => Call::Connected,
        "write" => Call::Write(words.number("bytes")?),
        "read" => Call::Read,
        "shutdown" => Call::Shutdown,
        "close" => Call::Close,
        "abort" => Call::Abort,
        "remove-address" => Call::RemoveAddress(words.number("a path")?),
        "add-endpoint" => {
            let path = words.number("a path")?;
            Call::AddEndpoint(path, parse_endpoint_flags(words)?)
        }
        _ => return Err(format!("`{word}` is not a step")),
    })
}

/// Parses the flags of an endpoint, up to the outcome or the end.
fn parse_endpoint_flags(words: &mut TokenReader<'_>) -> Result<EndpointUse, String> {
    let mut usage = EndpointUse::default();
    while let Some(word) = words.peek().filter(|word| *word != "->") {
        match word {
            "subflow" => usage.subflow = true,
            "signal" => usage.signal = true,
            "backup" => usage.backup = true,
            "fullmesh" => usage.fullmesh = true,
            _ => return Err(format!("`{word}` is not a flag of an endpoint")),
        }
        let _ = words.next();
    }
    Ok(usage)
}

/// Parses the value of `set: endpoint`: a path and its flags.
pub fn endpoint(value: &str) -> Result<(u8, EndpointUse), String> {
    let mut words = TokenReader::new(value);
    let path = words.number("a path")?;
    Ok((path, parse_endpoint_flags(&mut words)?))
}

fn parse_outcome(words: &mut TokenReader<'_>) -> Result<CallOutcome, String> {
    if words.peek() != Some("->") {
        return Ok(CallOutcome::Done);
    }
    let _ = words.next();
    let word = words.expect_word("what becomes of it")?;
    Ok(match word {
        "end" => CallOutcome::End,
        "nothing" => CallOutcome::Nothing,
        "error" => CallOutcome::Error(match words.next() {
            None => None,
            Some("reset") => Some(FailureReason::Reset),
            Some("refused") => Some(FailureReason::Refused),
            Some("timeout") => Some(FailureReason::TimedOut),
            Some("unreachable") => Some(FailureReason::Unreachable),
            Some("closed") => Some(FailureReason::Closed),
            Some(word) => return Err(format!("`{word}` is not a reason")),
        }),
        _ => CallOutcome::Bytes(word.parse().map_err(|_| format!("`{word}` is not an outcome"))?),
    })
}

/// Reader of the words of a line.
#[derive(Debug, Clone)]
pub(crate) struct TokenReader<'a> {
    /// Words that are not read yet.
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> TokenReader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { rest: text.split_whitespace().peekable() }
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    pub(crate) fn peek(&mut self) -> Option<&'a str> {
        self.rest.peek().copied()
    }

    pub(crate) fn expect_word(&mut self, expected: &str) -> Result<&'a str, String> {
        self.next().ok_or_else(|| format!("expected {expected}"))
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Result<T, String> {
        let word = self.expect_word(expected)?;
        word.parse().map_err(|_| format!("`{word}` is not {expected}"))
    }
}

#[cfg(test)]
mod tests;
