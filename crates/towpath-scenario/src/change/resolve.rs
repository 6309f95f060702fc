//! Resolves dotted keys to values of a scenario.

use toml::de::{DeTable, DeValue};

use super::{ChangeError, SetTarget, dotted};
use crate::keys::{KeySchema, SCENARIO, TableSchema, ValueKind};
use crate::nearest::nearest;
use crate::section::SYNONYMS;

/// Maximum number of suggested keys.
const MAX_SUGGESTIONS: usize = 6;

/// Returns the values of `root` that `key` matches; at least one.
pub(super) fn targets(root: &DeTable<'_>, key: &str) -> Result<Vec<SetTarget>, ChangeError> {
    let segments = segments(key).ok_or_else(|| {
        let message = format!("`{key}` is not a key of a scenario");
        ChangeError::new(message, "write it with points between the names: `paths.wifi.delay`")
    })?;
    let mut search = Search { root, key, targets: Vec::new() };
    search.resolve_table(&SCENARIO, Some(root), &[], &segments)?;
    Ok(search.targets)
}

/// Splits a dotted key; names with points or spaces are in double quotes.
fn segments(text: &str) -> Option<Vec<String>> {
    let (mut segments, mut rest) = (Vec::new(), text.trim());
    loop {
        let (segment, remainder) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
        };
        let is_bare_char = |c: char| c.is_ascii_alphanumeric() || "-_*".contains(c);
        if segment.is_empty() || (!rest.starts_with('"') && !segment.chars().all(is_bare_char)) {
            return None;
        }
        segments.push(segment.to_owned());
        match remainder.strip_prefix('.') {
            Some(unparsed) => rest = unparsed,
            None if remainder.is_empty() => return Some(segments),
            None => return None,
        }
    }
}

/// Returns the pattern of each flow with its index (`run` for a command).
pub(super) fn flow_patterns(root: &DeTable<'_>) -> Vec<(usize, String)> {
    let Some(flows) = find_value(root, "flows").and_then(DeValue::as_array) else {
        return Vec::new();
    };
    let pattern_of = |flow: &DeValue<'_>| {
        let table = flow.as_table()?;
        let pattern = find_value(table, "pattern").and_then(DeValue::as_str);
        Some(pattern.unwrap_or("run").to_owned())
    };
    flows
        .iter()
        .enumerate()
        .filter_map(|(i, flow)| Some((i, pattern_of(flow.get_ref())?)))
        .collect()
}

/// Returns the hosts that set `key` themselves.
pub(super) fn hosts_with(root: &DeTable<'_>, key: &str) -> Vec<String> {
    let Some(hosts) = find_value(root, "hosts").and_then(DeValue::as_table) else {
        return Vec::new();
    };
    let sets_key =
        |value: &DeValue<'_>| value.as_table().is_some_and(|host| find_value(host, key).is_some());
    let matching = hosts.iter().filter(|(_, host)| sets_key(host.get_ref()));
    matching.map(|(name, _)| name.get_ref().to_string()).collect()
}

/// Returns the keys that a scenario has or could have, except those nested in values.
pub fn known_keys(text: &str) -> Vec<String> {
    DeTable::parse(text).map_or_else(|_| Vec::new(), |root| keys_of(root.get_ref()))
}

fn keys_of(root: &DeTable<'_>) -> Vec<String> {
    let mut keys = Vec::new();
    for key in SCENARIO.keys() {
        let value = find_value(root, key.name);
        if let ValueKind::Named(schema, _) = &key.kind {
            for name in table_names(value) {
                keys.extend(schema.keys().map(|inner| dotted_of(&[key.name, &name, inner.name])));
            }
        } else if let ValueKind::Tables(schema) = &key.kind {
            for index in 0..array_len(value) {
                let index = index.to_string();
                keys.extend(schema.keys().map(|inner| dotted_of(&[key.name, &index, inner.name])));
            }
        } else if let ValueKind::Table(schema) = &key.kind {
            keys.extend(schema.keys().map(|inner| dotted_of(&[key.name, inner.name])));
        } else {
            keys.push(key.name.to_owned());
        }
    }
    keys
}

fn dotted_of(names: &[&str]) -> String {
    dotted(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
}

fn find_value<'a>(table: &'a DeTable<'a>, name: &str) -> Option<&'a DeValue<'a>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value.get_ref())
}

fn table_names(value: Option<&DeValue<'_>>) -> Vec<String> {
    let table = value.and_then(DeValue::as_table);
    table.map_or_else(Vec::new, |table| table.keys().map(|key| key.get_ref().to_string()).collect())
}

fn array_len(value: Option<&DeValue<'_>>) -> usize {
    value.and_then(DeValue::as_array).map_or(0, |array| array.len())
}

struct Search<'a> {
    root: &'a DeTable<'a>,
    /// Key as typed by the user.
    key: &'a str,
    targets: Vec<SetTarget>,
}

