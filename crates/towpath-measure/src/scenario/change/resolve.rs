//! Resolves dotted keys to values of a scenario.

use toml::de::{DeTable, DeValue};

use super::{ChangeError, SetTarget, dotted};
use crate::scenario::keys::{KeySchema, SCENARIO, TableSchema, ValueKind};
use crate::scenario::nearest::nearest;
use crate::scenario::section::SYNONYMS;

/// Maximum number of suggested keys.
const MAX_SUGGESTIONS: usize = 6;

/// Returns the values of `root` that `key` matches; at least one.
pub(super) fn targets(root: &DeTable<'_>, key: &str) -> Result<Vec<SetTarget>, ChangeError> {
    let segments = segments(key).ok_or_else(|| {
        let what = format!("`{key}` is no key of a scenario");
        ChangeError::new(what, "write it with points between the names: `paths.wifi.delay`")
    })?;
    let mut search = Search { root, key, found: Vec::new() };
    search.table(&SCENARIO, Some(root), &[], &segments)?;
    Ok(search.found)
}

/// Splits a dotted key; names with points or spaces are in double quotes.
fn segments(text: &str) -> Option<Vec<String>> {
    let (mut segments, mut rest) = (Vec::new(), text.trim());
    loop {
        let (segment, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
        };
        let bare = |c: char| c.is_ascii_alphanumeric() || "-_*".contains(c);
        if segment.is_empty() || (!rest.starts_with('"') && !segment.chars().all(bare)) {
            return None;
        }
        segments.push(segment.to_owned());
        match after.strip_prefix('.') {
            Some(further) => rest = further,
            None if after.is_empty() => return Some(segments),
            None => return None,
        }
    }
}

/// Returns the pattern of each flow with its index (`run` for a command).
pub(super) fn flow_patterns(root: &DeTable<'_>) -> Vec<(usize, String)> {
    let Some(flows) = get(root, "flows").and_then(DeValue::as_array) else { return Vec::new() };
    let pattern = |flow: &DeValue<'_>| {
        let table = flow.as_table()?;
        let pattern = get(table, "pattern").and_then(DeValue::as_str);
        Some(pattern.unwrap_or("run").to_owned())
    };
    flows.iter().enumerate().filter_map(|(i, flow)| Some((i, pattern(flow.get_ref())?))).collect()
}

/// Returns the hosts that set `key` themselves.
pub(super) fn hosts_with(root: &DeTable<'_>, key: &str) -> Vec<String> {
    let Some(hosts) = get(root, "hosts").and_then(DeValue::as_table) else { return Vec::new() };
    let has = |value: &DeValue<'_>| value.as_table().is_some_and(|host| get(host, key).is_some());
    let named = hosts.iter().filter(|(_, host)| has(host.get_ref()));
    named.map(|(name, _)| name.get_ref().to_string()).collect()
}

/// Returns the keys that a scenario has or could have, except those nested in values.
pub fn known_keys(text: &str) -> Vec<String> {
    DeTable::parse(text).map_or_else(|_| Vec::new(), |root| keys_of(root.get_ref()))
}

fn keys_of(root: &DeTable<'_>) -> Vec<String> {
    let mut keys = Vec::new();
    for key in SCENARIO.keys() {
        let value = get(root, key.name);
        if let ValueKind::Named(shape, _) = &key.kind {
            for name in names(value) {
                keys.extend(shape.keys().map(|inner| dotted_of(&[key.name, &name, inner.name])));
            }
        } else if let ValueKind::Tables(shape) = &key.kind {
            for index in 0..length(value) {
                let index = index.to_string();
                keys.extend(shape.keys().map(|inner| dotted_of(&[key.name, &index, inner.name])));
            }
        } else if let ValueKind::Table(shape) = &key.kind {
            keys.extend(shape.keys().map(|inner| dotted_of(&[key.name, inner.name])));
        } else {
            keys.push(key.name.to_owned());
        }
    }
    keys
}

fn dotted_of(names: &[&str]) -> String {
    dotted(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
}

fn get<'a>(table: &'a DeTable<'a>, name: &str) -> Option<&'a DeValue<'a>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value.get_ref())
}

fn names(value: Option<&DeValue<'_>>) -> Vec<String> {
    let table = value.and_then(DeValue::as_table);
    table.map_or_else(Vec::new, |table| table.keys().map(|key| key.get_ref().to_string()).collect())
}

fn length(value: Option<&DeValue<'_>>) -> usize {
    value.and_then(DeValue::as_array).map_or(0, |array| array.len())
}

