//! Changes of a scenario's document for a run: sets and removes values by dotted keys.

use std::fmt;

use toml::{Table, Value};
use towpath_scenario::document::present_key;

/// A dotted key such as `paths.wifi.delay` or `flows.0.duration`: names of tables, and array
/// indices from 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Vec<String>);

/// Reason for a failed change of a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The key to remove does not exist.
    #[error("the scenario has no `{0}`")]
    Missing(String),
    /// An array index is too large.
    #[error("the scenario has only {length} `{array}`, counted from 0")]
    TooFar {
        /// Key of the array.
        array: String,
        /// Number of values in the array.
        length: usize,
    },
    /// A plain value, which cannot contain a key.
    #[error("`{0}` is a plain value in the scenario")]
    Plain(String),
}

impl KeyPath {
    /// Parses a key in TOML syntax: names with dots or spaces are in double quotes. `None` if
    /// invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut segments, mut remaining) = (Vec::new(), text.trim());
        loop {
            let (segment, after) = match remaining.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => remaining.split_at(remaining.find('.').unwrap_or(remaining.len())),
            };
            let is_bare_char = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            if segment.is_empty()
                || (!remaining.starts_with('"') && !segment.chars().all(is_bare_char))
            {
                return None;
            }
            // The third name is a key of the scenario format: `paths.wifi.delay`, `flows.0.size`.
            let name = if segments.len() == 2 { present_key(segment) } else { segment };
            segments.push(name.to_owned());
            match after.strip_prefix('.') {
                Some(further) => remaining = further,
                None if after.is_empty() => return Some(Self(segments)),
                None => return None,
            }
        }
    }

    /// Returns true if `self` is `other`, or inside it.
    pub fn is_in(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Returns the first `count` names, for messages.
    fn prefix(&self, count: usize) -> String {
        Self(self.0.iter().take(count).cloned().collect()).to_string()
    }

    /// Returns a sort key: removal in descending order does not move values that are still to be
    /// removed.
    fn removal_order(&self) -> Vec<(u64, &str)> {
        self.0.iter().map(|name| (name.parse().unwrap_or(0), name.as_str())).collect()
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            let separator = if i > 0 { "." } else { "" };
            if name.contains(['.', ' ']) {
                write!(f, "{separator}\"{name}\"")?;
            } else {
                write!(f, "{separator}{name}")?;
            }
        }
        Ok(())
    }
}

/// Container of a key's last name: a table with the name, or an array with the index.
enum Slot<'a> {
    Table(&'a mut Table, &'a str),
    Array(&'a mut Vec<Value>, usize),
}

/// Sets the value at `path` and creates missing tables. The index after an array's last value
/// appends one.
pub(crate) fn set(document: &mut Table, path: &KeyPath, value: Value) -> Result<(), DocumentError> {
    match find_parent(document, path, true)? {
        Slot::Table(table, name) => {
            table.insert(name.to_owned(), value);
        }
        Slot::Array(array, index) if index == array.len() => array.push(value),
        Slot::Array(array, index) => {
            let length = array.len();
            *array.get_mut(index).ok_or_else(|| too_far(path, length))? = value;
        }
    }
    Ok(())
}

/// Removes everything at `paths`. Indices refer to the arrays before any removal.
pub(crate) fn remove(document: &mut Table, paths: &[KeyPath]) -> Result<(), DocumentError> {
    let mut paths: Vec<_> = paths.iter().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.removal_order()));
    for path in paths {
        let removed = match find_parent(document, path, false)? {
            Slot::Table(table, name) => table.remove(name).is_some(),
            Slot::Array(array, index) => {
                let exists = index < array.len();
                if exists {
                    array.remove(index);
                }
                exists
            }
        };
        if !removed {
            return Err(DocumentError::Missing(path.to_string()));
        }
    }
    Ok(())
}

