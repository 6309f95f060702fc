//! TOML table reader: parses values key by key and reports unknown keys.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use towpath_net::Rate;
use towpath_net::config::Probability;

use super::keys::{SIDES, TableSchema};
use super::nearest::nearest;
use super::problem::{Problems, SpannedProblem, alternatives, quote};
use super::units::{self, Dimension, UnitError};

/// Maximum rate in bit/s.
const MAX_BPS: u64 = 1_000_000_000_000;
/// Maximum amount of data in bytes.
const MAX_BYTES: u64 = 1_000_000_000_000_000;
/// Maximum queue length in packets.
const MAX_PACKETS: u64 = 1_000_000_000;

/// Terms of other tools, with our keys for them.
pub(super) static SYNONYMS: [(&str, &str); 16] = [
    ("bandwidth", "rate"),
    ("bw", "rate"),
    ("capacity", "rate"),
    ("speed", "rate"),
    ("latency", "delay"),
    ("buffer", "queue"),
    ("limit", "queue"),
    ("time", "at"),
    ("when", "at"),
    ("action", "set"),
    ("event", "set"),
    ("link", "path"),
    ("source", "from"),
    ("destination", "to"),
    ("bytes", "size"),
    ("command", "run"),
];

/// Words that earlier versions used as values, with their present names.
static FORMER_WORDS: [(&str, &str); 5] = [
    ("paper", "multipathtester"),
    ("code", "multipathtester-app"),
    ("siri", "voice-assistant"),
    ("seed003", "barre2011"),
    ("guarded", "mptcp-org"),
];

/// A table that is being parsed.
#[derive(Debug)]
pub struct Section<'a> {
    schema: &'static TableSchema,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    problems: &'a Problems,
    /// Keys of the table that the reader has asked for.
    used_keys: Vec<&'static str>,
    /// Label of this table for messages: “path `wifi`”.
    label: String,
}

impl<'a> Section<'a> {
    /// Creates a reader for a table with the keys of `schema`; `label` names it in messages.
    pub fn new(
        schema: &'static TableSchema,
        table: &'a DeTable<'a>,
        span: Range<usize>,
        problems: &'a Problems,
        label: String,
    ) -> Self {
        Self { schema, table, span, problems, used_keys: Vec::new(), label }
    }

