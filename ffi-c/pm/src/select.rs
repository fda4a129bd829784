//! Blocking receive: pm(3), manual 3.3.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::c_int;

use score_pm::{Context, Error};

use crate::{array, in_out, int, non_negative, to_errno};

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetFd(pmc: *mut Context, fd: *mut c_int, nfdp: *mut c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, nfd) = unsafe { (Context::from_ptr(pmc)?, in_out(nfdp)?) };
        let capacity = non_negative(*nfd)? as usize;
        let count = pmc.fd_count()?;
        *nfd = int(count);
        if capacity < count {
            return Err(Error::NoSpace);
        }
        // SAFETY: the rule of the crate.
        *nfd = int(pmc.get_fds(unsafe { array(fd, count) }?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmBeforeSelect(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.before_select()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmAfterSelect(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.after_select()
    })
}
