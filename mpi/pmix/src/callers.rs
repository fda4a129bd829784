//! Calls of libpmix that wait for ranks of other hosts, and their answers.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::abi::{ERR_BAD_PARAM, InfoCallback, ModexCallback, Proc, SUCCESS, Status};
use crate::info_list::{Facts, InfoArray, Value, info_array};
use crate::keys;
use crate::library::Functions;

/// A call of libpmix that waits for ranks of other hosts.
#[derive(Debug)]
pub struct Caller {
    /// The callback that answers the call.
    pub callback: Callback,
    /// The argument of the callback: a pointer of libpmix.
    pub argument: *mut c_void,
}

/// The callback that answers a call.
#[derive(Debug)]
pub enum Callback {
    /// Answers a fence, or a request for the data of a rank, with data of ranks.
    Entries(ModexCallback),
    /// Answers the construction of a group, with data of ranks and with facts.
    Group(InfoCallback, GroupFacts),
}

/// The facts about a group that its ranks get.
#[derive(Debug)]
pub struct GroupFacts {
    /// The context id.
    pub context_id: usize,
    /// The members.
    pub members: Vec<Proc>,
}

// SAFETY: libpmix accepts answers from any thread, and the pointer is only passed back to libpmix.
unsafe impl Send for Caller {}

impl Caller {
    /// Answers the call with data of ranks, or with an error.
    pub fn answer(self, functions: &'static Functions, entries: Result<Vec<u8>, Status>) {
        match (self.callback, entries) {
            (Callback::Entries(callback), entries) => {
                let status = entries.as_ref().err().copied().unwrap_or(SUCCESS);
                answer_entries(callback, self.argument, status, entries.unwrap_or_default());
            }
            (Callback::Group(callback, facts), Ok(entries)) => {
                let mut list = vec![
                    (keys::GROUP_CONTEXT_ID, Value::Size(facts.context_id)),
                    (keys::GROUP_MEMBERSHIP, Value::Processes(facts.members)),
                ];
                if !entries.is_empty() {
                    list.push((keys::GROUP_ENDPT_DATA, Value::Bytes(entries)));
                }
                answer_group(functions, callback, self.argument, &list);
            }
            (Callback::Group(callback, _), Err(status)) => {
                // SAFETY: the callback and its argument are those of a waiting call.
                unsafe { callback(status, null_mut(), 0, self.argument, None, null_mut()) };
            }
        }
    }
}

/// An answer about a group. It is freed when libpmix has read it.
struct GroupAnswer {
    functions: &'static Functions,
    array: InfoArray,
}

fn answer_group(
    functions: &'static Functions,
    callback: InfoCallback,
    argument: *mut c_void,
    facts: &Facts,
) {
    let (status, mut array) = match info_array(functions, facts) {
        Ok(array) => (SUCCESS, array),
        Err(_) => (ERR_BAD_PARAM, InfoArray::empty()),
    };
    let (start, count) = array.elements();
    let answer = Box::into_raw(Box::new(GroupAnswer { functions, array }));
    // SAFETY: the callback and its argument are those of a waiting call. The array is valid until
    // libpmix calls `free_group_answer`.
    unsafe { callback(status, start, count, argument, Some(free_group_answer), answer.cast()) };
}

extern "C" fn free_group_answer(answer: *mut c_void) {
    // SAFETY: `answer_group` has made the answer, and libpmix calls this function once.
    let answer = unsafe { Box::from_raw(answer.cast::<GroupAnswer>()) };
    answer.array.free(answer.functions);
}

/// Answers a call. `entries` live until libpmix has read them.
fn answer_entries(
    callback: ModexCallback,
    argument: *mut c_void,
    status: Status,
    entries: Vec<u8>,
) {
    let entries = Box::into_raw(Box::new(entries));
    // SAFETY: the line above has made the entries, and only `free_entries` frees them.
    let (bytes, len) = unsafe { ((*entries).as_ptr(), (*entries).len()) };
    // SAFETY: the callback and its argument are those of a waiting call. It is answered once,
    // because `Caller::answer` consumes it.
    unsafe {
        callback(status, bytes.cast(), len, argument, Some(free_entries), entries.cast());
    }
}

extern "C" fn free_entries(entries: *mut c_void) {
    // SAFETY: `answer_entries` has made the entries, and libpmix calls this function once.
    drop(unsafe { Box::from_raw(entries.cast::<Vec<u8>>()) });
}
