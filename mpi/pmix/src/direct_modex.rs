//! What one rank has put, for a rank of another host: PMIx_Get without a fence that has collected
//! it ("direct modex"). The helper of the first host reports the question; it comes to the helper
//! of the second as an order, and the answer goes back in the same way.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_void};
use std::ptr::slice_from_raw_parts;
use std::time::{Duration, Instant};

use score_proto::pmix::PmixReport;

use crate::abi::{ERR_NOT_FOUND, ERR_TIMEOUT, Proc, SUCCESS, Status};
use crate::callers::Caller;
use crate::deadlines::Deadline;
use crate::server::{SERVER, Server, lock};

/// A parallel process and a rank of it.
pub type Key = (u32, u32);

/// A call that waits for what a rank has put.
#[derive(Debug)]
struct Question {
    /// Tells questions about one rank apart.
    number: u64,
    caller: Caller,
}

/// The questions that are not answered yet.
#[derive(Debug, Default)]
pub struct ModexQuestions {
    /// Ranks of other hosts, and the calls that wait for what they have put.
    awaited: HashMap<Key, Vec<Question>>,
    /// The number of the last question.
    last_number: u64,
    /// Ranks of this host for which other hosts have asked.
    searched: HashSet<Key>,
}

impl Server {
    /// A process of this host wants what `process` of another host has put, within this time if
    /// there is one. libpmix leaves the time to its host.
    ///
    /// # Errors
    /// PMIX_ERR_NOT_FOUND: no other host has this process.
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

    /// The time of a question is over. An answer that comes later goes to those that wait then.
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

    /// The host of a rank has answered: with what the rank has put, or that there is nothing.
    pub fn answer_request(&self, element: u32, rank: u32, entries: Option<Vec<u8>>) {
        let questions = lock(&self.direct_modex).awaited.remove(&(element, rank));
        for question in questions.unwrap_or_default() {
            question.caller.answer(self.functions, entries.clone().ok_or(ERR_NOT_FOUND));
        }
    }

    /// Another host asks for what a rank of this host has put. It is reported when the rank has put
    /// something. `is_last_try`: it is reported now that there is nothing, if that is so.
    pub fn find_entries(&self, element: u32, rank: u32, is_last_try: bool) {
        let Some(process) = self.process(element, rank) else { return };
        let is_new = lock(&self.direct_modex).searched.insert((element, rank));
        let argument = || Box::into_raw(Box::new((element, rank)));
        if is_new {
            let argument = argument();
            // SAFETY: a process, which is copied, and a callback with its argument.
            let status = unsafe {
                (self.functions.dmodex_request)(&process, Some(on_found), argument.cast())
            };
            if status != SUCCESS {
                // SAFETY: the callback is not called, so that nothing else has the pointer.
                drop(unsafe { Box::from_raw(argument) });
                self.end_search((element, rank), None);
            }
        }
        if is_last_try {
            self.after_earlier_calls(on_last_try_over, argument().cast());
        }
    }

    /// Reports the result of a search, if it is not over yet.
    fn end_search(&self, (element, rank): Key, entries: Option<Vec<u8>>) {
        let is_open = lock(&self.direct_modex).searched.remove(&(element, rank));
        if is_open {
            self.report(&PmixReport::ModexAnswer { element, rank, entries });
        }
    }
}

extern "C" fn on_found(status: Status, data: *mut c_char, len: usize, argument: *mut c_void) {
    // SAFETY: made by `Server::find_entries`. libpmix calls this once at most.
    let key = unsafe { *Box::from_raw(argument.cast::<Key>()) };
    let entries = match data.is_null() {
        true => Vec::new(),
        // SAFETY: an array of so many bytes, which libpmix keeps during the call.
        false => unsafe { &*slice_from_raw_parts(data.cast_const().cast::<u8>(), len) }.to_vec(),
    };
    if let Some(server) = SERVER.get() {
        server.end_search(key, (status == SUCCESS).then_some(entries));
    }
}

extern "C" fn on_last_try_over(_: Status, argument: *mut c_void) {
    // SAFETY: made by `Server::find_entries`. libpmix calls this once.
    let key = unsafe { *Box::from_raw(argument.cast::<Key>()) };
    if let Some(server) = SERVER.get() {
        server.end_search(key, None);
    }
}
