//! Several programs on several hosts: one after the other, each when the one before is ready.
//!
//! The last one leads: the timeline starts with it, and when it ends, so do the others. It alone has
//! the terminal; the others are in process groups of their own, so that Ctrl-C is the last one's and
//! they can be ended with all that they have started. Nothing waits for ever: a lab in which nobody
//! does more than wait for others ends, and so does one whose server has died.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use towpath_measure::scenario::Scenario;
use towpath_net::Instant;

use super::end::{End, Fate};
use super::output::Printers;
use super::ready::Sockets;
use super::waiting::{self, Processes};
use super::{LabError, Program, Roles, Said, environment};
use crate::clock::Clock;
use crate::namespace::Namespace;
use crate::network::{HostSpace, Network};
use crate::sys::signal::{send_signal, signal_group};
use crate::traffic::Outcome;
use crate::{interrupt, program};

/// How often programs are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How often it is looked whether they do anything.
const GLANCE: Duration = Duration::from_millis(250);
/// A program that has opened no socket by then is not waited for.
const READY: Duration = Duration::from_secs(5);
/// So long nobody does anything but wait for others before the lab ends,
const IDLE: Duration = Duration::from_secs(5);
/// and so long where one has failed.
const IDLE_AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Beyond a round trip, so much time has a program to end by itself when the last one has.
const GRACE: Duration = Duration::from_millis(300);
/// From a polite request to end until it is no request any more.
const POLITE: Duration = Duration::from_secs(2);
/// What was printed before the end is still shown.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The programs of a lab.
#[derive(Debug)]
pub(crate) struct Cast {
    programs: Vec<Program>,
    labels: Vec<String>,
    roles: Roles,
    /// For the environment of every program.
    more: Vec<(String, String)>,
    state: Mutex<State>,
    grace: Duration,
}

#[derive(Debug)]
struct State {
    printers: Printers,
    /// Those that were started before the last one.
    others: Vec<Beside>,
    /// What became of the lab.
    ended: Option<Result<End, LabError>>,
}

/// A program that runs beside the last one.
#[derive(Debug)]
struct Beside {
    /// `None` of one that has gone into the background.
    child: Option<Child>,
    fate: Fate,
}

