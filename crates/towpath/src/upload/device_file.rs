//! State of a device that has joined, in a file that only its owner can read.
//!
//! The file is TOML. It is replaced as a whole, so it is never half written. It contains the
//! device's token: a file that other users can access is refused.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use towpath_campaign::PublicKey;
use towpath_os::files::{Dir, ReadAccess, UnsafePath};
use towpath_result::device::ConsentText;
use towpath_result::upload::content_hash;
use towpath_scenario::document::{self, KeyPresence, KeySchema, TableSchema, ValueKind, key};

use super::client::Token;
use super::owner_limits::OwnerLimits;
use super::url::CollectorUrl;
use crate::error::CliError;

/// Maximum size of the file in bytes.
const MAX_STATE_BYTES: u64 = 64_000;
/// Digits of SHA-256.
const HASH_DIGITS: usize = 64;

/// Device that has joined a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinedDevice {
    pub(crate) collector: CollectorUrl,
    /// Name that the operator gave to the device.
    pub(crate) name: String,
    pub(crate) token: Token,
    /// File with the authorities that may issue the collector's certificate; `None` for those of
    /// Mozilla.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) consent: AcceptedConsent,
    /// Key that verifies the collector's campaigns; `None` if it had none when the device joined.
    pub(crate) campaign_key: Option<PublicKey>,
    pub(crate) limits: OwnerLimits,
}

/// Consent text that the owner of the device has accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcceptedConsent {
    pub(crate) version: u32,
    /// SHA-256 of the text, in hexadecimal digits.
    pub(crate) sha256: String,
    /// Time of acceptance in microseconds since 1970.
    pub(crate) accepted_us: u64,
}

impl AcceptedConsent {
    /// Returns the acceptance of a text at a time in microseconds since 1970.
    pub(crate) fn new(text: &ConsentText, accepted_us: u64) -> Self {
        // Reading from memory cannot fail.
        let sha256 = content_hash(text.text.as_bytes()).map(|(hash, _)| hash).unwrap_or_default();
        Self { version: text.version, sha256, accepted_us }
    }
}

const fn limit_key(name: &'static str, doc: &'static str) -> KeySchema {
    key(name, ValueKind::Text, KeyPresence::Optional("see `towpath agent limits`"), doc)
}

/// Keys of the owner's limits, in the order of [`OwnerLimits::texts`].
const LIMIT_KEYS: [KeySchema; 5] = [
    limit_key("limit-bytes-per-day", "Maximum number of bytes on one day (UTC)"),
    limit_key("limit-hours", "Hours (UTC) in which runs may be made"),
    limit_key("limit-interfaces", "Interfaces that runs may use"),
    limit_key("limit-metered", "Use of metered interfaces"),
    limit_key("metered-interfaces", "Interfaces that are metered"),
];

const fn text_key(name: &'static str, doc: &'static str) -> KeySchema {
    key(name, ValueKind::Text, KeyPresence::Required, doc)
}

static FILE_SHAPE: TableSchema = TableSchema {
    noun: "the state of a device",
    heading: "agent.toml",
    doc: "Device that has joined a collector.",
    key_groups: &[
        &[
            text_key("collector", "Address of the collector"),
            text_key("name", "Name of the device"),
            text_key("token", "Token of the device"),
            key("ca", ValueKind::Text, KeyPresence::Optional("Mozilla's"), "File with authorities"),
            key(
                "consent-version",
                ValueKind::Integer(1, u32::MAX as u64),
                KeyPresence::Required,
                "Version of the accepted consent text",
            ),
            text_key("consent-sha256", "SHA-256 of the accepted consent text"),
            key(
                "consent-accepted-us",
                ValueKind::Integer(0, i64::MAX as u64),
                KeyPresence::Required,
                "Time of acceptance in microseconds since 1970",
            ),
            key(
                "campaign-key",
                ValueKind::Text,
                KeyPresence::Optional("none"),
                "Key that verifies campaigns",
            ),
        ],
        &LIMIT_KEYS,
    ],
};

impl JoinedDevice {
    /// Returns the device as TOML.
    fn to_toml(&self) -> String {
        let Self { collector, name, token, ca, consent, campaign_key, limits } = self;
        let AcceptedConsent { version, sha256, accepted_us } = consent;
        let mut text = "# Device that has joined a collector: written by `towpath agent`.\n\
                        # Keep it secret: the token gives access to the device's runs.\n"
            .to_owned();
        let mut add = |key: &str, value: &str| {
            let _ = writeln!(text, "{key} = {}", quoted(value)); // cannot fail
        };
        add("collector", collector.as_str());
        add("name", name);
        add("token", token.expose());
        if let Some(ca) = ca {
            add("ca", &ca.to_string_lossy());
        }
        add("consent-sha256", sha256);
        if let Some(key) = campaign_key {
            add("campaign-key", &key.to_string());
        }
        for (key, value) in LIMIT_KEYS.iter().zip(limits.texts()) {
            add(key.name, &value);
        }
        let _ = writeln!(text, "consent-version = {version}\nconsent-accepted-us = {accepted_us}");
        text
    }

