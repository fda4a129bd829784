//! Shows the inside of SCore's code as one frame: the function that the program or its MPI library
//! has called. Users look for their own functions. Ranks that wait in the same call have equal
//! stacks, although they may be at different places in SCore.

use crate::demangle;
use crate::frame::Frame;

/// The beginnings of the file names of SCore's shared libraries.
const OWN_LIBRARIES: [&str; 4] = ["libpm.so", "libscore.so", "libpm-fi", "libscore-"];

/// The crate of `libpm.a`. The names of all other crates begin with [`OWN_PREFIX`].
const PM_CRATE: &str = "pm";
const OWN_PREFIX: &str = "score_";
/// The crates of Rust's standard library.
const STD_CRATES: [&str; 3] = ["core", "alloc", "std"];

/// The name of a thread that only SCore's code runs.
const THREAD_NAME: &str = "communication thread";

/// The origin of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionOrigin {
    /// A shared library of SCore, or a crate of SCore in a program with its static libraries. Also
    /// a function of Rust's standard library that is compiled for types of such a crate.
    Score,
    /// Rust's standard library, in a program.
    Std,
    /// Another crate in a program.
    Crate,
    /// Code in any other language.
    Other,
}

impl FunctionOrigin {
    /// The origin of the function with this symbol in this module.
    pub fn of(module: &str, symbol: Option<&str>) -> Self {
        if OWN_LIBRARIES.iter().any(|name| module.starts_with(name)) {
            return Self::Score;
        }
        let Some(path) = symbol.and_then(demangle::rust) else { return Self::Other };
        // `<dyn a::B as c::D>::e` belongs to the crate a.
        let path = path.trim_start_matches(['<', '&', '*', '(']);
        let path = path.strip_prefix("dyn ").unwrap_or(path);
        let end = path.find(|letter| !is_of_name(letter)).unwrap_or(path.len());
        match &path[..end] {
            name if name == PM_CRATE || name.starts_with(OWN_PREFIX) => Self::Score,
            name if STD_CRATES.contains(&name) => Self::Std,
            _ => Self::Crate,
        }
    }

    /// The origin of a function with this name, if the function into which it is inlined has the
    /// origin `self`.
    pub fn of_inlined(self, name: &str) -> Self {
        let mut words = name.split(|letter| !is_of_name(letter));
        match self {
            Self::Std if words.any(|word| word.starts_with(OWN_PREFIX)) => Self::Score,
            origin => origin,
        }
    }
}

/// Whether a letter can be part of the name of a crate.
fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Replaces each sequence of frames of SCore in one module by one frame. The sequence includes the
/// functions of other crates that SCore calls. The one frame is the outermost function that has a C
/// name, or else the outermost function. The first frame is the outermost.
pub fn fold(frames: Vec<(Frame, FunctionOrigin)>) -> Vec<Frame> {
    let mut folded: Vec<Frame> = Vec::with_capacity(frames.len());
    let mut frames = frames.into_iter().peekable();
    while let Some((frame, origin)) = frames.next() {
        if origin == FunctionOrigin::Other {
            folded.push(frame);
            continue;
        }
        let module = module_of(&frame).map(str::to_owned);
        let mut sequence = vec![(frame, origin)];
        while let Some(next) = frames.next_if(|(next, origin)| {
            *origin != FunctionOrigin::Other && module_of(next) == module.as_deref()
        }) {
            sequence.push(next);
        }
        let first_own = sequence.iter().position(|(_, origin)| *origin == FunctionOrigin::Score);
        let own = sequence.split_off(first_own.unwrap_or(sequence.len()));
        let called = own.iter().position(|(frame, _)| has_c_name(frame));
        let is_thread = !own.is_empty()
            && folded.iter().all(is_thread_start)
            && match sequence.is_empty() {
                true => called.is_none(),
                false => sequence.iter().all(|(_, origin)| *origin == FunctionOrigin::Std),
            };
        if is_thread {
            folded.push(Frame::Function {
                name: THREAD_NAME.to_owned(),
                module: module.unwrap_or_default(),
                source: None,
                is_inlined: false,
            });
        } else {
            folded.extend(sequence.into_iter().map(|(frame, _)| frame));
            folded.extend(own.into_iter().nth(called.unwrap_or(0)).map(|(frame, _)| frame));
        }
    }
    folded
}

fn module_of(frame: &Frame) -> Option<&str> {
    match frame {
        Frame::Function { module, .. } => Some(module),
        _ => None,
    }
}

