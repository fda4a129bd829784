//! The queries of the libfabric provider (`mpi/fi/src/idle_mark.rs`) about the calling thread. The
//! provider finds these functions by dlsym(3), so that neither library depends on the other.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use score_proto::mpi_call::{MAX_RECORDED, MpiCall};

use crate::current_call;

/// The longest description of an MPI library: MPI_MAX_LIBRARY_VERSION_STRING of MPICH.
const MAX_VERSION_LEN: usize = 8192;

/// Whether the program uses MPI in a way that lets a call end without a message.
static HAS_OTHER_SOURCES: AtomicBool = AtomicBool::new(false);
/// Whether attributes may have functions of the program.
static HAS_KEYVALS: AtomicBool = AtomicBool::new(false);

/// The calls that run the functions of attributes. These functions can do anything.
const RUN_ATTRIBUTE_FUNCTIONS: [MpiCall; 6] = [
    MpiCall::MPI_Comm_dup,
    MpiCall::MPI_Comm_dup_with_info,
    MpiCall::MPI_Comm_free,
    MpiCall::MPI_Comm_disconnect,
    MpiCall::MPI_Win_free,
    MpiCall::MPI_Finalize,
];

/// An MPI call that waits. The provider relies on this layout.
#[repr(C)]
pub struct ScoreMpiCall {
    /// The identity of the call, which no other call has.
    identity: (usize, u64),
    call: c_uint,
    arguments: [c_uint; MAX_RECORDED],
}

/// Notes that from now on a call may end without a message, so that a deadlock cannot be proved.
pub(crate) fn note_other_source() {
    HAS_OTHER_SOURCES.store(true, Ordering::Relaxed);
}

/// Notes that from now on attributes may have functions of the program.
pub(crate) fn note_keyval() {
    HAS_KEYVALS.store(true, Ordering::Relaxed);
}

fn may_run_program(call: u32) -> bool {
    HAS_KEYVALS.load(Ordering::Relaxed)
        && RUN_ATTRIBUTE_FUNCTIONS.iter().any(|listed| *listed as u32 == call)
}

/// Returns 1 and stores the call if the calling thread is in an MPI call that only a message can
/// end. Otherwise returns 0.
///
/// # Safety
/// `result` has room for a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn score_mpi_waiting_call(result: *mut ScoreMpiCall) -> c_int {
    let Some(waiting) = current_call::innermost() else { return 0 };
    if HAS_OTHER_SOURCES.load(Ordering::Relaxed)
        || may_run_program(waiting.record.call)
        || !waits_for_messages_only()
    {
        return 0;
    }
    let (identity, record) = (waiting.identity, waiting.record);
    let call = ScoreMpiCall { identity, call: record.call, arguments: record.arguments };
    // SAFETY: the caller promises that the address can be written.
    unsafe { result.write(call) };
    1
}

/// Calls `on_change` once, when the calling thread leaves its innermost MPI call or enters another
/// one.
#[unsafe(no_mangle)]
pub extern "C" fn score_mpi_notify_on_change(on_change: extern "C" fn()) {
    current_call::notify_on_change(on_change);
}

/// Whether all messages of the MPI library go through libfabric. This is certain only for MPICH,
/// which identifies itself by its version string. MPICH's own shared memory between the processes
/// of a host must also be disabled. Other libraries with the same interface may have other
/// transports.
fn waits_for_messages_only() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        // SAFETY: the argument is a C string. A program must not change the environment at the same
        // time.
        let value = unsafe { libc::getenv(c"MPIR_CVAR_NOLOCAL".as_ptr()) };
        // SAFETY: as above.
        let is_set = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"1";
        is_set && is_mpich()
    })
}

type GetLibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

fn is_mpich() -> bool {
    let Some(function) = score_next_function::find(c"MPI_Get_library_version") else {
        return false;
    };
    // SAFETY: MPI's function has this type, and may be called at any time.
    let function: GetLibraryVersion = unsafe { std::mem::transmute(function) };
    let mut text = [0u8; MAX_VERSION_LEN + 1];
    let mut len = 0;
    // SAFETY: the buffer has the size that MPI requires.
    unsafe { function(text.as_mut_ptr().cast(), &mut len) };
    text.starts_with(b"MPICH Version:")
}
