//! Text that processes log by PMIx_Log. Open MPI 5 prints its help and its error messages in this
//! way. The text goes to the standard error of the job, by the standard output of this process. A
//! separate thread writes it, because the reader of the job's output may be slow.

use std::ffi::{CStr, c_void};
use std::io::Write;
use std::ptr::slice_from_raw_parts;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::abi::{Info, OpCallback, Proc, SUCCESS, TYPE_STRING};
use crate::keys;
use crate::library::c_text;

/// A call of PMIx_Log.
struct LogCall {
    text: String,
    callback: OpCallback,
    /// The argument of the callback: a pointer of libpmix.
    argument: *mut c_void,
}

// SAFETY: libpmix accepts answers from any thread, and the pointer is only passed back to libpmix.
unsafe impl Send for LogCall {}

/// Takes the text that a process logs, and answers when it is written. It cannot write the text
/// itself: libpmix holds a lock during this call that the answer needs.
pub extern "C" fn log(
    _: *const Proc,
    data: *const Info,
    count: usize,
    _: *const Info,
    _: usize,
    callback: Option<OpCallback>,
    argument: *mut c_void,
) {
    static WRITER: OnceLock<Sender<LogCall>> = OnceLock::new();
    let Some(callback) = callback else { return };
    let infos: &[Info] = match data.is_null() {
        true => &[],
        // SAFETY: the array has `count` elements, and libpmix keeps it until the call is answered.
        false => unsafe { &*slice_from_raw_parts(data, count) },
    };
    let text = infos.iter().filter_map(text_of).collect();
    let writer = WRITER.get_or_init(|| {
        let (sender, receiver) = channel();
        std::thread::spawn(move || write_all(receiver));
        sender
    });
    // The thread runs until the process ends.
    let _ = writer.send(LogCall { text, callback, argument });
}

/// The text of an element, with a final newline. None: the element is not text to print.
fn text_of(info: &Info) -> Option<String> {
    let key = CStr::from_bytes_until_nul(&info.key).ok()?.to_str().ok()?;
    if ![keys::LOG_STDERR, keys::LOG_STDOUT].contains(&key) || info.value.kind != TYPE_STRING {
        return None;
    }
    // SAFETY: a value of this type is a null pointer or a pointer to a C string.
    let mut text = unsafe { c_text(info.value.data.text) };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Some(text)
}

fn write_all(calls: Receiver<LogCall>) {
    for LogCall { text, callback, argument } in calls {
        // If nothing reads the job's standard error, the text is lost, like the output of a
        // process.
        let _ = std::io::stdout().write_all(text.as_bytes());
        let _ = std::io::stdout().flush();
        callback(SUCCESS, argument);
    }
}
