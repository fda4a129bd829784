//! Finds the functions that would have been called if a preloaded library were absent. For
//! preloaded libraries.

// UNSAFETY: calls the dynamic loader.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the MPI library, or of a tool between that library and the program (MPI 4.1,
/// 15.2). It is looked up at its first call, because a shell that never calls it has no MPI
/// library.
#[derive(Debug)]
pub struct NextFunction {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl NextFunction {
    /// The function of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The address of the function. `own` is the function that wraps it. If there is none, the
    /// process ends, as it would have done without the preloaded library.
    #[inline(always)]
    pub fn address(&self, own: *const c_void) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up(own) } else { address }
    }

    #[cold]
    fn look_up(&self, own: *const c_void) -> *mut c_void {
        let Some(address) = find(self.name, own) else {
            let name = self.name.to_string_lossy();
            eprintln!("SCore: {name}: not found in the MPI libraries of this process");
            std::process::exit(127);
        };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The next function of this name in the order of symbol lookup, otherwise the function of any
/// loaded library. A library that was opened for one module only is not in that order; mpi4py opens
/// MPI in this way.
pub fn find(name: &CStr, own: *const c_void) -> Option<*mut c_void> {
    let is_other = |address: &*mut c_void| !address.is_null() && address.cast_const() != own;
    // SAFETY: the argument is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    Some(next).filter(is_other).or_else(|| {
        loaded_libraries().iter().find_map(|path| {
            // SAFETY: the argument is a C string. The library is already loaded, so dlopen runs
            // none of its code.
            let library =
                unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if library.is_null() {
                return None;
            }
            // SAFETY: the handle is from dlopen and closed once. The library remains loaded,
            // because it has other users.
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
        // SAFETY: the loader passes a library's record and the list below. A name is a C string.
        let (name, paths) = unsafe { ((*info).dlpi_name, &mut *paths.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(name) };
            // The program itself has an empty name.
            if !name.is_empty() {
                paths.push(name.to_owned());
            }
        }
        0
    }
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `add` uses the list only during the call.
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
        // SAFETY: the argument is a C string, and the library's initialization code is harmless.
        let library = unsafe { libc::dlopen(c"libz.so.1".as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null(), "libz is needed");
        let found = find(name, own).unwrap();
        assert_eq!(find(name, found), None, "it is not another one");
        assert_eq!(find(c"no_such_function", own), None);
    }
}
