//! The live view. Drawing is a pure function of the state, which makes it testable.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use towpath_host::monitor::{
    DerivedConnection, DerivedSubflow, EventSource, MonitorEvent, MonitoredSubflow, SubflowActivity,
};
use towpath_os::interrupt;

use super::lines::{self, milliseconds, owner, rate, share};
use super::{MonitorPoller, MonitorSample};
use crate::error::CliError;

/// Default time between two polls.
const DEFAULT_INTERVAL: Duration = Duration::from_millis(200);
/// Upper bound of stored events.
const MAX_EVENTS: usize = 500;
/// Terminal width from which the extra columns are shown.
const MIN_WIDE_COLUMNS: u16 = 96;

/// Shows the live view until the user quits or `count` polls are done.
pub(super) fn show(
    poller: &mut MonitorPoller,
    interval: Option<Duration>,
    count: Option<u32>,
) -> Result<std::process::ExitCode, CliError> {
    let mut view = ScreenState::new(poller.monitor.has_events());
    let mut terminal = ratatui::try_init()?;
    let mut run_view = || -> Result<(), CliError> {
        let interval = interval.unwrap_or(DEFAULT_INTERVAL);
        let mut rounds = 0;
        while !interrupt::is_interrupted() && count.is_none_or(|count| rounds < count) {
            rounds += 1;
            view.apply_sample(poller.poll()?);
            terminal.draw(|frame| draw(&view, frame))?;
            let next_poll = poller.clock.now() + interval;
            // Keys are handled immediately, while polls keep their interval.
            loop {
                let until_next_poll = next_poll.saturating_since(poller.clock.now());
                if !event::poll(until_next_poll)? {
                    break;
                }
                if let Event::Key(key) = event::read()?
                    && key.kind != KeyEventKind::Release
                    && view.press(key.code, key.modifiers)
                {
                    return Ok(());
                }
                terminal.draw(|frame| draw(&view, frame))?;
            }
        }
        Ok(())
    };
    let outcome = run_view();
    let restored: io::Result<()> = ratatui::try_restore();
    outcome?;
    restored?;
    Ok(std::process::ExitCode::SUCCESS)
}

/// Draws the view.
///
/// Process and interface names are untrusted, so control characters are replaced everywhere.
fn draw(view: &ScreenState, frame: &mut Frame<'_>) {
    view.draw(frame);
    for cell in &mut frame.buffer_mut().content {
        if cell.symbol().chars().any(towpath_result::format::text::deceives) {
            cell.set_char('\u{fffd}');
        }
    }
}

/// State of the live view.
#[derive(Debug)]
struct ScreenState {
    /// Time of the latest sample, since the monitor's start.
    at: Duration,
    connections: Vec<DerivedConnection>,
    /// Latest events with their times, newest last.
    timeline: VecDeque<(Duration, MonitorEvent)>,
    has_events: bool,
    /// Lines of connections scrolled past the upper edge.
    above: u16,
}

impl ScreenState {
    fn new(has_events: bool) -> Self {
        let (connections, timeline) = (Vec::new(), VecDeque::new());
        Self { at: Duration::ZERO, connections, timeline, has_events, above: 0 }
    }

    fn apply_sample(&mut self, sample: MonitorSample) {
        let MonitorSample { at, connections, timeline: new_events, events: _, ended: _ } = sample;
        (self.at, self.connections) = (at, connections);
        self.timeline.extend(new_events.into_iter().map(|event| (at, event)));
        let outdated = self.timeline.len().saturating_sub(MAX_EVENTS);
        self.timeline.drain(..outdated);
    }

    /// Handles a key. Returns true if it quits the view.
    fn press(&mut self, key: KeyCode, modifiers: KeyModifiers) -> bool {
        if key == KeyCode::Up {
            self.above = self.above.saturating_sub(1);
        } else if key == KeyCode::Down {
            self.above = self.above.saturating_add(1);
        }
        let interrupted = key == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
        interrupted || key == KeyCode::Char('q') || key == KeyCode::Esc
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let events = (area.height / 3).clamp(3, 12);
        let parts = [Constraint::Length(2), Constraint::Min(3), Constraint::Length(events)];
        let [head, body_area, log_area] = Layout::vertical(parts).areas(area);
        frame.render_widget(Paragraph::new(self.head(area.width)), head);
        let rows = self.rows(area.width);
        // Scrolling stops at the last line.
        let max_scroll = (rows.len() as u16).saturating_sub(body_area.height);
        let paragraph = Paragraph::new(rows).scroll((self.above.min(max_scroll), 0));
        frame.render_widget(paragraph, body_area);
        self.log(frame, log_area);
    }

