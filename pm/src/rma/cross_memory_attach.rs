//! Copies between this process and another one, by addresses (process_vm_readv and
//! process_vm_writev). A copy fails if memory is not mapped or is read-only.

// UNSAFETY: system calls that take addresses.
#![expect(unsafe_code)]

use std::io;

/// The largest copy of one call. The kernel allows 2 GiB less a page.
const MAX_COPY_LEN: usize = 1 << 30;

/// Copies `len` bytes at `local_addr` of this process to `remote_addr` in process `pid`.
pub(crate) fn copy_to(
    pid: i32,
    local_addr: usize,
    remote_addr: usize,
    len: usize,
) -> io::Result<()> {
    transfer(local_addr, remote_addr, len, |local, remote| {
        // SAFETY: the kernel checks every address and writes only in the other process.
        unsafe { libc::process_vm_writev(pid, local, 1, remote, 1, 0) }
    })
}

/// Copies `len` bytes at `remote_addr` in process `pid` to `local_addr` of this process.
///
/// # Safety
/// All users of the `len` bytes at `local_addr` expect them to change.
pub(crate) unsafe fn copy_from(
    pid: i32,
    local_addr: usize,
    remote_addr: usize,
    len: usize,
) -> io::Result<()> {
    transfer(local_addr, remote_addr, len, |local, remote| {
        // SAFETY: the kernel checks every address; the caller guarantees the rest.
        unsafe { libc::process_vm_readv(pid, local, 1, remote, 1, 0) }
    })
}

fn transfer(
    local_addr: usize,
    remote_addr: usize,
    len: usize,
    call: impl Fn(*const libc::iovec, *const libc::iovec) -> isize,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let chunk_len = (len - done).min(MAX_COPY_LEN);
        let iovec_at = |base: usize| libc::iovec {
            iov_base: base.wrapping_add(done) as *mut libc::c_void,
            iov_len: chunk_len,
        };
        // A copy that reaches a bad page returns the number of bytes before it, and the next call
        // fails.
        match call(&iovec_at(local_addr), &iovec_at(remote_addr)) {
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            copied if copied > 0 => done += copied as usize,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// Lets `owner` and its descendants copy into and out of this process, if Yama requires that.
/// Without Yama the call fails, and no permission is needed.
pub(crate) fn allow(owner: i32) {
    // SAFETY: takes integers and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, owner as libc::c_ulong, 0, 0, 0) };
}
