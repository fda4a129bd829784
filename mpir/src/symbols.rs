//! The symbols of MPIR: variables and a function of a starter by which a debugger and the starter
//! communicate (CDTI 2.1). A debugger reads and writes the variables by ptrace(2) or
//! process_vm_writev(2). It may do so whenever it has stopped the starter, and sometimes while the
//! starter runs.

// UNSAFETY: exported symbols of fixed names, memory that a debugger changes, a signal disposition.
#![expect(unsafe_code)]

use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Size of [`MPIR_executable_path`] in bytes.
pub const PATH_SIZE: usize = 256;
/// Size of [`MPIR_server_arguments`] in bytes.
pub const ARGUMENTS_SIZE: usize = 4096;
/// The largest number of bytes of the text to which [`MPIR_subset_attach`] points.
pub const SUBSET_SIZE: usize = 1024;

/// Memory that a debugger may change at any time.
#[repr(transparent)]
#[derive(Debug)]
pub struct DebuggerMemory<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: this process only reads it, by volatile accesses. Any bytes are valid.
unsafe impl<const SIZE: usize> Sync for DebuggerMemory<SIZE> {}

impl<const SIZE: usize> DebuggerMemory<SIZE> {
    /// Returns a copy of the current bytes.
    pub fn read(&self) -> [u8; SIZE] {
        // SAFETY: the memory is ours and initialised, and no thread of this process writes it.
        unsafe { ptr::read_volatile(self.0.get()) }
    }
}

/// A row of [`MPIR_proctable`].
#[repr(C)]
#[derive(Debug)]
pub struct MPIR_PROCDESC {
    /// The name of the host, a C string.
    host_name: *const c_char,
    /// The path of the program, a C string.
    executable_name: *const c_char,
    /// The process id, in the PID namespace of the host.
    pid: c_int,
}

const _: () = assert!(
    size_of::<MPIR_PROCDESC>() == 24 && std::mem::offset_of!(MPIR_PROCDESC, pid) == 16,
    "the layout that debuggers know"
);

/// A debugger that needs [`MPIR_proctable`] sets this to 1, and to 0 when it leaves.
#[unsafe(no_mangle)]
pub static MPIR_being_debugged: AtomicI32 = AtomicI32::new(0);
/// The reason why [`MPIR_Breakpoint`] is called: a [`DebugState`].
#[unsafe(no_mangle)]
pub static MPIR_debug_state: AtomicI32 = AtomicI32::new(0);
/// The processes of the running stage.
#[unsafe(no_mangle)]
pub static MPIR_proctable: AtomicPtr<MPIR_PROCDESC> = AtomicPtr::new(ptr::null_mut());
/// Number of rows of [`MPIR_proctable`]. It is 0 unless the table is complete.
#[unsafe(no_mangle)]
pub static MPIR_proctable_size: AtomicI32 = AtomicI32::new(0);
/// For a debugger, this symbol means that this process starts the job and is not part of it.
#[unsafe(no_mangle)]
pub static MPIR_i_am_starter: AtomicI32 = AtomicI32::new(1);
/// For a debugger, this symbol means that ranks to which it does not attach continue by themselves.
#[unsafe(no_mangle)]
pub static MPIR_partial_attach_ok: AtomicI32 = AtomicI32::new(1);
/// The value for `start_tool --id`, a C string. Empty before the job exists.
#[unsafe(no_mangle)]
pub static MPIR_job_id: AtomicPtr<c_char> = AtomicPtr::new(c"".as_ptr().cast_mut());
/// The program of the debugger's servers, a C string.
#[unsafe(no_mangle)]
pub static MPIR_executable_path: DebuggerMemory<PATH_SIZE> =
    DebuggerMemory(UnsafeCell::new([0; PATH_SIZE]));
/// The arguments of the debugger's servers: C strings, followed by an empty string.
#[unsafe(no_mangle)]
pub static MPIR_server_arguments: DebuggerMemory<ARGUMENTS_SIZE> =
    DebuggerMemory(UnsafeCell::new([0; ARGUMENTS_SIZE]));
static SUBSET: DebuggerMemory<SUBSET_SIZE> = DebuggerMemory(UnsafeCell::new([0; SUBSET_SIZE]));
/// The ranks for which servers are started, a C string. An empty string means all ranks. The
/// debugger may write to the text or change the pointer.
#[unsafe(no_mangle)]
pub static MPIR_subset_attach: AtomicPtr<c_char> = AtomicPtr::new(SUBSET.0.get().cast());

/// A debugger sets a breakpoint here. The function consists of instructions of one byte. If a
/// debugger is killed, its breakpoint instruction stays, but it replaces only an instruction
/// without effect.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn MPIR_Breakpoint() {
    naked_asm!("nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop", "ret")
}

/// The code of [`MPIR_Breakpoint`].
#[cfg(target_arch = "x86_64")]
const BREAKPOINT_CODE: &[u8] = &[0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3];
#[cfg(not(target_arch = "x86_64"))]
const BREAKPOINT_CODE: &[u8] = &[];

