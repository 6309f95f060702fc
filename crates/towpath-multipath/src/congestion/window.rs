//! Common rules of all window-based controls: slow start (RFC 5681 §3.1, RFC 9406), validation
//! (RFC 7661), halving, timeouts, undo, restart after idle time.
//!
//! A control is a [`Coupling`] within these rules: the window growth in congestion avoidance, and
//! the window after loss.

use std::fmt;
use std::time::Duration;

use towpath_net::Instant;

use super::hystart::{HyStart, HyStartRule, LinuxHyStart, SlowStartMode};
use super::{AckSample, CongestionConfig, CongestionControl, Sibling};
use crate::path::PathId;

/// A path and its siblings, which a coupled control considers together.
#[derive(Debug, Clone, Copy)]
pub struct CoupledPaths<'a> {
    /// The path itself, with its current window.
    pub own: Sibling,
    siblings: &'a [Sibling],
}

impl<'a> CoupledPaths<'a> {
    /// Creates the view of `own` among `siblings`; an entry of the same path there is outdated and
    /// ignored.
    pub fn new(own: Sibling, siblings: &'a [Sibling]) -> Self {
        Self { own, siblings }
    }

    /// Returns the path itself, then all others.
    pub fn iter(self) -> impl Iterator<Item = Sibling> + 'a {
        let others = self.siblings.iter().filter(move |other| other.id != self.own.id);
        std::iter::once(self.own).chain(others.copied())
    }
}

impl Sibling {
    /// Returns the window in bytes, never 0: formulas divide by it.
    pub(super) fn window(&self) -> f64 {
        self.cwnd_bytes.max(1) as f64
    }

    /// Returns the packet size in bytes, never 0.
    pub(super) fn packet(&self) -> f64 {
        f64::from(self.mss_bytes.max(1))
    }

    /// Returns the smoothed round-trip time in seconds, at least 1 µs.
    pub(super) fn rtt(&self) -> f64 {
        self.srtt.as_secs_f64().max(1e-6)
    }
}

/// Congestion window and slow start threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CwndState {
    /// Congestion window in bytes.
    pub cwnd: f64,
    /// Slow start threshold in bytes.
    pub ssthresh: f64,
}

/// Algorithm of one control: growth in congestion avoidance and the decrease after loss. Amounts
/// are bytes. Only `+ - * / sqrt` are used, so that every machine computes the same.
pub trait Coupling: Clone + fmt::Debug + Send {
    /// Name used in scenarios.
    const NAME: &'static str;
    /// True if the control considers the other paths.
    const COUPLED: bool = false;
    /// True if Linux ends this control's slow start early ([`HyStartRule::Linux`]).
    const LINUX_HYSTART: bool = false;

    /// Returns the bytes by which the window grows for `ack.acked_bytes` in congestion avoidance;
    /// OLIA's may be negative.
    fn increase(&mut self, group: CoupledPaths<'_>, ack: &AckSample) -> f64;

    /// Returns the window after loss or an ECN mark.
    fn decrease(&mut self, now: Instant, group: CoupledPaths<'_>) -> f64 {
        let _ = now;
        group.own.window() / 2.0
    }

    /// Adjusts both windows by delay, for controls that use it. Called for every acknowledgement
    /// outside recovery.
    fn on_delay(
        &mut self,
        windows: CwndState,
        group: CoupledPaths<'_>,
        ack: &AckSample,
    ) -> CwndState {
        let _ = (group, ack);
        windows
    }

    /// Clears state after a timeout or a penalty, which set threshold and window themselves.
    fn reset(&mut self) {}

    /// Records that the window could not grow until `now`, because the application left part of it
    /// unused.
    fn on_unused(&mut self, now: Instant) {
        let _ = now;
    }

    /// Records that nothing was sent for `idle`.
    fn on_idle(&mut self, idle: Duration) {
        let _ = idle;
    }

    /// Records that sending resumes with nothing in flight after `idle`.
    fn on_start(&mut self, idle: Duration) {
        let _ = idle;
    }

    /// Restores the state `before` the last loss, which was spurious.
    fn undo(&mut self, before: Self) {
        *self = before;
    }
}

/// State before a congestion event, restored if the event was spurious.
#[derive(Debug, Clone)]
struct UndoState<C> {
    cwnd: u64,
    ssthresh: u64,
    between_losses: (u64, u64),
    coupling: C,
}

/// A congestion control: the common rules around a [`Coupling`].
#[derive(Debug, Clone)]
pub struct WindowBased<C> {
    coupling: C,
    mss: u64,
    initial_cwnd: u64,
    cwnd: u64,
    /// Growth of the window below one byte, not yet included in `cwnd`.
    fraction: f64,
    ssthresh: u64,
    hystart: HyStartState,
    /// See [`Sibling::between_losses`].
    between_losses: (u64, u64),
    srtt: Duration,
    undo_state: Option<UndoState<C>>,
}

/// Detector that may end slow start early.
#[derive(Debug, Clone, Copy)]
enum HyStartState {
    Off,
    Rfc9406(HyStart),
    Linux(LinuxHyStart),
    /// Linux's detector has ended slow start: inactive until a timeout.
    LinuxEnded,
}

impl HyStartState {
    fn new<C: Coupling>(rule: HyStartRule) -> Self {
        match rule {
            HyStartRule::Rfc9406 => Self::Rfc9406(HyStart::default()),
            HyStartRule::Linux if C::LINUX_HYSTART => Self::Linux(LinuxHyStart::default()),
            HyStartRule::Linux | HyStartRule::Off => Self::Off,
        }
    }
}

impl<C: Coupling> WindowBased<C> {
    /// Creates a control at the start of a path.
    pub fn new(start: CongestionConfig, coupling: C) -> Self {
        let mss = u64::from(start.mss_bytes.max(1));
        let initial_cwnd = mss * u64::from(start.initial_packets.max(1));
        Self {
            coupling,
            mss,
            initial_cwnd,
            cwnd: initial_cwnd,
            fraction: 0.0,
            ssthresh: u64::MAX,
            hystart: HyStartState::new::<C>(start.hystart),
            between_losses: (0, 0),
            srtt: Duration::ZERO,
            undo_state: None,
        }
    }

