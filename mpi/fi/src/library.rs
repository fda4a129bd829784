//! The libfabric that has loaded the provider. A process may have several copies of libfabric,
//! which may be hidden from each other. The provider therefore looks functions up in the copy that
//! has loaded it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::FiInfo;

type DupInfo = unsafe extern "C" fn(*const FiInfo) -> *mut FiInfo;
type FreeInfo = unsafe extern "C" fn(*mut FiInfo);

/// The functions of a libfabric.
pub(crate) struct Library {
    pub(crate) version: u32,
    dupinfo: DupInfo,
    freeinfo: FreeInfo,
}

/// The libfabric that has loaded the provider last. It is never freed.
static LIBRARY: AtomicPtr<Library> = AtomicPtr::new(null_mut());

/// Records that `library` has loaded the provider.
pub(crate) fn set_current(library: Library) {
    LIBRARY.store(Box::into_raw(Box::new(library)), Ordering::Release);
}

/// The libfabric that has loaded the provider.
pub(crate) fn current() -> Option<&'static Library> {
    // SAFETY: the pointer is NULL, or `set_current` has leaked it.
    unsafe { LIBRARY.load(Ordering::Acquire).as_ref() }
}

impl Library {
    /// The library that contains this instruction.
    pub(crate) fn of_address(address: *const c_void) -> Option<Self> {
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
