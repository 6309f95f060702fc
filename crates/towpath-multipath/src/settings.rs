//! Settings as texts by name: how scenarios reach the protocols, whose crates know nothing of them.

use thiserror::Error;

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingError {
    /// No setting has this name.
    #[error("unknown setting `{0}`")]
    Unknown(String),
    /// It cannot have this value.
    #[error("`{name}` cannot be `{value}`")]
    Value {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
}

impl SettingError {
    /// `name` cannot be `value`.
    pub fn value(name: &str, value: &str) -> Self {
        Self::Value { name: name.to_owned(), value: value.to_owned() }
    }
}