    /// Takes the value of `key`, if the table has it.
    pub fn take(&mut self, key: &'static str) -> Option<Value<'a>> {
        debug_assert!(self.schema.has(key), "`{key}` is not in the table of {}", self.schema.noun);
        let written = self.name_in_file(key);
        self.used_keys.push(written);
        self.table.iter().find(|(name, _)| name.get_ref() == written).map(|(name, value)| Value {
            key: written.to_owned(),
            key_span: name.span(),
            tree: value,
            problems: self.problems,
        })
    }

    /// Returns the former name of `key` if the table has that one only.
    fn name_in_file(&self, key: &'static str) -> &'static str {
        let has = |name: &str| self.table.keys().any(|written| written.get_ref() == name);
        let former = self.schema.keys().find(|schema| schema.name == key);
        former
            .and_then(|schema| schema.former_name)
            .filter(|former| has(former) && !has(key))
            .unwrap_or(key)
    }

    /// Marks all keys of the schema as used.
    pub fn take_all(&mut self) {
        let names: Vec<_> = self.schema.keys().map(|key| self.name_in_file(key.name)).collect();
        self.used_keys.extend(names);
    }

    /// Takes the value of `key`; if missing, reports a problem with `example` as a hint.
    pub fn require(&mut self, key: &'static str, example: &str) -> Option<Value<'a>> {
        let value = self.take(key);
        if value.is_none() {
            let span = Some(self.span.clone()).filter(|span| !span.is_empty());
            let problem = SpannedProblem::new(span, format!("{} has no `{key}`", self.label), "");
            self.problems.push(problem.hint(format!("add `{example}`")));
        }
        value
    }

    /// Returns the table's byte range in the file.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Reports a problem of the table as a whole.
    pub fn fail(&self, message: impl Into<String>, expected: impl Into<String>) {
        self.problems.push(SpannedProblem::new(self.span.clone(), message, expected));
    }

    /// Sets the label of the table in messages.
    pub fn set_label(&mut self, label: String) {
        self.label = label;
    }

    /// Reports all keys that were not taken: unknown ones, and known ones that do not apply here.
    pub fn finish(self) {
        let mut keys_listed = false;
        for (name, _) in self.table {
            let key = name.get_ref().as_ref();
            if self.used_keys.contains(&key) {
                continue;
            }
            let problem = if self.schema.has(key) {
                let message = format!("{} does not apply to {}", quote(key), self.label);
                SpannedProblem::new(name.span(), message, "remove it")
            } else {
                let expected = format!("not a key of {}", self.schema.noun);
                let problem = SpannedProblem::new(
                    name.span(),
                    format!("unknown key {}", quote(key)),
                    expected,
                );
                match self.suggestion(key) {
                    Some(suggested) => problem.hint(format!("did you mean `{suggested}`?")),
                    None if keys_listed => problem,
                    None => {
                        keys_listed = true;
                        problem.hint(self.all_keys())
                    }
                }
            };
            self.problems.push(problem);
        }
    }

    /// Returns true if every key was taken, so that [`Self::finish`] has nothing to report.
    pub fn is_used_up(&self) -> bool {
        self.table.keys().all(|name| self.used_keys.contains(&name.get_ref().as_ref()))
    }

    fn suggestion(&self, key: &str) -> Option<&'static str> {
        let synonym =
            SYNONYMS.iter().find(|(term, own_key)| *term == key && self.schema.has(own_key));
        synonym
            .map(|&(_, own_key)| own_key)
            .or_else(|| nearest(key, self.schema.keys().map(|k| k.name)))
    }

    fn all_keys(&self) -> String {
        let names: Vec<_> = self.schema.keys().map(|k| format!("`{}`", k.name)).collect();
        format!("the keys of {} are {}", self.schema.noun, names.join(", "))
    }
}

/// A TOML value with its key and position.
#[derive(Debug, Clone)]
pub struct Value<'a> {
    key: String,
    key_span: Range<usize>,
    tree: &'a Spanned<DeValue<'a>>,
    problems: &'a Problems,
}

impl<'a> Value<'a> {
    /// Returns the value's byte range in the file.
    pub fn span(&self) -> Range<usize> {
        self.tree.span()
    }

    /// Returns the key's byte range in the file.
    pub fn key_span(&self) -> Range<usize> {
        self.key_span.clone()
    }

    /// Reports any problem found while reading the value.
    pub fn push(&self, problem: SpannedProblem) {
        self.problems.push(problem);
    }

    /// Reports a problem of this value.
    pub fn fail(&self, message: impl Into<String>, expected: impl Into<String>) {
        self.problems.push(SpannedProblem::new(self.span(), message, expected));
    }

    /// Reports a problem of a part of the value.
    pub fn fail_at(
        &self,
        span: &Range<usize>,
        message: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.problems.push(SpannedProblem::new(span.clone(), message, expected));
    }

    /// Returns a value inside this one.
    #[must_use]
    pub fn nested(
        &self,
        key: &str,
        key_span: Range<usize>,
        tree: &'a Spanned<DeValue<'a>>,
    ) -> Self {
        Self { key: key.to_owned(), key_span, tree, problems: self.problems }
    }

    /// Reports a problem of this value with a hint.
    pub fn fail_with_hint(
        &self,
        message: impl Into<String>,
        expected: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.problems.push(SpannedProblem::new(self.span(), message, expected).hint(hint));
    }

    /// Returns the text, or `None` without a message.
    pub fn as_str(&self) -> Option<&'a str> {
        self.tree.get_ref().as_str()
    }

    /// Returns the table, or `None` without a message.
    pub fn as_table(&self) -> Option<&'a DeTable<'a>> {
        self.tree.get_ref().as_table()
    }

    /// Returns true if it is an array.
    pub fn is_list(&self) -> bool {
        self.tree.get_ref().as_array().is_some()
    }

    /// Returns the Boolean, or `None` without a message.
    pub fn as_bool(&self) -> Option<bool> {
        self.tree.get_ref().as_bool()
    }

    /// Returns an integer or floating-point number as written.
    pub fn as_number(&self) -> Option<String> {
        let value = self.tree.get_ref();
        let integer = value.as_integer().map(ToString::to_string);
        integer.or_else(|| value.as_float().map(|float| float.as_str().to_owned()))
    }

