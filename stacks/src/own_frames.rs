//! Shows the inside of SCore's shared libraries as one frame: the function that the program or its
//! MPI library has called. Users look for their own functions. Ranks that wait in the same call
//! have equal stacks, although they may be at different places in the library.

use crate::frame::Frame;

/// The beginnings of the file names of SCore's shared libraries.
const OWN_LIBRARIES: [&str; 4] = ["libpm.so", "libscore.so", "libpm-fi", "libscore-"];

/// The name of a thread that only SCore's code runs.
const THREAD_NAME: &str = "communication thread";

/// Replaces each sequence of frames of one of SCore's libraries with the outermost function that
/// has a C name, or else with the outermost one. The first frame is the outermost.
pub fn fold(frames: Vec<Frame>) -> Vec<Frame> {
    let mut folded: Vec<Frame> = Vec::with_capacity(frames.len());
    let mut frames = frames.into_iter().peekable();
    while let Some(frame) = frames.next() {
        let Some(library) = own_library(&frame) else {
            folded.push(frame);
            continue;
        };
        let mut sequence = vec![frame];
        while let Some(next) = frames.next_if(|next| own_library(next).as_ref() == Some(&library)) {
            sequence.push(next);
        }
        let position = sequence.iter().position(has_c_name);
        folded.push(match position {
            None if folded.iter().all(is_thread_start) => Frame::Function {
                name: THREAD_NAME.to_owned(),
                module: library,
                source: None,
                is_inlined: false,
            },
            called => sequence.swap_remove(called.unwrap_or(0)),
        });
    }
    folded
}

/// The library of SCore that has a frame.
fn own_library(frame: &Frame) -> Option<String> {
    let Frame::Function { module, .. } = frame else { return None };
    let is_own = OWN_LIBRARIES.iter().any(|name| module.starts_with(name));
    is_own.then(|| module.clone())
}

/// Whether a frame is one of the C library's, which starts threads.
fn is_thread_start(frame: &Frame) -> bool {
    matches!(frame, Frame::Function { module, .. } if module.starts_with("libc.so"))
}

/// Whether the function can be one of the C interface: the names of Rust have paths.
fn has_c_name(frame: &Frame) -> bool {
    let is_c = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    matches!(frame, Frame::Function { name, is_inlined: false, .. } if name.chars().all(is_c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, module: &str) -> Frame {
        let (name, module) = (name.to_owned(), module.to_owned());
        Frame::Function { name, module, source: None, is_inlined: false }
    }

    #[test]
    fn a_call_into_pm_is_shown_as_one_frame() {
        let frames = vec![
            frame("main", "a.out"),
            frame("MPI_Recv", "libscore-mpi.so"),
            frame("score_mpi::run<{closure#0}>", "libscore-mpi.so"),
            frame("MPI_Recv", "libmpi.so.12"),
            frame("pmReceive", "libpm.so.2"),
            frame("score_pm::context::receive", "libpm.so.2"),
            frame("poll", "libc.so.6"),
        ];
        let expected = vec![
            frame("main", "a.out"),
            frame("MPI_Recv", "libscore-mpi.so"),
            frame("MPI_Recv", "libmpi.so.12"),
            frame("pmReceive", "libpm.so.2"),
            frame("poll", "libc.so.6"),
        ];
        assert_eq!(fold(frames), expected);
    }

    #[test]
    fn a_thread_of_score_has_a_name_and_programs_keep_their_frames() {
        let thread = vec![
            frame("start_thread", "libc.so.6"),
            frame("std::sys::thread_start", "libpm.so.2"),
            frame("score_pm::progress", "libpm.so.2"),
        ];
        let expected = vec![frame("start_thread", "libc.so.6"), frame(THREAD_NAME, "libpm.so.2")];
        assert_eq!(fold(thread), expected);
        let program = vec![frame("a::main", "a.out"), frame("a::f<{closure#0}>", "a.out")];
        assert_eq!(fold(program.clone()), program);
    }
}
