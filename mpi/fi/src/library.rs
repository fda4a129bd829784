//! The entry point, and the libfabric that has loaded the provider. A process may have several
//! copies of libfabric, which may be hidden from each other. Functions are therefore looked up in
//! the copy that calls.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{FiInfo, FiProvider};
use crate::op_table::{SUCCEEDS, op};
use crate::{fabric, info, kernel_symbols};

/// The provider's own version, 1.0.
pub(crate) const PROVIDER_VERSION: u32 = 1 << 16;
/// The oldest version that [`crate::abi`] supports.
const OLDEST_API_VERSION: u32 = 1 << 16 | 5;

pub(crate) const PROVIDER_NAME: &std::ffi::CStr = c"pm";

type DupInfo = unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo;
type FreeInfo = unsafe extern "C" fn(*mut FiInfo);

/// The functions of a libfabric.
pub(crate) struct Library {
    version: u32,
    dupinfo: DupInfo,
    freeinfo: FreeInfo,
}

/// The libfabric that has called last. It is never freed.
static LIBRARY: AtomicPtr<Library> = AtomicPtr::new(null_mut());

/// The libfabric that has loaded the provider.
pub(crate) fn current() -> Option<&'static Library> {
    // SAFETY: the pointer is NULL, or `provider` has leaked it.
    unsafe { LIBRARY.load(Ordering::Acquire).as_ref() }
}

impl Library {
    /// The library that contains this instruction.
    fn of_address(address: *const c_void) -> Option<Self> {
        let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: dladdr accepts any address.
        if unsafe { libc::dladdr(address, found.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: dladdr has filled it in. All zeros would also be a valid value.
        let name = unsafe { found.assume_init() }.dli_fname;
        // SAFETY: the name is from the loader, and the library is already loaded.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the arguments are a handle of dlopen and a C string.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        };
        let (version, dupinfo, freeinfo) =
            (symbol(c"fi_version")?, symbol(c"fi_dupinfo")?, symbol(c"fi_freeinfo")?);
        // SAFETY: libfabric's functions of these names have these types (fabric.h).
        let version: unsafe extern "C" fn() -> u32 = unsafe { std::mem::transmute(version) };
        Some(Self {
            // SAFETY: as above.
            version: unsafe { version() },
            // SAFETY: as above.
            dupinfo: unsafe { std::mem::transmute::<*mut c_void, DupInfo>(dupinfo) },
            // SAFETY: as above.
            freeinfo: unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(freeinfo) },
        })
    }

    /// Allocates an info with all its attributes, filled with zeros. Returns None if there is no
    /// memory.
    pub(crate) fn allocate_info(&self) -> Option<*mut FiInfo> {
        // SAFETY: NULL requests a new info (fi_getinfo(3)).
        let info = unsafe { (self.dupinfo)(std::ptr::null()) };
        (!info.is_null()).then_some(info)
    }

    /// Frees an info.
    pub(crate) fn free_info(&self, info: *mut FiInfo) {
        // SAFETY: this library has made the info, and nothing uses it any more.
        unsafe { (self.freeinfo)(info) };
    }
}

/// The entry point, which libfabric calls when it has loaded the provider (fi_prov.h). It passes
/// its return address on, which is inside of the libfabric that has called.
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
    LIBRARY.store(Box::into_raw(Box::new(library)), Ordering::Release);
    if fabric::is_available() {
        kernel_symbols::hide();
    }
    Box::into_raw(Box::new(provider))
}
