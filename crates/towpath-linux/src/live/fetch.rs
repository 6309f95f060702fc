//! How the server's half of a result comes back: over the control connection while it lives, else
//! over any other way that there is. The server keeps it meanwhile.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::live::{FromClient, FromServer, Half, Token};
use towpath_measure::scenario::Transport;
use towpath_net::Instant;

use super::dial::Dialer;
use super::host::interfaces;
use super::socket::Source;
use super::speaker::Speaker;
use crate::clock::Clock;

/// A connection that says nothing for so long is given up: another one may be faster. The server
/// answers within half a second, result or not.
const SILENCE: Duration = Duration::from_millis(1_500);
/// So long for each attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Between two rounds of attempts that were refused at once.
const PAUSE: Duration = Duration::from_millis(100);
/// No result is larger.
const LARGEST_BYTES: u64 = 1 << 30;

/// What is needed to come back to a server.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) token: Token,
    pub(super) transport: Transport,
    /// Where the client was told to start.
    pub(super) source: Source,
    /// Addresses of the server, as far as they are known.
    pub(super) targets: Vec<SocketAddr>,
    pub(super) clock: Clock,
    pub(super) dialer: Dialer,
}

impl Way {
    /// A connection with a preamble.
    pub(super) fn connect(
        &self,
        transport: Transport,
        source: &Source,
        target: SocketAddr,
        patience: Duration,
    ) -> io::Result<Speaker> {
        self.dialer.control(transport, (source, target), self.token, patience)
    }

    /// All ways to the server, the usual one first: every transport from every interface to every
    /// address.
    fn ways(&self) -> Vec<(Transport, Source, SocketAddr)> {
        let mut transports = vec![self.transport];
        transports.extend([Transport::Tcp].iter().filter(|other| **other != self.transport));
        let mut sources = vec![self.source.clone()];
        for one in interfaces().unwrap_or_default() {
            sources.push(Source { address: Some(one.address), interface: Some(one.name) });
        }
        let mut all = Vec::new();
        for source in sources {
            for target in &self.targets {
                let family = |address: std::net::IpAddr| address.is_ipv4() == target.is_ipv4();
                // From the loopback interface nobody gets out; QUIC would wait to find it out.
                let stays =
                    |address: std::net::IpAddr| address.is_loopback() && !target.ip().is_loopback();
                if source.address.is_some_and(|address| !family(address) || stays(address)) {
                    continue;
                }
                all.extend(transports.iter().map(|one| (*one, source.clone(), *target)));
            }
        }
        all
    }
}

/// Fetches one result.
#[derive(Debug)]
pub(super) struct Fetch<'a> {
    way: &'a Way,
    speaker: Option<Speaker>,
    text: Vec<u8>,
    total: Option<u64>,
    /// When the server last said anything.
    heard: Instant,
    /// How often the connection was lost.
    pub(super) lost: u32,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(way: &'a Way, speaker: Option<Speaker>) -> Self {
        let heard = way.clock.now();
        Self { way, speaker, text: Vec::new(), total: None, heard, lost: 0 }
    }

    /// Fetches until all is there. Gives up when the server was silent for `patience`, when it is
    /// later than `deadline`.
    pub(super) fn run(
        mut self,
        patience: Duration,
        deadline: Instant,
    ) -> Result<(Half, u32), String> {
        let mut turn = 0;
        let mut why = "the connection was lost".to_owned();
        loop {
            let now = self.way.clock.now();
            if let Some(half) = self.finished() {
                return half.map(|half| (half, self.lost));
            }
            let silent = now.saturating_since(self.heard);
            if silent > patience || now > deadline {
                let seconds = silent.as_secs();
                return Err(format!("the server was silent for {seconds} s ({why})"));
            }
            match self.speaker.take() {
                Some(mut speaker) => match self.ask(&mut speaker) {
                    Ok(()) => self.speaker = Some(speaker),
                    Err(error) => {
                        self.lost = self.lost.saturating_add(1);
                        why = error.to_string();
                    }
                },
                None => self.reconnect(&mut turn, &mut why),
            }
        }
    }

    fn finished(&mut self) -> Option<Result<Half, String>> {
        self.total.filter(|total| self.text.len() as u64 >= *total)?;
        if let Some(speaker) = self.speaker.take() {
            // It forgets the result by itself, too.
            speaker.take_leave(&FromClient::Bye);
        }
        let text = String::from_utf8_lossy(&self.text);
        let half = Half::from_text(&text);
        Some(half.map_err(|error| format!("what it sent is not understood: {error}")))
    }

    /// Asks for what is missing and takes what comes; an error means that this connection is of no
    /// use any more.
    fn ask(&mut self, speaker: &mut Speaker) -> io::Result<()> {
        speaker.say(&FromClient::Fetch { offset: self.text.len() as u64 })?;
        loop {
            let Some(said) = speaker.hear::<FromServer>(SILENCE)? else {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
            };
            self.heard = self.way.clock.now();
            match said {
                FromServer::Pending => return Ok(()),
                FromServer::Part { offset, total, text } => {
                    if offset != self.text.len() as u64 || total > LARGEST_BYTES {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, "a wrong part"));
                    }
                    self.text.extend_from_slice(text.as_bytes());
                    self.total = Some(total);
                    if self.text.len() as u64 >= total {
                        return Ok(());
                    }
                }
                // Answers to questions that were asked before the traffic.
                FromServer::Clock { .. } | FromServer::Ready => {}
                FromServer::Welcome { .. }
                | FromServer::Accepted { .. }
                | FromServer::Looked(_)
                | FromServer::Refused { .. } => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a wrong word"));
                }
            }
        }
    }

    /// Tries the next way.
    fn reconnect(&mut self, turn: &mut usize, why: &mut String) {
        let ways = self.way.ways();
        let Some((transport, source, target)) = ways.get(*turn % ways.len().max(1)) else {
            "no way leads to it".clone_into(why);
            return;
        };
        *turn += 1;
        let began = self.way.clock.now();
        match self.way.connect(*transport, source, *target, ATTEMPT) {
            Ok(speaker) => self.speaker = Some(speaker),
            Err(error) => {
                *why = error.to_string();
                self.way.clock.sleep_until(began + PAUSE);
            }
        }
    }
}
