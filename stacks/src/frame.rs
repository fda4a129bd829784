//! Named frames and stacks, in the form in which they are compared, sent and displayed.

use serde::{Deserialize, Serialize};

/// Maximum number of frames of a stack that is sent.
pub const MAX_STACK_FRAMES: usize = 512;
/// Maximum length of an encoded stack in bytes.
pub const MAX_ENCODED_LEN: usize = 1 << 20;

/// A location in the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceLine {
    /// The path of the file that the compiler has recorded.
    pub file: String,
    /// The line.
    pub line: u32,
}

/// One frame. It leaves out data that differ between processes but have no significance for the
/// program. Corresponding frames of many processes are therefore equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// A function that has a name.
    Function {
        /// Its name in the source.
        name: String,
        /// The file of the program or library.
        module: String,
        /// The source line, if it is known and requested.
        source: Option<SourceLine>,
        /// Whether the compiler has inlined it into the surrounding function.
        is_inlined: bool,
    },
    /// Code without a name.
    Address {
        /// The file, or the memory region.
        module: String,
        /// The link-time address in the file, or the offset in the region.
        offset: u64,
    },
    /// An address outside all mappings. The address differs between processes, so it is not stored.
    Unmapped,
    /// A signal interrupted the next outer frame.
    Signal,
    /// This number of frames was left out.
    Omitted(u64),
    /// The stack or the unwind tables do not lead to a further outer frame.
    Broken,
    /// The stack is longer than the part that is copied.
    Truncated,
    /// The thread could not be stopped.
    NotStopped,
    /// The tree has no room for the inner frames.
    Cut,
}

/// The parts of a frame that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// The function.
    #[default]
    Functions,
    /// The function and the line.
    Lines,
}

/// The stack of one thread, the outermost frame first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// Its frames.
    pub frames: Vec<Frame>,
}

/// The reason why bytes are not a valid stack, or a stack cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// The bytes are not a stack, or there are further bytes after it.
    #[error("{len} bytes are not an encoded stack: the sender has another version; update it")]
    Malformed {
        /// The number of bytes.
        len: usize,
    },
    /// The stack has too many frames or bytes.
    #[error(
        "a stack of {frames} frames and {len} bytes exceeds the limits of {MAX_STACK_FRAMES} \
         frames and {MAX_ENCODED_LEN} bytes"
    )]
    TooLong {
        /// The number of frames, or 0 if they were not decoded.
        frames: usize,
        /// The number of bytes.
        len: usize,
    },
}

impl Stack {
    /// Encodes the stack. Equal stacks have equal bytes, on every host.
    ///
    /// # Errors
    /// Returns an error if the stack has too many frames or bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StackError> {
        let frames = self.frames.len();
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        if frames > MAX_STACK_FRAMES || bytes.len() > MAX_ENCODED_LEN || bytes.is_empty() {
            return Err(StackError::TooLong { frames, len: bytes.len() });
        }
        Ok(bytes)
    }

    /// Decodes a stack. The bytes are not trusted.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a stack, or if the stack exceeds the limits.
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
            Self::Broken => write!(f, "... the next frame cannot be found"),
            Self::Truncated => write!(f, "... the stack has more frames"),
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
    fn a_stack_is_encoded_and_decoded_unchanged() {
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
