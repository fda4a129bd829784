//! `libpm-fi.so`: a libfabric provider (fi_provider(7)). MPI libraries that use libfabric send and
//! receive through PM with it, unchanged: MPICH with its netmod `ofi`, Open MPI with its MTL `ofi`.
//!
//! | file | contents |
//! |---|---|
//! | `abi.rs` | libfabric's binary interface |
//! | `entry_point.rs`, `library.rs` | the entry point, and the libfabric that has called it |
//! | `properties.rs` | the name and the limits of the provider |
//! | `job.rs` | whether this process is in a job, and whether its MPI library is MPICH |
//! | `info.rs` | the capabilities of the provider: fi_getinfo(3) |
//! | `fabric.rs` | fabrics, event queues, fi_trywait(3) |
//! | `domain_calls.rs`, `domain.rs` | domains, from which the other objects are opened |
//! | `address_vector.rs`, `addresses.rs` | addresses: fi_av(3) |
//! | `completion_queue.rs` | completion queues: fi_cq(3) |
//! | `counter.rs` | counters: fi_cntr(3) |
//! | `waiting.rs` | waiting without polling |
//! | `endpoint_calls.rs`, `endpoint.rs` | endpoints and their options: fi_endpoint(3) |
//! | `tagged.rs`, `untagged.rs`, `messages.rs` | messages: fi_tagged(3), fi_msg(3) |
//! | `memory_region.rs`, `remote_memory.rs` | remote memory: fi_mr(3), fi_rma(3) |
//! | `atomics.rs` | atomic operations on remote memory: fi_atomic(3) |
//! | `earlier_looks.rs` | why the first peek finds no message |
//! | `own_messages.rs` | why some messages wait for the next read of a completion queue |
//! | `kernel_symbols.rs` | hides /proc/kallsyms from libfabric during its start |
//! | `idle_mark.rs` | idle flags of threads that wait |
//! | `deadlock_signal.rs` | the signal of a deadlock, which requests a debugger |
//! | `core_state.rs` | the state of all objects: engines of the protocol, queues |
//! | `core_state/` | the values of counters, and the descriptors to wait on |
//! | `endpoint_network.rs` | the PM context, which endpoints share |
//! | `pm_network.rs`, `pm_h.rs` | PM, by its C functions |
//! | `accesses.rs`, `pm_network/pm_accesses.rs` | accesses by PM, and when they have ended |
//! | `serialized.rs` | the lock around the state |
//!
//! An address consists of a node number and an endpoint number. Only endpoints with the same number
//! can reach each other, because the processes of a job open their endpoints in the same order. The
//! program's calls make progress (`FI_PROGRESS_MANUAL`), in particular reads of a completion queue.
//! The crate `score-p2p` implements the protocol.

// UNSAFETY: every function is called by C, with addresses of its objects.
#![expect(unsafe_code)]

mod abi;
mod accesses;
mod address_vector;
mod addresses;
mod atomics;
mod completion_queue;
mod core_state;
mod counter;
mod deadlock_signal;
mod domain;
mod domain_calls;
mod earlier_looks;
mod endpoint;
mod endpoint_calls;
mod endpoint_network;
mod entry_point;
mod fabric;
mod idle_mark;
mod info;
mod job;
mod kernel_symbols;
mod library;
mod memory_region;
mod messages;
mod op_table;
mod own_messages;
mod pm_h;
mod pm_network;
mod properties;
mod remote_memory;
mod serialized;
mod tagged;
mod untagged;
mod waiting;

/// The return value for a failure: libfabric's functions return negative error numbers.
const fn failed(error: i32) -> i32 {
    -error
}

/// The return value for a failure of a function that returns a length.
const fn failed_call(error: i32) -> isize {
    -(error as isize)
}
