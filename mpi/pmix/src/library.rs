//! The functions of the libpmix that is loaded at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;

use crate::abi::{DataArray, DataType, FoundCallback, OpCallback, Proc, ServerModule, Status};

/// The name by which the dynamic loader finds the library.
const SYSTEM_LIBRARY: &CStr = c"libpmix.so.2";
/// The package that contains the library.
const PACKAGE_ADVICE: &str = "install libpmix (Debian: libpmix2)";
/// The first major version that is not supported.
const UNKNOWN_MAJOR_VERSION: u32 = 6;
/// The oldest version that has all functions.
const OLDEST_VERSION: (u32, u32) = (4, 2);

/// Frees an array of pmix_info_t.
type InfoFree = unsafe extern "C" fn(*mut c_void, usize);

/// Declares the functions of libpmix that are used, and a function that loads them.
macro_rules! functions {
    ($($name:ident $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of libpmix. Any thread may call them.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// PMIx_Info_free, which version 4 does not have.
            pub info_free: Option<InfoFree>,
        }

        impl Functions {
            /// # Errors
            /// Returns the name of the first function that the library does not have.
            fn of(handle: Handle) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let symbol = handle.symbol($symbol).ok_or($symbol)?;
                        // SAFETY: the library's header declares the function in this way.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*
                    info_free: handle.symbol("PMIx_Info_free").map(|symbol| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, InfoFree>(symbol) }
                    }),
                })
            }
        }
    };
}

functions! {
    get_version "PMIx_Get_version": fn() -> *const c_char;
    error_string "PMIx_Error_string": fn(Status) -> *const c_char;
    server_init "PMIx_server_init": fn(*mut ServerModule, *mut c_void, usize) -> Status;
    register_namespace "PMIx_server_register_nspace":
        fn(*const u8, c_int, *mut c_void, usize, Option<OpCallback>, *mut c_void) -> Status;
    register_client "PMIx_server_register_client":
        fn(*const Proc, u32, u32, *mut c_void, Option<OpCallback>, *mut c_void) -> Status;
    deregister_client "PMIx_server_deregister_client":
        fn(*const Proc, Option<OpCallback>, *mut c_void);
    dmodex_request "PMIx_server_dmodex_request":
        fn(*const Proc, Option<FoundCallback>, *mut c_void) -> Status;
    setup_fork "PMIx_server_setup_fork": fn(*const Proc, *mut *mut *mut c_char) -> Status;
    generate_regex "PMIx_generate_regex": fn(*const c_char, *mut *mut c_char) -> Status;
    generate_ppn "PMIx_generate_ppn": fn(*const c_char, *mut *mut c_char) -> Status;
    info_list_start "PMIx_Info_list_start": fn() -> *mut c_void;
    info_list_add "PMIx_Info_list_add":
        fn(*mut c_void, *const c_char, *const c_void, DataType) -> Status;
    info_list_convert "PMIx_Info_list_convert": fn(*mut c_void, *mut DataArray) -> Status;
    info_list_release "PMIx_Info_list_release": fn(*mut c_void);
}

/// A library that is never closed.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    fn open(path: &CStr) -> Result<Self, String> {
        // SAFETY: the path is a C string. The library's initialization code is trusted like that of
        // all libraries of the user's program, because this process has only the user's rights.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            // SAFETY: dlopen has failed in this thread, and the text is valid until the next call.
            return Err(unsafe { c_text(libc::dlerror()) });
        }
        Ok(Self(handle))
    }

    fn symbol(self, name: &'static str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the arguments are a handle of dlopen and a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

/// The text of a C string. Empty for a null pointer.
///
/// # Safety
/// `text` is null or points to a string that ends with a NUL byte.
pub unsafe fn c_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller promises it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The major and minor version in a text such as "OpenPMIx 4.2.2 (PMIx Standard: 4.2, ...)".
fn version_in(text: &str) -> Option<(u32, u32)> {
    let word = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let mut numbers = word?.split('.').map(str::parse);
    match (numbers.next()?, numbers.next()?) {
        (Ok(major), Ok(minor)) => Some((major, minor)),
        _ => None,
    }
}

fn check_version(text: &str) -> Result<(), String> {
    match version_in(text) {
        Some(version) if version >= OLDEST_VERSION && version.0 < UNKNOWN_MAJOR_VERSION => Ok(()),
        _ => Err(format!(
            "version '{text}' is not supported (supported: {}.{} to {})",
            OLDEST_VERSION.0,
            OLDEST_VERSION.1,
            UNKNOWN_MAJOR_VERSION - 1
        )),
    }
}

impl Functions {
    /// Loads the library at this path, or the library of the system if there is no path.
    ///
    /// # Errors
    /// Returns one line if the library cannot be loaded, or if its version is not supported.
    pub fn load(path: Option<&[u8]>) -> Result<&'static Self, String> {
        let path =
            path.map(CString::new).transpose().map_err(|_| "the path contains a NUL byte")?;
        let path = path.as_deref().unwrap_or(SYSTEM_LIBRARY);
        let shown = path.to_string_lossy();
        let handle = Handle::open(path)
            .map_err(|error| format!("no PMIx for Open MPI: {error}; {PACKAGE_ADVICE}"))?;
        let functions = Self::of(handle).map_err(|symbol| {
            format!("{shown}: {symbol} not found: unsupported version; {PACKAGE_ADVICE} 4.2 to 5")
        })?;
        // SAFETY: the function has no arguments and returns a constant.
        let version = unsafe { c_text((functions.get_version)()) };
        check_version(&version).map_err(|reason| format!("{shown}: {reason}; {PACKAGE_ADVICE}"))?;
        Ok(Box::leak(Box::new(functions)))
    }

    /// Converts the status that a call of `name` has returned.
    ///
    /// # Errors
    /// Returns one line with the text of the status.
    pub fn check(&self, name: &str, status: Status) -> Result<(), String> {
        if status == crate::abi::SUCCESS || status == crate::abi::OPERATION_SUCCEEDED {
            return Ok(());
        }
        // SAFETY: the function accepts any number and returns a constant.
        let text = unsafe { c_text((self.error_string)(status)) };
        Err(format!("{name}: {text} ({status})"))
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Functions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_versions_are_refused() {
        for (text, is_known) in [
            ("OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0)", true),
            ("OpenPMIx 5.0.11rc1 (PMIx Standard: 5.1)", true),
            ("OpenPMIx 6.0.0", false),
            ("OpenPMIx 7.0.0", false),
            ("OpenPMIx 4.1.2", false),
            ("PMIx", false),
            ("", false),
        ] {
            assert_eq!(check_version(text).is_ok(), is_known, "{text}");
        }
    }

    #[test]
    fn a_library_that_is_absent_is_named() {
        let error = Functions::load(Some(b"/nonexistent/libpmix.so.2")).unwrap_err();
        assert!(error.contains("/nonexistent/libpmix.so.2"), "{error}");
    }
}
