//! Point-to-point messages of any length, with tags, over a network whose messages are short and
//! have no source. It is the protocol of `libpm-fi.so`, the provider of libfabric through which MPI
//! libraries use PM.
//!
//! | file | what is in it |
//! |---|---|
//! | `wire.rs` | the headers of messages |
//! | `matching.rs`, `slots.rs` | which receive a message belongs to |
//! | `operation.rs`, `network.rs` | what a program asks for and is told; the network that is used |
//! | `engine.rs` | the calls of the program, and progress |
//! | `state.rs`, `completions.rs` | the state of a node, and what has completed there |
//! | `arrivals.rs` | what an arriving message causes |
//! | `transfers.rs` | rendezvous: data that the receiver reads, or asks for |
//! | `progress.rs` | the part of it that needs the network |
//! | `regions.rs` | memory that is open to other nodes |
//! | `remote_memory.rs` | reads and writes of it |
//! | `atomic.rs`, `remote_atomics.rs` | atomic operations on it |
//! | `copies.rs` | how much is kept of messages whose memory the program uses again |
//! | `counts.rs` | how many operations have ended |
//! | `credit.rs` | how much a sender may send that nobody waits for |
//! | `memory.rs` | the program's memory |
//!
//! A short message goes at once, with its header, as one message of the network (*eager*), as long
//! as its receiver has room for it if no receive is posted: each sender has a *credit* of bytes
//! there. A longer message, or one without credit, is *announced* by a header alone. When a receive
//! matches it, the receiver reads the data from the sender's memory, or, where that is not
//! possible, asks for it in *fragments*. So a receiver keeps a bounded number of bytes for each
//! sender, and any number of announcements, which are short.
//!
//! Memory of another node is read and written by the network itself (manual 3.6), if the region
//! and the buffer are in one piece. Otherwise, and for atomic operations and writes that carry a
//! number, the origin sends a message, and the target does what it asks for when it makes
//! progress. The target checks the region, its access rights and each address first.
//!
//! Nothing here waits, and nothing calls the system: [`Engine`] uses a [`Network`]. Messages of one
//! sender are matched in the order in which they were sent, and receives in the order in which they
//! were posted (MPI 5.0, 3.5).

mod arrivals;
mod atomic;
mod completions;
mod copies;
mod counts;
mod credit;
mod engine;
mod fuzz;
mod matching;
mod memory;
mod network;
mod node_queues;
mod operation;
mod progress;
mod regions;
mod remote_atomics;
mod remote_memory;
mod slots;
mod state;
mod transfers;
pub mod wire;

#[cfg(test)]
mod simulation;

pub use atomic::{Datatype, MAX_ATOMIC_LEN, Operator};
pub use copies::CopyBudget;
pub use counts::{Count, Counted};
pub use engine::Engine;
#[doc(hidden)]
pub use fuzz::fuzz;
pub use memory::{MAX_SEGMENTS, Message, Payload, UserBuffer};
pub use network::{
    AccessError, AccessNumber, Body, EndedAccess, HANDLE_OFFSET_BITS, Network, SendError,
    WriteProgress,
};
pub use operation::{
    AtomicOperation, Channel, Completion, CompletionKind, Failure, Limits, Peek, PeekMode,
    ReadOperation, ReceiveMode, ReceiveOperation, Request, Retention, Selector, SendCompletes,
    SendOperation, Violation, WriteOperation,
};
pub use regions::{RegionAccess, Regions};
pub use wire::RemoteAddress;
