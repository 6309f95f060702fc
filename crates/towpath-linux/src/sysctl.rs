//! Settings of the kernel under `/proc/sys`.
//!
//! Those under `net` belong to the network namespace of the calling thread.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One setting, such as `net.mptcp.enabled`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sysctl {
    /// Below `/proc/sys`, with slashes: names of interfaces may have dots.
    path: String,
}

/// Why a setting could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("{action} {sysctl}: {source}")]
pub struct SysctlError {
    action: &'static str,
    sysctl: Sysctl,
    /// The system's reason.
    pub source: io::Error,
}

impl Sysctl {
    /// A setting by its name with dots; no part of it may have a dot.
    pub fn new(name: &str) -> Self {
        Self { path: name.replace('.', "/") }
    }

    /// A setting of IPv4 on one interface, such as `rp_filter`; `all` and `default` are no
    /// interfaces, but have settings too.
    pub fn ipv4(link: &str, name: &str) -> Self {
        Self { path: format!("net/ipv4/conf/{link}/{name}") }
    }

    /// A setting of IPv6 on one interface, such as `disable_ipv6`.
    pub fn ipv6(link: &str, name: &str) -> Self {
        Self { path: format!("net/ipv6/conf/{link}/{name}") }
    }

    /// The value, without the end of the line.
    pub fn read(&self) -> Result<String, SysctlError> {
        let text = fs::read_to_string(self.file()).map_err(|source| self.failed("read", source))?;
        Ok(text.trim_end().to_owned())
    }

    /// The value as a number; `None` if there is no such setting or it is none.
    pub fn number(&self) -> Option<i64> {
        self.read().ok()?.parse().ok()
    }

    /// Changes the value.
    pub fn write(&self, value: &str) -> Result<(), SysctlError> {
        fs::write(self.file(), value).map_err(|source| self.failed("set", source))
    }

    fn file(&self) -> impl AsRef<Path> {
        Path::new("/proc/sys").join(&self.path)
    }

    fn failed(&self, action: &'static str, source: io::Error) -> SysctlError {
        SysctlError { action, sysctl: self.clone(), source }
    }
}

impl fmt::Display for Sysctl {
    /// As sysctl(8) takes it: with dots, but with slashes where a part has a dot itself.
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
    fn a_setting_is_called_as_sysctl_takes_it() {
        assert_eq!(Sysctl::new("net.mptcp.enabled").to_string(), "net.mptcp.enabled");
        let of = |link| Sysctl::ipv4(link, "rp_filter").to_string();
        assert_eq!(of("eth0"), "net.ipv4.conf.eth0.rp_filter");
        assert_eq!(of("eth0.100"), "net/ipv4/conf/eth0.100/rp_filter");
    }

    #[test]
    fn a_setting_is_read_without_the_end_of_the_line() {
        assert!(Sysctl::ipv4("lo", "rp_filter").number().is_some());
        let error = Sysctl::new("net.no.such").read().unwrap_err();
        assert!(error.to_string().starts_with("read net.no.such: No such file"), "{error}");
        assert_eq!(Sysctl::new("net.no.such").number(), None);
    }
}