    /// Reports a wrong type: “`mtu` is a string”.
    pub fn wrong_type(&self, expected: &str) {
        let actual = self.tree.get_ref().type_str();
        let article = if actual.starts_with(['a', 'i']) { "an" } else { "a" };
        self.fail(format!("`{}` is {article} {actual}", self.key), expected);
    }

    /// Returns the text, or reports a wrong type.
    pub fn text(&self) -> Option<&'a str> {
        let text = self.as_str();
        if text.is_none() {
            self.wrong_type("expected a text in quotes");
        }
        text
    }

    /// Returns the Boolean, or reports a wrong type.
    pub fn boolean(&self) -> Option<bool> {
        let value = self.as_bool();
        if value.is_none() {
            self.wrong_type("expected `true` or `false`");
        }
        value
    }

    /// Returns a whole number from `min` to `max`, or reports a problem.
    pub fn integer(&self, min: u64, max: u64) -> Option<u64> {
        let expected = match max {
            0..=0xffff_ffff => format!("expected a whole number from {min} to {max}"),
            _ => format!("expected a whole number, {min} or more"),
        };
        let Some(integer) = self.tree.get_ref().as_integer() else {
            self.wrong_type(&expected);
            return None;
        };
        match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(n) if i128::from(min) <= n && n <= i128::from(max) => u64::try_from(n).ok(),
            Ok(n) if n < 0 => {
                self.fail(format!("`{}` is negative", self.key), expected);
                None
            }
            Ok(_) | Err(_) => {
                self.fail(format!("`{}` is out of range", self.key), expected);
                None
            }
        }
    }

    /// Returns the value as plain TOML, of any type.
    pub fn to_toml(&self) -> toml::Value {
        to_plain_toml(self.tree.get_ref())
    }

    /// Returns the meaning of the word among `words`, or reports a problem.
    pub fn word<T: Copy>(&self, words: &[(&'static str, T)]) -> Option<T> {
        let names = || words.iter().map(|&(name, _)| name);
        let expected = format!("expected {}", alternatives(names()));
        let Some(text) = self.as_str() else {
            self.wrong_type(&expected);
            return None;
        };
        let meaning =
            |word: &str| words.iter().find(|&&(name, _)| name == word).map(|&(_, meaning)| meaning);
        let present_name = FORMER_WORDS.iter().find(|(former, _)| *former == text);
        let value = meaning(text).or_else(|| meaning(present_name?.1));
        if value.is_none() {
            let message = format!("`{}` cannot be {}", self.key, quote(text));
            let problem = SpannedProblem::new(self.span(), message, expected);
            self.problems.push(match nearest(text, names()) {
                Some(suggested) => problem.hint(format!("did you mean `{suggested}`?")),
                None => problem,
            });
        }
        value
    }

    /// Parses a quantity with `parse`, or reports a problem; a bare number has no unit.
    fn quantity<T>(
        &self,
        dimension: Dimension,
        parse: impl Fn(&str) -> Result<T, UnitError>,
    ) -> Option<T> {
        let number = self.as_number();
        let Some(text) = self.as_str().or(number.as_deref()) else {
            self.wrong_type(&dimension.expectation());
            return None;
        };
        parse(text)
            .map_err(|error| self.unit_error(&error, dimension, dimension.expectation()))
            .ok()
    }

    /// Reports an invalid quantity.
    pub fn unit_error(&self, error: &UnitError, dimension: Dimension, expected: String) {
        let problem = SpannedProblem::new(self.span(), format!("`{}` {error}", self.key), expected);
        self.problems.push(match error.hint(dimension) {
            Some(hint) => problem.hint(hint),
            None => problem,
        });
    }

    fn at_most<T: PartialOrd>(&self, value: T, max: &T, max_text: &str) -> Option<T> {
        if value <= *max {
            return Some(value);
        }
        self.fail(
            format!("`{}` is more than {max_text}", self.key),
            format!("expected at most {max_text}"),
        );
        None
    }

    /// Returns a rate above zero, or reports a problem.
    pub fn rate(&self) -> Option<Rate> {
        let rate = self.quantity(Dimension::Rate, units::rate)?;
        self.at_most(rate.as_bps(), &MAX_BPS, "1000 Gbit/s").map(|_| rate)
    }

    /// Returns a time of at most `max`, or reports a problem.
    pub fn duration(&self, max: Duration) -> Option<Duration> {
        let span = self.quantity(Dimension::Duration, units::duration)?;
        self.at_most(span, &max, &units::duration_text(max))
    }

    /// Returns a time above zero, or reports a problem.
    pub fn positive_duration(&self, max: Duration) -> Option<Duration> {
        let span = self.duration(max)?;
        if span.is_zero() {
            self.fail(format!("`{}` is zero", self.key), Dimension::Duration.expectation());
            return None;
        }
        Some(span)
    }

    /// Returns a size above zero in bytes, or reports a problem.
    pub fn size(&self) -> Option<u64> {
        let bytes = self.quantity(Dimension::Size, units::size)?;
        self.positive(self.at_most(bytes, &MAX_BYTES, "1000 TB")?, Dimension::Size)
    }

    /// Returns a number of packets above zero, or reports a problem.
    pub fn packets(&self) -> Option<u64> {
        let packets = self.quantity(Dimension::Packets, units::packets)?;
        self.positive(
            self.at_most(packets, &MAX_PACKETS, "a thousand million")?,
            Dimension::Packets,
        )
    }

    fn positive(&self, value: u64, dimension: Dimension) -> Option<u64> {
        if value == 0 {
            self.fail(format!("`{}` is zero", self.key), dimension.expectation());
            return None;
        }
        Some(value)
    }

    /// Returns a percentage as a probability, or reports a problem.
    pub fn percent(&self) -> Option<Probability> {
        self.quantity(Dimension::Share, units::probability)
    }

    /// Returns the elements of an array, or reports a wrong type.
    pub fn list(&self, expected: &str) -> Option<Vec<Self>> {
        let Some(array) = self.tree.get_ref().as_array() else {
            self.wrong_type(expected);
            return None;
        };
        Some(array.iter().map(|value| self.nested(&self.key, value.span(), value)).collect())
    }

    /// Returns a reader for a table of this schema, labelled `label` in messages.
    pub fn section(
        &self,
        schema: &'static TableSchema,
        label: impl Into<String>,
        expected: &str,
    ) -> Option<Section<'a>> {
        let Some(table) = self.as_table() else {
            self.wrong_type(expected);
            return None;
        };
        Some(Section::new(schema, table, self.highlight_span(), self.problems, label.into()))
    }

    /// Returns the best range to highlight for a table: its header or braces, else its key.
    pub fn highlight_span(&self) -> Range<usize> {
        let span = self.span();
        if span.is_empty() { self.key_span.clone() } else { span }
    }

    /// Returns both values of `{ up = …, down = … }`, else the same value twice.
    pub fn sides(&self) -> Option<[Self; 2]> {
        let Some(table) = self
            .as_table()
            .filter(|t| t.iter().any(|(key, _)| matches!(key.get_ref().as_ref(), "up" | "down")))
        else {
            return Some([self.clone(), self.clone()]);
        };
        let label = format!("`{}`", self.key);
        let mut section = Section::new(&SIDES, table, self.highlight_span(), self.problems, label);
        let up = section.require("up", "up = …");
        let down = section.require("down", "down = …");
        section.finish();
        let with_key = |side: Self| Self { key: self.key.clone(), ..side };
        Some([with_key(up?), with_key(down?)])
    }
}

/// Converts a value to plain TOML without positions.
fn to_plain_toml(value: &DeValue<'_>) -> toml::Value {
    match value {
        DeValue::String(text) => toml::Value::String(text.clone().into_owned()),
        DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => toml::Value::Integer(n),
            // Beyond TOML's range: the parser of the text reports it.
            Err(_) => toml::Value::String(n.as_str().to_owned()),
        },
        DeValue::Float(n) => toml::Value::Float(n.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(boolean) => toml::Value::Boolean(*boolean),
        DeValue::Datetime(time) => toml::Value::Datetime(*time),
        DeValue::Array(array) => {
            toml::Value::Array(array.iter().map(|value| to_plain_toml(value.get_ref())).collect())
        }
        DeValue::Table(table) => {
            let entries = table.iter();
            toml::Value::Table(
                entries
                    .map(|(key, value)| (key.get_ref().to_string(), to_plain_toml(value.get_ref())))
                    .collect(),
            )
        }
    }
}