    /// Parses a device. Fails with the first problem, which does not contain the token.
    fn parse(text: &str) -> Result<Self, String> {
        let device = document::read("", text, (&FILE_SHAPE, "the file"), |file, _| {
            let mut text_of = |key| Some(file.require(key, "")?.text()?.to_owned());
            let [collector, name, token, sha256] =
                ["collector", "name", "token", "consent-sha256"].map(&mut text_of);
            let ca = file.take("ca").and_then(|value| value.text()).map(PathBuf::from);
            let mut optional_text = |key| Some(file.take(key)?.text()?.to_owned());
            let campaign_key = optional_text("campaign-key");
            let limits = LIMIT_KEYS.map(|key| optional_text(key.name));
            let mut integer_of = |key, min, max| file.require(key, "")?.integer(min, max);
            let version = integer_of("consent-version", 1, u32::MAX.into());
            let accepted_us = integer_of("consent-accepted-us", 0, i64::MAX as u64);
            let file = StateFields {
                collector: collector?,
                name: name?,
                token: token?,
                ca,
                sha256: sha256?,
                version: version?,
                accepted_us: accepted_us?,
                campaign_key,
                limits,
            };
            Some(file)
        });
        let device = device.map_err(|errors| {
            let problem = errors.problems().first();
            problem.map_or_else(String::new, |problem| match problem.position {
                Some((line, _)) => format!("line {line}: {}", problem.message),
                None => problem.message.clone(),
            })
        })?;
        device.ok_or("a key is missing")?.check()
    }
}

/// Values of the file, which are not checked yet.
#[derive(Debug)]
struct StateFields {
    collector: String,
    name: String,
    token: String,
    ca: Option<PathBuf>,
    sha256: String,
    version: u64,
    accepted_us: u64,
    campaign_key: Option<String>,
    limits: [Option<String>; 5],
}

impl StateFields {
    fn check(self) -> Result<JoinedDevice, String> {
        let Self { collector, name, token, ca, sha256, version, accepted_us, .. } = self;
        let is_hash = sha256.len() == HASH_DIGITS && sha256.bytes().all(|b| b.is_ascii_hexdigit());
        let campaign_key = self.campaign_key.map(PublicKey::try_from).transpose();
        Ok(JoinedDevice {
            collector: CollectorUrl::parse(&collector).map_err(|error| error.to_string())?,
            name,
            token: Token::parse(&token).ok_or("`token` is not a token")?,
            ca,
            consent: AcceptedConsent {
                version: u32::try_from(version).map_err(|_| "`consent-version` is out of range")?,
                sha256: is_hash.then_some(sha256).ok_or("`consent-sha256` is not a hash")?,
                accepted_us,
            },
            campaign_key: campaign_key.map_err(|reason| format!("`campaign-key`: {reason}"))?,
            limits: OwnerLimits::parse(&self.limits)?,
        })
    }
}

/// Returns a string of TOML. Its escapes are those of JSON, and DEL.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// File with the state of a device.
#[derive(Debug)]
pub(crate) struct DeviceFile {
    path: PathBuf,
    /// True if the user has named the file, so that the mode of an existing folder is kept.
    is_named: bool,
}

impl DeviceFile {
    /// Returns the device that has joined this collector with the default file, if one has.
    pub(super) fn joined(url: &CollectorUrl) -> Result<Option<JoinedDevice>, CliError> {
        let Ok(file) = Self::find(None) else { return Ok(None) };
        Ok(file.load()?.filter(|device| device.collector == *url))
    }