    fn head(&self, width: u16) -> Vec<Line<'static>> {
        let subflow_states = self.connections.iter().flat_map(|derived| &derived.subflows);
        let trying = subflow_states
            .clone()
            .filter(|subflow| subflow.status == SubflowActivity::Trying)
            .count();
        let stale = subflow_states
            .clone()
            .filter(|subflow| subflow.status == SubflowActivity::Stale)
            .count();
        let subflows = subflow_states.count() - trying;
        let (down, up) = self
            .connections
            .iter()
            .fold((0.0, 0.0), |(down, up), seen| (down + seen.down_bps, up + seen.up_bps));
        let left = format!(
            "{}, {}, {trying} trying, {stale} stale   ↓ {} ↑ {} bit/s",
            plural(self.connections.len(), "connection"),
            plural(subflows, "subflow"),
            rate(down),
            rate(up)
        );
        let right = "q quits";
        let gap = usize::from(width).saturating_sub(left.chars().count() + right.len());
        let title = Line::from(vec![
            Span::styled(left, bold()),
            Span::raw(" ".repeat(gap)),
            Span::raw(right),
        ]);
        vec![title, Line::styled(ColumnWidths::new(width).head(), dim())]
    }

    fn rows(&self, width: u16) -> Vec<Line<'static>> {
        if self.connections.is_empty() {
            let text = "no Multipath TCP connection (`towpath exec -- COMMAND` opens some)";
            return vec![Line::raw(text)];
        }
        let columns = ColumnWidths::new(width);
        let mut rows = Vec::new();
        for derived in &self.connections {
            let connection = &derived.connection;
            let text = format!(
                "{}, {}, {} → {}",
                owner(connection),
                lines::subflow_counts(derived),
                connection.local,
                connection.remote
            );
            rows.push(Line::styled(cut(&text, usize::from(width)), bold()));
            for (subflow, derived_subflow) in connection.subflows.iter().zip(&derived.subflows) {
                rows.push(columns.row(subflow, derived_subflow));
                for reason in derived_subflow.why.iter().chain(&lines::limit_text(derived_subflow))
                {
                    let text = format!("    {reason}");
                    rows.push(Line::styled(cut(&text, usize::from(width)), dim()));
                }
            }
        }
        rows
    }

    fn log(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width);
        let title = if self.has_events {
            "── events "
        } else {
            "── events, without the path manager's: they need root "
        };
        let rule = "─".repeat(width.saturating_sub(title.chars().count()));
        let mut rows = vec![Line::styled(format!("{title}{rule}"), dim())];
        let capacity = usize::from(area.height).saturating_sub(1);
        let newest = self.timeline.iter().skip(self.timeline.len().saturating_sub(capacity));
        for (at, event) in newest {
            let mark = if event.source == EventSource::Inferred { "~" } else { " " };
            let seconds = at.as_secs_f64();
            let name = event.source.name();
            let text = format!("{seconds:>8.1} s {mark}{name:<9}{}", event.text);
            rows.push(Line::raw(cut(&text, width)));
        }
        frame.render_widget(Paragraph::new(rows), area);
    }
}

/// Widths of a subflow's columns.
#[derive(Debug, Clone, Copy)]
struct ColumnWidths {
    addresses: usize,
    is_wide: bool,
}

impl ColumnWidths {
    /// Width of mark, status and interface.
    const LEFT_WIDTH: usize = 2 + 12 + 8;
    /// Width of share, rates and round-trip time.
    const RIGHT_WIDTH: usize = 6 + 7 + 7 + 7;
    /// Width of window and retransmissions.
    const EXTRA_WIDTH: usize = 6 + 7;

    fn new(width: u16) -> Self {
        let is_wide = width >= MIN_WIDE_COLUMNS;
        let taken =
            Self::LEFT_WIDTH + Self::RIGHT_WIDTH + if is_wide { Self::EXTRA_WIDTH } else { 0 };
        Self { addresses: usize::from(width).saturating_sub(taken).max(10), is_wide }
    }

