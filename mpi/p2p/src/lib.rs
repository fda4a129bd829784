//! Point-to-point messages of any length, with tags, over a network whose messages are short and
//! carry no source. This is the protocol of `libpm-fi.so`, the libfabric provider through which MPI
//! libraries use PM.
//!
//! | file | contents |
//! |---|---|
//! | `wire.rs` | message headers |
//! | `matching.rs`, `slots.rs` | matching of messages and receives |
//! | `matching_queues.rs`, `destination.rs` | messages and receives that wait for each other |
//! | `operation.rs`, `network.rs` | requests and results of the program; the network interface |
//! | `engine.rs` | the calls of the program, and progress |
//! | `state.rs`, `completions.rs` | the state of a node, and its completion queue |
//! | `arrivals.rs` | handling of arriving messages |
//! | `transfers.rs` | rendezvous: the state of transfers |
//! | `transfer_protocol.rs` | rendezvous: data that the receiver reads or requests |
//! | `node_queues.rs` | pending work for each node |
//! | `progress.rs` | the part of a transfer that needs the network |
//! | `regions.rs` | memory that is open to other nodes |
//! | `remote_memory.rs` | reads and writes of remote memory |
//! | `atomic.rs`, `remote_atomics.rs` | atomic operations on remote memory |
//! | `transfers/copies.rs` | the limit on copies of messages whose memory the program reuses |
//! | `counts.rs` | the numbers of operations that have ended |
//! | `credit.rs` | the limit on messages that no receive is posted for |
//! | `memory.rs` | the program's memory |
//!
//! A short message is sent at once, with its header, as one message of the network (*eager*). The
//! receiver has to store it if no receive is posted. Each sender therefore has a *credit* of bytes
//! at each receiver. A longer message, or a message without credit, is *announced* by a header
//! alone. When a receive matches the announcement, the receiver reads the data from the sender's
//! memory. If that is not possible, it requests the data in *fragments*. A receiver therefore
//! stores a bounded number of bytes for each sender. The number of announcements, which are short,
//! is not bounded.
//!
//! The network itself reads and writes the memory of another node (manual 3.6), if the region and
//! the buffer are contiguous. The region must also be open for both reading and writing. In other
//! cases, and for atomic operations and writes that carry a number, the origin sends a message. The
//! target executes the request when it makes progress. It first checks the region, its access
//! rights and each address.
//!
//! This crate does not block and makes no system calls: [`Engine`] uses a [`Network`]. Messages of
//! one sender are matched in the order in which they were sent, and receives in the order in which
//! they were posted (MPI 5.0, 3.5).

mod arrivals;
mod atomic;
mod completions;
mod counts;
mod credit;
mod destination;
mod engine;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod matching;
mod matching_queues;
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
mod transfer_protocol;
mod transfers;
pub mod wire;

#[cfg(test)]
mod simulation;

pub use atomic::{Datatype, MAX_ATOMIC_LEN, Operator};
pub use counts::{Count, Counted};
pub use engine::Engine;
#[cfg(any(test, feature = "testing"))]
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
pub use transfers::copies::CopyBudget;
pub use wire::RemoteAddress;
