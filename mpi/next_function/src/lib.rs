//! Finds the functions that would have been called if a preloaded library were absent. Preloaded
//! libraries use this crate.

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

    /// The address of the function. If there is none, the process ends, as it would have done
    /// without the preloaded library.
    #[inline(always)]
    pub fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up() } else { address }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let Some(address) = find(self.name) else {
            let name = self.name.to_string_lossy();
            eprintln!("SCore: {name}: not found in the MPI libraries of this process");
            std::process::exit(127);
        };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Returns the next function of this name in the order of symbol lookup. If there is none, searches
/// the libraries that were loaded after the calling library. A library that was opened for one
/// module only is not in the order of symbol lookup; mpi4py opens MPI in this way. Earlier
/// libraries, such as another preloaded one, are not searched, because their function of this name
/// calls the function of this library.
pub fn find(name: &CStr) -> Option<*mut c_void> {
    let is_found = |address: &*mut c_void| !address.is_null();
    // SAFETY: the argument is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    Some(next).filter(is_found).or_else(|| {
        LaterLibraries::find().paths.iter().find_map(|path| {
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
            Some(address).filter(is_found)
        })
    })
}

/// An address in the library or program that contains this code.
static IN_THIS_LIBRARY: u8 = 0;

/// The libraries that were loaded after the one that contains this code.
#[derive(Default)]
struct LaterLibraries {
    /// Whether the loader has already listed the library with this code.
    is_after_this: bool,
    paths: Vec<CString>,
}

impl LaterLibraries {
    fn find() -> Self {
        let mut libraries = Self::default();
        // SAFETY: `add` uses the list only during the call.
        unsafe { libc::dl_iterate_phdr(Some(Self::add), (&raw mut libraries).cast()) };
        libraries
    }

    /// Called by the loader for each library, in the order in which they were loaded.
    unsafe extern "C" fn add(
        info: *mut libc::dl_phdr_info,
        _len: usize,
        libraries: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a library's record and the list of `find`.
        let (info, libraries) = unsafe { (&*info, &mut *libraries.cast::<Self>()) };
        if libraries.is_after_this && !info.dlpi_name.is_null() {
            // SAFETY: the name in a record is a C string.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) };
            libraries.paths.push(name.to_owned());
        }
        // SAFETY: the record has this number of program headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let address = (&raw const IN_THIS_LIBRARY).addr() as u64;
        libraries.is_after_this |=
            headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
                let offset = address.wrapping_sub(info.dlpi_addr).wrapping_sub(header.p_vaddr);
                offset < header.p_memsz
            });
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_a_library_opened_with_local_scope_is_found() {
        assert!(find(c"malloc").is_some());
        let name = c"zlibVersion";
        if find(name).is_some() {
            return;
        }
        // SAFETY: the argument is a C string, and the library's initialization code is harmless.
        let library = unsafe { libc::dlopen(c"libz.so.1".as_ptr(), libc::RTLD_LAZY) };
        assert!(!library.is_null(), "libz is needed");
        assert!(find(name).is_some());
        assert_eq!(find(c"no_such_function"), None);
    }
}