    /// Returns the file that the user has named, else `agent.toml` in the configuration folder.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, CliError> {
        if let Some(path) = named {
            return Ok(Self { path: path.to_owned(), is_named: true });
        }
        let path = default_path().ok_or_else(|| CliError::Unavailable {
            what: "no folder is known for the state of the device".to_owned(),
            hint: "set `XDG_CONFIG_HOME` or `HOME`, or use `towpath agent --config FILE`"
                .to_owned(),
        })?;
        Ok(Self { path, is_named: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the folder of the file, which must exist, for other files of the device.
    pub(crate) fn existing_folder(&self) -> Result<Dir, CliError> {
        let (folder, _) = self.parts()?;
        Dir::existing_private(folder).map_err(|source| self.unwritable(source))
    }

    /// Reads the device; `None` without a file.
    pub(crate) fn load(&self) -> Result<Option<JoinedDevice>, CliError> {
        let (folder, name) = self.parts()?;
        let shown = self.path.display();
        let read = || match shared_mode(&self.path)? {
            Some(mode) => Ok(Err(mode)),
            None => Dir::existing_private(folder)?.read_private(name, MAX_STATE_BYTES).map(Ok),
        };
        let bytes = match read() {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(mode)) => {
                let what = format!("other users can access `{shown}` (mode {mode:o})");
                let hint = format!("it contains a token: `chmod 600 {shown}`");
                return Err(CliError::Unavailable { what, hint });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.unreadable(source)),
        };
        let text = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned());
        let device = text.and_then(|text| JoinedDevice::parse(&text));
        device.map(Some).map_err(|reason| CliError::Unavailable {
            what: format!("`{shown}` is damaged: {reason}"),
            hint: "restore the file, or remove it with `towpath agent forget --local` and join \
                   again"
                .to_owned(),
        })
    }

    /// Reads the device, which must have joined.
    pub(crate) fn load_joined(&self) -> Result<JoinedDevice, CliError> {
        self.load()?.ok_or_else(|| CliError::Unavailable {
            what: format!("this device has not joined a collector: no `{}`", self.path.display()),
            hint: "`towpath agent join URL CODE`, with a code of the collector's operator"
                .to_owned(),
        })
    }

    /// Checks that a device can be stored, before a code is used up.
    pub(crate) fn verify_writable(&self) -> Result<(), CliError> {
        let (_, name) = self.parts()?;
        let try_write = || self.open()?.create_temp(name, ReadAccess::OwnerOnly).map(drop);
        try_write().map_err(|source| self.unwritable(source))
    }

    /// Stores the device. The old state stays if this fails.
    pub(crate) fn store(&self, device: &JoinedDevice) -> Result<(), CliError> {
        let (_, name) = self.parts()?;
        let write = || {
            let folder = self.open()?;
            let mut file = folder.create_temp(name, ReadAccess::OwnerOnly)?;
            file.file().write_all(device.to_toml().as_bytes())?;
            file.file().sync_all()?;
            file.persist().map(drop)
        };
        write().map_err(|source| self.unwritable(source))
    }

    /// Removes the file, whose folder must exist.
    pub(crate) fn remove(&self) -> Result<(), CliError> {
        let (folder, name) = self.parts()?;
        let remove = || Dir::existing_private(folder)?.remove(name);
        remove().map_err(|source| self.unwritable(source))
    }

    /// Opens the folder of the file, and makes it if it is missing.
    fn open(&self) -> io::Result<Dir> {
        let (folder, _) = self.parts().map_err(io::Error::other)?;
        if self.is_named && folder.exists() {
            return Dir::existing_private(folder);
        }
        Dir::private(folder, ReadAccess::OwnerOnly)
    }

    /// Returns the folder and the name of the file.
    fn parts(&self) -> Result<(&Path, &OsStr), CliError> {
        let folder = self
            .path
            .parent()
            .map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
        folder.zip(self.path.file_name()).ok_or_else(|| CliError::Unavailable {
            what: format!("`{}` is not the name of a file", self.path.display()),
            hint: "`--config` expects a file, such as `agent.toml`".to_owned(),
        })
    }

    fn unreadable(&self, source: io::Error) -> CliError {
        match UnsafePath::of(&source) {
            Some(refusal) => CliError::failed(refusal.clone(), Some(refusal.hint().to_owned())),
            None => CliError::Read { path: self.path.clone(), source },
        }
    }

    fn unwritable(&self, source: io::Error) -> CliError {
        CliError::unwritable(&self.path, source, Some("use `towpath agent --config FILE`"))
    }
}

/// Returns `$XDG_CONFIG_HOME/towpath/agent.toml`, else `~/.config/towpath/agent.toml`; `None`
/// without both.
fn default_path() -> Option<PathBuf> {
    let env_path =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The specification of XDG folders has relative paths ignored.
    let config = env_path("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| Some(env_path("HOME")?.join(".config")))?;
    Some(config.join("towpath").join("agent.toml"))
}

/// Returns the mode of a file that the group or other users can access; `None` for a private one.
#[cfg(unix)]
fn shared_mode(path: &Path) -> io::Result<Option<u32>> {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = path.symlink_metadata()?;
    let mode = metadata.permissions().mode() & 0o7777;
    Ok((metadata.is_file() && mode & 0o077 != 0).then_some(mode))
}

/// Returns `None`: only Unix has modes.
#[cfg(not(unix))]
fn shared_mode(_path: &Path) -> io::Result<Option<u32>> {
    Ok(None)
}

#[cfg(test)]
mod tests;