impl<'a> Search<'a> {
    /// Resolves `segments` in a table of this schema at `path` (if it exists).
    fn resolve_table(
        &mut self,
        schema: &'static TableSchema,
        table: Option<&'a DeTable<'a>>,
        path: &[String],
        segments: &[String],
    ) -> Result<(), ChangeError> {
        let Some((first, rest)) = segments.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        if schema.key_groups.is_empty() {
            // Free keys, which may contain points.
            let mut path = path.to_vec();
            path.push(segments.join("."));
            self.targets.push(SetTarget { path, kind: &ValueKind::Any("a value") });
            return Ok(());
        }
        let Some(key) = find_key(schema, first) else { return Err(self.unknown_key_error(first)) };
        let mut path = path.to_vec();
        // A file of an earlier version keeps its name of the key.
        let is_written = |name: &&str| table.is_some_and(|table| find_value(table, name).is_some());
        let name = key.former_name.filter(is_written).unwrap_or(key.name);
        path.push(name.to_owned());
        let value = table.and_then(|table| find_value(table, name));
        self.resolve_value(&key.kind, value, &path, rest)
    }

    fn resolve_value(
        &mut self,
        kind: &'static ValueKind,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        if let ValueKind::Named(schema, _) = kind {
            return self.resolve_named(schema, value, path, rest);
        }
        if let ValueKind::Tables(schema) = kind {
            return self.resolve_elements(schema, value, path, rest);
        }
        if rest.is_empty() {
            self.targets.push(SetTarget { path: path.to_vec(), kind });
            return Ok(());
        }
        if let ValueKind::List(ValueKind::Table(schema)) = kind {
            return self.resolve_elements(schema, value, path, rest);
        }
        if let ValueKind::Table(schema) = kind {
            return self.resolve_table(schema, value.and_then(DeValue::as_table), path, rest);
        }
        if let ValueKind::Sides(inner) = kind {
            return self.resolve_side(inner, value, path, rest);
        }
        if let ValueKind::OneOf(kinds) = kind
            && let Some(kind) = kinds.iter().find(|kind| matches!(kind, ValueKind::Table(_)))
        {
            return self.resolve_value(kind, value, path, rest);
        }
        Err(self.not_a_table_error(path))
    }

    /// Resolves a key below a value that may differ by direction.
    fn resolve_side(
        &mut self,
        inner: &'static ValueKind,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        let Some((side, next_segments)) = rest.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        if side != "up" && side != "down" {
            return self.resolve_value(inner, value, path, rest);
        }
        let key_path = dotted(path);
        let table = value.and_then(DeValue::as_table);
        // A missing value, or a table for both directions, cannot be completed for one direction.
        let has_side = table.is_some_and(|table| find_value(table, side).is_some());
        if value.is_none()
            || (table.is_some() && !has_side)
            || (!has_side && !next_segments.is_empty())
        {
            let message = format!("`{key_path}` has no value of its own for each direction");
            let hint = format!("set both: `--set '{key_path}={{ up = \"…\", down = \"…\" }}'`");
            return Err(ChangeError::new(message, hint));
        }
        let mut path = path.to_vec();
        path.push(side.clone());
        self.resolve_value(
            inner,
            table.and_then(|table| find_value(table, side)),
            &path,
            next_segments,
        )
    }

    /// Resolves a key below a table of named tables, such as `paths` or `hosts`.
    fn resolve_named(
        &mut self,
        schema: &'static TableSchema,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        let existing = table_names(value);
        let plural = path.last().map_or("", String::as_str);
        let Some((name, next_segments)) = rest.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        let selected: Vec<&String> =
            existing.iter().filter(|candidate| name == "*" || *candidate == name).collect();
        if selected.is_empty() {
            if find_key(schema, name).is_some() {
                return Err(self.ambiguous_key_error(plural, &existing, rest));
            }
            let message = format!("`{}`: the scenario has no `{plural}.{name}`", self.key);
            let suggested = nearest(name, existing.iter().map(String::as_str));
            let hint = match suggested {
                Some(suggested) => format!("did you mean `{plural}.{suggested}`?"),
                None if existing.is_empty() => format!("it has no {plural} at all"),
                None => {
                    format!("its {plural} are {}", quoted_list(existing.iter().map(String::as_str)))
                }
            };
            return Err(ChangeError::new(message, hint));
        }
        for name in selected {
            let mut path = path.to_vec();
            path.push(name.clone());
            let table = value.and_then(DeValue::as_table).and_then(|table| find_value(table, name));
            self.resolve_table(schema, table.and_then(DeValue::as_table), &path, next_segments)?;
        }
        Ok(())
    }

    /// Resolves a key below an array of tables, such as `flows`: one by index, or all.
    fn resolve_elements(
        &mut self,
        schema: &'static TableSchema,
        value: Option<&'a DeValue<'a>>,
        path: &[String],
        rest: &[String],
    ) -> Result<(), ChangeError> {
        let key_path = dotted(path);
        let Some((first, next_segments)) = rest.split_first() else {
            return Err(self.incomplete_key_error(path));
        };
        let count = array_len(value);
        let (indices, next_segments) = match first.parse::<usize>() {
            Ok(index) => (index..index + 1, next_segments),
            Err(_) if first == "*" => (0..count, next_segments),
            Err(_) => (0..count, rest),
        };
        if indices.end > count || count == 0 {
            let message = format!("`{}`: the scenario has {count} `{key_path}`", self.key);
            let hint = match count {
                0 => "add one to the file".to_owned(),
                1 => format!("the only one is `{key_path}.0`"),
                _ => format!("they are `{key_path}.0` to `{key_path}.{}`", count - 1),
            };
            return Err(ChangeError::new(message, hint));
        }
        for index in indices {
            let mut path = path.to_vec();
            path.push(index.to_string());
            let element = value.and_then(DeValue::as_array).and_then(|array| array.get(index));
            let table = element.and_then(|element| element.get_ref().as_table());
            self.resolve_table(schema, table, &path, next_segments)?;
        }
        Ok(())
    }

    fn ambiguous_key_error(
        &self,
        plural: &str,
        existing: &[String],
        rest: &[String],
    ) -> ChangeError {
        let rest = dotted(rest);
        let message = format!("`{}` does not say which of the {plural}", self.key);
        let suggestions =
            existing.iter().take(MAX_SUGGESTIONS - 1).map(|name| format!("{plural}.{name}.{rest}"));
        let suggestions: Vec<_> = suggestions.chain([format!("{plural}.*.{rest}")]).collect();
        let hint = format!("write {}", alternatives(&suggestions));
        ChangeError::new(message, hint)
    }

    fn incomplete_key_error(&self, path: &[String]) -> ChangeError {
        let prefix = format!("{}.", dotted(path));
        let child_keys: Vec<_> =
            keys_of(self.root).into_iter().filter(|key| key.starts_with(&prefix)).collect();
        let hint = if child_keys.is_empty() {
            "`towpath schema scenario-keys` lists all keys".to_owned()
        } else {
            format!("its keys are {}", quoted_list(child_keys.iter().map(String::as_str)))
        };
        ChangeError::new(format!("`{}` is a table, not a value", self.key), hint)
    }

    fn not_a_table_error(&self, path: &[String]) -> ChangeError {
        let key_path = dotted(path);
        let hint = format!("set it as a whole: `--set {key_path}=…`");
        ChangeError::new(format!("`{}`: `{key_path}` is a plain value", self.key), hint)
    }

    /// Returns the error for a name that is not a key at this point.
    fn unknown_key_error(&self, name: &str) -> ChangeError {
        let message = format!("`{}` is not a key of this scenario", self.key);
        let similar = similar_keys(&keys_of(self.root), self.key, name);
        let hint = if similar.is_empty() {
            "`towpath schema scenario-keys` lists all keys".to_owned()
        } else {
            format!("did you mean {}?", alternatives(&similar))
        };
        ChangeError::new(message, hint)
    }
}

