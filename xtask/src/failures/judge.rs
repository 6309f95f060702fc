//! Comparison of the doctor's reports with the injected faults.

use std::collections::{BTreeMap, BTreeSet};
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

    /// Returns the number of local addresses over which data flowed, without backups.
    fn carrying_addresses(&self) -> u64 {
        /// Minimum for a path that carries data, as in the doctor.
        const MIN_DATA_BYTES: u64 = 10_000;
        let carries = |path: &&Value| {
            let bytes = path.get("bytes").and_then(Value::as_u64).unwrap_or_default();
            let is_backup = path.get("backup").and_then(Value::as_bool) == Some(true);
            bytes >= MIN_DATA_BYTES && !is_backup
        };
        let paths = list(&self.report, "paths").iter().filter(carries);
        let locals: BTreeSet<_> = paths.map(|path| text(path, "local")).collect();
        locals.len() as u64
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

/// Returns true if no fault was injected.
pub(super) fn is_healthy(truth: &Value) -> bool {
    list(truth, "causes").is_empty()
}

impl JudgedCase {
    fn texts(&self, field: &str) -> Vec<&str> {
        list(&self.truth, field).iter().filter_map(Value::as_str).collect()
    }

    fn is_healthy(&self) -> bool {
        is_healthy(&self.truth)
    }

    /// Returns the first injected cause that the client can find, or the first of all.
    fn first_injected(&self) -> &str {
        self.texts("causes").first().copied().unwrap_or("healthy")
    }

    /// Returns true if the verdict is "healthy" although fewer addresses than expected carried
    /// data.
    fn is_overstated(&self) -> bool {
        let paths = self.truth.get("paths").and_then(Value::as_u64).unwrap_or_default();
        self.before_fix.verdict() == "healthy" && self.before_fix.carrying_addresses() < paths
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

    /// Returns injected causes that the doctor claims to exclude, each with its reason.
    fn excluded_causes(&self) -> Vec<(&str, &str)> {
        let injected = self.texts("causes");
        let is_excluded = |claim: &&Value| {
            text(claim, "state") == "contradicted" && injected.contains(&text(claim, "cause"))
        };
        let claims = list(&self.before_fix.report, "claims").iter().filter(is_excluded);
        claims.map(|claim| (text(claim, "cause"), text(claim, "reason"))).collect()
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
            "area": self.is_correct_area(), "excluded": self.excluded_causes(), "took_ms": self.before_fix.took_ms, "cured": self.is_fixed(),
            "report": self.before_fix.report,
            "again": self.after_fix.as_ref().map(|second_run| &second_run.report),
        })
    }
}

/// Width of the printed table, in characters.
const TABLE_COLUMNS: usize = 100;
/// Width of the column of injected causes.
const CAUSE_COLUMNS: usize = 38;

/// Returns the rows of the confusion matrix: the injected cause, the number of situations, and the
/// non-zero cells, each a first finding or a verdict with its number. Long rows are wrapped.
fn confusion_matrix(cases: &[&JudgedCase]) -> Vec<String> {
    let mut matrix: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
    for case in cases {
        let row = matrix.entry(case.first_injected()).or_default();
        *row.entry(case.before_fix.first_cause()).or_default() += 1;
    }
    let mut lines = Vec::new();
    for (injected, row) in matrix {
        let total: u32 = row.values().sum();
        let mut line = format!("{injected:<CAUSE_COLUMNS$}{total:>4} ");
        let indent = " ".repeat(CAUSE_COLUMNS + 5);
        let mut cells: Vec<_> = row.into_iter().collect();
        cells.sort_by_key(|(named, count)| (*named != injected, std::cmp::Reverse(*count)));
        for (named, count) in cells {
            let cell = format!(" {named} {count}");
            if line.len() + cell.len() > TABLE_COLUMNS && line.len() > indent.len() {
                lines.push(std::mem::replace(&mut line, indent.clone()));
            }
            line.push_str(&cell);
        }
        lines.push(line);
    }
    lines
}

