//! The callbacks that libpmix calls from its own thread for requests of processes of this host.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::slice_from_raw_parts;
use std::time::Duration;

use score_proto::ids::ElementIndex;
use score_proto::pmix::PmixReport;

use crate::abi::{
    ERR_BAD_PARAM, ERR_NOT_SUPPORTED, GROUP_CONSTRUCT, Info, InfoCallback, ModexCallback,
    OPERATION_SUCCEEDED, OpCallback, Proc, SUCCESS, ServerModule, Status, TYPE_BYTE_OBJECT,
    TYPE_INT, TYPE_INT32, TYPE_UINT, TYPE_UINT32,
};
use crate::callers::{Callback, Caller, GroupFacts};
use crate::keys;
use crate::library::c_text;
use crate::log::log;
use crate::namespace::hash;
use crate::server::{FENCE_TAG, SERVER};

/// The table of the callbacks for libpmix.
pub const MODULE: ServerModule = ServerModule {
    client_connected: None,
    client_finalized: Some(client_finalized),
    abort: Some(abort),
    fence_nb: Some(fence),
    direct_modex: Some(direct_modex),
    not_served: [None; 12],
    log: Some(log),
    not_served_either: [None; 7],
    group: Some(group),
    fabric: None,
    client_connected2: Some(client_connected),
    later: [None; 32],
};

/// A tag that distinguishes groups of the same processes.
fn group_tag(id: &str) -> u64 {
    hash(id.bytes()).max(FENCE_TAG + 1)
}

/// The most characters of the text of MPI_Abort that are passed on.
const MAX_ABORT_TEXT_LEN: usize = 1000;

/// Reports an action of a process, with its element and rank.
fn report_of(process: *const Proc, report: impl FnOnce(ElementIndex, u32) -> PmixReport) -> Status {
    let Some(server) = SERVER.get() else { return ERR_NOT_SUPPORTED };
    let Some((element, rank)) = server.rank_of(process) else { return ERR_BAD_PARAM };
    server.report(&report(element, rank));
    OPERATION_SUCCEEDED
}

/// The processes that take part in a call. None: there is none.
///
/// # Safety
/// `processes` is null, or an array of `count` processes that libpmix keeps during the call.
unsafe fn participants<'a>(processes: *const Proc, count: usize) -> Option<&'a [Proc]> {
    if processes.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller promises it.
    Some(unsafe { &*slice_from_raw_parts(processes, count) })
}

extern "C" fn client_connected(
    process: *const Proc,
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: Option<OpCallback>,
    _: *mut c_void,
) -> Status {
    report_of(process, |element, rank| PmixReport::Connected { element, rank })
}

extern "C" fn client_finalized(
    process: *const Proc,
    _: *mut c_void,
    _: Option<OpCallback>,
    _: *mut c_void,
) -> Status {
    // The client continues only after this function, so the shepherd gets the report before the
    // client exits.
    report_of(process, |element, rank| PmixReport::Finalized { element, rank })
}

extern "C" fn abort(
    process: *const Proc,
    _: *mut c_void,
    code: c_int,
    text: *const c_char,
    _: *mut Proc,
    _: usize,
    _: Option<OpCallback>,
    _: *mut c_void,
) -> Status {
    // SAFETY: the pointer is NULL or a C string.
    let text = unsafe { c_text(text) }.chars().take(MAX_ABORT_TEXT_LEN).collect();
    report_of(process, |element, rank| PmixReport::Aborted { element, rank, code, text })
}

extern "C" fn fence(
    processes: *const Proc,
    process_count: usize,
    _: *const c_void,
    _: usize,
    data: *mut c_char,
    len: usize,
    callback: Option<ModexCallback>,
    argument: *mut c_void,
) -> Status {
    let entries = take_bytes(data, len);
    // SAFETY: libpmix passes an array of this length, as its header says.
    let processes = unsafe { participants(processes, process_count) };
    let (Some(server), Some(callback), Some(processes)) = (SERVER.get(), callback, processes)
    else {
        return ERR_BAD_PARAM;
    };
    let caller = Caller { callback: Callback::Entries(callback), argument };
    server.gather(processes, FENCE_TAG, caller, entries);
    SUCCESS
}