/// Returns known keys similar to `key`, whose part `name` is wrong.
fn similar_keys(known_keys: &[String], key: &str, name: &str) -> Vec<String> {
    let last_part = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    let synonym = |word: &str| {
        let own_key = SYNONYMS.iter().find(|(term, _)| *term == word).map(|(_, own_key)| *own_key);
        own_key.unwrap_or(word).to_owned()
    };
    let last_name = synonym(&last_part(key));
    let prefix = key.rsplit_once('.').map(|(prefix, _)| format!("{prefix}.")).unwrap_or_default();
    let last_parts: Vec<String> = known_keys.iter().map(|key| last_part(key)).collect();
    let similar = nearest(&last_name, last_parts.iter().map(String::as_str)).unwrap_or_default();
    let keys_ending_with = |ending: &str, beginning: &str| -> Vec<String> {
        let is_match = |key: &&String| key.starts_with(beginning) && last_part(key) == ending;
        known_keys.iter().filter(is_match).take(MAX_SUGGESTIONS).cloned().collect()
    };
    // The wrong name may be the last one or an earlier one.
    let tables = known_keys.iter().filter_map(|key| key.split('.').next());
    let table_prefix = nearest(name, tables).map(|table| format!("{table}.")).unwrap_or_default();
    [
        keys_ending_with(&last_name, &prefix),
        keys_ending_with(similar, &prefix),
        keys_ending_with(&last_name, &table_prefix),
        keys_ending_with(&last_name, ""),
        keys_ending_with(similar, ""),
    ]
    .into_iter()
    .find(|found| !found.is_empty())
    .unwrap_or_default()
}

/// Finds a key by its name, by its singular, or with `_` instead of `-`.
fn find_key(schema: &'static TableSchema, name: &str) -> Option<&'static KeySchema> {
    let hyphenated = name.replace('_', "-");
    schema.keys().find(|key| {
        let is_plural = matches!(key.kind, ValueKind::Named(..) | ValueKind::Tables(_));
        key.name == hyphenated
            || key.former_name == Some(&hyphenated)
            || (is_plural && key.name.strip_suffix('s') == Some(&hyphenated))
    })
}

fn quoted_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn alternatives(names: &[String]) -> String {
    crate::problem::alternatives(names.iter().map(String::as_str))
}
