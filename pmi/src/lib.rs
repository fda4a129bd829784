//! PMI, the process management interface by which MPICH and libraries derived from it start. A
//! process gets its rank from its launcher, and processes exchange their addresses through a
//! key-value space. This crate implements the launcher's side of versions 1 and 2, without I/O.
//!
//! | file | contents |
//! |---|---|
//! | `wire.rs` | messages as they are on the socket of a process |
//! | `key_values.rs` | the key-value space of a job, and the bytes that a fence transports |
//! | `request.rs` | the request in a message, independent of the version |
//! | `host.rs` | the processes of one host: requests, fences, attributes of the node |
//!
//! Every process of a job is considered hostile until its message was checked. Lengths and the size
//! of the whole space are bounded.
#![forbid(unsafe_code)]

pub mod host;
pub mod key_values;
pub mod request;
pub mod wire;

/// Parses hostile bytes as messages of a process, and as entries of a fence.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    host::fuzz(bytes);
    key_values::fuzz(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_is_read_without_a_panic() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/pmi");
        let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
        assert!(inputs.len() > 10);
        inputs.iter().for_each(|input| super::fuzz(&std::fs::read(input.path()).unwrap()));
    }
}
