//! Seccomp filter that refers `socket()` calls for TCP sockets to the supervisor.
//!
//! Only calls in this machine's native calling convention match. All other calls pass after a few
//! filter instructions. Sockets opened in another convention (32-bit programs, x32) stay plain TCP.

/// Native calling convention, as `AUDIT_ARCH_*` (`linux/audit.h`); `None` if unknown.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: Option<u32> = Some(0xc000_00b7);
#[cfg(target_arch = "riscv64")]
const AUDIT_ARCH: Option<u32> = Some(0xc000_00f3);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const AUDIT_ARCH: Option<u32> = None;

/// Offsets in `struct seccomp_data` (`linux/seccomp.h`).
const SYSCALL_NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGS_OFFSET: u32 = 16;

/// Mask of the socket type without the `SOCK_*` flags.
const TYPE_MASK: u32 = 0xf;
/// Flags that `socket()` knows. The kernel rejects calls with others.
const TYPE_FLAGS: u32 = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32;

/// Socket that the caller requested with `socket()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketRequest {
    /// Address family: `AF_INET` or `AF_INET6`.
    pub family: libc::c_int,
    /// True for `SOCK_NONBLOCK`.
    pub nonblocking: bool,
    /// True for `SOCK_CLOEXEC`.
    pub close_on_exec: bool,
}

impl SocketRequest {
    /// Parses the arguments of `socket()`, which the kernel takes as 32-bit numbers.
    pub fn parse(arguments: [u64; 6]) -> Self {
        let [family, kind, ..] = arguments;
        let has_flag = |flag: libc::c_int| kind as u32 & flag as u32 != 0;
        Self {
            family: (family as u32).cast_signed(),
            nonblocking: has_flag(libc::SOCK_NONBLOCK),
            close_on_exec: has_flag(libc::SOCK_CLOEXEC),
        }
    }
}

/// Builds the filter that refers TCP sockets to the supervisor; `None` on a machine with an
/// unknown calling convention.
pub fn notify_on_tcp_socket() -> Option<Vec<libc::sock_filter>> {
    build_socket_filter(vec![0, libc::IPPROTO_TCP as u32], libc::SECCOMP_RET_USER_NOTIF)
}

/// Builds a filter that hides the kernel's Multipath TCP; `None` as above.
pub fn without_multipath() -> Option<Vec<libc::sock_filter>> {
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    build_socket_filter(vec![libc::IPPROTO_MPTCP as u32], refused)
}

