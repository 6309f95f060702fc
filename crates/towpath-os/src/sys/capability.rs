//! Capabilities of root (capabilities(7)).

use std::io;

use super::check;

/// Highest capability number tried; a kernel refuses numbers that it does not know.
const MAX_CAPABILITY: libc::c_ulong = 63;
/// Version of the structures, `_LINUX_CAPABILITY_VERSION_3` (`linux/capability.h`).
const VERSION: u32 = 0x2008_0522;

/// Linux `struct __user_cap_header_struct` (`linux/capability.h`).
#[repr(C)]
struct CapHeader {
    version: u32,
    process: i32,
}

/// Linux `struct __user_cap_data_struct`: 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops all capabilities but `kept` for programs that the calling thread starts later.
///
/// The thread itself keeps its capabilities.
pub(crate) fn limit_programs(kept: &[libc::c_ulong]) -> io::Result<()> {
    for capability in 0..=MAX_CAPABILITY {
        // SAFETY: PR_CAPBSET_READ takes a number, no pointer.
        let in_bounding_set = unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) };
        if in_bounding_set < 0 {
            break; // the kernel knows no higher number
        }
        if in_bounding_set == 1 && !kept.contains(&capability) {
            // SAFETY: PR_CAPBSET_DROP takes a number, no pointer.
            check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
        }
    }
    clear_inheritable()
}

/// Clears the inheritable set, which the bounding set does not limit.
fn clear_inheritable() -> io::Result<()> {
    let header = CapHeader { version: VERSION, process: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: both structures have the kernel's layout and live through the calls; version 3 reads
    // and writes two of `CapData`.
    unsafe {
        system_call(libc::SYS_capget, &header, data.as_mut_ptr())?;
        for set in &mut data {
            set.inheritable = 0;
        }
        system_call(libc::SYS_capset, &header, data.as_mut_ptr())
    }
}

/// Calls capget or capset.
///
/// # Safety
///
/// `data` points to two elements.
unsafe fn system_call(
    number: libc::c_long,
    header: &CapHeader,
    data: *mut CapData,
) -> io::Result<()> {
    // SAFETY: the caller vouches for `data`; the header is only read (or gets the kernel's
    // version).
    let result = unsafe { libc::syscall(number, std::ptr::from_ref(header), data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
