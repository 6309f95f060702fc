//! Current values of each link, and fades as steps between them.

use std::time::Duration;

use towpath_net::Rate;
use towpath_net::config::{Delay, DirectionConfig, Loss, Probability, Shaper};

use crate::model::{LinkSide, TimelineChange};

/// Interval between the steps of a fade.
const FADE_STEP: Duration = Duration::from_millis(50);

/// Values of one link direction at some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LinkDirectionState {
    /// `None` for an unlimited rate, or while a trace sets it.
    rate: Option<Rate>,
    delay: Delay,
    loss: Loss,
}

impl LinkDirectionState {
    pub(super) fn new(config: &DirectionConfig) -> Self {
        let rate = match &config.shaper {
            Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
                Some(*rate)
            }
            Shaper::Unlimited => config.delay.rate,
            Shaper::Trace(_) => None,
        };
        Self { rate, delay: config.delay, loss: config.loss }
    }

    /// Returns true if the delay line also enforces the rate (as netem's), so that both change
    /// together.
    pub(super) fn is_netem(&self) -> bool {
        self.delay.rate.is_some()
    }

    fn set_rate(&mut self, rate: Rate) {
        self.rate = Some(rate);
        if self.is_netem() {
            self.delay.rate = Some(rate);
        }
    }
}

/// New values; `None` keeps the old one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct LinkValues {
    pub(super) rate: Option<Rate>,
    pub(super) delay: Option<Duration>,
    pub(super) loss: Option<Loss>,
}

/// Sets the values for one or both directions, and returns the changes.
pub(super) fn set_values(
    link: &mut [LinkDirectionState; 2],
    side: LinkSide,
    values: LinkValues,
) -> Vec<TimelineChange> {
    set_sides(link, side, [values, values])
}

/// Changes values gradually to `target`; returns `(time since the start, change)`.
///
/// The error names the value that cannot fade, and the reason.
pub(super) fn fade(
    link: &mut [LinkDirectionState; 2],
    side: LinkSide,
    target: LinkValues,
    duration: Duration,
) -> Result<Vec<(Duration, TimelineChange)>, &'static str> {
    let [up, down] = *link;
    for (state, is_changed) in [(up, side != LinkSide::Down), (down, side != LinkSide::Up)] {
        if !is_changed {
            continue;
        }
        if target.rate.is_some() && state.rate.is_none() {
            return Err("there is no constant rate to fade from");
        }
        if let Some(target_loss) = target.loss
            && (loss_probability(state.loss).is_none() || loss_probability(target_loss).is_none())
        {
            return Err("only a percentage of loss can fade");
        }
    }
    let mut out = Vec::new();
    let mut elapsed = Duration::ZERO;
    while elapsed < duration {
        elapsed = (elapsed + FADE_STEP).min(duration);
        let progress = (elapsed.as_nanos(), duration.as_nanos());
        let values = [up, down].map(|start| interpolate_values(&start, &target, progress));
        out.extend(set_sides(link, side, values).into_iter().map(|change| (elapsed, change)));
    }
    Ok(out)
}

/// Returns the number of steps of a fade.
pub(super) fn step_count(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(FADE_STEP.as_nanos())
}

fn set_sides(
    link: &mut [LinkDirectionState; 2],
    side: LinkSide,
    values: [LinkValues; 2],
) -> Vec<TimelineChange> {
    let [up, down] = link;
    let [up_values, down_values] = values;
    for (state, values, unaffected_side) in
        [(up, up_values, LinkSide::Down), (down, down_values, LinkSide::Up)]
    {
        if side == unaffected_side {
            continue;
        }
        if let Some(rate) = values.rate {
            state.set_rate(rate);
        }
        state.delay.base = values.delay.unwrap_or(state.delay.base);
        state.loss = values.loss.unwrap_or(state.loss);
    }
    let mut out = Vec::new();
    if let (Some(up), Some(down)) = (up_values.rate, down_values.rate) {
        emit(side, [up, down], TimelineChange::Rate, &mut out);
    }
    let [up, down] = &*link;
    if up_values.delay.is_some() {
        emit(side, [up.delay, down.delay], TimelineChange::Delay, &mut out);
    }
    if up_values.loss.is_some() {
        emit(side, [up.loss, down.loss], TimelineChange::Loss, &mut out);
    }
    out
}

/// Emits one change for both directions if they are equal, else one for each.
fn emit<T: Copy + PartialEq>(
    side: LinkSide,
    [up, down]: [T; 2],
    change: impl Fn(LinkSide, T) -> TimelineChange,
    out: &mut Vec<TimelineChange>,
) {
    match side {
        LinkSide::Both if up == down => out.push(change(LinkSide::Both, up)),
        LinkSide::Both => out.extend([change(LinkSide::Up, up), change(LinkSide::Down, down)]),
        LinkSide::Up => out.push(change(LinkSide::Up, up)),
        LinkSide::Down => out.push(change(LinkSide::Down, down)),
    }
}

