//! Comparison of the doctor's reports with the injected faults.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use crate::Result;

/// Report of the doctor, with its duration.
#[derive(Debug, Clone)]
pub(super) struct DoctorRun {
    pub(super) report: Value,
    pub(super) took_ms: u64,
}

/// One situation: the injected faults and the doctor's reports.
#[derive(Debug, Clone)]
pub(super) struct JudgedCase {
    pub(super) name: String,
    pub(super) truth: Value,
    pub(super) before_fix: DoctorRun,
    /// Second report, after its commands were run; `None` without a second run.
    pub(super) after_fix: Option<DoctorRun>,
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

impl DoctorRun {
    fn findings(&self) -> &[Value] {
        list(&self.report, "findings")
    }

    fn verdict(&self) -> &str {
        text(&self.report, "verdict")
    }

    /// Returns the cause of the first finding, or the verdict without findings.
    fn first_cause(&self) -> &str {
        let cause = self.findings().first().map(|finding| text(finding, "cause"));
        cause.unwrap_or_else(|| self.verdict())
    }

    fn area(&self) -> &str {
        let area = self.findings().first().map(|finding| text(finding, "layer"));
        area.unwrap_or("none")
    }

    /// Returns the commands of the first finding that are for this host.
    pub(super) fn own_commands(&self) -> Vec<String> {
        let fix = self.findings().first().map(|finding| list(finding, "fix"));
        let commands = fix.into_iter().flatten().filter_map(Value::as_str);
        commands.filter(|command| !command.contains('#')).map(str::to_owned).collect()
    }
}

impl JudgedCase {
    fn texts(&self, field: &str) -> Vec<&str> {
        list(&self.truth, field).iter().filter_map(Value::as_str).collect()
    }

    fn is_healthy(&self) -> bool {
        self.texts("causes").is_empty()
    }

    fn is_decidable(&self) -> bool {
        self.truth.get("decidable").and_then(Value::as_bool) == Some(true)
    }

    /// Returns true if the doctor reported a fault in a healthy network.
    fn is_false_alarm(&self) -> bool {
        self.is_healthy() && !self.before_fix.findings().is_empty()
    }

    /// Returns true if the doctor reported a faulty network as healthy.
    fn is_missed(&self) -> bool {
        !self.is_healthy() && self.before_fix.first_cause() == "healthy"
    }

    pub(super) fn is_correct(&self) -> bool {
        if self.is_healthy() {
            return !self.is_false_alarm();
        }
        let is_certain = |finding: &Value| text(finding, "confidence") == "certain";
        let first_is_uncertain =
            || self.before_fix.findings().first().is_some_and(|finding| !is_certain(finding));
        self.texts("accepted").contains(&self.before_fix.first_cause())
            || (self.truth.get("all_decidable").and_then(Value::as_bool) == Some(false)
                && first_is_uncertain())
    }

    fn is_correct_area(&self) -> bool {
        self.is_correct() || self.texts("areas").contains(&self.before_fix.area())
    }

    /// Returns true if the first finding is gone after its commands; `None` without a second run.
    fn is_fixed(&self) -> Option<bool> {
        let first_finding = self.before_fix.findings().first()?;
        let second_run = self.after_fix.as_ref()?;
        let is_same = |other: &Value| {
            ["cause", "location"].iter().all(|field| other.get(field) == first_finding.get(field))
        };
        Some(!second_run.findings().iter().any(is_same))
    }

    fn expected(&self) -> String {
        if self.is_healthy() { "healthy".to_owned() } else { self.texts("causes").join(" + ") }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "name": self.name, "expected": self.expected(), "decidable": self.is_decidable(),
            "drawn": text(&self.truth, "drawn"), "named": self.before_fix.first_cause(), "right": self.is_correct(),
            "area": self.is_correct_area(), "took_ms": self.before_fix.took_ms, "cured": self.is_fixed(),
            "report": self.before_fix.report,
            "again": self.after_fix.as_ref().map(|second_run| &second_run.report),
        })
    }
}

/// Prints the matrix of expected and named causes, the wrong reports, and the sums.
pub(super) fn print(cases: &[&JudgedCase], fix: bool, out: &mut dyn Write) -> Result<()> {
    let mut matrix: BTreeMap<(bool, String), BTreeMap<&str, u32>> = BTreeMap::new();
    for case in cases {
        let row = matrix.entry((case.is_decidable(), case.expected())).or_default();
        *row.entry(case.before_fix.first_cause()).or_default() += 1;
    }
    for (decidable, title) in [(true, "can be decided"), (false, "cannot be decided")] {
        writeln!(out, "{title} at the client\n")?;
        for ((_, expected), row) in
            matrix.iter().filter(|((is_decidable, _), _)| *is_decidable == decidable)
        {
            let named_causes: Vec<_> =
                row.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(out, "  {expected:<42} {}", named_causes.join(", "))?;
        }
        writeln!(out)?;
    }
    let wrong_cases: Vec<_> = cases.iter().filter(|case| !case.is_correct()).collect();
    for case in &wrong_cases {
        let drawn = text(&case.truth, "drawn");
        writeln!(out, "{}: {drawn}: named {}", case.name, case.before_fix.first_cause())?;
    }
    if !wrong_cases.is_empty() {
        writeln!(out)?;
    }
    print_sums(cases, fix, out)
}