    fn head(self) -> String {
        let extra_titles = if self.is_wide { ["CWND", "RETX"] } else { ["", ""] };
        self.line("STATUS", "IF", "LOCAL → REMOTE", ["SHARE", "DOWN", "UP", "SRTT"], extra_titles)
    }

    fn row(self, subflow: &MonitoredSubflow, derived: &DerivedSubflow) -> Line<'static> {
        let interface = derived.interface.as_deref().unwrap_or("?");
        let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
        let pair = format!("{} → {}", local.to_canonical(), remote.to_canonical());
        let texts = [
            share(derived.share),
            rate(derived.down_bps),
            rate(derived.up_bps),
            milliseconds(subflow.srtt_us),
        ];
        let texts = texts.each_ref().map(String::as_str);
        let (window, retransmissions) =
            (subflow.cwnd_packets.to_string(), subflow.retransmissions.to_string());
        let extra_texts = [window.as_str(), retransmissions.as_str()];
        let text = self.line(&lines::status(derived), interface, &pair, texts, extra_texts);
        Line::styled(text, Style::new().fg(colour(derived.status)))
    }

    fn line(
        self,
        status: &str,
        interface: &str,
        addresses: &str,
        [share, down, up, srtt]: [&str; 4],
        [window, retransmissions]: [&str; 2],
    ) -> String {
        let (addresses_width, interface) = (self.addresses, cut(interface, 7));
        let addresses = cut(addresses, addresses_width.saturating_sub(1));
        let left = format!("  {status:<12}{interface:<8}{addresses:<addresses_width$}");
        let right = format!("{share:>6}{down:>7}{up:>7}{srtt:>7}");
        if self.is_wide {
            format!("{left}{right}{window:>6}{retransmissions:>7}")
        } else {
            left + &right
        }
    }
}

