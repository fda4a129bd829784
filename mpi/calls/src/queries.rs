//! What the provider of libfabric (`mpi/fi/src/idle_mark.rs`) asks about the calling thread, by
//! dlsym(3), so that neither library needs the other.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use score_proto::mpi_call::{MAX_RECORDED, MpiCall};

use crate::current_call;

/// Room for the description of an MPI library: MPI_MAX_LIBRARY_VERSION_STRING of MPICH.
const MAX_VERSION_LEN: usize = 8192;

/// The program uses MPI so that a call may end without a message.
static HAS_OTHER_SOURCES: AtomicBool = AtomicBool::new(false);
/// Attributes may have functions of the program.
static HAS_KEYVALS: AtomicBool = AtomicBool::new(false);

/// The calls that run the functions of attributes: these may do anything that the program does.
const RUN_ATTRIBUTE_FUNCTIONS: [MpiCall; 6] = [
    MpiCall::MPI_Comm_dup,
    MpiCall::MPI_Comm_dup_with_info,
    MpiCall::MPI_Comm_free,
    MpiCall::MPI_Comm_disconnect,
    MpiCall::MPI_Win_free,
    MpiCall::MPI_Finalize,
];

/// A call of MPI that waits. The layout is known to the provider.
#[repr(C)]
pub struct ScoreMpiCall {
    /// Together they differ from those of any other call.
    identity: (usize, u64),
    call: c_uint,
    arguments: [c_uint; MAX_RECORDED],
}

/// From now on a call may end without a message: what it waits for cannot be proved.
pub(crate) fn note_other_source() {
    HAS_OTHER_SOURCES.store(true, Ordering::Relaxed);
}

/// From now on attributes may have functions of the program.
pub(crate) fn note_keyval() {
    HAS_KEYVALS.store(true, Ordering::Relaxed);
}

fn may_run_program(call: u32) -> bool {
    HAS_KEYVALS.load(Ordering::Relaxed)
        && RUN_ATTRIBUTE_FUNCTIONS.iter().any(|listed| *listed as u32 == call)
}

/// Whether the calling thread is in a call of MPI that only a message can end. Stores the call.
///
/// # Safety
/// There is room for a call at `result`.
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

/// Has `on_change` called, once, when the calling thread leaves its innermost call of MPI or enters
/// another one.
#[unsafe(no_mangle)]
pub extern "C" fn score_mpi_notify_on_change(on_change: extern "C" fn()) {
    current_call::notify_on_change(on_change);
}

/// Whether all messages of the MPI library go through libfabric. MPICH says so by its version, and
/// it must not have been told to use its own shared memory between the processes of a host. Other
/// libraries with the same interface have other ways.
fn waits_for_messages_only() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        // SAFETY: a string. A program that changes the environment at the same time is at fault.
        let value = unsafe { libc::getenv(c"MPIR_CVAR_NOLOCAL".as_ptr()) };
        // SAFETY: as above.
        let is_set = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"1";
        is_set && is_mpich()
    })
}

type GetLibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

fn is_mpich() -> bool {
    let Some(function) = score_next_function::find(c"MPI_Get_library_version", std::ptr::null())
    else {
        return false;
    };
    // SAFETY: a function of this type, if it is MPI's. It may be called at any time.
    let function: GetLibraryVersion = unsafe { std::mem::transmute(function) };
    let mut text = [0u8; MAX_VERSION_LEN + 1];
    let mut len = 0;
    // SAFETY: as much room as MPI wants.
    unsafe { function(text.as_mut_ptr().cast(), &mut len) };
    text.starts_with(b"MPICH Version:")
}
