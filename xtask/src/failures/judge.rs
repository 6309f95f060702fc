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
        let first = self.findings().first().map(|finding| text(finding, "cause"));
        first.unwrap_or_else(|| self.verdict())
    }

    fn area(&self) -> &str {
        let first = self.findings().first().map(|finding| text(finding, "layer"));
        first.unwrap_or("none")
    }

    /// Returns the commands of the first finding that are for this host.
    pub(super) fn own_commands(&self) -> Vec<String> {
        let first = self.findings().first().map(|finding| list(finding, "fix"));
        let commands = first.into_iter().flatten().filter_map(Value::as_str);
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
        let certain = |one: &Value| text(one, "confidence") == "certain";
        let unsure = || self.before_fix.findings().first().is_some_and(|one| !certain(one));
        self.texts("accepted").contains(&self.before_fix.first_cause())
            || (self.truth.get("all_decidable").and_then(Value::as_bool) == Some(false) && unsure())
    }

    fn is_correct_area(&self) -> bool {
        self.is_correct() || self.texts("areas").contains(&self.before_fix.area())
    }

    /// Returns true if the first finding is gone after its commands; `None` without a second run.
    fn is_fixed(&self) -> Option<bool> {
        let first = self.before_fix.findings().first()?;
        let again = self.after_fix.as_ref()?;
        let same = |other: &Value| {
            ["cause", "where"].iter().all(|field| other.get(field) == first.get(field))
        };
        Some(!again.findings().iter().any(same))
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
            "again": self.after_fix.as_ref().map(|again| &again.report),
        })
    }
}

/// Prints the matrix of expected and named causes, the wrong reports, and the sums.
pub(super) fn print(all: &[&JudgedCase], fix: bool, out: &mut dyn Write) -> Result<()> {
    let mut matrix: BTreeMap<(bool, String), BTreeMap<&str, u32>> = BTreeMap::new();
    for one in all {
        let row = matrix.entry((one.is_decidable(), one.expected())).or_default();
        *row.entry(one.before_fix.first_cause()).or_default() += 1;
    }
    for (decidable, title) in [(true, "can be decided"), (false, "cannot be decided")] {
        writeln!(out, "{title} at the client\n")?;
        for ((_, expected), row) in matrix.iter().filter(|((which, _), _)| *which == decidable) {
            let named: Vec<_> = row.iter().map(|(name, count)| format!("{name} {count}")).collect();
            writeln!(out, "  {expected:<42} {}", named.join(", "))?;
        }
        writeln!(out)?;
    }
    let wrong: Vec<_> = all.iter().filter(|one| !one.is_correct()).collect();
    for one in &wrong {
        let drawn = text(&one.truth, "drawn");
        writeln!(out, "{}: {drawn}: named {}", one.name, one.before_fix.first_cause())?;
    }
    if !wrong.is_empty() {
        writeln!(out)?;
    }
    sums(all, fix, out)
}

fn sums(all: &[&JudgedCase], fix: bool, out: &mut dyn Write) -> Result<()> {
    let count = |what: &dyn Fn(&JudgedCase) -> bool| all.iter().filter(|one| what(one)).count();
    let share = |part: usize, whole: usize| {
        let percent = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
        format!("{part} of {whole} ({percent:.0} %)")
    };
    let faulty = |one: &JudgedCase| !one.is_healthy() && one.is_decidable();
    let decidable = count(&faulty);
    let first = count(&|one| faulty(one) && one.is_correct());
    let area = count(&|one| faulty(one) && one.is_correct_area());
    let hidden = count(&|one| !one.is_healthy() && !one.is_decidable());
    let honest = count(&|one| !one.is_healthy() && !one.is_decidable() && one.is_correct());
    let healthy = count(&JudgedCase::is_healthy);
    let seen = count(&|one| one.is_healthy() && one.before_fix.verdict() == "healthy");
    writeln!(out, "cause named first:          {}", share(first, decidable))?;
    writeln!(out, "right area:                 {}", share(area, decidable))?;
    writeln!(out, "cannot be decided, honest:  {}", share(honest, hidden))?;
    writeln!(out, "\"healthy\" and is not:       {}", count(&JudgedCase::is_missed))?;
    writeln!(
        out,
        "healthy, false alarms:      {}",
        share(count(&JudgedCase::is_false_alarm), healthy)
    )?;
    writeln!(out, "healthy, seen to be:        {}", share(seen, healthy))?;
    let slowest = all.iter().map(|one| one.before_fix.took_ms).max().unwrap_or_default();
    writeln!(out, "slowest:                    {slowest} ms")?;
    if fix {
        let tried = count(&|one| one.is_fixed().is_some());
        let cured = count(&|one| one.is_fixed() == Some(true));
        writeln!(out, "commands that cured:        {}", share(cured, tried))?;
        for one in all.iter().filter(|one| one.is_fixed() == Some(false)) {
            writeln!(out, "  not cured: {}: {}", one.name, one.before_fix.first_cause())?;
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
        let asked = DoctorRun { report, took_ms: 1_000 };
        JudgedCase { name: "random-1-1".to_owned(), truth, before_fix: asked, after_fix: None }
    }

    #[test]
    fn a_cause_a_related_cause_and_a_false_alarm_are_distinguished() {
        let finding = |cause: &str, layer: &str| json!([{"cause": cause, "layer": layer}]);
        let right = judged_case(&["x"], &["x"], "impaired", &finding("x", "path"));
        assert!(right.is_correct() && right.is_correct_area() && !right.is_missed());
        let near = judged_case(&["x"], &["x"], "impaired", &finding("y", "path"));
        assert!(!near.is_correct() && near.is_correct_area());
        let far = judged_case(&["x"], &["x"], "impaired", &finding("y", "kernel"));
        assert!(!far.is_correct_area());
        let missed = judged_case(&["x"], &["x"], "healthy", &json!([]));
        assert!(!missed.is_correct() && missed.is_missed());
        let alarm = judged_case(&[], &["healthy"], "impaired", &finding("x", "path"));
        assert!(!alarm.is_correct() && alarm.is_false_alarm());
        let unsure = judged_case(&[], &["healthy"], "not-judged", &json!([]));
        assert!(unsure.is_correct() && !unsure.is_false_alarm());
    }

    #[test]
    fn only_commands_for_this_host_are_carried_out() {
        let finding = json!([{"cause": "x", "where": "here", "layer": "path", "fix": ["a", "b   # on the other host"]}]);
        let mut one = judged_case(&["x"], &["x"], "impaired", &finding);
        assert_eq!(one.before_fix.own_commands(), ["a"]);
        assert_eq!(one.is_fixed(), None);
        let again =
            |findings| Some(DoctorRun { report: json!({"findings": findings}), took_ms: 1 });
        one.after_fix = again(finding);
        assert_eq!(one.is_fixed(), Some(false));
        one.after_fix = again(json!([]));
        assert_eq!(one.is_fixed(), Some(true));
    }
}