/// Whether a frame is one of the C library's, which starts threads. The C library may be part of
/// the program.
fn is_thread_start(frame: &Frame) -> bool {
    let is_start = |name: &str| ["clone", "__clone", "clone3", "start_thread"].contains(&name);
    matches!(frame, Frame::Function { name, module, .. }
        if module.starts_with("libc.so") || is_start(name))
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

    /// Folds frames without symbols.
    fn fold_libraries(frames: Vec<Frame>) -> Vec<Frame> {
        let with_origin = |frame: Frame| {
            let origin = FunctionOrigin::of(module_of(&frame).unwrap(), None);
            (frame, origin)
        };
        fold(frames.into_iter().map(with_origin).collect())
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
        assert_eq!(fold_libraries(frames), expected);
    }

    #[test]
    fn a_thread_of_score_has_a_name_and_programs_keep_their_frames() {
        let thread = vec![
            frame("start_thread", "libc.so.6"),
            frame("std::sys::thread_start", "libpm.so.2"),
            frame("score_pm::progress", "libpm.so.2"),
        ];
        let expected = vec![frame("start_thread", "libc.so.6"), frame(THREAD_NAME, "libpm.so.2")];
        assert_eq!(fold_libraries(thread), expected);
        let program = vec![frame("a::main", "a.out"), frame("a::f<{closure#0}>", "a.out")];
        assert_eq!(fold_libraries(program.clone()), program);
    }

    #[test]
    fn the_origin_follows_from_the_library_or_from_the_crate() {
        let origin = |symbol| FunctionOrigin::of("a.out", Some(symbol));
        assert_eq!(origin("_ZN2pm7message7receive17ha0858ef272cb271cE"), FunctionOrigin::Score);
        assert_eq!(origin("_ZN8score_pm6device4poll17ha0858ef272cb271cE"), FunctionOrigin::Score);
        let method =
            "_ZN47_$LT$score_pm..A$u20$as$u20$core..ops..Drop$GT$4drop17ha0858ef272cb271cE";
        assert_eq!(origin(method), FunctionOrigin::Score);
        assert_eq!(origin("_ZN4core3ops8call_one17ha0858ef272cb271cE"), FunctionOrigin::Std);
        assert_eq!(origin("_ZN3nix4poll4poll17ha0858ef272cb271cE"), FunctionOrigin::Crate);
        assert_eq!(origin("_ZN2pm3sumEii"), FunctionOrigin::Other, "C++");
        assert_eq!(origin("pmReceive"), FunctionOrigin::Other);
        let call = "call_once<std::thread::spawn<score_pm::progress::start>, ()>";
        assert_eq!(FunctionOrigin::Std.of_inlined(call), FunctionOrigin::Score);
        assert_eq!(
            FunctionOrigin::Std.of_inlined("call_once<my::the_score, ()>"),
            FunctionOrigin::Std
        );
        assert_eq!(FunctionOrigin::Crate.of_inlined(call), FunctionOrigin::Crate);
        assert_eq!(FunctionOrigin::of("libpm.so.2", None), FunctionOrigin::Score);
        assert_eq!(FunctionOrigin::of("libm.so.6", None), FunctionOrigin::Other);
    }

    #[test]
    fn a_program_with_static_libraries_shows_them_as_one_frame() {
        use FunctionOrigin::{Crate, Other, Score, Std};
        let all = |frames: &[(&str, FunctionOrigin)]| {
            frames.iter().map(|(name, origin)| (frame(name, "a.out"), *origin)).collect()
        };
        let names = |frames: &[(&str, FunctionOrigin)]| -> Vec<String> {
            let name = |frame| match frame {
                Frame::Function { name, .. } => name,
                other => panic!("{other:?}"),
            };
            fold(all(frames)).into_iter().map(name).collect()
        };
        let call = [
            ("main", Other),
            ("pm_receive", Score),
            ("to_errno<pm::{closure#0}>", Score),
            ("poll<score_pm::Wire>", Score),
            ("nix::poll::poll", Crate),
            ("poll", Other),
        ];
        assert_eq!(names(&call), ["main", "pm_receive", "poll"]);
        let thread = [
            ("clone3", Other),
            ("start_thread", Other),
            ("thread_start", Std),
            ("core::ops::FnOnce::call_once", Std),
            ("score_pm::progress", Score),
            ("epoll_wait", Other),
        ];
        assert_eq!(names(&thread), ["clone3", "start_thread", THREAD_NAME, "epoll_wait"]);
        let in_rust = [("std::rt::start", Std), ("my::main", Crate), ("score_pm::send", Score)];
        assert_eq!(names(&in_rust), ["std::rt::start", "my::main", "score_pm::send"]);
        let thread_in_rust = [("start_thread", Other), ("std::x", Std), ("my::f", Crate)];
        assert_eq!(names(&thread_in_rust), ["start_thread", "std::x", "my::f"]);
    }
}