/// Prints the confusion matrix, the wrong reports, and the sums.
pub(super) fn print(cases: &[&JudgedCase], fix: bool, out: &mut dyn Write) -> Result<()> {
    let heading =
        format!("{:<CAUSE_COLUMNS$}{:>4}  {}", "injected", "", "first finding or verdict");
    for (decidable, title) in
        [(true, "the client can find the cause"), (false, "the client cannot find the cause")]
    {
        let of_kind: Vec<_> =
            cases.iter().copied().filter(|case| case.is_decidable() == decidable).collect();
        writeln!(out, "{title}\n\n{heading}")?;
        for line in confusion_matrix(&of_kind) {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
    }
    let wrong_cases: Vec<_> = cases.iter().filter(|case| !case.is_correct()).collect();
    for case in &wrong_cases {
        let drawn = text(&case.truth, "drawn");
        writeln!(out, "{}: {drawn}: named {}", case.name, case.before_fix.first_cause())?;
    }
    for case in cases {
        for (cause, reason) in case.excluded_causes() {
            let drawn = text(&case.truth, "drawn");
            writeln!(out, "{}: {drawn}: excluded {cause} ({reason})", case.name)?;
        }
    }
    writeln!(out)?;
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
    let hidden_count =
        count(&|case| case.is_missed() && case.texts("accepted").contains(&"healthy"));
    let missed_count = count(&JudgedCase::is_missed);
    writeln!(
        out,
        "\"healthy\" and is not:       {missed_count} (of which the client cannot see {hidden_count})"
    )?;
    let excluded_count = count(&|case| !case.excluded_causes().is_empty());
    writeln!(out, "injected cause excluded:    {excluded_count}")?;
    writeln!(out, "\"healthy\" with idle paths:  {}", count(&JudgedCase::is_overstated))?;
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
    fn rows_of_the_confusion_matrix_have_non_zero_cells_and_fit_the_page() {
        let named = |cause: &str| json!([{"cause": cause, "layer": "path"}]);
        let mut cases = vec![judged_case(&["x"], &["x"], "impaired", &named("x")); 2];
        cases.push(judged_case(&["x"], &["x"], "impaired", &named("y")));
        cases.push(judged_case(&[], &[], "healthy", &json!([])));
        for index in 0..20 {
            cases.push(judged_case(&["z"], &[], "broken", &named(&format!("cause-{index:02}"))));
        }
        let lines = confusion_matrix(&cases.iter().collect::<Vec<_>>());
        let words = |line: &String| {
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(&lines[0]), "healthy 1 healthy 1");
        assert_eq!(words(&lines[1]), "x 3 x 2 y 1");
        assert!(words(&lines[2]).starts_with("z 20 cause-00 1"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() <= TABLE_COLUMNS), "{lines:?}");
    }

    #[test]
    fn an_injected_cause_that_the_doctor_excludes_is_counted() {
        let mut case = judged_case(&["x", "y"], &["x"], "impaired", &json!([]));
        let claim =
            |cause: &str, state: &str| json!({"cause": cause, "state": state, "reason": "r"});
        case.before_fix.report["claims"] =
            json!([claim("x", "shown"), claim("y", "contradicted"), claim("z", "contradicted")]);
        assert_eq!(case.excluded_causes(), [("y", "r")]);
    }

    #[test]
    fn healthy_with_fewer_paths_than_expected_is_overstated() {
        let mut case = judged_case(&[], &["healthy"], "healthy", &json!([]));
        case.truth["paths"] = json!(2);
        let path = |local: &str, bytes: u64| json!({"local": local, "bytes": bytes});
        case.before_fix.report["paths"] =
            json!([path("a", 50_000), path("a", 50_000), path("b", 9)]);
        assert!(case.is_overstated());
        case.before_fix.report["paths"] = json!([path("a", 50_000), path("b", 50_000)]);
        assert!(!case.is_overstated());
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