struct Search<'a> {
    root: &'a DeTable<'a>,
    /// Key as typed by the user.
    key: &'a str,
    found: Vec<SetTarget>,
}

impl<'a> Search<'a> {
    /// Resolves `segments` in a table of this schema at `path` (if it exists).
    fn table(
        &mut self,
        shape: &'static TableSchema,
        table: Option<&'a DeTable<'a>>,
        path: &[String],
        segments: &[String],
    ) -> Result<(), ChangeError> {
        let Some((first, rest)) = segments.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        if shape.key_groups.is_empty() {
            // Free keys, which may contain points.
            let mut path = path.to_vec();
            path.push(segments.join("."));
            self.found.push(SetTarget { path, kind: &ValueKind::Any("a value") });
            return Ok(());
        }
        let Some(key) = key_of(shape, first) else { return Err(self.unknown_key_error(first)) };
        let mut path = path.to_vec();
        path.push(key.name.to_owned());
        let value = table.and_then(|table| get(table, key.name));
        self.value(&key.kind, value, &path, rest)
    }

    fn value(
        &mut self,
        kind: &'static ValueKind,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        if let ValueKind::Named(shape, _) = kind {
            return self.named(shape, value, path, rest);
        }
        if let ValueKind::Tables(shape) = kind {
            return self.elements(shape, value, path, rest);
        }
        if rest.is_empty() {
            self.found.push(SetTarget { path: path.to_vec(), kind });
            return Ok(());
        }
        if let ValueKind::List(ValueKind::Table(shape)) = kind {
            return self.elements(shape, value, path, rest);
        }
        if let ValueKind::Table(shape) = kind {
            return self.table(shape, value.and_then(DeValue::as_table), path, rest);
        }
        if let ValueKind::Sides(inner) = kind {
            return self.side(inner, value, path, rest);
        }
        if let ValueKind::OneOf(kinds) = kind
            && let Some(kind) = kinds.iter().find(|kind| matches!(kind, ValueKind::Table(_)))
        {
            return self.value(kind, value, path, rest);
        }
        Err(self.not_a_table_error(path))
    }

    /// Resolves a key below a value that may differ by direction.
    fn side(
        &mut self,
        inner: &'static ValueKind,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        let Some((side, further)) = rest.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        if side != "up" && side != "down" {
            return self.value(inner, value, path, rest);
        }
        let place = dotted(path);
        let table = value.and_then(DeValue::as_table);
        // A missing value, or a table for both directions, cannot be completed for one direction.
        let split = table.is_some_and(|table| get(table, side).is_some());
        if value.is_none() || (table.is_some() && !split) || (!split && !further.is_empty()) {
            let what = format!("`{place}` has no value of its own for each direction");
            let hint = format!("set both: `--set '{place}={{ up = \"…\", down = \"…\" }}'`");
            return Err(ChangeError::new(what, hint));
        }
        let mut path = path.to_vec();
        path.push(side.clone());
        self.value(inner, table.and_then(|table| get(table, side)), &path, further)
    }

    /// Resolves a key below a table of named tables, such as `paths` or `hosts`.
    fn named(
        &mut self,
        shape: &'static TableSchema,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        let known = names(value);
        let plural = path.last().map_or("", String::as_str);
        let Some((name, further)) = rest.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        let meant: Vec<&String> =
            known.iter().filter(|known| name == "*" || *known == name).collect();
        if meant.is_empty() {
            if key_of(shape, name).is_some() {
                return Err(self.ambiguous_key_error(plural, &known, rest));
            }
            let what = format!("`{}`: the scenario has no `{plural}.{name}`", self.key);
            let near = nearest(name, known.iter().map(String::as_str));
            let hint = match near {
                Some(near) => format!("did you mean `{plural}.{near}`?"),
                None if known.is_empty() => format!("it has no {plural} at all"),
                None => format!("its {plural} are {}", listed(known.iter().map(String::as_str))),
            };
            return Err(ChangeError::new(what, hint));
        }
        for name in meant {
            let mut path = path.to_vec();
            path.push(name.clone());
            let table = value.and_then(DeValue::as_table).and_then(|table| get(table, name));
            self.table(shape, table.and_then(DeValue::as_table), &path, further)?;
        }
        Ok(())
    }

    /// Resolves a key below an array of tables, such as `flows`: one by index, or all.
    fn elements(
        &mut self,
        shape: &'static TableSchema,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        let place = dotted(path);
        let Some((first, further)) = rest.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        let length = length(value);
        let (chosen, further) = match first.parse::<usize>() {
            Ok(index) => (index..index + 1, further),
            Err(_) if first == "*" => (0..length, further),
            Err(_) => (0..length, rest),
        };
        if chosen.end > length || length == 0 {
            let what = format!("`{}`: the scenario has {length} `{place}`", self.key);
            let hint = match length {
                0 => "add one to the file".to_owned(),
                1 => format!("the only one is `{place}.0`"),
                _ => format!("they are `{place}.0` to `{place}.{}`", length - 1),
            };
            return Err(ChangeError::new(what, hint));
        }
        for index in chosen {
            let mut path = path.to_vec();
            path.push(index.to_string());
            let element = value.and_then(DeValue::as_array).and_then(|array| array.get(index));
            let table = element.and_then(|element| element.get_ref().as_table());
            self.table(shape, table, &path, further)?;
        }
        Ok(())
    }

    fn ambiguous_key_error(&self, plural: &str, known: &[String], rest: &[String]) -> ChangeError {
        let rest = dotted(rest);
        let what = format!("`{}` does not say which of the {plural}", self.key);
        let all =
            known.iter().take(MAX_SUGGESTIONS - 1).map(|name| format!("{plural}.{name}.{rest}"));
        let all: Vec<_> = all.chain([format!("{plural}.*.{rest}")]).collect();
        let hint = format!("write {}", alternatives(&all));
        ChangeError::new(what, hint)
    }

    fn incomplete_key_error(&self, path: &[String]) -> ChangeError {
        let start = format!("{}.", dotted(path));
        let all: Vec<_> =
            keys_of(self.root).into_iter().filter(|key| key.starts_with(&start)).collect();
        let hint = if all.is_empty() {
            "`towpath schema scenario-keys` lists all keys".to_owned()
        } else {
            format!("its keys are {}", listed(all.iter().map(String::as_str)))
        };
        ChangeError::new(format!("`{}` is a table, not a value", self.key), hint)
    }

    fn not_a_table_error(&self, path: &[String]) -> ChangeError {
        let place = dotted(path);
        let hint = format!("set it as a whole: `--set {place}=…`");
        ChangeError::new(format!("`{}`: `{place}` is a plain value", self.key), hint)
    }

    /// Returns the error for a name that is not a key at this point.
    fn unknown_key_error(&self, name: &str) -> ChangeError {
        let what = format!("`{}` is no key of this scenario", self.key);
        let near = near_keys(&keys_of(self.root), self.key, name);
        let hint = if near.is_empty() {
            "`towpath schema scenario-keys` lists all keys".to_owned()
        } else {
            format!("did you mean {}?", alternatives(&near))
        };
        ChangeError::new(what, hint)
    }
}

