//! Commands in their form in C: their data have the layout of score_tools.h.

// UNSAFETY: reads and writes structures of C.
#![expect(unsafe_code)]

use std::ffi::c_void;

use score_tools::wire::{
    Command, CommandKind, CommandRequest, CommandSet, MAX_COMMANDS, ReadError, result_data,
};

use crate::bytes;
use crate::connection::Connection;
use crate::failure::Failure;

/// struct score_toolctl_command.
#[repr(C)]
pub struct CommandOfC {
    kind: u16,
    reserved: u16,
    return_code: u32,
    request: *const c_void,
    request_len: usize,
    answer: *const c_void,
    answer_len: usize,
}

// The offsets in score_toolctl.h are the same; ffi-c/tests compares them with these numbers.
const _: () = {
    assert!(size_of::<CommandOfC>() == 40);
    assert!(std::mem::offset_of!(CommandOfC, return_code) == 4);
    assert!(std::mem::offset_of!(CommandOfC, request) == 8);
    assert!(std::mem::offset_of!(CommandOfC, request_len) == 16);
    assert!(std::mem::offset_of!(CommandOfC, answer) == 24);
    assert!(std::mem::offset_of!(CommandOfC, answer_len) == 32);
};

/// Decodes a command from data that begin with the thread id.
fn command(number: u16, set: CommandSet, data: &[u8]) -> Result<Command<'_>, Failure> {
    let kind = CommandKind::from_number(number).filter(|kind| kind.set() == set);
    let kind = kind.ok_or(Failure::Argument(
        "this message has no command of this kind: see SCORE_TOOLS_CMD_*",
    ))?;
    let thread = data.first_chunk().map(|thread| u32::from_ne_bytes(*thread));
    let request = CommandRequest::read(kind, data).map_err(|error| match error {
        ReadError::Short => {
            "the data of a command are shorter than its structure, or than its count"
        }
        ReadError::Value(_) => "a member of a command's data has an invalid value",
    });
    match (thread, request) {
        (Some(thread), Ok(request)) => Ok(Command { thread, request }),
        (_, Err(problem)) => Err(Failure::Argument(problem)),
        (None, _) => Err(Failure::Argument("the data of a command must begin with the thread id")),
    }
}

impl Connection {
    /// Carries out commands of C, and stores their codes and answers in them.
    ///
    /// # Safety
    /// `request` of each command points to `request_len` bytes, or is NULL.
    pub unsafe fn carry_out_for_c(
        &mut self,
        rank: u32,
        set: CommandSet,
        commands: &mut [CommandOfC],
    ) -> Result<(), Failure> {
        if !(1..=MAX_COMMANDS).contains(&commands.len()) {
            return Err(Failure::Argument("a message has 1 to 16 commands"));
        }
        let mut list = Vec::new();
        for one in commands.iter_mut() {
            (one.answer, one.answer_len) = (std::ptr::null(), 0);
            // SAFETY: the rule of this function.
            let data = unsafe { bytes(one.request.cast(), one.request_len) };
            let data = data.ok_or(Failure::Argument("the data of a command are NULL"))?;
            list.push(command(one.kind, set, data)?);
        }
        let record = self.carry_out(rank, set, &list)?;
        let start = record.as_ptr().addr();
        let results = result_data(&record).map_err(|_| self.wrong_answer())?;
        let places: Vec<(u32, usize, usize)> = results
            .iter()
            .map(|(code, data)| (*code, data.as_ptr().addr().wrapping_sub(start), data.len()))
            .collect();
        let given = self.give(&record);
        for (one, (code, offset, len)) in commands.iter_mut().zip(places) {
            one.return_code = code;
            if len > 0 {
                // `result_data` has checked that the data are within the record.
                one.answer = given.wrapping_add(offset).cast();
                one.answer_len = len;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use score_tools::wire::NoData;

    use super::*;

    #[test]
    fn data_of_c_are_checked() {
        let thread = 7u32.to_ne_bytes();
        let hold = CommandKind::HoldThread.number();
        let read = command(hold, CommandSet::Update, &thread).unwrap();
        assert_eq!(read, Command { thread: 7, request: CommandRequest::HoldThread(NoData {}) });
        assert!(command(hold, CommandSet::Query, &thread).is_err());
        assert!(command(hold, CommandSet::Update, &thread[..3]).is_err());
        assert!(command(hold + 1, CommandSet::Update, &thread).is_err());
        let get = CommandKind::GetMemory.number();
        assert!(command(get, CommandSet::Query, &[0; 23]).is_err());
        // An invalid value of an enum.
        assert!(command(get, CommandSet::Query, &[9; 24]).is_err());
        // The count is larger than the number of bytes.
        let mut set = [0; 32];
        set[16..20].copy_from_slice(&5u32.to_ne_bytes());
        let number = CommandKind::SetMemory.number();
        assert!(command(number, CommandSet::Update, &set).is_err());
        set[16..20].copy_from_slice(&4u32.to_ne_bytes());
        assert!(command(number, CommandSet::Update, &set).is_ok());
    }
}
