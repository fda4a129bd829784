//! The ELF notes with which a program declares its resource request (manual 4.1). scrun reads them
//! without running the program.
//!
//! Every note has the owner name `SCore\0` (padded to 8 bytes) and one of the types below. libscore
//! itself contains [`LIBSCORE`]. The macros of `score_resource.h` add the other types. Descriptors
//! are 32-bit words in the byte order of the ELF file.

use thiserror::Error;

/// Section that contains the notes. Linkers put it into a PT_NOTE segment.
pub const SECTION: &str = ".note.score";
/// Owner name as in the note, including its NUL.
pub const OWNER: &[u8] = b"SCore\0";

/// The program is linked with libscore. Descriptor: protocol version.
pub const LIBSCORE: u32 = 1;
/// `SCORE_RSRC_NUM_NODES(MIN, MAX)`. Descriptor: min, max.
pub const NUM_NODES: u32 = 2;
/// `SCORE_RSRC_NUM_PROCS(N)`. Descriptor: n.
pub const NUM_PROCS: u32 = 3;
/// `SCORE_RSRC_NUM_NETS(N)`. Descriptor: n.
pub const NUM_NETS: u32 = 4;
/// `SCORE_RSRC_ZEROCOPY`. Empty descriptor.
pub const ZEROCOPY: u32 = 5;
/// `SCORE_RSRC_HETERO_NODES`. Empty descriptor.
pub const HETERO_NODES: u32 = 6;
/// `SCORE_RSRC_NOCKPT`. Empty descriptor.
pub const NOCKPT: u32 = 7;
/// `SCORE_RSRC_RUN`: scrun runs the program locally to get its request (manual 1.4.2, step 2). The
/// macro is an extension of this project. Empty descriptor.
pub const RUN_LOCALLY: u32 = 8;

/// Length in bytes of the longest request that a locally run program may write to
/// `SCORE_RESOURCE_FD`.
pub const MAX_REQUEST_LEN: usize = 4096;

/// Appends one note in the form in which `score_initialize` writes it to `SCORE_RESOURCE_FD`
/// (manual 1.4.2, step 3): type, number of words, words. All are 32 bits, little-endian.
pub fn write(kind: u32, words: &[u32], out: &mut Vec<u8>) {
    let header = [kind, words.len() as u32];
    out.extend(header.iter().chain(words).flat_map(|word| word.to_le_bytes()));
}

/// The resource request of a program, or of several programs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Whether the program is linked with libscore.
    pub uses_libscore: bool,
    /// Smallest and largest number of nodes.
    pub nodes: (u32, u32),
    /// Number of processes per host, if fixed.
    pub procs: Option<u32>,
    /// Number of network sets.
    pub network_sets: u32,
    /// Whether it needs one-sided communication.
    pub zerocopy: bool,
    /// Whether it may run on hosts of different kinds.
    pub allows_hetero: bool,
    /// Whether it must not be checkpointed.
    pub nockpt: bool,
    /// Whether it has to be run locally to get its request.
    pub run_locally: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            uses_libscore: false,
            nodes: (1, crate::MAX_NODES),
            procs: None,
            network_sets: 1,
            zerocopy: false,
            allows_hetero: false,
            nockpt: false,
            run_locally: false,
        }
    }
}

/// Why a request is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoteError {
    /// A known note has a descriptor of the wrong size.
    #[error("resource note of type {0}: unexpected size of {1} bytes")]
    Size(u32, usize),
    /// A type that this version does not define.
    #[error("resource note of unknown type {0}: the program was built for another SCore")]
    Unknown(u32),
    /// No number of nodes is in the range.
    #[error("SCORE_RSRC_NUM_NODES({0}, {1}): empty range")]
    EmptyNodes(u32, u32),
    /// Two declarations contradict each other.
    #[error(
        "SCORE_RSRC_NUM_NODES({0}, {1}) and SCORE_RSRC_NUM_NODES({2}, {3}) contradict each other"
    )]
    ExclusiveNodes(u32, u32, u32, u32),
    /// Two declarations differ.
    #[error("SCORE_RSRC_NUM_PROCS({0}) and SCORE_RSRC_NUM_PROCS({1}) contradict each other")]
    ExclusiveProcs(u32, u32),
    /// The request of a locally run program is truncated or too long.
    #[error("the resource request of the program is truncated or exceeds {MAX_REQUEST_LEN} bytes")]
    MalformedRequest,
    /// Zero processes per host.
    #[error("SCORE_RSRC_NUM_PROCS(0): must be at least 1")]
    NoProcs,
}