/// Builds a filter for a user namespace with a single user.
///
/// System calls that change the identity or a file's owner return success without effect: servers
/// and captures that run as root make them. `None` as above.
pub fn fake_identity_syscalls() -> Option<Vec<libc::sock_filter>> {
    let mut calls = vec![
        libc::SYS_setgroups,
        libc::SYS_setgid,
        libc::SYS_setuid,
        libc::SYS_setresgid,
        libc::SYS_setresuid,
        libc::SYS_fchown,
        libc::SYS_fchownat,
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([libc::SYS_chown, libc::SYS_lchown]);
    let checks = [
        (ARCH_OFFSET, None, vec![AUDIT_ARCH?]),
        (SYSCALL_NR_OFFSET, None, calls.into_iter().map(|number| number as u32).collect()),
    ];
    // An error number of zero means success.
    Some(build_filter(checks, libc::SECCOMP_RET_ERRNO))
}

/// Builds a filter with `verdict` for every internet stream socket with one of the `protocols`.
fn build_socket_filter(protocols: Vec<u32>, verdict: u32) -> Option<Vec<libc::sock_filter>> {
    // The kernel uses only the low half of each argument.
    let low_half_offset = if cfg!(target_endian = "big") { 4 } else { 0 };
    let argument = |index: u32| ARGS_OFFSET + 8 * index + low_half_offset;
    let checks = [
        (ARCH_OFFSET, None, vec![AUDIT_ARCH?]),
        // An x32 call has a bit set in its number, so it does not match.
        (SYSCALL_NR_OFFSET, None, vec![libc::SYS_socket as u32]),
        (argument(0), None, vec![libc::AF_INET as u32, libc::AF_INET6 as u32]),
        (argument(1), Some(!(TYPE_MASK | TYPE_FLAGS)), vec![0]),
        (argument(1), Some(TYPE_MASK), vec![libc::SOCK_STREAM as u32]),
        (argument(2), None, protocols),
    ];
    Some(build_filter(checks, verdict))
}

/// Offset of a field, mask (`None`: all bits) and values that match.
type FieldMatch = (u32, Option<u32>, Vec<u32>);

/// Builds a filter with `verdict` for calls that match all checks.
fn build_filter(
    checks: impl IntoIterator<Item = FieldMatch>,
    verdict: u32,
) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for (offset, mask, accepted) in checks {
        program.push(statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset));
        if let Some(mask) = mask {
            program.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask));
        }
        // Each match jumps over the other matches and the default verdict.
        let mut matches_left = accepted.len() as u8;
        for value in accepted {
            let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
            program.push(libc::sock_filter { code, jt: matches_left, jf: 0, k: value });
            matches_left -= 1;
        }
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, verdict));
    program
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(architecture: u32, number: u32, arguments: [u64; 3]) -> u32 {
        run(&notify_on_tcp_socket().unwrap(), architecture, number, arguments)
    }

    /// Runs a filter as the kernel would, with the few instructions that it uses.
    fn run(
        program: &[libc::sock_filter],
        architecture: u32,
        number: u32,
        arguments: [u64; 3],
    ) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_ne_bytes());
        data.extend(architecture.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        data.extend([0; 24]);
        let (mut pc, mut accumulator) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[pc];
            pc += 1;
            let code = u32::from(code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                let offset = k as usize;
                accumulator = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
            } else if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K {
                accumulator &= k;
            } else if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K {
                pc += usize::from(if accumulator == k { jt } else { jf });
            } else {
                assert_eq!(code, libc::BPF_RET | libc::BPF_K);
                return k;
            }
        }
    }

    const SOCKET: u32 = libc::SYS_socket as u32;
    const INET: u64 = libc::AF_INET as u64;
    const STREAM: u64 = libc::SOCK_STREAM as u64;
    const TCP: u64 = libc::IPPROTO_TCP as u64;

    #[test]
    fn the_filter_denies_user_changes_and_allows_other_calls() {
        let filter = fake_identity_syscalls().unwrap();
        let verdict = |number: i64| run(&filter, AUDIT_ARCH.unwrap(), number as u32, [7; 3]);
        for number in [libc::SYS_setgroups, libc::SYS_setuid, libc::SYS_setresgid] {
            assert_eq!(verdict(number), libc::SECCOMP_RET_ERRNO);
        }
        for number in [libc::SYS_getuid, libc::SYS_socket, libc::SYS_fchmod] {
            assert_eq!(verdict(number), libc::SECCOMP_RET_ALLOW);
        }
        let foreign = run(&filter, 1, libc::SYS_setuid as u32, [7; 3]);
        assert_eq!(foreign, libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn every_form_of_tcp_socket_call_is_intercepted() {
        let native = AUDIT_ARCH.unwrap();
        for family in [libc::AF_INET, libc::AF_INET6] {
            for flags in [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, TYPE_FLAGS.cast_signed()] {
                for protocol in [0, TCP] {
                    // The upper 32 bits are arbitrary: the kernel ignores them.
                    let kind = STREAM | flags as u64 | 7 << 32;
                    let arguments = [family as u64 | 1 << 40, kind, protocol | 1 << 63];
                    assert_eq!(verdict(native, SOCKET, arguments), libc::SECCOMP_RET_USER_NOTIF);
                }
            }
        }
    }

    #[test]
    fn other_sockets_calls_and_abis_are_allowed() {
        let native = AUDIT_ARCH.unwrap();
        let allowed = |architecture, number, arguments| {
            assert_eq!(verdict(architecture, number, arguments), libc::SECCOMP_RET_ALLOW);
        };
        let tcp = [INET, STREAM, TCP];
        allowed(0x4000_0003, SOCKET, tcp); // i386, where the number is another call's
        allowed(0x4000_0028, SOCKET, tcp); // 32-bit ARM
        allowed(native, SOCKET | 0x4000_0000, tcp); // x32
        allowed(native, libc::SYS_connect as u32, tcp);
        allowed(native, SOCKET, [libc::AF_UNIX as u64, STREAM, 0]);
        allowed(native, SOCKET, [INET, libc::SOCK_DGRAM as u64, 0]);
        allowed(native, SOCKET, [INET, STREAM, 132]); // SCTP
        allowed(native, SOCKET, [INET, STREAM, libc::IPPROTO_MPTCP as u64]);
        allowed(native, SOCKET, [INET, STREAM | 0x40, TCP]); // an unknown flag
    }

    #[test]
    fn a_kernel_without_mptcp_refuses_only_mptcp_sockets() {
        let (native, filter) = (AUDIT_ARCH.unwrap(), without_multipath().unwrap());
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
        for (protocol, verdict) in
            [(libc::IPPROTO_MPTCP as u64, refused), (TCP, libc::SECCOMP_RET_ALLOW)]
        {
            assert_eq!(run(&filter, native, SOCKET, [INET, STREAM, protocol]), verdict);
        }
    }

    proptest! {
        #[test]
        fn only_tcp_sockets_are_intercepted(
            number in prop_oneof![Just(SOCKET), any::<u32>()],
            family in 0_u64..12, kind in 0_u64..0x1000, protocol in 0_u64..300,
        ) {
            let intercepted = verdict(AUDIT_ARCH.unwrap(), number, [family, kind, protocol])
                == libc::SECCOMP_RET_USER_NOTIF;
            let is_tcp = number == SOCKET
                && [INET, libc::AF_INET6 as u64].contains(&family)
                && kind & !u64::from(TYPE_FLAGS) == STREAM
                && [0, TCP].contains(&protocol);
            prop_assert_eq!(intercepted, is_tcp);
        }
    }

    #[test]
    fn socket_flags_are_parsed() {
        let kind = STREAM | libc::SOCK_CLOEXEC as u64;
        let request = SocketRequest::parse([INET, kind | 1 << 60, TCP, 0, 0, 0]);
        let expected =
            SocketRequest { family: libc::AF_INET, nonblocking: false, close_on_exec: true };
        assert_eq!(request, expected);
    }
}