/// Removes breakpoint instructions that a killed debugger has left in [`MPIR_Breakpoint`]. The next
/// debugger would take them for instructions of the program. Call this only while no debugger
/// traces this process.
///
/// # Errors
/// Returns an error if the system does not let this process change its own code.
pub fn remove_stale_breakpoints() -> io::Result<()> {
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let address = MPIR_Breakpoint as *const () as u64;
    let mut code = vec![0; BREAKPOINT_CODE.len()];
    memory.read_exact_at(&mut code, address)?;
    if code != BREAKPOINT_CODE {
        memory.write_all_at(BREAKPOINT_CODE, address)?;
    }
    Ok(())
}

/// The reason why [`MPIR_Breakpoint`] is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugState {
    /// The starter has started, and has not yet submitted a request.
    Begun = 0,
    /// The table is complete (`MPIR_DEBUG_SPAWNED`).
    Spawned = 1,
    /// A signal ends scrun and therefore the job (`MPIR_DEBUG_ABORTING`).
    Aborting = 2,
}

/// Calls [`MPIR_Breakpoint`]. A debugger may stop this process there.
pub fn call_breakpoint(state: DebugState) {
    MPIR_debug_state.store(state as c_int, Ordering::SeqCst);
    MPIR_Breakpoint();
    // The debugger may have changed variables in the meantime.
    fence(Ordering::SeqCst);
}

/// Whether a debugger has requested the table.
pub fn is_being_debugged() -> bool {
    MPIR_being_debugged.load(Ordering::SeqCst) != 0
}

/// Resets the flag if a debugger has left without resetting the flag.
pub fn reset_being_debugged() {
    MPIR_being_debugged.store(0, Ordering::SeqCst);
}

/// The address to which [`MPIR_subset_attach`] points. It can be any address.
pub fn subset_address() -> usize {
    MPIR_subset_attach.load(Ordering::SeqCst).addr()
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The index of the host's name.
    pub host: usize,
    /// The index of the program's name.
    pub program: usize,
    /// The process id.
    pub pid: c_int,
}

/// The published table, and the names to which it points.
#[derive(Debug)]
struct Table {
    rows: Box<[MPIR_PROCDESC]>,
    _names: [Vec<CString>; 2],
}

// SAFETY: the pointers point to the names, which the object owns and never changes.
unsafe impl Send for Table {}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Replaces [`MPIR_proctable`]. The size is set to 0 first, and to its new value last. A row whose
/// names do not exist is left out.
pub fn publish_table(hosts: Vec<CString>, programs: Vec<CString>, rows: &[Row]) {
    let to_entry = |row: &Row| {
        Some(MPIR_PROCDESC {
            host_name: hosts.get(row.host)?.as_ptr(),
            executable_name: programs.get(row.program)?.as_ptr(),
            pid: row.pid,
        })
    };
    let entries: Box<[MPIR_PROCDESC]> = rows.iter().filter_map(to_entry).collect();
    let mut published = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    MPIR_proctable_size.store(0, Ordering::SeqCst);
    let table = published.insert(Table { rows: entries, _names: [hosts, programs] });
    MPIR_proctable.store(table.rows.as_mut_ptr(), Ordering::SeqCst);
    let size = c_int::try_from(table.rows.len()).unwrap_or(c_int::MAX);
    MPIR_proctable_size.store(size, Ordering::SeqCst);
}

/// Publishes the identifier of the job.
pub fn set_job_id(id: CString) {
    static JOB_ID: Mutex<Option<CString>> = Mutex::new(None);
    let mut published = JOB_ID.lock().unwrap_or_else(PoisonError::into_inner);
    let id: &CStr = published.insert(id);
    MPIR_job_id.store(id.as_ptr().cast_mut(), Ordering::SeqCst);
}

extern "C" fn nothing(_: c_int) {}

/// Prevents a breakpoint instruction that a killed debugger has left in [`MPIR_Breakpoint`] from
/// killing this process.
pub fn tolerate_stale_breakpoints() {
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler accesses no memory.
    let _ = unsafe { sigaction(Signal::SIGTRAP, &action) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_breakpoint_is_removed_and_does_not_end_scrun() {
        tolerate_stale_breakpoints();
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        let address = MPIR_Breakpoint as *const () as u64;
        if cfg!(target_arch = "x86_64") {
            memory.write_all_at(&[0xcc], address).unwrap();
        }
        MPIR_Breakpoint();
        remove_stale_breakpoints().unwrap();
        let mut code = vec![0; BREAKPOINT_CODE.len()];
        File::open("/proc/self/mem").unwrap().read_exact_at(&mut code, address).unwrap();
        assert_eq!(code, BREAKPOINT_CODE);
        MPIR_Breakpoint();
    }

    #[test]
    fn the_size_of_the_table_is_its_number_of_rows_and_names_stay_valid() {
        let name = |name: &str| CString::new(name).unwrap();
        let row = |host, pid| Row { host, program: 0, pid };
        publish_table(vec![name("a"), name("b")], vec![name("/p")], &[row(1, 5), row(9, 6)]);
        assert_eq!(MPIR_proctable_size.load(Ordering::SeqCst), 1, "there is no host 9");
        let table = MPIR_proctable.load(Ordering::SeqCst);
        // SAFETY: the table has one row, and no other test publishes one.
        let (host, program, pid) = unsafe {
            let MPIR_PROCDESC { host_name, executable_name, pid } = &*table;
            (CStr::from_ptr(*host_name), CStr::from_ptr(*executable_name), *pid)
        };
        assert_eq!((host, program, pid), (c"b", c"/p", 5));
    }
}