impl Request {
    /// Adds one note. `words` are the descriptor's words in host order.
    ///
    /// # Errors
    /// See [`NoteError`].
    pub fn add(&mut self, kind: u32, words: &[u32]) -> Result<(), NoteError> {
        let size = || NoteError::Size(kind, words.len() * 4);
        match (kind, words) {
            (LIBSCORE, _) => self.uses_libscore = true,
            (NUM_NODES, &[min, max]) => self.limit_nodes(min, max)?,
            (NUM_PROCS, &[n]) => self.fix_procs(n)?,
            (NUM_NETS, &[n]) => self.network_sets = self.network_sets.max(n),
            (ZEROCOPY, &[]) => self.zerocopy = true,
            (HETERO_NODES, &[]) => self.allows_hetero = true,
            (NOCKPT, &[]) => self.nockpt = true,
            (RUN_LOCALLY, &[]) => self.run_locally = true,
            (NUM_NODES..=RUN_LOCALLY, _) => return Err(size()),
            _ => return Err(NoteError::Unknown(kind)),
        }
        Ok(())
    }

    /// Adds the request that a locally run program wrote (see [`write`]).
    ///
    /// # Errors
    /// See [`NoteError`].
    pub fn add_encoded(&mut self, bytes: &[u8]) -> Result<(), NoteError> {
        if bytes.len() > MAX_REQUEST_LEN || !bytes.len().is_multiple_of(4) {
            return Err(NoteError::MalformedRequest);
        }
        let all: Vec<u32> =
            bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut rest = all.as_slice();
        while let [kind, count, tail @ ..] = rest {
            let words = tail.get(..*count as usize).ok_or(NoteError::MalformedRequest)?;
            self.add(*kind, words)?;
            rest = &tail[words.len()..];
        }
        if rest.is_empty() { Ok(()) } else { Err(NoteError::MalformedRequest) }
    }

    fn limit_nodes(&mut self, min: u32, max: u32) -> Result<(), NoteError> {
        if min.max(1) > max {
            return Err(NoteError::EmptyNodes(min, max));
        }
        let (low, high) = self.nodes;
        let narrowed = (low.max(min), high.min(max));
        if narrowed.0 > narrowed.1 {
            return Err(NoteError::ExclusiveNodes(low, high, min, max));
        }
        self.nodes = narrowed;
        Ok(())
    }

    fn fix_procs(&mut self, n: u32) -> Result<(), NoteError> {
        match self.procs {
            _ if n == 0 => Err(NoteError::NoProcs),
            Some(other) if other != n => Err(NoteError::ExclusiveProcs(other, n)),
            _ => {
                self.procs = Some(n);
                Ok(())
            }
        }
    }

