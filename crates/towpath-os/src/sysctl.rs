//! Settings of the kernel under `/proc/sys`.
//!
//! Those under `net` belong to the network namespace of the calling thread.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Sysctl of the network, such as `net.mptcp.enabled`.
///
/// A name from a file or a command is checked: every path is below `/proc/sys/net`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Sysctl {
    /// Path below `/proc/sys`, with slashes: names of interfaces may have dots.
    path: String,
}

/// Error of reading or changing a setting.
#[derive(Debug, thiserror::Error)]
#[error("{action} {sysctl}: {source}")]
pub struct SysctlError {
    action: &'static str,
    sysctl: Sysctl,
    /// Error of the system call.
    pub source: io::Error,
}

/// Error for a name that is not a network sysctl.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network setting, expected one such as `net/mptcp/enabled`")]
pub struct InvalidSysctl(String);

impl TryFrom<String> for Sysctl {
    type Error = InvalidSysctl;

    /// Parses the stored form, with slashes.
    fn try_from(path: String) -> Result<Self, InvalidSysctl> {
        let is_name = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control)
        };
        let relative_path = path.strip_prefix("net/");
        if relative_path.is_some_and(|rest| rest.split('/').all(is_name)) {
            Ok(Self { path })
        } else {
            Err(InvalidSysctl(path))
        }
    }
}

impl From<Sysctl> for String {
    fn from(sysctl: Sysctl) -> Self {
        sysctl.path
    }
}

impl Sysctl {
    /// Creates a setting from its name with dots; no part of the name may contain a dot.
    pub fn new(name: &str) -> Self {
        Self { path: name.replace('.', "/") }
    }

    /// Creates a setting of IPv4 on one interface, such as `rp_filter`.
    ///
    /// The pseudo-interfaces `all` and `default` have settings as well.
    pub fn ipv4(link: &str, name: &str) -> Self {
        Self { path: format!("net/ipv4/conf/{link}/{name}") }
    }

    /// Creates a setting of IPv6 on one interface, such as `disable_ipv6`.
    pub fn ipv6(link: &str, name: &str) -> Self {
        Self { path: format!("net/ipv6/conf/{link}/{name}") }
    }

    /// Returns the parts of the path below `/proc/sys`.
    pub fn parts(&self) -> Vec<&str> {
        self.path.split('/').collect()
    }

    /// Reads the value, without the end of the line.
    pub fn read(&self) -> Result<String, SysctlError> {
        let text =
            fs::read_to_string(self.file()).map_err(|source| self.to_error("read", source))?;
        Ok(text.trim_end().to_owned())
    }

    /// Returns the value as a number; `None` if it cannot be read or is not a number.
    pub fn number(&self) -> Option<i64> {
        self.read().ok()?.parse().ok()
    }

    /// Changes the value; does not create a missing setting.
    pub fn write(&self, value: &str) -> Result<(), SysctlError> {
        let file = fs::OpenOptions::new().write(true).open(self.file());
        let result = file.and_then(|mut file| file.write_all(value.as_bytes()));
        result.map_err(|source| self.to_error("set", source))
    }

    fn file(&self) -> impl AsRef<Path> {
        Path::new("/proc/sys").join(&self.path)
    }

    fn to_error(&self, action: &'static str, source: io::Error) -> SysctlError {
        SysctlError { action, sysctl: self.clone(), source }
    }
}

impl fmt::Display for Sysctl {
    /// Formats as for sysctl(8): with dots, but with slashes where a part has a dot itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.contains('.') {
            return f.write_str(&self.path);
        }
        f.write_str(&self.path.replace('/', "."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_printed_in_sysctl_syntax() {
        assert_eq!(Sysctl::new("net.mptcp.enabled").to_string(), "net.mptcp.enabled");
        let rp_filter = |link| Sysctl::ipv4(link, "rp_filter").to_string();
        assert_eq!(rp_filter("eth0"), "net.ipv4.conf.eth0.rp_filter");
        assert_eq!(rp_filter("eth0.100"), "net/ipv4/conf/eth0.100/rp_filter");
    }

    #[test]
    fn a_stored_setting_lies_below_net() {
        for path in [
            "kernel/panic",
            "net/../kernel/panic",
            "net/ipv4/../../../../etc/shadow",
            "/etc/passwd",
            "net//etc",
            "net/.",
            "net/",
            "net",
            "",
            "net/ipv4/x\ny",
        ] {
            let text = serde_json::to_string(path).unwrap();
            assert!(serde_json::from_str::<Sysctl>(&text).is_err(), "{path}");
        }
        let text = "\"net/ipv4/conf/eth0.100/rp_filter\"";
        let read: Sysctl = serde_json::from_str(text).unwrap();
        assert_eq!(read, Sysctl::ipv4("eth0.100", "rp_filter"));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn a_setting_is_read_without_the_end_of_the_line() {
        assert!(Sysctl::ipv4("lo", "rp_filter").number().is_some());
        let error = Sysctl::new("net.no.such").read().unwrap_err();
        assert!(error.to_string().starts_with("read net.no.such: No such file"), "{error}");
        assert_eq!(Sysctl::new("net.no.such").number(), None);
    }
}