extern "C" fn group(
    operation: c_int,
    id: *const c_char,
    processes: *const Proc,
    process_count: usize,
    directives: *const Info,
    directive_count: usize,
    callback: Option<InfoCallback>,
    argument: *mut c_void,
) -> Status {
    // SAFETY: libpmix passes an array of this length, as its header says.
    let processes = unsafe { participants(processes, process_count) };
    let (Some(server), Some(callback), Some(processes)) = (SERVER.get(), callback, processes)
    else {
        return ERR_BAD_PARAM;
    };
    // SAFETY: the pointer is NULL or a C string.
    let id = unsafe { c_text(id) };
    if operation != GROUP_CONSTRUCT {
        // The server keeps no state of a group. libpmix 5 hangs if the callback answers this call.
        return OPERATION_SUCCEEDED;
    }
    let context_id = server.context_id(&id, processes);
    // SAFETY: libpmix passes an array of this length, as its header says.
    let entries = group_data(unsafe { self::directives(directives, directive_count) });
    let facts = GroupFacts { context_id, members: processes.to_vec() };
    let caller = Caller { callback: Callback::Group(callback, facts), argument };
    // Refusals also use the callback. If this call returned an error, libpmix 5 would answer only
    // one of several ranks.
    server.gather(processes, group_tag(&id), caller, entries);
    SUCCESS
}

/// The directives of a call.
///
/// # Safety
/// `directives` is null, or an array of `count` elements that libpmix keeps during the call.
unsafe fn directives<'a>(directives: *const Info, count: usize) -> &'a [Info] {
    match directives.is_null() {
        true => &[],
        // SAFETY: the caller promises it.
        false => unsafe { &*slice_from_raw_parts(directives, count) },
    }
}

/// The data that the ranks of this host have put for a group.
fn group_data(directives: &[Info]) -> Vec<u8> {
    let mut data = Vec::new();
    for info in directives {
        if info.has_key(keys::GROUP_ENDPT_DATA) && info.value.kind == TYPE_BYTE_OBJECT {
            // SAFETY: the value has this type.
            let object = unsafe { info.value.data.bytes };
            if !object.bytes.is_null() {
                // SAFETY: the byte object is from libpmix.
                data.extend(unsafe { &*slice_from_raw_parts(object.bytes, object.size) });
            }
        }
    }
    data
}

/// The time limit of a call: PMIX_TIMEOUT in seconds. A value of 0 or less is no limit.
fn time_limit(directives: &[Info]) -> Option<Duration> {
    let info = directives.iter().find(|info| info.has_key(keys::TIMEOUT))?;
    let seconds = match info.value.kind {
        // SAFETY: the value has one of these types.
        TYPE_INT | TYPE_INT32 | TYPE_UINT | TYPE_UINT32 => unsafe { info.value.data.integer },
        _ => return None,
    };
    i32::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds.into()))
}

impl Info {
    fn has_key(&self, name: &str) -> bool {
        let key = CStr::from_bytes_until_nul(&self.key);
        key.is_ok_and(|key| key.to_bytes() == name.as_bytes())
    }
}

/// Copies an array that libpmix hands over, and frees it.
fn take_bytes(data: *mut c_char, len: usize) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the array has `len` bytes and belongs to the server from now on.
    let bytes = unsafe { &*slice_from_raw_parts(data.cast_const().cast::<u8>(), len) }.to_vec();
    // SAFETY: malloc(3) has allocated the array, and nothing uses it any more.
    unsafe { libc::free(data.cast()) };
    bytes
}

extern "C" fn direct_modex(
    process: *const Proc,
    directives: *const Info,
    directive_count: usize,
    callback: Option<ModexCallback>,
    argument: *mut c_void,
) -> Status {
    let (Some(server), Some(callback)) = (SERVER.get(), callback) else { return ERR_BAD_PARAM };
    // SAFETY: libpmix passes a process or a null pointer.
    let Some(process) = (unsafe { process.as_ref() }) else { return ERR_BAD_PARAM };
    let caller = Caller { callback: Callback::Entries(callback), argument };
    // SAFETY: libpmix passes an array of this length, as its header says.
    let time_limit = time_limit(unsafe { self::directives(directives, directive_count) });
    match server.request_entries(process, caller, time_limit) {
        Ok(()) => SUCCESS,
        Err(status) => status,
    }
}
