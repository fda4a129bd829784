//! The functions of score_toolctl.h.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use score_tools::wire::{BODY_OFFSET, CommandSet, Control, StartNotice, TrapMode, WatchPolicy};

use crate::commands::CommandOfC;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::{ProcessHandle, array, connection, finish, process, text};

/// SCORE_TOOLCTL_ALL_RANKS.
const ALL_RANKS: c_int = -1;
/// Bytes of struct score_tools_control.
const CONTROL_LEN: usize = 64;
/// Bytes of struct score_tools_control_ack.
const CONTROL_ACK_LEN: usize = 56;
/// TD_NOLIBTHREAD and TD_VERSION of thread_db.h.
const TD_NOLIBTHREAD: c_int = 12;
const TD_VERSION: c_int = 22;
const MISSING: Failure = Failure::Argument("a pointer is NULL, or a text is not UTF-8");
const NO_CONNECTION: c_int = -libc::EINVAL;

/// Copies as much of a text into a buffer of C as fits, with a NUL.
///
/// # Safety
/// The rule of the crate.
unsafe fn put_text(room: *mut c_char, len: usize, text: &str) {
    // SAFETY: the rule of the crate.
    let Some(room) = (unsafe { array(room.cast::<u8>(), len) }) else { return };
    let Some(last) = room.len().checked_sub(1) else { return };
    let used = text.len().min(last);
    room[..used].copy_from_slice(&text.as_bytes()[..used]);
    room[used] = 0;
}

