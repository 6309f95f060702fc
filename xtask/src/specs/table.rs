//! Table of the share of each document that is done.

use std::fmt::Write;

use super::ledger::{Ledger, RequirementStatus, Strength};

/// Columns of the table: strength and heading.
const COLUMNS: [(Strength, &str); 4] = [
    (Strength::Must, "MUST"),
    (Strength::Should, "SHOULD"),
    (Strength::May, "MAY"),
    (Strength::Prose, "PROSE"),
];

/// Requirements of one strength.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct StatusCount {
    done: usize,
    exception: usize,
    todo: usize,
}

impl StatusCount {
    fn of(ledger: &Ledger, strength: Strength) -> Self {
        let mut count = Self::default();
        for requirement in &ledger.requirements {
            if requirement.level.strength() == strength {
                match requirement.status {
                    RequirementStatus::Done => count.done += 1,
                    RequirementStatus::Exception => count.exception += 1,
                    RequirementStatus::Todo => count.todo += 1,
                }
            }
        }
        count
    }

    fn add(&mut self, other: Self) {
        self.done += other.done;
        self.exception += other.exception;
        self.todo += other.todo;
    }

    /// Formats `done/exception/todo`; empty without requirements.
    fn cell(self) -> String {
        let Self { done, exception, todo } = self;
        match done + exception + todo {
            0 => "-".into(),
            _ => format!("{done}/{exception}/{todo}"),
        }
    }
}

/// Returns the table with a row for each document, and their sum.
pub(super) fn status_table(ledgers: &[Ledger]) -> String {
    let mut text = String::from("done/exception/todo\n");
    write_row(&mut text, "", COLUMNS.map(|(_, name)| name.into()), "");
    let mut sums = [StatusCount::default(); COLUMNS.len()];
    for ledger in ledgers {
        let counts = COLUMNS.map(|(strength, _)| StatusCount::of(ledger, strength));
        for (sum, count) in sums.iter_mut().zip(counts) {
            sum.add(count);
        }
        write_row(&mut text, &ledger.document, counts.map(StatusCount::cell), &ledger.title);
    }
    write_row(&mut text, "all", sums.map(StatusCount::cell), "");
    text
}

fn write_row(text: &mut String, name: &str, cells: [String; COLUMNS.len()], title: &str) {
    let mut line = format!("{name:<9}");
    for cell in cells {
        let _ = write!(line, " {cell:>10}");
    }
    let _ = write!(line, "  {title}");
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_and_their_sum_are_counted_by_strength() {
        let entry = |id: &str, level: &str, status: &str| {
            format!(
                "[[requirement]]\nid = \"{id}\"\nsection = \"1\"\nlevel = \"{level}\"\n\
                 summary = \"x\"\nstatus = \"{status}\"\n"
            )
        };
        let first_ledger = ["title = \"One\"\n".to_owned()]
            .into_iter()
            .chain([
                entry("1-1", "MUST", "done"),
                entry("1-2", "SHALL NOT", "todo"),
                entry("1-3", "NOT RECOMMENDED", "exception"),
            ])
            .collect::<String>();
        let second_ledger = format!("title = \"Two\"\n{}", entry("1-1", "REQUIRED", "todo"));
        let ledgers = [
            Ledger::parse("specs/rfc1.toml", &first_ledger).unwrap(),
            Ledger::parse("specs/rfc22.toml", &second_ledger).unwrap(),
        ];
        let expected = "\
done/exception/todo
                MUST     SHOULD        MAY      PROSE
rfc1           1/0/1      0/1/0          -          -  One
rfc22          0/0/1          -          -          -  Two
all            1/0/2      0/1/0          -          -
";
        assert_eq!(status_table(&ledgers), expected);
    }
}
