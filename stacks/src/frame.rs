//! Named frames and stacks, in the form in which they are compared, sent and shown.

use serde::{Deserialize, Serialize};

/// Most frames of a stack that is sent.
pub const MAX_STACK_FRAMES: usize = 512;
/// Longest encoded stack.
pub const MAX_ENCODED_LEN: usize = 1 << 20;

/// A place in the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceLine {
    /// The file, as the compiler had it.
    pub file: String,
    /// The line.
    pub line: u32,
}

/// One frame, without what differs from process to process for no reason of the program: equal
/// frames of many processes are equal here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// A function that has a name.
    Function {
        /// Its name in the source.
        name: String,
        /// The file of the program or library.
        module: String,
        /// The line, if it is known and asked for.
        source: Option<SourceLine>,
        /// Whether the compiler put it into the function around it.
        is_inlined: bool,
    },
    /// Code without a name.
    Address {
        /// The file, or the region of memory.
        module: String,
        /// The address in the file's own numbering, or the offset in the region.
        offset: u64,
    },
    /// A place without a mapping; addresses differ between processes, and are not shown.
    Unmapped,
    /// A signal interrupted the frame outside of this one.
    Signal,
    /// So many frames were left out.
    Omitted(u64),
    /// Stack or unwind tables lead no further outwards.
    Broken,
    /// The stack is longer than what is copied of one.
    Truncated,
    /// The thread could not be stopped.
    NotStopped,
    /// A tree has no room for the frames further inwards.
    Cut,
}

/// How much of a frame takes part in comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// The function.
    #[default]
    Functions,
    /// Function and line.
    Lines,
}

/// The stack of one thread, the outermost frame first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// Its frames.
    pub frames: Vec<Frame>,
}

/// Why bytes are not a stack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// The bytes are not a stack, or have a rest.
    #[error("{len} bytes are no encoded stack: the sender has another version; update it")]
    Malformed {
        /// How many bytes there are.
        len: usize,
    },
    /// More frames or bytes than a stack may have.
    #[error(
        "a stack of {frames} frames and {len} bytes: {MAX_STACK_FRAMES} and {MAX_ENCODED_LEN} \
             at most may be sent; shorten it"
    )]
    TooLong {
        /// How many frames it has; 0 if they were not read.
        frames: usize,
        /// How many bytes it has.
        len: usize,
    },
}

impl Stack {
    /// The compact form. Equal stacks have equal bytes, on whatever host they were taken.
    ///
    /// # Errors
    /// If the stack has too many frames, or takes too many bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StackError> {
        let frames = self.frames.len();
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        if frames > MAX_STACK_FRAMES || bytes.len() > MAX_ENCODED_LEN || bytes.is_empty() {
            return Err(StackError::TooLong { frames, len: bytes.len() });
        }
        Ok(bytes)
    }

    /// The stack of bytes that come from elsewhere.
    ///
    /// # Errors
    /// If they are no stack, or one beyond the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, StackError> {
        let len = bytes.len();
        if len > MAX_ENCODED_LEN {
            return Err(StackError::TooLong { frames: 0, len });
        }
        match postcard::take_from_bytes::<Self>(bytes) {
            Ok((stack, [])) if stack.frames.len() <= MAX_STACK_FRAMES => Ok(stack),
            Ok((stack, [])) => Err(StackError::TooLong { frames: stack.frames.len(), len }),
            _ => Err(StackError::Malformed { len }),
        }
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Function { name, module, source, is_inlined } => {
                write!(f, "{name}")?;
                match source {
                    Some(SourceLine { file, line }) => {
                        write!(f, " at {}:{line}", file.rsplit('/').next().unwrap_or(file))?;
                    }
                    None => write!(f, " in {module}")?,
                }
                if *is_inlined { write!(f, " [inlined]") } else { Ok(()) }
            }
            Self::Address { module, offset } => write!(f, "{module}+{offset:#x}"),
            Self::Unmapped => write!(f, "[no code]"),
            Self::Signal => write!(f, "[signal]"),
            Self::Omitted(1) => write!(f, "... 1 frame left out"),
            Self::Omitted(count) => write!(f, "... {count} frames left out"),
            Self::Broken => write!(f, "... the stack leads no further"),
            Self::Truncated => write!(f, "... the stack is longer"),
            Self::NotStopped => write!(f, "... the thread could not be stopped"),
            Self::Cut => write!(f, "... too many different frames"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack() -> Stack {
        let source = Some(SourceLine { file: "/src/heat.f90".to_owned(), line: 7 });
        let (name, module) = ("heat::sweep".to_owned(), "heat".to_owned());
        let function = Frame::Function { name, module, source, is_inlined: true };
        Stack { frames: vec![Frame::Truncated, function, Frame::Omitted(3), Frame::Signal] }
    }

    #[test]
    fn a_stack_travels_in_bytes() {
        let bytes = stack().encode().unwrap();
        assert!(bytes.len() < 50, "{}", bytes.len());
        assert_eq!(Stack::decode(&bytes), Ok(stack()));
        assert_eq!(stack().encode().unwrap(), bytes);
    }

    #[test]
    fn bytes_that_are_no_stack_are_refused() {
        let bytes = stack().encode().unwrap();
        for len in 0..bytes.len() {
            assert_eq!(Stack::decode(&bytes[..len]), Err(StackError::Malformed { len }));
        }
        let with_rest = [bytes.as_slice(), &[0]].concat();
        assert!(Stack::decode(&with_rest).is_err());
        assert!(Stack::decode(&[0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
        assert!(Stack::decode(&vec![0; MAX_ENCODED_LEN + 1]).is_err());
    }

    #[test]
    fn a_stack_beyond_the_limits_is_not_sent() {
        let deep = Stack { frames: vec![Frame::Signal; MAX_STACK_FRAMES + 1] };
        assert!(deep.encode().is_err());
        assert!(Stack::decode(&postcard::to_stdvec(&deep).unwrap()).is_err());
        let module = "x".repeat(MAX_ENCODED_LEN);
        let long = Stack { frames: vec![Frame::Address { module, offset: 0 }] };
        assert!(long.encode().is_err());
    }

    #[test]
    fn a_frame_is_shown_in_one_line() {
        let lines: Vec<String> = stack().frames.iter().map(ToString::to_string).collect();
        assert_eq!(lines[1], "heat::sweep at heat.f90:7 [inlined]");
        assert_eq!(lines[2], "... 3 frames left out");
    }
}