    fn own_view(&self, id: PathId, group: &[Sibling]) -> Sibling {
        let listed_sibling = group.iter().find(|sibling| sibling.id == id);
        Sibling {
            id,
            cwnd_bytes: self.cwnd,
            srtt: if self.srtt.is_zero() {
                listed_sibling.map_or(self.srtt, |s| s.srtt)
            } else {
                self.srtt
            },
            between_losses: self.between_losses,
            mss_bytes: u32::try_from(self.mss).unwrap_or(u32::MAX),
            slow_start: self.in_slow_start(),
        }
    }

    fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window up to the threshold; returns the acknowledged bytes that remain for
    /// congestion avoidance.
    fn slow_start(&mut self, sample: &AckSample) -> u64 {
        let acked = sample.acked_bytes;
        let mode = match &mut self.hystart {
            HyStartState::Rfc9406(hystart) => hystart.on_ack(sample),
            HyStartState::Off | HyStartState::Linux(_) | HyStartState::LinuxEnded => {
                SlowStartMode::Exponential
            }
        };
        let growth = match mode {
            SlowStartMode::Exponential => acked,
            SlowStartMode::Conservative => acked / HyStart::CSS_GROWTH_DIVISOR,
            SlowStartMode::Exit => {
                // RFC 9406 §4.3: HyStart++ applies to the first slow start only.
                self.hystart = HyStartState::Off;
                self.ssthresh = self.cwnd;
                return acked;
            }
        };
        let growth = growth.min(self.ssthresh.saturating_sub(self.cwnd));
        self.cwnd = self.cwnd.saturating_add(growth);
        // Only the bytes that grew the window up to the threshold are used up.
        if self.in_slow_start() { 0 } else { acked.saturating_sub(growth) }
    }

    /// Passes each acknowledgement to Linux's detector, even if the window does not grow.
    fn run_linux_hystart(&mut self, sample: &AckSample) {
        let slow_start = self.in_slow_start();
        if let HyStartState::Linux(hystart) = &mut self.hystart
            && slow_start
            && hystart.ends(sample, self.cwnd, self.mss)
        {
            self.hystart = HyStartState::LinuxEnded;
            self.ssthresh = self.cwnd;
        }
    }

    fn avoid_congestion(&mut self, ack: &AckSample, id: PathId, group: &[Sibling]) {
        let own = self.own_view(id, group);
        let growth = self.coupling.increase(CoupledPaths::new(own, group), ack);
        let total = self.fraction + growth;
        let whole_bytes = total.floor();
        self.fraction = total - whole_bytes;
        self.cwnd = self.cwnd.saturating_add_signed(whole_bytes as i64).max(self.mss);
    }

    fn save_undo_state(&mut self) {
        self.undo_state = Some(UndoState {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            between_losses: self.between_losses,
            coupling: self.coupling.clone(),
        });
    }

    fn on_loss(&mut self) {
        self.between_losses = (0, self.between_losses.0);
        self.fraction = 0.0;
        if matches!(self.hystart, HyStartState::Rfc9406(_)) {
            self.hystart = HyStartState::Off;
        }
    }

