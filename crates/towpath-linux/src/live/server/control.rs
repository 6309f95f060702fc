//! One control connection of a server, to its end.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_measure::live::secret::Challenge;
use towpath_measure::live::{Act, Control, FromClient, FromServer, Plan, Refusal, Token};
use towpath_measure::scenario::Scenario;
use towpath_net::Instant;

use super::course::Course;
use super::{NAP, Opened, ServerSaid, Shared};
use crate::clock::Clock;
use crate::live::budget::{self, Allowed, Seat, Source};
use crate::live::random;
use crate::live::speaker::Speaker;
use crate::live::test::{Attendance, Test};
use crate::pace::Pace;
use crate::purse::Way;
use crate::traffic::is_quic;

/// Bytes of a result in one message: they fit however many of them JSON escapes.
const PART_BYTES: usize = 24 * 1024;
/// A client that asks for a result before it is there waits so long for an answer.
const LONG_POLL: Duration = Duration::from_millis(500);
/// Longest time from a plan's last word to its traffic.
const LATEST_BEGIN: Duration = Duration::from_secs(30);
/// A client that does not fetch its result for so long must connect again.
const IDLE: Duration = Duration::from_secs(30);
/// Sockets hold no more than of so long, where a rate is limited, but at least so many bytes.
const BUFFERED: Duration = Duration::from_millis(250);
const LEAST_BUFFER: u64 = 64 * 1024;
/// Who has no test after so long must connect again.
const NEWCOMER: Duration = Duration::from_secs(30);
/// How long a place may take to become free that somebody loses.
const CLEARING: Duration = Duration::from_secs(3);