    /// The intersection of two requests, which is the request of a job of several programs.
    ///
    /// # Errors
    /// The first limit for which they contradict each other.
    pub fn intersect(&self, other: &Self) -> Result<Self, NoteError> {
        let mut combined = *self;
        combined.limit_nodes(other.nodes.0, other.nodes.1)?;
        if let Some(n) = other.procs {
            combined.fix_procs(n)?;
        }
        combined.uses_libscore |= other.uses_libscore;
        combined.network_sets = combined.network_sets.max(other.network_sets);
        combined.zerocopy |= other.zerocopy;
        combined.allows_hetero &= other.allows_hetero;
        combined.nockpt |= other.nockpt;
        combined.run_locally |= other.run_locally;
        Ok(combined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_declarations_are_intersected() {
        let mut request = Request::default();
        request.add(NUM_NODES, &[2, 16]).unwrap();
        request.add(NUM_NODES, &[4, 64]).unwrap();
        assert_eq!(request.nodes, (4, 16));
        assert_eq!(
            request.add(NUM_NODES, &[17, 20]),
            Err(NoteError::ExclusiveNodes(4, 16, 17, 20))
        );
    }

    #[test]
    fn a_request_is_decoded_unchanged_and_a_truncated_request_is_refused() {
        let mut bytes = Vec::new();
        write(NUM_NODES, &[2, 8], &mut bytes);
        write(NOCKPT, &[], &mut bytes);
        let mut request = Request::default();
        request.add_encoded(&bytes).unwrap();
        assert_eq!((request.nodes, request.nockpt), ((2, 8), true));
        for cut in (1..bytes.len()).filter(|cut| *cut != 16) {
            assert_eq!(
                Request::default().add_encoded(&bytes[..cut]),
                Err(NoteError::MalformedRequest)
            );
        }
        assert_eq!(
            request.add_encoded(&[0; MAX_REQUEST_LEN + 4]),
            Err(NoteError::MalformedRequest)
        );
    }

    #[test]
    fn wrong_sizes_and_unknown_types_are_named() {
        let mut request = Request::default();
        assert_eq!(request.add(NUM_NODES, &[1]), Err(NoteError::Size(NUM_NODES, 4)));
        assert_eq!(request.add(99, &[]), Err(NoteError::Unknown(99)));
        assert_eq!(request.add(NUM_NODES, &[3, 2]), Err(NoteError::EmptyNodes(3, 2)));
        assert_eq!(request.add(NUM_PROCS, &[0]), Err(NoteError::NoProcs));
    }

    #[test]
    fn each_note_changes_its_part_of_the_request() {
        let mut request = Request::default();
        for (kind, words) in [
            (LIBSCORE, &[crate::PROTOCOL_VERSION][..]),
            (NUM_PROCS, &[4]),
            (NUM_PROCS, &[4]),
            (NUM_NETS, &[2]),
            (ZEROCOPY, &[]),
            (HETERO_NODES, &[]),
            (NOCKPT, &[]),
            (RUN_LOCALLY, &[]),
        ] {
            request.add(kind, words).unwrap();
        }
        let expected = Request {
            uses_libscore: true,
            nodes: (1, crate::MAX_NODES),
            procs: Some(4),
            network_sets: 2,
            zerocopy: true,
            allows_hetero: true,
            nockpt: true,
            run_locally: true,
        };
        assert_eq!(request, expected);
        assert_eq!(request.add(NUM_PROCS, &[5]), Err(NoteError::ExclusiveProcs(4, 5)));
    }

    #[test]
    fn a_range_of_nodes_may_contain_one_number_and_is_never_empty() {
        let mut request = Request::default();
        request.add(NUM_NODES, &[4, 16]).unwrap();
        request.add(NUM_NODES, &[16, 20]).unwrap();
        assert_eq!(request.nodes, (16, 16));
        assert_eq!(request.add(NUM_NODES, &[16, 16]), Ok(()));
        assert_eq!(request.add(NUM_NODES, &[0, 0]), Err(NoteError::EmptyNodes(0, 0)));
    }

    #[test]
    fn the_longest_encoded_request_is_accepted() {
        let mut bytes = Vec::new();
        while bytes.len() < MAX_REQUEST_LEN {
            write(NOCKPT, &[], &mut bytes);
        }
        assert_eq!(bytes.len(), MAX_REQUEST_LEN);
        assert_eq!(Request::default().add_encoded(&bytes), Ok(()));
    }

    #[test]
    fn a_job_of_several_programs_has_the_limits_of_each_of_them() {
        let first = Request {
            uses_libscore: true,
            nodes: (2, 8),
            zerocopy: true,
            allows_hetero: true,
            nockpt: true,
            run_locally: true,
            ..Request::default()
        };
        let second =
            Request { nodes: (4, 64), procs: Some(3), network_sets: 2, ..Request::default() };
        let both = Request {
            nodes: (4, 8),
            procs: Some(3),
            network_sets: 2,
            allows_hetero: false,
            ..first
        };
        assert_eq!(first.intersect(&second), Ok(both));
        assert_eq!(second.intersect(&first), Ok(both));
        let third = Request { procs: Some(2), ..second };
        assert_eq!(second.intersect(&third), Err(NoteError::ExclusiveProcs(3, 2)));
    }
}