    /// Sets window and threshold. A window is never below one packet, a threshold never below two
    /// (RFC 5681 §3.1).
    fn set_windows(&mut self, windows: CwndState) {
        self.cwnd = (windows.cwnd as u64).max(self.mss);
        self.ssthresh = (windows.ssthresh as u64).max(2 * self.mss);
        self.fraction = 0.0;
    }
}

impl<C: Coupling> CongestionControl for WindowBased<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn cwnd_bytes(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh_bytes(&self) -> u64 {
        self.ssthresh
    }

    fn on_ack(&mut self, sample: &AckSample, own: PathId, group: &[Sibling]) {
        self.srtt = sample.srtt;
        self.between_losses.0 = self.between_losses.0.saturating_add(sample.acked_bytes);
        if sample.in_recovery {
            return;
        }
        let paths = CoupledPaths::new(self.own_view(own, group), group);
        let old_windows = CwndState { cwnd: self.cwnd as f64, ssthresh: self.ssthresh as f64 };
        let new_windows = self.coupling.on_delay(old_windows, paths, sample);
        if new_windows != old_windows {
            self.set_windows(new_windows);
        }
        self.run_linux_hystart(sample);
        if !sample.cwnd_limited {
            // RFC 7661 §4.3: an unused window gives no evidence about the network.
            self.coupling.on_unused(sample.now);
            return;
        }
        let remaining_bytes =
            if self.in_slow_start() { self.slow_start(sample) } else { sample.acked_bytes };
        if remaining_bytes > 0 {
            let ack = AckSample { acked_bytes: remaining_bytes, ..*sample };
            self.avoid_congestion(&ack, own, group);
        }
    }

    fn on_congestion(&mut self, now: Instant, _: u64, own: PathId, group: &[Sibling]) {
        self.save_undo_state();
        let paths = CoupledPaths::new(self.own_view(own, group), group);
        let reduced_cwnd = self.coupling.decrease(now, paths).min(self.cwnd as f64);
        // RFC 5681 §3.1 halves the bytes in flight, RFC 9438 §4.6 and Linux the window. The two are
        // the same here, because the window only grows while it is used.
        self.ssthresh = (reduced_cwnd as u64).max(2 * self.mss);
        self.cwnd = self.ssthresh;
        self.on_loss();
    }

    fn on_recovered(&mut self, _: Instant, cwnd_bytes: u64) {
        self.cwnd = cwnd_bytes.max(self.mss);
        self.fraction = 0.0;
    }

    fn on_timeout(&mut self, now: Instant, _: u64) {
        self.save_undo_state();
        let lone_path = CoupledPaths::new(self.own_view(PathId(0), &[]), &[]);
        let reduced_cwnd = self.coupling.decrease(now, lone_path).min(self.cwnd as f64);
        self.ssthresh = (reduced_cwnd as u64).max(2 * self.mss);
        self.cwnd = self.mss;
        self.on_loss();
        self.on_further_timeout();
    }

    fn on_further_timeout(&mut self) {
        self.coupling.reset();
        if matches!(self.hystart, HyStartState::Linux(_) | HyStartState::LinuxEnded) {
            self.hystart = HyStartState::Linux(LinuxHyStart::default());
        }
    }

    fn undo(&mut self, _: Instant) {
        if let Some(undo_state) = self.undo_state.take() {
            // Acknowledgements in the meantime may have opened the window further.
            self.cwnd = self.cwnd.max(undo_state.cwnd);
            self.ssthresh = undo_state.ssthresh.max(2 * self.mss);
            self.coupling.undo(undo_state.coupling);
            let since_last_loss = undo_state.between_losses.0.saturating_add(self.between_losses.0);
            self.between_losses = (since_last_loss, undo_state.between_losses.1);
        }
    }

    fn on_idle(&mut self, _: Instant, idle: Duration, rto: Duration) {
        if rto.is_zero() || idle < rto {
            return;
        }
        // RFC 2861 §3.2: halve for each timeout that passed, not below the restart window of
        // RFC 5681 §4.1. The threshold remembers the path's capacity.
        if self.ssthresh != u64::MAX {
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
        }
        let halvings = (idle.as_nanos() / rto.as_nanos()).min(63) as u32;
        let floor = self.initial_cwnd.min(self.cwnd);
        self.cwnd = (self.cwnd >> halvings).max(floor);
        self.fraction = 0.0;
        self.coupling.on_idle(idle);
    }

    fn on_start(&mut self, idle: Duration) {
        self.coupling.on_start(idle);
    }

    fn penalise(&mut self, _: Instant, ends_slow_start: bool) {
        let slow_start = self.in_slow_start();
        self.cwnd = (self.cwnd / 2).max(self.mss);
        if ends_slow_start {
            self.ssthresh = self.cwnd.max(2 * self.mss);
        } else if !slow_start {
            self.ssthresh = (self.ssthresh / 2).max(2 * self.mss);
        }
        self.fraction = 0.0;
        self.coupling.reset();
    }

    fn set_mss(&mut self, mss_bytes: u32) {
        let mss = u64::from(mss_bytes.max(1));
        let initial_cwnd = self.initial_cwnd / self.mss * mss;
        if self.cwnd == self.initial_cwnd {
            // No sample yet: ten packets of the new size (RFC 6928 §2).
            self.cwnd = initial_cwnd;
        } else if mss < self.mss {
            // RFC 5681 §3.1: as many packets as before, or smaller ones would leave in a burst.
            let scaled = u128::from(self.cwnd) * u128::from(mss) / u128::from(self.mss);
            self.cwnd = u64::try_from(scaled).unwrap_or(self.cwnd);
        }
        self.initial_cwnd = initial_cwnd;
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
        self.ssthresh = self.ssthresh.max(2 * mss);
    }

    fn between_losses(&self) -> (u64, u64) {
        self.between_losses
    }

    fn is_coupled(&self) -> bool {
        C::COUPLED
    }
}