impl Cast {
    pub(super) fn new(
        programs: Vec<Program>,
        scenario: &Scenario,
        roles: Roles,
        more: Vec<(String, String)>,
    ) -> Self {
        let round_trips = scenario.paths.iter().map(|p| p.up.delay.base + p.down.delay.base);
        let state = State { printers: Printers::new(), others: Vec::new(), ended: None };
        Self {
            labels: labels(&programs, scenario),
            programs,
            roles,
            more,
            state: Mutex::new(state),
            grace: round_trips.max().unwrap_or_default() + GRACE,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts all but the last program, one after the other. Returns the exit status of one that
    /// failed before the next could start, or of an interrupt.
    pub(super) fn begin(
        &self,
        network: &Network,
        say: &mut dyn FnMut(Said<'_>),
    ) -> Result<Option<ExitStatus>, LabError> {
        let others = self.programs.len().saturating_sub(1);
        for (program, label) in self.programs.iter().zip(&self.labels).take(others) {
            let space = network.hosts.get(program.host).ok_or(LabError::Host)?;
            let before = Before::of(space);
            let mut child = self.spawn(network, program, label, false)?;
            let outcome = wait_until_ready(&mut child, space, &before).map_err(program.failed())?;
            let shown = named(program, network);
            let keep = |child, listens, status| {
                let fate = Fate { shown: shown.clone(), listens, status };
                self.state().others.push(Beside { child, fate });
            };
            match outcome {
                Readiness::Ready { listens } => keep(Some(child), listens, None),
                Readiness::Late => {
                    say(Said::Note(&format!(
                        "{shown} has opened no socket for {READY:?}; the next one starts"
                    )));
                    keep(Some(child), false, None);
                }
                Readiness::Background { listens } => keep(None, listens, None),
                Readiness::Ended(status) if status.success() => keep(None, false, Some(status)),
                Readiness::Ended(status) => {
                    say(Said::Note(&format!(
                        "{shown} ended with {status} before the next one could start"
                    )));
                    say(Said::Hint(
                        "programs start in the order of the command line, servers first; write \
                         `|| true` behind a command whose failure does not matter",
                    ));
                    self.end_others();
                    return Ok(Some(status));
                }
                Readiness::Interrupted => {
                    keep(Some(child), false, None);
                    self.end_others();
                    return Ok(Some(ExitStatus::from_raw(libc::SIGINT)));
                }
            }
        }
        Ok(None)
    }

    /// Runs the last program to its end, then ends the others. Blocks.
    pub(crate) fn lead(&self, network: &Network) -> Outcome {
        let ended = self.run_last(network);
        let failure = match &ended {
            Ok(end) => end.failure.clone(),
            Err(error) => Some(error.to_string()),
        };
        self.state().ended = Some(ended);
        self.end_others();
        Outcome { failure, ..Outcome::default() }
    }

    fn run_last(&self, network: &Network) -> Result<End, LabError> {
        let (Some(last), Some(label)) = (self.programs.last(), self.labels.last()) else {
            return Err(LabError::Host);
        };
        if interrupt::seen() {
            return Ok(End::interrupted());
        }
        let space = network.hosts.get(last.host).ok_or(LabError::Host)?;
        let before = Sockets::of(&space.namespace);
        let shown = named(last, network);
        let mut child = self.spawn(network, last, label, true)?;
        let mut course = Course::begin(network);
        let mut ended = None;
        loop {
            if ended.is_none() {
                ended = child.try_wait().map_err(last.failed())?;
            }
            let fates = self.fates();
            if let Some(status) = ended {
                // A server that has gone into the background, and somebody who is to come to it.
                let come = status.success()
                    && fates.iter().any(|fate| !fate.listens && fate.status.is_none())
                    && Sockets::of(&space.namespace).listens_more_than(&before);
                if !come || interrupt::seen() {
                    return Ok(End::with_last(&shown, status, &fates));
                }
            }
            let shell = last.command.is_empty();
            if let Some(end) = course.end(&shown, &fates).filter(|_| !shell) {
                end_with_all_of_it(&mut child, &course.namespaces);
                return Ok(end);
            }
            thread::sleep(if ended.is_some() { GLANCE } else { LOOK });
        }
    }

    /// What has become of the others until now.
    fn fates(&self) -> Vec<Fate> {
        let mut state = self.state();
        let look = |other: &mut Beside| {
            let child = other.child.as_mut().filter(|_| other.fate.status.is_none());
            let ended = child.and_then(|child| child.try_wait().ok().flatten());
            other.fate.status = other.fate.status.or(ended);
            other.fate.clone()
        };
        state.others.iter_mut().map(look).collect()
    }

    /// How the lab ended; what there is to say of it is said.
    pub(super) fn ended(&self, say: &mut dyn FnMut(Said<'_>)) -> Result<ExitStatus, LabError> {
        let ended = self.state().ended.take().unwrap_or(Err(LabError::Host))?;
        if let Some((text, hint)) = &ended.told {
            say(Said::Warning(text));
            say(Said::Hint(hint));
        }
        Ok(ended.status)
    }

    /// Waits a moment for those that end by themselves, asks the others to, and ends the rest.
    fn end_others(&self) {
        let mut state = self.state();
        let others = std::mem::take(&mut state.others);
        let mut others: Vec<_> = others.into_iter().filter_map(|other| other.child).collect();
        wait_for_all(&mut others, self.grace);
        for (signal, patience) in [(libc::SIGTERM, POLITE), (libc::SIGKILL, POLITE)] {
            for child in &others {
                let _ = signal_group(child.id(), signal); // it may have exited
            }
            wait_for_all(&mut others, patience);
        }
        state.printers.finish(LAST_WORDS);
    }

    fn spawn(
        &self,
        network: &Network,
        program: &Program,
        label: &str,
        leads: bool,
    ) -> Result<Child, LabError> {
        let space = network.hosts.get(program.host).ok_or(LabError::Host)?;
        let (name, arguments) = program.words();
        let mut command = Command::new(name);
        command.args(arguments);
        command.envs(environment(&network.scenario, program.host, self.roles));
        command.envs(self.more.iter().map(|(name, value)| (name, value)));
        if !leads {
            command.stdin(Stdio::null()).process_group(0);
        }
        let labelled = self.programs.len() > 1;
        if labelled {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = program::start(&space.namespace, &mut command).map_err(program.failed())?;
        let state = self.state();
        let printed = [
            child.stdout.take().map(|out| {
                let to = || Box::new(io::stdout()) as Box<dyn Write>;
                state.printers.add(label.to_owned(), out, to)
            }),
            child.stderr.take().map(|err| {
                let to = || Box::new(io::stderr()) as Box<dyn Write>;
                state.printers.add(label.to_owned(), err, to)
            }),
        ];
        printed.into_iter().flatten().collect::<io::Result<()>>().map_err(program.failed())?;
        Ok(child)
    }
}

/// Whether anything still happens in a lab.
struct Course<'a> {
    clock: Clock,
    namespaces: Vec<&'a Namespace>,
    next: Instant,
    sent: u64,
    /// Since when nobody has sent anything.
    quiet: Instant,
    /// When a server was found dead.
    dead: Option<Instant>,
}

impl<'a> Course<'a> {
    fn begin(network: &'a Network) -> Self {
        let clock = Clock::start();
        let namespaces = network.hosts.iter().map(|host| &host.namespace).collect();
        Self { clock, namespaces, next: clock.now(), sent: 0, quiet: clock.now(), dead: None }
    }

    /// The end of a lab in which nothing more can happen.
    fn end(&mut self, last: &str, fates: &[Fate]) -> Option<End> {
        let now = self.clock.now();
        if now < self.next {
            return None;
        }
        self.next = now + GLANCE;
        if fates.iter().any(Fate::is_dead_server) {
            let dead = *self.dead.get_or_insert(now);
            if now >= dead + POLITE {
                return End::without_server(last, fates);
            }
        }
        let sent = waiting::sent(&self.namespaces);
        if sent != self.sent {
            (self.sent, self.quiet) = (sent, now);
        }
        let failed = fates.iter().any(|fate| fate.status.is_some_and(|status| !status.success()));
        let patience = if failed { IDLE_AFTER_FAILURE } else { IDLE };
        let idle = now >= self.quiet + patience && waiting::nobody_acts(&self.namespaces);
        idle.then(|| End::idle(last, fates))
    }
}

/// Ends a program of which nothing more is to come, with all that runs on the hosts.
fn end_with_all_of_it(child: &mut Child, namespaces: &[&Namespace]) {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let all = Processes::of_all(namespaces.iter().copied());
        // Where /proc is another's, its numbers are, too.
        let own = std::fs::read_link("/proc/self").ok();
        let ours =
            own.is_some_and(|own| own.as_os_str() == std::process::id().to_string().as_str());
        let ids = all.ids().into_iter().filter_map(|id| id.parse().ok()).filter(|_| ours);
        for id in ids.chain([child.id()]) {
            let _ = send_signal(id, signal); // it may have exited
        }
        let clock = Clock::start();
        let deadline = clock.now() + POLITE;
        while clock.now() < deadline {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

/// A program and its host, for people.
fn named(program: &Program, network: &Network) -> String {
    let host = network.hosts.get(program.host).map_or("?", |host| host.name.as_str());
    format!("`{}` on {host}", program.shown())
}

/// How far a program is.
enum Readiness {
    Ready {
        listens: bool,
    },
    /// It has opened nothing for a while.
    Late,
    /// It has left processes that do its work.
    Background {
        listens: bool,
    },
    Ended(ExitStatus),
    Interrupted,
}

/// What was on a host before a program began.
struct Before {
    sockets: Sockets,
    processes: BTreeSet<String>,
}

impl Before {
    fn of(space: &HostSpace) -> Self {
        let processes = Processes::of(&space.namespace).ids();
        Self { sockets: Sockets::of(&space.namespace), processes }
    }
}

fn wait_until_ready(
    child: &mut Child,
    space: &HostSpace,
    before: &Before,
) -> io::Result<Readiness> {
    let clock = Clock::start();
    let deadline = clock.now() + READY;
    loop {
        // In this order: one that ends now has opened its socket before.
        let ended = child.try_wait()?;
        let sockets = Sockets::of(&space.namespace);
        let opened = sockets.has_more_than(&before.sockets);
        let listens = sockets.listens_more_than(&before.sockets);
        match ended {
            None if opened => return Ok(Readiness::Ready { listens }),
            Some(status) if !status.success() => return Ok(Readiness::Ended(status)),
            Some(_) if listens => return Ok(Readiness::Background { listens }),
            Some(status) => {
                // A daemon's parent may end before the daemon listens.
                let left = Processes::of(&space.namespace).ids();
                if left.is_subset(&before.processes) {
                    return Ok(Readiness::Ended(status));
                }
            }
            None => {}
        }
        if interrupt::seen() {
            return Ok(Readiness::Interrupted);
        }
        if clock.now() >= deadline {
            let background = Readiness::Background { listens };
            return Ok(if ended.is_some() { background } else { Readiness::Late });
        }
        thread::sleep(LOOK);
    }
}

/// Waits until all have ended, but no longer than `patience`; those that have are taken out.
fn wait_for_all(children: &mut Vec<Child>, patience: Duration) {
    let clock = Clock::start();
    let deadline = clock.now() + patience;
    loop {
        // What cannot be waited for is not there.
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if children.is_empty() || clock.now() >= deadline {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// `server | `, with a number where a host has several programs; all of one width.
fn labels(programs: &[Program], scenario: &Scenario) -> Vec<String> {
    let mut names = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let name = scenario.hosts.get(program.host).map_or("?", |host| host.name.as_str());
        let same = |other: &&Program| other.host == program.host;
        let number = programs.iter().take(index + 1).filter(same).count();
        let several = programs.iter().filter(same).count() > 1;
        names.push(if several { format!("{name} {number}") } else { name.to_owned() });
    }
    let width = names.iter().map(String::len).max().unwrap_or_default();
    names.iter().map(|name| format!("{name:<width$} | ")).collect()
}