/// Returns the table or array that contains the last name of `path`. With `create_missing`, missing
/// tables are created.
fn find_parent<'a>(
    document: &'a mut Table,
    path: &'a KeyPath,
    create_missing: bool,
) -> Result<Slot<'a>, DocumentError> {
    let missing = || DocumentError::Missing(path.to_string());
    let (last_name, parent_names) = path.0.split_last().ok_or_else(missing)?;
    let mut parent = Slot::Table(document, last_name);
    for (depth, name) in parent_names.iter().enumerate() {
        let next_name = path.0.get(depth + 1).ok_or_else(missing)?;
        let value = match parent {
            Slot::Table(table, _) if create_missing => {
                table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()))
            }
            Slot::Table(table, _) => table.get_mut(name).ok_or_else(missing)?,
            Slot::Array(array, index) => {
                let length = array.len();
                if create_missing && index == length {
                    array.push(Value::Table(Table::new()));
                }
                array.get_mut(index).ok_or_else(|| too_far(path, length))?
            }
        };
        parent = match value {
            Value::Table(table) => Slot::Table(table, last_name),
            Value::Array(array) => {
                let index = next_name.parse().ok();
                let index = index.ok_or_else(|| DocumentError::Missing(path.to_string()))?;
                Slot::Array(array, index)
            }
            Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime(_) => {
                return Err(DocumentError::Plain(path.prefix(depth + 1)));
            }
        };
    }
    Ok(parent)
}

fn too_far(path: &KeyPath, length: usize) -> DocumentError {
    let names = path.0.iter().position(|name| name.parse::<usize>().is_ok()).unwrap_or(0);
    DocumentError::TooFar { array: path.prefix(names), length }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change_document(
        change: impl Fn(&mut Table) -> Result<(), DocumentError>,
    ) -> Result<String, String> {
        let text = "[hosts.a]\nmtu = 1500\n[[flows]]\nx = 1\n[[flows]]\nx = 2\n[[flows]]\nx = 3\n";
        let mut document: Table = text.parse().unwrap();
        change(&mut document).map_err(|error| error.to_string())?;
        Ok(document.to_string())
    }

    fn path(text: &str) -> KeyPath {
        KeyPath::parse(text).unwrap()
    }

    #[test]
    fn values_are_set_in_tables_and_arrays_and_tables_are_made() {
        let set_seven = |key: &str| change_document(|d| set(d, &path(key), Value::Integer(7)));
        assert!(set_seven("hosts.a.mtu").unwrap().contains("mtu = 7"));
        assert!(set_seven("flows.1.x").unwrap().contains("x = 1\n\n[[flows]]\nx = 7\n"));
        assert!(set_seven("flows.3.x").unwrap().ends_with("x = 3\n\n[[flows]]\nx = 7\n"));
        assert!(set_seven("run.\"a b\".seed").unwrap().contains("[run.\"a b\"]\nseed = 7"));
        assert_eq!(
            set_seven("flows.4.x"),
            Err("the scenario has only 3 `flows`, counted from 0".into())
        );
        assert_eq!(
            set_seven("hosts.a.mtu.x"),
            Err("`hosts.a.mtu` is a plain value in the scenario".into())
        );
    }

    #[test]
    fn indices_of_removed_entries_refer_to_the_original() {
        let remove_keys = |keys: &[&str]| {
            let keys: Vec<_> = keys.iter().map(|key| path(key)).collect();
            change_document(|d| remove(d, &keys))
        };
        assert_eq!(remove_keys(&["hosts", "flows.0", "flows.1"]).unwrap(), "[[flows]]\nx = 3\n");
        assert_eq!(remove_keys(&["hosts.b"]), Err("the scenario has no `hosts.b`".into()));
        assert_eq!(remove_keys(&["flows.3"]), Err("the scenario has no `flows.3`".into()));
    }

    #[test]
    fn a_key_is_read_as_toml_writes_it() {
        for text in ["a", "a.b-c.0", "hosts.a.sysctls.\"net.mptcp.x\""] {
            assert_eq!(path(text).to_string(), text);
        }
        for text in ["", ".", "a.", ".a", "a..b", "a b", "\"a", "\"a\"b"] {
            assert_eq!(KeyPath::parse(text), None, "{text}");
        }
    }
}
