//! The entry point of the provider.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use crate::abi::FiProvider;
use crate::library::{self, Library};
use crate::op_table::{SUCCEEDS, op};
use crate::properties::{PROVIDER_NAME, PROVIDER_VERSION};
use crate::{fabric, info, job, kernel_symbols};

/// The oldest version that [`crate::abi`] supports.
const OLDEST_API_VERSION: u32 = 1 << 16 | 5;

/// The entry point, which libfabric calls when it has loaded the provider (fi_prov.h). It passes
/// its return address to `provider`. That address is inside the calling libfabric.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut FiProvider {
    core::arch::naked_asm!("mov rdi, [rsp]", "jmp {provider}", provider = sym provider)
}

/// The entry point; see the variant for x86-64.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut FiProvider {
    core::arch::naked_asm!("mov x0, x30", "b {provider}", provider = sym provider)
}

/// Returns the provider for the library that contains the instruction `caller`. The provider claims
/// the version of that library, because libfabric skips providers that are older than the version
/// that a program requests.
extern "C" fn provider(caller: *const c_void) -> *mut FiProvider {
    let Some(library) = Library::of_address(caller) else { return null_mut() };
    if library.version < OLDEST_API_VERSION {
        let (major, minor) = (library.version >> 16, library.version & 0xffff);
        eprintln!("libpm-fi: libfabric {major}.{minor}: too old; use 1.5 or later");
        return null_mut();
    }
    let provider = FiProvider {
        version: PROVIDER_VERSION,
        fi_version: library.version,
        context: [null_mut(); 4],
        name: PROVIDER_NAME.as_ptr().cast::<c_char>(),
        getinfo: op!(info::getinfo as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
        fabric: op!(fabric::open as unsafe extern "C" fn(_, _, _) -> _),
        cleanup: SUCCEEDS,
    };
    library::set_current(library);
    if job::is_available() {
        kernel_symbols::hide();
    }
    Box::into_raw(Box::new(provider))
}