fn print_sums(cases: &[&JudgedCase], fix: bool, out: &mut dyn Write) -> Result<()> {
    let count = |predicate: &dyn Fn(&JudgedCase) -> bool| {
        cases.iter().filter(|case| predicate(case)).count()
    };
    let share = |part: usize, total: usize| {
        let percent = if total == 0 { 0.0 } else { 100.0 * part as f64 / total as f64 };
        format!("{part} of {total} ({percent:.0} %)")
    };
    let is_decidable_fault = |case: &JudgedCase| !case.is_healthy() && case.is_decidable();
    let decidable_count = count(&is_decidable_fault);
    let correct_count = count(&|case| is_decidable_fault(case) && case.is_correct());
    let correct_area_count = count(&|case| is_decidable_fault(case) && case.is_correct_area());
    let undecidable_count = count(&|case| !case.is_healthy() && !case.is_decidable());
    let honest_count =
        count(&|case| !case.is_healthy() && !case.is_decidable() && case.is_correct());
    let healthy_count = count(&JudgedCase::is_healthy);
    let seen_healthy_count =
        count(&|case| case.is_healthy() && case.before_fix.verdict() == "healthy");
    writeln!(out, "cause named first:          {}", share(correct_count, decidable_count))?;
    writeln!(out, "right area:                 {}", share(correct_area_count, decidable_count))?;
    writeln!(out, "cannot be decided, honest:  {}", share(honest_count, undecidable_count))?;
    writeln!(out, "\"healthy\" and is not:       {}", count(&JudgedCase::is_missed))?;
    writeln!(
        out,
        "healthy, false alarms:      {}",
        share(count(&JudgedCase::is_false_alarm), healthy_count)
    )?;
    writeln!(out, "healthy, seen to be:        {}", share(seen_healthy_count, healthy_count))?;
    let slowest = cases.iter().map(|case| case.before_fix.took_ms).max().unwrap_or_default();
    writeln!(out, "slowest:                    {slowest} ms")?;
    if fix {
        let fixed_runs = count(&|case| case.is_fixed().is_some());
        let cured_count = count(&|case| case.is_fixed() == Some(true));
        writeln!(out, "commands that cured:        {}", share(cured_count, fixed_runs))?;
        for case in cases.iter().filter(|case| case.is_fixed() == Some(false)) {
            writeln!(out, "  not cured: {}: {}", case.name, case.before_fix.first_cause())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged_case(
        causes: &[&str],
        accepted: &[&str],
        verdict: &str,
        findings: &Value,
    ) -> JudgedCase {
        let truth = json!({
            "causes": causes, "accepted": accepted, "areas": ["path"], "decidable": true,
            "drawn": "as drawn",
        });
        let report = json!({"verdict": verdict, "findings": findings});
        let before_fix = DoctorRun { report, took_ms: 1_000 };
        JudgedCase { name: "random-1-1".to_owned(), truth, before_fix, after_fix: None }
    }

    #[test]
    fn a_cause_a_related_cause_and_a_false_alarm_are_distinguished() {
        let finding = |cause: &str, layer: &str| json!([{"cause": cause, "layer": layer}]);
        let correct = judged_case(&["x"], &["x"], "impaired", &finding("x", "path"));
        assert!(correct.is_correct() && correct.is_correct_area() && !correct.is_missed());
        let same_layer = judged_case(&["x"], &["x"], "impaired", &finding("y", "path"));
        assert!(!same_layer.is_correct() && same_layer.is_correct_area());
        let other_layer = judged_case(&["x"], &["x"], "impaired", &finding("y", "kernel"));
        assert!(!other_layer.is_correct_area());
        let missed = judged_case(&["x"], &["x"], "healthy", &json!([]));
        assert!(!missed.is_correct() && missed.is_missed());
        let false_alarm = judged_case(&[], &["healthy"], "impaired", &finding("x", "path"));
        assert!(!false_alarm.is_correct() && false_alarm.is_false_alarm());
        let not_judged = judged_case(&[], &["healthy"], "undetermined", &json!([]));
        assert!(not_judged.is_correct() && !not_judged.is_false_alarm());
    }

    #[test]
    fn only_commands_for_this_host_are_carried_out() {
        let finding = json!([{"cause": "x", "location": "here", "layer": "path", "fix": ["a", "b   # on the other host"]}]);
        let mut case = judged_case(&["x"], &["x"], "impaired", &finding);
        assert_eq!(case.before_fix.own_commands(), ["a"]);
        assert_eq!(case.is_fixed(), None);
        let second_run =
            |findings| Some(DoctorRun { report: json!({"findings": findings}), took_ms: 1 });
        case.after_fix = second_run(finding);
        assert_eq!(case.is_fixed(), Some(false));
        case.after_fix = second_run(json!([]));
        assert_eq!(case.is_fixed(), Some(true));
    }
}
