//! Settings as name and value texts, by which scenarios configure the protocol crates without a
//! dependency on them.

use thiserror::Error;

/// An invalid setting: an unknown name or an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingError {
    /// No setting has this name.
    #[error("unknown setting `{0}`")]
    Unknown(String),
    /// The setting exists, but the value is invalid.
    #[error("`{name}` cannot be `{value}`")]
    Value {
        /// Name of the setting.
        name: String,
        /// Value that was rejected.
        value: String,
    },
}

impl SettingError {
    /// Returns the error that `name` cannot be `value`.
    pub fn value(name: &str, value: &str) -> Self {
        Self::Value { name: name.to_owned(), value: value.to_owned() }
    }
}