impl Shared {
    /// One control connection to its end.
    pub(super) fn control(
        self: &Arc<Self>,
        (mut speaker, origin): Opened,
        (seat, attending): (&Seat, Option<Attendance>),
        token: Option<Token>,
    ) -> io::Result<()> {
        let secret = self.config.secret.clone();
        let quic = self.has_udp(origin.port);
        let datagrams = quic && secret.is_none();
        let control = Control::new(token, secret, Challenge(random()?));
        let control = control
            .telling(origin.seen, datagrams, quic)
            .bound_to(speaker.binding())
            .open_to_strangers(self.config.tells_strangers);
        let source = Source::of_peer(origin.peer);
        let allowed = self.budget.allowed(source);
        let mut visit =
            Visit { control, seat, attending, source, allowed, peer: origin.peer, paid: (0, 0) };
        let result = self.converse(&mut visit, &mut speaker);
        // A test that has begun goes on without its client, who may come back for the result.
        if let Some(token) = visit.control.unbegun() {
            self.tests.forget(token);
        }
        if let Some(attending) = &mut visit.attending
            && result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            attending.is_lost();
        }
        drop(visit);
        speaker.close();
        result
    }

    fn converse(self: &Arc<Self>, visit: &mut Visit<'_>, speaker: &mut Speaker) -> io::Result<()> {
        let limits = &self.config.limits;
        let came = self.clock.now();
        let mut heard = came;
        // Whether the client still has to be told that its connections are there.
        let mut announced = false;
        loop {
            visit.pay(self.clock, speaker);
            let waiting = visit.control.unbegun().filter(|_| !announced);
            let message =
                speaker.hear::<FromClient>(if waiting.is_some() { NAP } else { LONG_POLL });
            let message = message?;
            let now = self.clock.now();
            let has_none = visit.attending.is_none();
            if has_none && now.saturating_since(came) > NEWCOMER {
                return Ok(());
            }
            let Some(message) = message else {
                if let Some(test) = waiting.and_then(|token| self.tests.find(token))
                    && test.is_complete(Duration::ZERO)
                {
                    announced = true;
                    speaker.say(&FromServer::Ready)?;
                }
                let silent = now.saturating_since(heard);
                let idle = visit.control.running().is_some_and(|token| self.is_idle(token));
                if silent > visit.control.patience(limits)
                    || (idle && silent > IDLE)
                    || self.closing.load(Ordering::Acquire)
                {
                    return Ok(());
                }
                continue;
            };
            heard = now;
            for act in self.acts(&mut visit.control, message, visit.peer) {
                if let Act::Close = act {
                    return Ok(());
                }
                self.act(act, visit, speaker)?;
            }
        }
    }

    fn act(
        self: &Arc<Self>,
        act: Act,
        visit: &mut Visit<'_>,
        speaker: &mut Speaker,
    ) -> io::Result<()> {
        match act {
            Act::Say(message) => speaker.say(&message)?,
            Act::TellTime { client_ns } => {
                let server_ns = self.clock.now().as_nanos();
                speaker.say(&FromServer::Clock { client_ns, server_ns })?;
            }
            Act::Admit(plan) => self.admit(visit, speaker, *plan)?,
            Act::Look { port, whole } => {
                let asker = visit.peer.map(|peer| peer.ip());
                speaker.say(&self.look(port, whole, asker))?;
            }
            // `Self::acts` has taken care of it.
            Act::WrongSecret => {}
            Act::Begin(token, at_ns) => self.begin(token, at_ns, visit.peer),
            Act::Stop(token) => self.tests.find(token).iter().for_each(|test| test.stop()),
            Act::End(token, at_ns) => {
                let at = Instant::from_nanos(at_ns);
                self.tests.find(token).iter().for_each(|test| test.end_by(at));
            }
            Act::Deliver(token, offset) => self.deliver(visit, speaker, (token, offset))?,
            Act::Forget(token) => {
                self.tests.forget(token);
                self.fetched.store(true, Ordering::Release);
            }
            Act::Close => {}
        }
        Ok(())
    }

    /// Whether nothing happens any more for which a client would keep a connection.
    fn is_idle(&self, token: Token) -> bool {
        self.tests.find(token).is_none_or(|test| test.result(Duration::ZERO).is_some())
    }

    fn admit(
        &self,
        visit: &mut Visit<'_>,
        speaker: &mut Speaker,
        (plan, scenario): (Plan, Scenario),
    ) -> io::Result<()> {
        if is_quic(plan.transport) && self.udp.get().is_none_or(BTreeSet::is_empty) {
            let refusal = Refusal::new(
                format!("it does not speak {}, UDP was not free", plan.transport),
                "use --transport tcp,mptcp",
            );
            speaker.say(&FromServer::from(refusal))?;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let token = Token(random()?);
        match self.place(token.name(), (plan, scenario), visit) {
            Ok(test) => {
                let (attending, _) = test.attend(self.clock);
                visit.attending = Some(attending);
                visit.seat.keep();
                speaker.say(&visit.control.admitted(token))
            }
            Err(refusal) => {
                speaker.say(&FromServer::from(refusal))?;
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    /// A place for a test; one that somebody has to give up first is waited for.
    fn place(
        &self,
        token: Token,
        (mut plan, scenario): (Plan, Scenario),
        visit: &Visit<'_>,
    ) -> Result<Arc<Test>, Refusal> {
        let limits = &self.config.limits;
        if let Some(rate) = limits.rate {
            // What the kernel takes in beyond what is read would have moved, too.
            let most = rate.bytes_in(BUFFERED).clamp(LEAST_BUFFER, u32::MAX.into()) as u32;
            let asked = plan.settings.window_bytes.unwrap_or(most);
            plan.settings.window_bytes = Some(asked.min(most));
        }
        let deadline = self.clock.now() + CLEARING;
        loop {
            let now = self.clock.now();
            let whole = (plan.clone(), scenario.clone());
            let owner = (visit.source, visit.allowed.all.clone());
            if let Some(test) = self.tests.admit(token, whole, owner, (limits, now))? {
                return Ok(test);
            }
            if now > deadline {
                return Err(Refusal::new("it is busy", "try again later"));
            }
            self.clock.sleep_until(now + NAP);
        }
    }

    fn begin(self: &Arc<Self>, token: Token, at_ns: u64, client: Option<SocketAddr>) {
        let Some(test) = self.tests.find(token) else { return };
        let now = self.clock.now();
        let zero = Instant::from_nanos(at_ns).max(now).min(now + LATEST_BEGIN);
        let pace = Arc::new(Pace::new(self.clock, zero).paid(Arc::clone(&test.purse)));
        let Some(streams) = test.start(&pace) else { return };
        let flows = test.scenario.flows.iter();
        let patterns = flows.map(|flow| flow.pattern.name()).collect();
        self.tell(ServerSaid::Begun { client, transport: test.plan.transport, patterns });
        let course = Course::new(self, test, client);
        // Without a thread it ends at once, and the client hears why.
        let _ = budget::start("test", move || course.run(&pace, streams));
    }

    fn deliver(
        &self,
        visit: &mut Visit<'_>,
        speaker: &mut Speaker,
        (token, offset): (Token, u64),
    ) -> io::Result<()> {
        let Some(test) = self.tests.find(token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let Some(result) = test.result(LONG_POLL) else {
            return speaker.say(&FromServer::Pending);
        };
        let total = result.len() as u64;
        let mut place = usize::try_from(offset).unwrap_or(usize::MAX);
        // A length of nothing says that all is there.
        loop {
            let Some(rest) = result.get(place..) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let mut length = rest.len().min(PART_BYTES);
            while !rest.is_char_boundary(length) {
                length -= 1;
            }
            if !test.hand_over(length as u64, total) {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            let part = rest.get(..length).unwrap_or_default().to_owned();
            speaker.say(&FromServer::Part { offset: place as u64, total, text: part })?;
            visit.pay(self.clock, speaker);
            place += length;
            if place >= result.len() {
                return Ok(());
            }
        }
    }
}

/// A control connection while it is there.
struct Visit<'a> {
    control: Control,
    seat: &'a Seat,
    /// Of which test it is, once it has one.
    attending: Option<Attendance>,
    source: Source,
    allowed: Arc<Allowed>,
    peer: Option<SocketAddr>,
    /// Bytes that were read and written before.
    paid: (u64, u64),
}

impl Visit<'_> {
    /// Pays for what was said since the last time.
    fn pay(&mut self, clock: Clock, speaker: &Speaker) {
        let (read, written) = speaker.moved_bytes();
        let (read_before, written_before) = self.paid;
        self.paid = (read, written);
        self.allowed.pay(clock, Way::In, read - read_before);
        self.allowed.pay(clock, Way::Out, written - written_before);
    }
}
