//! Checks that this kernel supports Multipath TCP.

use super::view::ObservationView;
use crate::finding::{Cause, Finding};
use crate::text;

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let here = view.here;
    let errno = here.socket_errno;
    let socket_error = || format!("socket(IPPROTO_MPTCP): {}", text::error(errno));
    if errno == 0 {
        return Vec::new();
    }
    let finding = if here.settings.contains_key("mptcp.mptcp_enabled") {
        Finding::new(
            Cause::OldMptcpFork,
            format!(
                "this kernel ({}) has the former Multipath TCP of multipath-tcp.org, version 0, which no current host supports",
                here.kernel
            ),
        )
        .with_evidence("the setting net.mptcp.mptcp_enabled exists")
        .with_evidence(socket_error())
        .hint("run an upstream kernel, Linux 5.16 or later")
    } else if errno == libc::ENOPROTOOPT || here.number("mptcp.enabled") == Some(0) {
        Finding::new(Cause::MptcpDisabled, "Multipath TCP is disabled on this host")
            .with_evidence(match here.number("mptcp.enabled") {
                Some(value) => format!("net.mptcp.enabled = {value}"),
                None => "net.mptcp.enabled cannot be read".to_owned(),
            })
            .with_evidence(socket_error())
            .fix("sysctl -w net.mptcp.enabled=1")
            .hint(
                "a file in /etc/sysctl.d with `net.mptcp.enabled=1` makes it permanent; existing listeners do not change",
            )
    } else if errno == libc::EPROTONOSUPPORT || errno == libc::EINVAL {
        Finding::new(
            Cause::KernelWithoutMptcp,
            format!("this kernel ({}) does not support Multipath TCP", here.kernel),
        )
        .with_evidence(socket_error())
        .hint(
            "required: Linux 5.6, better 5.16 or later, built with CONFIG_MPTCP (and \
               CONFIG_MPTCP_IPV6)",
        )
    } else {
        Finding::new(Cause::KernelWithoutMptcp, "Multipath TCP sockets are forbidden here")
            .with_confidence(crate::Confidence::Likely)
            .with_evidence(socket_error())
            .hint("a container's seccomp filter or a security module may forbid the protocol")
    };
    vec![finding]
}