/// Returns known keys similar to `key`, whose part `name` is wrong.
fn near_keys(known: &[String], key: &str, name: &str) -> Vec<String> {
    let last_of = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    let synonym = |word: &str| {
        let ours = SYNONYMS.iter().find(|(other, _)| *other == word).map(|(_, ours)| *ours);
        ours.unwrap_or(word).to_owned()
    };
    let wanted = synonym(&last_of(key));
    let before = key.rsplit_once('.').map(|(before, _)| format!("{before}.")).unwrap_or_default();
    let lasts: Vec<String> = known.iter().map(|known| last_of(known)).collect();
    let near = nearest(&wanted, lasts.iter().map(String::as_str)).unwrap_or_default();
    let ending = |last: &str, start: &str| -> Vec<String> {
        let fits = |key: &&String| key.starts_with(start) && last_of(key) == last;
        known.iter().filter(fits).take(MAX_SUGGESTIONS).cloned().collect()
    };
    // The wrong name may be the last one or an earlier one.
    let tables = known.iter().filter_map(|key| key.split('.').next());
    let table = nearest(name, tables).map(|table| format!("{table}.")).unwrap_or_default();
    [
        ending(&wanted, &before),
        ending(near, &before),
        ending(&wanted, &table),
        ending(&wanted, ""),
        ending(near, ""),
    ]
    .into_iter()
    .find(|found| !found.is_empty())
    .unwrap_or_default()
}

/// Finds a key by its name, by its singular, or with `_` instead of `-`.
fn key_of(shape: &'static TableSchema, name: &str) -> Option<&'static KeySchema> {
    let hyphens = name.replace('_', "-");
    shape.keys().find(|key| {
        let several = matches!(key.kind, ValueKind::Named(..) | ValueKind::Tables(_));
        key.name == hyphens || (several && key.name.strip_suffix('s') == Some(&hyphens))
    })
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn alternatives(names: &[String]) -> String {
    crate::scenario::problem::alternatives(names.iter().map(String::as_str))
}