/// Returns a new connection to C, or NULL and the reason in the buffer.
///
/// # Safety
/// The rule of the crate.
unsafe fn give_connection(
    opened: Result<Connection, String>,
    room: *mut c_char,
    len: usize,
) -> *mut Connection {
    let reason = opened.as_ref().err().map_or("", String::as_str);
    // SAFETY: the rule of the crate.
    unsafe { put_text(room, len, reason) };
    opened.map_or(std::ptr::null_mut(), |connection| Box::into_raw(Box::new(connection)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_open(room: *mut c_char, len: usize) -> *mut Connection {
    // SAFETY: the rule of the crate.
    unsafe { give_connection(Connection::open(), room, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_connect(
    path: *const c_char,
    job: u64,
    tool: u32,
    room: *mut c_char,
    len: usize,
) -> *mut Connection {
    // SAFETY: the rule of the crate.
    let opened = match unsafe { text(path) } {
        Some(path) => Connection::connect(Path::new(path), job, tool),
        None => Err("the path of the socket is NULL or not UTF-8".to_owned()),
    };
    // SAFETY: the rule of the crate.
    unsafe { give_connection(opened, room, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_close(pointer: *mut Connection) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: by the rule it came from `give_connection`, and the caller no longer uses it.
    let connection = unsafe { Box::from_raw(pointer) };
    for handle in connection.handles.values() {
        // SAFETY: `score_toolctl_process` made it with Box::into_raw, and stores it only here.
        drop(unsafe { Box::from_raw(*handle) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_error(pointer: *const Connection) -> *const c_char {
    // SAFETY: the rule of the crate.
    match unsafe { pointer.as_ref() } {
        Some(connection) => connection.text.as_ptr(),
        None => c"the connection is NULL".as_ptr(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_tool(pointer: *const Connection) -> u32 {
    // SAFETY: the rule of the crate.
    unsafe { pointer.as_ref() }.map_or(0, Connection::tool)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_fd(pointer: *const Connection) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { pointer.as_ref() }.map_or(-1, Connection::descriptor)
}

/// Converts a rank of C; `None` means all ranks.
fn selected(rank: c_int) -> Result<Option<u32>, Failure> {
    match rank {
        ALL_RANKS => Ok(None),
        rank => u32::try_from(rank)
            .map(Some)
            .map_err(|_| Failure::Argument("a rank is 0 or above, or SCORE_TOOLCTL_ALL_RANKS")),
    }
}

/// Checks and converts the arguments of Attach: priority and tag.
fn identity(priority: c_int, tag: Option<&str>) -> Result<(u8, [u8; 8]), Failure> {
    // The service refuses priorities above 99.
    let priority = u8::try_from(priority)
        .map_err(|_| Failure::Argument("a priority is a number from 0 to 99"))?;
    let bytes = tag.ok_or(MISSING)?.as_bytes();
    let mut tag = [0; 8];
    let place = tag.get_mut(..bytes.len());
    place.ok_or(Failure::Argument("a tag has at most 8 bytes"))?.copy_from_slice(bytes);
    Ok((priority, tag))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_attach(
    pointer: *mut Connection,
    rank: c_int,
    priority: c_int,
    tag: *const c_char,
    ranks: *mut u32,
    number: *mut usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    let (Some(connection), tag, number) =
        (unsafe { (connection(pointer), text(tag), number.as_mut()) })
    else {
        return NO_CONNECTION;
    };
    let places = match (&number, ranks.is_null()) {
        (Some(number), false) => **number,
        _ => 0,
    };
    // SAFETY: the rule of the crate.
    let places = unsafe { array(ranks, places) }.unwrap_or_default();
    let attached = selected(rank).and_then(|rank| {
        let (priority, tag) = identity(priority, tag)?;
        connection.attach(rank, priority, tag)
    });
    let result = attached.map(|attached| {
        places.iter_mut().zip(&attached).for_each(|(place, rank)| *place = *rank);
        if let Some(number) = number {
            *number = attached.len();
        }
    });
    finish(connection, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_detach(pointer: *mut Connection, rank: c_int) -> c_int {
    // SAFETY: the rule of the crate.
    let Some(connection) = (unsafe { connection(pointer) }) else { return NO_CONNECTION };
    let result = selected(rank).and_then(|rank| connection.detach(rank));
    finish(connection, result)
}

/// Decodes the settings of Control authority; NULL means the defaults.
fn settings(message: Option<&[u8; CONTROL_LEN]>) -> Result<Control, Failure> {
    let Some(message) = message else {
        return Ok(Control {
            notify_set: 0,
            signal: 0,
            start_notice: StartNotice::DynamicLoader,
            trap_mode: TrapMode::NoChange,
            watch_policy: WatchPolicy::Propagate,
        });
    };
    let number = |offset: usize| {
        let bytes = message[offset..].first_chunk().copied().unwrap_or_default();
        u32::from_ne_bytes(bytes)
    };
    let set = message[BODY_OFFSET..].first_chunk().copied().unwrap_or_default();
    let (start, trap, policy) = (
        StartNotice::from_number(number(52)),
        TrapMode::from_number(number(56)),
        WatchPolicy::from_number(number(60)),
    );
    let (Some(start_notice), Some(trap_mode), Some(watch_policy)) = (start, trap, policy) else {
        return Err(Failure::Argument("a setting of Control has an invalid value"));
    };
    let (notify_set, signal) = (u64::from_ne_bytes(set), number(48));
    Ok(Control { notify_set, signal, start_notice, trap_mode, watch_policy })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_control(
    pointer: *mut Connection,
    rank: u32,
    message: *const [u8; CONTROL_LEN],
    holder: *mut [u8; CONTROL_ACK_LEN],
) -> c_int {
    // SAFETY: the rule of the crate; the arrays have the sizes of the structures.
    let (Some(connection), message, holder) =
        (unsafe { (connection(pointer), message.as_ref(), holder.as_mut()) })
    else {
        return NO_CONNECTION;
    };
    let asked = settings(message).and_then(|settings| connection.control(rank, settings));
    let result = asked.and_then(|(record, result)| {
        if let (Some(holder), Some(ack)) = (holder, record.first_chunk()) {
            *holder = *ack;
        }
        result.map(drop)
    });
    finish(connection, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_release(pointer: *mut Connection, rank: u32) -> c_int {
    // SAFETY: the rule of the crate.
    let Some(connection) = (unsafe { connection(pointer) }) else { return NO_CONNECTION };
    let result = connection.release(rank);
    finish(connection, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_clean_up(pointer: *mut Connection, rank: u32) -> c_int {
    // SAFETY: the rule of the crate.
    let Some(connection) = (unsafe { connection(pointer) }) else { return NO_CONNECTION };
    let result = connection.clean_up(rank);
    finish(connection, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_leave(pointer: *mut Connection) -> c_int {
    // SAFETY: the rule of the crate.
    let Some(connection) = (unsafe { connection(pointer) }) else { return NO_CONNECTION };
    let result = connection.leave();
    finish(connection, result)
}

/// Carries out a Query or an Update.
///
/// # Safety
/// The rule of the crate.
unsafe fn carry_out(
    pointer: *mut Connection,
    rank: u32,
    set: CommandSet,
    commands: *mut CommandOfC,
    number: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    let (Some(connection), commands) = (unsafe { (connection(pointer), array(commands, number)) })
    else {
        return NO_CONNECTION;
    };
    let result = match commands {
        // SAFETY: the rule of the crate.
        Some(commands) => unsafe { connection.carry_out_for_c(rank, set, commands) },
        None => Err(MISSING),
    };
    finish(connection, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_query(
    pointer: *mut Connection,
    rank: u32,
    commands: *mut CommandOfC,
    number: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { carry_out(pointer, rank, CommandSet::Query, commands, number) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_update(
    pointer: *mut Connection,
    rank: u32,
    commands: *mut CommandOfC,
    number: usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    unsafe { carry_out(pointer, rank, CommandSet::Update, commands, number) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_notice(
    pointer: *mut Connection,
    milliseconds: c_int,
    notice: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the rule of the crate.
    let (Some(connection), notice, len) =
        (unsafe { (connection(pointer), notice.as_mut(), len.as_mut()) })
    else {
        return NO_CONNECTION;
    };
    let (Some(notice), Some(len)) = (notice, len) else { return finish(connection, Err(MISSING)) };
    (*notice, *len) = (std::ptr::null(), 0);
    // A negative number means no time limit.
    let timeout = u64::try_from(milliseconds).ok().map(Duration::from_millis);
    let result = connection.next_notice(timeout).map(|record| {
        (*notice, *len) = (connection.give(&record).cast(), record.len());
    });
    finish(connection, result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_process(
    pointer: *mut Connection,
    rank: u32,
) -> *mut ProcessHandle {
    // SAFETY: the rule of the crate.
    let Some(connection) = (unsafe { connection(pointer) }) else { return std::ptr::null_mut() };
    let new = || Box::into_raw(Box::new(ProcessHandle { connection: pointer, rank }));
    *connection.handles.entry(rank).or_insert_with(new)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_view(
    pointer: *mut Connection,
    rank: u32,
    address: u64,
    len: usize,
    bytes: *mut *const c_void,
) -> c_int {
    // SAFETY: the rule of the crate.
    let Some(connection) = (unsafe { connection(pointer) }) else { return NO_CONNECTION };
    // SAFETY: the rule of the crate.
    let Some(place) = (unsafe { bytes.as_mut() }) else { return finish(connection, Err(MISSING)) };
    let result = connection.view_memory(rank, address, len).map(|view| view.as_ptr().cast());
    *place = *result.as_ref().unwrap_or(&std::ptr::null());
    finish(connection, result.map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_thread(handle: *mut ProcessHandle, id: libc::pid_t) -> u32 {
    // SAFETY: the rule of the crate.
    let Some((connection, rank)) = (unsafe { process(handle) }) else { return 0 };
    let mut thread = 0;
    let result = connection.thread(rank, id).map(|found| thread = found);
    finish(connection, result);
    thread
}

/// The version of the glibc that this tool runs with.
fn own_glibc() -> String {
    // SAFETY: the function returns a string that is never freed.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

/// The text for an error of td_ta_new.
fn thread_db_text(rank: u32, error: c_int, theirs: &str, ours: &str) -> String {
    match error {
        0 => String::new(),
        TD_VERSION | TD_NOLIBTHREAD if theirs != ours => format!(
            "rank {rank} runs with glibc {theirs}, and this tool with libthread_db of {ours}: \
             libthread_db reads processes of its own version only. Run the tool with that glibc, \
             or load (dlopen) the libthread_db.so.1 that belongs to it"
        ),
        TD_NOLIBTHREAD => format!(
            "rank {rank}: libthread_db finds no thread library in the process; its loader may not \
             have run yet"
        ),
        error => format!("rank {rank}: libthread_db returned error {error} of <thread_db.h>"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn score_toolctl_thread_db_error(
    handle: *mut ProcessHandle,
    error: c_int,
) -> *const c_char {
    // SAFETY: the rule of the crate.
    let Some((connection, rank)) = (unsafe { process(handle) }) else {
        return c"the process is NULL".as_ptr();
    };
    // The reason why a callback failed is more precise than the error of libthread_db.
    let text = match connection.glibc_version(rank) {
        Ok(theirs) => thread_db_text(rank, error, &theirs, &own_glibc()),
        Err(failure) => failure.to_string(),
    };
    connection.set_text(&text);
    connection.text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_c_are_checked() {
        assert_eq!(selected(-1).unwrap(), None);
        assert_eq!(selected(7).unwrap(), Some(7));
        assert!(selected(-2).is_err());
        assert_eq!(identity(5, Some("tag")).unwrap(), (5, *b"tag\0\0\0\0\0"));
        assert!(identity(256, Some("tag")).is_err());
        assert!(identity(-1, Some("tag")).is_err());
        assert!(identity(5, Some("nine byte")).is_err());
        assert!(identity(5, None).is_err());
        let mut message = [0; CONTROL_LEN];
        message[40] = 3;
        message[48] = 10;
        let read = settings(Some(&message)).unwrap();
        assert_eq!((read.notify_set, read.signal), (3, 10));
        message[60] = 9;
        assert!(settings(Some(&message)).is_err());
        assert_eq!(settings(None).unwrap().notify_set, 0);
    }

    #[test]
    fn other_versions_of_glibc_are_named_with_a_remedy() {
        let text = thread_db_text(3, TD_VERSION, "2.31", "2.36");
        for part in ["rank 3", "glibc 2.31", "libthread_db of 2.36", "dlopen"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(thread_db_text(3, TD_NOLIBTHREAD, "2.36", "2.36").contains("loader"));
        assert!(thread_db_text(3, 1, "2.36", "2.36").contains("error 1"));
    }

    #[test]
    fn a_text_is_truncated_to_its_buffer_and_ends_with_a_nul() {
        let mut room = [b'x'; 5];
        // SAFETY: the buffer has at least 4 bytes.
        unsafe { put_text(room.as_mut_ptr().cast(), 4, "reason") };
        assert_eq!(&room, b"rea\0x");
        // SAFETY: NULL with length 0 is valid.
        unsafe { put_text(std::ptr::null_mut(), 0, "reason") };
    }
}