/// Shortens a text to at most `width` characters, with a mark for the missing part.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn plural(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Colours only repeat the information in the words.
const fn colour(status: SubflowActivity) -> Color {
    match status {
        SubflowActivity::Active => Color::Green,
        SubflowActivity::Trying => Color::Yellow,
        SubflowActivity::Stale => Color::Red,
        SubflowActivity::Backup => Color::Cyan,
        SubflowActivity::Established => Color::Reset,
        SubflowActivity::Closing => Color::DarkGray,
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

#[cfg(test)]
pub(super) mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use towpath_host::monitor::{
        MonitoredConnection, ObservedLimit, Process, SocketInternals, SubflowCondition,
    };
    use towpath_netlink::TcpState;
    use towpath_result::Part;

    use super::*;

    fn subflow(local: &str, remote: &str, condition: SubflowCondition) -> MonitoredSubflow {
        MonitoredSubflow {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            state: TcpState::Established,
            condition,
            backup: false,
            local_id: Some(0),
            remote_id: Some(0),
            congestion: Some("cubic".to_owned()),
            srtt_us: 12_300,
            cwnd_packets: 42,
            backoff: 0,
            unacked_packets: 0,
            retransmissions: 7,
            bytes_received: 5_000_000,
            bytes_acked: 1_000,
            cookie: 1,
            since_ack: Duration::ZERO,
            since_sent: Duration::ZERO,
            internals: SocketInternals::default(),
        }
    }

    fn connection(token: u32, name: &str, subflows: Vec<MonitoredSubflow>) -> MonitoredConnection {
        MonitoredConnection {
            token,
            state: TcpState::Established,
            fallback: false,
            local: subflows[0].local,
            remote: subflows[0].remote,
            inode: 5,
            uid: 1_000,
            processes: vec![Process { id: 4_711, name: name.to_owned() }],
            bytes_received: 0,
            bytes_acked: 0,
            bytes_reinjected: 0,
            cookie: 1,
            subflows,
            internals: SocketInternals::default(),
        }
    }

    fn derived_subflow(
        status: SubflowActivity,
        why: Option<&str>,
        interface: &str,
        down_bps: f64,
    ) -> DerivedSubflow {
        DerivedSubflow {
            status,
            why: why.map(str::to_owned),
            is_inferred: status == SubflowActivity::Stale,
            interface: Some(interface.to_owned()),
            down_bps,
            up_bps: down_bps / 100.0,
            share: Some(down_bps / 900e6),
            limits: Vec::new(),
        }
    }

    /// Returns a sample with two connections.
    pub(in crate::monitor) fn two_connections() -> MonitorSample {
        let iperf_subflows = vec![
            subflow("172.31.0.133:56420", "172.31.0.218:5201", SubflowCondition::Established),
            subflow("172.31.0.173:58871", "172.31.0.218:5201", SubflowCondition::Silent),
        ];
        let curl_subflows = vec![
            subflow(
                "[2001:db8:1::7]:40000",
                "[2001:db8:ffff:1::80]:443",
                SubflowCondition::Established,
            ),
            subflow("[2001:db8:2::7]:40001", "[2001:db8:ffff:1::80]:443", SubflowCondition::Trying),
        ];
        let stale = "no packet received for 2.3 s, 12 unanswered, 3 timeouts";
        let limit = |part, share| ObservedLimit { part, share, waits_for: None };
        let limits = vec![limit(Part::PeerWindow, 0.8), limit(Part::Application, 0.2)];
        let iperf = DerivedConnection {
            connection: connection(0x26d4_72c7, "iperf3", iperf_subflows),
            subflows: vec![
                DerivedSubflow {
                    limits,
                    ..derived_subflow(SubflowActivity::Active, None, "eth0", 900e6)
                },
                derived_subflow(SubflowActivity::Stale, Some(stale), "wlan0", 0.0),
            ],
            down_bps: 900e6,
            up_bps: 9e6,
        };
        let curl = DerivedConnection {
            connection: connection(7, "curl", curl_subflows),
            subflows: vec![
                derived_subflow(SubflowActivity::Backup, None, "eth0", 0.0),
                derived_subflow(SubflowActivity::Trying, Some("no answer for 0.6 s"), "wlan0", 0.0),
            ],
            down_bps: 0.0,
            up_bps: 0.0,
        };
        let timeline = [
            (
                EventSource::PathManager,
                "SF_ESTABLISHED 172.31.0.173:58871 → 172.31.0.218:5201 [26d472c7]",
            ),
            (EventSource::Link, "wlan0 is down"),
            (EventSource::Inferred, "subflow 172.31.0.173:58871 → 172.31.0.218:5201 is stale"),
        ];
        let timeline =
            timeline.map(|(source, text)| MonitorEvent { source, text: text.to_owned() });
        MonitorSample {
            at: Duration::from_millis(12_340),
            connections: vec![iperf, curl],
            timeline: timeline.into(),
            events: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn render(view: &ScreenState, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_view_fits_a_terminal_of_80_columns() {
        let mut view = ScreenState::new(true);
        view.apply_sample(two_connections());
        insta::assert_snapshot!("screen_80", render(&view, 80, 24));
    }

    #[test]
    fn a_wider_terminal_shows_more() {
        let mut view = ScreenState::new(false);
        view.apply_sample(two_connections());
        insta::assert_snapshot!("screen_100", render(&view, 100, 20));
    }

    #[test]
    fn any_terminal_size_and_scroll_position_can_be_drawn() {
        let mut view = ScreenState::new(false);
        for _ in 0..3 {
            for _ in 0..MAX_EVENTS {
                view.apply_sample(two_connections());
            }
            for (width, height) in [(1, 1), (10, 3), (30, 5), (500, 200)] {
                render(&view, width, height);
            }
            view.press(KeyCode::Down, KeyModifiers::NONE);
        }
        assert!(view.timeline.len() <= MAX_EVENTS);
        let empty = render(&ScreenState::new(true), 80, 24);
        assert!(empty.contains("no Multipath TCP connection"), "{empty}");
    }

    #[test]
    fn the_view_is_complete_without_colours() {
        let mut view = ScreenState::new(true);
        view.apply_sample(two_connections());
        let text = render(&view, 80, 24);
        for word in ["active", "~stale", "backup", "trying", "1 subflow (1 trying)"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn q_escape_and_an_interrupt_quit_the_view() {
        let mut view = ScreenState::new(true);
        assert!(view.press(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(view.press(KeyCode::Esc, KeyModifiers::NONE));
        assert!(view.press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!view.press(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
