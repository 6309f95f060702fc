//! Description of the emulator's timing accuracy in words.

use std::time::Duration;

use crate::EmulatorTiming;
use crate::format;

impl EmulatorTiming {
    /// Describes the lateness of packets and the emulator's processor use, as a sentence without
    /// its full stop.
    #[must_use]
    pub fn describe(&self) -> String {
        let time = |ns: u64| format::time(Duration::from_nanos(ns));
        let lateness_text = format!(
            "packets left the emulated links {} (p50) and {} (p99) after they were due",
            time(self.lateness_p50_ns),
            time(self.lateness_p99_ns),
        );
        let cpu_text = match self.waiting {
            Some(waiting) if waiting.ran_s > 0.0 => format!(
                "the emulator used {:.0} % of a processor, including {:.0} % busy-waiting",
                100.0 * self.emulator_cpu_s / waiting.ran_s,
                100.0 * waiting.awake_s / waiting.ran_s,
            ),
            Some(_) | None => {
                let cpu_time = Duration::try_from_secs_f64(self.emulator_cpu_s).unwrap_or_default();
                format!("the emulator used a processor for {}", format::seconds(cpu_time))
            }
        };
        format!("{lateness_text}; {cpu_text}")
    }

    /// Describes the lateness of wake-ups and the margin planned for them; `None` for older
    /// results.
    #[must_use]
    pub fn describe_wake_ups(&self) -> Option<String> {
        let time = |ns: u64| format::time(Duration::from_nanos(ns));
        let waiting = self.waiting?;
        Some(format!(
            "{} (p50) and {} (p99) late, so that the emulator wanted to be woken {} (p50) and {} \
             (p99) early",
            time(waiting.wake_up_p50_ns),
            time(waiting.wake_up_p99_ns),
            time(waiting.early_p50_ns),
            time(waiting.early_p99_ns),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WakeupTiming;

    #[test]
    fn the_note_reports_packet_lateness_and_its_cpu_cost() {
        let noise = EmulatorTiming {
            lateness_p50_ns: 18_200,
            lateness_p99_ns: 120_000,
            emulator_cpu_s: 1.2,
            waiting: Some(WakeupTiming {
                ran_s: 10.0,
                awake_s: 0.5,
                early_p50_ns: 40_000,
                early_p99_ns: 60_000,
                wake_up_p50_ns: 21_000,
                wake_up_p99_ns: 55_000,
            }),
            ..EmulatorTiming::default()
        };
        assert_eq!(
            noise.describe(),
            "packets left the emulated links 18.2 µs (p50) and 120 µs (p99) after they were due; \
             the emulator used 12 % of a processor, including 5 % busy-waiting"
        );
        let woken = noise.describe_wake_ups();
        assert!(woken.is_some_and(|text| text.starts_with("21 µs (p50) and 55 µs (p99) late")));
    }

    #[test]
    fn an_old_result_reports_its_known_values() {
        let noise = EmulatorTiming { emulator_cpu_s: 1.2, ..EmulatorTiming::default() };
        assert!(noise.describe().ends_with("; the emulator used a processor for 1.20 s"));
        assert_eq!(noise.describe_wake_ups(), None);
    }
}