fn interpolate_values(
    start: &LinkDirectionState,
    end: &LinkValues,
    progress: (u128, u128),
) -> LinkValues {
    let rate = end.rate.map(|target| {
        let bits = interpolate(start.rate.map_or(0, Rate::as_bps), target.as_bps(), progress);
        Rate::from_bps(bits).unwrap_or(target)
    });
    let delay = end.delay.map(|target| {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(interpolate(nanos(start.delay.base), nanos(target), progress))
    });
    let loss = end.loss.map(|target| {
        let raw = |loss| u64::from(loss_probability(loss).unwrap_or(Probability::NEVER).as_raw());
        let raw = interpolate(raw(start.loss), raw(target), progress);
        match u32::try_from(raw).unwrap_or(u32::MAX) {
            0 => Loss::None,
            raw => Loss::Random(Probability::from_raw(raw)),
        }
    });
    LinkValues { rate, delay, loss }
}

/// Returns the value at `elapsed` of `duration` by linear interpolation, rounded towards the start.
fn interpolate(start: u64, end: u64, (elapsed, duration): (u128, u128)) -> u64 {
    let change = u128::from(start.abs_diff(end)) * elapsed / duration.max(1);
    let difference = u64::try_from(change).unwrap_or(u64::MAX);
    if end >= start { start.saturating_add(difference) } else { start.saturating_sub(difference) }
}

fn loss_probability(loss: Loss) -> Option<Probability> {
    match loss {
        Loss::None => Some(Probability::NEVER),
        Loss::Random(chance) => Some(chance),
        Loss::GilbertElliott { .. } | Loss::Burst { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(up_bps: u64, down_bps: u64) -> [LinkDirectionState; 2] {
        [up_bps, down_bps].map(|bps| LinkDirectionState {
            rate: Rate::from_bps(bps),
            delay: Delay { base: Duration::from_millis(10), ..Delay::default() },
            loss: Loss::None,
        })
    }

    fn to_rate(bps: u64) -> LinkValues {
        LinkValues { rate: Rate::from_bps(bps), ..LinkValues::default() }
    }

    #[test]
    fn a_fade_is_linear_in_steps_and_ends_at_its_target() {
        let mut state = link(40, 40);
        let steps = fade(&mut state, LinkSide::Both, to_rate(10), Duration::from_millis(170));
        let rates: Vec<(u128, u64)> = steps
            .unwrap()
            .iter()
            .map(|(time, change)| {
                let TimelineChange::Rate(LinkSide::Both, rate) = change else {
                    panic!("{change:?}")
                };
                (time.as_millis(), rate.as_bps())
            })
            .collect();
        assert_eq!(rates, [(50, 32), (100, 23), (150, 14), (170, 10)]);
        assert_eq!(state, link(10, 10));
    }

    #[test]
    fn different_directions_fade_separately() {
        let mut state = link(40, 20);
        let steps =
            fade(&mut state, LinkSide::Both, to_rate(10), Duration::from_millis(50)).unwrap();
        // The directions would differ halfway, but are equal at the end.
        assert_eq!(steps.len(), 1);
        let mut state = link(40, 20);
        let steps =
            fade(&mut state, LinkSide::Both, to_rate(10), Duration::from_millis(100)).unwrap();
        assert_eq!(steps.len(), 3);
        let mut state = link(40, 20);
        let up = fade(&mut state, LinkSide::Up, to_rate(10), Duration::from_millis(100)).unwrap();
        assert_eq!(up.len(), 2);
        assert_eq!(state, link(10, 20));
    }

    #[test]
    fn a_key_without_a_value_cannot_fade() {
        let mut state = link(0, 0);
        assert!(fade(&mut state, LinkSide::Both, to_rate(10), FADE_STEP).is_err());
        let burst = Loss::Burst { start: Probability::ALWAYS, length_packets: 1 };
        let target = LinkValues { loss: Some(burst), ..LinkValues::default() };
        assert!(fade(&mut link(1, 1), LinkSide::Both, target, FADE_STEP).is_err());
    }

    #[test]
    fn a_rate_change_reaches_netems_delay_line() {
        let mut state = link(40, 40);
        state[0].delay.rate = Rate::from_bps(40);
        set_values(&mut state, LinkSide::Both, to_rate(10));
        assert_eq!((state[0].delay.rate, state[1].delay.rate), (Rate::from_bps(10), None));
    }
}
