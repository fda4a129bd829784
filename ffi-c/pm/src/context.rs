//! Contexts: pm(3).

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_ulong};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use score_pm::{Context, ContextRef, Error, PmResult};

use crate::{array, in_out, int, name, non_negative, out, text, to_errno};

/// `pmContextConfig` (manual, figure 3.12).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ContextConfig {
    /// Device name.
    pub kind: *const c_char,
    /// Context number.
    pub number: c_int,
    /// Number of nodes.
    pub nodes: c_int,
    /// Longest message.
    pub mtu: usize,
    /// Bytes of memory that the context maps.
    pub size: usize,
    /// Option bits.
    pub option: c_ulong,
}

/// Descriptors that pmCreateAttachFd has made and pmCloseAttachFd has not closed.
static ATTACH_FDS: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

fn attach_fds() -> std::sync::MutexGuard<'static, BTreeSet<RawFd>> {
    ATTACH_FDS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmCloseContext(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.close()?;
        // SAFETY: into_raw released this reference; only one close succeeds.
        let _given_back = unsafe { ContextRef::from_raw(pmc) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmBindChannel(pmc: *mut Context, channel: c_int, self_node: c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?
            .bind_channel(non_negative(channel)?, non_negative(self_node)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmUnbindChannel(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.unbind_channel()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmCreateAttachFd(pmc: *mut Context, fdp: *mut c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, fdp) = unsafe { (Context::from_ptr(pmc)?, out(fdp)?) };
        let fd = pmc.create_attach_fd()?.into_raw_fd();
        attach_fds().insert(fd);
        fdp.write(fd);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn pmCloseAttachFd(fd: c_int) -> c_int {
    to_errno(|| {
        if !attach_fds().remove(&fd) {
            return Err(Error::Invalid);
        }
        // SAFETY: pmCreateAttachFd made and released it; only one close finds it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmAttachContext(
    kind: *const c_char,
    fd: c_int,
    pmcp: *mut *mut Context,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (kind, pmcp) = unsafe { (text(kind)?, out(pmcp)?) };
        let context = Context::attach(kind, duplicate(fd)?)?;
        pmcp.write(context.into_raw());
        Ok(())
    })
}

/// A new descriptor for the same open file as the caller's.
fn duplicate(fd: c_int) -> PmResult<OwnedFd> {
    non_negative(fd)?;
    // SAFETY: not -1; if it is not open, the call below fails and it is not used further.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Error::TooManyFiles,
        _ => Error::Invalid,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmDetachContext(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.detach()?;
        // SAFETY: into_raw released this reference; only one detach succeeds.
        let _given_back = unsafe { ContextRef::from_raw(pmc) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetContextConfig(pmc: *mut Context, config: *mut ContextConfig) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, config) = unsafe { (Context::from_ptr(pmc)?, out(config)?) };
        let found = pmc.config()?;
        config.write(ContextConfig {
            kind: name(found.kind),
            number: int(found.number),
            nodes: int(found.nodes),
            mtu: found.mtu,
            size: found.size,
            option: found.option,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetSelf(pmc: *mut Context, selfp: *mut c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, selfp) = unsafe { (Context::from_ptr(pmc)?, out(selfp)?) };
        selfp.write(int(pmc.self_node()? as usize));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetMtu(pmc: *mut Context, node: c_int, mtup: *mut usize) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, mtup) = unsafe { (Context::from_ptr(pmc)?, out(mtup)?) };
        mtup.write(pmc.mtu(non_negative(node)?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmSetSerialized(pmc: *mut Context, serialized: c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let pmc = unsafe { Context::from_ptr(pmc) }?;
        match serialized {
            0 | 1 => pmc.set_serialized(serialized == 1),
            _ => Err(Error::Invalid),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmSetPollPause(pmc: *mut Context, pause: c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let pmc = unsafe { Context::from_ptr(pmc) }?;
        match pause {
            0 | 1 => pmc.set_poll_pause(pause == 1),
            _ => Err(Error::Invalid),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmResetContext(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.reset()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmSaveContext(pmc: *mut Context, buf: *mut u8, sizep: *mut usize) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, size) = unsafe { (Context::from_ptr(pmc)?, in_out(sizep)?) };
        let capacity = *size;
        *size = pmc.save_size()?;
        // A buffer that is too small may be NULL, because the caller only requests the size.
        if capacity < *size {
            return Err(Error::NoSpace);
        }
        // SAFETY: the rule of the crate.
        *size = pmc.save(unsafe { array(buf, capacity) }?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmRestoreContext(pmc: *mut Context, buf: *mut u8, size: usize) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, saved) = unsafe { (Context::from_ptr(pmc)?, array(buf, size)?) };
        pmc.restore(saved)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsSendStable(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.is_send_stable()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmControlSend(
    pmc: *mut Context,
    node: c_int,
    buf: *mut u8,
    len: usize,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, message) = unsafe { (Context::from_ptr(pmc)?, array(buf, len)?) };
        pmc.control_send(non_negative(node)?, message)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmControlReceive(
    pmc: *mut Context,
    nodep: *mut c_int,
    buf: *mut u8,
    lenp: *mut usize,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, nodep, len) = unsafe { (Context::from_ptr(pmc)?, out(nodep)?, in_out(lenp)?) };
        // SAFETY: the rule of the crate.
        let buffer = unsafe { array(buf, *len) }?;
        nodep.write(int(pmc.control_receive(buffer, len)? as usize));
        Ok(())
    })
}
