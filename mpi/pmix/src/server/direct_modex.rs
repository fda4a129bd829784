//! Direct modex: PMIx_Get of the data of a rank on another host, without a fence that has collected
//! it. The PMIx server of the host with the caller reports the request to its shepherd. The server
//! of the other host gets the request as an order, and the answer returns in the same way.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_void};
use std::ptr::slice_from_raw_parts;
use std::time::{Duration, Instant};

use score_proto::ids::ElementIndex;
use score_proto::pmix::PmixReport;

use super::deadlines::Deadline;
use super::{Key, SERVER, Server, lock};
use crate::abi::{ERR_NOT_FOUND, ERR_TIMEOUT, Proc, SUCCESS, Status};
use crate::callers::Caller;

/// A call that waits for the data of a rank.
#[derive(Debug)]
struct Question {
    /// Distinguishes questions about the same rank.
    number: u64,
    caller: Caller,
}

/// The questions that have no answer yet.
#[derive(Debug, Default)]
pub struct ModexQuestions {
    /// The waiting calls, by the rank of another host whose data they request.
    awaited: HashMap<Key, Vec<Question>>,
    /// The number of the last question.
    last_number: u64,
    /// The ranks of this host whose data other hosts have requested.
    searched: HashSet<Key>,
}

impl Server {
    /// Requests the data of `process`, which is on another host, for a process of this host. If
    /// there is a time limit, the call is answered within this limit, because libpmix does not
    /// enforce it.
    ///
    /// # Errors
    /// Returns PMIX_ERR_NOT_FOUND if no other host has this process.
    pub fn request_entries(
        &self,
        process: &Proc,
        caller: Caller,
        time_limit: Option<Duration>,
    ) -> Result<(), Status> {
        let (element, rank) = (self.element_of_remote(process).ok_or(ERR_NOT_FOUND)?, process.rank);
        let (is_first, number) = {
            let mut direct_modex = lock(&self.direct_modex);
            direct_modex.last_number += 1;
            let number = direct_modex.last_number;
            let questions = direct_modex.awaited.entry((element, rank)).or_default();
            questions.push(Question { number, caller });
            (questions.len() == 1, number)
        };
        if is_first {
            self.report(&PmixReport::ModexRequest { element, rank });
        }
        if let Some(time_limit) = time_limit {
            let at = Instant::now() + time_limit;
            self.deadlines.add(Deadline { at, key: (element, rank), number });
        }
        Ok(())
    }

    /// Answers a question whose time limit has passed. A later answer still reaches calls that wait
    /// then.
    pub fn end_question(&self, key: Key, number: u64) {
        let question = {
            let mut direct_modex = lock(&self.direct_modex);
            direct_modex.awaited.get_mut(&key).and_then(|questions| {
                let at = questions.iter().position(|question| question.number == number)?;
                Some(questions.remove(at))
            })
        };
        if let Some(question) = question {
            question.caller.answer(self.functions, Err(ERR_TIMEOUT));
        }
    }

    /// Answers the calls that wait for a rank: with its data, or with the error that there is no
    /// data.
    pub fn answer_request(&self, element: ElementIndex, rank: u32, entries: Option<Vec<u8>>) {
        let questions = lock(&self.direct_modex).awaited.remove(&(element, rank));
        for question in questions.unwrap_or_default() {
            question.caller.answer(self.functions, entries.clone().ok_or(ERR_NOT_FOUND));
        }
    }

    /// Searches for the data of a rank of this host, which another host has requested. Reports the
    /// data when the rank has put it. If `is_last_try` is true, and the rank has put no data yet,
    /// reports this at once.
    pub fn find_entries(&self, element: ElementIndex, rank: u32, is_last_try: bool) {
        let Some(process) = self.process(element, rank) else { return };
        let is_new = lock(&self.direct_modex).searched.insert((element, rank));
        let argument = || Box::into_raw(Box::new((element, rank)));
        if is_new {
            let argument = argument();
            // SAFETY: the function copies the process, and the callback is valid with its argument.
            let status = unsafe {
                (self.functions.dmodex_request)(&process, Some(on_found), argument.cast())
            };
            if status != SUCCESS {
                // SAFETY: libpmix does not call the callback, so nothing else has the pointer.
                drop(unsafe { Box::from_raw(argument) });
                self.end_search((element, rank), None);
            }
        }
        if is_last_try {
            self.after_earlier_calls(on_last_try_over, argument().cast());
        }
    }

    /// Reports the result of a search, unless it was already reported.
    fn end_search(&self, (element, rank): Key, entries: Option<Vec<u8>>) {
        let is_open = lock(&self.direct_modex).searched.remove(&(element, rank));
        if is_open {
            self.report(&PmixReport::ModexAnswer { element, rank, entries });
        }
    }
}

extern "C" fn on_found(status: Status, data: *mut c_char, len: usize, argument: *mut c_void) {
    // SAFETY: `Server::find_entries` has made the argument, and libpmix calls this function at most
    // once.
    let key = unsafe { *Box::from_raw(argument.cast::<Key>()) };
    let entries = match data.is_null() {
        true => Vec::new(),
        // SAFETY: the array has `len` bytes, and libpmix keeps it during the call.
        false => unsafe { &*slice_from_raw_parts(data.cast_const().cast::<u8>(), len) }.to_vec(),
    };
    if let Some(server) = SERVER.get() {
        server.end_search(key, (status == SUCCESS).then_some(entries));
    }
}

extern "C" fn on_last_try_over(_: Status, argument: *mut c_void) {
    // SAFETY: `Server::find_entries` has made the argument, and libpmix calls this function once.
    let key = unsafe { *Box::from_raw(argument.cast::<Key>()) };
    if let Some(server) = SERVER.get() {
        server.end_search(key, None);
    }
}
