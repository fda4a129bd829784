//! The functions that would have been called without a preloaded library, for such libraries.

// UNSAFETY: calls the dynamic loader.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the MPI library, or of a tool between it and the program (MPI 4.1, 15.2). It is
/// looked up at its first call: a library that comes later must not be needed by a shell.
#[derive(Debug)]
pub struct NextFunction {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl NextFunction {
    /// The one of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. `own`: the function that takes its place. If there is none, the process ends,
    /// as it would have without this library.
    #[inline(always)]
    pub fn address(&self, own: *const c_void) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up(own) } else { address }
    }

    #[cold]
    fn look_up(&self, own: *const c_void) -> *mut c_void {
        let Some(address) = find(self.name, own) else {
            let name = self.name.to_string_lossy();
            eprintln!("SCore: no MPI library of this process has {name}");
            std::process::exit(127);
        };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The next function of this name, in the order of symbol lookup; else that of any library. A
/// library that was opened for one module only is not in that order: mpi4py opens MPI so.
pub fn find(name: &CStr, own: *const c_void) -> Option<*mut c_void> {
    let is_other = |address: &*mut c_void| !address.is_null() && address.cast_const() != own;
    // SAFETY: the argument is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    Some(next).filter(is_other).or_else(|| {
        loaded_libraries().iter().find_map(|path| {
            // SAFETY: a C string. The library is loaded already, so that no code of it runs.
            let library =
                unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if library.is_null() {
                return None;
            }
            // SAFETY: a handle of dlopen, closed once. The library stays: it is loaded otherwise.
            let address = unsafe {
                let address = libc::dlsym(library, name.as_ptr());
                libc::dlclose(library);
                address
            };
            Some(address).filter(is_other)
        })
    })
}

fn loaded_libraries() -> Vec<CString> {
    unsafe extern "C" fn add(
        info: *mut libc::dl_phdr_info,
        _len: usize,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: the library's record, and the list below; a name is a C string.
        let (name, paths) = unsafe { ((*info).dlpi_name, &mut *paths.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(name) };
            // The program itself has no name.
            if !name.is_empty() {
                paths.push(name.to_owned());
            }
        }
        0
    }
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `add` uses the list during the call only.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut paths).cast()) };
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_also_where_its_library_was_opened_for_one_module_only() {
        let own = std::ptr::null();
        assert!(find(c"malloc", own).is_some());
        let name = c"zlibVersion";
        if find(name, own).is_some() {
            return;
        }
        // SAFETY: C strings; the library's code may be run.
        let library = unsafe { libc::dlopen(c"libz.so.1".as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null(), "libz is needed");
        let found = find(name, own).unwrap();
        assert_eq!(find(name, found), None, "it is not another one");
        assert_eq!(find(c"no_such_function", own), None);
    }
}
